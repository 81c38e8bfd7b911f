//! CPU time that a pool's threads lost: time in which they were runnable and other processes ran.
//!
//! ```text
//! thread 0  |=====|........|======|     = running   . runnable, another process has the core: counted by the kernel
//! thread 1  |==============|......|
//! ```
//! Each thread opens its counter once; the reader reads them all, about 0.3 us each, at no cost to the threads. A wait
//! in progress does not count. Where the system keeps no counters, the result is unknown.

use super::steal::StealCounter;
use super::sync::now;
use crate::cpu_time::QueueWait;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// CPU time lost by threads since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostCpuTime {
    /// Of the thread that starts the regions.
    pub caller: Duration,
    /// Of the thread that lost most.
    pub most: Duration,
    /// Of all threads together.
    pub all: Duration,
    /// Upper bound of the time that no thread's counter shows: of threads absent from the last region, which may still
    /// wait for their cores, and time that a hypervisor took from the cores.
    pub unseen: Duration,
}

/// The counters of a pool's threads.
#[derive(Debug, Default)]
pub(super) struct CpuTimeMeter(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    threads: Vec<ThreadCounter>,
    steal: Option<StealCounter>,
    /// Time of the last reading, by [`now`].
    asked: u64,
}

#[derive(Debug)]
struct ThreadCounter {
    thread: usize,
    wait: QueueWait,
    /// Counter at the last reading.
    seen: Duration,
}

impl CpuTimeMeter {
    /// Sets the cores of the threads.
    pub(super) fn cores(&self, cpus: &[usize]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).steal = StealCounter::of(cpus);
    }

    /// Registers the calling thread as thread `thread` of the pool.
    pub(super) fn begin(&self, thread: usize) {
        let counter = QueueWait::of_this_thread().and_then(|wait| {
            let seen = wait.read()?;
            Some(ThreadCounter { thread, wait, seen })
        });
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.threads.retain(|other| other.thread != thread);
        counters.threads.extend(counter);
    }

    /// Time lost since the last call; `None` unless all `threads` are registered. `barred`: threads excluded because of
    /// load, which wait for no core. `absent`: threads that missed the last region.
    pub(super) fn lost(&self, threads: usize, barred: usize, absent: usize) -> Option<LostCpuTime> {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counters.threads.len() < threads {
            return None;
        }
        let now = now();
        let elapsed = Duration::from_nanos(now - std::mem::replace(&mut counters.asked, now));
        let taken = counters.steal.as_mut().map_or(Duration::ZERO, StealCounter::since_last);
        let mut sum = LostCpuTime { unseen: elapsed * absent as u32 + taken, ..LostCpuTime::default() };
        sum.all = elapsed * barred as u32;
        for ThreadCounter { thread, wait, seen } in &mut counters.threads {
            let now = wait.read()?;
            // A wait that began long ago counts in full only when it ends.
            let lost = now.saturating_sub(*seen).min(elapsed);
            *seen = now;
            sum.most = sum.most.max(lost);
            sum.all += lost;
            if *thread == 0 {
                sum.caller = lost;
            }
        }
        sum.all = sum.all.min(elapsed * threads as u32);
        Some(sum)
    }
}
