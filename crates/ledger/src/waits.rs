//! Active waits, and on which requests each step's time is booked for them.
//!
//! An answer that waits through a step waits for the requests that had it. Which ones depends on where it waits and
//! why:
//!
//! | waits | while | booked on |
//! | --- | --- | --- |
//! | in the queue | rows or time are spent, or a step was running at arrival | the step's rows, by their cost |
//! | in the queue | the head is short of a seat | prompts and drafts, by their cost; the rest on held seats |
//! | in the queue | the head is short of KV blocks | the same, with blocks; a shared block is divided |
//! | with blocks | no row in the step | the step's rows, by their cost |
//!
//! The reason: a queue moves as fast as its scarce resource becomes free, so any request that used a fraction of it
//! delayed the queue by that fraction: a tenth of the blocks for a second as a tenth of a second of the rows. Where
//! seats or blocks are short both the holding time and the step time count; prompts and drafts make steps longer, while
//! the weights pass takes its time anyway. (This is close to, but not the same as, the wait that others would save
//! without a request: `crates/sim/tests/without.rs`.)
//!
//! All answers in the same [`WaitPlace`] wait for the same requests, so a step is booked once for all, and an answer reads
//! its list off cumulative sums when the wait ends ([`crate::wait_shares`]).

use alloc::sync::Arc;

use protocol::{Nanos, RequestId};

use crate::account::{Account, Clocks, Meter, Wait};
use crate::wait_shares::{Mark, TimeByRequest, WaitPlace, WaitShares};

/// The time that a wait is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// A time to first token.
    Ttft,
    /// A gap of a preempted answer.
    Preempted,
    /// A gap of an answer with blocks.
    LeftOut,
}

#[derive(Clone, Debug)]
pub(crate) struct ActiveWait {
    place: WaitPlace,
    of: WaitKind,
    mark: Arc<Mark>,
}

/// Number of active waits, by place and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiters([[u32; 3]; 2]);

impl Waiters {
    pub(crate) fn of(&self, place: WaitPlace, of: WaitKind) -> u64 {
        u64::from(self.0[place as usize][of as usize])
    }

    pub(crate) fn in_place(&self, place: WaitPlace) -> u64 {
        self.0[place as usize].iter().copied().map(u64::from).sum()
    }

    fn count_of(&mut self, wait: &ActiveWait) -> &mut u32 {
        &mut self.0[wait.place as usize][wait.of as usize]
    }
}

/// All active waits, and the sums for them.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    pub(crate) owed: WaitShares,
    pub(crate) waiters: Waiters,
    /// Unfinished answers with blocks.
    pub(crate) num_in: u64,
    /// Of the newest step, per place: what one waiting answer owes to each request. The sum is the step's time.
    pub(crate) shares: [TimeByRequest; 2],
    pub(crate) parts: TimeByRequest,
    /// Totals: time booked on requests, time counted as others' in requests' sums, and waits that were dropped with
    /// their answers.
    pub(crate) booked: u64,
    pub(crate) delayed: u64,
    pub(crate) dropped: u64,
}

impl Waits {
    /// An answer waits from the current step on.
    pub(crate) fn begin(&mut self, account: &mut Account, answer: usize) {
        let meter = &mut account.answers[answer];
        let place = if meter.is_in { WaitPlace::Running } else { WaitPlace::Queue };
        let of = match (meter.tokens > 0, meter.is_in && !meter.mid_prompt) {
            (false, _) => WaitKind::Ttft,
            (true, false) => WaitKind::Preempted,
            (true, true) => WaitKind::LeftOut,
        };
        let wait = ActiveWait { place, of, mark: self.owed.mark(place) };
        *self.waiters.count_of(&wait) += 1;
        *account.own_waits.count_of(&wait) += 1;
        meter.wait = Some(wait);
    }

    /// Ends a wait: until `to` the answer had no row.
    pub(crate) fn settle(&mut self, account: &mut Account, answer: usize, to: Nanos, clocks: &Clocks) {
        self.delayed += rowless(account, answer, to, clocks, &self.owed, &mut self.parts);
        self.end(account, answer);
    }

    /// Ends a wait without accounting.
    pub(crate) fn end(&mut self, account: &mut Account, answer: usize) {
        if let Some(wait) = account.answers[answer].wait.take() {
            *self.waiters.count_of(&wait) -= 1;
            *account.own_waits.count_of(&wait) -= 1;
        }
    }

    /// Ends an answer in any state.
    pub(crate) fn retire(&mut self, account: &mut Account, answer: usize, clocks: &Clocks) {
        let meter = &account.answers[answer];
        if meter.reason.is_some() {
            return;
        }
        self.num_in -= u64::from(meter.is_in);
        self.dropped += self.outstanding(account.request, meter, clocks);
        self.end(account, answer);
    }

    /// Others' part of an active wait.
    pub(crate) fn outstanding(&self, request: RequestId, meter: &Meter, clocks: &Clocks) -> u64 {
        let Some(wait) = &meter.wait else { return 0 };
        let mut parts = TimeByRequest::new();
        self.owed.since(wait.place, &wait.mark, &mut parts);
        let own: u64 = parts.iter().filter(|part| part.0 == request).map(|part| part.1).sum();
        clocks.in_steps_since(&meter.at).saturating_sub(own)
    }
}

/// Accounts for the time since an answer's last row, and records it as a wait if steps ran in it. Returns others' part.
pub(crate) fn rowless(
    account: &mut Account,
    answer: usize,
    to: Nanos,
    clocks: &Clocks,
    owed: &WaitShares,
    parts: &mut TimeByRequest,
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
    /// Lists the requests that the active wait was for. Returns its own request's part, from its other answers.
    pub(crate) fn name_others(
        &mut self,
        request: RequestId,
        clocks: &Clocks,
        owed: &WaitShares,
        parts: &mut TimeByRequest,
    ) -> u64 {
        let Some(wait) = &self.wait else { return 0 };
        owed.since(wait.place, &wait.mark, parts);
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
        // Holders that are no longer known.
        let rest = clocks.in_steps_since(&self.at).saturating_sub(own + named);
        if self.tokens == 0 {
            self.tally.add_rest(rest);
        } else {
            self.others.add_rest(rest);
        }
        own
    }
}
