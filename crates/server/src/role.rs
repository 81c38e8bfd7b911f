//! Whose requests this worker takes, asked and changed while it runs: where several share the work, a controller that
//! watches their metrics moves them between reading and answering. What was taken before goes on.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use engine::{Role, RoleError};
use serde_json::{Value, json};
use transport::auth::Right;
use transport::error::ApiError;
use transport::fields::Fields;
use transport::json::json_body;

use crate::app::App;
use crate::ask::JsonRequest;
use crate::openai::shapes;

/// `GET /role`. Of a server that shares no work it is `both`: it takes all that come.
pub(crate) async fn show(State(app): State<Arc<App>>) -> Response {
    json_body(json!({ "role": app.engine.stats().handoffs.role.name() }).to_string())
}

/// `POST /role`.
pub(crate) async fn change(mut request: JsonRequest) -> Result<Response, ApiError> {
    request.app.keys.check(Right::Role, request.caller.tenant.as_ref())?;
    let role = request.read(|body, _| read(body)).await?;
    request.app.engine.set_role(role).map_err(refused)?;
    Ok(show(State(request.app)).await)
}

fn read(body: Value) -> Result<Role, ApiError> {
    let mut fields = Fields::of(body, &shapes::ROLE)?;
    let name = fields.text("role")?;
    fields.finish()?;
    Ok(Role::ALL.into_iter().find(|role| role.name() == name).expect("the table has the names of all"))
}

fn refused(error: RoleError) -> ApiError {
    let message = format!("{error}.");
    match error {
        RoleError::Fixed => ApiError::forbidden("role_is_fixed", message),
        RoleError::CannotBeFound => ApiError::bad_request(message).with_param("role"),
    }
}
