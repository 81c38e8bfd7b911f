//! Fleets whose workers have roles: a prompt is read by one, and another answers.
//!
//! ```text
//! arrival --> who answers (D), who reads (P) --> D expects it, P admits it as one token long and keeps it
//!                 |                                    |  after each of P's steps: blocks that became full
//!                 +--> refused: too late, no room      v
//!                                              link: a rate, a delay; one transfer after the other at either end
//!                                                      |
//!                                                      v  D adopts them, and behind the last goes on by itself
//! ```
//!
//! It is what the engine does over TCP, by the same calls of the production scheduler
//! ([`scheduler::Scheduler::expect`], [`scheduler::Scheduler::keep`], [`scheduler::Scheduler::adopt`]); the decisions are
//! those of [`scheduler::router`]. Blocks of a step land together. What lands lies in host memory, which holds as much as
//! the KV cache, and is loaded beside the steps at the rate of the link.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use scheduler::router::{self, AnswerInView, AnswerLengths, DecodeLoad, Role, RoleMemory, RoleView, TooLittle};
use scheduler::{Nanos, ReceiveError, Request, RequestId, Scheduler, StepRecord};
use serde_json::{Value, json};

use crate::gather::Series;
use crate::world::Engine;

/// What a fleet has besides whose workers have roles.
#[derive(Clone, Debug, PartialEq)]
pub struct Apart {
    /// Of each instance: at least one reads prompts, and one answers.
    pub roles: Vec<Role>,
    /// What blocks travel over.
    pub link: Link,
    /// When requests are refused; `None`: never.
    pub rejection: Option<RefuseWhen>,
    /// Whether workers change their roles when the load's mix does.
    pub switches: bool,
}

impl Apart {
    /// The first `prefill` of `instances` read prompts, the others answer; nobody is refused, and nobody changes.
    pub fn split(prefill: usize, instances: usize, link: Link) -> Apart {
        let role = |at| if at < prefill { Role::Prefill } else { Role::Decode };
        Apart { roles: (0..instances).map(role).collect(), link, rejection: None, switches: false }
    }
}

/// Between any two workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Of each worker, either way.
    pub bytes_per_second: f64,
    /// Until what was sent is there, beside its bytes.
    pub delay: Nanos,
    /// Bytes of the keys and values of a token.
    pub token_bytes: f64,
}

impl Link {
    /// How long so many tokens take to pass.
    pub(crate) fn passes(&self, tokens: usize) -> Nanos {
        Nanos((tokens as f64 * self.token_bytes / self.bytes_per_second * 1e9) as u64)
    }
}

/// When requests are refused: in any case where no reader is in time, and where there is no room for the answer when the
/// prompt has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseWhen {
    /// Then only.
    Late,
    /// Also before the prompt is read, if there is no room now.
    Early,
    /// Also before the prompt is read, if there will be no room when it has been read.
    Predicted,
}

impl RefuseWhen {
    /// All of them.
    pub const ALL: [RefuseWhen; 3] = [RefuseWhen::Late, RefuseWhen::Early, RefuseWhen::Predicted];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            RefuseWhen::Late => "late",
            RefuseWhen::Early => "early",
            RefuseWhen::Predicted => "predicted",
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApartReport {
    /// Workers that read prompts in the beginning; who does both counts twice.
    pub prefill: usize,
    /// Workers that answer in the beginning.
    pub decode: usize,
    /// Prompts that were read by one worker and answered by another.
    pub handed_over: usize,
    /// Requests that were refused because nobody would have read their prompt in time.
    pub refused_late: usize,
    /// Those refused before their prompt was read because the answer had, or would have, no room.
    pub refused_before: usize,
    /// Those refused for the same reason when it had been read.
    pub refused_after: usize,
    /// Both of these, by what was too little: seats, blocks, time.
    pub refused_for: [usize; 3],
    /// Prompt rows that were computed for those refused after.
    pub wasted_rows: u64,
    /// Blocks that landed.
    pub landed_blocks: u64,
    /// Blocks that came and found no place: they were computed again.
    pub lost_blocks: u64,
    /// Bytes that passed the link.
    pub bytes: f64,
    /// Changes of a worker's role.
    pub switches: usize,
    /// How the loads of the pools go together over the run (Pearson): below 0, one idles while the other has much to do.
    pub correlation: f64,
    /// The course of both.
    pub course: Vec<PoolMoment>,
}

impl ApartReport {
    /// Requests that were refused, whatever for.
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
        let &ApartReport { prefill, decode, handed_over, refused_late, refused_before, refused_after, .. } = self;
        let gigabytes = self.bytes / 1e9;
        let lost = match self.lost_blocks {
            0 => String::new(),
            lost => format!(", {lost} blocks came and had no place"),
        };
        let handed = format!("{handed_over} prompts handed over, {gigabytes:.1} GB over the link{lost}");
        let mut lines = vec![("apart", format!("{prefill} read, {decode} answer: {handed}"))];
        if self.refused() > 0 {
            let causes = format!("{refused_late} late, {refused_before} before their prompt was read");
            let rows = self.wasted_rows;
            lines.push(("refused", format!("{causes}, {refused_after} after ({rows} rows for nothing)")));
            let [seats, blocks, time] = self.refused_for;
            lines.push(("", format!("for want of seats {seats}, of blocks {blocks}, of time {time}")));
        }
        if self.switches > 0 {
            lines.push(("roles", format!("{} changes", self.switches)));
        }
        lines.push(("pools", format!("correlation of their loads {:.2}", self.correlation)));
        lines
    }
}

/// The means of a moment, over the workers of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolMoment {
    /// Seconds since the start.
    pub seconds: f64,
    /// Share of the time in which those that read did so.
    pub reading: f64,
    /// Answers in decode at each of those that answer.
    pub answers: f64,
}

/// A prompt that is read for another worker.
struct Handoff {
    reader: usize,
    answerer: usize,
    /// Blocks that are still to be given.
    blocks: Range<usize>,
    /// When its answer begins, as predicted when it came.
    ready: Nanos,
    /// When the last of those given lands.
    landed: Nanos,
    /// Prompt rows computed.
    rows: u64,
}

/// What comes over the link: blocks of a request, or word that all have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Landing {
    at: Nanos,
    /// Of equals the one sent first.
    sent: u64,
    request: RequestId,
    /// From, until; `None`: no more comes.
    blocks: Option<(usize, usize)>,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// Read and answered by one.
    At(usize),
    /// Read by one and answered by another.
    Apart {
        /// Who reads.
        reader: usize,
        /// Who answers, and expects it by now.
        answerer: usize,
    },
    /// Nowhere.
    Refused,
}

/// Which answers of a worker are looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum View {
    /// Those that are there.
    Now,
    /// Those that will be after that time, as far as they are known.
    After(Nanos),
}

/// All that is on its way, and what is known of workers.
pub(crate) struct Travel {
    apart: Apart,
    home: Vec<Role>,
    handoffs: BTreeMap<RequestId, Handoff>,
    landings: BinaryHeap<Reverse<Landing>>,
    sent: u64,
    /// When each worker's link is free again, outwards and inwards.
    free: Vec<[Nanos; 2]>,
    lengths: Vec<AnswerLengths>,
    memory: RoleMemory,
    pools: Series<2>,
    report: ApartReport,
}

impl Travel {
    /// Panics if nobody reads, or nobody answers.
    pub(crate) fn new(apart: &Apart) -> Travel {
        let count = |takes: fn(Role) -> bool| apart.roles.iter().filter(|&&role| takes(role)).count();
        let (prefill, decode) = (count(Role::reads), count(Role::answers));
        assert!(prefill > 0 && decode > 0, "somebody reads, and somebody answers");
        let instances = apart.roles.len();
        Travel {
            apart: apart.clone(),
            home: apart.roles.clone(),
            handoffs: BTreeMap::new(),
            landings: BinaryHeap::new(),
            sent: 0,
            free: vec![[Nanos(0); 2]; instances],
            lengths: vec![AnswerLengths::default(); instances],
            memory: RoleMemory::default(),
            pools: Series::new(),
            report: ApartReport { prefill, decode, ..ApartReport::default() },
        }
    }

    /// When something lands next.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.landings.peek().map(|Reverse(landing)| landing.at)
    }

    /// Whether an instance has this request for another one.
    pub(crate) fn is_read_for_another(&self, request: RequestId, instance: usize) -> bool {
        self.handoffs.get(&request).is_some_and(|handoff| handoff.reader == instance)
    }

    /// An answer of an instance has ended.
    pub(crate) fn ended(&mut self, instance: usize, tokens: usize) {
        self.lengths[instance].note(tokens);
    }

    /// A step of an instance has ended: what became full is sent.
    pub(crate) fn step(&mut self, instance: usize, record: &StepRecord, scheduler: &mut Scheduler) {
        let reads = self.apart.roles[instance].reads() && record.work.prefill_rows > 0;
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

    /// Sends what is full of a prompt and was not sent yet.
    fn give(&mut self, request: RequestId, scheduler: &Scheduler, now: Nanos) {
        let Travel { apart, handoffs, free, .. } = self;
        let handoff = handoffs.get_mut(&request).expect("somebody waits for it");
        let (next, full) = (handoff.blocks.start, scheduler.full_blocks(request, 0).len().min(handoff.blocks.end));
        if full <= next {
            return;
        }
        let tokens = (full - next) * scheduler.limits().block_size;
        let takes = apart.link.passes(tokens).0;
        let out = &mut free[handoff.reader][0];
        *out = Nanos((*out).max(now).0 + takes);
        let sent = *out;
        let inwards = &mut free[handoff.answerer][1];
        *inwards = sent.max(Nanos(inwards.0 + takes));
        handoff.landed = Nanos(inwards.0 + apart.link.delay.0);
        handoff.blocks.start = full;
        self.report.bytes += tokens as f64 * apart.link.token_bytes;
        let at = handoff.landed;
        self.send(at, request, Some((next, full)));
    }

    fn send(&mut self, at: Nanos, request: RequestId, blocks: Option<(usize, usize)>) {
        self.sent += 1;
        self.landings.push(Reverse(Landing { at, sent: self.sent, request, blocks }));
    }

    /// A prompt has been read: all of it is sent, and nobody keeps it any more.
    pub(crate) fn has_read(&mut self, request: RequestId, scheduler: &mut Scheduler, now: Nanos) {
        self.give(request, scheduler, now);
        scheduler.unpin(request);
        let told = Nanos(now.0 + self.apart.link.delay.0);
        let at = self.handoffs[&request].landed.max(told);
        self.send(at, request, None);
    }

    /// What comes over the link by now. Returns a request that has no room now that its prompt has been read.
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

    /// No more comes of a prompt; whether there is no room for its answer.
    fn has_come(&mut self, id: RequestId, engine: &mut Engine, now: Nanos) -> bool {
        let Handoff { answerer, rows, .. } = self.handoffs.remove(&id).expect("it was on its way");
        let request = engine.scheduler.in_remote_prefill(id).expect("it is waited for");
        let short = self.apart.rejection.and_then(|_| self.short_of(answerer, engine, request, View::Now, now));
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

    /// Decides who reads and who answers, or that nobody does; those who do know of it afterwards. `first_tokens`: of
    /// each instance, when the first token would come if the prompt was read there.
    pub(crate) fn place(
        &mut self,
        request: &Request,
        first_tokens: &[Nanos],
        engines: &mut [Engine],
        now: Nanos,
    ) -> Placed {
        let earliest = |reads: &[Role]| {
            let readers = (0..reads.len()).filter(|&at| reads[at].reads());
            readers.min_by_key(|&at| first_tokens[at])
        };
        let reader = earliest(&self.apart.roles).expect("somebody reads");
        // Its last blocks travel when it has been read.
        let last = request.prompt.len().min(engines[reader].scheduler.limits().max_prefill_chunk);
        let travels = self.apart.link.passes(last).0 + self.apart.link.delay.0;
        let remote = |reader: usize| Nanos(first_tokens[reader].0.saturating_add(travels));
        let is_in_time = |after: Nanos| request.targets.ttft.is_none_or(|target| after <= target);
        if self.apart.switches {
            let at_home = earliest(&self.home);
            self.memory.placed(at_home.is_some_and(|reader| is_in_time(remote(reader))));
            self.advise(engines, now);
        }
        let remote = remote(reader);
        let answerer = self.answerer(engines, remote, now);
        let stays = reader == answerer;
        let first_token = if stays { first_tokens[answerer] } else { remote };
        if let Some(rejection) = self.apart.rejection {
            let view = match rejection {
                _ if stays => Some(View::Now),
                RefuseWhen::Late => None,
                RefuseWhen::Early => Some(View::Now),
                RefuseWhen::Predicted => Some(View::After(remote)),
            };
            let short = view.and_then(|view| self.short_of(answerer, &engines[answerer], request, view, now));
            if !is_in_time(first_token) {
                self.report.refused_late += 1;
                return Placed::Refused;
            } else if let Some(what) = short {
                self.report.refused_before += 1;
                self.report.refused_for[what as usize] += 1;
                return Placed::Refused;
            }
        }
        let leaves = router::leaves(Some(first_tokens[answerer]), Some(remote), request.targets.ttft);
        let may_leave = !stays && (leaves || self.apart.rejection.is_some());
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
    ) -> Placed {
        let id = request.id;
        let scheduler = &mut engines[answerer].scheduler;
        if scheduler.admit_remote(request.clone()).is_err() {
            return Placed::Refused;
        }
        let blocks = scheduler.missing_blocks(id);
        let is_long = blocks.len() * scheduler.limits().block_size >= router::LEAST_TOKENS;
        let mut read = request.clone();
        read.stop.max_tokens = 1;
        let reader = reader.filter(|&reader| is_long && engines[reader].scheduler.admit(read).is_ok());
        let Some(reader) = reader else {
            go_on(&mut engines[answerer].scheduler, id, now);
            return Placed::At(answerer);
        };
        engines[reader].scheduler.pin(id, Nanos(u64::MAX));
        let ready = Nanos(now.0.saturating_add(remote.0));
        self.handoffs.insert(id, Handoff { reader, answerer, blocks, ready, landed: now, rows: 0 });
        Placed::Apart { reader, answerer }
    }

    /// Of those that answer, the one whose steps will be the shortest then; where all are alike, that has fewest tokens.
    fn answerer(&self, engines: &[Engine], after: Nanos, now: Nanos) -> usize {
        let step = |&at: &usize| {
            let load = self.load(at, &engines[at], View::After(after), now);
            (engines[at].cost().step_time(&load.work()), load.tokens as u64)
        };
        let answerers = (0..engines.len()).filter(|&at| self.apart.roles[at].answers());
        answerers.min_by_key(step).expect("somebody answers")
    }

    /// What the answers of a worker come to.
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
                role: self.apart.roles[at],
                kv_share: scheduler.used_blocks() as f64 / scheduler.limits().num_blocks as f64,
                unread_tokens: scheduler.snapshot(&[]).prefill_tokens,
            })
            .collect();
        if let Some(switch) = router::advise(&mut self.memory, &views, now, REST) {
            self.apart.roles[switch.worker] = switch.role;
            self.report.switches += 1;
        }
    }

    /// What came of it all.
    pub(crate) fn report(self) -> ApartReport {
        assert!(self.handoffs.is_empty(), "what is on its way comes");
        let points = self.pools.points();
        let [readers, answerers] = [self.report.prefill, self.report.decode].map(|workers| workers as f64);
        let course = points.into_iter().map(|(seconds, [reading, answers])| PoolMoment {
            seconds,
            reading: reading / readers,
            answers: answers / answerers,
        });
        let course: Vec<PoolMoment> = course.collect();
        ApartReport { correlation: correlation(&course), course, ..self.report }
    }
}

/// How long roles stay after a change, at least.
const REST: Nanos = Nanos(250_000_000);

/// What was expected waits where it is answered, for what is missing of it.
fn go_on(scheduler: &mut Scheduler, request: RequestId, now: Nanos) {
    scheduler.remote_prefill_ended(request, &[Some(&[])], now).expect("what has no token has not ended");
}

/// Pearson's; 0 where one of the two never changes.
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
