//! The control flow: admit, schedule, complete, abort, stop. `decode.rs` and `prefill.rs` plan the two phases.
//!
//! ```text
//!            admit                schedule                          complete
//! Request ---------> queue ---------------------> running -----------------------> finished
//!                      ^    gets all its blocks     |   a row or a chunk per step     blocks released
//!                      |                            |
//!                      +------ preempted -----------+   loses all its blocks, keeps its tokens and its rank
//! ```
//!
//! Steps in flight form a queue: `schedule` adds one, `complete` takes the results of the oldest. A sequence is in at
//! most one of them: with rows in flight it is neither planned nor preempted. Blocks that a step in flight writes are
//! released only when it completes, even if their request ends earlier; blocks being loaded from a tier, only by
//! `load_ended`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::cost::CostModel;
use crate::kv::{ChainHasher, Hit, PrefixStats};
use crate::pace::{self, Candidate};
use crate::policy::{LOOKAHEAD, NEWEST, Policy};
use crate::sequence::Status;
use crate::speculate::Speculation;
use crate::state::{Running, State};
use crate::step::RecordRow;
use crate::swap::{PreemptionMode, SwapDecision, Transfer};
use crate::{
    AdmitError, BlockId, BlockLoad, DraftSource, Limits, LimitsError, Request, RowOutput, Rows, SeqId, Sequence,
    SlotSpill, StateWrite, Step, StepId, StepOutput, StepRecord, SwapStats, Tier, TierSizes, TokenEvent,
};
use protocol::{FinishReason, Nanos, RequestId};

/// Waiting sequences of which it is asked when their first token is due.
const NEXT_WAITING: usize = 16;

/// The use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// No content.
    Free,
    /// Unreferenced, with a cached prefix; allocated when no free block is left.
    Cached,
    /// Referenced by a sequence or being read.
    Held {
        /// The first holder to arrive.
        by: RequestId,
        /// Number of block tables that contain it.
        holders: u32,
    },
}

/// Results of a completed step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Events for clients, in the plan's order.
    pub events: Vec<TokenEvent>,
    /// The step's log entry.
    pub record: StepRecord,
}

/// A planned step without results.
#[derive(Default)]
pub(crate) struct InFlight {
    pub(crate) id: StepId,
    pub(crate) rows: Vec<Rows>,
    /// States that these leave, in their order.
    pub(crate) states: Vec<StateWrite>,
    /// Log entry, not yet complete.
    record: StepRecord,
}

/// The step being planned, and those in flight.
pub(crate) struct Plan {
    /// Id of the next step.
    pub(crate) next_step: StepId,
    /// Oldest first.
    pub(crate) in_flight: VecDeque<InFlight>,
    most_in_flight: usize,
    /// Whether the newest plan has rows.
    has_rows: bool,
    /// Rows and log entry of the step being planned.
    pub(crate) rows: Vec<Rows>,
    pub(crate) record: StepRecord,
    /// Reused buffers.
    spare: Vec<InFlight>,
    /// Reused buffers: hits of one sequence, running prompts, and prompts that compete for rows.
    pub(crate) hits: Vec<Hit>,
    pub(crate) started: Running,
    pub(crate) candidates: Vec<Candidate>,
}

impl Plan {
    fn new(limits: &Limits) -> Plan {
        Plan {
            next_step: StepId(0),
            in_flight: VecDeque::with_capacity(1),
            most_in_flight: 1,
            has_rows: false,
            rows: Vec::with_capacity(limits.max_num_seqs),
            spare: Vec::with_capacity(1),
            record: StepRecord::default(),
            hits: Vec::new(),
            started: Vec::with_capacity(limits.max_num_seqs),
            candidates: Vec::with_capacity(limits.max_num_seqs + LOOKAHEAD + NEWEST),
        }
    }

    /// Moves the planned step to the in-flight queue.
    fn launch(&mut self, states: &[StateWrite]) {
        let mut step = self.spare.pop().unwrap_or_default();
        step.states.extend_from_slice(states);
        step.id = self.record.step;
        core::mem::swap(&mut step.rows, &mut self.rows);
        core::mem::swap(&mut step.record, &mut self.record);
        self.in_flight.push_back(step);
        self.next_step.0 += 1;
    }

    /// Keeps the buffers of a finished step.
    fn recycle(&mut self, mut step: InFlight) {
        step.rows.clear();
        step.states.clear();
        step.record.clear();
        self.spare.push(step);
    }

    /// The newest plan's log entry.
    fn last_record(&mut self) -> &mut StepRecord {
        match self.in_flight.back_mut() {
            Some(step) if self.has_rows => &mut step.record,
            _ => &mut self.record,
        }
    }
}

/// The scheduler: deterministic, without IO. See the module's picture.
pub struct Scheduler {
    pub(crate) state: State,
    pub(crate) policy: Policy,
    pub(crate) plan: Plan,
    pub(crate) speculation: Speculation,
}

impl Scheduler {
    /// A scheduler with all memory but that of requests.
    pub fn new(limits: Limits) -> Result<Scheduler, LimitsError> {
        limits.check()?;
        Ok(Scheduler {
            plan: Plan::new(&limits),
            policy: Policy::default(),
            speculation: Speculation::default(),
            state: State::new(limits),
        })
    }

    /// Sets the model that predicts steps; it learns from each completed one and enables latency targets. Without a
    /// model only the limits bound a step.
    pub fn set_cost_model(&mut self, cost: Option<CostModel>) {
        self.policy.cost = cost;
    }

    /// Sets the cost of the drafter `source`: the time of a forward pass that drafts one token per row. Drafts of other
    /// sources are free.
    pub fn set_drafting_cost(&mut self, drafting: Option<(DraftSource, CostModel)>) {
        self.policy.drafting = drafting;
    }

    /// See [`set_drafting_cost`](Self::set_drafting_cost).
    pub fn drafting_cost(&self) -> Option<&(DraftSource, CostModel)> {
        self.policy.drafting.as_ref()
    }

    /// Sets the time that others on the same cores leave the next steps; `None`: there are none. Needs a cost model.
    pub fn set_step_bound(&mut self, bound: Option<Nanos>) {
        self.policy.outer_bound = bound;
    }

    /// When the next token of a running sequence, or the first of one of the next that wait, is due: the earliest of
    /// those that have a target.
    pub fn next_due(&self) -> Option<Nanos> {
        let waiting = self.state.queue.firsts_evenly(NEXT_WAITING).map(|id| &self.state.seqs[id]);
        self.state.running().chain(waiting).filter_map(pace::due).min()
    }

    /// Reports the measured drafting time of the newest step in flight.
    pub fn set_drafting_time(&mut self, took: Nanos) {
        if self.plan.has_rows {
            self.plan.last_record().drafting_took = took;
        }
    }

    /// The cost model with its current drift.
    pub fn cost_model(&self) -> Option<&CostModel> {
        self.policy.cost.as_ref()
    }

    /// Adds tiers of these sizes for evicted blocks ([`crate::swap`]). They are found through the prefix cache, so
    /// without it they stay empty. Call before the first request.
    pub fn set_tiers(&mut self, sizes: TierSizes) {
        assert!(self.state.requests.is_empty(), "before the first request");
        self.state.pool.set_tiers(sizes);
    }

    /// Counts on from where a scheduler has stopped of which nothing else is left. After [`Scheduler::set_tiers`].
    pub fn count_on(&mut self, before: &Scheduler) {
        self.state.prefix_stats = before.state.prefix_stats;
        self.state.pool.count_on(&before.state.pool);
    }

    /// Sets how many steps may be in flight at once; default 1.
    pub fn set_steps_in_flight(&mut self, most: usize) {
        assert!(most > 0 && self.plan.in_flight.is_empty(), "while nothing is in flight");
        let (states, seats) = (self.state.limits.states, self.state.limits.max_num_seqs);
        assert!(states.is_none_or(|states| states.slots >= (1 + most) * seats), "a slot for each step to write");
        self.plan.most_in_flight = most;
    }

    /// For tests of collisions: truncates block hashes to `bits` bits.
    #[doc(hidden)]
    pub fn weaken_hashes(&mut self, bits: usize) {
        assert!(self.state.requests.is_empty() && self.state.pool.num_cached() == 0, "before the first request");
        self.state.hasher = ChainHasher::truncated(self.state.limits.hash_key, bits);
    }

    /// Queues a request, or says why not; then no state was changed. Panics if the id is in use or `num_answers` is 0.
    pub fn admit(&mut self, request: Request) -> Result<(), AdmitError> {
        self.check_admission(&request)?;
        self.state.add(request, Status::Waiting);
        Ok(())
    }

    pub(crate) fn check_admission(&self, request: &Request) -> Result<(), AdmitError> {
        assert!(!self.state.requests.contains_key(&request.id), "{:?} is in use", request.id);
        let limits = &self.state.limits;
        let prompt_tokens = request.prompt.len();
        let num_answers = request.num_answers;
        assert!(num_answers > 0, "a request wants at least one answer");
        assert!(
            num_answers == 1 || !self.state.remote_only_prefill,
            "remote-only prefill allows one answer per request"
        );
        if prompt_tokens == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        if prompt_tokens + request.stop.max_tokens.min(1) > limits.max_model_len {
            return Err(AdmitError::TooLong { prompt_tokens, max_model_len: limits.max_model_len });
        }
        if num_answers > limits.max_num_seqs {
            return Err(AdmitError::TooManyAnswers { num_answers, max_num_seqs: limits.max_num_seqs });
        }
        let needed_blocks = limits.blocks_needed(prompt_tokens, request.stop.max_tokens, num_answers);
        if needed_blocks > limits.num_blocks {
            return Err(AdmitError::NeverFits { needed_blocks, total_blocks: limits.num_blocks });
        }
        let (waiting_requests, waiting_tokens) = (self.state.num_new, self.state.num_new_tokens);
        let too_many_tokens = waiting_requests > 0 && waiting_tokens + prompt_tokens > limits.max_queued_tokens;
        if waiting_requests >= limits.max_queued_requests || too_many_tokens {
            return Err(AdmitError::QueueFull { waiting_requests, waiting_tokens });
        }
        Ok(())
    }

    /// Plans one forward pass: see [`Scheduler::schedule_into`].
    pub fn schedule(&mut self, now: Nanos) -> Step {
        let mut step = Step::default();
        self.schedule_into(now, &mut step);
        step
    }

    /// Plans one forward pass: a token for each decoding sequence, then prompt chunks in rank order until rows, seats
    /// or blocks run out (mixed steps: Sarathi-Serve, Agrawal et al., OSDI 2024), then as many of the proposed drafts
    /// as raise tokens per second. Overwrites `step`, reusing its buffers. A non-empty step is in flight until
    /// [`Scheduler::complete`]. Sequences with rows in flight have none in this step. Panics if the limit of steps in
    /// flight is reached.
    ///
    /// All preemption precedes any allocation, so no block is both a source and a destination in `step.copies`, and the
    /// copies may be done in any order.
    pub fn schedule_into(&mut self, now: Nanos, step: &mut Step) {
        assert!(self.plan.in_flight.len() < self.plan.most_in_flight, "no more steps are in flight than may be");
        step.clear();
        step.id = self.plan.next_step;
        let (taken, evicted) = (self.state.pool.num_taken(), self.state.pool.num_evicted());
        let pinned_taken = self.state.pool.num_pinned_taken();
        self.state.end_leases(now, step);
        self.plan.record.clear();
        self.state.pool.seen.now = now;
        let stalled = self.make_room_for_decode(step);
        let bound = self.policy.step_bound(&self.state, now);
        self.plan_decode(stalled, bound, step);
        self.plan_prefill(now, bound, step);
        self.plan_drafts(bound, step);
        self.plan_states(step);
        if self.state.pool.num_pinned_taken() > pinned_taken {
            self.state.truncate_pinned(step);
        }
        self.state.pool.drain_saves(&mut step.saves);
        self.state.pool.spill_ahead(&mut step.spills);
        self.plan.record.step = step.id;
        (self.plan.record.scheduled_at, self.plan.record.began_at) = (now, now);
        self.plan.record.copied_blocks = step.copies.len();
        self.plan.record.taken_blocks = (self.state.pool.num_taken() - taken) as usize;
        self.plan.record.evicted_blocks = (self.state.pool.num_evicted() - evicted) as usize;
        self.plan.record.used_blocks = self.state.pool.num_used();
        self.plan.record.waiting_requests = self.state.queue.len();
        self.plan.record.waiting_tokens = self.state.queue.num_tokens();
        if self.state.queue.len() == 0 {
            self.plan.record.blocked = None;
        }
        self.note_holders();
        self.plan.record.saved_blocks = step.saves.len();
        self.plan.record.spilled_blocks = step.spills.len();
        let loads_from = |tier| step.loads.iter().filter(|load| load.slot.tier == tier).count();
        self.plan.record.loaded_blocks = [Tier::Host, Tier::Disk].map(loads_from);
        self.plan.record.predicted = self.policy.predict(&self.plan.record);
        self.plan.has_rows = !step.is_empty();
        if self.plan.has_rows {
            self.plan.launch(&step.states);
        }
    }

    pub(crate) fn plan_rows(&mut self, rows: Rows) -> RecordRow {
        let Rows { seq: id, start, len, samples, drafts } = rows;
        let seq = &mut self.state.seqs[id];
        self.state.tenants.serve(seq, start + len, samples);
        let cached_tokens = core::mem::take(&mut seq.cached_tokens);
        self.plan.record.misses.extend(seq.miss.take());
        seq.rows_in_flight = len;
        self.plan.rows.push(rows);
        RecordRow { request: seq.request.id, seq: id, answer: seq.answer(), start, len, samples, drafts, cached_tokens }
    }

    /// Takes a step's results: see [`Scheduler::complete_into`].
    pub fn complete(&mut self, output: StepOutput, now: Nanos) -> Completed {
        let mut completed = Completed::default();
        self.complete_into(&output, now, &mut completed.events, &mut completed.record);
        completed
    }

    /// Takes the results of the oldest step in flight: advances sequences, registers full blocks in the prefix cache,
    /// forks and finishes answers, and ends requests whose rows failed. Appends to `events`; overwrites `record`,
    /// reusing its buffers.
    ///
    /// Tokens of requests that failed, or were aborted or stopped meanwhile, are optional and dropped. Panics if
    /// `output` is of another step, lacks a planned token, or has one that was not planned.
    pub fn complete_into(
        &mut self,
        output: &StepOutput,
        now: Nanos,
        events: &mut Vec<TokenEvent>,
        record: &mut StepRecord,
    ) {
        assert_eq!(Some(output.step), self.in_flight(), "results of the oldest step in flight");
        let mut step = self.plan.in_flight.pop_front().expect("it was just seen");
        for &failed in &output.failed {
            step.record.note_failed(failed);
            self.abort(failed);
        }
        for (index, row) in output.rows.iter().enumerate() {
            self.state.seqs[row.seq].output_row.get_or_insert(index);
        }
        let (mut num_taken, mut drawn) = (0, 0);
        for &planned in &step.rows {
            let seq = &mut self.state.seqs[planned.seq];
            (seq.rows_in_flight, seq.drafts_in_flight) = (0, 0);
            let left = StateWrite::of(&step.states, planned.seq, seq.first_left_state);
            let tokens = seq.output_row.take().map_or(&[][..], |first| tokens_of(planned.seq, &output.rows[first..]));
            num_taken += tokens.len();
            if seq.status == Status::Leaving {
                self.release_blocks(planned.seq);
                self.state.seqs.remove(planned.seq);
                self.state.release_states(left);
                continue;
            }
            let is_as_planned = match planned.drafts {
                0 => tokens.len() == planned.samples,
                drafts => (1..=1 + drafts).contains(&tokens.len()),
            };
            assert!(is_as_planned, "{} tokens of {planned:?} in {:?}", tokens.len(), output.step);
            if planned.drafts > 0 {
                let taken = self.take_run(planned, tokens, left, now, events);
                self.state.take_states(planned.seq, left);
                step.record.note_drawn(&mut drawn, planned.seq, taken);
                continue;
            }
            self.state.note_computed(planned.seq, planned.len, left);
            self.state.take_states(planned.seq, left);
            self.take_tokens(planned.seq, tokens, now, events);
        }
        assert_eq!(num_taken, output.rows.len(), "tokens of {:?}", output.step);
        step.record.completed_at = now;
        step.record.stolen = output.stolen;
        step.record.experts = output.experts;
        step.record.other_model = output.other_model;
        self.policy.learn(&step.record);
        core::mem::swap(record, &mut step.record);
        self.plan.recycle(step);
        if let Some(next) = self.plan.in_flight.front_mut() {
            next.record.began_at = now;
        }
    }

    /// Rolls back a step in flight whose computation failed. Its sequences return to the queue at their ranks and are
    /// recomputed, because its slots and copies are in an unknown state; the prefix cache and other steps in flight,
    /// which have none of its sequences, are not affected. Its saves, spills and loads are still due. Does not count as
    /// a preemption. Abort the request at fault, if known, before the next step. Does nothing if the step is not in
    /// flight.
    pub fn abandon(&mut self, step: StepId) {
        let Some(place) = self.plan.in_flight.iter().position(|other| other.id == step) else { return };
        let step = self.plan.in_flight.remove(place).expect("it was just seen");
        self.state.release_states(&step.states);
        for planned in &step.rows {
            let id = planned.seq;
            let seq = &mut self.state.seqs[id];
            (seq.rows_in_flight, seq.drafts_in_flight) = (0, 0);
            (seq.output_row, seq.proposal) = (None, None);
            if seq.status == Status::Leaving {
                self.release_blocks(id);
                self.state.seqs.remove(id);
            } else {
                self.leave_running(id);
                self.state.return_to_queue(id);
            }
        }
        self.plan.recycle(step);
    }

    /// Takes the tokens of a decode row and its accepted drafts, as that many decode rows in sequence. Rejected drafts
    /// leave stale KV beyond `num_computed`, which is never read, and their blocks are released. Returns how many of
    /// the tokens belong to the answer: all, unless it ends earlier.
    fn take_run(
        &mut self,
        planned: Rows,
        tokens: &[RowOutput],
        left: &[StateWrite],
        now: Nanos,
        events: &mut Vec<TokenEvent>,
    ) -> usize {
        let id = planned.seq;
        self.record_acceptance(id, planned.drafts, tokens.len() - 1);
        self.state.cut_table(id, planned.start + 1 + tokens.len());
        for (index, token) in tokens.iter().enumerate() {
            if index > 0 {
                self.state.tenants.serve_drafted(&self.state.seqs[id]);
            }
            self.state.note_computed(id, 1, left);
            self.take_tokens(id, core::slice::from_ref(token), now, events);
            if self.state.seqs.get(id).is_none() {
                return index + 1;
            }
        }
        tokens.len()
    }

    /// Appends each answer's token; forks the answers when the prompt is done.
    fn take_tokens(&mut self, id: SeqId, tokens: &[RowOutput], now: Nanos, events: &mut Vec<TokenEvent>) {
        let seq = &self.state.seqs[id];
        let (request, first_answer) = (seq.request.id, seq.answer());
        if seq.num_uncomputed() == 0 && seq.num_samples() == 0 {
            let num_answers = seq.num_seats();
            self.state.pin_finished(id, now);
            self.retire(id);
            for answer in first_answer..first_answer + num_answers {
                self.state.finish_answer(request, answer);
                events.push(TokenEvent::Finished { request, answer, reason: FinishReason::Length });
            }
            return;
        }
        if tokens.len() > 1 {
            self.state.fork_answers(id);
        }
        for (index, &RowOutput { token, .. }) in tokens.iter().enumerate() {
            let answer = first_answer + index;
            let id = match index {
                0 => id, // saves a lookup per token for single answers
                _ => self.state.requests[&request].answers[answer].expect("it waits for this token"),
            };
            let ended = self.state.seqs[id].push(token, self.state.limits.max_model_len, now);
            events.push(TokenEvent::Token { request, answer, token });
            if let Some(reason) = ended {
                self.state.pin_finished(id, now);
                self.retire(id);
                self.state.finish_answer(request, answer);
                events.push(TokenEvent::Finished { request, answer, reason });
            }
        }
    }

    /// Cancels a request: no further events, and nothing of it is pinned. Its blocks are free at once, or when the step
    /// in flight that writes them completes. False if there is no such unfinished request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        self.unpin(id);
        let Some(active) = self.state.remove_request(id) else { return false };
        active.answers.into_iter().flatten().for_each(|seq| self.retire(seq));
        true
    }

    /// Ends one answer with [`FinishReason::Stop`]`(None)`, without an event, because the engine found a stop string.
    /// Blocks are freed as by [`Scheduler::abort`]; a token in flight is dropped. Does nothing if the answer has ended.
    /// Panics if the answer has no token yet.
    pub fn stop(&mut self, id: RequestId, answer: usize) {
        let Some(active) = self.state.requests.get(&id) else { return };
        let num_forks = active.answers[0].map_or(0, |first| self.state.seqs[first].num_forks);
        assert!(num_forks == 0, "{id:?} has no text to find a stop string in");
        if let Some(seq) = active.answers[answer] {
            self.retire(seq);
            self.state.finish_answer(id, answer);
        }
    }

    /// Removes a sequence, as soon as no step in flight has rows of it.
    fn retire(&mut self, id: SeqId) {
        let seq = &mut self.state.seqs[id];
        match seq.status {
            Status::RemotePrefill => {}
            Status::Waiting => self.state.queue.remove(seq),
            Status::Running if seq.rows_in_flight + seq.loads_in_flight > 0 => {
                seq.status = Status::Leaving;
                let rank = seq.rank;
                self.state.remove_from_running(rank);
                // Its seat is another's, and so is the slot: passes read and write in the order of their steps.
                self.state.release_state(id);
                return;
            }
            Status::Running => _ = self.leave_running(id),
            Status::Leaving => unreachable!("its request forgot it when it left"),
        }
        self.state.seqs.remove(id);
    }

    pub(crate) fn leave_running(&mut self, id: SeqId) -> SwapDecision {
        self.state.remove_from_running(self.state.seqs[id].rank);
        self.release_blocks(id)
    }

    /// Releases a sequence's blocks and decides whether those without other holders are swapped.
    fn release_blocks(&mut self, id: SeqId) -> SwapDecision {
        self.note_tail(id);
        let decision = self.policy.decide_swap(&self.state.preempted_blocks(id), &self.state.pool);
        self.state.release_blocks(id, decision.mode == PreemptionMode::Swap);
        decision
    }
}

/// The leading tokens of `rows` that belong to `seq`.
fn tokens_of(seq: SeqId, rows: &[RowOutput]) -> &[RowOutput] {
    let count = rows.iter().take_while(|row| row.seq == seq).count();
    &rows[..count]
}

/// Reports of transfers by the engine.
impl Scheduler {
    /// The saves, or the host-memory loads, of the newest plan took `took` together, as part of its time. These times
    /// decide between swap and recompute.
    pub fn add_transfer_time(&mut self, way: Transfer, blocks: usize, took: Nanos) {
        if blocks > 0 {
            self.policy.transfer_times.observe(way, blocks, took);
            self.plan.last_record().transfers_took.0 += took.0;
        }
    }

    /// Ends a write to disk, `good` if every byte was written. Panics if no step asked for it.
    pub fn spill_ended(&mut self, spill: SlotSpill, good: bool, took: Nanos) {
        if good {
            self.policy.transfer_times.observe(Transfer::Spill, 1, took);
        }
        self.state.pool.end_spill(spill, good);
    }

    /// Ends a load, `good` if the block holds exactly the saved bytes. After all loads of its sequence the sequence
    /// continues; after a bad one it returns to the queue and re-enters without the lost blocks. `took`: time of a disk
    /// read. Panics if no step asked for it.
    pub fn load_ended(&mut self, load: BlockLoad, good: bool, took: Nanos) {
        let place = self.state.loads.iter().position(|other| *other == load).expect("a load ends once");
        self.state.loads.swap_remove(place);
        if good && load.slot.tier == Tier::Disk {
            self.policy.transfer_times.observe(Transfer::Load(Tier::Disk), 1, took);
        }
        self.state.pool.end_load(load.slot, good);
        let seq = &mut self.state.seqs[load.seq];
        seq.loads_in_flight -= 1;
        if !good {
            let index = seq.table.iter().position(|&block| block == load.block).expect("it is its block");
            seq.first_lost = Some(seq.first_lost.map_or(index, |first| first.min(index)));
        }
        if seq.loads_in_flight > 0 {
            return;
        }
        let first_lost = seq.first_lost;
        if let Some(first_lost) = first_lost {
            seq.num_computed = first_lost * self.state.limits.block_size;
        }
        // Loaded blocks are valid, whether or not their sequence still runs.
        self.state.feed_prefix_cache(load.seq, &[]);
        if self.state.seqs[load.seq].status == Status::Leaving {
            self.release_blocks(load.seq);
            self.state.seqs.remove(load.seq);
        } else if first_lost.is_some() {
            self.leave_running(load.seq);
            self.state.return_to_queue(load.seq);
        } else {
            self.state.note_prefix_stats(load.seq);
        }
    }
}

/// Observers.
impl Scheduler {
    /// A sequence that waits, runs or is in flight.
    pub fn sequence(&self, seq: SeqId) -> Option<&Sequence> {
        self.state.seqs.get(seq)
    }

    /// All sequences.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.state.seqs.iter()
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.state.limits
    }

    /// Whether anything runs, waits, or is in flight.
    pub fn has_work(&self) -> bool {
        !self.state.running.is_empty()
            || self.state.queue.len() > 0
            || !self.plan.in_flight.is_empty()
            || self.is_loading()
    }

    /// Whether loads are in flight: after an empty step, wait for one to end before the next plan.
    pub fn is_loading(&self) -> bool {
        !self.state.loads.is_empty()
    }

    /// Counters of the tiers.
    pub fn swap_stats(&self) -> SwapStats {
        self.state.pool.swap_stats()
    }

    /// The newest plan's log entry, until it completes.
    pub fn planned(&self) -> &StepRecord {
        match self.plan.in_flight.back() {
            Some(step) if self.plan.has_rows => &step.record,
            _ => &self.plan.record,
        }
    }

    /// The log entry of the oldest step in flight, without results.
    pub fn completes_next(&self) -> Option<&StepRecord> {
        self.plan.in_flight.front().map(|step| &step.record)
    }

    /// The oldest step in flight, which completes next.
    pub fn in_flight(&self) -> Option<StepId> {
        self.plan.in_flight.front().map(|step| step.id)
    }

    /// Blocks held by sequences or being read.
    pub fn used_blocks(&self) -> usize {
        self.state.pool.num_used()
    }

    /// Writes the use of each block into `uses`, reusing its memory. Cost: linear in blocks and block tables.
    pub fn block_uses_into(&self, uses: &mut Vec<BlockUse>) {
        let free = |block| if self.state.pool.is_cached(block) { BlockUse::Cached } else { BlockUse::Free };
        uses.clear();
        uses.extend((0..self.state.pool.num_blocks() as u32).map(|block| free(BlockId(block))));
        for seq in self.state.seqs.iter() {
            let request = seq.request_id();
            for &block in seq.block_table() {
                let holders = self.state.pool.refs(block) as u32;
                let first = match uses[block.index()] {
                    BlockUse::Held { by, .. } => by.min(request),
                    _ => request,
                };
                uses[block.index()] = BlockUse::Held { by: first, holders };
            }
        }
        for read in self.state.reads.iter().filter(|read| self.state.pool.refs(read.block) == 0) {
            uses[read.block.index()] = BlockUse::Held { by: read.request, holders: 1 };
        }
    }

    /// Blocks with a cached prefix, held or not.
    pub fn cached_blocks(&self) -> usize {
        self.state.pool.num_cached()
    }

    /// Prefix-cache hits since start.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.state.prefix_stats
    }

    /// What the cache takes in from now on is forgotten by [`Scheduler::forget_cache`].
    pub fn mark_cache(&mut self) {
        self.state.pool.mark();
    }

    /// Drops what the cache took in since the mark and no sequence holds. Cost: a look at each block.
    pub fn forget_cache(&mut self) {
        self.state.pool.forget();
    }
}
