//! OpenAI's API with vLLM's additions: what a body means, and what an answer looks like.
//!
//! Every field is honoured, or refused with 400 and its name: also a field that this server has never heard of, because
//! a misspelt `temprature` that is quietly dropped gives a plausible wrong answer.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
mod cost;
pub(crate) mod params;
pub(crate) mod text;
mod whole;
mod wire;
