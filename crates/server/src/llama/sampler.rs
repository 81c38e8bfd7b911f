//! llama.cpp's words for how tokens are drawn, which are Ollama's `options` too.
//!
//! What this server's sampler does not have is taken at the value that turns it off, and refused by its name otherwise.

use engine::{ModelInfo, RawRequest};

use super::shapes::{REFINES, SAMPLERS};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::params;

/// Reads them. Types are checked here, values at the engine's door.
pub(crate) fn read(fields: &mut Fields, raw: &mut RawRequest, model: &ModelInfo) -> Result<(), ApiError> {
    raw.temperature = fields.number("temperature")?;
    raw.top_k = fields.integer("top_k")?;
    raw.top_p = fields.number("top_p")?;
    raw.min_p = fields.number("min_p")?;
    // -1 draws one, as no seed does.
    raw.seed = fields.integer("seed")?.filter(|&seed| seed != -1);
    raw.stop = params::stop(fields)?;
    raw.repetition_penalty = fields.number("repeat_penalty")?;
    raw.presence_penalty = fields.number("presence_penalty")?;
    raw.frequency_penalty = fields.number("frequency_penalty")?;
    if fields.integer("repeat_last_n")?.is_some_and(|last| last != -1) && is_penalized(raw, model) {
        let why = "penalties see the whole prompt and answer here: 'repeat_last_n' must be -1 where there is one";
        return Err(ApiError::unsupported(fields.name("repeat_last_n"), why));
    }
    // What refines samplers that are off has no meaning.
    SAMPLERS.iter().filter(|field| field.about == REFINES).for_each(|field| drop(fields.take(field.name)));
    Ok(())
}

/// Whether any penalty changes anything.
fn is_penalized(raw: &RawRequest, model: &ModelInfo) -> bool {
    let repetition = raw.repetition_penalty.or(model.generation_defaults.repetition_penalty.map(f64::from));
    repetition.is_some_and(|penalty| penalty != 1.0)
        || [raw.presence_penalty, raw.frequency_penalty].into_iter().flatten().any(|penalty| penalty != 0.0)
}

/// Most tokens of an answer: no number, or one below 1, is all that the context leaves.
pub(crate) fn most(fields: &mut Fields, field: &str) -> Result<Option<i64>, ApiError> {
    Ok(fields.integer(field)?.filter(|&most| most >= 1))
}
