//! Messages whose content comes in parts.

use serde_json::Value;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};

use crate::openai::shapes;

/// Text parts stand on lines of their own, as vLLM joins them.
pub(crate) fn text_of_parts(parts: Vec<Value>, path: &str) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::nested(part, format!("{path}[{at}]"), &shapes::TEXT_PART)?;
        if fields.text("type")? != "text" {
            let why = "this server reads text only: parts must be of type 'text'";
            return Err(ApiError::unsupported(fields.name("type"), why));
        }
        let text_name = fields.name("text");
        texts.push(fields.string("text")?.ok_or_else(|| wrong_type(text_name, "a string"))?);
        fields.finish()?;
    }
    Ok(texts.join("\n"))
}
