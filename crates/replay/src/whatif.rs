//! What would have been: a past with other settings or without some of its requests, in the simulator, beside what was.
//!
//! ```text
//! past --- arrivals, lengths ---> the production scheduler, virtual clock ---> simulated      how far off: the fidelity
//!  |  \--- steps ---> the machine's cost model ------^    ^-- changes ----------> what if     the answer
//!  +----- times --------------------------------------------------------------> recorded
//! ```
//!
//! Without a request: the ledger books a wait on those who were there ([`ledger`]); this is what the wait would have been
//! had one never come. Both together say what a request cost: the waits it caused, and how much of them other requests
//! would have caused anyway.
//!
//! The lengths of the answers are known, because they were given. The machine is fitted to the steps (of decode alone,
//! and all others); where it was slower or faster at a moment, it is again at that moment. So a disturbance is part of
//! the past and not of the settings.
//!
//! Whether a draft is accepted is known where it was checked; drafts on offer at other places are accepted at the rate
//! of the request's others.
//!
//! Not the same as it was: the cache is empty at the beginning, an answer's own tokens are not found by a later prompt,
//! each of several answers of one request is a request, and requests that ended without a token are left out.

use std::fmt;

use engine::run_history::{PastStep, RunHistoryWindow};
use protocol::{Nanos, RequestId, Targets};
use scheduler::cost::Knot;
use scheduler::{CostModel, Limits, LimitsError, StepRecord, Work};
use sim::report::{Outcome, Spread};
use sim::{Arrival, Fleet, Instance, Observer, Pace, Report, StepTimes, Workload};

use crate::arrivals::{Story, stories};

/// What is to be different; `None`: as it was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Time to first token that is wanted for every request; `Some(None)`: none is.
    pub ttft: Option<Option<Nanos>>,
    /// Mean time from a token to the next, the same way.
    pub tpot: Option<Option<Nanos>>,
    /// Blocks of the KV cache.
    pub kv_blocks: Option<usize>,
    /// Rows of one step.
    pub max_num_batched_tokens: Option<usize>,
    /// Rows of one prompt in a step.
    pub max_prefill_chunk: Option<usize>,
    /// Prompts that advance in a step.
    pub max_prefill_seqs: Option<usize>,
    /// Sequences that run together.
    pub max_num_seqs: Option<usize>,
    /// Whether equal prefixes share blocks.
    pub enable_prefix_caching: Option<bool>,
    /// Speculative decoding is off.
    pub without_drafts: bool,
    /// Requests that never come.
    pub without: Vec<RequestId>,
}

impl Changes {
    fn limits(&self, limits: &Limits) -> Limits {
        let rows = self.max_num_batched_tokens.unwrap_or(limits.max_num_batched_tokens);
        // A chunk that was as large as a step still is.
        let whole = limits.max_prefill_chunk >= limits.max_num_batched_tokens;
        let chunk = if whole { rows } else { limits.max_prefill_chunk };
        Limits {
            num_blocks: self.kv_blocks.unwrap_or(limits.num_blocks),
            max_num_seqs: self.max_num_seqs.unwrap_or(limits.max_num_seqs),
            max_num_batched_tokens: rows,
            max_prefill_chunk: self.max_prefill_chunk.unwrap_or(chunk),
            max_prefill_seqs: self.max_prefill_seqs.unwrap_or(limits.max_prefill_seqs),
            enable_prefix_caching: self.enable_prefix_caching.unwrap_or(limits.enable_prefix_caching),
            // What was served once is not refused now; how long it waits is to be seen.
            max_queued_requests: usize::MAX,
            max_queued_tokens: usize::MAX / 2,
            ..limits.clone()
        }
    }

    fn keeps(&self, story: &Story) -> bool {
        !self.without.contains(&story.request)
    }

    fn targets(&self, targets: Targets) -> Targets {
        Targets { ttft: self.ttft.unwrap_or(targets.ttft), tpot: self.tpot.unwrap_or(targets.tpot) }
    }
}

/// What a course of events comes to. Times are seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Answers with a token.
    pub completed: usize,
    /// Answers that the cache could never have held.
    pub refused: usize,
    /// Of a course with such: the KV blocks that the longest needs, and those that there are.
    pub beyond: Option<BeyondCache>,
    /// Arrival to first token.
    pub ttft: Spread,
    /// Mean time from a token to the next.
    pub tpot: Spread,
    /// The longest time from a token to the next.
    pub longest_gap: f64,
    /// Answers per second that met all their targets, by those of the question; `None` where there are none.
    pub goodput: Option<f64>,
    /// Sequences that lost their blocks.
    pub preemptions: usize,
    /// Draft tokens that were verified.
    pub drafted: usize,
    /// Of these, those that were accepted.
    pub held: usize,
    /// Of those checked, the ones that held or failed by a rate: nothing is known of them.
    pub assumed: usize,
    /// Tokens of an answer in a step that carries it, behind its first.
    pub tokens_per_step: f64,
}

/// Why answers were refused: no queue is ever full here, so it is the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeyondCache {
    /// KV blocks of the longest answer that was refused, with its prompt.
    pub needed_blocks: usize,
    /// KV blocks of the cache.
    pub num_blocks: usize,
}

/// Times of one answer, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnswerLatency {
    /// Arrival to first token.
    pub ttft: f64,
    /// Arrival to last token.
    pub total: f64,
    /// The longest time from a token to the next.
    pub longest_gap: f64,
}

impl AnswerLatency {
    fn of(outcome: &Outcome) -> AnswerLatency {
        AnswerLatency { ttft: outcome.ttft(), total: outcome.e2e(), longest_gap: outcome.longest_gap.as_secs_f64() }
    }
}

/// One answer in the three courses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComparedAnswer {
    /// To which request.
    pub request: RequestId,
    /// As it was.
    pub recorded: AnswerLatency,
    /// The same simulated.
    pub simulated: AnswerLatency,
    /// Simulated with the changes; all zero if it was refused.
    pub what_if: AnswerLatency,
}

/// The answer: what was, the same simulated, and the question simulated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WhatIfAnswer {
    /// As it was.
    pub recorded: Figures,
    /// The same settings in the simulator: how far it can be believed.
    pub simulated: Figures,
    /// The changes in the simulator.
    pub what_if: Figures,
    /// Each answer that is in all three, in the order of arrival.
    pub answers: Vec<ComparedAnswer>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhatIfError {
    /// No request to ask about.
    #[error("no request was answered in that time")]
    Nothing,
    /// Changes that do not go together.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The watcher stopped it.
    #[error("the simulation takes more steps than it may")]
    TooLong,
}

/// One of the two courses that are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// With the settings that it had.
    Simulated,
    /// With those that are asked about.
    WhatIf,
}

/// Sees each step of a course, and says whether it is to go on.
pub type Watcher<'a> = dyn FnMut(Course, &StepRecord) -> bool + 'a;

struct Watched<'a, 'b> {
    course: Course,
    watcher: &'a mut Watcher<'b>,
    goes_on: bool,
}

impl Observer for Watched<'_, '_> {
    fn step(&mut self, _: usize, record: &StepRecord) {
        self.goes_on &= (self.watcher)(self.course, record);
    }

    fn goes_on(&self) -> bool {
        self.goes_on
    }
}

/// Answers the question. `watcher` sees each step of both courses, with requests numbered by arrival. An error if no
/// request is left, or a request that never comes is none of the past.
pub fn what_if(
    past: &RunHistoryWindow,
    changes: &Changes,
    watcher: &mut Watcher<'_>,
) -> Result<WhatIfAnswer, WhatIfError> {
    let stage = Stage::of(past)?;
    let stayed: Vec<&Story> = stage.stories.iter().filter(|story| changes.keeps(story)).collect();
    if stayed.is_empty() || !(changes.without.is_empty() || stayed.len() < stage.stories.len()) {
        return Err(WhatIfError::Nothing);
    }
    let all: Vec<&Story> = stage.stories.iter().collect();
    let recorded: Vec<Outcome> = all.iter().map(|story| story.outcome).collect();
    let simulated = stage.play(Course::Simulated, &Changes::default(), watcher)?;
    let what_if = stage.play(Course::WhatIf, changes, watcher)?;
    let asked = |stories: &[&Story]| -> Vec<Targets> {
        stories.iter().map(|story| changes.targets(story.arrival.targets)).collect()
    };
    let simulated_figures = |report: &Report, stories: &[&Story], changes: &Changes| Figures {
        assumed: report.drafts.map_or(0, |drafts| drafts.assumed as usize),
        beyond: beyond(stories, &report.outcomes, &changes.limits(&past.limits)),
        ..figures(&report.outcomes, &asked(stories), report.preemptions as usize)
    };
    let kept = all.iter().zip(&simulated.outcomes).filter(|(story, _)| changes.keeps(story));
    let compared = |((story, simulated), what_if): ((&&Story, &Outcome), &Outcome)| ComparedAnswer {
        request: story.request,
        recorded: AnswerLatency::of(&story.outcome),
        simulated: AnswerLatency::of(simulated),
        what_if: AnswerLatency::of(what_if),
    };
    Ok(WhatIfAnswer {
        recorded: figures(&recorded, &asked(&all), past.preemptions),
        simulated: simulated_figures(&simulated, &all, &Changes::default()),
        what_if: simulated_figures(&what_if, &stayed, changes),
        answers: kept.zip(&what_if.outcomes).map(compared).collect(),
    })
}

/// A past as the simulator takes it.
struct Stage<'a> {
    past: &'a RunHistoryWindow,
    /// By arrival.
    stories: Vec<Story>,
    first: Nanos,
    machine: StepTimes,
}

impl Stage<'_> {
    fn of(past: &RunHistoryWindow) -> Result<Stage<'_>, WhatIfError> {
        let stories = stories(past);
        let first = stories.first().map(|story| story.arrival.at).ok_or(WhatIfError::Nothing)?;
        Ok(Stage { past, stories, first, machine: machine(past, first) })
    }

    /// Outcomes are in the order of the stories that the changes keep.
    fn play(&self, course: Course, changes: &Changes, watcher: &mut Watcher<'_>) -> Result<Report, WhatIfError> {
        let arrivals = self.stories.iter().filter(|story| changes.keeps(story)).map(|Story { arrival, .. }| Arrival {
            at: arrival.at.since(self.first),
            targets: changes.targets(arrival.targets),
            drafts: arrival.drafts.clone().filter(|_| !changes.without_drafts),
            ..arrival.clone()
        });
        let workload = Workload { arrivals: arrivals.collect(), ..Workload::default() };
        let cost = self.past.cost.as_ref();
        let predicts = cost.is_some() || changes.ttft.flatten().or(changes.tpot.flatten()).is_some();
        let belief = predicts.then(|| cost.unwrap_or(&self.machine.mixed).clone());
        let limits = changes.limits(&self.past.limits);
        let instance = Instance { limits, belief, machine: self.machine.clone() };
        let mut watched = Watched { course, watcher, goes_on: true };
        let report = sim::simulate(&workload, &Fleet::of(1, &instance), &mut watched)?;
        if watched.goes_on { Ok(report) } else { Err(WhatIfError::TooLong) }
    }
}

/// What the longest of the refused needs.
fn beyond(stories: &[&Story], outcomes: &[Outcome], limits: &Limits) -> Option<BeyondCache> {
    let refused = stories.iter().zip(outcomes).filter(|(_, outcome)| outcome.tokens == 0);
    let needs = refused.map(|(Story { arrival, .. }, _)| {
        let prompt = arrival.prompt.iter().map(|piece| piece.len).sum();
        limits.blocks_needed(prompt, arrival.output_tokens, 1)
    });
    let needed_blocks = needs.max().filter(|&needed| needed > limits.num_blocks)?;
    Some(BeyondCache { needed_blocks, num_blocks: limits.num_blocks })
}

fn figures(outcomes: &[Outcome], targets: &[Targets], preemptions: usize) -> Figures {
    let served = || outcomes.iter().zip(targets).filter(|(outcome, _)| outcome.tokens > 0);
    let start = served().map(|(outcome, _)| outcome.arrived).min().unwrap_or_default();
    let end = served().map(|(outcome, _)| outcome.last_token).max().unwrap_or_default();
    let meets = |target: Option<Nanos>, seconds: f64| target.is_none_or(|target| seconds <= target.as_secs_f64());
    let has_any = |targets: &Targets| targets.ttft.or(targets.tpot).is_some();
    let asked = targets.iter().any(has_any);
    let good = served().filter(|(_, targets)| has_any(targets)).filter(|(outcome, targets)| {
        meets(targets.ttft, outcome.ttft()) && meets(targets.tpot, outcome.tpot().unwrap_or(0.0))
    });
    let later = served().map(|(outcome, _)| outcome.tokens - 1).sum::<usize>();
    let (drafted, held) = served().fold((0, 0), |sums, (outcome, _)| (sums.0 + outcome.drafted, sums.1 + outcome.held));
    let mut ttft: Vec<f64> = served().map(|(outcome, _)| outcome.ttft()).collect();
    let mut tpot: Vec<f64> = served().filter_map(|(outcome, _)| outcome.tpot()).collect();
    Figures {
        completed: ttft.len(),
        refused: outcomes.len() - ttft.len(),
        beyond: None,
        ttft: Spread::of(&mut ttft),
        tpot: Spread::of(&mut tpot),
        longest_gap: served().map(|(outcome, _)| outcome.longest_gap).max().unwrap_or_default().as_secs_f64(),
        goodput: asked.then(|| good.count() as f64 / end.since(start).as_secs_f64().max(1e-9)),
        preemptions,
        drafted,
        held,
        assumed: 0,
        tokens_per_step: if later > held { later as f64 / (later - held) as f64 } else { 1.0 },
    }
}

/// The machine of that time, whose clock begins at `first`.
fn machine(past: &RunHistoryWindow, first: Nanos) -> StepTimes {
    let machine = undisturbed(past);
    let mut moments: Vec<(Nanos, f64)> = Vec::new();
    let mut free = Nanos(0);
    for &PastStep { began, ref work, took } in past.steps.iter().filter(|step| step.began >= first) {
        let began = began.since(first);
        if free < began {
            moments.push((free, 1.0));
        }
        // Steps that are said to take no time say nothing of the machine.
        let pace = took.as_secs_f64() / machine.step_time(work).as_secs_f64().max(1e-9);
        moments.push((began, pace.max(1e-6)));
        free = Nanos(began.0 + took.0.max(1));
    }
    moments.push((free, 1.0));
    StepTimes { pace: Pace::new(moments), ..machine }
}

/// How long steps took when nothing disturbed them: fitted to steps of decode alone, and to all others (steps that were
/// disturbed hardly count in a fit). Where there are too few, the recorded model, or one for both.
fn undisturbed(past: &RunHistoryWindow) -> StepTimes {
    let steps = past.steps.iter().map(|step| (step.work, step.took));
    let (mixed, decode): (Vec<_>, Vec<_>) = steps.partition(|(work, _)| work.prefill_seqs > 0);
    let flat = || CostModel::new(vec![Knot { rows: 1, seconds: 1e-3 }], Default::default());
    let other = || past.cost.clone().or_else(|| fitted(&mixed)).or_else(|| fitted(&decode)).unwrap_or_else(flat);
    StepTimes {
        decode: fitted(&decode).unwrap_or_else(other),
        mixed: fitted(&mixed).unwrap_or_else(other),
        pace: Pace::default(),
    }
}

/// Points where there are steps: powers of two up to the largest one. `None`: too few steps to tell.
fn fitted(steps: &[(Work, Nanos)]) -> Option<CostModel> {
    let most = steps.iter().map(|(work, _)| work.rows()).max()?;
    let seen = |rows: &usize| steps.iter().any(|(work, _)| (*rows..*rows * 2).contains(&work.rows()));
    let rows: Vec<usize> = (0..32).map(|power| 1 << power).take_while(|&rows| rows <= most).filter(seen).collect();
    CostModel::fit(&rows, steps)
}

impl fmt::Display for WhatIfAnswer {
    /// One line for each figure: recorded, simulated, how far off, what if.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let courses @ [recorded, simulated, what_if] = [&self.recorded, &self.simulated, &self.what_if];
        let mut line = |name: &str, [was, again, other]: [String; 3], off: &str| {
            writeln!(f, "{name:<14}{was:>12}{again:>12}{off:>10}{other:>12}")
        };
        line("", ["recorded", "simulated", "what if"].map(String::from), "off")?;
        for (name, get) in TIMES {
            let (was, again) = (get(recorded), get(simulated));
            let off = if was > 0.0 { format!("{:+.1} %", (again / was - 1.0) * 100.0) } else { String::new() };
            line(name, courses.map(|figures| format!("{:.2} ms", get(figures) * 1e3)), &off)?;
        }
        let per_second = |goodput: Option<f64>| goodput.map_or("no targets".into(), |rate| format!("{rate:.2}/s"));
        line("goodput", courses.map(|figures| per_second(figures.goodput)), "")?;
        for (name, get) in COUNTS {
            line(name, courses.map(|figures| get(figures).to_string()), "")?;
        }
        let drafted = courses.iter().any(|figures| figures.drafted > 0);
        for (name, get) in DRAFTS.iter().filter(|_| drafted) {
            line(name, courses.map(|figures| get(figures).to_string()), "")?;
        }
        if drafted {
            line("tokens a step", courses.map(|figures| format!("{:.2}", figures.tokens_per_step)), "")?;
        }
        for (figures, course) in [(simulated, "simulated"), (what_if, "what if")] {
            if let Some(BeyondCache { needed_blocks, num_blocks }) = figures.beyond {
                writeln!(
                    f,
                    "refused, {course}: longer than the KV cache of {num_blocks} blocks (--kv-blocks); the longest needs \
                     {needed_blocks}"
                )?;
            }
        }
        let [again, other] = [simulated.assumed, what_if.assumed];
        if again + other > 0 {
            writeln!(
                f,
                "of the drafts {again} simulated and {other} of what if are assumed: none was checked there, and they hold \
                 as often as others of their request"
            )?;
        }
        Ok(())
    }
}

type Get<T> = fn(&Figures) -> T;

const TIMES: [(&str, Get<f64>); 7] = [
    ("TTFT p50", |figures| figures.ttft.p50),
    ("TTFT p90", |figures| figures.ttft.p90),
    ("TTFT p99", |figures| figures.ttft.p99),
    ("TPOT p50", |figures| figures.tpot.p50),
    ("TPOT p90", |figures| figures.tpot.p90),
    ("TPOT p99", |figures| figures.tpot.p99),
    ("longest gap", |figures| figures.longest_gap),
];

const COUNTS: [(&str, Get<usize>); 3] = [
    ("preemptions", |figures| figures.preemptions),
    ("answers", |figures| figures.completed),
    ("refused", |figures| figures.refused),
];

const DRAFTS: [(&str, Get<usize>); 2] =
    [("drafts", |figures| figures.drafted), ("drafts accepted", |figures| figures.held)];

impl Figures {
    /// As JSON, without the times: who prints them chooses how.
    pub fn json(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut object = serde_json::Map::new();
        object.insert("goodput_per_second".into(), self.goodput.into());
        for (name, get) in COUNTS {
            object.insert(name.into(), get(self).into());
        }
        object.insert("needed_blocks".into(), self.beyond.map(|beyond| beyond.needed_blocks).into());
        object.insert("drafted".into(), self.drafted.into());
        object.insert("held".into(), self.held.into());
        object.insert("assumed".into(), self.assumed.into());
        object.insert("tokens_per_step".into(), self.tokens_per_step.into());
        object
    }
}

impl WhatIfAnswer {
    /// As JSON: the three columns, times in milliseconds.
    pub fn json(&self) -> serde_json::Value {
        let column = |figures: &Figures| {
            let times =
                TIMES.map(|(name, get)| (format!("{}_ms", name.to_lowercase().replace(' ', "_")), get(figures)));
            let times = times.map(|(name, seconds)| (name, (seconds * 1e3).into()));
            times.into_iter().chain(figures.json()).collect::<serde_json::Map<_, _>>()
        };
        serde_json::json!({
            "recorded": column(&self.recorded),
            "simulated": column(&self.simulated),
            "what_if": column(&self.what_if),
        })
    }
}
