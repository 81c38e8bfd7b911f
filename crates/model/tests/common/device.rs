//! A device that is not this process's memory, as far as the model can tell: a thread with an arena of its own. The
//! host sends it operations and holds numbers of places; nothing comes back but through what blocks. Inside,
//! [`Reference`] computes.
//!
//! ```text
//! host     begin ─ embed ─ rms_norm ─ ... ─ submit                          wait, read, num_routed: an answer
//! queue        [ arrays | operation | ... ]  held back until submit     ──>   or a question
//! device                                      takes them in order         ──> arena: rows, vectors, steps, routes
//! ```
//! It loses itself when a test says so: then every door says so, operations do nothing, and what it held is gone.
//! It begins late on purpose: nothing is computed before `submit` or a question, so that a pass that looked at rows, or
//! changed its arrays too early, would see what was there before.

use kernels::limits::MeasureError;
use kernels::sampling::Candidate;
use kernels::{
    Activation, AttentionLayer, AttentionSpan, Backend, BlockFormat, BlockSource, Buffer, ByteSource, Convolution,
    DeltaRows, DeltaRule, Device, DeviceError, DeviceInfo, DeviceLimits, Extent, GatedConvolution, HeadColumns,
    HeadLayout, HeadNorms, HostBuffer, Image, Int4Source, Int8Source, KvCache, KvShape, Latents, LowRank, LowRankShape,
    LowRankSource, Mamba, MatrixShape, Norm, Out, OutOfMemory, PackedMatrix, Reference, Rotation, Routes, RoutingRule,
    RowSource, StateSave, StateShape, StateSpan, States, StepArrays, WeightClass,
};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

/// What lies on the device, by number. Things are taken out while an operation changes them.
#[derive(Default)]
struct Arena {
    rows: HashMap<usize, Buffer<f32>>,
    vectors: HashMap<usize, Arc<Buffer<f32>>>,
    caches: HashMap<usize, KvCache>,
    routes: HashMap<usize, Routes>,
    states: HashMap<usize, States>,
    buffers: HashMap<usize, Vec<u8>>,
    best: HashMap<usize, (usize, Vec<u32>)>,
    steps: HashMap<usize, OwnedStep>,
}

/// A step's arrays, uploaded.
struct OwnedStep {
    token_ids: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    spans: Vec<Span>,
    states: Vec<OwnedStates>,
    wanted: Vec<u32>,
    listed: Vec<u32>,
}

struct Span {
    first_row: usize,
    num_rows: usize,
    start: usize,
    blocks: Vec<u32>,
}

/// The rows of a sequence, the slot that it reads, those that it writes.
struct OwnedStates(Range<usize>, Option<u32>, Vec<StateSave>);

impl Span {
    fn of(&AttentionSpan { first_row, num_rows, start, blocks }: &AttentionSpan<'_>) -> Span {
        Span { first_row, num_rows, start, blocks: blocks.to_vec() }
    }

    fn borrowed(&self) -> AttentionSpan<'_> {
        let &Span { first_row, num_rows, start, ref blocks } = self;
        AttentionSpan { first_row, num_rows, start, blocks }
    }
}

impl OwnedStep {
    fn of(arrays: StepArrays<'_>) -> OwnedStep {
        OwnedStep {
            token_ids: arrays.token_ids.to_vec(),
            positions: arrays.positions.to_vec(),
            slots: arrays.slots.to_vec(),
            spans: arrays.spans.iter().map(Span::of).collect(),
            states: arrays.states.iter().map(|span| OwnedStates(span.rows(), span.from, span.saves.to_vec())).collect(),
            wanted: arrays.wanted.to_vec(),
            listed: arrays.listed.to_vec(),
        }
    }

    /// The arrays as the reference wants them.
    fn with<T>(&self, work: impl FnOnce(&StepArrays<'_>) -> T) -> T {
        let spans: Vec<AttentionSpan<'_>> = self.spans.iter().map(Span::borrowed).collect();
        let states: Vec<StateSpan<'_>> = self
            .states
            .iter()
            .map(|OwnedStates(rows, from, saves)| StateSpan {
                first_row: rows.start,
                num_rows: rows.len(),
                from: *from,
                saves,
            })
            .collect();
        work(&StepArrays {
            token_ids: &self.token_ids,
            positions: &self.positions,
            slots: &self.slots,
            spans: &spans,
            states: &states,
            wanted: &self.wanted,
            listed: &self.listed,
        })
    }
}

/// When a device loses itself: at this door, after it was passed that many times more.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    pub(crate) at: Mutex<Option<(&'static str, usize)>>,
    is_lost: AtomicBool,
}

impl Loss {
    fn pass(&self, door: &'static str) -> Result<(), DeviceError> {
        if let Some((_, left)) = self.at.lock().unwrap().as_mut().filter(|(planned, _)| *planned == door) {
            self.is_lost.fetch_or(*left == 0, Ordering::Relaxed);
            *left = left.saturating_sub(1);
        }
        match self.is_lost.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(DeviceError::Lost { device: "a thread".to_string(), what: format!("at {door}") }),
        }
    }
}

/// [`Out`] without its rows.
enum To {
    Store,
    StoreAt(usize, usize),
    Add,
    Gated(Activation),
}

type Operation = Box<dyn FnOnce(&Reference, &mut Arena) + Send>;

/// The host's side.
pub(crate) struct Remote {
    reference: Reference,
    /// Asked for, and not sent yet.
    held: Mutex<Vec<Operation>>,
    next: AtomicUsize,
    line: Line,
    pub(crate) loss: Arc<Loss>,
}

/// The way to the device, for any thread.
#[derive(Clone, Debug)]
struct Line {
    queue: Sender<Vec<Operation>>,
    /// How often the host blocked.
    waits: Arc<AtomicUsize>,
    loss: Arc<Loss>,
}

impl Line {
    /// Blocks for the answer to a question behind what was sent.
    fn answer<T: Send + 'static>(&self, question: impl FnOnce(&Reference, &mut Arena) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let question = move |reference: &Reference, arena: &mut Arena| drop(answer.send(question(reference, arena)));
        self.queue.send(vec![Box::new(question)]).expect("the device is there");
        self.waits.fetch_add(1, Ordering::Relaxed);
        answered.recv().expect("the device answers")
    }
}

/// Host memory that only the device writes to, when it comes to that.
#[derive(Debug)]
pub(crate) struct RemoteBuffer {
    place: usize,
    device: Line,
    /// Since the last save was asked for.
    bytes: OnceLock<Vec<u8>>,
}

impl RemoteBuffer {
    fn change(&mut self) -> usize {
        self.bytes.take();
        self.place
    }
}

impl HostBuffer for RemoteBuffer {
    fn bytes(&self) -> Result<&[u8], DeviceError> {
        self.device.loss.pass("bytes")?;
        let place = self.place;
        Ok(self.bytes.get_or_init(|| self.device.answer(move |_, arena| arena.buffers[&place].clone())))
    }
}

/// A place on the device.
pub(crate) struct Place(usize);

/// A cache on the device. Its size is known here.
pub(crate) struct RemoteCache(usize, usize);

impl Remote {
    pub(crate) fn new(reference: Reference) -> Remote {
        let (queue, work): (_, Receiver<Vec<Operation>>) = channel();
        std::thread::spawn(move || {
            let mut arena = Arena::default();
            work.into_iter().flatten().for_each(|operation| operation(&reference, &mut arena));
        });
        let loss = Arc::<Loss>::default();
        let line = Line { queue, waits: Arc::default(), loss: loss.clone() };
        Remote { reference, held: Mutex::default(), next: AtomicUsize::new(0), line, loss }
    }

    /// How often the host has blocked, whichever thread asks: the counter outlives the device.
    pub(crate) fn waits(&self) -> Arc<AtomicUsize> {
        self.line.waits.clone()
    }

    fn ask(&self, operation: impl FnOnce(&Reference, &mut Arena) + Send + 'static) {
        self.held.lock().unwrap().push(Box::new(operation));
    }

    fn flush(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        self.line.queue.send(held).expect("the device is there");
    }

    /// Asks and blocks for the answer.
    fn answer<T: Send + 'static>(&self, question: impl FnOnce(&Reference, &mut Arena) -> T + Send + 'static) -> T {
        self.flush();
        self.line.answer(question)
    }

    fn place(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Arena {
    /// Work over rows that change, taken out meanwhile.
    fn change(&mut self, rows: usize, work: impl FnOnce(&mut Arena, &mut Buffer<f32>)) {
        let mut out = self.rows.remove(&rows).expect("rows of this device, not two times at once");
        work(self, &mut out);
        self.rows.insert(rows, out);
    }
}

impl Device for Remote {
    type Matrix = Arc<PackedMatrix>;
    type LowRank = Arc<LowRank>;
    type KvCache = RemoteCache;
    type States = Place;
    type HostBuffer = RemoteBuffer;

    fn describe(&self) -> String {
        "a thread that computes elsewhere".to_string()
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { kind: "remote", ..self.reference.info() }
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.reference.limits(seconds)
    }

    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Self::Matrix, OutOfMemory> {
        self.reference.pack(shape, class, rows).map(Arc::new)
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        self.reference.pack_int8(shape, rows).map(Arc::new)
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        self.reference.pack_int4(shape, rows).map(Arc::new)
    }

    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Self::Matrix, OutOfMemory> {
        self.reference.pack_blocks(shape, format, rows).map(Arc::new)
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<Arc<LowRank>, OutOfMemory> {
        self.reference.pack_low_rank(shape, source).map(Arc::new)
    }

    fn image(&self, matrix: &Self::Matrix) -> Option<Image> {
        self.reference.image(matrix)
    }

    fn restore(&self, shape: MatrixShape, class: WeightClass, source: &ByteSource<'_>) -> Option<Self::Matrix> {
        self.reference.restore(shape, class, source).map(Arc::new)
    }

    fn shape(&self, matrix: &Self::Matrix) -> MatrixShape {
        matrix.shape()
    }

    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize {
        matrix.bytes()
    }

    fn kv_cache(&self, shape: KvShape) -> Result<RemoteCache, OutOfMemory> {
        let (place, cache) = (self.place(), self.reference.kv_cache(shape)?);
        self.ask(move |_, arena| drop(arena.caches.insert(place, cache)));
        Ok(RemoteCache(place, shape.block_bytes()))
    }

    fn copy_blocks(&self, kv: &mut RemoteCache, copies: &[(u32, u32)]) {
        let (kv, copies) = (kv.0, copies.to_vec());
        self.ask(move |reference, arena| reference.copy_blocks(arena.caches.get_mut(&kv).unwrap(), &copies));
    }

    fn block_bytes(&self, kv: &RemoteCache) -> usize {
        kv.1
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> RemoteBuffer {
        let place = self.place();
        self.ask(move |_, arena| drop(arena.buffers.insert(place, bytes)));
        RemoteBuffer { place, device: self.line.clone(), bytes: OnceLock::new() }
    }

    fn save_block(&self, kv: &RemoteCache, block: u32, to: &mut RemoteBuffer, at: usize) {
        let (kv, to) = (kv.0, to.change());
        self.ask(move |reference, arena| {
            reference.save_block(&arena.caches[&kv], block, arena.buffers.get_mut(&to).unwrap(), at);
        });
    }

    fn load_block(&self, from: &RemoteBuffer, at: usize, kv: &mut RemoteCache, block: u32) {
        let (kv, from) = (kv.0, from.place);
        self.ask(move |reference, arena| {
            reference.load_block(&arena.buffers[&from], at, arena.caches.get_mut(&kv).unwrap(), block);
        });
    }

    fn states(&self, shape: StateShape) -> Result<Place, OutOfMemory> {
        let (place, states) = (self.place(), self.reference.states(shape)?);
        self.ask(move |_, arena| drop(arena.states.insert(place, states)));
        Ok(Place(place))
    }

    fn save_state(&self, states: &Place, slot: u32, to: &mut RemoteBuffer) {
        let (states, to) = (states.0, to.change());
        self.ask(move |reference, arena| {
            reference.save_state(&arena.states[&states], slot, arena.buffers.get_mut(&to).unwrap());
        });
    }

    fn load_state(&self, from: &RemoteBuffer, states: &mut Place, slot: u32) {
        let (states, from) = (states.0, from.place);
        self.ask(move |reference, arena| {
            reference.load_state(&arena.buffers[&from], arena.states.get_mut(&states).unwrap(), slot);
        });
    }
}

impl Backend for Remote {
    type Rows = Place;
    type Vector = Place;
    type Step<'a> = Place;
    type Routes = Place;
    type Best = Place;

    fn rows(&self, max_rows: usize, width: usize) -> Result<Place, OutOfMemory> {
        let (place, rows) = (self.place(), self.reference.rows(max_rows, width)?);
        self.ask(move |_, arena| drop(arena.rows.insert(place, rows)));
        Ok(Place(place))
    }

    fn vector(&self, numbers: &[f32]) -> Result<Place, OutOfMemory> {
        let (place, vector) = (self.place(), Arc::new(self.reference.vector(numbers)?));
        self.ask(move |_, arena| drop(arena.vectors.insert(place, vector)));
        Ok(Place(place))
    }

    fn vector_bytes(&self, vector: &Place) -> usize {
        let vector = vector.0;
        self.answer(move |_, arena| arena.vectors[&vector].bytes())
    }

    fn routes(&self, max_rows: usize, num_experts: usize, rule: RoutingRule) -> Result<Place, OutOfMemory> {
        let (place, routes) = (self.place(), self.reference.routes(max_rows, num_experts, rule)?);
        self.ask(move |_, arena| drop(arena.routes.insert(place, routes)));
        Ok(Place(place))
    }

    fn begin<'a>(&self, arrays: StepArrays<'a>) -> Place {
        let (place, step) = (self.place(), OwnedStep::of(arrays));
        self.ask(move |_, arena| {
            // Two at a time: a model may ask for one of its wanted rows beside that of all.
            let last = arena.steps.keys().max().copied();
            arena.steps.retain(|place, _| Some(*place) == last);
            arena.steps.insert(place, step);
        });
        Place(place)
    }

    fn embed(&self, step: &Place, table: &Arc<PackedMatrix>, out: &mut Place) {
        let (step, table, out) = (step.0, table.clone(), out.0);
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| arena.steps[&step].with(|step| reference.embed(step, &table, out)));
        });
    }

    fn rms_norm(&self, x: &Place, rows: Range<usize>, weight: &Place, eps: f32, out: &mut Place) {
        let (x, weight, out) = (x.0, weight.0, out.0);
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                reference.rms_norm(&arena.rows[&x], rows, &arena.vectors[&weight], eps, out);
            });
        });
    }

    fn layer_norm(&self, x: &Place, rows: Range<usize>, norm: Norm<'_, Place>, out: &mut Place) {
        let (x, out, weight, bias, eps) = (x.0, out.0, norm.weight.0, norm.bias.map(|bias| bias.0), norm.eps);
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                let bias = bias.map(|bias| &*arena.vectors[&bias]);
                reference.layer_norm(&arena.rows[&x], rows, Norm { weight: &arena.vectors[&weight], bias, eps }, out);
            });
        });
    }

    fn activate(&self, activation: Activation, x: &mut Place, extent: Extent) {
        let x = x.0;
        self.ask(move |reference, arena| reference.activate(activation, arena.rows.get_mut(&x).unwrap(), extent));
    }

    fn linear(&self, x: &Place, rows: usize, w: &Arc<PackedMatrix>, bias: Option<&Place>, out: Out<'_, Place>) {
        let (x, w, bias) = (x.0, w.clone(), bias.map(|bias| bias.0));
        let (out, to) = match out {
            Out::Store(out) => (out.0, To::Store),
            Out::StoreAt { out, at, width } => (out.0, To::StoreAt(at, width)),
            Out::Add(out) => (out.0, To::Add),
            Out::Gated(activation, out) => (out.0, To::Gated(activation)),
        };
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                let bias = bias.map(|bias| &*arena.vectors[&bias]);
                let out = match to {
                    To::Store => Out::Store(out),
                    To::StoreAt(at, width) => Out::StoreAt { out, at, width },
                    To::Add => Out::Add(out),
                    To::Gated(activation) => Out::Gated(activation, out),
                };
                reference.linear(&arena.rows[&x], rows, &w, bias, out);
            });
        });
    }

    fn rotate_and_store(&self, step: &Place, how: Rotation<'_, Place>, qkv: &mut Place, kv: &mut RemoteCache) {
        let Rotation { layout, head_norms, rope, layer } = how;
        enum Norms {
            PerHead,
            AfterRotation,
            WholeWidth,
            Centered,
        }
        // Norms: of what, q, k, v, eps. Tables: the numbers' place, beside what the host knows of them.
        let head_norms = match head_norms {
            HeadNorms::None => None,
            HeadNorms::PerHead { q, k, v, eps } => Some((Norms::PerHead, q.0, k.0, v.map(|v| v.0), eps)),
            HeadNorms::AfterRotation { q, k, eps } => Some((Norms::AfterRotation, q.0, k.0, None, eps)),
            HeadNorms::WholeWidth { q, k, eps } => Some((Norms::WholeWidth, q.0, k.0, None, eps)),
            HeadNorms::Centered { q, k, eps } => Some((Norms::Centered, q.0, k.0, None, eps)),
        };
        let Ok(rope) = rope.map(|rope| rope.try_map(|numbers| Ok::<_, Infallible>(numbers.0))).transpose();
        let (step, qkv, kv) = (step.0, qkv.0, kv.0);
        self.ask(move |reference, arena| {
            let mut cache = arena.caches.remove(&kv).unwrap();
            arena.change(qkv, |arena, qkv| {
                let vector = |place: usize| &*arena.vectors[&place];
                let head_norms = match head_norms {
                    None => HeadNorms::None,
                    Some((Norms::PerHead, q, k, v, eps)) => {
                        HeadNorms::PerHead { q: vector(q), k: vector(k), v: v.map(vector), eps }
                    }
                    Some((Norms::AfterRotation, q, k, _, eps)) => {
                        HeadNorms::AfterRotation { q: vector(q), k: vector(k), eps }
                    }
                    Some((Norms::Centered, q, k, _, eps)) => HeadNorms::Centered { q: vector(q), k: vector(k), eps },
                    Some((Norms::WholeWidth, q, k, _, eps)) => {
                        HeadNorms::WholeWidth { q: vector(q), k: vector(k), eps }
                    }
                };
                let rope = rope.map(|rope| rope.try_map(|&place| reference.vector(vector(place))).unwrap());
                let how = Rotation { layout, head_norms, rope: rope.as_ref(), layer };
                arena.steps[&step].with(|step| reference.rotate_and_store(step, how, qkv, &mut cache));
            });
            arena.caches.insert(kv, cache);
        });
    }

    fn attend(&self, step: &Place, how: AttentionLayer<'_, Place>, qkv: &Place, kv: &RemoteCache, out: &mut Place) {
        let AttentionLayer { layout, rule, sinks, layer } = how;
        let (step, qkv, kv, out, sinks) = (step.0, qkv.0, kv.0, out.0, sinks.map(|sinks| sinks.0));
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                let (qkv, kv) = (&arena.rows[&qkv], &arena.caches[&kv]);
                let sinks = sinks.map(|sinks| &*arena.vectors[&sinks]);
                let how = AttentionLayer { layout, rule, sinks, layer };
                arena.steps[&step].with(|step| reference.attend(step, how, qkv, kv, out));
            });
        });
    }

    fn store_latents(
        &self,
        step: &Place,
        how: Latents<'_, Place>,
        queries: &Place,
        (keys, absorbed): (&mut Place, &mut Place),
        kv: &mut RemoteCache,
    ) {
        let Latents { shape, norm, eps, rope, layer } = how;
        let rope = rope.map(|rope| {
            let Ok(rope) = rope.try_map(|numbers| Ok::<_, Infallible>(numbers.0));
            rope
        });
        let norm = norm.0;
        let (step, queries, keys, absorbed, kv) = (step.0, queries.0, keys.0, absorbed.0, kv.0);
        self.ask(move |reference, arena| {
            let mut cache = arena.caches.remove(&kv).unwrap();
            arena.change(absorbed, |arena, absorbed| {
                arena.change(keys, |arena, keys| {
                    let vector = |place: &usize| reference.vector(&arena.vectors[place]);
                    let rope = rope.as_ref().map(|rope| rope.try_map(vector).unwrap());
                    let how = Latents { shape, norm: &*arena.vectors[&norm], eps, rope: rope.as_ref(), layer };
                    let queries = &arena.rows[&queries];
                    arena.steps[&step].with(|step| {
                        Backend::store_latents(reference, step, how, queries, (keys, absorbed), &mut cache);
                    });
                });
            });
            arena.caches.insert(kv, cache);
        });
    }

    fn linear_by_head(
        &self,
        (x, from): (&Place, HeadColumns),
        rows: usize,
        matrices: &[impl Borrow<Arc<PackedMatrix>> + Sync],
        (out, to): (&mut Place, HeadColumns),
    ) {
        let (x, out) = (x.0, out.0);
        let matrices: Vec<Arc<PackedMatrix>> = matrices.iter().map(|matrix| matrix.borrow().clone()).collect();
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                Backend::linear_by_head(reference, (&arena.rows[&x], from), rows, &matrices, (out, to));
            });
        });
    }

    fn convolve(&self, step: &Place, how: Convolution<'_, Place>, rows: &mut Place, states: &mut Place) {
        let Convolution { row_width, channels, taps, weight, bias, silu, state } = how;
        let (weight, bias) = (weight.0, bias.map(|bias| bias.0));
        let (step, rows, states) = (step.0, rows.0, states.0);
        self.ask(move |reference, arena| {
            let mut of_sequences = arena.states.remove(&states).unwrap();
            arena.change(rows, |arena, rows| {
                let (weight, bias) = (&*arena.vectors[&weight], bias.map(|bias| &*arena.vectors[&bias]));
                let how = Convolution { row_width, channels, taps, weight, bias, silu, state };
                arena.steps[&step].with(|step| Backend::convolve(reference, step, how, rows, &mut of_sequences));
            });
            arena.states.insert(states, of_sequences);
        });
    }

    fn convolve_gated(
        &self,
        step: &Place,
        how: GatedConvolution<'_, Place>,
        rows: &Place,
        states: &mut Place,
        out: &mut Place,
    ) {
        let GatedConvolution { channels, taps, weight, bias, state } = how;
        let (weight, bias) = (weight.0, bias.map(|bias| bias.0));
        let (step, rows, states, out) = (step.0, rows.0, states.0, out.0);
        self.ask(move |reference, arena| {
            let mut of_sequences = arena.states.remove(&states).unwrap();
            arena.change(out, |arena, out| {
                let bias = bias.map(|bias| &*arena.vectors[&bias]);
                let how = GatedConvolution { channels, taps, weight: &*arena.vectors[&weight], bias, state };
                arena.steps[&step].with(|step| {
                    Backend::convolve_gated(reference, step, how, &arena.rows[&rows], &mut of_sequences, out);
                });
            });
            arena.states.insert(states, of_sequences);
        });
    }

    fn delta_rule(
        &self,
        step: &Place,
        how: DeltaRule<'_, Place>,
        DeltaRows { rows, gates, decays }: DeltaRows<'_, Place>,
        states: &mut Place,
        out: &mut Place,
    ) {
        let DeltaRule { shape, rates, dt_bias, norm, eps, state } = how;
        let vectors = [rates.0, dt_bias.0, norm.0];
        let (step, rows, gates, states, out) = (step.0, rows.0, gates.0, states.0, out.0);
        let decays = decays.map(|decays| decays.0);
        self.ask(move |reference, arena| {
            let mut of_sequences = arena.states.remove(&states).unwrap();
            let mut of_keys = decays.map(|decays| arena.rows.remove(&decays).unwrap());
            arena.change(out, |arena, out| {
                arena.change(rows, |arena, rows| {
                    arena.change(gates, |arena, gates| {
                        let [rates, dt_bias, norm] = vectors.map(|place| &*arena.vectors[&place]);
                        let how = DeltaRule { shape, rates, dt_bias, norm, eps, state };
                        let rows = DeltaRows { rows, gates, decays: of_keys.as_mut() };
                        arena.steps[&step].with(|step| {
                            Backend::delta_rule(reference, step, how, rows, &mut of_sequences, out);
                        });
                    });
                });
            });
            arena.rows.extend(decays.zip(of_keys));
            arena.states.insert(states, of_sequences);
        });
    }

    fn mamba(
        &self,
        step: &Place,
        how: Mamba<'_, Place>,
        (rows, steps): (&mut Place, &mut Place),
        states: &mut Place,
        out: &mut Place,
    ) {
        let Mamba { shape, step_factor, gate_factor, output, norm_groups, eps, state, .. } = how;
        let (vectors, norm) = ([how.rates.0, how.dt_bias.0, how.skip.0], how.norm.map(|norm| norm.0));
        let (step, rows, steps, states, out) = (step.0, rows.0, steps.0, states.0, out.0);
        self.ask(move |reference, arena| {
            let mut of_sequences = arena.states.remove(&states).unwrap();
            arena.change(out, |arena, out| {
                arena.change(rows, |arena, rows| {
                    arena.change(steps, |arena, steps| {
                        let [rates, dt_bias, skip] = vectors.map(|place| &*arena.vectors[&place]);
                        let norm = norm.map(|norm| &*arena.vectors[&norm]);
                        let how = Mamba {
                            shape,
                            rates,
                            step_factor,
                            dt_bias,
                            skip,
                            gate_factor,
                            output,
                            norm,
                            norm_groups,
                            eps,
                            state,
                        };
                        arena.steps[&step].with(|step| {
                            Backend::mamba(reference, step, how, (rows, steps), &mut of_sequences, out);
                        });
                    });
                });
            });
            arena.states.insert(states, of_sequences);
        });
    }

    fn gate_heads(&self, layout: HeadLayout, qkv: &Place, rows: usize, x: &mut Place) {
        let (qkv, x) = (qkv.0, x.0);
        self.ask(move |reference, arena| {
            arena.change(x, |arena, x| Backend::gate_heads(reference, layout, &arena.rows[&qkv], rows, x));
        });
    }

    fn add_gated(&self, gates: &Place, y: &Place, x: &mut Place, extent: Extent) {
        let (gates, y, x) = (gates.0, y.0, x.0);
        self.ask(move |reference, arena| {
            arena.change(x, |arena, x| {
                Backend::add_gated(reference, &arena.rows[&gates], &arena.rows[&y], x, extent);
            });
        });
    }

    fn scale(&self, by: f32, x: &mut Place, extent: Extent) {
        let x = x.0;
        self.ask(move |reference, arena| reference.scale(by, arena.rows.get_mut(&x).unwrap(), extent));
    }

    fn clamp(&self, limit: f32, x: &mut Place, extent: Extent) {
        let x = x.0;
        self.ask(move |reference, arena| {
            arena.change(x, |_, x| Backend::clamp(reference, limit, x, extent));
        });
    }

    fn multiply(&self, x: &mut Place, extent: Extent, (by, by_width, at): (&Place, usize, usize)) {
        let (by, x) = (by.0, x.0);
        self.ask(move |reference, arena| {
            arena.change(x, |arena, x| Backend::multiply(reference, x, extent, (&arena.rows[&by], by_width, at)));
        });
    }

    fn add_scaled(&self, y: &Place, scale: f32, x: &mut Place, extent: Extent) {
        let (y, x) = (y.0, x.0);
        self.ask(move |reference, arena| {
            arena.change(x, |arena, x| reference.add_scaled(&arena.rows[&y], scale, x, extent));
        });
    }

    fn softcap(&self, cap: f32, x: &mut Place, extent: Extent) {
        let x = x.0;
        self.ask(move |reference, arena| reference.softcap(cap, arena.rows.get_mut(&x).unwrap(), extent));
    }

    fn clear(&self, x: &mut Place, extent: Extent) {
        let x = x.0;
        self.ask(move |reference, arena| reference.clear(arena.rows.get_mut(&x).unwrap(), extent));
    }

    fn gather_wanted(&self, step: &Place, from: &Place, width: usize, out: &mut Place) {
        let (step, from, out) = (step.0, from.0, out.0);
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                arena.steps[&step].with(|step| reference.gather_wanted(step, &arena.rows[&from], width, out));
            });
        });
    }

    fn add_low_rank<'a>(
        &self,
        step: &Place,
        x: &Place,
        groups: impl Iterator<Item = (&'a Arc<LowRank>, Range<usize>)> + Clone + Sync,
        out: &mut Place,
    ) {
        let groups: Vec<(Arc<LowRank>, Range<usize>)> = groups.map(|(own, list)| (own.clone(), list)).collect();
        let (step, x, out) = (step.0, x.0, out.0);
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                let groups = groups.iter().map(|(low_rank, list)| (&**low_rank, list.clone()));
                arena.steps[&step].with(|step| reference.add_low_rank(step, &arena.rows[&x], groups, out));
            });
        });
    }

    fn gate(&self, activation: Activation, gate_up: &Place, extent: Extent, out: &mut Place) {
        let (gate_up, out) = (gate_up.0, out.0);
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| Backend::gate(reference, activation, &arena.rows[&gate_up], extent, out));
        });
    }

    fn route(&self, logits: &Place, bias: Option<&Place>, rows: usize, routes: &mut Place) {
        let (logits, bias, routes) = (logits.0, bias.map(|bias| bias.0), routes.0);
        self.ask(move |reference, arena| {
            let bias = bias.map(|bias| &*arena.vectors[&bias]);
            Backend::route(reference, &arena.rows[&logits], bias, rows, arena.routes.get_mut(&routes).unwrap());
        });
    }

    fn num_routed(&self, routes: &Place, expert: usize) -> usize {
        let routes = routes.0;
        if self.loss.is_lost.load(Ordering::Relaxed) {
            return 0;
        }
        self.answer(move |reference, arena| reference.num_routed(&arena.routes[&routes], expert))
    }

    fn gather_routed(&self, routes: &Place, expert: usize, from: &Place, width: usize, out: &mut Place) {
        let (routes, from, out) = (routes.0, from.0, out.0);
        self.ask(move |reference, arena| {
            arena.change(out, |arena, out| {
                reference.gather_routed(&arena.routes[&routes], expert, &arena.rows[&from], width, out);
            });
        });
    }

    fn scatter_routed(&self, routes: &Place, expert: usize, y: &Place, width: usize, x: &mut Place) {
        let (routes, y, x) = (routes.0, y.0, x.0);
        self.ask(move |reference, arena| {
            arena.change(x, |arena, x| {
                reference.scatter_routed(&arena.routes[&routes], expert, &arena.rows[&y], width, x);
            });
        });
    }

    fn best(&self, max_rows: usize, count: usize) -> Result<Place, OutOfMemory> {
        let (place, best) = (self.place(), self.reference.best(max_rows, count)?);
        self.ask(move |_, arena| drop(arena.best.insert(place, best)));
        Ok(Place(place))
    }

    fn find_best(&self, logits: &Place, width: usize, counts: &[u32], out: &mut Place) {
        let (logits, counts, out) = (logits.0, counts.to_vec(), out.0);
        self.ask(move |reference, arena| {
            reference.find_best(&arena.rows[&logits], width, &counts, arena.best.get_mut(&out).unwrap());
        });
    }

    fn read_best(&self, from: &Place, logits: &Place, row: usize, out: &mut Vec<Candidate>) -> Result<(), DeviceError> {
        self.loss.pass("read_best")?;
        let (from, logits) = (from.0, logits.0);
        *out = self.answer(move |reference, arena| {
            let mut found = Vec::new();
            reference.read_best(&arena.best[&from], &arena.rows[&logits], row, &mut found).unwrap();
            found
        });
        Ok(())
    }

    fn submit(&self) -> Result<(), DeviceError> {
        self.loss.pass("submit")?;
        self.flush();
        Ok(())
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.loss.pass("wait")?;
        self.answer(|_, _| ());
        Ok(())
    }

    fn read(&self, from: &Place, rows: Range<usize>, width: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.loss.pass("read")?;
        let (from, len) = (from.0, out.len());
        out.copy_from_slice(&self.answer(move |reference, arena| {
            let mut numbers = vec![0.0; len];
            reference.read(&arena.rows[&from], rows, width, &mut numbers).unwrap();
            numbers
        }));
        Ok(())
    }

    fn write(&self, from: &[f32], out: &mut Place) -> Result<(), DeviceError> {
        self.loss.pass("write")?;
        let (from, out) = (from.to_vec(), out.0);
        self.ask(move |reference, arena| arena.change(out, |_, out| reference.write(&from, out).unwrap()));
        Ok(())
    }
}
