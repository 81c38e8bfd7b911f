//! One seed: clients, an engine with a clock, and the scheduler between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use protocol::{FinishReason, Nanos, Priority, RequestId, StopRules, TokenId};
use scheduler::{
    AdmitError, BlockLoad, BlockRead, CostModel, DraftProposal, DraftSource, Request, RowOutput, Rows, Scheduler,
    SeqId, Sequence, SlotSpill, StateSizes, Step, StepOutput, SwapStats, Tier, TierSlot, TokenEvent, Transfer, Work,
};
use testing::Dice;

use crate::EngineBug;
use crate::checks::{LeftOut, Overtaken, PassedOver, Snapshot};
use crate::counters::Counters;
use crate::machine_load::{self, Clock, Draw, Knowledge, MachineLoad};
use crate::model::{EOS, FingerprintCache, LoweredRows, Slot, Trace, mix, solo};
use crate::other_workers::{Before, KeptSeen, OtherWorkers, as_slices, check_has_ended};
use crate::turns::Turns;

/// One answer from the client's side.
pub(crate) struct Answer {
    pub(crate) expected: (Vec<TokenId>, FinishReason),
    pub(crate) delivered: Vec<TokenId>,
    pub(crate) finished: Option<FinishReason>,
    /// The detokenizer will find a stop string after this many tokens, and tell the scheduler when.
    pub(crate) stop_after: Option<(usize, StopWhen)>,
    pub(crate) stopped: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum StopWhen {
    AfterComplete,
    BeforeSchedule,
    InFlight,
}

pub(crate) struct Client {
    pub(crate) request: Request,
    pub(crate) seed: u64,
    pub(crate) answers: Vec<Answer>,
    pub(crate) cancelled: bool,
    /// Answers with a sequence of their own from the beginning, and those of them that never ran: they will ask the
    /// prefix cache.
    pub(crate) sequences: BTreeSet<usize>,
    pub(crate) to_enter: BTreeSet<usize>,
}

impl Client {
    pub(crate) fn is_done(&self) -> bool {
        self.cancelled || self.answers.iter().all(|answer| answer.stopped || answer.finished.is_some())
    }

    /// I20, I21, I22: the next token of the solo run, and nothing after the end.
    fn receive(&mut self, event: &TokenEvent) {
        assert!(!self.cancelled, "I16: {event:?} after the cancel");
        match *event {
            TokenEvent::Token { answer, token, .. } => {
                let answer = &mut self.answers[answer];
                assert!(!answer.stopped && answer.finished.is_none(), "I20: {event:?} after the end");
                let position = answer.delivered.len();
                assert_eq!(Some(&token), answer.expected.0.get(position), "I21: {event:?} is not as alone");
                answer.delivered.push(token);
            }
            TokenEvent::Finished { answer, reason, .. } => {
                let answer = &mut self.answers[answer];
                assert!(!answer.stopped && answer.finished.is_none(), "I20: {event:?} after the end");
                assert_eq!((&answer.delivered, reason), (&answer.expected.0, answer.expected.1), "I21, I22: the end");
                answer.finished = Some(reason);
            }
        }
    }
}

pub(crate) struct Report {
    pub(crate) trace: u64,
    pub(crate) seen: Counters,
    pub(crate) steps: u64,
    pub(crate) requests: u64,
    /// What the machine computed for, without what the clock's oddities add.
    pub(crate) simulated: Nanos,
}

/// A step that was planned and is not complete.
struct InFlight {
    step: Step,
    rows: Vec<LoweredRows>,
    work: Work,
    scheduled_at: Nanos,
    /// When the machine was free for it.
    began_at: Nanos,
    /// What was sampled, by sequence, once it is computed.
    sampled: Option<Vec<Vec<RowOutput>>>,
}

pub(crate) struct Chaos {
    pub(crate) rng: Dice,
    bug: Option<EngineBug>,
    pub(crate) load: MachineLoad,
    pub(crate) machine: CostModel,
    pub(crate) knowledge: Knowledge,
    pub(crate) scheduler: Scheduler,
    /// Steps that may be in flight together, and those that are: the oldest first.
    most_in_flight: usize,
    in_flight: VecDeque<InFlight>,
    pub(crate) cache: FingerprintCache,
    pub(crate) clients: BTreeMap<RequestId, Client>,
    pub(crate) now: u64,
    next_request: u64,
    /// I13: rows that all admitted requests may take together, however often they are preempted.
    pub(crate) row_allowance: usize,
    pub(crate) rows: usize,
    pub(crate) passed_over: PassedOver,
    pub(crate) overtaken: Overtaken,
    pub(crate) left_out: LeftOut,
    pub(crate) turns: Turns,
    /// Drafts that sequences were offered for the step at hand.
    pub(crate) offered: BTreeMap<SeqId, usize>,
    /// Prompt tokens of the requests that entered and asked the cache, and those found.
    pub(crate) prefix_tokens: (u64, u64),
    /// Transfers in the background.
    spills: Vec<SlotSpill>,
    loads: Vec<BlockLoad>,
    /// Other workers, with a separate random stream: a seed without them is the same as before they were added.
    pub(crate) other_workers: OtherWorkers,
    pub(crate) far: Dice,
    /// Requests whose prompt is prefilled elsewhere.
    pub(crate) expected: BTreeSet<RequestId>,
    /// For how long blocks are kept of requests, and what is.
    pub(crate) leases: BTreeMap<RequestId, Nanos>,
    pub(crate) kept: Vec<KeptSeen>,
    /// Blocks being read, and their expected content.
    pub(crate) reads: Vec<(BlockRead, Vec<Slot>)>,
    /// Blocks on their way from there, and what will be in them; the next one of each request; and what has landed.
    pub(crate) landings: Vec<(TierSlot, Vec<Slot>)>,
    pub(crate) next_landing: BTreeMap<RequestId, usize>,
    pub(crate) landed: BTreeSet<TierSlot>,
    /// What the tiers have done, counted here.
    pub(crate) swapped: SwapStats,
    trace: Trace,
    pub(crate) seen: Counters,
    steps: u64,
    simulated: u64,
}

impl Chaos {
    pub(crate) fn new(seed: u64, bug: Option<EngineBug>) -> Chaos {
        Chaos::planned_ahead(seed, bug, 1)
    }

    /// The engine plans ahead: this many steps are in flight at once.
    pub(crate) fn planned_ahead(seed: u64, bug: Option<EngineBug>, most_in_flight: usize) -> Chaos {
        let (mut rng, mut far) = (Dice::new(mix(seed, 1)), Dice::new(mix(seed, 2)));
        let other_workers = OtherWorkers::from(&mut far);
        let Draw { mut limits, load, machine, knowledge, hash_bits, tiers } = Draw::from(&mut rng);
        // With a random stream of their own, as the other workers.
        let mut own = Dice::new(mix(seed, 3));
        let states = own.percent(25).then(|| StateSizes {
            slots: (1 + most_in_flight) * limits.max_num_seqs + own.within(0..=12),
            interval: limits.block_size * own.within(1..=4),
        });
        limits.states = states;
        let mut cache = FingerprintCache::new(limits.num_blocks, limits.block_size);
        cache.accepts_unseen = bug == Some(EngineBug::DraftsUnseen);
        let mut scheduler = Scheduler::new(limits).expect("the limits drawn are good");
        scheduler.set_steps_in_flight(most_in_flight);
        if let Some(bits) = hash_bits {
            scheduler.weaken_hashes(bits);
        }
        if let Some(sizes) = tiers {
            scheduler.set_tiers(sizes);
        }
        states.iter().for_each(|sizes| cache.set_state_slots(sizes.slots));
        scheduler.set_cost_model(match knowledge {
            Knowledge::None => None,
            Knowledge::Exact => Some(machine.clone()),
            Knowledge::Wrong => Some(machine_load::machine(&mut rng, false)),
            Knowledge::Worthless => Some(machine_load::no_machine()),
        });
        Chaos {
            rng,
            bug,
            load,
            machine,
            knowledge,
            scheduler,
            most_in_flight,
            in_flight: VecDeque::new(),
            cache,
            clients: BTreeMap::new(),
            now: 1_000_000_000,
            next_request: 0,
            row_allowance: 0,
            rows: 0,
            passed_over: PassedOver::default(),
            overtaken: Overtaken::new(),
            left_out: LeftOut::default(),
            turns: Turns::default(),
            offered: BTreeMap::new(),
            prefix_tokens: (0, 0),
            spills: Vec::new(),
            loads: Vec::new(),
            other_workers,
            far,
            expected: BTreeSet::new(),
            leases: BTreeMap::new(),
            kept: Vec::new(),
            reads: Vec::new(),
            landings: Vec::new(),
            next_landing: BTreeMap::new(),
            landed: BTreeSet::new(),
            swapped: SwapStats::default(),
            trace: Trace(seed),
            seen: Counters::default(),
            steps: 0,
            simulated: 0,
        }
    }

    pub(crate) fn run(mut self) -> Report {
        for tick in 0..self.load.ticks {
            if tick < self.load.rush && self.rng.percent(self.load.arrival) {
                for _ in 0..self.rng.within(1..=self.load.burst) {
                    self.arrive();
                }
            }
            self.tick();
        }
        // Nothing new comes and nothing fails: all that was admitted ends, each step computes a row that counts (I13).
        self.load.failure = 0;
        let most_steps = self.steps + (self.row_allowance - self.rows) as u64;
        self.other_workers.end_all();
        while self.scheduler.has_work() || !self.spills.is_empty() || self.is_awaited_elsewhere() {
            self.tick();
            assert!(self.steps <= most_steps, "I13: what was admitted does not end");
        }
        assert_eq!(self.scheduler.used_blocks(), 0, "I10: blocks are held when all is quiet");
        assert_eq!(self.scheduler.sequences().count(), 0, "I10: sequences are left when all is quiet");
        if let Some((_, states)) = self.scheduler.states() {
            assert_eq!(states.held, 0, "I10: states are held when all is quiet");
            self.seen.saw("run with states");
            (0..states.kept).for_each(|_| self.seen.saw("state kept"));
            (0..states.given_up).for_each(|_| self.seen.saw("kept state given up"));
        }
        for (id, client) in &self.clients {
            assert!(client.is_done(), "I13: {id:?} never ended");
        }
        Report {
            trace: self.trace.0,
            seen: self.seen,
            steps: self.steps,
            requests: self.next_request,
            simulated: Nanos(self.simulated),
        }
    }

    fn tick(&mut self) {
        self.pause();
        self.end_transfers();
        self.maybe_cancel("cancelled between steps");
        self.give_up_on_the_oldest();
        self.receive_from_elsewhere();
        self.stop_where(StopWhen::BeforeSchedule);

        self.offer_drafts();
        let before = Snapshot::of(&self.scheduler);
        let scheduled_at = Nanos(self.now);
        let step = self.scheduler.schedule(scheduled_at);
        self.check_losses(&step, scheduled_at);
        self.check_all();
        self.check_plan(&before, &step);
        self.note(&step);
        self.compute_in_flight();
        self.begin_transfers(&step);
        if step.is_empty() {
            let waits = self.scheduler.is_loading() || !self.in_flight.is_empty() || self.reads_hold_blocks();
            let is_idle = !self.scheduler.has_work() || waits;
            assert!(is_idle, "I18: an idle step while something waits");
        } else {
            self.steps += 1;
            let rows = self.lower(&step);
            let work = self.work_of(&step);
            self.check_targets(&before, &step, &work);
            let began_at = scheduled_at;
            self.in_flight.push_back(InFlight { step, rows, work, scheduled_at, began_at, sampled: None });
            if self.in_flight.len() < self.most_in_flight && self.rng.percent(75) {
                return self.plan_ahead();
            }
        }
        self.end_step();
    }

    /// Some drafts for some sequences, also for those that cannot use them.
    fn offer_drafts(&mut self) {
        self.offered.clear();
        let seqs: Vec<SeqId> = self.scheduler.sequences().map(Sequence::id).collect();
        for seq in seqs {
            if !self.rng.percent(self.load.offers) {
                continue;
            }
            let len = self.rng.within(0..=12) as u16;
            let (source, strength) = (DraftSource(self.rng.within(0..=2) as u8), self.rng.within(0..=7) as u8);
            self.scheduler.propose(DraftProposal { seq, source, len, strength });
            self.offered.insert(seq, usize::from(len));
            if self.scheduler.decoding().all(|decoding| decoding.id() != seq) {
                // It counts nevertheless if the sequence resumes with a decode row.
                self.seen.saw("offer for one that does not decode");
            }
        }
    }

    /// What is in flight stays there, and the next step is planned before it has ended.
    fn plan_ahead(&mut self) {
        self.seen.saw("step planned ahead");
        self.maybe_cancel("cancelled in flight");
        self.stop_where(StopWhen::InFlight);
        if self.rng.percent(50) {
            self.compute_in_flight();
        }
    }

    /// As on a stream: what was planned before is computed before the transfers of what is planned now.
    fn compute_in_flight(&mut self) {
        for index in 0..self.in_flight.len() {
            if self.in_flight[index].sampled.is_none() {
                let InFlight { step, rows, .. } = &mut self.in_flight[index];
                let (step, rows) = (std::mem::take(step), std::mem::take(rows));
                let sampled = Some(self.compute(&step, &rows));
                let planned = &mut self.in_flight[index];
                (planned.step, planned.rows, planned.sampled) = (step, rows, sampled);
            }
        }
    }

    /// The oldest step in flight ends, well or not.
    fn end_step(&mut self) {
        let Some(InFlight { step, rows, work, scheduled_at, began_at, sampled }) = self.in_flight.pop_front() else {
            return;
        };
        self.maybe_cancel("cancelled in flight");
        self.stop_where(StopWhen::InFlight);
        self.end_transfers();
        for row in &rows {
            let seq = self.scheduler.sequence(row.seq).expect("I9: what is in flight exists");
            assert!(
                slots_of(seq, self.scheduler.limits().block_size) == row.slots,
                "I9: what is in flight keeps its blocks"
            );
        }
        self.compute_for(&work);

        if self.rng.percent(self.load.failure) {
            return self.fail_step(&step, &rows);
        }
        let mut sampled = sampled.unwrap_or_else(|| self.compute(&step, &rows));
        self.rng.shuffle(&mut sampled);
        if self.rng.percent(self.load.failure) {
            return self.fail_step(&step, &rows);
        }
        let mut output = StepOutput { step: step.id, rows: sampled.concat(), ..StepOutput::default() };
        let num_tokens = self.drop_the_dead(&mut output);
        let in_flight = Snapshot::of(&self.scheduler);
        let drafted: Vec<(SeqId, RequestId, usize)> =
            rows.iter().filter(|row| row.drafts > 0).map(|row| (row.seq, row.request, row.answer)).collect();
        let completed = self.scheduler.complete(output, Nanos(self.now));
        self.scheduler.check_invariants();
        for event in &completed.events {
            self.note(event);
            let (TokenEvent::Token { request, .. } | TokenEvent::Finished { request, .. }) = *event;
            self.clients.get_mut(&request).expect("it was admitted").receive(event);
            self.count_end(event);
            self.expect_kept(event);
        }
        let is_token = |event: &&TokenEvent| matches!(event, TokenEvent::Token { .. });
        let received = completed.events.iter().filter(is_token).count();
        assert_eq!(received, num_tokens, "I22: clients receive what was sampled for them");
        let mut drawn = BTreeMap::new();
        for (seq, request, answer) in drafted {
            let is_its = |event: &&TokenEvent| matches!(**event, TokenEvent::Token { request: r, answer: a, .. } if (r, a) == (request, answer));
            let tokens = completed.events.iter().filter(is_its).count();
            drawn.insert(seq, tokens);
            self.turns.serve_drafted(&self.clients[&request].request, tokens.saturating_sub(1));
            let row = completed.record.decode.iter().find(|row| row.seq == seq).expect("it is in the log");
            if tokens > 0 {
                assert_eq!(row.samples, tokens, "the log says how many tokens came of {seq:?}");
                (1..tokens).for_each(|_| self.seen.saw("draft held"));
                if tokens <= row.drafts {
                    self.seen.saw("draft rejected");
                }
            }
        }
        self.check_all();
        self.check_progress(&in_flight, &rows, &drawn);
        self.check_record(&step, &rows, &work, [scheduled_at, began_at, Nanos(self.now)], &completed.record);
        if let Some(next) = self.in_flight.front_mut() {
            next.began_at = Nanos(self.now);
        }
        self.stop_where(StopWhen::AfterComplete);
        self.maybe_cancel("cancelled after a step");
    }

    fn compute(&mut self, step: &Step, rows: &[LoweredRows]) -> Vec<Vec<RowOutput>> {
        if !matches!(self.bug, Some(EngineBug::CopiesLost | EngineBug::CopiesLate)) {
            self.copy_blocks(step);
        }
        let sampled = self.cache.forward(rows);
        if self.bug == Some(EngineBug::CopiesLate) {
            self.copy_blocks(step);
        }
        sampled
    }

    /// Time between two steps.
    fn pause(&mut self) {
        let one_step = self.machine.step_time(&Work::default()).0;
        match self.load.clock {
            Clock::Still => self.seen.saw("clock stood still"),
            Clock::Exact if self.scheduler.has_work() => {}
            Clock::Exact | Clock::Noisy => self.now += self.rng.bits() % one_step.max(1),
            Clock::Odd => self.be_odd(),
        }
    }

    fn be_odd(&mut self) {
        const SECOND: u64 = 1_000_000_000;
        match self.rng.within(0..=19) {
            0 => {
                self.now += SECOND * self.rng.within(1..=60) as u64;
                self.seen.saw("clock jumped by seconds");
            }
            1 => {
                self.now += 3600 * SECOND * self.rng.within(1..=48) as u64;
                self.seen.saw("clock jumped by hours");
            }
            2 => {
                self.now = self.now.saturating_sub(SECOND * self.rng.within(0..=10) as u64);
                self.seen.saw("clock went back");
            }
            3 => {
                self.now = self.rng.pick(&[0, u64::MAX / 2]);
                self.seen.saw("clock was set anew");
            }
            _ => {}
        }
    }

    /// The clock while a step computes.
    fn compute_for(&mut self, work: &Work) {
        let took = self.machine.step_time(work).0;
        self.simulated += took;
        match self.load.clock {
            Clock::Exact => self.now += took,
            Clock::Noisy => self.now += (took as f64 * (0.25 + 3.75 * self.rng.share())) as u64,
            Clock::Still => {}
            Clock::Odd if self.rng.percent(3) => {
                self.now += took * 1000;
                self.seen.saw("step took a thousand times longer");
            }
            Clock::Odd => {
                self.now += took;
                self.be_odd();
            }
        }
    }

    /// The engine may or may not still know those that left meanwhile. Returns the tokens of those that did not.
    fn drop_the_dead(&mut self, output: &mut StepOutput) -> usize {
        let is_dead = |row: &RowOutput| {
            let seq = self.scheduler.sequence(row.seq).expect("it is in flight");
            let client = &self.clients[&seq.request_id()];
            client.cancelled || client.answers[seq.answer()].stopped
        };
        // Accepted drafts behind the end of an answer are dropped.
        let mut received: BTreeMap<SeqId, usize> = BTreeMap::new();
        for row in output.rows.iter().filter(|row| !is_dead(row)) {
            *received.entry(row.seq).or_default() += 1;
        }
        let mut num_tokens = 0;
        for (seq, tokens) in received {
            let seq = self.scheduler.sequence(seq).expect("it is in flight");
            let answer = &self.clients[&seq.request_id()].answers[seq.answer()];
            let to_go = if seq.num_generated() > 0 { answer.expected.0.len() - answer.delivered.len() } else { tokens };
            num_tokens += tokens.min(to_go);
            if tokens > to_go {
                self.seen.saw("run ended before its last token");
            }
        }
        if self.rng.percent(50) {
            output.rows.retain(|row| !is_dead(row));
        }
        num_tokens
    }

    /// What a plan owes before it computes: saves at once, the rest in the background.
    fn begin_transfers(&mut self, step: &Step) {
        for &save in &step.saves {
            self.landed.remove(&save.slot);
            self.cache.save(save);
            self.swapped.saved += 1;
            self.seen.saw("block saved");
        }
        self.spills.extend(&step.spills);
        for load in &step.loads {
            if self.landed.contains(&load.slot) {
                self.seen.saw("landed block loaded");
            }
            self.cache.spoil_block(load.block.index(), self.now);
        }
        self.loads.extend(&step.loads);
        let took = self.rng.bits() % 1_000_000;
        if self.load.clock != Clock::Still && !step.is_empty() && !step.saves.is_empty() {
            self.scheduler.add_transfer_time(Transfer::Save, step.saves.len(), Nanos(took));
            self.now += took;
        }
    }

    /// Some of what is in the background ends, well or not.
    fn end_transfers(&mut self) {
        for spill in std::mem::take(&mut self.spills) {
            if !self.rng.percent(self.load.transfers_end) {
                self.spills.push(spill);
                continue;
            }
            let good = !self.rng.percent(self.load.disk_faults);
            self.cache.spill(spill, good, self.now);
            self.seen.saw(if good { "block spilled" } else { "write failed" });
            self.swapped.write_faults += u64::from(!good);
            self.scheduler.spill_ended(spill, good, Nanos(self.rng.bits() % 10_000_000));
            self.check_all();
        }
        for load in std::mem::take(&mut self.loads) {
            if !self.rng.percent(self.load.transfers_end) {
                self.loads.push(load);
                continue;
            }
            let from_disk = load.slot.tier == Tier::Disk;
            let faults = if from_disk { self.load.disk_faults } else { self.load.memory_faults };
            let good = !self.rng.percent(faults);
            let seq = self.scheduler.sequence(load.seq).expect("I9: what is loaded for exists");
            assert!(seq.block_table().contains(&load.block), "I9: what is loaded stays");
            self.row_allowance += if good { 0 } else { seq.num_tokens() };
            self.cache.load(load, good, self.now);
            let counter = match (good, from_disk) {
                (true, true) => &mut self.swapped.loaded_from_disk,
                (true, false) => &mut self.swapped.loaded_from_host,
                (false, _) => &mut self.swapped.read_faults,
            };
            *counter += 1;
            self.seen.saw(match (good, from_disk) {
                (true, true) => "block loaded from disk",
                (true, false) => "block loaded from memory",
                (false, _) => "load failed",
            });
            if self.scheduler.in_flight().is_some() {
                self.seen.saw("load ended in flight");
            }
            self.scheduler.load_ended(load, good, Nanos(self.rng.bits() % 10_000_000));
            self.check_all();
            self.check_hits();
        }
        if self.scheduler.swap_stats().disk_given_up {
            self.seen.saw("disk given up");
        }
    }

    /// The step failed somewhere: what it was to write is garbage, and it is as if it had never been planned.
    fn fail_step(&mut self, step: &Step, rows: &[LoweredRows]) {
        self.seen.saw("step failed");
        for copy in &step.copies {
            self.seen.saw("step with copies failed");
            self.cache.spoil_block(copy.dst.index(), self.now);
        }
        rows.iter().for_each(|row| self.cache.spoil_rows(row, self.now));
        self.rows -= rows.iter().map(|row| row.len - row.drafts).sum::<usize>();
        self.row_allowance += rows.iter().map(|row| row.tokens.len() - row.drafts).sum::<usize>();
        let before = Snapshot::of(&self.scheduler);
        self.scheduler.abandon(step.id);
        self.check_all();
        self.check_abandoned(&before, rows);
        self.note(&"failed");
    }

    pub(crate) fn note(&mut self, what: &dyn std::fmt::Debug) {
        write!(self.trace, "{what:?}").expect("a trace takes everything");
    }

    fn arrive(&mut self) {
        let rng = &mut self.rng;
        let document = rng.within(0..=self.load.documents.len() - 1);
        let shared = rng.within(0..=self.load.prompt_len);
        let own = rng.within(0..=4);
        let mut prompt: Vec<TokenId> = self.load.documents[document][..shared].to_vec();
        prompt.extend((0..own).map(|_| rng.within(2..=6) as TokenId));
        let max_tokens = if rng.percent(5) { 0 } else { rng.within(1..=self.load.max_tokens) };
        let stop_token_ids = if self.load.eos { vec![EOS, 17][..rng.within(0..=2)].to_vec() } else { vec![] };
        let num_answers = if rng.percent(self.load.several_answers) { rng.within(2..=5) } else { 1 };
        // It was stamped by another thread, a little earlier or later than what the engine calls now.
        let arrived = self.now.saturating_add(rng.bits() % 1000).saturating_sub(rng.bits() % 1_000_000);
        let request = Request {
            id: RequestId(self.next_request),
            prompt: Arc::from(prompt),
            num_answers,
            stop: StopRules { max_tokens, min_tokens: rng.within(0..=max_tokens), stop_token_ids },
            priority: Priority(rng.within(1..=self.load.priorities) as i32 - 2), // urgent, usual, and two of batch work
            salt: rng.within(1..=self.load.salts) as u64,
            use_prefix_cache: rng.percent(90),
            tenant: rng.within(1..=self.load.tenants) as u64,
            targets: self.load.draw_targets(rng, &self.machine),
            arrived: Nanos(arrived),
        };
        let seed = rng.bits();
        let max_model_len = self.scheduler.limits().max_model_len;
        let answers = (0..num_answers).map(|answer| {
            let expected = solo(&request, seed, answer, max_model_len);
            let when = rng.pick(&[StopWhen::AfterComplete, StopWhen::BeforeSchedule, StopWhen::InFlight]);
            let after = rng.within(1..=self.load.max_tokens);
            let stop_after = rng.percent(self.load.stop).then_some((after, when));
            Answer { expected, delivered: Vec::new(), finished: None, stop_after, stopped: false }
        });
        let mut answers: Vec<Answer> = answers.collect();
        self.next_request += 1;
        let before = self.before_it_came(&mut answers);
        let outcome = match &before {
            Before::Nothing => self.scheduler.admit(request.clone()),
            Before::Expected => self.scheduler.admit_remote(request.clone()),
            Before::Generated(generated) => {
                self.scheduler.resume(request.clone(), &as_slices(generated), Nanos(self.now))
            }
        };
        self.note(&outcome);
        match outcome {
            Ok(()) => {
                self.seen.saw("admitted");
                self.note_before(&request, &before);
                self.maybe_keep(request.id);
                let longest = (request.prompt.len() + max_tokens).min(max_model_len);
                self.row_allowance += longest * num_answers * (crate::checks::MAX_PREEMPTIONS as usize + 1);
                self.turns.join(request.tenant, &self.open_tenants());
                let (sequences, to_enter) = (before.sequences(), before.sequences());
                let client = Client { request, seed, answers, cancelled: false, sequences, to_enter };
                self.clients.insert(client.request.id, client);
            }
            Err(AdmitError::QueueFull { waiting_requests, waiting_tokens }) => {
                let limits = self.scheduler.limits();
                let full = waiting_requests >= limits.max_queued_requests
                    || waiting_tokens + request.prompt.len() > limits.max_queued_tokens;
                assert!(full && waiting_requests > 0, "a request is refused and the queue is not full");
                let holds_nothing = |seq: &&Sequence| seq.block_table().is_empty();
                let waiting = self.scheduler.sequences().filter(holds_nothing).count();
                assert!(waiting_requests <= waiting, "I33: the queue counts those that left it");
                self.seen.saw("queue full");
            }
            Err(AdmitError::NeverFits { needed_blocks, total_blocks }) => {
                assert!(needed_blocks > total_blocks);
                self.seen.saw("never fits");
            }
            Err(AdmitError::TooLong { .. }) => self.seen.saw("prompt too long"),
            Err(AdmitError::TooManyAnswers { .. }) => self.seen.saw("too many answers"),
            Err(AdmitError::EmptyPrompt) => assert!(request.prompt.is_empty()),
            Err(AdmitError::HasEnded { answer }) => {
                let Before::Generated(generated) = &before else { panic!("nothing was generated") };
                check_has_ended(&answers[answer], generated[answer].as_deref());
                self.seen.saw("resumed after its end");
            }
        }
        self.check_all();
        self.maybe_cancel("cancelled on arrival");
    }

    /// A client leaves. `when` is the moment as the engine sees it.
    fn maybe_cancel(&mut self, when: &'static str) {
        if !self.rng.percent(self.load.cancel) {
            return;
        }
        let alive: Vec<RequestId> =
            self.clients.iter().filter(|(_, client)| !client.is_done()).map(|(&id, _)| id).collect();
        if alive.is_empty() {
            return;
        }
        // Loads are rare and brief; cancels meanwhile must be seen too.
        let loading = self.scheduler.sequences().filter(|seq| seq.is_loading()).map(Sequence::request_id);
        let loading: Vec<RequestId> = loading.filter(|id| alive.contains(id)).collect();
        let among = if loading.is_empty() { &alive } else { &loading };
        let id = self.rng.pick(among);
        self.seen.saw(when);
        self.cancel(id);
    }

    /// The engine's deadline for those that wait.
    fn give_up_on_the_oldest(&mut self) {
        let Some(deadline) = self.load.queue_deadline else { return };
        let oldest = waiting(&self.scheduler).min_by_key(|seq| (seq.request_id(), seq.answer()));
        let Some((id, arrived)) = oldest.map(|seq| (seq.request_id(), seq.request().arrived)) else { return };
        if Nanos(self.now).since(arrived) > deadline {
            self.seen.saw("given up in the queue");
            self.cancel(id);
        }
    }

    fn cancel(&mut self, id: RequestId) {
        let seqs: Vec<&Sequence> = self.scheduler.sequences().filter(|seq| seq.request_id() == id).collect();
        let waits = seqs.iter().all(|seq| seq.block_table().is_empty());
        let preempted = seqs.iter().any(|seq| seq.block_table().is_empty() && seq.num_preemptions() > 0);
        let decodes = seqs.iter().any(|seq| seq.num_generated() > 0);
        let forked = seqs.len() > 1;
        self.seen.saw(if waits { "cancelled while waiting" } else { "cancelled while running" });
        if preempted {
            self.seen.saw("cancelled while preempted");
        }
        if self.expected.remove(&id) {
            self.seen.saw("cancelled while expected");
        }
        if seqs.iter().any(|seq| seq.is_loading()) {
            self.seen.saw("cancelled while loading");
        }
        if !waits && !decodes {
            self.seen.saw("cancelled in prefill");
        }
        if forked {
            self.seen.saw("cancelled with several answers");
        }
        assert!(self.scheduler.abort(id), "{id:?} is there to cancel");
        assert!(!self.scheduler.abort(id), "{id:?} is cancelled once");
        self.kept.retain(|kept| kept.request != id);
        self.clients.get_mut(&id).expect("it is alive").cancelled = true;
        self.check_all();
        if self.scheduler.in_flight().is_none() {
            let is_gone = |seq: &Sequence| seq.request_id() != id || seq.is_loading();
            assert!(self.scheduler.sequences().all(is_gone), "I16: {id:?} is gone at once");
        }
    }

    /// The detokenizer has found its stop strings.
    fn stop_where(&mut self, when: StopWhen) {
        let is_due = |answer: &Answer| {
            let due = answer.stop_after.is_some_and(|(after, w)| w == when && answer.delivered.len() >= after);
            due && !answer.stopped && answer.finished.is_none()
        };
        let mut due = Vec::new();
        for (&id, client) in self.clients.iter().filter(|(_, client)| !client.cancelled) {
            due.extend(
                (0..client.answers.len()).filter(|&index| is_due(&client.answers[index])).map(|index| (id, index)),
            );
        }
        for (id, index) in due {
            self.scheduler.stop(id, index);
            self.clients.get_mut(&id).expect("it was just seen").answers[index].stopped = true;
            self.check_all();
            self.seen.saw("answer stopped from outside");
            if when == StopWhen::InFlight {
                self.seen.saw("stopped in flight");
            }
        }
    }

    fn lower(&mut self, step: &Step) -> Vec<LoweredRows> {
        let mut draft_tokens = self.draft(step);
        let rows = step.rows().map(|Rows { seq: id, start, len, samples, drafts }| {
            let seq = self.scheduler.sequence(id).expect("it is planned");
            let client = &self.clients[&seq.request_id()];
            assert_eq!(start, seq.num_computed());
            let mut tokens = seq.tokens().to_vec();
            tokens.extend(draft_tokens.remove(&id).unwrap_or_default());
            LoweredRows {
                seq: id,
                request: seq.request_id(),
                answer: seq.answer(),
                salt: client.request.salt,
                seed: client.seed,
                tokens,
                slots: slots_of(seq, self.scheduler.limits().block_size),
                start,
                len,
                samples,
                drafts,
                state: seq.state().map(|slot| slot.0 as usize),
                leaves: step
                    .states
                    .iter()
                    .filter(|save| save.seq == id)
                    .map(|save| (save.after, save.slot.0 as usize))
                    .collect(),
            }
        });
        let mut rows: Vec<LoweredRows> = rows.collect();
        if self.bug == Some(EngineBug::SampledByRow) {
            rows.iter_mut().enumerate().for_each(|(index, row)| row.seed = index as u64);
        }
        rows
    }

    /// The drafter: it knows the answer, and errs.
    fn draft(&mut self, step: &Step) -> BTreeMap<SeqId, Vec<TokenId>> {
        let mut drafts = BTreeMap::new();
        for rows in step.decode.iter().filter(|rows| rows.drafts > 0) {
            let seq = self.scheduler.sequence(rows.seq).expect("it is planned");
            let expected = &self.clients[&seq.request_id()].answers[seq.answer()].expected.0;
            let (from, mut tokens) = (seq.num_generated(), Vec::new());
            for draft in 0..rows.drafts {
                let right = expected.get(from + draft).filter(|_| self.rng.percent(self.load.drafts_right));
                tokens.push(right.copied().unwrap_or_else(|| self.rng.within(0..=29) as TokenId));
            }
            if self.offered[&rows.seq] > rows.drafts {
                self.seen.saw("draft room cut short");
            }
            drafts.insert(rows.seq, tokens);
        }
        drafts
    }

    fn work_of(&self, step: &Step) -> Work {
        let mut work = Work::default();
        for row in &step.decode {
            work.add_decode(self.sequence(row.seq).num_tokens());
            (1..=row.drafts).for_each(|draft| work.add_draft(self.sequence(row.seq).num_tokens() + draft));
        }
        for chunk in &step.prefill {
            work.add_chunk(chunk.start, chunk.len, chunk.samples > 0);
        }
        work
    }

    pub(crate) fn sequence(&self, id: SeqId) -> &Sequence {
        self.scheduler.sequence(id).expect("it is planned")
    }

    /// In any order: no block is a source and a destination.
    fn copy_blocks(&mut self, step: &Step) {
        let mut copies = step.copies.clone();
        self.rng.shuffle(&mut copies);
        for copy in copies {
            self.seen.saw("block copied");
            self.cache.copy_block(copy.src.index(), copy.dst.index());
        }
    }

    fn count_end(&mut self, event: &TokenEvent) {
        let TokenEvent::Finished { request, answer, reason } = *event else { return };
        let client = &self.clients[&request];
        let generated = client.answers[answer].delivered.len();
        self.seen.saw(match reason {
            FinishReason::Stop(_) => "answer ended by a stop token",
            FinishReason::Length if client.request.stop.max_tokens == 0 => "scored only",
            FinishReason::Length if generated == client.request.stop.max_tokens => "answer ended by max_tokens",
            FinishReason::Length => "answer ended by the context",
        });
    }

    /// Everything that must hold between two calls.
    pub(crate) fn check_all(&self) {
        self.scheduler.check_invariants();
        self.check_gauges();
        self.check_elsewhere();
        let in_flight = self.scheduler.in_flight().is_some();
        for seq in self.scheduler.sequences() {
            let client = &self.clients[&seq.request_id()];
            let answer = &client.answers[seq.answer()];
            let ended = client.cancelled || answer.stopped || answer.finished.is_some();
            assert!(in_flight || seq.is_loading() || !ended, "I16: {:?} outlives its end", seq.id());
        }
    }
}

fn slots_of(seq: &Sequence, block_size: usize) -> Vec<usize> {
    (0..seq.block_table().len() * block_size).map(|position| seq.slot(position)).collect()
}

/// The sequences in the queue: they hold nothing.
fn waiting(scheduler: &Scheduler) -> impl Iterator<Item = &Sequence> {
    scheduler.sequences().filter(|seq| seq.block_table().is_empty() && !seq.is_in_remote_prefill())
}

/// Blocks that are held or read.
pub(crate) fn held_blocks(scheduler: &Scheduler) -> usize {
    let tables = scheduler.sequences().flat_map(|seq| seq.block_table());
    let read = scheduler.reads().iter().map(|read| &read.block);
    tables.chain(read).collect::<BTreeSet<_>>().len()
}
