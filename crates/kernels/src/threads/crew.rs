//! The workers of a pool and what the caller shares with them: regions, doors, waiting.
//!
//! ```text
//! caller   publish region 7 ---- its work ---- done? -- closes the door of who is not in -- waits for who is -- over
//! worker 1     sees 7, enters: at = 7, the door is open: works, done = 7
//! worker 2                                       (has no core)   sees 7, at = 7, the door is closed: done = 7, next
//! ```
//! Each worker has a line of memory that it writes (`at`, `done`) and one that the caller writes (`closed`). The worker
//! says that it is in and then looks at the door; the caller closes the door and then looks who is in. With a fence
//! between the two on both sides, one of them sees the other (Dekker's rule): a worker that the caller does not wait for
//! touches nothing of the region.

use super::lost::Watch;
use super::sync::{self, AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, UnsafeCell, fence};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Pauses before a waiting thread begins to yield: about 100 us, longer than the gaps within a step. (Four times as
/// many halve the yields of a quiet machine, but threads that share a core with others then spin away what they could
/// leave.)
pub(super) const SPINS: u32 = if cfg!(any(loom, miri)) { 0 } else { 4096 };
/// Yields before an idle worker sleeps: about a millisecond on an otherwise idle core.
const YIELDS: u32 = if cfg!(any(loom, miri)) { 1 } else { 2048 };
/// Nanoseconds for which a core that somebody else wanted is believed to be wanted still.
const CONTENDED: u64 = 50_000_000;
/// Pauses for a worker that is not in yet before its door is closed: a microsecond.
const GRACE: u32 = if cfg!(any(loom, miri)) { 0 } else { 32 };

/// A door that is closed for every region.
const BARRED: u64 = u64::MAX;

/// Two cache lines, since the hardware prefetches lines in pairs.
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

pub(super) type Job = *const (dyn Fn(usize) + Sync);

/// What one worker says.
struct Desk {
    /// The region that it entered, or tried to.
    at: AtomicU64,
    /// The region that it has left, or was refused.
    done: AtomicU64,
}

/// Where a worker sleeps.
#[derive(Default)]
struct Beds {
    /// By worker: it sleeps, and nobody has woken it.
    asleep: Vec<bool>,
}

pub(super) struct Crew {
    /// Counts regions; a change tells the workers to come.
    generation: Padded<AtomicU64>,
    desks: Vec<Padded<Desk>>,
    /// By worker: regions up to this one it may not enter.
    closed: Vec<Padded<AtomicU64>>,
    /// Workers asleep, or about to be, that a region wakes.
    sleeping: AtomicUsize,
    /// Written by the caller while no worker is in, read by the workers that are.
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    beds: Mutex<Beds>,
    wake: Condvar,
    /// When somebody else last had a core that a thread of the pool yielded, by [`sync::now`]; 0: never.
    contended: AtomicU64,
    pub(super) watch: Watch,
}

// SAFETY: `job` is the only field that is not Sync. Who holds the pool's claim writes it while every worker has left the
// last region or is shut out of it, and before the release store of `generation`; a worker reads it when it is in, which
// the caller waits for.
unsafe impl Sync for Crew {}
// SAFETY: the pointer in `job` is only followed during the region whose caller keeps the closure alive.
unsafe impl Send for Crew {}

impl Crew {
    /// Of so many workers, who all have still to come.
    pub(super) fn new(workers: usize) -> Crew {
        let each = 0..workers;
        Crew {
            generation: Padded(AtomicU64::new(0)),
            desks: each.clone().map(|_| Padded(Desk { at: AtomicU64::new(0), done: AtomicU64::new(0) })).collect(),
            closed: each.clone().map(|_| Padded(AtomicU64::new(0))).collect(),
            sleeping: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            beds: Mutex::new(Beds { asleep: vec![false; workers] }),
            wake: Condvar::new(),
            contended: AtomicU64::new(0),
            watch: Watch::default(),
        }
    }

    /// Begins a region and says its number. The caller keeps what `job` points to alive until each worker is out, as
    /// [`Crew::is_out`] or [`Crew::shut`] says.
    pub(super) fn begin(&self, job: Job) -> u64 {
        // SAFETY: the caller has the claim, and waited for every worker of the last region: none reads `job`.
        self.job.with_mut(|to| unsafe { *to = Some(job) });
        self.publish()
    }

    /// Whether the worker has left the region, or may not enter it. After this it touches nothing of the region.
    pub(super) fn is_out(&self, worker: usize, region: u64) -> bool {
        self.desks[worker].0.done.load(Acquire) >= region || self.is_barred(worker)
    }

    /// Closes the region for a worker that is not in. False: it is in, and has to be waited for.
    pub(super) fn shut(&self, worker: usize, region: u64) -> bool {
        if self.desks[worker].0.at.load(Relaxed) >= region {
            return false;
        }
        self.closed[worker].0.store(region, Relaxed);
        fence(SeqCst);
        self.desks[worker].0.at.load(Relaxed) < region
    }

    /// Bars a worker from all regions to come, or lets it in again. Between two regions.
    pub(super) fn bar(&self, worker: usize, barred: bool) {
        // Before it, all regions are over.
        let until = if barred { BARRED } else { self.generation.0.load(Relaxed) };
        self.closed[worker].0.store(until, Relaxed);
        if !barred {
            // It may sleep, and the next region must wake it.
            self.rouse();
        }
    }

    pub(super) fn is_barred(&self, worker: usize) -> bool {
        self.closed[worker].0.load(Relaxed) == BARRED
    }

    /// How many workers are barred, and how many others were shut out of the last region.
    pub(super) fn num_missing(&self) -> (usize, usize) {
        let region = self.generation.0.load(Relaxed);
        let count = |closed: u64| self.closed.iter().filter(|door| door.0.load(Relaxed) == closed).count();
        (count(BARRED), if region == 0 { 0 } else { count(region) })
    }

    /// The first panic of a worker since the last call.
    pub(super) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Every worker ends.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.publish();
        self.rouse();
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn num_sleeping(&self) -> usize {
        self.sleeping.load(Relaxed)
    }

    /// Lets the workers see what was written before.
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

    /// Wakes who sleeps. Who was woken counts no longer, so that regions do not wake it again before it has a core.
    fn rouse(&self) {
        let mut beds = self.beds.lock().unwrap_or_else(PoisonError::into_inner);
        beds.asleep.fill(false);
        self.sleeping.store(0, Relaxed);
        drop(beds);
        self.wake.notify_all();
    }

    /// A worker's life.
    pub(super) fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_news(worker, seen);
            if self.stop.load(Relaxed) {
                return;
            }
            self.visit(worker, seen);
        }
    }

    /// Does its part of a region, unless it comes too late.
    fn visit(&self, worker: usize, region: u64) {
        let Desk { at, done } = &self.desks[worker].0;
        at.store(region, Relaxed);
        fence(SeqCst);
        // A region is over only when this worker left it or was shut out, of this one or of a later one.
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

    /// Waits until there is a region that is not `seen`: spins, then yields, then sleeps.
    fn wait_for_news(&self, worker: usize, seen: u64) -> u64 {
        let mut wait = Patience::default();
        while wait.count < SPINS + YIELDS && !self.is_barred(worker) {
            let generation = self.generation.0.load(Acquire);
            if generation != seen {
                return generation;
            }
            // Where another process has work for this core, idling on it helps nobody.
            if !wait.pause(self) {
                break;
            }
        }
        let mut beds = self.beds.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let barred = self.is_barred(worker);
            if !barred && !beds.asleep[worker] {
                beds.asleep[worker] = true;
                self.sleeping.fetch_add(1, Relaxed);
            }
            fence(SeqCst);
            let generation = self.generation.0.load(Acquire);
            let has_news = generation != seen && !barred;
            if has_news || self.stop.load(Relaxed) {
                if std::mem::take(&mut beds.asleep[worker]) {
                    self.sleeping.fetch_sub(1, Relaxed);
                }
                return generation;
            }
            beds = self.wake.wait(beds).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How long a thread has waited, in pauses.
#[derive(Default)]
pub(super) struct Patience {
    pub(super) count: u32,
    /// Others want this core.
    contended: bool,
}

impl Patience {
    /// Whether a worker that is not in yet has had its moment.
    pub(super) fn is_out_of_grace(&self) -> bool {
        self.count >= GRACE
    }

    /// A pause at first, then a yield. False once others want the core: whoever yields there gives up a turn each time,
    /// while a sleeper keeps what it did not use and comes back at once. They show themselves in a yield; for a while
    /// after that nobody yields again to find out, and nobody spins for long.
    fn pause(&mut self, crew: &Crew) -> bool {
        self.count = self.count.saturating_add(1);
        if self.count < SPINS {
            if self.count == SPINS / 4 {
                let last = crew.contended.load(Relaxed);
                self.contended = last > 0 && sync::now().saturating_sub(last) < CONTENDED;
            }
            sync::spin();
        } else if sync::yield_now() {
            self.contended = true;
            crew.contended.store(sync::now().max(1), Relaxed);
        }
        !self.contended
    }

    /// The same for who has to wait, however long it takes: where others want the core it naps.
    pub(super) fn wait(&mut self, crew: &Crew) {
        if self.contended {
            self.count = self.count.max(SPINS);
            sync::nap();
        } else {
            self.pause(crew);
        }
    }
}
