//! A loaded model: weights, KV cache and scratch behind a few virtual calls per step.
//!
//! ```text
//! launch(batch) ─> Ticket    the whole pass is asked for; a device begins, and the host may go on
//! wait(ticket)  ─> Logits    blocks until it is done; the logits stay where they were computed
//! read_logits(.., row)       one row to the host; read_best: the few logits of it that decide a token
//! ```
//! [`load`] does everything that can fail on a device that works: it reads and checks the files, settles the longest
//! sequence, and takes all memory. After it a pass allocates nothing, and fails only where the device is lost.

use crate::adapter::{Adapter, AdapterPacker, AdapterRoom, Packed, PackedAdapter};
use crate::batch::Batch;
use crate::config::{CacheShape, ModelConfig};
use crate::expert_cache::{ExpertMemory, ExpertReadTotals, ReadCounts};
use crate::experts::ExpertReader;
use crate::kv::{self, Caches};
use crate::mixers::Memory;
use crate::tensors::Tensors;
use crate::transformer::{Loader, Pass, Scratch, Tap, Transformer, no_rows, out_of_memory};
use checkpoint::weights::{ImageWriter, Weights};
use checkpoint::{Checkpoint, LoadError};
use kernels::limits::MeasureError;
use kernels::sampling::Candidate;
use kernels::threads::LostCpuTime;
use kernels::{
    Backend, DefaultFloats, DeviceError, DeviceInfo, DeviceLimits, HostBuffer, KvDtype, RopeTable, StateShape,
    WeightClass,
};
use protocol::sampling::MOST_BEST;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// A pass that was launched: [`Forward::wait`] takes it.
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    pass: u64,
    rows: usize,
}

impl Ticket {
    /// `pass`: a number that no other pass of this [`Forward`] has. `rows`: how many rows have logits.
    pub fn new(pass: u64, rows: usize) -> Ticket {
        Ticket { pass, rows }
    }

    /// The number of the pass.
    pub fn pass(&self) -> u64 {
        self.pass
    }

    /// The pass is done.
    pub fn done(self) -> Logits {
        Logits { pass: self.pass, rows: self.rows }
    }
}

/// The logits of a pass that is done, where they were computed: [`Forward::read_logits`] brings them to the host.
#[derive(Debug)]
pub struct Logits {
    pass: u64,
    rows: usize,
}

impl Logits {
    /// The number of the pass.
    pub fn pass(&self) -> u64 {
        self.pass
    }

    /// How many rows there are: the batch's `logit_rows`, in their order.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// A model that turns batches into logits. The engine holds it as `Box<dyn Forward>`: few virtual calls per step,
/// everything inside is static. After a [`DeviceError`] each further call returns one, and no pass is under way.
pub trait Forward: Send {
    /// What the checkpoint says about itself.
    fn config(&self) -> &ModelConfig;

    /// How many passes may be launched before the first is waited for; each keeps its logits until that many more
    /// were launched. 1 where the host computes.
    fn passes_in_flight(&self) -> usize {
        1
    }

    /// Asks for every row of `batch`, after all that was launched before: keys and values go to the cache, and the
    /// logits of `batch.logit_rows` are kept until [`passes_in_flight`](Self::passes_in_flight) more were launched. A
    /// ticket may be dropped instead of waited for. Need not block: a device may have computed nothing when this
    /// returns, and `batch` may change then. On a CPU all is done.
    ///
    /// Panics when the batch breaks the limits of [`LoadOptions`], names a token, position or block that does not
    /// exist, or is inconsistent: the caller made an error that no input can cause.
    fn launch(&mut self, batch: &Batch) -> Result<Ticket, DeviceError>;

    /// Blocks until a pass is done.
    fn wait(&mut self, ticket: Ticket) -> Result<Logits, DeviceError>;

    /// One row of logits to the host: `row` counts among the batch's `logit_rows`, `out` is `[vocab_size]`. In any
    /// order and as often as you like; rising is cheapest, because of more than [`LoadOptions::max_logit_rows`] only so
    /// many are held at a time (a prompt's log probabilities need every row) and others are computed anew, which
    /// blocks.
    ///
    /// Panics if its logits are no longer kept, or the row was not wanted.
    fn read_logits(&mut self, logits: &Logits, row: usize, out: &mut [f32]) -> Result<(), DeviceError>;

    /// As many of a row's largest logits as [`Batch::best`] asked for, best first, in place of what `out` holds: see
    /// [`find_best`](kernels::sampling::find_best). They are selected where the logits are. False: it asked for none,
    /// or this model selects none, and there is the row.
    ///
    /// Panics as [`read_logits`](Self::read_logits) does.
    fn read_best(&mut self, _: &Logits, _row: usize, _out: &mut Vec<Candidate>) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Keeps, from the next pass on, the residual stream after each of these numbers of layers: 0 is the embedding,
    /// `num_layers` what the final norm reads. A drafter reads it. Each costs memory, and a copy in each pass.
    /// Replaces what was kept before; an empty list keeps nothing.
    ///
    /// Fails where memory ends, or there are no such layers.
    fn tap(&mut self, after: &[usize]) -> Result<(), LoadError> {
        match after.first() {
            None => Ok(()),
            Some(after) => Err(no_tap(*after, "this model keeps no rows")),
        }
    }

    /// What [`tap`](Self::tap) keeps of some of the batch's rows, to the host: `out` is `[rows, taps, hidden_size]`.
    /// Blocks.
    ///
    /// Panics if they are no longer kept, or nothing is tapped.
    fn read_tapped(&mut self, _pass: &Logits, _rows: Range<usize>, _out: &mut [f32]) -> Result<(), DeviceError> {
        panic!("nothing is tapped");
    }

    /// What the language-model head reads of some of the rows that have logits, by their index among these: behind the
    /// final norm, `[rows, hidden_size]`. Computed when asked for; blocks.
    ///
    /// Panics if they are no longer kept.
    fn read_hidden(&mut self, _pass: &Logits, _rows: Range<usize>, _out: &mut [f32]) -> Result<(), DeviceError> {
        panic!("this model shows no hidden rows");
    }

    /// What packs adapters for this model, for other threads to keep. `None`: it has no room for any.
    fn adapter_packer(&self) -> Option<AdapterPacker> {
        None
    }

    /// Puts an adapter into a slot, or empties it; returns what was there, whose memory is not given back here. Passes
    /// that name the slot ([`Span::adapter`](crate::Span::adapter)) come after that; none that was launched and not
    /// waited for names it. Costs nothing. Fails where there is no such slot ([`LoadOptions::adapters`]).
    fn put_adapter(
        &mut self,
        slot: usize,
        _adapter: Option<PackedAdapter>,
    ) -> Result<Option<PackedAdapter>, LoadError> {
        Err(no_slot(slot, 0))
    }

    /// The same in one, on this thread: what was there goes first, so that there need be memory for one. Fails where
    /// memory ends, too.
    fn set_adapter(&mut self, slot: usize, adapter: Option<&Adapter>) -> Result<(), LoadError> {
        drop(self.put_adapter(slot, None)?);
        let packed = adapter.zip(self.adapter_packer()).map(|(adapter, packer)| packer.pack(adapter)).transpose()?;
        self.put_adapter(slot, packed).map(drop)
    }

    /// All in one: `logits` is `[batch.logit_rows.len(), vocab_size]`.
    fn forward(&mut self, batch: &Batch, logits: &mut [f32]) -> Result<(), DeviceError> {
        let vocab_size = self.config().vocab_size;
        assert_eq!(logits.len(), batch.logit_rows.len() * vocab_size, "logits are [logit_rows, vocab_size]");
        let ticket = self.launch(batch)?;
        let done = self.wait(ticket)?;
        let mut rows = logits.chunks_exact_mut(vocab_size).enumerate();
        rows.try_for_each(|(row, out)| self.read_logits(&done, row, out))
    }

    /// Makes the calling thread the one that computes from now on (it may be pinned to a core).
    fn set_compute_thread(&self);

    /// Calls `work` once for each number below `count`, on the threads that compute passes, each on whichever is free:
    /// for what is to be done between passes.
    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }

    /// CPU time that the machine took from the compute threads since the last call; a system call per thread. `None`:
    /// unknown, or no thread was adopted.
    fn lost(&self) -> Option<LostCpuTime> {
        None
    }

    /// Copies whole cache blocks `(src, dst)` (copy-on-write).
    fn copy_blocks(&mut self, copies: &[(u32, u32)]);

    /// Takes bytes over into host memory that the device reaches.
    fn host_buffer(&self, bytes: Vec<u8>) -> Arc<dyn HostBuffer>;

    /// Asks for a cache block in host memory of [`block_bytes`](Self::block_bytes), those of every layer, after all
    /// that was launched before; what is launched later may write to the block. This does not block: who reads the
    /// memory does, behind a [`submit`](Self::submit).
    fn save_block(&self, block: u32, to: &mut dyn HostBuffer);

    /// Asks for the reverse, before all that is launched later: the same block or another.
    fn load_block(&mut self, from: &dyn HostBuffer, block: u32);

    /// What was asked for may begin, without a launch. Does not block.
    fn submit(&self) -> Result<(), DeviceError>;

    /// Bytes of a cache block in every layer.
    fn block_bytes(&self) -> usize;

    /// Bytes of a slot of states: see [`Span::state`](crate::Span::state). 0 for models without.
    fn state_bytes(&self) -> usize {
        4 * self.config().state_numbers()
    }

    /// As [`save_block`](Self::save_block), for a slot of states: [`state_bytes`](Self::state_bytes) of them.
    ///
    /// Panics if there is no such slot.
    fn save_state(&self, slot: u32, _to: &mut dyn HostBuffer) {
        panic!("slot {slot} of a model without states");
    }

    /// The reverse.
    ///
    /// Panics if there is no such slot.
    fn load_state(&mut self, _from: &dyn HostBuffer, slot: u32) {
        panic!("slot {slot} of a model without states");
    }

    /// Bytes of weights that a step reads: all but the embedding's unused rows. Of a mixture of experts this is every
    /// expert; a step reads fewer: see [`expert_bytes`](Self::expert_bytes).
    fn weight_bytes(&self) -> usize;

    /// Those of [`weight_bytes`](Self::weight_bytes) that belong to experts. Of them a step reads the share that its
    /// rows go to (about [`Mixture::share_read`](roofline::Mixture::share_read)). 0 for most models.
    fn expert_bytes(&self) -> usize;

    /// What experts were read since the last call, by passes, where not all are in memory
    /// ([`LoadOptions::expert_memory`]).
    fn expert_reads(&mut self) -> ExpertReadTotals {
        ExpertReadTotals::default()
    }

    /// Bytes of keys and values that one token adds to the cache: what a decode row reads per token of its context.
    fn kv_bytes_per_token(&self) -> usize;

    /// One line for people: model, weights, backend.
    fn describe(&self) -> String;

    /// What computes.
    fn device(&self) -> DeviceInfo;

    /// What that can do at most, measured now, for about `seconds`.
    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError>;
}

/// How large the KV cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBudget {
    /// A number of blocks.
    Blocks(usize),
    /// The blocks that fit in this number of bytes.
    Bytes(usize),
}

/// How to load a model. All memory that a pass needs follows from it.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Weights in memory; see [`roofline::embedding_class`] for the embedding and the head.
    pub weights: WeightClass,
    /// Whether matrices of the layers that the checkpoint stores in a wider class than `weights` keep that one.
    pub as_stored: bool,
    /// Rows of the largest step.
    pub max_rows: usize,
    /// Rows of logits that are computed together, and held. 0 for who runs passes and reads no logits.
    pub max_logit_rows: usize,
    /// Longest sequence; `None` takes the model's own limit or what the cache holds, whichever is less.
    pub max_model_len: Option<usize>,
    /// Size of the KV cache.
    pub kv_blocks: KvBudget,
    /// Tokens in a cache block; a multiple of 32.
    pub block_size: usize,
    /// Directory of packed images: weights are copied from the one that fits instead of converted, and kept for one
    /// where there is none ([`Runner::image_writer`]). `None`: convert, and keep nothing.
    pub image_directory: Option<PathBuf>,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Room for adapters beside the model.
    pub adapters: AdapterRoom,
    /// Slots for the states of layers that have one: see [`Span::state`](crate::Span::state). Of no concern to other
    /// models.
    pub state_slots: usize,
    /// Memory for experts of a mixture. `None`: for all of them.
    pub expert_memory: Option<ExpertMemory>,
}

/// How far loading is, in bytes of weight files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Packed so far.
    pub bytes_done: u64,
    /// In all.
    pub bytes_total: u64,
}

/// A model on a backend.
pub struct Runner<B: Backend> {
    backend: Arc<B>,
    config: ModelConfig,
    transformer: Transformer<B>,
    /// By slot.
    adapters: Vec<Option<Packed<B>>>,
    kv: Caches<B>,
    cache_shape: CacheShape,
    states: B::States,
    scratch: Scratch<B>,
    taps: Vec<Tap<B>>,
    /// `[max_logit_rows, vocab_size]`, and the best of those rows.
    logits: B::Rows,
    best: B::Best,
    /// Of the last pass: what it wanted of `best`, its number, how many of its rows have logits, and which of these are
    /// in `logits`.
    wanted_best: Vec<u32>,
    pass: u64,
    num_rows: usize,
    num_wanted: usize,
    held: Range<usize>,
    options: LoadOptions,
    max_model_len: usize,
    notices: Vec<String>,
    image_writer: Option<ImageWriter>,
    matrix_names: Vec<String>,
    expert_reader: Option<Arc<ExpertReader>>,
}

/// Reads a checkpoint into a backend. `progress` is called after every matrix.
///
/// Peak memory is that of the runner: rows go from the files straight into packed matrices. Fails with the file and
/// field at fault, and before anything large is allocated when the configuration and the tensors disagree.
pub fn load<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Runner<B>, LoadError> {
    let backend = Arc::new(backend);
    unless_lost(&*backend, load_on(backend.clone(), checkpoint, options, progress))
}

/// The same on the backend of another model: both compute with the same threads, one pass at a time.
pub fn load_beside<B: Backend>(
    other: &Runner<B>,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Runner<B>, LoadError> {
    load_on(other.backend.clone(), checkpoint, options, progress)
}

fn load_on<B: Backend>(
    backend: Arc<B>,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Runner<B>, LoadError> {
    let _floats = DefaultFloats::enter();
    let config = ModelConfig::load(checkpoint)?;
    if config.encoder.is_some() {
        return Err(config.is_encoder("tokens"));
    }
    let mut weights = Weights::open(checkpoint)?;
    let config = config.with_head_of(&weights)?;
    let mut notices = Vec::new();
    let cache_shape = cache_shape(&config, options)?;
    let max_model_len = max_model_len(&config, options.max_model_len, &cache_shape, &mut notices)?;

    if let Some(directory) = &options.image_directory {
        weights.use_image(directory, checkpoint, options.weights.name());
    }
    let weights = Arc::new(weights);
    let tensors = Tensors::of(&config, &weights);
    let bytes_total = tensors.check(&weights)?;

    let mut scratch = Scratch::new(&*backend, &config, options.max_rows)?;
    scratch.make_room(&*backend, &config, options.max_rows, options.adapters)?;
    let logits = backend.rows(options.max_logit_rows, config.vocab_size);
    let best = backend.best(options.max_logit_rows, MOST_BEST as usize);
    let (logits, best) = logits
        .and_then(|logits| Ok((logits, best?)))
        .map_err(|oom| no_rows(&*backend, oom, format!("logits of {} rows", options.max_logit_rows)))?;
    let ropes = rope_tables(&*backend, &config, max_model_len)?;
    let kv = Caches::new(&*backend, &cache_shape).map_err(|oom| out_of_memory(oom, "the KV cache".to_string()))?;

    let state_numbers = config.state_numbers();
    let slots = if state_numbers > 0 { options.state_slots } else { 0 };
    let states = backend.states(StateShape { slots, numbers: state_numbers });
    let states = states.map_err(|oom| out_of_memory(oom, format!("the states of {slots} slots")))?;

    let mut bytes_done = 0;
    progress(Progress { bytes_done, bytes_total });
    let mut report = |bytes| {
        bytes_done += bytes;
        progress(Progress { bytes_done, bytes_total });
    };
    let class = options.weights;
    if options.expert_memory.is_some() && config.experts.is_none() {
        let problem = format!("{} has no experts: leave it out", config.family);
        return Err(LoadError::Option { option: "expert_memory", problem });
    }
    let num_layers = config.layers.iter().filter(|layer| layer.has_experts()).count();
    let expert_reader = options.expert_memory.filter(|_| num_layers > 0).map(|memory| {
        let (as_stored, pack_all) = (options.as_stored, weights.keep_image_open());
        let (weights, counts) = (weights.clone(), ReadCounts::default());
        Arc::new(ExpertReader { weights, class, as_stored, memory, num_layers, pack_all, counts })
    });
    let mut loader = Loader {
        backend: &*backend,
        config: &config,
        weights: &weights,
        class,
        as_stored: options.as_stored,
        names: Vec::new(),
        progress: &mut report,
        expert_reader: expert_reader.as_ref(),
    };
    let transformer = loader.load(&tensors, ropes)?;
    let matrix_names = loader.names;
    let image_writer = weights.end_image();
    if let Some(first) = weights.first_non_finite() {
        let count = weights.num_non_finite();
        notices.push(format!("{count} of the weights are NaN, or infinite in bf16; the first is in tensor {first:?}"));
    }
    notices.extend(weights.image_damage());
    let options = options.clone();
    Ok(Runner {
        backend,
        config,
        transformer,
        adapters: (0..options.adapters.slots).map(|_| None).collect(),
        kv,
        cache_shape,
        states,
        scratch,
        taps: Vec::new(),
        logits,
        best,
        wanted_best: Vec::new(),
        pass: 0,
        num_rows: 0,
        num_wanted: 0,
        held: 0..0,
        options,
        max_model_len,
        notices,
        matrix_names,
        image_writer,
        expert_reader,
    })
}

/// Names the loss of a device that was lost meanwhile, whatever failed for it, if anything did.
pub(crate) fn unless_lost<B: Backend, T>(backend: &B, loaded: Result<T, LoadError>) -> Result<T, LoadError> {
    let is_there = backend.submit();
    is_there.map_err(|lost| LoadError::Option { option: "device", problem: lost.to_string() })?;
    loaded
}

/// The rotations of a model, for positions below `max_model_len`.
pub(crate) fn rope_tables<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    max_model_len: usize,
) -> Result<Vec<RopeTable<B::Vector>>, LoadError> {
    let tables = config.ropes.iter().map(|rope| rope.table(max_model_len)?.try_map(|numbers| backend.vector(numbers)));
    let tables = tables.collect::<Result<Vec<_>, _>>();
    tables.map_err(|oom| out_of_memory(oom, "the tables of rotations".to_string()))
}

fn no_tap(after: usize, why: &str) -> LoadError {
    LoadError::Option { option: "tap", problem: format!("rows after layer {after} are wanted, and {why}") }
}

fn no_slot(slot: usize, slots: usize) -> LoadError {
    LoadError::Option { option: "max_loras", problem: format!("slot {slot} for an adapter, and there are {slots}") }
}

pub(crate) fn cache_shape(config: &ModelConfig, options: &LoadOptions) -> Result<CacheShape, LoadError> {
    let wrong = |option, problem| Err(LoadError::Option { option, problem });
    let block_size = options.block_size;
    if block_size == 0 || !block_size.is_multiple_of(32) || block_size > 1 << 16 {
        return wrong("block_size", format!("{block_size} is not a multiple of 32 up to 65536"));
    }
    if options.max_rows == 0 {
        return wrong("max_rows", "0; a step has at least one row".to_string());
    }
    let one_block = config.cache_shape(options.kv_dtype, 1, block_size);
    let block_bytes = one_block.bytes();
    let blocks = match options.kv_blocks {
        KvBudget::Blocks(blocks) => blocks,
        KvBudget::Bytes(bytes) => bytes / block_bytes,
    };
    if blocks == 0 {
        let problem = format!("no block fits: one takes {block_bytes} bytes");
        return wrong("kv_blocks", problem);
    }
    // Slots are 32-bit numbers.
    let most = (u32::MAX as usize / block_size).min(isize::MAX as usize / block_bytes);
    if blocks > most {
        return wrong("kv_blocks", format!("{blocks} blocks; at most {most} of {block_size} tokens are possible"));
    }
    Ok(one_block.with_blocks(blocks))
}

/// The longest sequence: what was asked for, what the model was trained for, what the cache holds.
pub(crate) fn max_model_len(
    config: &ModelConfig,
    asked: Option<usize>,
    cache_shape: &CacheShape,
    notices: &mut Vec<String>,
) -> Result<usize, LoadError> {
    let wrong = |problem| Err(LoadError::Option { option: "max_model_len", problem });
    let cached = cache_shape.blocks() * cache_shape.block_size();
    if let Some(asked) = asked {
        if asked == 0 {
            return wrong("0; a sequence has at least one token".to_string());
        }
        if asked > config.context_limit {
            return wrong(format!("{asked} tokens, but the model reads at most {}", config.context_limit));
        }
        if asked > cached {
            return wrong(format!("{asked} tokens, but the KV cache holds {cached}"));
        }
    }
    let mut len = asked.unwrap_or(config.context_limit);
    if len > cached {
        notices.push(format!("max_model_len is {cached}, not {len}: the KV cache holds {cached} tokens"));
        len = cached;
    }
    Ok(len)
}

impl<B: Backend> Runner<B> {
    /// Shape of the cache: how many blocks there are to hand out.
    pub fn cache_shape(&self) -> &CacheShape {
        &self.cache_shape
    }

    /// Longest sequence: positions are below it.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// What a person should know about this load: a clamped length, NaN weights, a damaged image. Often empty.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// What each packed matrix is made of, in the order in which [`Device::pack`](kernels::Device::pack) was called.
    pub fn matrix_names(&self) -> &[String] {
        &self.matrix_names
    }

    /// Bytes of weights in memory, the embedding included.
    pub fn resident_weight_bytes(&self) -> usize {
        self.transformer.bytes(&self.backend)
    }

    /// The image of the weights for the next load, still to be written; `None` when this load used one, or when none
    /// was wanted. It keeps the weights' memory until it is written or dropped.
    pub fn image_writer(&mut self) -> Option<ImageWriter> {
        self.image_writer.take()
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What drafters take of their target instead of having it again.
    pub(crate) fn shared(&self) -> Shared<B> {
        let (embed, head) = (self.transformer.embed.clone(), self.transformer.head().clone());
        Shared { backend: self.backend.clone(), embed, head }
    }

    /// What a batch has to keep to.
    pub(crate) fn limits(&self) -> Limits {
        let LoadOptions { max_rows, max_logit_rows, .. } = self.options;
        Limits { max_rows, max_logit_rows, vocab_size: self.config.vocab_size, max_model_len: self.max_model_len }
    }
}

/// See [`Runner::shared`].
pub(crate) struct Shared<B: Backend> {
    pub(crate) backend: Arc<B>,
    /// `[vocab_size, hidden_size]`.
    pub(crate) embed: Arc<B::Matrix>,
    /// `[vocab_size, hidden_size]`.
    pub(crate) head: Arc<B::Matrix>,
}

/// What a batch has to keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_rows: usize,
    pub(crate) max_logit_rows: usize,
    pub(crate) vocab_size: usize,
    pub(crate) max_model_len: usize,
}

impl Limits {
    /// Panics at what no input can cause.
    pub(crate) fn check(&self, batch: &Batch) {
        let rows = batch.num_rows();
        assert!(rows > 0 && rows <= self.max_rows, "{rows} rows in a batch of at most {}", self.max_rows);
        assert!(batch.logit_rows.iter().all(|&row| (row as usize) < rows), "a logit row is a row");
        assert!(batch.logit_rows.len() <= rows, "a row has its logits once");
        assert!(batch.best.is_empty() || batch.best.len() == batch.logit_rows.len(), "the best are of the logit rows");
        assert!(batch.best.iter().all(|&count| count <= MOST_BEST), "at most {MOST_BEST} are selected");
        assert_eq!((batch.positions.len(), batch.slots.len()), (rows, rows), "positions and slots are [rows]");
        let limit = (self.vocab_size as u32, self.max_model_len as u32);
        assert!(batch.token_ids.iter().all(|&id| id < limit.0), "a token id is not below {}", limit.0);
        assert!(batch.positions.iter().all(|&position| position < limit.1), "a position is not below {}", limit.1);
        let covered = batch.spans.iter().fold(0, |next, span| {
            assert_eq!(span.first_row, next, "spans cover the rows in order");
            next + span.num_rows
        });
        assert_eq!(covered as usize, rows, "spans cover every row");
    }
}

impl<B: Backend> Runner<B> {
    /// Requests the logits of wanted rows from `first` on, up to the number that is held at a time.
    fn hold(&mut self, first: usize) {
        let _floats = DefaultFloats::enter();
        let rows = first..self.num_wanted.min(first + self.options.max_logit_rows);
        if !rows.is_empty() {
            let Runner { backend, config, transformer, scratch, logits, best, wanted_best, .. } = self;
            transformer.logits(backend, config, rows.clone(), scratch, logits);
            let counts = wanted_best.get(rows.clone()).filter(|counts| counts.iter().any(|&count| count > 0));
            counts.into_iter().for_each(|counts| backend.find_best(logits, config.vocab_size, counts, best));
        }
        self.held = rows;
    }

    /// Where a row of the last pass is among those held.
    fn at(&mut self, logits: &Logits, row: usize) -> usize {
        assert_eq!(logits.pass, self.pass, "logits of another pass than the last");
        assert!(row < self.num_wanted, "row {row} of the last batch's {} with logits", self.num_wanted);
        assert!(self.options.max_logit_rows > 0, "loaded to read no logits");
        if !self.held.contains(&row) {
            self.hold(row);
        }
        row - self.held.start
    }
}

impl<B: Backend> Forward for Runner<B> {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn launch(&mut self, batch: &Batch) -> Result<Ticket, DeviceError> {
        let _floats = DefaultFloats::enter();
        Runner::limits(self).check(batch);
        // Of a pass that panics nothing is left to read.
        (self.pass, self.num_rows, self.num_wanted, self.held) = (self.pass + 1, 0, 0, 0..0);
        let Runner { backend, config, transformer, adapters, kv, states, scratch, taps, .. } = self;
        let memory = Memory { kv: kv.groups(), states };
        transformer.compute(&Pass { backend: &**backend, config, adapters }, batch, memory, scratch, taps);
        (self.num_rows, self.num_wanted) = (batch.num_rows(), batch.logit_rows.len());
        self.wanted_best.clone_from(&batch.best);
        self.hold(0);
        self.backend.submit()?;
        Ok(Ticket::new(self.pass, self.num_wanted))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Logits, DeviceError> {
        self.backend.wait()?;
        Ok(ticket.done())
    }

    fn read_logits(&mut self, logits: &Logits, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        let vocab_size = self.config.vocab_size;
        assert_eq!(out.len(), vocab_size, "a row of logits is [vocab_size]");
        let at = self.at(logits, row);
        self.backend.read(&self.logits, at..at + 1, vocab_size, out)
    }

    fn read_best(&mut self, logits: &Logits, row: usize, out: &mut Vec<Candidate>) -> Result<bool, DeviceError> {
        if self.wanted_best.get(row).is_none_or(|&count| count == 0) {
            return Ok(false);
        }
        let at = self.at(logits, row);
        self.backend.read_best(&self.best, &self.logits, at, out).map(|()| true)
    }

    fn tap(&mut self, after: &[usize]) -> Result<(), LoadError> {
        let num_layers = self.config.num_layers;
        let (max_rows, hidden) = (self.options.max_rows, self.config.hidden_size);
        (self.taps, self.num_rows) = (Vec::new(), 0);
        if let Some(&after) = after.iter().find(|&&after| after > num_layers) {
            return Err(no_tap(after, &format!("the model has {num_layers}")));
        }
        let tap = |&after: &usize| {
            let rows = self.backend.rows(max_rows, hidden);
            let purpose = || format!("{max_rows} rows after layer {after}");
            Ok(Tap { after, rows: rows.map_err(|oom| out_of_memory(oom, purpose()))? })
        };
        self.taps = after.iter().map(tap).collect::<Result<_, LoadError>>()?;
        Ok(())
    }

    fn read_tapped(&mut self, pass: &Logits, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        let (hidden, taps) = (self.config.hidden_size, self.taps.len());
        assert_eq!(pass.pass, self.pass, "rows of another pass than the last");
        assert!(taps > 0, "nothing is tapped");
        assert!(rows.end <= self.num_rows, "rows {rows:?} of a batch of {}", self.num_rows);
        assert_eq!(out.len(), rows.len() * taps * hidden, "tapped rows are [rows, taps, hidden_size]");
        for (index, tap) in self.taps.iter().enumerate() {
            let places = out.chunks_exact_mut(hidden).skip(index).step_by(taps);
            for (row, out) in rows.clone().zip(places) {
                self.backend.read(&tap.rows, row..row + 1, hidden, out)?;
            }
        }
        Ok(())
    }

    fn read_hidden(&mut self, pass: &Logits, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        let hidden = self.config.hidden_size;
        assert_eq!(pass.pass, self.pass, "rows of another pass than the last");
        assert!(rows.end <= self.num_wanted, "rows {rows:?} of the last batch's {} with logits", self.num_wanted);
        assert_eq!(out.len(), rows.len() * hidden, "hidden rows are [rows, hidden_size]");
        let Runner { backend, transformer, scratch, .. } = self;
        let _floats = DefaultFloats::enter();
        let count = rows.len();
        let normed = transformer.hidden(backend, rows, scratch);
        backend.read(normed, 0..count, hidden, out)
    }

    fn adapter_packer(&self) -> Option<AdapterPacker> {
        (!self.adapters.is_empty()).then(|| AdapterPacker::new(self.backend.clone(), self.config.clone()))
    }

    fn put_adapter(&mut self, slot: usize, adapter: Option<PackedAdapter>) -> Result<Option<PackedAdapter>, LoadError> {
        let slots = self.adapters.len();
        let Some(place) = self.adapters.get_mut(slot) else { return Err(no_slot(slot, slots)) };
        let packed = adapter.map(|adapter| adapter.into_packed(&self.backend)).transpose()?;
        Ok(std::mem::replace(place, packed).map(|packed| PackedAdapter::new(packed, &self.backend)))
    }

    fn set_compute_thread(&self) {
        self.backend.set_compute_thread();
    }

    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.backend.share_out(count, work);
    }

    fn lost(&self) -> Option<LostCpuTime> {
        self.backend.lost()
    }

    fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        self.kv.copy_blocks(&self.backend, copies);
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Arc<dyn HostBuffer> {
        Arc::new(self.backend.host_buffer(bytes))
    }

    fn save_block(&self, block: u32, to: &mut dyn HostBuffer) {
        self.kv.save_block(&self.backend, block, to);
    }

    fn load_block(&mut self, from: &dyn HostBuffer, block: u32) {
        self.kv.load_block(&self.backend, from, block);
    }

    fn submit(&self) -> Result<(), DeviceError> {
        self.backend.submit()
    }

    fn block_bytes(&self) -> usize {
        self.kv.block_bytes(&self.backend)
    }

    fn save_state(&self, slot: u32, to: &mut dyn HostBuffer) {
        self.backend.save_state(&self.states, slot, kv::own_mut::<B>(to));
    }

    fn load_state(&mut self, from: &dyn HostBuffer, slot: u32) {
        self.backend.load_state(kv::own::<B>(from), &mut self.states, slot);
    }

    fn weight_bytes(&self) -> usize {
        self.transformer.bytes_read(&self.backend)
    }

    fn expert_bytes(&self) -> usize {
        self.transformer.expert_bytes(&self.backend)[0]
    }

    fn expert_reads(&mut self) -> ExpertReadTotals {
        self.expert_reader.as_ref().map_or_else(ExpertReadTotals::default, |reader| reader.counts.take())
    }

    fn kv_bytes_per_token(&self) -> usize {
        self.cache_shape.block_bytes() / self.cache_shape.block_size()
    }

    fn describe(&self) -> String {
        let config = &self.config;
        let class = self.options.weights.name();
        let embedding = config.head.tables() * config.head_parameters() + config.row_table_parameters();
        format!(
            "{} {:.1} M, {} layers of {}, {class} weights in {:.1} MB, {}",
            config.family,
            (config.layer_parameters() + embedding) as f64 / 1e6,
            config.num_layers,
            config.hidden_size,
            self.resident_weight_bytes() as f64 / 1e6,
            self.backend.describe(),
        )
    }

    fn device(&self) -> DeviceInfo {
        self.backend.info()
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.backend.limits(seconds)
    }
}
