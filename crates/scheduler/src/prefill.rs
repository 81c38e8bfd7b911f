//! Which prompts advance, and by how many tokens.
//!
//! ```text
//! rows of the step  [ decode rows | chunk of A | chunk of B |  ]
//!                                  <- at most max_prefill_chunk rows each, max_prefill_seqs of them ->
//! ```
//!
//! A prompt is computed in chunks that share the step with decode (Sarathi-Serve: Agrawal et al., OSDI 2024); a request
//! enters and leaves at any step (iteration-level scheduling, Orca: Yu et al., OSDI 2022). Both bounds matter: many
//! short prompts in one step stall decode as well as one long one.
//!
//! Prompts advance as tenants take turns ([`crate::fairness`]), within a tenant by class, then by arrival. A waiting
//! sequence enters only if it gets, at once, a block for *every* token it knows, and nobody enters past one that does not
//! fit: what waits holds nothing, so no two can wait for each other's blocks. Entering never preempts. While others run,
//! one more free block per growing sequence must remain, or the newcomer would soon be thrown out again for their growth.
//!
//! Nobody starves: after [`PATIENCE`] steps in which prompts advanced but the longest-waiting one did not, it goes first,
//! whatever its class and whoever's turn it is.

use crate::decode::{Running, blocks_to_end, is_protected, reserved_blocks};
use crate::kv::{BlockPool, Hit, blocks_for};
use crate::planted::{Bug, planted};
use crate::sequence::{Sequence, Sequences};
use crate::{BlockId, Limits, SeqId};

/// Steps that the oldest unfinished prompt may be passed over.
pub(crate) const PATIENCE: u32 = 16;

/// Rows for a prompt with `num_uncomputed` tokens to go.
pub(crate) fn chunk_len(num_uncomputed: usize, rows_left: usize, limits: &Limits) -> usize {
    let rows_left = if planted(Bug::ChunkExceedsStep) { usize::MAX } else { rows_left };
    num_uncomputed.min(rows_left).min(limits.max_prefill_chunk)
}

/// Whether there is a seat for each answer of a waiting sequence.
pub(crate) fn has_seats(seq: &Sequence, running: &Running, seqs: &Sequences, limits: &Limits) -> bool {
    seats_taken(running, seqs) + seq.num_seats() <= limits.max_num_seqs
}

/// Whether a waiting sequence can enter now: a block for each of its tokens beyond the prefix `hits` in the pool, and
/// what must remain free for those that run. Depends on what others hold, not on what they might free.
pub(crate) fn fits(
    seq: &Sequence,
    hits: &[Hit],
    running: &Running,
    seqs: &Sequences,
    pool: &BlockPool,
    limits: &Limits,
) -> bool {
    let in_pool = hits.iter().filter_map(Hit::block);
    let is_idle = |block: &BlockId| pool.refs(*block) == 0 && !planted(Bug::HitsCountedFree);
    let num_idle_hits = in_pool.clone().filter(is_idle).count();
    let not_for_it = num_idle_hits + reserved_blocks(running, seqs, pool, limits);
    let Some(room) = pool.num_free().checked_sub(not_for_it) else { return false };
    let num_blocks = blocks_for(seq.num_tokens(), limits.block_size);
    let needed = if is_protected(seq) {
        blocks_to_end(seq, limits)
    } else {
        let growing =
            |seq: &Sequence, num_blocks| usize::from(num_blocks < blocks_to_end(seq, limits)) * seq.num_seats();
        let others = running.iter().map(|&(_, id)| &seqs[id]).filter(|other| !is_protected(other));
        let headroom: usize = others.map(|other| growing(other, other.table.len())).sum();
        let headroom = if running.is_empty() { 0 } else { headroom + growing(seq, num_blocks) };
        num_blocks + headroom
    };
    needed - in_pool.count() <= room
}

/// Seats that the running sequences occupy.
pub(crate) fn seats_taken(running: &Running, seqs: &Sequences) -> usize {
    running.iter().map(|&(_, id)| seqs[id].num_seats()).sum()
}

/// How often the oldest unfinished prompt was passed over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    oldest: Option<SeqId>,
    passed_over: u32,
}

impl Patience {
    /// Whether the oldest prompt goes first in this step.
    pub(crate) fn is_out(&self, oldest: SeqId) -> bool {
        self.oldest == Some(oldest) && self.passed_over >= PATIENCE && !planted(Bug::PromptStarved)
    }

    /// What happened in a step: did prompts advance, and did the oldest one?
    pub(crate) fn note(&mut self, oldest: Option<SeqId>, any_advanced: bool, oldest_advanced: bool) {
        if oldest != self.oldest || oldest_advanced {
            *self = Patience { oldest, passed_over: 0 };
        }
        if any_advanced && !oldest_advanced {
            self.passed_over += 1;
        }
    }
}
