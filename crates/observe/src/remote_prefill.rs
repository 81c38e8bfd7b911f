//! Prompts that other workers read, seen from here: which worker, how far, and since when.
//!
//! ```text
//! left     asked        pulled                                            back
//!  |---------------------->| [ step ]   [  step  ] [ step ]                |     there
//!  |                       |       ' '            ' ' '      ' '           |     blocks, as they arrive  
//! ```
//!
//! Clocks of two machines are not compared. A worker reports its steps as times since it took the prompt in, and they
//! are added to the moment at which it was asked: they may be off by the time that the request was on its way.

use std::collections::VecDeque;

use ledger::Shares;
use protocol::{Nanos, RequestId};
use serde::{Deserialize, Serialize};

use crate::handoffs::HandoffOutcome;

/// Requests of which it is kept.
const KEPT: usize = 256;
/// Steps and landings of each. Of more landings every second one is forgotten, as often as it takes.
const MOST: usize = 512;

/// A prompt that was, or is, read by another worker. Moments are this engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePrefillTrace {
    /// When it left.
    pub from: Nanos,
    /// When it was back; `None` while it is away.
    pub to: Option<Nanos>,
    /// The prefill worker: `HOST:PORT`. `None` while several are asked, and where none reads it.
    pub worker: Option<String>,
    /// How it went; `None` while it is away.
    pub outcome: Option<HandoffOutcome>,
    /// That worker's steps with rows of it, known when it is back.
    pub steps: Vec<RemoteStep>,
    /// How many of its blocks had arrived here, and since when.
    pub received: Vec<(Nanos, usize)>,
}

/// A step of the worker that read a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteStep {
    /// When it began, as far as that is known here (see the module's picture).
    pub from: Nanos,
    /// When it was over.
    pub to: Nanos,
    /// Tokens of the prompt in it.
    pub rows: usize,
}

/// A step of the other worker, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteStepEntry {
    /// Nanoseconds from the moment at which it took the request in to the step's beginning.
    pub after: u64,
    /// Nanoseconds of the step.
    pub took: u64,
    /// Tokens of the prompt in it.
    pub rows: usize,
}

/// What is known of a prompt when no more of it comes.
#[derive(Clone, Debug)]
pub struct RemotePrefillResult {
    /// How it went.
    pub outcome: HandoffOutcome,
    /// What the prompt's time there was, of its first token.
    pub bill: Shares,
    /// The steps in which it was read there.
    pub steps: Vec<RemoteStepEntry>,
    /// How long after it left the worker was asked to read it.
    pub pulled: Nanos,
}

/// The newest of them.
#[derive(Debug, Default)]
pub struct RemotePrefillTraces {
    all: VecDeque<Entry>,
    changes: u64,
}

#[derive(Debug)]
struct Entry {
    request: RequestId,
    trace: RemotePrefillTrace,
    /// Number of its last change.
    changed: u64,
}

impl RemotePrefillTraces {
    /// A prompt is read elsewhere from now on.
    pub fn begin(&mut self, request: RequestId, now: Nanos) {
        if self.all.len() == KEPT {
            self.all.pop_front();
        }
        self.changes += 1;
        let trace = RemotePrefillTrace {
            from: now,
            to: None,
            worker: None,
            outcome: None,
            steps: Vec::new(),
            received: Vec::new(),
        };
        self.all.push_back(Entry { request, trace, changed: self.changes });
    }

    /// This worker reads it.
    pub fn set_worker(&mut self, request: RequestId, worker: &str) {
        self.change(request, |trace| trace.worker = Some(worker.to_owned()));
    }

    /// A block of it has come.
    pub fn receive(&mut self, request: RequestId, now: Nanos) {
        self.change(request, |trace| {
            let count = trace.received.last().map_or(0, |&(_, count)| count) + 1;
            match trace.received.last_mut() {
                Some(last) if last.0 == now => last.1 = count,
                _ => trace.received.push((now, count)),
            }
            if trace.received.len() > MOST {
                let mut at = 0;
                trace.received.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
            }
        });
    }

    /// It is back.
    pub fn finish(&mut self, request: RequestId, result: &RemotePrefillResult, now: Nanos) {
        self.change(request, |trace| {
            let begin = trace.from.0.saturating_add(result.pulled.0);
            // What another worker says ends here no later than it arrives.
            let at = |nanos: u64| Nanos(begin.saturating_add(nanos).min(now.0));
            let step = |step: &RemoteStepEntry| RemoteStep {
                from: at(step.after),
                to: at(step.after.saturating_add(step.took)),
                rows: step.rows,
            };
            trace.steps = result.steps.iter().take(MOST).map(step).collect();
            (trace.to, trace.outcome) = (Some(now), Some(result.outcome));
        });
    }

    /// The request is over; what is still on its way is dropped.
    pub fn cancel(&mut self, request: RequestId, now: Nanos) {
        if self.of(request).is_some_and(|trace| trace.to.is_none()) {
            self.change(request, |trace| (trace.to, trace.outcome) = (Some(now), Some(HandoffOutcome::Cancelled)));
        }
    }

    /// What is known of a request's.
    pub fn of(&self, request: RequestId) -> Option<&RemotePrefillTrace> {
        self.all.iter().rev().find(|entry| entry.request == request).map(|entry| &entry.trace)
    }

    /// Number of the last change.
    pub fn num_changes(&self) -> u64 {
        self.changes
    }

    /// Those that changed after the change of this number.
    pub fn changed_after(&self, change: u64) -> Vec<(RequestId, RemotePrefillTrace)> {
        let changed = self.all.iter().filter(|entry| entry.changed > change);
        changed.map(|entry| (entry.request, entry.trace.clone())).collect()
    }

    fn change(&mut self, request: RequestId, with: impl FnOnce(&mut RemotePrefillTrace)) {
        if let Some(entry) = self.all.iter_mut().rev().find(|entry| entry.request == request) {
            self.changes += 1;
            entry.changed = self.changes;
            with(&mut entry.trace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    #[test]
    fn steps_of_the_other_worker_are_laid_behind_the_moment_it_was_asked() {
        let mut traces = RemotePrefillTraces::default();
        traces.begin(RequestId(7), ms(100));
        traces.set_worker(RequestId(7), "a:1");
        [120, 120, 140].into_iter().for_each(|at| traces.receive(RequestId(7), ms(at)));
        let there = |after: u64, took: u64| RemoteStepEntry { after: ms(after).0, took: ms(took).0, rows: 64 };
        let steps = [there(1, 10), there(20, 15), there(u64::MAX / 2_000_000, 5)];
        let (outcome, bill, steps) = (HandoffOutcome::Whole, Shares::default(), steps.to_vec());
        traces.finish(RequestId(7), &RemotePrefillResult { outcome, bill, steps, pulled: ms(3) }, ms(150));
        let trace = traces.of(RequestId(7)).expect("it is kept");
        assert_eq!((trace.from, trace.to, trace.outcome), (ms(100), Some(ms(150)), Some(HandoffOutcome::Whole)));
        assert_eq!(trace.worker.as_deref(), Some("a:1"));
        assert_eq!(trace.received, [(ms(120), 2), (ms(140), 3)]);
        let laid: Vec<_> = trace.steps.iter().map(|step| (step.from, step.to)).collect();
        let expected = [(ms(104), ms(114)), (ms(123), ms(138)), (ms(150), ms(150))];
        assert_eq!(laid, expected, "and none is told to end after it was heard of");
    }

    #[test]
    fn who_ends_meanwhile_is_away_no_longer() {
        let mut traces = RemotePrefillTraces::default();
        traces.begin(RequestId(1), ms(10));
        traces.cancel(RequestId(1), ms(30));
        let seen = traces.num_changes();
        traces.cancel(RequestId(1), ms(40));
        traces.cancel(RequestId(2), ms(40));
        let trace = traces.of(RequestId(1)).expect("it is kept");
        assert_eq!(
            (trace.to, trace.outcome, traces.num_changes()),
            (Some(ms(30)), Some(HandoffOutcome::Cancelled), seen)
        );
    }

    #[test]
    fn the_newest_are_kept_and_who_looks_again_sees_what_changed() {
        let mut traces = RemotePrefillTraces::default();
        (0..KEPT as u64 + 10).for_each(|id| traces.begin(RequestId(id), ms(id)));
        assert!(traces.of(RequestId(9)).is_none() && traces.of(RequestId(10)).is_some());
        let seen = traces.num_changes();
        traces.receive(RequestId(40), ms(1000));
        traces.receive(RequestId(9), ms(1000));
        let changed: Vec<RequestId> = traces.changed_after(seen).into_iter().map(|(id, _)| id).collect();
        assert_eq!(changed, [RequestId(40)]);
        (0..4000).for_each(|at| traces.receive(RequestId(40), ms(2000 + at)));
        let received = &traces.of(RequestId(40)).expect("it is kept").received;
        assert!((MOST / 2..=MOST).contains(&received.len()), "{}", received.len());
        assert!(received.is_sorted() && received.last() >= Some(&(ms(5900), 3900)), "{:?}", received.last());
    }
}
