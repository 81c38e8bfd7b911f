//! The hallway itself: offer, plan, propose, lower, forward, sample, complete, deliver. One thread owns an
//! [`EngineCore`]; nothing here blocks or waits, and what happened is written to the [`Journal`], once.
//!
//! A step that fails costs no other request anything. Rows that panic are computed again in halves, which changes no
//! bit of any other row, until the one sequence is found that fails alone; its request ends. A failure around the rows
//! abandons the plan. Only where the scheduler itself may be inconsistent is everything reset. A lost device fails
//! every pass: all that is open goes on with another (moving.rs), or ends.

mod compute;
mod deliver;
mod handoff;
mod in_flight;
mod moving;
mod progress;
mod show;
mod step_drafts;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use grammar::Constraint;
use kernels::DeviceError;
use model::sampler::{History, Sampler};
use model::{Forward, PackedAdapter};
use observe::Gauges;
use observe::{FinishedSummary, Views};
use protocol::{Nanos, RequestId, TokenId};
use rates::StealMeter;
use scheduler::{
    AdmitError, CacheEvent, CostModel, ExpertReads, Preempted, Request, Scheduler, StealTime, Step, StepOutput,
    StepRecord, TokenEvent,
};
use speculate::DrafterSet;
use text::detokenizer::Detokenizer;
use text::tokenizer::Tokenizer;

use crate::command::{ArrivalInfo, PutAdapterResult};
use crate::feature::{CoreEvent, Feature, Features};
use crate::journal::{Fact, Journal};
use crate::output::{Event, EventSender, RequestError, TokenLogprob};
use crate::queue_permit::QueuePermit;
use crate::recording::{RecordSink, RecordedDrafts, StepTokens};
use crate::tiers::Tiers;
use crate::validate::{OfPrompt, ValidatedRequest};
use handoff::Handoffs;
use in_flight::InFlightPass;
use moving::ComputeDevice;
use progress::ProgressSent;
use step_drafts::StepDrafts;

/// An admitted request: what the scheduler does not need to know of it.
struct ActiveRequest {
    request: ValidatedRequest,
    seed: u64,
    events: EventSender,
    answers: Vec<AnswerState>,
    /// What is still wanted of its prompt.
    of_prompt: OfPrompt,
    prompt_logprobs: Vec<Option<TokenLogprob>>,
    permit: Option<QueuePermit>,
    /// What its client knows of its prompt, if it wants to know.
    progress: Option<ProgressSent>,
}

/// One of a request's answers.
struct AnswerState {
    detokenizer: Option<Detokenizer>,
    history: History,
    /// What may follow.
    constraint: Option<Constraint>,
    /// Of the tokens that were drawn and not delivered yet.
    logprobs: VecDeque<TokenLogprob>,
    num_tokens: usize,
    has_ended: bool,
    /// Its tokens, where a drafter remembers them.
    generated: Option<Vec<TokenId>>,
}

impl AnswerState {
    /// It has these tokens from elsewhere, and its client has them. Validation has checked that it can continue.
    fn restore_generated(&mut self, tokens: &[TokenId], request: &ValidatedRequest) {
        for &token in tokens {
            self.num_tokens += 1;
            if request.sampling.needs_history() {
                self.history.push(token);
            }
            self.generated.iter_mut().for_each(|generated| generated.push(token));
            // What is wrong with one is found again where the next is drawn.
            self.constraint.iter_mut().for_each(|constraint| _ = constraint.accept(token));
            match &mut self.detokenizer {
                Some(detokenizer) if self.num_tokens <= request.stop.min_tokens => {
                    _ = detokenizer.push_unstoppable(token);
                }
                Some(detokenizer) => _ = detokenizer.push(token),
                None => {}
            }
        }
    }

    /// Whether nothing can follow it: its own tokens, and `ahead` that were drawn and not delivered yet.
    fn is_complete(&self, ahead: usize) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_complete(self.num_tokens + ahead))
    }
}

/// Everything that a step touches.
pub(crate) struct EngineCore {
    scheduler: Scheduler,
    forward: Box<dyn Forward>,
    features: Features,
    tiers: Option<Tiers>,
    tokenizer: Option<Arc<Tokenizer>>,
    sampler: Sampler,
    active: BTreeMap<RequestId, Box<ActiveRequest>>,
    journal: Journal,
    next_seed: u64,
    device: ComputeDevice,
    drafts: StepDrafts,
    /// Steps between their plan and their results, the oldest first.
    in_flight: VecDeque<InFlightPass>,
    buffers: StepBuffers,
    /// Prompts that are read for others, and by others.
    handoffs: Handoffs,
}

/// What the step that completes has brought, until clients and views have it. Kept between steps for its memory.
struct StepBuffers {
    logit_row: Vec<f32>,
    output: StepOutput,
    events: Vec<TokenEvent>,
    finished: Vec<FinishedSummary>,
    failed: Vec<(RequestId, RequestError)>,
    slow_readers: Vec<RequestId>,
    spare: Vec<InFlightPass>,
}

impl StepBuffers {
    fn new(vocab: usize) -> StepBuffers {
        StepBuffers {
            logit_row: vec![0.0; vocab],
            output: StepOutput::default(),
            events: Vec::new(),
            finished: Vec::new(),
            failed: Vec::new(),
            slow_readers: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.output.rows.clear();
        self.output.failed.clear();
        self.events.clear();
        self.finished.clear();
        self.failed.clear();
        self.slow_readers.clear();
    }
}

impl EngineCore {
    pub(crate) fn new(
        mut scheduler: Scheduler,
        forward: Box<dyn Forward>,
        tokenizer: Option<Arc<Tokenizer>>,
        seed: u64,
        views: Arc<Mutex<Views>>,
    ) -> EngineCore {
        let vocab = forward.config().vocab_size;
        scheduler.set_steps_in_flight(forward.passes_in_flight());
        let device = ComputeDevice { steal_meter: StealMeter::new(forward.device().threads), standby: None };
        EngineCore {
            scheduler,
            forward,
            features: Features::default(),
            tiers: None,
            tokenizer,
            sampler: Sampler::new(vocab),
            active: BTreeMap::new(),
            journal: Journal::new(views),
            next_seed: seed,
            device,
            drafts: StepDrafts::default(),
            in_flight: VecDeque::new(),
            buffers: StepBuffers::new(vocab),
            handoffs: Handoffs::default(),
        }
    }

    /// From now on every input of the scheduler is written to `sink`.
    pub(crate) fn record_to(&mut self, sink: Option<RecordSink>) {
        self.journal.record_to(sink);
    }

    /// Takes a request in. On an error nothing was kept, and the request ends with it.
    pub(crate) fn admit(
        &mut self,
        id: RequestId,
        mut validated: ValidatedRequest,
        arrived: ArrivalInfo,
        events: EventSender,
        now: Nanos,
    ) -> Result<(), RequestError> {
        let request = Request {
            id,
            prompt: validated.prompt.clone(),
            num_answers: validated.num_answers,
            stop: validated.stop.clone(),
            priority: validated.priority,
            salt: self.handoffs.salt(&validated),
            use_prefix_cache: !validated.of_prompt.needs_all(),
            tenant: validated.tenant,
            targets: validated.targets,
            arrived: arrived.at,
        };
        let generated: Vec<_> = validated.generated.iter().map(Option::as_deref).collect();
        // Validation and the queue's counters refuse everything that the scheduler would.
        let unforeseen = |error: AdmitError| {
            tracing::error!(request = id.0, ?error, "the scheduler refused a validated request");
            RequestError::Internal
        };
        let may_leave = self.handoffs.can_prefill_remotely(&validated);
        let admitted = match generated.is_empty() {
            _ if validated.has_lost_adapter() => Err(RequestError::AdapterLost),
            true if may_leave => self.scheduler.admit_remote(request.clone()).map_err(unforeseen),
            true => self.scheduler.admit(request.clone()).map_err(unforeseen),
            false => self.scheduler.resume(request.clone(), &generated, now).map_err(unforeseen),
        };
        if let Err(error) = admitted {
            self.journal.views().promises.gone(id, now);
            return Err(error);
        }
        let is_told = validated.receipt;
        let seed = validated.resolve_seed(|| {
            self.next_seed = self.next_seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            // The reader of a receipt must not learn the seeds of others.
            if is_told { secret(self.next_seed, &self.scheduler.limits().hash_key) } else { self.next_seed }
        });
        if !self.is_rerun() {
            self.features.tell(&CoreEvent::Admitted { id, request: &validated, seed });
        }
        let mut answers: Vec<AnswerState> = (0..validated.num_answers).map(|_| self.new_answer(&validated)).collect();
        for (answer, tokens) in answers.iter_mut().zip(&validated.generated) {
            match tokens {
                None => answer.has_ended = true,
                Some(tokens) => answer.restore_generated(tokens, &validated),
            }
        }
        let ArrivalInfo { held, permit, .. } = arrived;
        self.journal.take(Fact::Admitted { request, validated: Box::new(validated.clone()), now, held });
        let of_prompt = validated.of_prompt;
        let progress = validated.progress.then(ProgressSent::default);
        let prompt_logprobs = Vec::new();
        let active =
            ActiveRequest { request: validated, seed, events, answers, of_prompt, prompt_logprobs, permit, progress };
        self.active.insert(id, Box::new(active));
        if may_leave {
            self.request_remote_prefill(id, now);
        }
        self.write();
        Ok(())
    }

    fn new_answer(&self, request: &ValidatedRequest) -> AnswerState {
        let detokenizer = self.tokenizer.as_ref().map(|tokenizer| request.detokenizer(tokenizer));
        // Only penalties look at it.
        let history = if request.sampling.needs_history() { History::new(&request.prompt) } else { History::default() };
        // A request that opts out of drafts is not a source of drafts for others either.
        let remembers = self.drafts.drafters.remembers();
        let generated = (remembers && request.speculate).then(Vec::new);
        let constraint = request.rule.as_ref().map(|(_, grammar)| grammar.constraint());
        AnswerState {
            detokenizer,
            history,
            constraint,
            logprobs: VecDeque::new(),
            num_tokens: 0,
            has_ended: false,
            generated,
        }
    }

    /// Forgets a request; its blocks are free within one step. False if there is no such open request.
    pub(crate) fn cancel(&mut self, id: RequestId, now: Nanos) -> bool {
        let is_open = self.active.remove(&id).is_some();
        if is_open {
            self.handoffs.ended(id);
            self.features.tell(&CoreEvent::Ended(id));
            self.scheduler.abort(id);
            self.journal.take(Fact::Cancelled(id, now));
            self.write();
        }
        is_open
    }

    /// Facts go to these views from now on; false if there is anything else to do, or a recording to keep whole.
    pub(crate) fn begin_rerun(&mut self, views: Arc<Mutex<Views>>) -> bool {
        let begins = !(self.has_work() || self.is_rerun() || self.journal.records());
        if begins {
            self.journal.turn(Some(views), self.scheduler.prefix_stats());
            self.scheduler.mark_cache();
        }
        begins
    }

    /// Whether all that is done is done again.
    pub(crate) fn is_rerun(&self) -> bool {
        self.journal.turned.is_some()
    }

    /// What is left of a rerun did not happen, and facts go to the engine's views again.
    pub(crate) fn end_rerun(&mut self, now: Nanos) {
        if self.is_in_flight() {
            self.abandon();
        }
        self.active.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| _ = self.cancel(id, now));
        self.scheduler.forget_cache();
        self.journal.turn(None, self.scheduler.prefix_stats());
    }

    /// The engine was held for so long, all in all.
    pub(crate) fn set_paused_time(&mut self, held: Nanos) {
        self.journal.set_paused(held);
    }

    /// Anything admitted and unfinished.
    pub(crate) fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Blocks that leave the KV cache live on in `tiers`. Before the first request.
    pub(crate) fn set_tiers(&mut self, tiers: Tiers) {
        self.scheduler.set_tiers(tiers.sizes());
        self.tiers = Some(tiers);
    }

    /// Tells a feature what happens from now on. Before the first request.
    pub(crate) fn add_feature(&mut self, feature: Box<dyn Feature>) {
        if feature.wants_cache_events() {
            self.scheduler.record_cache_events();
        }
        self.features.add(feature);
    }

    /// Puts an adapter into a slot that no open request names, or empties it.
    pub(crate) fn put_adapter(&mut self, slot: u32, adapter: Option<PackedAdapter>) -> PutAdapterResult {
        self.forward.put_adapter(slot as usize, adapter)
    }

    /// Gives an idle moment to a feature. False: none has work.
    pub(crate) fn run_idle_work(&mut self) -> bool {
        let worked = self.in_flight.is_empty() && self.features.idle(&mut *self.forward);
        if worked {
            // Stolen time outside of a step is attributed to none.
            self.forward.lost();
        }
        worked
    }

    /// The next step has waited so long for the cores, and other models' tokens leave it so much time.
    pub(crate) fn share_cores(&mut self, waited: Nanos, bound: Option<Nanos>) {
        self.buffers.output.other_model = waited;
        self.scheduler.set_step_bound(bound);
    }

    /// When the next token of a stream or the first of a prompt is due, of those that have a target.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.scheduler.next_due()
    }

    /// One forward pass: the sentence that the whole engine is. False if there was nothing to compute yet. `clock` is
    /// asked for each plan, and for the end of the oldest step in flight. Where a device takes several passes, the next
    /// are planned and launched before that. `recorded`: what a recording says that the machine took, and experts; without
    /// one they are asked.
    pub(crate) fn step(
        &mut self,
        clock: &mut dyn Iterator<Item = Nanos>,
        recorded: Option<(StealTime, ExpertReads)>,
    ) -> Result<bool, DeviceError> {
        let mut now = || clock.next().expect("time goes on");
        while self.in_flight.len() < self.most_in_flight() {
            let planned = now();
            if self.in_flight.is_empty() {
                self.device.steal_meter.begins(planned, &*self.forward);
                // What calibration and idle work have read belongs to no step.
                self.forward.expert_reads();
            }
            if self.launch(planned, &mut now)? {
                continue;
            }
            if self.in_flight.is_empty() {
                self.journal.take(Fact::Idle(planned));
                self.write();
                return Ok(false);
            }
            break;
        }
        self.finish_pass()?;
        let done = now();
        let record = self.scheduler.completes_next().expect("it has landed");
        let mut measured = self.device.steal_meter.ends(record.began_at, done, record.predicted, &*self.forward);
        if measured.during > Nanos(0)
            && let Some(peaks) = &self.journal.views().peaks
        {
            measured = peaks.at_most_stolen(record, done.since(record.began_at), measured);
        }
        let model::ExpertReadTotals { count, bytes, took } = self.forward.expert_reads();
        let read = ExpertReads { count, bytes, took: Nanos(took.as_nanos() as u64) };
        (self.buffers.output.stolen, self.buffers.output.experts) = recorded.unwrap_or((measured, read));
        self.complete(done);
        self.send_blocks()?;
        self.publish_cache_events();
        Ok(true)
    }

    fn publish_cache_events(&mut self) {
        if self.features.want_cache_events() {
            let events = self.scheduler.take_cache_events();
            if !events.is_empty() {
                self.features.tell(&CoreEvent::CacheChanged(&events));
            }
        }
    }

    /// Plans that may be under way together. A recording tells when each was made, but not what had completed by then.
    fn most_in_flight(&self) -> usize {
        if self.journal.records() { 1 } else { self.forward.passes_in_flight() }
    }

    /// Takes the step's results to the scheduler, to the clients and to the journal.
    fn complete(&mut self, now: Nanos) {
        self.buffers.failed.sort_unstable_by_key(|&(id, _)| id);
        self.buffers.failed.dedup_by_key(|&mut (id, _)| id);
        if !self.buffers.failed.is_empty() {
            let EngineCore { buffers: StepBuffers { failed, output, .. }, scheduler, .. } = self;
            let failed = |id: RequestId| failed.iter().any(|&(other, _)| other == id);
            output
                .rows
                .retain(|row| scheduler.sequence(row.seq).is_some_and(|sequence| !failed(sequence.request_id())));
        }
        self.cut_runs();
        self.buffers.output.failed.clear();
        self.buffers.output.failed.extend(self.buffers.failed.iter().map(|&(id, _)| id));
        let mut record = self.journal.spare();
        self.scheduler.complete_into(&self.buffers.output, now, &mut self.buffers.events, &mut record);
        // One that began elsewhere, all of which is cached, begins with a decode row.
        for row in record.prefill.iter().chain(record.decode.iter().filter(|row| row.cached_tokens > 0)) {
            if let Some(permit) = self.active.get_mut(&row.request).and_then(|active| active.permit.as_mut()) {
                permit.leave_queue();
            }
        }
        tell_preempted(&record);
        self.tell_progress(&record, now);
        let records = self.journal.records();
        if !self.drafts.made.offers.is_empty() {
            self.journal.take(Fact::Offered(self.drafts.made.offers.clone()));
        }
        let spelled = records.then(|| {
            let tokens = self.buffers.output.rows.iter().map(|row| row.token).collect();
            Box::new(StepTokens { tokens, drafted: std::mem::take(&mut self.drafts.made) })
        });
        self.journal.take(Fact::Step { record, failed: self.buffers.output.failed.clone(), tokens: spelled });
        self.end_failed(now);
        self.deliver(now);
        self.write();
        self.fail_slow_readers(now);
    }

    /// Ends only the requests with failed rows.
    fn end_failed(&mut self, now: Nanos) {
        for (id, error) in std::mem::take(&mut self.buffers.failed) {
            self.fail_request(id, error, now);
        }
    }

    fn fail_request(&mut self, id: RequestId, error: RequestError, now: Nanos) {
        if let Some(active) = self.active.remove(&id) {
            let ActiveRequest { events, permit, request, .. } = *active;
            self.handoffs.ended(id);
            self.features.tell(&CoreEvent::Ended(id));
            self.journal.take(Fact::Failed(id, now));
            drop((permit, request));
            events.send(Event::Failed(error));
        }
    }

    /// Ends a request that no step has failed.
    fn end_with(&mut self, id: RequestId, error: RequestError, now: Nanos) {
        self.scheduler.abort(id);
        self.fail_request(id, error, now);
        self.write();
    }

    /// Writes the journal, and sends finished requests their account.
    fn write(&mut self) {
        let gauges = Gauges {
            used_blocks: self.scheduler.used_blocks(),
            cached_blocks: self.scheduler.cached_blocks(),
            prefix: self.scheduler.prefix_stats(),
            swap: self.scheduler.swap_stats(),
            states: self.scheduler.states(),
        };
        self.journal.write(gauges, self.scheduler.cost_model(), &mut self.buffers.finished);
        for FinishedSummary { request, usage, timings } in self.buffers.finished.drain(..) {
            self.handoffs.ended(request);
            self.features.tell(&CoreEvent::Ended(request));
            if let Some(active) = self.active.remove(&request) {
                let ActiveRequest { events, permit, request, .. } = *active;
                // Its places and its adapter are free when its client gets the end.
                drop((permit, request));
                events.send(Event::Done { usage, timings });
            }
        }
    }

    /// Ends the requests with clients that are too far behind.
    fn fail_slow_readers(&mut self, now: Nanos) {
        for id in std::mem::take(&mut self.buffers.slow_readers) {
            let Some(active) = self.active.get(&id) else { continue };
            active.events.send(Event::Failed(RequestError::SlowReader));
            self.cancel(id, now);
        }
    }

    /// Whether a plan is under way that has not been completed: what failed is around its rows, and the scheduler is
    /// whole.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.scheduler.in_flight().is_some()
    }

    /// What is under way did not happen. Its sequences go back to the queue and lose what was to be computed.
    pub(crate) fn abandon(&mut self) {
        let planned = self.scheduler.planned().scheduled_at;
        let offers = std::mem::take(&mut self.drafts.made.offers);
        self.in_flight.clear();
        while let Some(step) = self.scheduler.in_flight() {
            self.scheduler.abandon(step);
        }
        self.buffers.failed.clear();
        self.journal.take(Fact::Abandoned(planned, offers));
        self.write();
    }

    /// The next step has exactly these drafts: those of a recording.
    pub(crate) fn use_recorded_drafts(&mut self, recorded: RecordedDrafts) {
        self.drafts.recorded = Some(recorded);
    }

    pub(crate) fn set_drafters(&mut self, drafters: DrafterSet) {
        self.drafts.drafters = drafters;
    }

    /// Plans a step and gives it up: what a recording says of one that was.
    pub(crate) fn plan_and_abandon(&mut self, now: Nanos) {
        self.offer();
        self.scheduler.schedule_into(now, &mut Step::default());
        self.abandon();
    }

    /// Ends every request with `error`: the engine stops.
    pub(crate) fn end_all(&mut self, error: RequestError, now: Nanos) {
        self.journal.clear();
        self.journal.take(Fact::Over(now));
        self.write();
        self.fail_all(error);
    }

    /// The last resort, where the scheduler may be in disorder: everything admitted ends with an error, and a new
    /// scheduler begins with an empty cache and empty tiers. `cost`: what predicts its steps.
    pub(crate) fn start_over(&mut self, cost: Option<CostModel>, now: Nanos) {
        self.renew_scheduler(cost.clone());
        self.journal.clear();
        self.journal.take(Fact::Restarted(cost, now));
        self.write();
        self.fail_all(RequestError::Internal);
    }

    /// A scheduler that knows of nothing, with these limits. Returns the one before.
    fn renew_scheduler(&mut self, cost: Option<CostModel>) -> Scheduler {
        let (limits, drafting) = (self.scheduler.limits().clone(), self.scheduler.drafting_cost().cloned());
        let new = Scheduler::new(limits).expect("these limits have made a scheduler before");
        let before = std::mem::replace(&mut self.scheduler, new);
        self.scheduler.set_steps_in_flight(self.forward.passes_in_flight());
        self.scheduler.set_cost_model(cost);
        self.scheduler.set_drafting_cost(drafting);
        if self.handoffs.is_remote_only() {
            self.scheduler.set_remote_only_prefill();
        }
        if let Some(tiers) = &mut self.tiers {
            tiers.start_over();
            self.scheduler.set_tiers(tiers.sizes());
        }
        self.scheduler.count_on(&before);
        if self.features.want_cache_events() {
            self.scheduler.record_cache_events();
        }
        self.features.tell(&CoreEvent::CacheChanged(&[CacheEvent::Cleared]));
        self.drafts.drafters.start_over();
        self.in_flight.clear();
        self.buffers.clear();
        before
    }

    fn fail_all(&mut self, error: RequestError) {
        self.handoffs.all_ended();
        self.features.tell(&CoreEvent::AllEnded);
        for active in std::mem::take(&mut self.active).into_values() {
            let ActiveRequest { events, permit, .. } = *active;
            drop(permit);
            events.send(Event::Failed(error));
        }
    }

    /// The calling thread is the one that steps from now on.
    pub(crate) fn set_compute_thread(&self) {
        self.forward.set_compute_thread();
    }

    pub(crate) fn cost_model(&self) -> Option<CostModel> {
        self.scheduler.cost_model().cloned()
    }
}

#[cfg(test)]
impl EngineCore {
    /// A step until its results are delivered: planned, lowered, computed, sampled.
    pub(crate) fn begin_step(&mut self, now: Nanos) -> usize {
        assert!(self.launch(now, &mut || now).expect("a device that is there"), "there is something to compute");
        self.finish_pass().expect("a device that is there");
        self.buffers.output.rows.len()
    }

    /// The rest of it.
    pub(crate) fn end_step(&mut self, now: Nanos) {
        self.complete(now);
    }

    pub(crate) fn check_invariants(&self) {
        self.scheduler.check_invariants();
    }

    pub(crate) fn drafting_computes(&self) -> bool {
        self.drafts.drafters.computes()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

/// A number from which no other can be derived without the key.
fn secret(number: u64, key: &[u8; 32]) -> u64 {
    let digest = blake3::keyed_hash(key, &number.to_le_bytes());
    digest.as_bytes().iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// One line of the log for each.
fn tell_preempted(record: &StepRecord) {
    for Preempted { request, tokens, decision } in &record.preempted {
        tracing::info!(
            request = request.0,
            tokens,
            fate = ?decision.mode,
            reason = ?decision.reason,
            swap_ms = decision.swap.as_secs_f64() * 1e3,
            recompute_ms = decision.recompute.as_secs_f64() * 1e3,
            "preempted: the KV cache is full"
        );
    }
}
