//! On whom a wait is booked, without a look at who waits while it lasts.
//!
//! ```text
//! step                1     2     3     4     5
//! B's share of it     4     4     2     -     -       of each step's time, in ns: what one who waits owes it
//! owed to B           4     8    10    10    10       the running sum
//! A waits                   |-----------|             its mark is 4; when it gets a row, 10 - 4 = 6 are in its list
//! cost of B          +4n   +4n   +2n                  with n that wait: both sides are sums of the same integers
//! ```
//!
//! There are two sums for each holder, because there are two ways to wait ([`Place`]): in the queue for what others
//! hold, and with blocks of one's own for rows that went to others. A step costs its holders; who begins or ends a wait
//! costs those who held something meanwhile. All who begin at the same moment share one mark.
//!
//! A holder that has ended is kept for those who still wait, up to [`MOST_GONE`]; what it was owed beyond that is in
//! nobody's list by name, and in the list's rest.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use scheduler::RequestId;

/// Holders that have ended and are still named.
const MOST_GONE: usize = 1024;

/// Where somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the queue: for whoever holds what the first in line is short of.
    Line,
    /// In, with blocks and without a row: for the rows of others.
    Seat,
}

/// Nanoseconds by request.
pub(crate) type Debts = Vec<(RequestId, u64)>;

/// What was owed when a wait began.
#[derive(Debug)]
pub(crate) struct Mark {
    after: u64,
    owed: Vec<u64>,
}

/// See the module's picture.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// Of each holder, in a place of its own: the sums of a place only grow, whoever has it.
    holders: Vec<Holder>,
    places: BTreeMap<RequestId, usize>,
    vacant: Vec<usize>,
    /// Those that have ended, the newest last.
    gone: VecDeque<Gone>,
    /// Steps so far.
    steps: u64,
    newest: [Option<Arc<Mark>>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    request: RequestId,
    /// The sums of its place when it came, and now.
    before: [u64; 2],
    owed: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Gone {
    holder: Holder,
    place: usize,
    after: u64,
}

impl Holder {
    /// What it was owed since `mark`.
    fn since(&self, at: usize, place: Place, mark: &Mark) -> u64 {
        let place = place as usize;
        self.owed[place] - mark.owed.get(at).copied().unwrap_or(0).max(self.before[place])
    }
}

impl Owed {
    /// A wait begins before the next step.
    pub(crate) fn mark(&mut self, place: Place) -> Arc<Mark> {
        let newest = &mut self.newest[place as usize];
        if let Some(mark) = newest.as_ref().filter(|mark| mark.after == self.steps) {
            return mark.clone();
        }
        let owed = self.holders.iter().map(|holder| holder.owed[place as usize]).collect();
        newest.insert(Arc::new(Mark { after: self.steps, owed })).clone()
    }

    /// Each that waits in `place` owes so much for the step at hand.
    pub(crate) fn add(&mut self, place: Place, parts: &[(RequestId, u64)]) {
        for &(request, nanos) in parts {
            let at = match self.places.get(&request) {
                Some(&at) => at,
                None => self.arrive(request),
            };
            self.holders[at].owed[place as usize] += nanos;
        }
    }

    /// The step at hand is over.
    pub(crate) fn end_step(&mut self) {
        self.steps += 1;
    }

    /// A request has ended: from now on nobody waits for it.
    pub(crate) fn leave(&mut self, request: RequestId) {
        let Some(place) = self.places.remove(&request) else { return };
        if self.gone.len() == MOST_GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(Gone { holder: self.holders[place], place, after: self.steps });
        self.vacant.push(place);
    }

    /// Nobody waits: those that have ended need not be known.
    pub(crate) fn forget_gone(&mut self) {
        self.gone.clear();
    }

    /// What somebody who waits since `mark` owes to whom, by rising request, into `parts`.
    pub(crate) fn since(&self, place: Place, mark: &Mark, parts: &mut Debts) {
        parts.clear();
        let here = self.places.iter().map(|(_, &at)| (at, &self.holders[at]));
        let gone = self.gone.iter().rev().take_while(|gone| gone.after > mark.after);
        let all = here.chain(gone.map(|gone| (gone.place, &gone.holder)));
        let owed = all.map(|(at, holder)| (holder.request, holder.since(at, place, mark)));
        parts.extend(owed.filter(|&(_, nanos)| nanos > 0));
        parts.sort_unstable_by_key(|&(request, _)| request);
    }

    fn arrive(&mut self, request: RequestId) -> usize {
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

/// Shares `nanos` out by weight, in their order, into `parts`: each part ends where the sum so far ends, rounded down,
/// so together they are the whole. All of it is nobody's if nothing weighs anything.
pub(crate) fn share_out(nanos: u64, weights: impl Iterator<Item = (RequestId, f64)> + Clone, parts: &mut Debts) {
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
    // What rounding left.
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

    fn since(owed: &Owed, mark: &Mark) -> Debts {
        let mut parts = Vec::new();
        owed.since(Place::Line, mark, &mut parts);
        parts
    }

    fn step(owed: &mut Owed, parts: &[(RequestId, u64)]) {
        owed.add(Place::Line, parts);
        owed.end_step();
    }

    #[test]
    fn a_wait_is_owed_to_those_who_held_something_while_it_lasted() {
        let mut owed = Owed::default();
        step(&mut owed, &[(A, 4), (B, 1)]);
        let early = owed.mark(Place::Line);
        step(&mut owed, &[(A, 4)]);
        owed.leave(A);
        // C gets A's place, and nothing of what A was owed.
        step(&mut owed, &[(B, 2), (C, 3)]);
        let late = owed.mark(Place::Line);
        step(&mut owed, &[(C, 5)]);
        assert_eq!(since(&owed, &early), [(A, 4), (B, 2), (C, 8)]);
        assert_eq!(since(&owed, &late), [(C, 5)]);
        assert!(Arc::ptr_eq(&owed.mark(Place::Line), &owed.mark(Place::Line)), "one mark for a moment");
        let other = owed.mark(Place::Seat);
        owed.add(Place::Seat, &[(B, 9)]);
        assert_eq!(since(&owed, &late), [(C, 5)], "seats have sums of their own");
        let mut parts = Vec::new();
        owed.since(Place::Seat, &other, &mut parts);
        assert_eq!(parts, [(B, 9)]);
    }

    #[test]
    fn who_ended_long_ago_is_not_named_and_nobody_is_named_for_it() {
        let mut owed = Owed::default();
        let mark = owed.mark(Place::Line);
        for id in 0..MOST_GONE as u64 + 2 {
            step(&mut owed, &[(RequestId(id), 1)]);
            owed.leave(RequestId(id));
        }
        let parts = since(&owed, &mark);
        assert_eq!((parts.len(), parts[0]), (MOST_GONE, (RequestId(2), 1)));
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
