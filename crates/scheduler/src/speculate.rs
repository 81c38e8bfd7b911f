//! Chooses how many draft tokens a step verifies (speculative decoding).
//!
//! ```text
//! proposed, with probability     A .9 .8 .7 .6      B .5 .2      C -         (that it and all before it are accepted)
//! taken in decreasing order      A1 A2 A3 A4 B1 | B2                         while tokens per second do not fall
//! rows of the step               A: its last token, 4 drafts   B: 1 draft   C: none   and the prompt rows
//! ```
//!
//! A decode step reads every weight for one row of each stream while compute idles: further rows are cheap up to the
//! knee of the cost model's curve. A rejected draft costs only time, because a sampled token depends on its own history
//! alone.
//!
//! The rule: let `T` be the predicted time of the planned step and `G = (expected tokens + prompt rows) / T`. Drafts
//! are taken in decreasing probability while `G` does not fall, `T` stays within the allowance of running streams, and
//! rows and blocks last. A prompt row counts as one certain token, so in a compute-bound step no draft beats it. Beyond
//! the knee `G` falls with every draft whose probability is below one, so none is verified without gain (goodput as the
//! measure: Liu et al., "Optimizing speculative decoding for serving large language models using goodput", 2024).
//!
//! Drafts come last: they never preempt, and take no block that another sequence will need. Probabilities are learned
//! from acceptance by drafter, confidence level and position in the draft, in integers, so that a replay chooses the
//! same.

use alloc::collections::BinaryHeap;
use alloc::collections::binary_heap::PeekMut;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::decode::is_protected;
use crate::draft::{AcceptanceCounts, DraftProposal, SURE};
use crate::kv::Taker;
use crate::sequence::{Phase, Sequence};
use crate::state::State;
use crate::{BestDrafts, NoDraftReason, Scheduler, SeqId, Step, Work};
use protocol::Nanos;

/// Maximum drafts of one sequence in a step.
const MOST_DRAFTS: usize = 32;
/// Positions in a draft with separate statistics.
const POSITIONS: usize = 8;
/// Prior: an unknown drafter has acceptance 1/2, with the weight of this many drafts.
const PRIOR: u64 = 2;
/// Weight of the global statistics, in drafts, beside a sequence's own.
const GENERAL: u64 = 8;
/// Counts are halved at this many drafts, so that old ones lose weight.
const MEMORY: u32 = 256;
const OWN_MEMORY: u32 = 64;
/// Steps without drafts after which one is verified anyway: a drafter may have improved.
const RETRY: u32 = 64;

/// Acceptance statistics of all drafters.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptanceModel {
    counts: [[[AcceptanceCounts; POSITIONS]; DraftProposal::STRENGTHS]; DraftProposal::SOURCES],
    /// Steps since a draft was last verified.
    unpaid: u32,
}

impl AcceptanceModel {
    /// The probability that the draft at `place` is accepted if all before it are.
    fn of(&self, proposal: &DraftProposal, place: usize, own: &AcceptanceCounts) -> u64 {
        let of_strength = &self.counts[proposal.source.0 as usize][proposal.strength as usize];
        let general = of_strength[place.min(POSITIONS - 1)].chance(SURE / 2, PRIOR);
        own.chance(general, GENERAL)
    }

    /// The highest probability of a first draft, over all drafters.
    fn best_first_draft(&self) -> u64 {
        self.counts.iter().flatten().map(|places| places[0].chance(SURE / 2, PRIOR)).max().expect("there are sources")
    }

    fn count_unpaid(&mut self) {
        self.unpaid = self.unpaid.saturating_add(1);
    }

    /// Every [`RETRY`] steps without a draft, whether or not any was proposed.
    fn is_retry_due(&self) -> bool {
        self.unpaid > 0 && self.unpaid.is_multiple_of(RETRY)
    }

    /// Records that the first `held` of `drafts` were accepted.
    fn learn(&mut self, proposal: &DraftProposal, drafts: usize, held: usize, own: &mut AcceptanceCounts) {
        let of_strength = &mut self.counts[proposal.source.0 as usize][proposal.strength as usize];
        // Drafts behind the first rejected one were not verified.
        for place in 0..drafts.min(held + 1) {
            of_strength[place.min(POSITIONS - 1)].note(place < held, MEMORY);
            own.note(place < held, OWN_MEMORY);
        }
    }
}

/// A sequence with a proposal, while a step is planned.
struct DraftCandidate {
    proposal: DraftProposal,
    own: AcceptanceCounts,
    /// Index of its rows among the step's decode rows, and among all rows.
    decode: usize,
    row: usize,
    /// Drafts that fit.
    most: usize,
    /// Drafts taken.
    taken: usize,
}

/// Proposals, statistics and reused buffers.
#[derive(Default)]
pub(crate) struct Speculation {
    /// Sequences with a [`Sequence::proposal`] for the next plan.
    proposed: Vec<SeqId>,
    acceptance: AcceptanceModel,
    candidates: Vec<DraftCandidate>,
    /// Work of the drafter's forward passes, by draft position.
    passes: Vec<Work>,
    /// The next draft of each sequence: cumulative probability, then order in the plan.
    next: BinaryHeap<(u64, Reverse<usize>)>,
    order: Vec<usize>,
}

impl Scheduler {
    /// Proposes drafts for a sequence in the next step; dropped by the next plan, which uses them if the sequence
    /// decodes. Of several proposals for one sequence the one with the highest token rate for a lone stream wins, of
    /// equals the first; proposals for sequences that are gone or in flight are ignored. Panics if source or strength
    /// is out of range.
    pub fn propose(&mut self, proposal: DraftProposal) {
        let is_known = usize::from(proposal.source.0) < DraftProposal::SOURCES
            && usize::from(proposal.strength) < DraftProposal::STRENGTHS;
        assert!(is_known, "{proposal:?} is out of range");
        let Some(seq) = self.state.seqs.get(proposal.seq).filter(|seq| !seq.is_busy()) else { return };
        match seq.proposal {
            Some(other) if self.rate(&proposal, seq) <= self.rate(&other, seq) => return,
            Some(_) => {}
            None => self.speculation.proposed.push(proposal.seq),
        }
        self.state.seqs.get_mut(proposal.seq).expect("it was just seen").proposal = Some(proposal);
    }

    /// Tokens per second of a lone stream with the best number of these drafts.
    fn rate(&self, proposal: &DraftProposal, seq: &Sequence) -> f64 {
        let context = seq.num_tokens();
        let (mut work, mut passes, mut drafting) = (Work::default(), Work::default(), 0.0);
        work.add_decode(context);
        passes.add_decode(context);
        let (mut chance, mut tokens, mut best) = (SURE, SURE, 0.0);
        for place in 0..usize::from(proposal.len).min(MOST_DRAFTS) {
            chance = chance * self.speculation.acceptance.of(proposal, place, &seq.acceptance) / SURE;
            tokens += chance;
            work.add_draft(context);
            drafting += self.policy.drafting_seconds(proposal.source, &passes);
            let rate = tokens as f64 / (self.policy.seconds(&work) + drafting);
            if rate <= best {
                break;
            }
            best = rate;
        }
        best
    }

    /// Sequences that could have drafts in the next step, in rank order: decoding, not in flight, with more than one
    /// token to go.
    pub fn decoding(&self) -> impl Iterator<Item = &Sequence> {
        let may_have = |seq: &&Sequence| {
            seq.phase() == Phase::Decode && !seq.is_busy() && seq.tokens_to_go(&self.state.limits) > 1
        };
        self.state.running().filter(may_have)
    }

    /// Whether the next step may take drafts at all, if the current decoding set stays: the best known drafter would
    /// pay, or a retry is due. Lets drafters skip work in compute-bound steps. Cost: five predictions, and a division
    /// each.
    pub fn wants_proposals(&self) -> bool {
        let acceptance = &self.speculation.acceptance;
        if self.policy.cost.is_none() || acceptance.is_retry_due() {
            return true;
        }
        let prior = acceptance.best_first_draft();
        let (mut work, mut chance, mut context) = (Work::default(), 0, 0);
        for seq in self.decoding() {
            work.add_decode(seq.num_tokens());
            chance = chance.max(seq.acceptance.chance(prior, GENERAL));
            context = context.max(seq.num_tokens());
        }
        let mut best = BestDrafts::new((work.rows() as u64 * SURE) as f64, self.policy.seconds(&work));
        loop {
            work.add_draft(context);
            let may_go_on = best.add(chance as f64, self.policy.seconds(&work));
            if best.count() > 0 || !may_go_on {
                return best.count() > 0;
            }
        }
    }

    /// Plans drafts in the rows, time and blocks that the step has left.
    pub(crate) fn plan_drafts(&mut self, bound: Option<Nanos>, step: &mut Step) {
        let mut speculation = core::mem::take(&mut self.speculation);
        self.find_candidates(&mut speculation, step);
        let mut rows_left = self.state.limits.max_num_batched_tokens - step.num_rows();
        if self.state.limits.states.is_some() {
            rows_left = rows_left.min(self.state.spare_states()); // each draft leaves a state
        }
        if speculation.candidates.is_empty() {
            speculation.acceptance.count_unpaid();
        } else {
            let reason = self.choose(&mut speculation, rows_left, bound, step);
            self.plan.record.drafting = self.drafting_of(&speculation);
            let mut spare = None;
            for candidate in speculation.candidates.iter().filter(|candidate| candidate.taken > 0) {
                self.take_drafts(candidate, &mut spare, step);
            }
            if step.decode.iter().all(|rows| rows.drafts == 0) {
                self.plan.record.no_drafts = reason.or(Some(NoDraftReason::Blocks));
            }
        }
        for id in speculation.proposed.drain(..) {
            if let Some(seq) = self.state.seqs.get_mut(id)
                && seq.drafts_in_flight == 0
            {
                seq.proposal = None;
            }
        }
        self.speculation = speculation;
    }

    fn find_candidates(&self, speculation: &mut Speculation, step: &Step) {
        let Speculation { proposed, candidates, .. } = speculation;
        candidates.clear();
        if proposed.is_empty() {
            return;
        }
        let mut rows = self.plan.rows.iter().enumerate();
        for (decode, planned) in step.decode.iter().enumerate() {
            let (row, _) = rows.find(|(_, rows)| rows.seq == planned.seq).expect("what is planned is in the plan");
            let seq = &self.state.seqs[planned.seq];
            let Some(proposal) = seq.proposal else { continue };
            let in_block = seq.table.capacity() - (planned.start + planned.len);
            // At most one more block; whether one is free is checked when it is taken.
            let room = in_block + seq.table.block_size();
            let most =
                usize::from(proposal.len).min(seq.tokens_to_go(&self.state.limits) - 1).min(room).min(MOST_DRAFTS);
            if most > 0 {
                candidates.push(DraftCandidate { proposal, own: seq.acceptance, decode, row, most, taken: 0 });
            }
        }
    }

    /// Applies the module's rule. Returns the reason if no draft is taken. Cost: a prediction per draft taken, and a
    /// few more.
    fn choose(
        &self,
        speculation: &mut Speculation,
        rows_left: usize,
        bound: Option<Nanos>,
        step: &Step,
    ) -> Option<NoDraftReason> {
        if rows_left == 0 {
            return Some(NoDraftReason::Rows);
        }
        let Speculation { acceptance, candidates, passes, next, order, .. } = speculation;
        passes.clear();
        passes.resize(MOST_DRAFTS, Work::default());
        order.clear();
        // Heapified at once, in the existing buffer.
        let mut firsts = core::mem::take(next).into_vec();
        firsts.clear();
        let first = |(index, candidate): (usize, &DraftCandidate)| {
            (acceptance.of(&candidate.proposal, 0, &candidate.own), Reverse(index))
        };
        firsts.extend(candidates.iter().enumerate().map(first));
        *next = BinaryHeap::from(firsts);
        let most_seconds = bound.map_or(f64::INFINITY, Nanos::as_secs_f64);
        let mut work = self.plan.record.work;
        let mut drafting = 0.0;
        let mut best = BestDrafts::new((step.num_rows() as u64 * SURE) as f64, self.policy.seconds(&work));
        while let Some(mut next_draft) = next.peek_mut() {
            let (chance, Reverse(index)) = *next_draft;
            let candidate = &mut candidates[index];
            let context = step.decode[candidate.decode].start + 1 + candidate.taken + 1;
            work.add_draft(context);
            drafting += self.policy.add_pass_row(candidate.proposal.source, &mut passes[candidate.taken], context);
            let took = self.policy.seconds(&work) + drafting;
            if order.len() == rows_left || took > most_seconds {
                break;
            }
            order.push(index);
            candidate.taken += 1;
            if !best.add(chance as f64, took) {
                break;
            }
            if candidate.taken < candidate.most {
                let further = acceptance.of(&candidate.proposal, candidate.taken, &candidate.own);
                next_draft.0 = chance * further / SURE;
            } else {
                PeekMut::pop(next_draft);
            }
        }
        order.iter().skip(best.count()).for_each(|&index| candidates[index].taken -= 1);
        if best.count() > 0 {
            acceptance.unpaid = 0;
        } else {
            acceptance.count_unpaid();
        }
        if let Some(&first) = order.first()
            && acceptance.unpaid >= RETRY
        {
            candidates[first].taken = 1;
            acceptance.unpaid = 0;
            return None;
        }
        // The first draft fits, so it was not worth its row.
        let reason = if order.is_empty() { NoDraftReason::Time } else { NoDraftReason::Chance };
        (best.count() == 0).then_some(reason)
    }

    /// Predicted drafting time: one forward pass per draft position.
    fn drafting_of(&self, speculation: &Speculation) -> Nanos {
        let Some((source, _)) = self.policy.drafting else { return Nanos(0) };
        let of_source = speculation.candidates.iter().filter(|candidate| candidate.proposal.source == source);
        let passes = of_source.clone().map(|candidate| candidate.taken).max().unwrap_or(0);
        let seconds = (0..passes).map(|place| {
            let mut pass = Work::default();
            let rows = of_source.clone().filter(|candidate| candidate.taken > place);
            rows.for_each(|candidate| pass.add_decode(self.state.seqs[candidate.proposal.seq].num_tokens() + place));
            self.policy.drafting_seconds(source, &pass)
        });
        Nanos((seconds.sum::<f64>() * 1e9) as u64)
    }

    /// Turns drafts into rows, as far as there are slots. `spare`: [`State::spare_blocks`], computed once.
    fn take_drafts(&mut self, candidate: &DraftCandidate, spare: &mut Option<isize>, step: &mut Step) {
        let planned = &mut step.decode[candidate.decode];
        let seq = &self.state.seqs[planned.seq];
        let mut drafts = candidate.taken;
        let in_block = seq.table.capacity() - (planned.start + planned.len);
        if drafts > in_block {
            let spare = spare.get_or_insert_with(|| self.state.spare_blocks());
            let own = self.state.kept_for(seq);
            if *spare + own > 0 {
                let block = self.state.pool.take(Taker::of(&seq.request)).expect("there is room for it");
                self.state.seqs[planned.seq].table.push(block);
                *spare += own - 1 - self.state.kept_for(&self.state.seqs[planned.seq]);
            } else {
                drafts = in_block;
            }
        }
        if drafts == 0 {
            return;
        }
        (planned.len, planned.drafts) = (1 + drafts, drafts);
        let seq = &mut self.state.seqs[planned.seq];
        seq.rows_in_flight = planned.len;
        seq.drafts_in_flight = drafts;
        self.plan.rows[candidate.row] = *planned;
        let record = &mut self.plan.record;
        (record.decode[candidate.decode].len, record.decode[candidate.decode].drafts) = (planned.len, drafts);
        (1..=drafts).for_each(|draft| record.work.add_draft(planned.start + draft + 1));
    }

    /// Records the acceptance of a sequence's drafts.
    pub(crate) fn record_acceptance(&mut self, id: SeqId, drafts: usize, held: usize) {
        let seq = &mut self.state.seqs[id];
        if let Some(proposal) = seq.proposal.take() {
            self.speculation.acceptance.learn(&proposal, drafts, held, &mut seq.acceptance);
        }
    }
}

impl State {
    /// Free blocks beyond reservations and headroom of growing sequences; negative if there are fewer.
    fn spare_blocks(&self) -> isize {
        let growing = self.running().filter(|seq| !is_protected(seq));
        let headroom: isize = growing.map(|seq| self.kept_for(seq)).sum();
        self.pool.num_free() as isize - self.reserved_blocks() as isize - headroom
    }

    /// Free blocks that only this sequence may take: its reservation, or its headroom.
    fn kept_for(&self, seq: &Sequence) -> isize {
        let to_go = self.blocks_to_end(seq).saturating_sub(seq.table.len());
        (if is_protected(seq) { to_go } else { to_go.min(1) * seq.num_seats() }) as isize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DraftSource;
    use crate::sequence::Sequences;

    #[test]
    fn chances_follow_what_holds_and_forget() {
        let (mut acceptance, mut own) = (AcceptanceModel::default(), AcceptanceCounts::default());
        let proposal =
            DraftProposal { seq: Sequences::default().next_id(), source: DraftSource(1), len: 8, strength: 3 };
        let percent = |acceptance: &AcceptanceModel, own: &AcceptanceCounts, place| {
            acceptance.of(&proposal, place, own) * 100 / SURE
        };
        assert_eq!(percent(&acceptance, &own, 0), 50, "nothing is known");
        // The first draft is always accepted, the second never.
        (0..300).for_each(|_| acceptance.learn(&proposal, 2, 1, &mut AcceptanceCounts::default()));
        assert!(percent(&acceptance, &own, 0) > 95 && percent(&acceptance, &own, 1) < 5);
        // A sequence's own outcomes gain weight.
        (0..100).for_each(|_| acceptance.learn(&proposal, 1, 0, &mut own));
        assert!(percent(&acceptance, &own, 0) < 20);
        assert!(percent(&acceptance, &AcceptanceCounts::default(), 0) > 30, "others are not judged by it alone");
        // Statistics are separate by strength and source.
        let other = DraftProposal { strength: 2, ..proposal };
        assert_eq!(acceptance.of(&other, 0, &AcceptanceCounts::default()), SURE / 2);
        let other = DraftProposal { source: DraftSource(0), ..proposal };
        assert_eq!(acceptance.of(&other, 0, &AcceptanceCounts::default()), SURE / 2);
    }
}
