//! How long a step may take, and which prompt comes first: the two decisions that the targets make.
//!
//! ```text
//! a stream's tokens    |----|----|------|  ^ now                  the next one is due one TPOT after the last,
//!                      0    1    2      3  |  due 4               or later if the stream is ahead of its target
//!                                          +------->| the step may take this long: prompts get what fits
//!
//! prompts by deadline  A  B  C(long)  D     if C makes D late, C waits: it is late anyway or costs the most
//! ```
//!
//! Chunks of a prompt stop where the slowest running stream would miss its time per output token (stall-free batching:
//! Sarathi-Serve, Agrawal et al., OSDI 2024, with a bound in seconds instead of tokens). Prompts are ordered so that as
//! many as possible meet their time to first token: by deadline, and whenever one would be late, the longest so far is
//! put off (Moore, Management Science 15(1), 1968; with arrivals over time a heuristic).
//!
//! What is late is not lost: of the rows that a class of a tenant gets, one in [`LATE_SHARE`] goes to its late prompts,
//! the oldest first ([`LateShares`], a deficit counter: Shreedhar & Varghese, SIGCOMM 1995). All that came before a
//! prompt fits into that share, so it waits at most so many times as long as in order of arrival. The price is what
//! those in time do not get.

use alloc::collections::BTreeMap;

use crate::fairness::Turn;
use crate::sequence::{Phase, Sequence};
use crate::{Nanos, Priority, SeqId};

/// A gap may be this much longer than the target when the stream is ahead: smooth to the eye, and room for prompts.
const LONGEST_GAP: f64 = 1.2;
/// A stream that is behind gets steps this much shorter than its target, no shorter: prompts must move too.
const SHORTEST_GAP: f64 = 0.7;
/// What is left until a deadline has to be so many times what a prompt needs before it is read more slowly.
const EASE: f64 = 2.0;
/// One in so many rows of prompts is for late ones, if there are any.
pub(crate) const LATE_SHARE: i64 = 4;
/// Predictions are a few percent off; what is planned leaves room for that.
const MARGIN: f64 = 0.95;

/// How long the step planned at `now` may take for this stream; `None` if it has no target or is not decoding.
pub(crate) fn allowance(seq: &Sequence, now: Nanos) -> Option<Nanos> {
    let target = seq.request.targets.tpot.filter(|_| seq.phase() == Phase::Decode)?;
    let due = Nanos(seq.first_token_at.0.saturating_add(target.0.saturating_mul(seq.num_generated() as u64)));
    let (left, target) = (due.since(now).0 as f64, target.0 as f64);
    let waited = now.since(seq.last_token_at).0 as f64;
    // The gap that people see began at the last token.
    let gap = left.clamp(SHORTEST_GAP * target, (LONGEST_GAP * target - waited).max(SHORTEST_GAP * target));
    Some(Nanos((gap * MARGIN) as u64))
}

/// A prompt that wants rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) seq: SeqId,
    pub(crate) priority: Priority,
    pub(crate) tenant: u64,
    /// Whose turn its tenant is.
    pub(crate) turn: Turn,
    pub(crate) arrival: (u64, usize),
    /// It has answered before and lost its blocks since: somebody is reading.
    pub(crate) resumes: bool,
    /// When its first token is due; `None`: whenever.
    pub(crate) due: Option<Nanos>,
    /// It comes first of its class although, or rather because, it is late.
    pub(crate) is_overdue: bool,
    /// It has its blocks.
    pub(crate) runs: bool,
    /// Rows of prefill that it still needs, and the seconds they take.
    pub(crate) rows: usize,
    pub(crate) seconds: f64,
}

impl Candidate {
    /// Whether both are of one tenant.
    pub(crate) fn is_in_line_with(&self, other: &Candidate) -> bool {
        self.tenant == other.tenant
    }

    /// Whether it would be late even if it went first.
    fn is_late(&self, now: Nanos) -> bool {
        !self.resumes && self.due.is_some_and(|due| now.as_secs_f64() + self.seconds > due.as_secs_f64())
    }
}

/// When a step is planned, and how long one takes at the pace of the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepClock {
    pub(crate) now: Nanos,
    pub(crate) step_seconds: f64,
}

impl StepClock {
    /// When the step ends in which work for so many seconds does.
    fn end_of_step(&self, seconds: f64) -> f64 {
        let steps = seconds / self.step_seconds.max(1e-9);
        let whole = (steps as u64) as f64;
        let steps = if steps > whole { whole + 1.0 } else { whole };
        self.now.as_secs_f64() + steps * self.step_seconds
    }
}

/// What tenants owe to their late prompts, in rows times [`LATE_SHARE`]. Those without late ones owe nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateShares(BTreeMap<u64, i64>);

impl LateShares {
    /// Tenants without a late prompt are forgotten, those that have one are in the books.
    fn open(&mut self, candidates: &[Candidate], now: Nanos) {
        let is_late = |tenant| candidates.iter().any(|c| c.tenant == tenant && c.is_late(now));
        self.0.retain(|&tenant, _| is_late(tenant));
        for candidate in candidates.iter().filter(|candidate| candidate.is_late(now)) {
            self.0.entry(candidate.tenant).or_default();
        }
    }

    /// A prompt got rows in a step that has `most` at most.
    pub(crate) fn charge(&mut self, candidate: &Candidate, rows: usize, most: usize) {
        let Some(owed) = self.0.get_mut(&candidate.tenant) else { return };
        let (rows, most) = (rows as i64, most as i64);
        let more = if candidate.is_overdue { -rows * (LATE_SHARE - 1) } else { rows };
        *owed = (*owed + more).clamp(-most * (LATE_SHARE - 1), most);
    }

    /// Moves the oldest late prompts of a class to its beginning, as many as take what is owed.
    fn promote(&self, class: &mut [Candidate], now: Nanos) {
        let Some(mut owed) = class.first().and_then(|first| self.0.get(&first.tenant)).copied() else { return };
        let mut front = 0;
        let oldest = |class: &[Candidate], front: usize, runs: bool| {
            let late = class.iter().enumerate().skip(front).filter(|(_, c)| c.is_late(now) && (!runs || c.runs));
            late.min_by_key(|(_, candidate)| candidate.arrival).map(|(index, _)| index)
        };
        let is_owed = owed > 0;
        let mut one_runs = false;
        while owed > 0 {
            let Some(oldest) = oldest(class, front, false) else { return };
            promote_one(class, front, oldest);
            one_runs |= class[front].runs;
            owed -= class[front].rows as i64 * (LATE_SHARE - 1);
            front += 1;
        }
        // Those that wait may not fit.
        if is_owed
            && !one_runs
            && let Some(oldest) = oldest(class, front, true)
        {
            promote_one(class, front, oldest);
        }
    }
}

fn promote_one(class: &mut [Candidate], front: usize, index: usize) {
    class[front..=index].rotate_right(1);
    class[front].is_overdue = true;
}

/// Puts prompts in the order in which they are to advance: tenants take turns ([`crate::fairness`]); of each tenant's
/// the higher class, and in it those that resume, then late ones that are owed rows, then those that can be on time by
/// deadline, then those put off, then those without a deadline by arrival. Cost: n log n, plus n for each put off.
pub(crate) fn order(candidates: &mut [Candidate], late: &mut LateShares, clock: &StepClock) {
    let now = clock.now;
    late.open(candidates, now);
    let due = |c: &Candidate| c.due.filter(|_| !c.resumes);
    candidates.sort_unstable_by_key(|c| (c.tenant, c.priority, !c.resumes, due(c).is_none(), due(c), c.arrival));
    let num_tenants = candidates.chunk_by(|a, b| a.tenant == b.tenant).count();
    for line in candidates.chunk_by_mut(|a, b| a.tenant == b.tenant) {
        for class in line.chunk_by_mut(|a, b| a.priority == b.priority) {
            let begin = class.iter().take_while(|c| c.resumes).count();
            let len = class[begin..].iter().take_while(|c| c.due.is_some()).count();
            let with_deadline = &mut class[begin..][..len];
            // The late take their share of what is left for those in time.
            let is_shared = with_deadline.iter().any(|candidate| candidate.is_late(now));
            let share = if is_shared { LATE_SHARE as f64 / (LATE_SHARE - 1) as f64 } else { 1.0 };
            put_off_late(with_deadline, num_tenants as f64 * share, clock);
            late.promote(with_deadline, now);
        }
        // Each one's turn comes when those before it in its line have been served.
        let mut served = line[0].turn.0;
        for candidate in &mut *line {
            candidate.turn.0 = served;
            served += candidate.priority.charge() * candidate.rows as u64;
        }
    }
    if num_tenants > 1 {
        candidates.sort_unstable_by_key(|c| (c.turn, c.arrival));
    }
}

/// Whether all prompts, in this order and `slower` times slower than planned, would end long before they are due.
pub(crate) fn have_time(candidates: &[Candidate], slower: f64, now: Nanos) -> bool {
    let mut seconds = 0.0;
    candidates.iter().all(|candidate| {
        seconds += candidate.seconds * slower;
        candidate.due.is_some_and(|due| seconds * EASE <= due.since(now).as_secs_f64())
    })
}

/// Of one tenant's, by deadline: moves to the end what cannot be on time without making more others late, where all go
/// so many times slower than alone. A first token comes at the end of a step: planned without that, most of the late
/// would miss their time by a part of one.
fn put_off_late(candidates: &mut [Candidate], slower: f64, clock: &StepClock) {
    let (mut kept, mut end) = (0, candidates.len());
    let mut busy = 0.0;
    while kept < end {
        let due = candidates[kept].due.map_or(f64::INFINITY, Nanos::as_secs_f64);
        busy += candidates[kept].seconds * slower;
        kept += 1;
        if clock.end_of_step(busy) > due {
            let seconds = |index: usize| candidates[index].seconds * slower;
            let longest = (0..kept).max_by(|&a, &b| seconds(a).total_cmp(&seconds(b))).expect("one was just taken");
            busy -= seconds(longest);
            candidates[longest..].rotate_left(1);
            (kept, end) = (kept - 1, end - 1);
        }
    }
}
