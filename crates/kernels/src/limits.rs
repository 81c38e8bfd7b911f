//! What this machine can do at most, measured on the spot: the yardstick for every figure of speed.
//!
//! ```text
//! loops.rs     rounds over registers: what multiply instructions do ──┐
//! reading.rs   passes over memory, and over the last cache ───────────┴─ samples ──> series.rs ──> rate, Certainty
//! ```
//! Read bandwidth is what bounds decode (each step reads all weights once; from the cache, where they fit into it), the
//! rate of the multiply instruction what bounds prefill. All are taken on all threads of the pool at once. Samples that
//! lost their core are thrown away (`series.rs`), and what remains says how sure it is.

mod loops;
mod reading;
mod series;

use crate::arithmetic::Arithmetic;
pub use crate::device::DeviceLimits as Limits;
use crate::disturbed::{Mark, Stretch};
use crate::isa::Isa;
use crate::mem::OutOfMemory;
use crate::threads::{Pool, ThreadError, default_threads};
use loops::{Class, Loop};
use reading::Readable;
pub use series::{Certainty, Doubt, FEW, STEADY};
use series::{Figure, Sample, Series, Threads};
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Rounds of the first sample of a loop.
const FIRST_ROUNDS: usize = 1 << 10;

/// Measures for about `seconds`, half of it reading; up to four times as long where others use the machine.
pub fn measure(pool: &Pool, isa: Isa, arithmetic: Arithmetic, seconds: f64) -> Result<Limits, OutOfMemory> {
    let loops = Loop::available();
    let usable = |class: Class| loops.iter().enumerate().filter(move |(_, l)| l.class == class);
    let share = Duration::from_secs_f64(seconds / 2.0 / loops.len() as f64);
    let figures: Vec<Figure> = loops.iter().map(|l| operations(pool, l, share)).collect();
    // The kernels use the last loop of a class that the ceiling allows; the CPU's best may be another.
    let used = |class| usable(class).filter(|(_, l)| l.serves(isa, arithmetic)).map(|(index, _)| index).next_back();
    let fastest = |classes: &[Class]| {
        let of_classes = classes.iter().flat_map(|&class| usable(class)).map(|(index, _)| index);
        of_classes.max_by(|&a, &b| figures[a].rate.total_cmp(&figures[b].rate)).expect("scalar is always there")
    };
    let [int8, float] = [Class::Int8, Class::Float].map(|class| used(class).expect("scalar is always there"));
    let bf16 = used(Class::Bf16).unwrap_or(float);
    let (fastest_int8, fastest_bf16) = (fastest(&[Class::Int8]), fastest(&[Class::Float, Class::Bf16]));
    let readable = Readable::of(pool)?;
    let memory = readable.of_memory(pool, Duration::from_secs_f64(seconds * 0.375));
    let cache = readable.of_last_cache(pool, Duration::from_secs_f64(seconds * 0.125));
    Ok(Limits {
        read_bandwidth: memory.rate,
        // A cache that seems slower than memory is one of a core that somebody else had.
        cache_bandwidth: cache.map_or(memory.rate, |cache| cache.rate.max(memory.rate)),
        cache_bytes: if cache.is_some() { readable.cache_bytes } else { 0 },
        int8_ops: figures[int8].rate,
        bf16_flops: figures[bf16].rate,
        f32_flops: figures[float].rate,
        int8_kind: loops[int8].name,
        bf16_kind: loops[bf16].name,
        fastest_int8_ops: figures[fastest_int8].rate,
        fastest_int8_kind: loops[fastest_int8].name,
        fastest_bf16_flops: figures[fastest_bf16].rate,
        fastest_bf16_kind: loops[fastest_bf16].name,
        certainty: [memory, cache.unwrap_or(memory), figures[int8], figures[bf16], figures[float]]
            .map(|figure| figure.certainty),
    })
}

/// The instructions of this name, if this CPU has them: for limits that were kept.
pub fn kind(name: &str) -> Option<&'static str> {
    Loop::available().iter().map(|l| l.name).find(|kind| *kind == name)
}

/// What memory nodes deliver. Bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLimits {
    /// To the threads of each node from their own memory, while the others rest.
    pub alone: Vec<f64>,
    /// To the threads of the first from the memory of the second.
    pub neighbour: f64,
}

/// Measures for about `seconds`; `None` where there is one node.
pub fn measure_nodes(pool: &Pool, seconds: f64) -> Result<Option<NodeLimits>, OutOfMemory> {
    let nodes = pool.nodes().len();
    if nodes < 2 {
        return Ok(None);
    }
    let readable = Readable::of(pool)?;
    let budget = Duration::from_secs_f64(seconds / (nodes + 1) as f64);
    let rate = |readers, memory| readable.of_neighbour(pool, readers, memory, budget).rate;
    Ok(Some(NodeLimits { alone: (0..nodes).map(|node| rate(node, node)).collect(), neighbour: rate(0, 1) }))
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// See [`ThreadError`].
    #[error(transparent)]
    Threads(#[from] ThreadError),
    /// There is no memory to read.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

/// Operations per second of a loop, on all threads.
fn operations(pool: &Pool, l: &Loop, budget: Duration) -> Figure {
    let each = l.operations(1);
    // Two threads of one core share its units.
    let threads = if pool.threads() <= default_threads() { Threads::Own } else { Threads::Share };
    rate(pool, budget, Series::new(threads, FIRST_ROUNDS, usize::MAX), |rounds| {
        let run = move |_: usize| {
            black_box(l.operations(black_box(rounds)));
        };
        (each * rounds as f64 * pool.threads() as f64, Box::new(run) as Box<dyn Fn(usize) + Sync>)
    })
}

/// Takes samples as the series asks for them. `region`: of a size, the work of all threads and what each of them does.
fn rate<'a>(
    pool: &Pool,
    budget: Duration,
    mut series: Series,
    mut region: impl FnMut(usize) -> (f64, Box<dyn Fn(usize) + Sync + 'a>),
) -> Figure {
    let stretches: Vec<_> = (0..pool.threads()).map(|_| Mutex::new(Stretch::default())).collect();
    let of = |thread: usize| stretches[thread].lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    while let Some(size) = series.next(start.elapsed(), budget) {
        let (work, run) = region(size);
        let begin = Instant::now();
        pool.run(&|thread| {
            let mark = Mark::now();
            run(thread);
            *of(thread) = mark.stretch();
        });
        let wall = begin.elapsed();
        series.hear(&Sample { work, wall, threads: (0..pool.threads()).map(|thread| *of(thread)).collect() });
    }
    series.figure()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::isa::Avx512Bf16;
    use crate::threads::NodeChoice;

    #[test]
    fn nodes_are_read_alone_and_by_their_neighbour() {
        let on = |nodes| Pool::on(2, NodeChoice::Imagined(nodes)).unwrap();
        assert_eq!(measure_nodes(&on(1), 0.02).unwrap(), None);
        let NodeLimits { alone, neighbour } = measure_nodes(&on(2), 0.05).unwrap().unwrap();
        assert_eq!(alone.len(), 2);
        assert!(alone.iter().chain([&neighbour]).all(|rate| rate.is_finite() && *rate > 0.0), "{alone:?} {neighbour}");
        let limits = measure(&on(2), Isa::best(), Arithmetic::best(), 0.05).unwrap();
        assert!(limits.read_bandwidth > 0.0, "{limits:?}");
    }

    #[test]
    fn every_limit_is_positive_and_named() {
        let pool = Pool::new(1).unwrap();
        for (isa, arithmetic) in Isa::available().into_iter().flat_map(|isa| Arithmetic::ALL.map(|a| (isa, a))) {
            let limits = measure(&pool, isa, arithmetic, 0.02).unwrap();
            let Limits { read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops, .. } = limits;
            let rates = [read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops];
            assert!(rates.into_iter().all(|rate| rate.is_finite() && rate > 0.0), "{limits:?}");
            assert!(limits.fastest_int8_ops >= limits.int8_ops && limits.fastest_bf16_flops >= limits.bf16_flops);
            let int8 = match isa {
                Isa::Scalar => "scalar int8",
                Isa::Avx2 => "avx2 vpmaddubsw",
                Isa::Avx512 | Isa::Avx512Bf16 => "avx512 vpdpbusd",
                Isa::Amx => "amx tdpbssd",
            };
            let bf16 = match (isa, arithmetic) {
                (Isa::Scalar, _) => "scalar f32",
                (Isa::Avx2, _) => "avx2 vfmadd231ps",
                (Isa::Amx, Arithmetic::Tiles) => "amx tdpbf16ps",
                (Isa::Avx512Bf16 | Isa::Amx, Arithmetic::Pairs) if Avx512Bf16::detect().is_some() => "avx512 vdpbf16ps",
                _ => "avx512 vfmadd231ps",
            };
            assert_eq!((limits.int8_kind, limits.bf16_kind), (int8, bf16), "{isa:?}, {arithmetic:?}");
        }
    }
}
