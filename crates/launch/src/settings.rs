//! From the settings that were asked for to the options of an engine: the one place where the two meet.

use std::path::PathBuf;

use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, LoadError};
use engine::{
    CacheListener, Calibration, DefaultTarget, DeviceChoice, Engine, EngineOptions, HandoffOptions, Speculation,
    StartError, Starting, SwapDisk, Turns,
};
use kernels::threads::NodeChoice;
use kernels::{AccumulationOrder, DeviceLimits, Isa, KvDtype, WeightClass};
use model::{AdapterRoom, GenerationSettings, ModelConfig};
use text::chat_template::TemplateSettings;

use crate::machine;

/// Largest step where targets decide its size: an idle machine reads prompts at nearly full speed with this many rows.
const ROWS: usize = 512;
/// Default of the largest rank of an adapter: vLLM's.
const ADAPTER_RANK: usize = 16;
/// Room for adapters beside those of the start, where requests may load some.
const MORE_ADAPTERS: usize = 4;

/// How a model is held in memory, whatever is done with it.
#[derive(Clone, Debug, Default)]
pub struct ModelSettings {
    /// Precision of the weights; `None`: as the checkpoint is stored, or int8 where that does not fit.
    pub weights: Option<WeightClass>,
    /// Precision of keys and values.
    pub kv_dtype: KvDtype,
    /// Bytes for the experts of a mixture; `None`: for all of them.
    pub expert_memory: Option<u64>,
    /// Order of sums of 16-bit products; `None`: the one that is fastest here.
    pub arithmetic: Option<AccumulationOrder>,
    /// What computes.
    pub device: DeviceChoice,
    /// The CPU goes on where a GPU is lost.
    pub standby: bool,
    /// Threads that compute; `None`: one per core that the process may use.
    pub threads: Option<usize>,
    /// Memory nodes that they are on.
    pub nodes: NodeChoice,
    /// Where packed weights and measured steps are kept between starts; `None`: nowhere.
    pub cache: Option<PathBuf>,
}

/// The weights that a model is loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Their class.
    pub class: WeightClass,
    /// Whether what the checkpoint stores wider stays wider.
    pub as_stored: bool,
    /// What a person should know of the choice.
    pub why: Option<WeightClassReason>,
}

/// Why a class was chosen, or what is odd about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightClassReason {
    /// The checkpoint is stored so.
    AsStored,
    /// bf16 would leave too little of the free memory.
    Memory,
    /// int4 was asked for, and the checkpoint's eight bits are quantized once more.
    Twice,
}

impl Chosen {
    /// The reason in a line; `None` where there is nothing to say.
    pub fn notice(&self) -> Option<String> {
        let class = self.class.name();
        Some(match self.why? {
            WeightClassReason::AsStored => format!("weights: {class}, as the checkpoint is stored"),
            WeightClassReason::Memory => format!("weights: {class}, bf16 would not fit into the free memory"),
            WeightClassReason::Twice => format!(
                "weights: {class} has fewer bits than the checkpoint, whose weights are quantized once more; auto keeps them"
            ),
        })
    }
}

impl ModelSettings {
    /// The weights that a checkpoint is loaded with. Reads headers, and how much memory is free.
    pub fn choose(&self, checkpoint: &Checkpoint) -> Result<Chosen, LoadError> {
        if let Some(class) = self.weights {
            let twice = class == WeightClass::Int4 && Weights::open(checkpoint)?.class() == WeightClass::Int8;
            return Ok(Chosen { class, as_stored: false, why: twice.then_some(WeightClassReason::Twice) });
        }
        let weights = Weights::open(checkpoint)?;
        let (stored, config) = (weights.class(), ModelConfig::load(checkpoint)?);
        let bf16_bytes = config.weight_bytes_in_memory(WeightClass::Bf16, self.expert_memory);
        let available = machine::memory().map(|(_, available)| available);
        let class = choose(stored, bf16_bytes, available);
        let why = match (class, stored) {
            (WeightClass::Bf16, _) => None,
            (_, WeightClass::Bf16) => Some(WeightClassReason::Memory),
            _ => Some(WeightClassReason::AsStored),
        };
        Ok(Chosen { class, as_stored: stored != WeightClass::Bf16, why })
    }
}

/// The class where none was asked for: the one that the checkpoint is stored in; int8 for bf16 that would leave less
/// than a fifth of the free memory to everything else.
fn choose(stored: WeightClass, bf16_bytes: u64, available: Option<u64>) -> WeightClass {
    match (stored, available) {
        (WeightClass::Bf16, Some(available)) if bf16_bytes > available / 5 * 4 => WeightClass::Int8,
        _ => stored,
    }
}

/// Whether steps are measured at the start, so that their times are predicted and targets are heeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calibrate {
    /// They are not.
    #[default]
    No,
    /// They are, unless an earlier start has kept what it measured.
    Kept,
    /// They are, whatever was kept, and nothing is kept of it.
    Afresh,
    /// They are, whatever was kept, and the result takes its place.
    Again,
}

/// The settings of an engine, in the words of a command line; [`options`](Self::options) decides what is left open. See
/// [`EngineOptions`] for what the fields mean in full.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the model is held.
    pub model: ModelSettings,
    /// An instruction set below the best one; `None`: the best.
    pub isa: Option<Isa>,
    /// Tokens of prompt and answer together; `None`: the model's own, or what the KV cache holds.
    pub max_model_len: Option<usize>,
    /// Sequences that run together.
    pub max_num_seqs: usize,
    /// Rows of one step; `None`: targets decide. A number makes steps of that size.
    pub max_num_batched_tokens: Option<usize>,
    /// Rows of one prompt in one step; `None`: as above.
    pub max_prefill_chunk: Option<usize>,
    /// Prompts in prefill per step.
    pub max_prefill_seqs: usize,
    /// Bytes of the KV cache; `None`: see [`EngineOptions::kv_cache_bytes`].
    pub kv_cache_bytes: Option<u64>,
    /// Tokens per KV block, a multiple of 32.
    pub block_size: usize,
    /// Share computed prompt blocks between requests.
    pub enable_prefix_caching: bool,
    /// Bytes of host memory for blocks that leave the cache.
    pub kv_swap_bytes: u64,
    /// Disk for blocks that leave that memory.
    pub kv_swap_disk: Option<SwapDisk>,
    /// Requests that may wait.
    pub max_queued_requests: usize,
    /// Prompt tokens that may wait.
    pub max_queued_tokens: usize,
    /// Several tenants may come.
    pub is_shared: bool,
    /// Whether steps are measured.
    pub calibrate: Calibrate,
    /// Target for the first token; `None`: a default one where steps are measured and have no fixed size.
    pub ttft: Option<DefaultTarget>,
    /// Target from a token to the next; `None`: as above.
    pub tpot: Option<DefaultTarget>,
    /// Refuse what would come too late.
    pub refuse_late: bool,
    /// What drafts the next tokens of answers.
    pub speculation: Speculation,
    /// Adapters that are there from the start: names and directories.
    pub adapters: Vec<(String, PathBuf)>,
    /// How many there may be; `None`: those, and a few more where requests may load some.
    pub max_adapters: Option<usize>,
    /// Largest rank of an adapter.
    pub max_adapter_rank: usize,
    /// Requests may load some.
    pub runtime_adapters: bool,
    /// Prompts are read for other workers, or by them.
    pub handoff: Option<HandoffOptions>,
    /// How it shares the cores with the engines of other models.
    pub turns: Turns,
    /// Hears what the prefix cache finds ([`EngineOptions::cache_listener`]).
    pub cache_listener: Option<CacheListener>,
    /// The share of the answers that are computed again.
    pub spot_check: f64,
    /// What the machine can do at most, if it was measured.
    pub limits: Option<DeviceLimits>,
    /// Where the run is recorded.
    pub record: Option<PathBuf>,
    /// Seed of the seeds of requests that name none.
    pub seed: u64,
    /// Key of the prefix cache's hashes: must be unpredictable where clients are untrusted.
    pub hash_key: [u8; 32],
    /// Where chat templates run.
    pub template: TemplateSettings,
    /// Defaults of sampling, where they are not the model's own.
    pub generation: GenerationSettings,
}

/// The engine's own defaults; nothing is kept on disk and nothing measured.
impl Default for Settings {
    fn default() -> Settings {
        let options = EngineOptions::default();
        Settings {
            model: ModelSettings::default(),
            isa: options.isa,
            max_model_len: options.max_model_len,
            max_num_seqs: options.max_num_seqs,
            max_num_batched_tokens: None,
            max_prefill_chunk: options.max_prefill_chunk,
            max_prefill_seqs: options.max_prefill_seqs,
            kv_cache_bytes: options.kv_cache_bytes,
            block_size: options.block_size,
            enable_prefix_caching: options.enable_prefix_caching,
            kv_swap_bytes: options.kv_swap_bytes,
            kv_swap_disk: options.kv_swap_disk,
            max_queued_requests: options.max_queued_requests,
            max_queued_tokens: options.max_queued_tokens,
            is_shared: options.is_shared,
            calibrate: Calibrate::No,
            ttft: None,
            tpot: None,
            refuse_late: options.refuse_late,
            speculation: options.speculation,
            adapters: Vec::new(),
            max_adapters: None,
            max_adapter_rank: ADAPTER_RANK,
            runtime_adapters: false,
            handoff: options.handoff,
            turns: Turns::default(),
            cache_listener: None,
            spot_check: options.spot_check,
            limits: options.limits,
            record: options.record,
            seed: options.seed,
            hash_key: options.hash_key,
            template: options.template,
            generation: options.generation,
        }
    }
}

impl Settings {
    /// Whether steps have a fixed size, because one was asked for.
    pub fn has_fixed_steps(&self) -> bool {
        self.max_num_batched_tokens.is_some() || self.max_prefill_chunk.is_some()
    }

    /// The options of the engine. The only place that makes [`EngineOptions`].
    pub fn options(&self, chosen: Chosen) -> EngineOptions {
        let has_fixed_steps = self.has_fixed_steps();
        let asked = self.clone();
        let directory = asked.model.cache;
        let calibration = |directory, afresh| {
            let machine = machine::cpu_name().unwrap_or_default();
            Some(Calibration { directory, machine, afresh })
        };
        let target = match asked.calibrate {
            Calibrate::Kept | Calibrate::Afresh | Calibrate::Again if !has_fixed_steps => DefaultTarget::Auto,
            _ => DefaultTarget::None,
        };
        let more = if asked.runtime_adapters { MORE_ADAPTERS } else { 0 };
        let slots = asked.max_adapters.unwrap_or(asked.adapters.len() + more);
        EngineOptions {
            adapters: asked.adapters,
            adapter_room: AdapterRoom { slots, max_rank: asked.max_adapter_rank },
            device: asked.model.device,
            standby: asked.model.standby,
            threads: asked.model.threads,
            nodes: asked.model.nodes,
            isa: asked.isa,
            arithmetic: asked.model.arithmetic,
            weights: chosen.class,
            as_stored: chosen.as_stored,
            kv_dtype: asked.model.kv_dtype,
            expert_memory: asked.model.expert_memory,
            max_model_len: asked.max_model_len,
            max_num_seqs: asked.max_num_seqs,
            max_num_batched_tokens: asked.max_num_batched_tokens.unwrap_or(ROWS.max(asked.max_num_seqs)),
            max_prefill_chunk: asked.max_prefill_chunk,
            max_prefill_seqs: asked.max_prefill_seqs,
            kv_cache_bytes: asked.kv_cache_bytes,
            block_size: asked.block_size,
            enable_prefix_caching: asked.enable_prefix_caching,
            kv_swap_bytes: asked.kv_swap_bytes,
            kv_swap_disk: asked.kv_swap_disk,
            kv_swap_store: None,
            max_queued_requests: asked.max_queued_requests,
            max_queued_tokens: asked.max_queued_tokens,
            is_shared: asked.is_shared,
            calibration: match asked.calibrate {
                Calibrate::No => None,
                Calibrate::Kept => calibration(directory.clone(), false),
                Calibrate::Afresh => calibration(None, true),
                Calibrate::Again => calibration(directory.clone(), true),
            },
            image_directory: directory,
            ttft: asked.ttft.unwrap_or(target),
            tpot: asked.tpot.unwrap_or(target),
            refuse_late: asked.refuse_late,
            speculation: asked.speculation,
            handoff: asked.handoff,
            cache_listener: asked.cache_listener,
            turns: asked.turns,
            spot_check: asked.spot_check,
            limits: asked.limits,
            record: asked.record,
            seed: asked.seed,
            hash_key: asked.hash_key,
            template: asked.template,
            generation: asked.generation,
        }
    }

    /// Starts the engine. `progress` is called while it loads and measures.
    pub fn start(
        &self,
        checkpoint: &Checkpoint,
        chosen: Chosen,
        progress: &mut (dyn FnMut(Starting) + Send),
    ) -> Result<Engine, StartError> {
        Engine::start(checkpoint, &self.options(chosen), progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_keeps_what_is_stored_and_halves_what_does_not_fit() {
        use WeightClass::{Bf16, Int4, Int8};
        const GIB: u64 = 1 << 30;
        let table = [
            (Bf16, 2 * GIB, Some(16 * GIB), Bf16),
            (Bf16, 12 * GIB, Some(16 * GIB), Bf16),
            (Bf16, 14 * GIB, Some(16 * GIB), Int8),
            (Bf16, 140 * GIB, None, Bf16),
            (Int8, 14 * GIB, Some(16 * GIB), Int8),
            (Int4, 140 * GIB, Some(GIB), Int4),
        ];
        for (stored, bytes, available, wanted) in table {
            assert_eq!(choose(stored, bytes, available), wanted, "{stored:?} {bytes} {available:?}");
        }
    }

    #[test]
    fn targets_are_comfortable_where_steps_are_measured_and_nobody_named_a_size() {
        use Calibrate::{Afresh, Kept, No};
        use DefaultTarget::{Auto, None as Off};
        let chosen = Chosen { class: WeightClass::Bf16, as_stored: false, why: None };
        // (measured, rows, rows of a prompt, target) and the target and rows that hold.
        let table = [
            (No, None, None, None, Off, 512),
            (Kept, None, None, None, Auto, 512),
            (Afresh, None, None, None, Auto, 512),
            (Kept, Some(256), None, None, Off, 256),
            (Kept, None, Some(16), None, Off, 512),
            (Kept, Some(256), None, Some(Auto), Auto, 256),
            (No, None, None, Some(Auto), Auto, 512),
        ];
        for (calibrate, max_num_batched_tokens, max_prefill_chunk, tpot, wanted, rows) in table {
            let settings =
                Settings { calibrate, max_num_batched_tokens, max_prefill_chunk, tpot, ..Settings::default() };
            let options = settings.options(chosen);
            let case = format!("{calibrate:?} {max_num_batched_tokens:?} {max_prefill_chunk:?} {tpot:?}");
            assert_eq!((options.tpot, options.max_num_batched_tokens), (wanted, rows), "{case}");
        }
        let many = Settings { max_num_seqs: 600, ..Settings::default() };
        assert_eq!(many.options(chosen).max_num_batched_tokens, 600, "every seat has a row");
    }

    #[test]
    fn what_was_kept_counts_unless_it_is_measured_afresh() {
        let chosen = Chosen { class: WeightClass::Int8, as_stored: true, why: None };
        let cache = Some(PathBuf::from("/somewhere"));
        let model = ModelSettings { cache: cache.clone(), ..ModelSettings::default() };
        let table = [
            (Calibrate::Kept, cache.clone(), false),
            (Calibrate::Afresh, None, true),
            (Calibrate::Again, cache.clone(), true),
        ];
        for (calibrate, directory, afresh) in table {
            let options = Settings { model: model.clone(), calibrate, ..Settings::default() }.options(chosen);
            let calibration = options.calibration.expect("it is measured");
            assert_eq!((calibration.directory, calibration.afresh), (directory, afresh));
            assert_eq!((options.image_directory, options.as_stored), (cache.clone(), true));
        }
    }
}
