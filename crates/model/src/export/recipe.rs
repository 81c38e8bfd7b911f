//! What is quantized together, how large the error is, and which units stay as they are stored.
//!
//! ```text
//! unit   qkv | o | gate_up | down | all experts of a layer
//! error  |W' - W| / |W| of its weights, and if a text was given |y' - y| / |y| of its products on that text
//!        the larger of them > limit(class)  ──>  the unit stays wide, by name
//! ```
//! A class rounds every unit about equally (int8 by 1 %, int4 by 8 %). Far more means that something is wrong with this
//! matrix for this class: single huge weights in a channel, or inputs that spike on few tokens (GLU activation spikes:
//! Yang et al., 2024), which only a text shows. The decision is made here, once, and is a part of the files.

use super::{ExportError, Work};
use crate::config::Family;
use crate::tensors::{Feed, Layer, Linear, Mixing, Mlp, mlp_parts};
use checkpoint::BlockType;
use checkpoint::LoadError;
use checkpoint::encoding::Encoding;
use checkpoint::encoding::class_for;
use checkpoint::weights::{RowOrder, TensorRows, TensorSlice, Weights};
use half::{bf16, f16};
use kernels::quant::{Factor, GROUP, INT8_GROUP, ROUNDED_ROWS, ScaleGrid, quantize_int4_row, quantize_int8_row};
use kernels::{Isa, WeightClass};
use std::collections::HashMap;
use std::ops::Range;

/// Largest relative L2 error of a unit that is made narrow: two to five times what the class costs usually, so that
/// only outliers are kept wide.
pub fn limit(class: WeightClass) -> f64 {
    match class {
        WeightClass::Bf16 => f64::INFINITY,
        WeightClass::Int8 => 0.05,
        WeightClass::Int4 => 0.15,
    }
}

/// Int8 weights that share a scale in what is written. Two of these groups have the scale of one that is computed with;
/// other engines take this width, and more matrices are made of whole ones (rows of 576 or 896).
pub(super) const INT8_FILE_GROUP: usize = INT8_GROUP / 2;

/// Largest ratio of a group's scale to that of its row where a text was given: what is computed with has room for it.
const MOST_RATIO: i8 = i8::MAX;

/// A unit that was kept as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The modules in it, joined by ` + `.
    pub name: String,
    /// Why.
    pub reason: Reason,
}

/// Why a unit was kept as stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// This relative error of its weights is above the limit.
    Weights(f64),
    /// This relative error of its products on the text is above the limit.
    Products(f64),
    /// Its rows are not made of whole groups.
    Width {
        /// Weights in a row.
        width: usize,
        /// Weights in a group.
        group: usize,
    },
    /// Some of its weights are NaN or infinite.
    NotFinite,
}

/// What has to share one class.
pub(super) struct Unit {
    pub(super) layer: usize,
    /// Names of its matrices as [`crate::Runner::matrix_names`] has them.
    pub(super) matrices: Vec<String>,
    /// In which their rows are packed.
    pub(super) orders: Vec<RowOrder>,
    /// Those of the first matrix, then those of the next.
    pub(super) modules: Vec<Module>,
    /// Where the modules of each matrix end.
    ends: Vec<usize>,
}

/// A matrix under the name that it has in what is written.
pub(super) struct Module {
    /// Without `.weight`.
    pub(super) name: String,
    /// The tensor that holds its rows.
    pub(super) source: TensorSlice,
    /// Which of the source's rows are its own: this one, and every `step`th behind it, `out_features` in all.
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) out_features: usize,
    pub(super) in_features: usize,
    /// Rows are written in the order of ggml, for heads of this width: see [`interleaved`].
    pub(super) interleaved: Option<usize>,
}

impl Module {
    /// What reads its rows, by their index.
    pub(super) fn reader<'w>(&self, weights: &'w Weights) -> Result<ModuleRows<'w>, LoadError> {
        let (rows, first) = weights.rows_of(&self.source)?;
        Ok(ModuleRows { rows, first: first + self.first, step: self.step, interleaved: self.interleaved })
    }

    /// Bytes of its rows in the file.
    pub(super) fn stored_bytes(&self, weights: &Weights) -> Result<u64, LoadError> {
        let all: usize = self.source.shape.iter().product();
        let bytes = weights.tensor(&self.source.name, &self.source.shape)?.num_bytes();
        Ok(bytes / (all / self.in_features) as u64 * self.out_features as u64)
    }
}

/// The rows of a module.
pub(super) struct ModuleRows<'w> {
    rows: TensorRows<'w>,
    first: usize,
    step: usize,
    interleaved: Option<usize>,
}

impl ModuleRows<'_> {
    /// Reads row `at` of what is written.
    pub(super) fn read(&self, at: usize, out: &mut [f32]) -> Result<(), LoadError> {
        let at = self.interleaved.map_or(at, |head_dim| interleaved(at, head_dim));
        self.rows.read(self.first + self.step * at, out)
    }
}

/// The row of queries or keys that ggml's row `row` is: neighbours there are `i` and `half + i` of a head here.
pub(super) fn interleaved(row: usize, head_dim: usize) -> usize {
    let (head, in_head) = (row / head_dim, row % head_dim);
    head * head_dim + in_head % 2 * (head_dim / 2) + in_head / 2
}

/// What a matrix becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// This engine's, with scales apart.
    Int8,
    /// Likewise.
    Int4,
    /// GGUF: Q8_0 or Q4_0.
    Blocks(BlockType),
    /// Two bytes for each weight.
    Bf16,
    F16,
}

impl Target {
    pub(super) fn of(class: WeightClass) -> Target {
        match class {
            WeightClass::Bf16 => Target::Bf16,
            WeightClass::Int8 => Target::Int8,
            WeightClass::Int4 => Target::Int4,
        }
    }

    /// Whether it is 4 bits, which a text improves.
    pub(super) fn is_four(self) -> bool {
        matches!(self, Target::Int4 | Target::Blocks(BlockType::Q4_0))
    }

    /// As GGUF calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Target::Int8 => "I8",
            Target::Int4 => "I4",
            Target::Blocks(blocks) => blocks.name(),
            Target::Bf16 => "BF16",
            Target::F16 => "F16",
        }
    }

    /// The class with the nearest number of bits.
    pub(super) fn class(self) -> WeightClass {
        match self {
            Target::Int8 => WeightClass::Int8,
            Target::Int4 => WeightClass::Int4,
            Target::Blocks(blocks) => class_for(Encoding::Quantized(blocks)),
            Target::Bf16 | Target::F16 => WeightClass::Bf16,
        }
    }

    /// Bits of a weight's code.
    pub(super) fn code_bits(self) -> u64 {
        match self.class() {
            WeightClass::Int4 => 4,
            WeightClass::Int8 => 8,
            WeightClass::Bf16 => 16,
        }
    }

    /// Weights in a row are a multiple of it.
    fn group(self) -> usize {
        match self {
            Target::Int8 => INT8_FILE_GROUP,
            Target::Int4 => GROUP,
            Target::Blocks(blocks) => blocks.size().0,
            Target::Bf16 | Target::F16 => 1,
        }
    }

    /// Whether rows of this width can be written so.
    pub(super) fn fits(self, width: usize) -> bool {
        width.is_multiple_of(self.group())
    }

    /// Bytes of codes, and scales apart, of a row.
    fn row(self, width: usize) -> (usize, usize) {
        match self {
            Target::Int8 => (width, width / INT8_FILE_GROUP),
            Target::Int4 => (width / 2, width / GROUP),
            Target::Blocks(blocks) => (width / blocks.size().0 * blocks.size().1, 0),
            Target::Bf16 | Target::F16 => (2 * width, 0),
        }
    }
}

/// The units of a layer, in the order of the forward pass.
pub(super) fn units(index: usize, layer: &Layer, family: Family) -> Vec<Unit> {
    let unit = |matrices: &[(&Linear, RowOrder)]| Unit::of(index, matrices, family);
    let plain = |linear| [(linear, RowOrder::AsStored)];
    // A tensor of which other rows are part of a wide matrix stays as it is stored.
    let mut units = Vec::new();
    for Mixing { qkv, qkv_order, o, .. } in &layer.mixings {
        units.extend(is_of_whole_tensors(qkv).then(|| unit(&[(qkv, *qkv_order)])));
        units.push(unit(&plain(o)));
    }
    let of_mlp = |mlp: &Mlp| [unit(&[(&mlp.gate_up, mlp.gate_up_order)]), unit(&[(&mlp.down, RowOrder::AsStored)])];
    match &layer.feed {
        None => {}
        Some(Feed::Dense(mlp)) => units.extend(of_mlp(mlp)),
        Some(Feed::Experts { experts, shared, .. }) => {
            let matrices =
                experts.iter().flat_map(|mlp| [(&mlp.gate_up, mlp.gate_up_order), (&mlp.down, RowOrder::AsStored)]);
            units.push(unit(&matrices.collect::<Vec<_>>()));
            units.extend(shared.iter().flat_map(|shared| of_mlp(&shared.mlp)));
        }
    }
    units
}

fn is_of_whole_tensors(linear: &Linear) -> bool {
    linear.parts.iter().all(|part| part.shape.len() == 3 || part.rows.len() == part.shape[0])
}

impl Unit {
    fn of(layer: usize, matrices: &[(&Linear, RowOrder)], family: Family) -> Unit {
        let name = |(linear, _): &(&Linear, RowOrder)| {
            linear.parts.iter().map(TensorSlice::to_string).collect::<Vec<_>>().join(" + ")
        };
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        for (linear, order) in matrices {
            all.extend(linear.parts.iter().flat_map(|part| modules(part, (linear.in_features, *order), family)));
            ends.push(all.len());
        }
        // Modules have gate and up apart, however they are stored.
        let order = |order: RowOrder| if order == RowOrder::GateUpPairs { RowOrder::GateUp } else { order };
        let orders = matrices.iter().map(|&(_, stored)| order(stored)).collect();
        Unit { layer, matrices: matrices.iter().map(name).collect(), orders, modules: all, ends }
    }

    /// The modules of one of its matrices.
    pub(super) fn of_matrix(&self, index: usize) -> &[Module] {
        let first = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.modules[first..self.ends[index]]
    }

    /// The modules, for people: of many the first and the last.
    pub(super) fn name(&self) -> String {
        let names: Vec<&str> = self.modules.iter().map(|module| module.name.as_str()).collect();
        match names.as_slice() {
            [first, .., last] if names.len() > 3 => format!("{first} to {last}"),
            few => few.join(" + "),
        }
    }
}

/// The modules in a part. Stacks of experts are written as other engines read them: one matrix for each, gate and up
/// apart, under the names with which the family was published.
fn modules(part: &TensorSlice, (in_features, order): (usize, RowOrder), family: Family) -> Vec<Module> {
    let module = |name: String, rows: Range<usize>| {
        let source = TensorSlice { rows, ..part.clone() };
        let out_features = source.out_features();
        Module { name, source, first: 0, step: 1, out_features, in_features, interleaved: None }
    };
    let stack = part.shape.len() == 3;
    let stack_name = part.name.strip_suffix(".weight").unwrap_or(&part.name);
    let Some((prefix, kind)) = stack_name.rsplit_once('.').filter(|_| stack) else {
        return vec![module(part.name.strip_suffix(".weight").unwrap_or(&part.name).to_string(), part.rows.clone())];
    };
    let expert = part.rows.start / part.rows.len();
    let (prefix, [gate, up, down]) = match family {
        Family::Mixtral => (prefix.replace(".mlp.", ".block_sparse_moe."), ["w1", "w3", "w2"]),
        Family::GraniteMoe | Family::GraniteHybrid => (format!("{prefix}.experts"), mlp_parts(family)),
        _ => (prefix.to_string(), mlp_parts(family)),
    };
    let middle = part.rows.start + part.rows.len() / 2;
    match kind {
        "gate_up_proj" if part.transposed => {
            let out_features = part.out_features() / 2;
            let (step, first_up) = if order == RowOrder::GateUpPairs { (2, 1) } else { (1, out_features) };
            let half = |name: &str, first| {
                let whole = module(format!("{prefix}.{expert}.{name}"), part.rows.clone());
                Module { first, step, out_features, ..whole }
            };
            vec![half(gate, 0), half(up, first_up)]
        }
        "gate_up_proj" | "input_linear" => vec![
            module(format!("{prefix}.{expert}.{gate}"), part.rows.start..middle),
            module(format!("{prefix}.{expert}.{up}"), middle..part.rows.end),
        ],
        "up_proj" => vec![module(format!("{prefix}.{expert}.{up}"), part.rows.clone())],
        _ => vec![module(format!("{prefix}.{expert}.{down}"), part.rows.clone())],
    }
}

/// A matrix as codes and scales.
pub(super) struct Narrow {
    pub(super) target: Target,
    /// Int8: each code plus 128, `[out, in]`. Int4: two codes in a byte, the first low, each plus 8, `[out, in / 2]`.
    /// Else what the file has.
    pub(super) codes: Vec<u8>,
    /// Int8: `[out, in / 64]`. Int4: `[out, in / 32]`, of any sign. Else empty.
    pub(super) scales: Vec<f32>,
    /// Relative L2 error of the weights; NaN where some are no numbers.
    pub(super) error: f64,
}

pub(super) enum Verdict {
    /// In the order of its modules, and the largest error.
    Narrow(Vec<Narrow>, f64),
    Wide(Reason),
}

/// Quantizes a unit and judges it.
pub(super) fn judge(
    unit: &Unit,
    target: Target,
    weights: &Weights,
    measured: &HashMap<String, f64>,
    work: &mut Work<'_>,
) -> Result<Verdict, ExportError> {
    let limit = limit(target.class());
    let mut narrow = Vec::with_capacity(unit.modules.len());
    let products = unit.matrices.iter().filter_map(|name| measured.get(name)).copied().fold(0.0, f64::max);
    let mut reason = match unit.modules.iter().find(|module| !target.fits(module.in_features)) {
        Some(module) => Some(Reason::Width { width: module.in_features, group: target.group() }),
        None => (products > limit).then_some(Reason::Products(products)),
    };
    for module in &unit.modules {
        if reason.is_none() {
            let made = quantize(target, weights, module, work.threads)?;
            reason = match made.error {
                error if error.is_nan() => Some(Reason::NotFinite),
                error if error > limit => Some(Reason::Weights(error)),
                _ => None,
            };
            narrow.push(made);
        }
        work.advance(module.stored_bytes(weights)?)?;
    }
    Ok(match reason {
        Some(reason) => Verdict::Wide(reason),
        None => {
            let worst = narrow.iter().map(|narrow| narrow.error).fold(0.0, f64::max);
            Verdict::Narrow(narrow, worst)
        }
    })
}

/// Rows of one matrix on several threads. Errors are summed in row order, independent of the thread that computed them.
pub(super) fn quantize(
    target: Target,
    weights: &Weights,
    module: &Module,
    threads: usize,
) -> Result<Narrow, LoadError> {
    let rows = module.reader(weights)?;
    let (out_features, width) = (module.out_features, module.in_features);
    let (row_bytes, row_scales) = target.row(width);
    let mut codes = zeros::<u8>(out_features * row_bytes)?;
    let mut scales = zeros::<f32>(out_features * row_scales)?;
    let mut errors = vec![(0.0, 0.0); out_features];
    let share = out_features.div_ceil(threads);
    // Where there are no scales apart, every row's are empty.
    let mut scale_parts = scales.chunks_mut((share * row_scales).max(1));
    let parts = codes.chunks_mut(share * row_bytes).zip(errors.chunks_mut(share));
    let done: Result<Vec<()>, LoadError> = std::thread::scope(|scope| {
        let tasks = parts.enumerate().map(|(index, (codes, errors))| {
            let (rows, scales) = (&rows, scale_parts.next().unwrap_or_default());
            scope.spawn(move || {
                let mut scales = scales.chunks_mut(row_scales.max(1));
                let mut row = Row::new(target, width);
                for (at, (codes, error)) in codes.chunks_mut(row_bytes).zip(errors).enumerate() {
                    rows.read(index * share + at, &mut row.values)?;
                    *error = row.quantize(codes, scales.next().unwrap_or_default());
                }
                Ok(())
            })
        });
        let tasks: Vec<_> = tasks.collect();
        tasks.into_iter().map(|task| task.join().expect("quantizing does not panic")).collect()
    });
    done?;
    let (error, norm) = errors.iter().fold((0.0, 0.0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    Ok(Narrow { target, codes, scales, error: if error == 0.0 { 0.0 } else { (error / norm).sqrt() } })
}

/// What keeps a unit wide whatever a text says: its shape, or weights that are no numbers.
pub(super) fn judged_alone(unit: &Unit, target: Target, weights: &Weights) -> Result<Option<Reason>, LoadError> {
    if let Some(module) = unit.modules.iter().find(|module| !target.fits(module.in_features)) {
        return Ok(Some(Reason::Width { width: module.in_features, group: target.group() }));
    }
    for module in &unit.modules {
        let rows = module.reader(weights)?;
        let mut row = vec![0.0; module.in_features];
        for at in 0..module.out_features {
            rows.read(at, &mut row)?;
            if !row.iter().all(|x| x.is_finite()) {
                return Ok(Some(Reason::NotFinite));
            }
        }
    }
    Ok(None)
}

/// As [`quantize`], to 4 bits by the inputs that `factor` is of; with the squared error of the products.
pub(super) fn rounded(
    target: Target,
    weights: &Weights,
    module: &Module,
    factor: &Factor,
    threads: usize,
) -> Result<(Narrow, f64), LoadError> {
    let rows = module.reader(weights)?;
    let (out_features, width) = (module.out_features, module.in_features);
    let (row_bytes, row_scales) = target.row(width);
    let mut codes = zeros::<u8>(out_features * row_bytes)?;
    let mut scales = zeros::<f32>(out_features * row_scales)?;
    let tiles = out_features.div_ceil(ROUNDED_ROWS);
    let mut errors = vec![(0.0, 0.0, 0.0); tiles];
    let tile_scales = (ROUNDED_ROWS * row_scales).max(1);
    let mut parts: Vec<_> = codes.chunks_mut(ROUNDED_ROWS * row_bytes).zip(&mut errors).enumerate().collect();
    let mut scale_parts: Vec<&mut [f32]> = scales.chunks_mut(tile_scales).collect();
    scale_parts.resize_with(tiles, Default::default);
    let mut parts: Vec<_> = parts.drain(..).zip(scale_parts).collect();
    let share = parts.len().div_ceil(threads);
    let done: Result<Vec<()>, LoadError> = std::thread::scope(|scope| {
        let tasks = parts.chunks_mut(share).map(|parts| {
            let rows = &rows;
            scope.spawn(move || {
                for ((tile, (codes, error)), scales) in parts {
                    let begin = *tile * ROUNDED_ROWS;
                    let count = ROUNDED_ROWS.min(out_features - begin);
                    let mut values = vec![0.0; count * width];
                    for (at, row) in values.chunks_exact_mut(width).enumerate() {
                        rows.read(begin + at, row)?;
                    }
                    **error = round_tile(target, factor, &values, codes, scales);
                }
                Ok(())
            })
        });
        let tasks: Vec<_> = tasks.collect();
        tasks.into_iter().map(|task| task.join().expect("rounding does not panic")).collect()
    });
    done?;
    let (mut error, mut norm, mut loss) = (0.0f64, 0.0f64, 0.0f64);
    for of_tile in errors {
        (error, norm, loss) = (error + of_tile.0, norm + of_tile.1, loss + of_tile.2);
    }
    let error = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    Ok((Narrow { target, codes, scales, error }, loss))
}

/// Codes and scales of some rows; returns their squared error, squared norm, and the squared error of their products.
fn round_tile(
    target: Target,
    factor: &Factor,
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f32],
) -> (f64, f64, f64) {
    let (mut q, mut steps) = (vec![0; values.len()], vec![0.0; values.len() / GROUP]);
    let grid = match target {
        Target::Int4 => ScaleGrid::Ratios(MOST_RATIO),
        _ => ScaleGrid::Half,
    };
    let loss = factor.round(Isa::best(), grid, values, &mut q, &mut steps);
    match target {
        Target::Int4 => {
            scales.copy_from_slice(&steps);
            for (to, pair) in codes.iter_mut().zip(q.as_chunks::<2>().0) {
                *to = (pair[0] + 8) as u8 | ((pair[1] + 8) as u8) << 4;
            }
        }
        _ => {
            let groups = q.as_chunks::<GROUP>().0.iter().zip(&steps);
            for (block, (q, step)) in codes.as_chunks_mut::<18>().0.iter_mut().zip(groups) {
                block[..2].copy_from_slice(&f16::from_f32(*step).to_le_bytes());
                for (i, byte) in block[2..].iter_mut().enumerate() {
                    *byte = (q[i] + 8) as u8 | ((q[i + 16] + 8) as u8) << 4;
                }
            }
        }
    }
    let mut restored = vec![0.0; values.len()];
    restore(&mut restored, &q, &steps, GROUP);
    values.iter().zip(&restored).fold((0.0, 0.0, loss), |(error, norm, loss), (&x, &restored)| {
        let difference = f64::from(x) - f64::from(restored);
        (error + difference * difference, norm + f64::from(x) * f64::from(x), loss)
    })
}

/// What a module's codes stand for, its rows in the order of the original.
pub(super) fn restored(module: &Module, narrow: &Narrow) -> Vec<f32> {
    let width = module.in_features;
    let (row_bytes, row_scales) = narrow.target.row(width);
    let mut all = vec![0.0; module.out_features * width];
    let mut q = vec![0i8; width];
    for (at, codes) in narrow.codes.chunks_exact(row_bytes).enumerate() {
        let from = module.interleaved.map_or(at, |head_dim| interleaved(at, head_dim));
        let row = &mut all[from * width..][..width];
        let scales = &narrow.scales[at * row_scales..][..row_scales];
        match narrow.target {
            Target::Int8 => {
                q.iter_mut().zip(codes).for_each(|(q, code)| *q = code.wrapping_sub(128) as i8);
                restore(row, &q, scales, INT8_FILE_GROUP);
            }
            Target::Int4 => {
                for (q, code) in q.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *q = [(code & 15) as i8 - 8, (code >> 4) as i8 - 8];
                }
                restore(row, &q, scales, GROUP);
            }
            Target::Blocks(blocks) => blocks.decode(codes, row),
            Target::Bf16 | Target::F16 => unreachable!("not narrow"),
        }
    }
    all
}

fn zeros<T: Clone + Default>(len: usize) -> Result<Vec<T>, LoadError> {
    let mut values = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    let full = |_| LoadError::OutOfMemory { bytes, purpose: "a quantized matrix".to_string() };
    values.try_reserve_exact(len).map_err(full)?;
    values.resize(len, T::default());
    Ok(values)
}

/// One row on its way.
struct Row {
    target: Target,
    values: Vec<f32>,
    /// What the codes stand for.
    restored: Vec<f32>,
    q: Vec<i8>,
    ratios: Vec<i8>,
}

impl Row {
    fn new(target: Target, width: usize) -> Row {
        let (values, restored) = (vec![0.0; width], vec![0.0; width]);
        let ratios = width.div_ceil(if target == Target::Int8 { INT8_GROUP } else { GROUP });
        Row { target, values, restored, q: vec![0; width], ratios: vec![0; ratios] }
    }

    /// Writes codes and scales of `values`; returns the squared error and the squared norm.
    fn quantize(&mut self, codes: &mut [u8], scales: &mut [f32]) -> (f64, f64) {
        let Row { target, values, restored, q, ratios } = self;
        match target {
            Target::Int8 => {
                let scale = quantize_int8_row(values, q, ratios);
                for (to, ratio) in scales.chunks_mut(INT8_GROUP / INT8_FILE_GROUP).zip(ratios) {
                    to.fill(f32::from(*ratio) * scale); // exact
                }
                codes.iter_mut().zip(&*q).for_each(|(to, q)| *to = (*q as u8).wrapping_add(128));
                restore(restored, q, scales, INT8_FILE_GROUP);
            }
            Target::Int4 => {
                let scale = quantize_int4_row(values, q, ratios);
                for (to, ratio) in scales.iter_mut().zip(ratios) {
                    *to = f32::from(*ratio) * scale; // exact
                }
                for (to, pair) in codes.iter_mut().zip(q.as_chunks::<2>().0) {
                    *to = (pair[0] + 8) as u8 | ((pair[1] + 8) as u8) << 4;
                }
                restore(restored, q, scales, GROUP);
            }
            Target::Blocks(blocks) => {
                blocks.encode(values, codes);
                blocks.decode(codes, restored);
            }
            Target::Bf16 => {
                for ((to, restored), x) in codes.as_chunks_mut().0.iter_mut().zip(&mut *restored).zip(&*values) {
                    let rounded = bf16::from_f32(*x);
                    (*to, *restored) = (rounded.to_le_bytes(), rounded.to_f32());
                }
            }
            Target::F16 => {
                for ((to, restored), x) in codes.as_chunks_mut().0.iter_mut().zip(&mut *restored).zip(&*values) {
                    let rounded = f16::from_f32(*x);
                    (*to, *restored) = (rounded.to_le_bytes(), rounded.to_f32());
                }
            }
        }
        values.iter().zip(&*restored).fold((0.0, 0.0), |(error, norm), (&x, &restored)| {
            let difference = f64::from(x) - f64::from(restored);
            (error + difference * difference, norm + f64::from(x) * f64::from(x))
        })
    }
}

/// What codes stand for, with a scale for each `group` of them.
fn restore(restored: &mut [f32], q: &[i8], scales: &[f32], group: usize) {
    for ((to, q), scale) in restored.chunks_mut(group).zip(q.chunks(group)).zip(scales) {
        to.iter_mut().zip(q).for_each(|(to, q)| *to = f32::from(*q) * scale);
    }
}
