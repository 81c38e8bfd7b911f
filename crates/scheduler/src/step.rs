//! The plan of one forward pass, what came of it, and what it cost.
//!
//! ```text
//! Step        who runs: rows of sequences, a decoding one's (one row) and a prompt's (many)
//! StepOutput  the tokens that were sampled from them, and whose rows failed
//! StepRecord  the same with request ids and times: the one log that every view is made of
//! ```

use alloc::vec::Vec;

use crate::cost::Work;
use crate::{BlockId, BlockSave, FinishReason, Nanos, RequestId, SeqId, SlotSpill, SwapDecision, TierSlot, TokenId};

/// Names a step; consecutive from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub u64);

/// `len` consecutive tokens of one sequence, from position `start`, computed in one step: a decode row is its last
/// token (`len` and `samples` are 1), perhaps with drafts of the next ones behind it; a chunk of a prompt has many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Whose tokens.
    pub seq: SeqId,
    /// Position of the first.
    pub start: usize,
    /// How many, at least 1.
    pub len: usize,
    /// Tokens to sample from the last of them: 0 while known tokens remain, otherwise 1, or the number of answers when
    /// the prompt of a request with several ends here.
    pub samples: usize,
    /// Of a decoding sequence: the last so many rows are of guesses at its next tokens ([`crate::Offer`]). Each row from
    /// the one before them on gives a token, as long as the guess behind the row is that token.
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

/// The bytes of `slot` must be copied to `block`, in the background if they are on disk. The engine says with
/// [`crate::Scheduler::load_ended`] what came of it; until then `seq` computes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLoad {
    /// Whose prefix it is.
    pub seq: SeqId,
    /// Read from.
    pub slot: TierSlot,
    /// A block of `seq`.
    pub block: BlockId,
}

/// Why kept blocks are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptEnd {
    /// The lease has ended.
    Lease,
    /// Somebody needed a block, and no other was left.
    Blocks,
}

/// Kept blocks are not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLost {
    /// Whose.
    pub request: RequestId,
    /// Which answer's.
    pub answer: usize,
    /// So many of its first blocks are still kept.
    pub left: usize,
    /// Why the others are not.
    pub why: KeptEnd,
}

/// The plan of one forward pass. Its transfers come first, in the order of the fields: what is loaded or copied may go
/// to a block that is saved. They are owed even if there is nothing to compute, or if the computation fails. Where a
/// step is planned while another is in flight, its transfers come after that one's rows were computed, as on a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub id: StepId,
    /// Contents that leave the pool.
    pub saves: Vec<BlockSave>,
    /// Host slots to write to disk, in the background. [`crate::Scheduler::spill_ended`] says what came of it.
    pub spills: Vec<SlotSpill>,
    /// Contents that come back.
    pub loads: Vec<BlockLoad>,
    /// Copies on write.
    pub copies: Vec<BlockCopy>,
    /// Of decoding sequences: the last token of each.
    pub decode: Vec<Rows>,
    /// Of prompts: a chunk of each (also recompute after preemption).
    pub prefill: Vec<Rows>,
    /// Sequences that lost their blocks to make room; they wait, and are loaded or computed again.
    pub preempted: Vec<SeqId>,
    /// What is not kept any more of finished answers ([`crate::Scheduler::keep`]).
    pub lost: Vec<KeptLost>,
    /// Requests that are expected again, because blocks of their prompts are neither here nor ever computed here
    /// ([`crate::Scheduler::set_prompts_given`]).
    pub lacking: Vec<RequestId>,
}

impl Step {
    /// Nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.decode.is_empty() && self.prefill.is_empty()
    }

    /// Empties it and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.saves.clear();
        self.spills.clear();
        self.loads.clear();
        self.copies.clear();
        self.decode.clear();
        self.prefill.clear();
        self.preempted.clear();
        self.lost.clear();
        self.lacking.clear();
    }

    /// All of it in the order of the plan: each sequence at most once.
    pub fn rows(&self) -> impl Iterator<Item = Rows> {
        self.decode.iter().chain(&self.prefill).copied()
    }

    /// Token rows of the forward pass.
    pub fn num_rows(&self) -> usize {
        self.rows().map(|rows| rows.len).sum()
    }
}

/// A token that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowOutput {
    /// The sequence of the row.
    pub seq: SeqId,
    /// Its next token; of a row with several samples, that of one answer.
    pub token: TokenId,
}

/// Time in which threads that compute were ready to run and the machine ran others: busy neighbours, a hypervisor.
/// Whoever measures it says no more than what passed; where nobody can, it is zero, and that time is the requests' own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stolen {
    /// Of the time between the end of the step before and this one's plan.
    pub before: Nanos,
    /// Of the step's own time.
    pub during: Nanos,
}

/// What came of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutput {
    /// The step it belongs to.
    pub step: StepId,
    /// As many for each [`Rows`] of the plan as its `samples`, next to each other in the order of answers; with drafts
    /// the run of tokens that was drawn, from 1 to one more than its drafts. Sequences in any order.
    pub rows: Vec<RowOutput>,
    /// Requests with rows that could not be computed, or gave no numbers. They end here, as by
    /// [`crate::Scheduler::abort`], and the step's record says that nothing was sampled from their rows. Others' stand.
    pub failed: Vec<RequestId>,
    /// What the machine took of its time.
    pub stolen: Stolen,
}

/// What a client may learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The answer's next token.
    Token {
        /// Whose.
        request: RequestId,
        /// Which answer, `0..num_answers`.
        answer: usize,
        /// The token.
        token: TokenId,
    },
    /// The answer is complete; no event of it follows.
    Finished {
        /// Whose.
        request: RequestId,
        /// Which answer.
        answer: usize,
        /// Why.
        reason: FinishReason,
    },
}

/// What kept the first in line from entering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// Not enough free KV blocks.
    Kv,
    /// Every seat is taken.
    Seats,
    /// The step's rows, prompts or time were spent on others.
    Budget,
}

/// Why a step checked no guesses ([`crate::Offer`]), although some were offered for what it decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoDrafts {
    /// A row more would take longer than the running streams' targets allow.
    Time,
    /// Prompts and the streams' own rows are as many as a step may have.
    Rows,
    /// The row would need a block that somebody else will need.
    Blocks,
    /// They hold too rarely for what they cost: tokens would come no faster.
    Chance,
}

impl NoDrafts {
    /// All of them.
    pub const ALL: [NoDrafts; 4] = [NoDrafts::Time, NoDrafts::Rows, NoDrafts::Blocks, NoDrafts::Chance];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            NoDrafts::Time => "time",
            NoDrafts::Rows => "rows",
            NoDrafts::Blocks => "blocks",
            NoDrafts::Chance => "chance",
        }
    }
}

/// What one sequence had in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRow {
    /// Whose rows.
    pub request: RequestId,
    /// Which sequence of the request.
    pub seq: SeqId,
    /// Which answer it is.
    pub answer: usize,
    /// Position of the first row: tokens already in the cache.
    pub start: usize,
    /// Rows, at least 1: for decode 1 and the drafts.
    pub len: usize,
    /// Tokens sampled from them: as [`Rows::samples`], and 0 where the row failed. With drafts, once the step is
    /// complete, how many came: one, and as many as held.
    pub samples: usize,
    /// Guesses among the rows: as [`Rows::drafts`].
    pub drafts: usize,
    /// Prompt tokens found in the prefix cache, in the sequence's first row since it got its blocks, else 0.
    pub cached_tokens: usize,
}

/// One that holds what the first in line waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whose sequence; of a request with several answers there are several.
    pub request: RequestId,
    /// Seats, or parts of blocks: what matters is the share of all.
    pub held: u64,
}

/// Who gave up its blocks in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempted {
    /// Whose.
    pub request: RequestId,
    /// Computed tokens in these blocks.
    pub tokens: usize,
    /// What becomes of them, and why.
    pub decision: SwapDecision,
}

/// What a step was and what it cost. Written by the scheduler; the engine adds the measured times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// The step.
    pub step: StepId,
    /// When the plan was asked for.
    pub scheduled_at: Nanos,
    /// When the machine was free for it: when it was planned, or when the step before it completed.
    pub began_at: Nanos,
    /// When its output came back.
    pub completed_at: Nanos,
    /// Rows of decode.
    pub decode: Vec<RecordRow>,
    /// Rows of prefill.
    pub prefill: Vec<RecordRow>,
    /// Who was preempted.
    pub preempted: Vec<Preempted>,
    /// Rows of prefill for tokens that were computed before.
    pub recomputed_rows: usize,
    /// Blocks copied from the pool to the host tier.
    pub saved_blocks: usize,
    /// Host slots whose write to disk began.
    pub spilled_blocks: usize,
    /// Blocks whose load from the host tier, and from disk, began.
    pub loaded_blocks: [usize; 2],
    /// Of the step's time, what its saves and loads took.
    pub transfers_took: Nanos,
    /// Of the step's time, what the passes of a drafter took, as predicted and as measured; zero where guesses are free.
    pub drafting: Nanos,
    /// See [`drafting`](Self::drafting).
    pub drafting_took: Nanos,
    /// Blocks copied on write.
    pub copied_blocks: usize,
    /// Blocks newly taken from the pool.
    pub taken_blocks: usize,
    /// Cached blocks that lost their content to be taken.
    pub evicted_blocks: usize,
    /// Blocks referenced by sequences after planning.
    pub used_blocks: usize,
    /// Requests waiting after planning, and their uncomputed tokens.
    pub waiting_requests: usize,
    /// Uncomputed tokens of all waiting requests.
    pub waiting_tokens: usize,
    /// Why those that wait do; `None` if nobody does.
    pub blocked: Option<Blocked>,
    /// Where that is blocks or seats: who holds them after planning.
    pub holders: Vec<Holder>,
    /// Why no guess is checked; `None` if one is, or none was offered.
    pub no_drafts: Option<NoDrafts>,
    /// What the step had to do.
    pub work: Work,
    /// How long the cost model said that it would take, guesses included; zero without one.
    pub predicted: Nanos,
    /// What the machine took of its time, and of the time before it.
    pub stolen: Stolen,
}

impl StepRecord {
    /// Empties it and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.decode.clear();
        self.prefill.clear();
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
        self.stolen = Stolen::default();
    }

    /// Of rows with drafts so many tokens came. `from`: where in the log the ones before were found.
    pub(crate) fn note_drawn(&mut self, from: &mut usize, seq: SeqId, tokens: usize) {
        let behind = self.decode[*from..].iter().position(|row| row.seq == seq && row.drafts > 0);
        *from += behind.expect("the step's rows are in the log in their order");
        self.decode[*from].samples = tokens;
    }

    /// A request's rows failed: nothing was sampled from them.
    pub(crate) fn note_failed(&mut self, request: RequestId) {
        let rows = self.decode.iter_mut().chain(&mut self.prefill);
        rows.filter(|row| row.request == request).for_each(|row| row.samples = 0);
    }

    /// Rows whose logits were computed: of prompts, and of decoding sequences.
    pub fn logit_rows(&self) -> [usize; 2] {
        [self.prefill.iter().filter(|row| row.samples > 0).count(), self.decode.iter().map(|row| row.len).sum()]
    }

    /// Tokens that came of decoding sequences: one each, and the drafts that held.
    pub fn decode_tokens(&self) -> usize {
        self.decode.iter().map(|row| row.samples).sum()
    }

    /// How long it took, from when the machine was free for it to its output.
    pub fn took(&self) -> Nanos {
        self.completed_at.since(self.began_at)
    }

    /// How long it would have taken had the machine run nothing else meanwhile.
    pub fn undisturbed(&self) -> Nanos {
        self.took().since(self.stolen.during)
    }

    /// Of that, what its rows took: what the cost model speaks of.
    pub fn computing(&self) -> Nanos {
        self.undisturbed().since(self.transfers_took).since(self.drafting_took)
    }
}
