//! Routes of llama-server beside OpenAI's, and some of vLLM's: what stands before a load balancer, an editor or a
//! person who looks.
//!
//! ```text
//! POST /completion --completion.rs--+--> PreparedRequest --> gather | StreamWriter --write.rs--> {"content", "stop"}
//! POST /infill -----infill.rs-------+      (a gap in a text, with the marks of fim.rs)
//! GET /props, /slots, /tokenizer_info, /load, /lora-adapters, POST /apply-template --routes.rs
//! sampler.rs: how tokens are drawn, which Ollama's options read too
//! ```

mod bias;
mod completion;
pub(crate) mod fim;
mod infill;
mod routes;
pub(crate) mod sampler;
pub(crate) mod shapes;
mod write;

pub(crate) use routes::{apply_template, complete, infill, load, loras, props, scale_loras, slots, tokenizer_info};
