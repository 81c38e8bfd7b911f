//! Flags of `run`: one answer or a chat: the model, how answers are drawn, what is printed.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCompleter;
use engine::SamplingParams;

use super::completions::models;
use super::shared::ModelFlags;
use super::values::{count, rows, size};

/// Flags of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunFlags {
    /// The model (a path, ORG/NAME of the hub, a short name such as llama3.2:1b), then what to ask. Without a model the
    /// built-in one is asked, and the prompt needs quotation marks. Text piped into standard input is added below it.
    #[arg(value_name = "MODEL|PROMPT", add = ArgValueCompleter::new(models))]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Download a model that does not fit into the free memory all the same.
    #[arg(long)]
    pub(crate) force: bool,
    /// Most tokens of an answer. Default, and -1: what the context has left.
    #[arg(short = 'n', long, visible_aliases = ["n-predict", "predict"], value_name = "N", allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<i64>,
    /// Randomness: 0 always takes the most likely token. Default: what the model's authors propose.
    #[arg(long, visible_alias = "temp", value_name = "X", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// Nucleus sampling: the smallest set of most likely tokens with this total probability.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,
    /// Keep this many most likely tokens; 0 turns it off.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) top_k: Option<i64>,
    /// Drop tokens below this share of the most likely token's probability.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f64>,
    /// The same seed and prompt give the same answer, on any machine with the same --arithmetic. Default: a new one
    /// each time.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,
    /// What to ask, from a file; - is standard input.
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "words")]
    pub(crate) file: Option<PathBuf>,
    /// Text that ends the answer; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Do not end at the model's end-of-text token, but at --max-tokens or at the context's end.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// A system message before the conversation.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Continue the prompt as plain text, without the model's chat template.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print one JSON object per answer instead of text: answer, usage, timings, limits.
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not measure limits, and print neither the lines about the weights nor the one about the phases.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Most tokens of prompt and answer together (suffix k = 1,000, K = 1,024). Default: the model's own.
    #[arg(short = 'c', long, visible_alias = "ctx-size", value_name = "N", value_parser = count)]
    pub(crate) max_model_len: Option<usize>,
    /// Rows of one forward pass: prompts are read in chunks of this size.
    #[arg(long, value_name = "N", value_parser = rows, default_value = "512")]
    pub(crate) max_num_batched_tokens: usize,
    /// Answer through a low-rank adapter (LoRA), a directory as peft writes it.
    #[arg(long, value_name = "DIR")]
    pub(crate) lora: Option<PathBuf>,
    /// Memory of the KV cache (4GiB, 500MB, 2G; a bare number is bytes). Default: what the context needs.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_cache_memory_bytes: Option<u64>,
}

impl RunFlags {
    /// How tokens are drawn.
    pub(crate) fn sampling(&self) -> SamplingParams {
        let RunFlags { temperature, top_p, top_k, min_p, .. } = *self;
        SamplingParams { temperature, top_p, top_k, min_p, ..SamplingParams::default() }
    }
}
