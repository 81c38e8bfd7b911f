//! Flags of `serve`: where it listens, which clients it answers, how a step is bounded, what may wait.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use engine::SwapDisk;
use model::GenerationBase;

use super::completions::models;
use super::entries::{KeepAlive, ModelEntry, entry, keep_alive};
use super::shared::ModelFlags;
use super::values::{
    LoraModule, adapters, chat_template, count, generation_config, host_and_port, lora_module, many, object, rank,
    reasoning_parser, role, rows, rows_or_zero, seats, share, size, speculation, swap_disk, target, time,
    tool_call_parser,
};

/// When the next tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Speculate {
    /// Where it makes answers come faster
    Auto,
    /// Never
    Off,
}

/// What becomes of a `max_tokens` beyond the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Beyond {
    /// What the context leaves, and the answer says so
    Cut,
    /// 400, as vLLM
    Refuse,
}

/// Flags of `serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeFlags {
    /// The same as --model. Of several, the first answers what names none, and all are in memory from the start. Without
    /// one, and where only this machine can ask, the built-in model is the first, and those of the hub's cache are loaded
    /// when they are asked for.
    #[arg(value_name = "DIR|GGUF|HUB_ID", conflicts_with = "model", add = ArgValueCompleter::new(models))]
    pub(crate) models: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Go on with the CPU where a GPU is lost, in the middle of every answer and with the same tokens. Takes the host's
    /// memory for weights and cache when that happens. Otherwise open requests end with an error.
    #[arg(long, value_enum, value_name = "DEVICE")]
    pub(crate) standby: Option<StandbyDevice>,
    /// Download a model that does not fit into the free memory all the same.
    #[arg(long)]
    pub(crate) force: bool,
    /// Address to listen on. Anything but loopback is open to the network: set --api-key then.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// Flags of this verb in a file, as YAML with a key for each (`max-num-seqs: 32`, lists for what may be repeated).
    /// What is on the command line counts.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One of several models, as JSON: {"model": "qwen3:4b", "name": ["chat"], "pin": true, "keep-alive": "10m", "ttft-slo":
    /// "1s", "tpot-slo": "50ms", "max-model-len": "8k"}. May be repeated; in a file a list under `models`. The first
    /// answers what names none, pinned ones are loaded at the start, the others when they are asked for.
    #[arg(long = "models", value_name = "JSON", value_parser = entry, conflicts_with_all = ["models", "model"])]
    pub(crate) entries: Vec<ModelEntry>,
    /// Load the models of the hub's cache when they are asked for, beside those that are named. A request never
    /// downloads.
    #[arg(long)]
    pub(crate) on_demand: bool,
    /// Let requests download models into the hub's cache and remove them from it (/api/pull and /api/delete of Ollama's
    /// API). Of several keys, those with the word `models` in --api-key-file. Only where models are loaded on demand.
    #[arg(long)]
    pub(crate) allow_pull: bool,
    /// Memory of all models beside the first: weights and KV caches (20GiB). Where one more does not fit, the one that was
    /// idle longest leaves. Default: 80 % of what the first leaves.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// How long a model that was loaded on demand stays without requests (5m, 1h, 0: not at all, forever). Requests
    /// may say otherwise (keep_alive).
    #[arg(long, value_name = "TIME", value_parser = keep_alive, default_value = "5m", allow_negative_numbers = true)]
    pub(crate) keep_alive: KeepAlive,
    /// How long a request for a model waits at most because another, which has work, is to stay a while.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s")]
    pub(crate) load_wait: Duration,
    /// How long a request waits at most for its model to be in memory.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10m")]
    pub(crate) load_timeout: Duration,
    /// Listen at this Unix socket, not at host and port.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port", "ssl_certfile"])]
    pub(crate) uds: Option<PathBuf>,
    /// Speak TLS, with the certificate in this file (PEM: the server's first, then those that lead to a root).
    #[arg(long, visible_alias = "ssl-cert-file", value_name = "FILE", requires = "ssl_keyfile")]
    pub(crate) ssl_certfile: Option<PathBuf>,
    /// Its private key (PEM, without a password).
    #[arg(long, visible_alias = "ssl-key-file", value_name = "FILE", requires = "ssl_certfile")]
    pub(crate) ssl_keyfile: Option<PathBuf>,
    /// A prefix that a proxy serves this server under (/llm) and may leave in the paths of requests.
    #[arg(long, visible_alias = "api-prefix", value_name = "PATH", default_value = "")]
    pub(crate) root_path: String,
    /// Refuse requests without one of these keys (Authorization: Bearer KEY). May be repeated; each key is a tenant of
    /// its own for the prefix cache. Without the flag the environment variable TWOSTROKE_API_KEY has them, with commas
    /// between.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// More keys, one on a line; the file should be readable by its owner only. The word `priority` after a key lets its
    /// requests ask for that class (service_tier, or a priority below 0), which weighs four times as much as the usual
    /// one beside other keys; `adapters` lets it load and unload adapters (--allow-runtime-lora), `role` change this
    /// worker's role (--allow-role-change); `models` unload models, and download and remove them (--allow-pull). One key
    /// alone may all of that. # before a word
    /// begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// A name that requests may be sent to (their Host header), beside localhost, IP addresses and the name given as
    /// --host; may be repeated. Without keys every other name is refused, because a page on the web can make its own
    /// name lead here; with --api-key every name is served unless some are given.
    #[arg(long, value_name = "NAME")]
    pub(crate) allowed_host: Vec<String>,
    /// An origin (`https://app.example`) whose pages may ask this server from a browser and read the answers; may be
    /// repeated. Pages of all others may not.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allowed_origin: Vec<String>,
    /// Branch, tag or commit of the hub's model.
    #[arg(long, value_name = "NAME")]
    pub(crate) revision: Option<String>,
    /// A chat template in place of the model's: a file, or the text itself (Jinja).
    #[arg(long, visible_alias = "chat-template-file", value_name = "FILE|TEXT", value_parser = chat_template)]
    pub(crate) chat_template: Option<String>,
    /// Variables that the chat template is given unless a request says otherwise, as JSON: {"enable_thinking": false}.
    #[arg(long, visible_alias = "chat-template-kwargs", value_name = "JSON", value_parser = object)]
    pub(crate) default_chat_template_kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    /// Take a template in requests too (chat_template). It is a program, run with the limits of the model's own.
    #[arg(long)]
    pub(crate) trust_request_chat_template: bool,
    /// Whose defaults of sampling hold where a request says nothing: auto, the model's (generation_config.json); vllm,
    /// none (temperature 1, nothing cut); or a directory that has such a file.
    #[arg(long, value_name = "auto|vllm|DIR", default_value = "auto", value_parser = generation_config)]
    pub(crate) generation_config: GenerationBase,
    /// Defaults of sampling that hold in any case, as JSON: {"temperature": 0.5}.
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub(crate) override_generation_config: Option<serde_json::Map<String, serde_json::Value>>,
    /// Log probabilities per token that a request may ask for; -1 allows those of the whole vocabulary.
    #[arg(long, value_name = "N", default_value_t = engine::MAX_LOGPROBS, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub(crate) max_logprobs: i64,
    /// How the model writes calls of tools (names of vLLM or SGLang), or `none`. Default: as its chat template shows.
    #[arg(long, value_name = "NAME", value_parser = tool_call_parser)]
    pub(crate) tool_call_parser: Option<String>,
    /// How the model writes what it thinks (names of vLLM or SGLang), or `none`. Default: as its chat template shows.
    #[arg(long, value_name = "NAME", value_parser = reasoning_parser)]
    pub(crate) reasoning_parser: Option<String>,
    /// Names that requests may use for the model; the first is the one reported. Default: the model's name.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(crate) served_model_name: Vec<String>,
    /// Most tokens of prompt and answer together (suffix k = 1,000, K = 1,024). Default: the model's own, or what the
    /// KV cache holds if that is less.
    #[arg(short = 'c', long, visible_alias = "ctx-size", value_name = "N", value_parser = count)]
    pub(crate) max_model_len: Option<usize>,
    /// What becomes of a request for more tokens than the context leaves. Agents ask for 32,000 whatever the model.
    #[arg(long, value_name = "WHAT", value_enum, default_value = "cut")]
    pub(crate) max_tokens_beyond: Beyond,
    /// Sequences that run together, and so the most answers (n) that a request may ask for.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "64")]
    pub(crate) max_num_seqs: usize,
    /// Measure again what the machine can do and what steps cost, instead of taking what earlier starts have kept. What
    /// was measured while other programs used the machine is measured again without it.
    #[arg(long)]
    pub(crate) recalibrate: bool,
    /// Wanted time from arrival to the first token (500ms, 2s), for requests that name none themselves (ttft_slo_ms).
    /// off: no target. auto: an interactive target, as far as this machine can do it; the line "targets" of the start
    /// tells.
    #[arg(long, value_name = "TIME|auto|off", value_parser = target)]
    pub(crate) ttft_slo: Option<engine::DefaultTarget>,
    /// Wanted time from a token to the next (50ms), for requests that name none themselves (tpot_slo_ms). Prompts get
    /// what running streams can spare, so this is the balance between steady streams and fast prompts: larger means
    /// faster prompts.
    #[arg(long, value_name = "TIME|auto|off", value_parser = target)]
    pub(crate) tpot_slo: Option<engine::DefaultTarget>,
    /// Refuse a request that cannot be promised its first token in time (95 of 100 such promises are kept), with 503
    /// and a Retry-After, instead of serving it late. Now and then one is let through to learn from.
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
    /// Host memory for blocks that the KV cache has no room for, of preempted requests and of the prefix cache. On a
    /// CPU that is memory which the KV cache itself could have, so none by default.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub(crate) kv_swap_memory: u64,
    /// A directory and how much of its disk (/var/tmp:20GiB) for blocks that leave that memory. The file has no name,
    /// only this process can read it, and it is gone when the process ends. It holds what people said.
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
    /// Keep responses (/v1/responses, 30 days) in this directory, 4 GiB at most, and not in memory. It holds what was said
    /// and answered, and is readable by its owner only.
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Keep files and batches (/v1/files, /v1/batches) in this directory, and go on with those that an earlier server
    /// began. It holds what was sent and answered, and is readable by its owner only.
    #[arg(long, value_name = "DIR")]
    pub(crate) batch_dir: Option<PathBuf>,
    /// Record the run into this file, which must not exist: requests, cancels and every step, for `replay`.
    /// It holds prompts and answers (as token ids) and is readable by its owner only.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Draft the next tokens of answers from their own text, their prompts, predictions and earlier answers, and verify
    /// several in one step. How many is decided for each step: none where rows cost time. Changes no bit of any
    /// answer.
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto")]
    pub(crate) speculate: Speculate,
    /// The same with a choice of the drafter, as JSON with vLLM's keys. {"method": "suffix"} is --speculate auto,
    /// {"method": "ngram"} leaves out earlier answers; num_speculative_tokens is the most for one stream in one step.
    #[arg(long, value_name = "JSON", value_parser = speculation, conflicts_with = "speculate")]
    pub(crate) speculative_config: Option<engine::Speculation>,
    /// Low-rank adapters (LoRA) beside the model, as peft writes them: NAME=DIR, or JSON with "name" and "path". Requests
    /// ask for one by its name, as for a model. May be repeated, and takes several.
    #[arg(long, value_name = "NAME=DIR", num_args = 1.., value_parser = lora_module)]
    pub(crate) lora_modules: Vec<LoraModule>,
    /// Adapters that there may be at a time; memory is set aside for all of them. Default: as many as --lora-modules
    /// names, and 4 more with --allow-runtime-lora.
    #[arg(long, value_name = "N", value_parser = adapters)]
    pub(crate) max_loras: Option<usize>,
    /// Largest rank of an adapter, up to 512; memory is set aside for it.
    #[arg(long, value_name = "N", value_parser = rank, default_value = "16")]
    pub(crate) max_lora_rank: usize,
    /// Let requests load adapters from directories of this machine, and unload them (POST /v1/load_lora_adapter,
    /// /v1/unload_lora_adapter), as vLLM does with VLLM_ALLOW_RUNTIME_LORA_UPDATING. Of
    /// several keys those that have the word `adapters` in --api-key-file; what --lora-modules names then stays.
    #[arg(long)]
    pub(crate) allow_runtime_lora: bool,
    /// Whose requests this worker takes, where several share the work: prefill, those of other workers, whose prompts it
    /// reads; decode, its clients', and has long prompts read by --prefill-workers, or by those that a router names; both,
    /// all that come.
    #[arg(long, value_name = "prefill|decode|both", default_value = "both", value_parser = role)]
    pub(crate) role: engine::Role,
    /// Let requests change the role while the server runs (POST /role with {"role": "prefill"}): what has been taken goes
    /// on. What another role needs, --handoff-listen or --prefill-workers, may then be there from the start. Of
    /// several keys those that have the word `role` in --api-key-file.
    #[arg(long, requires = "cluster_key")]
    pub(crate) allow_role_change: bool,
    /// Workers that read long prompts for this one (`HOST:PORT`, their --handoff-listen). May be repeated; commas
    /// separate several. What they do not bring is computed here: no bit of any answer depends on them.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', requires = "cluster_key", value_parser = host_and_port)]
    pub(crate) prefill_workers: Vec<String>,
    /// Where this worker reads prompts for others (127.0.0.1:9000; port 0 takes a free one). What it sends holds prompts
    /// and is not encrypted: a trusted network, or a tunnel.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "cluster_key")]
    pub(crate) handoff_listen: Option<std::net::SocketAddr>,
    /// Read prompts with weights of one precision and write answers with those of another (int8/int4), by two workers
    /// that both name it; --role says which this one is. An answer is then that pair's and no other: where no worker
    /// reads a prompt its request ends with 503.
    #[arg(long, value_name = "PROMPTS/ANSWERS", requires = "cluster_key")]
    pub(crate) handoff_precision: Option<engine::PrecisionPair>,
    /// A file with the shared secret of all workers of a cluster, 16 bytes or more. A peer without it gets no answer.
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_key: Option<PathBuf>,
    /// Tell routers over ZeroMQ what the prefix cache finds and finds no more, in vLLM's words and format:
    /// {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": ""}. With
    /// --cluster-key, blocks have the same names in all workers. Events hold the tokens of prompts: a trusted network.
    #[arg(long, value_name = "JSON", value_parser = kv_events)]
    pub(crate) kv_events_config: Option<KvEvents>,
    /// The share of the answers (0.001: one of a thousand) that is computed again in this server while it is idle, and
    /// compared bit by bit: twostroke_spot_checks_total in /metrics, and an error in the log for one that differs. They
    /// take at most an eighth of the KV cache, a request that comes goes first, and what there is no time for is dropped.
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0")]
    pub(crate) spot_check: f64,
    /// Warn in the log of each request whose first token took at least so long (2s, 500ms), and say in words where the
    /// time went and who delayed it.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) slow_ttft: Option<Duration>,
    /// The same of each request that had at least so long between two of its tokens.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) slow_gap: Option<Duration>,
    /// Let holders of the link that the start prints pause this server and single-step it (the buttons of the page; POST
    /// /live/pause, /live/step, /live/resume with the link's token). A paused server makes all requests wait; it resumes
    /// 30 seconds after its last viewer has left.
    #[arg(long, conflicts_with = "no_ui")]
    pub(crate) allow_pause: bool,
    /// Serve neither the page at / nor the routes that it is made of (/live/...).
    #[arg(long)]
    pub(crate) no_ui: bool,
    /// Print the seven lines about the start as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where KV events go, if they are wanted.
#[derive(Clone, Debug)]
pub(crate) struct KvEvents(pub(crate) Option<kv_events::Endpoints>);

fn kv_events(text: &str) -> Result<KvEvents, String> {
    kv_events::Endpoints::parse(text).map(KvEvents).map_err(|error| error.to_string())
}

/// `--standby`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StandbyDevice {
    /// All cores.
    Cpu,
}
