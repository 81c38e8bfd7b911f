//! A pool of pinned threads for fork-join regions of a few microseconds.
//!
//! ```text
//! caller    tasks(f): publish f, tasks ....... wait for entered workers, return
//! worker 1            see it,    tasks, done | spin briefly, yield for a while, then sleep until the next region
//! worker 2            (has no core)          | arrives late: the region is over without it
//! ```
//! A layer of a transformer is five such regions, so waking through the operating system each time (~50 us) would
//! cost more than the work. An idle server must not burn a core either: after about a millisecond a worker sleeps.
//!
//! On a shared machine a thread may lose its core at any time. So free threads claim the work in pieces
//! ([`Pool::tasks`], [`Pool::shares`]): no thread waits for a worker that has not entered the region, and a worker that
//! repeatedly loses its core inside is barred for a while (`threads/grant.rs`). A thread that waits on a contended core
//! sleeps instead of spinning. No bit depends on which thread computed what.
//!
//! The caller is thread 0. A panic inside a region is carried to the caller once every thread has left the region.
//!
//! There is one region at a time: running one requires the pool's [`Claim`], and all region state is accessed through
//! it. `loom` explores the interleavings of all this in `threads/model.rs`.

mod cpus;
mod grant;
mod lost;
#[cfg(all(test, loom))]
mod model;
mod nodes;
mod steal;
mod sync;
mod worker_set;

pub use cpus::{default_threads, max_threads};
pub use lost::LostCpuTime;
pub use nodes::{NodeChoice, NodeCores, Nodes, memory_nodes, num_nodes};

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};

use crate::float_state::DefaultFloats;
use cpus::pin_this_thread;
use grant::Grant;
use sync::{AtomicBool, AtomicUsize, JoinHandle, Mutex};
use worker_set::{Backoff, Job, Padded, SPINS, TIMED, WorkerSet};

/// The last `1 / TAIL_SHARE` of a share is claimed in `TAIL_PIECES`: see [`Pool::shares`]. The part before it is claimed
/// in `HEAD_PIECES` if its owner is absent.
const TAIL_SHARE: usize = 8;
const HEAD_PIECES: usize = if cfg!(loom) { 1 } else { 8 };
const TAIL_PIECES: usize = if cfg!(loom) { 1 } else { 8 };

/// Why a pool could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// A thread that shares its core with another is worse than no thread: the others wait for it in every region.
    #[error("{asked} threads requested, but this process may use {allowed} cores (CPU affinity and cgroup quota)")]
    TooMany {
        /// Requested threads.
        asked: usize,
        /// Cores that the affinity mask and the cgroup quota allow.
        allowed: usize,
    },
    /// A pool has at least the calling thread.
    #[error("a pool needs at least one thread")]
    None,
    /// The operating system refused a thread.
    #[error("could not start a worker thread: {0}")]
    Spawn(#[from] std::io::Error),
}

/// Fork-join over pinned threads. One region at a time: a second caller, or a region inside a region, is a bug and
/// panics.
pub struct Pool {
    set: Arc<WorkerSet>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
    /// By thread: claimed pieces of its share; see [`Pool::shares`].
    taken: Vec<Padded<AtomicUsize>>,
    /// By node: next unclaimed task; see [`Pool::tasks_by_node`].
    next: Vec<Padded<AtomicUsize>>,
    nodes: Nodes,
    cpus: Vec<usize>,
    /// Barred workers, and until when. Locked after long waits, and while a worker is barred.
    grants: Mutex<WorkerAdmission>,
    /// Whether any worker is barred.
    bars: AtomicBool,
}

/// Admission state, indexed by worker.
#[derive(Default)]
struct WorkerAdmission {
    of: Vec<Grant>,
    barred_until: Vec<u64>,
}

impl Pool {
    /// A pool of `threads`, including the caller of [`Pool::run`], on the machine's memory nodes.
    pub fn new(threads: usize) -> Result<Pool, ThreadError> {
        Pool::on(threads, NodeChoice::AsFound)
    }

    /// The same on the given memory nodes.
    pub fn on(threads: usize, choice: NodeChoice) -> Result<Pool, ThreadError> {
        let allowed = max_threads();
        if threads == 0 {
            return Err(ThreadError::None);
        }
        if threads > allowed && !matches!(choice, NodeChoice::Imagined(_)) {
            return Err(ThreadError::TooMany { asked: threads, allowed });
        }
        let (nodes, cpus) = Nodes::place(choice, &memory_nodes(), threads);
        Ok(Pool::start(threads, nodes, cpus)?)
    }

    /// Starts the workers, each pinned to one of `cpus`, the first of which is for the caller; workers beyond `cpus` are
    /// not pinned.
    fn start(threads: usize, nodes: Nodes, cpus: Vec<usize>) -> std::io::Result<Pool> {
        let set = Arc::new(WorkerSet::new(threads - 1));
        let taken = (0..threads).map(|_| Padded(AtomicUsize::new(0))).collect();
        let each = threads - 1;
        let grants = WorkerAdmission { of: vec![Grant::default(); each], barred_until: vec![0; each] };
        let mut pool = Pool {
            set,
            workers: Vec::new(),
            busy: AtomicBool::new(false),
            taken,
            next: (0..nodes.len()).map(|_| Padded(AtomicUsize::new(0))).collect(),
            nodes,
            cpus,
            grants: Mutex::new(grants),
            bars: AtomicBool::new(false),
        };
        for thread in 1..threads {
            let set = pool.set.clone();
            let cpu = pool.cpus.get(thread).copied();
            let worker = sync::Builder::new().name(format!("kernels-{thread}")).spawn(move || {
                DefaultFloats::keep();
                if let Some(cpu) = cpu {
                    pin_this_thread(cpu);
                    set.meter.begin(thread);
                }
                set.work(thread - 1);
            })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The memory nodes that its threads are on.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The cores that its threads are pinned to, as far as the system reports them.
    pub(crate) fn cpus(&self) -> &[usize] {
        &self.cpus[..self.threads().min(self.cpus.len())]
    }

    /// Pins the calling thread to the core reserved for thread 0, and starts counting its lost time. For a thread that
    /// only calls [`Pool::run`], which computes with [`DefaultFloats`] from now on; not automatic, because threads that
    /// it starts later would inherit the mask.
    pub fn pin_caller(&self) {
        DefaultFloats::keep();
        if let Some(&cpu) = self.cpus.first() {
            pin_this_thread(cpu);
        }
        self.set.meter.cores(&self.cpus[..self.threads().min(self.cpus.len())]);
        self.set.meter.begin(0);
    }

    /// What other processes took of the threads' time since the last call. `None` where the system does not report it, and
    /// before [`Pool::pin_caller`]. Costs two system calls per thread.
    pub fn lost(&self) -> Option<LostCpuTime> {
        self.set.meter.lost(&self.set.waits, |thread| thread > 0 && self.set.is_away(thread - 1))
    }

    /// Calls `f(thread)` once on every thread, `f(0)` on the caller, and returns when all are done. For work bound to each
    /// thread: it waits for threads without a core. [`Pool::tasks`] does not.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return f(0);
        }
        self.claim().run(f);
    }

    /// Claims the exclusive right to run a region. Panics if it is taken.
    fn claim(&self) -> Claim<'_> {
        assert!(!self.busy.swap(true, Acquire), "a Pool runs one region at a time");
        Claim(self)
    }

    /// Calls `f(task)` once for every task in `0..count`, each on the next free thread: for uneven work. Results must not
    /// depend on the assignment.
    pub fn tasks(&self, count: usize, f: &(dyn Fn(usize) + Sync)) {
        if count <= 1 || self.workers.is_empty() {
            return (0..count).for_each(f);
        }
        let claim = self.claim();
        if claim.is_alone() {
            return (0..count).for_each(f);
        }
        let next = AtomicUsize::new(0);
        claim.open(&|_| {
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= count {
                    break;
                }
                f(task);
            }
        });
    }

    /// [`Pool::tasks`] bound to nodes: the tasks of node `n` begin at `first(n)`, and `first(num_nodes)` is `count`. Each
    /// thread takes its node's tasks, then those of other nodes.
    pub fn tasks_by_node(&self, count: usize, first: &(dyn Fn(usize) -> usize + Sync), f: &(dyn Fn(usize) + Sync)) {
        let nodes = self.nodes.len();
        if nodes == 1 {
            return self.tasks(count, f);
        }
        if count <= 1 {
            return (0..count).for_each(f);
        }
        let claim = self.claim();
        if claim.is_alone() {
            return (0..count).for_each(f);
        }
        self.next.iter().enumerate().for_each(|(node, next)| next.0.store(first(node), Relaxed));
        claim.open(&|thread| {
            let own = self.nodes.of_thread(thread);
            for node in (own..nodes).chain(0..own) {
                let end = first(node + 1);
                loop {
                    let task = self.next[node].0.fetch_add(1, Relaxed);
                    if task >= end {
                        break;
                    }
                    f(task);
                }
            }
        });
    }

    /// Calls `f` for ranges that cover `0..count`: for even work bound by memory, on cores that may be slowed unevenly. Each
    /// thread takes its [`share`], the same in every call (so the data may be on its node); the last eighth of each share
    /// is claimed in pieces, the last of them by any free thread, and so is the whole share of an absent thread. Results
    /// must not depend on the assignment.
    pub fn shares(&self, count: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let threads = self.threads();
        if threads == 1 {
            return f(0..count);
        }
        let claim = self.claim(); // before touching region state, which another region may be using
        if claim.is_alone() {
            return f(0..count);
        }
        self.taken.iter().for_each(|taken| taken.0.store(0, Relaxed));
        claim.open(&|thread| {
            for owner in self.neighbours(thread) {
                let share = Share::of(share(count, threads, owner));
                let taken = &self.taken[owner].0;
                if owner == thread && taken.compare_exchange(0, HEAD_PIECES, Relaxed, Relaxed).is_ok() {
                    f(share.head.clone());
                }
                loop {
                    let piece = share.piece(taken.fetch_add(1, Relaxed));
                    match piece {
                        Some(piece) if piece.is_empty() => {}
                        Some(piece) => f(piece),
                        None => break,
                    }
                }
            }
        });
    }
}

impl Pool {
    /// All threads, beginning with `thread`, same-node threads first.
    fn neighbours(&self, thread: usize) -> impl Iterator<Item = usize> {
        let node = self.nodes.threads_of(self.nodes.of_thread(thread));
        (thread..node.end).chain(node.start..thread).chain(node.end..self.threads()).chain(0..node.start)
    }
}

/// A thread's share: a head that its owner takes whole, and a tail, both divided into pieces.
struct Share {
    head: Range<usize>,
    tail: Range<usize>,
}

impl Share {
    fn of(share: Range<usize>) -> Share {
        let middle = share.end - share.len() / TAIL_SHARE;
        Share { head: share.start..middle, tail: middle..share.end }
    }

    /// Piece `index`, which may be empty; `None` beyond the last.
    fn piece(&self, index: usize) -> Option<Range<usize>> {
        let (part, index, pieces) = match index.checked_sub(HEAD_PIECES) {
            None => (&self.head, index, HEAD_PIECES),
            Some(index) => (&self.tail, index, TAIL_PIECES),
        };
        let piece = share(part.len(), pieces, index.min(pieces));
        (index < pieces).then(|| part.start + piece.start..part.start + piece.end)
    }
}

/// The exclusive right to run a region; released on drop.
struct Claim<'a>(&'a Pool);

impl Claim<'_> {
    /// [`Pool::run`] for a pool with workers.
    fn run(self, f: &(dyn Fn(usize) + Sync)) {
        let pool = self.0;
        if pool.bars.load(Relaxed) {
            pool.let_in(None);
        }
        self.region(f, |worker, region, backoff| {
            while !pool.set.is_out(worker, region) {
                if backoff.count >= TIMED {
                    pool.set.waits[0].0.begin();
                }
                backoff.wait(&pool.set);
            }
        });
    }

    /// Whether all workers are barred, after admitting those whose time is over. Then claiming in pieces is skipped, which
    /// costs as much as a small region.
    fn is_alone(&self) -> bool {
        let pool = self.0;
        if !pool.bars.load(Relaxed) {
            return false;
        }
        pool.let_in(Some(sync::now()));
        (0..pool.workers.len()).all(|worker| pool.set.is_barred(worker))
    }

    /// Runs a region that ends when the caller and all entered workers have left; later workers are shut out. `f` returns
    /// when nothing is left to claim. After [`Claim::is_alone`].
    fn open(self, f: &(dyn Fn(usize) + Sync)) {
        let pool = self.0;
        self.region(f, |worker, region, backoff| {
            let set = &*pool.set;
            let (mut is_in, mut long) = (false, None);
            while !set.is_out(worker, region) {
                if !is_in && backoff.is_past_grace_period() {
                    if set.shut(worker, region) {
                        return;
                    }
                    is_in = true;
                }
                if backoff.count >= SPINS && long.is_none() {
                    long = Some(sync::now());
                }
                if backoff.count >= TIMED {
                    set.waits[0].0.begin();
                }
                backoff.wait(set);
            }
            if let Some(since) = long {
                pool.was_waited_for(worker, since);
            }
        });
    }

    /// Publishes `f`, runs it here, and calls `leave` for each worker, which returns when that worker is out.
    fn region(self, f: &(dyn Fn(usize) + Sync), leave: impl Fn(usize, u64, &mut Backoff)) {
        let Pool { set, workers, .. } = self.0;
        // SAFETY: the lifetime is erased only until the end of this function: no worker is in after the loop below.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(f) };
        let region = set.begin(job);
        let mine = catch_unwind(AssertUnwindSafe(|| f(0)));
        let mut backoff = Backoff::default();
        for worker in 0..workers.len() {
            leave(worker, region, &mut backoff);
        }
        set.waits[0].0.end();
        let theirs = set.take_panic();
        drop(self); // a caller that catches the panic may run the next region
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Pool {
    /// Records a long wait for a worker that had entered.
    #[cold]
    fn was_waited_for(&self, worker: usize, since: u64) {
        let now = sync::now();
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = grants.of[worker].waited(now, now - since, self.threads()) {
            grants.barred_until[worker] = until;
            self.set.bar(worker, true);
            self.bars.store(true, Relaxed);
        }
    }

    /// Admits barred workers whose time is over; all if `now` is `None`.
    #[cold]
    fn let_in(&self, now: Option<u64>) {
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bars = false;
        for worker in 0..self.workers.len() {
            if !self.set.is_barred(worker) {
                continue;
            }
            if now.is_some_and(|now| now < grants.barred_until[worker]) {
                bars = true;
                continue;
            }
            self.set.bar(worker, false);
            grants.of[worker].tries_again(now.unwrap_or_else(sync::now), self.threads());
        }
        self.bars.store(bars, Relaxed);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.set.stop();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // a worker catches panics of jobs, so there is none to report
        }
    }
}

/// The share of thread `index` of `parts` in `0..count`: contiguous, sizes differ by at most one.
pub fn share(count: usize, parts: usize, index: usize) -> Range<usize> {
    count * index / parts..count * (index + 1) / parts
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pools() -> impl Iterator<Item = Pool> {
        (1..=max_threads().min(4)).map(|threads| Pool::new(threads).unwrap())
    }

    /// More threads than cores, on imagined nodes.
    fn on_nodes() -> impl Iterator<Item = Pool> {
        [(2, 2), (4, 2), (5, 3), (4, 4)].into_iter().map(|(threads, nodes)| {
            let pool = Pool::on(threads, NodeChoice::Imagined(nodes)).unwrap();
            assert_eq!(pool.nodes().len(), nodes);
            pool
        })
    }

    #[test]
    fn a_region_runs_once_on_every_thread() {
        for pool in pools() {
            for _ in 0..2000 {
                let seen: Vec<_> = (0..pool.threads()).map(|_| AtomicUsize::new(0)).collect();
                pool.run(&|thread| {
                    seen[thread].fetch_add(1, Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Relaxed) == 1));
            }
        }
    }

    #[test]
    fn tasks_cover_every_index_once() {
        for pool in pools().chain(on_nodes()) {
            for count in [0, 1, 2, 3, 100, 1001] {
                let seen: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                let count_one = |task: usize| _ = seen[task].fetch_add(1, Relaxed);
                pool.tasks(count, &count_one);
                let nodes = pool.nodes();
                let first = |node: usize| if node == nodes.len() { count } else { nodes.part(count, node).start };
                pool.tasks_by_node(count, &first, &count_one);
                pool.tasks_by_node(count, &|node| if node == 0 { 0 } else { count }, &count_one);
                assert!(seen.iter().all(|n| n.load(Relaxed) == 3), "{count} tasks on {nodes:?}");
            }
        }
    }

    #[test]
    fn shares_cover_every_index_once() {
        for pool in pools().chain(on_nodes()) {
            for count in [0, 1, 2, 3, 15, 16, 17, 36, 304, 1001] {
                let seen: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                for call in 1..20 {
                    pool.shares(count, &|range| range.for_each(|index| _ = seen[index].fetch_add(1, Relaxed)));
                    assert!(seen.iter().all(|n| n.load(Relaxed) == call), "{count} in call {call}");
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for pool in pools() {
            for culprit in 0..pool.threads() {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(&|thread| assert_ne!(thread, culprit, "planned"));
                }));
                let message = result.unwrap_err();
                assert!(message.downcast_ref::<String>().unwrap().contains("planned"));
                let sum = AtomicUsize::new(0);
                pool.tasks(10, &|task| {
                    sum.fetch_add(task, Relaxed);
                });
                assert_eq!(sum.into_inner(), 45);
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_for_the_next_region() {
        for pool in pools() {
            for _ in 0..3 {
                while pool.set.num_sleeping() < pool.workers.len() {
                    std::thread::yield_now();
                }
                let count = AtomicUsize::new(0);
                pool.run(&|_| {
                    count.fetch_add(1, Relaxed);
                });
                assert_eq!(count.into_inner(), pool.threads());
            }
        }
    }

    #[test]
    fn more_threads_than_cores_are_refused_with_both_numbers() {
        let allowed = max_threads();
        match Pool::new(allowed + 1) {
            Err(ThreadError::TooMany { asked, allowed: said }) => assert_eq!((asked, said), (allowed + 1, allowed)),
            other => panic!("expected TooMany, got {:?}", other.err()),
        }
        assert!(matches!(Pool::new(0), Err(ThreadError::None)));
    }

    #[test]
    fn a_region_inside_a_region_is_a_bug() {
        for pool in pools().filter(|pool| pool.threads() > 1) {
            assert!(catch_unwind(AssertUnwindSafe(|| pool.run(&|_| pool.run(&|_| ())))).is_err());
        }
    }

    #[test]
    fn shares_are_contiguous_and_even() {
        for count in [0, 1, 7, 38, 152] {
            for parts in 1..9 {
                let shares: Vec<_> = (0..parts).map(|index| share(count, parts, index)).collect();
                assert_eq!(shares.iter().map(ExactSizeIterator::len).sum::<usize>(), count);
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(shares.iter().all(|s| s.len() >= count / parts && s.len() <= count.div_ceil(parts)));
            }
        }
    }
}
