//! Attributes every nanosecond of a request's latency to an owner, from step records.
//!
//! ```text
//! steps        |-- 7: A decodes --|--- 8: A decodes, B's prompt ---|   |-- 9: A and B decode --|
//! A's gap                         |  own  |        B's prefill     | o |                          ends with its token
//! B's TTFT         | queue: budget| own prefill | A's decode row   |                              arrived in step 7
//! B's cost to A                           |------------------------|                              the same nanoseconds
//! ```
//!
//! A step with rows of a request is divided: the cost of its own rows alone is its own, the rest belongs to the other
//! rows, each by what it adds. Costs are those of the [`CostModel`], scaled so that the parts add up to the measured
//! time. All rows share one pass over the weights: a request pays for it as if alone, and the others for the increase,
//! in proportion to their rows. Without a model a row costs one, and a pass at least [`ROWS_OF_A_PASS`].
//!
//! Draft rows ([`scheduler::DraftProposal`]) extend a decode row. Their time is [`Owner::OwnDrafts`] of their own answer,
//! [`Owner::OtherDrafts`] of others, and not part of decode, so that speculation is visible separately.
//!
//! Steal time ([`scheduler::StealTime`]) is subtracted from a step before it is divided, and is [`Owner::Machine`] for
//! every request that the step carried or kept waiting; so is the time in which experts were read ([`Owner::ExpertReads`]).
//! Time in which the engine waited for the step of another model on the same cores is [`Owner::OtherModel`].
//!
//! A step without rows of a waiting request is queue time, by what the head of the queue waited for; time between steps
//! is overhead, except while a client has paused the engine. Sums are integers: the parts of a TTFT or of a gap add up
//! to the whole, to the nanosecond.
//!
//! Waiting costs nothing here: its time is read off cumulative clocks when it ends. A step costs its rows times its
//! prompts. Memory is bounded per request, and a steady step does not allocate.
//!
//! The ledger makes no decisions, so it is not part of the scheduler: it reads only step records, and engine, replay
//! and simulator get the same results from them. It has no clock and no IO (`no_std`).
#![no_std]
extern crate alloc;

mod account;
mod booking;
mod prices;
mod row_shares;
mod tally;
mod wait_shares;
mod waits;

pub use account::{
    Account, AnswerTimes, Bill, Cost, Gap, LATE_FLOOR, LATE_MEDIANS, Named, Owner, Shares, Visit, Wait, late_above,
};
pub use prices::ROWS_OF_A_PASS;
pub use protocol::Nanos;
pub use row_shares::{RowShares, row_shares};

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use account::{Aside, Clocks, MOST_GAPS, MOST_NAMED, Meter};
use booking::{InGaps, name_drafts, name_rows};
use prices::{Price, Prices};
use protocol::{FinishReason, RequestId};
use scheduler::{Blocked, CostModel, Preempted, Request, StepRecord, Work};
use tally::Tally;
use wait_shares::TimeByRequest;
use waits::{Waits, rowless};

/// Sums over all requests, of tokens delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Of all times to first token.
    pub ttft: Shares,
    /// Of all gaps.
    pub gaps: Shares,
    /// The part of the gaps due to rejected drafts, within [`Owner::OwnDrafts`].
    pub rejected: Nanos,
}

/// An event of a step in the ledger.
#[derive(Clone, Copy, Debug)]
pub enum LedgerEvent<'a> {
    /// The first rows of a request were computed.
    Entered(&'a Account),
    /// A token.
    Token {
        /// Time since the previous token of its answer; `None` for the first.
        gap: Option<Nanos>,
    },
}

/// Attributes the waiting time of requests. Call it for each admission, each step's record and each end, in order; see
/// the module's picture.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Boxed, as a node of the map has room for eleven.
    accounts: BTreeMap<RequestId, Box<Account>>,
    totals: Totals,
    clocks: Clocks,
    /// Time of the clocks.
    now: Nanos,
    /// The newest step, for requests that arrived during it.
    last_step: LastStep,
    waits: Waits,
    /// See [`Ledger::late_costs`].
    late: Vec<(RequestId, Cost)>,
    // Reused buffers.
    buffers: Buffers,
    items: Vec<PricedRow>,
    groups: Vec<Group>,
    prompts: Vec<Prompt>,
    drafters: Drafters,
}

/// Room for what open accounts keep of their steps. Steady steps do not allocate, so it is reserved when an account's
/// first row is computed, and goes from account to account: what is kept of a closed one is copied. Cut to size in
/// place, it would leave a hole behind that no later reservation fits.
#[derive(Debug, Default)]
struct Buffers {
    max_visits: usize,
    spare: Vec<(Vec<Visit>, Vec<Gap>)>,
}

impl Buffers {
    /// Spare ones, of about 40 KiB with the engine's limit; those of a crowd beyond are freed.
    const MOST_SPARE: usize = 64;

    fn hand_to(&mut self, account: &mut Account) {
        if account.visits.capacity() == 0 && self.max_visits > 0 {
            let new = || (Vec::with_capacity(self.max_visits), Vec::with_capacity(MOST_GAPS));
            (account.visits, account.longest_gaps) = self.spare.pop().unwrap_or_else(new);
        }
    }

    fn take_back(&mut self, account: &mut Account) {
        account.answers = kept(&account.answers);
        account.waits = kept(&account.waits);
        let visits = kept(&account.visits);
        let mut visits = core::mem::replace(&mut account.visits, visits);
        let gaps = kept(&account.longest_gaps);
        let mut gaps = core::mem::replace(&mut account.longest_gaps, gaps);
        if visits.capacity() > 0 && self.spare.len() < Self::MOST_SPARE {
            visits.clear();
            gaps.clear();
            self.spare.push((visits, gaps));
        }
    }
}

/// A copy with room for a quarter more at most. Of the few sizes that are left, one that is freed fits a later one.
fn kept<T: Clone>(items: &[T]) -> Vec<T> {
    let step = (items.len().next_power_of_two() / 8).max(1);
    let mut copy = Vec::with_capacity(items.len().next_multiple_of(step));
    copy.extend_from_slice(items);
    copy
}

/// The newest step, for requests that arrived during it.
#[derive(Clone, Copy, Debug, Default)]
struct LastStep {
    began: Nanos,
    /// Index into [`Clocks::steps`].
    cause: usize,
    took: u64,
    aside: Aside,
    /// Another model had the cores until it began.
    other_model: u64,
}

/// One row of a record, with its cost.
#[derive(Clone, Copy, Debug)]
struct PricedRow {
    request: RequestId,
    answer: usize,
    prefill: bool,
    start: usize,
    rows: usize,
    /// Cost beyond the weights pass: without its drafts, and of its drafts.
    beyond: [f64; 2],
    samples: usize,
    drafts: usize,
    cached_tokens: usize,
}

impl PricedRow {
    /// Answers whose first token may be from this row: one per answer at a prompt's end; a decode row's answer may have
    /// earlier tokens from another engine.
    fn begins(&self) -> usize {
        if self.prefill { self.samples } else { 1 }
    }

    /// Accepted drafts.
    fn held_drafts(&self) -> usize {
        if self.drafts > 0 { self.samples.saturating_sub(1) } else { 0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Span {
    from: Nanos,
    took: u64,
    aside: Aside,
}

/// The rows of one request in a step.
#[derive(Clone, Debug)]
struct Group {
    request: RequestId,
    items: Range<usize>,
    /// Its decode rows and its draft rows.
    decode: Price,
    drafts: Price,
    prefill: Price,
    /// Its answers in the step that have their first token.
    streams: u32,
    /// Nanoseconds per unit of cost for this request, and the pass cost of another's row.
    scale: f64,
    per_row: f64,
    /// What its decode and draft rows took from requests before their first token.
    in_ttfts: [u64; 2],
}

impl Group {
    fn rows(&self) -> f64 {
        self.decode.rows + self.drafts.rows + self.prefill.rows
    }

    /// Cost of all its rows, at `per_row` of the pass.
    fn at(&self, per_row: f64) -> f64 {
        [self.decode, self.drafts, self.prefill].iter().map(|price| price.at(per_row)).sum()
    }

    /// The rows that delay other answers in every step: see `in_ttfts`.
    fn streamed(&self) -> [Price; 2] {
        [self.decode, self.drafts]
    }
}

/// Requests with drafts in the step, the most first, limited to the names that a list keeps.
#[derive(Debug, Default)]
struct Drafters {
    largest: Vec<(RequestId, Price)>,
    /// Whether the list is truncated.
    has_more: bool,
}

/// A request with prompt rows in the step.
#[derive(Clone, Copy, Debug)]
struct Prompt {
    request: RequestId,
    price: Price,
    /// Time for the request being processed.
    nanos: u64,
    /// Time taken from others: in times to first token, and in gaps.
    cost: [u64; 2],
}

impl Ledger {
    /// An empty ledger that records up to `max_visits` steps per request for [`Account::visits`]; with 0 only sums.
    pub fn new(max_visits: usize) -> Ledger {
        Ledger { buffers: Buffers { max_visits, ..Buffers::default() }, ..Ledger::default() }
    }

    /// Opens the account of a request. Its time starts at `arrived`, possibly during the last step.
    pub fn admit(&mut self, request: &Request) {
        let &Request { id, arrived, num_answers, tenant, targets, .. } = request;
        self.advance(arrived);
        let mut meter = Meter { upto: self.now, at: self.clocks, ..Meter::default() };
        // It has waited for the running step; the time outside of that step is overhead.
        let in_step = self.book_under_way(arrived, &mut meter);
        let between = self.now.since(arrived).0 - in_step;
        // What came while another model had the cores hears of it after the step that followed.
        let other_model = self.last_step.began.since(arrived).0.min(self.last_step.other_model).min(between);
        meter.pending.add(Owner::OtherModel, other_model);
        meter.pending.add(Owner::Overhead, between - other_model);
        let mut account = Account {
            request: id,
            tenant,
            prompt_tokens: request.prompt.len(),
            arrived,
            targets,
            first_scheduled: None,
            first_token: None,
            last_token: None,
            cached_tokens: 0,
            prefill_rows: 0,
            decode_rows: 0,
            verify_rows: 0,
            draft_rows: 0,
            held_drafts: 0,
            decode_context: 0,
            preemptions: 0,
            bill: Bill::default(),
            visits: Vec::new(),
            visits_left_out: 0,
            waits: Vec::new(),
            longest_gaps: Vec::new(),
            answers: vec![Meter::default(); num_answers],
            own_waits: Default::default(),
            lead: 0,
            is_away: false,
        };
        account.answers[0] = meter;
        self.waits.begin(&mut account, 0);
        self.accounts.insert(id, Box::new(account));
    }

    /// The prompt of a waiting request is prefilled on another worker from now on: no request here delays it.
    pub fn begin_remote_prefill(&mut self, request: RequestId, now: Nanos) {
        self.advance(now);
        if let Some(account) = self.accounts.get_mut(&request).filter(|account| account.first_scheduled.is_none()) {
            let lead = account.lead;
            self.waits.settle(account, lead, self.now, &self.clocks);
            account.is_away = true;
        }
    }

    /// It is back in the queue. Durations are used because clocks of two machines are not comparable: `bill` is the
    /// other worker's account of the time, capped at the time that passed, and [`Owner::Transfer`] is the rest.
    pub fn end_remote_prefill(&mut self, request: RequestId, bill: &Shares, now: Nanos) {
        self.advance(now);
        let Some(account) = self.accounts.get_mut(&request).filter(|account| account.is_away) else { return };
        let lead = account.lead;
        let meter = &mut account.answers[lead];
        let mut left = self.now.since(meter.upto).0;
        for owner in Owner::REMOTE {
            let part = bill.of(owner).0.min(left);
            meter.pending.add(owner, part);
            left -= part;
        }
        meter.pending.add(Owner::Transfer, left);
        (meter.upto, meter.at) = (self.now, self.clocks);
        account.is_away = false;
        self.waits.begin(account, lead);
    }

    /// Everything goes on with another device, which began to take over at `since` and has nothing of what was
    /// computed: all requests are back in the queue, and the time is [`Owner::Transfer`]'s.
    pub fn moved(&mut self, since: Nanos, now: Nanos) {
        self.advance(since);
        self.clocks.moving += now.since(self.now).0;
        self.now = self.now.max(now);
        for account in self.accounts.values_mut() {
            for answer in 0..account.answers.len() {
                let meter = &account.answers[answer];
                if meter.is_in && meter.reason.is_none() {
                    self.waits.settle(account, answer, self.now, &self.clocks);
                    self.waits.num_in -= 1;
                    account.answers[answer].is_in = false;
                    self.waits.begin(account, answer);
                }
            }
        }
    }

    /// Takes a completed step. `cost`: the model that predicted it. `news` receives its events, in no order.
    pub fn step(&mut self, record: &StepRecord, cost: Option<&CostModel>, news: &mut dyn FnMut(LedgerEvent<'_>)) {
        self.late.clear();
        let between = record.began_at.since(self.now).0;
        self.advance(record.began_at);
        let stolen = record.stolen.before.0.min(between);
        self.clocks.between -= stolen;
        self.clocks.stolen_between += stolen;
        let other_model = record.other_model.0.min(between - stolen);
        self.clocks.between -= other_model;
        self.clocks.other_model += other_model;
        let (from, before) = (self.now, self.clocks);
        let took = record.completed_at.since(from).0;
        let stolen = record.stolen.during.0.min(took);
        let aside = Aside { stolen, experts: record.experts.took.0.min(took - stolen) };
        let cause = match record.blocked {
            Some(Blocked::Kv) => 0,
            Some(Blocked::Seats) => 1,
            Some(Blocked::Budget) | None => 2,
        };
        self.clocks.steps[cause] += took - aside.total();
        self.clocks.aside.stolen += aside.stolen;
        self.clocks.aside.experts += aside.experts;
        self.clocks.uncertain += record.stolen.uncertain.0.min(stolen);
        self.now = Nanos(from.0 + took);
        self.last_step = LastStep { began: from, cause, took, aside, other_model };
        let prices = Prices::of(cost);
        for miss in &record.misses {
            self.accounts.get_mut(&miss.request).into_iter().for_each(|account| account.bill.miss = Some(*miss));
        }
        self.read_rows(record, &prices);
        self.note_preempted(record, from, &before);
        self.share_out(Span { from, took, aside }, &before, &prices, news);
        self.book_waits(record, &prices);
    }

    /// Ends one answer, before its request or with it.
    pub fn end_answer(&mut self, request: RequestId, answer: usize, reason: FinishReason) {
        if let Some(account) = self.accounts.get_mut(&request) {
            self.waits.retire(account, answer, &self.clocks);
            account.answers[answer].reason = Some(reason);
        }
    }

    /// Closes an account. Time since its last token is dropped; if there was no token, it is the TTFT.
    pub fn end(&mut self, request: RequestId) -> Option<Account> {
        let mut account = *self.accounts.remove(&request)?;
        if account.first_token.is_none() {
            self.waits.delayed += self.waits.outstanding(request, &account.answers[account.lead], &self.clocks);
            self.read_open_ttft(&mut account);
            let lead = account.lead;
            self.waits.end(&mut account, lead);
            account.answers[lead].tally = Tally::default();
        }
        (0..account.answers.len()).for_each(|answer| self.waits.retire(&mut account, answer, &self.clocks));
        self.waits.owed.end_holder(request);
        self.buffers.take_back(&mut account);
        Some(account)
    }

    /// Drops all open accounts.
    pub fn clear(&mut self) {
        self.accounts.clear();
        self.waits = Waits::default();
        self.late.clear();
    }

    /// Costs of finished requests that became known since the last step: a request that arrived during a step waited
    /// for all rows in it. Dropped by the next step.
    pub fn late_costs(&mut self) -> impl Iterator<Item = (RequestId, Cost)> {
        self.late.drain(..)
    }

    /// An open account now; before its first token with the wait so far as its TTFT.
    pub fn account(&self, request: RequestId) -> Option<Account> {
        let mut account = self.of(request)?.clone();
        if account.first_token.is_none() {
            self.read_open_ttft(&mut account);
        }
        Some(account)
    }

    /// An open account as of the last step: its wait since then has no owner yet.
    pub fn of(&self, request: RequestId) -> Option<&Account> {
        self.accounts.get(&request).map(AsRef::as_ref)
    }

    /// Raises what the cache saved an open request: a model of costs may say less than the machine can do.
    pub fn saved_at_least(&mut self, request: RequestId, least: Nanos) {
        let account = self.accounts.get_mut(&request);
        if let Some(saved) = account.and_then(|account| account.bill.saved_by_cache.as_mut()) {
            *saved = least.max(*saved);
        }
    }

    /// Sums over all requests since the start.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Sets the TTFT to the wait so far, before the first token.
    fn read_open_ttft(&self, account: &mut Account) {
        let lead = account.lead;
        if account.is_away {
            let meter = &mut account.answers[lead];
            meter.pending.add(Owner::Transfer, self.now.since(meter.upto).0);
        } else {
            rowless(account, lead, self.now, &self.clocks, &self.waits.owed, &mut TimeByRequest::new());
        }
        let meter = &account.answers[lead];
        (account.bill.ttft, account.bill.ttft_others) = (meter.pending, meter.tally.named());
        account.bill.uncertain[0] = Nanos(meter.uncertain);
    }

    /// Advances the clocks to `to`: the time was between steps.
    fn advance(&mut self, to: Nanos) {
        self.clocks.between += to.since(self.now).0;
        self.now = self.now.max(to);
    }

    /// Reads the record's rows: costs, grouped by request.
    fn read_rows(&mut self, record: &StepRecord, prices: &Prices) {
        self.items.clear();
        let drafting = prices.drafting(record);
        let beyond = |prefill: bool, row: &scheduler::RecordRow| {
            let [first, more] = prices.beyond_parts(prefill, row);
            [first, more + drafting * row.drafts as f64]
        };
        for (rows, prefill) in [(&record.decode, false), (&record.prefill, true)] {
            self.items.extend(rows.iter().map(|row| PricedRow {
                request: row.request,
                answer: row.answer,
                prefill,
                start: row.start,
                rows: row.len,
                beyond: beyond(prefill, row),
                samples: row.samples,
                drafts: row.drafts,
                cached_tokens: row.cached_tokens,
            }));
        }
        self.items.sort_unstable_by_key(|item| (item.request, item.answer));
        self.groups.clear();
        self.prompts.clear();
        let mut first = 0;
        for items in self.items.chunk_by(|a, b| a.request == b.request) {
            let (request, range) = (items[0].request, first..first + items.len());
            first = range.end;
            let (mut decode, mut drafts, mut prefill) = (Price::default(), Price::default(), Price::default());
            for item in items {
                let [beyond, of_drafts] = item.beyond;
                if item.prefill { &mut prefill } else { &mut decode }.add(item.rows - item.drafts, beyond);
                drafts.add(item.drafts, of_drafts);
            }
            if prefill.rows > 0.0 {
                self.prompts.push(Prompt { request, price: prefill, nanos: 0, cost: [0; 2] });
            }
            self.groups.push(Group {
                request,
                items: range,
                decode,
                drafts,
                prefill,
                streams: 0,
                scale: 0.0,
                per_row: 0.0,
                in_ttfts: [0; 2],
            });
        }
        let Drafters { largest, has_more } = &mut self.drafters;
        largest.clear();
        let drafting = self.groups.iter().filter(|group| group.drafts.rows > 0.0);
        largest.extend(drafting.map(|group| (group.request, group.drafts)));
        // A request is not in its own list.
        *has_more = largest.len() > MOST_NAMED + 1;
        if *has_more {
            largest.sort_unstable_by(|a, b| b.1.rows.total_cmp(&a.1.rows).then(a.0.cmp(&b.0)));
            largest.truncate(MOST_NAMED + 1);
        }
    }

    /// The record names requests only: the victim is the last answer that has blocks and no row.
    fn note_preempted(&mut self, record: &StepRecord, from: Nanos, before: &Clocks) {
        for Preempted { request, .. } in &record.preempted {
            let Some(account) = self.accounts.get_mut(request) else { continue };
            account.preemptions += 1;
            let items = &self.items;
            let has_row = |answer| items.iter().any(|item| item.request == *request && item.answer == answer);
            let victim = (0..account.answers.len()).rev().find(|&answer| {
                let meter = &account.answers[answer];
                meter.is_in && meter.reason.is_none() && !has_row(answer)
            });
            if let Some(answer) = victim {
                self.waits.settle(account, answer, from, before);
                self.waits.num_in -= 1;
                account.answers[answer].is_in = false;
                self.waits.begin(account, answer);
            }
        }
    }

    /// Gives the step's time to owners, once per answer with rows.
    fn share_out(
        &mut self,
        Span { from, took, aside }: Span,
        before: &Clocks,
        prices: &Prices<'_>,
        news: &mut dyn FnMut(LedgerEvent<'_>),
    ) {
        let to = Nanos(from.0 + took);
        let took = took - aside.total();
        let (mut streamed, mut rows) = ([Price::default(); 2], 0.0);
        for group in &self.groups {
            streamed.iter_mut().zip(group.streamed()).for_each(|(sum, more)| sum.merge(more));
            rows += group.rows();
        }
        let pass = prices.pass(rows);
        // In gaps: time that decode and draft rows took from others, and the weights to split it.
        let mut in_gaps = InGaps::default();
        // Answers with blocks that had rows, or begin with this step.
        let mut carried = 0;
        for index in 0..self.groups.len() {
            let mut group = self.groups[index].clone();
            let Some(account) = self.accounts.get_mut(&group.request) else { continue };
            let own_rows = group.rows();
            let own_pass = prices.pass(own_rows);
            let first_rows = own_rows - group.drafts.rows;
            let first_pass = if first_rows == own_rows { own_pass } else { prices.pass(first_rows) };
            let own = first_pass + group.decode.beyond + group.prefill.beyond;
            let own_drafts = (own_pass - first_pass).max(0.0) + group.drafts.beyond;
            group.per_row = if rows > own_rows { (pass - own_pass).max(0.0) / (rows - own_rows) } else { 0.0 };
            let per_row = group.per_row;
            let of_others = |all: Price, own: Price| {
                let others = Price { rows: all.rows - own.rows, beyond: (all.beyond - own.beyond).max(0.0) };
                if others.rows > 0.0 { others.at(per_row) } else { 0.0 }
            };
            let [others, drafts] = [of_others(streamed[0], group.decode), of_others(streamed[1], group.drafts)];
            let prompts = self.prompts.iter().filter(|prompt| prompt.request != group.request);
            let total =
                prompts.fold(own + own_drafts + others + drafts, |sum, prompt| sum + prompt.price.at(group.per_row));
            group.scale = if total > 0.0 { took as f64 / total } else { 0.0 };
            // Each part ends at the rounded-down cumulative sum, so the parts add up to the whole.
            let (mut sum, mut given) = (0.0, 0);
            let mut part = |more: f64| {
                sum += more;
                let end = if sum >= total { took } else { ((sum / total * took as f64) as u64).min(took) };
                let nanos = end - given;
                given = end;
                nanos
            };
            let own = part(own);
            let own_drafts = part(own_drafts);
            let streamed = [part(others), part(drafts)];
            for prompt in &mut self.prompts {
                let is_other = prompt.request != group.request;
                prompt.nanos = if is_other { part(prompt.price.at(group.per_row)) } else { 0 };
            }
            self.groups[index] = group.clone();
            let items = &self.items[group.items.clone()];
            let (drafted, failed) = items.iter().fold((0, 0), |(drafted, failed), item| {
                (drafted + item.drafts as u64, failed + (item.drafts - item.held_drafts()) as u64)
            });
            for item in &self.items[group.items.clone()] {
                begin_resumed(account, item.answer, from, before);
                self.waits.settle(account, item.answer, from, before);
                let meter = &account.answers[item.answer];
                let is_live = meter.reason.is_none();
                self.waits.num_in += u64::from(is_live && !meter.is_in);
                carried += u64::from(is_live);
                enter(account, item, from, &mut self.buffers, prices.cost, news);
                let meter = &mut account.answers[item.answer];
                let has_token = meter.tokens > 0;
                let work = match (has_token, item.prefill) {
                    (false, _) => Owner::OwnPrefill,
                    (true, true) => Owner::Recompute,
                    (true, false) => Owner::OwnDecode,
                };
                meter.pending.add(work, own);
                meter.pending.add(Owner::OwnDrafts, own_drafts);
                meter.rejected += own_drafts * failed / drafted.max(1);
                for (owner, nanos) in [Owner::Decode, Owner::OtherDrafts].into_iter().zip(streamed) {
                    meter.pending.add(owner, nanos);
                    self.waits.delayed += nanos;
                }
                let parts = &mut self.waits.parts;
                if has_token {
                    name_drafts(&self.drafters, &group, (streamed[1], drafts), parts, &mut meter.others);
                } else {
                    for (which, nanos) in streamed.into_iter().enumerate() {
                        name_rows(&mut self.groups, index, which, nanos, parts);
                        parts.iter().for_each(|&(request, nanos)| meter.tally.add(request, nanos));
                    }
                }
                aside.book(&mut meter.pending);
                for prompt in &mut self.prompts {
                    meter.pending.add(Owner::OtherPrefill, prompt.nanos);
                    prompt.cost[usize::from(has_token)] += prompt.nanos;
                    self.waits.delayed += prompt.nanos;
                    if has_token {
                        meter.others.add(prompt.request, prompt.nanos);
                    } else {
                        meter.tally.add(prompt.request, prompt.nanos);
                    }
                }
                meter.uncertain += self.clocks.uncertain - meter.at.uncertain;
                (meter.upto, meter.at) = (to, self.clocks);
                meter.mid_prompt = item.samples == 0;
                if has_token {
                    self.groups[index].streams += 1;
                    in_gaps.add(streamed, &group);
                }
                let visit = Visit {
                    from,
                    to,
                    answer: item.answer as u16,
                    tokens: item.samples as u16,
                    rows: item.rows as u32,
                    work,
                };
                account.keep_visit(visit, self.buffers.max_visits);
                if item.samples > 0 {
                    if !has_token && is_live {
                        self.waits.num_in += item.begins() as u64 - 1;
                        carried += item.begins() as u64 - 1;
                    }
                    take_tokens(account, item, to, &self.clocks, &mut self.totals, self.buffers.max_visits > 0, news);
                }
            }
        }
        self.book_rows(&in_gaps);
        self.begin_waits(to, carried);
    }
}

/// Answers of a request that was resumed from another engine have separate rows from the start, and some may have ended
/// there. The first one with a row carries the request's wait since arrival; the others' waits are not measured before
/// theirs.
fn begin_resumed(account: &mut Account, answer: usize, from: Nanos, before: &Clocks) {
    let lead = account.lead;
    if account.first_scheduled.is_none() && answer != lead {
        account.answers.swap(lead, answer);
        account.lead = answer;
    }
    let meter = &mut account.answers[answer];
    if meter.tokens == 0 && !meter.is_in && meter.wait.is_none() {
        (meter.upto, meter.at) = (from, *before);
    }
}

/// Rows of the request are computed. The first ones record the cache savings and reserve memory.
fn enter(
    account: &mut Account,
    item: &PricedRow,
    now: Nanos,
    buffers: &mut Buffers,
    cost: Option<&CostModel>,
    news: &mut dyn FnMut(LedgerEvent<'_>),
) {
    if account.first_scheduled.is_none() {
        account.first_scheduled = Some(now);
        account.cached_tokens = item.cached_tokens;
        buffers.hand_to(account);
        account.bill.saved_by_cache = cost.map(|cost| {
            let mut work = Work::default();
            if item.cached_tokens > 0 {
                work.add_chunk(0, item.cached_tokens, false);
            }
            if work.rows() > 0 { cost.step_time(&work) } else { Nanos(0) }
        });
        news(LedgerEvent::Entered(account));
    }
    if item.prefill {
        account.prefill_rows += item.rows;
    } else {
        account.decode_rows += 1;
        account.verify_rows += usize::from(item.drafts > 0);
        account.draft_rows += item.drafts;
        account.held_drafts += item.held_drafts();
        account.decode_context += item.start as u64 + 1;
    }
    account.answers[item.answer].is_in = true;
}

/// The tokens of a row arrived: the pending time is a TTFT or a gap.
fn take_tokens(
    account: &mut Account,
    item: &PricedRow,
    now: Nanos,
    clocks: &Clocks,
    totals: &mut Totals,
    keeps_gaps: bool,
    news: &mut dyn FnMut(LedgerEvent<'_>),
) {
    account.last_token = Some(now);
    let meter = &mut account.answers[item.answer];
    let (shares, others) = (core::mem::take(&mut meter.pending), core::mem::take(&mut meter.others));
    let rejected = Nanos(core::mem::take(&mut meter.rejected));
    let uncertain = core::mem::take(&mut meter.uncertain);
    if meter.tokens == 0 {
        if account.first_token.is_none() {
            account.first_token = Some(now);
            (account.bill.ttft, account.bill.ttft_others) = (shares, core::mem::take(&mut meter.tally).named());
            account.bill.uncertain[0] = Nanos(uncertain);
            totals.ttft.merge(&shares);
        }
        // The other answers of the request begin here.
        let first = Meter {
            upto: now,
            at: *clocks,
            is_in: true,
            tokens: if item.prefill { 1 } else { item.samples as u32 },
            first_token: now,
            last_token: now,
            ..Meter::default()
        };
        for meter in &mut account.answers[item.answer..item.answer + item.begins()] {
            *meter = first.clone();
            news(LedgerEvent::Token { gap: None });
        }
        (item.begins()..item.samples).for_each(|_| news(LedgerEvent::Token { gap: Some(Nanos(0)) }));
        return;
    }
    let (token, gap) = (meter.tokens, now.since(meter.last_token));
    // Accepted drafts arrive with the first token of the row, so only that one has a gap.
    meter.tokens += item.samples as u32;
    meter.last_token = now;
    meter.longest_gap = meter.longest_gap.max(gap);
    account.bill.gaps.merge(&shares);
    account.bill.gaps_others.merge(&others);
    account.bill.rejected.0 += rejected.0;
    account.bill.uncertain[1].0 += uncertain;
    totals.gaps.merge(&shares);
    totals.rejected.0 += rejected.0;
    if keeps_gaps {
        account.keep_gap(Gap { answer: item.answer as u16, token, at: now, shares, others });
    }
    news(LedgerEvent::Token { gap: Some(gap) });
    (1..item.samples).for_each(|_| news(LedgerEvent::Token { gap: Some(Nanos(0)) }));
}

#[cfg(test)]
#[macro_use]
extern crate std;
#[cfg(test)]
mod tests;
