//! From what was read of a body to a request that the engine takes, and the plan of its answer.

use std::sync::Arc;

use engine::RawRequest;
use transport::error::{ApiError, ApiResult};

use super::{PreparedRequest, ResponsePlan, ResponseWriter};
use crate::app::App;
use crate::conversation::ToolOptions;

impl PreparedRequest {
    /// One request with its prompt and form settled, past the engine's door. `conversation`: how its model may think and
    /// call tools, where the answer is told apart; `rename`: an error in the words of the API. Tokenizes.
    pub(crate) fn of_one(
        app: &App,
        mut raw: RawRequest,
        conversation: Option<ToolOptions>,
        mut plan: ResponsePlan,
        writer: Arc<dyn ResponseWriter>,
        rename: impl Fn(ApiError) -> ApiError,
    ) -> ApiResult<PreparedRequest> {
        let asked = raw.max_tokens;
        if let Some(tool_options) = conversation {
            let settled = app.model.tool_format.settle(&mut raw, tool_options, app.engine.model());
            plan.output_parser = settled.map_err(&rename)?;
        }
        let request = app.validate(raw, &plan.delivery.model).map_err(|rejection| rename(rejection.into()))?;
        plan.delivery.adjustments.see(asked, &request);
        Ok(PreparedRequest { requests: vec![request], plan, writer })
    }
}
