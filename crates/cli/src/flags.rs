//! Every flag of every command, declared once with its docs. `--help` and `docs/reference/flags.md` are generated from
//! here, and a test compares the latter.
//!
//! Where a flag means the same as in vLLM it has vLLM's name; short names are those of llama.cpp. Nothing but this file
//! (through `env = ...`) and [`crate::environment`] reads the environment.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::SwapDisk;

/// An LLM inference engine organised around the two phases of inference: prefill and decode.
#[derive(Debug, Parser)]
#[command(name = "twostroke", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt, or chat. Needs no download: a small model is built in.
    ///
    /// With a PROMPT, or with text on standard input, prints the answer and ends. Otherwise opens a chat: /help lists
    /// its commands, Ctrl-C stops an answer, Ctrl-D leaves. After each answer one line on standard error tells what
    /// both phases did and how far from the machine's limit that was.
    Run(RunFlags),
    /// Serve the OpenAI API over HTTP.
    Serve(ServeFlags),
    /// Measure prefill and decode, beside the machine's limits measured in the same run.
    ///
    /// Flags and rows are llama-bench's. `pp512` is a prompt of 512 tokens, `tg128` is 128 decode steps, `@ d1024`
    /// starts with 1,024 tokens already in the cache, and `x8` decodes 8 sequences together.
    Bench(BenchFlags),
    /// Measure both phases as curves: prefill against the prompt's length, decode against position and batch.
    ///
    /// Writes a table, CSV, JSON, pictures with the fitted laws and one HTML page that can be opened offline, and says in words
    /// what bound each phase and how sure that is. Ctrl-C keeps what was measured.
    Lab(LabFlags),
    /// Load any OpenAI-compatible server and measure TTFT, TPOT, ITL, rates and goodput from the outside.
    ///
    /// Options, result block and JSON fields are those of `vllm bench serve`. TPOT is (end-to-end latency - TTFT) /
    /// (output tokens - 1). A gap above twice the median of its answer is a stall; a server that keeps timelines, as this
    /// one does, is asked whose prompts took that time. Ctrl-C ends the run and reports what was answered.
    BenchServe(Box<BenchServeFlags>),
    /// Measure what weights and KV cache cost in quality, against float32, on a text of yours or on one in the binary.
    ///
    /// Perplexity, KL divergence of the next-token distributions, how often the likeliest token is the same, and the
    /// error of each matrix. Needs memory for the weights in float32 beside the chosen ones.
    Quality(QualityFlags),
    /// Write a model with narrow weights, for this and other engines.
    ///
    /// safetensors in the layout of compressed-tensors, a directory that vLLM loads too, or one GGUF file for llama.cpp.
    /// A matrix that would lose too much stays as it is stored, and is named.
    Quantize(QuantizeFlags),
    /// Tell what this machine offers: instruction sets, cores, memory, measured limits. Exit code 1 if something is missing.
    Doctor(DoctorFlags),
    /// Before a weight is read: will a model fit, how fast will it be, how many requests at once, which phase limits.
    ///
    /// Takes a model, a machine and the lengths of a request, and tells memory, TTFT, TPOT and what binds them; with
    /// --users how many machines they need. The floors are what nothing can beat, the predictions what engines reach.
    Plan(PlanFlags),
    /// Simulate a load on imagined hardware: the production scheduler under a virtual clock.
    ///
    /// Takes a model, a machine and a load, drawn from a seed or read from a trace, and tells latencies, goodput and
    /// what the machine did. Nothing is loaded or computed; the machine is a cost model.
    Sim(SimFlags),
    /// Do a recorded run (serve --record) again and compare every step. Exit code 0 only if all are equal.
    ///
    /// The recorded requests, cancels and tokens go to the scheduler at the recorded times. With -m the model computes
    /// the tokens again, and they are compared too. The first difference is named.
    Replay(ReplayFlags),
    /// What a recorded run (serve --record) would have been with other settings.
    ///
    /// The recorded requests arrive again in the simulator, on a machine as fast as the recorded one was. The first
    /// columns set the same settings, simulated, beside what was recorded: where these two part, the last column is
    /// worth no more.
    Whatif(WhatifFlags),
    /// Watch a server of ours in the terminal: one lane per request, both phases, how far from the machine's limits.
    ///
    /// q quits. Prefill and decode have a colour and a sign each, so that a terminal without colours shows them too.
    Top(TopFlags),
    /// Print the reference of all flags as Markdown.
    #[command(hide = true)]
    FlagReference,
    /// Render chat templates for another process of this program.
    #[command(hide = true)]
    RenderTemplates,
}

/// Which model, and how it is held in memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelFlags {
    /// A directory in Hugging Face layout, a GGUF file (of several parts, the first), or a hub id such as
    /// Qwen/Qwen2.5-0.5B-Instruct, taken from the local Hugging Face cache or downloaded into it. Default: the built-in
    /// model.
    #[arg(short = 'm', long, value_name = "DIR|GGUF|HUB_ID")]
    pub(crate) model: Option<String>,
    /// Precision of the weights in memory: bf16, int8 with a scale per 128 weights, or int4 with a scale per 32
    /// weights (the embedding and the head stay int8). auto takes what the checkpoint is stored in, and int8 where
    /// bf16 would not fit into the free memory.
    #[arg(long, value_enum, default_value_t = Weights::Auto)]
    pub(crate) weights: Weights,
    /// Precision of keys and values in the KV cache: bf16, or int8 with one scale for each key and each value of a head.
    #[arg(long, visible_alias = "kv-cache-dtype", value_enum, default_value_t = KvPrecision::Bf16)]
    pub(crate) kv_dtype: KvPrecision,
    /// Order in which products of 16-bit numbers are summed: pairs is fast with AVX-512 BF16, tiles with AMX. auto takes
    /// tiles where there is AMX, else pairs. Answers differ in their last bits, so name one where machines are to agree.
    #[arg(long, value_enum, default_value_t = SumOrder::Auto)]
    pub(crate) arithmetic: SumOrder,
    /// Threads that compute. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Neither use nor keep packed weights on disk, nor the small results beside them. They make the next start faster and
    /// take the room of the weights in memory; `doctor` says where they are.
    #[arg(long)]
    pub(crate) no_packed_cache: bool,
}

/// `--weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weights {
    /// As the checkpoint is stored, or int8 where that does not fit.
    Auto,
    /// 16-bit brain floats, as most checkpoints are stored.
    Bf16,
    /// 8-bit integers: half the memory, faster decode, a small loss of precision.
    Int8,
    /// 16 levels, 4.25 bits with their scales: a quarter of the memory, a larger loss of precision.
    Int4,
}

impl Weights {
    /// As the kernels name it; `None` for auto.
    pub(crate) fn class(self) -> Option<kernels::WeightClass> {
        match self {
            Weights::Auto => None,
            Weights::Bf16 => Some(kernels::WeightClass::Bf16),
            Weights::Int8 => Some(kernels::WeightClass::Int8),
            Weights::Int4 => Some(kernels::WeightClass::Int4),
        }
    }
}

/// `--kv-dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvPrecision {
    /// 16-bit brain floats.
    Bf16,
    /// 8-bit integers: half the memory, faster attention over long contexts, a small loss of precision.
    Int8,
}

impl KvPrecision {
    /// As the kernels name it.
    pub(crate) fn dtype(self) -> kernels::KvDtype {
        match self {
            KvPrecision::Bf16 => kernels::KvDtype::Bf16,
            KvPrecision::Int8 => kernels::KvDtype::Int8,
        }
    }
}

/// `--arithmetic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SumOrder {
    /// Tiles where there is AMX, else pairs.
    Auto,
    /// Pair after pair in one chain, as AVX-512 BF16 does.
    Pairs,
    /// An even and an odd chain in steps of 32, as AMX does.
    Tiles,
}

impl SumOrder {
    /// As the kernels name it; `None` for auto.
    pub(crate) fn arithmetic(self) -> Option<kernels::Arithmetic> {
        match self {
            SumOrder::Auto => None,
            SumOrder::Pairs => Some(kernels::Arithmetic::Pairs),
            SumOrder::Tiles => Some(kernels::Arithmetic::Tiles),
        }
    }
}

/// Flags of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunFlags {
    /// What to ask. Text piped into standard input is added below it.
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Most tokens of an answer. Default: what the context has left.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<i64>,
    /// Randomness: 0 always takes the likeliest token. Default: what the model's authors propose.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// Sample from the likeliest tokens that together have this probability.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,
    /// Sample from this many likeliest tokens; 0 turns it off.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) top_k: Option<i64>,
    /// Sample from tokens at least this probable relative to the likeliest.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f64>,
    /// The same seed and prompt give the same answer, on any machine with the same --arithmetic. Default: a new one each time.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<i64>,
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
    #[arg(short = 'c', long, value_name = "N", value_parser = count)]
    pub(crate) max_model_len: Option<usize>,
    /// Rows of one forward pass: prompts are read in chunks of this size.
    #[arg(long, value_name = "N", value_parser = rows, default_value = "512")]
    pub(crate) max_num_batched_tokens: usize,
    /// Memory of the KV cache (4GiB, 500MB, 2G; a bare number is bytes). Default: what the context needs.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_cache_memory_bytes: Option<u64>,
}

/// Flags of `serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeFlags {
    /// The same as --model.
    #[arg(value_name = "DIR|GGUF|HUB_ID", conflicts_with = "model")]
    pub(crate) model_argument: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Address to listen on. Anything but loopback is open to the network: set --api-key then.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// Refuse requests without one of these keys (Authorization: Bearer KEY). May be repeated; each key is a tenant of
    /// its own for the prefix cache. In the environment, commas separate keys.
    #[arg(long, value_name = "KEY", env = "TWOSTROKE_API_KEY", hide_env_values = true, value_delimiter = ',')]
    pub(crate) api_key: Vec<String>,
    /// More keys, one on a line; nobody else should be able to read the file. The word `priority` after a key lets its
    /// requests ask for that class (service_tier, or a priority below 0), which weighs four times as much as the usual
    /// one beside other keys; with one key alone it always may. # begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// A name that requests may be sent to (their Host header), beside localhost, IP addresses and the name given as --host;
    /// may be repeated. Without keys every other name is refused, because a page on the web can make its own name lead
    /// here; with --api-key every name is served unless some are given.
    #[arg(long, value_name = "NAME")]
    pub(crate) allowed_host: Vec<String>,
    /// An origin (`https://app.example`) whose pages may ask this server from a browser and read the answers; may be
    /// repeated. Pages of all others may not.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allowed_origin: Vec<String>,
    /// Names that requests may use for the model; the first is the one reported. Default: the model's name.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(crate) served_model_name: Vec<String>,
    /// Most tokens of prompt and answer together (suffix k = 1,000, K = 1,024). Default: the model's own, or what the
    /// KV cache holds if that is less.
    #[arg(short = 'c', long, value_name = "N", value_parser = count)]
    pub(crate) max_model_len: Option<usize>,
    /// Sequences that run together.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "64")]
    pub(crate) max_num_seqs: usize,
    /// Wanted time from arrival to the first token (500ms, 2s), for requests that name none themselves (ttft_slo_ms). off:
    /// no target. auto: what is comfortable, as far as this machine can do it; the line "targets" of the start tells.
    #[arg(long, value_name = "TIME|auto|off", value_parser = target)]
    pub(crate) ttft_slo: Option<engine::DefaultTarget>,
    /// Wanted time from a token to the next (50ms), likewise (tpot_slo_ms). Prompts get what running streams can spare,
    /// so this is the balance between steady streams and fast prompts: larger means faster prompts.
    #[arg(long, value_name = "TIME|auto|off", value_parser = target)]
    pub(crate) tpot_slo: Option<engine::DefaultTarget>,
    /// Refuse a request whose first token would come later than its target, with 503 and a Retry-After that says when the
    /// target can be met, instead of serving it late.
    #[arg(long)]
    pub(crate) refuse_late: bool,
    /// For benchmarks: rows of one forward pass, decode rows first, prompt chunks in what is left. Giving it or
    /// --max-prefill-chunk turns automatic targets off, so that steps have a fixed size; targets that are given as well
    /// are heeded within it. Default: 512, where targets make the steps' size.
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// Prompts that may be in prefill in one forward pass.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "4")]
    pub(crate) max_num_partial_prefills: usize,
    /// For benchmarks: rows of one prompt in one forward pass at most; 0 means all that the pass has left. See
    /// --max-num-batched-tokens.
    #[arg(long, visible_alias = "long-prefill-token-threshold", value_name = "N", value_parser = rows_or_zero, default_value = "0")]
    pub(crate) max_prefill_chunk: usize,
    /// Share computed prompt blocks between requests of one tenant (the default).
    #[arg(long, overrides_with = "no_enable_prefix_caching")]
    pub(crate) enable_prefix_caching: bool,
    /// Compute every prompt in full.
    #[arg(long, overrides_with = "enable_prefix_caching")]
    pub(crate) no_enable_prefix_caching: bool,
    /// Tokens per KV block, a multiple of 32.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "32")]
    pub(crate) block_size: usize,
    /// Memory of the KV cache (4GiB, 500MB, 2G; a bare number is bytes). Default: enough for every sequence at full
    /// length, at most half of what the machine has free and what limits of the process (control group, ulimit) leave.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_cache_memory_bytes: Option<u64>,
    /// Host memory for blocks that the KV cache has no room for, of preempted requests and of the prefix cache. On a CPU
    /// that is memory which the KV cache itself could have, so none by default.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub(crate) kv_swap_memory: u64,
    /// A directory and how much of its disk (/var/tmp:20GiB) for blocks that leave that memory. The file has no name, only
    /// this process can read it, and it is gone when the process ends. It holds what people said.
    #[arg(long, value_name = "DIR:SIZE", value_parser = swap_disk)]
    pub(crate) kv_swap_disk: Option<SwapDisk>,
    /// Requests that may wait; one more is refused with 503 and Retry-After.
    #[arg(long, value_name = "N", value_parser = count, default_value = "256")]
    pub(crate) max_queued_requests: usize,
    /// Prompt tokens that may wait, over all requests.
    #[arg(long, value_name = "N", value_parser = many, default_value = "1M")]
    pub(crate) max_queued_tokens: usize,
    /// Seconds that running requests get to finish after SIGTERM, SIGHUP or Ctrl-C; a second signal ends at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=604_800))]
    pub(crate) drain_timeout: u64,
    /// Seed of the seeds of requests that name none. Default: a new one each start.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Record the run into this file, which must not exist: requests, cancels and every step, for `replay`.
    /// It holds prompts and answers (as token ids) and is readable by its owner only.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Let whoever has the link that the start prints hold this server and make it step by step (the buttons of the page;
    /// POST /live/pause, /live/step, /live/resume with the link's token). A held server makes everybody wait; it moves
    /// again 30 seconds after nobody watches.
    #[arg(long, conflicts_with = "no_ui")]
    pub(crate) allow_pause: bool,
    /// Serve neither the page at / nor the routes that it is made of (/live/...).
    #[arg(long)]
    pub(crate) no_ui: bool,
    /// Print the seven lines about the start as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopFlags {
    /// The server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// Key sent as a bearer token.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Trust any certificate of an https server.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Print one screen as plain text and end.
    #[arg(long)]
    pub(crate) once: bool,
}

/// Flags of `bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Prompt lengths to measure, separated by commas; 0 skips prefill.
    #[arg(short = 'p', long, value_name = "N,..", value_delimiter = ',', default_value = "512", value_parser = count_or_zero)]
    pub(crate) n_prompt: Vec<usize>,
    /// Decode steps to measure; 0 skips decode.
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',', default_value = "128", value_parser = count_or_zero)]
    pub(crate) n_gen: Vec<usize>,
    /// Tokens in the cache before the measurement begins.
    #[arg(short = 'd', long, value_name = "N,..", value_delimiter = ',', default_value = "0", value_parser = count_or_zero)]
    pub(crate) n_depth: Vec<usize>,
    /// Rows of one forward pass in prefill.
    #[arg(short = 'b', long, value_name = "N,..", value_delimiter = ',', default_value = "512", value_parser = rows)]
    pub(crate) batch_size: Vec<usize>,
    /// Sequences that decode together.
    #[arg(short = 'B', long, value_name = "N,..", value_delimiter = ',', default_value = "1", value_parser = seats)]
    pub(crate) parallel: Vec<usize>,
    /// Take a lower instruction set than the best one of this CPU: the same bits, slower.
    #[arg(long, value_name = "NAME", value_parser = instruction_set)]
    pub(crate) isa: Option<kernels::Isa>,
    /// Instead of all that: how well the engine predicts the time of its steps, on half a minute of mixed requests.
    #[arg(long, conflicts_with_all = ["n_prompt", "n_gen", "n_depth", "batch_size", "parallel", "repetitions", "output"])]
    pub(crate) cost_model: bool,
    /// Repetitions of each test.
    #[arg(short = 'r', long, value_name = "N", value_parser = seats, default_value = "5")]
    pub(crate) repetitions: usize,
    /// Form of the result.
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Md)]
    pub(crate) output: Output,
    /// The same as -o json.
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// `bench -o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A Markdown table.
    Md,
    /// One JSON array.
    Json,
    /// One JSON object per line, as each test ends.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
}

/// Flags of `lab`.
#[derive(Args, Debug)]
pub(crate) struct LabFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Lengths of prompts, separated by commas. Default: 32 to 4,096, as far as the model's context goes.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count)]
    pub(crate) prompts: Option<Vec<usize>>,
    /// Tokens in the cache before a decode step. Default: 0 to 4,096, likewise.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count_or_zero)]
    pub(crate) positions: Option<Vec<usize>>,
    /// Requests that decode together. Default: 1 to 64.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = seats)]
    pub(crate) batches: Option<Vec<usize>>,
    /// Times that each point is measured, after one that warms up.
    #[arg(short = 'r', long, value_name = "N", value_parser = seats, default_value = "5")]
    pub(crate) repetitions: usize,
    /// Directory of the report; made if it is not there.
    #[arg(short = 'o', long, value_name = "DIR", default_value = "lab")]
    pub(crate) output: PathBuf,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `bench-serve`.
#[derive(Args, Debug)]
pub(crate) struct BenchServeFlags {
    /// The server, http or https; its routes begin with /v1.
    #[arg(long, value_name = "URL", conflicts_with_all = ["host", "port"])]
    pub(crate) base_url: Option<String>,
    /// Host of the server.
    #[arg(long, value_name = "NAME", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port of the server.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// Which API to ask: openai sends token ids to /v1/completions, openai-chat text to /v1/chat/completions.
    #[arg(long, value_enum, default_value_t = LoadApi::Openai)]
    pub(crate) backend: LoadApi,
    /// Another route than the API's own.
    #[arg(long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// The model's name at the server. Default: the first one that it lists.
    #[arg(short = 'm', long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Key sent as a bearer token.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// https: take any certificate.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// A header for every request; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) header: Vec<String>,
    /// Further fields of every request, as a JSON object.
    #[arg(long, value_name = "JSON")]
    pub(crate) extra_body: Option<String>,
    /// Where prompts come from: random tokens, a few prefixes before many suffixes, or a trace.
    #[arg(long, value_enum, default_value_t = LoadDataset::Random)]
    pub(crate) dataset_name: LoadDataset,
    /// trace: a file in Mooncake's or Azure's format, plain or gzip. Its moments are kept; the rate is not used.
    #[arg(long, value_name = "FILE", required_if_eq("dataset_name", "trace"))]
    pub(crate) dataset_path: Option<PathBuf>,
    /// Requests to send.
    #[arg(long, value_name = "N", value_parser = sent, default_value = "1000")]
    pub(crate) num_prompts: usize,
    /// random: tokens of a prompt after the shared prefix.
    #[arg(long, visible_alias = "input-len", value_name = "N", value_parser = count, default_value = "1024")]
    pub(crate) random_input_len: usize,
    /// random: tokens of an answer.
    #[arg(long, visible_alias = "output-len", value_name = "N", value_parser = count, default_value = "128")]
    pub(crate) random_output_len: usize,
    /// random: lengths vary by this part of the mean, 0 to below 1.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) random_range_ratio: f64,
    /// random: tokens that all prompts begin with.
    #[arg(long, value_name = "N", value_parser = count_or_zero, default_value = "0")]
    pub(crate) random_prefix_len: usize,
    /// prefix_repetition: tokens of a prefix.
    #[arg(long, value_name = "N", value_parser = count, default_value = "256")]
    pub(crate) prefix_repetition_prefix_len: usize,
    /// prefix_repetition: tokens of a suffix.
    #[arg(long, value_name = "N", value_parser = count, default_value = "256")]
    pub(crate) prefix_repetition_suffix_len: usize,
    /// prefix_repetition: different prefixes.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "10")]
    pub(crate) prefix_repetition_num_prefixes: usize,
    /// prefix_repetition: tokens of an answer.
    #[arg(long, value_name = "N", value_parser = count, default_value = "128")]
    pub(crate) prefix_repetition_output_len: usize,
    /// Requests per second; inf sends all at once.
    #[arg(long, value_name = "X", default_value_t = f64::INFINITY, allow_negative_numbers = true)]
    pub(crate) request_rate: f64,
    /// 1 is a Poisson process, less is burstier, more is steadier.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) burstiness: f64,
    /// Most requests open at once; the others wait at the client.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_concurrency: Option<usize>,
    /// Let the rate grow over the run.
    #[arg(long, value_enum, requires_all = ["ramp_up_start_rps", "ramp_up_end_rps"])]
    pub(crate) ramp_up_strategy: Option<RampUp>,
    /// Requests per second at the beginning.
    #[arg(long, value_name = "X", requires = "ramp_up_strategy", allow_negative_numbers = true)]
    pub(crate) ramp_up_start_rps: Option<f64>,
    /// Requests per second at the end.
    #[arg(long, value_name = "X", requires = "ramp_up_strategy", allow_negative_numbers = true)]
    pub(crate) ramp_up_end_rps: Option<f64>,
    /// Measure at each of these rates in turn; ends with a table of throughput against latency.
    #[arg(long, value_name = "X,..", value_delimiter = ',', allow_negative_numbers = true,
        conflicts_with_all = ["request_rate", "ramp_up_strategy", "sweep_max_concurrency"])]
    pub(crate) sweep_request_rate: Vec<f64>,
    /// Measure with so many requests open at once in turn; ends with the same table.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = positive, conflicts_with = "max_concurrency")]
    pub(crate) sweep_max_concurrency: Vec<usize>,
    /// Send this many requests for each one open at once, instead of --num-prompts at every point.
    #[arg(long, value_name = "N", value_parser = positive, requires = "sweep_max_concurrency", conflicts_with = "num_prompts")]
    pub(crate) sweep_num_prompts_factor: Option<usize>,
    /// Draw the sweep, TTFT against throughput, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) sweep_svg: Option<PathBuf>,
    /// Send requests of one token beside the load, so many per second, and report what they felt apart from it.
    #[arg(long, value_name = "X", value_parser = rate)]
    pub(crate) probe_request_rate: Option<f64>,
    /// What a good request keeps, in milliseconds: ttft:500 tpot:50 e2el:10000.
    #[arg(long, value_name = "METRIC:MS", num_args = 1.., value_parser = goal)]
    pub(crate) goodput: Vec<load::Goal>,
    /// Metrics to report, of ttft, tpot, itl, e2el.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "ttft,tpot,itl", value_parser = metric)]
    pub(crate) percentile_metrics: Vec<load::Metric>,
    /// Their percentiles.
    #[arg(long, value_name = "P,..", value_delimiter = ',', default_value = "99", value_parser = percentile)]
    pub(crate) metric_percentiles: Vec<f64>,
    /// Requests before the measurement that do not count.
    #[arg(long, value_name = "N", value_parser = load_or_zero, default_value = "0")]
    pub(crate) num_warmups: usize,
    /// Do not end answers at the model's end-of-text token, so that all have the length asked for.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Randomness of answers. Default: the server's.
    #[arg(long, value_name = "X", value_parser = number)]
    pub(crate) temperature: Option<f64>,
    /// The same seed sends the same prompts at the same moments.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write the result as JSON to a file.
    #[arg(long)]
    pub(crate) save_result: bool,
    /// With every request's times in it.
    #[arg(long)]
    pub(crate) save_detailed: bool,
    /// Directory of the file. Default: the current one.
    #[arg(long, value_name = "DIR")]
    pub(crate) result_dir: Option<PathBuf>,
    /// Name of the file. Default: from the API, rate, model and time.
    #[arg(long, value_name = "NAME")]
    pub(crate) result_filename: Option<String>,
    /// Print the JSON instead of the block of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `bench-serve --backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadApi {
    /// /v1/completions.
    Openai,
    /// /v1/chat/completions.
    OpenaiChat,
}

/// `bench-serve --dataset-name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadDataset {
    /// Random tokens.
    Random,
    /// A few prefixes before many suffixes.
    #[value(name = "prefix_repetition")]
    PrefixRepetition,
    /// What a service recorded.
    Trace,
}

/// `bench-serve --ramp-up-strategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RampUp {
    /// In equal steps.
    Linear,
    /// In equal ratios.
    Exponential,
}

/// Flags of `quality`.
#[derive(Args, Debug)]
pub(crate) struct QualityFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// The text to measure on: a file in UTF-8. Special tokens written in it are parsed. Default: the calibration text, 11
    /// kB of technical English in the binary.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Tokens of a window; the text is cut into such windows (suffix k = 1,000, K = 1,024). Default: 2,048 of a text of
    /// yours, 512 of the calibration text, or the model's own limit if that is less.
    #[arg(short = 'c', long, value_name = "N", value_parser = count)]
    pub(crate) max_model_len: Option<usize>,
    /// Tokens at the beginning of each window that are read and not judged; a last window that is not full is then left
    /// out. `-c 512 --skip 256` judges what llama-perplexity judges with its own -c 512. Default: 0 of a text of yours,
    /// half a window of the calibration text.
    #[arg(long, value_name = "N", value_parser = count_or_zero)]
    pub(crate) skip: Option<usize>,
    /// The model to compare with, in float32: for a quantized model the one it was made from. Both read the same tokens.
    /// Default: the weights that -m names, before they are made narrow.
    #[arg(long, value_name = "DIR|GGUF|HUB_ID")]
    pub(crate) reference: Option<String>,
    /// Print one JSON object, with the error of every matrix.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanFlags {
    /// A known model (llama-2-7b, llama-2-70b, llama-3.1-8b, llama-3.1-70b, llama-3.2-1b, mistral-7b, qwen2.5-0.5b,
    /// qwen2.5-7b), a number of parameters (7b), lantern (the built-in model), a directory with a config.json, a GGUF
    /// file, or a hub id that is in the local cache.
    #[arg(short = 'm', long, value_name = "NAME|7b|DIR|GGUF|HUB_ID", default_value = "llama-3.1-8b")]
    pub(crate) model: String,
    /// A known machine (a100, h100, h200, l40s, mi300x, xeon-8480, epyc-2core), or `here`: this machine, its limits
    /// measured now, or the steps of this model where a start of `serve` has measured them. Default: h100.
    #[arg(long, value_name = "NAME|here", conflicts_with_all = ["flops", "bandwidth", "memory"])]
    pub(crate) machine: Option<String>,
    /// Instead of a known machine: operations per second that it reaches (312T).
    #[arg(long, value_name = "X", value_parser = quantity, requires = "bandwidth")]
    pub(crate) flops: Option<f64>,
    /// Bytes per second that it reads from memory (2T).
    #[arg(long, value_name = "X", value_parser = quantity, requires = "flops")]
    pub(crate) bandwidth: Option<f64>,
    /// Bytes of its memory (80G). Without it nobody knows what fits.
    #[arg(long, value_name = "X", value_parser = quantity, requires = "flops")]
    pub(crate) memory: Option<f64>,
    /// Machines of one instance, as if nothing were lost between them.
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1")]
    pub(crate) machines_per_instance: usize,
    /// Precision of the weights; auto is what the checkpoint is stored in, or bf16.
    #[arg(long, value_enum, default_value_t = Weights::Auto)]
    pub(crate) weights: Weights,
    /// Precision of keys and values. Default: bf16.
    #[arg(long, visible_alias = "kv-cache-dtype", value_enum)]
    pub(crate) kv_dtype: Option<KvPrecision>,
    /// Order in which this machine sums products of 16-bit numbers; see `serve`. auto is the fastest.
    #[arg(long, value_enum, default_value_t = SumOrder::Auto)]
    pub(crate) arithmetic: SumOrder,
    /// Tokens of a prompt (suffix k = 1,000, K = 1,024).
    #[arg(short = 'p', long, value_name = "N", value_parser = count, default_value = "1024")]
    pub(crate) prompt: usize,
    /// Tokens of an answer.
    #[arg(short = 'n', long, value_name = "N", value_parser = count, default_value = "256")]
    pub(crate) response: usize,
    /// Requests that decode together.
    #[arg(short = 'b', long, value_name = "N", value_parser = seats, default_value = "1")]
    pub(crate) batch: usize,
    /// Rows of one pass over a prompt. Default: 512 here, as serve takes; 2,048 elsewhere.
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// How many machines so many users need, each of whom asks at --rate.
    #[arg(long, value_name = "N", value_parser = count, requires = "rate")]
    pub(crate) users: Option<usize>,
    /// Requests of one user in a time: 2/min, 0.1/s, 30/h.
    #[arg(long, value_name = "X/min", value_parser = requests, requires = "users")]
    pub(crate) rate: Option<f64>,
    /// Of a fleet: most time from a token to the next (50ms). Batches stay small enough for it.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "users")]
    pub(crate) tpot_slo: Option<f64>,
    /// Threads of this machine to count on. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Load the model, measure some points on this machine, and set both predictions beside them: that of the limits alone,
    /// and that of measured steps.
    #[arg(long, conflicts_with_all = ["machine", "flops", "prompt", "response", "batch", "users", "svg", "machines_per_instance", "max_num_batched_tokens"])]
    pub(crate) check: bool,
    /// Print one JSON object: the answer of the server's /plan.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write charts into this file: time against the prompt's length, and against the batch.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Flags of `sim`.
#[derive(Args, Debug)]
pub(crate) struct SimFlags {
    /// A known model (llama-2-7b, llama-2-70b, llama-3.1-8b, llama-3.1-70b, llama-3.2-1b, mistral-7b, qwen2.5-0.5b,
    /// qwen2.5-7b), or a directory with a config.json of Hugging Face. Its weights are not needed.
    #[arg(short = 'm', long, value_name = "NAME|DIR", default_value = "llama-3.1-8b")]
    pub(crate) model: String,
    /// A known machine (a100, h100, h200, l40s, mi300x, xeon-8480, epyc-2core), or `this`: this machine as measured now.
    #[arg(long, value_name = "NAME", default_value = "h100")]
    pub(crate) hardware: String,
    /// Machines of one instance, as if nothing were lost between them.
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1")]
    pub(crate) machines_per_instance: usize,
    /// Instances behind the router.
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1")]
    pub(crate) instances: usize,
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
    /// Of shared prefixes: tokens of each.
    #[arg(long, value_name = "N", value_parser = count, default_value = "2000")]
    pub(crate) prefix_tokens: usize,
    /// Of sessions: turns of each.
    #[arg(long, value_name = "N", value_parser = turns, default_value = "5")]
    pub(crate) turns: usize,
    /// Of sessions: mean pause between an answer and the next question.
    #[arg(long, value_name = "TIME", value_parser = pause, default_value = "10s")]
    pub(crate) pause: f64,
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

/// Flags of `replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayFlags {
    /// The recording.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// The model that was recorded, as for serve, to compute and compare the tokens too; `lantern` is the built-in one.
    /// Weights and cache have the classes of the recording.
    #[arg(short = 'm', long, value_name = "DIR|GGUF|HUB_ID")]
    pub(crate) model: Option<String>,
    /// Threads that compute. Any number gives the same bits. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeFlags {
    /// A directory in Hugging Face layout with bf16, f16 or f32 weights, or a hub id. Default: the built-in model.
    #[arg(short = 'm', long, value_name = "DIR|HUB_ID")]
    pub(crate) model: Option<String>,
    /// Precision of the layers' matrices in the result.
    #[arg(long, value_enum)]
    pub(crate) weights: Narrow,
    /// The result, which must not exist yet: a directory, or the file of --format gguf.
    #[arg(short = 'o', long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Layout of the result. gguf takes models of the families llama, mistral, qwen2 and qwen3.
    #[arg(long, value_enum, default_value_t = Layout::Safetensors)]
    pub(crate) format: Layout,
    /// With int4: round by what the matrices see on this text, so that what one weight loses is made good by others (GPTQ), layer
    /// by layer; about a fifth of the loss. The first 16,384 tokens are used. With int8: measure what each matrix loses
    /// on the text as well, which finds those whose inputs spike; needs memory for the weights in float32 beside the narrow ones.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// With --weights int4 and --text: raise the matrices that gain the most on the text to int8, until the codes of the
    /// layers' weights have this many bits on average, 4 to 8 (scales come on top).
    #[arg(long, value_name = "B", value_parser = bits, requires = "text")]
    pub(crate) bits: Option<f64>,
    /// Threads that compute; the result does not depend on them. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
}

/// Bits of a weight's code, on average.
fn bits(text: &str) -> Result<f64, String> {
    let bits: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if (4.0..=8.0).contains(&bits) { Ok(bits) } else { Err("from 4 to 8".to_string()) }
}

/// `quantize --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// A directory in the layout of compressed-tensors.
    Safetensors,
    /// One GGUF file.
    Gguf,
}

impl Layout {
    /// As the writer names it.
    pub(crate) fn format(self) -> model::export::Format {
        match self {
            Layout::Safetensors => model::export::Format::Safetensors,
            Layout::Gguf => model::export::Format::Gguf,
        }
    }
}

/// `quantize --weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Narrow {
    /// 16 bits as they are stored; GGUF only.
    Bf16,
    /// 8-bit integers: W8A16 with a scale per 64 weights, or Q8_0.
    Int8,
    /// 4-bit integers: W4A16 with a scale per 32 weights, or Q4_0.
    Int4,
}

impl Narrow {
    /// As the kernels name it.
    pub(crate) fn class(self) -> kernels::WeightClass {
        match self {
            Narrow::Bf16 => kernels::WeightClass::Bf16,
            Narrow::Int8 => kernels::WeightClass::Int8,
            Narrow::Int4 => kernels::WeightClass::Int4,
        }
    }
}

/// Flags of `whatif`.
#[derive(Args, Debug)]
pub(crate) struct WhatifFlags {
    /// The recording.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// Target for the time from arrival to first token of every request (500ms, 2s); off: no target.
    #[arg(long, value_name = "TIME|off", value_parser = fixed_target)]
    pub(crate) ttft_slo: Option<Target>,
    /// Target for the mean time from one token of an answer to the next (50ms); off: no target.
    #[arg(long, value_name = "TIME|off", value_parser = fixed_target)]
    pub(crate) tpot_slo: Option<Target>,
    /// KV blocks.
    #[arg(long, value_name = "N", value_parser = blocks)]
    pub(crate) kv_blocks: Option<usize>,
    /// Rows of one forward pass.
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// Rows of one prompt in one forward pass.
    #[arg(long, visible_alias = "long-prefill-token-threshold", value_name = "N", value_parser = rows)]
    pub(crate) max_prefill_chunk: Option<usize>,
    /// Prompts that may be in prefill in one forward pass.
    #[arg(long, value_name = "N", value_parser = seats)]
    pub(crate) max_num_partial_prefills: Option<usize>,
    /// Sequences that run together.
    #[arg(long, value_name = "N", value_parser = seats)]
    pub(crate) max_num_seqs: Option<usize>,
    /// Compute every prompt in full.
    #[arg(long)]
    pub(crate) no_enable_prefix_caching: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A target, or none.
pub(crate) type Target = Option<std::time::Duration>;

/// `off`, or a time: what was automatic then has a value in the recording.
fn fixed_target(text: &str) -> Result<Target, String> {
    match target(text)? {
        engine::DefaultTarget::None => Ok(None),
        engine::DefaultTarget::Fixed(time) => Ok(Some(time)),
        engine::DefaultTarget::Comfortable => Err("not a time; examples: 500ms, 2s, off".into()),
    }
}

/// Flags of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorFlags {
    /// Threads to measure with. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

fn metric(text: &str) -> Result<load::Metric, String> {
    let found = load::Metric::ALL.into_iter().find(|metric| metric.name() == text);
    found.ok_or_else(|| "not one of ttft, tpot, itl, e2el".to_string())
}

fn goal(text: &str) -> Result<load::Goal, String> {
    let (name, ms) = text.split_once(':').ok_or("not METRIC:MS, such as ttft:500")?;
    let metric = metric(name)?;
    let ms = ms
        .parse()
        .ok()
        .filter(|ms: &f64| *ms > 0.0 && ms.is_finite())
        .ok_or("milliseconds are a number greater than 0")?;
    Ok(load::Goal { metric, ms })
}

/// Things per second that somebody can send.
fn rate(text: &str) -> Result<f64, String> {
    let allowed = "not a rate per second from 0.001 to 10000";
    text.parse().ok().filter(|rate| (0.001..=10_000.0).contains(rate)).ok_or_else(|| allowed.to_string())
}

fn percentile(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|p| (0.0..=100.0).contains(p)).ok_or_else(|| "not a number from 0 to 100".to_string())
}

/// `auto`, `off`, or a time: `500ms`, `2s`, `1.5s`, `1m`.
fn target(text: &str) -> Result<engine::DefaultTarget, String> {
    use engine::DefaultTarget;
    match text {
        "auto" => return Ok(DefaultTarget::Comfortable),
        "off" => return Ok(DefaultTarget::None),
        _ => {}
    }
    let wrong = || "not a time; examples: 500ms, 2s, auto, off".to_string();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let ms = match unit {
        "ms" => 1.0,
        "s" => 1e3,
        "m" | "min" => 6e4,
        _ => return Err(wrong()),
    };
    let ms = number.parse::<f64>().map_err(|_| wrong())? * ms;
    if !(0.1..=3.6e6).contains(&ms) {
        return Err("must be between 0.1ms and 60m".into());
    }
    Ok(DefaultTarget::Fixed(std::time::Duration::from_secs_f64(ms / 1e3)))
}

fn instruction_set(text: &str) -> Result<kernels::Isa, String> {
    let names = kernels::Isa::ALL.map(kernels::Isa::name).join(", ");
    kernels::Isa::from_name(text).ok_or_else(|| format!("not one of {names}"))
}

/// Of numbers that are not tokens, without a suffix.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) => within(number, 1, SEATS),
        Err(_) => Err("not a whole number".into()),
    }
}

/// A number that is not negative.
fn number(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0).ok_or("not a number from 0".into())
}

/// Requests per second of a simulated load.
fn sim_rate(text: &str) -> Result<f64, String> {
    let allowed = "must be from 0.001 to 1000000";
    number(text).ok().filter(|rate| (0.001..=1e6).contains(rate)).ok_or_else(|| allowed.to_string())
}

/// A coefficient of variation.
fn spread(text: &str) -> Result<f64, String> {
    number(text).ok().filter(|cv| *cv <= 100.0).ok_or_else(|| "must be from 0 to 100".to_string())
}

/// A time that somebody waits before the next question.
fn pause(text: &str) -> Result<f64, String> {
    duration(text)
        .and_then(|seconds| if seconds <= 86_400.0 { Ok(seconds) } else { Err("must be at most 1440min".into()) })
}

/// A positive number with a decimal suffix: `312T`.
fn quantity(text: &str) -> Result<f64, String> {
    plan::units::quantity(text).ok_or_else(|| "not a number above 0; examples: 312T, 2T, 80G".to_string())
}

/// `2/min`, in requests per second.
fn requests(text: &str) -> Result<f64, String> {
    plan::units::requests_per_second(text).ok_or_else(|| "not requests in a time; examples: 2/min, 0.1/s".to_string())
}

/// A length of time in seconds: `500ms`, `2s`, `1.5s`, `1min`.
fn duration(text: &str) -> Result<f64, String> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("min", 60.0), ("s", 1.0)];
    let parsed = units.iter().find_map(|(unit, seconds)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds));
    parsed.filter(|seconds| (1e-6..1e9).contains(seconds)).ok_or("not a time; examples: 500ms, 2s, 1min".into())
}

/// Tokens of a sequence, or of what becomes one: more than any model reads.
const TOKENS: usize = 1 << 24;
/// Sequences, threads, machines, repetitions: more than anybody has.
const SEATS: usize = 1 << 16;

/// A number of tokens: `512`, `8k` (8,000), `8K` (8,192), as vLLM reads them.
fn count(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, TOKENS)
}

fn count_or_zero(text: &str) -> Result<usize, String> {
    within(whole(text)?, 0, TOKENS)
}

/// Sequences that run together, and other things of which there are few.
fn seats(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, SEATS)
}

/// Rows of a forward pass.
fn rows(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, scheduler::Limits::MOST_ROWS)
}

fn rows_or_zero(text: &str) -> Result<usize, String> {
    within(whole(text)?, 0, scheduler::Limits::MOST_ROWS)
}

/// Blocks of a KV cache.
fn blocks(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, scheduler::Limits::MOST_BLOCKS)
}

/// Requests of a load.
fn load(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, sim::workload::MAX_REQUESTS)
}

fn load_or_zero(text: &str) -> Result<usize, String> {
    within(whole(text)?, 0, sim::workload::MAX_REQUESTS)
}

/// Turns of a conversation.
fn turns(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, sim::workload::MAX_TURNS)
}

/// Requests that are sent: a client holds about a kilobyte for each.
fn sent(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, 1_000_000)
}

/// Tokens of many requests together.
fn many(text: &str) -> Result<usize, String> {
    within(whole(text)?, 1, 1 << 40)
}

fn whole(text: &str) -> Result<usize, String> {
    let bytes = size(text).map_err(|_| "not a whole number, with or without k, K, m or M behind it".to_string())?;
    usize::try_from(bytes).map_err(|_| "too large".into())
}

/// The number, or where it has to lie.
fn within(number: usize, least: usize, most: usize) -> Result<usize, String> {
    match number {
        _ if number < least => Err(format!("must be at least {least}")),
        _ if number > most => Err(format!("must be at most {most}")),
        _ => Ok(number),
    }
}

/// A directory and a size, apart at the last colon.
fn swap_disk(text: &str) -> Result<SwapDisk, String> {
    let (directory, bytes) = text.rsplit_once(':').ok_or("not DIR:SIZE, such as /var/tmp:20GiB")?;
    let bytes = size(bytes)?;
    if directory.is_empty() || bytes == 0 {
        return Err("not DIR:SIZE, such as /var/tmp:20GiB".to_string());
    }
    Ok(SwapDisk { directory: directory.into(), bytes })
}

/// A size in bytes: `4GiB`, `4G` (2^30 each), `4GB`, `4g` (10^9 each), `1.5GiB`, `1048576`.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || "not a size; examples: 4GiB, 500MB, 1073741824".to_string();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor: u64 = match suffix {
        "" | "B" => 1,
        "k" | "kB" | "KB" => 1000,
        "m" | "MB" => 1000 * 1000,
        "g" | "GB" => 1000 * 1000 * 1000,
        "t" | "TB" => 1000 * 1000 * 1000 * 1000,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| "too large".to_string());
    }
    let value = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if factor == 1 || value.fract() > 1e-6 * value || value >= u64::MAX as f64 {
        return Err(wrong());
    }
    Ok(value as u64)
}

/// What to use instead of a flag that people type from memory of vLLM or llama.cpp and that does not exist here.
pub(crate) fn hint(flag: &str) -> Option<&'static str> {
    let name = flag.split('=').next().unwrap_or(flag);
    Some(match name {
        "--gpu-memory-utilization" => "--kv-cache-memory-bytes sets the size of the KV cache",
        "--tensor-parallel-size" | "-tp" | "--pipeline-parallel-size" | "-pp" | "--data-parallel-size" => {
            "one process computes on all cores; -t sets the threads"
        }
        "--dtype" | "--quantization" | "-q" | "--load-format" => {
            "--weights bf16|int8|int4 sets the precision in memory"
        }
        "--cache-type-k" | "-ctk" | "--cache-type-v" | "-ctv" => {
            "--kv-dtype bf16|int8 sets the precision of the KV cache"
        }
        "--enable-chunked-prefill" | "--no-enable-chunked-prefill" => {
            "prefill is always chunked; --tpot-slo decides how large chunks are"
        }
        "--max-long-partial-prefills" => "--max-num-partial-prefills bounds the prompts in prefill per step",
        "--swap-space" | "--cpu-offload-gb" => "preempted requests are recomputed; there is no swap space",
        "--download-dir" => "the environment variable HF_HUB_CACHE sets where models are kept",
        "--hf-token" => "the environment variable HF_TOKEN holds the hub's token",
        "--trust-remote-code" => "no code of a model is ever run",
        "--enforce-eager" | "--compilation-config" | "-O" => "nothing is compiled at run time",
        "--tokenizer" | "--tokenizer-mode" | "--chat-template" | "--hf-config-path" | "--generation-config" => {
            "tokenizer, template and defaults are read from the model's directory"
        }
        "--allowed-origins" | "--cors-origins" => {
            "--allowed-origin ORIGIN, repeated, names those that may ask from a browser"
        }
        "--allowed-hosts" => "--allowed-host NAME, repeated, names what the server goes by",
        "--disable-log-requests" | "--disable-log-stats" | "--uvicorn-log-level" => {
            "the environment variable TWOSTROKE_LOG sets what is logged, e.g. TWOSTROKE_LOG=warn"
        }
        "--ctx-size" => "-c or --max-model-len sets the context",
        "--parallel" | "-np" => "--max-num-seqs sets the sequences that run together",
        "--ubatch-size" | "-ub" => "--tpot-slo decides the rows of a step, --max-num-batched-tokens bounds them",
        "--n-gpu-layers" | "-ngl" | "--gpu-layers" => "this build computes on the CPU",
        "--flash-attn" | "-fa" => "attention is always tiled",
        "--n-predict" => "-n or --max-tokens bounds the answer",
        "--prompt" => "the prompt is an argument: twostroke run \"...\"",
        "--verbose" => "the figures of both phases are always printed; --quiet turns them off",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_declarations_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_follow_the_written_unit() {
        let table = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4GiB", Some(4 << 30)),
            ("4G", Some(4 << 30)),
            ("4GB", Some(4_000_000_000)),
            ("4g", Some(4_000_000_000)),
            ("1.5GiB", Some(3 << 29)),
            ("25.6k", Some(25_600)),
            ("8K", Some(8192)),
            ("16777216T", None),
            ("1.5", None),
            ("", None),
            ("-1", None),
            ("4 GB", None),
            ("nanG", None),
            ("GiB", None),
        ];
        for (text, want) in table {
            assert_eq!(size(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn a_target_is_a_time_or_a_word() {
        use engine::DefaultTarget::{Comfortable, Fixed, None as Off};
        let ms = |ms| Some(Fixed(std::time::Duration::from_millis(ms)));
        let table = [
            ("500ms", ms(500)),
            ("2s", ms(2000)),
            ("1.5s", ms(1500)),
            ("2m", ms(120_000)),
            ("60m", ms(3_600_000)),
            ("auto", Some(Comfortable)),
            ("off", Some(Off)),
            ("", None),
            ("0", None),
            ("0ms", None),
            ("0.05ms", None),
            ("500", None),
            ("-5ms", None),
            ("2h", None),
            ("1..5s", None),
            ("nans", None),
            ("infs", None),
            ("61m", None),
            ("2 s", None),
        ];
        for (text, want) in table {
            assert_eq!(target(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn no_hint_is_given_for_a_flag_that_exists() {
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments() {
                let long = argument.get_long().map(|long| format!("--{long}"));
                // They exist in bench and in plan, and are llama.cpp's words for something of serve and of run.
                let elsewhere = ["--parallel", "--prompt"];
                if let Some(long) = long.filter(|long| !elsewhere.contains(&long.as_str())) {
                    assert_eq!(hint(&long), None, "{long} of {}", command.get_name());
                }
            }
        }
    }
}
