//! Predicts the time to first token of a prompt that arrives now, from the queue and the cost model.
//!
//! ```text
//! now |#### A: rest of a prompt ####|## B: waits ##|# the new one #|  first token
//!     |<--------- backlog, those ahead of it ----->|<---- own ---->|
//! ```
//! All at the current pace: the prompt rows that a step takes beside the decoding sequences within their targets. It is
//! a point estimate ([`crate::latency_bound`] turns it into a bound): streams end and begin, prefix hits shorten prompts, and
//! later arrivals with an earlier deadline go first. The rest of the step in flight is not counted.

use alloc::vec::Vec;

use crate::cost::{CostModel, PromptRows, Work};
use crate::kv::blocks_for;
use crate::latency_bound::QueueAhead;
use crate::{Phase, Scheduler};
use protocol::{Nanos, Priority};

/// Requests with an earlier first token are judged apart.
const MOMENT: Nanos = Nanos(5_000_000);

/// A queued prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
struct QueuedPrompt {
    priority: Priority,
    /// Deadline of its first token; the maximum without a target.
    due: Nanos,
    /// Predicted seconds of its rows.
    seconds: f64,
}

/// A new request, as far as its place in the queue depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingRequest {
    /// Prompt length.
    pub prompt_tokens: usize,
    /// Length of its cached prefix.
    pub cached_tokens: usize,
    /// Its class.
    pub priority: Priority,
    /// Its TTFT target.
    pub ttft: Option<Nanos>,
}

/// Queued prompts and the pace, from [`Scheduler::forecast_into`]; copies may be queried on any thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionForecast {
    at: Nanos,
    queue: Vec<QueuedPrompt>,
    pace: Pace,
    /// If seats or blocks are short: requests that must end before a newcomer enters. Else 0.
    ends: usize,
    /// Seconds of a decode-only step once the queued prompts decode too.
    token: f64,
    late: LatePrompts,
}

/// Prompts past their TTFT target without a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatePrompts {
    /// Their number.
    pub count: usize,
    /// Arrival of the oldest.
    pub oldest: Option<Nanos>,
}

/// Forecast of a new request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueForecast {
    ahead: QueueAhead,
    first_token: Nanos,
    /// Seconds of the prompts that are queued behind it, and of a step that computes them.
    behind: f64,
    full_step: f64,
    /// Seconds of a step without prompts.
    token: f64,
}

impl QueueForecast {
    /// What is ahead of it.
    pub fn ahead(&self) -> QueueAhead {
        self.ahead
    }

    /// From arrival to its first token.
    pub fn first_token(&self) -> Nanos {
        self.first_token
    }

    /// From arrival to the last of `tokens` tokens: while prompts behind it are computed a token takes a full step,
    /// then a decode-only one. Later arrivals are not included.
    pub fn answer(&self, tokens: usize) -> Nanos {
        let gaps = tokens.saturating_sub(1) as f64;
        let beside = gaps.min(self.behind / self.full_step.max(1e-9));
        let seconds = beside * self.full_step + (gaps - beside) * self.token;
        Nanos(self.first_token.0.saturating_add(nanos(seconds).0))
    }

    #[cfg(test)]
    pub(crate) fn alone(first_token: Nanos) -> QueueForecast {
        QueueForecast { ahead: QueueAhead::Empty, first_token, behind: 0.0, full_step: 0.0, token: 0.0 }
    }
}

/// Cost of prompt rows at the current load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pace {
    /// Prompt rows of a step.
    rows: usize,
    /// Seconds per row, decode beside it included.
    row: f64,
    /// Seconds per row and key beyond those included in `row`.
    pair: f64,
    /// Seconds of the shortest step with a prompt row.
    step: f64,
}

impl Pace {
    fn of(cost: &CostModel, decode: &Work, bound: Option<Nanos>, most: usize) -> Pace {
        let rows = bound.map_or(most, |bound| cost.rows_within(decode, PromptRows::first(most), bound).max(1));
        let with = |rows| {
            let mut work = *decode;
            work.add_chunk(0, rows, false);
            cost.parts(&work)
        };
        let whole = with(rows);
        let decode_alone = if decode.rows() > 0 { cost.seconds(decode) } else { 0.0 };
        // Attention uses only the part of a step that decode leaves, so it takes more steps than its own time.
        let for_prompts = (whole.total() - decode_alone).max(whole.total() * 0.01);
        let pairs = rows as f64 * (rows + 1) as f64 / 2.0;
        let pair = whole.prefill_attention / pairs * (whole.total() / for_prompts);
        Pace { rows, row: whole.total() / rows as f64, pair, step: with(1).total() }
    }

    /// The pace at this slowdown by other processes.
    fn slower(self, times: f64) -> Pace {
        let Pace { rows, row, pair, step } = self;
        Pace { rows, row: row * times, pair: pair * times, step: step * times }
    }

    /// Seconds for `len` rows from position `start`.
    fn seconds(&self, start: usize, len: usize) -> f64 {
        let (start, len) = (start as f64, len as f64);
        let counted = len * (self.rows.min(len as usize) + 1) as f64 / 2.0;
        let pairs = len * start + len * (len + 1.0) / 2.0;
        self.row * len + self.pair * (pairs - counted).max(0.0)
    }
}

impl AdmissionForecast {
    /// Total time of the queued prompts, of all classes.
    pub fn backlog(&self) -> Nanos {
        nanos(self.queue.iter().map(|prompt| prompt.seconds).sum())
    }

    /// Prompts that are already late.
    pub fn late(&self) -> LatePrompts {
        self.late
    }

    /// TTFT of `new` if it arrives at `now`. `turnover`: mean time between two finished requests, used where seats or
    /// blocks are short.
    pub fn ttft(&self, new: &IncomingRequest, now: Nanos, turnover: Nanos) -> Nanos {
        let due = due(now, new.ttft);
        let is_before = |prompt: &&QueuedPrompt| (prompt.priority, prompt.due) <= (new.priority, due);
        let queue = nanos(self.queue.iter().filter(is_before).map(|prompt| prompt.seconds).sum());
        // The queue has advanced since the snapshot.
        let left = Nanos(self.at.0.saturating_add(queue.0)).since(now);
        let seats = turnover.0.saturating_mul(self.ends as u64);
        let ready = left.0.max(seats).saturating_add(self.alone(new).0);
        // Its last step is filled with rows of the prompts behind it.
        let full_step = nanos(self.pace.row * self.pace.rows as f64).0.max(1);
        let is_last = self.queue.iter().all(|prompt| is_before(&prompt));
        Nanos(if is_last { ready } else { ready.div_ceil(full_step).saturating_mul(full_step) })
    }

    /// The TTFT as [`AdmissionForecast::ttft`] has it, with the terms that predict the answer's end.
    pub fn queue_forecast(&self, new: &IncomingRequest, now: Nanos, turnover: Nanos) -> QueueForecast {
        let first_token = self.ttft(new, now, turnover);
        let due = due(now, new.ttft);
        let behind = |prompt: &&QueuedPrompt| (prompt.priority, prompt.due) > (new.priority, due);
        let behind: f64 = self.queue.iter().filter(behind).map(|prompt| prompt.seconds).sum();
        let before = self.queue.iter().any(|prompt| (prompt.priority, prompt.due) <= (new.priority, due));
        let ahead = match before {
            _ if self.ends > 0 => QueueAhead::Full,
            _ if new.ttft.is_some_and(|ttft| first_token > ttft) => QueueAhead::Late,
            true => QueueAhead::Prompts,
            false if first_token < MOMENT => QueueAhead::Moment,
            false => QueueAhead::Empty,
        };
        QueueForecast {
            ahead,
            first_token,
            behind,
            full_step: self.pace.row * self.pace.rows as f64,
            token: self.token,
        }
    }

    /// Time of a prompt with an empty queue.
    pub fn alone(&self, new: &IncomingRequest) -> Nanos {
        nanos(self.seconds(new).max(self.pace.step))
    }

    fn seconds(&self, new: &IncomingRequest) -> f64 {
        // The last token is always computed.
        let cached = new.cached_tokens.min(new.prompt_tokens.saturating_sub(1));
        self.pace.seconds(cached, new.prompt_tokens - cached)
    }

    /// Adds a prompt that the scheduler has not received yet.
    pub fn add(&mut self, new: &IncomingRequest, now: Nanos) {
        let seconds = self.seconds(new);
        self.queue.push(QueuedPrompt { priority: new.priority, due: due(now, new.ttft), seconds });
    }
}

impl Scheduler {
    /// Writes the queue at `now` into `forecast`, reusing its buffers; empty without a cost model. Cost: linear in
    /// running and waiting sequences.
    pub fn forecast_into(&self, now: Nanos, forecast: &mut AdmissionForecast) {
        forecast.at = now;
        forecast.queue.clear();
        forecast.pace = Pace::default();
        forecast.ends = 0;
        forecast.token = 0.0;
        forecast.late = LatePrompts::default();
        let Some(cost) = self.cost_model() else { return };
        let (mut decode, mut bound) = (Work::default(), None::<Nanos>);
        for seq in
            self.state.running.iter().map(|&(_, id)| &self.state.seqs[id]).filter(|seq| seq.phase() == Phase::Decode)
        {
            decode.add_decode(seq.num_tokens());
            bound = [bound, seq.request.targets.tpot].into_iter().flatten().min();
        }
        let limits = self.limits();
        let most = limits.max_num_batched_tokens.saturating_sub(decode.rows()).min(limits.max_prefill_chunk).max(1);
        let slowdown = self.policy.steal.slowdown();
        let bound = bound.map(|bound| Nanos((bound.0 as f64 / slowdown) as u64));
        forecast.pace = Pace::of(cost, &decode, bound, most).slower(slowdown);
        let started = self.state.running.iter().map(|&(_, id)| id);
        for seq in started
            .chain(self.state.queue.iter())
            .map(|id| &self.state.seqs[id])
            .filter(|s| s.phase() == Phase::Prefill)
        {
            // A client has already read part of it, so it goes first.
            let resumes = seq.num_generated() > 0;
            let arrived = seq.request.arrived;
            let due = if resumes { Nanos(0) } else { due(arrived, seq.request.targets.ttft) };
            if !resumes && due < now {
                forecast.late.count += 1;
                forecast.late.oldest = Some(forecast.late.oldest.map_or(arrived, |oldest| oldest.min(arrived)));
            }
            let seconds = forecast.pace.seconds(seq.num_computed(), seq.num_uncomputed());
            forecast.queue.push(QueuedPrompt { priority: seq.rank.priority, due, seconds });
        }
        let mut later = decode;
        let places = limits.max_num_seqs.saturating_sub(decode.rows()).max(1);
        let context = decode.decode_context as usize / decode.rows().max(1);
        (0..places.min(forecast.queue.len() + 1)).for_each(|_| later.add_decode(context));
        forecast.token = cost.seconds(&later);
        let fits =
            |(_, id)| blocks_for(self.state.seqs[id].num_tokens(), limits.block_size) <= self.state.pool.num_free();
        let no_blocks = self.state.queue.len() > 0 && !self.state.queue.firsts().any(fits);
        if no_blocks || self.state.seats_taken() >= limits.max_num_seqs {
            forecast.ends = self.state.queue.len() + 1;
        }
    }
}

fn due(arrived: Nanos, target: Option<Nanos>) -> Nanos {
    Nanos(target.map_or(u64::MAX, |target| arrived.0.saturating_add(target.0)))
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}
