//! llama.cpp's words for how tokens are drawn, which are Ollama's `options` too.
//!
//! What this server's sampler does not have is taken at the value that turns it off, and refused by its name otherwise.

use engine::sampling::{PENALTIES, Sampling};
use engine::{ModelInfo, RawRequest};
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};

use super::shapes::{REFINES, SAMPLERS};
use crate::answers::PreparedRequest;
use crate::openai::params;
use crate::sampling;

/// How many of the last tokens penalties are to see. They see all here, which is the same where there are no more.
pub(crate) struct Window(Option<(String, u64)>);

impl Window {
    pub(crate) fn none() -> Window {
        Window(None)
    }

    /// The request, if its prompt and answer fit into it.
    pub(crate) fn checked(self, mut prepared: PreparedRequest) -> Result<PreparedRequest, ApiError> {
        let Some((field, tokens)) = self.0 else { return Ok(prepared) };
        let request = &prepared.requests[0];
        let all = (request.prompt().len() + request.max_tokens()) as u64;
        if all > tokens {
            let why = format!(
                "penalties see the whole prompt and answer here, {all} tokens: '{field}' must be -1 or no fewer (a limit \
                 on the answer makes it shorter)"
            );
            return Err(ApiError::unsupported(field, why));
        }
        prepared.plan.delivery.adjustments.hints.push(field);
        Ok(prepared)
    }
}

/// Reads them. Types are checked here, values at the engine's door, and the window when the request has passed it.
pub(crate) fn read(fields: &mut Fields, raw: &mut RawRequest, model: &ModelInfo) -> Result<Window, ApiError> {
    sampling::read(fields, &mut raw.sampling)?;
    // -1 draws one, as no seed does.
    raw.seed = fields.integer("seed")?.filter(|&seed| seed != -1);
    raw.stop = params::texts(fields, "stop")?;
    let name = fields.name("repeat_last_n");
    let window = match fields.integer("repeat_last_n")? {
        None | Some(-1) => None,
        Some(0) => {
            // They see nothing.
            let neutral = Sampling::default();
            PENALTIES.iter().for_each(|penalty| (penalty.ask)(&mut raw.sampling, Some((penalty.value)(&neutral))));
            None
        }
        Some(last) => {
            let last =
                u64::try_from(last).map_err(|_| wrong_type(name.as_str(), "a number of tokens, or -1 for all"))?;
            is_penalized(raw, model).then_some((name, last))
        }
    };
    // What refines samplers that are off has no meaning.
    SAMPLERS.iter().filter(|field| field.about == REFINES).for_each(|field| drop(fields.take(field.name)));
    Ok(Window(window))
}

/// Whether any penalty changes anything.
fn is_penalized(raw: &RawRequest, model: &ModelInfo) -> bool {
    let params = raw.sampling.or(&model.generation_defaults.sampling);
    PENALTIES.iter().any(|penalty| penalty.is_on(&params))
}

/// Most tokens of an answer: no number, or one below 1, is all that the context leaves.
pub(crate) fn most(fields: &mut Fields, field: &str) -> Result<Option<i64>, ApiError> {
    Ok(fields.integer(field)?.filter(|&most| most >= 1))
}
