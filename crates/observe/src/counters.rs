//! Counters, gauges and histograms: a view of step records and closed accounts. Nothing here is measured, and nothing
//! is counted anywhere else.

use ledger::{Account, LedgerEvent, Totals};
use protocol::{FinishReason, Nanos, RequestId, ServiceClass};
use scheduler::latency_bound::BoundCoverage;
use scheduler::{ExpertReads, MissReason, PrefixStats, StateSizes, StateUse, StepRecord, SwapStats};

use crate::accounts::{Closed, Ending};
use crate::handoffs::Handoffs;
use crate::phase_work::PhaseWork;
use crate::report::Timings;

/// What the scheduler holds at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Gauges {
    /// Blocks that sequences have.
    pub used_blocks: usize,
    /// Blocks that only the prefix cache has.
    pub cached_blocks: usize,
    /// What the prefix cache was asked, and found.
    pub prefix: PrefixStats,
    /// What was moved to other tiers.
    pub swap: SwapStats,
    /// Slots for states, of a model that has layers with states.
    pub states: Option<(StateSizes, StateUse)>,
}

/// Answers that were computed again, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpotChecked {
    /// Bit for bit what they were.
    pub equal: u64,
    /// Something else: a bug, or a broken machine.
    pub different: u64,
    /// Not checked: the engine had no idle time for them, or they were too long.
    pub dropped: u64,
}

/// A histogram with fixed upper bounds, as Prometheus draws them.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, rising; the last bucket is open.
    pub bounds: &'static [f64],
    /// Observations at or below each bound and above the one before; one more than `bounds`.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
    /// For each bucket, the last request that is known to have an observation in it.
    pub exemplars: Vec<Option<Exemplar>>,
}

/// A request that has an observation in a bucket: where to look for what the bucket counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// Which.
    pub request: RequestId,
    /// What was observed.
    pub value: f64,
    /// When it was known, in the engine's time.
    pub at: Nanos,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        let buckets = bounds.len() + 1;
        Histogram { bounds, counts: vec![0; buckets], sum: 0.0, exemplars: vec![None; buckets] }
    }

    /// Of times in seconds.
    pub fn of_latencies() -> Histogram {
        Histogram::new(LATENCY_S)
    }

    /// Remembers the request of an observation. It is counted elsewhere, before this.
    fn mark(&mut self, exemplar: Exemplar) {
        let bucket = self.bucket(exemplar.value);
        self.exemplars[bucket] = Some(exemplar);
    }

    fn bucket(&self, value: f64) -> usize {
        self.bounds.partition_point(|&bound| bound < value)
    }

    /// Counts one.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bucket(value);
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
const ANSWERS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];

const RUN_TOKENS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0];

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
    /// Steps that are not among them, because the machine took time of theirs.
    pub disturbed: u64,
}

impl Default for Predictions {
    fn default() -> Predictions {
        Predictions { error: Histogram::new(ERRORS), predicted_seconds: 0.0, measured_seconds: 0.0, disturbed: 0 }
    }
}

/// Whether a request that ended met its targets; `None` where it had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SloOutcome {
    /// Arrival to first token.
    pub ttft: Option<bool>,
    /// Mean time between the tokens of its slowest answer.
    pub tpot: Option<bool>,
}

impl SloOutcome {
    fn of(account: &Account) -> SloOutcome {
        let tpot = account.tpot().unwrap_or(0.0);
        SloOutcome {
            ttft: account.targets.ttft.zip(account.ttft()).map(|(target, ttft)| ttft <= target),
            tpot: account.targets.tpot.map(|target: Nanos| tpot <= target.as_secs_f64()),
        }
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
    /// Of a model that has layers with states.
    pub states: Option<(StateSizes, StateUse)>,
    /// Seconds until every block is in use, at the rate of the last ones; infinite if it does not grow.
    pub kv_seconds_to_full: f64,
    /// Of what a prefix cache that knows which prompts come would have saved of the newest ones
    /// ([`cache_optimum`](crate::cache_optimum)), the share that it saved; `None` where there was nothing to save.
    pub cache_saved_of_optimum: Option<f64>,
    /// Seconds that all uncomputed prompt tokens take at the pace of the last step; 0 where steps are not predicted.
    pub prefill_backlog_seconds: f64,
    /// Requests past their time to first token that have none, and for how long the oldest of them has waited.
    pub late_prompts: usize,
    pub oldest_late_seconds: f64,
    // Counters.
    pub steps: u64,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
    /// Times that a sequence had drafts in a step, the drafts, and the accepted ones: see [`scheduler::DraftProposal`].
    pub verify_rows: u64,
    /// See `verify_rows`.
    pub drafted_tokens: u64,
    /// See `verify_rows`.
    pub accepted_tokens: u64,
    /// Of these, those at each place of their run, counted from 0, as far as any held.
    pub accepted_by_place: Vec<u64>,
    /// Steps in which drafts were offered and none was checked, by [`scheduler::NoDraftReason::ALL`].
    pub no_drafts: [u64; 4],
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Why prompts were not found, by [`MissReason::NAMES`].
    pub cache_misses: [u64; MissReason::NAMES.len()],
    pub generated_tokens: u64,
    pub preemptions: u64,
    pub recomputed_tokens: u64,
    pub evicted_blocks: u64,
    pub copied_blocks: u64,
    /// What the tiers did, in blocks.
    pub swap: SwapStats,
    /// Bytes of a block in a tier.
    pub block_bytes: u64,
    /// Answers that were computed again.
    pub spot_checks: SpotChecked,
    /// Prompts that other workers read, and that were read for them.
    pub handoffs: Handoffs,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub finished_stop: u64,
    pub finished_length: u64,
    pub finished_cancelled: u64,
    pub finished_error: u64,
    /// Seconds that steps took, summed.
    pub step_seconds: f64,
    /// What the machine took of them, and of the time between them.
    pub stolen_seconds: [f64; 2],
    /// By how much the first of them may be wrong.
    pub uncertain_seconds: f64,
    /// Experts that steps read.
    pub experts: ExpertReads,
    /// Seconds in which a client held the engine: no part of any other time.
    pub held_seconds: f64,
    /// What steps asked of the machine: prefill, decode.
    pub work: [PhaseWork; 2],
    /// Age of the request that has waited longest for its first token and still does; 0 where none waits.
    pub oldest_waiting_seconds: f64,
    /// Waiting of clients for tokens that came, by owner.
    pub owners: Totals,
    /// What the cost model said of steps of decode alone, of prefill alone, and of both.
    pub predictions: [Predictions; 3],
    /// Requests that ended and had targets, by [`ServiceClass::ALL`]: to first token, between tokens, all that they
    /// had.
    pub targets_met: [[u64; 3]; 3],
    /// Those that missed them, in the same order.
    pub targets_missed: [[u64; 3]; 3],
    /// What became of promises, by [`BoundKind::ALL`](scheduler::BoundKind::ALL).
    pub promises: [BoundCoverage; 2],
    /// Requests that were refused because they would be late, and those that were let through as probes.
    pub refused_late: u64,
    pub probes: u64,
    // Histograms, seconds or tokens.
    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub time_per_output_token: Histogram,
    pub e2e_latency: Histogram,
    pub queue_time: Histogram,
    pub prefill_time: Histogram,
    pub decode_time: Histogram,
    /// First step to the end.
    pub inference_time: Histogram,
    /// Answers that a request asked for, and tokens of each at most.
    pub request_answers: Histogram,
    pub request_max_tokens: Histogram,
    pub request_prompt_tokens: Histogram,
    pub request_generation_tokens: Histogram,
    /// Rows of steps.
    pub step_tokens: Histogram,
    /// What steps brought to waiting requests, where they brought something: tokens of answers, and whole prompts with
    /// their first token.
    pub delivered_tokens: Histogram,
    /// Tokens of each decoding answer in each step: one, and the accepted drafts.
    pub run_tokens: Histogram,
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
            states: None,
            kv_seconds_to_full: f64::INFINITY,
            cache_saved_of_optimum: None,
            prefill_backlog_seconds: 0.0,
            late_prompts: 0,
            oldest_late_seconds: 0.0,
            steps: 0,
            prefill_tokens: 0,
            decode_tokens: 0,
            verify_rows: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            accepted_by_place: Vec::new(),
            no_drafts: [0; 4],
            prompt_tokens: 0,
            cached_tokens: 0,
            cache_misses: Default::default(),
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
            stolen_seconds: [0.0; 2],
            experts: ExpertReads::default(),
            uncertain_seconds: 0.0,
            held_seconds: 0.0,
            spot_checks: SpotChecked::default(),
            handoffs: Handoffs::default(),
            work: Default::default(),
            oldest_waiting_seconds: 0.0,
            owners: Totals::default(),
            predictions: Default::default(),
            targets_met: [[0; 3]; 3],
            targets_missed: [[0; 3]; 3],
            promises: Default::default(),
            refused_late: 0,
            probes: 0,
            time_to_first_token: latency.clone(),
            inter_token_latency: latency.clone(),
            time_per_output_token: latency.clone(),
            e2e_latency: latency.clone(),
            queue_time: latency.clone(),
            prefill_time: latency.clone(),
            decode_time: latency.clone(),
            inference_time: latency,
            request_answers: Histogram::new(ANSWERS),
            request_max_tokens: tokens.clone(),
            request_prompt_tokens: tokens.clone(),
            request_generation_tokens: tokens,
            step_tokens: Histogram::new(STEP_TOKENS),
            delivered_tokens: Histogram::new(STEP_TOKENS),
            run_tokens: Histogram::new(RUN_TOKENS),
        }
    }
}

impl Stats {
    /// What a step brought.
    pub fn news(&mut self, news: LedgerEvent<'_>) {
        match news {
            LedgerEvent::Entered(account) => {
                self.prompt_tokens += account.prompt_tokens as u64;
                self.cached_tokens += account.cached_tokens as u64;
                account.bill.miss.iter().for_each(|miss| self.cache_misses[miss.why as usize] += 1);
            }
            LedgerEvent::Token { gap } => {
                self.generated_tokens += 1;
                if let Some(gap) = gap {
                    self.inter_token_latency.observe(gap.as_secs_f64());
                }
            }
        }
    }

    /// A step is complete.
    pub fn step(&mut self, record: &StepRecord) {
        let prefill: usize = record.prefill.iter().map(|row| row.len).sum();
        self.steps += 1;
        self.prefill_tokens += prefill as u64;
        self.decode_tokens += record.decode_tokens() as u64;
        for row in record.decode.iter().filter(|row| row.drafts > 0) {
            self.verify_rows += 1;
            self.drafted_tokens += row.drafts as u64;
            let held = row.samples.saturating_sub(1);
            self.accepted_tokens += held as u64;
            self.accepted_by_place.resize(self.accepted_by_place.len().max(held), 0);
            self.accepted_by_place[..held].iter_mut().for_each(|count| *count += 1);
        }
        let runs = record.decode.iter().map(|row| row.samples).filter(|&tokens| tokens > 0);
        runs.for_each(|tokens| self.run_tokens.observe(tokens as f64));
        if let Some(reason) = record.no_drafts {
            self.no_drafts[reason as usize] += 1;
        }
        self.preemptions += record.preempted.len() as u64;
        self.recomputed_tokens += record.recomputed_rows as u64;
        self.evicted_blocks += record.evicted_blocks as u64;
        self.copied_blocks += record.copied_blocks as u64;
        self.step_seconds += record.took().as_secs_f64();
        self.stolen_seconds[0] += record.stolen.during.as_secs_f64();
        self.stolen_seconds[1] += record.stolen.before.as_secs_f64();
        self.experts.add(record.experts);
        self.uncertain_seconds += record.stolen.uncertain.as_secs_f64();
        let decode: usize = record.decode.iter().map(|row| row.len).sum();
        self.step_tokens.observe((prefill + decode) as f64);
        self.judge(record);
    }

    /// See [`Stats::delivered_tokens`].
    pub fn delivered(&mut self, tokens: usize) {
        if tokens > 0 {
            self.delivered_tokens.observe(tokens as f64);
        }
    }

    /// Sets what the step was predicted to take beside what it took, if that is its own: time that the machine gives to
    /// others is not predicted, and not known to a nanosecond.
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
        let predictions = &mut self.predictions[phase];
        if !record.is_undisturbed() {
            predictions.disturbed += 1;
            return;
        }
        predictions.error.observe((predicted - measured).abs() / measured);
        predictions.predicted_seconds += predicted;
        predictions.measured_seconds += measured;
    }

    /// A request is over: by its end, and, if it has its answers, by its times and targets.
    pub fn closed(&mut self, closed: &Closed, timings: &Timings) {
        let account = &closed.account;
        let mark = |histogram: &mut Histogram, value| {
            histogram.mark(Exemplar { request: account.request, value, at: closed.until });
        };
        // Of its gaps the longest: the upper buckets are what is looked at.
        let longest = account.answers().map(|answer| answer.longest_gap).max().filter(|gap| *gap > Nanos(0));
        if let Some(gap) = longest {
            mark(&mut self.inter_token_latency, gap.as_secs_f64());
        }
        if closed.ending == Ending::Finished {
            mark(&mut self.time_to_first_token, timings.ttft_ms / 1e3);
        }
        match closed.ending {
            Ending::Cancelled => self.finished_cancelled += 1,
            Ending::Failed => self.finished_error += 1,
            Ending::Finished => {
                for reason in account.answers().filter_map(|answer| answer.reason) {
                    match reason {
                        FinishReason::Stop(_) => self.finished_stop += 1,
                        FinishReason::Length => self.finished_length += 1,
                    }
                }
                self.finished(account, closed.max_tokens, timings);
                self.met(closed.class, SloOutcome::of(account));
            }
        }
    }

    fn finished(&mut self, account: &Account, max_tokens: usize, timings: &Timings) {
        self.time_to_first_token.observe(timings.ttft_ms / 1e3);
        self.e2e_latency.observe(timings.total_ms / 1e3);
        self.queue_time.observe(timings.queue_ms / 1e3);
        self.prefill_time.observe(timings.prefill_ms / 1e3);
        self.decode_time.observe(timings.decode_ms / 1e3);
        self.inference_time.observe((timings.prefill_ms + timings.decode_ms) / 1e3);
        self.request_answers.observe(account.answers().count() as f64);
        self.request_max_tokens.observe(max_tokens as f64);
        if timings.decode_steps > 0 {
            self.time_per_output_token.observe(timings.decode_ms / 1e3 / timings.decode_steps as f64);
        }
        self.request_prompt_tokens.observe(account.prompt_tokens as f64);
        self.request_generation_tokens.observe(account.num_tokens() as f64);
    }

    /// Counts a request that ended by the targets that it had.
    fn met(&mut self, class: ServiceClass, met: SloOutcome) {
        for (index, met) in [met.ttft, met.tpot, met.all()].into_iter().enumerate() {
            let counts = match met {
                Some(true) => &mut self.targets_met,
                Some(false) => &mut self.targets_missed,
                None => continue,
            };
            counts[class as usize][index] += 1;
        }
    }

    /// The gauges as they are now.
    pub fn gauge(&mut self, gauges: &Gauges) {
        self.used_blocks = gauges.used_blocks;
        self.cached_blocks = gauges.cached_blocks;
        self.prefix_queries = gauges.prefix.queried_tokens;
        self.prefix_hits = gauges.prefix.hit_tokens;
        self.swap = gauges.swap;
        self.states = gauges.states;
    }
}
