//! Norms, activation, rotation and the write to the cache: the same bits on every path, and close to f64.

use crate::paths;

use kernels::kv_cache::KvPlace;
use kernels::layer_norm::{activate, layer_norm};
use kernels::pointwise::{add_scaled, gated, multiply, rms_norm, rotate_and_store, softcap};
use kernels::threads::Pool;
use kernels::{
    Activation, HeadLayout, HeadNorms, Isa, KvCache, KvDtype, KvShape, Norm, QueryGrowth, RopeScaling, RopeTable,
    RotateAndStore, gate_up_row,
};
use paths::{bits, every_path, numbers};

/// Each output is within `tolerance` of the exact value, relative to it.
fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (got as f64 - want).abs();
        assert!(error <= tolerance * want.abs() + 1e-30, "number {i}: {got} for {want}");
    }
}

#[test]
fn rms_norm_has_one_set_of_bits() {
    for width in [1, 15, 16, 17, 64, 100, 288, 896, 4096] {
        for rows in [0, 1, 3, 40] {
            let (x, weight) = (numbers(width as u64, rows * width), numbers(7, width));
            every_path(&format!("{rows} rows of {width}"), |pool, isa| {
                let mut out = vec![f32::NAN; rows * width];
                rms_norm(pool, isa, &x, &weight, 1e-6, &mut out);
                bits(&out)
            });
        }
    }
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let (x, weight, eps) = (numbers(1, 3 * 100), numbers(2, 100), 1e-5f32);
    let mut out = vec![0.0; x.len()];
    rms_norm(None, Isa::Scalar, &x, &weight, eps, &mut out);
    let want: Vec<f64> = x
        .chunks(100)
        .flat_map(|row| {
            let mean = row.iter().map(|&x| x as f64 * x as f64).sum::<f64>() / 100.0;
            let root = (mean + eps as f64).sqrt();
            row.iter().zip(&weight).map(move |(&x, &w)| x as f64 / root * w as f64).collect::<Vec<f64>>()
        })
        .collect();
    assert_close(&out, &want, 1e-6);
}

#[test]
fn layer_norms_and_activations_have_one_set_of_bits() {
    for width in [1, 15, 16, 17, 64, 100, 384, 768] {
        for rows in [0, 1, 3, 40] {
            let (x, weight, bias) = (numbers(width as u64, rows * width), numbers(7, width), numbers(8, width));
            for bias in [None, Some(&bias[..])] {
                every_path(&format!("{rows} rows of {width}, bias: {}", bias.is_some()), |pool, isa| {
                    let (mut out, mut activated) = (vec![f32::NAN; rows * width], x.clone());
                    layer_norm(pool, isa, &x, Norm { weight: &weight, bias, eps: 1e-5 }, &mut out);
                    activate(pool, isa, Activation::Gelu, &mut activated);
                    (bits(&out), bits(&activated))
                });
            }
        }
    }
}

#[test]
fn layer_norm_takes_the_mean_away_and_divides_by_the_deviation() {
    // Far from zero, where sums of squares would leave no digit of the deviation.
    let (x, weight, bias) = (numbers(1, 3 * 100), numbers(2, 100), numbers(3, 100));
    let x: Vec<f32> = x.iter().map(|x| x + 1000.0).collect();
    let mut out = vec![0.0; x.len()];
    layer_norm(None, Isa::Scalar, &x, Norm { weight: &weight, bias: Some(&bias), eps: 1e-5 }, &mut out);
    for (x, out) in x.chunks(100).zip(out.chunks(100)) {
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / 100.0;
        let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / 100.0;
        for (i, (&x, &out)) in x.iter().zip(out).enumerate() {
            let want = (f64::from(x) - mean) / (variance + 1e-5).sqrt() * f64::from(weight[i]) + f64::from(bias[i]);
            assert!((f64::from(out) - want).abs() < 2e-4 * (1.0 + want.abs()), "{i}: {out} for {want}");
        }
    }
}

#[test]
fn gated_activations_have_one_set_of_bits() {
    let clamped = Activation::Clamped { limit: 1.5 };
    let plain = [
        Activation::Silu,
        Activation::ScaledSilu { inner: 0.75, outer: -1.5 },
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
    ];
    let xielu = Activation::xielu([0.2, -0.7, 0.5, -1e-6]);
    for activation in plain.into_iter().chain([clamped, xielu]) {
        for width in [1, 15, 16, 17, 48, 100, 4864] {
            for rows in [0, 1, 5, 33] {
                let gate_up = numbers(width as u64 + 100, rows * 2 * width);
                every_path(&format!("{activation:?}: {rows} rows of {width}"), |pool, isa| {
                    let mut out = vec![f32::NAN; rows * width];
                    gated(pool, isa, activation, &gate_up, width, &mut out);
                    bits(&out)
                });
            }
        }
    }
}

#[test]
fn gated_activations_are_silu_and_gelu_of_the_gate_times_up() {
    type Exact = fn(f64) -> f64;
    let silu: Exact = |gate| gate / (1.0 + libm::exp(-gate));
    let gelu: Exact = |gate| {
        let inner = libm::sqrt(2.0 / std::f64::consts::PI) * (gate + 0.044715 * gate.powi(3));
        // Far below zero the subtraction has no digits left; there, the same in other words.
        if gate < -3.0 { gate / (1.0 + libm::exp(-2.0 * inner)) } else { 0.5 * gate * (1.0 + libm::tanh(inner)) }
    };
    let width = 4096;
    let squared: Exact = |gate| gate.max(0.0).powi(2);
    for (activation, exact, lowest) in
        [(Activation::Silu, silu, -80.0), (Activation::GeluTanh, gelu, -9.0), (Activation::ReluSquared, squared, -9.0)]
    {
        let mut gate_then_up = numbers(5, 2 * width);
        gate_then_up[..width].iter_mut().for_each(|gate| *gate = gate.max(lowest));
        let largest = if activation == Activation::ReluSquared { 1e18 } else { 3e38 };
        gate_then_up[..6].copy_from_slice(&[0.0, -0.0, 100.0, lowest, largest, -5.0]);
        let gate_up: Vec<f32> = (0..2 * width).map(|at| gate_then_up[gate_up_row(at, width)]).collect();
        let mut out = vec![0.0; width];
        gated(None, Isa::Scalar, activation, &gate_up, width, &mut out);
        let want: Vec<f64> =
            (0..width).map(|i| exact(gate_then_up[i] as f64) * gate_then_up[width + i] as f64).collect();
        // An argument of 80 is off by 80 half ulps before the exponential.
        let tolerance = if activation == Activation::Silu { 1e-6 } else { 1e-5 };
        assert_close(&out, &want, tolerance);
    }
}

#[test]
fn xielu_is_a_parabola_above_and_an_exponential_below() {
    let of = Activation::xielu([0.0, 0.541_324_85, 0.5, -1e-6]); // softplus of 0 is ln 2, of ln(e - 1) it is 1
    let mut x = numbers(6, 4096);
    x[..4].copy_from_slice(&[0.0, -1e-4, -80.0, 1e3]);
    let mut out = x.clone();
    activate(None, Isa::Scalar, of, &mut out);
    for (x, out) in x.into_iter().map(f64::from).zip(out) {
        let want = match x >= 0.0 {
            true => std::f64::consts::LN_2 * x * x + 0.5 * x,
            false => (libm::expm1(x) - x) * 1.5 + 0.5 * x,
        };
        assert!((f64::from(out) - want).abs() < 3e-7 * (1.0 + want.abs()), "{x}: {out} for {want}");
    }
}

#[test]
fn a_clamped_gate_and_up_stay_within_their_limit() {
    let (width, limit) = (4096, 2.0f32);
    let mut gate_then_up = numbers(6, 2 * width);
    gate_then_up[..4].copy_from_slice(&[3e38, -3.0, 2.0, -80.0]);
    gate_then_up[width..width + 4].copy_from_slice(&[-3e38, 3e38, -1.0, 2.5]);
    let gate_up: Vec<f32> = (0..2 * width).map(|at| gate_then_up[gate_up_row(at, width)]).collect();
    let mut out = vec![0.0; width];
    gated(None, Isa::Scalar, Activation::Clamped { limit }, &gate_up, width, &mut out);
    let exact = |gate: f32, up: f32| {
        let (gate, up) = (f64::from(gate.min(limit)), f64::from(up.clamp(-limit, limit)));
        gate / (1.0 + libm::exp(-1.702 * gate)) * (up + 1.0)
    };
    let want: Vec<f64> = (0..width).map(|i| exact(gate_then_up[i], gate_then_up[width + i])).collect();
    // An argument of 80 is off by many half ulps before the exponential.
    for (i, (&got, want)) in out.iter().zip(want).enumerate() {
        assert!((f64::from(got) - want).abs() <= 2e-6 * want.abs() + 1e-12, "number {i}: {got} for {want}");
    }
    for isa in Isa::available() {
        let mut out = [0.0; 2];
        let gate_up = [f32::NAN, 1.0, 1.0, f32::NAN];
        gated(None, isa, Activation::Clamped { limit }, &gate_up, 2, &mut out);
        assert!(out.iter().all(|out| out.is_nan()), "{isa:?}: {out:?}");
    }
}

#[test]
fn gelu_far_below_zero_is_nothing() {
    let mut out = [f32::NAN; 4];
    gated(None, Isa::Scalar, Activation::GeluTanh, &[-12.0, -20.0, -1e4, -1e12, 1.0, 1.0, 1.0, 1.0], 4, &mut out);
    assert!(out.iter().all(|out| out.abs() < 1e-24), "{out:?}");
}

#[test]
fn scaled_sums_and_softcaps_have_one_set_of_bits() {
    for len in [0, 1, 15, 16, 17, 100, 40_000] {
        let (x, y) = (numbers(len as u64, len), numbers(len as u64 + 1, len));
        every_path(&format!("{len} numbers"), |pool, isa| {
            let (mut sum, mut capped) = (x.clone(), x.clone());
            add_scaled(pool, isa, &y, 0.22, &mut sum);
            softcap(pool, isa, 30.0, &mut capped);
            (bits(&sum), bits(&capped))
        });
    }
}

#[test]
fn a_scaled_sum_is_rounded_once() {
    let (mut x, y) = (numbers(3, 1000), numbers(4, 1000));
    let want: Vec<f64> = x.iter().zip(&y).map(|(&x, &y)| y as f64 * 0.1f32 as f64 + x as f64).collect();
    add_scaled(None, Isa::Scalar, &y, 0.1, &mut x);
    assert!(x.iter().zip(&want).all(|(&got, &want)| got == want as f32));
}

#[test]
fn a_softcap_is_a_stretched_tanh() {
    for cap in [0.5f32, 30.0, 50.0] {
        let x = numbers(9, 4096);
        let mut out = x.clone();
        out[..4].copy_from_slice(&[0.0, 1e30, -1e30, f32::INFINITY]);
        softcap(None, Isa::Scalar, cap, &mut out);
        assert_eq!(out[..4], [0.0, cap, -cap, cap]);
        for (&x, &out) in x.iter().zip(&out).skip(4) {
            let want = cap as f64 * libm::tanh(x as f64 / cap as f64);
            // The subtraction from the cap leaves an absolute error of its last digits.
            assert!((out as f64 - want).abs() < 1e-6 * cap as f64, "{cap}: {out} for {want}");
        }
        let mut nan = [f32::NAN];
        softcap(None, Isa::Scalar, cap, &mut nan);
        assert!(nan[0].is_nan());
    }
}

/// Which norms of q and k.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Norms {
    None,
    PerHead,
    /// Of values too, without weights.
    WithValues,
    WholeWidth,
    AfterRotation,
    Centered,
}

/// Query heads, kv heads, width of a head, how many of its numbers rotate, norms, what the cache keeps.
type Heads = (usize, usize, usize, usize, Norms, KvDtype);

const HEADS: [Heads; 17] = {
    use KvDtype::*;
    [
        (4, 2, 64, 64, Norms::None, Bf16),
        (14, 2, 64, 64, Norms::PerHead, Bf16),
        (3, 3, 32, 32, Norms::PerHead, Int8),
        (8, 1, 128, 128, Norms::None, Int8),
        (2, 1, 48, 48, Norms::PerHead, Bf16),
        (2, 2, 16, 16, Norms::None, Bf16),
        (4, 2, 128, 96, Norms::None, Bf16), // Phi-4-mini
        (4, 2, 80, 32, Norms::PerHead, Int8),
        (4, 4, 64, 64, Norms::WholeWidth, Bf16), // OLMo 2
        (6, 2, 80, 80, Norms::WholeWidth, Int8),
        (4, 1, 64, 0, Norms::None, Bf16),          // SmolLM3's layers without positions
        (3, 1, 512, 512, Norms::WithValues, Bf16), // Gemma 4
        (2, 2, 32, 32, Norms::WithValues, Int8),
        (4, 2, 64, 64, Norms::AfterRotation, Bf16), // Hunyuan
        (2, 1, 80, 32, Norms::AfterRotation, Int8),
        (4, 2, 128, 128, Norms::Centered, Bf16), // Command R+
        (3, 1, 48, 48, Norms::Centered, Int8),
    ]
};

/// A batch with its rows at scattered slots.
struct Batch {
    layout: HeadLayout,
    qkv: Vec<f32>,
    norms: Norms,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    v_norm: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    rope: Option<RopeTable>,
    shape: KvShape,
}

const EPS: f32 = 1e-6;
const GROWTH: QueryGrowth = QueryGrowth { beta: 0.25, original_max_position: 64, first: 0 };
/// Frequencies are rounded to f32: at position 300 an angle is off by 2e-5, and numbers reach 30.
const TOLERANCE: f64 = 6e-4;

impl Batch {
    fn new((num_heads, num_kv_heads, head_dim, rotary_dim, norms, dtype): Heads, rows: usize) -> Batch {
        let layout = HeadLayout { num_heads, num_kv_heads, head_dim, ..HeadLayout::default() };
        let of_all = [Norms::WholeWidth, Norms::Centered].contains(&norms);
        let weights = |heads: usize| if of_all { heads * head_dim } else { head_dim };
        let table = || RopeTable::new(rotary_dim, 10_000.0, &RopeScaling::None, 500).unwrap();
        Batch {
            layout,
            qkv: numbers(rows as u64, rows * layout.qkv_width()),
            norms,
            q_norm: numbers(31, weights(num_heads)),
            k_norm: numbers(32, weights(num_kv_heads)),
            v_norm: vec![1.0; head_dim],
            positions: (0..rows as u32).map(|row| row * 37 % 500).collect(),
            slots: (0..rows as u32).map(|row| row * 29 % 256).collect(),
            rope: (rotary_dim > 0).then(table),
            shape: KvShape { dtype, layers: 2, blocks: 4, block_size: 64, num_kv_heads, head_dim, latent: None },
        }
    }

    /// The rotated queries, and the cache afterwards.
    fn rotate_and_store(&self, pool: Option<&Pool>, isa: Isa) -> (Vec<f32>, KvCache) {
        let (mut qkv, mut kv) = (self.qkv.clone(), KvCache::new(self.shape).unwrap());
        let (q, k, eps) = (&self.q_norm[..], &self.k_norm[..], EPS);
        let args = RotateAndStore {
            qkv: &mut qkv,
            layout: self.layout,
            head_norms: match self.norms {
                Norms::None => HeadNorms::None,
                Norms::PerHead => HeadNorms::PerHead { q, k, v: None, eps },
                Norms::WithValues => HeadNorms::PerHead { q, k, v: Some(&self.v_norm), eps },
                Norms::AfterRotation => HeadNorms::AfterRotation { q, k, eps },
                Norms::WholeWidth => HeadNorms::WholeWidth { q, k, eps },
                Norms::Centered => HeadNorms::Centered { q, k, eps },
            },
            rope: self.rope.as_ref(),
            positions: &self.positions,
            slots: &self.slots,
            layer: 1,
        };
        rotate_and_store(pool, isa, args, &mut kv);
        let queries = qkv.chunks(self.layout.qkv_width()).flat_map(|row| &row[..self.layout.q_width()]);
        (queries.copied().collect(), kv)
    }

    /// Queries or keys of a row, normed and rotated, in f64.
    fn turned(&self, x: &[f32], weight: &[f32], position: u32) -> Vec<f64> {
        let head_dim = self.layout.head_dim;
        let normed_width = if self.norms == Norms::WholeWidth { x.len() } else { head_dim };
        let normed: Vec<f64> = x
            .chunks(normed_width)
            .enumerate()
            .flat_map(|(head, x)| {
                let center = if self.norms == Norms::Centered { 1.0 } else { 0.0 };
                let center = center * x.iter().map(|&x| x as f64).sum::<f64>() / normed_width as f64;
                let x: Vec<f64> = x.iter().map(|&x| x as f64 - center).collect();
                let weight = if self.norms == Norms::Centered { &weight[head * head_dim..] } else { weight };
                let mean = x.iter().map(|&x| x * x).sum::<f64>() / normed_width as f64;
                let scale = 1.0 / (mean + EPS as f64).sqrt();
                let factor = |w: f32| match self.norms {
                    Norms::None => 1.0,
                    Norms::AfterRotation => scale, // turning keeps the size
                    _ => scale * w as f64,
                };
                let norm = |(&x, &w): (&f64, &f32)| x * factor(w);
                x.iter().zip(weight.iter().cycle()).map(norm).collect::<Vec<f64>>()
            })
            .collect();
        let rotary_dim = self.rope.as_ref().map_or(0, RopeTable::rotary_dim);
        let turn = |head: &[f64]| -> Vec<f64> {
            (0..head_dim)
                .map(|d| {
                    if d >= rotary_dim {
                        return head[d];
                    }
                    let i = d % (rotary_dim / 2);
                    let angle = position as f64 * libm::pow(10_000.0, -2.0 * i as f64 / rotary_dim as f64);
                    let (sin, cos) = libm::sincos(angle);
                    let (a, b) = (head[i], head[i + rotary_dim / 2]);
                    if d == i { a * cos - b * sin } else { b * cos + a * sin }
                })
                .collect()
        };
        let turned = normed.chunks(head_dim).flat_map(turn);
        let behind = |(x, &w): (f64, &f32)| if self.norms == Norms::AfterRotation { x * w as f64 } else { x };
        turned.zip(weight.iter().cycle()).map(behind).collect()
    }

    /// With queries that grow every 64 positions.
    fn growing(mut self) -> Batch {
        self.rope = self.rope.map(|rope| rope.with_growth(GROWTH).unwrap());
        self
    }

    /// A head's value as it is kept, in f64.
    fn stored_value(&self, value: &[f32]) -> Vec<f64> {
        let mean = value.iter().map(|&x| x as f64 * x as f64).sum::<f64>() / value.len() as f64;
        let scale = if self.norms == Norms::WithValues { 1.0 / (mean + EPS as f64).sqrt() } else { 1.0 };
        value.iter().map(|&x| x as f64 * scale).collect()
    }

    /// How far a stored number may be from the exact one, in a head whose largest magnitude is `absmax`. For int8, the
    /// rounding errors of all elements that it was spread over add up in it, with different signs.
    fn rounding(&self, x: f64, absmax: f64) -> f64 {
        match self.shape.dtype {
            KvDtype::Bf16 => x.abs() / 256.0,
            KvDtype::Int8 => absmax / 40.0,
        }
    }

    /// Every byte of the cache.
    fn contents(&self, kv: &KvCache) -> Vec<u8> {
        let mut contents = vec![0; self.shape.bytes()];
        let blocks = contents.chunks_exact_mut(self.shape.block_bytes()).zip(0..);
        blocks.for_each(|(bytes, block)| kv.read_block(block, bytes));
        contents
    }
}

#[test]
fn rotate_and_store_has_one_set_of_bits() {
    for heads in testing::part_of(HEADS, 2) {
        for rows in [1, 3, 200] {
            for batch in [Batch::new(heads, rows), Batch::new(heads, rows).growing()] {
                every_path(&format!("{rows} rows, heads {heads:?}"), |pool, isa| {
                    let (queries, kv) = batch.rotate_and_store(pool, isa);
                    (bits(&queries), batch.contents(&kv))
                });
            }
        }
    }
}

#[test]
fn queries_grow_with_their_positions_and_nothing_else_does() {
    for heads in HEADS.into_iter().filter(|heads| heads.3 > 0) {
        let (plain, growing) = (Batch::new(heads, 14), Batch::new(heads, 14).growing());
        let (plain_queries, plain_kv) = plain.rotate_and_store(None, Isa::Scalar);
        let (queries, kv) = growing.rotate_and_store(None, Isa::Scalar);
        let width = plain.layout.q_width();
        for ((plain, grown), &position) in plain_queries.chunks(width).zip(queries.chunks(width)).zip(&plain.positions)
        {
            let factor = (1.0 + 0.25 * libm::log(1.0 + f64::from(position / 64))) as f32;
            let wanted: Vec<f32> = plain.iter().map(|query| query * factor).collect();
            assert_eq!(bits(grown), bits(&wanted), "{heads:?}: position {position}");
        }
        assert_eq!(growing.contents(&kv), plain.contents(&plain_kv), "{heads:?}: keys and values");
    }
}

#[test]
fn queries_and_keys_are_normed_then_rotated_and_values_normed_at_most() {
    for heads in HEADS {
        let batch = Batch::new(heads, 9);
        let HeadLayout { num_heads, num_kv_heads, head_dim, .. } = batch.layout;
        let (queries, kv) = batch.rotate_and_store(None, Isa::Scalar);
        for row in 0..9 {
            let input = &batch.qkv[row * batch.layout.qkv_width()..][..batch.layout.qkv_width()];
            let (query, key_value) = input.split_at(num_heads * head_dim);
            let (key, value) = key_value.split_at(num_kv_heads * head_dim);
            let position = batch.positions[row];
            let got = &queries[row * num_heads * head_dim..][..num_heads * head_dim];
            for (got, want) in got.iter().zip(batch.turned(query, &batch.q_norm, position)) {
                assert!((*got as f64 - want).abs() < TOLERANCE, "{heads:?}: query {got} for {want}");
            }
            let key = batch.turned(key, &batch.k_norm, position);
            for kv_head in 0..num_kv_heads {
                let place = KvPlace { layer: 1, slot: batch.slots[row] as usize, kv_head };
                let head = kv_head * head_dim..(kv_head + 1) * head_dim;
                let (key, value) = (&key[head.clone()], batch.stored_value(&value[head]));
                let absmax = key.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
                for (d, &want) in key.iter().enumerate() {
                    let got = kv.key(place, d) as f64;
                    let tolerance = TOLERANCE + batch.rounding(want, absmax);
                    assert!((got - want).abs() <= tolerance, "{heads:?}: key {got} for {want}");
                }
                let absmax = value.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
                for (d, &want) in value.iter().enumerate() {
                    let got = kv.value(place, d) as f64;
                    let tolerance = 1e-6 * absmax + batch.rounding(want, absmax);
                    assert!((got - want).abs() <= tolerance, "{heads:?}: value {got} for {want}");
                }
            }
        }
        // Nothing else was touched.
        let stored = |slot: usize| batch.slots.contains(&(slot as u32));
        for slot in (0..256).filter(|&slot| !stored(slot)) {
            for layer in 0..2 {
                let place = KvPlace { layer, slot, kv_head: 0 };
                assert!((0..head_dim).all(|d| kv.key(place, d) == 0.0 && kv.value(place, d) == 0.0), "slot {slot}");
            }
        }
    }
}

#[test]
fn tiny_keys_and_values_become_zero_in_the_cache() {
    // Products of numbers below 2^-40 could be denormal, which AMX flushes and FMA does not.
    let mut kv = KvCache::new(KvShape {
        dtype: KvDtype::Bf16,
        layers: 1,
        blocks: 1,
        block_size: 32,
        num_kv_heads: 1,
        head_dim: 16,
        latent: None,
    })
    .unwrap();
    let place = KvPlace { layer: 0, slot: 3, kv_head: 0 };
    let limit = 2f32.powi(-40);
    let row: Vec<f32> = (0..16).map(|i| if i % 2 == 0 { limit } else { -limit * 0.99 }).collect();
    kv.store(place, &row, &row);
    for d in 0..16 {
        let want = if d % 2 == 0 { limit } else { 0.0 };
        assert_eq!((kv.key(place, d).to_bits(), kv.value(place, d).to_bits()), (want.to_bits(), want.to_bits()));
    }
}

#[test]
fn a_row_of_queries_alone_is_rotated_as_a_whole_one_and_stores_nothing() {
    let whole = Batch::new((4, 2, 64, 64, Norms::PerHead, KvDtype::Bf16), 7);
    let layout = HeadLayout { queries_only: true, ..whole.layout };
    assert_eq!((layout.qkv_width(), layout.kv_width()), (layout.q_width(), 0));
    let mut alone = Batch::new((4, 2, 64, 64, Norms::PerHead, KvDtype::Bf16), 7);
    let rows = whole.qkv.chunks(whole.layout.qkv_width());
    (alone.qkv, alone.layout) = (rows.flat_map(|row| &row[..layout.q_width()]).copied().collect(), layout);
    let (expected, _) = whole.rotate_and_store(None, Isa::Scalar);
    every_path("queries alone", |pool, isa| {
        let (queries, kv) = alone.rotate_and_store(pool, isa);
        assert_eq!(bits(&queries), bits(&expected));
        assert!(alone.contents(&kv).iter().all(|&byte| byte == 0), "nothing is stored");
        bits(&queries)
    });
}

#[test]
fn rows_are_multiplied_by_a_part_of_others() {
    let (x, by) = (numbers(1, 3 * 20), numbers(2, 3 * 50));
    let mut out = x.clone();
    multiply(&mut out, 20, (&by, 50, 30));
    for (i, (out, x)) in out.iter().zip(&x).enumerate() {
        assert_eq!(*out, x * by[i / 20 * 50 + 30 + i % 20], "number {i}");
    }
}
