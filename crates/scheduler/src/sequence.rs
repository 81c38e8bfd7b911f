//! One answer: its tokens, how many are computed, and the blocks of their keys and values.
//!
//! ```text
//! tokens        [ p p p p p p p p | g g g ]     prompt, then generated
//! num_computed    ----------->                  keys and values of these are in the cache
//! block table   [ 7   | 4   | 9   ]             where; always reaches past num_computed
//! ```
//!
//! One rule drives all progress: `num_computed` catches up with `num_tokens`. Chunked prefill, prefix hits, recompute
//! after preemption and decode are the same rule at different distances.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::draft::{AcceptanceCounts, DraftProposal};
use crate::kv::{BlockHash, BlockTable, ChainHasher, ContentName, blocks_for};
use crate::request::finish_reason;
use crate::{BlockId, CacheMiss, Limits, Request, StateSlot};
use protocol::{FinishReason, Nanos, Priority, RequestId, TokenId};

/// Identifies a sequence; never reused. A request has one sequence per answer: the first carries the prompt, and the
/// others are forked from it when the prompt is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    place: u32,
    use_count: u32,
}

/// The phase of a sequence's next rows. Derived from its lengths, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Known tokens are to be computed: a prompt, or recompute after preemption.
    Prefill,
    /// The only uncomputed token is the one just sampled.
    Decode,
}

/// A sequence's order within its tenant, smallest first: class, arrival, answer. Kept through preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: Priority,
    pub(crate) arrival: u64,
    pub(crate) answer: usize,
}

impl Rank {
    pub(crate) const FIRST: Rank = Rank { priority: Priority(i32::MIN), arrival: 0, answer: 0 };
}

/// The state of a sequence. Transitions: `RemotePrefill -> Waiting <-> Running -> Leaving`, and removal from any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Its prompt is being computed elsewhere ([`crate::Scheduler::admit_remote`]). In no queue, and holds no block.
    RemotePrefill,
    /// In the queue. Holds no block.
    Waiting,
    /// Holds a block for each of its known tokens.
    Running,
    /// Cancelled or stopped while a step in flight or loads write its blocks; removed when they have ended.
    Leaving,
}

/// The shared blocks at the beginning of a table, and the sequence's part of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) blocks: usize,
    /// In the unit of [`crate::blocking_holders`].
    pub(crate) parts: u64,
}

/// Progress of one answer.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) request: Arc<Request>,
    pub(crate) rank: Rank,
    pub(crate) status: Status,
    /// Empty until the first run, unless it has generated elsewhere; see [`Sequence::tokens`].
    tokens: Vec<TokenId>,
    pub(crate) num_computed: usize,
    pub(crate) table: BlockTable,
    /// Answers to fork when the prompt is done. They occupy seats from admission on.
    pub(crate) num_forks: usize,
    pub(crate) num_preemptions: u32,
    /// Prompt rows already charged to its tenant.
    pub(crate) num_prompt_rows_served: usize,
    /// Whether the prompt's full blocks are computed on another worker and never here (`remote_only_prefill.rs`).
    pub(crate) prompt_is_remote: bool,
    /// Consecutive steps in which its decode row was left out for others' targets.
    pub(crate) steps_left_out: u32,
    /// Times of its first and last token.
    pub(crate) first_token_at: Nanos,
    pub(crate) last_token_at: Nanos,
    /// The states after its computed tokens, of models that have any. Nothing is computed: none.
    pub(crate) state: Option<StateSlot>,
    /// Where in the step in flight the states begin that its rows leave.
    pub(crate) first_left_state: usize,
    /// Tokens to the end of the blocks that its lookup found: a checkpoint there would have served it, and is made when
    /// it is computed again.
    pub(crate) branch: usize,
    /// Its newest checkpoint within the answer, if the next one takes its place.
    pub(crate) passing_checkpoint: Option<ContentName>,
    /// Rows in a step in flight; it is in at most one.
    pub(crate) rows_in_flight: usize,
    /// Drafts among these, and the proposal that they are from.
    pub(crate) drafts_in_flight: usize,
    pub(crate) proposal: Option<DraftProposal>,
    /// Acceptance counts of this sequence.
    pub(crate) acceptance: AcceptanceCounts,
    /// Pending loads into its blocks. Until they end it computes nothing, though `num_computed` counts them.
    pub(crate) loads_in_flight: usize,
    /// The first block whose load failed.
    pub(crate) first_lost: Option<usize>,
    /// Whether its first prefix lookup has been counted in the statistics.
    pub(crate) has_entered: bool,
    /// Prefix-hit tokens that no row has reported yet.
    pub(crate) cached_tokens: usize,
    /// Mean time after which its conversation came back so far; zero: it never did.
    pub(crate) gap: Nanos,
    /// Why no more was found, until a row has reported it.
    pub(crate) miss: Option<CacheMiss>,
    /// Its shared blocks at the last count.
    pub(crate) shared: Shared,
    /// Maximum of `num_computed` so far: rows below it are recompute.
    pub(crate) most_computed: usize,
    /// Index of its tokens in the output of the step being completed.
    pub(crate) output_row: Option<usize>,
    /// Hashes of its full blocks, computed on demand.
    chain: Vec<BlockHash>,
    /// Number of its blocks registered in the prefix cache, and the last one's name.
    num_registered: usize,
    last_registered: Option<ContentName>,
}

impl Sequence {
    /// The waiting sequence of all answers of `request`.
    pub(crate) fn new(id: SeqId, request: Arc<Request>, rank: Rank, block_size: usize) -> Sequence {
        Sequence {
            id,
            rank,
            status: Status::Waiting,
            tokens: Vec::new(),
            num_computed: 0,
            table: BlockTable::new(block_size),
            num_forks: request.num_answers - 1,
            num_preemptions: 0,
            num_prompt_rows_served: 0,
            prompt_is_remote: false,
            steps_left_out: 0,
            first_token_at: Nanos::default(),
            last_token_at: Nanos::default(),
            state: None,
            first_left_state: 0,
            branch: 0,
            passing_checkpoint: None,
            rows_in_flight: 0,
            drafts_in_flight: 0,
            proposal: None,
            acceptance: AcceptanceCounts::default(),
            loads_in_flight: 0,
            first_lost: None,
            has_entered: false,
            cached_tokens: 0,
            gap: Nanos(0),
            miss: None,
            shared: Shared::default(),
            most_computed: 0,
            output_row: None,
            chain: Vec::new(),
            num_registered: 0,
            last_registered: None,
            request,
        }
    }

    /// Its id.
    pub fn id(&self) -> SeqId {
        self.id
    }

    /// Adds tokens that another worker generated by `now`, as after a preemption: everything was computed before, the
    /// stream is exactly on target, and the prompt is charged.
    pub(crate) fn with_generated(mut self, generated: &[TokenId], now: Nanos) -> Sequence {
        self.num_forks = 0;
        self.num_prompt_rows_served = self.num_prompt_tokens();
        if !generated.is_empty() {
            self.tokens.reserve_exact(self.num_prompt_tokens() + generated.len());
            self.tokens.extend_from_slice(&self.request.prompt);
            self.tokens.extend_from_slice(generated);
            self.most_computed = self.tokens.len() - 1;
            let gaps = generated.len() as u64 - 1;
            let took = self.request.targets.tpot.map_or(0, |tpot| tpot.0.saturating_mul(gaps));
            (self.first_token_at, self.last_token_at) = (Nanos(now.0.saturating_sub(took)), now);
        }
        self
    }

    /// The request.
    pub fn request(&self) -> &Arc<Request> {
        &self.request
    }

    /// The request's id.
    pub fn request_id(&self) -> RequestId {
        self.request.id
    }

    /// Index of the answer, `0..num_answers`.
    pub fn answer(&self) -> usize {
        self.rank.answer
    }

    /// All known tokens: the prompt, then what was generated.
    pub fn tokens(&self) -> &[TokenId] {
        if self.tokens.is_empty() { &self.request.prompt } else { &self.tokens }
    }

    /// Number of known tokens.
    pub fn num_tokens(&self) -> usize {
        self.tokens().len()
    }

    /// Prompt length.
    pub fn num_prompt_tokens(&self) -> usize {
        self.request.prompt.len()
    }

    /// The draft proposal for the next plan, or the one being verified.
    pub fn proposal(&self) -> Option<DraftProposal> {
        self.proposal
    }

    /// Tokens generated so far.
    pub fn num_generated(&self) -> usize {
        self.num_tokens() - self.num_prompt_tokens()
    }

    /// Tokens whose keys and values are in the cache.
    pub fn num_computed(&self) -> usize {
        self.num_computed
    }

    /// Known tokens that are not in the cache yet: at least 1.
    pub fn num_uncomputed(&self) -> usize {
        self.num_tokens() - self.num_computed
    }

    /// Tokens until its answer ends at the latest.
    pub(crate) fn tokens_to_go(&self, limits: &Limits) -> usize {
        SequenceBounds::of(&self.request, limits.max_model_len).num_tokens - self.num_tokens()
    }

    /// The phase of its next rows.
    pub fn phase(&self) -> Phase {
        if self.num_generated() > 0 && self.num_uncomputed() == 1 { Phase::Decode } else { Phase::Prefill }
    }

    /// Its blocks, in order.
    pub fn block_table(&self) -> &[BlockId] {
        &self.table
    }

    /// KV slot of `position`: `block * block_size + offset`.
    pub fn slot(&self, position: usize) -> usize {
        self.table.slot(position)
    }

    /// The slot of the states after its computed tokens: `None` where nothing is computed, or the model has no states.
    pub fn state(&self) -> Option<StateSlot> {
        self.state
    }

    /// Times preempted.
    pub fn num_preemptions(&self) -> u32 {
        self.num_preemptions
    }

    /// Whether blocks are being loaded.
    pub fn is_loading(&self) -> bool {
        self.loads_in_flight > 0
    }

    /// Whether a step in flight has rows of it.
    pub fn is_in_flight(&self) -> bool {
        self.rows_in_flight > 0
    }

    /// Whether its blocks are being written: then it gets no rows and keeps its blocks.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_in_flight() || self.is_loading()
    }

    /// Whether its prompt is being computed on another worker: see [`crate::Scheduler::admit_remote`].
    pub fn is_in_remote_prefill(&self) -> bool {
        self.status == Status::RemotePrefill
    }

    /// Seats that it occupies while running: its own, and one per answer still to be forked.
    pub(crate) fn num_seats(&self) -> usize {
        1 + self.num_forks
    }

    /// Tokens to sample once every known token is computed.
    pub(crate) fn num_samples(&self) -> usize {
        if self.request.stop.max_tokens == 0 { 0 } else { self.num_seats() }
    }

    /// Reserves memory for its maximum length, so that later tokens do not allocate.
    pub(crate) fn make_ready(&mut self, max_model_len: usize) {
        let bounds = SequenceBounds::of(&self.request, max_model_len);
        let blocks = bounds.blocks(self.table.block_size());
        self.tokens.reserve_exact(bounds.num_tokens - self.tokens.len());
        if self.tokens.is_empty() {
            self.tokens.extend_from_slice(&self.request.prompt);
        }
        self.table.reserve(blocks);
        self.chain.reserve_exact(blocks.saturating_sub(self.chain.len()));
    }

    /// Appends a token sampled at `now`; returns why the answer ends, if it does.
    pub(crate) fn push(&mut self, token: TokenId, max_model_len: usize, now: Nanos) -> Option<FinishReason> {
        if self.num_generated() == 0 {
            self.first_token_at = now;
        }
        self.last_token_at = now;
        let room = max_model_len - self.num_prompt_tokens();
        let ended = finish_reason(&self.request.stop, token, self.num_generated(), room);
        self.tokens.push(token);
        ended
    }

    /// A copy that shares all blocks, for another answer. The caller counts the references.
    pub(crate) fn fork(&self, id: SeqId, answer: usize, max_model_len: usize) -> Sequence {
        let mut fork = Sequence::new(id, self.request.clone(), Rank { answer, ..self.rank }, self.table.block_size());
        fork.make_ready(max_model_len);
        fork.status = Status::Running;
        fork.num_forks = 0;
        fork.has_entered = true;
        fork.num_computed = self.num_computed;
        fork.state = self.state;
        fork.most_computed = self.most_computed;
        fork.num_preemptions = self.num_preemptions;
        fork.num_prompt_rows_served = self.num_prompt_rows_served;
        self.table.iter().for_each(|&block| fork.table.push(block));
        fork.chain.extend_from_slice(&self.chain);
        fork.num_registered = self.num_registered;
        fork.last_registered = self.last_registered;
        fork
    }

    /// Returns to the waiting state; tokens and hashes stay. The table must be empty.
    pub(crate) fn rewind(&mut self) {
        assert!(self.table.is_empty() && self.state.is_none(), "its blocks and states are released first");
        self.status = Status::Waiting;
        self.num_computed = 0;
        self.cached_tokens = 0;
        self.shared = Shared::default();
        self.first_lost = None;
        self.branch = 0;
        self.passing_checkpoint = None;
        self.num_registered = 0;
        self.last_registered = None;
    }

    /// Full blocks that a prefix lookup may return: at most all but the one with the last token, whose row must be
    /// computed to sample the next. With a remote-only prompt, only its blocks: the rest is always computed here.
    pub(crate) fn num_blocks_to_look_up(&self) -> usize {
        if self.prompt_is_remote { self.num_remote_blocks() } else { (self.num_tokens() - 1) / self.table.block_size() }
    }

    /// Blocks that must be found because they are never computed here: the full ones of a remote-only prompt.
    pub(crate) fn num_remote_blocks(&self) -> usize {
        if self.prompt_is_remote { (self.num_prompt_tokens() - 1) / self.table.block_size() } else { 0 }
    }

    /// Full blocks to register in the prefix cache. Those behind a remote-only prompt must not be mistaken for a
    /// prompt's.
    pub(crate) fn num_blocks_to_register(&self) -> usize {
        let full = self.num_computed / self.table.block_size();
        if self.prompt_is_remote { full.min(self.num_remote_blocks()) } else { full }
    }

    /// Hash and tokens of full block `index`. Hashes are kept because a waiting sequence looks them up at every step.
    pub(crate) fn content(&mut self, index: usize, hasher: &ChainHasher) -> (BlockHash, &[TokenId]) {
        let block_size = self.table.block_size();
        let tokens: &[TokenId] = if self.tokens.is_empty() { &self.request.prompt } else { &self.tokens };
        while self.chain.len() <= index {
            let block = self.chain.len();
            let parent = self.chain.last().copied().unwrap_or(BlockHash::ROOT);
            self.chain.push(hasher.hash(parent, self.request.salt, &tokens[block * block_size..][..block_size]));
        }
        (self.chain[index], &tokens[index * block_size..][..block_size])
    }

    /// Number of blocks registered in the prefix cache, and the last one's name.
    pub(crate) fn registered(&self) -> (usize, Option<ContentName>) {
        (self.num_registered, self.last_registered)
    }

    /// See [`Sequence::registered`].
    pub(crate) fn set_registered(&mut self, count: usize, last: Option<ContentName>) {
        (self.num_registered, self.last_registered) = (count, last);
    }
}

/// Maximum length of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceBounds {
    num_prompt_tokens: usize,
    /// Prompt and answer.
    pub(crate) num_tokens: usize,
}

impl SequenceBounds {
    pub(crate) fn of(request: &Request, max_model_len: usize) -> SequenceBounds {
        SequenceBounds::new(request.prompt.len(), request.stop.max_tokens, max_model_len)
    }

    pub(crate) fn new(num_prompt_tokens: usize, max_tokens: usize, max_model_len: usize) -> SequenceBounds {
        let num_tokens = num_prompt_tokens.saturating_add(max_tokens).min(max_model_len);
        SequenceBounds { num_prompt_tokens, num_tokens: num_tokens.max(num_prompt_tokens) }
    }

    /// Tokens that are ever computed: the last sampled one is not.
    fn num_slots(&self) -> usize {
        (self.num_tokens - 1).max(self.num_prompt_tokens)
    }

    /// Blocks of one answer.
    pub(crate) fn blocks(&self, block_size: usize) -> usize {
        blocks_for(self.num_slots(), block_size)
    }

    /// Blocks of `num_answers` answers that share the prompt's full blocks; the partial last one is copied for each.
    pub(crate) fn blocks_of_answers(&self, num_answers: usize, block_size: usize) -> usize {
        let blocks = self.blocks(block_size);
        if num_answers == 1 || self.num_slots() == self.num_prompt_tokens {
            return blocks;
        }
        let shared = self.num_prompt_tokens / block_size;
        num_answers.saturating_mul(blocks - shared).saturating_add(shared)
    }
}

/// All sequences, by id. A vacated place is reused under a new id.
#[derive(Default)]
pub(crate) struct Sequences {
    places: Vec<(u32, Option<Sequence>)>,
    vacant: Vec<u32>,
}

impl Sequences {
    /// The id of the next sequence to be inserted.
    pub(crate) fn next_id(&mut self) -> SeqId {
        let place = match self.vacant.last() {
            Some(&place) => place,
            None => {
                let place = u32::try_from(self.places.len()).expect("the queue is bounded");
                self.places.push((0, None));
                self.vacant.push(place);
                place
            }
        };
        SeqId { place, use_count: self.places[place as usize].0 }
    }

    pub(crate) fn insert(&mut self, seq: Sequence) -> SeqId {
        let id = seq.id;
        assert!(self.vacant.pop() == Some(id.place), "the name is the one given out last");
        self.places[id.place as usize].1 = Some(seq);
        id
    }

    pub(crate) fn remove(&mut self, id: SeqId) -> Sequence {
        let (use_count, seq) = &mut self.places[id.place as usize];
        assert_eq!(*use_count, id.use_count, "removing a sequence that is gone");
        *use_count += 1;
        self.vacant.push(id.place);
        seq.take().expect("its name is current")
    }

    pub(crate) fn get(&self, id: SeqId) -> Option<&Sequence> {
        let (use_count, seq) = self.places.get(id.place as usize)?;
        seq.as_ref().filter(|_| *use_count == id.use_count)
    }

    pub(crate) fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        let (use_count, seq) = self.places.get_mut(id.place as usize)?;
        seq.as_mut().filter(|_| *use_count == id.use_count)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.places.iter().filter_map(|(_, seq)| seq.as_ref())
    }
}

impl Index<SeqId> for Sequences {
    type Output = Sequence;

    fn index(&self, id: SeqId) -> &Sequence {
        self.get(id).expect("the scheduler names only sequences it has")
    }
}

impl IndexMut<SeqId> for Sequences {
    fn index_mut(&mut self, id: SeqId) -> &mut Sequence {
        self.get_mut(id).expect("the scheduler names only sequences it has")
    }
}
