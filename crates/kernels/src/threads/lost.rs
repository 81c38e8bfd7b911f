//! What the machine took of a pool's threads: the time in which they could have run, and others did.
//!
//! ```text
//! thread 0  |=====|........|======|     = runs   . ready, and another process has the core: counted by the kernel
//! thread 1  |==============|......|
//! ```
//! Each thread opens its counter once; whoever asks reads them all, some 0.3 us each, and the threads pay nothing. A
//! wait that is not over yet does not count. Where the system counts nothing, nobody is asked and nothing is known.

use super::sync::now;
use crate::disturbed::QueueWait;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What the machine took of threads since somebody asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostTime {
    /// Of the thread that asks work of the others.
    pub caller: Duration,
    /// Of the thread that lost most.
    pub most: Duration,
    /// Of all together.
    pub all: Duration,
    /// What the kernel has not counted yet, at most: of threads that were not in the last region, and may wait for
    /// their cores still.
    pub unseen: Duration,
}

/// The counters of a pool's threads.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Watching>);

#[derive(Debug, Default)]
struct Watching {
    threads: Vec<Watched>,
    /// When somebody asked last, by [`now`].
    asked: u64,
}

#[derive(Debug)]
struct Watched {
    thread: usize,
    wait: QueueWait,
    /// When somebody asked last.
    seen: Duration,
}

impl Watch {
    /// From now on the calling thread is thread `thread` of the pool.
    pub(super) fn begin(&self, thread: usize) {
        let watched = QueueWait::of_this_thread().and_then(|wait| {
            let seen = wait.read()?;
            Some(Watched { thread, wait, seen })
        });
        let mut watching = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watching.threads.retain(|other| other.thread != thread);
        watching.threads.extend(watched);
    }

    /// What was lost since the last call; `None` unless all `threads` are known. `barred`: threads that the machine's
    /// load keeps out of the work, and who therefore wait for no core. `absent`: those that just were not there.
    pub(super) fn lost(&self, threads: usize, barred: usize, absent: usize) -> Option<LostTime> {
        let mut watching = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watching.threads.len() < threads {
            return None;
        }
        let now = now();
        let elapsed = Duration::from_nanos(now - std::mem::replace(&mut watching.asked, now));
        let mut sum = LostTime { unseen: elapsed * absent as u32, ..LostTime::default() };
        sum.all = elapsed * barred as u32;
        for Watched { thread, wait, seen } in &mut watching.threads {
            let now = wait.read()?;
            // A wait that began long ago is counted when it ends.
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
