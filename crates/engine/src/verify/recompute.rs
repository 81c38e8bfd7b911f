//! One answer, computed again from its tokens: a prefill over prompt and answer, and a sample from each row that the
//! answer's tokens came from.

use grammar::{Constraint, Grammar};
use kernels::DeviceError;
use model::sampler::{Allowed, History, SampleKey, Sampler};
use model::{Batch, Forward, Span};
use protocol::TokenId;
use receipt::{Asked, ComputedRow, Digest, SamplingTerms};

/// How far one answer is computed again. Not part of any schedule: a few rows at a time, in blocks of its own.
#[derive(Debug)]
pub(crate) struct Recompute {
    /// Prompt and answer.
    tokens: Vec<TokenId>,
    prompt_len: usize,
    /// Rows that are done, and the passes that they took.
    computed: usize,
    passes: u32,
    sampling: SamplingTerms,
    min_tokens: usize,
    stop_tokens: Vec<TokenId>,
    history: History,
    /// What may follow; `None` also behind a token that could not.
    constraint: Option<Constraint>,
    rows: Vec<ComputedRow>,
}

/// What a computation takes: kept between answers for its memory.
#[derive(Debug)]
pub(crate) struct Bench {
    sampler: Sampler,
    batch: Batch,
    logits: Vec<f32>,
    /// The first of its blocks in the cache; the others follow it.
    first_block: u32,
    block_size: usize,
    /// The first of its two slots for states.
    first_state: u32,
}

/// Slots for states that one answer is computed again with.
pub(crate) const STATE_SLOTS: usize = 2;

impl Bench {
    pub(crate) fn new(vocab_size: usize, first_block: u32, block_size: usize, first_state: u32) -> Bench {
        let (sampler, logits) = (Sampler::new(vocab_size), vec![0.0; vocab_size]);
        Bench { sampler, batch: Batch::default(), logits, first_block, block_size, first_state }
    }
}

impl Recompute {
    /// The terms have passed validation. What is behind the first token that is not in the vocabulary is left out: no
    /// model has read it.
    pub(crate) fn new(asked: &Asked, answer: &[TokenId], vocab_size: usize, grammar: Option<&Grammar>) -> Recompute {
        let sampling = asked.sampling.clone();
        let history = if sampling.params.needs_history() { History::new(&asked.prompt) } else { History::default() };
        let known = answer.iter().position(|&token| token as usize >= vocab_size).map_or(answer.len(), |at| at + 1);
        Recompute {
            tokens: [&asked.prompt, &answer[..known]].concat(),
            prompt_len: asked.prompt.len(),
            computed: 0,
            passes: 0,
            sampling,
            min_tokens: usize::try_from(asked.stop.min_tokens).unwrap_or(usize::MAX),
            stop_tokens: asked.stop.token_ids.clone(),
            history,
            constraint: grammar.map(Grammar::constraint),
            rows: Vec::new(),
        }
    }

    /// Rows of the pass: the last token is not an input, and without an answer there is nothing to compute.
    fn num_rows(&self) -> usize {
        if self.tokens.len() > self.prompt_len { self.tokens.len() - 1 } else { 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.computed == self.num_rows()
    }

    /// A row for each token of the answer, as far as it is.
    pub(crate) fn rows(&self) -> &[ComputedRow] {
        &self.rows
    }

    /// Computes the next rows, at most `most`.
    pub(crate) fn step(
        &mut self,
        forward: &mut dyn Forward,
        bench: &mut Bench,
        most: usize,
    ) -> Result<(), DeviceError> {
        let rows = self.computed..self.num_rows().min(self.computed + most);
        if rows.is_empty() {
            return Ok(());
        }
        let Bench { sampler, batch, logits, first_block, block_size, first_state } = bench;
        batch.clear();
        let blocks = rows.end.div_ceil(*block_size) as u32;
        batch.block_tables.extend(*first_block..*first_block + blocks);
        for position in rows.clone() {
            batch.token_ids.push(self.tokens[position]);
            batch.positions.push(position as u32);
            batch.slots.push((*first_block as usize * *block_size + position) as u32);
            if position + 1 >= self.prompt_len {
                batch.logit_rows.push((position - rows.start) as u32);
            }
        }
        let (num_rows, start) = (rows.len() as u32, rows.start as u32);
        batch.spans.push(Span {
            first_row: 0,
            num_rows,
            start,
            table: 0..blocks,
            adapter: None,
            state: None,
            saves: 0..0,
        });
        let turn = self.passes % 2;
        batch.carry_states(*first_state + turn, *first_state + 1 - turn);
        self.passes += 1;
        let ticket = forward.launch(batch)?;
        let done = forward.wait(ticket)?;
        for row in 0..done.rows() {
            forward.read_logits(&done, row, logits)?;
            let drawn = self.draw(sampler, logits);
            self.rows.push(drawn);
        }
        self.computed = rows.end;
        Ok(())
    }

    /// The next token of the answer, drawn as it was. Afterwards the one at that place is part of its history.
    fn draw(&mut self, sampler: &mut Sampler, logits: &mut [f32]) -> ComputedRow {
        let index = self.rows.len();
        let digest = Digest::of_row(logits);
        let banned: &[TokenId] = if index < self.min_tokens { &self.stop_tokens } else { &[] };
        let position = (self.prompt_len + index) as u64;
        let key = SampleKey { seed: self.sampling.seed, stream: self.sampling.answer, position };
        let claimed = self.tokens[self.prompt_len + index];
        let mask = self.constraint.as_mut().map(|constraint| constraint.mask(index));
        let Ok(mask) = mask.transpose().map(Option::flatten) else {
            return ComputedRow { logits: digest, token: None };
        };
        let sampled = sampler.sample(logits, &self.sampling.params, &self.history, Allowed { mask, banned }, key);
        // What the grammar does not let through was not drawn, and what comes behind it neither.
        if let Some(constraint) = &mut self.constraint
            && sampled.as_ref().is_ok_and(|sampled| sampled.token == claimed)
        {
            _ = constraint.accept(claimed);
        }
        if self.sampling.params.needs_history() && (claimed as usize) < logits.len() {
            self.history.push(claimed);
        }
        ComputedRow { logits: digest, token: sampled.ok().map(|sampled| sampled.token) }
    }
}
