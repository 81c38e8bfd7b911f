//! What is reported of a request that is over.

use ledger::{Account, Bill};
use protocol::{Nanos, RequestId};
use scheduler::LatencyBound;

use crate::accounts::Closed;

/// A finished request.
#[derive(Debug)]
pub struct FinishedSummary {
    /// Which.
    pub request: RequestId,
    /// Token counts.
    pub usage: Usage,
    /// Times by phase.
    pub timings: Timings,
}

/// Token counts of a request, over all its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, counted once however many answers were asked for.
    pub prompt_tokens: usize,
    /// Tokens generated, stop tokens included.
    pub completion_tokens: usize,
    /// Prompt tokens whose keys and values were found in the prefix cache.
    pub cached_tokens: usize,
}

/// Where a request's time went, by phase. `queue + prefill = time to first token`, and with `decode` the total.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timings {
    /// From arrival to the first step that carried a row of it, milliseconds.
    pub queue_ms: f64,
    /// From there to its first token.
    pub prefill_ms: f64,
    /// From its first token to its last, over all answers.
    pub decode_ms: f64,
    /// Arrival to first token.
    pub ttft_ms: f64,
    /// Arrival to the end.
    pub total_ms: f64,
    /// Prompt rows computed, recomputation after preemption included.
    pub prefill_tokens: usize,
    /// Prompt tokens that the prefix cache saved.
    pub cached_tokens: usize,
    /// Tokens generated after the first of each answer: the ones that decode steps made.
    pub decode_tokens: usize,
    /// Steps that carried a decode row of it.
    pub decode_steps: usize,
    /// Those of them that verified drafts.
    pub verify_steps: usize,
    /// Drafts that these steps verified, and the accepted ones.
    pub drafted_tokens: usize,
    /// See `drafted_tokens`.
    pub accepted_tokens: usize,
    /// Cache positions read by its decode rows, summed: what attention had to fetch.
    pub decode_context_tokens: u64,
    /// Times it lost its blocks and was recomputed.
    pub preemptions: usize,
    /// For how long the engine was held meanwhile: no part of the other times.
    pub held_ms: f64,
    /// What it was promised; `None` where steps are not predicted.
    pub latency_bound: Option<LatencyBound>,
    /// The same times by owner: which requests they were spent on, and what this one cost others.
    pub bill: Box<Bill>,
}

impl Usage {
    /// Those of an account.
    pub fn of(account: &Account) -> Usage {
        Usage {
            prompt_tokens: account.prompt_tokens,
            completion_tokens: account.num_tokens(),
            cached_tokens: account.cached_tokens,
        }
    }
}

impl Timings {
    /// Those of an account, without a latency bound.
    pub fn of(closed: &Closed) -> Timings {
        let Closed { account, until, held, .. } = closed;
        let ms = |from: Nanos, to: Nanos| to.since(from).as_secs_f64() * 1e3;
        let first_scheduled = account.first_scheduled.unwrap_or(*until);
        let first_token = account.first_token.unwrap_or(*until);
        Timings {
            queue_ms: ms(account.arrived, first_scheduled),
            prefill_ms: ms(first_scheduled, first_token),
            decode_ms: ms(first_token, account.last_token.unwrap_or(first_token)),
            ttft_ms: ms(account.arrived, first_token),
            total_ms: ms(account.arrived, *until),
            prefill_tokens: account.prefill_rows,
            cached_tokens: account.cached_tokens,
            decode_tokens: account.answers().map(|answer| answer.tokens.saturating_sub(1)).sum(),
            decode_steps: account.decode_rows,
            verify_steps: account.verify_rows,
            drafted_tokens: account.draft_rows,
            accepted_tokens: account.held_drafts,
            decode_context_tokens: account.decode_context,
            preemptions: account.preemptions,
            held_ms: held.as_secs_f64() * 1e3,
            latency_bound: None,
            bill: Box::new(account.bill),
        }
    }

    /// Adds those of a request that ran side by side with these: tokens and steps are summed, times are the longest, and
    /// of what the cache missed the largest is kept. Contexts, and the bill but for that, stay these.
    pub fn join(&mut self, other: &Timings) {
        for (longest, this) in [
            (&mut self.queue_ms, other.queue_ms),
            (&mut self.prefill_ms, other.prefill_ms),
            (&mut self.decode_ms, other.decode_ms),
            (&mut self.ttft_ms, other.ttft_ms),
            (&mut self.total_ms, other.total_ms),
            (&mut self.held_ms, other.held_ms),
        ] {
            *longest = longest.max(this);
        }
        for (sum, more) in [
            (&mut self.prefill_tokens, other.prefill_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.decode_tokens, other.decode_tokens),
            (&mut self.decode_steps, other.decode_steps),
            (&mut self.verify_steps, other.verify_steps),
            (&mut self.drafted_tokens, other.drafted_tokens),
            (&mut self.accepted_tokens, other.accepted_tokens),
            (&mut self.preemptions, other.preemptions),
        ] {
            *sum += more;
        }
        let misses = [self.bill.miss, other.bill.miss].into_iter().flatten();
        self.bill.miss = misses.reduce(|a, b| if b.lost > a.lost { b } else { a });
        let bounds = [self.latency_bound, other.latency_bound].into_iter().flatten();
        self.latency_bound = bounds.reduce(|a, b| a.latest(&b));
    }

    /// Computed prompt tokens per second of the prefill phase (0 when nothing was computed).
    pub fn prefill_tok_s(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill_ms)
    }

    /// Decoded tokens per second of the decode phase (0 when nothing was decoded).
    pub fn decode_tok_s(&self) -> f64 {
        rate(self.decode_tokens, self.decode_ms)
    }
}

fn rate(tokens: usize, ms: f64) -> f64 {
    if ms > 0.0 { tokens as f64 / ms * 1e3 } else { 0.0 }
}
