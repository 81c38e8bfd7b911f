//! The last requests, run once more: their times, measured, in a world without some of them.
//!
//! ```text
//! admitted --Feature--> KeptRequests: the newest, in bounded room; of their answers a hash
//! Engine::run_again --Begin--> facts go to views of the rerun: no counter, promise, history or account sees it
//!                   --Submit, at the offsets of then--> steps --End--> facts go to the engine's views again
//!                                                         \ whatever else is asked of the engine ends it at once
//! ```
//!
//! Salts and tenants are changed by one random number, so a rerun finds nothing that is in the cache, and requests that
//! shared a prefix still do. What the cache had of them before the first of them came is computed before time zero.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use observe::{Ending, RequestState, RequestSummary, Views};
use protocol::{Nanos, RequestId};
use scheduler::quota;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::oneshot;

use crate::command::{ArrivalInfo, Command, NewRequest, RerunCommand};
use crate::feature::{CoreEvent, Feature};
use crate::output::Event;
use crate::validate::ValidatedRequest;
use crate::{Engine, Stream};

/// Requests that are kept, and bytes of their prompts.
const KEPT_REQUESTS: usize = 64;
const KEPT_BYTES: usize = 16 << 20;
/// A rerun may take three times what it took then and a little, and never longer than this.
const MOST_TIME: Duration = Duration::from_secs(60);
const LITTLE: Duration = Duration::from_secs(5);
/// Between two looks at the streams.
const POLL: Duration = Duration::from_millis(1);

/// A request that can be run again, or why it cannot; and a hash of the tokens of each of its answers.
#[derive(Clone)]
pub(crate) struct KeptRequest {
    id: RequestId,
    tenant: u64,
    request: Result<ValidatedRequest, &'static str>,
    answers: Vec<DefaultHasher>,
}

impl KeptRequest {
    fn of(id: RequestId, request: &ValidatedRequest) -> KeptRequest {
        // Its adapter could not be unloaded while it is kept.
        let kept = if request.adapter.is_some() { Err("it goes through an adapter") } else { Ok(request.clone()) };
        KeptRequest {
            id,
            tenant: request.tenant,
            request: kept,
            answers: vec![Default::default(); request.num_answers],
        }
    }

    fn bytes(&self) -> usize {
        self.request.as_ref().map_or(0, |request| size_of_val(request.prompt()))
    }
}

/// Those that are over, the oldest first.
pub(crate) type KeptRequests = Arc<Mutex<VecDeque<KeptRequest>>>;

/// Keeps them.
pub(crate) struct KeepRequests {
    open: BTreeMap<RequestId, KeptRequest>,
    kept: KeptRequests,
}

impl KeepRequests {
    pub(crate) fn new(kept: KeptRequests) -> KeepRequests {
        KeepRequests { open: BTreeMap::new(), kept }
    }
}

impl Feature for KeepRequests {
    fn on(&mut self, event: &CoreEvent<'_>) {
        match *event {
            CoreEvent::Admitted { id, request, .. } => _ = self.open.insert(id, KeptRequest::of(id, request)),
            CoreEvent::Delivered { id, answer, token } => {
                self.open.get_mut(&id).into_iter().for_each(|open| open.answers[answer].write_u32(token));
            }
            CoreEvent::Ended(id) => {
                let Some(ended) = self.open.remove(&id) else { return };
                keep(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner), ended);
            }
            CoreEvent::AllEnded => self.open.clear(),
            CoreEvent::Sampling { .. } | CoreEvent::CacheChanged(_) => {}
        }
    }
}

fn keep(kept: &mut VecDeque<KeptRequest>, ended: KeptRequest) {
    kept.push_back(ended);
    while kept.len() > KEPT_REQUESTS || kept.iter().map(KeptRequest::bytes).sum::<usize>() > KEPT_BYTES {
        let oldest = quota::to_forget(kept.iter().map(|kept| kept.tenant));
        oldest.and_then(|oldest| kept.remove(oldest));
    }
}

/// Why requests are not run again. The messages are fixed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RerunError {
    /// By none of its requests.
    #[error("this server runs no request again: it records (--record), or has its prompts read by others only")]
    Unsupported,
    /// The one that was asked about cannot be.
    #[error("this request cannot be run again: {0}")]
    NotKept(&'static str),
    /// There is other work.
    #[error("the engine has requests: one that is over is run again while it has none")]
    Busy,
    /// Other work came.
    #[error("another request came, which goes first: the run was stopped")]
    Interrupted,
    /// One of them ended with an error.
    #[error("a request that was run again ended with an error")]
    Failed,
    /// It takes longer than it may.
    #[error("what came then takes longer than may be run again: three times what it took and 5 seconds, 60 at most")]
    TooLong,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rerun {
    /// Of the requests that were asked about.
    pub answers: Vec<RerunAnswer>,
    /// Requests that were run.
    pub requests: usize,
    /// Requests that were there then, and cannot be run again.
    pub left_out: usize,
    /// Tokens that the cache had before, and that were computed before the first request came.
    pub warmed_tokens: usize,
    /// Blocks of others that the cache lost by it.
    pub evicted_blocks: u64,
}

/// The times of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerunAnswer {
    /// To which request, under its first number.
    pub request: RequestId,
    /// Arrival to first token.
    pub ttft: Nanos,
    /// Arrival to last token.
    pub total: Nanos,
    /// The longest time from a token to the next.
    pub longest_gap: Nanos,
    /// Whether it has the tokens that it had.
    pub same_text: bool,
    /// Tokens of the prompt that the cache had then, and in the rerun.
    pub cached_tokens: [usize; 2],
}

/// A request of the rerun.
struct Run {
    was: RequestSummary,
    kept: KeptRequest,
    request: ValidatedRequest,
    stream: Option<Stream>,
    answers: Vec<DefaultHasher>,
}

impl Run {
    /// Takes what has come. True: it is over.
    fn read(&mut self) -> Result<bool, RerunError> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        while !stream.ended {
            let event = match stream.events.try_recv() {
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(RerunError::Interrupted),
                Ok(event) => stream.note(Some(event)),
            };
            match event {
                Some(Event::Token { answer, token, .. }) => self.answers[answer].write_u32(token),
                Some(Event::Failed(_)) => return Err(RerunError::Failed),
                _ => {}
            }
        }
        Ok(stream.ended)
    }
}

impl Engine {
    /// Runs requests that are over once more, with those that were there beside them and without `without`. Blocks
    /// until that is done; only an engine without requests does it.
    pub fn run_again(&self, asked: &[RequestId], without: &[RequestId]) -> Result<Rerun, RerunError> {
        let kept = self.0.kept.as_ref().ok_or(RerunError::Unsupported)?;
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = self.requests();
        let is_asked = |was: &RequestSummary| asked.contains(&was.request);
        let begin = all.iter().filter(|was| is_asked(was)).map(|was| was.arrived).min();
        let end = all.iter().filter(|was| is_asked(was)).map(|was| was.until).max();
        let (begin, end) = begin.zip(end).ok_or(RerunError::NotKept("it is forgotten"))?;
        let world = RandomState::new().build_hasher().finish();
        let (mut runs, mut left_out, mut prefixes) = (Vec::new(), 0, Vec::new());
        for was in all.iter().filter(|was| was.arrived <= end && was.until >= begin) {
            let runs_again = self.can_run_again(was, &kept);
            let is_without = without.contains(&was.request);
            match runs_again {
                Ok((kept, request)) => {
                    let request = request.again(world);
                    prefixes.push((request.clone(), was.cached_tokens));
                    if !is_without {
                        let answers = vec![Default::default(); request.num_answers];
                        runs.push(Run { was: *was, kept: kept.clone(), request, stream: None, answers });
                    }
                }
                Err(why) if is_asked(was) => return Err(RerunError::NotKept(why)),
                Err(_) => left_out += usize::from(!is_without),
            }
        }
        let zero = runs.first().map_or(begin, |run| run.was.arrived);
        let span = Duration::from_nanos(end.since(zero).0);
        let limit = (span * 3 + LITTLE).min(MOST_TIME);
        if span >= MOST_TIME {
            return Err(RerunError::TooLong);
        }
        let session = Session::begin(self, Instant::now() + limit)?;
        let warmed = self.warm(&session, &prefixes)?;
        session.run(&mut runs, zero)?;
        let views = session.views.lock().unwrap_or_else(PoisonError::into_inner);
        let past = views.history.share().since(Nanos(0), self.0.limits.clone(), None);
        let mut answers = Vec::new();
        for run in runs.iter().filter(|run| is_asked(&run.was)) {
            let id = run.stream.as_ref().map(Stream::id);
            let now = id.and_then(|id| views.accounts.summary(id, Nanos(0))).map_or(0, |now| now.cached_tokens);
            let same = |index: usize| run.kept.answers[index].finish() == run.answers[index].finish();
            answers.extend(past.answers.iter().filter(|past| Some(past.request.id) == id).map(|past| RerunAnswer {
                request: run.was.request,
                ttft: past.first_token.since(past.request.arrived),
                total: past.last_token.since(past.request.arrived),
                longest_gap: past.longest_gap,
                same_text: same(past.index),
                cached_tokens: [run.was.cached_tokens, now],
            }));
        }
        let evicted_blocks = views.counters.evicted_blocks;
        tracing::info!(requests = runs.len(), left_out, evicted_blocks, "requests were run again");
        Ok(Rerun { answers, requests: runs.len(), left_out, warmed_tokens: warmed, evicted_blocks })
    }

    /// What is kept of a request that ended by itself and was computed here.
    fn can_run_again<'a>(
        &self,
        was: &RequestSummary,
        kept: &'a VecDeque<KeptRequest>,
    ) -> Result<(&'a KeptRequest, &'a ValidatedRequest), &'static str> {
        let kept = kept.iter().find(|kept| kept.id == was.request);
        let kept = kept.ok_or("its prompt is no longer kept (of the last 64 requests it is, 16 MiB at most)")?;
        if was.state != RequestState::Ended(Ending::Finished) {
            return Err("it did not end by itself");
        }
        if self.timeline(was.request).is_some_and(|timeline| timeline.away.is_some()) {
            return Err("its prompt was read by another worker");
        }
        Ok((kept, kept.request.as_ref().map_err(|why| *why)?))
    }

    /// Computes what the cache had of these, in the order in which they came, before the first did: more of a prompt
    /// than an earlier one of them begins with. Returns the tokens.
    fn warm(&self, session: &Session<'_>, prefixes: &[(ValidatedRequest, usize)]) -> Result<usize, RerunError> {
        let mut warmed = 0;
        for (index, (request, cached)) in prefixes.iter().enumerate() {
            let earlier = prefixes[..index].iter().filter(|(earlier, _)| earlier.salt == request.salt);
            let known = earlier.map(|(earlier, _)| {
                let pairs = earlier.prompt().iter().zip(request.prompt());
                pairs.take_while(|(one, other)| one == other).count()
            });
            if *cached > known.max().unwrap_or(0) {
                let mut stream = session.submit(request.beginning(*cached));
                while session.waits()? && !stream.ended {
                    match stream.events.try_recv() {
                        Ok(event) => _ = stream.note(Some(event)),
                        Err(TryRecvError::Empty) => std::thread::sleep(POLL),
                        Err(TryRecvError::Disconnected) => return Err(RerunError::Interrupted),
                    }
                }
                warmed += cached;
            }
        }
        Ok(warmed)
    }
}

/// From its begin to its drop the engine's facts go to these views.
struct Session<'a> {
    engine: &'a Engine,
    views: Arc<Mutex<Views>>,
    deadline: Instant,
}

impl Session<'_> {
    fn begin(engine: &Engine, deadline: Instant) -> Result<Session<'_>, RerunError> {
        if engine.health().open_requests > 0 || engine.health().draining {
            return Err(RerunError::Busy);
        }
        let views = Arc::new(Mutex::new(Views::new(engine.0.model.block_size)));
        let (told, answer) = oneshot::channel();
        let begin = Command::Rerun(RerunCommand::Begin(views.clone(), told));
        engine.0.commands.send(begin).map_err(|_| RerunError::Interrupted)?;
        match answer.blocking_recv() {
            Ok(true) => Ok(Session { engine, views, deadline }),
            _ => Err(RerunError::Busy),
        }
    }

    fn submit(&self, request: ValidatedRequest) -> Stream {
        let engine = &*self.engine.0;
        let id = RequestId(engine.next_id.fetch_add(1, Ordering::Relaxed));
        let (events, mut stream) = Stream::open(id, request.prompt.clone());
        let (at, held) = engine.clock.now_and_held();
        let arrived = ArrivalInfo { at, held, permit: None };
        stream.commands = Some(engine.commands.clone());
        let request = NewRequest { id, request: Box::new(request), arrived, events, peer: None };
        // An engine that is gone drops it, and the stream ends.
        let _ = engine.commands.send(Command::Rerun(RerunCommand::Submit(request)));
        stream
    }

    fn waits(&self) -> Result<bool, RerunError> {
        if Instant::now() < self.deadline { Ok(true) } else { Err(RerunError::TooLong) }
    }

    /// Sends each as long after the first as it came then, and waits for all.
    fn run(&self, runs: &mut [Run], zero: Nanos) -> Result<(), RerunError> {
        let begun = Instant::now();
        while self.waits()? {
            let now = begun.elapsed();
            let mut next = POLL;
            let mut is_over = true;
            for run in &mut *runs {
                let at = Duration::from_nanos(run.was.arrived.since(zero).0);
                if run.stream.is_none() && at <= now {
                    run.stream = Some(self.submit(run.request.clone()));
                } else if run.stream.is_none() {
                    next = next.min(at - now);
                }
                is_over &= run.read()?;
            }
            if is_over {
                break;
            }
            std::thread::sleep(next);
        }
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // An engine that is gone has ended it.
        let _ = self.engine.0.commands.send(Command::Rerun(RerunCommand::End));
    }
}
