//! Filling a gap in a text ([`text::infill`]), for whichever API asks.

use engine::{ModelInfo, Prompt, RawRequest};
use text::infill::{InfillMarks, TextGap};
use transport::error::ApiError;

/// Puts what fills the gap into the place of the prompt. `field`: where the text before the gap is from; it is at
/// fault where no gap can be filled, unless the files are.
pub(crate) fn fill(gap: &TextGap<'_>, model: &ModelInfo, raw: &mut RawRequest, field: &str) -> Result<(), ApiError> {
    let tokenizer = model.tokenizer.as_ref();
    let Some((tokenizer, marks)) = tokenizer.and_then(|tokenizer| Some((tokenizer, InfillMarks::of(tokenizer)?)))
    else {
        let message = "This model fills no gaps: its vocabulary has no marks for what is before one and behind it.";
        return Err(ApiError::bad_request(message).with_param(field).with_code("no_infill"));
    };
    if !gap.files.is_empty() && !marks.separates_files() {
        return Err(ApiError::unsupported("input_extra", "this model's vocabulary has no mark between files"));
    }
    let ids = marks
        .prompt(gap, tokenizer)
        .map_err(|error| ApiError::bad_request(format!("The texts cannot be read: {error}.")).with_param(field))?;
    raw.prompt = Prompt::Tokens(ids.into_iter().map(i64::from).collect());
    raw.stop_token_ids.extend(marks.ends.into_iter().map(i64::from));
    Ok(())
}
