//! What the machine took of a pool's threads: the time in which they could have run, and others did.
//!
//! ```text
//! thread 0  |=====|........|======|     = runs   . ready, and another process has the core: counted by the kernel
//! thread 1  |==============|......|
//! ```
//! Each thread opens its counter once; whoever asks reads them all, some 0.3 us each, and the threads pay nothing. A
//! wait that is not over yet does not count. Where the system counts nothing, nobody is asked and nothing is known.

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
}

/// The counters of a pool's threads.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Vec<Watched>>);

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
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|other| other.thread != thread);
        threads.extend(watched);
    }

    /// What was lost since the last call; `None` unless all `threads` are known.
    pub(super) fn lost(&self, threads: usize) -> Option<LostTime> {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.len() < threads {
            return None;
        }
        let mut sum = LostTime::default();
        for Watched { thread, wait, seen } in &mut *watched {
            let now = wait.read()?;
            let lost = now.saturating_sub(*seen);
            *seen = now;
            sum.most = sum.most.max(lost);
            sum.all += lost;
            if *thread == 0 {
                sum.caller = lost;
            }
        }
        Some(sum)
    }
}
