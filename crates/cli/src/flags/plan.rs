//! Flags of `plan`: a model, a machine, the lengths of a request.

use std::path::PathBuf;

use clap::Args;
use plan::PriceList;

use super::shared::{KvPrecision, SumOrder, Weights};
use super::values::{acceptance, count, duration, link, positive, price, quantity, requests, rows, seats, share};

/// Flags of `plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanFlags {
    /// A known model (qwen3-8b, llama-3.1-8b, gemma-3-4b, gpt-oss-20b, mixtral-8x7b, deepseek-v3, glm-4.5-air and others;
    /// a wrong name lists them all), a number of parameters (7b; 30b-a3b, of which a token uses 3), lantern (the built-in
    /// model), a directory with a config.json, a GGUF file, or a hub id that is in the local cache. Weights are not needed.
    #[arg(short = 'm', long, value_name = "NAME|7b|DIR|GGUF|HUB_ID", default_value = "llama-3.1-8b")]
    pub(crate) model: String,
    /// A known machine (a100, h100, h200, b200, l40s, l4, t4, rtx-3090, rtx-4090, rtx-5090, gb10, mi300x, mi355x,
    /// ryzen-ai-max-395, m2-ultra, xeon-8480, xeon-6980p, epyc-9654, epyc-9755, ryzen-9950x, epyc-2core), or
    /// `here`: this machine, its limits measured now, or the steps of this model where a start of `serve` has
    /// measured them. Default: h100.
    #[arg(long, visible_alias = "hardware", value_name = "NAME|here", conflicts_with_all = ["flops", "bandwidth", "memory"])]
    pub(crate) machine: Option<String>,
    /// Instead of a known machine: operations per second that it reaches (312T).
    #[arg(long, value_name = "X", value_parser = quantity, requires = "bandwidth")]
    pub(crate) flops: Option<f64>,
    /// Bytes per second that it reads from memory (2T).
    #[arg(long, value_name = "X", value_parser = quantity, requires = "flops")]
    pub(crate) bandwidth: Option<f64>,
    /// Bytes of its memory (80G). Without it what fits is unknown.
    #[arg(long, value_name = "X", value_parser = quantity, requires = "flops")]
    pub(crate) memory: Option<f64>,
    /// Machines of one instance (tensor parallel). Nothing is lost between them but the time of --link.
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1")]
    pub(crate) machines_per_instance: usize,
    /// Bytes per second that each of them sends to the others (450G). Without it sums over machines take no time.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = link)]
    pub(crate) link: Option<f64>,
    /// Price of an hour of the machine in any currency (2.00), or of several (a100=2.00,h100=3.50): what a million tokens
    /// cost, and which machines are the cheapest. None is built in.
    #[arg(long, value_name = "X|NAME=X,...", allow_negative_numbers = true, value_parser = price)]
    pub(crate) price: Option<PriceList>,
    /// Most watts that a machine draws (400), for the energy of tokens. Default: its vendor's figure.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = quantity)]
    pub(crate) watts: Option<f64>,
    /// Share of the time in which machines work (0.7). Costs and the number of machines include the rest.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = share, default_value = "0.7")]
    pub(crate) utilization: f64,
    /// Precision of the weights; auto is what the checkpoint is stored in, or bf16.
    #[arg(long, value_enum, default_value_t = Weights::Auto)]
    pub(crate) weights: Weights,
    /// Precision of keys and values. Default: bf16.
    #[arg(long, visible_alias = "kv-cache-dtype", value_enum)]
    pub(crate) kv_dtype: Option<KvPrecision>,
    /// Memory for the experts of a mixture (8G), the others on disk; see `serve`. Default: all are in memory.
    #[arg(long, value_name = "X", value_parser = quantity, conflicts_with = "check")]
    pub(crate) expert_memory: Option<f64>,
    /// Order in which this machine sums products of 16-bit numbers; see `serve`. auto is the fastest.
    #[arg(long, value_enum, default_value_t = SumOrder::Auto)]
    pub(crate) arithmetic: SumOrder,
    /// Tokens of a prompt (suffix k = 1,000, K = 1,024). Default: 1,024, or what the answer leaves of a shorter context.
    #[arg(short = 'p', long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub(crate) prompt: Option<usize>,
    /// Share of the prompt that is in the prefix cache (0.8), in whole blocks: it is read and not computed.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = share, default_value = "0")]
    pub(crate) cached: f64,
    /// Tokens of an answer.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = count, default_value = "256")]
    pub(crate) response: usize,
    /// Tokens that are thought before it: what they cost, and when there is something to see.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub(crate) thinking: Option<usize>,
    /// Batch size (concurrent requests).
    #[arg(short = 'b', long, value_name = "N", allow_negative_numbers = true, value_parser = seats, default_value = "1")]
    pub(crate) batch: usize,
    /// Rows of one pass over a prompt. Default: 512 here, as serve takes; 2,048 elsewhere.
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// What drafts of next tokens bring: how many of them in a step, how fast, and up to which batch. X is the chance
    /// that one holds if all before it do (0.8). With draft=SHAPE a model of that shape makes them, named as -m is, in
    /// the same precision; without it they cost nothing, as those that are found in the text.
    #[arg(long, value_name = "X[,draft=SHAPE]", value_parser = acceptance)]
    pub(crate) acceptance: Option<(f64, Option<String>)>,
    /// How many machines N users need, each asking at --rate.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count, requires = "rate")]
    pub(crate) users: Option<usize>,
    /// Requests of one user in a time: 2/min, 0.1/s, 30/h.
    #[arg(long, value_name = "X/min", value_parser = requests, requires = "users")]
    pub(crate) rate: Option<f64>,
    /// Of a fleet: most time to the first token, where no other prompt is in the way (500ms). Batches stay small enough
    /// for it, and the machines, their number and the precisions that meet both targets are listed, the cheapest first.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "users")]
    pub(crate) ttft_slo: Option<f64>,
    /// Of a fleet: most time from a token to the next (50ms), likewise.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "users")]
    pub(crate) tpot_slo: Option<f64>,
    /// Threads of this machine to count on. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Load the model, measure some points on this machine, and set both predictions beside them: that of the limits
    /// alone, and that of measured steps.
    #[arg(long, conflicts_with_all = ["machine", "flops", "prompt", "response", "thinking", "batch", "users", "svg", "machines_per_instance", "max_num_batched_tokens", "acceptance", "link", "price", "watts"])]
    pub(crate) check: bool,
    /// Print one JSON object: the answer of the server's /plan.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write charts into this file: time against the prompt's length, and against the batch.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
