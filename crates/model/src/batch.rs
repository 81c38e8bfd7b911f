//! A step of the scheduler lowered to flat arrays: what one forward pass computes.
//!
//! ```text
//! rows      [ A: one decode row | B: a prefill chunk of 5 rows ]
//! token_ids [ 17                | 4 8 15 16 23 ]     positions [ 902 | 64 65 66 67 68 ]
//! slots     [ where each row's key and value go: block * block_size + offset ]
//! spans     [ A: row 0, 1 row, start 902 | B: row 1, 5 rows, start 64 ]
//! logit_rows [ 0 ]  only rows whose next token is asked for reach the language-model head
//! saves     [ (row 0, slot 3) | (row 4, slot 8), (row 5, slot 1) ]   layers with a state: what it is after these rows
//! ```
//!
//! A layer whose memory is a state (a recurrence, a short convolution) reads it from a slot and leaves it in others: a
//! slot that a pass reads is never one that it writes, so a pass that failed can be computed again, and a state after
//! any row can be gone back to.
//!
//! A batch holds numbers, not requests. The arrays are cleared and refilled each step; they stop growing at the
//! largest.

use std::ops::Range;

/// After which row of the batch the states of a sequence are written to a slot, which is below
/// [`LoadOptions::state_slots`](crate::LoadOptions::state_slots).
pub use kernels::StateSave;

/// The rows of one sequence: consecutive tokens, and where its blocks are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row in the batch.
    pub first_row: u32,
    /// Number of rows: 1 for decode, the chunk's length for prefill.
    pub num_rows: u32,
    /// Position of the first row in its sequence.
    pub start: u32,
    /// The sequence's block table as a range of [`Batch::block_tables`], covering at least `start + num_rows` tokens.
    pub table: Range<u32>,
    /// The slot of the adapter that its rows go through ([`Forward::set_adapter`](crate::Forward::set_adapter)).
    pub adapter: Option<u32>,
    /// The slot with the states of its layers after position `start - 1`. `None` at the beginning of a sequence, where
    /// every state is zero, and for models without states ([`ModelConfig::state_numbers`](crate::ModelConfig::state_numbers)).
    pub state: Option<u32>,
    /// Its part of [`Batch::saves`]. A model without states leaves nothing.
    pub saves: Range<u32>,
}

/// Flat arrays of one forward pass. See the module's picture.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// `[rows]`.
    pub token_ids: Vec<u32>,
    /// `[rows]`, the token's position in its sequence.
    pub positions: Vec<u32>,
    /// `[rows]`, `block * block_size + offset` of the token's place in the cache. All distinct.
    pub slots: Vec<u32>,
    /// One per sequence; together they cover every row, in order.
    pub spans: Vec<Span>,
    /// The block tables of all sequences, one after the other.
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, in the order of the output.
    pub logit_rows: Vec<u32>,
    /// By logit row: how many of its largest logits are wanted in place of the row, at most
    /// [`MOST_BEST`](protocol::sampling::MOST_BEST); 0: the row. Empty: all rows.
    pub best: Vec<u32>,
    /// Of an encoder that tells the two texts of a pair apart, to which of them each row belongs: `[rows]`. Empty: all
    /// rows belong to the first.
    pub token_types: Vec<u32>,
    /// The states that the pass leaves, by rising row within each span. All slots distinct, and none is read by a span.
    pub saves: Vec<StateSave>,
}

impl Batch {
    /// Tokens computed by this pass.
    pub fn num_rows(&self) -> usize {
        self.token_ids.len()
    }

    /// Some of its sequences as a batch of their own: what they compute does not depend on who computes beside them.
    /// The second: which of `logit_rows` those are.
    pub fn part(&self, spans: Range<usize>) -> (Batch, Range<usize>) {
        let at = |index: usize| self.spans.get(index).map_or(self.num_rows() as u32, |span| span.first_row);
        let rows = at(spans.start)..at(spans.end);
        let wanted = self.logit_rows.partition_point(|&row| row < rows.start)
            ..self.logit_rows.partition_point(|&row| row < rows.end);
        let of = |all: &[u32]| all[rows.start as usize..rows.end as usize].to_vec();
        let part = Batch {
            token_ids: of(&self.token_ids),
            positions: of(&self.positions),
            slots: of(&self.slots),
            token_types: if self.token_types.is_empty() { Vec::new() } else { of(&self.token_types) },
            spans: self.spans[spans]
                .iter()
                .map(|span| Span { first_row: span.first_row - rows.start, ..span.clone() })
                .collect(),
            block_tables: self.block_tables.clone(),
            // Those of the other spans stay where they are, and no span names them.
            saves: self
                .saves
                .iter()
                .map(|save| StateSave { row: save.row.wrapping_sub(rows.start), ..*save })
                .collect(),
            logit_rows: self.logit_rows[wanted.clone()].iter().map(|row| row - rows.start).collect(),
            best: self.best.get(wanted.clone()).unwrap_or_default().to_vec(),
        };
        (part, wanted)
    }

    /// The same of one span, of which only the first `rows` rows.
    pub fn head(&self, span: usize, rows: usize) -> (Batch, Range<usize>) {
        let (mut head, wanted) = self.part(span..span + 1);
        for array in [&mut head.token_ids, &mut head.positions, &mut head.slots, &mut head.token_types] {
            array.truncate(rows);
        }
        head.spans[0].num_rows = rows as u32;
        let saves = &mut head.spans[0].saves;
        let left = &head.saves[saves.start as usize..saves.end as usize];
        saves.end = saves.start + left.partition_point(|save| (save.row as usize) < rows) as u32;
        head.logit_rows.retain(|&row| (row as usize) < rows);
        head.best.truncate(head.logit_rows.len());
        let end = wanted.start + head.logit_rows.len();
        (head, wanted.start..end)
    }

    /// For a sequence outside of any schedule: its rows, the last span, go on from the states in `from`, unless they begin
    /// it, and leave theirs in `to`.
    pub fn carry_states(&mut self, from: u32, to: u32) {
        let span = self.spans.last_mut().expect("there are rows");
        let first = self.saves.len() as u32;
        span.state = (span.start > 0).then_some(from);
        span.saves = first..first + 1;
        self.saves.push(StateSave { row: span.first_row + span.num_rows - 1, slot: to });
    }

    /// Empties the arrays and keeps their memory.
    pub fn clear(&mut self) {
        self.token_ids.clear();
        self.positions.clear();
        self.slots.clear();
        self.spans.clear();
        self.block_tables.clear();
        self.logit_rows.clear();
        self.best.clear();
        self.token_types.clear();
        self.saves.clear();
    }
}
