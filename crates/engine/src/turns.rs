//! The cores, which the engines of several models in one process take in turns: a step each.
//!
//! ```text
//! model A   [step]              [step]         each asks with the moment its next token is due
//! model B          wait [step]         [step]  the earliest goes first; equal ones in the order they asked
//! ```
//!
//! What engines run at once on the same cores makes both slower than in turns, and neither's steps can be predicted. An
//! engine alone on its cores takes no turns. While another has work, a step is also bounded by the moment at
//! which the next token of the other is due ([`Seat::others_due`]), so that no model's prompt breaks another's stream.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Beyond this a deadline says no more than that there is time.
const FAR: Duration = Duration::from_secs(1);

/// The order of the engines of one process; clones are of the same. The default is an engine's alone.
#[derive(Clone, Debug, Default)]
pub struct Turns(Option<Arc<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next_ticket: u64,
    is_taken: bool,
    /// Who waits: when its next token is due, and in which order it asked.
    waiting: Vec<(Instant, u64)>,
    /// By engine that has work with a target: when its next token is due.
    due: Vec<(u64, Instant)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// Of engines that share the cores.
    pub fn shared() -> Turns {
        Turns(Some(Arc::default()))
    }

    /// A seat for one engine.
    pub(crate) fn seat(&self) -> Option<Seat> {
        let shared = self.0.clone()?;
        let mut state = shared.state();
        state.next_ticket += 1;
        let name = state.next_ticket;
        drop(state);
        Some(Seat { shared, name })
    }
}

/// The place of one engine among those that share the cores.
#[derive(Debug)]
pub(crate) struct Seat {
    shared: Arc<Shared>,
    name: u64,
}

impl Seat {
    /// Waits for the cores. `due`: in how long its next token is due; `None`: as soon as it can be. One that is late
    /// goes before none that asked earlier, or it would keep the cores for as long as it is late.
    pub(crate) fn take(&self, due: Option<Duration>) -> Turn {
        let now = Instant::now();
        self.renew(due);
        let mut state = self.shared.state();
        state.next_ticket += 1;
        let own = (now + due.unwrap_or_default().min(FAR), state.next_ticket);
        state.waiting.push(own);
        let mut waits = false;
        while state.is_taken || state.waiting.iter().min() != Some(&own) {
            waits = true;
            state = self.shared.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.retain(|other| *other != own);
        state.is_taken = true;
        drop(state);
        // What the machine took of this thread is no other engine's.
        let waited = if waits { now.elapsed() } else { Duration::ZERO };
        Turn { shared: self.shared.clone(), waited }
    }

    /// The cores, if no other engine has them or waits for them.
    pub(crate) fn take_idle(&self) -> Option<Turn> {
        let mut state = self.shared.state();
        if state.is_taken || !state.waiting.is_empty() {
            return None;
        }
        state.is_taken = true;
        Some(Turn { shared: self.shared.clone(), waited: Duration::ZERO })
    }

    /// Its next token is due in so long; `None`: it has no work, or none with a target.
    pub(crate) fn renew(&self, due: Option<Duration>) {
        let mut state = self.shared.state();
        state.due.retain(|(name, _)| *name != self.name);
        state.due.extend(due.map(|due| (self.name, Instant::now() + due.min(FAR))));
    }

    /// In how long the next token of another engine is due.
    pub(crate) fn others_due(&self) -> Option<Duration> {
        let state = self.shared.state();
        let others = state.due.iter().filter(|(name, _)| *name != self.name);
        let next = others.map(|(_, due)| *due).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.renew(None);
    }
}

/// The cores are an engine's until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    shared: Arc<Shared>,
    /// How long it waited for them.
    pub(crate) waited: Duration,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared.state().is_taken = false;
        self.shared.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Waits until as many wait for the cores.
    fn until_waiting(seat: &Seat, count: usize) {
        while seat.shared.state().waiting.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn the_earliest_due_goes_first_and_equal_ones_in_the_order_they_asked() {
        let turns = Turns::shared();
        let holder = turns.seat().unwrap();
        let turn = holder.take(None);
        assert_eq!(turn.waited, Duration::ZERO, "no other had them");
        let (told, order) = channel();
        let far = [700, 300, 500, 300].map(Duration::from_millis);
        let asked = far.into_iter().enumerate().map(|(at, due)| {
            let (seat, told) = (turns.seat().unwrap(), told.clone());
            let asked = thread::spawn(move || {
                let turn = seat.take(Some(due));
                told.send(at).unwrap();
                drop(turn);
            });
            until_waiting(&holder, at + 1);
            asked
        });
        let asked: Vec<_> = asked.collect();
        assert!(holder.take_idle().is_none(), "who has nothing to do takes no place of others");
        drop(turn);
        asked.into_iter().for_each(|asked| asked.join().unwrap());
        let order: Vec<usize> = order.try_iter().collect();
        // The second of the two with 300 ms asked a moment later.
        assert_eq!(order, [1, 3, 2, 0]);
        assert!(holder.take_idle().is_some());
    }

    #[test]
    fn one_without_a_target_is_not_passed_for_longer_than_the_others_have_time() {
        let turns = Turns::shared();
        let [with, without] = [turns.seat().unwrap(), turns.seat().unwrap()];
        // Both have work all the time: neither waits for more than one turn of the other once its moment has come.
        let (told, order) = channel();
        let loops = [(with, Some(Duration::from_millis(3)), 'a'), (without, None, 'b')];
        let threads = loops.map(|(seat, due, name)| {
            let told = told.clone();
            thread::spawn(move || {
                for _ in 0..50 {
                    let turn = seat.take(due);
                    thread::sleep(Duration::from_millis(1));
                    told.send(name).unwrap();
                    drop(turn);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let order: String = order.try_iter().collect();
        assert_eq!(order.len(), 100);
        let first_50 = &order[..50];
        assert!(first_50.contains('a') && first_50.contains('b'), "{order}");
    }

    #[test]
    fn a_deadline_is_known_to_the_others_while_there_is_work() {
        let turns = Turns::shared();
        let [a, b] = [turns.seat().unwrap(), turns.seat().unwrap()];
        assert_eq!(b.others_due(), None);
        drop(a.take(Some(Duration::from_secs(3600))));
        let due = b.others_due().expect("a has work");
        assert!(due <= FAR && due > FAR / 4, "{due:?}");
        assert_eq!(a.others_due(), None, "its own is no other's");
        drop(a.take(None));
        assert_eq!(b.others_due(), None, "without a target it is due at no moment");
        a.renew(Some(Duration::from_millis(20)));
        assert!(b.others_due().is_some());
        a.renew(None);
        assert_eq!(b.others_due(), None);
        a.renew(Some(FAR));
        drop(a);
        assert_eq!(b.others_due(), None, "it is gone");
        assert!(Turns::default().seat().is_none(), "one alone takes no turns");
    }
}
