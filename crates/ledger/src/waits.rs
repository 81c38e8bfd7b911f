//! Who waits, and on whom each step's time is booked for them.
//!
//! A step takes so long; whoever waits for it, waits that long for those who had it. Who they are depends on where one
//! waits and what for:
//!
//! | waits | while | on |
//! | --- | --- | --- |
//! | in the queue | the step's rows or time are spent, or it was under way | the step's rows, by their cost |
//! | in the queue | the first in line is short of a seat | prompts and guesses, by their cost; the rest on seats held |
//! | in the queue | the first in line is short of KV blocks | the same, with blocks; of a shared one each its part |
//! | with blocks | no row in the step | the step's rows, by their cost |
//!
//! Why in these parts: a queue that drains moves on as fast as what it is short of becomes free. Who used up a share of
//! it kept everybody behind back by as much, whatever it was: a tenth of the blocks for a second as a tenth of a second
//! of the rows. Where seats or blocks are short both count, how long they are held and how long steps take meanwhile;
//! prompts and guesses make steps longer, and one pass over the weights takes its time whoever is in it. (What others
//! would wait without a request is close to what this books on it, and not the same: `crates/sim/tests/without.rs`.)
//!
//! All that wait in the same [`Place`] wait for the same in a step, so a step is booked once for all of them, and who
//! waits reads its list off running sums when the wait ends ([`crate::owed`]).

use alloc::sync::Arc;

use scheduler::{Nanos, RequestId};

use crate::account::{Account, Clocks, Meter, Wait};
use crate::owed::{Debts, Mark, Owed, Place};

/// What a wait is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// A time to first token.
    Ttft,
    /// A gap of an answer that lost its blocks.
    Preempted,
    /// A gap of one that has them.
    LeftOut,
}

/// One wait that goes on.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    place: Place,
    of: Of,
    mark: Arc<Mark>,
}

/// How many wait, by place and by what it is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiters([[u32; 3]; 2]);

impl Waiters {
    pub(crate) fn of(&self, place: Place, of: Of) -> u64 {
        u64::from(self.0[place as usize][of as usize])
    }

    pub(crate) fn in_place(&self, place: Place) -> u64 {
        self.0[place as usize].iter().copied().map(u64::from).sum()
    }

    fn of_standing(&mut self, standing: &Standing) -> &mut u32 {
        &mut self.0[standing.place as usize][standing.of as usize]
    }
}

/// Who waits, who is in, and whom they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    pub(crate) owed: Owed,
    pub(crate) waiters: Waiters,
    /// Answers that have blocks and have not ended.
    pub(crate) num_in: u64,
    /// Of the newest step, for each place: what one who waits there owes to whom. Together it is what the step took.
    pub(crate) shares: [Debts; 2],
    /// Kept for its memory.
    pub(crate) parts: Debts,
    /// Every nanosecond that was ever booked on a request, that was ever in somebody's sum as others', and that will be
    /// in none because its wait ended with its answer.
    pub(crate) booked: u64,
    pub(crate) delayed: u64,
    pub(crate) dropped: u64,
}

impl Waits {
    /// An answer waits from the step at hand on.
    pub(crate) fn begin(&mut self, account: &mut Account, answer: usize) {
        let meter = &mut account.answers[answer];
        let place = if meter.is_in { Place::Seat } else { Place::Line };
        let of = match (meter.tokens > 0, meter.is_in && !meter.mid_prompt) {
            (false, _) => Of::Ttft,
            (true, false) => Of::Preempted,
            (true, true) => Of::LeftOut,
        };
        let standing = Standing { place, of, mark: self.owed.mark(place) };
        *self.waiters.of_standing(&standing) += 1;
        *account.own_waits.of_standing(&standing) += 1;
        meter.standing = Some(standing);
    }

    /// An answer waits no more: until `to` it had no row.
    pub(crate) fn settle(&mut self, account: &mut Account, answer: usize, to: Nanos, clocks: &Clocks) {
        self.delayed += rowless(account, answer, to, clocks, &self.owed, &mut self.parts);
        self.end(account, answer);
    }

    /// The same, of one whose time nobody asks for.
    pub(crate) fn end(&mut self, account: &mut Account, answer: usize) {
        if let Some(standing) = account.answers[answer].standing.take() {
            *self.waiters.of_standing(&standing) -= 1;
            *account.own_waits.of_standing(&standing) -= 1;
        }
    }

    /// An answer has ended, whatever it was doing.
    pub(crate) fn retire(&mut self, account: &mut Account, answer: usize, clocks: &Clocks) {
        let meter = &account.answers[answer];
        if meter.reason.is_some() {
            return;
        }
        self.num_in -= u64::from(meter.is_in);
        self.dropped += self.outstanding(account.request, meter, clocks);
        self.end(account, answer);
    }

    /// What others took of a wait that goes on.
    pub(crate) fn outstanding(&self, request: RequestId, meter: &Meter, clocks: &Clocks) -> u64 {
        let Some(standing) = &meter.standing else { return 0 };
        let mut parts = Debts::new();
        self.owed.since(standing.place, &standing.mark, &mut parts);
        let own: u64 = parts.iter().filter(|part| part.0 == request).map(|part| part.1).sum();
        clocks.in_steps_since(&meter.at).saturating_sub(own)
    }
}

/// An answer had no row since its last: that time gets its owners, and is kept as a wait if steps ran in it. Returns
/// what was others'.
pub(crate) fn rowless(
    account: &mut Account,
    answer: usize,
    to: Nanos,
    clocks: &Clocks,
    owed: &Owed,
    parts: &mut Debts,
) -> u64 {
    let meter = &mut account.answers[answer];
    let (from, in_steps) = (meter.upto, clocks.in_steps_since(&meter.at));
    let own = meter.name_others(account.request, clocks, owed, parts);
    let shares = meter.settle(to, clocks, own);
    if shares.total() > Nanos(0) {
        account.keep_wait(Wait { from, to, answer: answer as u16, shares });
    }
    in_steps.saturating_sub(own)
}

impl Meter {
    /// Whom the wait that goes on was for. Returns what was its request's own, of its other answers.
    pub(crate) fn name_others(&mut self, request: RequestId, clocks: &Clocks, owed: &Owed, parts: &mut Debts) -> u64 {
        let Some(standing) = &self.standing else { return 0 };
        owed.since(standing.place, &standing.mark, parts);
        let (mut own, mut named) = (0, 0);
        for &(other, nanos) in parts.iter() {
            if other == request {
                own += nanos;
                continue;
            }
            named += nanos;
            if self.tokens == 0 {
                self.tally.add(other, nanos);
            } else {
                self.others.add(other, nanos);
            }
        }
        // Those whose names are lost.
        let rest = clocks.in_steps_since(&self.at).saturating_sub(own + named);
        if self.tokens == 0 {
            self.tally.add_rest(rest);
        } else {
            self.others.add_rest(rest);
        }
        own
    }
}
