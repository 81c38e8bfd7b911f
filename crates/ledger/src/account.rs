//! One request in the ledger: time sums by owner, the requests that delayed it most, and the delay it caused.
//!
//! ```text
//! arrived      first token        second          third
//!    |-------------|----------------|---------------|        TTFT is one sum, every gap another: each nanosecond has
//!    queue | own prefill | others   own | others'           exactly one owner, so the parts add up to the whole
//! ```

use alloc::vec::Vec;
use core::cmp::Reverse;

use protocol::{FinishReason, Nanos, RequestId, Targets};
use scheduler::CacheMiss;

use crate::tally::Tally;
use crate::waits::{ActiveWait, Waiters};

/// The cause of a nanosecond of a request's latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Queued, also after a preemption: the head of the queue waited for KV blocks.
    QueueKv,
    /// Queued: the head of the queue waited for a seat.
    QueueSeats,
    /// The step's rows, prompts or time went to others, or a step was running when the request arrived.
    QueueBudget,
    /// Its own prompt.
    OwnPrefill,
    /// Others' prompts in the request's steps.
    OtherPrefill,
    /// Its own decode rows, those of its other answers included, without drafts.
    OwnDecode,
    /// The extra time of its steps from verifying drafts of its own answers.
    OwnDrafts,
    /// Others' decode rows in the request's steps, without drafts.
    Decode,
    /// Others' draft rows in the request's steps.
    OtherDrafts,
    /// Recompute after a preemption.
    Recompute,
    /// Preempted: queued again, or running again and waiting for rows to recompute with.
    Waiting,
    /// Running, but left out of a step for others' targets or for want of a block.
    LeftOut,
    /// Steal time: the engine's threads were runnable while the machine ran others, in steps that the request had rows
    /// in or waited for, and between them. Zero where the system does not report it ([`scheduler::StealTime`]).
    Machine,
    /// Experts that were not in memory were read, in steps that the request had rows in or waited for.
    ExpertReads,
    /// Another model's steps had the cores.
    OtherModel,
    /// Between steps: receiving requests, planning, text, delivery.
    Overhead,
    /// Queued on the prefill worker.
    RemoteQueue,
    /// Prefill on another worker, and what that one does between steps.
    RemotePrefill,
    /// Others in its steps on the prefill worker.
    RemoteOthers,
    /// Steal time on the prefill worker.
    RemoteMachine,
    /// The rest of the remote prefill: the request and KV transfer. In a gap too: everything went to another device.
    Transfer,
}

impl Owner {
    const COUNT: usize = Owner::Transfer as usize + 1;

    /// All owners.
    pub const ALL: [Owner; Owner::COUNT] = [
        Owner::QueueKv,
        Owner::QueueSeats,
        Owner::QueueBudget,
        Owner::OwnPrefill,
        Owner::OtherPrefill,
        Owner::OwnDecode,
        Owner::OwnDrafts,
        Owner::Decode,
        Owner::OtherDrafts,
        Owner::Recompute,
        Owner::Waiting,
        Owner::LeftOut,
        Owner::Machine,
        Owner::ExpertReads,
        Owner::OtherModel,
        Owner::Overhead,
        Owner::RemoteQueue,
        Owner::RemotePrefill,
        Owner::RemoteOthers,
        Owner::RemoteMachine,
        Owner::Transfer,
    ];
    /// Owners of a time to first token.
    pub const OF_TTFT: [Owner; 16] = [
        Owner::QueueKv,
        Owner::QueueSeats,
        Owner::QueueBudget,
        Owner::OwnPrefill,
        Owner::OtherPrefill,
        Owner::Decode,
        Owner::OtherDrafts,
        Owner::Machine,
        Owner::ExpertReads,
        Owner::OtherModel,
        Owner::Overhead,
        Owner::RemoteQueue,
        Owner::RemotePrefill,
        Owner::RemoteOthers,
        Owner::RemoteMachine,
        Owner::Transfer,
    ];
    /// What a prefill worker says of the time that it took.
    pub const REMOTE: [Owner; 4] =
        [Owner::RemoteQueue, Owner::RemotePrefill, Owner::RemoteOthers, Owner::RemoteMachine];
    /// Owners of a gap between two tokens.
    pub const OF_GAP: [Owner; 13] = [
        Owner::OwnDecode,
        Owner::OwnDrafts,
        Owner::Decode,
        Owner::OtherDrafts,
        Owner::OtherPrefill,
        Owner::Recompute,
        Owner::Waiting,
        Owner::LeftOut,
        Owner::Machine,
        Owner::ExpertReads,
        Owner::OtherModel,
        Owner::Overhead,
        Owner::Transfer,
    ];

    /// Whether other requests took this time: then it is also booked as a [`Cost`].
    pub fn is_others(self) -> bool {
        match self {
            Owner::QueueKv | Owner::QueueSeats | Owner::QueueBudget => true,
            Owner::OtherPrefill | Owner::Decode | Owner::OtherDrafts | Owner::Waiting | Owner::LeftOut => true,
            Owner::OwnPrefill | Owner::OwnDecode | Owner::OwnDrafts | Owner::Recompute => false,
            Owner::Machine | Owner::ExpertReads | Owner::OtherModel | Owner::Overhead => false,
            // Those requests are on another worker.
            Owner::RemoteQueue | Owner::RemotePrefill | Owner::RemoteOthers => false,
            Owner::RemoteMachine | Owner::Transfer => false,
        }
    }

    /// What its time on a prefill worker is to the worker that asked. Time between steps is part of the prefill: no one
    /// else's, and no faster network shortens it.
    fn seen_from_afar(self) -> Owner {
        match self {
            Owner::QueueKv | Owner::QueueSeats | Owner::QueueBudget | Owner::RemoteQueue => Owner::RemoteQueue,
            Owner::OtherPrefill | Owner::Decode | Owner::OtherDrafts | Owner::RemoteOthers => Owner::RemoteOthers,
            Owner::Waiting | Owner::LeftOut | Owner::OtherModel => Owner::RemoteOthers,
            Owner::Machine | Owner::RemoteMachine => Owner::RemoteMachine,
            Owner::OwnPrefill | Owner::Recompute | Owner::OwnDecode | Owner::OwnDrafts => Owner::RemotePrefill,
            Owner::ExpertReads | Owner::Overhead | Owner::RemotePrefill | Owner::Transfer => Owner::RemotePrefill,
        }
    }

    /// Its name in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Owner::QueueKv => "queue_kv",
            Owner::QueueSeats => "queue_seats",
            Owner::QueueBudget => "queue_budget",
            Owner::OwnPrefill => "own_prefill",
            Owner::OtherPrefill => "other_prefill",
            Owner::OwnDecode => "own_decode",
            Owner::OwnDrafts => "own_drafts",
            Owner::Decode => "decode",
            Owner::OtherDrafts => "other_drafts",
            Owner::Recompute => "recompute",
            Owner::Waiting => "waiting",
            Owner::LeftOut => "left_out",
            Owner::Machine => "machine",
            Owner::ExpertReads => "expert_reads",
            Owner::OtherModel => "other_model",
            Owner::Overhead => "overhead",
            Owner::RemoteQueue => "remote_queue",
            Owner::RemotePrefill => "remote_prefill",
            Owner::RemoteOthers => "remote_others",
            Owner::RemoteMachine => "remote_machine",
            Owner::Transfer => "transfer",
        }
    }
}

/// Nanoseconds by owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares([u64; Owner::COUNT]);

impl Shares {
    /// The time of one owner.
    pub fn of(&self, owner: Owner) -> Nanos {
        Nanos(self.0[owner as usize])
    }

    /// The sum.
    pub fn total(&self) -> Nanos {
        Nanos(self.0.iter().sum())
    }

    /// The same time on a prefill worker, as the worker that asked books it: owners are those of [`Owner::REMOTE`].
    pub fn seen_from_afar(&self) -> Shares {
        let mut seen = Shares::default();
        Owner::ALL.into_iter().for_each(|owner| seen.add(owner.seen_from_afar(), self.of(owner).0));
        seen
    }

    /// Adds nanoseconds to `owner`.
    pub fn add(&mut self, owner: Owner, nanos: u64) {
        self.0[owner as usize] += nanos;
    }

    /// Adds another set, owner by owner.
    pub fn merge(&mut self, other: &Shares) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }
}

/// Requests listed by name; the rest are summed.
pub(crate) const MOST_NAMED: usize = 6;

/// Nanoseconds by request: the largest by name, the rest as one sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    entries: [Option<(RequestId, u64)>; MOST_NAMED],
    rest: u64,
}

impl Named {
    /// By decreasing time.
    pub fn entries(&self) -> impl Iterator<Item = (RequestId, Nanos)> {
        let mut entries = self.entries;
        entries.sort_unstable_by_key(|entry| entry.map(|(id, nanos)| (Reverse(nanos), id)));
        entries.into_iter().flatten().map(|(id, nanos)| (id, Nanos(nanos)))
    }

    /// Sum of all requests without an entry.
    pub fn rest(&self) -> Nanos {
        Nanos(self.rest)
    }

    /// The sum.
    pub fn total(&self) -> Nanos {
        Nanos(self.rest + self.entries.iter().flatten().map(|&(_, nanos)| nanos).sum::<u64>())
    }

    /// A new request replaces the smallest if it is larger; the displaced one counts to the rest.
    pub(crate) fn add(&mut self, id: RequestId, nanos: u64) {
        if nanos == 0 {
            return;
        }
        if let Some((_, sum)) = self.entries.iter_mut().flatten().find(|(known, _)| *known == id) {
            *sum += nanos;
            return;
        }
        let smallest = self.entries.iter_mut().min_by_key(|entry| entry.map_or(0, |(_, nanos)| nanos));
        let smallest = smallest.expect("there are places");
        if smallest.is_none_or(|(_, least)| nanos > least) {
            self.rest += smallest.replace((id, nanos)).map_or(0, |(_, least)| least);
        } else {
            self.rest += nanos;
        }
    }

    /// Adds to the rest.
    pub(crate) fn add_rest(&mut self, nanos: u64) {
        self.rest += nanos;
    }

    /// Adds another's entries and rest.
    pub fn merge(&mut self, other: &Named) {
        other.entries.iter().flatten().for_each(|&(id, nanos)| self.add(id, nanos));
        self.rest += other.rest;
    }
}

/// Time that a request took from others: the same nanoseconds as in their sums, from the other side. Over all requests
/// each field equals the sum of the owner it is named after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Its prompt, while others waited for their first token in the same steps.
    pub prefill_in_ttfts: Nanos,
    /// Its prompt, between others' tokens.
    pub prefill_in_gaps: Nanos,
    /// Its decode rows, while others waited for their first token in the same steps.
    pub decode_in_ttfts: Nanos,
    /// Its decode rows, between others' tokens.
    pub decode_in_gaps: Nanos,
    /// Its draft rows, while others waited for their first token in the same steps.
    pub drafts_in_ttfts: Nanos,
    /// Its draft rows, between others' tokens.
    pub drafts_in_gaps: Nanos,
    /// Blocks that it held while others waited for their first token and the head of the queue for blocks.
    pub queue_kv: Nanos,
    /// Seats that it held while the head of the queue waited for one.
    pub queue_seats: Nanos,
    /// Its rows in steps that left others no row before their first token.
    pub queue_budget: Nanos,
    /// What it held or computed while others waited after a preemption.
    pub waiting: Nanos,
    /// Its rows in steps that left out other streams.
    pub left_out: Nanos,
}

impl Cost {
    /// The sum.
    pub fn total(&self) -> Nanos {
        let mut cost = *self;
        Nanos(cost.parts().iter().map(|nanos| nanos.0).sum())
    }

    /// Adds another, field by field.
    pub fn merge(&mut self, mut other: Cost) {
        self.parts().into_iter().zip(other.parts()).for_each(|(sum, more)| sum.0 += more.0);
    }

    fn parts(&mut self) -> [&mut Nanos; 11] {
        [
            &mut self.prefill_in_ttfts,
            &mut self.prefill_in_gaps,
            &mut self.decode_in_ttfts,
            &mut self.decode_in_gaps,
            &mut self.drafts_in_ttfts,
            &mut self.drafts_in_gaps,
            &mut self.queue_kv,
            &mut self.queue_seats,
            &mut self.queue_budget,
            &mut self.waiting,
            &mut self.left_out,
        ]
    }
}

/// A request's sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// Arrival to first token; to the end if it requested no tokens.
    pub ttft: Shares,
    /// The requests that it waited for in `ttft`: all owners with [`Owner::is_others`].
    pub ttft_others: Named,
    /// From token to token, over all gaps of all answers.
    pub gaps: Shares,
    /// The requests that it waited for in `gaps`: their prompts and drafts, and holders while it was preempted or left
    /// out. Decode rows of other streams ([`Owner::Decode`]) are not listed.
    pub gaps_others: Named,
    /// The part of [`Owner::OwnDrafts`] in `gaps` due to rejected drafts: in each step their fraction of the drafts.
    /// Not an additional summand.
    pub rejected: Nanos,
    /// By how much steal time in `ttft` and in `gaps` may be wrong; what it is wrong by is part of another owner. Not an
    /// additional summand.
    pub uncertain: [Nanos; 2],
    /// Time that it took from others.
    pub cost: Cost,
    /// Predicted time to compute the prefix-cache hits alone; not part of any sum. `None` without a cost model.
    pub saved_by_cache: Option<Nanos>,
    /// Why they were no more; `None` before it entered, and of a prompt that another worker read.
    pub miss: Option<CacheMiss>,
}

/// A step in which an answer had rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// When the step was planned.
    pub from: Nanos,
    /// When its output arrived.
    pub to: Nanos,
    /// The answer.
    pub answer: u16,
    /// Tokens of the request from this step: at the prompt's end one per answer, later one answer's, with accepted
    /// drafts.
    pub tokens: u16,
    /// Rows.
    pub rows: u32,
    /// [`Owner::OwnPrefill`], [`Owner::Recompute`] or [`Owner::OwnDecode`].
    pub work: Owner,
}

/// A time in which steps ran without a row of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Start.
    pub from: Nanos,
    /// End.
    pub to: Nanos,
    /// The answer.
    pub answer: u16,
    /// The owners; the sum is the whole.
    pub shares: Shares,
}

/// The time from one token to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The answer.
    pub answer: u16,
    /// Index of the later token in its answer; the first token has no gap. Of accepted drafts that arrive together only
    /// the first has a gap.
    pub token: u32,
    /// Time of the token.
    pub at: Nanos,
    /// The owners; the sum is the gap.
    pub shares: Shares,
    /// The requests that it waited for, as in [`Bill::gaps_others`].
    pub others: Named,
}

/// One request in the ledger.
#[derive(Clone, Debug)]
pub struct Account {
    /// The request.
    pub request: RequestId,
    /// Its tenant: the API key's number.
    pub tenant: u64,
    /// Prompt length.
    pub prompt_tokens: usize,
    /// Arrival.
    pub arrived: Nanos,
    /// Latency targets.
    pub targets: Targets,
    /// When the first step with its rows was planned.
    pub first_scheduled: Option<Nanos>,
    /// Time of its first token.
    pub first_token: Option<Nanos>,
    /// Time of its last token, over all answers.
    pub last_token: Option<Nanos>,
    /// Prefix-cache hits when it entered, in tokens.
    pub cached_tokens: usize,
    /// Prompt rows computed, recompute included.
    pub prefill_rows: usize,
    /// Decode rows.
    pub decode_rows: usize,
    /// Decode rows with drafts.
    pub verify_rows: usize,
    /// Drafts verified, and those accepted: tokens without an extra step.
    pub draft_rows: usize,
    /// See `draft_rows`.
    pub held_drafts: usize,
    /// Keys that decode rows attended to, summed.
    pub decode_context: u64,
    /// Times preempted.
    pub preemptions: usize,
    /// Time sums.
    pub bill: Bill,
    /// Its steps: the first ones, up to the ledger's limit.
    pub visits: Vec<Visit>,
    /// Steps beyond the limit.
    pub visits_left_out: usize,
    /// Its waits: the first ones, up to a limit.
    pub waits: Vec<Wait>,
    /// Its longest gaps, up to a limit, unordered.
    pub longest_gaps: Vec<Gap>,
    pub(crate) answers: Vec<Meter>,
    /// Its answers that wait.
    pub(crate) own_waits: Waiters,
    /// The answer that the TTFT is measured on.
    pub(crate) lead: usize,
    /// Whether its prompt is being prefilled on another worker.
    pub(crate) is_away: bool,
}

/// Token times of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerTimes {
    /// Number of tokens.
    pub tokens: usize,
    /// Time of the first token; 0 without tokens, like the two below.
    pub first_token: Nanos,
    /// Time of the last token.
    pub last_token: Nanos,
    /// The longest gap.
    pub longest_gap: Nanos,
    /// Why it ended, if it has.
    pub reason: Option<FinishReason>,
}

/// Without a target a gap is late if it exceeds this many median gaps of its answer...
pub const LATE_MEDIANS: u64 = 2;
/// ... and this. No one sees a gap shorter than a film frame, and at half a millisecond per token twice the median is
/// machine noise.
pub const LATE_FLOOR: Nanos = Nanos(20_000_000);

/// The limit above which a gap is late: the target, or else [`LATE_MEDIANS`] times the `median` gap of its answer and
/// at least [`LATE_FLOOR`]. The one definition of a stall, for timelines, spans, load tests and pages.
pub fn late_above(target: Option<Nanos>, median: Nanos) -> Nanos {
    target.unwrap_or(LATE_FLOOR.max(Nanos(median.0.saturating_mul(LATE_MEDIANS))))
}

/// Longest gaps kept with their owners.
pub(crate) const MOST_GAPS: usize = 32;
const MOST_WAITS: usize = 64;

impl Account {
    /// The late gaps ([`late_above`]) among the longest ones, in order of time.
    pub fn late_gaps(&self) -> Vec<Gap> {
        let limit = late_above(self.targets.tpot, self.median_gap());
        let late = self.longest_gaps.iter().filter(|gap| gap.shares.total() > limit);
        let mut late: Vec<Gap> = late.copied().collect();
        late.sort_unstable_by_key(|gap| (gap.at, gap.answer));
        late
    }

    /// Its answers, in order. Before the first token only the first can have any.
    pub fn answers(&self) -> impl Iterator<Item = AnswerTimes> {
        self.answers.iter().map(|meter| AnswerTimes {
            tokens: meter.tokens as usize,
            first_token: meter.first_token,
            last_token: meter.last_token,
            longest_gap: meter.longest_gap,
            reason: meter.reason,
        })
    }

    /// Arrival to first token.
    pub fn ttft(&self) -> Option<Nanos> {
        self.first_token.map(|first| first.since(self.arrived))
    }

    /// Mean time per output token of its slowest answer, in seconds; `None` where no answer has two tokens.
    pub fn tpot(&self) -> Option<f64> {
        let means = self.answers.iter().filter(|meter| meter.tokens > 1);
        let means =
            means.map(|meter| meter.last_token.since(meter.first_token).as_secs_f64() / f64::from(meter.tokens - 1));
        means.fold(None, |slowest, mean| Some(slowest.map_or(mean, |slowest: f64| slowest.max(mean))))
    }

    /// Tokens so far, of all answers.
    pub fn num_tokens(&self) -> usize {
        self.answers.iter().map(|meter| meter.tokens as usize).sum()
    }

    /// The median gap in the recorded steps; 0 without any. Tokens that arrive together count once, as a client sees
    /// them: with their gaps of 0, every step of a stream with good drafts would be late.
    pub fn median_gap(&self) -> Nanos {
        let mut last: Vec<Option<Nanos>> = self.answers.iter().map(|_| None).collect();
        let mut gaps = Vec::new();
        for visit in self.visits.iter().filter(|visit| visit.tokens > 0) {
            let first = usize::from(visit.answer);
            let answers = if visit.work == Owner::OwnPrefill { usize::from(visit.tokens) } else { 1 };
            for last in &mut last[first..first + answers] {
                gaps.extend(last.replace(visit.to).map(|before| visit.to.since(before)));
            }
        }
        gaps.sort_unstable();
        // The mean of the middle two, as in `figures::percentile`.
        let Some(last) = gaps.len().checked_sub(1) else { return Nanos::default() };
        Nanos(gaps[last / 2].0.midpoint(gaps[gaps.len() / 2].0))
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Account>()
            + self.answers.capacity() * size_of::<Meter>()
            + self.visits.capacity() * size_of::<Visit>()
            + self.waits.capacity() * size_of::<Wait>()
            + self.longest_gaps.capacity() * size_of::<Gap>()
    }

    pub(crate) fn keep_wait(&mut self, wait: Wait) {
        if self.waits.len() < MOST_WAITS {
            self.waits.push(wait);
        }
    }

    pub(crate) fn keep_visit(&mut self, visit: Visit, most: usize) {
        if self.visits.len() < most {
            self.visits.push(visit);
        } else {
            self.visits_left_out += 1;
        }
    }

    pub(crate) fn keep_gap(&mut self, gap: Gap) {
        if self.longest_gaps.len() < MOST_GAPS {
            self.longest_gaps.push(gap);
        } else if let Some(shortest) = self.longest_gaps.iter_mut().min_by_key(|gap| gap.shares.total())
            && shortest.shares.total() < gap.shares.total()
        {
            *shortest = gap;
        }
    }
}

/// Time accounting of one answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    /// Time before this moment has an owner.
    pub(crate) upto: Nanos,
    /// The clocks at that moment.
    pub(crate) at: Clocks,
    /// Time since the last token, or since arrival.
    pub(crate) pending: Shares,
    /// The part of `pending` that may belong to the machine or not.
    pub(crate) uncertain: u64,
    /// Since the last token: requests that it waited for.
    pub(crate) others: Named,
    /// Since the last token: time of rejected drafts.
    pub(crate) rejected: u64,
    /// Since arrival: requests that it waited for.
    pub(crate) tally: Tally,
    /// The current wait, if any.
    pub(crate) wait: Option<ActiveWait>,
    /// Whether it has blocks; false in the queue.
    pub(crate) is_in: bool,
    /// Whether known tokens remain after its last rows.
    pub(crate) mid_prompt: bool,
    pub(crate) tokens: u32,
    pub(crate) first_token: Nanos,
    pub(crate) last_token: Nanos,
    pub(crate) longest_gap: Nanos,
    pub(crate) reason: Option<FinishReason>,
}

impl Meter {
    /// Gives the time until `to`, in which it had no row, to owners. `own`: the part that its own request caused: its
    /// other answers held or computed something, or its blocks were being loaded from a tier. Returns the part spent in
    /// steps.
    pub(crate) fn settle(&mut self, to: Nanos, clocks: &Clocks, mut own: u64) -> Shares {
        let mut shares = Shares::default();
        let steps = clocks.steps.iter().zip(&self.at.steps).map(|(now, then)| now - then);
        let queue = [Owner::QueueKv, Owner::QueueSeats, Owner::QueueBudget];
        for (cause, nanos) in queue.into_iter().zip(steps) {
            let owner = match (self.tokens > 0, self.is_in, self.mid_prompt) {
                (false, false, _) => cause,
                (false, true, _) => Owner::QueueBudget,
                (true, true, false) => Owner::LeftOut,
                (true, _, _) => Owner::Waiting,
            };
            let others = nanos.saturating_sub(own);
            shares.add(owner, others);
            shares.add(if self.tokens > 0 { Owner::OwnDecode } else { Owner::OwnPrefill }, nanos - others);
            own -= nanos - others;
        }
        shares.add(Owner::Machine, clocks.aside.stolen - self.at.aside.stolen);
        shares.add(Owner::ExpertReads, clocks.aside.experts - self.at.aside.experts);
        self.pending.merge(&shares);
        self.pending.add(Owner::Machine, clocks.stolen_between - self.at.stolen_between);
        self.pending.add(Owner::OtherModel, clocks.other_model - self.at.other_model);
        self.pending.add(Owner::Transfer, clocks.moving - self.at.moving);
        self.pending.add(Owner::Overhead, clocks.between - self.at.between);
        self.uncertain += clocks.uncertain - self.at.uncertain;
        (self.upto, self.at) = (to, *clocks);
        shares
    }
}

/// Time that is subtracted from steps before they are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Aside {
    /// Steal time.
    pub(crate) stolen: u64,
    /// Experts were read.
    pub(crate) experts: u64,
}

impl Aside {
    pub(crate) fn total(self) -> u64 {
        self.stolen + self.experts
    }

    /// That of the last `nanos` of a step that `took` so long, taken as uniform.
    pub(crate) fn in_last(self, nanos: u64, took: u64) -> Aside {
        let share = |of: u64| (u128::from(nanos) * u128::from(of) / u128::from(took.max(1))) as u64;
        let stolen = share(self.stolen).min(nanos);
        Aside { stolen, experts: share(self.experts).min(nanos - stolen) }
    }

    /// Adds it to its owners.
    pub(crate) fn book(self, shares: &mut Shares) {
        shares.add(Owner::Machine, self.stolen);
        shares.add(Owner::ExpertReads, self.experts);
    }
}

/// Cumulative engine time by activity. A waiting request reads its time off them at the end of the wait, so waiting
/// costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// Time in steps, by what the head of the queue waited for: KV, seats, budget; without what is aside.
    pub(crate) steps: [u64; 3],
    /// Time in steps that no rows had.
    pub(crate) aside: Aside,
    /// By how much steal time in steps may be wrong.
    pub(crate) uncertain: u64,
    /// Time between steps, without steal time.
    pub(crate) between: u64,
    /// Steal time between steps.
    pub(crate) stolen_between: u64,
    /// Time between steps in which another model had the cores.
    pub(crate) other_model: u64,
    /// Time between steps in which everything went to another device.
    pub(crate) moving: u64,
}

impl Clocks {
    /// Time in steps since `then`.
    pub(crate) fn in_steps_since(&self, then: &Clocks) -> u64 {
        self.steps.iter().zip(&then.steps).map(|(now, then)| now - then).sum()
    }
}
