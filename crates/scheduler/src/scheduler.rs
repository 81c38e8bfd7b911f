//! The control flow: admit, schedule, complete, abort, stop. The two halves of a plan are in `decode.rs` and
//! `prefill.rs`.
//!
//! ```text
//!            admit                schedule                          complete
//! Request ---------> queue ---------------------> running -----------------------> finished
//!                      ^    gets all its blocks     |   a row or a chunk per step     blocks released
//!                      |                            |
//!                      +------ preempted -----------+   loses all its blocks, keeps its tokens and its rank
//! ```
//!
//! Steps in flight are a queue: `schedule` adds one, `complete` takes the results of the oldest. A sequence is in one
//! of them at most, so none waits for another's tokens: who has rows in flight is neither planned nor preempted. Blocks
//! that a step in flight writes are not released before it completes, whatever happens to their request meanwhile. The
//! same holds for blocks that are being loaded from a tier: `load_ended` is what releases them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::cost::CostModel;
use crate::kv::{ChainHasher, Hit, PrefixStats};
use crate::pace::Candidate;
use crate::policy::{LOOKAHEAD, NEWEST, Policy};
use crate::sequence::Status;
use crate::speculate::Speculation;
use crate::state::{Running, State};
use crate::step::RecordRow;
use crate::swap::{PreemptionMode, SwapDecision, Transfer};
use crate::{
    AdmitError, BlockId, BlockLoad, Event, FinishReason, Limits, LimitsError, Nanos, Request, RequestId, RowOutput,
    Rows, SeqId, Sequence, SlotSpill, SourceId, Step, StepId, StepOutput, StepRecord, SwapStats, Tier, TierSizes,
};

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// Nothing.
    Free,
    /// Nobody reads it, and it holds a prefix that somebody may ask for; taken when no free one is left.
    Cached,
    /// Somebody reads or writes it.
    Held {
        /// The first of them to arrive.
        by: RequestId,
        /// Sequences that have it in their tables.
        holders: u32,
    },
}

/// What came of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// What clients may learn, in the plan's order.
    pub events: Vec<Event>,
    /// The step's entry in the log.
    pub record: StepRecord,
}

/// A step between its plan and its results.
#[derive(Default)]
pub(crate) struct InFlight {
    pub(crate) id: StepId,
    pub(crate) rows: Vec<Rows>,
    /// Its entry in the log, so far.
    record: StepRecord,
}

/// The step at hand, and those in flight.
pub(crate) struct Plan {
    /// The name of the next step.
    pub(crate) next_step: StepId,
    /// The oldest first.
    pub(crate) in_flight: VecDeque<InFlight>,
    most_in_flight: usize,
    /// Whether the step planned last had rows.
    has_rows: bool,
    /// Of the step at hand: its rows, and its entry in the log so far.
    pub(crate) rows: Vec<Rows>,
    pub(crate) record: StepRecord,
    /// Memory for the next ones.
    spare: Vec<InFlight>,
    /// Kept for their capacity: the hits of the sequence at hand, the running prompts, and those that want rows.
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

    /// The step at hand has rows: it is the last in the queue now.
    fn launch(&mut self) {
        let mut step = self.spare.pop().unwrap_or_default();
        step.id = self.record.step;
        core::mem::swap(&mut step.rows, &mut self.rows);
        core::mem::swap(&mut step.record, &mut self.record);
        self.in_flight.push_back(step);
        self.next_step.0 += 1;
    }

    /// Keeps the memory of a step that is over.
    fn recycle(&mut self, mut step: InFlight) {
        step.rows.clear();
        step.record.clear();
        self.spare.push(step);
    }

    /// The entry in the log of the step planned last.
    fn last_record(&mut self) -> &mut StepRecord {
        match self.in_flight.back_mut() {
            Some(step) if self.has_rows => &mut step.record,
            _ => &mut self.record,
        }
    }
}

/// Decides who runs. See the module's picture; every method is deterministic and does no IO.
pub struct Scheduler {
    pub(crate) state: State,
    pub(crate) policy: Policy,
    pub(crate) plan: Plan,
    pub(crate) speculation: Speculation,
}

impl Scheduler {
    /// A scheduler with everything it will ever need but the requests.
    pub fn new(limits: Limits) -> Result<Scheduler, LimitsError> {
        limits.check()?;
        Ok(Scheduler {
            plan: Plan::new(&limits),
            policy: Policy::default(),
            speculation: Speculation::default(),
            state: State::new(limits),
        })
    }

    /// From now on steps are predicted by `cost`, which learns from each that completes, and the targets of requests
    /// are heeded. Without a model only the limits bound a step.
    pub fn set_cost_model(&mut self, cost: Option<CostModel>) {
        self.policy.cost = cost;
    }

    /// From now on the guesses of `source` are known to cost passes: `cost` predicts one, in which each row gives one
    /// guess. Those of other sources are free.
    pub fn set_drafting_cost(&mut self, drafting: Option<(SourceId, CostModel)>) {
        self.policy.drafting = drafting;
    }

    /// See [`set_drafting_cost`](Self::set_drafting_cost).
    pub fn drafting_cost(&self) -> Option<&(SourceId, CostModel)> {
        self.policy.drafting.as_ref()
    }

    /// Guessing for the newest step in flight took so long.
    pub fn drafting_took(&mut self, took: Nanos) {
        if self.plan.has_rows {
            self.plan.last_record().drafting_took = took;
        }
    }

    /// What predicts steps, as corrected until now.
    pub fn cost_model(&self) -> Option<&CostModel> {
        self.policy.cost.as_ref()
    }

    /// Contents that leave the pool live on in tiers of these sizes, as far as they are worth it ([`crate::swap`]).
    /// They are found by what the prefix cache knows, so without it there is nothing to keep. Before the first request.
    pub fn set_tiers(&mut self, sizes: TierSizes) {
        assert!(self.state.requests.is_empty(), "before the first request");
        self.state.pool.set_tiers(sizes);
    }

    /// So many steps may be in flight together; 1 unless said.
    pub fn set_steps_in_flight(&mut self, most: usize) {
        assert!(most > 0 && self.plan.in_flight.is_empty(), "while nothing is in flight");
        self.plan.most_in_flight = most;
    }

    /// For tests of collisions: block hashes keep only `bits` bits.
    #[doc(hidden)]
    pub fn weaken_hashes(&mut self, bits: usize) {
        assert!(self.state.requests.is_empty() && self.state.pool.num_cached() == 0, "before the first request");
        self.state.hasher = ChainHasher::truncated(self.state.limits.hash_key, bits);
    }

    /// Takes a request into the queue, or says why not; then nothing was allocated.
    /// Panics if the id is in use or no answer is wanted.
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
        assert!(num_answers == 1 || !self.state.prompts_are_given, "whose prompt is given has one answer");
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
    /// or blocks run out (mixed steps: Sarathi-Serve, Agrawal et al., OSDI 2024), then as many of the drafts on offer as
    /// make tokens come faster. Overwrites `step`, keeping its
    /// buffers. The step is in flight until [`Scheduler::complete`]; an empty one never is. Sequences with rows in
    /// flight have none in this step. Panics if as many steps are in flight as may be.
    ///
    /// All preemption comes before any block is taken, so no block of `step.copies` appears both as a source and as a
    /// destination, and the copies may be done in any order.
    pub fn schedule_into(&mut self, now: Nanos, step: &mut Step) {
        assert!(self.plan.in_flight.len() < self.plan.most_in_flight, "no more steps are in flight than may be");
        step.clear();
        step.id = self.plan.next_step;
        let (taken, evicted) = (self.state.pool.num_taken(), self.state.pool.num_evicted());
        let kept_taken = self.state.pool.num_kept_taken();
        self.state.end_leases(now, step);
        self.plan.record.clear();
        let stalled = self.make_room_for_decode(step);
        let bound = self.policy.step_bound(&self.state, now);
        self.plan_decode(stalled, bound, step);
        self.plan_prefill(now, bound, step);
        self.plan_drafts(bound, step);
        if self.state.pool.num_kept_taken() > kept_taken {
            self.state.cut_kept(step);
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
            self.plan.launch();
        }
    }

    pub(crate) fn plan_rows(&mut self, rows: Rows) -> RecordRow {
        let Rows { seq: id, start, len, samples, drafts } = rows;
        let seq = &mut self.state.seqs[id];
        self.state.shares.serve(seq, start + len, samples);
        let cached_tokens = core::mem::take(&mut seq.cached_tokens);
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

    /// Takes the results of the oldest step in flight: sequences advance, full blocks enter the prefix cache, answers
    /// are forked and finish, and requests whose rows failed end. Appends to `events`; overwrites `record`, keeping its
    /// buffers.
    ///
    /// Tokens of requests that failed, or were aborted or stopped meanwhile, may be there or not, and are dropped.
    /// Panics if `output` is not of that step, lacks a token that was planned, or has one that was not.
    pub fn complete_into(&mut self, output: &StepOutput, now: Nanos, events: &mut Vec<Event>, record: &mut StepRecord) {
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
            let tokens = seq.output_row.take().map_or(&[][..], |first| tokens_of(planned.seq, &output.rows[first..]));
            num_taken += tokens.len();
            if seq.status == Status::Leaving {
                self.release_blocks(planned.seq);
                self.state.seqs.remove(planned.seq);
                continue;
            }
            let is_as_planned = match planned.drafts {
                0 => tokens.len() == planned.samples,
                drafts => (1..=1 + drafts).contains(&tokens.len()),
            };
            assert!(is_as_planned, "{} tokens of {planned:?} in {:?}", tokens.len(), output.step);
            if planned.drafts > 0 {
                let taken = self.take_run(planned, tokens, now, events);
                step.record.note_drawn(&mut drawn, planned.seq, taken);
                continue;
            }
            self.state.note_computed(planned.seq, planned.len);
            self.take_tokens(planned.seq, tokens, now, events);
        }
        assert_eq!(num_taken, output.rows.len(), "tokens of {:?}", output.step);
        step.record.completed_at = now;
        step.record.stolen = output.stolen;
        self.policy.learn(&step.record);
        core::mem::swap(record, &mut step.record);
        self.plan.recycle(step);
        if let Some(next) = self.plan.in_flight.front_mut() {
            next.record.began_at = now;
        }
    }

    /// A step in flight did not happen: its computation failed. Its sequences go back to the queue at their ranks and
    /// are recomputed, because nobody knows which of its slots and copies were written; what earlier steps put into the
    /// prefix cache stands, and so do other steps in flight, which have none of its sequences. Its saves, spills and
    /// loads are owed nevertheless. Does not count as a preemption. Abort the request at fault, if it is known, before
    /// the next step. Does nothing if the step is not in flight.
    pub fn abandon(&mut self, step: StepId) {
        let Some(place) = self.plan.in_flight.iter().position(|other| other.id == step) else { return };
        let step = self.plan.in_flight.remove(place).expect("it was just seen");
        for planned in &step.rows {
            let id = planned.seq;
            let seq = &mut self.state.seqs[id];
            (seq.rows_in_flight, seq.drafts_in_flight) = (0, 0);
            (seq.output_row, seq.offer) = (None, None);
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

    /// A run of tokens, of which all but the last were guessed: as many decode rows, one after the other. What was not
    /// guessed right leaves stale bytes behind what is computed, where nobody looks, and its blocks go back. Returns how
    /// many of the answer the tokens are: all, unless it ends before.
    fn take_run(&mut self, planned: Rows, tokens: &[RowOutput], now: Nanos, events: &mut Vec<Event>) -> usize {
        let id = planned.seq;
        self.learn_drafts(id, planned.drafts, tokens.len() - 1);
        self.state.cut_table(id, planned.start + 1 + tokens.len());
        for (index, token) in tokens.iter().enumerate() {
            if index > 0 {
                self.state.shares.serve_drafted(&self.state.seqs[id]);
            }
            self.state.note_computed(id, 1);
            self.take_tokens(id, core::slice::from_ref(token), now, events);
            if self.state.seqs.get(id).is_none() {
                return index + 1;
            }
        }
        tokens.len()
    }

    /// Gives each answer its token; forks the answers when the prompt is done.
    fn take_tokens(&mut self, id: SeqId, tokens: &[RowOutput], now: Nanos, events: &mut Vec<Event>) {
        let seq = &self.state.seqs[id];
        let (request, first_answer) = (seq.request.id, seq.answer());
        if seq.num_uncomputed() == 0 && seq.num_samples() == 0 {
            let num_answers = seq.num_seats();
            self.state.keep_blocks(id, now);
            self.retire(id);
            for answer in first_answer..first_answer + num_answers {
                self.state.finish_answer(request, answer);
                events.push(Event::Finished { request, answer, reason: FinishReason::Length });
            }
            return;
        }
        if tokens.len() > 1 {
            self.state.fork_answers(id);
        }
        for (index, &RowOutput { token, .. }) in tokens.iter().enumerate() {
            let answer = first_answer + index;
            let id = match index {
                0 => id, // spares a look-up for every token of a single answer
                _ => self.state.requests[&request].answers[answer].expect("it waits for this token"),
            };
            let ended = self.state.seqs[id].push(token, self.state.limits.max_model_len, now);
            events.push(Event::Token { request, answer, token });
            if let Some(reason) = ended {
                self.state.keep_blocks(id, now);
                self.retire(id);
                self.state.finish_answer(request, answer);
                events.push(Event::Finished { request, answer, reason });
            }
        }
    }

    /// Cancels a request: nothing of it is heard again, nothing of it is kept. Its blocks are free at once, or, if a
    /// step in flight writes them, when that completes. False if there is no such unfinished request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        self.release(id);
        let Some(active) = self.state.remove_request(id) else { return false };
        active.answers.into_iter().flatten().for_each(|seq| self.retire(seq));
        true
    }

    /// Ends one answer with [`FinishReason::Stop`]`(None)`: the engine found a stop string in its text, and needs no
    /// event to know. Blocks are freed as by [`Scheduler::abort`]; a token of it in flight is dropped. Does nothing if
    /// the answer has ended. Panics if the answer has no token yet: then it has no text either.
    pub fn stop(&mut self, id: RequestId, answer: usize) {
        let Some(active) = self.state.requests.get(&id) else { return };
        let num_forks = active.answers[0].map_or(0, |first| self.state.seqs[first].num_forks);
        assert!(num_forks == 0, "{id:?} has no text to find a stop string in");
        if let Some(seq) = active.answers[answer] {
            self.retire(seq);
            self.state.finish_answer(id, answer);
        }
    }

    /// A sequence goes for good, as soon as no step in flight has rows of it.
    fn retire(&mut self, id: SeqId) {
        let seq = &mut self.state.seqs[id];
        match seq.status {
            Status::Expecting => {}
            Status::Waiting => self.state.queue.remove(seq),
            Status::Running if seq.rows_in_flight + seq.loads_in_flight > 0 => {
                seq.status = Status::Leaving;
                let rank = seq.rank;
                self.state.remove_from_running(rank);
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

    /// Says what becomes of those blocks that nobody else holds.
    fn release_blocks(&mut self, id: SeqId) -> SwapDecision {
        let decision = self.policy.judge(&self.state.given_up(id), &self.state.pool);
        self.state.release_blocks(id, decision.mode == PreemptionMode::Swap);
        decision
    }
}

/// The run of tokens at the beginning of `rows`, which is of `seq`.
fn tokens_of(seq: SeqId, rows: &[RowOutput]) -> &[RowOutput] {
    let count = rows.iter().take_while(|row| row.seq == seq).count();
    &rows[..count]
}

/// What the engine reports of the transfers that steps ask for.
impl Scheduler {
    /// The saves, or the loads from host memory, of the step planned last took `took` together: part of its time. With
    /// what is known of the disk, this decides between swapping and recompute.
    pub fn transfers_took(&mut self, way: Transfer, blocks: usize, took: Nanos) {
        if blocks > 0 {
            self.policy.transfer_times.observe(way, blocks, took);
            self.plan.last_record().transfers_took.0 += took.0;
        }
    }

    /// A write to disk has ended, `good` if every byte was written. Panics if no step asked for it.
    pub fn spill_ended(&mut self, spill: SlotSpill, good: bool, took: Nanos) {
        if good {
            self.policy.transfer_times.observe(Transfer::Spill, 1, took);
        }
        self.state.pool.end_spill(spill, good);
    }

    /// A load has ended, `good` if the block holds exactly the bytes that were saved. When all loads of its sequence
    /// have ended, it computes on; after a bad one it goes back to the queue, and comes again without what was lost.
    /// `took` is the time that a read of the disk took. Panics if no step asked for it.
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
        // What has come is true, whoever wanted it.
        self.state.feed_prefix_cache(load.seq);
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

/// What there is to see.
impl Scheduler {
    /// A sequence that waits, runs, or is in a step in flight.
    pub fn sequence(&self, seq: SeqId) -> Option<&Sequence> {
        self.state.seqs.get(seq)
    }

    /// All of them.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.state.seqs.iter()
    }

    /// The limits it was made with.
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

    /// Whether loads are in flight: then an empty step is followed by another one only when the next has ended.
    pub fn is_loading(&self) -> bool {
        !self.state.loads.is_empty()
    }

    /// What the tiers have done so far.
    pub fn swap_stats(&self) -> SwapStats {
        self.state.pool.swap_stats()
    }

    /// The log's entry of the step planned last, until that completes: everything but when it did.
    pub fn planned(&self) -> &StepRecord {
        match self.plan.in_flight.back() {
            Some(step) if self.plan.has_rows => &step.record,
            _ => &self.plan.record,
        }
    }

    /// The log's entry of the oldest step in flight, but for its results.
    pub fn completes_next(&self) -> Option<&StepRecord> {
        self.plan.in_flight.front().map(|step| &step.record)
    }

    /// The oldest step in flight: the one that completes next.
    pub fn in_flight(&self) -> Option<StepId> {
        self.plan.in_flight.front().map(|step| step.id)
    }

    /// Steps in flight.
    pub fn num_in_flight(&self) -> usize {
        self.plan.in_flight.len()
    }

    /// Blocks held by sequences, or being read.
    pub fn used_blocks(&self) -> usize {
        self.state.pool.num_used()
    }

    /// What each block is used for, into `uses`, whose memory is kept. Cost: the blocks, and the tables of all
    /// sequences.
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

    /// Blocks that hold a prefix which a request may find, in use or not.
    pub fn cached_blocks(&self) -> usize {
        self.state.pool.num_cached()
    }

    /// Prefix-cache hits so far.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.state.prefix_stats
    }
}
