//! One answer in the making: its tokens, how many of them are in the cache, and where.
//!
//! ```text
//! tokens        [ p p p p p p p p | g g g ]     prompt, then generated
//! num_computed    ----------->                  keys and values of these are in the cache
//! block table   [ 7   | 4   | 9   ]             where; always reaches past num_computed
//! ```
//!
//! One rule makes all progress: `num_computed` catches up with `num_tokens`. A chunked prompt, a prefix hit, recompute
//! after preemption and decode are the same rule at different distances.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::draft::{Offer, Tries};
use crate::kv::{BlockHash, BlockTable, ChainHasher, ContentName, blocks_for};
use crate::{BlockId, FinishReason, Limits, Nanos, Priority, Request, RequestId, TokenId};

/// Names a sequence; never used twice. A request with one answer has one sequence; with several, the first carries the
/// prompt and the others are forked from it when the prompt is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    place: u32,
    use_count: u32,
}

/// What a sequence's next rows are for. Derived from its lengths, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Known tokens are to be computed: a prompt, or recompute after preemption.
    Prefill,
    /// The only uncomputed token is the one just sampled.
    Decode,
}

/// A sequence's place in its tenant's line, smallest first: class, then arrival, then answer. Kept through preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: Priority,
    pub(crate) arrival: u64,
    pub(crate) answer: usize,
}

impl Rank {
    /// Before all others.
    pub(crate) const FIRST: Rank = Rank { priority: Priority(i32::MIN), arrival: 0, answer: 0 };
}

/// Where a sequence is. Exactly one, and only these moves: `Expecting -> Waiting <-> Running -> Leaving`, and out of
/// any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Its prompt is being computed elsewhere ([`crate::Scheduler::expect`]). In no queue, and holds no block.
    Expecting,
    /// In the queue. Holds no block.
    Waiting,
    /// Holds a block for each of its known tokens.
    Running,
    /// Cancelled or stopped while a step in flight or loads still write its blocks; freed when they have ended.
    Leaving,
}

/// What a sequence holds of the blocks at the beginning of its table that others read too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) blocks: usize,
    /// In the unit of [`crate::holders`].
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
    /// Answers to fork when the prompt is done. Their seats are taken from the start.
    pub(crate) num_forks: usize,
    /// Times that it lost its blocks.
    pub(crate) num_preemptions: u32,
    /// Prompt rows that its tenant was charged for.
    pub(crate) num_prompt_rows_served: usize,
    /// Whether the full blocks of its prompt are computed elsewhere and never here (`given.rs`).
    pub(crate) prompt_is_given: bool,
    /// Steps in a row in which its decode row was left out for others' targets.
    pub(crate) steps_left_out: u32,
    /// When its first and its last token came.
    pub(crate) first_token_at: Nanos,
    pub(crate) last_token_at: Nanos,
    /// Rows in a step in flight: in one at most.
    pub(crate) rows_in_flight: usize,
    /// How many of these are drafts, and what offered them.
    pub(crate) drafts_in_flight: usize,
    pub(crate) offer: Option<Offer>,
    /// How often drafts held.
    pub(crate) tries: Tries,
    /// Loads that write its blocks: until they have ended it computes nothing, though `num_computed` counts them.
    pub(crate) loads_in_flight: usize,
    /// The first block whose load failed.
    pub(crate) first_lost: Option<usize>,
    /// Whether it is known what its first prefix hits were worth.
    pub(crate) has_entered: bool,
    /// Prefix hits since it got its blocks that no row has reported yet.
    pub(crate) cached_tokens: usize,
    /// What it held of blocks that others hold too, when that was last counted.
    pub(crate) shared: Shared,
    /// The most tokens that it ever had computed: rows below that are recompute.
    pub(crate) most_computed: usize,
    /// Where the output of the step that completes has its tokens.
    pub(crate) output_row: Option<usize>,
    /// Hashes of its full blocks, as far as somebody asked.
    chain: Vec<BlockHash>,
    /// How many of its blocks the prefix cache has heard of, and the last one's name there.
    num_registered: usize,
    last_registered: Option<ContentName>,
}

impl Sequence {
    /// Of all answers of `request`, waiting.
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
            prompt_is_given: false,
            steps_left_out: 0,
            first_token_at: Nanos::default(),
            last_token_at: Nanos::default(),
            rows_in_flight: 0,
            drafts_in_flight: 0,
            offer: None,
            tries: Tries::default(),
            loads_in_flight: 0,
            first_lost: None,
            has_entered: false,
            cached_tokens: 0,
            shared: Shared::default(),
            most_computed: 0,
            output_row: None,
            chain: Vec::new(),
            num_registered: 0,
            last_registered: None,
            request,
        }
    }

    /// Its name.
    pub fn id(&self) -> SeqId {
        self.id
    }

    /// Of an answer of which these tokens were generated before, by `now`: as a victim of a preemption is, that had
    /// computed all that it could, and that was neither ahead of its target nor behind. The prompt is paid for.
    pub(crate) fn knowing(mut self, generated: &[TokenId], now: Nanos) -> Sequence {
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

    /// What was asked.
    pub fn request(&self) -> &Arc<Request> {
        &self.request
    }

    /// Whose answer this is.
    pub fn request_id(&self) -> RequestId {
        self.request.id
    }

    /// Which answer of the request, `0..num_answers`.
    pub fn answer(&self) -> usize {
        self.rank.answer
    }

    /// All known tokens: the prompt, then what was generated.
    pub fn tokens(&self) -> &[TokenId] {
        if self.tokens.is_empty() { &self.request.prompt } else { &self.tokens }
    }

    /// Known tokens.
    pub fn num_tokens(&self) -> usize {
        self.tokens().len()
    }

    /// Tokens of the prompt.
    pub fn num_prompt_tokens(&self) -> usize {
        self.request.prompt.len()
    }

    /// What guesses are on offer for the next plan, or are being checked.
    pub fn offer(&self) -> Option<Offer> {
        self.offer
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

    /// Tokens until its answer ends, if nothing ends it earlier.
    pub(crate) fn tokens_to_go(&self, limits: &Limits) -> usize {
        Course::of(&self.request, limits.max_model_len).num_tokens - self.num_tokens()
    }

    /// What its next rows are for.
    pub fn phase(&self) -> Phase {
        if self.num_generated() > 0 && self.num_uncomputed() == 1 { Phase::Decode } else { Phase::Prefill }
    }

    /// Its blocks in order.
    pub fn block_table(&self) -> &[BlockId] {
        &self.table
    }

    /// The place of position `position` in the cache: `block * block_size + offset`.
    pub fn slot(&self, position: usize) -> usize {
        self.table.slot(position)
    }

    /// Times that it lost its blocks to make room.
    pub fn num_preemptions(&self) -> u32 {
        self.num_preemptions
    }

    /// Whether its blocks are still being loaded.
    pub fn is_loading(&self) -> bool {
        self.loads_in_flight > 0
    }

    /// Whether a step in flight has rows of it.
    pub fn is_in_flight(&self) -> bool {
        self.rows_in_flight > 0
    }

    /// Whether its blocks are being written: then it has no further rows, and keeps them.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_in_flight() || self.is_loading()
    }

    /// Whether its prompt is being computed elsewhere: see [`crate::Scheduler::expect`].
    pub fn is_expecting(&self) -> bool {
        self.status == Status::Expecting
    }

    /// Seats of a step that it occupies while it runs: its own, and one for each answer still to be forked.
    pub(crate) fn num_seats(&self) -> usize {
        1 + self.num_forks
    }

    /// What is to be sampled once every known token is computed.
    pub(crate) fn num_samples(&self) -> usize {
        if self.request.stop.max_tokens == 0 { 0 } else { self.num_seats() }
    }

    /// Sizes its vectors for its whole course, so that no later token allocates.
    pub(crate) fn make_ready(&mut self, max_model_len: usize) {
        let course = Course::of(&self.request, max_model_len);
        let blocks = course.blocks(self.table.block_size());
        self.tokens.reserve_exact(course.num_tokens - self.tokens.len());
        if self.tokens.is_empty() {
            self.tokens.extend_from_slice(&self.request.prompt);
        }
        self.table.reserve(blocks);
        self.chain.reserve_exact(blocks.saturating_sub(self.chain.len()));
    }

    /// Adds a token sampled at `now`; says whether the answer ends with it.
    pub(crate) fn push(&mut self, token: TokenId, max_model_len: usize, now: Nanos) -> Option<FinishReason> {
        if self.num_generated() == 0 {
            self.first_token_at = now;
        }
        self.last_token_at = now;
        let room = max_model_len - self.num_prompt_tokens();
        let ended = self.request.stop.end(token, self.num_generated(), room);
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
        fork.most_computed = self.most_computed;
        fork.num_preemptions = self.num_preemptions;
        fork.num_prompt_rows_served = self.num_prompt_rows_served;
        self.table.iter().for_each(|&block| fork.table.push(block));
        fork.chain.extend_from_slice(&self.chain);
        fork.num_registered = self.num_registered;
        fork.last_registered = self.last_registered;
        fork
    }

    /// Back to where it was before it ran, but with all it knows: tokens and hashes stay. The table is empty already.
    pub(crate) fn rewind(&mut self) {
        assert!(self.table.is_empty(), "its blocks are released first");
        self.status = Status::Waiting;
        self.num_computed = 0;
        self.cached_tokens = 0;
        self.shared = Shared::default();
        self.first_lost = None;
        self.num_registered = 0;
        self.last_registered = None;
    }

    /// Full blocks that a prefix hit may bring: all but the last token at most, because the last one's row is what the
    /// next token is sampled from. Where the prompt is given, what comes behind it is computed here and nowhere else.
    pub(crate) fn num_blocks_to_look_up(&self) -> usize {
        if self.prompt_is_given { self.num_given_blocks() } else { (self.num_tokens() - 1) / self.table.block_size() }
    }

    /// Blocks that have to be found, because they are never computed here: the full ones of a given prompt.
    pub(crate) fn num_given_blocks(&self) -> usize {
        if self.prompt_is_given { (self.num_prompt_tokens() - 1) / self.table.block_size() } else { 0 }
    }

    /// Full blocks that the prefix cache may learn of. Behind a given prompt are those that nobody may take for one.
    pub(crate) fn num_blocks_to_register(&self) -> usize {
        let full = self.num_computed / self.table.block_size();
        if self.prompt_is_given { full.min(self.num_given_blocks()) } else { full }
    }

    /// Hash and tokens of full block `index`. Hashes are kept: a sequence that waits for room asks at every step.
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

    /// How many of its blocks the prefix cache has heard of, and the last one's name there.
    pub(crate) fn registered(&self) -> (usize, Option<ContentName>) {
        (self.num_registered, self.last_registered)
    }

    /// See [`Sequence::registered`].
    pub(crate) fn set_registered(&mut self, count: usize, last: Option<ContentName>) {
        (self.num_registered, self.last_registered) = (count, last);
    }
}

/// The longest that one answer can become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    num_prompt_tokens: usize,
    /// Prompt and answer.
    pub(crate) num_tokens: usize,
}

impl Course {
    pub(crate) fn of(request: &Request, max_model_len: usize) -> Course {
        Course::new(request.prompt.len(), request.stop.max_tokens, max_model_len)
    }

    pub(crate) fn new(num_prompt_tokens: usize, max_tokens: usize, max_model_len: usize) -> Course {
        let num_tokens = num_prompt_tokens.saturating_add(max_tokens).min(max_model_len);
        Course { num_prompt_tokens, num_tokens: num_tokens.max(num_prompt_tokens) }
    }

    /// Tokens that are ever computed: the last one sampled is not.
    fn num_slots(&self) -> usize {
        (self.num_tokens - 1).max(self.num_prompt_tokens)
    }

    /// Blocks of one answer.
    pub(crate) fn blocks(&self, block_size: usize) -> usize {
        blocks_for(self.num_slots(), block_size)
    }

    /// Blocks of `num_answers` answers that share the prompt's full blocks; its partial last block is copied for each.
    pub(crate) fn blocks_of_answers(&self, num_answers: usize, block_size: usize) -> usize {
        let blocks = self.blocks(block_size);
        if num_answers == 1 || self.num_slots() == self.num_prompt_tokens {
            return blocks;
        }
        let shared = self.num_prompt_tokens / block_size;
        num_answers.saturating_mul(blocks - shared).saturating_add(shared)
    }
}

/// All sequences, by name. A vacated place is used again under a new name.
#[derive(Default)]
pub(crate) struct Sequences {
    places: Vec<(u32, Option<Sequence>)>,
    vacant: Vec<u32>,
}

impl Sequences {
    /// A name for a sequence about to be inserted.
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

    /// All of them.
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
