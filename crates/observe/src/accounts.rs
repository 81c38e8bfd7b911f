//! The ledger of the running engine, and the accounts of requests that are over: what answers "why was this slow".
//!
//! ```text
//! admitted --> ledger: one account per open request --> closed: the newest, bounded in number and in bytes
//! ```

use std::collections::{BTreeMap, VecDeque};

use ledger::{Account, Ledger, LedgerEvent, Totals};
use protocol::{FinishReason, Nanos, RequestId, ServiceClass};
use scheduler::{CostModel, Request, StepRecord, quota};

use crate::remote_prefill::{RemotePrefillResult, RemotePrefillTrace, RemotePrefillTraces};
use crate::summary::RequestSummary;

/// Steps kept per request; of further ones only the sums.
const KEPT_VISITS: usize = 1024;
/// Requests that are over and can still be asked about.
const KEPT_REQUESTS: usize = 1024;
/// Bytes that these may take together.
const KEPT_BYTES: usize = 16 << 20;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With all its answers.
    Finished,
    /// Its client went away.
    Cancelled,
    /// With an error.
    Failed,
}

/// Where the time of one request went, step by step. It holds no content: lengths, moments and numbers of requests.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The account, in the engine's time: nanoseconds since its start.
    pub account: Account,
    /// `None` while it waits or runs.
    pub ending: Option<Ending>,
    /// When it ended; now for one that has not.
    pub until: Nanos,
    /// For how long the engine was held since it came: no part of any other time.
    pub held: Nanos,
    /// The time in which another worker read its prompt, if one did and that is not forgotten.
    pub away: Option<RemotePrefillTrace>,
}

/// A request that is over and can be asked about.
#[derive(Clone, Debug)]
struct KeptAccount {
    account: Account,
    ending: Ending,
    until: Nanos,
    held: Nanos,
}

impl KeptAccount {
    fn summary(&self) -> RequestSummary {
        RequestSummary::of(&self.account, Some(self.ending), self.until)
    }
}

/// A request that is over, as every view sees it.
#[derive(Clone, Debug)]
pub struct Closed {
    /// Where its time went.
    pub account: Account,
    /// How it ended.
    pub ending: Ending,
    /// When.
    pub until: Nanos,
    /// Its class.
    pub class: ServiceClass,
    /// Tokens that each of its answers might have had.
    pub max_tokens: usize,
    /// For how long the engine was held while it was open.
    pub held: Nanos,
}

/// Of an open request, what its account does not have.
#[derive(Clone, Copy, Debug)]
struct Open {
    class: ServiceClass,
    max_tokens: usize,
    /// For how long the engine had been held when it came.
    held: Nanos,
}

/// See the module's picture.
#[derive(Debug)]
pub struct Accounts {
    ledger: Ledger,
    open: BTreeMap<RequestId, Open>,
    closed: VecDeque<KeptAccount>,
    closed_bytes: usize,
    /// Prompts that other workers read.
    pub remote_prefills: RemotePrefillTraces,
}

impl Default for Accounts {
    fn default() -> Accounts {
        let ledger = Ledger::new(KEPT_VISITS);
        let traces = RemotePrefillTraces::default();
        Accounts { ledger, open: BTreeMap::new(), closed: VecDeque::new(), closed_bytes: 0, remote_prefills: traces }
    }
}

impl Accounts {
    /// `held`: for how long the engine had been held when the request came.
    pub fn open(&mut self, request: &Request, class: ServiceClass, max_tokens: usize, held: Nanos) {
        self.ledger.admit(request);
        self.take_late_costs();
        self.open.insert(request.id, Open { class, max_tokens, held });
    }

    /// A step is complete; `news` is told what it brought.
    pub fn step(&mut self, record: &StepRecord, cost: Option<&CostModel>, news: &mut dyn FnMut(LedgerEvent<'_>)) {
        self.ledger.step(record, cost, news);
        self.take_late_costs();
    }

    /// The cached tokens of an open request would have taken that, whatever the cost model says.
    pub fn saved_at_least(&mut self, id: RequestId, least: Nanos) {
        self.ledger.saved_at_least(id, least);
    }

    /// A request's prompt is read elsewhere from now on.
    pub fn begin_remote_prefill(&mut self, id: RequestId, now: Nanos) {
        self.ledger.begin_remote_prefill(id, now);
        self.remote_prefills.begin(id, now);
    }

    /// Everything goes on with another device: see [`Ledger::moved`].
    pub fn moved(&mut self, since: Nanos, now: Nanos) {
        self.ledger.moved(since, now);
    }

    /// It is back, or will not come.
    pub fn finish_remote_prefill(&mut self, id: RequestId, result: &RemotePrefillResult, now: Nanos) {
        self.ledger.end_remote_prefill(id, &result.bill, now);
        self.remote_prefills.finish(id, result, now);
    }

    /// What requests that are over cost others, learned since: their timelines have it, their answers are sent.
    fn take_late_costs(&mut self) {
        for (id, cost) in self.ledger.late_costs() {
            if let Some(closed) = self.closed.iter_mut().rev().find(|closed| closed.account.request == id) {
                closed.account.bill.cost.merge(cost);
            }
        }
    }

    /// Panics unless what others took of each request is what it cost them.
    pub fn check(&self) {
        self.ledger.check();
    }

    /// One of its answers is complete.
    pub fn end_answer(&mut self, id: RequestId, answer: usize, reason: FinishReason) {
        self.ledger.end_answer(id, answer, reason);
    }

    /// The request is over. `held`: for how long the engine was held until now.
    pub fn close(&mut self, id: RequestId, ending: Ending, now: Nanos, held: Nanos) -> Option<Closed> {
        let open = self.open.remove(&id)?;
        let account = self.ledger.end(id)?;
        self.remote_prefills.cancel(id, now);
        Some(Closed {
            account,
            ending,
            until: now,
            class: open.class,
            max_tokens: open.max_tokens,
            held: held.since(open.held),
        })
    }

    /// It gets a place among those that can be asked about.
    pub fn keep(&mut self, closed: Closed) {
        let Closed { account, ending, until, held, .. } = closed;
        self.closed_bytes += account.bytes();
        self.closed.push_back(KeptAccount { account, ending, until, held });
        while self.closed.len() > KEPT_REQUESTS || self.closed_bytes > KEPT_BYTES {
            let owners = self.closed.iter().map(|closed| closed.account.tenant);
            let Some(oldest) = quota::to_forget(owners).and_then(|at| self.closed.remove(at)) else { break };
            self.closed_bytes -= oldest.account.bytes();
        }
    }

    /// Requests that are open.
    pub fn num_open(&self) -> usize {
        self.open.len()
    }

    /// Their numbers.
    pub fn open_requests(&self) -> Vec<RequestId> {
        self.open.keys().copied().collect()
    }

    /// Open requests, as they were after the last step: when each came, and its first token, if it has one.
    pub fn first_tokens(&self) -> impl Iterator<Item = (Nanos, Option<Nanos>)> {
        let accounts = self.open.keys().filter_map(|&id| self.ledger.of(id));
        accounts.map(|account| (account.arrived, account.first_token))
    }

    /// When the request that has waited longest for its first token arrived; `None` if none waits.
    pub fn oldest_waiting(&self) -> Option<Nanos> {
        self.first_tokens().filter(|(_, first)| first.is_none()).map(|(arrived, _)| arrived).min()
    }

    /// An open account as it was after the last step.
    pub fn of(&self, id: RequestId) -> Option<&Account> {
        self.ledger.of(id)
    }

    /// One request's time; `None` if it is unknown or forgotten. `held`: for how long the engine was held until now.
    pub fn timeline(&self, id: RequestId, now: Nanos, held: Nanos) -> Option<Timeline> {
        let away = self.remote_prefills.of(id).cloned();
        if let Some((account, open)) = self.ledger.account(id).zip(self.open.get(&id)) {
            return Some(Timeline { account, ending: None, until: now, held: held.since(open.held), away });
        }
        let KeptAccount { account, ending, until, held } =
            self.closed.iter().rev().find(|closed| closed.account.request == id)?.clone();
        Some(Timeline { account, ending: Some(ending), until, held, away })
    }

    /// Every open request and every closed one that is kept, in the order in which they came.
    pub fn summaries(&self, now: Nanos) -> Vec<RequestSummary> {
        let open = self.open.keys().filter_map(|&id| Some(RequestSummary::of(self.ledger.of(id)?, None, now)));
        let mut all: Vec<RequestSummary> = self.closed.iter().map(KeptAccount::summary).chain(open).collect();
        all.sort_unstable_by_key(|summary| (summary.arrived, summary.request));
        all
    }

    /// One of them.
    pub fn summary(&self, id: RequestId, now: Nanos) -> Option<RequestSummary> {
        match self.ledger.of(id) {
            Some(account) => Some(RequestSummary::of(account, None, now)),
            None => self.closed.iter().rev().find(|closed| closed.account.request == id).map(KeptAccount::summary),
        }
    }

    /// Sums over all requests.
    pub fn totals(&self) -> &Totals {
        self.ledger.totals()
    }
}

#[cfg(test)]
mod tests {

    use scheduler::{Limits, Scheduler};
    use testing::plans;

    use super::*;

    fn request(id: u64) -> Request {
        Request { stop: plans::at_most(1), use_prefix_cache: false, arrived: Nanos(id), ..plans::request(id, [1]) }
    }

    #[test]
    fn who_came_while_the_last_step_of_another_ran_is_on_its_bill() {
        let limits = Limits {
            num_blocks: 8,
            max_model_len: 8,
            max_num_seqs: 1,
            max_prefill_seqs: 1,
            max_queued_requests: 8,
            max_queued_tokens: 8,
            enable_prefix_caching: false,
            ..plans::small()
        };
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        scheduler.admit(request(1)).expect("there is room");
        let step = scheduler.schedule(Nanos(100));
        let record = scheduler.complete(plans::answer(&step, 1), Nanos(200)).record;
        let mut accounts = Accounts::default();
        accounts.open(&request(1), ServiceClass::Default, 1, Nanos(0));
        accounts.step(&record, None, &mut |_| {});
        let closed = accounts.close(RequestId(1), Ending::Finished, Nanos(200), Nanos(0)).expect("it is open");
        accounts.keep(closed);
        accounts.open(&request(130), ServiceClass::Default, 1, Nanos(0));
        accounts.check();
        let cost = |id| accounts.timeline(RequestId(id), Nanos(200), Nanos(0)).expect("it is known").account.bill.cost;
        assert_eq!((cost(1).queue_budget, cost(1).total()), (Nanos(70), Nanos(70)));
    }

    #[test]
    fn the_oldest_is_forgotten_and_the_open_never() {
        let mut accounts = Accounts::default();
        let last = KEPT_REQUESTS as u64 + 2;
        for id in 0..=last {
            accounts.open(&request(id), ServiceClass::Default, 1, Nanos(0));
            if id > 0 {
                let closed = accounts.close(RequestId(id), Ending::Finished, Nanos(id), Nanos(0));
                accounts.keep(closed.expect("it is open"));
            }
        }
        let ending = |id| accounts.timeline(RequestId(id), Nanos(9), Nanos(0)).map(|timeline| timeline.ending);
        assert_eq!([ending(0), ending(1), ending(2)], [Some(None), None, None]);
        assert_eq!([ending(3), ending(last)], [Some(Some(Ending::Finished)); 2]);
        assert_eq!(accounts.closed_bytes, accounts.closed.iter().map(|closed| closed.account.bytes()).sum::<usize>());
        assert!(accounts.closed_bytes <= KEPT_BYTES);
    }
}
