//! `twostroke lab`: the two phases measured on a model, with the law of each curve and what bound it.
//!
//! ```text
//! prefill    time of a prompt against its length          a + b n + c n^2      every token through the weights, and against
//!                                                                              all before it
//! position   time of a decode step against the tokens     a + b p              the weights once, and all keys and values
//!            before it
//! batch      time of a decode step against the requests   a + b B              the weights once for all, and each one's own
//!            in it
//! ```
//! The machine's limits are measured before the first sweep and after each. The forward pass is measured alone, as by
//! `bench`; what a server adds is seen with `bench-serve`. Ctrl-C ends the measuring and keeps what was measured.

mod fit;
mod report;

use std::sync::atomic::{AtomicBool, Ordering};

use kernels::WeightClass;
use kernels::limits::{Certainty, Doubt, FEW, Limits};
use model::ModelConfig;
use plan::units::{duration, percent};
use roofline::{Bound, LimitShares, PassWork, Peaks};

use crate::forward::{ForwardTest, LoadedModel};
use crate::limits::higher;
use crate::setup::{BenchError, BenchProgress, BenchSetup};
use crate::timing::Timing;
use fit::Fit;

pub use report::LAB_COLUMNS;

/// Rows of a pass over a prompt: what `serve` takes.
const ROWS: usize = 512;
/// Decode steps of one repetition.
const STEPS: usize = 8;
/// Tokens of each request in the cache when the batch grows.
const DEPTH: usize = 64;
/// Defaults of the sweeps, as far as the model's context goes.
const PROMPTS: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];
const POSITIONS: [usize; 6] = [0, 256, 512, 1024, 2048, 4096];
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Share of the variance that a law explains at least; one that explains less is not reported. At a half, what is left
/// is as large as the law.
const LEAST_R2: f64 = 0.9;
/// A limit binds clearly if the work comes this much nearer to it than to the other.
const CLEARLY: f64 = 1.5;

/// What is measured against what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prefill,
    Position,
    Batch,
}

impl Kind {
    /// A word for files and columns.
    fn name(self) -> &'static str {
        match self {
            Kind::Prefill => "prefill",
            Kind::Position => "position",
            Kind::Batch => "batch",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Kind::Prefill => "Prefill time against the length of the prompt",
            Kind::Position => "Decode time per token against its position",
            Kind::Batch => "Decode time per step against the batch",
        }
    }

    fn x(self) -> &'static str {
        match self {
            Kind::Prefill => "prompt, tokens",
            Kind::Position => "tokens before it",
            Kind::Batch => "batch size (concurrent requests)",
        }
    }

    fn y(self) -> &'static str {
        match self {
            Kind::Prefill => "time of the prompt, ms",
            Kind::Position => "time of a token, ms",
            Kind::Batch => "time of a step, ms",
        }
    }

    /// The largest power in its law.
    fn degree(self) -> usize {
        if self == Kind::Prefill { 2 } else { 1 }
    }

    fn test(self, x: usize) -> ForwardTest {
        let test = ForwardTest { n_prompt: 0, n_gen: STEPS, n_depth: 0, n_batch: ROWS, parallel: 1 };
        match self {
            Kind::Prefill => ForwardTest { n_prompt: x, n_gen: 0, ..test },
            Kind::Position => ForwardTest { n_depth: x, ..test },
            Kind::Batch => ForwardTest { n_depth: DEPTH, parallel: x, ..test },
        }
    }
}

/// A sweep before it is measured.
pub struct LabPlan {
    kind: Kind,
    tests: Vec<(usize, ForwardTest)>,
}

impl LabPlan {
    /// The three sweeps of a model; `asked`: lengths of prompts, positions and batches in place of the defaults.
    pub fn all(asked: [Option<&[usize]>; 3], config: &ModelConfig) -> Result<[LabPlan; 3], BenchError> {
        let [prompts, positions, batches] = asked;
        Ok([
            LabPlan::of(Kind::Prefill, prompts, config)?,
            LabPlan::of(Kind::Position, positions, config)?,
            LabPlan::of(Kind::Batch, batches, config)?,
        ])
    }

    fn of(kind: Kind, asked: Option<&[usize]>, config: &ModelConfig) -> Result<LabPlan, BenchError> {
        let limit = config.context_limit;
        let (usual, flag): (&[usize], _) = match kind {
            Kind::Prefill => (&PROMPTS, "--prompts"),
            Kind::Position => (&POSITIONS, "--positions"),
            Kind::Batch => (&BATCHES, "--batches"),
        };
        let fits = |x: usize| kind.test(x).length() <= limit;
        if let Some(&x) = asked.unwrap_or_default().iter().find(|&&x| !fits(x)) {
            let length = kind.test(x).length();
            return Err(BenchError::Usage(format!(
                "{flag}: {x} needs {length} tokens; this model reads at most {limit}"
            )));
        }
        let mut points = asked.unwrap_or(usual).to_vec();
        points.retain(|&x| fits(x));
        points.sort_unstable();
        points.dedup();
        Ok(LabPlan { kind, tests: points.into_iter().map(|x| (x, kind.test(x))).collect() })
    }

    /// What the model needs room for.
    pub fn tests(&self) -> impl Iterator<Item = ForwardTest> {
        self.tests.iter().map(|(_, test)| *test)
    }
}

impl Lab {
    /// Runs every test, until it is stopped.
    pub fn measure(
        model: &mut LoadedModel,
        plans: &[LabPlan],
        setup: &BenchSetup<'_>,
        stop: &AtomicBool,
    ) -> Result<Lab, BenchError> {
        let timing = Timing { stop, ..Timing::of_calls(setup.repetitions) };
        let all: usize = plans.iter().map(|plan| plan.tests.len()).sum();
        let is_stopped = || stop.load(Ordering::Relaxed);
        let mut limits = model.limits()?;
        (setup.note)(&format!("measuring {all} points; Ctrl-C keeps what was measured"));
        let mut sweeps = Vec::new();
        let mut done = 0;
        for plan in plans {
            let mut points = Vec::new();
            for (x, test) in plan.tests.iter().take_while(|_| !is_stopped()) {
                let what = format!("{} {x}", plan.kind.name());
                (setup.progress)(BenchProgress::Measuring(&what, done, all as u64));
                let samples = model.run(test, &timing);
                if samples.is_empty() {
                    break;
                }
                done += 1;
                let steps = if *x > 0 && plan.kind == Kind::Prefill { 1 } else { test.n_gen };
                points.push(Raw::of(*x, &samples, model.work(test), steps));
            }
            if !is_stopped() {
                limits = higher(&limits, &model.limits()?);
            }
            sweeps.push((plan.kind, points));
        }
        (setup.progress)(BenchProgress::Over);
        let demands = &model.demands;
        // What was reached is possible, whatever was measured.
        let reached = sweeps.iter().flat_map(|(_, points)| points);
        let peaks =
            reached.fold(Peaks::of(&limits, demands), |peaks, point| peaks.raised_by(&point.work, point.least()));
        Ok(Lab {
            model: setup.checkpoint.name().to_string(),
            described: model.model_type(),
            threads: model.device.threads,
            isa: model.device.kernels.clone(),
            arithmetic: model.arithmetic.name(),
            repetitions: setup.repetitions,
            weights: demands.weights,
            in_cache: limits.holds(demands.weight_bytes),
            limits,
            peaks,
            sweeps: sweeps.into_iter().map(|(kind, points)| Sweep::of(kind, points, &peaks)).collect(),
            interrupted: is_stopped(),
        })
    }

    /// Whether there is not one point.
    pub fn is_empty(&self) -> bool {
        self.sweeps.iter().all(|sweep| sweep.points.is_empty())
    }
}

/// Everything that was measured; printed, it is a table of each curve, and what was found.
pub struct Lab {
    model: String,
    /// Family, size and precision.
    described: String,
    threads: usize,
    isa: String,
    arithmetic: &'static str,
    repetitions: usize,
    weights: WeightClass,
    /// The weights stay in the last level of cache.
    in_cache: bool,
    limits: Limits,
    /// Those of the limits that hold for this model, raised to what was reached.
    peaks: Peaks,
    sweeps: Vec<Sweep>,
    /// It was stopped before the end.
    pub interrupted: bool,
}

/// One curve.
struct Sweep {
    kind: Kind,
    points: Vec<Point>,
    /// Of medians in seconds.
    fit: Option<Fit>,
}

/// One point of it.
struct Point {
    x: usize,
    /// Seconds: of the prompt, or of one step.
    samples: Vec<f64>,
    median: f64,
    /// Largest less smallest, as a share of the median.
    spread: f64,
    /// Why it is not sure.
    doubt: Option<Doubt>,
    /// Of one prompt, or one step.
    work: PassWork,
    shares: LimitShares,
}

/// A point as it comes from the measurement: seconds and work of one prompt, or one step.
struct Raw {
    x: usize,
    samples: Vec<f64>,
    work: PassWork,
}

impl Raw {
    /// Of repetitions that take `seconds` and do `work` in `steps` steps.
    fn of(x: usize, seconds: &[f64], work: PassWork, steps: usize) -> Raw {
        let n = steps as f64;
        let work = PassWork {
            matrix_flops: work.matrix_flops / n,
            attention_flops: work.attention_flops / n,
            bytes: work.bytes / n,
            ..work
        };
        Raw { x, samples: seconds.iter().map(|seconds| seconds / n).collect(), work }
    }

    fn least(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

impl Sweep {
    fn of(kind: Kind, raw: Vec<Raw>, peaks: &Peaks) -> Sweep {
        let point = |Raw { x, samples, work }: Raw| {
            let median = figures::median(&mut samples.clone()).expect("a point has samples");
            let certainty = Certainty::of_repetitions(&samples);
            let spread = certainty.spread;
            Point {
                x,
                samples,
                median,
                spread,
                doubt: certainty.doubt(),
                shares: LimitShares::within(&work, median, peaks),
                work,
            }
        };
        let points: Vec<Point> = raw.into_iter().map(point).collect();
        let medians: Vec<(f64, f64)> = points.iter().map(|point| (point.x as f64, point.median)).collect();
        Sweep { kind, fit: Fit::of(&medians, kind.degree()), points }
    }

    /// The law, if it says more than the mean of the points does.
    fn sound_fit(&self) -> Option<&Fit> {
        self.fit.as_ref().filter(|fit| fit.r2 >= LEAST_R2)
    }

    /// The law in words.
    fn law(&self) -> String {
        let Some(fit) = &self.fit else { return "too few points for a law".to_string() };
        if fit.r2 < LEAST_R2 {
            return format!("no law: the points follow none of this form (R^2 {:.2}); measure again", fit.r2);
        }
        let c = &fit.coefficients;
        let per = |seconds: f64| match seconds {
            s if s < 1e-6 => format!("{:.2} ns", s * 1e9),
            s if s < 1e-3 => format!("{:.2} us", s * 1e6),
            s => format!("{:.2} ms", s * 1e3),
        };
        // What is nothing is not said.
        let sum = |parts: &[(f64, &str)]| {
            let parts = parts.iter().filter(|part| part.0 > 0.0);
            parts.map(|&(seconds, of)| format!("{}{of}", per(seconds))).collect::<Vec<_>>().join(" + ")
        };
        let last = self.points.last().map_or(0.0, |point| point.x as f64);
        let law = match self.kind {
            Kind::Prefill => format!(
                "a prompt of n tokens takes {}; at {last} tokens the last part is {} of it",
                sum(&[(c[0], ""), (c[1], " x n"), (c[2], " x n^2")]),
                percent(c[2] * last * last / fit.at(last)),
            ),
            Kind::Position => {
                format!("a token takes {}", sum(&[(c[0], ""), (c[1] * 1e3, " for each thousand tokens before it")]))
            }
            Kind::Batch => format!("a step takes {}", sum(&[(c[0], ""), (c[1], " for each request in it")])),
        };
        let doubles = match (self.kind, c[0], c[1]) {
            (Kind::Batch, fixed, each) if fixed > each && each > 0.0 => {
                format!("; {:.0} requests take twice what an empty step would", fixed / each)
            }
            _ => String::new(),
        };
        format!("{law}{doubles} (R^2 {:.4}, points off by {:.1} % in the median)", fit.r2, fit.residual * 100.0)
    }

    /// The smallest batch that is bound by compute, by the work and the limits. Of the batch's sweep alone.
    fn knee(&self) -> Option<usize> {
        let is_compute = |point: &&Point| point.shares.roofline() == Bound::Compute;
        self.points.iter().filter(|_| self.kind == Kind::Batch).find(is_compute).map(|point| point.x)
    }

    /// What bound it, and how sure that is.
    fn finding(&self) -> Option<String> {
        let point = match self.kind {
            // The longest prompt is the phase at its purest; the shortest context is decode's.
            Kind::Prefill => self.points.last()?,
            Kind::Position | Kind::Batch => self.points.first()?,
        };
        let what = match self.kind {
            Kind::Prefill => format!("Prefill of {} tokens", point.x),
            Kind::Position => "Decode of one request, near its beginning,".to_string(),
            Kind::Batch => return self.batch_finding(),
        };
        Some(format!("{what} was bound by {}. {}", bound(point), surety(point)))
    }

    fn batch_finding(&self) -> Option<String> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let rate = |point: &Point| point.x as f64 / point.median;
        let gain = rate(last) / rate(first);
        let turn = match self.knee() {
            Some(knee) => format!(
                "From a batch of {knee} on, the work of a step is nearer to the matrix peak than to the bandwidth"
            ),
            None => "No batch that was measured came nearer to the matrix peak than to the bandwidth".to_string(),
        };
        Some(format!(
            "A batch of {} makes {gain:.1} times the tokens of a batch of {}, each in {} instead of {}. {turn}: at {} it was \
             bound by {}. {}",
            last.x,
            first.x,
            duration(last.median),
            duration(first.median),
            last.x,
            bound(last),
            surety(last),
        ))
    }
}

/// `compute (78 % of the matrix peak)`.
fn bound(point: &Point) -> String {
    match point.shares.bound() {
        Bound::Compute => format!("compute ({} of the matrix peak)", percent(point.shares.compute)),
        Bound::Memory => format!("memory ({} of the read bandwidth)", percent(point.shares.memory)),
        Bound::Overhead => format!(
            "neither: {} of the matrix peak and {} of the bandwidth",
            percent(point.shares.compute),
            percent(point.shares.memory)
        ),
    }
}

/// How sure it is what bound a point, and why.
fn surety(point: &Point) -> String {
    let repetitions = point.samples.len();
    let LimitShares { compute, memory } = point.shares;
    let ratio = compute.max(memory) / compute.min(memory).max(1e-9);
    let spread = format!("{repetitions} repetitions within {}", percent(point.spread));
    let other = if compute > memory { ("bandwidth", memory) } else { ("matrix peak", compute) };
    match point.doubt {
        Some(Doubt::Few { .. }) => {
            return format!("Not sure: {spread}, and fewer than {FEW} say little about chance.");
        }
        Some(Doubt::Spread(_)) => {
            return format!("Not sure: {spread}, so something else used the machine; measure again.");
        }
        None => {}
    }
    match () {
        () if ratio < CLEARLY => format!("Not sure: both limits are about equally near ({spread})."),
        () if point.shares.of_limit() < 0.5 => format!(
            "Not sure: {spread}, but most of the time went to neither limit (of the {} {} was used).",
            other.0,
            percent(other.1)
        ),
        () => format!("Sure: {spread}, and of the {} only {} was used.", other.0, percent(other.1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sweep of steps with their milliseconds, each once, twice and three times.
    fn sweep(kind: Kind, points: &[(usize, f64)]) -> Sweep {
        let work = PassWork { matrix_flops: 1e6, bytes: 1e6, ..PassWork::default() };
        let raw = points.iter().map(|&(x, ms)| Raw::of(x, &[ms / 1e3; 3], work, 1));
        Sweep::of(kind, raw.collect(), &Peaks { matrix: 1e12, attention: 1e12, bandwidth: 1e10 })
    }

    #[test]
    fn points_that_follow_no_law_are_given_none() {
        let lawful = sweep(Kind::Batch, &[(1, 1.0), (2, 1.1), (4, 1.3), (8, 1.7)]);
        assert!(
            lawful.sound_fit().is_some() && lawful.law().starts_with("a step takes 900.00 us + 100.00 us for each")
        );
        // Disturbed runs: the nearest line that does not fall explains less than the mean, or half of what is to explain.
        let disturbed = [(&[(1, 1.0), (8, 0.4), (64, 0.9)], -9.0..0.5), (&[(1, 1.0), (8, 1.3), (64, 1.6)], 0.5..0.9)];
        for (points, r2) in disturbed {
            let disturbed = sweep(Kind::Batch, points);
            assert!(disturbed.fit.as_ref().is_some_and(|fit| r2.contains(&fit.r2)), "{:?}", disturbed.fit);
            assert!(disturbed.sound_fit().is_none() && disturbed.law().starts_with("no law: "), "{}", disturbed.law());
        }
        assert!(sweep(Kind::Batch, &[(1, 1.0)]).law().contains("too few"));
    }

    #[test]
    fn a_point_is_as_sure_as_its_repetitions() {
        let work = PassWork { matrix_flops: 1e9, bytes: 1e9, ..PassWork::default() };
        let peaks = Peaks { matrix: 1e12, attention: 1e12, bandwidth: 1e10 };
        let table: [(&[f64], &str); 3] = [
            (&[0.12, 0.121, 0.122], "Sure: 3 repetitions within 2 %"),
            (&[0.12, 0.2, 0.13], "Not sure: 3 repetitions within 62 %, so something else used the machine"),
            (&[0.12, 0.12], "Not sure: 2 repetitions within 0 %, and fewer than 3 say little about chance"),
        ];
        for (seconds, words) in table {
            let sweep = Sweep::of(Kind::Position, vec![Raw::of(0, seconds, work, 1)], &peaks);
            assert!(surety(&sweep.points[0]).starts_with(words), "{}", surety(&sweep.points[0]));
        }
    }
}
