//! What an engine is started with, how large that makes it, and why it may not start.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use checkpoint::LoadError;
use kernels::memory_limits::Limit;
use kernels::threads::NodeChoice;
use kernels::{AccumulationOrder, CpuError, DeviceLimits, Isa, KvDtype, WeightClass};
use model::{AdapterRoom, GenerationSettings, ModelConfig};
use rates::{Calibration, DefaultTarget};
use scheduler::{CacheEvent, LimitsError};
use speculate::Speculation;
use text::chat_template::TemplateSettings;

use crate::adapters::AdapterError;
use crate::devices::DeviceChoice;
use crate::handoff::HandoffOptions;
use crate::recording::RecordError;
use crate::tiers::{Store, SwapDisk};
use crate::turns::Turns;
use crate::verify::OriginError;

/// Rows of logits that are computed together.
pub(crate) const MAX_LOGIT_ROWS: usize = 64;

/// Where events of the prefix cache go, those of a step at a time.
pub type CacheListener = Sender<Vec<CacheEvent>>;

/// Sizes and choices of an engine. [`EngineOptions::default`] serves a workstation; every field can be left alone.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// What computes. Tokens do not depend on it.
    pub device: DeviceChoice,
    /// The CPU goes on where a GPU is lost, with the same tokens; else its requests end with an error.
    pub standby: bool,
    /// Threads that compute; `None`: every core the process may use.
    pub threads: Option<usize>,
    /// Memory nodes that weights, KV cache and threads are split over. Tokens do not depend on it.
    pub nodes: NodeChoice,
    /// Force an instruction set below the best one; `None`: the best.
    pub isa: Option<Isa>,
    /// Order of sums of 16-bit products; `None`: the one that is fastest here. Tokens depend on it.
    pub arithmetic: Option<AccumulationOrder>,
    /// Precision of weights in memory.
    pub weights: WeightClass,
    /// Whether what the checkpoint stores in a wider class keeps it.
    pub as_stored: bool,
    /// Tokens of prompt and answer together; `None`: the model's own, or what the KV cache holds if that is less.
    pub max_model_len: Option<usize>,
    /// Sequences in one step.
    pub max_num_seqs: usize,
    /// Rows of one step: decode rows first, prompt chunks in what is left.
    pub max_num_batched_tokens: usize,
    /// Rows of one prompt chunk; `None`: all that a step has left.
    pub max_prefill_chunk: Option<usize>,
    /// Prompts in prefill per step.
    pub max_prefill_seqs: usize,
    /// Bytes of the KV cache; `None`: enough for every seat at full length, but at most half of the free memory.
    pub kv_cache_bytes: Option<u64>,
    /// Tokens per KV block, a multiple of 32.
    pub block_size: usize,
    /// Where packed weights are kept for the next start; `None`: nowhere.
    pub image_directory: Option<PathBuf>,
    /// Precision of keys and values in the cache.
    pub kv_dtype: KvDtype,
    /// Bytes for the experts of a mixture; `None`: for all of them.
    pub expert_memory: Option<u64>,
    /// Share computed prompt blocks between requests.
    pub enable_prefix_caching: bool,
    /// Bytes of host memory for blocks that leave the KV cache; 0: none but what `kv_swap_disk` passes through.
    pub kv_swap_bytes: u64,
    /// A file for blocks that leave that memory; `None`: no file.
    pub kv_swap_disk: Option<SwapDisk>,
    /// In place of the file.
    #[doc(hidden)]
    pub kv_swap_store: Option<Arc<dyn Store>>,
    /// Requests that may wait.
    pub max_queued_requests: usize,
    /// Prompt tokens that may wait.
    pub max_queued_tokens: usize,
    /// Several tenants may come, and none of them may fill the queue ([`crate::quota`]) or take every seat at once.
    pub is_shared: bool,
    /// Where the run is recorded; the file must not exist. See [`crate::recording`].
    pub record: Option<PathBuf>,
    /// Seed of the seeds of requests that name none.
    pub seed: u64,
    /// Measure at the start what steps cost, so that they are predicted and targets are heeded; `None`: only the limits
    /// bound a step, and a request that brings a target is refused.
    pub calibration: Option<Calibration>,
    /// Time to first token that is wanted for requests that bring none. Batch-class requests have no targets of this
    /// kind.
    pub ttft: DefaultTarget,
    /// Mean time from a token to the next that is wanted for them.
    pub tpot: DefaultTarget,
    /// Refuse a request if its first token would come later than its target, instead of serving it late.
    pub refuse_late: bool,
    /// Draft the next tokens of answers and verify several in one step, where that makes them come faster. Changes no
    /// answer.
    pub speculation: Speculation,
    /// Adapters that are loaded at the start: names and directories.
    pub adapters: Vec<(String, PathBuf)>,
    /// Room for adapters, those included; memory is taken for all of it.
    pub adapter_room: AdapterRoom,
    /// Prompts are read for other workers, or by them; `None`: neither.
    pub handoff: Option<HandoffOptions>,
    /// Hears after each step what the prefix cache finds and finds no more. It has to keep up: what it does not read
    /// waits in memory.
    pub cache_listener: Option<CacheListener>,
    /// How it shares the cores with the engines of other models in this process.
    pub turns: Turns,
    /// The share of the answers that are computed again while the engine is idle, 0 to 1.
    pub spot_check: f64,
    /// What the machine can do at most, for watchers; `None`: not measured.
    pub limits: Option<DeviceLimits>,
    /// Where the model's chat template is compiled and run. In this process by default: then a template can end the
    /// process, so that is for models with a trusted template.
    pub template: TemplateSettings,
    /// Defaults of sampling, where they are not the model's own.
    pub generation: GenerationSettings,
    /// Key of the prefix cache's hashes: random per start, so that no client can construct a collision.
    pub hash_key: [u8; 32],
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            device: DeviceChoice::Cpu,
            standby: false,
            threads: None,
            nodes: NodeChoice::AsFound,
            isa: None,
            arithmetic: None,
            weights: WeightClass::Bf16,
            as_stored: false,
            max_model_len: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 256,
            max_prefill_chunk: None,
            max_prefill_seqs: 4,
            kv_cache_bytes: None,
            block_size: 32,
            image_directory: None,
            kv_dtype: KvDtype::Bf16,
            expert_memory: None,
            enable_prefix_caching: true,
            kv_swap_bytes: 0,
            kv_swap_disk: None,
            kv_swap_store: None,
            max_queued_requests: 256,
            max_queued_tokens: 1 << 20,
            is_shared: false,
            record: None,
            seed: 0,
            calibration: None,
            ttft: DefaultTarget::None,
            tpot: DefaultTarget::None,
            refuse_late: false,
            speculation: Speculation::Off,
            adapters: Vec::new(),
            adapter_room: AdapterRoom::default(),
            handoff: None,
            cache_listener: None,
            turns: Turns::default(),
            spot_check: 0.0,
            limits: None,
            template: TemplateSettings::default(),
            generation: GenerationSettings::default(),
            hash_key: [0; 32],
        }
    }
}

impl EngineOptions {
    /// The one that is asked for, or the machine's.
    pub(crate) fn arithmetic(&self) -> AccumulationOrder {
        self.arithmetic.unwrap_or_else(AccumulationOrder::best)
    }

    /// Rows of logits that are held at a time: one for each sequence, and for its drafts.
    pub(crate) fn most_logit_rows(&self) -> usize {
        let drafts = self.speculation.drafters().map_or(0, |drafters| drafters.max_drafts);
        MAX_LOGIT_ROWS.min(self.max_num_seqs.saturating_mul(1 + drafts)).min(self.max_num_batched_tokens)
    }
}

/// What may leave memory.
fn less(expert_bytes: u64) -> String {
    let experts = expert_bytes >> 20;
    let set = format!("; --expert-memory SIZE keeps a part of the experts in memory, which take {experts} MiB of them");
    if expert_bytes > 0 { set } else { String::new() }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The checkpoint.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Threads or instruction set.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// An adapter.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// Sizes that do not go together.
    #[error("{0}")]
    Limits(#[from] LimitsError),
    /// An option out of its range.
    #[error("{option}: {problem}")]
    Option {
        /// The option's name as a flag.
        option: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// What this process may take holds no useful KV cache.
    #[error(
        "not enough memory: weights of {} MiB and the smallest useful KV cache ({tokens} tokens) need about {} MiB, and {} MiB \
         are left; what binds is the {limit} ({}){}",
        weight_bytes >> 20, needed.div_ceil(1 << 20), left >> 20, limit.source(), less(*expert_bytes)
    )]
    Memory {
        /// What the weights take.
        weight_bytes: u64,
        /// Tokens of the smallest cache.
        tokens: usize,
        /// Bytes of both and of what else a server needs.
        needed: u64,
        /// Bytes that the limit leaves.
        left: u64,
        /// The limit.
        limit: Limit,
        /// What all experts take of the weights; 0: there are none, or memory for them was set.
        expert_bytes: u64,
    },
    /// The recording.
    #[error("--record: {0}")]
    Record(#[from] RecordError),
    /// The weights could not be read again, for their digest.
    #[error("what handoffs compare of the model: {0}")]
    Origin(#[from] OriginError),
    /// The operating system gave no thread.
    #[error("the engine's thread could not be started: {0}")]
    Thread(std::io::Error),
}

/// About what the largest step holds besides weights and cache.
pub(crate) fn activation_bytes(config: &ModelConfig, options: &EngineOptions) -> u64 {
    let rows = options.max_num_batched_tokens.saturating_mul(config.shape().activations as usize);
    let logits = options.most_logit_rows().saturating_mul(config.vocab_size);
    4 * rows.saturating_add(logits) as u64
}
