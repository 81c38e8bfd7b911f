//! From a plan to numbers: a `Step` names sequences, a `Batch` holds flat arrays.
//!
//! ```text
//! Step       { decode: [A 7..9 with one draft, B 4..5], prefill: [C 0..3] }
//! Batch      { token_ids: [a7, draft, b4, c0, c1, c2], positions: [7, 8, 4, 0, 1, 2], slots: [..], spans: [A, B, C],
//!              logit_rows: [0, 1, 2, 5] }
//! LogitRow   what each of those is wanted for: A's next token and, if that is the draft, the one after it; B's, C's
//! ```

use model::{Batch, StateSave};
use protocol::TokenId;
use scheduler::{Rows, Scheduler, SeqId, Sequence, Step};
use speculate::{DraftTokens, push_span};

use crate::validate::OfPrompt;

/// What one row of logits is wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogitRow {
    pub(crate) seq: SeqId,
    /// Position of the row's token; its logits judge the next one.
    pub(crate) position: usize,
    /// Tokens to sample from it.
    pub(crate) samples: usize,
    /// What it tells of the prompt: judges its next token, or is its last.
    pub(crate) of_prompt: OfPrompt,
    /// Its token is a draft: the row counts if the row before it gives that token.
    pub(crate) draft: Option<TokenId>,
    /// The drafts up to this row: that many tokens of its run come before its own.
    pub(crate) ahead: usize,
}

/// Fills `batch` and `logit_rows` (one entry per row of `batch.logit_rows`) from `step`. Both are cleared first and
/// keep their memory. `of_prompt` says what is wanted of a request's prompt, `best` how many logits decide its tokens,
/// `adapter` which slot its rows go through, `drafts` which tokens the drafts are.
pub(crate) fn lower(
    step: &Step,
    scheduler: &Scheduler,
    (of_prompt, best, adapter): (
        impl Fn(&Sequence) -> OfPrompt,
        impl Fn(&Sequence) -> u32,
        impl Fn(&Sequence) -> Option<u32>,
    ),
    drafts: &DraftTokens,
    batch: &mut Batch,
    logit_rows: &mut Vec<LogitRow>,
) {
    batch.clear();
    logit_rows.clear();
    let mut drafted = drafts.iter();
    let mut states = step.states.iter().peekable();
    for Rows { seq, start, len, samples, drafts } in step.rows() {
        let sequence = planned(scheduler, seq);
        let first_row = batch.token_ids.len();
        let tokens = match drafts {
            0 => &[],
            _ => drafted.find(|(of, _)| *of == seq).expect("drafts are in the plan's order").1,
        };
        push_span(sequence, tokens, start..start + len, 0, batch);
        let first_save = batch.saves.len() as u32;
        while let Some(save) = states.next_if(|save| save.seq == seq) {
            let row = (first_row + save.after - 1 - start) as u32;
            batch.saves.push(StateSave { row, slot: save.slot.0 });
        }
        if let Some(span) = batch.spans.last_mut() {
            span.adapter = adapter(sequence);
            span.state = sequence.state().map(|slot| slot.0);
            span.saves = first_save..batch.saves.len() as u32;
        }
        // A sequence with a token has no prompt rows left.
        let of_prompt = if sequence.num_generated() == 0 { of_prompt(sequence) } else { OfPrompt::Nothing };
        for row in 0..len {
            let samples = if row + drafts + 1 >= len { samples } else { 0 };
            let of_prompt = match of_prompt {
                OfPrompt::Embedding if start + row + 1 < sequence.tokens().len() => OfPrompt::Nothing,
                of_prompt => of_prompt,
            };
            if of_prompt != OfPrompt::Nothing || samples > 0 {
                let ahead = (row + drafts + 1).saturating_sub(len);
                let draft = ahead.checked_sub(1).map(|index| tokens[index]);
                batch.logit_rows.push((first_row + row) as u32);
                batch.best.push(if of_prompt == OfPrompt::Nothing { best(sequence) } else { 0 });
                logit_rows.push(LogitRow { seq, position: start + row, samples, of_prompt, draft, ahead });
            }
        }
    }
}

fn planned(scheduler: &Scheduler, seq: SeqId) -> &Sequence {
    scheduler.sequence(seq).expect("a planned sequence lives until its step completes")
}
