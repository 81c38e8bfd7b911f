//! Routes of llama-server, and some of vLLM's, beside OpenAI's.

pub(crate) mod sampler;
