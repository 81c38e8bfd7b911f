//! Read bandwidth on all threads: from memory, and from the last-level cache.

use super::series::{Figure, Series, Threads};
use super::{Measuring, rate};
use crate::arch::native::prefetch;
use crate::isa::Isa;
use crate::mem::{Buffer, OutOfMemory};
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::{Nodes, Pool, share};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Access patterns: streams that a thread reads in parallel (more open pages than one stream's prefetcher uses), and
/// whether it prefetches. No pattern is the best on every CPU.
const WAYS: [(usize, bool); 3] = [(2, false), (4, false), (4, true)];

/// Words of a cache line, and its bytes.
const WORDS: usize = 8;
const LINE: usize = WORDS * size_of::<u64>();

/// Assumed where the cache size is unknown.
const UNKNOWN_CACHE: usize = 64 << 20;
/// Words that a thread writes first, some milliseconds of it, before it asks whether the measurement goes on.
const PIECE: usize = 1 << 20;
/// Minimum memory of a measurement.
const SMALLEST: usize = 1 << 20;
/// Lines of the first pass over memory, and of the longest over a cache.
const FIRST_LINES: usize = 1 << 14;
const MOST_ROUNDS: usize = 1 << 20;

/// Buffer for bandwidth measurements.
pub(super) struct Readable {
    /// One per memory node.
    parts: Vec<Buffer<u64>>,
    /// Lines of 64 bytes over all parts.
    num_lines: usize,
    /// Last-level cache bytes of the pool's cores; 0: unknown.
    pub(super) cache_bytes: usize,
}

impl Readable {
    /// A buffer much larger than the caches of the pool's cores, or as large as memory allows.
    pub(super) fn of(Measuring { pool, goes_on }: Measuring<'_>) -> Result<Readable, OutOfMemory> {
        let cache_bytes = last_level_cache(pool.cpus());
        let caches = if cache_bytes > 0 { cache_bytes } else { UNKNOWN_CACHE };
        let most = usize::try_from(available_memory() / 4).unwrap_or(usize::MAX);
        let mut bytes = (4 * caches).clamp(256 << 20, 1 << 30).min(most).max(SMALLEST);
        let nodes = pool.nodes();
        let on_nodes = |bytes: usize| -> Result<Vec<Buffer<u64>>, OutOfMemory> {
            let part = |node| Buffer::<u64>::zeroed_on(nodes.id(node), nodes.part(bytes / LINE, node).len() * WORDS);
            (0..nodes.len()).map(part).collect()
        };
        let mut parts = loop {
            match on_nodes(bytes) {
                Ok(parts) => break parts,
                Err(error) if bytes == SMALLEST => return Err(error),
                Err(_) => {}
            }
            bytes = (bytes / 2).max(SMALLEST);
        };
        // Unwritten pages would all map to the same zero page.
        let mut shares = Vec::new();
        for (node, part) in parts.iter_mut().enumerate() {
            let threads = nodes.threads_of(node).len();
            let words = part.len().div_ceil(threads).max(1);
            let own = shares.len();
            shares.extend(part.chunks_mut(words).map(|share| Mutex::new(Some(share))));
            shares.resize_with(own + threads, || Mutex::new(None));
        }
        pool.run(&|thread| {
            if let Some(share) = &mut *shares[thread].lock().unwrap_or_else(PoisonError::into_inner) {
                let pieces = share.chunks_mut(PIECE).take_while(|_| goes_on());
                pieces.for_each(|piece| piece.iter_mut().step_by(4096 / 8).for_each(|word| *word = 1));
            }
        });
        drop(shares);
        let num_lines = parts.iter().map(|part| part.len() / WORDS).sum();
        Ok(Readable { parts, num_lines, cache_bytes })
    }

    /// The thread's share of `size` lines from line `at` on: its part of the local node's lines.
    fn own(&self, pool: &Pool, thread: usize, at: usize, size: usize) -> &[[u64; WORDS]] {
        let nodes = pool.nodes();
        let node = nodes.of_thread(thread);
        let threads = nodes.threads_of(node);
        self.of_node(nodes, node, at, size, thread - threads.start, threads.len())
    }

    /// Share `index` of `of` of a node's lines.
    fn of_node(&self, nodes: &Nodes, node: usize, at: usize, size: usize, index: usize, of: usize) -> &[[u64; WORDS]] {
        let lines = self.parts[node].as_chunks::<WORDS>().0;
        let first = nodes.part(at, node).len().min(lines.len());
        let lines = &lines[first..(first + nodes.part(size, node).len()).min(lines.len())];
        &lines[share(lines.len(), of, index)]
    }

    /// Memory bandwidth in bytes per second: many short passes, each over the next window, so that no line is still cached.
    pub(super) fn of_memory(&self, measuring: Measuring<'_>, budget: Duration) -> Figure {
        let pool = measuring.pool;
        self.in_passes(measuring, budget, self.num_lines, |thread, at, size| self.own(pool, thread, at, size))
    }

    /// The same for the threads of node `readers` reading the memory of node `memory`, which may be the same.
    pub(super) fn of_neighbour(
        &self,
        measuring: Measuring<'_>,
        readers: usize,
        memory: usize,
        budget: Duration,
    ) -> Figure {
        let nodes = measuring.pool.nodes();
        let (threads, lines) = (nodes.threads_of(readers), self.parts[memory].len() / WORDS);
        self.in_passes(measuring, budget, lines, |thread, at, size| match threads.contains(&thread) {
            true => {
                let lines = &self.parts[memory].as_chunks::<WORDS>().0[at..at + size];
                &lines[share(size, threads.len(), thread - threads.start)]
            }
            false => &[],
        })
    }

    /// Passes over a window that moves through `num_lines`; `part`: a thread's lines of a window.
    fn in_passes<'a>(
        &'a self,
        measuring: Measuring<'_>,
        budget: Duration,
        num_lines: usize,
        part: impl Fn(usize, usize, usize) -> &'a [[u64; WORDS]] + Copy + Sync + 'a,
    ) -> Figure {
        let (mut pass, mut window) = (0, 0);
        rate(measuring, budget, Series::new(Threads::Share, FIRST_LINES.min(num_lines / 2), num_lines / 2), |size| {
            if window + size > num_lines {
                window = 0;
            }
            let (at, way) = (window, WAYS[pass % WAYS.len()]);
            (pass, window) = (pass + 1, window + size);
            let run = move |thread: usize| {
                black_box(read(part(thread, at, size), way));
            };
            ((size * LINE) as f64, Box::new(run) as Box<dyn Fn(usize) + Sync>)
        })
    }

    /// Cache bandwidth in bytes per second: repeated passes over half of the cache. `None` if its size is unknown, or not
    /// below the buffer's.
    pub(super) fn of_last_cache(&self, measuring: Measuring<'_>, budget: Duration) -> Option<Figure> {
        let pool = measuring.pool;
        let half = self.cache_bytes / 2 / LINE;
        if half == 0 || half > self.num_lines {
            return None;
        }
        let mut pass = 0;
        Some(rate(measuring, budget, Series::new(Threads::Share, 1, MOST_ROUNDS), |rounds| {
            let way = WAYS[pass % WAYS.len()];
            pass += 1;
            let run = move |thread: usize| {
                let mine = self.own(pool, thread, 0, half);
                (0..rounds).for_each(|_| _ = black_box(read(black_box(mine), way)));
            };
            ((rounds * half * LINE) as f64, Box::new(run) as Box<dyn Fn(usize) + Sync>)
        }))
    }
}

/// Reads all lines once with one of the [`WAYS`], with this CPU's widest loads.
fn read(lines: &[[u64; 8]], way: (usize, bool)) -> u64 {
    dispatch(Isa::best(), Pass(lines, way))
}

struct Pass<'a>(&'a [[u64; 8]], (usize, bool));

impl Kernel for Pass<'_> {
    type Output = u64;

    #[inline(always)]
    fn define(self) -> u64 {
        let Pass(lines, way) = self;
        match way {
            (2, _) => streams::<2, false>(lines),
            (_, false) => streams::<4, false>(lines),
            (_, true) => streams::<4, true>(lines),
        }
    }

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> u64 {
        self.define()
    }
}

#[inline(always)]
fn streams<const STREAMS: usize, const AHEAD: bool>(lines: &[[u64; 8]]) -> u64 {
    let part = lines.len() / STREAMS;
    let streams: [&[[u64; 8]]; STREAMS] = std::array::from_fn(|i| &lines[i * part..][..part]);
    let mut sums = [[0u64; 8]; STREAMS];
    for line in 0..part {
        for (sums, stream) in sums.iter_mut().zip(streams) {
            if AHEAD {
                prefetch(stream.as_ptr().wrapping_add(line + 64).cast());
            }
            for (sum, word) in sums.iter_mut().zip(stream[line]) {
                *sum ^= word;
            }
        }
    }
    sums.as_flattened().iter().fold(0, |all, sum| all ^ sum)
}

/// Total bytes of the last-level caches of these cores, each shared cache counted once. 0: the system does not report
/// it.
fn last_level_cache(cpus: &[usize]) -> usize {
    let read = |cpu: usize, index: usize, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{file}");
        Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
    };
    let last = |&cpu: &usize| {
        let level = |index| read(cpu, index, "level")?.parse::<u32>().ok();
        let (_, index) = (0..16).filter_map(|index| Some((level(index)?, index))).max()?;
        let kib: usize = read(cpu, index, "size")?.strip_suffix('K')?.parse().ok()?;
        Some((read(cpu, index, "shared_cpu_list").unwrap_or_default(), kib << 10))
    };
    let instances: BTreeSet<(String, usize)> = cpus.iter().filter_map(last).collect();
    instances.into_iter().map(|(_, bytes)| bytes).sum()
}

/// Memory that this process may take, or an estimate.
fn available_memory() -> u64 {
    crate::memory_limits::headroom().map_or(1 << 30, |headroom| headroom.bytes)
}
