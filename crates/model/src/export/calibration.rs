//! Int4 by a text: the layers one after the other, each rounded by what it sees behind the layers that are rounded
//! already.
//!
//! ```text
//! text ──embedding──> rows of every window ──┐            per layer
//!   float32 layer  ──> inputs of its matrices summed up (kernels::quant::Gram), as many at a time as MOST_GRAM_BYTES hold
//!   rounding       ──> codes and scales, what one weight loses made good by others (kernels::quant::Factor)
//!   rounded layer  ──> rows of every window for the next layer
//! ```
//! Memory: a layer in float32 (its codes beside it), the sums of one pass, and a row of the hidden width for each token
//! of the text.

use super::observed::{Inputs, Observed, ObservedMatrix, Observer};
use super::recipe::{
    Narrow, Reason, Target, Unit, Verdict, judge, judged_alone, limit, quantize, restored, rounded, units,
};
use super::{Export, ExportError, Work};
use crate::config::{LayerConfig, NormKind};
use crate::mixers::Memory;
use crate::tensors::{Tensors, Vector};
use crate::transformer::{Layer, Loader, Pass, Place, Scratch};
use checkpoint::LoadError;
use checkpoint::weights::Weights;
use kernels::float32::{Float32Cache, Float32Matrix};
use kernels::quant::{Factor, Gram};
use kernels::{
    Buffer, Device, Float32, HostBackend, KvDtype, KvShape, MatrixShape, OutOfMemory, RopeTable, RowSource, StateShape,
    States, WeightClass,
};
use std::collections::{HashMap, VecDeque};

/// Sums of inputs that are held together. A single matrix may take more.
const MOST_GRAM_BYTES: usize = 2 << 30;
/// Added to the diagonal, as a part of its mean: first this, and tenfold where that is not enough.
const DAMPING: [f32; 3] = [0.01, 0.1, 1.0];
/// Windows whose first [`PROBE_ROWS`] rows measure where bits gain the most, behind units that are rounded by
/// [`PROBE_WINDOWS`] windows.
const PROBES: usize = 4;
const PROBE_ROWS: usize = 128;
const PROBE_WINDOWS: usize = 6;
/// Tokens of a cache block.
const BLOCK_SIZE: usize = 32;

/// What units become, in their order.
pub(super) struct Judge<'e> {
    units: &'e [Unit],
    targets: &'e [Target],
    measured: &'e HashMap<String, f64>,
    next: usize,
    weights: &'e Weights,
    /// Where a text is there to round by.
    calibrator: Option<Calibrator<'e>>,
}

impl<'e> Judge<'e> {
    pub(super) fn new(
        export: &'e Export<'e>,
        units: &'e [Unit],
        targets: &'e [Target],
        measured: &'e HashMap<String, f64>,
        threads: usize,
    ) -> Result<Judge<'e>, ExportError> {
        let calibrator = match export.windows.is_empty() || !targets.iter().any(|target| target.is_four()) {
            true => None,
            false => Some(Calibrator::new(export, &export.windows, threads)?),
        };
        Ok(Judge { units, targets, measured, next: 0, weights: &export.weights, calibrator })
    }

    /// The fate of the next unit.
    pub(super) fn next(&mut self, unit: &Unit, work: &mut Work<'_>) -> Result<Verdict, ExportError> {
        let target = self.targets[self.next];
        self.next += 1;
        match &mut self.calibrator {
            Some(calibrator) => calibrator.next(self.units, self.targets, work),
            None => judge(unit, target, self.weights, self.measured, work),
        }
    }
}

/// Rounds units in their order, a layer ahead.
pub(super) struct Calibrator<'e> {
    export: &'e Export<'e>,
    backend: Observed,
    /// `[tokens, hidden_size]` of each window.
    windows: Vec<Vec<f32>>,
    positions: Vec<u32>,
    table: Vec<u32>,
    ropes: Vec<RopeTable>,
    /// By group.
    kv: Vec<Float32Cache>,
    /// Of no slot: a window begins a sequence.
    states: States,
    scratch: Scratch<Observed>,
    /// A window where the backend computes, `[longest, hidden_size]`.
    rows: Buffer<f32>,
    next_unit: usize,
    ready: VecDeque<Verdict>,
}

fn memory(oom: OutOfMemory) -> LoadError {
    LoadError::OutOfMemory { bytes: oom.bytes, purpose: "a layer in float32".to_string() }
}

impl<'e> Calibrator<'e> {
    /// Before the first layer.
    pub(super) fn new(export: &'e Export<'e>, windows: &[Vec<u32>], threads: usize) -> Result<Self, ExportError> {
        let (config, weights) = (&export.config, &export.weights);
        let exact = Float32::new(Some(threads)).map_err(|error| ExportError::Refused(error.to_string()))?;
        let backend = Observed { exact, recorder: Observer::default() };
        let longest = windows.iter().map(Vec::len).max().unwrap_or(0);
        let blocks = longest.div_ceil(BLOCK_SIZE);
        // A layer is computed by itself.
        let groups = config.cache_shape(KvDtype::Bf16, blocks, BLOCK_SIZE).groups.into_iter();
        let kv = groups.map(|group| backend.kv_cache(KvShape { layers: 1, ..group }));
        let kv = kv.collect::<Result<_, _>>().map_err(memory)?;
        let ropes = config.ropes.iter().map(|rope| rope.table(longest));
        let ropes = ropes.collect::<Result<Vec<_>, _>>().map_err(memory)?;
        let embedding = Tensors::of(config, weights).embedding();
        let part = &embedding.parts[0];
        let table = weights.tensor(&part.name, &part.shape)?.rows()?;
        let hidden = config.hidden_size;
        let embedded = |window: &Vec<u32>| -> Result<Vec<f32>, LoadError> {
            let mut rows = vec![0.0; window.len() * hidden];
            for (row, &token) in rows.chunks_exact_mut(hidden).zip(window) {
                table.read(token as usize, row)?;
            }
            if config.embedding_multiplier != 1.0 {
                backend.scale(config.embedding_multiplier, &mut rows);
            }
            Ok(rows)
        };
        let windows = windows.iter().map(embedded).collect::<Result<_, _>>()?;
        Ok(Calibrator {
            export,
            windows,
            positions: (0..longest as u32).collect(),
            table: (0..blocks as u32).collect(),
            ropes,
            kv,
            states: States::new(StateShape::default()).map_err(memory)?,
            scratch: Scratch::new(&backend, config, longest)?,
            rows: Buffer::zeroed(longest * hidden).map_err(memory)?,
            backend,
            next_unit: 0,
            ready: VecDeque::new(),
        })
    }

    /// The next unit's fate. `units`, `targets`: all of them.
    pub(super) fn next(
        &mut self,
        units: &[Unit],
        targets: &[Target],
        work: &mut Work<'_>,
    ) -> Result<Verdict, ExportError> {
        if self.ready.is_empty() {
            let layer = units[self.next_unit].layer;
            let count = units[self.next_unit..].iter().take_while(|unit| unit.layer == layer).count();
            let range = self.next_unit..self.next_unit + count;
            self.layer(layer, &units[range.clone()], &targets[range.clone()], work)?;
            self.next_unit = range.end;
        }
        Ok(self.ready.pop_front().expect("a layer has units"))
    }

    /// Rounds a layer, and sends the windows through it.
    fn layer(
        &mut self,
        index: usize,
        units: &[Unit],
        targets: &[Target],
        work: &mut Work<'_>,
    ) -> Result<(), ExportError> {
        let weights = &self.export.weights;
        let bytes = layer_bytes(units, weights)?;
        let (mut layer, names) = self.load(index)?;
        let place = |name: &String| names.iter().position(|found| found == name).expect("units are of this layer");
        // What is decided without the inputs.
        let alone = units.iter().zip(targets).map(|(unit, target)| judged_alone(unit, *target, weights));
        let alone = alone.collect::<Result<Vec<Option<Reason>>, _>>()?;
        let four = |unit: usize| targets[unit].is_four() && alone[unit].is_none();
        let passes = passes(units, &four);
        let steps = (passes.len() + 1) * self.windows.len();
        let mut made =
            self.rounded(&layer, index, (units, targets), passes, &names, &mut Steps::new(work, bytes, steps))?;
        for (unit, reason) in alone.into_iter().enumerate() {
            let (mut narrow, products) = std::mem::take(&mut made[unit]);
            if reason.is_none() && narrow.is_empty() {
                for module in &units[unit].modules {
                    narrow.push(quantize(targets[unit], weights, module, work.threads)?);
                }
            }
            let worst = match four_error(products) {
                Some(error) => error,
                None => narrow.iter().map(|narrow| narrow.error).fold(0.0, f64::max),
            };
            let limit = limit(targets[unit].class());
            let verdict = match reason {
                Some(reason) => Verdict::Wide(reason),
                None if worst.is_nan() => Verdict::Wide(Reason::NotFinite),
                None if worst > limit && products.1 > 0.0 => Verdict::Wide(Reason::Products(worst)),
                None if worst > limit => Verdict::Wide(Reason::Weights(worst)),
                None => {
                    self.exchange(&mut layer, &units[unit], self.packed(&units[unit], &narrow)?, &place);
                    Verdict::Narrow(narrow, worst)
                }
            };
            self.ready.push_back(verdict);
        }
        let done = steps - self.windows.len();
        let mut steps = Steps { done, ..Steps::new(work, bytes, steps) };
        self.through(&layer, index, true, &mut steps)?;
        work.whole(bytes)
    }

    /// A layer in float32, and the names of its matrices.
    fn load(&self, index: usize) -> Result<(Layer<Observed>, Vec<String>), LoadError> {
        let (config, weights) = (&self.export.config, &self.export.weights);
        self.backend.recorder.begin();
        let mut loader = Loader {
            backend: &self.backend,
            config,
            weights,
            class: WeightClass::Bf16,
            as_stored: false,
            names: Vec::new(),
            progress: &mut |_| (),
            expert_reader: None,
        };
        let rotary_dim = config.layers[index].rope.map_or(0, |rope| self.ropes[rope].rotary_dim());
        let layer =
            loader.layer(Tensors::of(config, weights).layer(index), (config.layers[index].heads, rotary_dim))?;
        Ok((layer, loader.names))
    }

    /// The units that are rounded by their inputs, with the squared error and the squared norm of their products.
    fn rounded(
        &mut self,
        layer: &Layer<Observed>,
        index: usize,
        (units, targets): (&[Unit], &[Target]),
        passes: Vec<Vec<(usize, usize)>>,
        names: &[String],
        steps: &mut Steps<'_, '_>,
    ) -> Result<Vec<Made>, ExportError> {
        let place = |name: &String| names.iter().position(|found| found == name).expect("units are of this layer");
        let mut made: Vec<Made> = units.iter().map(|_| Made::default()).collect();
        for pass in passes {
            for &(unit, matrix) in &pass {
                let width = units[unit].of_matrix(matrix)[0].in_features;
                self.backend.recorder.watch(place(&units[unit].matrices[matrix]), width);
            }
            self.through(layer, index, false, steps)?;
            for (unit, matrix) in pass {
                let inputs = self.backend.recorder.take(place(&units[unit].matrices[matrix]));
                let factor = self.factor(&inputs);
                let (narrow, products) = &mut made[unit];
                products.1 += inputs.squared_norm;
                for module in units[unit].of_matrix(matrix) {
                    let (one, loss) =
                        rounded(targets[unit], &self.export.weights, module, &factor, steps.work.threads)?;
                    // Without products there is no error of theirs.
                    products.0 += if inputs.squared_norm > 0.0 { loss } else { 0.0 };
                    narrow.push(one);
                    steps.work.told()?;
                }
            }
        }
        Ok(made)
    }

    /// Sends every window through a layer; what comes out is kept or not.
    fn through(
        &mut self,
        layer: &Layer<Observed>,
        index: usize,
        keep: bool,
        steps: &mut Steps<'_, '_>,
    ) -> Result<(), ExportError> {
        let mut windows = std::mem::take(&mut self.windows);
        let mut copy = Vec::new();
        let mut result = Ok(());
        for window in &mut windows {
            let x = match keep {
                true => window,
                false => {
                    copy.clone_from(window);
                    &mut copy
                }
            };
            self.apply(layer, index, x);
            result = steps.step();
            if result.is_err() {
                break;
            }
        }
        self.windows = windows;
        result
    }

    /// Sends a window through a layer.
    fn apply(&mut self, layer: &Layer<Observed>, index: usize, x: &mut [f32]) {
        let config = &self.export.config;
        let pass = Pass { backend: &self.backend, config, adapters: &[] };
        let LayerConfig { heads: layout, rope, cache, .. } = config.layers[index];
        let rope = rope.map(|rope| &self.ropes[rope]);
        let rows = x.len() / config.hidden_size;
        let place = Place {
            layout,
            rope,
            rule: config.attention_rule(index),
            positions: &self.positions[..rows],
            blocks: &self.table[..rows.div_ceil(BLOCK_SIZE)],
        };
        self.rows[..x.len()].copy_from_slice(x);
        let memory = Memory { kv: &mut self.kv[cache.group..=cache.group], states: &mut self.states };
        layer.apply(&pass, &place, &mut self.rows, memory, &mut self.scratch);
        x.copy_from_slice(&self.rows[..x.len()]);
    }

    /// How errors spread among these inputs.
    fn factor(&self, inputs: &Inputs) -> Factor {
        let gram = inputs.gram.as_ref().expect("it was watched");
        let (pool, isa) = self.backend.exact.pool_and_isa();
        let damped = DAMPING.into_iter().find_map(|damping| gram.factor(pool, isa, damping));
        damped.unwrap_or_else(|| Factor::of_diagonal(&gram.diagonal()))
    }

    /// What the codes of a unit stand for, matrix by matrix.
    fn packed(&self, unit: &Unit, made: &[Narrow]) -> Result<Vec<Float32Matrix>, LoadError> {
        let mut made = made.iter();
        let matrix = |index: usize| {
            let modules = unit.of_matrix(index);
            let in_features = modules[0].in_features;
            let rows: Vec<Vec<f32>> =
                modules.iter().zip(made.by_ref()).map(|(module, made)| restored(module, made)).collect();
            let rows = rows.concat();
            let shape = MatrixShape { out_features: rows.len() / in_features, in_features };
            let read = |row: usize, out: &mut [f32]| {
                let row = unit.orders[index].source(row, shape.out_features);
                out.copy_from_slice(&rows[row * in_features..][..in_features]);
            };
            self.backend.exact.pack(shape, WeightClass::Bf16, &RowSource(&read)).map_err(memory)
        };
        (0..unit.matrices.len()).map(matrix).collect()
    }

    /// Puts other matrices in the places of a unit's; returns those that were there.
    fn exchange(
        &self,
        layer: &mut Layer<Observed>,
        unit: &Unit,
        packed: Vec<Float32Matrix>,
        place: &dyn Fn(&String) -> usize,
    ) -> Vec<Float32Matrix> {
        let mut matrices: Vec<&mut ObservedMatrix> = layer.matrices_mut();
        unit.matrices
            .iter()
            .zip(packed)
            .map(|(name, packed)| std::mem::replace(&mut matrices[place(name)].exact, packed))
            .collect()
    }

    /// What each unit in 4 bits, and nothing else, does to the rows that reach the head: the squared error as a part of
    /// the squared norm. Units that stay wide: none.
    ///
    /// One walk through the layers. A unit that is rounded starts separate rows, which pass through the other layers
    /// as they are.
    fn sensitivities(
        &mut self,
        units: &[Unit],
        four: Target,
        work: &mut Work<'_>,
    ) -> Result<Vec<Option<f64>>, ExportError> {
        let (config, weights) = (&self.export.config, &self.export.weights);
        let hidden = config.hidden_size;
        let probe = |window: &Vec<f32>| window[..window.len().min(PROBE_ROWS * hidden)].to_vec();
        let mut clean: Vec<Vec<f32>> = self.windows.iter().take(PROBES).map(probe).collect();
        self.windows.truncate(PROBE_WINDOWS);
        let mut probes: Vec<(usize, Vec<Vec<f32>>)> = Vec::new();
        let mut found = vec![None; units.len()];
        let mut first = 0;
        for index in 0..config.num_layers {
            let own = &units[first..first + units[first..].iter().take_while(|unit| unit.layer == index).count()];
            let bytes = layer_bytes(own, weights)?;
            let (mut layer, names) = self.load(index)?;
            let place = |name: &String| names.iter().position(|found| found == name).expect("units are of this layer");
            let alone = own.iter().map(|unit| judged_alone(unit, four, weights));
            let alone = alone.collect::<Result<Vec<Option<Reason>>, _>>()?;
            let passes = passes(own, &|unit| alone[unit].is_none());
            let count = (passes.len() + 1) * self.windows.len() + (probes.len() + own.len() + 1) * clean.len();
            let targets = vec![four; own.len()];
            let mut steps = Steps::new(work, bytes, count);
            let mut made = self.rounded(&layer, index, (own, &targets), passes, &names, &mut steps)?;
            for (_, rows) in &mut probes {
                for x in rows {
                    self.apply(&layer, index, x);
                    steps.step()?;
                }
            }
            for (at, unit) in own.iter().enumerate().filter(|(at, _)| alone[*at].is_none()) {
                let (narrow, _) = std::mem::take(&mut made[at]);
                let wide = self.exchange(&mut layer, unit, self.packed(unit, &narrow)?, &place);
                let mut rows = clean.clone();
                for x in &mut rows {
                    self.apply(&layer, index, x);
                    steps.step()?;
                }
                probes.push((first + at, rows));
                self.exchange(&mut layer, unit, wide, &place);
            }
            for x in &mut clean {
                self.apply(&layer, index, x);
                steps.step()?;
            }
            self.through(&layer, index, true, &mut steps)?;
            work.whole(bytes)?;
            first += own.len();
        }
        let norm = Tensors::of(config, weights).final_norm();
        let read = |vector: &Option<Vector>| {
            vector.as_ref().map(|vector| weights.vector(&vector.name, vector.len)).transpose()
        };
        let mut factors = read(&norm.weight)?.unwrap_or_else(|| vec![1.0; config.hidden_size]);
        let (bias, eps) = (read(&norm.bias)?, config.rms_norm_eps);
        if config.norms_around_zero && !config.plain_final_norm {
            factors.iter_mut().for_each(|factor| *factor += 1.0);
        }
        let normed = |rows: &[Vec<f32>]| {
            let rows = rows.concat();
            let mut out = vec![0.0; rows.len()];
            match config.norm {
                NormKind::Rms => self.backend.rms_norm(&rows, &factors, eps, &mut out),
                NormKind::Layer { .. } => {
                    let norm = kernels::Norm { weight: &factors[..], bias: bias.as_deref(), eps };
                    self.backend.layer_norm(&rows, norm, &mut out);
                }
            }
            out
        };
        let clean = normed(&clean);
        let norm: f64 = clean.iter().map(|&x| f64::from(x).powi(2)).sum();
        for (unit, rows) in probes {
            let error =
                normed(&rows).iter().zip(&clean).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>();
            found[unit] = Some(error / norm);
        }
        Ok(found)
    }
}

/// Codes of a unit, and the squared error and the squared norm of its products.
type Made = (Vec<Narrow>, (f64, f64));

/// The relative error of products, if any were seen.
fn four_error((error, norm): (f64, f64)) -> Option<f64> {
    (norm > 0.0).then(|| (error / norm).sqrt())
}

/// What the modules of a layer take in the files.
fn layer_bytes(units: &[Unit], weights: &Weights) -> Result<u64, LoadError> {
    units.iter().flat_map(|unit| &unit.modules).map(|module| module.stored_bytes(weights)).sum()
}

/// The same of all layers.
pub(super) fn bytes_of_layers(export: &Export<'_>) -> u64 {
    let tensors = Tensors::of(&export.config, &export.weights);
    let layer = |index| layer_bytes(&units(index, &tensors.layer(index), export.config.family), &export.weights);
    (0..export.config.num_layers).filter_map(|index| layer(index).ok()).sum()
}

/// Matrices of the units that `four` names, grouped so that their sums fit: unit, matrix in it.
fn passes(units: &[Unit], four: &dyn Fn(usize) -> bool) -> Vec<Vec<(usize, usize)>> {
    let (mut passes, mut held): (Vec<Vec<(usize, usize)>>, usize) = (Vec::new(), 0);
    for (index, unit) in units.iter().enumerate().filter(|(index, _)| four(*index)) {
        for matrix in 0..unit.matrices.len() {
            let bytes = Gram::bytes(unit.of_matrix(matrix)[0].in_features);
            if passes.is_empty() || held + bytes > MOST_GRAM_BYTES {
                passes.push(Vec::new());
                held = 0;
            }
            held += bytes;
            passes.last_mut().expect("one was pushed").push((index, matrix));
        }
    }
    passes
}

/// How far a layer is.
struct Steps<'w, 'p> {
    work: &'w mut Work<'p>,
    bytes: u64,
    done: usize,
    of: usize,
}

impl<'w, 'p> Steps<'w, 'p> {
    fn new(work: &'w mut Work<'p>, bytes: u64, of: usize) -> Steps<'w, 'p> {
        Steps { work, bytes, done: 0, of }
    }

    fn step(&mut self) -> Result<(), ExportError> {
        self.done += 1;
        self.work.part(self.bytes, self.done.min(self.of) as u64, self.of as u64)
    }
}

/// What each unit becomes: `four`, or `eight` where the bits that are left do the most.
///
/// From all units in 4 bits, the one that gains the most for each bit is raised, as long as the codes of all weights
/// have at most `bits` on average; one that is too large for what is left is passed over. (Greedy, as for a knapsack of
/// many small things.)
pub(super) fn targets(
    export: &Export<'_>,
    units: &[Unit],
    (four, eight): (Target, Target),
    work: &mut Work<'_>,
) -> Result<Vec<Target>, ExportError> {
    let mut targets = vec![four; units.len()];
    let Some(bits) = export.bits.filter(|_| four.is_four()) else { return Ok(targets) };
    let mut calibrator = Calibrator::new(export, &export.windows, work.threads)?;
    let gains = calibrator.sensitivities(units, four, work)?;
    let size = |unit: usize| units[unit].modules.iter().map(|m| (m.out_features * m.in_features) as f64).sum::<f64>();
    let mut ranked: Vec<(usize, f64)> =
        gains.iter().enumerate().filter_map(|(unit, gain)| Some((unit, (*gain)? / size(unit)))).collect();
    let mut left = ranked.iter().map(|(unit, _)| size(*unit)).sum::<f64>() * (bits - 4.0);
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (unit, _) in ranked {
        let fits = units[unit].modules.iter().all(|module| eight.fits(module.in_features));
        if fits && 4.0 * size(unit) <= left {
            left -= 4.0 * size(unit);
            targets[unit] = eight;
        }
    }
    Ok(targets)
}
