//! The control flow, all of it: admit, schedule, complete, abort, stop.
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
use core::fmt;

use crate::cost::CostModel;
use crate::decode::{self, Room, Running};
use crate::fairness::Shares;
use crate::kv::{BlockPool, ChainHasher, Hit, Place, blocks_for};
use crate::pace::{self, Candidate};
use crate::planted::{Bug, planted};
use crate::prefill::{self, Patience};
use crate::queue::Queue;
use crate::sequence::{Course, Rank, Sequences, State};
use crate::step::{Preempted, RecordRow};
use crate::swap::{self, Fate, GivenUp, TransferTimes, Verdict, Way};
use crate::{
    AdmitError, BlockCopy, BlockId, BlockLoad, Blocked, Chunk, Event, FinishReason, Nanos, Phase, Priority, Request,
    RequestId, SeqId, Sequence, SlotSpill, Step, StepId, StepOutput, StepRecord, SwapStats, Tier, TierSizes, TokenId,
};

/// Sizes and bounds, fixed at start.
#[derive(Clone)]
pub struct Limits {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Tokens that a sequence may have, prompt and answer.
    pub max_model_len: usize,
    /// Sequences that run together. Every answer of a request counts from the moment it enters.
    pub max_num_seqs: usize,
    /// Rows of a step; at least `max_num_seqs`, so that every decoding sequence always gets one.
    pub max_num_batched_tokens: usize,
    /// Rows of one prompt in a step.
    pub max_prefill_chunk: usize,
    /// Prompts that advance in a step.
    pub max_prefill_seqs: usize,
    /// Requests that may wait for their first step.
    pub max_queued_requests: usize,
    /// Their prompt tokens. An empty queue takes any prompt.
    pub max_queued_tokens: usize,
    /// Whether equal prefixes share blocks.
    pub enable_prefix_caching: bool,
    /// Key of the block hashes: random for each start of the engine.
    pub hash_key: [u8; 32],
}

impl fmt::Debug for Limits {
    /// Everything but the key, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("block_size", &self.block_size)
            .field("num_blocks", &self.num_blocks)
            .field("max_model_len", &self.max_model_len)
            .field("max_num_seqs", &self.max_num_seqs)
            .field("max_num_batched_tokens", &self.max_num_batched_tokens)
            .field("max_prefill_chunk", &self.max_prefill_chunk)
            .field("max_prefill_seqs", &self.max_prefill_seqs)
            .field("max_queued_requests", &self.max_queued_requests)
            .field("max_queued_tokens", &self.max_queued_tokens)
            .field("enable_prefix_caching", &self.enable_prefix_caching)
            .finish_non_exhaustive()
    }
}

/// Why limits cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitsError {
    /// This limit is 0.
    Zero {
        /// The field.
        limit: &'static str,
    },
    /// A step could not hold one row for every running sequence.
    StepTooSmall {
        /// Rows of a step.
        max_num_batched_tokens: usize,
        /// Sequences that run together.
        max_num_seqs: usize,
    },
    /// Blocks are counted in 32 bits.
    TooManyBlocks {
        /// Blocks wanted.
        num_blocks: usize,
    },
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::Zero { limit } => write!(f, "{limit} must be at least 1"),
            LimitsError::StepTooSmall { max_num_batched_tokens, max_num_seqs } => write!(
                f,
                "max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}): \
                 every running sequence needs a row in each step"
            ),
            LimitsError::TooManyBlocks { num_blocks } => write!(f, "{num_blocks} KV blocks are too many to count"),
        }
    }
}

impl core::error::Error for LimitsError {}

impl Limits {
    fn check(&self) -> Result<(), LimitsError> {
        let at_least_one = [
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_prefill_chunk", self.max_prefill_chunk),
            ("max_prefill_seqs", self.max_prefill_seqs),
            ("max_queued_requests", self.max_queued_requests),
            ("max_queued_tokens", self.max_queued_tokens),
        ];
        if let Some((limit, _)) = at_least_one.into_iter().find(|&(_, value)| value == 0) {
            return Err(LimitsError::Zero { limit });
        }
        let &Limits { num_blocks, max_num_batched_tokens, max_num_seqs, .. } = self;
        if max_num_batched_tokens < max_num_seqs {
            return Err(LimitsError::StepTooSmall { max_num_batched_tokens, max_num_seqs });
        }
        if num_blocks.checked_mul(self.block_size).is_none_or(|slots| slots >= u32::MAX as usize) {
            return Err(LimitsError::TooManyBlocks { num_blocks });
        }
        Ok(())
    }
}

/// How much of what was asked the prefix cache had, counted when a request first enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Prompt tokens of requests that asked the cache.
    pub queried_tokens: u64,
    /// Those found.
    pub hit_tokens: u64,
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
    pub(crate) class: Priority,
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

/// Waiting prompts that are compared with each other for the next place.
const LOOKAHEAD: usize = 256;
/// A step may always grow by this factor for prompts, whatever the targets say: they must move too.
const LEAST_GROWTH: f64 = 1.1;
/// A decode row without a target is left out for others' targets so many steps in a row at most.
const MOST_LEFT_OUT: u32 = 8;

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
            candidates: Vec::with_capacity(limits.max_num_seqs + LOOKAHEAD),
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
        let (class, tenant) = (request.priority, request.tenant);
        self.shares.join(class, tenant);
        let seq = self.seqs.add(Arc::new(request), rank, self.limits.block_size);
        self.queue.insert(&self.seqs[seq]);
        let mut answers = vec![None; num_answers];
        answers[0] = Some(seq);
        let active = Active { class, tenant, answers, num_unfinished: num_answers, cached_tokens: None };
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

    /// Preempts until every decoding sequence has a slot for its token, but for the one returned.
    fn make_room_for_decode(&mut self, step: &mut Step) -> Option<SeqId> {
        let weight = self.swap_weight();
        loop {
            let Scheduler { running, seqs, pool, loads, shares, limits, .. } = &*self;
            match decode::room_for_decode(running, seqs, pool, loads, shares, limits, weight) {
                Room::Enough { stalled } => return stalled,
                Room::Preempt(victim) => {
                    self.preempt(victim);
                    step.preempted.push(victim);
                }
            }
        }
    }

    fn preempt(&mut self, id: SeqId) {
        let (request, tokens) = (self.seqs[id].request_id(), self.seqs[id].num_computed());
        let verdict = self.leave_running(id);
        self.record.preempted.push(Preempted { request, tokens, verdict });
        let seq = &mut self.seqs[id];
        seq.num_preemptions += 1;
        seq.rewind();
        self.queue.insert(&self.seqs[id]);
    }

    /// What a token that a tier keeps counts as lost: the time to move it over the time to compute it. Nothing as long
    /// as nobody has measured; all of it without tiers.
    fn swap_weight(&self) -> usize {
        let block_size = self.limits.block_size;
        let given_up = GivenUp { blocks: 1, start: 0, tokens: block_size, through_disk: self.pool.swaps_to_disk() };
        let verdict = swap::judge(given_up, self.times(), self.cost.as_ref());
        match verdict.fate {
            Fate::Recompute => decode::WHOLE,
            Fate::Swap if verdict.recompute.0 == 0 => 0,
            Fate::Swap => (verdict.swap.0.saturating_mul(decode::WHOLE as u64) / verdict.recompute.0) as usize,
        }
    }

    /// What transfers take, if there are any.
    fn times(&self) -> Option<&TransferTimes> {
        self.pool.has_tiers().then_some(&self.transfer_times)
    }

    /// One row for every decoding sequence, and a slot for it: a new block at a block's end, or a copy of a shared one.
    /// Those without a target come last, and sit the step out where it would take longer than `bound`.
    fn plan_decode(&mut self, stalled: Option<SeqId>, bound: Option<Nanos>, step: &mut Step) {
        for index in 0..self.running.len() {
            let (_, id) = self.running[index];
            if bound.is_none() || self.seqs[id].request.targets.tpot.is_some() {
                self.decode_unless(stalled, id, step);
            }
        }
        for index in 0..if bound.is_some() { self.running.len() } else { 0 } {
            let (_, id) = self.running[index];
            if self.seqs[id].request.targets.tpot.is_none() && !self.leaves_out(id, bound) {
                self.decode_unless(stalled, id, step);
            }
        }
    }

    fn decode_unless(&mut self, stalled: Option<SeqId>, id: SeqId, step: &mut Step) {
        let seq = &mut self.seqs[id];
        if seq.phase() != Phase::Decode || stalled == Some(id) || seq.is_loading() {
            return;
        }
        if planted(Bug::DecodeRowForgotten) && step.decode.len() >= 3 {
            return;
        }
        seq.steps_left_out = 0;
        let block = seq.num_computed / self.limits.block_size;
        match seq.table.get(block).copied() {
            None => seq.table.push(self.pool.take().expect("room was made")),
            Some(src) if self.pool.refs(src) > 1 && !planted(Bug::SharedBlockWritten) => {
                let dst = self.pool.take().expect("room was made");
                self.pool.release(src);
                seq.table.replace(block, dst);
                step.copies.push(BlockCopy { src, dst });
            }
            Some(_) => {}
        }
        self.plan_decode_row(id, step);
    }

    /// Whether a decode row without a target stays out of the step, for those with one.
    fn leaves_out(&mut self, id: SeqId, bound: Option<Nanos>) -> bool {
        let (Some(cost), Some(bound)) = (&self.cost, bound) else { return false };
        let seq = &mut self.seqs[id];
        if seq.phase() != Phase::Decode || seq.is_loading() {
            return false;
        }
        let mut work = self.record.work;
        work.add_decode(seq.num_tokens());
        let may_stay_out = seq.steps_left_out < MOST_LEFT_OUT || planted(Bug::LeftOutForEver);
        // In a step without rows nobody gains by it: who has the target may itself wait for this one's blocks.
        let stays_out = may_stay_out && self.record.work.rows() > 0 && cost.step_time(&work) > bound;
        seq.steps_left_out += u32::from(stays_out);
        stays_out
    }

    /// Prompt chunks in the rows and the time that decode left, the oldest first when its patience is out. The others
    /// follow as tenants take turns; each tenant's in rank order, or as their deadlines ask.
    fn plan_prefill(&mut self, now: Nanos, bound: Option<Nanos>, step: &mut Step) {
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
            let turn = |&(rank, id): &(Rank, SeqId)| (rank.priority, self.shares.turn(&self.seqs[id]), rank);
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

    /// Where every prompt has time, the step takes no more rows than come almost for free beside its decode rows: those
    /// that a pass over the weights computes while it waits for memory. Beyond, a prompt's rows cost the streams what
    /// they cost the machine, and a burst of prompts would leave compute idle in the steps after it.
    fn slow_down(&self, candidates: &[Candidate], rows_per_second: f64, now: Nanos, left: &mut Left) {
        if left.bound.is_some() && !candidates.is_empty() {
            let gentle = Left { bound: Some(self.at_least_some_growth(Nanos(0))), ..*left };
            let slower = rows_per_second / self.prefill_rate(&gentle);
            if pace::have_time(candidates, slower, now) {
                left.bound = gentle.bound;
            }
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

    fn plan_decode_row(&mut self, id: SeqId, step: &mut Step) {
        step.decode.push(id);
        let row = self.plan_rows(id, 1, 1);
        self.record.work.add_decode(row.start + 1);
        self.record.decode.push(row);
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
    /// the prefix cache stands. Its saves, spills and loads are owed nevertheless. Does not count as a preemption. Abort the request at fault, if it is known, before the
    /// next step. Does nothing if no step is in flight.
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

    /// Cancels a request: nothing of it is heard again. Its blocks are free at once, or, if the step in flight writes
    /// them, when that completes. False if there is no such unfinished request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(active) = self.requests.remove(&id) else { return false };
        self.shares.leave(active.class, active.tenant);
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
            self.shares.leave(active.class, active.tenant);
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
