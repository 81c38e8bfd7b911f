//! A pool of pinned threads for fork-join regions of a few microseconds.
//!
//! ```text
//! caller    run(f): publish f, f(0), ........ wait for the others, return
//! worker 1          see it,    f(1), done | spin a little, yield a while, then sleep until the next region
//! worker 2          see it,    f(2), done | ...
//! ```
//! A layer of a transformer is five such regions, so waking through the operating system each time (~50 us) would
//! cost more than the work. An idle server must not burn a core either: after about a millisecond a worker sleeps.
//!
//! The caller is thread 0. A panic inside a region is carried to the caller once every thread has left the region.
//!
//! There is one region at a time: whoever wants to run one must hold the pool's [`Claim`], and what a region shares is
//! touched through the claim alone. `loom` goes through the interleavings of all this in `threads/model.rs`.

mod lost;
#[cfg(all(test, loom))]
mod model;
mod sync;

pub use lost::LostTime;

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, PoisonError};

use lost::Watch;
use sync::{AtomicBool, AtomicU32, AtomicUsize, Condvar, JoinHandle, Mutex, UnsafeCell, fence};

/// Pauses before a waiting thread begins to yield: about 100 us, longer than the gaps within a step. (Four times as
/// many halve the yields of a quiet machine, but threads that share a core with others then spin away what they could
/// leave.)
const SPINS: u32 = if cfg!(any(loom, miri)) { 0 } else { 4096 };
/// Yields before an idle worker sleeps: about a millisecond on an otherwise idle core.
const YIELDS: u32 = if cfg!(any(loom, miri)) { 1 } else { 2048 };

/// Which part of a share is handed out in pieces at the end, and in how many: see [`Pool::shares`].
const TAIL_SHARE: usize = 8;
const TAIL_PIECES: usize = 8;

/// A pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// A thread that shares its core with another is worse than no thread: the others wait for it in every region.
    #[error("{asked} threads were asked for, but this process may use {allowed} cores (CPU affinity and cgroup quota)")]
    TooMany {
        /// Threads asked for.
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

/// Two cache lines, since the hardware prefetches lines in pairs.
#[repr(align(128))]
struct Padded<T>(T);

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts regions; a change tells the workers to read `job`.
    generation: Padded<AtomicU32>,
    /// Workers still inside the region.
    active: Padded<AtomicUsize>,
    /// Workers asleep, or about to be.
    sleeping: AtomicUsize,
    /// Written by the caller while no worker is active, read by the workers after `generation` changed.
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleep: Mutex<()>,
    wake: Condvar,
    watch: Watch,
}

// SAFETY: `job` is the only field that is not Sync. Who holds the pool's claim writes it before the release store of
// `generation` and only while `active` is 0; workers read it after the acquire load that saw the change.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only followed during the region whose caller keeps the closure alive.
unsafe impl Send for Shared {}

/// Fork-join over pinned threads. One region at a time: a second caller, or a region inside a region, is a bug and
/// panics.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
    /// By thread: pieces of its share that are taken; see [`Pool::shares`].
    taken: Vec<Padded<AtomicUsize>>,
    cpus: Vec<usize>,
}

impl Pool {
    /// A pool of `threads`, the caller of [`Pool::run`] counted as one of them.
    pub fn new(threads: usize) -> Result<Pool, ThreadError> {
        let allowed = max_threads();
        if threads == 0 {
            return Err(ThreadError::None);
        }
        if threads > allowed {
            return Err(ThreadError::TooMany { asked: threads, allowed });
        }
        Ok(Pool::start(threads, cpus_by_core())?)
    }

    /// Starts the workers, each on one of `cpus`, the first of which is for the caller; further ones go where they
    /// like.
    fn start(threads: usize, cpus: Vec<usize>) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            generation: Padded(AtomicU32::new(0)),
            active: Padded(AtomicUsize::new(0)),
            sleeping: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            watch: Watch::default(),
        });
        let taken = (0..threads).map(|_| Padded(AtomicUsize::new(0))).collect();
        let mut pool = Pool { shared, workers: Vec::new(), busy: AtomicBool::new(false), taken, cpus };
        for thread in 1..threads {
            let shared = pool.shared.clone();
            let cpu = pool.cpus.get(thread).copied();
            let worker = sync::Builder::new().name(format!("kernels-{thread}")).spawn(move || {
                if let Some(cpu) = cpu {
                    pin_this_thread(cpu);
                    shared.watch.begin(thread);
                }
                work(&shared, thread);
            })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The cores that its threads run on, as far as the system says.
    pub(crate) fn cpus(&self) -> &[usize] {
        &self.cpus[..self.threads().min(self.cpus.len())]
    }

    /// Pins the calling thread to the core left free for thread 0, and counts what the machine takes of it. For a
    /// thread whose life is to call [`Pool::run`]; not automatic, because threads that it starts later would inherit
    /// the mask.
    pub fn pin_caller(&self) {
        if let Some(&cpu) = self.cpus.first() {
            pin_this_thread(cpu);
        }
        self.shared.watch.begin(0);
    }

    /// What the machine took of the threads since this was asked last. `None` where the system does not say, and before
    /// [`Pool::pin_caller`]. Costs a system call for each thread.
    pub fn lost(&self) -> Option<LostTime> {
        self.shared.watch.lost(self.threads())
    }

    /// Calls `f(thread)` once on every thread, `f(0)` on the caller, and returns when all are done.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return f(0);
        }
        self.claim().run(f);
    }

    /// The right to run a region. Panics where there is one.
    fn claim(&self) -> Claim<'_> {
        assert!(!self.busy.swap(true, Acquire), "a Pool runs one region at a time");
        Claim(self)
    }

    /// Calls `f(task)` once for every task in `0..count`, each on whichever thread is free: for uneven work.
    /// Results must not depend on who ran what.
    pub fn tasks(&self, count: usize, f: &(dyn Fn(usize) + Sync)) {
        if count <= 1 || self.workers.is_empty() {
            return (0..count).for_each(f);
        }
        let next = AtomicUsize::new(0);
        self.run(&|_| {
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= count {
                    break;
                }
                f(task);
            }
        });
    }

    /// Calls `f` for ranges that cover `0..count`: for even work that reads memory, which cores are not given evenly.
    /// Each thread takes [`share`], in every call the same (so it may lie near it); only the last eighth of each goes
    /// in pieces, the last of them to whoever is free. Results must not depend on who ran what.
    pub fn shares(&self, count: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let threads = self.threads();
        if threads == 1 {
            return f(0..count);
        }
        let tail = |thread| {
            let share = share(count, threads, thread);
            share.end - share.len() / TAIL_SHARE..share.end
        };
        let claim = self.claim(); // before anything that a region reads is touched: it may be somebody else's
        self.taken.iter().for_each(|taken| taken.0.store(0, Relaxed));
        claim.run(&|thread| {
            f(share(count, threads, thread).start..tail(thread).start);
            for owner in (thread..threads).chain(0..thread) {
                let tail = tail(owner);
                let piece = tail.len().div_ceil(TAIL_PIECES).max(1);
                loop {
                    let start = tail.start + self.taken[owner].0.fetch_add(1, Relaxed) * piece;
                    if start >= tail.end {
                        break;
                    }
                    f(start..tail.end.min(start + piece));
                }
            }
        });
    }
}

/// A region's time, while nobody else can have one. Ends when it is dropped.
struct Claim<'a>(&'a Pool);

impl Claim<'_> {
    /// [`Pool::run`], where there are workers.
    fn run(self, f: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.0.shared;
        // SAFETY: the lifetime is erased only until the end of this function: no worker is active after the wait below.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(f) };
        // SAFETY: this is the only claim, so the last region is over and no worker reads `job`.
        shared.job.with_mut(|to| unsafe { *to = Some(job) });
        shared.active.0.store(self.0.workers.len(), Relaxed);
        shared.publish();

        let mine = catch_unwind(AssertUnwindSafe(|| f(0)));
        let mut waited = 0u32;
        while shared.active.0.load(Acquire) != 0 {
            pause(&mut waited);
        }
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(self); // whoever catches the panic may run the next region
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.publish();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // a worker catches panics of jobs, so there is none to report
        }
    }
}

impl Shared {
    /// Lets the workers see what was written before.
    fn publish(&self) {
        self.generation.0.fetch_add(1, Release);
        // Either this load sees the sleeper, or the sleeper's check of `generation` (made after it was counted) sees
        // the new one: one of the two fences comes first.
        fence(SeqCst);
        if self.sleeping.load(Relaxed) > 0 {
            drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Waits until the generation is not `seen`: spins, then yields, then sleeps.
    fn wait_for_news(&self, seen: u32) -> u32 {
        let mut waited = 0u32;
        while waited < SPINS + YIELDS {
            let generation = self.generation.0.load(Acquire);
            if generation != seen {
                return generation;
            }
            pause(&mut waited);
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeping.fetch_add(1, Relaxed);
        fence(SeqCst);
        let generation = loop {
            let generation = self.generation.0.load(Acquire);
            if generation != seen {
                break generation;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleeping.fetch_sub(1, Relaxed);
        generation
    }
}

/// A worker's life.
fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    loop {
        seen = shared.wait_for_news(seen);
        if shared.stop.load(Relaxed) {
            return;
        }
        // SAFETY: the generation changed, so the caller has written `job` and writes no other until `active` is 0.
        let job = shared.job.with(|job| unsafe { *job }).expect("a region was published with its job");
        // SAFETY: the caller keeps the closure alive until `active` is 0, which this thread delays until it is done.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(thread) }));
        if let Err(panic) = result {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        shared.active.0.fetch_sub(1, Release);
    }
}

/// One step of waiting: a pause at first, later a yield, so that an oversubscribed machine still makes progress.
fn pause(waited: &mut u32) {
    if *waited < SPINS {
        std::hint::spin_loop();
    } else {
        sync::yield_now();
    }
    *waited = waited.saturating_add(1);
}

/// The share of thread `index` of `parts` in `0..count`: contiguous, sizes differ by at most one.
pub fn share(count: usize, parts: usize, index: usize) -> Range<usize> {
    count * index / parts..count * (index + 1) / parts
}

/// Most threads that a pool may have: cores in the affinity mask, or fewer by cgroup quota.
pub fn max_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Threads that a pool should have: one for each physical core it may use, since two hyperthreads of one core share
/// its vector units and its bandwidth.
pub fn default_threads() -> usize {
    let cpus = allowed_cpus();
    let cores = cpus.iter().filter(|&&cpu| first_sibling(cpu, &cpus)).count();
    match cores {
        0 => max_threads(),
        cores => cores.min(max_threads()),
    }
}

/// Allowed CPUs, one of each physical core first.
fn cpus_by_core() -> Vec<usize> {
    let cpus = allowed_cpus();
    let (mut first, second): (Vec<_>, Vec<_>) = cpus.iter().partition(|&&cpu| first_sibling(cpu, &cpus));
    first.extend(second);
    first
}

/// Whether `cpu` is the lowest allowed hyperthread of its core.
fn first_sibling(cpu: usize, allowed: &[usize]) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let Ok(siblings) = std::fs::read_to_string(path) else { return true };
    parse_cpu_list(&siblings).into_iter().find(|sibling| allowed.contains(sibling)).is_none_or(|lowest| lowest == cpu)
}

/// `0-2,8` -> 0 1 2 8. What is not a number is left out.
fn parse_cpu_list(list: &str) -> Vec<usize> {
    let parse = |text: &str| text.trim().parse::<usize>().ok();
    list.split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((low, high)) => Some(parse(low)?..=parse(high)?),
            None => parse(part).map(|cpu| cpu..=cpu),
        })
        .flatten()
        .collect()
}

#[cfg(target_os = "linux")]
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a cpu_set_t of zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size given.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: every index is below the set's capacity.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

#[cfg(target_os = "linux")]
fn pin_this_thread(cpu: usize) {
    // SAFETY: as in `allowed_cpus`; `cpu` came from there.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set); // a refusal costs speed only
    }
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
fn pin_this_thread(_cpu: usize) {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pools() -> impl Iterator<Item = Pool> {
        (1..=max_threads().min(4)).map(|threads| Pool::new(threads).unwrap())
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
        for pool in pools() {
            for count in [0, 1, 2, 3, 100, 1001] {
                let seen: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.tasks(count, &|task| {
                    seen[task].fetch_add(1, Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Relaxed) == 1), "{count} tasks");
            }
        }
    }

    #[test]
    fn shares_cover_every_index_once() {
        for pool in pools() {
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
                while pool.shared.sleeping.load(Relaxed) < pool.workers.len() {
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

    #[test]
    fn cpu_lists_of_the_kernel_are_understood() {
        assert_eq!(parse_cpu_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_cpu_list("3"), [3]);
        assert_eq!(parse_cpu_list(""), [] as [usize; 0]);
    }
}
