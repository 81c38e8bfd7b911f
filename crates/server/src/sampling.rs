//! The sampler's options ([`engine::sampling`]) as fields of the APIs.

use engine::sampling::{SamplingOption, SamplingParams, options};
use transport::error::ApiError;
use transport::fields::Fields;
use transport::shape::{Field, Kind, field};

/// Whose name for an option an API has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names {
    OpenAi,
    Llama,
}

/// Options as fields of a table, and the table's other fields behind them.
pub(crate) const fn fields<const N: usize>(
    options: &'static [SamplingOption],
    names: Names,
    others: &[Field],
) -> [Field; N] {
    assert!(options.len() + others.len() == N);
    let mut fields = [field("", Kind::Json, ""); N];
    let mut at = 0;
    while at < N {
        fields[at] = if at < options.len() {
            let option = &options[at];
            let kind = if option.is_integer() { Kind::Integer } else { Kind::Number };
            let name = if matches!(names, Names::Llama) { option.llama_name } else { option.name };
            field(name, kind, option.about)
        } else {
            others[at - options.len()]
        };
        at += 1;
    }
    fields
}

/// Reads the options that a body's table has. Types are checked here, values at the engine's door.
pub(crate) fn read(fields: &mut Fields, into: &mut SamplingParams) -> Result<(), ApiError> {
    for option in options() {
        let Some(name) = [option.name, option.llama_name].into_iter().find(|name| fields.has(name)) else { continue };
        let value = match option.is_integer() {
            true => fields.integer(name)?.map(|value| value as f64),
            false => fields.number(name)?,
        };
        (option.ask)(into, value);
    }
    Ok(())
}

/// An error of the engine's door, with llama.cpp's name for the option; `place`: what stands before it in the body.
pub(crate) fn renamed(error: ApiError, place: &str) -> ApiError {
    options().fold(error, |error, option| error.rename_param(option.name, &format!("{place}{}", option.llama_name)))
}
