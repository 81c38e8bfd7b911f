//! Results of a simulation: percentiles, goodput, occupancy; as a table and as JSON.
//!
//! Times are seconds of the simulated clock. TTFT: arrival to first token. TPOT: mean gap between the tokens of one
//! request. ITL: every single gap. E2E: arrival to last token. Goodput: requests per second that met all of their
//! targets (DistServe, Zhong et al., OSDI 2024). Without targets there is no goodput.

use std::fmt;

pub use figures::Spread;
use protocol::{Nanos, Targets};
use scheduler::{StepRecord, Work};
use serde_json::{Value, json};

use crate::disaggregation::DisaggregationReport;
use crate::gather::{Histogram, Series};
use crate::workload::Workload;
use crate::world::{Fleet, StepTimes};

fn json_of(spread: &Spread) -> Value {
    let Spread { mean, p50, p90, p99, max } = spread;
    json!({ "mean": mean, "p50": p50, "p90": p90, "p99": p99, "max": max })
}

/// Results of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Arrival time.
    pub arrived: Nanos,
    /// Time of the first token.
    pub first_token: Nanos,
    /// Time of the last token.
    pub last_token: Nanos,
    /// Its longest gap between two tokens.
    pub longest_gap: Nanos,
    /// Tokens of its answer; 0: refused.
    pub tokens: usize,
    /// Prompt tokens found in the prefix cache when it was first scheduled.
    pub cached_tokens: usize,
    /// Verified drafts.
    pub drafted: usize,
    /// Accepted drafts.
    pub held: usize,
    /// The instance that generated its answer.
    pub instance: usize,
    /// The instance that prefilled it, if another.
    pub reader: Option<usize>,
}

impl Outcome {
    /// Arrival to first token, seconds.
    pub fn ttft(&self) -> f64 {
        self.first_token.since(self.arrived).as_secs_f64()
    }

    /// Mean gap, seconds; `None` with a single token.
    pub fn tpot(&self) -> Option<f64> {
        let gaps = self.tokens.checked_sub(1).filter(|&gaps| gaps > 0)?;
        Some(self.last_token.since(self.first_token).as_secs_f64() / gaps as f64)
    }

    /// Arrival to last token, seconds.
    pub fn e2e(&self) -> f64 {
        self.last_token.since(self.arrived).as_secs_f64()
    }
}

/// Means over an interval of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Seconds since the start.
    pub seconds: f64,
    /// Share of the fleet's KV blocks in use.
    pub kv_share: f64,
    /// Decode rows in flight, all instances.
    pub decode_rows: f64,
    /// Prompt rows in flight, all instances.
    pub prefill_rows: f64,
    /// Waiting requests, all instances.
    pub waiting: f64,
}

/// Results of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Name of the load.
    pub workload: String,
    /// Number of engines.
    pub instances: usize,
    /// Results of each request, in the load's order.
    pub outcomes: Vec<Outcome>,
    /// Completed requests.
    pub completed: usize,
    /// Refused requests, including those that would have followed them.
    pub refused: usize,
    /// First arrival to last token.
    pub seconds: f64,
    /// Prompt tokens of completed requests.
    pub input_tokens: u64,
    /// Output tokens of completed requests.
    pub output_tokens: u64,
    /// See the module.
    pub ttft: Spread,
    /// See the module.
    pub tpot: Spread,
    /// See the module.
    pub itl: Spread,
    /// See the module.
    pub e2e: Spread,
    /// Share of requests with a TTFT target that met it, refused ones included; `None` if none has one.
    pub met_ttft: Option<f64>,
    /// The same for TPOT.
    pub met_tpot: Option<f64>,
    /// Share of requests with any target that met all of theirs.
    pub met_both: Option<f64>,
    /// Requests per second that met all of their targets; `None` without targets.
    pub goodput: Option<f64>,
    /// Completed requests that missed their TTFT target.
    pub late: usize,
    /// Their time to first token; `None` without any.
    pub late_ttft: Option<Spread>,
    /// Steps of all instances.
    pub steps: u64,
    /// Prompt rows, including recomputed ones.
    pub prefill_rows: u64,
    /// Decode rows, including drafts.
    pub decode_rows: u64,
    /// Results of speculation; `None` if it was off.
    pub drafts: Option<DraftReport>,
    /// Share of the fleet's time spent in steps.
    pub busy: f64,
    /// Share that decode alone would have taken.
    pub busy_decode: f64,
    /// The rest: time added by prefill.
    pub busy_prefill: f64,
    /// Mean share of KV blocks in use, over the fleet's time in steps.
    pub kv_mean: f64,
    /// The highest share on any instance.
    pub kv_max: f64,
    /// Preempted sequences.
    pub preemptions: u64,
    /// Computed tokens lost by preemption.
    pub lost_tokens: u64,
    /// Prompt tokens found in the prefix cache when a request was first scheduled.
    pub cached_tokens: u64,
    /// Evicted cached blocks.
    pub evicted_blocks: u64,
    /// |predicted / actual - 1| of steps, if the scheduler had a model.
    pub prediction_error: Option<Spread>,
    /// The course of the run.
    pub course: Vec<Moment>,
    /// Results of disaggregation; `None` without roles.
    pub disaggregation: Option<DisaggregationReport>,
}

/// Results of speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftReport {
    /// Verified drafts.
    pub drafted: u64,
    /// Accepted drafts.
    pub held: u64,
    /// Drafts accepted or rejected at random, because no result is recorded.
    pub assumed: u64,
    /// Tokens per decoding sequence and step.
    pub tokens_per_step: f64,
}

impl Report {
    /// Completed requests per second.
    pub fn requests_per_second(&self) -> f64 {
        self.completed as f64 / self.seconds.max(1e-9)
    }

    /// As JSON, without individual requests.
    pub fn json(&self) -> Value {
        json!({
            "workload": self.workload,
            "instances": self.instances,
            "requests": self.outcomes.len(),
            "completed": self.completed,
            "refused": self.refused,
            "seconds": self.seconds,
            "requests_per_second": self.requests_per_second(),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "output_tokens_per_second": self.output_tokens as f64 / self.seconds.max(1e-9),
            "ttft_seconds": json_of(&self.ttft),
            "tpot_seconds": json_of(&self.tpot),
            "itl_seconds": json_of(&self.itl),
            "e2e_seconds": json_of(&self.e2e),
            "met_ttft": self.met_ttft,
            "met_tpot": self.met_tpot,
            "met_both": self.met_both,
            "goodput_requests_per_second": self.goodput,
            "late": { "requests": self.late, "ttft_seconds": self.late_ttft.as_ref().map(json_of) },
            "steps": self.steps,
            "prefill_rows": self.prefill_rows,
            "decode_rows": self.decode_rows,
            "speculation": self.drafts.as_ref().map(|drafts| json!({
                "drafted": drafts.drafted,
                "held": drafts.held,
                "tokens_per_step": drafts.tokens_per_step,
            })),
            "busy": { "all": self.busy, "prefill": self.busy_prefill, "decode": self.busy_decode },
            "kv_occupancy": { "mean": self.kv_mean, "max": self.kv_max },
            "preemptions": self.preemptions,
            "lost_tokens": self.lost_tokens,
            "prefix_cache": {
                "hit_tokens": self.cached_tokens,
                "hit_share": self.cached_tokens as f64 / self.input_tokens.max(1) as f64,
                "evicted_blocks": self.evicted_blocks,
            },
            "prediction_error": self.prediction_error.as_ref().map(json_of),
            "apart": self.disaggregation.as_ref().map(DisaggregationReport::json),
        })
    }
}

impl fmt::Display for Report {
    /// The report as a table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let mut line = |name: &str, value: String| writeln!(f, "{name:<16}{value}");
        line("load", self.workload.clone())?;
        let refused = if self.refused > 0 { format!(", {} refused", self.refused) } else { String::new() };
        line("served", format!("{} requests in {}{refused}", self.completed, time(self.seconds)))?;
        let per_second = |tokens: u64| tokens as f64 / self.seconds.max(1e-9);
        let (input, output) = (per_second(self.input_tokens), per_second(self.output_tokens));
        let requests = self.requests_per_second();
        line("rate", format!("{requests:.2} requests/s, {input:.0} prompt tok/s, {output:.0} output tok/s"))?;
        line("", format!("{:>10} {:>10} {:>10} {:>10} {:>10}", "mean", "p50", "p90", "p99", "max"))?;
        for (name, spread) in [("TTFT", &self.ttft), ("TPOT", &self.tpot), ("ITL", &self.itl), ("E2E", &self.e2e)] {
            let Spread { mean, p50, p90, p99, max } = *spread;
            let columns = [mean, p50, p90, p99, max].map(|seconds| format!("{:>10}", time(seconds)));
            line(name, columns.join(" "))?;
        }
        if let Some(goodput) = self.goodput {
            let named = [("TTFT", self.met_ttft), ("TPOT", self.met_tpot)];
            let mut met: Vec<String> =
                named.iter().filter_map(|(name, share)| Some(format!("{name} {}", percent((*share)?)))).collect();
            if let (2, Some(both)) = (met.len(), self.met_both) {
                met.push(format!("both {}", percent(both)));
            }
            line("targets met", format!("{}: goodput {goodput:.2} requests/s", met.join(", ")))?;
        } else {
            line("targets", "none set: --ttft-slo and --tpot-slo do".to_string())?;
        }
        if let Some(Spread { p50, p99, max, .. }) = self.late_ttft {
            let share = percent(self.late as f64 / self.outcomes.len().max(1) as f64);
            let [p50, p99, max] = [p50, p99, max].map(time);
            line(
                "late",
                format!(
                    "{} requests ({share}) had their first token after {p50} (p50), {p99} (p99), {max} (max)",
                    self.late
                ),
            )?;
        }
        let (busy, prefill, decode) = (percent(self.busy), percent(self.busy_prefill), percent(self.busy_decode));
        line("busy", format!("{busy} of the time: {prefill} prefill, {decode} decode"))?;
        let rows = (self.prefill_rows + self.decode_rows) as f64 / self.steps.max(1) as f64;
        line("steps", format!("{}, {rows:.1} rows each", self.steps))?;
        if let Some(DraftReport { drafted, held, tokens_per_step, .. }) = self.drafts {
            let share = percent(held as f64 / drafted.max(1) as f64);
            let came = format!("{tokens_per_step:.2} tokens per sequence and step");
            line("drafts", format!("{drafted} verified, {held} accepted ({share}): {came}"))?;
        }
        line("KV blocks in use", format!(" {} on average, {} at most", percent(self.kv_mean), percent(self.kv_max)))?;
        line("preemptions", format!("{}, {} computed tokens lost", self.preemptions, self.lost_tokens))?;
        let share = percent(self.cached_tokens as f64 / self.input_tokens.max(1) as f64);
        line("prefix cache", format!("{share} of prompt tokens, {} blocks evicted", self.evicted_blocks))?;
        if let Some(disaggregation) = &self.disaggregation {
            disaggregation.lines().into_iter().try_for_each(|(name, value)| line(name, value))?;
        }
        if let Some(error) = self.prediction_error {
            let (p50, p90, max) = (percent(error.p50), percent(error.p90), percent(error.max));
            line("prediction off", format!("{p50} (p50), {p90} (p90), {max} (max) of a step's time"))?;
        }
        Ok(())
    }
}

/// Formats as `1.24 s`, `96.1 ms`, `3.1 min`.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 10e-3 => format!("{:.2} ms", s * 1e3),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 1000.0 => format!("{s:.2} s"),
        s => format!("{:.1} min", s / 60.0),
    }
}

/// Collects results during the simulation.
pub(crate) struct Collector {
    outcomes: Vec<Outcome>,
    total_blocks: Vec<usize>,
    num_ended: usize,
    refused: usize,
    itl: Histogram,
    /// Relative errors, with 1 stored as one second.
    errors: Histogram,
    /// Seconds in steps, and those that decode alone would have taken.
    busy: f64,
    busy_decode: f64,
    /// Shares of blocks times seconds.
    kv: f64,
    /// Rows of decoding sequences without drafts, and the tokens of these sequences.
    decode_seqs: u64,
    decode_tokens: u64,
    assumed: u64,
    series: Series<4>,
    report: Report,
}

impl Collector {
    pub(crate) fn new(workload: &Workload, fleet: &Fleet) -> Collector {
        Collector {
            outcomes: vec![Outcome::default(); workload.arrivals.len()],
            total_blocks: fleet.instances.iter().map(|instance| instance.limits.num_blocks).collect(),
            num_ended: 0,
            refused: 0,
            itl: Histogram::default(),
            errors: Histogram::default(),
            busy: 0.0,
            busy_decode: 0.0,
            kv: 0.0,
            decode_seqs: 0,
            decode_tokens: 0,
            assumed: 0,
            series: Series::new(),
            report: Report::default(),
        }
    }

    pub(crate) fn num_ended(&self) -> usize {
        self.num_ended
    }

    pub(crate) fn arrived(&mut self, request: usize, instance: usize, reader: Option<usize>, now: Nanos) {
        self.outcomes[request] = Outcome { arrived: now, instance, reader, ..Outcome::default() };
    }

    pub(crate) fn refused(&mut self, request: usize) {
        self.outcomes[request].tokens = 0;
        self.num_ended += 1;
        self.refused += 1;
    }

    pub(crate) fn token(&mut self, request: usize, now: Nanos) {
        let outcome = &mut self.outcomes[request];
        if outcome.tokens == 0 {
            outcome.first_token = now;
        } else {
            let gap = now.since(outcome.last_token);
            outcome.longest_gap = outcome.longest_gap.max(gap);
            self.itl.add(gap);
        }
        outcome.tokens += 1;
        outcome.last_token = now;
    }

    /// Counts drafts with drawn results.
    pub(crate) fn assumed(&mut self, drafts: usize) {
        self.assumed += drafts as u64;
    }

    /// Returns the number of tokens of its answer.
    pub(crate) fn ended(&mut self, request: usize) -> usize {
        self.num_ended += 1;
        self.outcomes[request].tokens
    }

    pub(crate) fn step(&mut self, instance: usize, record: &StepRecord, machine: &StepTimes) {
        let Work { prefill_rows, decode_rows, .. } = record.work;
        let seconds = record.took().as_secs_f64();
        let report = &mut self.report;
        report.steps += 1;
        report.prefill_rows += prefill_rows as u64;
        report.decode_rows += decode_rows as u64;
        report.preemptions += record.preempted.len() as u64;
        report.lost_tokens += record.preempted.iter().map(|preempted| preempted.tokens as u64).sum::<u64>();
        report.evicted_blocks += record.evicted_blocks as u64;
        for row in record.prefill.iter().chain(&record.decode).filter(|row| row.cached_tokens > 0) {
            let outcome = &mut self.outcomes[row.request.0 as usize];
            // Blocks prefilled by another worker are not a prefix hit.
            let reads = outcome.reader.is_none_or(|reader| reader == instance);
            if reads && outcome.tokens == 0 && outcome.cached_tokens == 0 {
                outcome.cached_tokens = row.cached_tokens;
            }
        }
        self.decode_seqs += record.decode.len() as u64;
        self.decode_tokens += record.decode_tokens() as u64;
        for row in record.decode.iter().filter(|row| row.drafts > 0) {
            let outcome = &mut self.outcomes[row.request.0 as usize];
            outcome.drafted += row.drafts;
            outcome.held += row.samples.saturating_sub(1);
        }
        let kv = record.used_blocks as f64 / self.total_blocks[instance] as f64;
        report.kv_max = report.kv_max.max(kv);
        self.kv += kv * seconds;
        self.busy += seconds;
        self.busy_decode += match (prefill_rows, decode_rows) {
            (0, _) => seconds,
            (_, 0) => 0.0,
            _ => {
                let alone = machine.step_time_at(record.began_at, &decode_alone(&record.work));
                alone.as_secs_f64().min(seconds)
            }
        };
        if record.predicted > Nanos(0) {
            let error = (record.predicted.as_secs_f64() / seconds - 1.0).abs();
            self.errors.add(Nanos((error * 1e9) as u64));
        }
        let fleet = self.total_blocks.len() as f64;
        let values = [kv / fleet, decode_rows as f64, prefill_rows as f64, record.waiting_requests as f64];
        self.series.add(record.began_at, record.completed_at, values);
    }

    pub(crate) fn report(
        self,
        workload: &Workload,
        fleet: &Fleet,
        disaggregation: Option<DisaggregationReport>,
    ) -> Report {
        let mut report = Report { disaggregation, refused: self.refused, outcomes: self.outcomes, ..self.report };
        let served = || report.outcomes.iter().zip(&workload.arrivals).filter(|(outcome, _)| outcome.tokens > 0);
        let start = served().map(|(outcome, _)| outcome.arrived).min().unwrap_or_default();
        let end = served().map(|(outcome, _)| outcome.last_token).max().unwrap_or_default();
        let seconds = end.since(start).as_secs_f64();
        let (mut ttft, mut tpot, mut e2e, mut late) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut met_ttft, mut met_tpot, mut met_both) = (Met::default(), Met::default(), Met::default());
        for arrival in &workload.arrivals {
            let Targets { ttft, tpot } = arrival.targets;
            met_ttft.asked += usize::from(ttft.is_some());
            met_tpot.asked += usize::from(tpot.is_some());
            met_both.asked += usize::from(ttft.or(tpot).is_some());
        }
        let (mut input_tokens, mut output_tokens, mut cached_tokens) = (0, 0, 0);
        for (outcome, arrival) in served() {
            ttft.push(outcome.ttft());
            tpot.extend(outcome.tpot());
            e2e.push(outcome.e2e());
            let meets = |target: Option<Nanos>, seconds: f64| Some(seconds <= target?.as_secs_f64());
            let in_time = meets(arrival.targets.ttft, outcome.ttft());
            let in_pace = meets(arrival.targets.tpot, outcome.tpot().unwrap_or(0.0));
            met_ttft.met += usize::from(in_time == Some(true));
            met_tpot.met += usize::from(in_pace == Some(true));
            let all = in_time.or(in_pace).is_some() && in_time != Some(false) && in_pace != Some(false);
            met_both.met += usize::from(all);
            late.extend(Some(outcome.ttft()).filter(|_| in_time == Some(false)));
            input_tokens += arrival.input_tokens() as u64;
            output_tokens += outcome.tokens as u64;
            cached_tokens += outcome.cached_tokens as u64;
        }
        let speculates =
            workload.acceptance.is_some() || workload.arrivals.iter().any(|arrival| arrival.drafts.is_some());
        let drafts = speculates.then(|| DraftReport {
            drafted: report.outcomes.iter().map(|outcome| outcome.drafted as u64).sum(),
            held: report.outcomes.iter().map(|outcome| outcome.held as u64).sum(),
            assumed: self.assumed,
            tokens_per_step: self.decode_tokens as f64 / self.decode_seqs.max(1) as f64,
        });
        let fleet_seconds = (seconds * fleet.instances.len() as f64).max(1e-9);
        let course = self.series.points().into_iter();
        let course = course.map(|(seconds, [kv_share, decode_rows, prefill_rows, waiting])| Moment {
            seconds,
            kv_share,
            decode_rows,
            prefill_rows,
            waiting,
        });
        let believes = fleet.instances.iter().any(|instance| instance.belief.is_some());
        (report.met_ttft, report.met_tpot, report.met_both) = (met_ttft.share(), met_tpot.share(), met_both.share());
        Report {
            workload: workload.name.clone(),
            instances: fleet.instances.len(),
            completed: ttft.len(),
            seconds,
            input_tokens,
            output_tokens,
            cached_tokens,
            drafts,
            ttft: Spread::of(&mut ttft),
            tpot: Spread::of(&mut tpot),
            itl: self.itl.spread(),
            e2e: Spread::of(&mut e2e),
            goodput: (met_both.asked > 0).then(|| met_both.met as f64 / seconds.max(1e-9)),
            late: late.len(),
            late_ttft: (!late.is_empty()).then(|| Spread::of(&mut late)),
            busy: self.busy / fleet_seconds,
            busy_decode: self.busy_decode / fleet_seconds,
            busy_prefill: (self.busy - self.busy_decode) / fleet_seconds,
            kv_mean: self.kv / self.busy.max(1e-9),
            prediction_error: believes.then(|| self.errors.spread()),
            course: course.collect(),
            ..report
        }
    }
}

/// Requests with a target, and those that met it.
#[derive(Clone, Copy, Default)]
struct Met {
    asked: usize,
    met: usize,
}

impl Met {
    fn share(self) -> Option<f64> {
        (self.asked > 0).then(|| self.met as f64 / self.asked as f64)
    }
}

/// The step's work without its prompts.
fn decode_alone(work: &Work) -> Work {
    Work {
        decode_rows: work.decode_rows,
        decode_context: work.decode_context,
        logit_rows: work.decode_rows,
        draft_pairs: work.draft_pairs,
        ..Work::default()
    }
}
