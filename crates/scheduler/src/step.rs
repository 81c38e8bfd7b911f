//! The plan of one forward pass, its output and its log entry.
//!
//! ```text
//! Step        which rows to compute: one row per decoding sequence, many per prompt chunk
//! StepOutput  the sampled tokens, and failed requests
//! StepRecord  the same with request ids and times: the one log that every view is made of
//! ```

use alloc::vec::Vec;

use crate::cost::Work;
use crate::{BlockId, BlockSave, CacheMiss, SeqId, SlotSpill, StateSlot, SwapDecision, TierSlot};
use protocol::{FinishReason, Nanos, RequestId, TokenId};

/// Identifies a step; consecutive from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub u64);

/// `len` consecutive tokens of one sequence, from position `start`, computed in one step: a decode row is its last
/// token (`len` and `samples` are 1), perhaps followed by drafts; a prompt chunk has many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first.
    pub start: usize,
    /// Number of rows, at least 1.
    pub len: usize,
    /// Tokens to sample from the last row: 0 while known tokens remain, otherwise 1, or the number of answers where the
    /// prompt of a request with several ends.
    pub samples: usize,
    /// Draft tokens ([`crate::DraftProposal`]) at the end of a decoding sequence's rows. The row before each draft verifies it:
    /// its sampled token counts, and the next row counts if the draft equals it.
    pub drafts: usize,
}

/// The bytes of `src` must be copied to `dst` in every layer before the step computes (copy-on-write).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// A shared block.
    pub src: BlockId,
    /// The private copy.
    pub dst: BlockId,
}

/// The bytes of `slot` must be copied to `block`, in the background if on disk. The engine reports the end to
/// [`crate::Scheduler::load_ended`]; until then `seq` computes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLoad {
    /// The sequence.
    pub seq: SeqId,
    /// Source.
    pub slot: TierSlot,
    /// Destination, a block of `seq`.
    pub block: BlockId,
}

/// The states after the first `after` tokens of a sequence, left in `slot` by a step that computes the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens.
    pub after: usize,
    /// Destination: read by no row of the step.
    pub slot: StateSlot,
}

impl StateWrite {
    /// Those of a step that rows of `seq` leave: they begin at `first`.
    pub(crate) fn of(states: &[StateWrite], seq: SeqId, first: usize) -> &[StateWrite] {
        if states.is_empty() {
            return states;
        }
        let states = states.get(first..).unwrap_or_default();
        &states[..states.iter().take_while(|save| save.seq == seq).count()]
    }
}

/// Why blocks are no longer pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnpinReason {
    /// The lease has ended.
    Lease,
    /// Another request needed a block, and no other was left.
    Blocks,
}

/// Pinned blocks that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinLost {
    /// The request.
    pub request: RequestId,
    /// The answer.
    pub answer: usize,
    /// Leading blocks that are still pinned.
    pub left: usize,
    /// Why the others are not.
    pub why: UnpinReason,
}

/// The plan of one forward pass. Its transfers come first, in field order: a loaded or copied block may replace a saved
/// one. They are due even if there are no rows or the computation fails. If a step is planned while another is in
/// flight, its transfers run after the other's rows, as on a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The step's id.
    pub id: StepId,
    /// Evicted contents to copy to the host tier.
    pub saves: Vec<BlockSave>,
    /// Host slots to write to disk in the background; report to [`crate::Scheduler::spill_ended`].
    pub spills: Vec<SlotSpill>,
    /// Contents to load.
    pub loads: Vec<BlockLoad>,
    /// Copies on write.
    pub copies: Vec<BlockCopy>,
    /// The last token of each decoding sequence, and drafts.
    pub decode: Vec<Rows>,
    /// A chunk of each prompt (also recompute after preemption).
    pub prefill: Vec<Rows>,
    /// States that the rows leave, in their order and of each by rising tokens: empty for models without states.
    pub states: Vec<StateWrite>,
    /// Sequences that were preempted; they wait to be loaded or recomputed.
    pub preempted: Vec<SeqId>,
    /// Pinned blocks lost ([`crate::Scheduler::pin`]).
    pub lost: Vec<PinLost>,
    /// Requests that are expected again, because prompt blocks are missing that are never computed here
    /// ([`crate::Scheduler::set_remote_only_prefill`]).
    pub needs_prefill: Vec<RequestId>,
}

impl Step {
    /// Whether there are no rows to compute.
    pub fn is_empty(&self) -> bool {
        self.decode.is_empty() && self.prefill.is_empty()
    }

    /// Empties it, keeping its buffers.
    pub(crate) fn clear(&mut self) {
        self.saves.clear();
        self.spills.clear();
        self.loads.clear();
        self.copies.clear();
        self.decode.clear();
        self.prefill.clear();
        self.states.clear();
        self.preempted.clear();
        self.lost.clear();
        self.needs_prefill.clear();
    }

    /// All rows in plan order: each sequence at most once.
    pub fn rows(&self) -> impl Iterator<Item = Rows> {
        self.decode.iter().chain(&self.prefill).copied()
    }

    /// Rows of the forward pass.
    pub fn num_rows(&self) -> usize {
        self.rows().map(|rows| rows.len).sum()
    }
}

/// A sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowOutput {
    /// The sequence of the row.
    pub seq: SeqId,
    /// Its next token; of a row with several samples, one answer's.
    pub token: TokenId,
}

/// Steal time: compute threads were runnable while the machine ran others, such as neighbours or a hypervisor. Zero
/// where it cannot be measured; the time then counts as the requests' own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StealTime {
    /// Between the end of the previous step and this plan.
    pub before: Nanos,
    /// During the step: the middle of what it can have been.
    pub during: Nanos,
    /// By how much `during` may be wrong: what the kernel's counters leave open. Never more than `during`.
    pub uncertain: Nanos,
}

impl StealTime {
    /// Whether it is at most a fiftieth of a step that took so long, whatever is uncertain.
    pub fn is_nothing(&self, took: Nanos) -> bool {
        self.during.0.saturating_add(self.uncertain.0).saturating_mul(50) <= took.0
    }
}

/// Experts that a step read because they were not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertReads {
    /// Experts, over all layers.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The part of the step's time in which nothing was computed for that.
    pub took: Nanos,
}

impl ExpertReads {
    /// Adds another step's.
    pub fn add(&mut self, other: ExpertReads) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.took.0 += other.took.0;
    }
}

/// The results of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutput {
    /// The step.
    pub step: StepId,
    /// Per [`Rows`] of the plan `samples` tokens, adjacent and in answer order; with drafts, the accepted tokens and
    /// the next, 1 to `drafts + 1`. Sequences in any order.
    pub rows: Vec<RowOutput>,
    /// Requests with rows that could not be computed or gave no finite logits. They end here, as by
    /// [`crate::Scheduler::abort`], and the record has no samples for their rows. Other requests are not affected.
    pub failed: Vec<RequestId>,
    /// Steal time.
    pub stolen: StealTime,
    /// Experts read.
    pub experts: ExpertReads,
    /// How long it waited for the steps of another model.
    pub other_model: Nanos,
}

/// An event for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenEvent {
    /// The answer's next token.
    Token {
        /// The request.
        request: RequestId,
        /// Which answer, `0..num_answers`.
        answer: usize,
        /// The token.
        token: TokenId,
    },
    /// The answer is complete; no event of it follows.
    Finished {
        /// The request.
        request: RequestId,
        /// The answer.
        answer: usize,
        /// Why.
        reason: FinishReason,
    },
}

/// Why the head of the queue did not enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// Not enough free KV blocks.
    Kv,
    /// Every seat is taken.
    Seats,
    /// The step's rows, prompts or time went to others.
    Budget,
}

/// Why a step verified no drafts, although some were proposed ([`crate::DraftProposal`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoDraftReason {
    /// One more row would exceed the running streams' targets.
    Time,
    /// The step has no rows left.
    Rows,
    /// The row would need a block that another sequence will need.
    Blocks,
    /// The acceptance probability is too low: token rate would not rise.
    Chance,
}

impl NoDraftReason {
    /// All of them.
    pub const ALL: [NoDraftReason; 4] =
        [NoDraftReason::Time, NoDraftReason::Rows, NoDraftReason::Blocks, NoDraftReason::Chance];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            NoDraftReason::Time => "time",
            NoDraftReason::Rows => "rows",
            NoDraftReason::Blocks => "blocks",
            NoDraftReason::Chance => "chance",
        }
    }
}

/// The rows of one sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRow {
    /// The request.
    pub request: RequestId,
    /// The sequence.
    pub seq: SeqId,
    /// The answer.
    pub answer: usize,
    /// Position of the first row: tokens computed before.
    pub start: usize,
    /// Rows, at least 1: for decode 1 plus drafts.
    pub len: usize,
    /// Sampled tokens: as [`Rows::samples`], 0 if the row failed. With drafts, after completion: 1 plus the accepted
    /// drafts.
    pub samples: usize,
    /// Draft rows, as [`Rows::drafts`].
    pub drafts: usize,
    /// Prefix-hit tokens, in the sequence's first row since it got its blocks, else 0.
    pub cached_tokens: usize,
}

impl RecordRow {
    /// First position and number of rows.
    pub fn span(&self) -> (usize, usize) {
        (self.start, self.len)
    }
}

/// A holder of the seats or blocks that the head of the queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The request; one with several answers has several entries.
    pub request: RequestId,
    /// Seats, or parts of blocks: only the ratio to the sum matters.
    pub held: u64,
}

/// A preempted sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempted {
    /// The request.
    pub request: RequestId,
    /// Its computed tokens.
    pub tokens: usize,
    /// Swap or recompute, and why.
    pub decision: SwapDecision,
}

/// The log entry of a step. Written by the scheduler; the engine adds measured times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// The step.
    pub step: StepId,
    /// When it was planned.
    pub scheduled_at: Nanos,
    /// When the machine was free for it: when it was planned, or when the previous step completed.
    pub began_at: Nanos,
    /// When its output arrived.
    pub completed_at: Nanos,
    /// Decode rows.
    pub decode: Vec<RecordRow>,
    /// Prefill rows.
    pub prefill: Vec<RecordRow>,
    /// What the prompts that begin here found in the prefix cache, and why no more.
    pub misses: Vec<CacheMiss>,
    /// Preempted sequences.
    pub preempted: Vec<Preempted>,
    /// Prefill rows of tokens that were computed before.
    pub recomputed_rows: usize,
    /// Blocks copied from the pool to the host tier.
    pub saved_blocks: usize,
    /// Host slots whose write to disk began.
    pub spilled_blocks: usize,
    /// Blocks whose load from the host tier, and from disk, began.
    pub loaded_blocks: [usize; 2],
    /// Part of the step's time spent on saves and loads.
    pub transfers_took: Nanos,
    /// Part of the step's time spent on the drafter's forward passes, predicted and measured; zero for free drafters.
    pub drafting: Nanos,
    /// See [`drafting`](Self::drafting).
    pub drafting_took: Nanos,
    /// Blocks copied on write.
    pub copied_blocks: usize,
    /// Blocks allocated.
    pub taken_blocks: usize,
    /// Cached blocks evicted by allocation.
    pub evicted_blocks: usize,
    /// Blocks referenced by sequences after planning.
    pub used_blocks: usize,
    /// Waiting requests after planning.
    pub waiting_requests: usize,
    /// Uncomputed tokens of all waiting requests.
    pub waiting_tokens: usize,
    /// Why requests wait; `None` if none waits.
    pub blocked: Option<Blocked>,
    /// If `blocked` is blocks or seats: their holders after planning.
    pub holders: Vec<Holder>,
    /// Why no draft is verified; `None` if one is, or none was proposed.
    pub no_drafts: Option<NoDraftReason>,
    /// The step's work.
    pub work: Work,
    /// Predicted time, drafting included; zero without a cost model.
    pub predicted: Nanos,
    /// Steal time before and during the step.
    pub stolen: StealTime,
    /// How long it waited, before it began, for the steps of another model on the same cores.
    pub other_model: Nanos,
    /// Experts read during the step. The cost model learns their time as part of the step's: the next step reads some too.
    pub experts: ExpertReads,
}

impl StepRecord {
    /// Frees what of its buffers is more than four times what it holds. Their room stays a power of two: of other sizes
    /// the heap would be full of holes that fit nothing.
    pub fn trim(&mut self) {
        fn trim<T>(buffer: &mut Vec<T>) {
            let room = buffer.len().next_power_of_two().max(4);
            if buffer.capacity() > 2 * room {
                buffer.shrink_to(room);
            }
        }
        trim(&mut self.decode);
        trim(&mut self.prefill);
        trim(&mut self.misses);
        trim(&mut self.preempted);
        trim(&mut self.holders);
    }

    /// Empties it, keeping its buffers.
    pub(crate) fn clear(&mut self) {
        self.decode.clear();
        self.prefill.clear();
        self.misses.clear();
        self.preempted.clear();
        self.holders.clear();
        self.completed_at = Nanos::default();
        self.blocked = None;
        self.no_drafts = None;
        self.recomputed_rows = 0;
        self.transfers_took = Nanos::default();
        (self.drafting, self.drafting_took) = (Nanos::default(), Nanos::default());
        self.work = Work::default();
        self.predicted = Nanos::default();
        self.stolen = StealTime::default();
        self.experts = ExpertReads::default();
        self.other_model = Nanos::default();
    }

    /// Sets the number of tokens of a row with drafts. `from`: search start, advanced to the row.
    pub(crate) fn note_drawn(&mut self, from: &mut usize, seq: SeqId, tokens: usize) {
        let behind = self.decode[*from..].iter().position(|row| row.seq == seq && row.drafts > 0);
        *from += behind.expect("the step's rows are in the log in their order");
        self.decode[*from].samples = tokens;
    }

    /// Zeroes the samples of a request's failed rows.
    pub(crate) fn note_failed(&mut self, request: RequestId) {
        let rows = self.decode.iter_mut().chain(&mut self.prefill);
        rows.filter(|row| row.request == request).for_each(|row| row.samples = 0);
    }

    /// Rows whose logits were computed: of prompts, and of decode.
    pub fn logit_rows(&self) -> [usize; 2] {
        [self.prefill.iter().filter(|row| row.samples > 0).count(), self.decode.iter().map(|row| row.len).sum()]
    }

    /// Tokens from decode rows: one each, and the accepted drafts.
    pub fn decode_tokens(&self) -> usize {
        self.decode.iter().map(|row| row.samples).sum()
    }

    /// Time from `began_at` to the output.
    pub fn took(&self) -> Nanos {
        self.completed_at.since(self.began_at)
    }

    /// That without steal time.
    pub fn undisturbed(&self) -> Nanos {
        self.took().since(self.stolen.during)
    }

    /// What it would have taken without steal time: at least, and at most.
    pub fn undisturbed_within(&self) -> [Nanos; 2] {
        let StealTime { during, uncertain, .. } = self.stolen;
        [self.took().since(during).since(uncertain), self.took().since(during.since(uncertain))]
    }

    /// Whether the time that it took is its own: next to none was stolen.
    pub fn is_undisturbed(&self) -> bool {
        self.stolen.is_nothing(self.took())
    }

    /// What it says of its own time, without transfers and drafting, to a model that predicts this: the same, if steal time
    /// leaves that open, and else the nearest time that it does not exclude.
    pub fn computing_like(&self, predicted: Nanos) -> Nanos {
        let [least, most] =
            self.undisturbed_within().map(|own| own.since(self.transfers_took).since(self.drafting_took));
        predicted.clamp(least, most)
    }
}
