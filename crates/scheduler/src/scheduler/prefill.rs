//! The prefill half of a plan: who enters, whose prompt advances, by how many rows.
//!
//! ```text
//! rows and time that decode left --> the oldest, if its patience is out
//!                                --> the others: by rank, or by deadline where steps can be predicted
//!                                      |
//!                                      +--> enter (all its blocks, or nobody after it) --> a chunk
//! ```

use crate::kv::{Place, blocks_for};
use crate::pace::{self, Candidate};
use crate::planted::{Bug, planted};
use crate::prefill;
use crate::sequence::{Rank, State};
use crate::swap;
use crate::{BlockLoad, Blocked, Chunk, Nanos, Phase, SeqId, Sequence, Step};

use super::Scheduler;

/// Waiting prompts that are compared with each other for the next place.
pub(super) const LOOKAHEAD: usize = 256;
/// A step may always grow by this factor for prompts, whatever the targets say: they must move too.
const LEAST_GROWTH: f64 = 1.1;

/// What decode and the prompts so far have left of a step.
#[derive(Clone, Copy)]
struct Left {
    rows: usize,
    prompts: usize,
    /// Whether waiting sequences may still enter.
    door_is_open: bool,
    /// How long the step may take; `None`: as long as it likes.
    bound: Option<Nanos>,
}

impl Scheduler {
    /// Prompt chunks in the rows and the time that decode left, the oldest first when its patience is out. The others
    /// follow as tenants take turns; each tenant's in rank order, or as their deadlines ask.
    pub(super) fn plan_prefill(&mut self, now: Nanos, bound: Option<Nanos>, step: &mut Step) {
        let mut left = Left {
            rows: self.limits.max_num_batched_tokens - step.decode.len(),
            prompts: self.limits.max_prefill_seqs,
            // Nobody enters in a step that threw somebody out.
            door_is_open: step.preempted.is_empty(),
            bound: bound.filter(|_| !planted(Bug::TargetIgnored)).map(|bound| self.at_least_some_growth(bound)),
        };
        self.record.blocked = Some(if left.door_is_open { Blocked::Budget } else { Blocked::Kv });
        self.started.clear();
        let is_prompt = |seq: &Sequence| seq.phase() == Phase::Prefill && !seq.is_loading();
        self.started.extend(self.running.iter().filter(|(_, id)| is_prompt(&self.seqs[*id])));
        let oldest = self.oldest_prompt();
        if let Some(oldest) = oldest.filter(|&oldest| self.patience.is_out(oldest)) {
            self.advance_prompt(oldest, &mut left, step);
        }
        match self.cost {
            Some(_) => self.advance_by_deadline(now, &mut left, step),
            None => self.advance_by_rank(&mut left, step),
        }
        let oldest_advanced = oldest.is_some_and(|id| self.seqs[id].rows_in_flight > 0);
        self.patience.note(oldest, !step.prefill.is_empty(), oldest_advanced);
    }

    /// A bound that leaves prompts something even where decode alone exceeds it.
    fn at_least_some_growth(&self, bound: Nanos) -> Nanos {
        let decode = self.cost.as_ref().map_or(0.0, |cost| cost.seconds(&self.record.work));
        bound.max(Nanos((decode * LEAST_GROWTH * 1e9) as u64))
    }

    fn advance_by_rank(&mut self, left: &mut Left, step: &mut Step) {
        while left.rows > 0 && left.prompts > 0 {
            let started = self.started.iter().copied().filter(|&(_, id)| self.seqs[id].rows_in_flight == 0);
            let waiting = self.queue.firsts().filter(|&(_, id)| self.may_enter(id, left));
            let turn = |&(rank, id): &(Rank, SeqId)| (self.shares.turn(&self.seqs[id]), rank);
            let next = started.chain(waiting).min_by_key(turn);
            let Some((_, id)) = next else { return self.note_seats(left) };
            self.advance_prompt(id, left, step);
        }
    }

    /// Somebody stays outside, though the step has rows left: if the door is open, for want of a seat.
    fn note_seats(&mut self, left: &Left) {
        if left.door_is_open {
            self.record.blocked = Some(Blocked::Seats);
        }
    }

    /// Whether the door is open for this waiting sequence, which may have to leave the last seat to another tenant.
    fn may_enter(&self, id: SeqId, left: &Left) -> bool {
        left.door_is_open && !self.shares.leaves_last_seat(&self.seqs[id], &self.running, &self.seqs, &self.limits)
    }

    fn advance_by_deadline(&mut self, now: Nanos, left: &mut Left, step: &mut Step) {
        let mut candidates = core::mem::take(&mut self.candidates);
        candidates.clear();
        let rows_per_second = self.prefill_rate(left);
        let started = self.started.iter().map(|&(_, id)| id);
        for id in started.chain(self.queue.firsts_evenly(LOOKAHEAD)) {
            candidates.push(self.candidate(id, rows_per_second));
        }
        if candidates.len() > 1 {
            pace::order(&mut candidates, now);
        }
        self.slow_down(&candidates, rows_per_second, now, left);
        let mut seat_is_left = false;
        for (index, candidate) in candidates.iter().enumerate() {
            if left.rows == 0 || left.prompts == 0 || !self.has_time(left) {
                break;
            }
            let waits = |other: &Candidate| self.seqs[other.seq].state == State::Waiting;
            // Who leaves a seat to another tenant does not lose it to one behind it in its own line.
            let waits_ahead = |other: &Candidate| other.is_in_line_with(candidate) && waits(other);
            let is_behind = seat_is_left && candidates[..index].iter().any(waits_ahead);
            if !waits(candidate) || !is_behind && self.may_enter(candidate.seq, left) {
                self.advance_prompt(candidate.seq, left, step);
            } else {
                seat_is_left = true;
                self.note_seats(left);
            }
        }
        self.candidates = candidates;
    }

    /// Where every prompt has time, the step takes no longer than half of what the streams allow, or than comes almost for
    /// free beside its decode rows, while a pass over the weights waits for memory. Beyond, a prompt's rows cost the
    /// streams what they cost the machine, and a burst of prompts would leave compute idle in the steps after it. (Less
    /// than half gains nothing in the loads of `sim`'s example goodput, and costs first tokens: where a stream's steps
    /// are much shorter than its target, a prompt would trickle.)
    fn slow_down(&self, candidates: &[Candidate], rows_per_second: f64, now: Nanos, left: &mut Left) {
        let Some(bound) = left.bound.filter(|_| !candidates.is_empty()) else { return };
        let gentle = Left { bound: Some(self.at_least_some_growth(Nanos(bound.0 / 2))), ..*left };
        let slower = rows_per_second / self.prefill_rate(&gentle);
        if pace::have_time(candidates, slower, now) {
            left.bound = gentle.bound;
        }
    }

    fn candidate(&self, id: SeqId, rows_per_second: f64) -> Candidate {
        let seq = &self.seqs[id];
        Candidate {
            seq: id,
            priority: seq.rank.priority,
            tenant: seq.request.tenant,
            turn: self.shares.turn(seq),
            rows: seq.num_uncomputed(),
            arrival: (seq.rank.arrival, seq.rank.answer),
            resumes: seq.num_generated() > 0,
            due: seq.request.targets.ttft.map(|ttft| Nanos(seq.request.arrived.0.saturating_add(ttft.0))),
            seconds: seq.num_uncomputed() as f64 / rows_per_second,
        }
    }

    /// Prompt rows per second at the pace of this step.
    fn prefill_rate(&self, left: &Left) -> f64 {
        let Some(cost) = &self.cost else { return f64::INFINITY };
        let mut work = self.record.work;
        let most = left.rows.min(self.limits.max_prefill_chunk).max(1);
        let rows = left.bound.map_or(most, |bound| cost.rows_within(&work, 0, most, usize::MAX, bound).max(1));
        work.add_chunk(0, rows, false);
        rows as f64 / cost.seconds(&work).max(1e-9)
    }

    /// Whether one more prompt row ends in time.
    fn has_time(&self, left: &Left) -> bool {
        let (Some(cost), Some(bound)) = (&self.cost, left.bound) else { return true };
        self.record.prefill.is_empty() || cost.rows_within(&self.record.work, 0, 1, usize::MAX, bound) > 0
    }

    /// A chunk for one prompt, which enters first if it waits. If it does not fit, nobody enters after it.
    fn advance_prompt(&mut self, id: SeqId, left: &mut Left, step: &mut Step) {
        let seq = &self.seqs[id];
        if seq.state == State::Waiting {
            if !left.door_is_open {
                return;
            }
            if let Err(blocked) = self.enter(id, step) {
                left.door_is_open = false;
                self.record.blocked = Some(blocked);
                return;
            }
        } else if seq.rows_in_flight > 0 {
            return; // it was the oldest and went first
        }
        if self.seqs[id].is_loading() {
            return; // what it has in a tier comes first
        }
        if self.seqs[id].phase() == Phase::Decode {
            // It resumes, and all but its last token was still cached.
            self.plan_decode_row(id, step);
            left.rows -= 1;
        } else {
            left.rows -= self.plan_chunk(id, left, step);
            left.prompts -= usize::from(!planted(Bug::PromptsUnbounded));
        }
    }

    /// Of all sequences with prompt rows to go, running or waiting, the one that arrived first.
    fn oldest_prompt(&self) -> Option<SeqId> {
        let started = self.started.iter().map(|&(_, id)| id);
        started.chain(self.queue.oldest()).min_by_key(|&id| {
            let rank = self.seqs[id].rank;
            (rank.arrival, rank.answer)
        })
    }

    /// A waiting sequence gets all its blocks and runs, or nothing happens. Hits in a tier are to be loaded first.
    fn enter(&mut self, id: SeqId, step: &mut Step) -> Result<(), Blocked> {
        if !prefill::has_seats(&self.seqs[id], &self.running, &self.seqs, &self.limits) {
            return Err(Blocked::Seats);
        }
        self.find_prefix(id);
        let seq = &self.seqs[id];
        if !prefill::fits(seq, &self.hits, &self.running, &self.seqs, &self.pool, &self.limits) {
            if planted(Bug::HoldAndWait)
                && let Some(block) = self.pool.take()
            {
                self.seqs[id].table.push(block);
            }
            return Err(Blocked::Kv);
        }
        self.queue.remove(seq);
        let seq = &mut self.seqs[id];
        seq.make_ready(self.limits.max_model_len);
        // What was found must be held before taking blocks can push it out.
        for hit in &self.hits {
            match hit.place {
                Place::Block(block) => self.pool.share(block),
                Place::Slot(slot) => self.pool.begin_load(slot),
            }
        }
        for index in 0..blocks_for(seq.num_tokens(), self.limits.block_size) {
            let place = self.hits.get(index).map(|hit| hit.place);
            let block = match place {
                Some(Place::Block(block)) => block,
                _ => self.pool.take().expect("it fits"),
            };
            if let Some(Place::Slot(slot)) = place {
                step.loads.push(BlockLoad { seq: id, slot, block });
                seq.loads_in_flight += 1;
            }
            seq.table.push(block);
        }
        self.loads.extend_from_slice(&step.loads[step.loads.len() - seq.loads_in_flight..]);
        seq.num_computed = self.hits.len() * self.limits.block_size;
        seq.cached_tokens = seq.num_computed;
        let in_pool = self.hits.iter().take_while(|hit| hit.block().is_some()).count();
        let last = in_pool.checked_sub(1).map(|last| self.hits[last].name);
        seq.set_registered(in_pool, last);
        seq.state = State::Running;
        let is_loading = seq.is_loading();
        self.join_running(id);
        if !is_loading {
            self.note_prefix_stats(id);
        }
        Ok(())
    }

    /// The longest prefix of its known tokens that the cache has, into `self.hits`; from the first hit in a tier on, only
    /// if loading is worth it.
    fn find_prefix(&mut self, id: SeqId) {
        self.hits.clear();
        let seq = &mut self.seqs[id];
        if !(self.limits.enable_prefix_caching && seq.request.use_prefix_cache) {
            return;
        }
        let salt = seq.request.salt;
        let mut in_tiers = [0, 0];
        for index in 0..seq.num_blocks_to_look_up() {
            let (hash, tokens) = seq.content(index, &self.hasher);
            let Some(hit) = self.pool.find(&hash, self.hits.last().map(|hit| hit.name), salt, tokens) else { break };
            if let Place::Slot(slot) = hit.place {
                in_tiers[slot.tier as usize] += 1;
            }
            self.hits.push(hit);
        }
        if in_tiers != [0, 0] {
            let block_size = self.limits.block_size;
            let in_pool = self.hits.iter().take_while(|hit| hit.block().is_some()).count();
            let (start, tokens) = (in_pool * block_size, (self.hits.len() - in_pool) * block_size);
            if !swap::is_worth_loading(in_tiers, start, tokens, &self.transfer_times, self.cost.as_ref()) {
                self.hits.truncate(in_pool);
            }
        }
    }

    fn plan_chunk(&mut self, id: SeqId, left: &Left, step: &mut Step) -> usize {
        let seq = &self.seqs[id];
        let (start, uncomputed) = (seq.num_computed(), seq.num_uncomputed());
        let mut len = prefill::chunk_len(uncomputed, left.rows, &self.limits);
        if let (Some(cost), Some(bound)) = (&self.cost, left.bound) {
            len = cost.rows_within(&self.record.work, start, len, uncomputed, bound).max(1);
        }
        let samples = if len == seq.num_uncomputed() { seq.num_samples() } else { 0 };
        self.record.recomputed_rows += seq.most_computed.saturating_sub(start).min(len);
        step.prefill.push(Chunk { seq: id, start: seq.num_computed(), len, samples });
        let row = self.plan_rows(id, len, samples);
        self.record.work.add_chunk(row.start, len, samples > 0);
        self.record.prefill.push(row);
        len
    }
}
