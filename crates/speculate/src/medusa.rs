//! Drafts by heads on the row that the last token was drawn from (Medusa: Cai et al., 2024).
//!
//! ```text
//! target's pass:  row of token 7 ──head of the model──> token 8
//!                       └─kept─> head 0 ──draw──> draft of token 9   head 1 ──draw──> of token 10  ..  one pass
//! ```
//! There is no cache and nothing to read along: a sequence of the last pass can be drafted, and one left out since too.

use std::collections::BTreeMap;
use std::time::Instant;

use kernels::DeviceError;
use model::draft::Medusa;
use model::sampler::{Allowed, History, SampleKey, Sampler};
use model::{Forward, Logits};
use protocol::sampling::Sampling;
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, DraftProposal, SeqId, Sequence, Step};

use crate::network::{DraftNetwork, Draw, DrawnRow, Lists, SOURCE, SequenceLookup, TargetPass};

/// A measured pass is repeated so often: the median counts.
const REPEATS: usize = 5;

pub(crate) struct MedusaDrafter {
    medusa: Medusa,
    max_drafts: usize,
    hidden_size: usize,
    /// Rows of a pass.
    max_rows: usize,
    /// Offers since the last plan.
    offered: usize,
    /// Rows of the last passes of the target: of which sequence, at which position, and where in `hidden`.
    landed: Vec<(SeqId, usize, usize)>,
    hidden: Vec<f32>,
    /// The row that the last token was drawn from, and its position.
    last: BTreeMap<SeqId, (usize, Vec<f32>)>,
    asked: Vec<f32>,
    lists: Lists,
    logit_row: Vec<f32>,
}

impl MedusaDrafter {
    /// `max_rows`: rows of logits that are held at a time.
    pub(crate) fn new(medusa: Medusa, target: &dyn Forward, max_drafts: usize, max_rows: usize) -> MedusaDrafter {
        let (hidden_size, vocab) = (target.config().hidden_size, target.config().vocab_size);
        MedusaDrafter {
            max_drafts: max_drafts.min(medusa.num_heads()),
            medusa,
            hidden_size,
            max_rows,
            offered: 0,
            landed: Vec::new(),
            hidden: Vec::new(),
            last: BTreeMap::new(),
            asked: Vec::new(),
            lists: Lists::default(),
            logit_row: vec![0.0; vocab],
        }
    }

    /// What a draft costs, by how many sequences are drafted together: of all heads, each its share. Call it on the
    /// thread that computes.
    pub(crate) fn measure(&mut self, sampling: &Sampling) -> Result<CostModel, DeviceError> {
        let mut sampler = Sampler::new(self.logit_row.len());
        let heads = self.max_drafts;
        let doublings = (0..).map(|doubling| 1 << doubling).take_while(|&rows| rows <= self.max_rows);
        let knots = doublings.map(|rows| {
            let hidden = vec![0.5; rows * self.hidden_size];
            let seconds = (0..REPEATS)
                .map(|_| {
                    let begun = Instant::now();
                    self.medusa.propose(&hidden, heads)?;
                    for head in 0..heads {
                        for row in 0..rows {
                            self.medusa.read_logits(head, row, &mut self.logit_row)?;
                            let key = SampleKey { seed: 0, stream: row as u32, position: head as u64 };
                            // A row with NaN gives no draft.
                            let _ = sampler.sample(
                                &mut self.logit_row,
                                sampling,
                                &History::default(),
                                Allowed::default(),
                                key,
                            );
                        }
                    }
                    Ok(begun.elapsed().as_secs_f64())
                })
                .collect::<Result<Vec<f64>, DeviceError>>();
            let mut seconds = seconds?;
            seconds.sort_unstable_by(f64::total_cmp);
            Ok(Knot { rows, seconds: seconds[REPEATS / 2] / heads as f64 })
        });
        Ok(CostModel::new(knots.collect::<Result<_, DeviceError>>()?, Terms::default()))
    }
}

impl DraftNetwork for MedusaDrafter {
    fn begin(&mut self, of: &SequenceLookup<'_, '_>) {
        self.offered = 0;
        self.last.retain(|&seq, _| of(seq).is_some());
        for (seq, position, row) in self.landed.drain(..) {
            // Rows behind a rejected draft are dropped.
            if of(seq).is_some_and(|sequence| sequence.num_tokens() == position + 2) {
                let (at, hidden) = self.last.entry(seq).or_default();
                *at = position;
                hidden.clear();
                hidden.extend_from_slice(&self.hidden[row * self.hidden_size..][..self.hidden_size]);
            }
        }
        self.hidden.clear();
    }

    fn propose(&mut self, sequence: &Sequence) -> Option<DraftProposal> {
        let is_there = self.last.get(&sequence.id()).is_some_and(|(at, _)| at + 2 == sequence.num_tokens());
        if !is_there || self.offered == self.max_rows || self.max_drafts == 0 {
            return None;
        }
        self.offered += 1;
        Some(DraftProposal { seq: sequence.id(), source: SOURCE, len: self.max_drafts as u16, strength: 0 })
    }

    fn start_over(&mut self) {
        self.last.clear();
        self.landed.clear();
        self.hidden.clear();
    }

    fn draft(
        &mut self,
        _: &Step,
        asked: &[(&Sequence, usize)],
        _reads: bool,
        _: &SequenceLookup<'_, '_>,
        draw: &mut Draw<'_>,
    ) -> Result<(), DeviceError> {
        self.lists.clear(asked.len());
        self.asked.clear();
        for (sequence, _) in asked {
            let (_, hidden) = self.last.get(&sequence.id()).expect("who is asked for was offered");
            self.asked.extend_from_slice(hidden);
        }
        let heads = asked.iter().map(|&(_, count)| count).max().unwrap_or(0);
        self.medusa.propose(&self.asked, heads)?;
        for head in 0..heads {
            for (index, &(sequence, count)) in asked.iter().enumerate() {
                if self.lists.continues(index, count, head) {
                    self.medusa.read_logits(head, index, &mut self.logit_row)?;
                    self.lists.push(index, draw(sequence, self.lists.of(index), &mut self.logit_row));
                }
            }
        }
        Ok(())
    }

    fn drafted(&self, index: usize) -> &[u32] {
        self.lists.of(index)
    }

    fn landed(&mut self, pass: &TargetPass<'_>, target: &mut dyn Forward) -> Result<(), DeviceError> {
        let mut first = 0;
        while first < pass.logit_rows.len() {
            let len = pass.logit_rows[first..].iter().take_while(|row| row.is_drawn).count();
            self.keep(pass.logits, first, &pass.logit_rows[first..first + len], target)?;
            first += len.max(1);
        }
        Ok(())
    }
}

impl MedusaDrafter {
    /// Rows of a pass with logits, from the `first` of them on.
    fn keep(
        &mut self,
        logits: &Logits,
        first: usize,
        rows: &[DrawnRow],
        target: &mut dyn Forward,
    ) -> Result<(), DeviceError> {
        let (held, width) = (self.hidden.len(), self.hidden_size);
        self.hidden.resize(held + rows.len() * width, 0.0);
        if !rows.is_empty() {
            target.read_hidden(logits, first..first + rows.len(), &mut self.hidden[held..])?;
        }
        let place = |(index, row): (usize, &DrawnRow)| (row.seq, row.position, held / width + index);
        self.landed.extend(rows.iter().enumerate().map(place));
        Ok(())
    }
}
