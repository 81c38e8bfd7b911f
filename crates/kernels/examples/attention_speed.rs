//! How fast attention is, as a share of what this machine can do.
//!
//! ```text
//! cargo run --release -p kernels --example attention_speed [threads] [isa] [cases] [arithmetic]
//! ```
//! Decode is limited by reading keys and values: GB/s. Prefill is limited by fused multiply-adds: GFLOP/s, where a
//! (query, key) pair that the query sees counts `4 * head_dim` operations.

use kernels::attention::attend;
use kernels::kv_cache::KvPlace;
use kernels::threads::{Pool, default_threads};
use kernels::{
    Arithmetic, Attention, AttentionRule, AttentionSpan, HeadLayout, Isa, KvCache, KvDtype, KvShape, limits,
    limits::Limits,
};
use std::time::Instant;

const BLOCK_SIZE: usize = 32;

struct Case {
    what: &'static str,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    sequences: usize,
    start: usize,
    rows: usize,
}

const fn case(what: &'static str, heads: [usize; 3], sequences: usize, start: usize, rows: usize) -> Case {
    Case { what, num_heads: heads[0], num_kv_heads: heads[1], head_dim: heads[2], sequences, start, rows }
}

const CASES: [Case; 14] = [
    case("decode 4k, 14/2 heads of 64", [14, 2, 64], 1, 4095, 1),
    case("decode 4k, 32/8 heads of 64", [32, 8, 64], 1, 4095, 1),
    case("decode 4k, 32/8 heads of 128", [32, 8, 128], 1, 4095, 1),
    case("decode 4k, 16/16 heads of 64", [16, 16, 64], 1, 4095, 1),
    case("decode 16 x 4k, 14/2 heads of 64", [14, 2, 64], 16, 4095, 1),
    case("decode 16 x 1k, 32/8 heads of 128", [32, 8, 128], 16, 1023, 1),
    case("decode 32 x 100, 14/2 heads of 64", [14, 2, 64], 32, 99, 1),
    case("decode 1 x 100, 14/2 heads of 64", [14, 2, 64], 1, 99, 1),
    case("prefill 0..512, 14/2 heads of 64", [14, 2, 64], 1, 0, 512),
    case("prefill 0..2048, 14/2 heads of 64", [14, 2, 64], 1, 0, 2048),
    case("prefill 0..2048, 32/8 heads of 64", [32, 8, 64], 1, 0, 2048),
    case("prefill 0..2048, 32/8 heads of 128", [32, 8, 128], 1, 0, 2048),
    case("prefill 4096..4608, 32/8 heads of 128", [32, 8, 128], 1, 4096, 512),
    case("prefill 0..512, 16/16 heads of 64", [16, 16, 64], 1, 0, 512),
];

/// Layers are gone through in turn, so that a decode step does not find its cache in the CPU's caches.
const CACHE_BYTES: usize = 512 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or_else(default_threads, |n| n.parse().expect("a number of threads"));
    let isa = args.next().map_or_else(Isa::best, |name| Isa::from_name(&name).expect("an instruction set"));
    let pool = Pool::new(threads).expect("a pool");
    let cases = args.next().unwrap_or_default();
    let arithmetic = |name: String| Arithmetic::from_name(&name).expect("an arithmetic");
    let arithmetic = args.next().map_or_else(Arithmetic::best, arithmetic);
    println!("{isa:?}, {arithmetic:?}, {threads} threads; shares are of the limits measured just before");
    for case in CASES.iter().filter(|case| case.what.contains(&cases)) {
        for dtype in KvDtype::ALL {
            let (limits, seconds, bytes, operations) = measure(case, dtype, (isa, arithmetic), &pool);
            let limit = if dtype == KvDtype::Bf16 { limits.bf16_flops } else { limits.int8_ops };
            println!(
                "{:40} {} {:9.1} us {:6.1} of {:4.1} GB/s {:4.0} % {:7.1} of {:3.0} GFLOP/s {:4.0} %",
                case.what,
                dtype.name(),
                seconds * 1e6,
                bytes / seconds / 1e9,
                limits.read_bandwidth / 1e9,
                100.0 * bytes / seconds / limits.read_bandwidth,
                operations / seconds / 1e9,
                limit / 1e9,
                100.0 * operations / seconds / limit,
            );
        }
    }
}

/// The limits, and then: seconds per call, bytes of cache read, operations.
fn measure(case: &Case, dtype: KvDtype, (isa, arithmetic): (Isa, Arithmetic), pool: &Pool) -> (Limits, f64, f64, f64) {
    let &Case { num_heads, num_kv_heads, head_dim, sequences, start, rows, .. } = case;
    let layout = HeadLayout { num_heads, num_kv_heads, head_dim };
    let blocks_each = (start + rows).div_ceil(BLOCK_SIZE);
    let mut shape =
        KvShape { dtype, layers: 1, blocks: blocks_each * sequences, block_size: BLOCK_SIZE, num_kv_heads, head_dim };
    shape.layers = (CACHE_BYTES / shape.bytes()).clamp(1, 64);
    let mut kv = KvCache::new(shape).expect("memory for the cache");
    let head: Vec<f32> = (0..head_dim).map(|d| (d % 7) as f32 * 0.25 - 0.75).collect();
    for layer in 0..shape.layers {
        for slot in 0..shape.blocks * BLOCK_SIZE {
            for kv_head in 0..num_kv_heads {
                kv.store(KvPlace { layer, slot, kv_head }, &head, &head);
            }
        }
    }
    // Blocks as a server in use hands them out: in no order.
    let mut order: Vec<u32> = (0..shape.blocks as u32).collect();
    let mut state = 1u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    let spans: Vec<AttentionSpan<'_>> = (0..sequences)
        .map(|i| {
            let blocks = &order[i * blocks_each..(i + 1) * blocks_each];
            AttentionSpan { first_row: i * rows, num_rows: rows, start, blocks }
        })
        .collect();
    let qkv: Vec<f32> = (0..sequences * rows * layout.qkv_width()).map(|i| (i % 11) as f32 * 0.1 - 0.5).collect();
    let mut out = vec![0.0; sequences * rows * layout.q_width()];
    let mut layer = 0;
    let mut call = || {
        let rule = AttentionRule::of_width(head_dim);
        attend(Some(pool), isa, arithmetic, Attention { qkv: &qkv, layout, rule, spans: &spans, layer }, &kv, &mut out);
        layer = (layer + 1) % shape.layers;
    };
    call();
    // Other tenants of a shared host take their part of the bandwidth, now more, now less.
    let limits = limits::measure(pool, isa, arithmetic, 0.2).expect("there is memory");
    // The best of several, because other processes only ever make it slower.
    let mut best = f64::MAX;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < 0.4 {
        let start = Instant::now();
        let calls = shape.layers.min(if rows > 1 { 2 } else { 16 });
        (0..calls).for_each(|_| call());
        best = best.min(start.elapsed().as_secs_f64() / calls as f64);
    }
    let context = start + rows;
    let bytes = (sequences * context * shape.block_bytes() / BLOCK_SIZE / shape.layers) as f64;
    let pairs = (sequences * num_heads) as f64 * rows as f64 * (start as f64 + (rows as f64 + 1.0) / 2.0);
    (limits, best, bytes, 4.0 * pairs * head_dim as f64)
}
