//! Blocks that outlive their answer, because another worker will come for them; and blocks that are read from outside.
//!
//! ```text
//!                  keep(request, lease)      the answer ends
//! a prompt runs ------------------------> .. ---------------> kept [ 7 | 4 | 9 ]   until release, the lease's end,
//!    |                                                          |                  or until somebody lacks blocks
//!    +-- begin_read(request, answer, index) <-------------------+
//!          pinned block -- read_ended
//!
//! the pool's order of taking   [ plain | cached ]  [ kept: the longest kept answer first, and of it the end ]
//! ```
//!
//! Keeping is an order and not a hold: kept blocks are free, counted as free by every decision, and taken last. So
//! keeping never stops anybody, and no decision has to know of it. An answer that loses a block keeps those before it;
//! what was lost is in the plan that took it ([`KeptLost`]). A block that is being read is not free, as one that is
//! being loaded is not: whoever waits for it goes on when the read has ended.
//!
//! Only full, computed blocks are kept and read: nobody ever writes them again.

use alloc::vec::Vec;

use crate::sequence::Sequence;
use crate::state::State;
use crate::step::{KeptEnd, KeptLost};
use crate::{BlockId, BlockRead, CacheEvent, KeptAnswer, Nanos, RequestId, Scheduler, SeqId, Step};

impl Scheduler {
    /// When an answer of `request` ends by itself, its full blocks are kept for so long from then on; not when it is
    /// aborted or stopped. False if there is no such unfinished request.
    pub fn keep(&mut self, request: RequestId, lease: Nanos) -> bool {
        let active = self.state.requests.get_mut(&request);
        active.map(|active| active.keep = Some(lease)).is_some()
    }

    /// The lease of what is kept of `request` ends then instead: later while somebody is connected, sooner when he is
    /// gone. False if nothing of it is kept.
    pub fn keep_until(&mut self, request: RequestId, until: Nanos) -> bool {
        let kept = self.state.kept.iter_mut().filter(|kept| kept.request == request);
        kept.map(|kept| kept.until = until).count() > 0
    }

    /// What is kept of `request` becomes what any finished request leaves: prefixes that the cache has. False if
    /// nothing is kept. Blocks that are being read stay until that has ended.
    pub fn release(&mut self, request: RequestId) -> bool {
        let before = self.state.kept.len();
        let pool = &mut self.state.pool;
        self.state.kept.retain(|kept| {
            let stays = kept.request != request;
            kept.blocks.iter().rev().filter(|_| !stays).for_each(|&block| pool.let_go(block));
            stays
        });
        self.state.kept.len() < before
    }

    /// What is kept, the longest kept first.
    pub fn kept(&self) -> impl Iterator<Item = &KeptAnswer> {
        self.state.kept.iter()
    }

    /// From now on it is noted what the prefix cache finds and finds no more: for routers that send a prompt where its
    /// prefix is.
    pub fn note_cache_events(&mut self) {
        self.state.pool.begin_notes();
    }

    /// What was noted since the last call, in its order. Nothing unless [`Scheduler::note_cache_events`] was called.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.state.pool.take_notes()
    }

    /// Blocks that are kept and held by nobody: free, and taken last.
    pub fn kept_blocks(&self) -> usize {
        self.state.pool.num_kept()
    }

    /// When the next lease ends, in the plan that is made then.
    pub fn next_lease_end(&self) -> Option<Nanos> {
        self.state.kept.iter().map(|kept| kept.until).min()
    }

    /// The full, computed blocks of an answer that runs or is kept: block `i` has its tokens from `i * block_size` on.
    /// None while it waits, or while blocks of it are being loaded. Of several answers the first has those of the
    /// prompt.
    pub fn full_blocks(&self, request: RequestId, answer: usize) -> &[BlockId] {
        let kept = self.state.kept.iter().find(|kept| (kept.request, kept.answer) == (request, answer));
        if let Some(kept) = kept {
            return &kept.blocks;
        }
        let active = self.state.requests.get(&request);
        let seq = active.and_then(|active| *active.answers.get(answer)?).map(|seq| &self.state.seqs[seq]);
        match seq {
            Some(seq) if !seq.is_loading() => full_blocks(seq),
            _ => &[],
        }
    }

    /// Somebody begins to read one of [`Scheduler::full_blocks`]. Until [`Scheduler::read_ended`] it stays what it is,
    /// whatever becomes of its request. `None` if there is no such block, or if it is set aside for one that may not be
    /// preempted: it may be there later, or be lost.
    #[must_use = "a block is pinned until the read has ended"]
    pub fn begin_read(&mut self, request: RequestId, answer: usize, index: usize) -> Option<BlockRead> {
        let block = *self.full_blocks(request, answer).get(index)?;
        let state = &mut self.state;
        if state.pool.is_free(block) && state.pool.num_free() <= state.reserved_blocks() {
            return None;
        }
        state.pool.pin(block);
        let read = BlockRead { request, answer, index, block };
        state.reads.push(read);
        Some(read)
    }

    /// A read has ended. Panics if it had not begun.
    pub fn read_ended(&mut self, read: BlockRead) {
        let place = self.state.reads.iter().position(|other| *other == read).expect("a read ends once");
        self.state.reads.swap_remove(place);
        self.state.pool.unpin(read.block);
    }

    /// Blocks that are being read.
    pub fn reads(&self) -> &[BlockRead] {
        &self.state.reads
    }
}

fn full_blocks(seq: &Sequence) -> &[BlockId] {
    &seq.table[..seq.num_computed() / seq.table.block_size()]
}

/// The moves.
impl State {
    /// An answer ends by itself: what it has is kept, if somebody asked for that.
    pub(crate) fn keep_blocks(&mut self, id: SeqId, now: Nanos) {
        let seq = &self.seqs[id];
        let Some(lease) = self.requests.get(&seq.request.id).and_then(|active| active.keep) else { return };
        let blocks = full_blocks(seq).to_vec();
        if !blocks.is_empty() {
            blocks.iter().for_each(|&block| self.pool.keep(block));
            let until = Nanos(now.0.saturating_add(lease.0));
            self.kept.push(KeptAnswer { request: seq.request.id, answer: seq.answer(), until, blocks });
        }
    }

    /// Leases that have ended by `now`.
    pub(crate) fn end_leases(&mut self, now: Nanos, step: &mut Step) {
        let pool = &mut self.pool;
        self.kept.retain(|kept| {
            let stays = kept.until > now;
            if !stays {
                kept.blocks.iter().rev().for_each(|&block| pool.let_go(block));
                step.lost.push(KeptLost { request: kept.request, answer: kept.answer, left: 0, why: KeptEnd::Lease });
            }
            stays
        });
    }

    /// Blocks were taken from some that are kept: what is behind them is of no use there.
    pub(crate) fn cut_kept(&mut self, step: &mut Step) {
        let pool = &mut self.pool;
        self.kept.retain_mut(|kept| {
            let Some(left) = kept.blocks.iter().position(|&block| pool.keeps(block) == 0) else { return true };
            for block in kept.blocks.drain(left..).rev() {
                if pool.keeps(block) > 0 {
                    pool.let_go(block);
                }
            }
            step.lost.push(KeptLost { request: kept.request, answer: kept.answer, left, why: KeptEnd::Blocks });
            left > 0
        });
    }

    /// Whether somebody reads blocks that will be free when that has ended.
    pub(crate) fn reads_will_free(&self) -> bool {
        self.reads.iter().any(|read| self.pool.refs(read.block) == 0)
    }
}
