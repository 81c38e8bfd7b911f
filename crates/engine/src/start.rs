//! From a checkpoint and options to a running engine: every size is fixed here, and nothing grows afterwards.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, ImageWriter, LoadError, Weights};
use kernels::memory_limits::{Headroom, Limit, headroom};
use kernels::threads::num_nodes;
use kernels::{AccumulationOrder, Backend, Cpu, CpuOptions, DefaultFloats, DeviceInfo, Doubt, Isa, Reference};
use model::config::CacheShape;
use model::{
    Adapter, Encoder, Forward, GenerationDefaults, KvBudget, LoadOptions, ModelConfig, Progress, Runner, Standby,
};
use observe::PhaseWorkTotals;
use observe::Views;
use protocol::Nanos;
use protocol::sampling::{Sampling, SamplingParams};
use rates::calibrate::{self, Calibrated, Calibration, CalibrationFile, StepLimits};
use rates::{
    CalibrationUpdater, Capacity, CurrentTargets, DefaultTarget, RooflinePeaks, StepSamples, TargetDefaults, kept,
};
use scheduler::{CostModel, Limits, Scheduler, StateSizes, TierSizes};
use speculate::{self, DraftFiles, DraftNetwork, DraftSizes, DrafterSet, LoadedDrafter, TrainedDrafter};
use text::chat_template::{ChatTemplate, TemplateSettings};
use text::tokenizer::Tokenizer;
use tokio::sync::mpsc::unbounded_channel;

use crate::adapters::{self, AdapterError, Adapters};
use crate::clock::Clock;
use crate::clock::expert_memory;
use crate::core::EngineCore;
use crate::devices::{self, DeviceChoice};
use crate::handoff::{
    self, CompatibilityInfo, Counts, FoundBlocks, HandoffOptions, PrefillClient, RemotePrefill, Role, SignedAddress,
    TravelSizes,
};
use crate::options::{EngineOptions, StartError, activation_bytes};
use crate::queue_permit::{QueueCounts, Waiting};
use crate::recording::{self, Header};
use crate::rerun::{KeepRequests, KeptRequests};
use crate::states::{StateRoom, seats};
use crate::thread::{EngineStatus, run};
use crate::tiers::{Store, Tiers, open_unnamed};
use crate::validate::SANE_TARGET;
use crate::verify::{Origin, STATE_SLOTS, SpotChecks, SpotCounts, SpotRoom, Verify};
use crate::{Engine, Inner, LazyVocabulary, ModelInfo, encoder_options, memory};

/// Tokens of the shortest context that is of use where memory is short: a question and an answer.
const SHORTEST_CONTEXT: usize = 512;
/// Weights below this are packed in a blink and need no image on disk.
const IMAGE_FROM_BYTES: u64 = 64 << 20;
/// Blocks that a tier holds at most: what is known of each takes a quarter of a kilobyte.
const MAX_TIER_SLOTS: usize = 1 << 24;
/// Adapters that an engine has room for at most.
const MAX_ADAPTERS: usize = 1024;

/// Rows of a step on a GPU: each device takes as many workgroups.
const MOST_ROWS_OF_GPU: usize = 65_535;

/// Tokens of a common conversation: what a full house is thought to have in each seat.
const TOKENS_EACH: usize = 1024;

/// How far a start is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starting {
    /// Weights are read.
    Loading(Progress),
    /// Steps are measured: `done` of `total`.
    Calibrating {
        /// Measured so far.
        done: usize,
        /// In all.
        total: usize,
    },
}

impl Engine {
    /// Loads `checkpoint`, measures steps if that is wanted, and starts the engine's thread. `progress` is called for
    /// both.
    pub fn start(
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: &mut (dyn FnMut(Starting) + Send),
    ) -> Result<Engine, StartError> {
        Engine::start_around(checkpoint, options, progress, |forward| (forward, None))
    }

    /// The same with something around the model, and with what goes on where its device is lost: tests put faults in.
    #[doc(hidden)]
    pub fn start_around(
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: &mut (dyn FnMut(Starting) + Send),
        around: impl FnOnce(Box<dyn Forward>) -> (Box<dyn Forward>, Option<Standby>),
    ) -> Result<Engine, StartError> {
        // The threads that start here inherit it.
        let _floats = DefaultFloats::enter();
        let config = ModelConfig::load(checkpoint)?;
        let of_encoder = match &config.encoder {
            Some(_) => Some(encoder_options::options_for(checkpoint, options, &config)?),
            None => None,
        };
        let options = of_encoder.as_ref().unwrap_or(options);
        let Built { forward, standby, draft, model } = Engine::build(checkpoint, options, progress)?;
        let mut scheduler = Scheduler::new(limits(options, &model))?;
        scheduler.set_cost_model(model.calibrated.as_ref().map(|calibrated| calibrated.cost.clone()));
        let draft = draft.map(|draft| {
            scheduler.set_drafting_cost(draft.cost.map(|cost| (speculate::SOURCE, cost)));
            draft.network
        });
        let (forward, other) = around(forward);
        Engine::spawn(scheduler, (forward, other.or(standby)), draft, model, options)
    }

    /// Everything but the scheduler and the thread.
    pub(crate) fn build(
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: &mut (dyn FnMut(Starting) + Send),
    ) -> Result<Built, StartError> {
        check(options)?;
        let config = ModelConfig::load(checkpoint)?.with_head_of(&Weights::open(checkpoint)?)?;
        let generation_defaults = GenerationDefaults::load_with(checkpoint, &options.generation)?;
        // A checkpoint without a tokenizer can still be asked with token ids.
        let tokenizer = Tokenizer::find(checkpoint, config.vocab_size)?.map(Arc::new);
        let (chat_template, template_fault) = template(checkpoint, &options.template)?;
        let learned = options.speculation.drafters().and_then(|drafters| drafters.learned.as_ref());
        let draft_files = learned
            .map(|learned| DraftFiles::find(learned, options.weights, checkpoint, &config, tokenizer.as_deref()))
            .transpose()
            .map_err(wrong_drafter)?;
        let (room, layer_bytes) = options.device.room(headroom())?;
        let seats = seats(&config, options, room.as_ref());
        let fewer_seats = (seats < options.max_num_seqs).then(|| {
            let asked = options.max_num_seqs;
            format!("max_num_seqs is {seats}, not {asked}: each running sequence has states of its own in memory")
        });
        let mut options = options.clone();
        options.max_num_seqs = seats;
        let options = &options;
        let sizes = Sizes::of(&config, options, draft_files.as_ref(), (room, layer_bytes))?;
        // Before: what is written to from here on may not be what was read.
        let origin = Origin::of(checkpoint, options.as_stored, options.image_directory.clone());
        let Loaded { mut forward, standby, draft, cache, max_model_len, mut notices, arithmetic } =
            load_model(checkpoint, (options, &config), &sizes, draft_files.as_ref(), &mut |loaded| {
                progress(Starting::Loading(loaded));
            })?;
        // From here on the cache is what the scheduler has of it.
        let spot_blocks = match options.spot_check > 0.0 {
            true => SpotRoom::blocks(cache.blocks(), options.block_size, max_model_len),
            false => 0,
        };
        let num_blocks = cache.blocks() - spot_blocks;
        let cache = cache.with_blocks(num_blocks);
        notices.extend(fewer_seats);
        notices.extend(template_fault.as_ref().map(|fault| format!("conversations are refused: {fault}")));
        let device = forward.device();
        let room = StepLimits {
            rows: options.max_num_batched_tokens,
            seqs: options.max_num_seqs,
            len: max_model_len,
            blocks: num_blocks,
            block_size: options.block_size,
        };
        // As of a request that asks for nothing.
        let sampling = SamplingParams::default().resolve(&generation_defaults.sampling).unwrap_or_default();
        let costs = match &options.calibration {
            Some(calibration) => {
                let what = Calibrating { calibration, options, device: &device, room: &room, config: &config };
                calibrated(&mut *forward, &what, &sampling, progress)
            }
            None => None,
        };
        let draft = draft.zip(draft_files).map(|(loaded, files)| {
            let len = files.max_model_len(max_model_len);
            let room = StepLimits { len, ..room };
            let config = files.config().unwrap_or(&config);
            let sampling = options.calibration.as_ref().map(|_| &sampling);
            let mut measure = |forward: &mut dyn Forward, sampling: &Sampling| {
                let calibration = options.calibration.as_ref()?;
                let what = Calibrating { calibration, options, device: &device, room: &room, config };
                calibrated(forward, &what, sampling, progress).map(|calibrated| calibrated.cost)
            };
            let StepLimits { rows, blocks, block_size, .. } = room;
            let beside = DraftSizes {
                max_drafts: options.speculation.drafters().map_or(0, |drafters| drafters.max_drafts),
                max_rows: rows,
                max_logit_rows: options.most_logit_rows(),
                max_model_len: len,
                blocks,
                block_size,
            };
            loaded.begin(&mut *forward, beside, sampling, &mut measure)
        });
        let adapters = load_adapters(&mut *forward, options, &config)?;
        let eos_token_ids = end_tokens(&config, &generation_defaults, tokenizer.as_deref());
        let model = Arc::new(ModelInfo {
            name: checkpoint.name().to_owned(),
            generation_defaults,
            eos_token_ids,
            tokenizer: tokenizer.clone(),
            chat_template,
            template_fault,
            vocabulary: LazyVocabulary::default(),
            max_model_len,
            max_num_seqs: options.max_num_seqs,
            is_shared: options.is_shared,
            max_num_batched_tokens: options.max_num_batched_tokens,
            block_size: options.block_size,
            num_blocks,
            spot_blocks,
            states: sizes.states,
            kv_dtype: options.kv_dtype,
            kv_bytes: cache.bytes(),
            memory_limit: sizes.limit,
            weight_bytes: forward.weight_bytes(),
            expert_bytes: forward.expert_bytes(),
            swap: tier_sizes(options, num_blocks, forward.block_bytes(), max_model_len)?,
            kv_bytes_per_token: forward.kv_bytes_per_token(),
            notices,
            weights: options.weights,
            precisions: options.handoff.as_ref().and_then(|handoff| handoff.precisions),
            remote_only_prefill: options.handoff.as_ref().is_some_and(HandoffOptions::is_remote_only),
            device,
            arithmetic,
            backend: forward.describe(),
            targets: wanted(options, &room).on(costs.as_ref().map(|calibrated| &calibrated.cost)),
            calibrated: costs,
            config,
            origin,
            adapters,
        });
        Ok(Built { forward, standby, draft, model })
    }

    fn spawn(
        scheduler: Scheduler,
        (forward, standby): (Box<dyn Forward>, Option<Standby>),
        draft: Option<Box<dyn DraftNetwork>>,
        model: Arc<ModelInfo>,
        options: &EngineOptions,
    ) -> Result<Engine, StartError> {
        let clock = Clock::start();
        let targets = Arc::new(CurrentTargets::new(model.targets));
        let mut views = Views { phase_work: PhaseWorkTotals::of(model.demands()), ..Views::new(options.block_size) };
        views.peaks = options.limits.map(|limits| RooflinePeaks::new(model.demands(), limits));
        views.calibration = model.calibrated.as_ref().map(|calibrated| {
            let (len, blocks) = (model.max_model_len, model.num_blocks);
            let (rows, seqs, block_size) = (model.max_num_batched_tokens, model.max_num_seqs, model.block_size);
            let wanted = wanted(options, &StepLimits { rows, seqs, len, blocks, block_size });
            CalibrationUpdater::new(calibrated, wanted, targets.clone())
        });
        let views = Arc::new(Mutex::new(views));
        let waiting = Waiting::new(options.max_queued_requests, options.max_queued_tokens, options.is_shared);
        let status = Arc::new(EngineStatus::new(QueueCounts::new(waiting)));
        let travel = TravelSizes { block_bytes: forward.block_bytes(), state_bytes: forward.state_bytes() };
        let block_bytes = travel.block_bytes;
        let tiers = tiers(options, &model, block_bytes, clock.clone())?;
        let mut header = Header::of(&model, options.as_stored, scheduler.limits(), scheduler.cost_model())
            .with_drafting(scheduler.drafting_cost());
        header.began_unix_ns = Some(clock.unix(Nanos(0)).0);
        let sink = options.record.as_deref().map(|path| recording::record(path, &header)).transpose()?;
        let limits = scheduler.limits().clone();
        let mut core = EngineCore::new(scheduler, forward, model.tokenizer.clone(), options.seed, views.clone());
        let (sink, recorder) = sink.unzip();
        core.record_to(sink);
        core.set_standby(standby, model.clone());
        core.look_ahead(clock.now(), &status.forecast);
        if let Some(tiers) = tiers {
            core.set_tiers(tiers);
        }
        if let Some(drafters) = options.speculation.drafters() {
            let mut drafters = DrafterSet::of(drafters);
            draft.into_iter().for_each(|draft| drafters.join_network(draft));
            core.set_drafters(drafters);
        }
        let spot_counts = Arc::new(SpotCounts::default());
        let spot = (options.spot_check > 0.0).then(|| {
            let (vocab_size, room) = (model.config.vocab_size, SpotRoom::behind(&model));
            SpotChecks::new(options.spot_check, options.seed, vocab_size, room, spot_counts.clone())
        });
        core.add_feature(Box::new(Verify::new(spot)));
        let kept = (options.record.is_none() && !model.remote_only_prefill).then(KeptRequests::default);
        kept.iter().for_each(|kept| core.add_feature(Box::new(KeepRequests(Default::default(), kept.clone()))));
        let (commands, receiver) = unbounded_channel();
        let counts = Arc::new(Counts::of(options.handoff.as_ref()));
        let factors = options.handoff.as_ref().map(|_| CompatibilityInfo::of(&model, travel)).transpose()?;
        let asked = options.handoff.as_ref().zip(factors.clone()).filter(|(of, _)| of.can_ask());
        let remote = asked.map(|(HandoffOptions { prefill_workers, key, .. }, factors)| {
            let (key, commands) = (key.clone(), commands.clone());
            let client = PrefillClient::new(prefill_workers, key, factors, travel, commands, counts.clone());
            Box::new(client) as Box<dyn RemotePrefill>
        });
        core.set_remote_prefill(remote, counts.clone());
        if options.handoff.as_ref().is_some_and(HandoffOptions::is_remote_only) {
            core.set_remote_only_prefill();
        }
        let listens = options.handoff.as_ref().is_some_and(|handoff| handoff.listen.is_some());
        let has_states = model.states.is_some();
        let found = (listens || model.calibrated.is_some()).then(|| Arc::new(FoundBlocks::of(has_states)));
        found.iter().for_each(|found| core.add_feature(Box::new(found.clone())));
        options.cache_listener.iter().for_each(|listener| core.add_feature(Box::new(listener.clone())));
        let (thread_status, thread_clock) = (status.clone(), clock.clone());
        let seat = options.turns.seat();
        std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || run(core, receiver, thread_status, thread_clock, seat))
            .map_err(StartError::Thread)?;
        let engine = Engine(Arc::new(Inner {
            model,
            commands,
            status,
            views,
            clock,
            next_id: AtomicU64::new(1),
            recorder: Mutex::new(recorder),
            spot_counts,
            kept,
            limits,
            saved_of_optimum: Mutex::default(),
            targets,
            salt_key: options.hash_key,
            refuse_late: options.refuse_late,
            found: found.clone(),
            handoffs: counts.clone(),
            handoff_address: OnceLock::new(),
            handoff_key: options.handoff.as_ref().map(|handoff| handoff.key.clone()),
            has_remote_prefill: options.handoff.as_ref().is_some_and(HandoffOptions::can_ask),
        }));
        if let Some(HandoffOptions { listen: Some(at), key, .. }) = &options.handoff {
            let factors = factors.expect("who takes part has them");
            let found = found.expect("who listens has it");
            let bound = handoff::listen(&engine, *at, key.clone(), factors, counts, found);
            let listening = bound.map_err(|error| StartError::Option {
                option: "--handoff-listen",
                problem: format!("{at}: {error}"),
            })?;
            let sealed = SignedAddress::of(listening.address(), key);
            engine.0.handoff_address.set((listening, sealed)).expect("it is set once");
        }
        Ok(engine)
    }
}

/// The adapters of the options, each in a slot.
fn load_adapters(
    forward: &mut dyn Forward,
    options: &EngineOptions,
    config: &ModelConfig,
) -> Result<Adapters, AdapterError> {
    let adapters = Adapters::new(options.adapter_room, forward.adapter_packer());
    for (name, path) in &options.adapters {
        let failed = |error| adapters::failed(name, path, error);
        let reserved = adapters.reserve(name)?;
        let adapter = adapters.read(name, path, config)?;
        forward.set_adapter(reserved.slot as usize, Some(&adapter)).map_err(failed)?;
        adapters.fill(reserved, path, adapter.rank(), adapters::digest(&adapter)).map_err(failed)?;
    }
    Ok(adapters)
}

/// What is loaded and measured, before there is a scheduler.
pub(crate) struct Built {
    pub(crate) forward: Box<dyn Forward>,
    standby: Option<Standby>,
    draft: Option<TrainedDrafter>,
    pub(crate) model: Arc<ModelInfo>,
}

/// What the time of a step depends on.
struct Calibrating<'a> {
    calibration: &'a Calibration,
    options: &'a EngineOptions,
    device: &'a DeviceInfo,
    room: &'a StepLimits,
    config: &'a ModelConfig,
}

impl Calibrating<'_> {
    /// The result's name, and the file that it is kept in.
    fn place(&self) -> Option<CalibrationFile> {
        let Calibrating { calibration, options, device, room, config } = self;
        let DeviceInfo { kernels, threads, nodes, .. } = device;
        let (machine, weights, keys) = (&calibration.machine, options.weights.name(), options.kv_dtype.name());
        let arithmetic = options.arithmetic().name();
        let what = format!("{machine} {kernels} {arithmetic} {threads} {nodes} {weights} {} {keys}", options.as_stored);
        let version = env!("CARGO_PKG_VERSION");
        let key = kept::key(&format!("{version} {what} {} {config:?}", room.name()));
        let path = kept::place(calibration.directory.as_deref()?, &key, "cost");
        Some(CalibrationFile { key, path })
    }
}

impl EngineOptions {
    /// What steps of this model cost here, if an earlier start with the same options has measured and kept it. Reads no
    /// weight. The context that an engine gives itself depends on the free memory: where that is short, nothing may be
    /// found. Why it is not sure beside it.
    pub fn kept_cost(&self, config: &ModelConfig) -> Option<(CostModel, Option<Doubt>)> {
        if self.device != DeviceChoice::Cpu {
            return None;
        }
        let isa = self.isa.unwrap_or_else(Isa::best);
        let threads =
            if isa == Isa::Scalar { 1 } else { self.threads.unwrap_or_else(kernels::threads::default_threads) };
        let len = Sizes::of(config, self, None, (headroom(), u64::MAX)).ok()?.max_model_len;
        let room = StepLimits {
            rows: self.max_num_batched_tokens,
            seqs: self.max_num_seqs,
            len,
            blocks: 0,
            block_size: self.block_size,
        };
        let calibration = self.calibration.as_ref()?;
        let device = &DeviceInfo { nodes: num_nodes(self.nodes, threads), ..DeviceInfo::cpu(isa, threads) };
        let CalibrationFile { key, path } =
            Calibrating { calibration, options: self, device, room: &room, config }.place()?;
        let kept = StepSamples::read(&path, &key)?;
        Some((kept.fit()?, kept.doubt()))
    }
}

/// What steps of this model cost here: from disk, or measured now and kept. Of what was kept and is not sure, the samples
/// that do not count are measured again; it stays if that is not sure either, and steps have corrected it since.
fn calibrated(
    forward: &mut dyn Forward,
    what: &Calibrating<'_>,
    sampling: &Sampling,
    progress: &mut (dyn FnMut(Starting) + Send),
) -> Option<Calibrated> {
    let started = Instant::now();
    let room = what.room;
    let place = what.place();
    let kept = place.as_ref().filter(|_| !what.calibration.afresh);
    let kept = kept.and_then(|CalibrationFile { key, path }| StepSamples::read(path, key)).unwrap_or_default();
    let finished = |samples: StepSamples, from_disk| {
        let (cost, doubt, took) = (samples.fit()?, samples.doubt(), started.elapsed());
        Some(Calibrated { cost, samples, took, from_disk, doubt, file: place.clone() })
    };
    if let Some(calibrated) = finished(kept.clone(), true).filter(|calibrated| calibrated.doubt.is_none()) {
        return Some(calibrated);
    }
    // A separate thread, because the one that computes may be pinned to a core.
    let measure = || {
        forward.set_compute_thread();
        // Others on these cores have a turn between two of its steps.
        let seat = what.options.turns.seat();
        let mut turn = seat.as_ref().map(|seat| seat.take(Some(Duration::MAX)));
        let mut progress = |done, total| {
            progress(Starting::Calibrating { done, total });
            drop(turn.take());
            turn = seat.as_ref().map(|seat| seat.take(Some(Duration::MAX)));
        };
        calibrate::measure(forward, room, sampling, &kept, &mut progress)
    };
    let samples = std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    if samples.doubt().is_some() && kept.has_drifted() {
        return finished(kept, true);
    }
    if let Some(CalibrationFile { key, path }) = &place
        && let Err(error) = samples.write(path, key)
    {
        tracing::warn!(%error, path = %path.display(), "what steps cost could not be kept for the next start");
    }
    finished(samples, false)
}

/// The targets of requests that bring none, by what steps cost.
fn wanted(options: &EngineOptions, room: &StepLimits) -> TargetDefaults {
    let tokens_each = (room.blocks * room.block_size / room.seqs).min(room.len).min(TOKENS_EACH);
    let capacity = Capacity { seqs: room.seqs, tokens_each, rows: room.rows };
    TargetDefaults { ttft: options.ttft, tpot: options.tpot, capacity }
}

/// How many blocks the tiers hold. The disk is reached through host memory: of that there is at least an eighth of the
/// cache, for what is on its way to the file.
fn tier_sizes(
    options: &EngineOptions,
    num_blocks: usize,
    block_bytes: usize,
    max_model_len: usize,
) -> Result<TierSizes, StartError> {
    let wrong = |option, problem| StartError::Option { option, problem };
    let slots = |option, bytes: u64| match usize::try_from(bytes / block_bytes as u64) {
        Ok(0) if bytes > 0 => Err(wrong(option, format!("{bytes} bytes hold no KV block, which has {block_bytes}"))),
        Ok(slots) if slots < MAX_TIER_SLOTS => Ok(slots),
        _ => Err(wrong(option, format!("more than {MAX_TIER_SLOTS} KV blocks of {block_bytes} bytes"))),
    };
    let mut host_slots = slots("--kv-swap-memory", options.kv_swap_bytes)?;
    let disk_slots = slots("--kv-swap-disk", options.kv_swap_disk.as_ref().map_or(0, |disk| disk.bytes))?;
    if host_slots + disk_slots > 0 && options.record.is_some() {
        let problem = "a recording does not hold when transfers end: record without swap".to_string();
        return Err(wrong("--record", problem));
    }
    if host_slots + disk_slots > 0 && !options.enable_prefix_caching {
        let problem = "blocks in swap are found by the prefix cache, which is off".to_string();
        return Err(wrong(if host_slots > 0 { "--kv-swap-memory" } else { "--kv-swap-disk" }, problem));
    }
    if options.handoff.as_ref().is_some_and(HandoffOptions::can_ask) {
        // What comes from others lands there.
        host_slots = host_slots.max((num_blocks / 4).max(1));
    }
    if options.handoff.as_ref().is_some_and(HandoffOptions::is_remote_only) {
        // The longest prompt has to be there as a whole.
        host_slots = host_slots.max(max_model_len.div_ceil(options.block_size));
    }
    if disk_slots > 0 {
        host_slots = host_slots.max((num_blocks / 8).max(1));
    }
    let needed = host_slots as u64 * block_bytes as u64;
    if memory::available_bytes().is_some_and(|free| needed > free) {
        return Err(wrong("--kv-swap-memory", format!("{needed} bytes are more than the free memory")));
    }
    Ok(TierSizes { host_slots, disk_slots })
}

/// Opens the file, if there is to be one, and starts its threads.
fn tiers(
    options: &EngineOptions,
    model: &ModelInfo,
    block_bytes: usize,
    clock: Clock,
) -> Result<Option<Tiers>, StartError> {
    let refuse = |directory: &Path, error: std::io::Error| StartError::Option {
        option: "--kv-swap-disk",
        problem: format!("{}: {error}", directory.display()),
    };
    let store: Option<Arc<dyn Store>> = match (&options.kv_swap_store, &options.kv_swap_disk) {
        (_, None) => None,
        (Some(store), Some(_)) => Some(store.clone()),
        (None, Some(disk)) => {
            let file = open_unnamed(&disk.directory).map_err(|error| refuse(&disk.directory, error))?;
            Some(Arc::new(file))
        }
    };
    if model.swap.host_slots == 0 {
        return Ok(None);
    }
    Tiers::new(model.swap, block_bytes, store, clock).map(Some).map_err(StartError::Thread)
}

fn check(options: &EngineOptions) -> Result<(), StartError> {
    let refuse = |option, problem: &str| Err(StartError::Option { option, problem: problem.to_owned() });
    if options.max_num_seqs == 0 || options.max_num_seqs > 4096 {
        return refuse("--max-num-seqs", "must be between 1 and 4096");
    }
    if options.device != DeviceChoice::Cpu && options.max_num_batched_tokens > MOST_ROWS_OF_GPU {
        return refuse("--max-num-batched-tokens", "must be at most 65535 on a GPU");
    }
    let (tokens, seqs) = (options.max_num_batched_tokens, options.max_num_seqs);
    if tokens < seqs && tokens > 0 {
        // The other flag may have its default.
        let problem = format!(
            "{tokens} is less than --max-num-seqs, which is {seqs}, and a step has a token of each: give {seqs} or more, \
             or --max-num-seqs {tokens} too"
        );
        return refuse("--max-num-batched-tokens", &problem);
    }
    if tokens == 0 || tokens > 65536 {
        return refuse("--max-num-batched-tokens", "must be at least --max-num-seqs and at most 65536");
    }
    if options.block_size == 0 || !options.block_size.is_multiple_of(32) || options.block_size > 1024 {
        return refuse("--block-size", "must be a multiple of 32, at most 1024");
    }
    if let Some(handoff) = &options.handoff {
        let option = if handoff.listen.is_some() { "--handoff-listen" } else { "--prefill-workers" };
        match handoff.role {
            Role::Prefill if handoff.listen.is_none() => {
                return refuse("--role", "prefill reads prompts for others, who have to find it: --handoff-listen");
            }
            // What another role needs may be there, where there may be another.
            _ if handoff.role_may_change => {}
            Role::Prefill if !handoff.prefill_workers.is_empty() => {
                return refuse("--role", "prefill reads prompts itself: without --prefill-workers");
            }
            Role::Decode if handoff.listen.is_some() => {
                return refuse("--role", "decode reads no prompts for others: without --handoff-listen");
            }
            _ => {}
        }
        if !options.enable_prefix_caching {
            return refuse(option, "blocks that travel are found by the prefix cache, which is off");
        }
        if options.record.is_some() {
            return refuse("--record", "a recording does not hold what comes from other workers: record without them");
        }
        if let Some(pair) = &handoff.precisions {
            let option = "--handoff-precision";
            let Some(class) = pair.of(handoff.role) else {
                return refuse(option, "one worker reads prompts and another answers: --role prefill, or decode");
            };
            if handoff.role_may_change {
                return refuse(option, "each of a pair has the weights of its role: without --allow-role-change");
            }
            if options.weights != class || options.as_stored {
                let problem = format!("of {pair} this role has {}: --weights {0}, or none", class.name());
                return refuse(option, &problem);
            }
            if options.spot_check > 0.0 {
                return refuse("--spot-check", "no worker of a pair of precisions can compute an answer again alone");
            }
        }
    }
    if !(0.0..=1.0).contains(&options.spot_check) {
        return refuse("--spot-check", "must be a share between 0 and 1");
    }
    if options.max_prefill_seqs == 0 {
        return refuse("--max-num-partial-prefills", "must be at least 1");
    }
    if options.max_prefill_chunk == Some(0) {
        return refuse("--max-prefill-chunk", "must be at least 1");
    }
    if options.record.is_some() && options.adapter_room.slots > 0 {
        return refuse("--record", "a recording does not hold adapters: record without --lora-modules and --max-loras");
    }
    if options.adapter_room.slots > MAX_ADAPTERS {
        return refuse("--max-loras", "at most 1024");
    }
    if !(1..=Adapter::MAX_RANK).contains(&options.adapter_room.max_rank) && options.adapter_room.slots > 0 {
        return refuse("--max-lora-rank", "must be between 1 and 512");
    }
    if options.record.as_deref().is_some_and(Path::exists) {
        return refuse("--record", "there is such a file already; name one that does not exist");
    }
    for (option, target) in [("--ttft-slo", options.ttft), ("--tpot-slo", options.tpot)] {
        if matches!(target, DefaultTarget::Fixed(time) if !SANE_TARGET.contains(&time)) {
            return refuse(option, "must be between 0.1ms and 1h");
        }
        if target != DefaultTarget::None && options.calibration.is_none() {
            return refuse(option, "requires calibration");
        }
    }
    if options.refuse_late && options.calibration.is_none() {
        return refuse("--refuse-late", "requires calibration");
    }
    if options.max_model_len.is_some_and(|len| len < 2) {
        return refuse("--max-model-len", "must be at least 2");
    }
    Ok(())
}

/// The sizes that decide what is allocated.
struct Sizes {
    max_model_len: usize,
    kv: KvBudget,
    /// Slots for states beside it.
    states: Option<StateSizes>,
    /// What made the cache smaller than it could have been used.
    limit: Option<Limit>,
}

impl Sizes {
    /// `room`: what this process may take, `None` where the system does not say; and the most bytes of the cache of one
    /// layer. `draft`: drafters that need memory beside it.
    fn of(
        config: &ModelConfig,
        options: &EngineOptions,
        draft: Option<&DraftFiles>,
        (room, layer_bytes): (Option<Headroom>, u64),
    ) -> Result<Sizes, StartError> {
        let max_model_len = options.max_model_len.unwrap_or(config.context_limit);
        let block_size = options.block_size;
        let blocks_per_seq = max_model_len.div_ceil(block_size);
        // Memory for more than every seat at full length is only prefix cache: twice that is plenty.
        let plenty = match config.encoder {
            None => blocks_per_seq.saturating_mul(options.max_num_seqs).saturating_mul(2),
            // Of a text nothing stays behind its step.
            Some(_) => options.max_num_batched_tokens.div_ceil(block_size) + options.max_num_seqs,
        };
        let block_bytes = config.cache_shape(options.kv_dtype, 1, block_size).bytes().max(1) as u64
            + draft.map_or(0, |draft| draft.block_bytes(options.kv_dtype, block_size));
        let layer_block_bytes = config.cache_shape(options.kv_dtype, 1, block_size).layer_bytes().max(1) as u64;
        let most_of_layer = usize::try_from(layer_bytes / layer_block_bytes).unwrap_or(usize::MAX);
        let states = StateRoom::of(config, options);
        let weight_bytes = config.weight_bytes_in_memory(options.weights, options.expert_memory)
            + draft.map_or(0, DraftFiles::weight_bytes);
        let room = room.unwrap_or(Headroom { bytes: 4 << 30, limit: Limit::Machine });
        // A length that was set is not cut; one that the model cannot read is refused when it is loaded.
        let shortest = options.max_model_len.unwrap_or(SHORTEST_CONTEXT).min(config.context_limit);
        let adapter_bytes = options.adapter_room.bytes(config, options.max_num_batched_tokens);
        let adapter_bytes = adapter_bytes.unwrap_or(u64::MAX / 4);
        let wants = memory::Wants {
            weight_bytes,
            block_bytes: block_bytes + states.map_or(0, |states| states.bytes_per_block()),
            activation_bytes: activation_bytes(config, options)
                + adapter_bytes
                + states.map_or(0, |states| states.fixed_bytes())
                + draft.and_then(DraftFiles::config).map_or(0, |config| activation_bytes(config, options)),
            fewest: shortest.div_ceil(block_size) as u64,
            most: plenty.min(most_of_layer) as u64,
        };
        let (blocks, limit) = match options.kv_cache_bytes {
            Some(bytes) => {
                check_wish(bytes, &wants, &room)?;
                let blocks = (bytes / block_bytes) as usize;
                if blocks > most_of_layer {
                    let most = (most_of_layer as u64 * block_bytes) >> 20;
                    let problem = format!("this device holds {most} MiB at most: a layer's cache is one buffer there");
                    return Err(StartError::Option { option: "--kv-cache-memory-bytes", problem });
                }
                (blocks, None)
            }
            None => {
                let blocks = memory::blocks(&wants, &room).map_err(|little| StartError::Memory {
                    weight_bytes,
                    tokens: shortest,
                    needed: little.needed,
                    left: little.room.bytes,
                    limit: little.room.limit,
                    expert_bytes: expert_bytes(config, options),
                })?;
                (blocks as usize, Some(room.limit).filter(|_| blocks < plenty as u64))
            }
        };
        // Without a wish of the user's, the context is what the cache can hold.
        let holds = blocks.saturating_mul(block_size);
        let max_model_len = if options.max_model_len.is_none() { max_model_len.min(holds) } else { max_model_len };
        let states = states.map(|states| states.sizes(blocks));
        Ok(Sizes { max_model_len, kv: KvBudget::Blocks(blocks), states, limit })
    }
}

/// What experts take that may leave memory; 0 where there are none, or where memory for them is set.
fn expert_bytes(config: &ModelConfig, options: &EngineOptions) -> u64 {
    let of = |memory| config.weight_bytes_in_memory(options.weights, memory);
    if options.expert_memory.is_some() { 0 } else { of(None) - of(Some(0)) }
}

/// A size that was set is kept, unless a limit makes sure that it never can be: the machine's free memory may grow, but
/// a control group would kill the server when the cache fills.
fn check_wish(bytes: u64, wants: &memory::Wants, room: &Headroom) -> Result<(), StartError> {
    let left = memory::beside(wants, room);
    if bytes <= left || room.limit == Limit::Machine {
        return Ok(());
    }
    let (limit, asked, left) = (&room.limit, bytes.div_ceil(1 << 20), left >> 20);
    let problem = format!(
        "{asked} MiB are more than the {left} MiB left beside weights and requests; what binds is the {limit} ({})",
        limit.source()
    );
    Err(StartError::Option { option: "--kv-cache-memory-bytes", problem })
}

/// The model's template, or why it cannot be used where only conversations need it. One given in its place has to be
/// good.
fn template(
    checkpoint: &Checkpoint,
    settings: &TemplateSettings,
) -> Result<(Option<ChatTemplate>, Option<String>), LoadError> {
    match ChatTemplate::load_with(checkpoint, settings) {
        Ok(template) => Ok((template, None)),
        Err(error) if settings.is_needed || settings.source.is_some() => Err(error),
        Err(error @ LoadError::Io { .. }) => Err(error),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}

/// A model in memory, whatever backend computes it.
struct Loaded {
    forward: Box<dyn Forward>,
    standby: Option<Standby>,
    draft: Option<LoadedDrafter>,
    cache: CacheShape,
    max_model_len: usize,
    notices: Vec<String>,
    arithmetic: AccumulationOrder,
}

fn load_model(
    checkpoint: &Checkpoint,
    (options, config): (&EngineOptions, &ModelConfig),
    sizes: &Sizes,
    draft: Option<&DraftFiles>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Loaded, StartError> {
    let load = LoadOptions {
        weights: options.weights,
        as_stored: options.as_stored,
        max_rows: options.max_num_batched_tokens,
        max_logit_rows: options.most_logit_rows(),
        max_model_len: Some(sizes.max_model_len),
        kv_blocks: sizes.kv,
        block_size: options.block_size,
        image_directory: options
            .image_directory
            .clone()
            .filter(|_| config.weight_bytes(options.weights) >= IMAGE_FROM_BYTES),
        kv_dtype: options.kv_dtype,
        adapters: options.adapter_room,
        expert_memory: options.expert_memory.map(expert_memory),
        state_slots: sizes.states.map_or(0, |states| states.slots + STATE_SLOTS),
    };
    let (isa, arithmetic) = (options.isa.unwrap_or_else(Isa::best), options.arithmetic());
    let is_encoder = config.encoder.is_some();
    if is_encoder && options.standby {
        let problem = "an encoder has no answers that could go on: leave it out".to_owned();
        return Err(StartError::Option { option: "--standby", problem });
    }
    let EngineOptions { threads, nodes, device, .. } = *options;
    let of_cpu = CpuOptions { threads, isa: Some(isa), arithmetic: Some(arithmetic), nodes };
    if let Some(gpu) = device.open(of_cpu)? {
        let loaded = match is_encoder {
            true => model::load_encoder(gpu, checkpoint, &load, progress)
                .map(|encoder| boxed_encoder(encoder, arithmetic))
                .map_err(StartError::from),
            false => model::load(gpu, checkpoint, &load, progress)
                .map_err(StartError::from)
                .and_then(|runner| boxed(runner, checkpoint, arithmetic, draft, &load)),
        };
        if let Some(mut loaded) = device.or_cpu(loaded)? {
            if options.standby {
                loaded.standby = Some(devices::standby(of_cpu, checkpoint, &load)?);
            }
            return Ok(loaded);
        }
    }
    // A CPU without AVX2 is served by the definition itself: slow, and the same bits.
    if isa == Isa::Scalar {
        if is_encoder {
            let encoder = model::load_encoder(Reference::of(arithmetic), checkpoint, &load, progress)?;
            return Ok(boxed_encoder(encoder, arithmetic));
        }
        let runner = model::load(Reference::of(arithmetic), checkpoint, &load, progress)?;
        return boxed(runner, checkpoint, arithmetic, draft, &load);
    }
    let cpu = Cpu::new(of_cpu)?;
    if is_encoder {
        return Ok(boxed_encoder(model::load_encoder(cpu, checkpoint, &load, progress)?, arithmetic));
    }
    boxed(model::load(cpu, checkpoint, &load, progress)?, checkpoint, arithmetic, draft, &load)
}

fn boxed_encoder<B: Backend>(encoder: Encoder<B>, arithmetic: AccumulationOrder) -> Loaded {
    Loaded {
        standby: None,
        draft: None,
        cache: encoder.cache_shape().clone(),
        max_model_len: encoder.max_model_len(),
        notices: encoder.notices().to_vec(),
        forward: Box::new(encoder),
        arithmetic,
    }
}

fn boxed<B: Backend>(
    mut runner: Runner<B>,
    checkpoint: &Checkpoint,
    arithmetic: AccumulationOrder,
    draft: Option<&DraftFiles>,
    load: &LoadOptions,
) -> Result<Loaded, StartError> {
    if let Some(writer) = runner.image_writer() {
        keep_image(writer);
    }
    let cache = runner.cache_shape().clone();
    Ok(Loaded {
        standby: None,
        draft: draft
            .map(|draft| draft.load(&mut runner, checkpoint, load, cache.blocks()))
            .transpose()
            .map_err(wrong_drafter)?,
        cache,
        max_model_len: runner.max_model_len(),
        notices: runner.notices().to_vec(),
        forward: Box::new(runner),
        arithmetic,
    })
}

fn wrong_drafter(problem: String) -> StartError {
    StartError::Option { option: "--speculative-config", problem }
}

/// Writes the weights' image at the disk's pace. A process that ends first leaves none, and the next start packs again.
fn keep_image(writer: ImageWriter) {
    let write = || match writer.write() {
        Ok(path) => tracing::info!(path = %path.display(), "packed weights are kept for the next start"),
        Err(error) => tracing::warn!(%error, "packed weights could not be kept for the next start"),
    };
    // Without a thread there is no image, and nothing else is lost.
    let _ = std::thread::Builder::new().name("packed-image".to_string()).spawn(write);
}

/// generation_config.json knows best, then config.json, then the tokenizer.
fn end_tokens(config: &ModelConfig, defaults: &GenerationDefaults, tokenizer: Option<&Tokenizer>) -> Vec<u32> {
    let mut ids = defaults.eos_token_ids.clone();
    if ids.is_empty() {
        ids = config.eos_token_ids.clone();
    }
    if ids.is_empty() {
        ids.extend(tokenizer.and_then(Tokenizer::eos_id));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn limits(options: &EngineOptions, model: &ModelInfo) -> Limits {
    Limits {
        block_size: options.block_size,
        num_blocks: model.num_blocks,
        max_model_len: model.max_model_len,
        max_num_seqs: model.max_num_seqs,
        max_num_batched_tokens: options.max_num_batched_tokens,
        max_prefill_chunk: options.max_prefill_chunk.unwrap_or(options.max_num_batched_tokens),
        max_prefill_seqs: options.max_prefill_seqs,
        // The handle's counters refuse. Those that run, are preempted and go on with another device are queued too.
        max_queued_requests: usize::MAX,
        max_queued_tokens: usize::MAX,
        enable_prefix_caching: options.enable_prefix_caching,
        states: model.states,
        whole_prompts: model.config.encoder.is_some(),
        hash_key: options.hash_key,
    }
}

#[cfg(test)]
mod tests {
    use checkpoint::Source;

    use super::*;

    #[test]
    fn auto_has_the_cpu_where_the_gpu_is_lost_while_it_reads_weights() {
        let lost = || {
            let device = DeviceChoice::Gpu(vulkan::list().expect("mesa-vulkan-drivers").len() - 1);
            let options = EngineOptions { device, threads: Some(1), ..EngineOptions::default() };
            // It shares the device with the engine.
            let beside = device.open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap().unwrap();
            let lantern = Checkpoint::open(Source::Directory(testing::lantern())).unwrap();
            let mut lose = |_| beside.fail("vkQueueSubmit", 0);
            Engine::start(&lantern, &options, &mut lose).map(|_| ())
        };
        let said = DeviceChoice::Gpu(0).or_cpu(lost()).unwrap_err().to_string();
        assert!(said.contains(" is lost (vkQueueSubmit failed: "), "{said}");
        assert_eq!(DeviceChoice::Auto.or_cpu(lost()).unwrap(), None);
    }
}
