//! A body of `POST /infill`: what belongs between two texts.

use engine::Prompt;
use serde_json::Value;
use text::infill::TextGap;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::Fields;

use super::completion::Begun;
use super::fim;
use super::shapes::INFILL;
use crate::answers::PreparedRequest;
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::openai::params;

/// Reads the body into a validated request. Tokenizes: not for the threads that serve connections.
pub(super) fn read(body: Value, app: &App, tenant: Option<Tenant>) -> Result<PreparedRequest, ApiError> {
    let mut begun = Begun::of(body, &INFILL, app)?;
    let fields = &mut begun.fields;
    let mut text = |name: &str| fields.string(name).map(Option::unwrap_or_default);
    let (before, behind, start) = (text("input_prefix")?, text("input_suffix")?, text("prompt")?);
    let files = files(fields)?;
    let bytes = files.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
    params::check_text("input_prefix", before.len() + behind.len() + start.len() + bytes)?;
    let gap = TextGap { before: &before, behind: &behind, begun: &start, files: &files };
    let mut raw = app.request(Prompt::Tokens(Vec::new()), tenant);
    fim::fill(&gap, app.engine.model(), &mut raw, "input_prefix")?;
    begun.finish(raw, Endpoint::Infill, "input_prefix", app)
}

/// `input_extra`: other files, by name.
fn files(fields: &mut Fields) -> Result<Vec<(String, String)>, ApiError> {
    let read = |mut file: Fields| {
        let text = file.text("text")?;
        let name = file.string("filename")?.unwrap_or_else(|| "tmp".to_owned());
        file.finish()?;
        Ok((name, text))
    };
    fields.objects("input_extra")?.into_iter().map(read).collect()
}
