//! What the ledger keeps of one request: sums by owner, the others that cost it most, and what it cost them.
//!
//! ```text
//! arrived      first token        second          third
//!    |-------------|----------------|---------------|        TTFT is one sum, every gap another: each nanosecond of it
//!    queue | own prefill | others   own | others'           has one owner, so the parts are the whole, exactly
//! ```

use alloc::vec::Vec;
use core::cmp::Reverse;

use scheduler::{FinishReason, Nanos, RequestId, Targets};

use crate::tally::Tally;
use crate::waits::{Standing, Waiters};

/// Who a nanosecond of a request's waiting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// In the queue, or back in it: the first in line waited for KV blocks.
    QueueKv,
    /// In the queue: the first in line waited for a seat.
    QueueSeats,
    /// The step's rows, prompts or time went to others, or it was under way when the request came.
    QueueBudget,
    /// Its own prompt.
    OwnPrefill,
    /// Prompts of others in the steps that carried it.
    OtherPrefill,
    /// Its own decode row, and those of its other answers, without guesses.
    OwnDecode,
    /// What checking guesses at its own next tokens made of its steps, and at those of its other answers.
    OwnDrafts,
    /// Decode rows of others in the steps that carried it, without guesses.
    Decode,
    /// Rows of guesses at others' tokens in the steps that carried it.
    OtherDrafts,
    /// Computing again what a preemption threw away.
    Recompute,
    /// Preempted: in the queue again, or in again and waiting for rows to compute again with.
    Waiting,
    /// Running, and left out of a step for others' targets or for want of a block.
    LeftOut,
    /// The machine ran others while the engine's threads were ready to run: in the steps that carried it or that it
    /// waited for, and between them. Known where the system tells ([`scheduler::Stolen`]).
    Machine,
    /// Between steps: taking requests in, planning, text, delivery.
    Overhead,
    /// Its prompt was read by another worker: in the queue there.
    RemoteQueue,
    /// Its prompt was computed there.
    RemotePrefill,
    /// Others, and all else, in the steps that carried it there.
    RemoteOthers,
    /// What is left of the time in which it was elsewhere: asking, and blocks on their way.
    Transfer,
}

impl Owner {
    const COUNT: usize = Owner::Transfer as usize + 1;

    /// All of them.
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
        Owner::Overhead,
        Owner::RemoteQueue,
        Owner::RemotePrefill,
        Owner::RemoteOthers,
        Owner::Transfer,
    ];
    /// Those of a time to first token.
    pub const OF_TTFT: [Owner; 13] = [
        Owner::QueueKv,
        Owner::QueueSeats,
        Owner::QueueBudget,
        Owner::OwnPrefill,
        Owner::OtherPrefill,
        Owner::Decode,
        Owner::OtherDrafts,
        Owner::Machine,
        Owner::Overhead,
        Owner::RemoteQueue,
        Owner::RemotePrefill,
        Owner::RemoteOthers,
        Owner::Transfer,
    ];
    /// Those of a gap between two tokens.
    pub const OF_GAP: [Owner; 10] = [
        Owner::OwnDecode,
        Owner::OwnDrafts,
        Owner::Decode,
        Owner::OtherDrafts,
        Owner::OtherPrefill,
        Owner::Recompute,
        Owner::Waiting,
        Owner::LeftOut,
        Owner::Machine,
        Owner::Overhead,
    ];

    /// Whether it is time that other requests took: there is somebody for whom it is a [`Cost`].
    pub fn is_others(self) -> bool {
        match self {
            Owner::QueueKv | Owner::QueueSeats | Owner::QueueBudget => true,
            Owner::OtherPrefill | Owner::Decode | Owner::OtherDrafts | Owner::Waiting | Owner::LeftOut => true,
            Owner::OwnPrefill | Owner::OwnDecode | Owner::OwnDrafts | Owner::Recompute => false,
            Owner::Machine | Owner::Overhead => false,
            // Whoever they are, they are not here.
            Owner::RemoteQueue | Owner::RemotePrefill | Owner::RemoteOthers | Owner::Transfer => false,
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
            Owner::Overhead => "overhead",
            Owner::RemoteQueue => "remote_queue",
            Owner::RemotePrefill => "remote_prefill",
            Owner::RemoteOthers => "remote_others",
            Owner::Transfer => "transfer",
        }
    }
}

/// Nanoseconds by owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares([u64; Owner::COUNT]);

impl Shares {
    /// What one owner has.
    pub fn of(&self, owner: Owner) -> Nanos {
        Nanos(self.0[owner as usize])
    }

    /// All of it.
    pub fn total(&self) -> Nanos {
        Nanos(self.0.iter().sum())
    }

    /// Gives `owner` so many nanoseconds more.
    pub fn add(&mut self, owner: Owner, nanos: u64) {
        self.0[owner as usize] += nanos;
    }

    /// Adds another sum, owner by owner.
    pub fn merge(&mut self, other: &Shares) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }
}

/// Others that are named; the rest are summed.
pub(crate) const MOST_NAMED: usize = 6;

/// Nanoseconds by request: the largest by name, the rest in one sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    entries: [Option<(RequestId, u64)>; MOST_NAMED],
    rest: u64,
}

impl Named {
    /// By falling time.
    pub fn entries(&self) -> impl Iterator<Item = (RequestId, Nanos)> {
        let mut entries = self.entries;
        entries.sort_unstable_by_key(|entry| entry.map(|(id, nanos)| (Reverse(nanos), id)));
        entries.into_iter().flatten().map(|(id, nanos)| (id, Nanos(nanos)))
    }

    /// What all that are not named have together.
    pub fn rest(&self) -> Nanos {
        Nanos(self.rest)
    }

    /// All of it.
    pub fn total(&self) -> Nanos {
        Nanos(self.rest + self.entries.iter().flatten().map(|&(_, nanos)| nanos).sum::<u64>())
    }

    /// A newcomer takes the place of the smallest if it is larger; who is not kept counts to the rest.
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

    /// So much more of others.
    pub(crate) fn add_rest(&mut self, nanos: u64) {
        self.rest += nanos;
    }

    /// Adds another's entries and its rest.
    pub fn merge(&mut self, other: &Named) {
        other.entries.iter().flatten().for_each(|&(id, nanos)| self.add(id, nanos));
        self.rest += other.rest;
    }
}

/// What a request took of others' time: the same nanoseconds that their sums show, seen from here. Over all requests
/// each field is the sum of the owner of its name.
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
    /// Rows of guesses at its tokens, while others waited for their first token in the same steps.
    pub drafts_in_ttfts: Nanos,
    /// The same, between others' tokens.
    pub drafts_in_gaps: Nanos,
    /// The blocks that it held, while others waited for their first token and the first in line for blocks.
    pub queue_kv: Nanos,
    /// The seats that it held, while the first in line waited for one.
    pub queue_seats: Nanos,
    /// Its rows, in steps that left others no row before their first token.
    pub queue_budget: Nanos,
    /// What it held or computed while others were preempted and waited to go on.
    pub waiting: Nanos,
    /// Its rows, in steps that left out streams.
    pub left_out: Nanos,
}

impl Cost {
    /// All of it.
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
    /// Arrival to first token; to the end, if it asked for none.
    pub ttft: Shares,
    /// Whom it waited for: all of `ttft` that is neither its own nor the machine's nor overhead
    /// ([`Owner::is_others`]).
    pub ttft_others: Named,
    /// From token to token, over all gaps of all answers.
    pub gaps: Shares,
    /// Whom it waited for in `gaps`: their prompts, guesses at their tokens, and who held or computed what while it was
    /// preempted or left out. Rows of other streams ([`Owner::Decode`]) have no names here.
    pub gaps_others: Named,
    /// Of what its guesses took of its own `gaps` ([`Owner::OwnDrafts`]), the part of those that did not hold: of each
    /// step the share of them that failed there. Contained in that owner, and no summand beside it.
    pub rejected: Nanos,
    /// What it cost others.
    pub cost: Cost,
    /// What computing the tokens found in the prefix cache would have taken alone, as the cost model predicts; it is no
    /// part of any sum. `None` without a model.
    pub saved_by_cache: Option<Nanos>,
}

/// A step in which an answer had rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// When the step was planned.
    pub from: Nanos,
    /// When its output came back.
    pub to: Nanos,
    /// Which answer.
    pub answer: u16,
    /// Tokens of this request that came of it: at the prompt's end one of each answer, later of one answer a run.
    pub tokens: u16,
    /// Its rows.
    pub rows: u32,
    /// [`Owner::OwnPrefill`], [`Owner::Recompute`] or [`Owner::OwnDecode`]: what they were for.
    pub work: Owner,
}

/// A time in which steps ran and an answer had no row in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Since when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// Which answer.
    pub answer: u16,
    /// Why; their sum is the whole.
    pub shares: Shares,
}

/// The time from one token to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Which answer.
    pub answer: u16,
    /// Which of its tokens came late, counted from 0; the first of all has no gap. Of a run that came of guesses it is
    /// the first; the others came with it, and had none.
    pub token: u32,
    /// When it came.
    pub at: Nanos,
    /// Whose time it was; the sum is the gap.
    pub shares: Shares,
    /// Whom it waited for, as in [`Bill::gaps_others`].
    pub others: Named,
}

/// One request in the ledger.
#[derive(Clone, Debug)]
pub struct Account {
    /// Whose.
    pub request: RequestId,
    /// Whose, again: the API key's number.
    pub tenant: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// When it came.
    pub arrived: Nanos,
    /// What it wanted.
    pub targets: Targets,
    /// When the first step with a row of it was planned.
    pub first_scheduled: Option<Nanos>,
    /// When its first token came.
    pub first_token: Option<Nanos>,
    /// When its last token came, of all answers.
    pub last_token: Option<Nanos>,
    /// Prompt tokens that the prefix cache had when it entered.
    pub cached_tokens: usize,
    /// Rows of its prompt that were computed, again after preemptions too.
    pub prefill_rows: usize,
    /// Its decode rows.
    pub decode_rows: usize,
    /// Those of them beside which guesses were checked.
    pub verify_rows: usize,
    /// Guesses that were checked beside them, and those that held: each was a token without a step of its own.
    pub draft_rows: usize,
    /// See `draft_rows`.
    pub held_drafts: usize,
    /// Positions of the cache that these read, summed.
    pub decode_context: u64,
    /// Times that it lost its blocks.
    pub preemptions: usize,
    /// The sums.
    pub bill: Bill,
    /// Its steps, the first ones up to the ledger's limit.
    pub visits: Vec<Visit>,
    /// Steps beyond the limit.
    pub visits_left_out: usize,
    /// Its waits, the first ones up to a limit.
    pub waits: Vec<Wait>,
    /// Its longest gaps, up to a limit, in no order.
    pub longest_gaps: Vec<Gap>,
    pub(crate) answers: Vec<Meter>,
    /// Of its answers, those that wait.
    pub(crate) own_waits: Waiters,
    /// The answer whose wait for its first token is the request's.
    pub(crate) lead: usize,
    /// Its prompt is read elsewhere.
    pub(crate) is_away: bool,
}

/// What came of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerTimes {
    /// Its tokens.
    pub tokens: usize,
    /// When the first came; without tokens 0, as the two below.
    pub first_token: Nanos,
    /// When the last came.
    pub last_token: Nanos,
    /// The longest time between two.
    pub longest_gap: Nanos,
    /// Why it ended, if it has.
    pub reason: Option<FinishReason>,
}

/// Without a target a gap is late if it is longer than so many median gaps of its answer...
pub const LATE_MEDIANS: u64 = 2;
/// ... and longer than this. A person sees no gap that is shorter than one picture of a film, and where a token takes
/// half a millisecond twice of that is noise of the machine.
pub const LATE_FLOOR: Nanos = Nanos(20_000_000);

/// Above this a gap between two tokens is late: the target, or, without one, [`LATE_MEDIANS`] times the `median` gap of
/// its answer, and at least [`LATE_FLOOR`]. The one definition of a stall, for timelines, spans, load tests and pages.
pub fn late_above(target: Option<Nanos>, median: Nanos) -> Nanos {
    target.unwrap_or(LATE_FLOOR.max(Nanos(median.0.saturating_mul(LATE_MEDIANS))))
}

/// Longest gaps kept with their owners.
const MOST_GAPS: usize = 32;
/// Waits kept.
const MOST_WAITS: usize = 64;

impl Account {
    /// The gaps that are late ([`late_above`]), of the longest kept, in order of time.
    pub fn late_gaps(&self) -> Vec<Gap> {
        let limit = late_above(self.targets.tpot, self.median_gap());
        let late = self.longest_gaps.iter().filter(|gap| gap.shares.total() > limit);
        let mut late: Vec<Gap> = late.copied().collect();
        late.sort_unstable_by_key(|gap| (gap.at, gap.answer));
        late
    }

    /// Its answers, in their order. Before the prompt is read only the first can have anything.
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

    /// The mean time between the tokens of its slowest answer, in seconds; `None` where no answer has two.
    pub fn tpot(&self) -> Option<f64> {
        let means = self.answers.iter().filter(|meter| meter.tokens > 1);
        let means =
            means.map(|meter| meter.last_token.since(meter.first_token).as_secs_f64() / f64::from(meter.tokens - 1));
        means.fold(None, |slowest, mean| Some(slowest.map_or(mean, |slowest: f64| slowest.max(mean))))
    }

    /// Tokens that have come, of all answers.
    pub fn num_tokens(&self) -> usize {
        self.answers.iter().map(|meter| meter.tokens as usize).sum()
    }

    /// The median time from token to token in the steps that are kept; 0 without any. Tokens that came together count
    /// once, as in a client's eyes: were their gaps of 0 in it, every step of a stream that guesses well would be late.
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
        // The middle of the two in the middle, as `figures::percentile` has it.
        let Some(last) = gaps.len().checked_sub(1) else { return Nanos::default() };
        Nanos(gaps[last / 2].0.midpoint(gaps[gaps.len() / 2].0))
    }

    /// Gives back memory that nothing will fill.
    pub fn shrink(&mut self) {
        self.answers.shrink_to_fit();
        self.visits.shrink_to_fit();
        self.waits.shrink_to_fit();
        self.longest_gaps.shrink_to_fit();
    }

    /// Bytes that it takes.
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

    /// Room for what steady steps add, so that they allocate nothing.
    pub(crate) fn make_ready(&mut self, visits: usize) {
        if self.visits.capacity() == 0 && visits > 0 {
            self.visits.reserve_exact(visits);
            self.longest_gaps.reserve_exact(MOST_GAPS);
        }
    }
}

/// How far one answer's time has been given to owners.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    /// Everything before this moment has an owner.
    pub(crate) upto: Nanos,
    /// The clocks of that moment.
    pub(crate) at: Clocks,
    /// Since the last token, or since arrival.
    pub(crate) pending: Shares,
    /// Since the last token: whom it waited for.
    pub(crate) others: Named,
    /// Since the last token: what wrong guesses took of it.
    pub(crate) rejected: u64,
    /// The same since arrival.
    pub(crate) tally: Tally,
    /// How it waits, while it does.
    pub(crate) standing: Option<Standing>,
    /// It has blocks: false in the queue.
    pub(crate) is_in: bool,
    /// The rows it had last were not the end of its known tokens.
    pub(crate) mid_prompt: bool,
    pub(crate) tokens: u32,
    pub(crate) first_token: Nanos,
    pub(crate) last_token: Nanos,
    pub(crate) longest_gap: Nanos,
    pub(crate) reason: Option<FinishReason>,
}

impl Meter {
    /// Gives the time until `to`, in which it had no row, to its owners. `own` of it was its request's: its other
    /// answers held or computed something, or it held blocks itself while they were loaded from a tier. Returns what
    /// steps took of it.
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
        shares.add(Owner::Machine, clocks.stolen - self.at.stolen);
        self.pending.merge(&shares);
        self.pending.add(Owner::Machine, clocks.stolen_between - self.at.stolen_between);
        self.pending.add(Owner::Overhead, clocks.between - self.at.between);
        (self.upto, self.at) = (to, *clocks);
        shares
    }
}

/// Time since the ledger began, by what the engine did: what a waiting request's time is read off, without a look at
/// the request while it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// Steps, by what kept the first in line waiting: KV, seats, budget; without what the machine took of them.
    pub(crate) steps: [u64; 3],
    /// That.
    pub(crate) stolen: u64,
    /// Between steps, without what the machine took.
    pub(crate) between: u64,
    /// That.
    pub(crate) stolen_between: u64,
}

impl Clocks {
    /// What steps took since.
    pub(crate) fn in_steps_since(&self, then: &Clocks) -> u64 {
        self.steps.iter().zip(&then.steps).map(|(now, then)| now - then).sum()
    }
}
