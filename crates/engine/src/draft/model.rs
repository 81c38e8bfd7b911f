//! Guesses by a smaller model of the same vocabulary.
//!
//! ```text
//! target's cache   block 7 [ a b c d ]  block 3 [ e f . . ]       one block table for both:
//! drafter's cache  block 7 [ a b c d ]  block 3 [ e . . . ]       hits, forks, copies and tiers hold for it too
//! positions that the drafter has   4              1               what is missing it reads before it guesses
//!
//! guessing   pass 1: what is missing up to the last token -> draw   pass 2: that guess -> draw   ..
//! ```
//! It draws as the target will: with the request's parameters, the answer's history and the noise of that place, so
//! that both mostly draw the same (Leviathan et al., 2023, have the idea of a draft model; why the draws agree is in
//! `kernels::sampling`). What it has of a sequence may be wrong or missing: that costs guesses, never an answer.
//!
//! Prompts are read along with the target while guesses are wanted, so that nothing is missing when the answer begins.

use std::ops::Range;

use model::{Batch, Forward};
use scheduler::{Offer, SeqId, Sequence, SourceId, Step, TokenId};

use crate::lower::push_span;

/// Its name among the scheduler's sources.
pub(crate) const SOURCE: SourceId = SourceId(6);
/// A sequence of which the drafter misses more tokens is not guessed: reading them would take long. Texts may have
/// guessed so many meanwhile, or a busy time with no guesses at all has passed.
const MOST_MISSING: usize = 256;

/// Draws the token behind a row of a drafter's logits, for a sequence and what is guessed of it so far. `None`: these
/// are no logits.
pub(crate) type Draw<'a> = dyn FnMut(&Sequence, &[TokenId], &mut [f32]) -> Option<TokenId> + 'a;

/// A model that guesses, with a cache of its own in the target's blocks.
pub(crate) struct DraftModel {
    forward: Box<dyn Forward>,
    most_guesses: usize,
    max_rows: usize,
    max_model_len: usize,
    block_size: usize,
    /// By block: positions that it has, from the first on.
    computed: Vec<u16>,
    /// Tokens that are missing of what was offered since the last plan.
    missing: usize,
    /// Who was guessed in the last step: what did not hold is forgotten.
    guessed: Vec<SeqId>,
    /// The guesses of each sequence, while they are made.
    lists: Vec<Vec<TokenId>>,
    batch: Batch,
    logit_row: Vec<f32>,
}

/// Sizes of a [`DraftModel`] that are the target's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// Rows of a pass.
    pub(crate) max_rows: usize,
    /// Tokens of a sequence that it can read.
    pub(crate) max_model_len: usize,
    pub(crate) blocks: usize,
    pub(crate) block_size: usize,
}

impl DraftModel {
    /// `forward` has a cache of the same blocks as the target's. `most_guesses`: for one sequence in one step.
    pub(crate) fn new(forward: Box<dyn Forward>, most_guesses: usize, beside: Beside) -> DraftModel {
        let Beside { max_rows, max_model_len, blocks, block_size } = beside;
        let vocab = forward.config().vocab_size;
        DraftModel {
            forward,
            most_guesses,
            max_rows,
            max_model_len,
            block_size,
            computed: vec![0; blocks],
            missing: 0,
            guessed: Vec::new(),
            lists: Vec::new(),
            batch: Batch::default(),
            logit_row: vec![0.0; vocab],
        }
    }

    /// A step is about to be planned. `of`: the sequences that go on.
    pub(crate) fn begin<'a>(&mut self, of: impl Fn(SeqId) -> Option<&'a Sequence>) {
        self.missing = 0;
        for seq in std::mem::take(&mut self.guessed) {
            // What was guessed from the last token's place on did not hold.
            if let Some(sequence) = of(seq) {
                self.forget_from(sequence, sequence.num_tokens() - 1);
            }
        }
    }

    /// Guesses for a sequence, if not too much of it is missing.
    pub(crate) fn offer(&mut self, sequence: &Sequence) -> Option<Offer> {
        let missing = sequence.num_tokens() - self.known_of(sequence);
        let len = self.most_guesses.min(self.max_model_len.saturating_sub(sequence.num_tokens()));
        if len == 0 || missing > MOST_MISSING || self.missing + missing > self.max_rows {
            return None;
        }
        self.missing += missing;
        Some(Offer { seq: sequence.id(), source: SOURCE, len: len as u16, strength: 0 })
    }

    /// Blocks have other contents than they had: those that a step copies or loads, and those whose first slot it
    /// writes.
    pub(crate) fn follow<'a>(&mut self, step: &Step, of: impl Fn(SeqId) -> &'a Sequence) {
        if !step.copies.is_empty() {
            let copies: Vec<_> = step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
            self.forward.copy_blocks(&copies);
            copies.iter().for_each(|&(src, dst)| self.computed[dst as usize] = self.computed[src as usize]);
        }
        // A tier keeps what the target has alone.
        step.loads.iter().for_each(|load| self.computed[load.block.0 as usize] = 0);
        for rows in step.rows() {
            let table = of(rows.seq).block_table();
            let begun = rows.start.div_ceil(self.block_size)..(rows.start + rows.len).div_ceil(self.block_size);
            begun.for_each(|index| self.computed[table[index].0 as usize] = 0);
        }
    }

    /// Reads the prompts of a step beside the target, as far as it has what is before.
    pub(crate) fn read<'a>(&mut self, step: &Step, of: impl Fn(SeqId) -> &'a Sequence) {
        self.batch.clear();
        for rows in &step.prefill {
            let (sequence, end) = (of(rows.seq), rows.start + rows.len);
            if self.has(sequence, rows.start) && end <= self.max_model_len {
                push_span(sequence, &[], rows.start..end, &mut self.batch);
                self.note(sequence, rows.start..end);
            }
        }
        if self.batch.num_rows() > 0 {
            let ticket = self.forward.launch(&self.batch);
            self.forward.wait(ticket);
        }
    }

    /// So many guesses for each of these, one pass for the first guesses of all, one for the second ones, and so on.
    pub(crate) fn propose(&mut self, asked: &[(&Sequence, usize)], draw: &mut Draw<'_>) {
        self.lists.resize_with(asked.len().max(self.lists.len()), Vec::new);
        self.lists.iter_mut().for_each(Vec::clear);
        self.guessed.extend(asked.iter().map(|(sequence, _)| sequence.id()));
        let passes = asked.iter().map(|&(_, count)| count).max().unwrap_or(0);
        for place in 0..passes {
            // Who said nothing in the pass before says nothing any more.
            let goes_on = |list: &Vec<TokenId>, count: usize| count > place && list.len() == place;
            self.batch.clear();
            for ((sequence, count), list) in asked.iter().zip(&self.lists) {
                if goes_on(list, *count) {
                    let end = sequence.num_tokens() + place;
                    let start = if place == 0 { self.known_of(sequence) } else { end - 1 };
                    push_span(sequence, list, start..end, &mut self.batch);
                    self.batch.logit_rows.push(self.batch.num_rows() as u32 - 1);
                }
            }
            if self.batch.num_rows() == 0 {
                break;
            }
            let ticket = self.forward.launch(&self.batch);
            let logits = self.forward.wait(ticket);
            let mut row = 0;
            for (index, &(sequence, count)) in asked.iter().enumerate() {
                if !goes_on(&self.lists[index], count) {
                    continue;
                }
                let span = &self.batch.spans[row];
                let computed = span.start as usize..(span.start + span.num_rows) as usize;
                self.note(sequence, computed);
                self.forward.read_logits(&logits, row, &mut self.logit_row);
                let drawn = draw(sequence, &self.lists[index], &mut self.logit_row);
                self.lists[index].extend(drawn);
                row += 1;
            }
        }
    }

    /// What was proposed for the sequence at that place of the list.
    pub(crate) fn proposed(&self, index: usize) -> &[TokenId] {
        &self.lists[index]
    }

    /// Positions of a sequence that it has, without the last token: that is what it guesses from.
    fn known_of(&self, sequence: &Sequence) -> usize {
        let mut known = 0;
        for block in sequence.block_table() {
            let here = usize::from(self.computed[block.0 as usize]);
            known += here;
            if here < self.block_size {
                break;
            }
        }
        known.min(sequence.num_tokens() - 1)
    }

    /// Whether it has all before `position`.
    fn has(&self, sequence: &Sequence, position: usize) -> bool {
        let (full, rest) = (position / self.block_size, position % self.block_size);
        let table = sequence.block_table();
        let here = |index: usize| usize::from(self.computed[table[index].0 as usize]);
        (0..full).all(|index| here(index) == self.block_size) && (rest == 0 || here(full) >= rest)
    }

    /// It has computed these positions, and everything before them.
    fn note(&mut self, sequence: &Sequence, positions: Range<usize>) {
        for position in positions {
            let block = sequence.block_table()[position / self.block_size];
            self.computed[block.0 as usize] = (position % self.block_size + 1) as u16;
        }
    }

    /// What is at `position` and behind it is not known.
    fn forget_from(&mut self, sequence: &Sequence, position: usize) {
        let (first, offset) = (position / self.block_size, position % self.block_size);
        for (index, block) in sequence.block_table().iter().enumerate().skip(first) {
            let most = if index == first { offset } else { 0 };
            let here = &mut self.computed[block.0 as usize];
            *here = (*here).min(most as u16);
        }
    }
}
