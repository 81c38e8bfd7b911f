//! Accumulates, per holder, the time that one waiting request would owe it, without visiting waiting requests.
//!
//! ```text
//! step                1     2     3     4     5
//! B's share of it     4     4     2     -     -       of each step's time, in ns: what one waiting request owes it
//! owed to B           4     8    10    10    10       cumulative
//! A waits                   |-----------|             its mark is 4; when it gets a row, it owes B 10 - 4 = 6
//! cost of B          +4n   +4n   +2n                  for n waiting: both sides sum the same integers
//! ```
//!
//! Each holder has two sums, for the two kinds of waiting ([`WaitPlace`]): in the queue for what others hold, and with
//! blocks for rows that went to others. A step costs its holders; the begin or end of a wait costs the holders since.
//! Waits that begin at the same moment share one mark.
//!
//! A finished holder is kept for requests that still wait, up to [`MAX_FINISHED`]; beyond that its part moves to the
//! list's rest.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use protocol::RequestId;

/// Finished holders that are still named.
const MAX_FINISHED: usize = 1024;

/// Where an answer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPlace {
    /// In the queue, for what the head of the queue is short of.
    Queue,
    /// With blocks and without a row, for the rows of others.
    Running,
}

/// Nanoseconds by request.
pub(crate) type TimeByRequest = Vec<(RequestId, u64)>;

/// The sums when a wait began.
#[derive(Debug)]
pub(crate) struct Mark {
    after: u64,
    owed: Vec<u64>,
}

/// See the module's picture.
#[derive(Debug, Default)]
pub(crate) struct WaitShares {
    /// Per holder. Places are reused; the sums of a place only grow.
    holders: Vec<Holder>,
    places: BTreeMap<RequestId, usize>,
    vacant: Vec<usize>,
    /// Finished holders, the newest last.
    finished: VecDeque<FinishedHolder>,
    /// Number of steps.
    steps: u64,
    newest: [Option<Arc<Mark>>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    request: RequestId,
    /// The sums of its place when it was added, and now.
    before: [u64; 2],
    owed: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct FinishedHolder {
    holder: Holder,
    place: usize,
    after: u64,
}

impl Holder {
    /// Time owed to it since `mark`.
    fn since(&self, at: usize, place: WaitPlace, mark: &Mark) -> u64 {
        let place = place as usize;
        self.owed[place] - mark.owed.get(at).copied().unwrap_or(0).max(self.before[place])
    }
}

impl WaitShares {
    /// The mark of a wait that begins before the next step.
    pub(crate) fn mark(&mut self, place: WaitPlace) -> Arc<Mark> {
        let newest = &mut self.newest[place as usize];
        if let Some(mark) = newest.as_ref().filter(|mark| mark.after == self.steps) {
            return mark.clone();
        }
        let owed = self.holders.iter().map(|holder| holder.owed[place as usize]).collect();
        newest.insert(Arc::new(Mark { after: self.steps, owed })).clone()
    }

    /// Adds what each answer that waits in `place` owes for the current step.
    pub(crate) fn add(&mut self, place: WaitPlace, parts: &[(RequestId, u64)]) {
        for &(request, nanos) in parts {
            let at = match self.places.get(&request) {
                Some(&at) => at,
                None => self.add_holder(request),
            };
            self.holders[at].owed[place as usize] += nanos;
        }
    }

    /// Ends the current step.
    pub(crate) fn end_step(&mut self) {
        self.steps += 1;
    }

    /// A request has ended: no later step is owed to it.
    pub(crate) fn end_holder(&mut self, request: RequestId) {
        let Some(place) = self.places.remove(&request) else { return };
        if self.finished.len() == MAX_FINISHED {
            self.finished.pop_front();
        }
        self.finished.push_back(FinishedHolder { holder: self.holders[place], place, after: self.steps });
        self.vacant.push(place);
    }

    /// No answer waits: drops finished holders.
    pub(crate) fn drop_finished(&mut self) {
        self.finished.clear();
    }

    /// What an answer that waits since `mark` owes, by increasing request id, into `parts`.
    pub(crate) fn since(&self, place: WaitPlace, mark: &Mark, parts: &mut TimeByRequest) {
        parts.clear();
        let here = self.places.iter().map(|(_, &at)| (at, &self.holders[at]));
        let finished = self.finished.iter().rev().take_while(|finished| finished.after > mark.after);
        let all = here.chain(finished.map(|finished| (finished.place, &finished.holder)));
        let owed = all.map(|(at, holder)| (holder.request, holder.since(at, place, mark)));
        parts.extend(owed.filter(|&(_, nanos)| nanos > 0));
        parts.sort_unstable_by_key(|&(request, _)| request);
    }

    fn add_holder(&mut self, request: RequestId) -> usize {
        let at = self.vacant.pop().unwrap_or(self.holders.len());
        if at == self.holders.len() {
            self.holders.push(Holder { request, before: [0; 2], owed: [0; 2] });
        }
        let holder = &mut self.holders[at];
        (holder.request, holder.before) = (request, holder.owed);
        self.places.insert(request, at);
        at
    }
}

/// Splits `nanos` by weight into `parts`, in order: each part ends at the rounded-down cumulative sum, so the parts add
/// up to the whole. Empty if all weights are zero.
pub(crate) fn share_out(
    nanos: u64,
    weights: impl Iterator<Item = (RequestId, f64)> + Clone,
    parts: &mut TimeByRequest,
) {
    parts.clear();
    let total: f64 = weights.clone().map(|(_, weight)| weight).sum();
    if total <= 0.0 {
        return;
    }
    let (mut sum, mut given) = (0.0, 0);
    for (request, weight) in weights {
        sum += weight;
        let end = ((sum / total * nanos as f64) as u64).min(nanos);
        parts.push((request, end.saturating_sub(given)));
        given = given.max(end);
    }
    // The rounding remainder.
    if let Some(last) = parts.last_mut() {
        last.1 += nanos - given;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const A: RequestId = RequestId(1);
    const B: RequestId = RequestId(2);
    const C: RequestId = RequestId(3);

    fn since(owed: &WaitShares, mark: &Mark) -> TimeByRequest {
        let mut parts = Vec::new();
        owed.since(WaitPlace::Queue, mark, &mut parts);
        parts
    }

    fn step(owed: &mut WaitShares, parts: &[(RequestId, u64)]) {
        owed.add(WaitPlace::Queue, parts);
        owed.end_step();
    }

    #[test]
    fn a_wait_is_owed_to_those_who_held_something_while_it_lasted() {
        let mut owed = WaitShares::default();
        step(&mut owed, &[(A, 4), (B, 1)]);
        let early = owed.mark(WaitPlace::Queue);
        step(&mut owed, &[(A, 4)]);
        owed.end_holder(A);
        // C reuses A's place, without A's sums.
        step(&mut owed, &[(B, 2), (C, 3)]);
        let late = owed.mark(WaitPlace::Queue);
        step(&mut owed, &[(C, 5)]);
        assert_eq!(since(&owed, &early), [(A, 4), (B, 2), (C, 8)]);
        assert_eq!(since(&owed, &late), [(C, 5)]);
        assert!(Arc::ptr_eq(&owed.mark(WaitPlace::Queue), &owed.mark(WaitPlace::Queue)), "one mark for a moment");
        let other = owed.mark(WaitPlace::Running);
        owed.add(WaitPlace::Running, &[(B, 9)]);
        assert_eq!(since(&owed, &late), [(C, 5)], "seats have sums of their own");
        let mut parts = Vec::new();
        owed.since(WaitPlace::Running, &other, &mut parts);
        assert_eq!(parts, [(B, 9)]);
    }

    #[test]
    fn who_ended_long_ago_is_not_named_and_no_one_is_named_for_it() {
        let mut owed = WaitShares::default();
        let mark = owed.mark(WaitPlace::Queue);
        for id in 0..MAX_FINISHED as u64 + 2 {
            step(&mut owed, &[(RequestId(id), 1)]);
            owed.end_holder(RequestId(id));
        }
        let parts = since(&owed, &mark);
        assert_eq!((parts.len(), parts[0]), (MAX_FINISHED, (RequestId(2), 1)));
        assert_eq!(owed.holders.len(), 1);
    }

    #[test]
    fn parts_are_the_whole() {
        let mut parts = Vec::new();
        share_out(100, [(A, 1.0), (B, 1.0), (C, 1.0)].into_iter(), &mut parts);
        assert_eq!(parts, [(A, 33), (B, 33), (C, 34)]);
        share_out(7, [(A, 0.0), (B, 1e-30)].into_iter(), &mut parts);
        assert_eq!(parts, [(A, 0), (B, 7)]);
        share_out(7, [(A, 0.0)].into_iter(), &mut parts);
        assert_eq!(parts, vec![]);
    }
}
