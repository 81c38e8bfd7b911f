//! Weights, adapters and the KV cache in the device's memory.
//!
//! A matrix is packed by the host as for a CPU, and its image uploaded as it is: a line of 16 columns is what 16 lanes
//! read together. So an image on disk serves both.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use ash::vk;
use kernels::limits::MeasureError;
use kernels::quant::Codes;
use kernels::{
    AccumulationOrder, BlockFormat, BlockSource, ByteSource, Cpu, Device, DeviceError, DeviceInfo, DeviceLimits,
    HostBuffer, Image, Int4Source, Int8Source, KvShape, LowRankShape, LowRankSource, MatrixShape, OutOfMemory,
    PackedMatrix, RowSource, StateShape, WeightClass,
};

use crate::driver::{Driver, Listed, Timeline, VulkanError, find, locked};
use crate::memory::{Buffer, Place};
use crate::pipelines::{Faults, Kernels};
use crate::probe;
use crate::recorder::{Binding, OperationCounts, Recorder};
use crate::rows::Norming;
use crate::slots::GpuStates;

/// How to open a device. No field changes the bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct VulkanOptions {
    /// Which one, of [`list`](crate::list).
    pub index: usize,
    /// Emulates fused multiply-adds even where the device has them: for tests.
    pub emulate_fma: bool,
    /// Takes the device's memory as out of the host's reach: for tests on devices whose memory is the host's.
    pub stage: bool,
    /// Bytes that a kernel may see of a buffer, where that is less than the device allows: for tests.
    pub binding_bytes: Option<u64>,
    /// Multiply-adds of a submission, in place of the usual number: for tests.
    pub multiply_adds: Option<u64>,
    /// Longest wait for what was submitted once the device is open, in place of the usual one; none: as if it never
    /// gave an answer. For tests.
    pub patience: Option<Duration>,
    /// Opens a device of its own and damages that. For tests.
    #[doc(hidden)]
    pub faults: Option<Faults>,
}

impl VulkanOptions {
    fn place(&self) -> Place {
        if self.stage { Place::Apart } else { Place::Device }
    }
}

/// A GPU. Its operations, and those of its clones, are queued in the order of the calls. A GPU that is opened once more
/// has operations of its own, and shares the driver's device, which takes tens of megabytes, and its loss.
#[derive(Clone)]
pub struct Vulkan(Arc<Opened>);

impl Deref for Vulkan {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        &self.0
    }
}

/// An open device.
#[doc(hidden)]
pub struct Opened {
    /// Dropped first: the recorder waits for what is under way before anything that it uses goes.
    pub(crate) state: Mutex<State>,
    pub(crate) kernels: Arc<Kernels>,
    pub(crate) driver: Arc<Driver>,
    pub(crate) place: Place,
    /// Bytes that a kernel may see of a buffer.
    pub(crate) binding_bytes: u64,
    /// Stands for what there is no memory for on a lost device.
    pub(crate) nothing: Arc<Buffer>,
    /// Packs, and shares out the host's work.
    pub(crate) host: Cpu,
}

/// What changes with operations.
pub(crate) struct State {
    pub(crate) recorder: Recorder,
    /// Rows between the two halves of an operation.
    pub(crate) scratch: Scratch,
    /// A norm that is not listed yet.
    pub(crate) norm: Option<Norming>,
    /// Arrays of steps that are done.
    pub(crate) steps: Vec<Arc<Buffer>>,
    /// Of the host, on their way: arrays of a step, rows that are read.
    pub(crate) bytes: Vec<u8>,
}

/// Buffers that grow to the largest operation.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Activations as products read them: bf16, or three planes of digits. The largest logits of a row, in any order.
    pub(crate) converted: Option<Arc<Buffer>>,
    /// Scale of each row, and the planes that it has.
    pub(crate) scales: Option<Arc<Buffer>>,
    pub(crate) planes: Option<Arc<Buffer>>,
    /// What the first matrix of an adapter gave, or the largest logits of parts of rows, or what experts gave.
    pub(crate) between: Option<Arc<Buffer>>,
    /// Tickets, and what the splits of attention leave for the fold.
    pub(crate) left: Option<Arc<Buffer>>,
    /// What products by head have to do.
    pub(crate) heads: Option<Arc<Buffer>>,
}

/// Which device, and what its kernels depend on.
type Key = (vk::PhysicalDevice, AccumulationOrder, bool);

/// What is shared by all that open a device with the same options, as long as one of them has it.
static SHARED: Mutex<Vec<(Key, Weak<Kernels>)>> = Mutex::new(Vec::new());

/// Opens a device, compiles the kernels, and probes its arithmetic.
fn opened(
    found: (vk::PhysicalDevice, Listed),
    order: AccumulationOrder,
    options: &VulkanOptions,
) -> Result<Arc<Kernels>, VulkanError> {
    let (faults, place) = (options.faults.unwrap_or_default(), options.place());
    let driver = Arc::new(Driver::open(found, faults.failing)?);
    let mut recorder = Recorder::new(Timeline::new(&driver, None)?, true, None);
    let fuses = !options.emulate_fma && probe::fuses(&driver, &mut recorder, place)?;
    let mut kernels = Kernels::new(&driver, order, fuses, faults)?;
    probe::check(&mut recorder, &kernels, place)?;
    kernels.has_matrices = !faults.common_ground && probe::multiplies(&mut recorder, &kernels, place)?;
    Ok(Arc::new(kernels))
}

/// The kernels of a device that is open with these options and not lost, or of one opened now; other callers wait
/// meanwhile.
fn shared(
    found: (vk::PhysicalDevice, Listed),
    order: AccumulationOrder,
    options: &VulkanOptions,
) -> Result<Arc<Kernels>, VulkanError> {
    let (key, mut all) = ((found.0, order, options.emulate_fma), locked(&SHARED));
    all.retain(|(_, kernels)| kernels.upgrade().is_some_and(|kernels| kernels.driver.lost.get().is_none()));
    if let Some(same) = all.iter().find(|(other, _)| *other == key).and_then(|(_, kernels)| kernels.upgrade()) {
        return Ok(same);
    }
    let kernels = opened(found, order, options)?;
    all.push((key, Arc::downgrade(&kernels)));
    Ok(kernels)
}

impl Vulkan {
    /// Opens a device and probes its arithmetic. `host` packs weights; its accumulation order is that of this device.
    pub fn open(host: Cpu, options: VulkanOptions) -> Result<Vulkan, VulkanError> {
        let open = if options.faults.is_some() { opened } else { shared };
        let kernels = open(find(options.index)?, host.arithmetic(), &options)?;
        let driver = kernels.driver.clone();
        let has_barriers = !options.faults.is_some_and(|faults| faults.no_barriers);
        let timeline = Timeline::new(&driver, options.patience)?;
        let recorder = Recorder::new(timeline, has_barriers, options.multiply_adds);
        let binding_bytes = options.binding_bytes.unwrap_or(u64::MAX).min(driver.listed.binding_bytes);
        let nothing = Arc::new(Buffer::new(&driver, 16, Place::Host)?);
        let (scratch, steps, bytes) = (Scratch::default(), Vec::new(), Vec::new());
        let state = Mutex::new(State { recorder, scratch, norm: None, steps, bytes });
        let place = options.place();
        Ok(Vulkan(Arc::new(Opened { kernels, driver, place, binding_bytes, nothing, host, state })))
    }

    /// Accumulation order of 16-bit products.
    pub fn arithmetic(&self) -> AccumulationOrder {
        self.host.arithmetic()
    }

    /// What was done since the start.
    pub fn counts(&self) -> OperationCounts {
        OperationCounts { made: self.driver.made.load(Ordering::Relaxed), ..self.state().recorder.counts }
    }

    /// The device is lost, for all its users, at this call of the driver (an empty name: any) after `after` that succeed.
    #[doc(hidden)]
    pub fn fail(&self, call: &'static str, after: u64) {
        *locked(&self.driver.failing) = Some((call, after));
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = locked(&self.state);
        self.list_norm(&mut state);
        state
    }

    /// Memory of the device with these bytes. A lost device has none.
    fn upload(&self, parts: &[&[u8]]) -> Result<(Arc<Buffer>, Vec<u64>), OutOfMemory> {
        let (mut bytes, mut starts) = (0, Vec::with_capacity(parts.len()));
        for part in parts {
            starts.push(bytes);
            bytes += (part.len() as u64).next_multiple_of(self.driver.alignment);
        }
        let buffer = Arc::new(Buffer::new(&self.driver, bytes, self.place)?);
        let mut state = self.state();
        for (part, &at) in parts.iter().zip(&starts) {
            state.recorder.upload(&buffer, at, part).map_err(|_| OutOfMemory { bytes: bytes as usize })?;
        }
        Ok((buffer, starts))
    }

    /// Words, and addresses in them of others, which live as long.
    pub(crate) fn table(&self, words: impl Iterator<Item = u32>, holds: Vec<Arc<Buffer>>) -> Option<Arc<Buffer>> {
        let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        let mut table = Buffer::new(&self.driver, bytes.len() as u64, self.place).ok()?;
        table.holds = holds;
        let table = Arc::new(table);
        self.state().recorder.upload(&table, 0, &bytes).ok().map(|()| table)
    }

    /// Zeros.
    pub(crate) fn zeroed(&self, bytes: usize) -> Result<Arc<Buffer>, OutOfMemory> {
        // A kernel sees a whole buffer of rows.
        if bytes as u64 > self.driver.listed.binding_bytes {
            return Err(OutOfMemory { bytes });
        }
        let buffer = Arc::new(Buffer::new(&self.driver, bytes as u64, self.place)?);
        self.state().recorder.clear(&buffer, buffer.bytes);
        Ok(buffer)
    }

    pub(crate) fn vector_of(&self, numbers: &[f32]) -> Result<Arc<Buffer>, OutOfMemory> {
        if size_of_val(numbers) as u64 > self.driver.listed.binding_bytes {
            return Err(OutOfMemory { bytes: size_of_val(numbers) });
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        Ok(self.upload(&[&bytes])?.0)
    }

    fn matrix(&self, packed: &PackedMatrix) -> Result<Matrix, OutOfMemory> {
        let (shape, class, groups) = (packed.shape(), packed.class(), packed.blocks().map(GroupFormat::of));
        // Pairs are one stream.
        let (tiles, pairs) = (packed.bytes_of_pairs().collect::<Vec<_>>().concat(), packed.bytes_of_pairs().count());
        let image = packed.image();
        let behind = image.as_ref().map_or_else(Vec::new, |image| image.pieces().split_off(pairs));
        let levels = groups.as_ref().map(|groups| groups.levels);
        let mut parts = vec![&tiles[..]];
        parts.extend(behind);
        parts.extend(levels.as_ref().map(|levels| &levels[..]));
        let (buffer, starts) = self.upload(&parts)?;
        let scales = if groups.is_none() { parts.get(1).copied().unwrap_or_default() } else { &[] };
        let padded = shape.out_features.next_multiple_of(PAIR) * size_of::<f32>();
        let shifted = scales.get(padded..).is_some_and(|exponents| exponents.iter().any(|&exponent| exponent != 0));
        let matrix = Matrix {
            shape,
            class,
            bytes: packed.bytes(),
            pair_bytes: (tiles.len() / pairs) as u64,
            pairs,
            scales: starts.get(1).filter(|_| groups.is_none()).map(|&at| at..at + scales.len() as u64),
            levels: starts.get(if groups.is_some() { 1 } else { 2 }).copied(),
            exponents: shifted.then_some(padded as u32),
            groups,
            buffer,
            heads: OnceLock::new(),
        };
        self.compile_for(&matrix);
        Ok(matrix)
    }
}

/// Groups of a file as kernels take them.
pub(crate) struct GroupFormat {
    /// Words of a step, kind of scales, weights of a group, whether there are minima, and whether codes have four bits.
    pub(crate) push: [u32; 5],
    levels: [u8; 16],
}

impl GroupFormat {
    fn of(format: &BlockFormat) -> GroupFormat {
        let BlockFormat { codes, group, mins, scales } = *format;
        let step_words = format.step_bytes() as u32 / 4;
        let levels = if let Codes::Four { levels } = codes { Some(levels.map(|level| level as u8)) } else { None };
        GroupFormat {
            push: [step_words, scales as u32, group as u32, u32::from(mins), u32::from(levels.is_some())],
            levels: levels.unwrap_or_default(),
        }
    }
}

/// Columns of a pair of strips.
pub(crate) const PAIR: usize = 32;

/// A packed matrix in the device's memory: tiles, scales with exponents, levels.
pub struct Matrix {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) shape: MatrixShape,
    pub(crate) class: WeightClass,
    bytes: usize,
    pub(crate) pair_bytes: u64,
    pub(crate) pairs: usize,
    scales: Option<Range<u64>>,
    levels: Option<u64>,
    /// Byte of the scales where the exponents of the inputs begin, if they are shifted.
    pub(crate) exponents: Option<u32>,
    pub(crate) groups: Option<GroupFormat>,
    /// Where the matrices are that products by head have from this one on. `None`: they are not alike.
    pub(crate) heads: OnceLock<Option<Arc<Buffer>>>,
}

impl Matrix {
    /// Some pairs of strips, in as few parts as kernels may see at once: the first pair, their number, and their tiles.
    pub(crate) fn windows(&self, vulkan: &Vulkan) -> impl Iterator<Item = (usize, usize, Binding<'_>)> {
        let alignment = vulkan.driver.alignment;
        // Windows begin where a binding may.
        let unit = alignment / gcd(alignment, self.pair_bytes);
        let most = (vulkan.binding_bytes / self.pair_bytes / unit * unit).max(unit) as usize;
        (0..self.pairs).step_by(most).map(move |first| {
            let count = most.min(self.pairs - first);
            let (at, bytes) = (first as u64 * self.pair_bytes, count as u64 * self.pair_bytes);
            (first, count, Binding { buffer: &self.buffer, at, bytes })
        })
    }

    /// Scales of the outputs, and exponents behind them; of bf16 anything.
    pub(crate) fn scales(&self) -> Binding<'_> {
        let range = self.scales.clone().unwrap_or(0..4);
        Binding { buffer: &self.buffer, at: range.start, bytes: range.end - range.start }
    }

    /// Where a kernel finds its tiles, its scales and its levels, and the exponents of its inputs or 0.
    pub(crate) fn addresses(&self) -> [u64; 4] {
        let (start, scales) = (self.buffer.address, self.buffer.address + self.scales().at);
        let exponents = self.exponents.map_or(0, |at| scales + u64::from(at));
        [start, scales, start + self.levels().at, exponents]
    }

    /// The same as words of the device.
    pub(crate) fn address_words(addresses: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u32> {
        addresses.into_iter().flat_map(|address| [address as u32, (address >> 32) as u32])
    }

    /// Whether the other one's numbers lie as here.
    pub(crate) fn is_like(&self, other: &Matrix) -> bool {
        let layout = |it: &Matrix| (it.shape, it.class, it.pair_bytes, it.groups.as_ref().map(|groups| groups.push));
        layout(self) == layout(other)
    }

    /// Sixteen levels; of other classes anything.
    pub(crate) fn levels(&self) -> Binding<'_> {
        Binding { buffer: &self.buffer, at: self.levels.unwrap_or(0), bytes: 16 }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The matrices of an adapter in the device's memory.
pub struct GpuLowRank {
    pub(crate) shape: LowRankShape,
    /// Of each: its strips, and its lines.
    pub(crate) parts: [LowRankPart; 2],
}

/// One of them.
pub(crate) struct LowRankPart {
    pub(crate) spans: Arc<Buffer>,
    pub(crate) pairs: Arc<Buffer>,
    pub(crate) strips: u32,
}

/// Keys and values: a buffer for each layer.
pub struct GpuKvCache {
    pub(crate) shape: KvShape,
    pub(crate) layers: Vec<Arc<Buffer>>,
}

impl GpuKvCache {
    /// Bytes of a block of one layer.
    pub(crate) fn layer_block_bytes(&self) -> u64 {
        (self.shape.block_bytes() / self.shape.layers.max(1)) as u64
    }
}

/// Memory of the host that the device reaches.
pub struct HostMemory {
    buffer: Arc<Buffer>,
    len: usize,
    timeline: Arc<Timeline>,
    /// Value of the timeline when what was saved here last is done.
    saved: u64,
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of the host", self.len)
    }
}

impl HostBuffer for HostMemory {
    fn bytes(&self) -> Result<&[u8], DeviceError> {
        // What was to be saved on a lost device is not here, and a stuck one is not waited for once more.
        self.timeline.check()?;
        if let Err(error) = self.timeline.wait(self.saved.min(self.timeline.value())) {
            self.timeline.lose_by(error);
        }
        self.timeline.check()?;
        // SAFETY: what was submitted is done; who saves once more has this alone.
        let bytes = unsafe { self.buffer.bytes() }.and_then(|bytes| bytes.get(..self.len));
        bytes.ok_or_else(|| DeviceError::Lost {
            device: self.timeline.driver.listed.to_string(),
            what: "there was no memory of the host".to_owned(),
        })
    }
}

impl Device for Vulkan {
    type Matrix = Matrix;
    type LowRank = GpuLowRank;
    type KvCache = GpuKvCache;
    /// There are none.
    type States = GpuStates;
    type HostBuffer = HostMemory;

    fn describe(&self) -> String {
        let units = self.driver.units.filter(|_| self.kernels.has_matrices);
        let units = units.map_or_else(String::new, |units| format!(", matrices of {units} bytes"));
        format!("{}, {} order of bf16{units}", self.driver.listed, self.arithmetic().name())
    }

    fn info(&self) -> DeviceInfo {
        let kernels = format!("vulkan {}", self.driver.listed.name);
        DeviceInfo { kind: "GPU", kernels, threads: self.host.threads(), nodes: 1 }
    }

    fn most_row_bytes(&self) -> usize {
        self.driver.listed.binding_bytes as usize
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.measure(seconds)
    }

    fn set_compute_thread(&self) {
        self.host.set_compute_thread();
    }

    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.host.share_out(count, work);
    }

    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Matrix, OutOfMemory> {
        self.matrix(&self.host.pack(shape, class, rows)?)
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Matrix, OutOfMemory> {
        self.matrix(&self.host.pack_int8(shape, rows)?)
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Matrix, OutOfMemory> {
        self.matrix(&self.host.pack_int4(shape, rows)?)
    }

    fn pack_blocks(&self, shape: MatrixShape, of: BlockFormat, rows: &BlockSource<'_>) -> Result<Matrix, OutOfMemory> {
        self.matrix(&self.host.pack_blocks(shape, of, rows)?)
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<GpuLowRank, OutOfMemory> {
        let packed = kernels::LowRank::pack(shape, source)?;
        let part = |(spans, pairs): (Vec<[u32; 4]>, &[u32])| {
            let bytes =
                |numbers: &mut dyn Iterator<Item = u32>| numbers.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>();
            Ok(LowRankPart {
                strips: spans.len() as u32,
                spans: self.upload(&[&bytes(&mut spans.into_iter().flatten())])?.0,
                pairs: self.upload(&[&bytes(&mut pairs.iter().copied())])?.0,
            })
        };
        let [a, b] = packed.strips();
        Ok(GpuLowRank { shape, parts: [part(a)?, part(b)?] })
    }

    /// One on disk serves a CPU and a GPU: this device reads them, and a CPU writes them.
    fn image(&self, _: &Matrix) -> Option<Image> {
        None
    }

    fn restore(&self, shape: MatrixShape, class: WeightClass, source: &ByteSource<'_>) -> Option<Matrix> {
        self.matrix(&self.host.restore(shape, class, source)?).ok()
    }

    fn shape(&self, matrix: &Matrix) -> MatrixShape {
        matrix.shape
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        matrix.bytes
    }

    fn kv_cache(&self, shape: KvShape) -> Result<GpuKvCache, OutOfMemory> {
        let layer = shape.bytes() / shape.layers.max(1);
        if layer as u64 > self.driver.listed.binding_bytes {
            return Err(OutOfMemory { bytes: shape.bytes() });
        }
        let kv = GpuKvCache { shape, layers: (0..shape.layers).map(|_| self.zeroed(layer)).collect::<Result<_, _>>()? };
        self.compile(self.kernels.of_cache(&shape));
        Ok(kv)
    }

    fn copy_blocks(&self, kv: &mut GpuKvCache, copies: &[(u32, u32)]) {
        let (bytes, mut state) = (kv.layer_block_bytes(), self.state());
        for &(src, dst) in copies {
            for layer in &kv.layers {
                state.recorder.copy(layer, layer, (u64::from(src) * bytes, u64::from(dst) * bytes, bytes));
            }
        }
    }

    fn block_bytes(&self, kv: &GpuKvCache) -> usize {
        kv.shape.block_bytes()
    }

    /// Where the host has no such memory, the device is lost.
    fn host_buffer(&self, bytes: Vec<u8>) -> HostMemory {
        let mut state = self.state();
        let timeline = state.recorder.timeline.clone();
        match Buffer::new(&self.driver, bytes.len() as u64, Place::Host) {
            Ok(buffer) => {
                // SAFETY: it is new.
                unsafe { buffer.write(0, &bytes) };
                HostMemory { buffer: Arc::new(buffer), len: bytes.len(), timeline, saved: 0 }
            }
            Err(error) => {
                state.recorder.lose("memory of the host", error);
                HostMemory { buffer: self.nothing.clone(), len: bytes.len(), timeline, saved: 0 }
            }
        }
    }

    fn save_block(&self, kv: &GpuKvCache, block: u32, to: &mut HostMemory, at: usize) {
        let (bytes, mut state) = (kv.layer_block_bytes(), self.state());
        for (index, layer) in kv.layers.iter().enumerate() {
            let place = at as u64 + index as u64 * bytes;
            state.recorder.copy(layer, &to.buffer, (u64::from(block) * bytes, place, bytes));
        }
        // Of what is recorded now.
        to.saved = to.timeline.value() + 1;
    }

    fn load_block(&self, from: &HostMemory, at: usize, kv: &mut GpuKvCache, block: u32) {
        let (bytes, mut state) = (kv.layer_block_bytes(), self.state());
        for (index, layer) in kv.layers.iter().enumerate() {
            let place = at as u64 + index as u64 * bytes;
            state.recorder.copy(&from.buffer, layer, (place, u64::from(block) * bytes, bytes));
        }
    }

    fn states(&self, shape: StateShape) -> Result<GpuStates, OutOfMemory> {
        let kernels = &self.kernels;
        if shape.slots * shape.numbers > 0 {
            self.compile([&kernels.convolve, &kernels.before_states, &kernels.recur, &kernels.after_states]);
        }
        GpuStates::new(&mut self.state().recorder, self.place, shape)
    }

    fn save_state(&self, states: &GpuStates, slot: u32, to: &mut HostMemory) {
        let (from, at) = states.place(slot);
        self.state().recorder.copy(from, &to.buffer, (at, 0, states.shape.slot_bytes() as u64));
        // Of what is recorded now.
        to.saved = to.timeline.value() + 1;
    }

    fn load_state(&self, from: &HostMemory, states: &mut GpuStates, slot: u32) {
        let (to, at) = states.place(slot);
        self.state().recorder.copy(&from.buffer, to, (0, at, states.shape.slot_bytes() as u64));
    }
}
