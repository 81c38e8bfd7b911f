//! Peak rates of this machine, measured: the reference for every utilization figure.
//!
//! ```text
//! loops.rs     register-only loops: peak of the multiply instructions ──────┐
//! reading.rs   passes over memory and over the last-level cache ────────────┴─ samples ──> series.rs ──> rate, Certainty
//! ```
//! Read bandwidth bounds decode (each step reads all weights once, from the cache if they fit), the rate of the multiply
//! instruction bounds prefill. All are measured on all threads of the pool at once. Samples whose threads lost their
//! core are discarded (`series.rs`), and the remaining ones determine the certainty.

pub(crate) mod loops;
mod reading;
mod series;

use crate::accumulation_order::AccumulationOrder;
use crate::cpu_time::{Interval, Mark};
pub use crate::device::DeviceLimits as Limits;
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

/// Rounds of a loop's first sample.
const FIRST_ROUNDS: usize = 1 << 10;

/// A pool that measures, and whether it goes on: asked between the regions of a measurement, which take milliseconds,
/// and never true again once it was false.
#[derive(Clone, Copy)]
struct Measuring<'a> {
    pool: &'a Pool,
    goes_on: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Measuring<'a> {
    /// To the end.
    fn whole(pool: &'a Pool) -> Measuring<'a> {
        Measuring { pool, goes_on: &|| true }
    }
}

/// Measures for about `seconds`, half of it reading; up to four times as long if other processes use the machine.
pub fn measure(pool: &Pool, isa: Isa, arithmetic: AccumulationOrder, seconds: f64) -> Result<Limits, OutOfMemory> {
    measure_all(Measuring::whole(pool), isa, arithmetic, seconds)
}

/// [`measure`] as long as `goes_on`, which stays false once it was: then it returns `None` within some milliseconds, and
/// what was measured so far is lost.
pub fn measure_while(
    pool: &Pool,
    isa: Isa,
    arithmetic: AccumulationOrder,
    seconds: f64,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Limits>, OutOfMemory> {
    let limits = measure_all(Measuring { pool, goes_on }, isa, arithmetic, seconds)?;
    Ok(goes_on().then_some(limits))
}

fn measure_all(
    measuring: Measuring<'_>,
    isa: Isa,
    arithmetic: AccumulationOrder,
    seconds: f64,
) -> Result<Limits, OutOfMemory> {
    let loops = Loop::available();
    let usable = |class: Class| loops.iter().enumerate().filter(move |(_, l)| l.class == class);
    let share = Duration::from_secs_f64(seconds / 2.0 / loops.len() as f64);
    let figures: Vec<Figure> = loops.iter().map(|l| operations(measuring, l, share)).collect();
    // The kernels use the last loop of a class that the ceiling allows; the CPU's fastest may be another.
    let used = |class| usable(class).filter(|(_, l)| l.serves(isa, arithmetic)).map(|(index, _)| index).next_back();
    let fastest = |classes: &[Class]| {
        let of_classes = classes.iter().flat_map(|&class| usable(class)).map(|(index, _)| index);
        of_classes.max_by(|&a, &b| figures[a].rate.total_cmp(&figures[b].rate)).expect("scalar is always there")
    };
    let [int8, float] = [Class::Int8, Class::Float].map(|class| used(class).expect("scalar is always there"));
    let bf16 = used(Class::Bf16).unwrap_or(float);
    let (fastest_int8, fastest_bf16) = (fastest(&[Class::Int8]), fastest(&[Class::Float, Class::Bf16]));
    let readable = Readable::of(measuring)?;
    let memory = readable.of_memory(measuring, Duration::from_secs_f64(seconds * 0.375));
    let cache = readable.of_last_cache(measuring, Duration::from_secs_f64(seconds * 0.125));
    Ok(Limits {
        read_bandwidth: memory.rate,
        // A cache measured slower than memory means that another process had the core.
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

/// The static name of a loop, if this CPU has its instructions: for saved limits.
pub fn kind(name: &str) -> Option<&'static str> {
    Loop::available().iter().map(|l| l.name).find(|kind| *kind == name)
}

/// Whether a loop of this name is one of tiles (AMX): kernels reach small shares of their peak, because their operands come too
/// slowly.
pub fn has_tiles(kind: &str) -> bool {
    kind.starts_with("amx ")
}

/// Read bandwidth of memory nodes. Bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLimits {
    /// For the threads of each node from local memory, while the others are idle.
    pub alone: Vec<f64>,
    /// For the threads of the first node from the memory of the second.
    pub neighbour: f64,
}

/// Measures for about `seconds`; `None` where there is one node.
pub fn measure_nodes(pool: &Pool, seconds: f64) -> Result<Option<NodeLimits>, OutOfMemory> {
    let nodes = pool.nodes().len();
    if nodes < 2 {
        return Ok(None);
    }
    let measuring = Measuring::whole(pool);
    let readable = Readable::of(measuring)?;
    let budget = Duration::from_secs_f64(seconds / (nodes + 1) as f64);
    let rate = |readers, memory| readable.of_neighbour(measuring, readers, memory, budget).rate;
    Ok(Some(NodeLimits { alone: (0..nodes).map(|node| rate(node, node)).collect(), neighbour: rate(0, 1) }))
}

/// Why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// See [`ThreadError`].
    #[error(transparent)]
    Threads(#[from] ThreadError),
    /// No memory for the read buffer.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

/// Operations per second of a loop, on all threads.
fn operations(measuring: Measuring<'_>, l: &Loop, budget: Duration) -> Figure {
    let pool = measuring.pool;
    let each = l.operations(1);
    // Two hyperthreads of one core share its execution units.
    let threads = if pool.threads() <= default_threads() { Threads::Own } else { Threads::Share };
    rate(measuring, budget, Series::new(threads, FIRST_ROUNDS, usize::MAX), |rounds| {
        let run = move |_: usize| {
            black_box(l.operations(black_box(rounds)));
        };
        (each * rounds as f64 * pool.threads() as f64, Box::new(run) as Box<dyn Fn(usize) + Sync>)
    })
}

/// Takes samples until the series is complete, or the measurement ends. `region`: from a size, the total work and the
/// closure of each thread.
fn rate<'a>(
    Measuring { pool, goes_on }: Measuring<'_>,
    budget: Duration,
    mut series: Series,
    mut region: impl FnMut(usize) -> (f64, Box<dyn Fn(usize) + Sync + 'a>),
) -> Figure {
    let stretches: Vec<_> = (0..pool.threads()).map(|_| Mutex::new(Interval::default())).collect();
    let of = |thread: usize| stretches[thread].lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    while let Some(size) = series.next(start.elapsed(), budget).filter(|_| goes_on()) {
        let (work, run) = region(size);
        let begin = Instant::now();
        pool.run(&|thread| {
            let mark = Mark::now();
            run(thread);
            *of(thread) = mark.interval();
        });
        let wall = begin.elapsed();
        series.add(&Sample { work, wall, threads: (0..pool.threads()).map(|thread| *of(thread)).collect() });
    }
    series.figure()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::native;
    use crate::threads::NodeChoice;

    #[test]
    fn nodes_are_read_alone_and_by_their_neighbour() {
        let on = |nodes| Pool::on(2, NodeChoice::Imagined(nodes)).unwrap();
        assert_eq!(measure_nodes(&on(1), 0.02).unwrap(), None);
        let NodeLimits { alone, neighbour } = measure_nodes(&on(2), 0.05).unwrap().unwrap();
        assert_eq!(alone.len(), 2);
        assert!(alone.iter().chain([&neighbour]).all(|rate| rate.is_finite() && *rate > 0.0), "{alone:?} {neighbour}");
        let limits = measure(&on(2), Isa::best(), AccumulationOrder::best(), 0.05).unwrap();
        assert!(limits.read_bandwidth > 0.0, "{limits:?}");
    }

    #[test]
    fn a_measurement_that_is_to_end_leaves_nothing() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let pool = Pool::new(2).unwrap();
        let (isa, arithmetic) = (Isa::best(), AccumulationOrder::best());
        // Asked more often than that, it says no.
        for most in [0, 1, 20, 40] {
            let asked = AtomicUsize::new(0);
            let goes_on = || asked.fetch_add(1, Ordering::Relaxed) < most;
            let limits = measure_while(&pool, isa, arithmetic, 0.02, &goes_on).unwrap();
            assert!(limits.is_none(), "{most}: {limits:?}");
        }
        assert!(measure_while(&pool, isa, arithmetic, 0.02, &|| true).unwrap().is_some());
    }

    #[test]
    fn every_limit_is_positive_and_named() {
        let pool = Pool::new(1).unwrap();
        let ways = Isa::available().into_iter().flat_map(|isa| AccumulationOrder::ALL.map(|a| (isa, a)));
        for (isa, arithmetic) in testing::part_of(ways, 3) {
            let limits = measure(&pool, isa, arithmetic, 0.02).unwrap();
            let Limits { read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops, .. } = limits;
            let rates = [read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops];
            assert!(rates.into_iter().all(|rate| rate.is_finite() && rate > 0.0), "{limits:?}");
            assert!(limits.fastest_int8_ops >= limits.int8_ops && limits.fastest_bf16_flops >= limits.bf16_flops);
            assert_eq!((limits.int8_kind, limits.bf16_kind), native::kinds(isa, arithmetic), "{isa:?}, {arithmetic:?}");
        }
    }
}
