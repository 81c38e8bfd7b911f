//! Rows of a sequence in a batch.

use std::ops::Range;

use model::{Batch, Span};
use protocol::TokenId;
use scheduler::Sequence;

/// Rows of a sequence at these positions, each with the token that is `ahead` places on (0 for all but a drafter's);
/// tokens from `num_tokens` on are drafts.
pub fn push_span(sequence: &Sequence, drafts: &[TokenId], positions: Range<usize>, ahead: usize, batch: &mut Batch) {
    let first_row = batch.token_ids.len() as u32;
    let (num_rows, start) = (positions.len() as u32, positions.start as u32);
    let table_start = batch.block_tables.len() as u32;
    // A table may run ahead of this step's tokens; attention reads no further than the rows' own positions.
    batch.block_tables.extend(sequence.block_table().iter().map(|block| block.0));
    let known = sequence.tokens();
    for position in positions {
        let token = position + ahead;
        batch.token_ids.push(known.get(token).copied().unwrap_or_else(|| drafts[token - known.len()]));
        batch.positions.push(position as u32);
        batch.slots.push(sequence.slot(position) as u32);
    }
    let table = table_start..batch.block_tables.len() as u32;
    batch.spans.push(Span { first_row, num_rows, start, table, adapter: None, state: None, saves: 0..0 });
}
