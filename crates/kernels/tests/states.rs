//! Layers whose memory is a state: one set of bits on every path and wherever a sequence was cut, and close to f64.

use crate::paths;

use kernels::convolution::{convolve, convolve_gated};
use kernels::delta_rule::delta_rule;
use kernels::mamba::{Mamba, MambaShape, OutputNorm, mamba};
use kernels::pointwise::{add_gated, gate_heads};
use kernels::recurrence::rates;
use kernels::threads::Pool;
use kernels::{
    Convolution, DeltaRows, DeltaRule, DeltaShape, GatedConvolution, HeadLayout, Isa, StateSave, StateShape, StateSpan,
    States,
};
use paths::{bits, every_path, numbers};
use std::ops::Range;

/// Slots of every test, each with one number before the layer's state and one behind it.
const SLOTS: usize = 8;

/// Value heads 3 for each key head, widths that differ and fill no strip of 64; one as in published models; two whose
/// keys have decays.
const SHAPES: [DeltaShape; 6] = [
    shape([2, 6], [16, 48], false),
    shape([1, 1], [48, 16], false),
    shape([1, 2], [32, 80], false),
    shape([1, 1], [128, 128], false),
    shape([3, 3], [48, 48], true),
    shape([1, 1], [128, 128], true),
];

const fn shape([key_heads, value_heads]: [usize; 2], [key_dim, value_dim]: [usize; 2], by_key: bool) -> DeltaShape {
    DeltaShape { key_heads, value_heads, key_dim, value_dim, by_key }
}

/// What one sequence does in an operation: its rows, the slot that it reads, and after which rows it writes which slot.
type Part = (Range<usize>, Option<u32>, Vec<(usize, u32)>);

/// Calls `work` with spans, whose rows lie one after the other in a batch.
fn with_spans<T>(parts: &[Part], work: impl FnOnce(&[StateSpan<'_>]) -> T) -> T {
    let mut first = 0;
    let saves: Vec<(usize, Vec<StateSave>)> = parts
        .iter()
        .map(|(rows, _, saves)| {
            let at = first;
            first += rows.len();
            let save = |&(row, slot): &(usize, u32)| StateSave { row: (at + row - rows.start) as u32, slot };
            (at, saves.iter().map(save).collect())
        })
        .collect();
    let spans: Vec<StateSpan<'_>> = parts
        .iter()
        .zip(&saves)
        .map(|((rows, from, _), (first_row, saves))| StateSpan {
            first_row: *first_row,
            num_rows: rows.len(),
            from: *from,
            saves,
        })
        .collect();
    work(&spans)
}

fn slots(numbers: usize) -> States {
    States::new(StateShape { slots: SLOTS, numbers: numbers + 2 }).unwrap()
}

/// The bits of every slot.
fn contents(states: &States) -> Vec<u32> {
    let mut bytes = vec![0; states.shape().slot_bytes()];
    let mut all = Vec::new();
    for slot in 0..SLOTS as u32 {
        states.read(slot, &mut bytes);
        all.extend(bytes.as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)));
    }
    all
}

/// A layer of either kind over sequences of random rows.
trait Layer {
    /// Numbers of a state.
    fn state_numbers(&self) -> usize;
    /// Rows `parts` of the sequence, through the layer; the bits of the output.
    fn apply(&self, pool: Option<&Pool>, isa: Isa, parts: &[Part], states: &mut States) -> Vec<u32>;
    fn name(&self) -> String;
}

struct Delta {
    shape: DeltaShape,
    rates: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    rows: Vec<f32>,
    gates: Vec<f32>,
    decays: Vec<f32>,
}

impl Delta {
    fn new(shape: DeltaShape, len: usize) -> Delta {
        // Logarithms from -1 to 1.5.
        let mut logarithms: Vec<f32> = numbers(1, shape.value_heads).iter().map(|x| x.sin() * 1.25 + 0.25).collect();
        rates(&mut logarithms);
        Delta {
            shape,
            rates: logarithms,
            dt_bias: numbers(2, if shape.by_key { shape.key_width() } else { shape.value_heads }),
            norm: numbers(3, shape.value_dim),
            rows: numbers(4, len * shape.row_width()),
            gates: numbers(5, len * shape.gates_width()),
            decays: numbers(12, len * shape.decays_width()),
        }
    }

    fn how(&self) -> DeltaRule<'_> {
        let Delta { shape, rates, dt_bias, norm, .. } = self;
        DeltaRule { shape: *shape, rates, dt_bias, norm, eps: 1e-6, state: 1 }
    }
}

/// Heads that share B and C or not, states wider and narrower than heads; one as in published models.
const MAMBAS: [(MambaShape, OutputNorm); 5] = [
    (MambaShape { heads: 6, head_dim: 16, groups: 2, state_dim: 48 }, OutputNorm::AfterGate),
    (MambaShape { heads: 1, head_dim: 80, groups: 1, state_dim: 16 }, OutputNorm::None),
    (MambaShape { heads: 2, head_dim: 32, groups: 2, state_dim: 32 }, OutputNorm::BeforeGate),
    (MambaShape { heads: 3, head_dim: 48, groups: 1, state_dim: 16 }, OutputNorm::AfterGate),
    (MambaShape { heads: 2, head_dim: 64, groups: 1, state_dim: 128 }, OutputNorm::AfterGate),
];

const STEP_FACTOR: f32 = 0.75;
const GATE_FACTOR: f32 = 1.25;

struct MambaLayer {
    shape: MambaShape,
    output: OutputNorm,
    rates: Vec<f32>,
    dt_bias: Vec<f32>,
    skip: Vec<f32>,
    norm: Vec<f32>,
    rows: Vec<f32>,
    steps: Vec<f32>,
}

impl MambaLayer {
    fn new((shape, output): (MambaShape, OutputNorm), len: usize) -> MambaLayer {
        let mut logarithms: Vec<f32> = numbers(1, shape.heads).iter().map(|x| x.sin() * 1.25 + 0.25).collect();
        rates(&mut logarithms);
        MambaLayer {
            shape,
            output,
            rates: logarithms,
            dt_bias: numbers(2, shape.heads),
            skip: numbers(3, shape.heads),
            norm: numbers(4, shape.inner()),
            rows: numbers(5, len * shape.row_width()),
            steps: numbers(6, len * shape.heads),
        }
    }

    fn how(&self) -> Mamba<'_> {
        let MambaLayer { shape, output, rates, dt_bias, skip, norm, .. } = self;
        let norm = (*output != OutputNorm::None).then_some(&norm[..]);
        Mamba {
            shape: *shape,
            rates,
            step_factor: STEP_FACTOR,
            dt_bias,
            skip,
            gate_factor: GATE_FACTOR,
            output: *output,
            norm,
            norm_groups: shape.groups,
            eps: 1e-6,
            state: 1,
        }
    }
}

impl Layer for MambaLayer {
    fn state_numbers(&self) -> usize {
        self.shape.state_numbers()
    }

    fn apply(&self, pool: Option<&Pool>, isa: Isa, parts: &[Part], states: &mut States) -> Vec<u32> {
        let mut rows = rows_of(&self.rows, self.shape.row_width(), parts);
        let mut steps = rows_of(&self.steps, self.shape.heads, parts);
        let mut out = vec![f32::NAN; steps.len() / self.shape.heads * self.shape.inner()];
        with_spans(parts, |spans| {
            mamba(pool, isa, self.how(), spans, (&mut rows, &mut steps), states, &mut out);
        });
        bits(&out)
    }

    fn name(&self) -> String {
        format!("{:?} {:?}", self.shape, self.output)
    }
}

/// Some rows of a matrix, one part after the other.
fn rows_of(matrix: &[f32], width: usize, parts: &[Part]) -> Vec<f32> {
    parts.iter().flat_map(|(rows, ..)| &matrix[rows.start * width..rows.end * width]).copied().collect()
}

impl Layer for Delta {
    fn state_numbers(&self) -> usize {
        self.shape.state_numbers()
    }

    fn apply(&self, pool: Option<&Pool>, isa: Isa, parts: &[Part], states: &mut States) -> Vec<u32> {
        let mut rows = rows_of(&self.rows, self.shape.row_width(), parts);
        let mut gates = rows_of(&self.gates, self.shape.gates_width(), parts);
        let mut decays = rows_of(&self.decays, self.shape.decays_width(), parts);
        let mut out = vec![f32::NAN; rows.len() / self.shape.row_width() * self.shape.value_width()];
        with_spans(parts, |spans| {
            let decays = self.shape.by_key.then_some(&mut decays[..]);
            let rows = DeltaRows { rows: &mut rows[..], gates: &mut gates[..], decays };
            delta_rule(pool, isa, self.how(), spans, rows, states, &mut out);
        });
        bits(&out)
    }

    fn name(&self) -> String {
        format!("{:?}", self.shape)
    }
}

struct Convolved {
    row_width: usize,
    channels: usize,
    taps: usize,
    silu: bool,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    rows: Vec<f32>,
}

impl Convolved {
    fn new((row_width, channels): (usize, usize), taps: usize, silu: bool, has_bias: bool, len: usize) -> Convolved {
        let (weight, bias) = (numbers(6, taps * channels), has_bias.then(|| numbers(7, channels)));
        Convolved { row_width, channels, taps, silu, weight, bias, rows: numbers(8, len * row_width) }
    }

    fn how(&self) -> Convolution<'_> {
        let &Convolved { row_width, channels, taps, silu, ref weight, ref bias, .. } = self;
        Convolution { row_width, channels, taps, weight, bias: bias.as_deref(), silu, state: 1 }
    }
}

impl Layer for Convolved {
    fn state_numbers(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    fn apply(&self, pool: Option<&Pool>, isa: Isa, parts: &[Part], states: &mut States) -> Vec<u32> {
        let mut rows = rows_of(&self.rows, self.row_width, parts);
        with_spans(parts, |spans| convolve(pool, isa, self.how(), spans, &mut rows, states));
        bits(&rows)
    }

    fn name(&self) -> String {
        let Convolved { row_width, channels, taps, silu, bias, .. } = self;
        format!("{taps} taps, {channels} of {row_width}, silu {silu}, bias {}", bias.is_some())
    }
}

struct GatedConvolved {
    channels: usize,
    taps: usize,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    rows: Vec<f32>,
}

impl GatedConvolved {
    fn new(channels: usize, taps: usize, has_bias: bool, len: usize) -> GatedConvolved {
        let (weight, bias) = (numbers(9, taps * channels), has_bias.then(|| numbers(10, channels)));
        GatedConvolved { channels, taps, weight, bias, rows: numbers(11, len * 3 * channels) }
    }

    fn how(&self) -> GatedConvolution<'_> {
        let &GatedConvolved { channels, taps, ref weight, ref bias, .. } = self;
        GatedConvolution { channels, taps, weight, bias: bias.as_deref(), state: 1 }
    }
}

impl Layer for GatedConvolved {
    fn state_numbers(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    fn apply(&self, pool: Option<&Pool>, isa: Isa, parts: &[Part], states: &mut States) -> Vec<u32> {
        let rows = rows_of(&self.rows, 3 * self.channels, parts);
        let mut out = vec![f32::NAN; rows.len() / 3];
        with_spans(parts, |spans| convolve_gated(pool, isa, self.how(), spans, &rows, states, &mut out));
        bits(&out)
    }

    fn name(&self) -> String {
        format!("{} taps, {} channels between gates, bias {}", self.taps, self.channels, self.bias.is_some())
    }
}

const LEN: usize = 40;

fn layers() -> Vec<Box<dyn Layer>> {
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    for shape in SHAPES {
        layers.push(Box::new(Delta::new(shape, LEN)));
    }
    for mamba in MAMBAS {
        layers.push(Box::new(MambaLayer::new(mamba, LEN)));
    }
    for (widths, taps, silu, bias) in [
        ((48, 32), 4, true, false),
        ((16, 16), 2, false, true),
        ((1100, 1088), 3, true, true),
        ((64, 48), 8, true, false),
    ] {
        layers.push(Box::new(Convolved::new(widths, taps, silu, bias, LEN)));
    }
    for (channels, taps, bias) in [(32, 3, false), (1040, 3, true), (16, 7, false)] {
        layers.push(Box::new(GatedConvolved::new(channels, taps, bias, LEN)));
    }
    layers
}

#[test]
fn every_path_has_one_set_of_bits() {
    for layer in layers() {
        // Several sequences together: from zeros and from a state, with states kept after some rows, one row twice, the
        // last, and none.
        let parts: [Part; 4] = [
            (0..9, None, vec![(2, 0), (3, 1), (8, 2), (8, 3)]),
            (9..10, Some(4), vec![(9, 5)]),
            (9..10, Some(4), vec![]),
            (10..LEN, Some(6), vec![(10, 7)]),
        ];
        every_path(&layer.name(), |pool, isa| {
            let mut states = slots(layer.state_numbers());
            layer.apply(pool, isa, &[(0..9, None, vec![(8, 4)]), (0..10, None, vec![(9, 6)])], &mut states);
            let before = contents(&states);
            let mut out = layer.apply(pool, isa, &parts, &mut states);
            let after = contents(&states);
            let of = |all: &[u32], slot: usize| all[slot * all.len() / SLOTS..(slot + 1) * all.len() / SLOTS].to_vec();
            for slot in [4, 6] {
                assert_eq!(of(&before, slot), of(&after, slot), "slot {slot} was read");
            }
            assert_eq!(of(&after, 2), of(&after, 3), "one row, two slots");
            assert_eq!(of(&after, 2), of(&after, 4), "the same rows in two operations");
            assert_eq!(of(&after, 5), of(&after, 6), "gone on with");
            out.extend(after);
            out
        });
    }
}

#[test]
fn a_sequence_may_be_cut_anywhere() {
    for layer in layers() {
        let (numbers, pool) = (layer.state_numbers(), Pool::new(2).unwrap());
        let apply = |parts: &[Part], states: &mut States| layer.apply(Some(&pool), Isa::best(), parts, states);
        let mut states = slots(numbers);
        let whole = apply(&[(0..LEN, None, vec![(LEN - 1, 0)])], &mut states);
        let (width, end) = (whole.len() / LEN, contents(&states)[..numbers + 2].to_vec());
        for chunk in [1, 3, 16] {
            let (mut from, mut at) = (None, 0);
            while at < LEN {
                let rows = at..(at + chunk).min(LEN);
                let to = if from == Some(1) { 2 } else { 1 };
                let out = apply(&[(rows.clone(), from, vec![(rows.end - 1, to)])], &mut states);
                assert!(out == whole[rows.start * width..rows.end * width], "{}: rows {rows:?}", layer.name());
                (from, at) = (Some(to), rows.end);
            }
            let last = from.unwrap() as usize * end.len();
            assert_eq!(contents(&states)[last..last + end.len()], end, "{}: the state at the end", layer.name());
        }
        // From a state that was left in the midst of a chunk.
        for row in 0..LEN - 1 {
            apply(&[(0..LEN, None, vec![(row, 3)])], &mut states);
            let out = apply(&[(row + 1..LEN, Some(3), vec![])], &mut states);
            assert!(out == whole[(row + 1) * width..], "{}: gone on with after row {row}", layer.name());
        }
    }
}

#[test]
fn numbers_beside_a_layer_s_state_are_not_touched() {
    for layer in layers() {
        let numbers = layer.state_numbers();
        let mut states = slots(numbers);
        let mark = vec![0x5a; states.shape().slot_bytes()];
        states.write(0, &mark);
        layer.apply(None, Isa::best(), &[(0..LEN, None, vec![(LEN - 1, 0)])], &mut states);
        let all = contents(&states);
        assert_eq!((all[0], all[numbers + 1]), (0x5a5a_5a5a, 0x5a5a_5a5a), "{}", layer.name());
        assert!(all[1..=numbers].iter().all(|&bits| bits != 0x5a5a_5a5a), "{}", layer.name());
    }
}

#[test]
fn the_delta_rule_is_close_to_f64() {
    for shape in SHAPES {
        let layer = Delta::new(shape, LEN);
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, by_key } = shape;
        let out = layer.apply(None, Isa::best(), &[(0..LEN, None, vec![])], &mut slots(shape.state_numbers()));
        let out: Vec<f64> = out.into_iter().map(|bits| f64::from(f32::from_bits(bits))).collect();
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (mut error, mut scale) = (0.0, 0.0);
        for head in 0..value_heads {
            let mut state = vec![vec![0.0; value_dim]; key_dim];
            for row in 0..LEN {
                let numbers = wide(&layer.rows[row * shape.row_width()..][..shape.row_width()]);
                let (qk, vz) = numbers.split_at(2 * shape.key_width());
                let (v, z) = vz.split_at(shape.value_width());
                let decays = wide(&layer.decays[row * shape.decays_width()..][..shape.decays_width()]);
                let z = if by_key { &decays[shape.key_width()..] } else { z };
                let key_head = head / (value_heads / key_heads);
                let normed = |x: &[f64]| {
                    let root = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / root).collect::<Vec<f64>>()
                };
                let q = normed(&qk[key_head * key_dim..][..key_dim]);
                let k = normed(&qk[shape.key_width() + key_head * key_dim..][..key_dim]);
                let gates = wide(&layer.gates[row * shape.gates_width()..][..shape.gates_width()]);
                let decay =
                    |a: f64, bias: f32| (-f64::from(layer.rates[head]) * (a + f64::from(bias)).exp().ln_1p()).exp();
                let (beta, decay): (f64, Vec<f64>) = match by_key {
                    true => {
                        let keys = head * key_dim..(head + 1) * key_dim;
                        let of_keys = decays[keys.clone()].iter().zip(&layer.dt_bias[keys]);
                        (sigmoid(gates[2 * key_dim + head]), of_keys.map(|(a, bias)| decay(*a, *bias)).collect())
                    }
                    false => {
                        let of_head = decay(gates[value_heads + head], layer.dt_bias[head]);
                        (sigmoid(gates[head]), vec![of_head; key_dim])
                    }
                };
                let mut o = vec![0.0; value_dim];
                for column in 0..value_dim {
                    state.iter_mut().zip(&decay).for_each(|(of_key, decay)| of_key[column] *= decay);
                    let known: f64 = state.iter().zip(&k).map(|(of_key, k)| of_key[column] * k).sum();
                    let d = beta * (v[head * value_dim + column] - known);
                    state.iter_mut().zip(&k).for_each(|(of_key, k)| of_key[column] += k * d);
                    o[column] = state.iter().zip(&q).map(|(of_key, q)| of_key[column] * q).sum::<f64>();
                }
                o.iter_mut().for_each(|o| *o /= (key_dim as f64).sqrt());
                let root = (o.iter().map(|o| o * o).sum::<f64>() / value_dim as f64 + 1e-6).sqrt();
                for (column, o) in o.into_iter().enumerate() {
                    let z = z[head * value_dim + column];
                    let gate = if by_key { sigmoid(z) } else { z * sigmoid(z) };
                    let want = o / root * f64::from(layer.norm[column]) * gate;
                    error += (out[row * shape.value_width() + head * value_dim + column] - want).powi(2);
                    scale += want * want;
                }
            }
        }
        let relative = (error / scale).sqrt();
        assert!(relative < 1e-5, "{shape:?}: relative error {relative:.2e}");
    }
}

#[test]
fn mamba_is_close_to_f64() {
    for (shape, output) in MAMBAS {
        let layer = MambaLayer::new((shape, output), LEN);
        let MambaShape { heads, head_dim, groups, state_dim } = shape;
        let inner = shape.inner();
        let out = layer.apply(None, Isa::best(), &[(0..LEN, None, vec![])], &mut slots(shape.state_numbers()));
        let mut states = vec![vec![0.0; state_dim]; inner];
        let (mut error, mut scale) = (0.0, 0.0);
        for row in 0..LEN {
            let numbers: Vec<f64> =
                layer.rows[row * shape.row_width()..][..shape.row_width()].iter().map(|&x| f64::from(x)).collect();
            let (x, rest) = numbers.split_at(inner);
            let (b, rest) = rest.split_at(groups * state_dim);
            let (c, z) = rest.split_at(groups * state_dim);
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let mut y = vec![0.0; inner];
            for (at, y) in y.iter_mut().enumerate() {
                let head = at / head_dim;
                let (b, c) = (&b[head / (heads / groups) * state_dim..], &c[head / (heads / groups) * state_dim..]);
                let dt = f64::from(layer.steps[row * heads + head] * STEP_FACTOR) + f64::from(layer.dt_bias[head]);
                let dt = dt.exp().ln_1p();
                let decay = (-f64::from(layer.rates[head]) * dt).exp();
                for ((state, b), c) in states[at].iter_mut().zip(b).zip(c) {
                    *state = decay * *state + dt * x[at] * b;
                    *y += *state * c;
                }
                *y += f64::from(layer.skip[head]) * x[at];
            }
            let gate = |y: &mut [f64]| y.iter_mut().zip(z).for_each(|(y, z)| *y *= silu(f64::from(GATE_FACTOR) * *z));
            let norm = |y: &mut [f64]| {
                for (group, y) in y.chunks_mut(inner / groups).enumerate() {
                    let root = (y.iter().map(|y| y * y).sum::<f64>() / y.len() as f64 + 1e-6).sqrt();
                    let weights = &layer.norm[group * y.len()..];
                    y.iter_mut().zip(weights).for_each(|(y, weight)| *y *= f64::from(*weight) / root);
                }
            };
            match output {
                OutputNorm::None => gate(&mut y),
                OutputNorm::AfterGate => {
                    gate(&mut y);
                    norm(&mut y);
                }
                OutputNorm::BeforeGate => {
                    norm(&mut y);
                    gate(&mut y);
                }
            }
            for (at, want) in y.into_iter().enumerate() {
                error += (f64::from(f32::from_bits(out[row * inner + at])) - want).powi(2);
                scale += want * want;
            }
        }
        let relative = (error / scale).sqrt();
        assert!(relative < 1e-5, "{shape:?}: relative error {relative:.2e}");
    }
}

#[test]
fn a_convolution_is_close_to_f64() {
    let layer = Convolved::new((48, 32), 4, true, true, LEN);
    let out = layer.apply(None, Isa::best(), &[(0..LEN, None, vec![])], &mut slots(layer.state_numbers()));
    for (at, bits) in out.into_iter().enumerate() {
        let (row, channel) = (at / 48, at % 48);
        let x = |row: usize| f64::from(layer.rows[row * 48 + channel]);
        let want = match channel < 32 {
            true => {
                let bias = f64::from(layer.bias.as_ref().unwrap()[channel]);
                let tap = |tap: usize| f64::from(layer.weight[tap * 32 + channel]);
                let y = bias + (0..4).filter(|&t| row + t >= 3).map(|t| tap(t) * x(row + t - 3)).sum::<f64>();
                y / (1.0 + (-y).exp())
            }
            false => x(row),
        };
        let got = f64::from(f32::from_bits(bits));
        assert!((got - want).abs() < 1e-5 * (1.0 + want.abs()), "row {row}, channel {channel}: {got} for {want}");
    }
}

#[test]
fn a_convolution_between_gates_is_close_to_f64() {
    let layer = GatedConvolved::new(32, 3, true, LEN);
    let out = layer.apply(None, Isa::best(), &[(0..LEN, None, vec![])], &mut slots(layer.state_numbers()));
    for (at, bits) in out.into_iter().enumerate() {
        let (row, channel) = (at / 32, at % 32);
        let part = |row: usize, part: usize| f64::from(layer.rows[(3 * row + part) * 32 + channel]);
        let tap = |tap: usize| f64::from(layer.weight[tap * 32 + channel]);
        let bias = f64::from(layer.bias.as_ref().unwrap()[channel]);
        let x = |row: usize| part(row, 0) * part(row, 2);
        let y = bias + (0..3).filter(|&t| row + t >= 2).map(|t| tap(t) * x(row + t - 2)).sum::<f64>();
        let (got, want) = (f64::from(f32::from_bits(bits)), part(row, 1) * y);
        assert!((got - want).abs() < 1e-5 * (1.0 + want.abs()), "row {row}, channel {channel}: {got} for {want}");
    }
}

#[test]
fn gates_have_one_set_of_bits() {
    for (rows, gates) in [(1, 48), (5, 48), (70, 48), (1, 1), (5, 1), (70, 1)] {
        let layout = HeadLayout { num_heads: 3, num_kv_heads: 1, head_dim: 48, gates, ..HeadLayout::default() };
        let (qkv, x) = (numbers(1, rows * layout.qkv_width()), numbers(2, rows * layout.q_width()));
        every_path(&format!("{rows} rows, {gates} gates"), |pool, isa| {
            let mut gated = x.clone();
            gate_heads(pool, isa, layout, &qkv, &mut gated);
            let mut added = x.clone();
            add_gated(pool, isa, &qkv[..rows], &gated, &mut added);
            for (at, (&gated, &added)) in gated.iter().zip(&added).enumerate() {
                let (row, column) = (at / layout.q_width(), at % layout.q_width());
                let gate = f64::from(qkv[row * layout.qkv_width() + layout.q_width() + column * gates / 48]);
                let want = f64::from(x[at]) / (1.0 + (-gate).exp());
                assert!((f64::from(gated) - want).abs() <= 1e-6 * want.abs() + 1e-30, "{gated} for {want}");
                let want = f64::from(x[at]) + f64::from(gated) / (1.0 + (-f64::from(qkv[row])).exp());
                assert!((f64::from(added) - want).abs() <= 1e-6 * (1.0 + want.abs()), "{added} for {want}");
            }
            let mut all = bits(&gated);
            all.extend(bits(&added));
            all
        });
    }
}
