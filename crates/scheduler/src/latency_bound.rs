//! Latency bounds of requests at arrival: quantiles that 95 of 100 requests meet, whatever the load.
//!
//! ```text
//! actual / forecast of the last 100 in the same class               | ..:.::|:.:...  .  :|  .
//!                                                                           median       96th of 100, times trim
//! p50 = forecast x median            p95 = forecast x 96th x trim
//! ```
//! A forecast ([`crate::forecast`]) errs with its cost model, with later arrivals and with other processes, so recent
//! errors bound the next one. The quantile of the ratios is that of split conformal prediction, exact for exchangeable
//! ratios (Papadopoulos et al., ECML 2002). Real ones come in runs and shift. So the quantile is trimmed after each
//! outcome, up by a tenth if the actual time exceeded it, else down by 0.5 %, which balances at one in twenty (adaptive
//! conformal inference: Gibbs & Candès, NeurIPS 2021; in units of the bound itself, as the quantile tracker of
//! Angelopoulos, Candès & Tibshirani, NeurIPS 2023): in the long run 95 of 100 bounds hold for *any* sequence of times
//! that the trim's range can follow, and a shift is corrected within a few requests.
//!
//! Windows are separate by what is ahead of a request ([`QueueAhead`]) and by the bounded time ([`BoundKind`]): a wait for
//! a seat is less predictable than an undisturbed prompt. A new window starts with twenty prior ratios from a half to
//! double.
//!
//! A bound is violated when it expires, not when the actual time is known; if the client left before, it does not
//! count. Memory is bounded: 10 windows, and an entry per open request.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::forecast::QueueForecast;
use protocol::{Nanos, RequestId};

/// Target coverage.
pub const COVERAGE: f64 = 0.95;

/// Ratios per window.
const WINDOW: usize = 100;
/// Initial ratios of a window. The widest is replaced last.
const PRIOR: [f64; 20] =
    [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.45, 1.7, 2.0];
/// Trim factor after a bound that held; with [`UP`] = 0.995^-19 after one that did not, the trim is stationary at a
/// miss rate of 1 in 20.
const DOWN: f64 = 0.995;
const UP: f64 = 1.099_903;
/// Range of the trim. Beyond it the window itself must follow, which takes [`WINDOW`] / 20 outcomes.
const TRIM: (f64, f64) = (0.5, 4.0);
/// Ratios are clamped to this and its inverse, so that a stopped clock has bounded effect.
const MOST_RATIO: f64 = 1e3;
/// Answer lengths remembered.
const LENGTHS: usize = 128;
/// Outcomes in the rolling coverage.
const ROLLING: usize = 200;
/// Consecutive rejections at most.
const MOST_REFUSALS: u32 = 31;

/// What is ahead of a new request: forecast errors differ by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueAhead {
    /// No prompt is ahead of it.
    #[default]
    Empty,
    /// The same, and it takes a moment: what a request costs beside its rows is much of that, and nothing of a longer one.
    Moment,
    /// Prompts are ahead of it.
    Prompts,
    /// It is predicted to be late, so prompts that can be on time go first.
    Late,
    /// Seats or blocks are short: requests must end before it enters.
    Full,
}

const NUM_CLASSES: usize = QueueAhead::Full as usize + 1;

/// A bounded time; both start at arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoundKind {
    /// Time to first token.
    FirstToken,
    /// Time to the last token of its last answer, whatever the length.
    Answer,
}

impl BoundKind {
    /// Both.
    pub const ALL: [BoundKind; 2] = [BoundKind::FirstToken, BoundKind::Answer];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            BoundKind::FirstToken => "ttft",
            BoundKind::Answer => "answer",
        }
    }
}

/// One bound of a request: times since arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeBound {
    /// Prediction of the cost model.
    pub forecast: Nanos,
    /// The median.
    pub p50: Nanos,
    /// The 95th percentile.
    pub p95: Nanos,
    /// Outcomes of such requests that it rests on, at most 100. Of fewer than 20 the rest is a prior.
    pub outcomes: usize,
}

/// Latency bounds of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyBound {
    /// What was ahead of it.
    pub ahead: QueueAhead,
    /// Of its first token.
    pub first_token: TimeBound,
    /// Of its last token.
    pub answer: TimeBound,
}

impl LatencyBound {
    /// The larger of each time, for two requests that serve one client call.
    pub fn latest(&self, other: &LatencyBound) -> LatencyBound {
        let later = |a: TimeBound, b: TimeBound| TimeBound {
            forecast: a.forecast.max(b.forecast),
            p50: a.p50.max(b.p50),
            p95: a.p95.max(b.p95),
            outcomes: a.outcomes.min(b.outcomes),
        };
        LatencyBound {
            ahead: self.ahead.max(other.ahead),
            first_token: later(self.first_token, other.first_token),
            answer: later(self.answer, other.answer),
        }
    }

    /// Whether requests like it have come before, enough to promise by: else both bounds are mostly a prior.
    pub fn is_known(&self) -> bool {
        self.first_token.outcomes.min(self.answer.outcomes) >= PRIOR.len()
    }

    /// The bound of this kind.
    pub fn of(&self, kind: BoundKind) -> &TimeBound {
        match kind {
            BoundKind::FirstToken => &self.first_token,
            BoundKind::Answer => &self.answer,
        }
    }
}

/// Bounds of an answer's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimits {
    /// Fewest tokens.
    pub least: usize,
    /// Most tokens.
    pub most: usize,
}

/// Admission decision for a request with a TTFT target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The bound meets the target.
    InTime,
    /// Admitted although late, to keep learning.
    Probe,
    /// The bound misses the target.
    TooLate,
}

/// Coverage of bounds of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BoundCoverage {
    /// Bounds that held.
    pub kept: u64,
    /// Bounds that were violated.
    pub broken: u64,
    /// Fraction of the last 200 that held; `None` before the first.
    pub rolling: Option<f64>,
}

/// The newest `N` of a series.
#[derive(Clone, Debug)]
struct Newest<T, const N: usize> {
    values: Vec<T>,
    /// Index of the next write.
    next: usize,
}

impl<T: Copy, const N: usize> Newest<T, N> {
    /// Starts with prior values, which are overwritten first.
    fn with(prior: &[T]) -> Newest<T, N> {
        let mut values = Vec::with_capacity(N);
        values.extend(prior);
        Newest { values, next: 0 }
    }

    fn add(&mut self, value: T) {
        match self.values.get_mut(self.next) {
            Some(oldest) => *oldest = value,
            None => self.values.push(value),
        }
        self.next = (self.next + 1) % N;
    }
}

impl<T: Copy, const N: usize> Default for Newest<T, N> {
    fn default() -> Newest<T, N> {
        Newest { values: Vec::new(), next: 0 }
    }
}

/// Ratios of one kind and [`QueueAhead`].
#[derive(Clone, Debug)]
struct Window {
    /// The newest; initially [`PRIOR`].
    ratios: Newest<f64, WINDOW>,
    /// Added so far, at most [`WINDOW`].
    outcomes: usize,
    trim: f64,
    /// Median and [`COVERAGE`] quantile of the ratios.
    median: f64,
    high: f64,
}

impl Window {
    fn new() -> Window {
        let mut window = Window { ratios: Newest::with(&PRIOR), outcomes: 0, trim: 1.0, median: 1.0, high: 1.0 };
        window.sum_up();
        window
    }

    /// Factor from a forecast to its bound.
    fn bound(&self) -> f64 {
        self.high * self.trim
    }

    /// Trims after an outcome beyond, or within, the current bound.
    fn adjust(&mut self, is_beyond: bool) {
        self.trim = (self.trim * if is_beyond { UP } else { DOWN }).clamp(TRIM.0, TRIM.1);
    }

    fn add(&mut self, ratio: f64) {
        self.ratios.add(ratio);
        self.outcomes = WINDOW.min(self.outcomes + 1);
        self.sum_up();
    }

    fn sum_up(&mut self) {
        let mut sorted = [0.0; WINDOW];
        let sorted = &mut sorted[..self.ratios.values.len()];
        sorted.copy_from_slice(&self.ratios.values);
        sorted.sort_unstable_by(f64::total_cmp);
        // Conformal rank: at or below it are 95 % of n ratios and the next one, if exchangeable.
        let rank = ((sorted.len() + 1) * 95).div_ceil(100).min(sorted.len());
        (self.median, self.high) = (sorted[sorted.len() / 2], sorted[rank - 1]);
    }
}

/// Answer lengths. Those cut off at their limit are censored, hence the product-limit estimate (Kaplan & Meier, 1958).
#[derive(Clone, Debug, Default)]
struct AnswerLengths {
    /// Tokens, and whether the answer ended before its limit.
    answers: Newest<(usize, bool), LENGTHS>,
}

impl AnswerLengths {
    fn add(&mut self, tokens: usize, ended: bool) {
        self.answers.add((tokens, ended));
    }

    /// The 95th percentile of answer lengths, within the limits.
    fn long(&self, limits: AnswerLimits) -> usize {
        let mut sorted = [(0, false); LENGTHS];
        let sorted = &mut sorted[..self.answers.values.len()];
        sorted.copy_from_slice(&self.answers.values);
        // Censored answers sort after those that ended at the same length: they were longer.
        sorted.sort_unstable_by_key(|&(tokens, ended)| (tokens, !ended));
        let mut survival = 1.0;
        let mut tokens = limits.most;
        for (index, &(length, ended)) in sorted.iter().enumerate() {
            if ended {
                survival *= 1.0 - 1.0 / (sorted.len() - index) as f64;
            }
            if survival <= 1.0 - COVERAGE + 1e-9 {
                tokens = length;
                break;
            }
        }
        tokens.clamp(limits.least.min(limits.most), limits.most).max(1)
    }
}

/// Outcome of an open request's bound, and whether its window has learned it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BoundState {
    #[default]
    Undecided,
    /// Violated, but not beyond the window's current bound.
    Violated,
    /// Violated, and the trim was raised for it.
    ViolatedAndLearned,
    /// The actual time is known.
    Settled,
}

/// Bounds of an open request.
#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    arrived: Nanos,
    bound: LatencyBound,
    states: [BoundState; 2],
    /// TTFT deadline, if it was admitted as a probe.
    probe: Option<Nanos>,
}

/// Outcomes of a kind.
#[derive(Clone, Debug, Default)]
struct Outcomes {
    kept: u64,
    broken: u64,
    newest: Newest<bool, ROLLING>,
}

impl Outcomes {
    fn note(&mut self, is_kept: bool) {
        *(if is_kept { &mut self.kept } else { &mut self.broken }) += 1;
        self.newest.add(is_kept);
    }
}

/// Chooses which late requests are admitted anyway. Rejections teach nothing, so rejecting by learned bounds needs
/// probes: the first, then one in 2, 4, ... 32 while probes are late, and more often again once one was on time. One at
/// a time.
#[derive(Clone, Copy, Debug, Default)]
struct Probes {
    /// Rejections between two probes.
    pause: u32,
    refused: u32,
    is_out: bool,
    total: u64,
    total_refused: u64,
}

impl Probes {
    fn admits(&mut self) -> bool {
        let passes = !self.is_out && self.refused >= self.pause || self.refused >= MOST_REFUSALS;
        if passes {
            (self.refused, self.is_out) = (0, true);
            self.total += 1;
        } else {
            self.refused += 1;
            self.total_refused += 1;
        }
        passes
    }

    /// A probe ended: on time, late, or gone before its first token.
    fn ended(&mut self, in_time: Option<bool>) {
        self.is_out = false;
        match in_time {
            Some(true) => self.pause /= 4,
            Some(false) => self.pause = (2 * self.pause + 1).min(MOST_REFUSALS),
            None => {}
        }
    }
}

/// Makes latency bounds and learns from their outcomes. See the module.
#[derive(Clone, Debug)]
pub struct LatencyBounds {
    /// By [`BoundKind`] and [`QueueAhead`].
    windows: [[Window; NUM_CLASSES]; 2],
    lengths: AnswerLengths,
    open: BTreeMap<RequestId, OpenRequest>,
    /// When each undecided bound expires.
    due: BTreeSet<(Nanos, RequestId, BoundKind)>,
    outcomes: [Outcomes; 2],
    probes: Probes,
}

impl Default for LatencyBounds {
    fn default() -> LatencyBounds {
        LatencyBounds {
            windows: core::array::from_fn(|_| core::array::from_fn(|_| Window::new())),
            lengths: AnswerLengths::default(),
            open: BTreeMap::new(),
            due: BTreeSet::new(),
            outcomes: Default::default(),
            probes: Probes::default(),
        }
    }
}

impl LatencyBounds {
    /// Bounds for a request with this forecast. Cost: a sort of the last 128 lengths.
    pub fn bound_for(&self, forecast: &QueueForecast, limits: AnswerLimits) -> LatencyBound {
        let forecasts = [forecast.first_token(), forecast.answer(self.lengths.long(limits))];
        let [first_token, answer] = BoundKind::ALL.map(|kind| {
            let predicted = forecasts[kind as usize];
            let window = &self.windows[kind as usize][forecast.ahead() as usize];
            let times = |factor| Nanos((predicted.0 as f64 * factor) as u64);
            let (p50, p95) = (times(window.median), times(window.bound()));
            TimeBound { forecast: predicted, p50, p95, outcomes: window.outcomes }
        });
        // The last token is not before the first.
        let answer = TimeBound { p50: answer.p50.max(first_token.p50), p95: answer.p95.max(first_token.p95), ..answer };
        LatencyBound { ahead: forecast.ahead(), first_token, answer }
    }

    /// Decides on a request with this bound and target where late requests are rejected. At most 31 consecutive
    /// rejections.
    pub fn judge(&mut self, bound: &LatencyBound, target: Nanos) -> Admission {
        match bound.first_token.p95 <= target {
            true => Admission::InTime,
            false if self.probes.admits() => Admission::Probe,
            false => Admission::TooLate,
        }
    }

    /// Tracks a request that arrived at `now`. `probe`: its target, if it is one. Panics if it is tracked already.
    pub fn open(&mut self, id: RequestId, bound: LatencyBound, probe: Option<Nanos>, now: Nanos) {
        let probe = probe.map(|target| Nanos(now.0.saturating_add(target.0)));
        let open = OpenRequest { arrived: now, bound, states: Default::default(), probe };
        assert!(self.open.insert(id, open).is_none(), "{id:?} is tracked already");
        for kind in BoundKind::ALL {
            self.due.insert((due(&open, kind), id, kind));
        }
    }

    /// Bounds that expired before `now` are violated. Cost: a look at the earliest one.
    pub fn pass(&mut self, now: Nanos) {
        while let Some(&(at, id, kind)) = self.due.first().filter(|&&(at, ..)| at < now) {
            self.due.pop_first();
            let open = self.open.get_mut(&id).expect("a due bound belongs to an open request");
            self.outcomes[kind as usize].note(false);
            let window = &mut self.windows[kind as usize][open.bound.ahead as usize];
            let is_beyond = ratio(at.since(open.arrived), open.bound.of(kind)) >= window.bound();
            if is_beyond {
                window.adjust(true);
            }
            open.states[kind as usize] = if is_beyond { BoundState::ViolatedAndLearned } else { BoundState::Violated };
        }
    }

    /// A request has its first token. Unknown ids are ignored, for replays.
    pub fn first_token(&mut self, id: RequestId, now: Nanos) {
        self.pass(now);
        self.settle(id, BoundKind::FirstToken, now);
        if let Some(open) = self.open.get_mut(&id)
            && let Some(wanted) = open.probe.take()
        {
            self.probes.ended(Some(now <= wanted));
        }
    }

    /// A request finished: tokens of each answer, and whether it ended before its limit.
    pub fn finished(&mut self, id: RequestId, answers: impl Iterator<Item = (usize, bool)>, now: Nanos) {
        self.pass(now);
        // A request without tokens finishes with its prompt.
        BoundKind::ALL.into_iter().for_each(|kind| self.settle(id, kind, now));
        answers.for_each(|(tokens, ended)| self.lengths.add(tokens, ended));
        self.gone(id, now);
    }

    /// Stops tracking a request that ended for any reason.
    pub fn gone(&mut self, id: RequestId, now: Nanos) {
        self.pass(now);
        let Some(open) = self.open.remove(&id) else { return };
        for kind in BoundKind::ALL {
            self.due.remove(&(due(&open, kind), id, kind));
        }
        if open.probe.is_some() {
            self.probes.ended(None);
        }
    }

    /// Stops tracking all requests.
    pub fn all_gone(&mut self, now: Nanos) {
        while let Some(id) = self.open.keys().next().copied() {
            self.gone(id, now);
        }
    }

    /// Bounds of an open request.
    pub fn of(&self, id: RequestId) -> Option<&LatencyBound> {
        self.open.get(&id).map(|open| &open.bound)
    }

    /// Coverage of bounds of a kind.
    pub fn coverage(&self, kind: BoundKind) -> BoundCoverage {
        let Outcomes { kept, broken, newest, .. } = &self.outcomes[kind as usize];
        let share = |newest: &Vec<bool>| newest.iter().filter(|&&kept| kept).count() as f64 / newest.len() as f64;
        let rolling = Some(&newest.values).filter(|newest| !newest.is_empty()).map(share);
        BoundCoverage { kept: *kept, broken: *broken, rolling }
    }

    /// Requests rejected because they would be late, and probes.
    pub fn rejected_and_probes(&self) -> (u64, u64) {
        (self.probes.total_refused, self.probes.total)
    }

    /// Open requests with bounds.
    pub fn num_open(&self) -> usize {
        self.open.len()
    }

    /// Records the actual time.
    fn settle(&mut self, id: RequestId, kind: BoundKind, now: Nanos) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let was = core::mem::replace(&mut open.states[kind as usize], BoundState::Settled);
        if was == BoundState::Settled {
            return;
        }
        self.due.remove(&(due(open, kind), id, kind));
        if was == BoundState::Undecided {
            self.outcomes[kind as usize].note(true);
        }
        let window = &mut self.windows[kind as usize][open.bound.ahead as usize];
        let ratio = ratio(now.since(open.arrived), open.bound.of(kind));
        if was != BoundState::ViolatedAndLearned {
            window.adjust(ratio > window.bound());
        }
        window.add(ratio);
    }
}

fn due(open: &OpenRequest, kind: BoundKind) -> Nanos {
    Nanos(open.arrived.0.saturating_add(open.bound.of(kind).p95.0))
}

fn ratio(took: Nanos, bound: &TimeBound) -> f64 {
    (took.0 as f64 / bound.forecast.0.max(1) as f64).clamp(1.0 / MOST_RATIO, MOST_RATIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn forecast(ms: u64) -> QueueForecast {
        QueueForecast::alone(Nanos(ms * MS))
    }

    /// Tracks requests with actual times `truths` in ms, forecast at 100 ms. Returns how many bounds held.
    fn run(book: &mut LatencyBounds, first: u64, truths: impl Iterator<Item = u64>) -> usize {
        let limits = AnswerLimits { least: 0, most: 1 };
        let before = book.coverage(BoundKind::FirstToken).kept;
        for (id, truth) in (first..).zip(truths) {
            let (id, from) = (RequestId(id), Nanos(id * 1_000_000 * MS));
            let bound = book.bound_for(&forecast(100), limits);
            book.open(id, bound, None, from);
            book.first_token(id, Nanos(from.0 + truth * MS));
            book.finished(id, core::iter::once((1, false)), Nanos(from.0 + truth * MS));
        }
        (book.coverage(BoundKind::FirstToken).kept - before) as usize
    }

    #[test]
    fn a_shift_of_level_breaks_a_few_and_then_95_of_100_are_kept_again() {
        let mut book = LatencyBounds::default();
        let noise = |id: u64| (id * 7919) % 41;
        let kept = run(&mut book, 0, (0..400).map(|id| 80 + noise(id)));
        assert!((380..=400).contains(&kept), "{kept} of 400");
        let kept = run(&mut book, 1000, (0..100).map(|id| 8 * (80 + noise(id))));
        assert!(kept >= 80, "eight times slower: {kept} of 100");
        let kept = run(&mut book, 2000, (0..400).map(|id| 8 * (80 + noise(id))));
        assert!((368..=392).contains(&kept), "{kept} of 400");
        run(&mut book, 3000, (0..150).map(|id| 80 + noise(id)));
        let p95 = book.bound_for(&forecast(100), AnswerLimits { least: 0, most: 1 }).first_token.p95;
        assert!(p95 < Nanos(160 * MS), "the window has forgotten: {p95:?}");
    }

    #[test]
    fn what_runs_out_is_broken_at_that_moment_and_learned_once() {
        let mut book = LatencyBounds::default();
        let limits = AnswerLimits { least: 0, most: 1 };
        let bound = book.bound_for(&forecast(100), limits);
        (0..10).for_each(|id| book.open(RequestId(id), bound, None, Nanos(0)));
        book.pass(bound.first_token.p95);
        assert_eq!(book.coverage(BoundKind::FirstToken).broken, 0);
        book.pass(Nanos(bound.first_token.p95.0 + 1));
        assert_eq!(book.coverage(BoundKind::FirstToken).broken, 10);
        let after = book.bound_for(&forecast(100), limits).first_token.p95.0 as f64;
        assert!((after / bound.first_token.p95.0 as f64 - UP).abs() < 1e-6, "ten that were one surprise");
        (0..5).for_each(|id| book.first_token(RequestId(id), Nanos(500 * MS)));
        (0..10).for_each(|id| book.gone(RequestId(id), Nanos(600 * MS)));
        let BoundCoverage { kept, broken, rolling } = book.coverage(BoundKind::FirstToken);
        assert_eq!((kept, broken, rolling, book.num_open(), book.due.len()), (0, 10, Some(0.0), 0, 0));
        // A client that leaves in time does not count.
        book.open(RequestId(11), bound, None, Nanos(0));
        book.gone(RequestId(11), Nanos(1));
        assert_eq!(book.coverage(BoundKind::FirstToken), BoundCoverage { kept, broken, rolling });
    }

    #[test]
    fn refusals_leave_probes() {
        let mut book = LatencyBounds::default();
        let bound = book.bound_for(&forecast(800), AnswerLimits { least: 0, most: 1 });
        let target = Nanos(200 * MS);
        let mut pauses = Vec::new();
        let mut refused = 0;
        for id in 0..300 {
            match book.judge(&bound, target) {
                Admission::InTime => panic!("800 ms are not in time"),
                Admission::TooLate => refused += 1,
                Admission::Probe => {
                    pauses.push(core::mem::take(&mut refused));
                    book.open(RequestId(id), bound, Some(target), Nanos(0));
                    book.first_token(RequestId(id), Nanos(900 * MS));
                    book.gone(RequestId(id), Nanos(900 * MS));
                }
            }
        }
        assert_eq!(pauses[..7], [0, 1, 3, 7, 15, 31, 31]);
        // After a probe on time the next ones come soon.
        let mut seen = 0;
        for id in 300..400 {
            if book.judge(&bound, target) == Admission::Probe {
                seen += 1;
                book.open(RequestId(id), bound, Some(target), Nanos(0));
                book.first_token(RequestId(id), Nanos(100 * MS));
                book.gone(RequestId(id), Nanos(100 * MS));
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn lengths_are_learned_and_those_that_were_cut_off_count_as_longer() {
        let mut lengths = AnswerLengths::default();
        let limits = |most| AnswerLimits { least: 3, most };
        assert_eq!(lengths.long(limits(500)), 500, "nothing is known");
        (0..100).for_each(|index| lengths.add(index + 1, true));
        assert_eq!((lengths.long(limits(500)), lengths.long(limits(50)), lengths.long(limits(2))), (95, 50, 2));
        (0..LENGTHS).for_each(|_| lengths.add(16, false));
        assert_eq!((lengths.long(limits(500)), lengths.long(limits(16))), (500, 16), "all were cut off");
        assert_eq!(lengths.answers.values.len(), LENGTHS);
        (0..LENGTHS / 2).for_each(|index| lengths.add(100 + index % 2, true));
        assert_eq!(lengths.long(limits(500)), 101, "those cut off at 16 would have continued like the others");
    }
}
