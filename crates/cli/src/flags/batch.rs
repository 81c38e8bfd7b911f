//! Flags of `batch`: a file of requests, a file of answers, the model.

use std::path::PathBuf;

use clap::Args;

use super::shared::ModelFlags;
use super::values::{count, reasoning_parser, rows, seats, size, tool_call_parser};

/// Flags of `batch`.
#[derive(Args, Debug)]
pub(crate) struct BatchFlags {
    /// Requests, one JSON object per line, in OpenAI's form: custom_id, url, body.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Where answers go, one JSON object per line. What is there already is not asked again.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// A name that requests give the model; may be repeated. Default: the checkpoint's.
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
    /// Print the sums as one JSON object on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Most tokens of prompt and answer together (suffix k = 1,000, K = 1,024). Default: the model's own, as far as
    /// memory goes.
    #[arg(short = 'c', long, value_name = "N", value_parser = count)]
    pub(crate) max_model_len: Option<usize>,
    /// Requests that run at a time.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "32")]
    pub(crate) max_num_seqs: usize,
    /// Rows of one forward pass: prompts are read in chunks of this size.
    #[arg(long, value_name = "N", value_parser = rows, default_value = "512")]
    pub(crate) max_num_batched_tokens: usize,
    /// Memory of the KV cache (4GiB, 500MB, 2G; a bare number is bytes). Default: what is free.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_cache_memory_bytes: Option<u64>,
    /// How the model writes calls of tools (names of vLLM or SGLang), or `none`. Default: as its chat template shows.
    #[arg(long, value_name = "NAME", value_parser = tool_call_parser)]
    pub(crate) tool_call_parser: Option<String>,
    /// How the model writes what it thinks (names of vLLM or SGLang), or `none`. Default: as its chat template shows.
    #[arg(long, value_name = "NAME", value_parser = reasoning_parser)]
    pub(crate) reasoning_parser: Option<String>,
}
