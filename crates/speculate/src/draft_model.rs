//! Drafts by a smaller model of the same vocabulary.
//!
//! ```text
//! drafting   pass 1: what is missing up to the last token -> draw   pass 2: that draft -> draw   ..
//! ```
//! (Leviathan et al., 2023, have the idea of a draft model; why both mostly draw the same is in `kernels::sampling`.)
//! Its cache is in the target's blocks: `coverage.rs`. Prompts are read along with the target while drafts are wanted,
//! so that nothing is missing when the answer begins.

use kernels::DeviceError;
use model::{Batch, Forward};
use protocol::TokenId;
use scheduler::{DraftProposal, SeqId, Sequence, Step};

use crate::coverage::DraftCoverage;
use crate::network::{DraftNetwork, DraftSizes, Draw, Lists, MOST_MISSING, SOURCE, SequenceLookup};
use crate::span::push_span;

/// A draft model, with a cache of its own in the target's blocks.
pub struct DraftModel {
    forward: Box<dyn Forward>,
    max_drafts: usize,
    max_rows: usize,
    max_model_len: usize,
    known: DraftCoverage,
    /// Tokens that are missing of what was offered since the last plan.
    missing: usize,
    /// The sequences drafted in the last step: rejected drafts are dropped from the cache.
    drafted: Vec<SeqId>,
    lists: Lists,
    batch: Batch,
    logit_row: Vec<f32>,
}

impl DraftModel {
    /// `forward` has a cache of the same blocks as the target's.
    pub fn new(forward: Box<dyn Forward>, sizes: DraftSizes) -> DraftModel {
        let DraftSizes { max_drafts, max_rows, max_model_len, blocks, block_size, .. } = sizes;
        let vocab = forward.config().vocab_size;
        DraftModel {
            forward,
            max_drafts,
            max_rows,
            max_model_len,
            known: DraftCoverage::new(blocks, block_size),
            missing: 0,
            drafted: Vec::new(),
            lists: Lists::default(),
            batch: Batch::default(),
            logit_row: vec![0.0; vocab],
        }
    }

    /// Positions of a sequence that it has, without the last token: that is the input of the first draft.
    fn known_of(&self, sequence: &Sequence) -> usize {
        self.known.of(sequence).min(sequence.num_tokens() - 1)
    }

    /// One pass for the first drafts of all, one for the second ones, and so on.
    fn compute_drafts(&mut self, asked: &[(&Sequence, usize)], draw: &mut Draw<'_>) -> Result<(), DeviceError> {
        let passes = asked.iter().map(|&(_, count)| count).max().unwrap_or(0);
        for place in 0..passes {
            self.batch.clear();
            for (index, &(sequence, count)) in asked.iter().enumerate() {
                if self.lists.continues(index, count, place) {
                    let end = sequence.num_tokens() + place;
                    let start = if place == 0 { self.known_of(sequence) } else { end - 1 };
                    push_span(sequence, self.lists.of(index), start..end, 0, &mut self.batch);
                    self.batch.logit_rows.push(self.batch.num_rows() as u32 - 1);
                }
            }
            if self.batch.num_rows() == 0 {
                break;
            }
            let ticket = self.forward.launch(&self.batch)?;
            let logits = self.forward.wait(ticket)?;
            let mut row = 0;
            for (index, &(sequence, count)) in asked.iter().enumerate() {
                if !self.lists.continues(index, count, place) {
                    continue;
                }
                let span = &self.batch.spans[row];
                self.known.note(sequence, span.start as usize..(span.start + span.num_rows) as usize);
                self.forward.read_logits(&logits, row, &mut self.logit_row)?;
                self.lists.push(index, draw(sequence, self.lists.of(index), &mut self.logit_row));
                row += 1;
            }
        }
        Ok(())
    }

    /// Reads the prompts of a step beside the target, as far as it has what is before.
    fn read(&mut self, step: &Step, of: &SequenceLookup<'_, '_>) -> Result<(), DeviceError> {
        self.batch.clear();
        for rows in &step.prefill {
            let Some(sequence) = of(rows.seq) else { continue };
            let end = rows.start + rows.len;
            if self.known.of(sequence) >= rows.start && end <= self.max_model_len {
                push_span(sequence, &[], rows.start..end, 0, &mut self.batch);
                self.known.note(sequence, rows.start..end);
            }
        }
        if self.batch.num_rows() > 0 {
            let ticket = self.forward.launch(&self.batch)?;
            self.forward.wait(ticket)?;
        }
        Ok(())
    }
}

impl DraftNetwork for DraftModel {
    fn begin(&mut self, of: &SequenceLookup<'_, '_>) {
        self.missing = 0;
        for seq in std::mem::take(&mut self.drafted) {
            // Drafts from the last token's place on were rejected.
            if let Some(sequence) = of(seq) {
                self.known.forget_from(sequence, sequence.num_tokens() - 1);
            }
        }
    }

    fn propose(&mut self, sequence: &Sequence) -> Option<DraftProposal> {
        let missing = sequence.num_tokens() - self.known_of(sequence);
        let len = self.max_drafts.min(self.max_model_len.saturating_sub(sequence.num_tokens()));
        if len == 0 || missing > MOST_MISSING || self.missing + missing > self.max_rows {
            return None;
        }
        self.missing += missing;
        Some(DraftProposal { seq: sequence.id(), source: SOURCE, len: len as u16, strength: 0 })
    }

    fn start_over(&mut self) {
        self.drafted.clear();
    }

    fn follow(&mut self, step: &Step, of: &SequenceLookup<'_, '_>) {
        let copies = self.known.follow(step, of);
        if !copies.is_empty() {
            self.forward.copy_blocks(&copies);
        }
    }

    fn draft(
        &mut self,
        step: &Step,
        asked: &[(&Sequence, usize)],
        reads: bool,
        of: &SequenceLookup<'_, '_>,
        draw: &mut Draw<'_>,
    ) -> Result<(), DeviceError> {
        self.lists.clear(asked.len());
        self.drafted.extend(asked.iter().map(|(sequence, _)| sequence.id()));
        self.compute_drafts(asked, draw)?;
        if reads { self.read(step, of) } else { Ok(()) }
    }

    fn drafted(&self, index: usize) -> &[TokenId] {
        self.lists.of(index)
    }
}
