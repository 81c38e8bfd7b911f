//! Every millisecond has an owner: from step records to who made a request wait, and whom it made wait.
//!
//! ```text
//! steps        |-- 7: A decodes --|--- 8: A decodes, B's prompt ---|   |-- 9: A and B decode --|
//! A's gap                         |  own  |        B's prefill     | o |                          ends with its token
//! B's TTFT         | queue: budget| own prefill | A's decode row   |                              arrived in step 7
//! B's cost to A                           |------------------------|                              the same nanoseconds
//! ```
//!
//! A step that carried rows of a request is shared out: what its own rows would have cost alone is its own; what the
//! step cost beyond that belongs to the other rows, each by what it adds. Costs are those of the [`CostModel`], scaled
//! so that the parts are the measured time. One pass over the weights serves all rows: whoever asks, its own rows pay
//! for it as if they were alone, and the others for what more rows make of it, in proportion to their rows. Without a
//! model a row costs one, and a pass costs at least [`ROWS_OF_A_PASS`].
//!
//! A step that carried no row of a waiting request is queue time, by what kept the first in line waiting; the time
//! between steps is overhead, unless somebody holds the engine to look at it. Sums are integers: the parts of a TTFT or
//! of a gap are the whole, to the nanosecond.
//!
//! Waiting costs nothing here: its time is read off running clocks when it ends. A step costs its rows, times the
//! prompts in it. Memory is bounded per request, and a steady step allocates nothing.
//!
//! The ledger decides nothing, so it is no part of the scheduler: it reads what the scheduler writes down, and whoever
//! has the records gets the same answers, the engine while it runs, a replay and the simulator. It has no clock and no
//! IO (`no_std`).
#![no_std]
extern crate alloc;

mod account;

pub use account::{
    Account, AnswerTimes, Bill, Cost, Gap, LATE_FLOOR, LATE_MEDIANS, Named, Owner, Shares, Visit, Wait, late_above,
};
pub use scheduler::Nanos;

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use account::{Clocks, Meter};
use scheduler::cost::Terms;
use scheduler::{Blocked, CostModel, FinishReason, Preempted, Request, RequestId, StepRecord, Work};

/// Without a cost model: a pass over the weights costs as much as computing so many rows, about what a CPU with matrix
/// units computes while it reads them.
pub const ROWS_OF_A_PASS: usize = 64;

/// Sums over all requests, of tokens that have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Of all times to first token.
    pub ttft: Shares,
    /// Of all gaps.
    pub gaps: Shares,
}

/// What a step brought, as the ledger sees it.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// The first rows of a request were computed.
    Entered(&'a Account),
    /// A token came.
    Token {
        /// The time since the one before it in its answer; `None` for the first.
        gap: Option<Nanos>,
    },
}

/// Gives every nanosecond that a request waits to an owner. Feed it each admission, each step's record and each end, in
/// order; see the module's picture.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<RequestId, Account>,
    totals: Totals,
    max_visits: usize,
    clocks: Clocks,
    /// The clocks stand here.
    now: Nanos,
    /// The newest step: when it began, and what it counted as.
    last_step: (Nanos, usize),
    // Kept for their memory.
    items: Vec<Item>,
    groups: Vec<Group>,
    prompts: Vec<Prompt>,
}

/// One row of a record, priced.
#[derive(Clone, Copy, Debug)]
struct Item {
    request: RequestId,
    answer: usize,
    prefill: bool,
    start: usize,
    rows: usize,
    /// What it costs beyond the pass over the weights.
    beyond: f64,
    samples: usize,
    cached_tokens: usize,
}

/// What one request has in a step.
#[derive(Clone, Debug)]
struct Group {
    request: RequestId,
    items: Range<usize>,
    decode: Price,
    prefill: Price,
    /// Its answers in the step that wait for their first token, and those that have one.
    waiting: [u32; 2],
    /// Nanoseconds of its account for one unit of price, and what another's row costs it of the pass.
    scale: f64,
    per_row: f64,
}

/// Rows, and what they cost beyond the pass over the weights.
#[derive(Clone, Copy, Debug, Default)]
struct Price {
    rows: f64,
    beyond: f64,
}

impl Price {
    fn add(&mut self, rows: usize, beyond: f64) {
        self.rows += rows as f64;
        self.beyond += beyond;
    }

    /// With the pass at so much per row.
    fn at(&self, per_row: f64) -> f64 {
        self.beyond + self.rows * per_row
    }
}

/// A request with prompt rows in the step.
#[derive(Clone, Copy, Debug)]
struct Prompt {
    request: RequestId,
    price: Price,
    /// Nanoseconds of the account at hand.
    nanos: u64,
    /// What it cost others: in times to first token, and in gaps.
    cost: [u64; 2],
}

impl Ledger {
    /// An empty ledger that keeps up to `max_visits` steps of each request for [`Account::visits`]; with 0 it keeps
    /// sums.
    pub fn new(max_visits: usize) -> Ledger {
        Ledger { max_visits, ..Ledger::default() }
    }

    /// Opens the account of a request. Its time runs from `arrived`, which may lie in the step that is over.
    pub fn admit(&mut self, request: &Request) {
        let &Request { id, arrived, num_answers, tenant, targets, .. } = request;
        self.advance(arrived);
        let mut meter = Meter { upto: self.now, at: self.clocks, ..Meter::default() };
        // What has passed since, it has waited: for the step under way, and before that for nobody.
        let (began, cause) = self.last_step;
        let in_step = self.now.since(arrived.max(began)).0;
        meter.pending.add([Owner::QueueKv, Owner::QueueSeats, Owner::QueueBudget][cause], in_step);
        meter.pending.add(Owner::Overhead, self.now.since(arrived).0 - in_step);
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
            decode_context: 0,
            preemptions: 0,
            bill: Bill::default(),
            visits: Vec::new(),
            visits_left_out: 0,
            waits: Vec::new(),
            longest_gaps: Vec::new(),
            answers: vec![Meter::default(); num_answers],
        };
        account.answers[0] = meter;
        self.accounts.insert(id, account);
    }

    /// Takes a completed step in. `cost`: what predicted it. `news` hears what it brought to whom, in no order.
    pub fn step(&mut self, record: &StepRecord, cost: Option<&CostModel>, news: &mut dyn FnMut(News<'_>)) {
        self.advance(record.scheduled_at);
        let (from, before) = (self.now, self.clocks);
        let took = record.completed_at.since(from).0;
        let cause = match record.blocked {
            Some(Blocked::Kv) => 0,
            Some(Blocked::Seats) => 1,
            Some(Blocked::Budget) | None => 2,
        };
        self.clocks.steps[cause] += took;
        self.now = Nanos(from.0 + took);
        self.last_step = (from, cause);
        let prices = Prices::of(cost);
        self.read_rows(record, &prices);
        self.note_preempted(record, from, &before);
        self.share_out(from, took, &before, &prices, news);
    }

    /// One answer has ended, before its request or with it.
    pub fn end_answer(&mut self, request: RequestId, answer: usize, reason: FinishReason) {
        if let Some(account) = self.accounts.get_mut(&request) {
            account.answers[answer].reason = Some(reason);
        }
    }

    /// Closes an account. What passed since its last token has no place in it; if no token came, it is its TTFT.
    pub fn end(&mut self, request: RequestId) -> Option<Account> {
        let mut account = self.accounts.remove(&request)?;
        if account.first_token.is_none() {
            let meter = &account.answers[0];
            (account.bill.ttft, account.bill.ttft_others) = (meter.pending, meter.others);
        }
        Some(account)
    }

    /// Forgets all open accounts.
    pub fn clear(&mut self) {
        self.accounts.clear();
    }

    /// An open account as it stands; before its first token with the waiting so far as its TTFT.
    pub fn account(&self, request: RequestId) -> Option<Account> {
        let mut account = self.accounts.get(&request)?.clone();
        if account.first_token.is_none() {
            rowless(&mut account, 0, self.now, &self.clocks);
            let meter = &account.answers[0];
            (account.bill.ttft, account.bill.ttft_others) = (meter.pending, meter.others);
        }
        Some(account)
    }

    /// An open account as the last step left it: its waiting since then has no owner yet.
    pub fn of(&self, request: RequestId) -> Option<&Account> {
        self.accounts.get(&request)
    }

    /// Sums over all requests since the start.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The time until `to` was between steps.
    fn advance(&mut self, to: Nanos) {
        self.clocks.between += to.since(self.now).0;
        self.now = self.now.max(to);
    }

    /// The record's rows, priced and by request.
    fn read_rows(&mut self, record: &StepRecord, prices: &Prices) {
        self.items.clear();
        for (rows, prefill) in [(&record.decode, false), (&record.prefill, true)] {
            self.items.extend(rows.iter().map(|row| Item {
                request: row.request,
                answer: row.answer,
                prefill,
                start: row.start,
                rows: row.len,
                beyond: prices.beyond(prefill, row.start, row.len, row.samples > 0),
                samples: row.samples,
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
            let (mut decode, mut prefill) = (Price::default(), Price::default());
            for item in items {
                if item.prefill { &mut prefill } else { &mut decode }.add(item.rows, item.beyond);
            }
            if prefill.rows > 0.0 {
                self.prompts.push(Prompt { request, price: prefill, nanos: 0, cost: [0; 2] });
            }
            let group = Group { request, items: range, decode, prefill, waiting: [0; 2], scale: 0.0, per_row: 0.0 };
            self.groups.push(group);
        }
    }

    /// The record names requests: of one with several answers, the last that is in and has no row is the one.
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
                rowless(account, answer, from, before);
                account.answers[answer].is_in = false;
            }
        }
    }

    /// Gives the step's time to owners, once for each answer that it carried.
    fn share_out(
        &mut self,
        from: Nanos,
        took: u64,
        before: &Clocks,
        prices: &Prices<'_>,
        news: &mut dyn FnMut(News<'_>),
    ) {
        let to = Nanos(from.0 + took);
        let (mut decode, mut rows) = (Price::default(), 0.0);
        for group in &self.groups {
            decode.add(0, group.decode.beyond);
            decode.rows += group.decode.rows;
            rows += group.decode.rows + group.prefill.rows;
        }
        let pass = prices.pass(rows);
        // Nanoseconds that decode rows took of others, and what one unit of price and one row of the pass cost them
        // all.
        let (mut decoded, mut scales, mut row_scales) = ([0; 2], [0.0; 2], [0.0; 2]);
        for index in 0..self.groups.len() {
            let group = &mut self.groups[index];
            let Some(account) = self.accounts.get_mut(&group.request) else { continue };
            let own_rows = group.decode.rows + group.prefill.rows;
            let own_pass = prices.pass(own_rows);
            let own = own_pass + group.decode.beyond + group.prefill.beyond;
            group.per_row = if rows > own_rows { (pass - own_pass).max(0.0) / (rows - own_rows) } else { 0.0 };
            let of_others =
                Price { rows: decode.rows - group.decode.rows, beyond: (decode.beyond - group.decode.beyond).max(0.0) };
            let others = if of_others.rows > 0.0 { of_others.at(group.per_row) } else { 0.0 };
            let prompts = self.prompts.iter().filter(|prompt| prompt.request != group.request);
            let total = prompts.fold(own + others, |sum, prompt| sum + prompt.price.at(group.per_row));
            group.scale = if total > 0.0 { took as f64 / total } else { 0.0 };
            // Each part ends where the sum so far ends, rounded down: together they are the whole.
            let (mut sum, mut given) = (own, 0);
            let mut part = |more: f64| {
                sum += more;
                let end = if sum >= total { took } else { ((sum / total * took as f64) as u64).min(took) };
                let nanos = end - given;
                given = end;
                nanos
            };
            let own = part(0.0);
            let others = part(others);
            for prompt in &mut self.prompts {
                let is_other = prompt.request != group.request;
                prompt.nanos = if is_other { part(prompt.price.at(group.per_row)) } else { 0 };
            }
            for item in &self.items[group.items.clone()] {
                rowless(account, item.answer, from, before);
                enter(account, item, from, self.max_visits, prices.cost, news);
                let meter = &mut account.answers[item.answer];
                let has_token = meter.tokens > 0;
                let work = match (has_token, item.prefill) {
                    (false, _) => Owner::OwnPrefill,
                    (true, true) => Owner::Recompute,
                    (true, false) => Owner::OwnDecode,
                };
                meter.pending.add(work, own);
                meter.pending.add(Owner::Decode, others);
                let kind = usize::from(has_token);
                for prompt in &mut self.prompts {
                    meter.pending.add(Owner::OtherPrefill, prompt.nanos);
                    meter.others.add(prompt.request, prompt.nanos);
                    prompt.cost[kind] += prompt.nanos;
                }
                (meter.upto, meter.at) = (to, self.clocks);
                meter.mid_prompt = item.samples == 0;
                decoded[kind] += others;
                group.waiting[kind] += 1;
                scales[kind] += group.scale;
                row_scales[kind] += group.scale * group.per_row;
                let visit = Visit {
                    from,
                    to,
                    answer: item.answer as u16,
                    tokens: item.samples as u16,
                    rows: item.rows as u32,
                    work,
                };
                account.keep_visit(visit, self.max_visits);
                if item.samples > 0 {
                    take_tokens(account, item, to, &self.clocks, &mut self.totals, self.max_visits > 0, news);
                }
            }
        }
        self.book_costs(decoded, scales, row_scales);
    }

    /// The reverse view: who took what of others in this step.
    fn book_costs(&mut self, decoded: [u64; 2], scales: [f64; 2], row_scales: [f64; 2]) {
        for prompt in self.prompts.iter().filter(|prompt| prompt.cost != [0; 2]) {
            if let Some(account) = self.accounts.get_mut(&prompt.request) {
                account.bill.cost.prefill_in_ttfts.0 += prompt.cost[0];
                account.bill.cost.prefill_in_gaps.0 += prompt.cost[1];
            }
        }
        for kind in [0, 1] {
            if decoded[kind] == 0 {
                continue;
            }
            // What its decode rows cost all others: they pay for it at their scales.
            let price = |group: &Group| {
                let own = f64::from(group.waiting[kind]) * group.scale;
                let scale = (scales[kind] - own).max(0.0);
                let row_scale = (row_scales[kind] - own * group.per_row).max(0.0);
                group.decode.beyond * scale + group.decode.rows * row_scale
            };
            let total = self.groups.iter().fold(0.0, |sum, group| sum + price(group));
            let (mut sum, mut given) = (0.0, 0);
            for group in &self.groups {
                sum += price(group);
                let end = if sum >= total { decoded[kind] } else { (sum / total * decoded[kind] as f64) as u64 };
                let nanos = end.min(decoded[kind]) - given;
                given += nanos;
                if let Some(account) = self.accounts.get_mut(&group.request) {
                    let cost = &mut account.bill.cost;
                    [&mut cost.decode_in_ttfts, &mut cost.decode_in_gaps][kind].0 += nanos;
                }
            }
        }
    }
}

/// An answer had no row since its last: that time gets its owners, and is kept as a wait if steps ran in it.
fn rowless(account: &mut Account, answer: usize, to: Nanos, clocks: &Clocks) {
    let meter = &mut account.answers[answer];
    let from = meter.upto;
    let shares = meter.settle(to, clocks);
    if shares.total() > Nanos(0) {
        account.keep_wait(Wait { from, to, answer: answer as u16, shares });
    }
}

/// Rows of the request are computed. With the first of them: what the cache saved it, and room for what is kept.
fn enter(
    account: &mut Account,
    item: &Item,
    now: Nanos,
    max_visits: usize,
    cost: Option<&CostModel>,
    news: &mut dyn FnMut(News<'_>),
) {
    if account.first_scheduled.is_none() {
        account.first_scheduled = Some(now);
        account.cached_tokens = item.cached_tokens;
        account.make_ready(max_visits);
        account.bill.saved_by_cache = cost.map(|cost| {
            let mut work = Work::default();
            if item.cached_tokens > 0 {
                work.add_chunk(0, item.cached_tokens, false);
            }
            if work.rows() > 0 { cost.step_time(&work) } else { Nanos(0) }
        });
        news(News::Entered(account));
    }
    if item.prefill {
        account.prefill_rows += item.rows;
    } else {
        account.decode_rows += 1;
        account.decode_context += item.start as u64 + 1;
    }
    account.answers[item.answer].is_in = true;
}

/// The tokens of a row have come: what was pending is a TTFT or a gap.
fn take_tokens(
    account: &mut Account,
    item: &Item,
    now: Nanos,
    clocks: &Clocks,
    totals: &mut Totals,
    keeps_gaps: bool,
    news: &mut dyn FnMut(News<'_>),
) {
    account.last_token = Some(now);
    let meter = &mut account.answers[item.answer];
    let (shares, others) = (core::mem::take(&mut meter.pending), core::mem::take(&mut meter.others));
    if meter.tokens == 0 {
        account.first_token = Some(now);
        (account.bill.ttft, account.bill.ttft_others) = (shares, others);
        totals.ttft.merge(&shares);
        // The other answers of the request begin here.
        let first = Meter {
            upto: now,
            at: *clocks,
            is_in: true,
            tokens: 1,
            first_token: now,
            last_token: now,
            ..Meter::default()
        };
        for meter in &mut account.answers[item.answer..item.answer + item.samples] {
            *meter = first.clone();
            news(News::Token { gap: None });
        }
        return;
    }
    let (token, gap) = (meter.tokens, now.since(meter.last_token));
    meter.tokens += 1;
    meter.last_token = now;
    meter.longest_gap = meter.longest_gap.max(gap);
    account.bill.gaps.merge(&shares);
    account.bill.gaps_others.merge(&others);
    totals.gaps.merge(&shares);
    if keeps_gaps {
        account.keep_gap(Gap { answer: item.answer as u16, token, at: now, shares, others });
    }
    news(News::Token { gap: Some(gap) });
}

/// What rows cost, in units that are scaled away: the model's seconds, or rows.
struct Prices<'a> {
    cost: Option<&'a CostModel>,
    terms: Terms,
    /// A pass for one row: what most shares ask for.
    pass_of_one: f64,
}

impl Prices<'_> {
    fn of(cost: Option<&CostModel>) -> Prices<'_> {
        let terms = cost.map(CostModel::terms).unwrap_or_default();
        let mut prices = Prices { cost, terms, pass_of_one: 0.0 };
        prices.pass_of_one = prices.measure_pass(1.0);
        prices
    }

    /// The pass over the weights for so many rows.
    fn pass(&self, rows: f64) -> f64 {
        if rows == 1.0 { self.pass_of_one } else { self.measure_pass(rows) }
    }

    fn measure_pass(&self, rows: f64) -> f64 {
        let Some(cost) = self.cost else { return rows.max(ROWS_OF_A_PASS as f64) };
        // The machine's drift is the same for all parts of a step, so it is left out of all.
        let work = Work { decode_rows: rows as usize, ..Work::default() };
        cost.parts(&work).weights / cost.drift()[0]
    }

    /// What rows cost beyond the pass.
    fn beyond(&self, prefill: bool, start: usize, len: usize, ends: bool) -> f64 {
        let mut work = Work::default();
        if prefill {
            work.add_chunk(start, len, ends)
        } else {
            work.add_decode(start + 1)
        }
        // One read of the head serves all rows with logits, as the pass serves all rows: it is nobody's own.
        let Terms { pair, key, row, prompt, head: _, logits } = self.terms;
        pair * work.prefill_pairs as f64
            + key * work.decode_context as f64
            + row * work.decode_rows as f64
            + prompt * work.prefill_seqs as f64
            + logits * work.logit_rows as f64
    }
}
