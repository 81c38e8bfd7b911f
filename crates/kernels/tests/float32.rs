//! The float32 backend: one set of bits for every instruction set, thread count and batch, and close to exact
//! arithmetic.

use kernels::{
    Attention, AttentionRule, AttentionSpan, Device, Float32, HeadLayout, HeadNorms, HostBackend, Int4Source, Isa,
    KvDtype, KvShape, MatrixShape, Out, RopeScaling, RopeTable, RotateAndStore, RowSource, WeightClass,
};
use testing::Dice;

fn backends() -> Vec<(String, Float32)> {
    let threads = kernels::threads::max_threads().min(2);
    let isas = Isa::available().into_iter();
    isas.flat_map(|isa| [1, threads].map(|threads| (format!("{isa:?} x{threads}"), isa, threads)))
        .map(|(name, isa, threads)| (name, Float32::with_isa(Some(threads), isa).unwrap()))
        .collect()
}

/// Between -1 and 1.
fn numbers(random: &mut Dice, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.signed()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn products_are_right_and_the_same_everywhere() {
    let backends = backends();
    for seed in 0..60 {
        let mut random = Dice::new(seed);
        let (rows, n, k) = (1 + seed as usize % 33, 1 + random.roll(70), 1 + random.roll(150));
        let (x, w) = (numbers(&mut random, rows * k), numbers(&mut random, n * k));
        let (bias, before) = (numbers(&mut random, n), numbers(&mut random, rows * n));
        let shape = MatrixShape { out_features: n, in_features: k };
        let mut first: Option<Vec<u32>> = None;
        for (name, backend) in &backends {
            let fill = |row: usize, out: &mut [f32]| out.copy_from_slice(&w[row * k..][..k]);
            let matrix = backend.pack(shape, WeightClass::Int8, &RowSource(&fill)).unwrap();
            let mut out = before.clone();
            backend.linear(&x, &matrix, Some(&bias), Out::Add(&mut out));
            let what = format!("seed={seed} {name} rows={rows} N={n} K={k}");
            assert_eq!(&bits(&out), first.get_or_insert_with(|| bits(&out)), "{what}");
            for (at, &y) in out.iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let pairs = x[row * k..][..k].iter().zip(&w[column * k..][..k]);
                let exact: f64 = pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                let exact = exact + f64::from(bias[column]) + f64::from(before[at]);
                assert!((f64::from(y) - exact).abs() < 2e-6 * k as f64, "{what}: {y} for {exact}");
            }
            // A row alone is the row in a batch.
            let mut alone = before[..n].to_vec();
            backend.linear(&x[..k], &matrix, Some(&bias), Out::Add(&mut alone));
            assert_eq!(bits(&alone), bits(&out[..n]), "{what}");
        }
    }
}

#[test]
fn int4_weights_are_their_scales_times_their_integers() {
    let backend = Float32::new(Some(1)).unwrap();
    let rows = |row: usize, q: &mut [i8], scales: &mut [f32]| {
        q.iter_mut().enumerate().for_each(|(k, q)| *q = ((k + row) % 16) as i8 - 8);
        scales.iter_mut().enumerate().for_each(|(group, scale)| *scale = 0.25 * (group + row) as f32);
    };
    let shape = MatrixShape { out_features: 3, in_features: 40 };
    let matrix = backend.pack_int4(shape, &Int4Source(&rows)).unwrap();
    let mut out = [f32::NAN; 80];
    backend.embed(&matrix, &[2, 1], &mut out);
    for (at, &value) in out.iter().enumerate() {
        let (row, k) = (2 - at / 40, at % 40);
        assert_eq!(value, 0.25 * (k / 32 + row) as f32 * (((k + row) % 16) as f32 - 8.0), "{row} {k}");
    }
}

/// Keys and values of `len` tokens in a cache whose blocks are out of order, and the attention of all rows.
fn attended(
    backend: &Float32,
    layout: HeadLayout,
    (rule, sinks): (AttentionRule, Option<&[f32]>),
    qkv: &[f32],
    cut: usize,
) -> Vec<f32> {
    let len = qkv.len() / layout.qkv_width();
    let shape = KvShape {
        dtype: KvDtype::Bf16,
        layers: 2,
        blocks: 4,
        block_size: 32,
        num_kv_heads: layout.num_kv_heads,
        head_dim: layout.head_dim,
        latent: None,
    };
    let mut kv = backend.kv_cache(shape).unwrap();
    let blocks = [3, 1, 2];
    let rope = RopeTable::new(layout.head_dim, 1e4, &RopeScaling::None, len).unwrap();
    let weights = vec![1.0; layout.head_dim];
    let mut out = vec![0.0; len * layout.q_width()];
    for (start, end) in [(0, cut), (cut, len)] {
        let mut part = qkv[start * layout.qkv_width()..end * layout.qkv_width()].to_vec();
        let positions: Vec<u32> = (start as u32..end as u32).collect();
        let slots: Vec<u32> = positions.iter().map(|&p| blocks[p as usize / 32] * 32 + p % 32).collect();
        let head_norms = HeadNorms::PerHead { q: &weights[..], k: &weights, v: None, eps: 1e-6 };
        let args = RotateAndStore {
            qkv: &mut part,
            layout,
            head_norms,
            rope: Some(&rope),
            positions: &positions,
            slots: &slots,
            layer: 1,
        };
        backend.rotate_and_store(args, &mut kv);
        let spans = [AttentionSpan { first_row: 0, num_rows: end - start, start, blocks: &blocks }];
        let args = Attention { qkv: &part, layout, rule, sinks, spans: &spans, layer: 1 };
        backend.attend(args, &kv, &mut out[start * layout.q_width()..end * layout.q_width()]);
    }
    out
}

/// The same in f64, straight from the formulas.
fn attended_exactly(layout: HeadLayout, (rule, sinks): (AttentionRule, Option<&[f32]>), qkv: &[f32]) -> Vec<f64> {
    let HeadLayout { num_heads, num_kv_heads, head_dim, .. } = layout;
    let len = qkv.len() / layout.qkv_width();
    let head = |position: usize, index: usize| -> Vec<f64> {
        let at = position * layout.qkv_width() + index * head_dim;
        qkv[at..at + head_dim].iter().map(|&x| x.into()).collect()
    };
    let turned = |position: usize, index: usize| -> Vec<f64> {
        let x = head(position, index);
        let rms = (x.iter().map(|x| x * x).sum::<f64>() / head_dim as f64 + 1e-6).sqrt();
        let half = head_dim / 2;
        let angle = |i: usize| position as f64 * 1e4f64.powf(-2.0 * i as f64 / head_dim as f64);
        let turn = |i: usize| {
            let (sin, cos) = angle(i % half).sin_cos();
            let (a, b) = (x[i % half] / rms, x[i % half + half] / rms);
            if i < half { a * cos - b * sin } else { b * cos + a * sin }
        };
        (0..head_dim).map(turn).collect()
    };
    let mut out = Vec::new();
    for position in 0..len {
        for index in 0..num_heads {
            let kv_head = index / (num_heads / num_kv_heads);
            let query = turned(position, index);
            let seen = rule.seen(position, len);
            let weights: Vec<f64> = seen
                .clone()
                .map(|p| {
                    let key = turned(p, num_heads + kv_head);
                    let score = query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * f64::from(rule.scale);
                    rule.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()).exp()
                })
                .collect();
            let sum = weights.iter().sum::<f64>() + sinks.map_or(0.0, |sinks| f64::from(sinks[index]).exp());
            let values: Vec<Vec<f64>> = seen.map(|p| head(p, num_heads + num_kv_heads + kv_head)).collect();
            for d in 0..head_dim {
                out.push(weights.iter().zip(&values).map(|(w, v)| w * v[d]).sum::<f64>() / sum);
            }
        }
    }
    out
}

#[test]
fn attention_is_right_and_the_same_everywhere() {
    let of_width = AttentionRule::of_width;
    let table = [
        (HeadLayout { num_heads: 2, num_kv_heads: 1, head_dim: 16, ..HeadLayout::default() }, of_width(16), None),
        (
            HeadLayout { num_heads: 4, num_kv_heads: 2, head_dim: 80, ..HeadLayout::default() },
            AttentionRule { window: Some(7), ..of_width(80) },
            Some(&[5.0, -5.0, 0.5, 20.0][..]),
        ),
        (
            HeadLayout { num_heads: 1, num_kv_heads: 1, head_dim: 64, ..HeadLayout::default() },
            AttentionRule { softcap: Some(2.0), scale: 1.0, window: None, chunked: false, both_ways: false },
            None,
        ),
    ];
    for (seed, (layout, rule, sinks)) in table.into_iter().enumerate() {
        let qkv = numbers(&mut Dice::new(seed as u64), 70 * layout.qkv_width());
        let exact = attended_exactly(layout, (rule, sinks), &qkv);
        let mut first: Option<Vec<u32>> = None;
        for (name, backend) in backends() {
            for cut in [1, 33, 69] {
                let out = attended(&backend, layout, (rule, sinks), &qkv, cut);
                let what = format!("seed={seed} {name} cut={cut} {layout:?} {rule:?} {sinks:?}");
                assert_eq!(&bits(&out), first.get_or_insert_with(|| bits(&out)), "{what}");
                for (at, (&got, &want)) in out.iter().zip(&exact).enumerate() {
                    assert!((f64::from(got) - want).abs() < 1e-5, "{what}: {at}: {got} for {want}");
                }
            }
        }
    }
}

#[test]
fn attention_both_ways_is_right() {
    let layout = HeadLayout { num_heads: 2, num_kv_heads: 1, head_dim: 32, ..HeadLayout::default() };
    for window in [None, Some(1), Some(9)] {
        let rule = AttentionRule { window, both_ways: true, ..AttentionRule::of_width(32) };
        let qkv = numbers(&mut Dice::new(9), 70 * layout.qkv_width());
        let exact = attended_exactly(layout, (rule, None), &qkv);
        for (name, backend) in backends() {
            let out = attended(&backend, layout, (rule, None), &qkv, 70);
            for (at, (&got, &want)) in out.iter().zip(&exact).enumerate() {
                assert!((f64::from(got) - want).abs() < 1e-5, "{name}, {rule:?}: {at}: {got} for {want}");
            }
        }
    }
}
