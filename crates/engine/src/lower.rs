//! From a plan to numbers: a `Step` says who, a `Batch` holds flat arrays.
//!
//! ```text
//! Step       { decode: [A, B], prefill: [C 0..3] }
//! Batch      { token_ids: [a7, b4, c0, c1, c2], positions: [7, 4, 0, 1, 2], slots: [..], spans: [A, B, C],
//!              logit_rows: [0, 1, 4] }
//! LogitRow   what each of those is wanted for: A's, B's and C's next token
//! ```

use std::ops::Range;

use model::{Batch, Span};
use scheduler::{Scheduler, SeqId, Sequence, Step};

/// What one row of logits is wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogitRow {
    /// Whose row.
    pub(crate) seq: SeqId,
    /// Position of the row's token; its logits judge the next one.
    pub(crate) position: usize,
    /// Tokens to sample from it.
    pub(crate) samples: usize,
    /// The prompt's next token is to be judged by it.
    pub(crate) scores: bool,
}

/// Fills `batch` and `logit_rows` (one entry per row of `batch.logit_rows`) from `step`. Both are cleared first and keep
/// their memory. `scores` says whose prompt wants its log probabilities.
pub(crate) fn lower(
    step: &Step,
    scheduler: &Scheduler,
    scores: impl Fn(&Sequence) -> bool,
    batch: &mut Batch,
    logit_rows: &mut Vec<LogitRow>,
) {
    batch.clear();
    logit_rows.clear();
    for &seq in &step.decode {
        let sequence = planned(scheduler, seq);
        let start = sequence.num_computed();
        push_span(sequence, start..start + 1, batch);
        batch.logit_rows.push(batch.token_ids.len() as u32 - 1);
        logit_rows.push(LogitRow { seq, position: start, samples: 1, scores: false });
    }
    for chunk in &step.prefill {
        let sequence = planned(scheduler, chunk.seq);
        let tokens = chunk.start..chunk.start + chunk.len;
        let first_row = batch.token_ids.len();
        push_span(sequence, tokens.clone(), batch);
        let scores = scores(sequence);
        for (row, position) in tokens.enumerate() {
            let samples = if row + 1 == chunk.len { chunk.samples } else { 0 };
            if scores || samples > 0 {
                batch.logit_rows.push((first_row + row) as u32);
                logit_rows.push(LogitRow { seq: chunk.seq, position, samples, scores });
            }
        }
    }
}

fn planned(scheduler: &Scheduler, seq: SeqId) -> &Sequence {
    scheduler.sequence(seq).expect("a planned sequence lives until its step completes")
}

fn push_span(sequence: &Sequence, tokens: Range<usize>, batch: &mut Batch) {
    let first_row = batch.token_ids.len() as u32;
    let (num_rows, start) = (tokens.len() as u32, tokens.start as u32);
    let table_start = batch.block_tables.len() as u32;
    // A table may run ahead of this step's tokens; attention reads no further than the rows' own positions.
    batch.block_tables.extend(sequence.block_table().iter().map(|block| block.0));
    for position in tokens {
        batch.token_ids.push(sequence.tokens()[position]);
        batch.positions.push(position as u32);
        batch.slots.push(sequence.slot(position) as u32);
    }
    let table = table_start..batch.block_tables.len() as u32;
    batch.spans.push(Span { first_row, num_rows, start, table });
}
