//! The control flow: admit, schedule, complete, abort, stop. The two halves of a plan are in `scheduler/decode.rs` and
//! `scheduler/prefill.rs`.
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

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::cost::CostModel;
use crate::decode::Running;
use crate::fairness::Shares;
use crate::kv::{BlockPool, ChainHasher, Hit};
use crate::pace::{self, Candidate};
use crate::planted::{Bug, planted};
use crate::prefill::Patience;
use crate::queue::Queue;
use crate::sequence::{Course, Rank, Sequences, State};
use crate::step::RecordRow;
use crate::swap::{self, Fate, GivenUp, TransferTimes, Verdict, Way};
use crate::{
    AdmitError, BlockId, BlockLoad, Event, FinishReason, Limits, LimitsError, Nanos, Request, RequestId, SeqId,
    Sequence, SlotSpill, Step, StepId, StepOutput, StepRecord, SwapStats, Tier, TierSizes, TokenId,
};

mod decode;
mod prefill;

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

/// A request that is not finished.
pub(crate) struct Active {
    pub(crate) tenant: u64,
    /// The sequence of each answer: none before it is forked, none when it has ended.
    answers: Vec<Option<SeqId>>,
    num_unfinished: usize,
    /// Prompt tokens found in the cache, once it entered.
    cached_tokens: Option<usize>,
}

/// One entry of the step in flight.
#[derive(Clone, Copy)]
struct PlannedRows {
    seq: SeqId,
    len: usize,
    samples: usize,
}

/// Decides who runs. See the module's picture; every method is deterministic and does no IO.
pub struct Scheduler {
    limits: Limits,
    pub(crate) hasher: ChainHasher,
    pub(crate) pool: BlockPool,
    pub(crate) seqs: Sequences,
    pub(crate) requests: BTreeMap<RequestId, Active>,
    pub(crate) queue: Queue,
    pub(crate) running: Running,
    next_arrival: u64,
    pub(crate) next_step: StepId,
    in_flight: Option<StepId>,
    planned: Vec<PlannedRows>,
    record: StepRecord,
    patience: Patience,
    pub(crate) shares: Shares,
    prefix_stats: PrefixStats,
    /// Predicts steps; with it, targets are heeded.
    cost: Option<CostModel>,
    /// Loads that have not ended.
    pub(crate) loads: Vec<BlockLoad>,
    transfer_times: TransferTimes,
    /// Kept for their capacity: the hits of the sequence at hand, the running prompts of the step at hand.
    hits: Vec<Hit>,
    started: Running,
    candidates: Vec<Candidate>,
}

impl Scheduler {
    /// A scheduler with everything it will ever need but the requests.
    pub fn new(limits: Limits) -> Result<Scheduler, LimitsError> {
        limits.check()?;
        Ok(Scheduler {
            hasher: ChainHasher::new(limits.hash_key),
            pool: BlockPool::new(limits.num_blocks, limits.block_size),
            seqs: Sequences::default(),
            requests: BTreeMap::new(),
            queue: Queue::default(),
            running: Vec::with_capacity(limits.max_num_seqs),
            next_arrival: 0,
            next_step: StepId(0),
            in_flight: None,
            planned: Vec::with_capacity(limits.max_num_seqs),
            record: StepRecord::default(),
            patience: Patience::default(),
            shares: Shares::default(),
            prefix_stats: PrefixStats::default(),
            loads: Vec::new(),
            transfer_times: TransferTimes::default(),
            hits: Vec::new(),
            started: Vec::with_capacity(limits.max_num_seqs),
            candidates: Vec::with_capacity(limits.max_num_seqs + prefill::LOOKAHEAD),
            cost: None,
            limits,
        })
    }

    /// From now on steps are predicted by `cost`, which learns from each that completes, and the targets of requests
    /// are heeded. Without a model only the limits bound a step.
    pub fn set_cost_model(&mut self, cost: Option<CostModel>) {
        self.cost = cost;
    }

    /// What predicts steps, as corrected until now.
    pub fn cost_model(&self) -> Option<&CostModel> {
        self.cost.as_ref()
    }

    /// Contents that leave the pool live on in tiers of these sizes, as far as they are worth it ([`crate::swap`]). They
    /// are found by what the prefix cache knows, so without it there is nothing to keep. Before the first request.
    pub fn set_tiers(&mut self, sizes: TierSizes) {
        assert!(self.requests.is_empty(), "before the first request");
        self.pool.set_tiers(sizes);
    }

    /// For tests of collisions: block hashes keep only `bits` bits.
    #[doc(hidden)]
    pub fn weaken_hashes(&mut self, bits: usize) {
        assert!(self.requests.is_empty() && self.pool.num_cached() == 0, "before the first request");
        self.hasher = ChainHasher::truncated(self.limits.hash_key, bits);
    }

    /// Takes a request into the queue, or says why not; then nothing was allocated.
    /// Panics if the id is in use or no answer is wanted.
    pub fn admit(&mut self, request: Request, now: Nanos) -> Result<(), AdmitError> {
        let _ = now; // arrival is in the request; the time of a decision may matter to later policies
        assert!(!self.requests.contains_key(&request.id), "{:?} is in use", request.id);
        self.check_admission(&request)?;
        let rank = Rank {
            priority: request.priority,
            arrival: self.next_arrival ^ u64::from(planted(Bug::OutOfOrder)),
            answer: 0,
        };
        self.next_arrival += 1;
        let (id, num_answers) = (request.id, request.num_answers);
        let tenant = request.tenant;
        self.shares.join(tenant);
        let seq = self.seqs.add(Arc::new(request), rank, self.limits.block_size);
        self.queue.insert(&self.seqs[seq]);
        let mut answers = vec![None; num_answers];
        answers[0] = Some(seq);
        let active = Active { tenant, answers, num_unfinished: num_answers, cached_tokens: None };
        self.requests.insert(id, active);
        Ok(())
    }

    fn check_admission(&self, request: &Request) -> Result<(), AdmitError> {
        let limits = &self.limits;
        let prompt_tokens = request.prompt.len();
        let num_answers = request.num_answers;
        assert!(num_answers > 0, "a request wants at least one answer");
        if prompt_tokens == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        if prompt_tokens + request.stop.max_tokens.min(1) > limits.max_model_len {
            return Err(AdmitError::TooLong { prompt_tokens, max_model_len: limits.max_model_len });
        }
        if num_answers > limits.max_num_seqs && !planted(Bug::AnswersUnbounded) {
            return Err(AdmitError::TooManyAnswers { num_answers, max_num_seqs: limits.max_num_seqs });
        }
        let course = Course::of(request, limits.max_model_len);
        let needed_blocks = course.blocks_of_answers(num_answers, limits.block_size);
        if needed_blocks > limits.num_blocks && !planted(Bug::NeverFitsUnchecked) {
            return Err(AdmitError::NeverFits { needed_blocks, total_blocks: limits.num_blocks });
        }
        let (waiting_requests, waiting_tokens) = (self.queue.num_new(), self.queue.num_new_tokens());
        let too_many_tokens = waiting_requests > 0 && waiting_tokens + prompt_tokens > limits.max_queued_tokens;
        if (waiting_requests >= limits.max_queued_requests || too_many_tokens) && !planted(Bug::QueueUnbounded) {
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
        assert!(self.in_flight.is_none(), "one step is in flight at a time");
        step.clear();
        step.id = self.next_step;
        let (taken, evicted) = (self.pool.num_taken(), self.pool.num_evicted());
        self.record.clear();
        let stalled = self.make_room_for_decode(step);
        let bound = self.step_bound(now);
        self.plan_decode(stalled, bound, step);
        self.plan_prefill(now, bound, step);
        self.pool.drain_saves(&mut step.saves);
        self.pool.spill_ahead(&mut step.spills);
        if !step.is_empty() {
            self.in_flight = Some(step.id);
            self.next_step.0 += 1;
        }
        self.record.step = step.id;
        self.record.scheduled_at = now;
        self.record.copied_blocks = step.copies.len();
        self.record.taken_blocks = (self.pool.num_taken() - taken) as usize;
        self.record.evicted_blocks = (self.pool.num_evicted() - evicted) as usize;
        self.record.used_blocks = self.pool.num_used();
        self.record.waiting_requests = self.queue.len();
        self.record.waiting_tokens = self.queue.num_tokens();
        if self.queue.len() == 0 {
            self.record.blocked = None;
        }
        self.record.saved_blocks = step.saves.len();
        self.record.spilled_blocks = step.spills.len();
        let loads_from = |tier| step.loads.iter().filter(|load| load.slot.tier == tier).count();
        self.record.loaded_blocks = [Tier::Host, Tier::Disk].map(loads_from);
        self.record.predicted = self.predict();
    }

    /// How long the planned step will take, its transfers with host memory included; zero without a cost model.
    fn predict(&self) -> Nanos {
        let Some(cost) = &self.cost else { return Nanos(0) };
        let nanos = |way, blocks: usize| self.transfer_times.of(way).unwrap_or(0.0) * blocks as f64;
        let saves = nanos(Way::Save, self.record.saved_blocks);
        let loads = nanos(Way::Load(Tier::Host), self.record.loaded_blocks[0]);
        Nanos(cost.step_time(&self.record.work).0 + (saves + loads) as u64)
    }

    /// How long the step may take so that every running stream meets its target.
    fn step_bound(&self, now: Nanos) -> Option<Nanos> {
        self.cost.as_ref()?;
        let computing = self.running.iter().map(|&(_, id)| &self.seqs[id]).filter(|seq| !seq.is_loading());
        computing.filter_map(|seq| pace::allowance(seq, now)).min()
    }

    /// What transfers take, if there are any.
    fn times(&self) -> Option<&TransferTimes> {
        self.pool.has_tiers().then_some(&self.transfer_times)
    }

    /// Once per request, when it is known what its prefix hits were worth.
    fn note_prefix_stats(&mut self, id: SeqId) {
        let seq = &self.seqs[id];
        let active = self.requests.get_mut(&seq.request.id).expect("its request is active");
        if active.cached_tokens.is_none() {
            active.cached_tokens = Some(seq.cached_tokens);
            if self.limits.enable_prefix_caching && seq.request.use_prefix_cache {
                self.prefix_stats.queried_tokens += seq.num_prompt_tokens() as u64;
                self.prefix_stats.hit_tokens += seq.cached_tokens as u64;
            }
        }
    }

    fn plan_rows(&mut self, id: SeqId, len: usize, samples: usize) -> RecordRow {
        let seq = &mut self.seqs[id];
        self.shares.serve(seq, seq.num_computed + len, samples);
        let cached_tokens = core::mem::take(&mut seq.cached_tokens);
        seq.rows_in_flight = len;
        self.planned.push(PlannedRows { seq: id, len, samples });
        let row = RecordRow {
            request: seq.request.id,
            seq: id,
            answer: seq.answer(),
            start: seq.num_computed,
            len,
            samples,
            cached_tokens,
        };
        if planted(Bug::RegisteredBeforeComplete) {
            seq.num_computed += len;
            self.feed_prefix_cache(id);
            self.seqs[id].num_computed -= len;
        }
        row
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
        assert_eq!(Some(output.step), self.in_flight, "results of the step in flight");
        self.in_flight = None;
        for (index, row) in output.rows.iter().enumerate() {
            self.seqs[row.seq].output_row = Some(index);
        }
        for index in 0..self.planned.len() {
            let planned = self.planned[index];
            let seq = &mut self.seqs[planned.seq];
            seq.rows_in_flight = 0;
            let tokens = seq.output_row.take().map_or(&[][..], |row| &output.rows[row].tokens);
            if seq.state == State::Leaving {
                if !planted(Bug::BlocksLeakedOnCancel) {
                    self.release_blocks(planned.seq);
                }
                self.seqs.remove(planned.seq);
                continue;
            }
            assert_eq!(tokens.len(), planned.samples, "tokens of {:?} in {:?}", planned.seq, output.step);
            seq.num_computed += planned.len;
            seq.most_computed = seq.most_computed.max(seq.num_computed);
            self.feed_prefix_cache(planned.seq);
            self.take_tokens(planned.seq, tokens, now, events);
        }
        self.planned.clear();
        self.record.completed_at = now;
        if let Some(cost) = &mut self.cost {
            let computed_for = now.since(self.record.scheduled_at).since(self.record.transfers_took);
            cost.observe(&self.record.work, computed_for);
        }
        core::mem::swap(record, &mut self.record);
    }

    /// The step in flight did not happen: its computation failed. Its sequences go back to the queue at their ranks and
    /// are recomputed, because nobody knows which of its slots and copies were written; what earlier steps put into
    /// the prefix cache stands. Its saves, spills and loads are owed nevertheless. Does not count as a preemption.
    /// Abort the request at fault, if it is known, before the next step. Does nothing if no step is in flight.
    pub fn abandon(&mut self) {
        self.in_flight = None;
        for index in 0..self.planned.len() {
            let id = self.planned[index].seq;
            let seq = &mut self.seqs[id];
            seq.rows_in_flight = 0;
            seq.output_row = None;
            if seq.state == State::Leaving {
                self.release_blocks(id);
                self.seqs.remove(id);
            } else {
                if planted(Bug::FailedStepCached) {
                    seq.num_computed += self.planned[index].len;
                    self.feed_prefix_cache(id);
                }
                self.leave_running(id);
                self.seqs[id].rewind();
                self.queue.insert(&self.seqs[id]);
            }
        }
        self.planned.clear();
    }

    /// Registers the blocks that have become full, now that their content is computed.
    fn feed_prefix_cache(&mut self, id: SeqId) {
        let seq = &mut self.seqs[id];
        let (mut count, mut last) = seq.registered();
        let num_full = (seq.num_computed + usize::from(planted(Bug::PartialBlockRegistered))) / self.limits.block_size;
        if !(self.limits.enable_prefix_caching && seq.request.use_prefix_cache) || num_full == count {
            return;
        }
        let salt = seq.request.salt;
        while count < num_full && (count == 0 || last.is_some()) {
            let block = seq.table[count];
            let (hash, tokens) = seq.content(count, &self.hasher);
            // A hit behind one that had to be loaded is cached already.
            let known = self.pool.name_of(block);
            last = known.or_else(|| self.pool.register(block, hash, last, salt, tokens));
            count += 1;
        }
        seq.set_registered(num_full, last);
    }

    /// Gives each answer its token; forks the answers when the prompt is done.
    fn take_tokens(&mut self, id: SeqId, tokens: &[TokenId], now: Nanos, events: &mut Vec<Event>) {
        let seq = &self.seqs[id];
        let (request, first_answer) = (seq.request.id, seq.answer());
        if seq.num_uncomputed() == 0 && seq.num_samples() == 0 {
            let num_answers = seq.num_seats();
            self.retire(id);
            for answer in 0..num_answers {
                self.finish_answer(request, answer);
                events.push(Event::Finished { request, answer, reason: FinishReason::Length });
            }
            return;
        }
        if tokens.len() > 1 {
            self.fork_answers(id);
        }
        for (index, &token) in tokens.iter().enumerate() {
            let answer = first_answer + index;
            let id = match index {
                0 => id, // spares a look-up for every token of a single answer
                _ => self.requests[&request].answers[answer].expect("it waits for this token"),
            };
            let ended = self.seqs[id].push(token, self.limits.max_model_len, now);
            let told = if planted(Bug::TokenToWrongAnswer) { 0 } else { answer };
            events.push(Event::Token { request, answer: told, token });
            if let Some(reason) = ended {
                self.retire(id);
                self.finish_answer(request, answer);
                events.push(Event::Finished { request, answer, reason });
                if planted(Bug::EndToldTwice) {
                    events.push(Event::Finished { request, answer, reason });
                }
            }
        }
    }

    /// The prompt is done: one sequence for each further answer, sharing every block.
    fn fork_answers(&mut self, id: SeqId) {
        let num_forks = core::mem::take(&mut self.seqs[id].num_forks);
        for answer in 1..=num_forks {
            let fork_id = self.seqs.next_id();
            let fork = self.seqs[id].fork(fork_id, answer, self.limits.max_model_len);
            let counted = fork.table.iter().filter(|_| !planted(Bug::ForkUncounted));
            counted.for_each(|&block| self.pool.share(block));
            let active = self.requests.get_mut(&fork.request.id).expect("its request is active");
            active.answers[answer] = Some(self.seqs.insert(fork));
            self.join_running(fork_id);
        }
    }

    /// The engine made no step from `from` to `to` because somebody held it. No target runs in that time, so what comes
    /// next is decided as if it had not been. Between steps.
    pub fn note_hold(&mut self, from: Nanos, to: Nanos) {
        assert!(self.in_flight.is_none(), "the engine is held between steps");
        self.seqs.iter_mut().for_each(|seq| seq.note_hold(from, to));
    }

    /// Cancels a request: nothing of it is heard again. Its blocks are free at once, or, if the step in flight writes
    /// them, when that completes. False if there is no such unfinished request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(active) = self.requests.remove(&id) else { return false };
        self.shares.leave(active.tenant);
        active.answers.into_iter().flatten().for_each(|seq| self.retire(seq));
        true
    }

    /// Ends one answer with [`FinishReason::Stop`]`(None)`: the engine found a stop string in its text, and needs no
    /// event to know. Blocks are freed as by [`Scheduler::abort`]; a token of it in flight is dropped. Does nothing if
    /// the answer has ended. Panics if the answer has no token yet: then it has no text either.
    pub fn stop(&mut self, id: RequestId, answer: usize) {
        let Some(active) = self.requests.get(&id) else { return };
        let num_forks = active.answers[0].map_or(0, |first| self.seqs[first].num_forks);
        assert!(num_forks == 0, "{id:?} has no text to find a stop string in");
        if let Some(seq) = active.answers[answer] {
            self.retire(seq);
            self.finish_answer(id, answer);
        }
    }

    /// An answer has ended; with the last one, so has the request.
    fn finish_answer(&mut self, id: RequestId, answer: usize) {
        let active = self.requests.get_mut(&id).expect("its request is active");
        active.answers[answer] = None;
        active.num_unfinished -= 1;
        if active.num_unfinished == 0 {
            self.shares.leave(active.tenant);
            self.requests.remove(&id);
        }
    }

    /// A sequence goes for good, as soon as the step in flight has no rows of it.
    fn retire(&mut self, id: SeqId) {
        let seq = &mut self.seqs[id];
        match seq.state {
            State::Waiting if planted(Bug::CancelForgottenInQueue) => return,
            State::Waiting => self.queue.remove(seq),
            State::Running if seq.rows_in_flight + seq.loads_in_flight > 0 => {
                seq.state = State::Leaving;
                let rank = seq.rank;
                self.remove_from_running(rank);
                if planted(Bug::FreeBeforeFence) {
                    self.release_blocks(id);
                }
                return;
            }
            State::Running => _ = self.leave_running(id),
            State::Leaving => unreachable!("its request forgot it when it left"),
        }
        self.seqs.remove(id);
    }

    fn join_running(&mut self, id: SeqId) {
        let rank = self.seqs[id].rank;
        let place = self.running.binary_search_by_key(&rank, |&(rank, _)| rank).expect_err("ranks differ");
        self.running.insert(place, (rank, id));
    }

    fn leave_running(&mut self, id: SeqId) -> Verdict {
        self.remove_from_running(self.seqs[id].rank);
        self.release_blocks(id)
    }

    fn remove_from_running(&mut self, rank: Rank) {
        let place = self.running.binary_search_by_key(&rank, |&(rank, _)| rank).expect("it runs");
        self.running.remove(place);
    }

    /// From the table's end, so that in the order of eviction a prefix outlives what follows it. Says what becomes of
    /// those blocks that nobody else holds.
    fn release_blocks(&mut self, id: SeqId) -> Verdict {
        let verdict = self.judge(id);
        let keep = verdict.fate == Fate::Swap;
        let table = &mut self.seqs[id].table;
        while let Some(block) = table.pop() {
            if self.pool.refs(block) == 1 {
                self.pool.set_keep(block, keep);
            }
            self.pool.release(block);
        }
        verdict
    }

    fn judge(&self, id: SeqId) -> Verdict {
        let block_size = self.limits.block_size;
        let seq = &self.seqs[id];
        let mine = |&&block: &&BlockId| self.pool.refs(block) == 1 && self.pool.is_cached(block);
        let blocks = if self.pool.has_tiers() { seq.table.iter().filter(mine).count() } else { 0 };
        let full = seq.num_computed / block_size;
        let start = full.saturating_sub(blocks) * block_size;
        let given_up = GivenUp { blocks, start, tokens: blocks * block_size, through_disk: self.pool.swaps_to_disk() };
        swap::judge(given_up, self.times(), self.cost.as_ref())
    }
}

/// What the engine reports of the transfers that steps ask for.
impl Scheduler {
    /// The saves, or the loads from host memory, of the last step took `took` together: part of its time. With what is
    /// known of the disk, this decides between swapping and recompute.
    pub fn transfers_took(&mut self, way: Way, blocks: usize, took: Nanos) {
        if blocks > 0 {
            self.transfer_times.observe(way, blocks, took);
            self.record.transfers_took.0 += took.0;
        }
    }

    /// A write to disk has ended, `good` if every byte was written. Panics if no step asked for it.
    pub fn spill_ended(&mut self, spill: SlotSpill, good: bool, took: Nanos) {
        if good {
            self.transfer_times.observe(Way::Spill, 1, took);
        }
        self.pool.end_spill(spill, good);
    }

    /// A load has ended, `good` if the block holds exactly the bytes that were saved. When all loads of its sequence
    /// have ended, it computes on; after a bad one it goes back to the queue, and comes again without what was lost.
    /// `took` is the time that a read of the disk took. Panics if no step asked for it.
    pub fn load_ended(&mut self, load: BlockLoad, good: bool, took: Nanos) {
        let place = self.loads.iter().position(|other| *other == load).expect("a load ends once");
        self.loads.swap_remove(place);
        let good = good || planted(Bug::BadLoadBelieved);
        if good && load.slot.tier == Tier::Disk {
            self.transfer_times.observe(Way::Load(Tier::Disk), 1, took);
        }
        self.pool.end_load(load.slot, good);
        let seq = &mut self.seqs[load.seq];
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
            seq.num_computed = first_lost * self.limits.block_size;
        }
        // What has come is true, whoever wanted it.
        self.feed_prefix_cache(load.seq);
        if self.seqs[load.seq].state == State::Leaving {
            if !planted(Bug::BlocksLeakedOnLoad) {
                self.release_blocks(load.seq);
            }
            self.seqs.remove(load.seq);
        } else if first_lost.is_some() {
            self.leave_running(load.seq);
            self.seqs[load.seq].rewind();
            self.queue.insert(&self.seqs[load.seq]);
        } else {
            self.note_prefix_stats(load.seq);
        }
    }
}

/// What there is to see.
impl Scheduler {
    /// A sequence that waits, runs, or is in the step in flight.
    pub fn sequence(&self, seq: SeqId) -> Option<&Sequence> {
        self.seqs.get(seq)
    }

    /// All of them.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.seqs.iter()
    }

    /// The limits it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether anything runs, waits, or is in flight.
    pub fn has_work(&self) -> bool {
        !self.running.is_empty() || self.queue.len() > 0 || self.in_flight.is_some() || self.is_loading()
    }

    /// Whether loads are in flight: then an empty step is followed by another one only when the next has ended.
    pub fn is_loading(&self) -> bool {
        !self.loads.is_empty()
    }

    /// What the tiers have done so far.
    pub fn swap_stats(&self) -> SwapStats {
        self.pool.swap_stats()
    }

    /// What moving a block takes.
    pub fn transfer_times(&self) -> TransferTimes {
        self.transfer_times
    }

    /// The log's entry of the step in flight: everything but when it completed. Without one, of nothing.
    pub fn planned(&self) -> &StepRecord {
        &self.record
    }

    /// The step in flight.
    pub fn in_flight(&self) -> Option<StepId> {
        self.in_flight
    }

    /// Sequences that hold blocks and advance.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Sequences in the queue: requests that have not entered yet, and preempted answers.
    pub fn num_waiting(&self) -> usize {
        self.queue.len()
    }

    /// Tokens that the waiting sequences know.
    pub fn waiting_tokens(&self) -> usize {
        self.queue.num_tokens()
    }

    /// The sequence that has waited longest, and when its request arrived: what a queue deadline needs.
    pub fn oldest_waiting(&self) -> Option<(RequestId, Nanos)> {
        let seq = &self.seqs[self.queue.oldest()?];
        Some((seq.request.id, seq.request.arrived))
    }

    /// Blocks held by sequences.
    pub fn used_blocks(&self) -> usize {
        self.pool.num_used()
    }

    /// What each block is used for, into `uses`, whose memory is kept. Cost: the blocks, and the tables of all sequences.
    pub fn block_uses_into(&self, uses: &mut Vec<BlockUse>) {
        let free = |block| if self.pool.is_cached(block) { BlockUse::Cached } else { BlockUse::Free };
        uses.clear();
        uses.extend((0..self.pool.num_blocks() as u32).map(|block| free(BlockId(block))));
        for seq in self.seqs.iter() {
            let request = seq.request_id();
            for &block in seq.block_table() {
                let holders = self.pool.refs(block) as u32;
                let first = match uses[block.index()] {
                    BlockUse::Held { by, .. } => by.min(request),
                    _ => request,
                };
                uses[block.index()] = BlockUse::Held { by: first, holders };
            }
        }
    }

    /// Blocks of the pool.
    pub fn total_blocks(&self) -> usize {
        self.pool.num_blocks()
    }

    /// Blocks that hold a prefix which a request may find, in use or not.
    pub fn cached_blocks(&self) -> usize {
        self.pool.num_cached()
    }

    /// Prefix-cache hits so far.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.prefix_stats
    }

    /// Prompt tokens of an unfinished request that were prefix hits when it first entered; `None` before that, and
    /// when it has ended. (The step's record has the figure too.)
    pub fn cached_tokens(&self, id: RequestId) -> Option<usize> {
        self.requests.get(&id)?.cached_tokens
    }

    /// Unfinished requests.
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }
}
