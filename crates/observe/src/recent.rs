//! The newest steps, ends and gaps, for watchers. Readers take pointers.

use std::collections::VecDeque;
use std::sync::Arc;

use ledger::LedgerEvent;
use protocol::{FinishReason, Nanos, RequestId};
use scheduler::StepRecord;

use crate::accounts::{Closed, Ending};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With all its answers; the reason of the last.
    Finished(FinishReason),
    /// Its client went away.
    Cancelled,
    /// With an error.
    Failed,
}

/// A request that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// Which.
    pub request: RequestId,
    /// When.
    pub at: Nanos,
    /// How.
    pub end: End,
    /// When it came.
    pub arrived: Nanos,
    /// When the first step with a row of it was planned.
    pub first_scheduled: Option<Nanos>,
    /// The longest time between two of its tokens.
    pub longest_gap: Nanos,
    /// Arrival to first token, milliseconds; `None` if none came.
    pub ttft_ms: Option<f64>,
    /// Mean time between the tokens of its slowest answer; `None` where no answer has two.
    pub tpot_ms: Option<f64>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of its answers.
    pub generated: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached: usize,
}

/// Step records kept for views that look back.
const KEPT_RECORDS: usize = 4096;
/// Ends of requests kept for them.
const KEPT_ENDS: usize = 1024;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Recent {
    records: VecDeque<Arc<StepRecord>>,
    num_steps: u64,
    ended: VecDeque<Ended>,
    num_ended: u64,
    /// The last times to first token, in seconds.
    pub ttfts: Newest<256>,
    /// The last times from token to token.
    pub gaps: Newest<2048>,
}

impl Recent {
    /// Takes a step's record. Returns memory to write the next one into: that of the oldest, unless a reader still has
    /// it, so that a steady step allocates nothing.
    pub fn step(&mut self, record: StepRecord) -> StepRecord {
        let oldest = if self.records.len() == KEPT_RECORDS { self.records.pop_front() } else { None };
        let mut slot = oldest.unwrap_or_default();
        let mut spare = match Arc::get_mut(&mut slot) {
            Some(slot) => std::mem::replace(slot, record),
            None => {
                slot = Arc::new(record);
                StepRecord::default()
            }
        };
        self.records.push_back(slot);
        self.num_steps += 1;
        // Else each of them would end with the room of the largest step it ever had.
        spare.trim();
        spare
    }

    /// What a step brought.
    pub fn news(&mut self, news: LedgerEvent<'_>) {
        if let LedgerEvent::Token { gap: Some(gap) } = news {
            self.gaps.push(gap.as_secs_f64());
        }
    }

    /// A request is over.
    pub fn closed(&mut self, closed: &Closed) {
        let account = &closed.account;
        if let (Ending::Finished, Some(ttft)) = (closed.ending, account.ttft()) {
            self.ttfts.push(ttft.as_secs_f64());
        }
        if self.ended.len() == KEPT_ENDS {
            self.ended.pop_front();
        }
        let last_reason = account.answers().filter_map(|answer| answer.reason).last();
        self.ended.push_back(Ended {
            request: account.request,
            at: closed.until,
            end: match (closed.ending, last_reason) {
                (Ending::Finished, Some(reason)) => End::Finished(reason),
                (Ending::Finished, None) | (Ending::Cancelled, _) => End::Cancelled,
                (Ending::Failed, _) => End::Failed,
            },
            arrived: account.arrived,
            first_scheduled: account.first_scheduled,
            longest_gap: account.answers().map(|answer| answer.longest_gap).max().unwrap_or_default(),
            ttft_ms: account.ttft().map(|ttft| ttft.as_secs_f64() * 1e3),
            tpot_ms: account.tpot().map(|seconds| seconds * 1e3).filter(|&ms| ms > 0.0),
            prompt_tokens: account.prompt_tokens,
            generated: account.num_tokens(),
            cached: account.cached_tokens,
        });
        self.num_ended += 1;
    }

    /// Steps since the start.
    pub fn num_steps(&self) -> u64 {
        self.num_steps
    }

    /// Requests that are over, since the start.
    pub fn num_ended(&self) -> u64 {
        self.num_ended
    }

    /// Those from number `from` on that are kept.
    pub fn ended_from(&self, from: u64) -> impl Iterator<Item = Ended> {
        let oldest = self.num_ended - self.ended.len() as u64;
        self.ended.iter().skip(from.saturating_sub(oldest) as usize).copied()
    }

    /// The kept steps from number `from` on, with their numbers since the start.
    pub fn steps_from(&self, from: u64) -> impl Iterator<Item = (u64, &Arc<StepRecord>)> {
        let oldest = self.num_steps - self.records.len() as u64;
        let first = from.max(oldest);
        (first..).zip(self.records.range((first - oldest).min(self.records.len() as u64) as usize..))
    }
}

/// The last of many numbers.
#[derive(Debug)]
pub struct Newest<const N: usize> {
    values: Vec<f32>,
    next: usize,
}

impl<const N: usize> Default for Newest<N> {
    fn default() -> Newest<N> {
        Newest { values: Vec::with_capacity(N), next: 0 }
    }
}

impl<const N: usize> Newest<N> {
    /// The oldest makes room.
    pub fn push(&mut self, value: f64) {
        if self.values.len() < N {
            self.values.push(value as f32);
        } else {
            self.values[self.next] = value as f32;
            self.next = (self.next + 1) % N;
        }
    }

    /// All of them, in no order.
    pub fn values(&self) -> Vec<f32> {
        self.values.clone()
    }
}
