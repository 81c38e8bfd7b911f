//! What a request is promised when it comes: bounds that 95 of 100 keep, whatever the machine does.
//!
//! ```text
//! truth / forecast of the last 100 with such a line before them     | ..:.::|:.:...  .  :|  .
//!                                                                           median       96th of 100, times trim
//! likely = forecast x median            promised = forecast x 96th x trim
//! ```
//! A forecast ([`crate::forecast`]) is as good as its cost model, its idea of who comes next, and a machine that nobody
//! disturbs. So it is not believed: how far off the last ones were says how far off the next may be. The quantile of
//! the ratios is that of split conformal prediction, so it is exact for ratios in random order (Papadopoulos et al.,
//! ECML 2002). A machine's are not: they come in runs, and levels shift. So the quantile is trimmed after each, up by a
//! tenth where the truth was beyond, down by 0.5 % where it was not, which balances at one in twenty (adaptive
//! conformal inference: Gibbs & Candès, NeurIPS 2021; in units of the bound itself, as the quantile tracker of
//! Angelopoulos, Candès & Tibshirani, NeurIPS 2023): in the long run 95 of 100 are kept for *any* sequence of truths
//! that the trim's range can follow, and a shift is answered by the next few.
//!
//! Ratios are kept apart by what stands before a request ([`Crowd`]) and by what is promised ([`PromiseKind`]): a wait
//! for a seat is known less well than the time of a prompt that nobody delays. The first twenty of each kind stand
//! beside twenty that nobody measured, from a half to double.
//!
//! A promise that ran out is broken at that moment, not when the truth comes at last; one whose client left before says
//! nothing. Time is an argument, and what is kept is bounded: 8 windows, and an entry for each open request.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::forecast::Outlook;
use crate::{Nanos, RequestId};

/// The share of promises that are to be kept.
pub const PROMISED_SHARE: f64 = 0.95;

/// Ratios that a window keeps.
const WINDOW: usize = 100;
/// What a window has before anything was measured. The widest is displaced last.
const PRIOR: [f64; 20] =
    [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.45, 1.7, 2.0];
/// The trim after a promise that would have been kept: with 0.995^-19 for one that would not, it stands still where 1
/// in 20 is not.
const DOWN: f64 = 0.995;
const UP: f64 = 1.099_903;
/// How far the trim may go. Beyond, the window itself has to follow, which takes it [`WINDOW`] / 20 truths.
const TRIM: (f64, f64) = (0.5, 4.0);
/// A truth so many times the forecast, or its inverse, counts as that: a clock that stands still teaches no nonsense.
const MOST_RATIO: f64 = 1e3;
/// Answers whose lengths are remembered.
const LENGTHS: usize = 128;
/// Outcomes that the rolling share of kept promises is over.
const ROLLING: usize = 200;
/// Refusals in a row, at most.
const MOST_REFUSALS: u32 = 31;

/// What stands between a request that comes and its first token: forecasts of these are wrong in different ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crowd {
    /// No prompt is in line before it.
    #[default]
    Nobody,
    /// Prompts are.
    Prompts,
    /// It is likely to be late, and those that can be in time will go first.
    Late,
    /// Seats or blocks are short: requests must end before it enters.
    Full,
}

const CROWDS: usize = Crowd::Full as usize + 1;

/// What a promise is about. Both times begin when the request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PromiseKind {
    /// Until its first token.
    FirstToken,
    /// Until the last token of its last answer, however long that becomes.
    Answer,
}

impl PromiseKind {
    /// Both.
    pub const ALL: [PromiseKind; 2] = [PromiseKind::FirstToken, PromiseKind::Answer];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            PromiseKind::FirstToken => "ttft",
            PromiseKind::Answer => "answer",
        }
    }
}

/// One of a request's two promises: times since it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromisedTime {
    /// What the cost model said.
    pub forecast: Nanos,
    /// As many take longer as do not.
    pub likely: Nanos,
    /// 95 of 100 take no longer.
    pub within: Nanos,
}

/// What a request was promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// What stood before it.
    pub crowd: Crowd,
    /// Until its first token.
    pub first_token: PromisedTime,
    /// Until its last one.
    pub answer: PromisedTime,
}

impl Promise {
    /// Of each time the later one: what holds for two requests that are one to whoever asked.
    pub fn latest(&self, other: &Promise) -> Promise {
        let later = |a: PromisedTime, b: PromisedTime| PromisedTime {
            forecast: a.forecast.max(b.forecast),
            likely: a.likely.max(b.likely),
            within: a.within.max(b.within),
        };
        Promise {
            crowd: self.crowd.max(other.crowd),
            first_token: later(self.first_token, other.first_token),
            answer: later(self.answer, other.answer),
        }
    }

    /// One of the two.
    pub fn of(&self, kind: PromiseKind) -> &PromisedTime {
        match kind {
            PromiseKind::FirstToken => &self.first_token,
            PromiseKind::Answer => &self.answer,
        }
    }
}

/// How long an answer may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimits {
    /// No end before so many tokens.
    pub least: usize,
    /// None after.
    pub most: usize,
}

/// What becomes of a request whose first token is wanted by a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// In time, as far as is promised.
    InTime,
    /// It would be refused, and is let through so that there is something to learn from.
    Probe,
    /// Its promise is later than it wants.
    TooLate,
}

/// How promises of one kind were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeptPromises {
    /// In time.
    pub kept: u64,
    /// Not.
    pub broken: u64,
    /// Share of the last 200 that were kept; `None` before the first.
    pub rolling: Option<f64>,
}

/// The newest `N` of a series.
#[derive(Clone, Debug)]
struct Newest<T, const N: usize> {
    values: Vec<T>,
    /// Where the next one goes.
    next: usize,
}

impl<T: Copy, const N: usize> Newest<T, N> {
    /// Begins with some values that were never heard: the first ones take their places.
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

/// The ratios of one kind beside one crowd.
#[derive(Clone, Debug)]
struct Window {
    /// The newest; before they are many enough, with those of [`PRIOR`] that are not displaced yet.
    ratios: Newest<f64, WINDOW>,
    trim: f64,
    /// Of the ratios: the median, and the quantile of [`PROMISED_SHARE`].
    median: f64,
    high: f64,
}

impl Window {
    fn new() -> Window {
        let mut window = Window { ratios: Newest::with(&PRIOR), trim: 1.0, median: 1.0, high: 1.0 };
        window.sum_up();
        window
    }

    /// What a forecast is multiplied by to be a promise.
    fn bound(&self) -> f64 {
        self.high * self.trim
    }

    /// The truth of a promise was found beyond the bound of now, or not.
    fn adjust(&mut self, is_beyond: bool) {
        self.trim = (self.trim * if is_beyond { UP } else { DOWN }).clamp(TRIM.0, TRIM.1);
    }

    fn add(&mut self, ratio: f64) {
        self.ratios.add(ratio);
        self.sum_up();
    }

    fn sum_up(&mut self) {
        let mut sorted = [0.0; WINDOW];
        let sorted = &mut sorted[..self.ratios.values.len()];
        sorted.copy_from_slice(&self.ratios.values);
        sorted.sort_unstable_by(f64::total_cmp);
        // Of n and the next one, in any order: the rank at which 95 % are at or below.
        let rank = ((sorted.len() + 1) * 95).div_ceil(100).min(sorted.len());
        (self.median, self.high) = (sorted[sorted.len() / 2], sorted[rank - 1]);
    }
}

/// How long answers became: some ended by themselves, of the others it is only known that they were not over at their
/// limit. That is what the product-limit estimate is for (Kaplan & Meier, 1958).
#[derive(Clone, Debug, Default)]
struct AnswerLengths {
    /// Tokens, and whether it ended there by itself.
    answers: Newest<(usize, bool), LENGTHS>,
}

impl AnswerLengths {
    fn add(&mut self, tokens: usize, ended: bool) {
        self.answers.add((tokens, ended));
    }

    /// A length that 95 of 100 answers do not exceed, within their limits.
    fn long(&self, limits: AnswerLimits) -> usize {
        let mut sorted = [(0, false); LENGTHS];
        let sorted = &mut sorted[..self.answers.values.len()];
        sorted.copy_from_slice(&self.answers.values);
        // One that ended and one that was cut off at the same length: the second was longer.
        sorted.sort_unstable_by_key(|&(tokens, ended)| (tokens, !ended));
        let mut go_on = 1.0;
        let mut tokens = limits.most;
        for (index, &(length, ended)) in sorted.iter().enumerate() {
            if ended {
                go_on *= 1.0 - 1.0 / (sorted.len() - index) as f64;
            }
            if go_on <= 1.0 - PROMISED_SHARE + 1e-9 {
                tokens = length;
                break;
            }
        }
        tokens.clamp(limits.least.min(limits.most), limits.most).max(1)
    }
}

/// Whether a promise of an open request was found broken, and whether its window has learned that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Judged {
    #[default]
    NotYet,
    /// The bound of the time was larger already.
    Broken,
    /// The trim has gone up for it.
    BrokenAndLearned,
    /// The truth is known.
    Over,
}

/// A promise that was made.
#[derive(Clone, Copy, Debug)]
struct Open {
    arrived: Nanos,
    promise: Promise,
    judged: [Judged; 2],
    /// It was let through as a probe: until when its first token was wanted.
    probe: Option<Nanos>,
}

/// The newest outcomes of a kind.
#[derive(Clone, Debug, Default)]
struct Tally {
    kept: u64,
    broken: u64,
    newest: Newest<bool, ROLLING>,
}

impl Tally {
    fn note(&mut self, is_kept: bool) {
        *(if is_kept { &mut self.kept } else { &mut self.broken }) += 1;
        self.newest.add(is_kept);
    }
}

/// Which of those that would be refused are let through. A refusal teaches nothing, so one who refuses by what was
/// learned has to try: the first is tried, after it one in 2, 4, ... 32 as long as they were late indeed, and again
/// more when one was in time. One at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Probes {
    /// Refusals between two.
    pause: u32,
    refused: u32,
    is_out: bool,
    total: u64,
    total_refused: u64,
}

impl Probes {
    fn lets_through(&mut self) -> bool {
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

    /// One is over: in time, late, or gone before that was known.
    fn came(&mut self, in_time: Option<bool>) {
        self.is_out = false;
        match in_time {
            Some(true) => self.pause /= 4,
            Some(false) => self.pause = (2 * self.pause + 1).min(MOST_REFUSALS),
            None => {}
        }
    }
}

/// Makes promises, sees them kept or broken, and learns. See the module's picture.
#[derive(Clone, Debug)]
pub struct PromiseBook {
    /// By [`PromiseKind`] and [`Crowd`].
    windows: [[Window; CROWDS]; 2],
    lengths: AnswerLengths,
    open: BTreeMap<RequestId, Open>,
    /// When each promise that is not judged yet runs out.
    due: BTreeSet<(Nanos, RequestId, PromiseKind)>,
    tallies: [Tally; 2],
    probes: Probes,
}

impl Default for PromiseBook {
    fn default() -> PromiseBook {
        PromiseBook {
            windows: core::array::from_fn(|_| core::array::from_fn(|_| Window::new())),
            lengths: AnswerLengths::default(),
            open: BTreeMap::new(),
            due: BTreeSet::new(),
            tallies: Default::default(),
            probes: Probes::default(),
        }
    }
}

impl PromiseBook {
    /// What a request with this outlook may be promised. Cost: a sort of the last 128 lengths.
    pub fn promise(&self, outlook: &Outlook, limits: AnswerLimits) -> Promise {
        let forecasts = [outlook.first_token(), outlook.answer(self.lengths.long(limits))];
        let [first_token, answer] = PromiseKind::ALL.map(|kind| {
            let forecast = forecasts[kind as usize];
            let window = &self.windows[kind as usize][outlook.crowd() as usize];
            let times = |factor| Nanos((forecast.0 as f64 * factor) as u64);
            PromisedTime { forecast, likely: times(window.median), within: times(window.bound()) }
        });
        // The last token is not before the first.
        let answer = PromisedTime {
            likely: answer.likely.max(first_token.likely),
            within: answer.within.max(first_token.within),
            ..answer
        };
        Promise { crowd: outlook.crowd(), first_token, answer }
    }

    /// Whether a request with this promise and this target is taken where those that would be late are not wanted. No
    /// more than 31 are refused in a row.
    pub fn judge(&mut self, promise: &Promise, target: Nanos) -> Admission {
        match promise.first_token.within <= target {
            true => Admission::InTime,
            false if self.probes.lets_through() => Admission::Probe,
            false => Admission::TooLate,
        }
    }

    /// A request that came at `now` has this promise. `probe`: its target, if it is one. Panics if it has one already.
    pub fn open(&mut self, id: RequestId, promise: Promise, probe: Option<Nanos>, now: Nanos) {
        let probe = probe.map(|target| Nanos(now.0.saturating_add(target.0)));
        let open = Open { arrived: now, promise, judged: Default::default(), probe };
        assert!(self.open.insert(id, open).is_none(), "{id:?} has a promise");
        for kind in PromiseKind::ALL {
            self.due.insert((due(&open, kind), id, kind));
        }
    }

    /// Promises that ran out before `now` are broken. Cost: a look at the first of them.
    pub fn pass(&mut self, now: Nanos) {
        while let Some(&(at, id, kind)) = self.due.first().filter(|&&(at, ..)| at < now) {
            self.due.pop_first();
            let open = self.open.get_mut(&id).expect("what is due is open");
            self.tallies[kind as usize].note(false);
            let window = &mut self.windows[kind as usize][open.promise.crowd as usize];
            let is_beyond = ratio(at.since(open.arrived), open.promise.of(kind)) >= window.bound();
            if is_beyond {
                window.adjust(true);
            }
            open.judged[kind as usize] = if is_beyond { Judged::BrokenAndLearned } else { Judged::Broken };
        }
    }

    /// A request has its first token. One that is not known is ignored: who replays makes no promises.
    pub fn first_token(&mut self, id: RequestId, now: Nanos) {
        self.pass(now);
        self.settle(id, PromiseKind::FirstToken, now);
        if let Some(open) = self.open.get_mut(&id)
            && let Some(wanted) = open.probe.take()
        {
            self.probes.came(Some(now <= wanted));
        }
    }

    /// A request has all its answers: of each its tokens, and whether it ended before it was cut off.
    pub fn finished(&mut self, id: RequestId, answers: impl Iterator<Item = (usize, bool)>, now: Nanos) {
        self.pass(now);
        // One that wants no tokens has its prompt read.
        PromiseKind::ALL.into_iter().for_each(|kind| self.settle(id, kind, now));
        answers.for_each(|(tokens, ended)| self.lengths.add(tokens, ended));
        self.gone(id, now);
    }

    /// A request is over, whatever it has. What it was promised is forgotten.
    pub fn gone(&mut self, id: RequestId, now: Nanos) {
        self.pass(now);
        let Some(open) = self.open.remove(&id) else { return };
        for kind in PromiseKind::ALL {
            self.due.remove(&(due(&open, kind), id, kind));
        }
        if open.probe.is_some() {
            self.probes.came(None);
        }
    }

    /// All open requests are over, and those that were to come with a promise: nothing more is heard of them.
    pub fn all_gone(&mut self, now: Nanos) {
        while let Some(id) = self.open.keys().next().copied() {
            self.gone(id, now);
        }
    }

    /// What an open request was promised.
    pub fn of(&self, id: RequestId) -> Option<&Promise> {
        self.open.get(&id).map(|open| &open.promise)
    }

    /// How the promises of a kind were kept.
    pub fn kept(&self, kind: PromiseKind) -> KeptPromises {
        let Tally { kept, broken, newest, .. } = &self.tallies[kind as usize];
        let share = |newest: &Vec<bool>| newest.iter().filter(|&&kept| kept).count() as f64 / newest.len() as f64;
        let rolling = Some(&newest.values).filter(|newest| !newest.is_empty()).map(share);
        KeptPromises { kept: *kept, broken: *broken, rolling }
    }

    /// Requests that were refused because they would be late, and those that were let through all the same.
    pub fn refused_and_probes(&self) -> (u64, u64) {
        (self.probes.total_refused, self.probes.total)
    }

    /// Open requests with a promise.
    pub fn num_open(&self) -> usize {
        self.open.len()
    }

    /// The truth about a promise is known.
    fn settle(&mut self, id: RequestId, kind: PromiseKind, now: Nanos) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let was = core::mem::replace(&mut open.judged[kind as usize], Judged::Over);
        if was == Judged::Over {
            return;
        }
        self.due.remove(&(due(open, kind), id, kind));
        if was == Judged::NotYet {
            self.tallies[kind as usize].note(true);
        }
        let window = &mut self.windows[kind as usize][open.promise.crowd as usize];
        let ratio = ratio(now.since(open.arrived), open.promise.of(kind));
        if was != Judged::BrokenAndLearned {
            window.adjust(ratio > window.bound());
        }
        window.add(ratio);
    }
}

fn due(open: &Open, kind: PromiseKind) -> Nanos {
    Nanos(open.arrived.0.saturating_add(open.promise.of(kind).within.0))
}

fn ratio(took: Nanos, promised: &PromisedTime) -> f64 {
    (took.0 as f64 / promised.forecast.0.max(1) as f64).clamp(1.0 / MOST_RATIO, MOST_RATIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn outlook(ms: u64) -> Outlook {
        Outlook::alone(Nanos(ms * MS))
    }

    /// Makes and settles promises whose truths are `truths` milliseconds where 100 are forecast. How many were kept.
    fn run(book: &mut PromiseBook, first: u64, truths: impl Iterator<Item = u64>) -> usize {
        let limits = AnswerLimits { least: 0, most: 1 };
        let before = book.kept(PromiseKind::FirstToken).kept;
        for (id, truth) in (first..).zip(truths) {
            let (id, from) = (RequestId(id), Nanos(id * 1_000_000 * MS));
            let promise = book.promise(&outlook(100), limits);
            book.open(id, promise, None, from);
            book.first_token(id, Nanos(from.0 + truth * MS));
            book.finished(id, core::iter::once((1, false)), Nanos(from.0 + truth * MS));
        }
        (book.kept(PromiseKind::FirstToken).kept - before) as usize
    }

    #[test]
    fn a_shift_of_level_breaks_a_few_and_then_95_of_100_are_kept_again() {
        let mut book = PromiseBook::default();
        let noise = |id: u64| (id * 7919) % 41;
        let kept = run(&mut book, 0, (0..400).map(|id| 80 + noise(id)));
        assert!((380..=400).contains(&kept), "{kept} of 400");
        let kept = run(&mut book, 1000, (0..100).map(|id| 8 * (80 + noise(id))));
        assert!(kept >= 80, "eight times slower: {kept} of 100");
        let kept = run(&mut book, 2000, (0..400).map(|id| 8 * (80 + noise(id))));
        assert!((368..=392).contains(&kept), "{kept} of 400");
        run(&mut book, 3000, (0..150).map(|id| 80 + noise(id)));
        let within = book.promise(&outlook(100), AnswerLimits { least: 0, most: 1 }).first_token.within;
        assert!(within < Nanos(160 * MS), "the window has forgotten: {within:?}");
    }

    #[test]
    fn what_runs_out_is_broken_at_that_moment_and_learned_once() {
        let mut book = PromiseBook::default();
        let limits = AnswerLimits { least: 0, most: 1 };
        let promise = book.promise(&outlook(100), limits);
        (0..10).for_each(|id| book.open(RequestId(id), promise, None, Nanos(0)));
        book.pass(promise.first_token.within);
        assert_eq!(book.kept(PromiseKind::FirstToken).broken, 0);
        book.pass(Nanos(promise.first_token.within.0 + 1));
        assert_eq!(book.kept(PromiseKind::FirstToken).broken, 10);
        let after = book.promise(&outlook(100), limits).first_token.within.0 as f64;
        assert!((after / promise.first_token.within.0 as f64 - UP).abs() < 1e-6, "ten that were one surprise");
        (0..5).for_each(|id| book.first_token(RequestId(id), Nanos(500 * MS)));
        (0..10).for_each(|id| book.gone(RequestId(id), Nanos(600 * MS)));
        let KeptPromises { kept, broken, rolling } = book.kept(PromiseKind::FirstToken);
        assert_eq!((kept, broken, rolling, book.num_open(), book.due.len()), (0, 10, Some(0.0), 0, 0));
        // One whose client leaves in time says nothing.
        book.open(RequestId(11), promise, None, Nanos(0));
        book.gone(RequestId(11), Nanos(1));
        assert_eq!(book.kept(PromiseKind::FirstToken), KeptPromises { kept, broken, rolling });
    }

    #[test]
    fn refusals_leave_probes() {
        let mut book = PromiseBook::default();
        let promise = book.promise(&outlook(800), AnswerLimits { least: 0, most: 1 });
        let target = Nanos(200 * MS);
        let mut pauses = Vec::new();
        let mut refused = 0;
        for id in 0..300 {
            match book.judge(&promise, target) {
                Admission::InTime => panic!("800 ms are not in time"),
                Admission::TooLate => refused += 1,
                Admission::Probe => {
                    pauses.push(core::mem::take(&mut refused));
                    book.open(RequestId(id), promise, Some(target), Nanos(0));
                    book.first_token(RequestId(id), Nanos(900 * MS));
                    book.gone(RequestId(id), Nanos(900 * MS));
                }
            }
        }
        assert_eq!(pauses[..7], [0, 1, 3, 7, 15, 31, 31]);
        // A probe in time, and the next ones are let through soon.
        let mut seen = 0;
        for id in 300..400 {
            if book.judge(&promise, target) == Admission::Probe {
                seen += 1;
                book.open(RequestId(id), promise, Some(target), Nanos(0));
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
        assert_eq!(lengths.long(limits(500)), 101, "who was cut off at 16 would have gone on like the others");
    }
}
