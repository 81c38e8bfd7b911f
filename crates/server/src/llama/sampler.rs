//! llama.cpp's words for how tokens are drawn, which are Ollama's `options` too.
//!
//! What this server's sampler does not have is taken at the value that turns it off, and refused by its name otherwise.

use engine::{ModelInfo, RawRequest};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::params;

/// Samplers that this server does not have, and the value that turns each off.
const OFF: [(&str, f64); 6] = [
    ("typical_p", 1.0),
    ("tfs_z", 1.0),
    ("mirostat", 0.0),
    ("dry_multiplier", 0.0),
    ("xtc_probability", 0.0),
    ("dynatemp_range", 0.0),
];

/// What refines those: without a meaning while they are off.
const REFINEMENTS: [&str; 7] = [
    "mirostat_tau",
    "mirostat_eta",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "xtc_threshold",
    "dynatemp_exponent",
];

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
    for (field, value) in OFF {
        off(fields, field, value, "this server has no such sampler")?;
    }
    for field in REFINEMENTS {
        fields.number(field)?;
    }
    Ok(())
}

/// Nothing is drawn: what says how is refused by its name. Clients send all of these as `null`.
pub(crate) fn none(fields: &mut Fields, why: &str) -> Result<(), ApiError> {
    const DRAWING: [&str; 11] = [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "stop",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "repeat_last_n",
        "num_predict",
    ];
    let samplers = OFF.iter().map(|(field, _)| field).chain(&REFINEMENTS);
    DRAWING.iter().chain(samplers).try_for_each(|field| fields.unsupported(field, why))
}

/// A number that may only have the one value that changes nothing.
pub(crate) fn off(fields: &mut Fields, field: &str, value: f64, why: &str) -> Result<(), ApiError> {
    match fields.number(field)? {
        Some(number) if number != value => {
            Err(ApiError::unsupported(fields.name(field), format!("{why}: '{field}' must be {value}.")))
        }
        _ => Ok(()),
    }
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
