//! The workers of a pool and the state that they share with the caller: regions, admission, waiting.
//!
//! ```text
//! caller   publish region 7 ---- its work ---- done? -- shuts out absent workers -- waits for entered ones -- over
//! worker 1     sees 7, enters: at = 7, it is open: works, done = 7
//! worker 2                                       (has no core)   sees 7, at = 7, it is closed: done = 7, next
//! ```
//! Each worker has a cache line that it writes (`at`, `done`) and one that the caller writes (`closed`). The worker
//! stores `at` and then loads `closed`; the caller stores `closed` and then loads `at`. With a fence between the two on
//! both sides, at least one sees the other's store (Dekker's algorithm): a worker that the caller does not wait for
//! accesses nothing of the region.

use super::lost::{CpuTimeMeter, LongWaits};
use super::sync::{self, AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, UnsafeCell, fence};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Pauses before a waiting thread begins to yield: about 100 us, longer than the gaps within a step. (Four times the
/// number halves the yields of a quiet machine, but then threads on shared cores spin away time that others could use.)
pub(super) const SPINS: u32 = if cfg!(any(loom, miri)) { 0 } else { 4096 };
/// Pauses before a wait is timed ([`super::lost::LongWaits`]): some 6 us, which few waits of a quiet machine last. Beside other
/// programs a thread waits a little in nearly every region.
pub(super) const TIMED: u32 = if cfg!(any(loom, miri)) { 0 } else { 256 };
/// Yields before an idle worker sleeps: about a millisecond on an otherwise idle core.
const YIELDS: u32 = if cfg!(any(loom, miri)) { 1 } else { 2048 };
/// Nanoseconds for which a core counts as contended after a yield to another process.
const CONTENDED: u64 = 50_000_000;
/// Pauses before a worker that has not entered is shut out: about a microsecond.
const GRACE: u32 = if cfg!(any(loom, miri)) { 0 } else { 32 };

/// Value of `closed` that shuts a worker out of every region.
const BARRED: u64 = u64::MAX;

/// Two cache lines, since the hardware prefetches lines in pairs.
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

pub(super) type Job = *const (dyn Fn(usize) + Sync);

/// State written by one worker.
struct WorkerState {
    /// The last region that it entered or tried to enter.
    at: AtomicU64,
    /// The last region that it left or was shut out of.
    done: AtomicU64,
}

/// Sleep state of the workers.
#[derive(Default)]
struct Sleepers {
    /// By worker: asleep, and not yet woken.
    asleep: Vec<bool>,
}

pub(super) struct WorkerSet {
    /// Number of regions so far; a change tells the workers to enter.
    generation: Padded<AtomicU64>,
    states: Vec<Padded<WorkerState>>,
    /// By worker: the last region that it may not enter.
    closed: Vec<Padded<AtomicU64>>,
    /// Workers asleep or about to sleep that a region must wake.
    sleeping: AtomicUsize,
    /// Written by the caller while no worker is in a region, read by the workers in it.
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: Mutex<Sleepers>,
    wake: Condvar,
    /// Time of the last yield of a pool thread to another process, by [`sync::now`]; 0: never.
    contended: AtomicU64,
    pub(super) meter: CpuTimeMeter,
    /// By thread, the caller first.
    pub(super) waits: Vec<Padded<LongWaits>>,
}

// SAFETY: `job` is the only field that is not Sync. The holder of the pool's claim writes it while every worker has left
// the last region or is shut out of it, and before the release store of `generation`; a worker reads it only after it
// has entered, and the caller waits for it then.
unsafe impl Sync for WorkerSet {}
// SAFETY: the pointer in `job` is only followed during the region whose caller keeps the closure alive.
unsafe impl Send for WorkerSet {}

impl WorkerSet {
    /// For a number of workers that have not started yet.
    pub(super) fn new(workers: usize) -> WorkerSet {
        let each = 0..workers;
        WorkerSet {
            generation: Padded(AtomicU64::new(0)),
            states: each
                .clone()
                .map(|_| Padded(WorkerState { at: AtomicU64::new(0), done: AtomicU64::new(0) }))
                .collect(),
            closed: each.clone().map(|_| Padded(AtomicU64::new(0))).collect(),
            sleeping: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            sleepers: Mutex::new(Sleepers { asleep: vec![false; workers] }),
            wake: Condvar::new(),
            contended: AtomicU64::new(0),
            meter: CpuTimeMeter::default(),
            waits: (0..=workers).map(|_| Padded(LongWaits::default())).collect(),
        }
    }

    /// Begins a region and returns its number. The caller keeps what `job` points to alive until each worker is out, by
    /// [`WorkerSet::is_out`] or [`WorkerSet::shut`].
    pub(super) fn begin(&self, job: Job) -> u64 {
        // SAFETY: the caller has the claim, and waited for every worker of the last region: none reads `job`.
        self.job.with_mut(|to| unsafe { *to = Some(job) });
        self.publish()
    }

    /// Whether the worker has left the region, or may not enter it. After this it accesses nothing of the region.
    pub(super) fn is_out(&self, worker: usize, region: u64) -> bool {
        self.states[worker].0.done.load(Acquire) >= region || self.is_barred(worker)
    }

    /// Shuts a worker that has not entered out of the region. False: it has entered, and the caller must wait for it.
    pub(super) fn shut(&self, worker: usize, region: u64) -> bool {
        if self.states[worker].0.at.load(Relaxed) >= region {
            return false;
        }
        self.closed[worker].0.store(region, Relaxed);
        fence(SeqCst);
        self.states[worker].0.at.load(Relaxed) < region
    }

    /// Bars a worker from all future regions, or admits it again. Only between two regions.
    pub(super) fn bar(&self, worker: usize, barred: bool) {
        // All regions up to this one are over.
        let until = if barred { BARRED } else { self.generation.0.load(Relaxed) };
        self.closed[worker].0.store(until, Relaxed);
        if !barred {
            // The worker may sleep, and the next region must wake it.
            self.rouse();
        }
    }

    pub(super) fn is_barred(&self, worker: usize) -> bool {
        self.closed[worker].0.load(Relaxed) == BARRED
    }

    /// Whether a worker is barred, or was shut out of the last region.
    pub(super) fn is_away(&self, worker: usize) -> bool {
        let (closed, region) = (self.closed[worker].0.load(Relaxed), self.generation.0.load(Relaxed));
        closed == BARRED || region > 0 && closed == region
    }

    /// The first panic of a worker since the last call.
    pub(super) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.publish();
        self.rouse();
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn num_sleeping(&self) -> usize {
        self.sleeping.load(Relaxed)
    }

    /// Publishes the next region, with release semantics.
    fn publish(&self) -> u64 {
        let region = self.generation.0.fetch_add(1, Release) + 1;
        // Either this load sees the sleeper, or the sleeper's check of `generation` (made after it was counted) sees
        // the new one: one of the two fences comes first.
        fence(SeqCst);
        if self.sleeping.load(Relaxed) > 0 {
            self.rouse();
        }
        region
    }

    /// Wakes all sleepers. They no longer count as sleeping, so regions do not wake them again before they run.
    fn rouse(&self) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.asleep.fill(false);
        self.sleeping.store(0, Relaxed);
        drop(sleepers);
        self.wake.notify_all();
    }

    /// A worker's main loop.
    pub(super) fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_news(worker, seen);
            self.waits[worker + 1].0.end();
            if self.stop.load(Relaxed) {
                return;
            }
            self.visit(worker, seen);
        }
    }

    /// Runs this worker's part of a region, unless it is shut out.
    fn visit(&self, worker: usize, region: u64) {
        let WorkerState { at, done } = &self.states[worker].0;
        at.store(region, Relaxed);
        fence(SeqCst);
        // A region ends only after this worker has left it or was shut out of it or of a later one.
        if self.closed[worker].0.load(Relaxed) < region {
            // SAFETY: the caller wrote `job` before the region that this worker saw, and writes no other until it is
            // out.
            let job = self.job.with(|job| unsafe { *job }).expect("a region was published with its job");
            // SAFETY: the caller keeps the closure alive until this worker is out.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(worker + 1) }));
            if let Err(panic) = result {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
        done.store(region, Release);
    }

    /// Waits for a region other than `seen`: spins, then yields, then sleeps.
    fn wait_for_news(&self, worker: usize, seen: u64) -> u64 {
        let mut wait = Backoff::default();
        while wait.count < SPINS + YIELDS && !self.is_barred(worker) {
            let generation = self.generation.0.load(Acquire);
            if generation != seen {
                return generation;
            }
            if wait.count >= TIMED {
                self.waits[worker + 1].0.begin();
            }
            // Another process needs this core: sleep instead of idling on it.
            if !wait.pause(self) {
                break;
            }
        }
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let barred = self.is_barred(worker);
            if !barred && !sleepers.asleep[worker] {
                sleepers.asleep[worker] = true;
                self.sleeping.fetch_add(1, Relaxed);
            }
            fence(SeqCst);
            let generation = self.generation.0.load(Acquire);
            let has_news = generation != seen && !barred;
            if has_news || self.stop.load(Relaxed) {
                if std::mem::take(&mut sleepers.asleep[worker]) {
                    self.sleeping.fetch_sub(1, Relaxed);
                }
                return generation;
            }
            sleepers = self.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Backoff of a waiting thread, counted in pauses.
#[derive(Default)]
pub(super) struct Backoff {
    pub(super) count: u32,
    /// Another process wants this core.
    contended: bool,
}

impl Backoff {
    /// Whether a worker that has not entered has had its grace period.
    pub(super) fn is_past_grace_period(&self) -> bool {
        self.count >= GRACE
    }

    /// Spins at first, then yields. False once the core is contended: each yield there gives up a turn, while a sleeper
    /// keeps its unused time slice and is scheduled immediately. A yield detects contention; for a while after that no
    /// thread yields to detect it again, and none spins for long.
    fn pause(&mut self, set: &WorkerSet) -> bool {
        self.count = self.count.saturating_add(1);
        if self.count < SPINS {
            if self.count == SPINS / 4 {
                let last = set.contended.load(Relaxed);
                self.contended = last > 0 && sync::now().saturating_sub(last) < CONTENDED;
            }
            sync::spin();
        } else if sync::yield_now() {
            self.contended = true;
            set.contended.store(sync::now().max(1), Relaxed);
        }
        !self.contended
    }

    /// The same for an unbounded wait: on a contended core it naps.
    pub(super) fn wait(&mut self, set: &WorkerSet) {
        if self.contended {
            self.count = self.count.max(SPINS);
            sync::nap();
        } else {
            self.pause(set);
        }
    }
}
