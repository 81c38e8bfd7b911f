//! When a prompt that comes now would have its first token: what is in line before it, through the cost model.
//!
//! ```text
//! now |#### A: rest of a prompt ####|## B: waits ##|# the new one #|  first token
//!     |<---------- backlog, those before it ------>|<---- own ---->|
//! ```
//! All at the pace of the moment: the rows of prompts that a step takes beside the sequences that decode now, within
//! their targets. That is a forecast and no promise ([`crate::promise`] makes one of it): streams end and begin, a
//! prefix may be found in the cache, and what comes later with less time goes first. It leaves out what is left of the
//! step in flight.

use alloc::vec::Vec;

use crate::cost::{CostModel, PromptRows, Work};
use crate::kv::blocks_for;
use crate::promise::Crowd;
use crate::{Nanos, Phase, Priority, Scheduler};

/// A prompt in line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct InLine {
    priority: Priority,
    /// When its first token is due; the far future for one without a target.
    due: Nanos,
    /// Seconds that its rows take.
    seconds: f64,
}

/// Who comes, as far as its place in line depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingRequest {
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Those of them, from the first on, that the cache has.
    pub cached_tokens: usize,
    /// Its class.
    pub priority: Priority,
    /// Its target of time to first token.
    pub ttft: Option<Nanos>,
}

/// The line of prompts at a moment, and its pace. Made by [`Scheduler::forecast_into`]; copies may be asked anywhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionForecast {
    at: Nanos,
    line: Vec<InLine>,
    pace: Pace,
    /// Where seats or blocks are short: how many requests must end before a newcomer enters. Else 0.
    ends: usize,
    /// Seconds of a step of decode alone, when those in line have come to it.
    token: f64,
    late: LatePrompts,
}

/// Prompts that are past their time to first token and have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatePrompts {
    /// How many.
    pub count: usize,
    /// When the oldest of them came; `None` without any.
    pub oldest: Option<Nanos>,
}

/// What is before a request that comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    crowd: Crowd,
    first_token: Nanos,
    /// Seconds of prompts that are read after its own, and of a step that reads them.
    behind: f64,
    full_step: f64,
    /// Seconds of a step without prompts.
    token: f64,
}

impl Outlook {
    /// What kind of line it is.
    pub fn crowd(&self) -> Crowd {
        self.crowd
    }

    /// From its arrival to its first token.
    pub fn first_token(&self) -> Nanos {
        self.first_token
    }

    /// From its arrival to the last token of an answer of so many: beside the prompts behind it a token takes a full
    /// step, then one of decode alone. Who comes later is not in it.
    pub fn answer(&self, tokens: usize) -> Nanos {
        let gaps = tokens.saturating_sub(1) as f64;
        let beside = gaps.min(self.behind / self.full_step.max(1e-9));
        let seconds = beside * self.full_step + (gaps - beside) * self.token;
        Nanos(self.first_token.0.saturating_add(nanos(seconds).0))
    }

    #[cfg(test)]
    pub(crate) fn alone(first_token: Nanos) -> Outlook {
        Outlook { crowd: Crowd::Nobody, first_token, behind: 0.0, full_step: 0.0, token: 0.0 }
    }
}

/// What prompt rows take at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pace {
    /// Prompt rows of a step.
    rows: usize,
    /// Seconds for each, decode beside them counted in.
    row: f64,
    /// Seconds for each row and key that is not counted there.
    pair: f64,
    /// Seconds of the shortest step with a prompt row in it.
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
        // Attention takes from the part of a step that decode leaves, so it costs more steps than its own time.
        let for_prompts = (whole.total() - decode_alone).max(whole.total() * 0.01);
        let pairs = rows as f64 * (rows + 1) as f64 / 2.0;
        let pair = whole.prefill_attention / pairs * (whole.total() / for_prompts);
        Pace { rows, row: whole.total() / rows as f64, pair, step: with(1).total() }
    }

    /// On a machine that does other things besides.
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
    /// How long the prompts in line take: all of them, whatever their class.
    pub fn backlog(&self) -> Nanos {
        nanos(self.line.iter().map(|prompt| prompt.seconds).sum())
    }

    /// Who is late already.
    pub fn late(&self) -> LatePrompts {
        self.late
    }

    /// When the first token of `new` would come if it came at `now`. `turnover` is the mean time between two ends of
    /// requests, which counts where seats or blocks are short.
    pub fn ttft(&self, new: &IncomingRequest, now: Nanos, turnover: Nanos) -> Nanos {
        let due = due(now, new.ttft);
        let is_before = |prompt: &&InLine| (prompt.priority, prompt.due) <= (new.priority, due);
        let line = nanos(self.line.iter().filter(is_before).map(|prompt| prompt.seconds).sum());
        // What was in line when this was made has moved on since.
        let left = Nanos(self.at.0.saturating_add(line.0)).since(now);
        let seats = turnover.0.saturating_mul(self.ends as u64);
        let ready = left.0.max(seats).saturating_add(self.alone(new).0);
        // The step that ends its prompt is filled with those behind it.
        let full_step = nanos(self.pace.row * self.pace.rows as f64).0.max(1);
        let is_last = self.line.iter().all(|prompt| is_before(&prompt));
        Nanos(if is_last { ready } else { ready.div_ceil(full_step).saturating_mul(full_step) })
    }

    /// The same, and what can be said of its answer.
    pub fn outlook(&self, new: &IncomingRequest, now: Nanos, turnover: Nanos) -> Outlook {
        let first_token = self.ttft(new, now, turnover);
        let due = due(now, new.ttft);
        let behind = |prompt: &&InLine| (prompt.priority, prompt.due) > (new.priority, due);
        let behind: f64 = self.line.iter().filter(behind).map(|prompt| prompt.seconds).sum();
        let before = self.line.iter().any(|prompt| (prompt.priority, prompt.due) <= (new.priority, due));
        let crowd = match before {
            _ if self.ends > 0 => Crowd::Full,
            _ if new.ttft.is_some_and(|ttft| first_token > ttft) => Crowd::Late,
            true => Crowd::Prompts,
            false => Crowd::Nobody,
        };
        Outlook { crowd, first_token, behind, full_step: self.pace.row * self.pace.rows as f64, token: self.token }
    }

    /// How long a prompt takes with nobody in line.
    pub fn alone(&self, new: &IncomingRequest) -> Nanos {
        nanos(self.seconds(new).max(self.pace.step))
    }

    fn seconds(&self, new: &IncomingRequest) -> f64 {
        // The last token is always computed.
        let cached = new.cached_tokens.min(new.prompt_tokens.saturating_sub(1));
        self.pace.seconds(cached, new.prompt_tokens - cached)
    }

    /// Puts one into the line that the scheduler has not heard of yet.
    pub fn add(&mut self, new: &IncomingRequest, now: Nanos) {
        let seconds = self.seconds(new);
        self.line.push(InLine { priority: new.priority, due: due(now, new.ttft), seconds });
    }
}

impl Scheduler {
    /// The line as it is at `now`, into `forecast`, whose buffers are kept. Without a cost model it is empty.
    /// Cost: linear in what runs and waits.
    pub fn forecast_into(&self, now: Nanos, forecast: &mut AdmissionForecast) {
        forecast.at = now;
        forecast.line.clear();
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
        let slowdown = self.policy.share.slowdown();
        let bound = bound.map(|bound| Nanos((bound.0 as f64 / slowdown) as u64));
        forecast.pace = Pace::of(cost, &decode, bound, most).slower(slowdown);
        let started = self.state.running.iter().map(|&(_, id)| id);
        for seq in started
            .chain(self.state.queue.iter())
            .map(|id| &self.state.seqs[id])
            .filter(|s| s.phase() == Phase::Prefill)
        {
            // Somebody is reading who has seen some of it.
            let resumes = seq.num_generated() > 0;
            let arrived = seq.request.arrived;
            let due = if resumes { Nanos(0) } else { due(arrived, seq.request.targets.ttft) };
            if !resumes && due < now {
                forecast.late.count += 1;
                forecast.late.oldest = Some(forecast.late.oldest.map_or(arrived, |oldest| oldest.min(arrived)));
            }
            let seconds = forecast.pace.seconds(seq.num_computed(), seq.num_uncomputed());
            forecast.line.push(InLine { priority: seq.rank.priority, due, seconds });
        }
        let mut later = decode;
        let places = limits.max_num_seqs.saturating_sub(decode.rows()).max(1);
        let context = decode.decode_context as usize / decode.rows().max(1);
        (0..places.min(forecast.line.len() + 1)).for_each(|_| later.add_decode(context));
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
