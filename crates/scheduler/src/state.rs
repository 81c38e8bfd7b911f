//! The state between two calls: requests, sequences, queue, running set and blocks.
//!
//! ```text
//!  add               enter                         return_to_queue
//! -----> queue --------------> running ------------------------------> queue, at its old rank
//!   |      ^     all its blocks           its blocks are released
//!   v      | queue_expected
//! expecting: in no queue, and counted like those that wait for their first step
//! ```
//!
//! State transitions and counts are here; `prefill.rs` and `decode.rs` decide on them and add the queries of their
//! phase to [`State`].

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::fairness::TenantCounters;
use crate::kv::{
    BlockPool, BlockRead, ChainHasher, FullBlock, Hit, Location, PinnedAnswer, PrefixStats, Taker, blocks_for,
};
use crate::queue::Queue;
use crate::sequence::{Rank, Sequence, Sequences, Status};
use crate::swap::PreemptedBlocks;
use crate::{BlockId, BlockLoad, Limits, Request, SeqId, StateWrite};
use protocol::{Nanos, RequestId, TokenId};

/// The sequences that hold blocks, in rank order.
pub(crate) type Running = Vec<(Rank, SeqId)>;

/// A request that is not finished.
pub(crate) struct Active {
    pub(crate) tenant: u64,
    /// The sequence of each answer: none before its fork and after its end.
    pub(crate) answers: Vec<Option<SeqId>>,
    num_unfinished: usize,
    pub(crate) prompt_tokens: usize,
    /// Whether it ever held blocks here: until then it counts in the queue limits.
    pub(crate) has_run: bool,
    /// How long blocks stay pinned after an answer ends.
    pub(crate) pin_lease: Option<Nanos>,
}

/// All state that decisions read. See the module's picture.
pub(crate) struct State {
    pub(crate) limits: Limits,
    pub(crate) hasher: ChainHasher,
    pub(crate) pool: BlockPool,
    pub(crate) seqs: Sequences,
    pub(crate) requests: BTreeMap<RequestId, Active>,
    pub(crate) queue: Queue,
    /// Requests that never ran, and their prompt tokens: the queue limits apply to these.
    pub(crate) num_new: usize,
    pub(crate) num_new_tokens: usize,
    pub(crate) running: Running,
    pub(crate) tenants: TenantCounters,
    /// Loads that have not ended.
    pub(crate) loads: Vec<BlockLoad>,
    /// Pinned finished answers, in the order of their ends.
    pub(crate) pinned: Vec<PinnedAnswer>,
    /// Blocks that are being read from outside.
    pub(crate) reads: Vec<BlockRead>,
    pub(crate) prefix_stats: PrefixStats,
    /// [`BlockPool::num_sharings`] when shared blocks were last counted.
    pub(crate) sharings_seen: Option<u64>,
    /// Whether full blocks of prompts are computed on another worker and never here.
    pub(crate) remote_only_prefill: bool,
    next_arrival: u64,
}

impl State {
    /// An empty scheduler with all blocks free.
    pub(crate) fn new(limits: Limits) -> State {
        State {
            hasher: ChainHasher::new(limits.hash_key),
            pool: BlockPool::new(limits.num_blocks, limits.block_size, limits.states.map_or(0, |states| states.slots)),
            seqs: Sequences::default(),
            requests: BTreeMap::new(),
            queue: Queue::default(),
            num_new: 0,
            num_new_tokens: 0,
            running: Vec::with_capacity(limits.max_num_seqs),
            tenants: TenantCounters::default(),
            loads: Vec::new(),
            pinned: Vec::new(),
            reads: Vec::new(),
            prefix_stats: PrefixStats::default(),
            sharings_seen: None,
            remote_only_prefill: false,
            next_arrival: 0,
            limits,
        }
    }

    /// Running sequences, in rank order.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().map(|&(_, id)| &self.seqs[id])
    }

    /// Seats that running sequences occupy.
    pub(crate) fn seats_taken(&self) -> usize {
        self.running().map(Sequence::num_seats).sum()
    }

    /// Adds an admitted request to the queue, or as expected.
    pub(crate) fn add(&mut self, request: Request, status: Status) {
        let rank = Rank { priority: request.priority, arrival: self.next_arrival, answer: 0 };
        self.next_arrival += 1;
        let (id, tenant, num_answers) = (request.id, request.tenant, request.num_answers);
        self.tenants.join(tenant);
        self.num_new += 1;
        self.num_new_tokens += request.prompt.len();
        let mut answers = vec![None; num_answers];
        let (num_unfinished, prompt_tokens) = (num_answers, request.prompt.len());
        let mut seq = Sequence::new(self.seqs.next_id(), Arc::new(request), rank, self.limits.block_size);
        seq.status = status;
        seq.prompt_is_remote = self.remote_only_prefill;
        if status == Status::Waiting {
            self.queue.insert(&seq);
        }
        answers[0] = Some(self.seqs.insert(seq));
        let active = Active { tenant, answers, num_unfinished, prompt_tokens, has_run: false, pin_lease: None };
        self.requests.insert(id, active);
    }

    /// Queues an expected request at its original place, with the `generated` tokens of each unfinished answer. Without
    /// a token, its answers are forked when the prompt is done.
    pub(crate) fn queue_expected(&mut self, id: RequestId, generated: &[Option<&[TokenId]>], now: Nanos) {
        let active = self.requests.get_mut(&id).expect("it is expected");
        let first = active.answers[0].take().expect("its one sequence is there");
        if generated.iter().all(|tokens| tokens.is_some_and(|tokens| tokens.is_empty())) {
            active.answers[0] = Some(first);
            self.seqs[first].status = Status::Waiting;
            return self.queue.insert(&self.seqs[first]);
        }
        let Sequence { request, rank, .. } = self.seqs.remove(first);
        active.num_unfinished = generated.iter().flatten().count();
        for (answer, tokens) in generated.iter().enumerate().filter_map(|(answer, tokens)| Some((answer, (*tokens)?))) {
            let (id, rank) = (self.seqs.next_id(), Rank { answer, ..rank });
            let mut seq = Sequence::new(id, request.clone(), rank, self.limits.block_size).with_generated(tokens, now);
            seq.prompt_is_remote = self.remote_only_prefill;
            self.queue.insert(&seq);
            active.answers[answer] = Some(self.seqs.insert(seq));
        }
    }

    /// Removes a request; no further events. `None` if there is no such request.
    pub(crate) fn remove_request(&mut self, id: RequestId) -> Option<Active> {
        let active = self.requests.remove(&id)?;
        self.tenants.leave(active.tenant);
        self.note_run(!active.has_run, active.prompt_tokens);
        Some(active)
    }

    /// A request leaves the queue limits: it runs for the first time, or is gone.
    fn note_run(&mut self, is_first: bool, prompt_tokens: usize) {
        if is_first {
            self.num_new -= 1;
            self.num_new_tokens -= prompt_tokens;
        }
    }

    /// Admits a waiting sequence that fits: allocates all its blocks, first those of its `hits`, then new ones. Hits in
    /// a tier are added to `loads`.
    pub(crate) fn enter(&mut self, id: SeqId, hits: &[Hit], loads: &mut Vec<BlockLoad>) {
        let seq = &mut self.seqs[id];
        self.queue.remove(seq);
        let active = self.requests.get_mut(&seq.request.id).expect("its request is active");
        let is_first = !core::mem::replace(&mut active.has_run, true);
        let prompt_tokens = active.prompt_tokens;
        self.note_run(is_first, prompt_tokens);
        let seq = &mut self.seqs[id];
        seq.make_ready(self.limits.max_model_len);
        // Hold the hits before allocation can evict them.
        for hit in hits {
            match hit.place {
                Location::Block(block) => self.pool.share(block),
                Location::Slot(slot) => self.pool.begin_load(slot),
            }
        }
        // So too the states that it goes on from.
        seq.state = hits.last().filter(|_| self.limits.states.is_some()).and_then(|hit| self.pool.state_of(hit.name));
        seq.state.into_iter().for_each(|slot| self.pool.share_state(slot));
        let loads_before = loads.len();
        for index in 0..blocks_for(seq.num_tokens(), self.limits.block_size) {
            let place = hits.get(index).map(|hit| hit.place);
            let block = match place {
                Some(Location::Block(block)) => block,
                _ => self.pool.take(Taker::of(&seq.request)).expect("it fits"),
            };
            if let Some(Location::Slot(slot)) = place {
                loads.push(BlockLoad { seq: id, slot, block });
            }
            seq.table.push(block);
        }
        self.loads.extend_from_slice(&loads[loads_before..]);
        seq.loads_in_flight = loads.len() - loads_before;
        seq.num_computed = hits.len() * self.limits.block_size;
        seq.cached_tokens = seq.num_computed;
        let in_pool = hits.iter().take_while(|hit| hit.block().is_some()).count();
        let last = in_pool.checked_sub(1).map(|last| hits[last].name);
        seq.set_registered(in_pool, last);
        seq.status = Status::Running;
        let is_loading = seq.is_loading();
        self.join_running(id);
        if !is_loading {
            self.note_prefix_stats(id);
        }
    }

    /// A sequence without blocks waits again at its old rank, with its tokens.
    pub(crate) fn return_to_queue(&mut self, id: SeqId) {
        self.seqs[id].rewind();
        self.queue.insert(&self.seqs[id]);
    }

    /// Blocks of a sequence that a tier could keep: full, cached, without other holders.
    pub(crate) fn preempted_blocks(&self, id: SeqId) -> PreemptedBlocks {
        let block_size = self.limits.block_size;
        let seq = &self.seqs[id];
        let mine = |&&block: &&BlockId| self.pool.refs(block) == 1 && self.pool.is_cached(block);
        let blocks = if self.pool.has_tiers() { seq.table.iter().filter(mine).count() } else { 0 };
        let full = seq.num_computed / block_size;
        let start = full.saturating_sub(blocks) * block_size;
        PreemptedBlocks { blocks, start, tokens: blocks * block_size, through_disk: self.pool.swaps_to_disk() }
    }

    /// Releases from the table's end, so that in eviction order a prefix outlives what follows it. `worth_saving`: blocks
    /// without other holders are worth a tier slot.
    pub(crate) fn release_blocks(&mut self, id: SeqId, worth_saving: bool) {
        self.release_state(id);
        let table = &mut self.seqs[id].table;
        while let Some(block) = table.pop() {
            if self.pool.refs(block) == 1 {
                self.pool.set_worth_saving(block, worth_saving);
            }
            self.pool.release(block);
        }
    }

    /// Truncates the table to `tokens` tokens: releases blocks taken for drafts.
    pub(crate) fn cut_table(&mut self, id: SeqId, tokens: usize) {
        let table = &mut self.seqs[id].table;
        while table.len() > blocks_for(tokens, self.limits.block_size) {
            self.pool.release(table.pop().expect("it was just counted"));
        }
    }

    /// Advances a sequence by `rows` computed tokens and registers its full blocks; `left`: the states of the step.
    pub(crate) fn note_computed(&mut self, id: SeqId, rows: usize, left: &[StateWrite]) {
        let seq = &mut self.seqs[id];
        seq.num_computed += rows;
        seq.most_computed = seq.most_computed.max(seq.num_computed);
        self.feed_prefix_cache(id, left);
    }

    /// Registers the blocks that have become full, now that their content is computed.
    pub(crate) fn feed_prefix_cache(&mut self, id: SeqId, left: &[StateWrite]) {
        let seq = &mut self.seqs[id];
        let (mut count, mut last) = seq.registered();
        let num_full = seq.num_blocks_to_register();
        if !(self.limits.enable_prefix_caching && seq.request.use_prefix_cache) || num_full == count {
            return;
        }
        let (salt, gap) = (seq.request.salt, seq.gap);
        while count < num_full && (count == 0 || last.is_some()) {
            let seq = &mut self.seqs[id];
            let block = seq.table[count];
            let (hash, tokens) = seq.content(count, &self.hasher);
            // A block behind a loaded one is cached already.
            let known = self.pool.name_of(block);
            last = known.or_else(|| self.pool.register(block, &FullBlock { hash, parent: last, salt, tokens }, gap));
            count += 1;
            if let Some(name) = last.filter(|_| !left.is_empty()) {
                self.keep_checkpoint(id, name, count * self.limits.block_size, left);
            }
        }
        self.seqs[id].set_registered(num_full, last);
    }

    /// Counts prefix hits once per sequence that was not forked, when its loads have ended.
    pub(crate) fn note_prefix_stats(&mut self, id: SeqId) {
        let seq = &mut self.seqs[id];
        let is_first = !core::mem::replace(&mut seq.has_entered, true);
        if is_first && self.limits.enable_prefix_caching && seq.request.use_prefix_cache {
            self.prefix_stats.queried_tokens += seq.num_tokens() as u64;
            self.prefix_stats.hit_tokens += seq.cached_tokens as u64;
        }
    }

    /// The prompt is done: forks one sequence per further answer, sharing every block.
    pub(crate) fn fork_answers(&mut self, id: SeqId) {
        let num_forks = core::mem::take(&mut self.seqs[id].num_forks);
        for answer in 1..=num_forks {
            let fork_id = self.seqs.next_id();
            let fork = self.seqs[id].fork(fork_id, answer, self.limits.max_model_len);
            fork.table.iter().for_each(|&block| self.pool.share(block));
            fork.state.into_iter().for_each(|slot| self.pool.share_state(slot));
            let active = self.requests.get_mut(&fork.request.id).expect("its request is active");
            active.answers[answer] = Some(self.seqs.insert(fork));
            self.join_running(fork_id);
        }
    }

    /// Ends an answer, and with the last one its request.
    pub(crate) fn finish_answer(&mut self, id: RequestId, answer: usize) {
        let active = self.requests.get_mut(&id).expect("its request is active");
        active.answers[answer] = None;
        active.num_unfinished -= 1;
        if active.num_unfinished == 0 {
            self.remove_request(id);
        }
    }

    fn join_running(&mut self, id: SeqId) {
        let rank = self.seqs[id].rank;
        let place = self.running.binary_search_by_key(&rank, |&(rank, _)| rank).expect_err("ranks differ");
        self.running.insert(place, (rank, id));
    }

    pub(crate) fn remove_from_running(&mut self, rank: Rank) {
        let place = self.running.binary_search_by_key(&rank, |&(rank, _)| rank).expect("it runs");
        self.running.remove(place);
    }
}
