//! Drafts by a layer behind the target, with a cache of its own in the target's blocks (EAGLE-3: Li et al., 2025;
//! next-token layers of checkpoints like MiMo's).
//!
//! ```text
//! tokens              t0   t1   t2   t3 (the last one)
//! target's rows       r0   r1   r2                        kept from its last pass: what the layer reads of them
//! the layer's rows    r0,t1  r1,t2  r2,t3 ──draw──> g4    pass 1: everything that is missing, of all sequences
//!                                   own,g4 ──draw──> g5   pass 2: behind its own row of before, where more are due
//! ```
//! A row is at the position of the target's row and has the token after it. Rows behind the layer's own rows are
//! dropped once the target's exist. Of positions whose target rows were not kept (a hit on a prompt that was computed
//! while no drafts were wanted) the layer reads the tokens alone.

use std::ops::Range;
use std::sync::Arc;

use kernels::limits::MeasureError;
use kernels::threads::LostCpuTime;
use kernels::{DeviceError, DeviceInfo, DeviceLimits, HostBuffer};
use model::draft::{Feature, Features};
use model::{Batch, Forward, Logits, ModelConfig, Ticket};
use scheduler::{DraftProposal, SeqId, Sequence, Step};

use crate::coverage::DraftCoverage;
use crate::network::{DraftNetwork, DraftSizes, Draw, Lists, MOST_MISSING, SOURCE, SequenceLookup, TargetPass};
use crate::span::push_span;

/// A layer that drafts.
pub(crate) struct Layer {
    feature: Feature,
    /// Of what it reads of a target's row.
    width: usize,
    max_drafts: usize,
    max_rows: usize,
    max_logit_rows: usize,
    max_model_len: usize,
    known: DraftCoverage,
    /// What it reads of the target's rows since the last plan, and of which sequences: positions, and the first row.
    fresh: Vec<f32>,
    fresh_of: Vec<(SeqId, Range<usize>, usize)>,
    /// Rows of the next pass that are spoken for, and how many offers they are for.
    spoken_for: usize,
    offered: usize,
    /// The sequences drafted in the last step, and from which position on by own rows: those are dropped.
    drafted: Vec<(SeqId, usize)>,
    lists: Lists,
    batch: Batch,
    /// What the batch's rows follow, and its own rows of the pass before.
    features: Vec<f32>,
    own: Vec<f32>,
    logit_row: Vec<f32>,
}

impl Layer {
    /// `feature` has a cache of the same blocks as the target's.
    pub(crate) fn new(feature: Feature, target: &dyn Forward, sizes: DraftSizes) -> Layer {
        let DraftSizes { max_drafts, max_rows, max_logit_rows, max_model_len, blocks, block_size } = sizes;
        Layer {
            width: feature.taps().len() * target.config().hidden_size,
            feature,
            max_drafts,
            max_rows,
            max_logit_rows,
            max_model_len,
            known: DraftCoverage::new(blocks, block_size),
            fresh: Vec::new(),
            fresh_of: Vec::new(),
            spoken_for: 0,
            offered: 0,
            drafted: Vec::new(),
            lists: Lists::default(),
            batch: Batch::default(),
            features: Vec::new(),
            own: Vec::new(),
            logit_row: vec![0.0; target.config().vocab_size],
        }
    }

    /// Its rows of a sequence, by position: one for each token but the first. The last of them drafts, so it is never
    /// known before.
    fn rows(sequence: &Sequence) -> usize {
        sequence.num_tokens() - 1
    }

    fn known_of(&self, sequence: &Sequence) -> usize {
        self.known.of(sequence).min(Layer::rows(sequence) - 1)
    }

    /// The positions of a sequence of which the target's rows are kept.
    fn fresh_of(&self, seq: SeqId) -> Option<(Range<usize>, usize)> {
        let found = self.fresh_of.iter().find(|(of, ..)| *of == seq);
        found.map(|(_, positions, row)| (positions.clone(), *row))
    }

    /// Rows of a sequence at these positions, each with the token after it.
    fn push(&mut self, sequence: &Sequence, positions: Range<usize>) {
        let fresh = self.fresh_of(sequence.id());
        for position in positions.clone() {
            let row = fresh.as_ref().filter(|(kept, _)| kept.contains(&position));
            match row.map(|(kept, first)| (first + position - kept.start) * self.width) {
                Some(at) => self.features.extend_from_slice(&self.fresh[at..at + self.width]),
                None => self.features.extend(std::iter::repeat_n(0.0, self.width)),
            }
        }
        push_span(sequence, &[], positions.clone(), 1, &mut self.batch);
        self.known.note(sequence, positions);
    }

    /// Fills the first pass: what is missing of those that are asked for; of the others, if it `reads` them, what can
    /// be read as it comes.
    fn catch_up(&mut self, asked: &[(&Sequence, usize)], reads: bool, of: &SequenceLookup<'_, '_>) {
        self.batch.clear();
        self.features.clear();
        for &(sequence, _) in asked {
            self.push(sequence, self.known_of(sequence)..Layer::rows(sequence));
            self.batch.logit_rows.push(self.batch.num_rows() as u32 - 1);
        }
        let others =
            self.fresh_of.iter().filter(|(seq, ..)| reads && asked.iter().all(|(other, _)| other.id() != *seq));
        let others: Vec<(SeqId, Range<usize>)> = others.map(|(seq, kept, _)| (*seq, kept.clone())).collect();
        for (seq, kept) in others {
            let Some(sequence) = of(seq) else { continue };
            let positions = kept.start..kept.end.min(Layer::rows(sequence));
            // A preempted sequence has no blocks; one with missing positions would draft from keys that are not there.
            let is_there = self.known.of(sequence) >= positions.start && self.known.holds(sequence, positions.end);
            if is_there && !positions.is_empty() {
                self.push(sequence, positions);
            }
        }
    }

    /// Fills a further pass: behind its own row of the one before, for sequences that continue. `rows`: where that row
    /// was.
    fn follow_own(&mut self, asked: &[(&Sequence, usize)], place: usize, rows: &mut [usize]) {
        let width = self.feature.hidden_size();
        let own = std::mem::take(&mut self.own);
        self.batch.clear();
        self.features.clear();
        for (index, &(sequence, count)) in asked.iter().enumerate() {
            if self.lists.continues(index, count, place) {
                let position = Layer::rows(sequence) - 1 + place;
                self.features.extend_from_slice(&own[rows[index] * width..][..width]);
                rows[index] = self.batch.num_rows();
                self.batch.logit_rows.push(self.batch.num_rows() as u32);
                push_span(sequence, self.lists.of(index), position..position + 1, 1, &mut self.batch);
                self.known.note(sequence, position..position + 1);
            }
        }
        self.own = own;
    }
}

impl DraftNetwork for Layer {
    fn begin(&mut self, of: &SequenceLookup<'_, '_>) {
        self.offered = 0;
        self.spoken_for = self.fresh_of.iter().map(|(_, kept, _)| kept.len()).sum();
        for (seq, own) in std::mem::take(&mut self.drafted) {
            if let Some(sequence) = of(seq) {
                self.known.forget_from(sequence, own);
            }
        }
    }

    fn propose(&mut self, sequence: &Sequence) -> Option<DraftProposal> {
        let missing = self.known_of(sequence)..Layer::rows(sequence);
        let kept = self.fresh_of(sequence.id()).map_or(0..0, |(kept, _)| kept);
        let fresh = kept.end.min(missing.end).saturating_sub(kept.start.max(missing.start));
        let more = missing.len() - fresh;
        let len = self.max_drafts.min(self.max_model_len.saturating_sub(sequence.num_tokens()));
        let has_room = self.offered < self.max_logit_rows && self.spoken_for + more <= self.max_rows;
        if len == 0 || more > MOST_MISSING || !has_room {
            return None;
        }
        self.offered += 1;
        self.spoken_for += more;
        Some(DraftProposal { seq: sequence.id(), source: SOURCE, len: len as u16, strength: 0 })
    }

    fn start_over(&mut self) {
        self.drafted.clear();
        self.fresh.clear();
        self.fresh_of.clear();
    }

    fn follow(&mut self, step: &Step, of: &SequenceLookup<'_, '_>) {
        let copies = self.known.follow(step, of);
        if !copies.is_empty() {
            self.feature.copy_blocks(&copies);
        }
    }

    fn draft(
        &mut self,
        _: &Step,
        asked: &[(&Sequence, usize)],
        reads: bool,
        of: &SequenceLookup<'_, '_>,
        draw: &mut Draw<'_>,
    ) -> Result<(), DeviceError> {
        self.lists.clear(asked.len());
        self.drafted.extend(asked.iter().map(|(sequence, _)| (sequence.id(), Layer::rows(sequence))));
        self.catch_up(asked, reads, of);
        // By asked sequence: where its row is among those with logits.
        let mut rows: Vec<usize> = (0..asked.len()).collect();
        let mut place = 0;
        while self.batch.num_rows() > 0 {
            let features = match place {
                0 => Features::Tapped(&self.features),
                _ => Features::Own(&self.features),
            };
            self.feature.forward(&self.batch, features)?;
            let wanted = self.batch.logit_rows.len();
            self.own.resize(wanted * self.feature.hidden_size(), 0.0);
            self.feature.read_hidden(0..wanted, &mut self.own)?;
            for (index, &(sequence, count)) in asked.iter().enumerate() {
                if self.lists.continues(index, count, place) {
                    self.feature.read_logits(rows[index], &mut self.logit_row)?;
                    self.lists.push(index, draw(sequence, self.lists.of(index), &mut self.logit_row));
                }
            }
            place += 1;
            self.follow_own(asked, place, &mut rows);
        }
        self.fresh.clear();
        self.fresh_of.clear();
        Ok(())
    }

    fn drafted(&self, index: usize) -> &[u32] {
        self.lists.of(index)
    }

    fn landed(&mut self, pass: &TargetPass<'_>, target: &mut dyn Forward) -> Result<(), DeviceError> {
        let (held, rows) = (self.fresh.len(), pass.batch.num_rows());
        self.fresh.resize(held + rows * self.width, 0.0);
        target.read_tapped(pass.logits, 0..rows, &mut self.fresh[held..])?;
        for (span, &seq) in pass.batch.spans.iter().zip(pass.seqs) {
            let start = span.start as usize;
            let first = held / self.width + span.first_row as usize;
            self.fresh_of.push((seq, start..start + span.num_rows as usize, first));
        }
        Ok(())
    }
}

/// A layer as a model without a target: it reads zeros for the target's rows. To measure its passes.
pub(crate) struct Alone<'a> {
    feature: &'a mut Feature,
    target: &'a mut dyn Forward,
    width: usize,
    block_size: usize,
    zeros: Vec<f32>,
    passes: u64,
}

impl<'a> Alone<'a> {
    pub(crate) fn new(feature: &'a mut Feature, target: &'a mut dyn Forward, block_size: usize) -> Alone<'a> {
        let width = feature.taps().len() * target.config().hidden_size;
        Alone { feature, target, width, block_size, zeros: Vec::new(), passes: 0 }
    }
}

impl Forward for Alone<'_> {
    fn config(&self) -> &ModelConfig {
        self.target.config()
    }

    fn launch(&mut self, batch: &Batch) -> Result<Ticket, DeviceError> {
        self.zeros.resize(batch.num_rows() * self.width, 0.0);
        self.feature.forward(batch, Features::Tapped(&self.zeros))?;
        self.passes += 1;
        Ok(Ticket::new(self.passes, batch.logit_rows.len()))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Logits, DeviceError> {
        Ok(ticket.done())
    }

    fn read_logits(&mut self, _logits: &Logits, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.feature.read_logits(row, out)
    }

    fn set_compute_thread(&self) {
        self.target.set_compute_thread();
    }

    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.target.share_out(count, work);
    }

    fn lost(&self) -> Option<LostCpuTime> {
        self.target.lost()
    }

    fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        self.feature.copy_blocks(copies);
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Arc<dyn HostBuffer> {
        self.target.host_buffer(bytes)
    }

    fn save_block(&self, block: u32, to: &mut dyn HostBuffer) {
        self.feature.save_block(block, to);
    }

    fn load_block(&mut self, from: &dyn HostBuffer, block: u32) {
        self.feature.load_block(from, block);
    }

    fn submit(&self) -> Result<(), DeviceError> {
        self.target.submit()
    }

    fn block_bytes(&self) -> usize {
        self.feature.block_bytes()
    }

    fn weight_bytes(&self) -> usize {
        self.feature.weight_bytes()
    }

    fn expert_bytes(&self) -> usize {
        0
    }

    fn kv_bytes_per_token(&self) -> usize {
        self.feature.block_bytes() / self.block_size
    }

    fn describe(&self) -> String {
        format!("a layer behind {}", self.target.describe())
    }

    fn device(&self) -> DeviceInfo {
        self.target.device()
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.target.limits(seconds)
    }
}
