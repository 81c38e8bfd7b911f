//! What the machine took of a pool's time: cores on which other processes ran while the pool had work for them.
//!
//! ```text
//! caller  |=====|........|======|~~|     = working   . runnable, another process has the core   ~ waiting for others
//! worker  |==============|.........|
//! ```
//! No prediction is asked. Each thread has a clock of the time that it ran, the kernel counts how long it was runnable
//! without a core, and the threads themselves time their long waits ([`LongWaits`]). What is left is work:
//!
//! - Shared evenly by all threads, it would have taken the *mean* of their work: the shortest that the time can have been
//!   without the machine's part. What the caller did alone, while workers rested, counts whole. What a thread that gets its
//!   core back needs to fill its caches again ([`COLD`]) may be part of that work, or not.
//! - It was at most the *largest* work of one thread: others did not make it do less. (One thread of two that computes
//!   alone takes less than twice as long where memory is the limit.)
//!
//! The machine took between elapsed time less the one and less the other, and nothing where no thread lost a core.
//! Reading costs two system calls for each thread, about 0.5 us; the threads pay nothing. A long wait costs its thread two
//! system calls.

use super::steal::StealCounter;
use super::sync::{cpu_now, now};
use super::worker_set::Padded;
use crate::cpu_time::{QueueWait, ThreadClock};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Nanoseconds in which a core fills its caches again: 5 MiB at 5 GB/s, beside others.
const COLD: u64 = 1_000_000;

/// What the machine took since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostCpuTime {
    /// How long the thread that starts the regions was runnable without a core.
    pub caller: Duration,
    /// The same of the thread that lost most.
    pub most: Duration,
    /// By how much the work came late: at least, and at most.
    pub delay: [Duration; 2],
}

/// CPU time, in nanoseconds, that one thread of a pool spent in waits that outlast the gaps within a step.
#[derive(Debug, Default)]
pub(super) struct LongWaits {
    spent: AtomicU64,
    /// The thread's CPU time when the wait in progress began; zero: none is in progress.
    since: AtomicU64,
}

impl LongWaits {
    /// The calling thread's wait has become long, if it was not before.
    #[cold]
    pub(super) fn begin(&self) {
        if self.since.load(Relaxed) == 0 {
            self.since.store(cpu_now().max(1), Relaxed);
        }
    }

    /// The calling thread goes on.
    pub(super) fn end(&self) {
        let since = self.since.load(Relaxed);
        if since > 0 {
            self.spent.fetch_add(cpu_now().saturating_sub(since), Relaxed);
            self.since.store(0, Relaxed);
        }
    }

    /// In all, of a thread that has run for `ran`.
    fn read(&self, ran: u64) -> u64 {
        let since = self.since.load(Relaxed);
        self.spent.load(Relaxed) + if since > 0 { ran.saturating_sub(since) } else { 0 }
    }
}

/// The counters of a pool's threads.
#[derive(Debug, Default)]
pub(super) struct CpuTimeMeter(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    threads: Vec<ThreadCounter>,
    /// Of the last reading, by thread.
    read: Vec<ThreadTime>,
    steal: Option<StealCounter>,
    /// Time of the last reading, by [`now`].
    asked: u64,
}

#[derive(Debug)]
struct ThreadCounter {
    thread: usize,
    queue: QueueWait,
    clock: ThreadClock,
    /// At the last reading.
    seen: ThreadTime,
}

/// Nanoseconds of a thread, in all or of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadTime {
    ran: u64,
    /// Runnable without a core; a wait in progress does not count.
    queued: u64,
    /// How often it was given a core.
    slices: u64,
    /// In long waits, of `ran`.
    waited: u64,
    /// It missed the last region, so that a wait for its core may be in progress, or is excluded because of load.
    is_away: bool,
}

impl ThreadTime {
    fn work(&self) -> u64 {
        self.ran.saturating_sub(self.waited)
    }

    /// What its caches may have cost it, which others used meanwhile: nothing where it lost no core for long, and no more
    /// than that the work took half as long again, which is what memory makes of it in place of caches.
    fn cold(&self, elapsed: u64) -> u64 {
        (self.slices * COLD).min(self.lost(elapsed) / 4).min(self.work() / 3)
    }

    /// Without a core. A wait that began earlier ends in this interval, and then counts in full.
    fn lost(&self, elapsed: u64) -> u64 {
        self.queued.min(elapsed.saturating_sub(self.ran))
    }
}

impl ThreadCounter {
    fn read(&self, waits: &LongWaits) -> Option<ThreadTime> {
        let ((queued, slices), ran) = (self.queue.read()?, nanos(self.clock.read()?));
        Some(ThreadTime { ran, queued: nanos(queued), slices, waited: waits.read(ran), is_away: false })
    }
}

impl CpuTimeMeter {
    /// Sets the cores of the threads.
    pub(super) fn cores(&self, cpus: &[usize]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).steal = StealCounter::of(cpus);
    }

    /// Registers the calling thread as thread `thread` of the pool.
    pub(super) fn begin(&self, thread: usize) {
        let counter = QueueWait::of_this_thread().zip(ThreadClock::of_this_thread()).and_then(|(queue, clock)| {
            let mut counter = ThreadCounter { thread, queue, clock, seen: ThreadTime::default() };
            counter.seen = counter.read(&LongWaits::default())?;
            Some(counter)
        });
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.threads.retain(|other| other.thread != thread);
        counters.threads.extend(counter);
    }

    /// What the machine took since the last call; `None` unless a thread for each of `waits` is registered. `is_away`: whether
    /// a thread missed the last region.
    pub(super) fn lost(&self, waits: &[Padded<LongWaits>], is_away: impl Fn(usize) -> bool) -> Option<LostCpuTime> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counters { threads, read, steal, asked } = &mut *guard;
        if threads.len() < waits.len() {
            return None;
        }
        let now = now();
        let elapsed = now - std::mem::replace(asked, now);
        let stolen = nanos(steal.as_mut().map_or(Duration::ZERO, StealCounter::since_last));
        read.clear();
        read.resize(waits.len(), ThreadTime::default());
        for counter in threads {
            let Some(waits) = waits.get(counter.thread) else { continue };
            let now = counter.read(&waits.0)?;
            let seen = std::mem::replace(&mut counter.seen, now);
            read[counter.thread] = ThreadTime {
                ran: (now.ran - seen.ran.min(now.ran)).min(elapsed),
                queued: now.queued - seen.queued.min(now.queued),
                slices: now.slices.saturating_sub(seen.slices),
                waited: now.waited.saturating_sub(seen.waited),
                is_away: is_away(counter.thread),
            };
        }
        let lost = |time: &ThreadTime| Duration::from_nanos(time.lost(elapsed));
        Some(LostCpuTime {
            caller: lost(&read[0]),
            most: read.iter().map(lost).max().unwrap_or_default(),
            delay: delay(elapsed, stolen, read).map(Duration::from_nanos),
        })
    }
}

/// By how much the work of these threads, the first of which is the caller, came late within `elapsed`: at least, and at
/// most. `stolen`: what a hypervisor took of the cores.
fn delay(elapsed: u64, stolen: u64, threads: &[ThreadTime]) -> [u64; 2] {
    let [caller, workers @ ..] = threads else { return [0; 2] };
    let missing = |time: &ThreadTime| if time.is_away { elapsed - time.ran } else { time.lost(elapsed) };
    let most = threads.iter().map(missing).fold(stolen, u64::saturating_add).min(elapsed);
    if most == 0 {
        return [0; 2];
    }
    // While all workers rest and the caller works, there is only its work.
    let rest = |time: &ThreadTime| elapsed.saturating_sub(time.work() + time.lost(elapsed));
    let rests = workers.iter().filter(|time| !time.is_away).map(rest).min().unwrap_or(0);
    let idle = elapsed.saturating_sub(caller.work());
    let alone = rests.saturating_sub(idle + stolen);
    let all: u64 = threads.iter().map(ThreadTime::work).sum();
    let mean = (all + alone * workers.len() as u64) / threads.len() as u64;
    let largest = threads.iter().map(ThreadTime::work).max().unwrap_or(0).max(mean);
    let cold = threads.iter().map(|time| time.cold(elapsed)).sum::<u64>() / threads.len() as u64;
    [(largest, 0), (mean, cold)].map(|(own, cold)| (elapsed.saturating_sub(own).min(most) + cold).min(elapsed))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_came_late_by_what_threads_did_not_work_together() {
        let time = |[ran, queued, waited]: [u64; 3]| ThreadTime { ran, queued, waited, ..ThreadTime::default() };
        let cold = |slices| ThreadTime { slices, ..time([600, 400, 0]) };
        let away = |ran| ThreadTime { ran, is_away: true, ..ThreadTime::default() };
        let cases = [
            // of 1000, ran, runnable and in long waits: what came late by, at least and at most
            ("quiet", 0, vec![time([1000, 0, 0]), time([999, 0, 0])], [0, 0]),
            ("quiet, and half of it the caller's alone", 0, vec![time([1000, 0, 0]), time([600, 0, 100])], [0, 0]),
            ("quiet, one thread", 0, vec![time([990, 0, 0])], [0, 0]),
            ("one thread lost its core", 0, vec![time([700, 300, 0])], [300, 300]),
            (
                "the caller lost its core, and the worker slept",
                0,
                vec![time([700, 300, 0]), time([700, 0, 0])],
                [300, 300],
            ),
            ("the same, and it spun", 0, vec![time([700, 300, 0]), time([1000, 0, 300])], [300, 300]),
            ("the worker did, and was waited for", 0, vec![time([1000, 0, 300]), time([700, 300, 0])], [300, 300]),
            ("the worker did, and the caller did its work", 0, vec![time([1000, 0, 0]), time([600, 400, 0])], [0, 200]),
            ("a worker waits for its core still", 0, vec![time([1000, 0, 0]), away(0)], [0, 500]),
            ("a wait that began long before", 0, vec![time([1000, 0, 0]), time([1000, 9000, 0])], [0, 0]),
            (
                "both lost; what was the caller's alone is not known",
                0,
                vec![time([600, 400, 0]), time([300, 400, 0])],
                [400, 550],
            ),
            ("one thread lost its core, and its caches", 0, vec![cold(1)], [400, 500]),
            ("a hypervisor took both cores", 300, vec![time([700, 0, 0]), time([700, 0, 0])], [300, 300]),
        ];
        for (what, stolen, threads, want) in cases {
            assert_eq!(delay(1000, stolen, &threads), want, "{what}");
        }
    }
}
