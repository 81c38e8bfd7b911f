//! Plans prompt chunks and admits waiting sequences.
//!
//! ```text
//! rows of the step  [ decode rows | chunk of A | chunk of B |  ]
//!                                  <- at most max_prefill_chunk rows each, max_prefill_seqs of them ->
//! ```
//!
//! Prompt chunks share the step with decode (Sarathi-Serve: Agrawal et al., OSDI 2024); requests enter and leave at any
//! step (iteration-level scheduling, Orca: Yu et al., OSDI 2022). Both limits matter: many short prompts in a step
//! stall decode as much as one long one.
//!
//! Order: by tenant ([`crate::fairness`]), then class, then arrival. A waiting sequence enters only if it gets a block
//! for *every* token it knows, and none enters ahead of one that does not fit: waiting sequences hold nothing, so they
//! cannot deadlock on each other's blocks. Admission never preempts. While others run, one more free block per growing
//! sequence must remain, or the newcomer would soon be preempted for their growth.
//!
//! No starvation: after [`crate::policy::MAX_PASSED_OVER`] steps in which prompts advanced but the oldest did not, the oldest
//! goes first, regardless of class and tenant.

use crate::cost::PromptRows;
use crate::decode::is_protected;
use crate::kv::{FullBlock, Hit, Location, blocks_for};
use crate::pace::{self, Candidate, StepClock};
use crate::policy::{LOOKAHEAD, NEWEST};
use crate::sequence::{Rank, Status};
use crate::state::State;
use crate::swap::TierHits;
use crate::{BlockId, Blocked, Limits, Phase, Rows, Scheduler, SeqId, Sequence, Step};
use protocol::Nanos;

/// A step may always grow by this factor for prompts, regardless of targets, so that prompts advance.
const LEAST_GROWTH: f64 = 1.1;

/// Remaining budget of a step after decode and the prompts so far.
#[derive(Clone, Copy)]
struct StepBudget {
    rows: usize,
    prompts: usize,
    /// Whether waiting sequences may still enter.
    admission_open: bool,
    /// Time limit of the step, if any.
    bound: Option<Nanos>,
    /// Prompt rows per second within this limit; infinite without a cost model.
    rows_per_second: f64,
}

impl Scheduler {
    /// Plans prompt chunks in the rows and time that decode left: the oldest prompt first if it was passed over too
    /// often, then by tenant, and within a tenant by deadline or rank.
    pub(crate) fn plan_prefill(&mut self, now: Nanos, bound: Option<Nanos>, step: &mut Step) {
        let mut budget = StepBudget {
            rows: self.state.limits.max_num_batched_tokens - step.num_rows(),
            prompts: self.state.limits.max_prefill_seqs,
            // No admission in a step with preemptions.
            admission_open: step.preempted.is_empty(),
            bound: bound.map(|bound| self.at_least_some_growth(bound)),
            rows_per_second: f64::INFINITY,
        };
        self.plan.record.blocked = Some(if budget.admission_open { Blocked::Budget } else { Blocked::Kv });
        self.plan.started.clear();
        let is_prompt = |seq: &Sequence| seq.phase() == Phase::Prefill && !seq.is_busy();
        self.plan.started.extend(self.state.running.iter().filter(|(_, id)| is_prompt(&self.state.seqs[*id])));
        let oldest = self.oldest_prompt();
        if let Some(oldest) = oldest.filter(|&oldest| self.policy.starvation_guard.must_go_first(oldest)) {
            self.advance_prompt(oldest, &mut budget, step);
        }
        match self.policy.cost {
            Some(_) => self.advance_by_deadline(now, &mut budget, step),
            None => self.advance_by_rank(&mut budget, step),
        }
        let oldest_advanced = oldest.is_some_and(|id| self.state.seqs[id].rows_in_flight > 0);
        self.policy.starvation_guard.note(oldest, !step.prefill.is_empty(), oldest_advanced);
    }

    /// The bound, raised so that prompts advance even where decode alone exceeds it.
    fn at_least_some_growth(&self, bound: Nanos) -> Nanos {
        let decode = self.policy.cost.as_ref().map_or(0.0, |cost| cost.seconds(&self.plan.record.work));
        bound.max(Nanos((decode * LEAST_GROWTH * 1e9) as u64))
    }

    fn advance_by_rank(&mut self, budget: &mut StepBudget, step: &mut Step) {
        while budget.rows > 0 && budget.prompts > 0 {
            let started = self.plan.started.iter().copied().filter(|&(_, id)| self.state.seqs[id].rows_in_flight == 0);
            let waiting = self.state.queue.firsts().filter(|&(_, id)| self.may_enter(id, budget));
            let key = |&(rank, id): &(Rank, SeqId)| (self.state.tenants.key(&self.state.seqs[id]), rank);
            let next = started.chain(waiting).min_by_key(key);
            let Some((_, id)) = next else { return self.note_seats(budget) };
            self.advance_prompt(id, budget, step);
        }
    }

    /// Sequences wait although the step has rows left: if admission is open, the bottleneck is seats.
    fn note_seats(&mut self, budget: &StepBudget) {
        if budget.admission_open {
            self.plan.record.blocked = Some(Blocked::Seats);
        }
    }

    /// Whether this waiting sequence may enter; it may have to leave the last seat to another tenant.
    fn may_enter(&self, id: SeqId, budget: &StepBudget) -> bool {
        budget.admission_open && !self.state.leaves_last_seat(&self.state.seqs[id])
    }

    fn advance_by_deadline(&mut self, now: Nanos, budget: &mut StepBudget, step: &mut Step) {
        let mut candidates = core::mem::take(&mut self.plan.candidates);
        candidates.clear();
        budget.rows_per_second = self.prefill_rate(budget);
        let started = self.plan.started.iter().map(|&(_, id)| id);
        for id in started.chain(self.state.queue.firsts_evenly(LOOKAHEAD)) {
            candidates.push(self.candidate(id, budget));
        }
        let newest = self.state.queue.newest_evenly(LOOKAHEAD, NEWEST).map(|id| self.candidate(id, budget));
        candidates.extend(newest.filter(|candidate| candidate.due.is_some() && !candidate.resumes));
        if candidates.len() > 1 {
            let most = budget.rows.min(self.state.limits.max_prefill_chunk) as f64 / budget.rows_per_second;
            let step_seconds = budget.bound.map_or(most, |bound| most.min(bound.as_secs_f64()));
            pace::order(&mut candidates, &mut self.policy.late, &StepClock { now, step_seconds });
        }
        self.slow_down(&candidates, now, budget);
        let mut leaves_seat = false;
        for (index, candidate) in candidates.iter().enumerate() {
            if budget.rows == 0 || budget.prompts == 0 || !self.has_time(budget) {
                break;
            }
            let waits = |other: &Candidate| self.state.seqs[other.seq].status == Status::Waiting;
            // A sequence that leaves a seat to another tenant must not lose it to a later one of its own tenant.
            let waits_ahead = |other: &Candidate| other.has_same_tenant_as(candidate) && waits(other);
            let is_behind = leaves_seat && candidates[..index].iter().any(waits_ahead);
            if !waits(candidate) || !is_behind && self.may_enter(candidate.seq, budget) {
                self.advance_prompt(candidate.seq, budget, step);
            } else {
                leaves_seat = true;
                self.note_seats(budget);
            }
        }
        for candidate in &candidates {
            let (rows, most) =
                (self.state.seqs[candidate.seq].rows_in_flight, self.state.limits.max_num_batched_tokens);
            self.policy.late.charge(candidate, rows, most);
        }
        self.plan.candidates = candidates;
    }

    /// Caps the step at half of the streams' allowance, or at what is almost free beside its memory-bound decode rows,
    /// if every prompt meets its deadline anyway. Beyond that a prompt row costs the streams its full compute time, and
    /// a burst would leave compute idle in later steps. (Less than half gains nothing in the loads of `sim`'s example
    /// goodput and delays first tokens: where steps are much shorter than the target, a prompt would trickle.)
    fn slow_down(&self, candidates: &[Candidate], now: Nanos, budget: &mut StepBudget) {
        let Some(bound) = budget.bound.filter(|_| !candidates.is_empty()) else { return };
        // The starvation guard's prompt is in the work already, which raises the bound.
        let gentle = StepBudget { bound: Some(self.at_least_some_growth(Nanos(bound.0 / 2)).min(bound)), ..*budget };
        let slower = budget.rows_per_second / self.prefill_rate(&gentle);
        if pace::have_time(candidates, slower, now) {
            budget.bound = gentle.bound;
        }
    }

    fn candidate(&self, id: SeqId, budget: &StepBudget) -> Candidate {
        let seq = &self.state.seqs[id];
        Candidate {
            seq: id,
            priority: seq.rank.priority,
            tenant: seq.request.tenant,
            key: self.state.tenants.key(seq),
            rows: seq.num_uncomputed(),
            arrival: (seq.rank.arrival, seq.rank.answer),
            resumes: seq.num_generated() > 0,
            is_overdue: false,
            runs: seq.status == Status::Running,
            due: seq.request.targets.ttft.map(|ttft| Nanos(seq.request.arrived.0.saturating_add(ttft.0))),
            seconds: seq.num_uncomputed() as f64 / budget.rows_per_second,
        }
    }

    /// Prompt rows per second in this step.
    fn prefill_rate(&self, budget: &StepBudget) -> f64 {
        let Some(cost) = &self.policy.cost else { return f64::INFINITY };
        let mut work = self.plan.record.work;
        let most = budget.rows.min(self.state.limits.max_prefill_chunk).max(1);
        let rows = budget.bound.map_or(most, |bound| cost.rows_within(&work, PromptRows::first(most), bound).max(1));
        work.add_chunk(0, rows, false);
        rows as f64 / cost.seconds(&work).max(1e-9)
    }

    /// Whether one more prompt row fits the time limit.
    fn has_time(&self, budget: &StepBudget) -> bool {
        let (Some(cost), Some(bound)) = (&self.policy.cost, budget.bound) else { return true };
        self.plan.record.prefill.is_empty() || cost.rows_within(&self.plan.record.work, PromptRows::first(1), bound) > 0
    }

    /// Plans a chunk of one prompt, which enters first if it waits. If it does not fit, admission closes.
    fn advance_prompt(&mut self, id: SeqId, budget: &mut StepBudget, step: &mut Step) {
        let seq = &self.state.seqs[id];
        if self.state.limits.whole_prompts && seq.num_uncomputed() > budget.rows {
            // It is the next step's first: none goes ahead of it.
            budget.admission_open = false;
            self.plan.record.blocked = Some(Blocked::Budget);
            return;
        }
        if seq.status == Status::Waiting {
            if !budget.admission_open || self.expect_remote_blocks(id, step) {
                return;
            }
            if let Err(blocked) = self.enter(id, step) {
                budget.admission_open = false;
                self.plan.record.blocked = Some(blocked);
                return;
            }
        } else if seq.rows_in_flight > 0 || seq.is_in_remote_prefill() {
            return; // the starvation guard put it first
        }
        if self.state.seqs[id].is_loading() {
            return; // its loads must end first
        }
        if self.state.seqs[id].phase() == Phase::Decode {
            // It resumes, and all but its last token is cached.
            self.plan_decode_row(id, step);
            budget.rows -= 1;
        } else {
            budget.rows -= self.plan_chunk(id, budget, step);
            budget.prompts -= 1;
        }
    }

    /// The unfinished prompt that arrived first, running or waiting.
    fn oldest_prompt(&self) -> Option<SeqId> {
        let started = self.plan.started.iter().map(|&(_, id)| id);
        started.chain(self.state.queue.oldest()).min_by_key(|&id| {
            let rank = self.state.seqs[id].rank;
            (rank.arrival, rank.answer)
        })
    }

    /// Admits a waiting sequence with all its blocks, or changes nothing. Tier hits are added to the step's loads.
    fn enter(&mut self, id: SeqId, step: &mut Step) -> Result<(), Blocked> {
        if !self.state.has_seats(&self.state.seqs[id]) {
            return Err(Blocked::Seats);
        }
        self.find_prefix(id);
        if !self.state.fits(&self.state.seqs[id], &self.plan.hits) {
            return Err(Blocked::Kv);
        }
        self.note_miss(id);
        self.state.enter(id, &self.plan.hits, &mut step.loads);
        Ok(())
    }

    /// Finds the longest cached prefix of the known tokens, into `self.plan.hits`. Hits from the first one in a tier on
    /// are kept only if loading beats recompute or recompute is not allowed.
    pub(crate) fn find_prefix(&mut self, id: SeqId) {
        self.plan.hits.clear();
        let seq = &mut self.state.seqs[id];
        if !(self.state.limits.enable_prefix_caching && seq.request.use_prefix_cache) {
            return;
        }
        let salt = seq.request.salt;
        for index in 0..seq.num_blocks_to_look_up() {
            let (hash, tokens) = seq.content(index, &self.state.hasher);
            let parent = self.plan.hits.last().map(|hit| hit.name);
            let Some(hit) = self.state.pool.find(&FullBlock { hash, parent, salt, tokens }) else { break };
            self.plan.hits.push(hit);
        }
        self.cut_to_checkpoint(id);
        let mut in_tiers = [0, 0];
        for hit in &self.plan.hits {
            if let Location::Slot(slot) = hit.place {
                in_tiers[slot.tier as usize] += 1;
            }
        }
        let seq = &self.state.seqs[id];
        if in_tiers != [0, 0] && !seq.prompt_is_remote {
            let block_size = self.state.limits.block_size;
            let in_pool = self.plan.hits.iter().take_while(|hit| hit.block().is_some()).count();
            let (start, tokens) = (in_pool * block_size, (self.plan.hits.len() - in_pool) * block_size);
            if !self.policy.is_worth_loading(&TierHits { blocks: in_tiers, start, tokens }) {
                self.plan.hits.truncate(in_pool);
                self.cut_to_checkpoint(id);
            }
        }
    }

    fn plan_chunk(&mut self, id: SeqId, budget: &StepBudget, step: &mut Step) -> usize {
        let seq = &self.state.seqs[id];
        let (start, uncomputed) = (seq.num_computed(), seq.num_uncomputed());
        let mut len = chunk_len(uncomputed, budget.rows, &self.state.limits);
        if let (Some(cost), Some(bound)) = (&self.policy.cost, budget.bound) {
            let rows = PromptRows { start, most: len, uncomputed };
            len = cost.rows_within(&self.plan.record.work, rows, bound).max(1);
        }
        let samples = if len == seq.num_uncomputed() { seq.num_samples() } else { 0 };
        self.plan.record.recomputed_rows += seq.most_computed.saturating_sub(start).min(len);
        let rows = Rows { seq: id, start, len, samples, drafts: 0 };
        let row = self.plan_rows(rows);
        self.plan.record.work.add_chunk(start, len, samples > 0);
        self.plan.record.prefill.push(row);
        step.prefill.push(rows);
        len
    }
}

/// Queries of prefill. They change nothing.
impl State {
    /// Whether there is a seat for each answer of a waiting sequence.
    fn has_seats(&self, seq: &Sequence) -> bool {
        self.seats_taken() + seq.num_seats() <= self.limits.max_num_seqs
    }

    /// Whether a waiting sequence can enter now: a block for each token beyond the prefix `hits` in the pool, and the
    /// headroom of running sequences. Counts only blocks that are free now.
    fn fits(&self, seq: &Sequence, hits: &[Hit]) -> bool {
        let in_pool = hits.iter().filter_map(Hit::block);
        let is_free = |block: &BlockId| self.pool.is_free(*block);
        let not_for_it = in_pool.clone().filter(is_free).count() + self.reserved_blocks();
        let Some(room) = self.pool.num_free().checked_sub(not_for_it) else { return false };
        self.blocks_to_enter(seq) - in_pool.count() <= room
    }

    /// Blocks for a waiting sequence, hits and headroom of others included.
    fn blocks_to_enter(&self, seq: &Sequence) -> usize {
        if is_protected(seq) {
            return self.blocks_to_end(seq);
        }
        let num_blocks = blocks_for(seq.num_tokens(), self.limits.block_size);
        if self.running.is_empty() {
            return num_blocks;
        }
        let growing = |seq: &Sequence, num_blocks| usize::from(num_blocks < self.blocks_to_end(seq)) * seq.num_seats();
        let others = self.running().filter(|other| !is_protected(other));
        let headroom: usize = others.map(|other| growing(other, other.table.len())).sum();
        num_blocks + headroom + growing(seq, num_blocks)
    }
}

/// Rows for a prompt with `num_uncomputed` tokens budget.
fn chunk_len(num_uncomputed: usize, rows_left: usize, limits: &Limits) -> usize {
    num_uncomputed.min(rows_left).min(limits.max_prefill_chunk)
}
