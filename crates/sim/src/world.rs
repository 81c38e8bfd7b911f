//! The event loop of the simulation.
//!
//! ```text
//! at an event     1. steps that end now are completed: tokens, events, records
//!                 2. blocks transferred between workers are received
//!                 3. requests that arrive now are routed and admitted
//!                 4. every idle instance proposes drafts and plans its next step, whose end its cost model determines
//! then            the clock jumps to the next step end, reception or arrival
//! ```
//!
//!
//! The engine's loop has the same order: requests that arrive during a step are admitted before the next plan. Cost: the
//! production scheduler's; there is no waiting and no computation.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use protocol::{Nanos, RequestId, StopRules};
use scheduler::kv::ChainHasher;
use scheduler::router;
use scheduler::{
    AdmissionForecast, BlockHash, BlockLoad, CostModel, DraftProposal, IncomingRequest, Limits, LimitsError, Request,
    RowOutput, Scheduler, Step, StepOutput, StepRecord, TierSizes, TokenEvent, Work,
};

use crate::disaggregation::{Disaggregation, Link, Placement, Travel};
use crate::report::{Collector, Report};
use crate::workload::{Piece, Workload};

/// Step times. Two models, because decode-only and mixed steps use different kernels: on GPUs a decode row beside a prompt
/// may cost twice as much as among decode rows.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimes {
    /// For decode-only steps.
    pub decode: CostModel,
    /// For all other steps.
    pub mixed: CostModel,
    /// Slowdown over time.
    pub pace: Pace,
}

/// Slowdown factors, each from a time to the next: of a disturbed machine. Before the first time, and without any, it
/// is 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pace(Vec<(Nanos, f64)>);

impl Pace {
    /// From times and factors. Panics unless the times rise and the factors are above 0.
    pub fn new(moments: Vec<(Nanos, f64)>) -> Pace {
        assert!(moments.is_sorted_by(|a, b| a.0 < b.0) && moments.iter().all(|&(_, pace)| pace > 0.0), "moments rise");
        Pace(moments)
    }

    /// End of an interval that begins at `now` and takes `undisturbed` without slowdown.
    fn end(&self, now: Nanos, undisturbed: Nanos) -> Nanos {
        let next = self.0.partition_point(|&(at, _)| at <= now);
        let (mut now, mut left) = (now, undisturbed.0 as f64);
        let mut pace = next.checked_sub(1).map_or(1.0, |index| self.0[index].1);
        for &(at, other) in &self.0[next..] {
            let done = at.since(now).0 as f64 / pace;
            if done >= left {
                break;
            }
            (now, left, pace) = (at, left - done, other);
        }
        Nanos(now.0.saturating_add((left * pace) as u64))
    }
}

impl From<CostModel> for StepTimes {
    /// One model for both, without slowdown.
    fn from(model: CostModel) -> StepTimes {
        StepTimes { decode: model.clone(), mixed: model, pace: Pace::default() }
    }
}

impl StepTimes {
    /// Time of a step with this work, without slowdown.
    pub fn step_time(&self, work: &Work) -> Nanos {
        if work.prefill_seqs == 0 { self.decode.step_time(work) } else { self.mixed.step_time(work) }
    }

    /// Time of a step that begins at `now`.
    pub fn step_time_at(&self, now: Nanos, work: &Work) -> Nanos {
        self.pace.end(now, self.step_time(work)).since(now)
    }
}

/// One engine: a scheduler and a machine.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Configuration of the scheduler.
    pub limits: Limits,
    /// Actual step times.
    pub machine: StepTimes,
    /// The scheduler's cost model. `None`: without a model it ignores targets, and only the limits bound a step (static
    /// chunks).
    pub belief: Option<CostModel>,
}

/// Engines behind a router.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// At least one.
    pub instances: Vec<Instance>,
    /// Roles and link; `None`: every instance has both roles, and the router chooses.
    pub disaggregation: Option<Disaggregation>,
}

impl Fleet {
    /// `count` equal engines.
    pub fn of(count: usize, instance: &Instance) -> Fleet {
        Fleet { instances: vec![instance.clone(); count], disaggregation: None }
    }

    /// The same fleet, disaggregated.
    pub fn disaggregated(self, disaggregation: Disaggregation) -> Fleet {
        Fleet { disaggregation: Some(disaggregation), ..self }
    }
}

/// Observes a simulation; every method does nothing by default. Requests are identified by their index in the load.
pub trait Observer {
    /// A request was admitted to instance `instance`.
    fn admitted(&mut self, instance: usize, request: &Request) {
        let _ = (instance, request);
    }

    /// The last token of a request was generated, in the step reported last.
    fn finished(&mut self, instance: usize, request: RequestId, now: Nanos) {
        let _ = (instance, request, now);
    }

    /// A step of instance `instance` has ended.
    fn step(&mut self, instance: usize, record: &StepRecord) {
        let _ = (instance, record);
    }

    /// The scheduler of instance `instance` after a step, and at the end.
    fn scheduler(&mut self, instance: usize, scheduler: &Scheduler) {
        let _ = (instance, scheduler);
    }

    /// Whether to continue; called before each event. If not, the simulation ends with partial results.
    fn goes_on(&self) -> bool {
        true
    }

    /// `ended` of `all` requests have ended or were refused.
    fn progress(&mut self, ended: usize, all: usize) {
        let _ = (ended, all);
    }
}

impl Observer for () {}

/// Runs `workload` on `fleet` to its end. Deterministic: equal arguments give equal reports.
/// Fails if the limits of an instance are invalid. Panics if the fleet is empty, if roles are given but not for every
/// instance, or if no instance prefills or none decodes.
pub fn simulate(workload: &Workload, fleet: &Fleet, observer: &mut dyn Observer) -> Result<Report, LimitsError> {
    assert!(!fleet.instances.is_empty(), "a fleet needs an instance");
    let mut world = World::new(workload, fleet)?;
    while observer.goes_on() && world.next_moment() {
        world.complete(observer);
        world.land(observer);
        world.arrive(observer);
        world.plan();
    }
    for (instance, engine) in world.engines.iter().enumerate() {
        observer.scheduler(instance, &engine.scheduler);
    }
    let disaggregation = world.travel.filter(|_| observer.goes_on()).map(Travel::report);
    Ok(world.collector.report(workload, fleet, disaggregation))
}

/// The step log instead of a report: instance and record of every step, ordered by end.
pub fn records(workload: &Workload, fleet: &Fleet) -> Result<Vec<(usize, StepRecord)>, LimitsError> {
    struct Log(Vec<(usize, StepRecord)>);
    impl Observer for Log {
        fn step(&mut self, instance: usize, record: &StepRecord) {
            self.0.push((instance, record.clone()));
        }
    }
    let mut log = Log(Vec::new());
    simulate(workload, fleet, &mut log)?;
    Ok(log.0)
}

/// State of an instance.
pub(crate) struct Engine {
    pub(crate) scheduler: Scheduler,
    machine: StepTimes,
    /// Loads from host memory, their rate and times; `None` without tiers.
    link: Option<Link>,
    loads: VecDeque<(Nanos, Vec<BlockLoad>)>,
    /// End of its step in flight.
    busy_until: Option<Nanos>,
    /// Reused buffers.
    offers: Vec<DraftProposal>,
    step: Step,
    output: StepOutput,
    record: StepRecord,
}

struct World<'a> {
    workload: &'a Workload,
    engines: Vec<Engine>,
    /// Transfers between workers with roles.
    travel: Option<Travel>,
    /// Reused buffers.
    forecast: AdmissionForecast,
    now: Nanos,
    /// The next arrival without predecessor, in order of time.
    next_open: usize,
    open: Vec<usize>,
    /// Arrival times of follow-ups whose predecessor has ended.
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// By predecessor.
    followers: Vec<Option<usize>>,
    collector: Collector,
    events: Vec<TokenEvent>,
}

impl<'a> World<'a> {
    fn new(workload: &'a Workload, fleet: &Fleet) -> Result<World<'a>, LimitsError> {
        if let Some(disaggregation) = &fleet.disaggregation {
            assert_eq!(disaggregation.roles.len(), fleet.instances.len(), "each instance has a role");
        }
        let engines = fleet.instances.iter().map(|instance| {
            let mut scheduler = Scheduler::new(instance.limits.clone())?;
            if fleet.disaggregation.is_some() {
                // Received blocks go there. A host has at least as much memory as its accelerators.
                scheduler.set_tiers(TierSizes { host_slots: instance.limits.num_blocks, disk_slots: 0 });
            }
            scheduler.set_cost_model(instance.belief.clone());
            Ok(Engine {
                scheduler,
                machine: instance.machine.clone(),
                link: fleet.disaggregation.as_ref().map(|disaggregation| disaggregation.link),
                loads: VecDeque::new(),
                busy_until: None,
                offers: Vec::new(),
                step: Step::default(),
                output: StepOutput::default(),
                record: StepRecord::default(),
            })
        });
        let arrivals = &workload.arrivals;
        let mut open: Vec<usize> = (0..arrivals.len()).filter(|&index| arrivals[index].follows.is_none()).collect();
        open.sort_by_key(|&index| arrivals[index].at);
        let mut followers = Vec::new();
        for (index, before) in arrivals.iter().enumerate().filter_map(|(index, a)| Some((index, a.follows?))) {
            assert!(before < index, "request {index} must follow an earlier one");
            followers.resize(arrivals.len(), None);
            assert!(followers[before].replace(index).is_none(), "two requests follow request {before}");
        }
        Ok(World {
            workload,
            engines: engines.collect::<Result<_, _>>()?,
            travel: fleet.disaggregation.as_ref().map(Travel::new),
            forecast: AdmissionForecast::default(),
            now: Nanos(0),
            next_open: 0,
            open,
            due: BinaryHeap::new(),
            followers,
            collector: Collector::new(workload, fleet),
            events: Vec::new(),
        })
    }

    /// Moves the clock to the next event; false at the end of the simulation.
    fn next_moment(&mut self) -> bool {
        let loads = |engine: &Engine| engine.loads.front().map(|&(at, _)| at);
        let ends = self.engines.iter().flat_map(|engine| [engine.busy_until, loads(engine)]).flatten().min();
        let open = self.open.get(self.next_open).map(|&index| self.workload.arrivals[index].at);
        let due = self.due.peek().map(|&Reverse((at, _))| at);
        let landing = self.travel.as_ref().and_then(Travel::next);
        let next = [ends, landing, open, due].into_iter().flatten().min();
        self.now = next.unwrap_or(self.now);
        next.is_some()
    }

    fn complete(&mut self, observer: &mut dyn Observer) {
        for (instance, engine) in self.engines.iter_mut().enumerate() {
            engine.load(self.now);
            if engine.busy_until != Some(self.now) {
                continue;
            }
            engine.busy_until = None;
            let Engine { scheduler, output, record, .. } = engine;
            self.events.clear();
            scheduler.complete_into(output, self.now, &mut self.events, record);
            self.collector.step(instance, record, &engine.machine);
            observer.step(instance, record);
            if let Some(travel) = &mut self.travel {
                travel.step(instance, record, scheduler);
            }
            for event in &self.events {
                let (TokenEvent::Token { request: id, .. } | TokenEvent::Finished { request: id, .. }) = *event;
                let read_for_another = self.travel.as_mut().filter(|travel| travel.is_read_for_another(id, instance));
                let request = id.0 as usize;
                match (event, read_for_another) {
                    (TokenEvent::Token { .. }, Some(_)) => {}
                    (TokenEvent::Finished { .. }, Some(travel)) => travel.has_read(id, scheduler, self.now),
                    (TokenEvent::Token { .. }, None) => self.collector.token(request, self.now),
                    (TokenEvent::Finished { .. }, None) => {
                        observer.finished(instance, id, self.now);
                        let tokens = self.collector.ended(request);
                        if let Some(travel) = &mut self.travel {
                            travel.ended(instance, tokens);
                        }
                        if let Some(next) = self.followers.get(request).copied().flatten() {
                            let pause = self.workload.arrivals[next].at;
                            self.due.push(Reverse((Nanos(self.now.0.saturating_add(pause.0)), next)));
                        }
                    }
                }
            }
            observer.scheduler(instance, scheduler);
            observer.progress(self.collector.num_ended(), self.workload.arrivals.len());
        }
    }

    /// Handles transferred blocks; refuses requests whose capacity is gone.
    fn land(&mut self, observer: &mut dyn Observer) {
        let Some(mut travel) = self.travel.take() else { return };
        while let Some(request) = travel.land(&mut self.engines, self.now) {
            self.refuse(request.0 as usize, observer);
        }
        self.travel = Some(travel);
    }

    /// Follow-ups of a refused request are never sent.
    fn refuse(&mut self, request: usize, observer: &mut dyn Observer) {
        let mut refused = Some(request);
        while let Some(index) = refused {
            self.collector.refused(index);
            refused = self.followers.get(index).copied().flatten();
        }
        observer.progress(self.collector.num_ended(), self.workload.arrivals.len());
    }

    fn arrive(&mut self, observer: &mut dyn Observer) {
        loop {
            let open = self.open.get(self.next_open).map(|&index| (self.workload.arrivals[index].at, index));
            let due = self.due.peek().map(|&Reverse(next)| next);
            let Some(next) = [open, due].into_iter().flatten().min().filter(|next| next.0 <= self.now) else { break };
            if Some(next) == open {
                self.next_open += 1;
            } else {
                self.due.pop();
            }
            if !self.admit(next.1, observer) {
                self.refuse(next.1, observer);
            }
        }
    }

    /// Whether the request is admitted.
    fn admit(&mut self, index: usize, observer: &mut dyn Observer) -> bool {
        let arrival = &self.workload.arrivals[index];
        let request = Request {
            id: RequestId(index as u64),
            prompt: arrival.tokens(),
            num_answers: 1,
            stop: StopRules { max_tokens: arrival.output_tokens, min_tokens: 0, stop_token_ids: Vec::new() },
            priority: arrival.priority,
            salt: 0,
            use_prefix_cache: true,
            tenant: arrival.tenant,
            targets: arrival.targets,
            arrived: self.now,
        };
        let placed = match self.travel.take() {
            Some(mut travel) => {
                let mut chain = Chain::of(&request);
                let first_token = |engine: &Engine| {
                    let snapshot = engine.scheduler.snapshot(chain.on(engine));
                    if engine.scheduler.cost_model().is_none() {
                        return snapshot.first_token_after(request.prompt.len(), engine.cost());
                    }
                    // The forecast of a decode worker: its queue, beside its running sequences.
                    let new = IncomingRequest {
                        prompt_tokens: request.prompt.len(),
                        cached_tokens: snapshot.cached_tokens,
                        priority: request.priority,
                        ttft: request.targets.ttft,
                    };
                    engine.scheduler.forecast_into(self.now, &mut self.forecast);
                    self.forecast.ttft(&new, self.now, Nanos(0))
                };
                let first_tokens: Vec<Nanos> = self.engines.iter().map(first_token).collect();
                let placed = travel.place(&request, &first_tokens, &mut self.engines, self.now);
                self.travel = Some(travel);
                placed
            }
            None => {
                let instance = self.route(&request);
                let is_admitted = self.engines[instance].scheduler.admit(request.clone()).is_ok();
                if is_admitted { Placement::At(instance) } else { Placement::Refused }
            }
        };
        let (instance, reader) = match placed {
            Placement::At(instance) => (instance, None),
            Placement::Split { reader, answerer } => (answerer, Some(reader)),
            Placement::Refused => {
                self.collector.arrived(index, 0, None, self.now);
                return false;
            }
        };
        self.collector.arrived(index, instance, reader, self.now);
        observer.admitted(instance, &request);
        true
    }

    /// The instance chosen by the production router.
    fn route(&self, request: &Request) -> usize {
        if self.engines.len() == 1 {
            return 0;
        }
        let mut chain = Chain::of(request);
        let snapshots = self.engines.iter().map(|engine| (engine.scheduler.snapshot(chain.on(engine)), engine.cost()));
        router::route(request.prompt.len(), snapshots).expect("there is an instance")
    }

    fn plan(&mut self) {
        for engine in &mut self.engines {
            if engine.busy_until.is_none() && engine.scheduler.has_work() {
                engine.plan(self.workload, self.now, &mut self.collector);
            }
        }
    }
}

/// Block hashes of a prompt, computed once for all engines with the same block size.
struct Chain<'a> {
    request: &'a Request,
    made_for: Option<(usize, [u8; 32])>,
    hashes: Vec<BlockHash>,
}

impl<'a> Chain<'a> {
    fn of(request: &'a Request) -> Chain<'a> {
        Chain { request, made_for: None, hashes: Vec::new() }
    }

    fn on(&mut self, engine: &Engine) -> &[BlockHash] {
        let Limits { block_size, hash_key, .. } = *engine.scheduler.limits();
        if self.made_for != Some((block_size, hash_key)) {
            self.hashes =
                ChainHasher::new(hash_key).chain(&self.request.prompt, self.request.salt, block_size).collect();
            self.made_for = Some((block_size, hash_key));
        }
        &self.hashes
    }
}

impl Engine {
    /// The cost model of the scheduler, or else of the machine.
    pub(crate) fn cost(&self) -> &CostModel {
        self.scheduler.cost_model().unwrap_or(&self.machine.mixed)
    }

    /// Plans a step, and generates its results.
    fn plan(&mut self, workload: &Workload, now: Nanos, collector: &mut Collector) {
        self.offer(workload);
        self.schedule(now);
        if self.step.is_empty() {
            if self.scheduler.is_loading() {
                return; // resumes when the loads have ended
            }
            // A step that only preempts is legal, but two in a row would loop forever.
            self.schedule(now);
            assert!(!self.step.is_empty(), "the scheduler has work and plans none of it");
        }
        let planned = self.scheduler.planned();
        self.busy_until = Some(Nanos(now.0.saturating_add(self.machine.step_time_at(now, &planned.work).0.max(1))));
        self.output.step = self.step.id;
        self.output.rows.clear();
        for row in planned.decode.iter().chain(&planned.prefill).filter(|row| row.samples > 0) {
            let arrival = &workload.arrivals[row.request.0 as usize];
            let position = row.start + row.len - row.drafts - arrival.input_tokens();
            let drafting = workload.drafting(row.request.0 as usize).filter(|_| row.drafts > 0);
            let judged = drafting.map(|drafting| drafting.judge(arrival.answer, position, row.drafts));
            let judged = judged.unwrap_or_default();
            collector.assumed(judged.assumed);
            let token = |index| RowOutput { seq: row.seq, token: Piece::token(arrival.answer, index) };
            self.output.rows.extend((position..=position + judged.held).map(token));
        }
    }

    /// Plans a step; loads from host memory run beside the steps, sequentially at the link's rate.
    fn schedule(&mut self, now: Nanos) {
        let Engine { scheduler, link, step, loads, .. } = self;
        scheduler.schedule_into(now, step);
        if let Some(link) = link.as_ref().filter(|_| !step.loads.is_empty()) {
            let begins = loads.back().map_or(now, |&(at, _)| at);
            let takes = link.passes(step.loads.len() * scheduler.limits().block_size);
            loads.push_back((Nanos(begins.0 + takes.0), std::mem::take(&mut step.loads)));
        }
    }

    /// Completes loads that have ended by now.
    fn load(&mut self, now: Nanos) {
        while let Some((_, loads)) = self.loads.pop_front_if(|(at, _)| *at <= now) {
            loads.into_iter().for_each(|load| self.scheduler.load_ended(load, true, Nanos(0)));
        }
    }

    /// Proposes drafts to the scheduler, as the engine does before each plan.
    fn offer(&mut self, workload: &Workload) {
        let Engine { scheduler, offers, .. } = self;
        offers.extend(scheduler.decoding().filter_map(|sequence| {
            let drafting = workload.drafting(sequence.request_id().0 as usize)?;
            drafting.offer(sequence.id(), sequence.num_generated())
        }));
        offers.drain(..).for_each(|offer| scheduler.propose(offer));
    }
}
