//! OpenAI's API with vLLM's additions: what a body means, and what an answer looks like.
//!
//! Every field is honoured, or refused with 400 and its name: also a field that this server has never heard of, because
//! a misspelt `temprature` that is quietly dropped gives a plausible wrong answer. A few that change nothing ([`hints`])
//! are named in the answer.

pub(crate) mod beams;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod format;
pub(crate) mod hints;
pub(crate) mod late;
pub(crate) mod logprobs;
pub(crate) mod params;
pub(crate) mod parts;
mod said;
pub(crate) mod shapes;
pub(crate) mod stream;
pub(crate) mod structured;
pub(crate) mod text;
pub(crate) mod thoughts;
pub(crate) mod tools;
mod transfer;
pub(crate) mod whole;
pub(crate) mod wire;
