//! Records which requests hold the seats or blocks that the head of the queue waits for, for the ledger.
//!
//! ```text
//! short of seats    A has 1, B has 3 answers                      A 1, B 3
//! short of blocks   A [ 7 | 2 | 9 ]  B [ 7 | 4 ]                  A 2 1/2, B 1 1/2: both read block 7
//! ```
//!
//! A shared block is divided equally among its holders. Blocks reserved for a protected sequence ([`crate::decode`])
//! count as held by it: no other may take them.
//!
//! Cost: nothing without a queue, or where rows or time are short; otherwise a few instructions per running sequence.
//! Parts of shared blocks are recounted only after sharing changed.

use crate::decode::is_protected;
use crate::kv::BlockPool;
use crate::sequence::{Sequence, Shared};
use crate::step::Holder;
use crate::{Blocked, Scheduler};

/// Weight of a block that one sequence holds alone.
const WHOLE: u64 = 1 << 20;

/// Shared blocks form a prefix of the table: the first private block ends it.
fn shared_prefix(seq: &Sequence, pool: &BlockPool) -> Shared {
    let mut shared = Shared::default();
    for refs in seq.table.iter().map(|&block| pool.refs(block)).take_while(|&refs| refs > 1) {
        shared.blocks += 1;
        shared.parts += WHOLE / refs as u64;
    }
    shared
}

impl Scheduler {
    /// Adds the holders to the current step's record, once its bottleneck is known.
    pub(crate) fn note_holders(&mut self) {
        let state = &mut self.state;
        let holders = &mut self.plan.record.holders;
        match self.plan.record.blocked {
            Some(Blocked::Seats) => holders.extend(state.running.iter().map(|&(_, id)| {
                let seq = &state.seqs[id];
                Holder { request: seq.request.id, held: seq.num_seats() as u64 }
            })),
            Some(Blocked::Kv) => {
                let sharings = state.pool.num_sharings();
                let is_stale = state.sharings_seen != Some(sharings);
                state.sharings_seen = Some(sharings);
                for &(_, id) in &state.running {
                    let seq = &mut state.seqs[id];
                    if is_stale {
                        seq.shared = shared_prefix(seq, &state.pool);
                    }
                    let seq = &state.seqs[id];
                    let set_aside =
                        if is_protected(seq) { state.blocks_to_end(seq).saturating_sub(seq.table.len()) } else { 0 };
                    let alone = seq.table.len() - seq.shared.blocks + set_aside;
                    let held = alone as u64 * WHOLE + seq.shared.parts;
                    holders.push(Holder { request: seq.request.id, held });
                }
            }
            Some(Blocked::Budget) | None => {}
        }
    }
}
