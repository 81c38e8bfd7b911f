//! The engine's time: it runs while the engine may, and stops while a client holds the engine.
//!
//! ```text
//! the machine's    0 ----- 5 ===== 9 -------- 14 === 16 ----> nanoseconds since the start
//! the engine's     0 ----- 5       5 -------- 10     10 ---->
//!                          held 4             held 2
//! ```
//!
//! Time is an argument everywhere below: this is where it comes from. A hold is no event for the scheduler, the ledger,
//! a recording or a simulation: nothing happens in it, no target runs, and no request is late because of it. To show a
//! hold, ask [`Clock::held`]; for the machine's times, [`Clock::since_start`]; for those of a wall clock,
//! [`Clock::unix`] (`wall_clock.rs`).

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use model::ExpertMemory;
use protocol::Nanos;

use crate::wall_clock::{UnixNanos, WallClock};

/// Memory for the experts of a mixture, with the clock by which steps are measured.
pub fn expert_memory(bytes: u64) -> ExpertMemory {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    ExpertMemory { bytes, now: || START.elapsed() }
}

/// Holds that are remembered one by one; of older ones only the sum.
const KEPT_HOLDS: usize = 1024;

/// Monotonic time since the engine started, without what it was held. Clones show the same.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    holds: Mutex<Holds>,
    wall: Mutex<WallClock>,
}

#[derive(Debug)]
enum Source {
    Machine(Instant),
    /// Tests say what time it is.
    #[cfg(test)]
    Scripted(Arc<std::sync::atomic::AtomicU64>),
}

impl Source {
    fn now(&self) -> u64 {
        match self {
            Source::Machine(start) => start.elapsed().as_nanos() as u64,
            #[cfg(test)]
            Source::Scripted(nanos) => nanos.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    /// What both clocks show; `None` if so much time went by between the two looks that they say nothing of each other.
    fn both(&self) -> Option<(u64, UnixNanos)> {
        let before = self.now();
        let unix = match self {
            Source::Machine(_) => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
            }
            #[cfg(test)]
            Source::Scripted(_) => before,
        };
        (self.now() - before <= SAME_MOMENT).then_some((before, UnixNanos(unix)))
    }
}

/// Two looks at clocks that were not further apart were at one moment, nanoseconds.
const SAME_MOMENT: u64 = 10_000_000;

#[derive(Debug, Default)]
struct Holds {
    /// Where the machine's clock was when the hold began that lasts.
    since: Option<u64>,
    /// What all ended holds took.
    held: u64,
    /// Of ended holds: when, on the engine's clock, and what all took until then.
    ended: VecDeque<(Nanos, u64)>,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock::of(Source::Machine(Instant::now()))
    }

    fn of(source: Source) -> Clock {
        // A machine too busy for a close pair of readings is asked again at the next use.
        let (machine, unix) = (0..100).find_map(|_| source.both()).unwrap_or_default();
        Clock(Arc::new(Inner { source, holds: Mutex::default(), wall: Mutex::new(WallClock::anchored(machine, unix)) }))
    }

    pub(crate) fn now(&self) -> Nanos {
        let holds = self.holds();
        Nanos(holds.since.unwrap_or_else(|| self.0.source.now()) - holds.held)
    }

    /// The engine's time, and for how long the engine was held until now.
    pub(crate) fn now_and_held(&self) -> (Nanos, Nanos) {
        let holds = self.holds();
        let machine = self.0.source.now();
        let now = holds.since.unwrap_or(machine) - holds.held;
        (Nanos(now), Nanos(machine - now))
    }

    /// For how long the engine was held until now.
    pub(crate) fn held(&self) -> Nanos {
        self.now_and_held().1
    }

    pub(crate) fn hold(&self) {
        let mut holds = self.holds();
        let now = self.0.source.now();
        holds.since.get_or_insert(now);
    }

    pub(crate) fn let_go(&self) {
        let mut holds = self.holds();
        let Some(since) = holds.since.take() else { return };
        let at = Nanos(since - holds.held);
        holds.held += self.0.source.now() - since;
        let held = holds.held;
        match holds.ended.back_mut() {
            // Steps that are made one by one take hardly any time; holds at one moment are one hold.
            Some(last) if last.0 == at => last.1 = held,
            _ => {
                if holds.ended.len() == KEPT_HOLDS {
                    holds.ended.pop_front();
                }
                holds.ended.push_back((at, held));
            }
        }
    }

    /// What the machine's clock showed, from the start of the engine, at a moment of the engine's; at the moment of a
    /// hold, when that began.
    pub(crate) fn since_start(&self, at: Nanos) -> Nanos {
        let holds = self.holds();
        let before = holds.ended.partition_point(|hold| hold.0 < at);
        let held = before.checked_sub(1).map_or(0, |last| holds.ended[last].1);
        Nanos(at.0 + held)
    }

    /// What a clock on the wall showed at a moment of the engine's; at the moment of a hold, when that began.
    pub(crate) fn unix(&self, at: Nanos) -> UnixNanos {
        let machine = self.since_start(at).0;
        self.look().at(machine)
    }

    /// Looks whether the wall clock was set meanwhile. The more often it is called, the more exactly the jump is dated.
    pub(crate) fn look(&self) -> MutexGuard<'_, WallClock> {
        let both = self.0.source.both();
        let mut wall = self.0.wall.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((machine, unix)) = both {
            wall.look(machine, unix);
        }
        wall
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Clock {
    /// A clock over what `nanos` holds.
    pub(crate) fn scripted(nanos: Arc<std::sync::atomic::AtomicU64>) -> Clock {
        Clock::of(Source::Scripted(nanos))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn it_stands_while_the_engine_is_held() {
        let machine = Arc::new(AtomicU64::new(0));
        let clock = Clock::scripted(machine.clone());
        let mut shown = Vec::new();
        for (at, what) in
            [(5, "hold"), (7, "hold"), (9, "let go"), (14, "hold"), (16, "let go"), (20, ""), (20, "let go")]
        {
            machine.store(at, Ordering::Relaxed);
            match what {
                "hold" => clock.hold(),
                "let go" => clock.let_go(),
                _ => {}
            }
            shown.push((at, clock.now().0, clock.held().0));
        }
        assert_eq!(shown, [(5, 5, 0), (7, 5, 2), (9, 5, 4), (14, 10, 4), (16, 10, 6), (20, 14, 6), (20, 14, 6)]);
        let machine: Vec<u64> = [0, 5, 6, 10, 11, 14].map(|at| clock.since_start(Nanos(at)).0).to_vec();
        assert_eq!(machine, [0, 5, 10, 14, 17, 20]);
        assert_eq!(clock.unix(Nanos(11)).0, 17, "people's clocks go on meanwhile");
    }

    #[test]
    fn old_holds_are_forgotten_one_by_one() {
        let machine = Arc::new(AtomicU64::new(0));
        let clock = Clock::scripted(machine.clone());
        for _ in 0..2 * KEPT_HOLDS {
            machine.fetch_add(1, Ordering::Relaxed);
            clock.hold();
            machine.fetch_add(1, Ordering::Relaxed);
            clock.let_go();
        }
        assert_eq!((clock.now().0, clock.held().0), (2 * KEPT_HOLDS as u64, 2 * KEPT_HOLDS as u64));
        assert_eq!(clock.since_start(clock.now()), Nanos(4 * KEPT_HOLDS as u64 - 1), "the last hold is at this moment");
        assert_eq!(clock.holds().ended.len(), KEPT_HOLDS);
    }
}
