//! Disaggregated fleets: a prefill worker computes a prompt, and a decode worker generates the answer.
//!
//! ```text
//! arrival --> decode worker (D), prefill worker (P) --> D expects it, P admits it with one output token and pins it
//!                 |                                    |  after each of P's steps: newly full blocks
//!                 +--> refused: too late, no capacity  v
//!                                              link: a rate, a delay; one transfer at a time at either end
//!                                                      |
//!                                                      v  D receives them, and continues after the last
//! ```
//!
//! This models the engine's transfer over TCP, with the same calls of the production scheduler
//! ([`scheduler::Scheduler::admit_remote`], [`scheduler::Scheduler::pin`], [`scheduler::Scheduler::begin_receive`]); the
//! decisions are those of [`scheduler::router`]. Blocks of a step arrive together. Received blocks are in host memory,
//! which is as large as the KV cache, and are loaded beside the steps at the rate of the link.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use protocol::{Nanos, RequestId};
use scheduler::router::{self, AnswerInView, AnswerLengths, DecodeLoad, Role, RoleMemory, RoleView, TooLittle};
use scheduler::{ReceiveError, Request, Scheduler, StepRecord};
use serde_json::{Value, json};

use crate::gather::Series;
use crate::world::Engine;

/// Configuration of a disaggregated fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Disaggregation {
    /// Role of each instance: at least one prefills, and one decodes.
    pub roles: Vec<Role>,
    /// The link for blocks.
    pub link: Link,
    /// Rejection policy; `None`: no requests are refused.
    pub rejection: Option<RefuseWhen>,
    /// Whether workers change their roles with the load's mix.
    pub switches: bool,
}

impl Disaggregation {
    /// The first `prefill` of `instances` prefill, the others decode; nothing is refused, and roles are fixed.
    pub fn split(prefill: usize, instances: usize, link: Link) -> Disaggregation {
        let role = |at| if at < prefill { Role::Prefill } else { Role::Decode };
        Disaggregation { roles: (0..instances).map(role).collect(), link, rejection: None, switches: false }
    }
}

/// Network link between any two workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bandwidth of each worker, per direction.
    pub bytes_per_second: f64,
    /// Latency in addition to the transfer time.
    pub delay: Nanos,
    /// KV cache bytes of a token.
    pub token_bytes: f64,
}

impl Link {
    /// Transfer time of `tokens` tokens.
    pub(crate) fn passes(&self, tokens: usize) -> Nanos {
        Nanos((tokens as f64 * self.token_bytes / self.bytes_per_second * 1e9) as u64)
    }
}

/// Rejection policy. Every policy refuses requests that no prefill worker can compute in time, and those without decode
/// capacity after prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseWhen {
    /// Only then.
    Late,
    /// Also before prefill, if there is no decode capacity now.
    Early,
    /// Also before prefill, if there is predicted to be no decode capacity when prefill ends.
    Predicted,
}

impl RefuseWhen {
    /// All policies.
    pub const ALL: [RefuseWhen; 3] = [RefuseWhen::Late, RefuseWhen::Early, RefuseWhen::Predicted];

    /// Name of the policy.
    pub fn name(self) -> &'static str {
        match self {
            RefuseWhen::Late => "late",
            RefuseWhen::Early => "early",
            RefuseWhen::Predicted => "predicted",
        }
    }
}

/// Results of disaggregation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DisaggregationReport {
    /// Prefill workers at the start; a worker with both roles counts in both.
    pub prefill: usize,
    /// Decode workers at the start.
    pub decode: usize,
    /// Prompts prefilled by one worker and decoded by another.
    pub handed_over: usize,
    /// Requests refused because no prefill worker could compute them in time.
    pub refused_late: usize,
    /// Requests refused before prefill because of actual or predicted lack of decode capacity.
    pub refused_before: usize,
    /// Requests refused for lack of decode capacity after prefill.
    pub refused_after: usize,
    /// Both of these by the missing capacity: sequences, blocks, time.
    pub refused_for: [usize; 3],
    /// Prompt rows computed for requests refused after prefill.
    pub wasted_rows: u64,
    /// Blocks received.
    pub landed_blocks: u64,
    /// Blocks that found no free slot on arrival: they were recomputed.
    pub lost_blocks: u64,
    /// Bytes transferred.
    pub bytes: f64,
    /// Role changes.
    pub switches: usize,
    /// Correlation of the pools' loads over the run (Pearson): below 0, one idles while the other is busy.
    pub correlation: f64,
    /// Loads of both pools over time.
    pub course: Vec<PoolMoment>,
}

impl DisaggregationReport {
    /// All refused requests.
    pub fn refused(&self) -> usize {
        self.refused_late + self.refused_before + self.refused_after
    }

    pub(crate) fn json(&self) -> Value {
        let [seats, blocks, time] = self.refused_for;
        json!({
            "prefill": self.prefill,
            "decode": self.decode,
            "handed_over": self.handed_over,
            "link_bytes": self.bytes,
            "landed_blocks": self.landed_blocks,
            "lost_blocks": self.lost_blocks,
            "refused": {
                "late": self.refused_late,
                "before_reading": self.refused_before,
                "after_reading": self.refused_after,
                "for": { "seats": seats, "blocks": blocks, "time": time },
            },
            "wasted_rows": self.wasted_rows,
            "role_changes": self.switches,
            "pool_correlation": self.correlation,
        })
    }

    /// Names and values for a table.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let &DisaggregationReport { prefill, decode, handed_over, refused_late, refused_before, refused_after, .. } =
            self;
        let gigabytes = self.bytes / 1e9;
        let lost = match self.lost_blocks {
            0 => String::new(),
            lost => format!(", {lost} blocks found no free slot"),
        };
        let handed = format!("{handed_over} prompts transferred, {gigabytes:.1} GB over the link{lost}");
        let mut lines = vec![("disaggregated", format!("{prefill} prefill, {decode} decode: {handed}"))];
        if self.refused() > 0 {
            let causes = format!("{refused_late} late, {refused_before} before prefill");
            let rows = self.wasted_rows;
            lines.push(("refused", format!("{causes}, {refused_after} after ({rows} rows wasted)")));
            let [seats, blocks, time] = self.refused_for;
            lines.push(("", format!("for lack of sequences {seats}, blocks {blocks}, time {time}")));
        }
        if self.switches > 0 {
            lines.push(("roles", format!("{} changes", self.switches)));
        }
        lines.push(("pools", format!("load correlation {:.2}", self.correlation)));
        lines
    }
}

/// Means of an interval over the workers of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolMoment {
    /// Seconds since the start.
    pub seconds: f64,
    /// Share of time that prefill workers were busy with prefill.
    pub reading: f64,
    /// Sequences in decode per decode worker.
    pub answers: f64,
}

/// A prompt being prefilled for another worker.
struct Handoff {
    reader: usize,
    answerer: usize,
    /// Blocks not yet sent.
    blocks: Range<usize>,
    /// Predicted start of its answer, as of its arrival.
    ready: Nanos,
    /// Arrival time of the last sent block.
    landed: Nanos,
    /// Computed prompt rows.
    rows: u64,
}

/// An arrival over the link: blocks of a request, or the end of its transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Landing {
    at: Nanos,
    /// Ties go to the one sent first.
    sent: u64,
    request: RequestId,
    /// Block range; `None`: end of the transfer.
    blocks: Option<(usize, usize)>,
}

/// Placement of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Prefill and decode on one worker.
    At(usize),
    /// Prefill and decode on two workers.
    Split {
        /// Prefill worker.
        reader: usize,
        /// Decode worker, which already expects it.
        answerer: usize,
    },
    /// None.
    Refused,
}

/// Which sequences of a worker count.
#[derive(Clone, Copy, Debug, PartialEq)]
enum View {
    /// The current ones.
    Now,
    /// Those after that time, as far as known.
    After(Nanos),
}

/// Transfers in progress, and the state of workers.
pub(crate) struct Travel {
    disaggregation: Disaggregation,
    home: Vec<Role>,
    handoffs: BTreeMap<RequestId, Handoff>,
    landings: BinaryHeap<Reverse<Landing>>,
    sent: u64,
    /// When each worker's link is free again, outgoing and incoming.
    free: Vec<[Nanos; 2]>,
    lengths: Vec<AnswerLengths>,
    memory: RoleMemory,
    pools: Series<2>,
    report: DisaggregationReport,
}

impl Travel {
    /// Panics without a prefill or a decode worker.
    pub(crate) fn new(disaggregation: &Disaggregation) -> Travel {
        let count = |takes: fn(Role) -> bool| disaggregation.roles.iter().filter(|&&role| takes(role)).count();
        let (prefill, decode) = (count(Role::reads), count(Role::answers));
        assert!(prefill > 0 && decode > 0, "at least one worker prefills, and one decodes");
        let instances = disaggregation.roles.len();
        Travel {
            disaggregation: disaggregation.clone(),
            home: disaggregation.roles.clone(),
            handoffs: BTreeMap::new(),
            landings: BinaryHeap::new(),
            sent: 0,
            free: vec![[Nanos(0); 2]; instances],
            lengths: vec![AnswerLengths::default(); instances],
            memory: RoleMemory::default(),
            pools: Series::new(),
            report: DisaggregationReport { prefill, decode, ..DisaggregationReport::default() },
        }
    }

    /// Time of the next arrival over the link.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.landings.peek().map(|Reverse(landing)| landing.at)
    }

    /// Whether an instance prefills this request for another one.
    pub(crate) fn is_read_for_another(&self, request: RequestId, instance: usize) -> bool {
        self.handoffs.get(&request).is_some_and(|handoff| handoff.reader == instance)
    }

    /// An answer of an instance has ended.
    pub(crate) fn ended(&mut self, instance: usize, tokens: usize) {
        self.lengths[instance].note(tokens);
    }

    /// A step of an instance has ended: sends newly full blocks.
    pub(crate) fn step(&mut self, instance: usize, record: &StepRecord, scheduler: &mut Scheduler) {
        let reads = self.disaggregation.roles[instance].reads() && record.work.prefill_rows > 0;
        let values = [f64::from(u8::from(reads)), record.work.decode_rows as f64];
        self.pools.add(record.began_at, record.completed_at, values);
        for row in &record.prefill {
            let Some(handoff) = self.handoffs.get_mut(&row.request).filter(|handoff| handoff.reader == instance) else {
                continue;
            };
            handoff.rows += row.len as u64;
            self.give(row.request, scheduler, record.completed_at);
        }
    }

    /// Sends the full blocks of a prompt that were not sent yet.
    fn give(&mut self, request: RequestId, scheduler: &Scheduler, now: Nanos) {
        let Travel { disaggregation, handoffs, free, .. } = self;
        let handoff = handoffs.get_mut(&request).expect("a decode worker expects it");
        let (next, full) = (handoff.blocks.start, scheduler.full_blocks(request, 0).len().min(handoff.blocks.end));
        if full <= next {
            return;
        }
        let tokens = (full - next) * scheduler.limits().block_size;
        let takes = disaggregation.link.passes(tokens).0;
        let out = &mut free[handoff.reader][0];
        *out = Nanos((*out).max(now).0 + takes);
        let sent = *out;
        let inwards = &mut free[handoff.answerer][1];
        *inwards = sent.max(Nanos(inwards.0 + takes));
        handoff.landed = Nanos(inwards.0 + disaggregation.link.delay.0);
        handoff.blocks.start = full;
        self.report.bytes += tokens as f64 * disaggregation.link.token_bytes;
        let at = handoff.landed;
        self.send(at, request, Some((next, full)));
    }

    fn send(&mut self, at: Nanos, request: RequestId, blocks: Option<(usize, usize)>) {
        self.sent += 1;
        self.landings.push(Reverse(Landing { at, sent: self.sent, request, blocks }));
    }

    /// Prefill of a prompt has ended: sends the rest, and unpins it.
    pub(crate) fn has_read(&mut self, request: RequestId, scheduler: &mut Scheduler, now: Nanos) {
        self.give(request, scheduler, now);
        scheduler.unpin(request);
        let reported = Nanos(now.0 + self.disaggregation.link.delay.0);
        let at = self.handoffs[&request].landed.max(reported);
        self.send(at, request, None);
    }

    /// Handles arrivals over the link up to `now`. Returns a request without decode capacity after its prefill.
    pub(crate) fn land(&mut self, engines: &mut [Engine], now: Nanos) -> Option<RequestId> {
        while self.next().is_some_and(|at| at <= now) {
            let Reverse(Landing { request, blocks, .. }) = self.landings.pop().expect("it was just seen");
            let answerer = self.handoffs[&request].answerer;
            if let Some((from, until)) = blocks {
                self.land_blocks(request, from..until, &mut engines[answerer].scheduler);
            } else if self.has_come(request, &mut engines[answerer], now) {
                return Some(request);
            }
        }
        None
    }

    fn land_blocks(&mut self, request: RequestId, blocks: Range<usize>, scheduler: &mut Scheduler) {
        for index in blocks {
            match scheduler.begin_receive(request, index) {
                Ok(slot) => {
                    let is_found = scheduler.end_receive(slot, true);
                    self.report.landed_blocks += u64::from(is_found);
                }
                Err(ReceiveError::Known) => {}
                Err(_) => self.report.lost_blocks += 1,
            }
        }
    }

    /// The transfer of a prompt has ended; returns whether its answer lacks capacity.
    fn has_come(&mut self, id: RequestId, engine: &mut Engine, now: Nanos) -> bool {
        let Handoff { answerer, rows, .. } = self.handoffs.remove(&id).expect("it was on its way");
        let request = engine.scheduler.in_remote_prefill(id).expect("it is waited for");
        let short =
            self.disaggregation.rejection.and_then(|_| self.short_of(answerer, engine, request, View::Now, now));
        if let Some(what) = short {
            engine.scheduler.abort(id);
            self.report.refused_after += 1;
            self.report.wasted_rows += rows;
            self.report.refused_for[what as usize] += 1;
            return true;
        }
        go_on(&mut engine.scheduler, id, now);
        self.report.handed_over += 1;
        false
    }

    /// Chooses the workers of a request, or none; informs them. `first_tokens`: predicted time of the first token with
    /// prefill on each instance.
    pub(crate) fn place(
        &mut self,
        request: &Request,
        first_tokens: &[Nanos],
        engines: &mut [Engine],
        now: Nanos,
    ) -> Placement {
        let earliest = |reads: &[Role]| {
            let readers = (0..reads.len()).filter(|&at| reads[at].reads());
            readers.min_by_key(|&at| first_tokens[at])
        };
        let reader = earliest(&self.disaggregation.roles).expect("a prefill worker exists");
        // The last blocks are sent after prefill.
        let last = request.prompt.len().min(engines[reader].scheduler.limits().max_prefill_chunk);
        let travels = self.disaggregation.link.passes(last).0 + self.disaggregation.link.delay.0;
        let remote = |reader: usize| Nanos(first_tokens[reader].0.saturating_add(travels));
        let is_in_time = |after: Nanos| request.targets.ttft.is_none_or(|target| after <= target);
        if self.disaggregation.switches {
            let at_home = earliest(&self.home);
            self.memory.placed(at_home.is_some_and(|reader| is_in_time(remote(reader))));
            self.advise(engines, now);
        }
        let remote = remote(reader);
        let answerer = self.answerer(engines, remote, now);
        let stays = reader == answerer;
        let first_token = if stays { first_tokens[answerer] } else { remote };
        if let Some(rejection) = self.disaggregation.rejection {
            let view = match rejection {
                _ if stays => Some(View::Now),
                RefuseWhen::Late => None,
                RefuseWhen::Early => Some(View::Now),
                RefuseWhen::Predicted => Some(View::After(remote)),
            };
            let short = view.and_then(|view| self.short_of(answerer, &engines[answerer], request, view, now));
            if !is_in_time(first_token) {
                self.report.refused_late += 1;
                return Placement::Refused;
            } else if let Some(what) = short {
                self.report.refused_before += 1;
                self.report.refused_for[what as usize] += 1;
                return Placement::Refused;
            }
        }
        let leaves = router::leaves(Some(first_tokens[answerer]), Some(remote), request.targets.ttft);
        let may_leave = !stays && (leaves || self.disaggregation.rejection.is_some());
        self.begin(request, may_leave.then_some(reader), answerer, remote, engines, now)
    }

    fn begin(
        &mut self,
        request: &Request,
        reader: Option<usize>,
        answerer: usize,
        remote: Nanos,
        engines: &mut [Engine],
        now: Nanos,
    ) -> Placement {
        let id = request.id;
        let scheduler = &mut engines[answerer].scheduler;
        if scheduler.admit_remote(request.clone()).is_err() {
            return Placement::Refused;
        }
        let blocks = scheduler.missing_blocks(id);
        let is_long = blocks.len() * scheduler.limits().block_size >= router::LEAST_TOKENS;
        let mut read = request.clone();
        read.stop.max_tokens = 1;
        let reader = reader.filter(|&reader| is_long && engines[reader].scheduler.admit(read).is_ok());
        let Some(reader) = reader else {
            go_on(&mut engines[answerer].scheduler, id, now);
            return Placement::At(answerer);
        };
        engines[reader].scheduler.pin(id, Nanos(u64::MAX));
        let ready = Nanos(now.0.saturating_add(remote.0));
        self.handoffs.insert(id, Handoff { reader, answerer, blocks, ready, landed: now, rows: 0 });
        Placement::Split { reader, answerer }
    }

    /// The decode worker with the shortest predicted steps; ties go to the one with the fewest tokens.
    fn answerer(&self, engines: &[Engine], after: Nanos, now: Nanos) -> usize {
        let step = |&at: &usize| {
            let load = self.load(at, &engines[at], View::After(after), now);
            (engines[at].cost().step_time(&load.work()), load.tokens as u64)
        };
        let answerers = (0..engines.len()).filter(|&at| self.disaggregation.roles[at].answers());
        answerers.min_by_key(step).expect("a decode worker exists")
    }

    /// Decode load of a worker.
    fn load(&self, at: usize, engine: &Engine, view: View, now: Nanos) -> DecodeLoad {
        let answers = |all: bool| {
            let own = engine.scheduler.sequences().filter(move |sequence| {
                let is_its = !self.is_read_for_another(sequence.request_id(), at);
                is_its && (all || !sequence.is_in_remote_prefill())
            });
            own.map(|sequence| {
                let ready = self.handoffs.get(&sequence.request_id()).map_or(now, |handoff| handoff.ready);
                let begins_after = ready.since(now);
                AnswerInView { tokens: sequence.num_tokens(), generated: sequence.num_generated(), begins_after }
            })
        };
        let lengths = &self.lengths[at];
        let present = DecodeLoad::after(Nanos(0), Nanos(1), lengths, answers(false));
        match view {
            View::Now => present,
            View::After(after) => {
                let token = engine.cost().step_time(&present.work());
                DecodeLoad::after(after, token, lengths, answers(true))
            }
        }
    }

    fn short_of(&self, at: usize, engine: &Engine, request: &Request, view: View, now: Nanos) -> Option<TooLittle> {
        let load = self.load(at, engine, view, now);
        load.refuses(request.prompt.len(), request.targets.tpot, engine.scheduler.limits(), engine.cost())
    }

    fn advise(&mut self, engines: &[Engine], now: Nanos) {
        let views: Vec<RoleView> = engines
            .iter()
            .enumerate()
            .map(|(at, Engine { scheduler, .. })| RoleView {
                home: self.home[at],
                role: self.disaggregation.roles[at],
                kv_share: scheduler.used_blocks() as f64 / scheduler.limits().num_blocks as f64,
                unread_tokens: scheduler.snapshot(&[]).prefill_tokens,
            })
            .collect();
        if let Some(switch) = router::advise(&mut self.memory, &views, now, REST) {
            self.disaggregation.roles[switch.worker] = switch.role;
            self.report.switches += 1;
        }
    }

    pub(crate) fn report(self) -> DisaggregationReport {
        assert!(self.handoffs.is_empty(), "what is on its way comes");
        let points = self.pools.points();
        let [readers, answerers] = [self.report.prefill, self.report.decode].map(|workers| workers as f64);
        let course = points.into_iter().map(|(seconds, [reading, answers])| PoolMoment {
            seconds,
            reading: reading / readers,
            answers: answers / answerers,
        });
        let course: Vec<PoolMoment> = course.collect();
        DisaggregationReport { correlation: correlation(&course), course, ..self.report }
    }
}

/// Minimum time between role changes.
const REST: Nanos = Nanos(250_000_000);

/// The request waits in the decode worker's queue, to compute what is missing.
fn go_on(scheduler: &mut Scheduler, request: RequestId, now: Nanos) {
    scheduler.remote_prefill_ended(request, &[Some(&[])], now).expect("what has no token has not ended");
}

/// Pearson correlation; 0 if one of the two is constant.
fn correlation(course: &[PoolMoment]) -> f64 {
    let count = course.len().max(1) as f64;
    let mean = |of: fn(&PoolMoment) -> f64| course.iter().map(of).sum::<f64>() / count;
    let (reading, answers) = (mean(|moment| moment.reading), mean(|moment| moment.answers));
    let (mut both, mut squares) = (0.0, [0.0; 2]);
    for moment in course {
        let (x, y) = (moment.reading - reading, moment.answers - answers);
        both += x * y;
        squares[0] += x * x;
        squares[1] += y * y;
    }
    let scale = (squares[0] * squares[1]).sqrt();
    if scale > 0.0 { both / scale } else { 0.0 }
}
