//! How fast attention is beside what this machine can do.
//!
//! Decode is limited by reading keys and values. Prefill is limited by fused multiply-adds: a (query, key) pair that the
//! query sees counts `4 * head_dim` operations.

use figures::random::Random;
use kernels::attention::attend;
use kernels::kv_cache::KvPlace;
use kernels::{Attention, AttentionRule, AttentionSpan, Cpu, Device, HeadLayout, KvCache, KvDtype, KvShape};
use roofline::PassWork;

use crate::forward::{BLOCK_SIZE, blocks};
use crate::limits::peaks_now;
use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

/// Heads of queries, of keys, and their width; sequences, tokens before, and rows of each.
struct Case([usize; 3], usize, usize, usize);

const CASES: [Case; 14] = [
    Case([14, 2, 64], 1, 4095, 1),
    Case([32, 8, 64], 1, 4095, 1),
    Case([32, 8, 128], 1, 4095, 1),
    Case([16, 16, 64], 1, 4095, 1),
    Case([14, 2, 64], 16, 4095, 1),
    Case([32, 8, 128], 16, 1023, 1),
    Case([14, 2, 64], 32, 99, 1),
    Case([14, 2, 64], 1, 99, 1),
    Case([14, 2, 64], 1, 0, 512),
    Case([14, 2, 64], 1, 0, 2048),
    Case([32, 8, 64], 1, 0, 2048),
    Case([32, 8, 128], 1, 0, 2048),
    Case([32, 8, 128], 1, 4096, 512),
    Case([16, 16, 64], 1, 0, 512),
];

/// Layers are gone through in turn, so that a decode step does not find its cache in the CPU's caches.
const CACHE_BYTES: usize = 512 << 20;

pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let cpu = setup.cpu()?;
    cpu.set_compute_thread();
    for case in &CASES {
        for dtype in KvDtype::ALL {
            let (kv, shape) = case.cache(dtype)?;
            let peaks = peaks_now(&cpu, |limits| match dtype {
                KvDtype::Bf16 => limits.bf16_flops,
                KvDtype::Int8 => limits.int8_ops,
            })?;
            let samples = case.time(&cpu, &kv, &shape, setup.repetitions);
            rows.timed(
                format!("{}, {}", case.name(), dtype.name()),
                &samples,
                Against::Limits(case.work(&shape), peaks),
            )?;
        }
    }
    Ok(())
}

impl Case {
    fn name(&self) -> String {
        let &Case([heads, kv_heads, width], sequences, start, rows) = self;
        let end = start + rows;
        match rows {
            1 => format!("decode {sequences} x {end}, {heads}/{kv_heads} heads of {width}"),
            _ => format!("prefill {start}..{end}, {heads}/{kv_heads} heads of {width}"),
        }
    }

    fn layout(&self) -> HeadLayout {
        let &Case([num_heads, num_kv_heads, head_dim], ..) = self;
        HeadLayout { num_heads, num_kv_heads, head_dim, ..HeadLayout::default() }
    }

    fn blocks_each(&self) -> usize {
        blocks(self.2 + self.3)
    }

    /// A cache with numbers in all places.
    fn cache(&self, dtype: KvDtype) -> Result<(KvCache, KvShape), BenchError> {
        let HeadLayout { num_kv_heads, head_dim, .. } = self.layout();
        let blocks = self.blocks_each() * self.1;
        let mut shape =
            KvShape { dtype, layers: 1, blocks, block_size: BLOCK_SIZE, num_kv_heads, head_dim, latent: None };
        shape.layers = (CACHE_BYTES / shape.bytes()).clamp(1, 64);
        let mut kv = KvCache::new(shape)?;
        let head: Vec<f32> = (0..head_dim).map(|d| (d % 7) as f32 * 0.25 - 0.75).collect();
        for layer in 0..shape.layers {
            for slot in 0..shape.blocks * BLOCK_SIZE {
                (0..num_kv_heads).for_each(|kv_head| kv.store(KvPlace { layer, slot, kv_head }, &head, &head));
            }
        }
        Ok((kv, shape))
    }

    fn work(&self, shape: &KvShape) -> PassWork {
        let &Case([num_heads, _, head_dim], sequences, start, rows) = self;
        let pairs = (sequences * num_heads) as f64 * rows as f64 * (start as f64 + (rows as f64 + 1.0) / 2.0);
        PassWork {
            attention_flops: 4.0 * pairs * head_dim as f64,
            bytes: (sequences * (start + rows) * shape.block_bytes() / BLOCK_SIZE / shape.layers) as f64,
            kv_dtype: shape.dtype,
            ..PassWork::default()
        }
    }

    fn time(&self, cpu: &Cpu, kv: &KvCache, shape: &KvShape, repetitions: usize) -> Vec<f64> {
        let (layout, &Case([_, _, head_dim], sequences, start, rows)) = (self.layout(), self);
        // Blocks as a server in use hands them out: in no order.
        let (mut order, mut random) = ((0..shape.blocks as u32).collect::<Vec<u32>>(), Random::new(1));
        order.sort_by_cached_key(|_| random.bits());
        let span = |(i, blocks)| AttentionSpan { first_row: i * rows, num_rows: rows, start, blocks };
        let spans: Vec<_> = order.chunks(self.blocks_each()).enumerate().map(span).collect();
        let qkv: Vec<f32> = (0..sequences * rows * layout.qkv_width()).map(|i| (i % 11) as f32 * 0.1 - 0.5).collect();
        let mut out = vec![0.0; sequences * rows * layout.q_width()];
        let (rule, mut layer) = (AttentionRule::of_width(head_dim), 0);
        let [samples] = Timing::of(repetitions).in_turns(|_| {
            let attention = Attention { qkv: &qkv, layout, rule, sinks: None, spans: &spans, layer };
            attend(Some(cpu.pool()), cpu.isa(), cpu.arithmetic(), attention, kv, &mut out);
            layer = (layer + 1) % shape.layers;
        });
        samples
    }
}
