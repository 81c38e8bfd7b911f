//! Bounds the time of a step and orders prompts: the two decisions that latency targets make.
//!
//! ```text
//! a stream's tokens    |----|----|------|  ^ now                  the next one is due one TPOT after the last,
//!                      0    1    2      3  |  due 4               or later if the stream is ahead of its target
//!                                          +------->| the step may take this long: prompt chunks are sized to fit
//!
//! prompts by deadline  A  B  C(long)  D     if C makes D late, C is deferred: it is late anyway or costs the most
//! ```
//!
//! A prompt chunk ends where the slowest running stream would miss its time per output token (stall-free batching:
//! Sarathi-Serve, Agrawal et al., OSDI 2024, with a bound in seconds instead of tokens). Prompts are ordered so that as
//! many as possible meet their TTFT target: by deadline, and whenever one would be late, the longest so far is deferred
//! (Moore, Management Science 15(1), 1968; with arrivals over time a heuristic).
//!
//! Late prompts do not starve: of the rows that a class of a tenant gets, one in [`LATE_SHARE`] goes to its late
//! prompts, the oldest first ([`LateShares`], a deficit counter: Shreedhar & Varghese, SIGCOMM 1995). All earlier
//! arrivals fit into that share, so a prompt waits at most [`LATE_SHARE`] times as long as in arrival order, at the
//! expense of prompts that are on time.

use alloc::collections::BTreeMap;

use crate::SeqId;
use crate::fairness::FairnessKey;
use crate::sequence::{Phase, Sequence};
use protocol::{Nanos, Priority};

/// Longest gap relative to the target when the stream is ahead: still smooth, and leaves time for prompts.
const LONGEST_GAP: f64 = 1.2;
/// Shortest step relative to the target when the stream is behind: prompts must advance too.
const SHORTEST_GAP: f64 = 0.7;
/// Slack that allows slower prefill: time to the deadline over time that the prompt needs.
const MIN_SLACK: f64 = 2.0;
/// One in this many prompt rows goes to late prompts, if there are any.
pub(crate) const LATE_SHARE: i64 = 4;
/// Headroom for prediction errors of a few percent.
const MARGIN: f64 = 0.95;

/// Time that the step planned at `now` may take for this stream; `None` if it has no target or is not decoding.
pub(crate) fn allowance(seq: &Sequence, now: Nanos) -> Option<Nanos> {
    let target = seq.request.targets.tpot.filter(|_| seq.phase() == Phase::Decode)?;
    let due = next_token_due(seq, target);
    let (left, target) = (due.since(now).0 as f64, target.0 as f64);
    let waited = now.since(seq.last_token_at).0 as f64;
    // The visible gap began at the last token.
    let gap = left.clamp(SHORTEST_GAP * target, (LONGEST_GAP * target - waited).max(SHORTEST_GAP * target));
    Some(Nanos((gap * MARGIN) as u64))
}

/// When a stream with this target owes its next token.
fn next_token_due(seq: &Sequence, target: Nanos) -> Nanos {
    Nanos(seq.first_token_at.0.saturating_add(target.0.saturating_mul(seq.num_generated() as u64)))
}

/// When the next token is due: one of a stream, or the first; `None` without a target.
pub(crate) fn due(seq: &Sequence) -> Option<Nanos> {
    let targets = seq.request.targets;
    match seq.phase() {
        // One that is ahead of its target is owed no gap that shows.
        Phase::Decode => targets.tpot.map(|target| {
            let smooth = seq.last_token_at.0.saturating_add((LONGEST_GAP * target.0 as f64) as u64);
            next_token_due(seq, target).min(Nanos(smooth))
        }),
        Phase::Prefill => targets.ttft.map(|target| Nanos(seq.request.arrived.0.saturating_add(target.0))),
    }
}

/// A prompt that needs rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) seq: SeqId,
    pub(crate) priority: Priority,
    pub(crate) tenant: u64,
    /// Its tenant's sort key.
    pub(crate) key: FairnessKey,
    pub(crate) arrival: (u64, usize),
    /// It was preempted after it generated tokens: a client is reading.
    pub(crate) resumes: bool,
    /// Deadline of its first token.
    pub(crate) due: Option<Nanos>,
    /// It goes first in its class because it is late.
    pub(crate) is_overdue: bool,
    /// It holds its blocks.
    pub(crate) runs: bool,
    /// Prefill rows that it still needs, and their predicted seconds.
    pub(crate) rows: usize,
    pub(crate) seconds: f64,
}

impl Candidate {
    /// Whether both belong to one tenant.
    pub(crate) fn has_same_tenant_as(&self, other: &Candidate) -> bool {
        self.tenant == other.tenant
    }

    /// Whether it would miss its deadline even if it went first.
    fn is_late(&self, now: Nanos) -> bool {
        !self.resumes && self.due.is_some_and(|due| now.as_secs_f64() + self.seconds > due.as_secs_f64())
    }
}

/// When a step is planned, and the expected time of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepClock {
    pub(crate) now: Nanos,
    pub(crate) step_seconds: f64,
}

impl StepClock {
    /// The end of the step in which work of `seconds` ends.
    fn end_of_step(&self, seconds: f64) -> f64 {
        let steps = seconds / self.step_seconds.max(1e-9);
        let whole = (steps as u64) as f64;
        let steps = if steps > whole { whole + 1.0 } else { whole };
        self.now.as_secs_f64() + steps * self.step_seconds
    }
}

/// Rows owed to late prompts, by tenant, times [`LATE_SHARE`]. Tenants without late prompts are owed none.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateShares(BTreeMap<u64, i64>);

impl LateShares {
    /// Adds tenants with late prompts and drops the others.
    fn open(&mut self, candidates: &[Candidate], now: Nanos) {
        let is_late = |tenant| candidates.iter().any(|c| c.tenant == tenant && c.is_late(now));
        self.0.retain(|&tenant, _| is_late(tenant));
        for candidate in candidates.iter().filter(|candidate| candidate.is_late(now)) {
            self.0.entry(candidate.tenant).or_default();
        }
    }

    /// Accounts for rows of a prompt, in a step of at most `most` rows.
    pub(crate) fn charge(&mut self, candidate: &Candidate, rows: usize, most: usize) {
        let Some(owed) = self.0.get_mut(&candidate.tenant) else { return };
        let (rows, most) = (rows as i64, most as i64);
        let more = if candidate.is_overdue { -rows * (LATE_SHARE - 1) } else { rows };
        *owed = (*owed + more).clamp(-most * (LATE_SHARE - 1), most);
    }

    /// Moves the oldest late prompts of a class to its front, until they cover the rows owed.
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
        // Waiting prompts may not fit, so include one that runs.
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

/// Sorts prompts in scheduling order: by tenant ([`crate::fairness`]); within a tenant by class, and in it those that
/// resume, late ones that are owed rows, those that can be on time by deadline, deferred ones, then those without a
/// deadline by arrival. Cost: n log n, plus n for each deferred.
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
            // Late prompts take their share of the time for those on time.
            let is_shared = with_deadline.iter().any(|candidate| candidate.is_late(now));
            let share = if is_shared { LATE_SHARE as f64 / (LATE_SHARE - 1) as f64 } else { 1.0 };
            defer_late(with_deadline, num_tenants as f64 * share, clock);
            late.promote(with_deadline, now);
        }
        // A prompt's turn comes when those before it in its tenant's line are served.
        let mut served = line[0].key.0;
        for candidate in &mut *line {
            candidate.key.0 = served;
            served += crate::fairness::charge_per_token(candidate.priority) * candidate.rows as u64;
        }
    }
    if num_tenants > 1 {
        candidates.sort_unstable_by_key(|c| (c.key, c.arrival));
    }
}

/// Whether all prompts, in this order and `slower` times slower than planned, end long before their deadlines.
pub(crate) fn have_time(candidates: &[Candidate], slower: f64, now: Nanos) -> bool {
    let mut seconds = 0.0;
    candidates.iter().all(|candidate| {
        seconds += candidate.seconds * slower;
        candidate.due.is_some_and(|due| seconds * MIN_SLACK <= due.since(now).as_secs_f64())
    })
}

/// Within a tenant in deadline order: moves to the end the prompts that cannot be on time without making more others
/// late, at `slower` times the time they take alone. First tokens come at the end of a step; without this rounding most
/// late ones would miss their deadline by a fraction of one.
fn defer_late(candidates: &mut [Candidate], slower: f64, clock: &StepClock) {
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
