//! The reverse view: time that others took from a request is booked on them in the same step.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use protocol::{Nanos, RequestId};
use scheduler::{Blocked, Holder, StepRecord};

use crate::account::{Account, Cost, Meter, Named};
use crate::wait_shares::{TimeByRequest, WaitPlace, share_out};
use crate::waits::{WaitKind, Waiters, Waits};
use crate::{Drafters, Group, Ledger, Owner, Prices};

/// What decode and draft rows took of the gaps of a step's other answers: nanoseconds, and the total cost of one unit
/// of price and of one row of the weights pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InGaps {
    nanos: [u64; 2],
    scale: f64,
    row_scale: f64,
}

impl InGaps {
    /// Adds an answer of `group` with this time of others' decode and draft rows in its gap.
    pub(crate) fn add(&mut self, nanos: [u64; 2], group: &Group) {
        self.nanos.iter_mut().zip(nanos).for_each(|(sum, more)| *sum += more);
        self.scale += group.scale;
        self.row_scale += group.scale * group.per_row;
    }

    /// Weight of the decode or draft rows of `group` in the time of all others, at their scales.
    fn price_of(&self, group: &Group, which: usize) -> f64 {
        let own = f64::from(group.streams) * group.scale;
        let scale = (self.scale - own).max(0.0);
        let row_scale = (self.row_scale - own * group.per_row).max(0.0);
        let price = group.streamed()[which];
        price.beyond * scale + price.rows * row_scale
    }
}

/// Splits `nanos`, which others' decode or draft rows took from the group at `index`, into `parts`, and books them.
pub(crate) fn name_rows(groups: &mut [Group], index: usize, which: usize, nanos: u64, parts: &mut TimeByRequest) {
    let (request, per_row) = (groups[index].request, groups[index].per_row);
    let is_other = |group: &&Group| group.request != request && group.streamed()[which].rows > 0.0;
    let others = groups.iter().filter(is_other).map(|group| (group.request, group.streamed()[which].at(per_row)));
    share_out(nanos, others, parts);
    let others = groups.iter_mut().filter(|group| is_other(&&**group));
    others.zip(parts.iter()).for_each(|(group, &(_, nanos))| group.in_ttfts[which] += nanos);
}

/// Splits `nanos` of a gap of `group` between the drafting requests; all others' drafts have weight `price`. Visits
/// only the listed drafters, because every answer in the step asks.
pub(crate) fn name_drafts(
    Drafters { largest, has_more }: &Drafters,
    group: &Group,
    (nanos, price): (u64, f64),
    parts: &mut TimeByRequest,
    others: &mut Named,
) {
    if nanos == 0 {
        return;
    }
    let drafters = largest.iter().filter(|(request, _)| *request != group.request);
    let drafters = drafters.map(|&(request, drafts)| (request, drafts.at(group.per_row)));
    let named = match has_more {
        false => nanos,
        true => ((drafters.clone().map(|(_, price)| price).sum::<f64>() / price * nanos as f64) as u64).min(nanos),
    };
    share_out(named, drafters, parts);
    parts.iter().for_each(|&(request, nanos)| others.add(request, nanos));
    others.add_rest(nanos - parts.iter().map(|part| part.1).sum::<u64>());
}

/// The costs of a request; those of a finished one go to `late`.
fn cost_of<'a>(
    accounts: &'a mut BTreeMap<RequestId, Box<Account>>,
    late: &'a mut Vec<(RequestId, Cost)>,
    request: RequestId,
) -> &'a mut Cost {
    match accounts.get_mut(&request) {
        Some(account) => &mut account.bill.cost,
        None => {
            let at = late.iter().position(|&(known, _)| known == request).unwrap_or(late.len());
            if at == late.len() {
                late.push((request, Cost::default()));
            }
            &mut late[at].1
        }
    }
}

impl Ledger {
    /// Books what rows took from the requests in the step.
    pub(crate) fn book_rows(&mut self, in_gaps: &InGaps) {
        for prompt in self.prompts.iter().filter(|prompt| prompt.cost != [0; 2]) {
            self.waits.booked += prompt.cost[0] + prompt.cost[1];
            let cost = cost_of(&mut self.accounts, &mut self.late, prompt.request);
            cost.prefill_in_ttfts.0 += prompt.cost[0];
            cost.prefill_in_gaps.0 += prompt.cost[1];
        }
        let kinds = if self.drafters.largest.is_empty() { 1 } else { 2 };
        for which in 0..kinds {
            let total = self.groups.iter().fold(0.0, |sum, group| sum + in_gaps.price_of(group, which));
            let all = in_gaps.nanos[which];
            let (mut sum, mut given) = (0.0, 0);
            for group in &self.groups {
                sum += in_gaps.price_of(group, which);
                let end = if sum >= total { all } else { (sum / total * all as f64) as u64 };
                let in_gaps = end.min(all) - given;
                given += in_gaps;
                let in_ttfts = group.in_ttfts[which];
                self.waits.booked += in_gaps + in_ttfts;
                if in_gaps + in_ttfts > 0 {
                    let cost = cost_of(&mut self.accounts, &mut self.late, group.request);
                    let [of_ttfts, of_gaps] = match which {
                        0 => [&mut cost.decode_in_ttfts, &mut cost.decode_in_gaps],
                        _ => [&mut cost.drafts_in_ttfts, &mut cost.drafts_in_gaps],
                    };
                    of_ttfts.0 += in_ttfts;
                    of_gaps.0 += in_gaps;
                }
            }
        }
    }

    /// Begins the waits of answers that have blocks but had no row, from the start of this step. `carried`: answers
    /// that had one, or begin with this step; `to`: its end.
    pub(crate) fn begin_waits(&mut self, to: Nanos, carried: u64) {
        if self.waits.num_in - carried == self.waits.waiters.in_place(WaitPlace::Running) {
            return;
        }
        for account in self.accounts.values_mut() {
            for answer in 0..account.answers.len() {
                let meter = &account.answers[answer];
                if meter.is_in && meter.reason.is_none() && meter.wait.is_none() && meter.upto < to {
                    self.waits.begin(account, answer);
                }
            }
        }
    }

    /// Books what the step took from requests that waited for it.
    pub(crate) fn book_waits(&mut self, record: &StepRecord, prices: &Prices<'_>) {
        let took = self.last_step.took - self.last_step.aside.total();
        let Waits { owed, shares: [line, seat], waiters, booked, .. } = &mut self.waits;
        let rows: f64 = self.groups.iter().map(Group::rows).sum();
        let per_row = prices.pass(rows) / rows.max(1.0);
        share_out(took, self.groups.iter().map(|group| (group.request, group.at(per_row))), seat);
        // Decode time passes anyway while the scarce resource is held, so it is booked on its holders; prompts and
        // drafts make the step longer for all, so their time is booked on them.
        let decode: f64 = self.groups.iter().map(|group| group.decode.at(per_row)).sum();
        let held = record.holders.iter().map(|holder| holder.held).sum::<u64>().max(1) as f64;
        let longer = |group: &Group| group.prefill.at(per_row) + group.drafts.at(per_row);
        let longer = self.groups.iter().map(|group| (group.request, longer(group))).filter(|&(_, price)| price > 0.0);
        let holders =
            record.holders.iter().map(|&Holder { request, held: part }| (request, part as f64 / held * decode));
        line.clear();
        if !record.holders.is_empty() {
            share_out(took, longer.chain(holders), line);
        }
        if line.is_empty() {
            line.extend_from_slice(seat);
        }
        for (place, shares) in [(WaitPlace::Queue, &*line), (WaitPlace::Running, &*seat)] {
            let [ttft, preempted, left_out] =
                [WaitKind::Ttft, WaitKind::Preempted, WaitKind::LeftOut].map(|of| waiters.of(place, of));
            if ttft + preempted + left_out == 0 {
                continue;
            }
            owed.add(place, shares);
            for &(request, nanos) in shares {
                let own = match self.accounts.get(&request) {
                    Some(account) => account.own_waits,
                    None => {
                        // It has ended while its rows were in flight.
                        owed.end_holder(request);
                        Waiters::default()
                    }
                };
                let cost = cost_of(&mut self.accounts, &mut self.late, request);
                let in_ttfts = match (place, record.blocked) {
                    (WaitPlace::Queue, Some(Blocked::Kv)) => &mut cost.queue_kv,
                    (WaitPlace::Queue, Some(Blocked::Seats)) => &mut cost.queue_seats,
                    _ => &mut cost.queue_budget,
                };
                let own = [WaitKind::Ttft, WaitKind::Preempted, WaitKind::LeftOut].map(|of| own.of(place, of));
                let of = [ttft - own[0], preempted - own[1], left_out - own[2]];
                in_ttfts.0 += nanos * of[0];
                cost.waiting.0 += nanos * of[1];
                cost.left_out.0 += nanos * of[2];
                *booked += nanos * of.iter().sum::<u64>();
            }
        }
        owed.end_step();
        if waiters.in_place(WaitPlace::Queue) + waiters.in_place(WaitPlace::Running) == 0 {
            owed.drop_finished();
        }
    }

    /// Books the wait of a request that arrived during the last step, as for queued ones. Returns its length.
    pub(crate) fn book_under_way(&mut self, arrived: Nanos, meter: &mut Meter) -> u64 {
        let step = self.last_step;
        let waited = Nanos(step.began.0 + step.took).since(arrived.max(step.began)).0;
        let aside = step.aside.in_last(waited, step.took);
        let owner = [Owner::QueueKv, Owner::QueueSeats, Owner::QueueBudget][step.cause];
        let (took, others) = (u128::from((step.took - step.aside.total()).max(1)), u128::from(waited - aside.total()));
        let (mut sum, mut given) = (0, 0);
        for &(request, nanos) in &self.waits.shares[WaitPlace::Queue as usize] {
            sum += nanos;
            let part = (u128::from(sum) * others / took) as u64 - given;
            given += part;
            meter.tally.add(request, part);
            if part > 0 {
                let cost = cost_of(&mut self.accounts, &mut self.late, request);
                [&mut cost.queue_kv, &mut cost.queue_seats, &mut cost.queue_budget][step.cause].0 += part;
            }
        }
        meter.pending.add(owner, given);
        aside.book(&mut meter.pending);
        self.waits.booked += given;
        self.waits.delayed += given;
        given + aside.total()
    }

    /// Panics unless the time that others took from requests equals the time booked on them. Cost: waiting answers
    /// times holders. For tests.
    #[doc(hidden)]
    pub fn check(&self) {
        let of = |account: &Account| {
            account.answers.iter().map(|meter| (account.request, meter.clone())).collect::<Vec<_>>()
        };
        let open: Vec<(RequestId, Meter)> = self.accounts.values().flat_map(|account| of(account)).collect();
        let outstanding = open.iter().map(|(request, meter)| self.waits.outstanding(*request, meter, &self.clocks));
        let delayed = self.waits.delayed + self.waits.dropped + outstanding.sum::<u64>();
        assert_eq!(delayed, self.waits.booked, "what others took is what it cost others");
        let live = open.iter().filter(|(_, meter)| meter.reason.is_none());
        assert_eq!(live.clone().filter(|(_, meter)| meter.is_in).count() as u64, self.waits.num_in, "answers in");
        let wait = live.filter(|(_, meter)| meter.wait.is_some()).count() as u64;
        let counted = [WaitPlace::Queue, WaitPlace::Running].map(|place| self.waits.waiters.in_place(place));
        assert_eq!(wait, counted[0] + counted[1], "answers that wait");
        for (request, meter) in &open {
            let named = meter.others.total().0 + meter.tally.named().total().0;
            let of_others = Owner::ALL.into_iter().filter(|&owner| owner.is_others());
            let of_others: u64 = of_others.map(|owner| meter.pending.of(owner).0).sum();
            let decode = if meter.tokens > 0 { meter.pending.of(Owner::Decode).0 } else { 0 };
            assert_eq!(named + decode, of_others, "{request:?}: the names are the sum");
        }
    }
}
