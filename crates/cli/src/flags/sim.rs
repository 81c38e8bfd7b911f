//! Flags of `sim`: a model, a machine, a load, the limits of an instance.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::{KvPrecision, Weights};
use super::values::{
    blocks, count, duration, link, load, pause, positive, rows, seats, share, sim_rate, spread, turns,
};

/// Flags of `sim`.
#[derive(Args, Debug)]
pub(crate) struct SimFlags {
    /// A known model (qwen3-8b, llama-3.1-8b, gemma-3-4b, gpt-oss-20b, mixtral-8x7b, deepseek-v3, glm-4.5-air and others;
    /// a wrong name lists them all), a number of parameters (7b), lantern (the built-in model), a directory with a
    /// config.json, a GGUF file, or a hub id that is in the local cache. Weights are not needed.
    #[arg(short = 'm', long, value_name = "NAME|7b|DIR|GGUF|HUB_ID", default_value = "llama-3.1-8b")]
    pub(crate) model: String,
    /// A known machine (a100, h100, h200, b200, l40s, l4, t4, rtx-3090, rtx-4090, rtx-5090, gb10, mi300x, mi355x,
    /// ryzen-ai-max-395, m2-ultra, xeon-8480, xeon-6980p, epyc-9654, epyc-9755, ryzen-9950x, epyc-2core), or
    /// `here`: this machine as measured now.
    #[arg(long, visible_alias = "machine", value_name = "NAME|here", default_value = "h100")]
    pub(crate) hardware: String,
    /// Machines of one instance, as if nothing were lost between them.
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1")]
    pub(crate) machines_per_instance: usize,
    /// Instances behind the router.
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1")]
    pub(crate) instances: usize,
    /// Instances that read prompts; the others answer, and blocks travel from one to the other. Default: each does both.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) prefill: Option<usize>,
    /// Simulate each division of the instances into some that read and some that answer, beside all doing both.
    #[arg(long, conflicts_with = "prefill")]
    pub(crate) splits: bool,
    /// Bytes per second that blocks travel with between two instances, either way (25G: a card of 200 Gbit/s).
    #[arg(long, value_name = "X", value_parser = link, default_value = "25G")]
    pub(crate) link: f64,
    /// With --prefill or --splits, refuse requests that would miss their targets. Default: no request is refused.
    #[arg(long, value_enum)]
    pub(crate) reject: Option<Reject>,
    /// With --prefill or --splits: instances that answer read prompts too while those that read are late, and go back
    /// when these are in time.
    #[arg(long)]
    pub(crate) switch_roles: bool,
    /// Precision of the weights; auto is bf16.
    #[arg(long, value_enum, default_value_t = Weights::Auto)]
    pub(crate) weights: Weights,
    /// Precision of keys and values.
    #[arg(long, visible_alias = "kv-cache-dtype", value_enum, default_value_t = KvPrecision::Bf16)]
    pub(crate) kv_dtype: KvPrecision,
    /// What the load is like.
    #[arg(long, value_enum, default_value_t = Workload::Poisson)]
    pub(crate) workload: Workload,
    /// Trace files, instead of a drawn load: Mooncake's JSON lines or Azure's CSV, as they are or compressed with gzip.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["workload", "input_tokens", "output_tokens", "length_cv"])]
    pub(crate) trace: Vec<PathBuf>,
    /// Requests per second. Default: 1, or as the trace says.
    #[arg(long, value_name = "X", value_parser = sim_rate)]
    pub(crate) rate: Option<f64>,
    /// Speed the load up by this factor: a trace, or a drawn one.
    #[arg(long, value_name = "X", value_parser = sim_rate, conflicts_with = "rate")]
    pub(crate) speed: Option<f64>,
    /// Requests in all. Default: 1,000, or all of the trace.
    #[arg(long, value_name = "N", value_parser = load)]
    pub(crate) requests: Option<usize>,
    /// Mean tokens of a prompt; with shared prefixes and in sessions, of what is new in it.
    #[arg(long, value_name = "N", value_parser = count, default_value = "400")]
    pub(crate) input_tokens: usize,
    /// Mean tokens of an answer.
    #[arg(long, value_name = "N", value_parser = count, default_value = "100")]
    pub(crate) output_tokens: usize,
    /// Coefficient of variation of both lengths; 0: all alike.
    #[arg(long, value_name = "X", value_parser = spread, default_value = "0.5")]
    pub(crate) length_cv: f64,
    /// Of bursty loads: coefficient of variation of the gaps between arrivals (Poisson has 1).
    #[arg(long, value_name = "X", value_parser = spread, default_value = "3")]
    pub(crate) burst_cv: f64,
    /// Of shared prefixes: how many there are.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "10")]
    pub(crate) prefixes: usize,
    /// Of shared prefixes: tokens of each (default 2,000). Of sessions: tokens that all of them begin with (default 0).
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) prefix_tokens: Option<usize>,
    /// Of sessions: turns of each.
    #[arg(long, value_name = "N", value_parser = turns, default_value = "5")]
    pub(crate) turns: usize,
    /// Of sessions: mean pause between an answer and the next question.
    #[arg(long, value_name = "TIME", value_parser = pause, default_value = "10s")]
    pub(crate) pause: f64,
    /// Draft the next tokens of answers and verify several in one step, the number that makes tokens come fastest (serve
    /// --speculate). X: the chance that a draft holds if all before it do (0.8), or, with commas between them, that of
    /// the first draft, the second and so on, the last for all further ones. The scheduler predicts its steps then, so
    /// it heeds targets also beside --max-num-batched-tokens.
    #[arg(long, value_name = "X,..", value_delimiter = ',', value_parser = share)]
    pub(crate) acceptance: Option<Vec<f64>>,
    /// Target for the time from arrival to first token (500ms, 2s).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttft_slo: Option<f64>,
    /// Target for the mean time from one token of an answer to the next (50ms).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) tpot_slo: Option<f64>,
    /// Rows of one step, whatever the targets: they are judged and not heeded (static chunks). Default: what the
    /// targets allow; without targets 2,048.
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// Sequences that run together on an instance.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "256")]
    pub(crate) max_num_seqs: usize,
    /// Prompts that may be in prefill in one step.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "16")]
    pub(crate) max_num_partial_prefills: usize,
    /// Tokens per KV block.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "32")]
    pub(crate) block_size: usize,
    /// KV blocks of an instance. Default: what its memory holds beside the weights.
    #[arg(long, value_name = "N", value_parser = blocks)]
    pub(crate) kv_blocks: Option<usize>,
    /// Compute every prompt in full.
    #[arg(long)]
    pub(crate) no_enable_prefix_caching: bool,
    /// The load is drawn from this: one seed, one report.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write charts into this directory: latencies, KV blocks, rows.
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
}

/// `sim --workload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Independent users.
    Poisson,
    /// Arrivals in bursts.
    Bursty,
    /// Independent users whose prompts begin with one of some prefixes.
    SharedPrefix,
    /// Conversations: each turn quotes all before it.
    Sessions,
}

/// `sim --reject`: always where no instance would read the prompt in time, and
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reject {
    /// When the prompt has been read, where the answer has no room.
    Late,
    /// Also before it is read, if the answer would have no room now.
    Early,
    /// Also before it is read, if the answer will have no room when it has been read.
    Predicted,
}
