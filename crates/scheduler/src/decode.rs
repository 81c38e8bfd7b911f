//! Who gets the next token, and whom to preempt when blocks run out.
//!
//! ```text
//! running, in rank order    A      B      C      D        one row each, if each has a slot for its token
//! blocks needed now         0      1      1      0
//! free blocks               1 ---> B                      C is short: somebody ranked after C gives up all blocks,
//!                                                         else C does. Nobody is preempted for one ranked after it.
//! ```
//!
//! Every decoding sequence gets a row in every step: one row is cheap, and a person is watching each of those tokens
//! (decode-first mixed steps: Sarathi-Serve, Agrawal et al., OSDI 2024).
//!
//! A victim keeps its tokens, gives up its blocks, and waits at its old rank. Full blocks stay in the prefix cache, from
//! where they go to a tier if there is one ([`crate::swap`]); the rest is recomputed (Kwon et al., SOSP 2023). The victim
//! is of the tenant that was served most ([`crate::fairness`]), of its lowest class, and there it is the one that loses
//! least for the blocks it frees: tokens, of which those that a tier keeps count as
//! little as moving them costs. A sequence that lost its blocks [`MAX_PREEMPTIONS`] times is let in again only
//! with room for its whole course set aside, and is then never a victim: so preemptions are bounded, and somebody
//! always runs to the end.

use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::fairness::{Shares, Turn};
use crate::kv::{BlockId, BlockPool};
use crate::planted::{Bug, planted};
use crate::sequence::{Course, Phase, Rank, Sequence, Sequences, State};
use crate::{BlockLoad, Limits, Priority, SeqId};

/// After so many preemptions a sequence runs with its whole course set aside.
pub(crate) const MAX_PREEMPTIONS: u32 = 4;

/// The sequences that hold blocks, in rank order.
pub(crate) type Running = Vec<(Rank, SeqId)>;

/// What must happen before every decoding sequence has a slot for its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Nothing. At most one sequence sits this step out: it is short, and all that are ranked after it are protected or
    /// being loaded, or none is and somebody who left holds blocks until a load has ended. It keeps its blocks; they run
    /// to their end without it, or are victims once they are loaded; and what is held for those who left comes back.
    Enough { stalled: Option<SeqId> },
    /// This one gives up its blocks; then ask again.
    Preempt(SeqId),
}

/// One decision: see [`Room`]. Changes nothing.
/// `swap_weight`: what a token in a tier counts as lost, in parts of [`WHOLE`].
pub(crate) fn room_for_decode(
    running: &Running,
    seqs: &Sequences,
    pool: &BlockPool,
    loads: &[BlockLoad],
    shares: &Shares,
    limits: &Limits,
    swap_weight: usize,
) -> Room {
    let mut unreserved = pool.num_free() - reserved_blocks(running, seqs, pool, limits);
    let mut sharers = Sharers::default();
    for (index, &(_, id)) in running.iter().enumerate() {
        let seq = &seqs[id];
        if seq.phase() != Phase::Decode || is_protected(seq) || seq.is_loading() {
            continue;
        }
        let needed = sharers.blocks_to_write(seq, pool);
        if needed <= unreserved {
            unreserved -= needed;
            continue;
        }
        let behind = &running[index + 1..];
        if planted(Bug::OldestPreempted) {
            return Room::Preempt(running[0].1);
        }
        return match cheapest_victim(behind, seqs, pool, shares, swap_weight) {
            Some(victim) => Room::Preempt(victim),
            None if behind.is_empty() && !blocks_come_back(loads, seqs) => Room::Preempt(id),
            None => Room::Enough { stalled: Some(id) },
        };
    }
    Room::Enough { stalled: None }
}

/// Whether blocks are held for sequences that left while they were loaded: the last of the loads frees them.
fn blocks_come_back(loads: &[BlockLoad], seqs: &Sequences) -> bool {
    loads.iter().any(|load| seqs[load.seq].state == State::Leaving)
}

/// Whether a sequence may no longer be preempted.
pub(crate) fn is_protected(seq: &Sequence) -> bool {
    seq.num_preemptions >= MAX_PREEMPTIONS && !planted(Bug::PreemptedWithoutEnd)
}

/// Blocks that protected sequences may still take before they end: nobody else gets those.
pub(crate) fn reserved_blocks(running: &Running, seqs: &Sequences, pool: &BlockPool, limits: &Limits) -> usize {
    if planted(Bug::ReserveGivenAway) {
        return 0;
    }
    let mut sharers = Sharers::default();
    let protected = running.iter().map(|&(_, id)| &seqs[id]).filter(|seq| is_protected(seq));
    protected.map(|seq| blocks_to_end(seq, limits) - seq.table.len() + sharers.copies_to_write(seq, pool)).sum()
}

/// Blocks of a sequence's whole course, its forks included.
pub(crate) fn blocks_to_end(seq: &Sequence, limits: &Limits) -> usize {
    Course::of(&seq.request, limits.max_model_len).blocks_of_answers(seq.num_seats(), limits.block_size)
}

/// Counts copies-on-write before they happen. Of `r` answers that share a block, `r - 1` copy it and the last writes in
/// place; they are forked from one sequence, so their ranks are neighbours.
#[derive(Default)]
struct Sharers {
    block: Option<BlockId>,
    copies_left: usize,
}

impl Sharers {
    /// Blocks that the next token of `seq` takes from the pool: 0 or 1.
    fn blocks_to_write(&mut self, seq: &Sequence, pool: &BlockPool) -> usize {
        let grows = seq.num_computed == seq.table.capacity();
        usize::from(grows) + self.copies_to_write(seq, pool)
    }

    /// 1 if the block of the next token is to be copied first.
    fn copies_to_write(&mut self, seq: &Sequence, pool: &BlockPool) -> usize {
        let Some(&block) = seq.table.get(seq.num_computed / seq.table.block_size()) else { return 0 };
        if self.block != Some(block) {
            *self = Sharers { block: Some(block), copies_left: pool.refs(block) - 1 };
        }
        let copies = self.copies_left.min(1);
        self.copies_left -= copies;
        copies
    }
}

/// The victim among `candidates` (in rank order): of the most served tenant, of its lowest class, the one that loses the
/// fewest computed tokens per block it frees; the youngest of equals.
fn cheapest_victim(
    candidates: &[(Rank, SeqId)],
    seqs: &Sequences,
    pool: &BlockPool,
    shares: &Shares,
    swap_weight: usize,
) -> Option<SeqId> {
    let can_go = |seq: &Sequence| !is_protected(seq) && !seq.is_loading();
    let mut best: Option<(Turn, Priority, Loss, SeqId)> = None;
    for &(rank, id) in candidates.iter().rev().filter(|(_, id)| can_go(&seqs[*id])) {
        let class = if planted(Bug::HigherClassPreempted) { Priority(0) } else { rank.priority };
        let (turn, loss) = (shares.turn(&seqs[id]), Loss::of(&seqs[id], pool, swap_weight));
        let is_better =
            |(most, lowest, least, _): (Turn, Priority, Loss, SeqId)| match (turn, class).cmp(&(most, lowest)) {
                Ordering::Equal => loss.is_less_than(least),
                order => order == Ordering::Greater,
            };
        if best.is_none_or(is_better) {
            best = Some((turn, class, loss, id));
        }
    }
    best.map(|(.., id)| id)
}

/// A token that is lost counts as so many parts.
pub(crate) const WHOLE: usize = 1024;

/// What a preemption throws away, and what it brings. Blocks that others share count on neither side: they stay.
#[derive(Clone, Copy)]
struct Loss {
    /// In parts of [`WHOLE`].
    lost_tokens: usize,
    freed_blocks: usize,
}

impl Loss {
    fn of(seq: &Sequence, pool: &BlockPool, swap_weight: usize) -> Loss {
        let block_size = seq.table.block_size();
        let mut loss = Loss { lost_tokens: 0, freed_blocks: 0 };
        for (index, &block) in seq.table.iter().enumerate() {
            if pool.refs(block) == 1 {
                loss.freed_blocks += 1;
                let weight = if pool.is_cached(block) { swap_weight } else { WHOLE };
                loss.lost_tokens += weight * seq.num_computed.saturating_sub(index * block_size).min(block_size);
            }
        }
        loss
    }

    /// Compares tokens per block; one that frees nothing is worse than any that frees something.
    fn is_less_than(self, other: Loss) -> bool {
        match (self.freed_blocks, other.freed_blocks) {
            (0, _) => false,
            (_, 0) => true,
            (mine, others) => self.lost_tokens * others < other.lost_tokens * mine,
        }
    }
}
