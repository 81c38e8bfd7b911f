//! The ledger of the running engine, and the accounts of requests that are over: what answers "why was this slow".
//!
//! ```text
//! admitted --> ledger: one account per open request --> closed: the newest, bounded in number and in bytes
//! ```

use std::collections::VecDeque;

use ledger::{Account, Bill, Ledger, Totals};
use scheduler::{CostModel, Nanos, Request, RequestId, StepRecord};

use crate::quota;

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
}

/// See the module's picture.
#[derive(Debug)]
pub(crate) struct Books {
    ledger: Ledger,
    closed: VecDeque<Timeline>,
    closed_bytes: usize,
}

impl Default for Books {
    fn default() -> Books {
        Books { ledger: Ledger::new(KEPT_VISITS), closed: VecDeque::new(), closed_bytes: 0 }
    }
}

impl Books {
    pub(crate) fn open(&mut self, request: &Request) {
        let &Request { id, arrived, num_answers, tenant, targets, .. } = request;
        self.ledger.admit(id, arrived, num_answers, tenant, targets);
    }

    pub(crate) fn step(&mut self, record: &StepRecord, cost: Option<&CostModel>) {
        self.ledger.step(record, cost);
    }

    pub(crate) fn pause(&mut self, now: Nanos) {
        self.ledger.pause(now);
    }

    pub(crate) fn resume(&mut self, now: Nanos) {
        self.ledger.resume(now);
    }

    pub(crate) fn end_answer(&mut self, id: RequestId, answer: usize) {
        self.ledger.end_answer(id, answer);
    }

    /// The request is over: its sums, and a place among those that can be asked about.
    pub(crate) fn close(&mut self, id: RequestId, ending: Ending, now: Nanos) -> Bill {
        let Some(mut account) = self.ledger.end(id) else { return Bill::default() };
        account.shrink();
        let bill = account.bill;
        self.closed_bytes += account.bytes();
        self.closed.push_back(Timeline { account, ending: Some(ending), until: now });
        while self.closed.len() > KEPT_REQUESTS || self.closed_bytes > KEPT_BYTES {
            let owners = self.closed.iter().map(|closed| closed.account.tenant);
            let Some(oldest) = quota::to_forget(owners).and_then(|at| self.closed.remove(at)) else { break };
            self.closed_bytes -= oldest.account.bytes();
        }
        bill
    }

    /// One request's time; `None` if it is unknown or forgotten.
    pub(crate) fn timeline(&self, id: RequestId, now: Nanos) -> Option<Timeline> {
        match self.ledger.account(id) {
            Some(account) => Some(Timeline { account, ending: None, until: now }),
            None => self.closed.iter().rev().find(|closed| closed.account.request == id).cloned(),
        }
    }

    /// Sums over all requests.
    pub(crate) fn totals(&self) -> &Totals {
        self.ledger.totals()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scheduler::{Priority, StopRules, Targets};

    use super::*;

    fn request(id: u64) -> Request {
        Request {
            id: RequestId(id),
            prompt: Arc::new([1]),
            num_answers: 1,
            stop: StopRules { max_tokens: 1, min_tokens: 0, stop_token_ids: Vec::new() },
            priority: Priority(0),
            salt: 0,
            use_prefix_cache: false,
            tenant: 0,
            targets: Targets::default(),
            arrived: Nanos(id),
        }
    }

    #[test]
    fn the_oldest_is_forgotten_and_the_open_never() {
        let mut books = Books::default();
        let last = KEPT_REQUESTS as u64 + 2;
        for id in 0..=last {
            books.open(&request(id));
            if id > 0 {
                books.close(RequestId(id), Ending::Finished, Nanos(id));
            }
        }
        let ending = |id| books.timeline(RequestId(id), Nanos(9)).map(|timeline| timeline.ending);
        assert_eq!([ending(0), ending(1), ending(2)], [Some(None), None, None]);
        assert_eq!([ending(3), ending(last)], [Some(Some(Ending::Finished)); 2]);
        assert_eq!(books.closed_bytes, books.closed.iter().map(|closed| closed.account.bytes()).sum::<usize>());
        assert!(books.closed_bytes <= KEPT_BYTES);
    }
}
