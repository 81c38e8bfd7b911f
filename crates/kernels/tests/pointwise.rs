//! Norms, activation, rotation and the write to the cache: the same bits on every path, and close to f64.

use kernels::kv_cache::Place;
use kernels::pointwise::{rms_norm, rotate_and_store, swiglu};
use kernels::threads::{Pool, max_threads};
use kernels::{HeadLayout, Isa, KvCache, KvShape, RopeScaling, RopeTable, RotateAndStore};

/// Numbers of both signs and many magnitudes, the same on every machine.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len)
        .map(|_| {
            let bits = next();
            let magnitude = [0.01, 0.5, 2.0, 30.0][(bits >> 32) as usize % 4];
            ((bits as u16) as f32 / 32768.0 - 1.0) * magnitude
        })
        .collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Runs on every instruction set, with and without threads, and demands what the definition returned.
fn every_path<T: PartialEq>(what: &str, mut f: impl FnMut(Option<&Pool>, Isa) -> T) {
    let want = f(None, Isa::Scalar);
    let mut pools = vec![None, Some(Pool::new(1).unwrap())];
    if max_threads() >= 2 {
        pools.push(Some(Pool::new(2).unwrap()));
    }
    for pool in &pools {
        for isa in Isa::available() {
            let threads = pool.as_ref().map_or(0, Pool::threads);
            assert!(f(pool.as_ref(), isa) == want, "{what}, {isa:?}, {threads} threads");
        }
    }
}

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
fn swiglu_has_one_set_of_bits() {
    for width in [1, 15, 16, 17, 48, 100, 4864] {
        for rows in [0, 1, 5, 33] {
            let gate_up = numbers(width as u64 + 100, rows * 2 * width);
            every_path(&format!("{rows} rows of {width}"), |pool, isa| {
                let mut out = vec![f32::NAN; rows * width];
                swiglu(pool, isa, &gate_up, width, &mut out);
                bits(&out)
            });
        }
    }
}

#[test]
fn swiglu_is_silu_of_the_gate_times_up() {
    let width = 4096;
    let mut gate_up = numbers(5, 2 * width);
    gate_up[..6].copy_from_slice(&[0.0, -0.0, 100.0, -80.0, 3e38, -20.0]);
    let mut out = vec![0.0; width];
    swiglu(None, Isa::Scalar, &gate_up, width, &mut out);
    let want: Vec<f64> = (0..width)
        .map(|i| {
            let (gate, up) = (gate_up[i] as f64, gate_up[width + i] as f64);
            gate / (1.0 + libm::exp(-gate)) * up
        })
        .collect();
    assert_close(&out, &want, 1e-6);
}

/// `(query heads, kv heads, width of a head, with norms)`
const HEADS: [(usize, usize, usize, bool); 6] =
    [(4, 2, 64, false), (14, 2, 64, true), (3, 3, 32, true), (8, 1, 128, false), (2, 1, 48, true), (2, 2, 16, false)];

/// A batch with its rows at scattered slots.
struct Batch {
    layout: HeadLayout,
    qkv: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    rope: RopeTable,
    shape: KvShape,
}

const EPS: f32 = 1e-6;
/// Frequencies are rounded to f32: at position 300 an angle is off by 2e-5, and numbers reach 30.
const TOLERANCE: f64 = 6e-4;

impl Batch {
    fn new((num_heads, num_kv_heads, head_dim, _): (usize, usize, usize, bool), rows: usize) -> Batch {
        let layout = HeadLayout { num_heads, num_kv_heads, head_dim };
        Batch {
            layout,
            qkv: numbers(rows as u64, rows * layout.qkv_width()),
            q_norm: numbers(31, head_dim),
            k_norm: numbers(32, head_dim),
            positions: (0..rows as u32).map(|row| row * 37 % 500).collect(),
            slots: (0..rows as u32).map(|row| row * 29 % 256).collect(),
            rope: RopeTable::new(head_dim, 10_000.0, &RopeScaling::None, 500).unwrap(),
            shape: KvShape { layers: 2, blocks: 4, block_size: 64, num_kv_heads, head_dim },
        }
    }

    /// The rotated queries, and what the cache then holds (`None`: nobody stored there).
    fn rotate_and_store(&self, pool: Option<&Pool>, isa: Isa, norms: bool) -> (Vec<f32>, KvCache) {
        let (mut qkv, mut kv) = (self.qkv.clone(), KvCache::new(self.shape).unwrap());
        let args = RotateAndStore {
            qkv: &mut qkv,
            layout: self.layout,
            head_norms: norms.then_some((&self.q_norm[..], &self.k_norm[..], EPS)),
            rope: &self.rope,
            positions: &self.positions,
            slots: &self.slots,
            layer: 1,
        };
        rotate_and_store(pool, isa, args, &mut kv);
        let queries = qkv.chunks(self.layout.qkv_width()).flat_map(|row| &row[..self.layout.q_width()]);
        (queries.copied().collect(), kv)
    }

    /// Every number of the cache, as bits.
    fn contents(&self, kv: &KvCache) -> Vec<u32> {
        let mut contents = Vec::new();
        for layer in 0..self.shape.layers {
            for slot in 0..self.shape.blocks * self.shape.block_size {
                for kv_head in 0..self.shape.num_kv_heads {
                    let place = Place { layer, slot, kv_head };
                    let head = 0..self.shape.head_dim;
                    contents.extend(head.flat_map(|d| [kv.key(place, d).to_bits(), kv.value(place, d).to_bits()]));
                }
            }
        }
        contents
    }
}

#[test]
fn rotate_and_store_has_one_set_of_bits() {
    for heads in HEADS {
        for rows in [1, 3, 200] {
            let batch = Batch::new(heads, rows);
            every_path(&format!("{rows} rows, heads {heads:?}"), |pool, isa| {
                let (queries, kv) = batch.rotate_and_store(pool, isa, heads.3);
                (bits(&queries), batch.contents(&kv))
            });
        }
    }
}

#[test]
fn queries_and_keys_are_normed_then_rotated_and_values_only_stored() {
    for heads in HEADS {
        let batch = Batch::new(heads, 9);
        let HeadLayout { num_heads, num_kv_heads, head_dim } = batch.layout;
        let (queries, kv) = batch.rotate_and_store(None, Isa::Scalar, heads.3);
        // The definition, in f64.
        let turned = |x: &[f32], weight: &[f32], position: u32| -> Vec<f64> {
            let mean = x.iter().map(|&x| x as f64 * x as f64).sum::<f64>() / head_dim as f64;
            let scale = 1.0 / (mean + EPS as f64).sqrt();
            let x: Vec<f64> = if heads.3 {
                x.iter().zip(weight).map(|(&x, &w)| x as f64 * scale * w as f64).collect()
            } else {
                x.iter().map(|&x| x as f64).collect()
            };
            (0..head_dim)
                .map(|d| {
                    let i = d % (head_dim / 2);
                    let angle = position as f64 * libm::pow(10_000.0, -2.0 * i as f64 / head_dim as f64);
                    let (sin, cos) = libm::sincos(angle);
                    let (a, b) = (x[i], x[i + head_dim / 2]);
                    if d == i { a * cos - b * sin } else { b * cos + a * sin }
                })
                .collect()
        };
        for row in 0..9 {
            let input = &batch.qkv[row * batch.layout.qkv_width()..][..batch.layout.qkv_width()];
            let position = batch.positions[row];
            for head in 0..num_heads {
                let want = turned(&input[head * head_dim..][..head_dim], &batch.q_norm, position);
                let got = &queries[(row * num_heads + head) * head_dim..][..head_dim];
                for (got, want) in got.iter().zip(want) {
                    assert!((*got as f64 - want).abs() < TOLERANCE, "{heads:?}: query {got} for {want}");
                }
            }
            for kv_head in 0..num_kv_heads {
                let place = Place { layer: 1, slot: batch.slots[row] as usize, kv_head };
                let key = &input[(num_heads + kv_head) * head_dim..][..head_dim];
                let value = &input[(num_heads + num_kv_heads + kv_head) * head_dim..][..head_dim];
                for (d, want) in turned(key, &batch.k_norm, position).into_iter().enumerate() {
                    let got = kv.key(place, d) as f64;
                    assert!((got - want).abs() <= TOLERANCE + want.abs() / 256.0, "{heads:?}: key {got} for {want}");
                }
                for (d, &want) in value.iter().enumerate() {
                    assert_eq!(kv.value(place, d), half::bf16::from_f32(want).to_f32(), "{heads:?}: a value");
                }
            }
        }
        // Nothing else was touched.
        let stored = |slot: usize| batch.slots.contains(&(slot as u32));
        for slot in (0..256).filter(|&slot| !stored(slot)) {
            for layer in 0..2 {
                let place = Place { layer, slot, kv_head: 0 };
                assert!((0..head_dim).all(|d| kv.key(place, d) == 0.0 && kv.value(place, d) == 0.0), "slot {slot}");
            }
        }
    }
}

#[test]
fn tiny_keys_and_values_become_zero_in_the_cache() {
    // Products of numbers below 2^-40 could be denormal, which AMX flushes and FMA does not.
    let mut kv = KvCache::new(KvShape { layers: 1, blocks: 1, block_size: 32, num_kv_heads: 1, head_dim: 16 }).unwrap();
    let place = Place { layer: 0, slot: 3, kv_head: 0 };
    let limit = 2f32.powi(-40);
    let row: Vec<f32> = (0..16).map(|i| if i % 2 == 0 { limit } else { -limit * 0.99 }).collect();
    kv.store(place, &row, &row);
    for d in 0..16 {
        let want = if d % 2 == 0 { limit } else { 0.0 };
        assert_eq!((kv.key(place, d).to_bits(), kv.value(place, d).to_bits()), (want.to_bits(), want.to_bits()));
    }
}
