//! The step log and the views that are kept up to date with it: counters, gauges and histograms.
//!
//! One record per forward pass, with request ids; nothing shown to people is measured anywhere else.

use std::collections::VecDeque;
use std::sync::Arc;

use ledger::Totals;
use scheduler::{FinishReason, Nanos, StepRecord, SwapStats, Targets};

use crate::books::Books;
use crate::door::ServiceClass;
use crate::fill::Fill;
use crate::live::{Ended, Recent};
use crate::output::{Timings, Usage};
use crate::past::{History, Moving};

/// Step records kept for views that look back.
const KEPT_RECORDS: usize = 4096;
/// Ends of requests kept for them.
const KEPT_ENDS: usize = 1024;

/// A histogram with fixed upper bounds, as Prometheus draws them.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, rising; the last bucket is open.
    pub bounds: &'static [f64],
    /// Observations at or below each bound and above the one before; one more than `bounds`.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

const LATENCY_S: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0,
];
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];

/// Relative errors of predicted times of steps.
const ERRORS: &[f64] = &[0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0, 2.0];

/// How well the times of some steps were known beforehand.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// `|predicted - measured| / measured` of each.
    pub error: Histogram,
    /// Sums over the steps.
    pub predicted_seconds: f64,
    /// What they took.
    pub measured_seconds: f64,
}

impl Default for Predictions {
    fn default() -> Predictions {
        Predictions { error: Histogram::new(ERRORS), predicted_seconds: 0.0, measured_seconds: 0.0 }
    }
}

/// Whether a request that ended met its targets; `None` where it had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Arrival to first token.
    pub ttft: Option<bool>,
    /// Mean time between the tokens of its slowest answer.
    pub tpot: Option<bool>,
}

impl Met {
    pub(crate) fn of(targets: &Targets, timings: &Timings, slowest_ms: f64) -> Met {
        let within = |target: Option<Nanos>, ms: f64| target.map(|target| ms <= target.0 as f64 / 1e6);
        Met { ttft: within(targets.ttft, timings.ttft_ms), tpot: within(targets.tpot, slowest_ms) }
    }

    /// All that it had; `None` where it had none.
    pub fn all(self) -> Option<bool> {
        match (self.ttft, self.tpot) {
            (Some(ttft), Some(tpot)) => Some(ttft && tpot),
            (one, other) => one.or(other),
        }
    }
}

/// Everything that can be read off the log at a moment. Counters only grow.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each name says it; the units are in the names")]
pub struct Stats {
    // Gauges.
    pub running_requests: usize,
    pub waiting_requests: usize,
    pub waiting_tokens: usize,
    pub used_blocks: usize,
    pub cached_blocks: usize,
    pub total_blocks: usize,
    /// Seconds until every block is in use, if it goes on as in the last ones; infinite if it does not grow.
    pub kv_seconds_to_full: f64,
    /// Seconds that all uncomputed prompt tokens take at the pace of the last step; 0 where steps are not predicted.
    pub prefill_backlog_seconds: f64,
    // Counters.
    pub steps: u64,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub preemptions: u64,
    pub recomputed_tokens: u64,
    pub evicted_blocks: u64,
    pub copied_blocks: u64,
    /// What the tiers did, in blocks.
    pub swap: SwapStats,
    /// Bytes of a block in a tier.
    pub block_bytes: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub finished_stop: u64,
    pub finished_length: u64,
    pub finished_cancelled: u64,
    pub finished_error: u64,
    /// Seconds that steps took, summed.
    pub step_seconds: f64,
    /// Waiting of clients for tokens that came, by owner.
    pub owners: Totals,
    /// What the cost model said of steps of decode alone, of prefill alone, and of both.
    pub predictions: [Predictions; 3],
    /// Requests that ended and had targets, by [`ServiceClass::ALL`]: to first token, between tokens, all that they had.
    pub targets_met: [[u64; 3]; 3],
    /// Those that missed them, likewise.
    pub targets_missed: [[u64; 3]; 3],
    // Histograms, seconds or tokens.
    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub time_per_output_token: Histogram,
    pub e2e_latency: Histogram,
    pub queue_time: Histogram,
    pub prefill_time: Histogram,
    pub decode_time: Histogram,
    pub request_prompt_tokens: Histogram,
    pub request_generation_tokens: Histogram,
    pub step_tokens: Histogram,
}

impl Default for Stats {
    fn default() -> Stats {
        let (latency, tokens) = (Histogram::new(LATENCY_S), Histogram::new(TOKENS));
        Stats {
            running_requests: 0,
            waiting_requests: 0,
            waiting_tokens: 0,
            used_blocks: 0,
            cached_blocks: 0,
            total_blocks: 0,
            kv_seconds_to_full: f64::INFINITY,
            prefill_backlog_seconds: 0.0,
            steps: 0,
            prefill_tokens: 0,
            decode_tokens: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            preemptions: 0,
            recomputed_tokens: 0,
            evicted_blocks: 0,
            copied_blocks: 0,
            swap: SwapStats::default(),
            block_bytes: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            finished_stop: 0,
            finished_length: 0,
            finished_cancelled: 0,
            finished_error: 0,
            step_seconds: 0.0,
            owners: Totals::default(),
            predictions: Default::default(),
            targets_met: [[0; 3]; 3],
            targets_missed: [[0; 3]; 3],
            time_to_first_token: latency.clone(),
            inter_token_latency: latency.clone(),
            time_per_output_token: latency.clone(),
            e2e_latency: latency.clone(),
            queue_time: latency.clone(),
            prefill_time: latency.clone(),
            decode_time: latency,
            request_prompt_tokens: tokens.clone(),
            request_generation_tokens: tokens,
            step_tokens: Histogram::new(STEP_TOKENS),
        }
    }
}

/// The log itself, behind the engine's lock: the engine writes once per step, readers take pointers.
#[derive(Debug, Default)]
pub(crate) struct StepLog {
    records: VecDeque<Arc<StepRecord>>,
    ended: VecDeque<Ended>,
    num_ended: u64,
    pub(crate) books: Books,
    pub(crate) stats: Stats,
    pub(crate) fill: Fill,
    pub(crate) history: History,
    /// The last times to first token, in seconds.
    pub(crate) ttfts: Recent<256>,
    /// The last times from token to token.
    pub(crate) gaps: Recent<2048>,
}

impl StepLog {
    /// Takes a step's record into the log and its counters. What is left in `record` is memory to write the next one into:
    /// that of the oldest, unless somebody still reads it, so that a steady step allocates nothing.
    pub(crate) fn push(&mut self, record: &mut StepRecord, moving: &Moving) {
        self.history.note_step(record, moving);
        let stats = &mut self.stats;
        let prefill: usize = record.prefill.iter().map(|row| row.len).sum();
        stats.steps += 1;
        stats.prefill_tokens += prefill as u64;
        stats.decode_tokens += record.decode.len() as u64;
        stats.preemptions += record.preempted.len() as u64;
        stats.recomputed_tokens += record.recomputed_rows as u64;
        stats.evicted_blocks += record.evicted_blocks as u64;
        stats.copied_blocks += record.copied_blocks as u64;
        stats.step_seconds += record.completed_at.since(record.scheduled_at).as_secs_f64();
        stats.step_tokens.observe((prefill + record.decode.len()) as f64);
        self.judge(record);
        let oldest = if self.records.len() == KEPT_RECORDS { self.records.pop_front() } else { None };
        let mut slot = oldest.unwrap_or_default();
        match Arc::get_mut(&mut slot) {
            Some(slot) => std::mem::swap(slot, record),
            None => slot = Arc::new(std::mem::take(record)),
        }
        self.records.push_back(slot);
    }

    /// Sets what the step was predicted to take beside what it took.
    fn judge(&mut self, record: &StepRecord) {
        let (predicted, measured) = (record.predicted.as_secs_f64(), record.took().as_secs_f64());
        if predicted <= 0.0 || measured <= 0.0 {
            return;
        }
        let phase = match (record.decode.is_empty(), record.prefill.is_empty()) {
            (_, true) => 0,
            (true, false) => 1,
            (false, false) => 2,
        };
        let predictions = &mut self.stats.predictions[phase];
        predictions.error.observe((predicted - measured).abs() / measured);
        predictions.predicted_seconds += predicted;
        predictions.measured_seconds += measured;
    }

    /// Counts a request that ended by the targets that it had.
    pub(crate) fn met(&mut self, class: ServiceClass, met: Met) {
        for (index, met) in [met.ttft, met.tpot, met.all()].into_iter().enumerate() {
            let counts = match met {
                Some(true) => &mut self.stats.targets_met,
                Some(false) => &mut self.stats.targets_missed,
                None => continue,
            };
            counts[class as usize][index] += 1;
        }
    }

    /// A request is over.
    pub(crate) fn ended(&mut self, ended: Ended) {
        if self.ended.len() == KEPT_ENDS {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
        self.num_ended += 1;
    }

    /// Requests that are over, since the start.
    pub(crate) fn num_ended(&self) -> u64 {
        self.num_ended
    }

    /// Those from number `from` on that are kept.
    pub(crate) fn ended_from(&self, from: u64) -> impl Iterator<Item = Ended> {
        let oldest = self.num_ended - self.ended.len() as u64;
        self.ended.iter().skip(from.saturating_sub(oldest) as usize).copied()
    }

    /// The kept steps from number `from` on, with their numbers since the start.
    pub(crate) fn steps_from(&self, from: u64) -> impl Iterator<Item = (u64, &Arc<StepRecord>)> {
        let oldest = self.stats.steps - self.records.len() as u64;
        let first = from.max(oldest);
        (first..).zip(self.records.range((first - oldest).min(self.records.len() as u64) as usize..))
    }

    /// Takes a finished request into the histograms.
    pub(crate) fn finished(&mut self, usage: &Usage, timings: &Timings, reasons: &[FinishReason]) {
        let stats = &mut self.stats;
        for reason in reasons {
            match reason {
                FinishReason::Stop(_) => stats.finished_stop += 1,
                FinishReason::Length => stats.finished_length += 1,
            }
        }
        self.ttfts.push(timings.ttft_ms / 1e3);
        stats.time_to_first_token.observe(timings.ttft_ms / 1e3);
        stats.e2e_latency.observe(timings.total_ms / 1e3);
        stats.queue_time.observe(timings.queue_ms / 1e3);
        stats.prefill_time.observe(timings.prefill_ms / 1e3);
        stats.decode_time.observe(timings.decode_ms / 1e3);
        if timings.decode_steps > 0 {
            stats.time_per_output_token.observe(timings.decode_ms / 1e3 / timings.decode_steps as f64);
        }
        stats.request_prompt_tokens.observe(usage.prompt_tokens as f64);
        stats.request_generation_tokens.observe(usage.completion_tokens as f64);
    }

    /// Takes a generated token, and the seconds since the one before it in its answer.
    pub(crate) fn token(&mut self, gap: Option<f64>) {
        self.stats.generated_tokens += 1;
        if let Some(seconds) = gap {
            self.stats.inter_token_latency.observe(seconds);
            self.gaps.push(seconds);
        }
    }

    /// Records of the newest steps, oldest first.
    pub(crate) fn records(&self, most: usize) -> Vec<StepRecord> {
        let skip = self.records.len().saturating_sub(most);
        self.records.iter().skip(skip).map(|record| StepRecord::clone(record)).collect()
    }
}
