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
//! One step is in flight at a time: `schedule` plans it, `complete` takes its results. Blocks that the step in flight
//! writes are not released before it completes, whatever happens to their request meanwhile. The same holds for blocks
//! that are being loaded from a tier: `load_ended` is what releases them.

use alloc::vec::Vec;

use crate::cost::CostModel;
use crate::kv::{ChainHasher, Hit};
use crate::pace::Candidate;
use crate::policy::Policy;
use crate::prefill;
use crate::sequence::Status;
use crate::state::{Running, State};
use crate::step::RecordRow;
use crate::swap::{PreemptionMode, SwapDecision, Transfer};
use crate::{
    AdmitError, BlockId, BlockLoad, Event, FinishReason, Limits, LimitsError, Nanos, Request, RequestId, SeqId,
    Sequence, SlotSpill, Step, StepId, StepOutput, StepRecord, SwapStats, Tier, TierSizes, TokenId,
};

/// How much of what was asked the prefix cache had, counted when a request first enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Prompt tokens of requests that asked the cache.
    pub queried_tokens: u64,
    /// Those found.
    pub hit_tokens: u64,
}

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

/// One entry of the step in flight.
#[derive(Clone, Copy)]
struct PlannedRows {
    seq: SeqId,
    len: usize,
    samples: usize,
}

/// The step at hand: being planned, or in flight.
pub(crate) struct Plan {
    /// The name of the next step.
    pub(crate) next_step: StepId,
    in_flight: Option<StepId>,
    rows: Vec<PlannedRows>,
    /// Its entry in the log, so far.
    pub(crate) record: StepRecord,
    /// Kept for their capacity: the hits of the sequence at hand, the running prompts, and those that want rows.
    pub(crate) hits: Vec<Hit>,
    pub(crate) started: Running,
    pub(crate) candidates: Vec<Candidate>,
}

impl Plan {
    fn new(limits: &Limits) -> Plan {
        Plan {
            next_step: StepId(0),
            in_flight: None,
            rows: Vec::with_capacity(limits.max_num_seqs),
            record: StepRecord::default(),
            hits: Vec::new(),
            started: Vec::with_capacity(limits.max_num_seqs),
            candidates: Vec::with_capacity(limits.max_num_seqs + prefill::LOOKAHEAD),
        }
    }
}

/// Decides who runs. See the module's picture; every method is deterministic and does no IO.
pub struct Scheduler {
    pub(crate) state: State,
    pub(crate) policy: Policy,
    pub(crate) plan: Plan,
}

impl Scheduler {
    /// A scheduler with everything it will ever need but the requests.
    pub fn new(limits: Limits) -> Result<Scheduler, LimitsError> {
        limits.check()?;
        Ok(Scheduler { plan: Plan::new(&limits), policy: Policy::default(), state: State::new(limits) })
    }

    /// From now on steps are predicted by `cost`, which learns from each that completes, and the targets of requests
    /// are heeded. Without a model only the limits bound a step.
    pub fn set_cost_model(&mut self, cost: Option<CostModel>) {
        self.policy.cost = cost;
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

    /// For tests of collisions: block hashes keep only `bits` bits.
    #[doc(hidden)]
    pub fn weaken_hashes(&mut self, bits: usize) {
        assert!(self.state.requests.is_empty() && self.state.pool.num_cached() == 0, "before the first request");
        self.state.hasher = ChainHasher::truncated(self.state.limits.hash_key, bits);
    }

    /// Takes a request into the queue, or says why not; then nothing was allocated.
    /// Panics if the id is in use or no answer is wanted.
    pub fn admit(&mut self, request: Request) -> Result<(), AdmitError> {
        assert!(!self.state.requests.contains_key(&request.id), "{:?} is in use", request.id);
        self.check_admission(&request)?;
        self.state.add(request);
        Ok(())
    }

    fn check_admission(&self, request: &Request) -> Result<(), AdmitError> {
        let limits = &self.state.limits;
        let prompt_tokens = request.prompt.len();
        let num_answers = request.num_answers;
        assert!(num_answers > 0, "a request wants at least one answer");
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
        let (waiting_requests, waiting_tokens) = (self.state.queue.num_new(), self.state.queue.num_new_tokens());
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
    /// or blocks run out (mixed steps: Sarathi-Serve, Agrawal et al., OSDI 2024). Overwrites `step`, keeping its
    /// buffers. The step is in flight until [`Scheduler::complete`]; an empty one never is.
    ///
    /// All preemption comes before any block is taken, so no block of `step.copies` appears both as a source and as a
    /// destination, and the copies may be done in any order.
    pub fn schedule_into(&mut self, now: Nanos, step: &mut Step) {
        assert!(self.plan.in_flight.is_none(), "one step is in flight at a time");
        step.clear();
        step.id = self.plan.next_step;
        let (taken, evicted) = (self.state.pool.num_taken(), self.state.pool.num_evicted());
        self.plan.record.clear();
        let stalled = self.make_room_for_decode(step);
        let bound = self.policy.step_bound(&self.state, now);
        self.plan_decode(stalled, bound, step);
        self.plan_prefill(now, bound, step);
        self.state.pool.drain_saves(&mut step.saves);
        self.state.pool.spill_ahead(&mut step.spills);
        if !step.is_empty() {
            self.plan.in_flight = Some(step.id);
            self.plan.next_step.0 += 1;
        }
        self.plan.record.step = step.id;
        self.plan.record.scheduled_at = now;
        self.plan.record.copied_blocks = step.copies.len();
        self.plan.record.taken_blocks = (self.state.pool.num_taken() - taken) as usize;
        self.plan.record.evicted_blocks = (self.state.pool.num_evicted() - evicted) as usize;
        self.plan.record.used_blocks = self.state.pool.num_used();
        self.plan.record.waiting_requests = self.state.queue.len();
        self.plan.record.waiting_tokens = self.state.queue.num_tokens();
        if self.state.queue.len() == 0 {
            self.plan.record.blocked = None;
        }
        self.plan.record.saved_blocks = step.saves.len();
        self.plan.record.spilled_blocks = step.spills.len();
        let loads_from = |tier| step.loads.iter().filter(|load| load.slot.tier == tier).count();
        self.plan.record.loaded_blocks = [Tier::Host, Tier::Disk].map(loads_from);
        self.plan.record.predicted = self.policy.predict(&self.plan.record);
    }

    pub(crate) fn plan_rows(&mut self, id: SeqId, len: usize, samples: usize) -> RecordRow {
        let seq = &mut self.state.seqs[id];
        self.state.shares.serve(seq, seq.num_computed + len, samples);
        let cached_tokens = core::mem::take(&mut seq.cached_tokens);
        seq.rows_in_flight = len;
        self.plan.rows.push(PlannedRows { seq: id, len, samples });
        RecordRow {
            request: seq.request.id,
            seq: id,
            answer: seq.answer(),
            start: seq.num_computed,
            len,
            samples,
            cached_tokens,
        }
    }

    /// Takes a step's results: see [`Scheduler::complete_into`].
    pub fn complete(&mut self, output: StepOutput, now: Nanos) -> Completed {
        let mut completed = Completed::default();
        self.complete_into(&output, now, &mut completed.events, &mut completed.record);
        completed
    }

    /// Takes the results of the step in flight: sequences advance, full blocks enter the prefix cache, answers are
    /// forked and finish. Appends to `events`; overwrites `record`, keeping its buffers.
    ///
    /// Rows of requests that were aborted or stopped meanwhile may be there or not, and are dropped. Panics if `output`
    /// is not the step in flight, or lacks a row or a token that was planned.
    pub fn complete_into(&mut self, output: &StepOutput, now: Nanos, events: &mut Vec<Event>, record: &mut StepRecord) {
        assert_eq!(Some(output.step), self.plan.in_flight, "results of the step in flight");
        self.plan.in_flight = None;
        for (index, row) in output.rows.iter().enumerate() {
            self.state.seqs[row.seq].output_row = Some(index);
        }
        for index in 0..self.plan.rows.len() {
            let planned = self.plan.rows[index];
            let seq = &mut self.state.seqs[planned.seq];
            seq.rows_in_flight = 0;
            let tokens = seq.output_row.take().map_or(&[][..], |row| &output.rows[row].tokens);
            if seq.status == Status::Leaving {
                self.release_blocks(planned.seq);
                self.state.seqs.remove(planned.seq);
                continue;
            }
            assert_eq!(tokens.len(), planned.samples, "tokens of {:?} in {:?}", planned.seq, output.step);
            seq.num_computed += planned.len;
            seq.most_computed = seq.most_computed.max(seq.num_computed);
            self.state.feed_prefix_cache(planned.seq);
            self.take_tokens(planned.seq, tokens, now, events);
        }
        self.plan.rows.clear();
        self.plan.record.completed_at = now;
        self.policy.learn(&self.plan.record);
        core::mem::swap(record, &mut self.plan.record);
    }

    /// The step in flight did not happen: its computation failed. Its sequences go back to the queue at their ranks and
    /// are recomputed, because nobody knows which of its slots and copies were written; what earlier steps put into the
    /// prefix cache stands. Its saves, spills and loads are owed nevertheless. Does not count as a preemption. Abort
    /// the request at fault, if it is known, before the next step. Does nothing if no step is in flight.
    pub fn abandon(&mut self) {
        self.plan.in_flight = None;
        for index in 0..self.plan.rows.len() {
            let id = self.plan.rows[index].seq;
            let seq = &mut self.state.seqs[id];
            seq.rows_in_flight = 0;
            seq.output_row = None;
            if seq.status == Status::Leaving {
                self.release_blocks(id);
                self.state.seqs.remove(id);
            } else {
                self.leave_running(id);
                self.state.return_to_queue(id);
            }
        }
        self.plan.rows.clear();
    }

    /// Gives each answer its token; forks the answers when the prompt is done.
    fn take_tokens(&mut self, id: SeqId, tokens: &[TokenId], now: Nanos, events: &mut Vec<Event>) {
        let seq = &self.state.seqs[id];
        let (request, first_answer) = (seq.request.id, seq.answer());
        if seq.num_uncomputed() == 0 && seq.num_samples() == 0 {
            let num_answers = seq.num_seats();
            self.retire(id);
            for answer in 0..num_answers {
                self.state.finish_answer(request, answer);
                events.push(Event::Finished { request, answer, reason: FinishReason::Length });
            }
            return;
        }
        if tokens.len() > 1 {
            self.state.fork_answers(id);
        }
        for (index, &token) in tokens.iter().enumerate() {
            let answer = first_answer + index;
            let id = match index {
                0 => id, // spares a look-up for every token of a single answer
                _ => self.state.requests[&request].answers[answer].expect("it waits for this token"),
            };
            let ended = self.state.seqs[id].push(token, self.state.limits.max_model_len, now);
            events.push(Event::Token { request, answer, token });
            if let Some(reason) = ended {
                self.retire(id);
                self.state.finish_answer(request, answer);
                events.push(Event::Finished { request, answer, reason });
            }
        }
    }

    /// Cancels a request: nothing of it is heard again. Its blocks are free at once, or, if the step in flight writes
    /// them, when that completes. False if there is no such unfinished request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(active) = self.state.requests.remove(&id) else { return false };
        self.state.shares.leave(active.tenant);
        active.answers.into_iter().flatten().for_each(|seq| self.retire(seq));
        true
    }

    /// Ends a request whose rows in the step in flight could not be computed, or gave no numbers: as [`Scheduler::abort`],
    /// and the step's record will say that nothing was sampled from them. Others' rows stand.
    pub fn fail(&mut self, id: RequestId) -> bool {
        let record = &mut self.plan.record;
        let rows = record.decode.iter_mut().chain(&mut record.prefill);
        rows.filter(|row| row.request == id).for_each(|row| row.samples = 0);
        self.abort(id)
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

    /// A sequence goes for good, as soon as the step in flight has no rows of it.
    fn retire(&mut self, id: SeqId) {
        let seq = &mut self.state.seqs[id];
        match seq.status {
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

/// What the engine reports of the transfers that steps ask for.
impl Scheduler {
    /// The saves, or the loads from host memory, of the last step took `took` together: part of its time. With what is
    /// known of the disk, this decides between swapping and recompute.
    pub fn transfers_took(&mut self, way: Transfer, blocks: usize, took: Nanos) {
        if blocks > 0 {
            self.policy.transfer_times.observe(way, blocks, took);
            self.plan.record.transfers_took.0 += took.0;
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
    /// A sequence that waits, runs, or is in the step in flight.
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
            || self.plan.in_flight.is_some()
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

    /// The log's entry of the step in flight: everything but when it completed. Without one, of nothing.
    pub fn planned(&self) -> &StepRecord {
        &self.plan.record
    }

    /// The step in flight.
    pub fn in_flight(&self) -> Option<StepId> {
        self.plan.in_flight
    }

    /// Blocks held by sequences.
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
