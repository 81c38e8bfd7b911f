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
use protocol::{Nanos, RequestId, TokenId};
use scheduler::quota;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::oneshot;

use crate::command::{ArrivalInfo, Command, NewRequest};
use crate::feature::{CoreEvent, Feature};
use crate::output::Event;
use crate::validate::ValidatedRequest;
use crate::{Engine, Observe, Rule, Stream};

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
    request: Result<(ValidatedRequest, Option<Arc<Rule>>), &'static str>,
    answers: Vec<DefaultHasher>,
}

impl KeptRequest {
    fn of(id: RequestId, request: &ValidatedRequest) -> KeptRequest {
        let kept = match request {
            // An adapter could not be unloaded while it is kept.
            _ if request.adapter.is_some() => Err("it goes through an adapter"),
            _ if !request.generated.is_empty() => Err("its answer began elsewhere"),
            _ => Ok(request.to_keep()),
        };
        KeptRequest {
            id,
            tenant: request.tenant,
            request: kept,
            answers: vec![Default::default(); request.num_answers],
        }
    }

    fn bytes(&self) -> usize {
        self.request.as_ref().map_or(0, |(request, _)| request.place().prompt_tokens * size_of::<TokenId>())
    }
}

/// Those that are over, the oldest first.
pub(crate) type KeptRequests = Arc<Mutex<VecDeque<KeptRequest>>>;

/// Keeps them: of the open ones, and of those that are over.
pub(crate) struct KeepRequests(pub(crate) BTreeMap<RequestId, KeptRequest>, pub(crate) KeptRequests);

impl Feature for KeepRequests {
    fn on(&mut self, event: &CoreEvent<'_>) {
        let KeepRequests(open, kept) = self;
        match *event {
            CoreEvent::Admitted { id, request, .. } => _ = open.insert(id, KeptRequest::of(id, request)),
            CoreEvent::Delivered { id, answer, token } => {
                open.get_mut(&id).into_iter().for_each(|open| open.answers[answer].write_u32(token));
            }
            CoreEvent::Ended(id) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(open.remove(&id));
                while kept.len() > KEPT_REQUESTS || kept.iter().map(KeptRequest::bytes).sum::<usize>() > KEPT_BYTES {
                    let oldest = quota::to_forget(kept.iter().map(|kept| kept.tenant));
                    oldest.and_then(|oldest| kept.remove(oldest));
                }
            }
            CoreEvent::AllEnded => open.clear(),
            CoreEvent::Sampling { .. } | CoreEvent::CacheChanged(_) => {}
        }
    }
}

/// Why requests are not run again. The messages are fixed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RerunError {
    /// They cannot be.
    #[error("{0}")]
    Refused(&'static str),
    /// There is other work, which goes first.
    #[error("{0}")]
    Busy(&'static str),
}

/// Whether the answer is still waited for.
pub type IsWanted<'a> = &'a dyn Fn() -> bool;

const STOPPED: RerunError =
    RerunError::Busy("the run was stopped: another request came, which goes first, or the server ends");
const TOO_LONG: RerunError =
    RerunError::Refused("it takes longer than it may: three times what it took and 5 seconds, a minute at most");

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

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerunAnswer {
    /// To which request, under its first number.
    pub request: RequestId,
    /// Arrival to first token, arrival to last token, the longest time from a token to the next.
    pub times: [Nanos; 3],
    /// Whether it has the tokens that it had.
    pub same_text: bool,
    /// Tokens of the prompt that the cache had then, and in the rerun.
    pub cached_tokens: [usize; 2],
}

/// A request of the rerun.
struct Run {
    /// After the first.
    at: Duration,
    /// The rest need not come to their end.
    is_asked: bool,
    request: ValidatedRequest,
    stream: Option<Stream>,
    answers: Vec<DefaultHasher>,
}

impl Run {
    fn new(at: Duration, is_asked: bool, request: ValidatedRequest) -> Run {
        Run { at, is_asked, stream: None, answers: vec![Default::default(); request.num_answers], request }
    }

    /// Takes what has come. True: it is over.
    fn read(&mut self) -> Result<bool, RerunError> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        while !stream.ended {
            let event = match stream.events.try_recv() {
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(STOPPED),
                Ok(event) => stream.note(Some(event)),
            };
            match event {
                Some(Event::Token { answer, token, .. }) => self.answers[answer].write_u32(token),
                Some(Event::Failed(_)) => return Err(RerunError::Refused("one that was there ended with an error")),
                _ => {}
            }
        }
        Ok(stream.ended)
    }
}

impl Engine {
    /// Runs requests that are over once more, with those that were there beside them and without `without`. Blocks
    /// until that is done or not `wanted` any more; only an engine without requests does it.
    pub fn run_again(
        &self,
        asked: &[RequestId],
        without: &[RequestId],
        wanted: IsWanted<'_>,
    ) -> Result<Rerun, RerunError> {
        let none = "this server runs no request again: it records (--record), or others read its prompts";
        let kept = self.0.kept.as_ref().ok_or(RerunError::Refused(none))?;
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let kept: BTreeMap<RequestId, KeptRequest> = kept.into_iter().map(|kept| (kept.id, kept)).collect();
        let mut all = self.requests();
        let was_asked = || all.iter().filter(|was| asked.contains(&was.request));
        let (begin, end) = (was_asked().map(|was| was.arrived).min(), was_asked().map(|was| was.until).max());
        let (begin, end) = begin.zip(end).ok_or(RerunError::Refused("it is forgotten"))?;
        all.retain(|was| was.arrived <= end && was.until >= begin);
        let world = RandomState::new().build_hasher().finish();
        let (mut were, mut runs, mut left_out, mut prefixes) = (Vec::new(), Vec::new(), 0, Vec::new());
        for was in &all {
            let is_without = without.contains(&was.request);
            match self.to_run(was, kept.get(&was.request), world) {
                Ok(request) => {
                    prefixes.push((request.clone(), was.cached_tokens));
                    if !is_without {
                        let zero = were.first().map_or(was.arrived, |first: &&RequestSummary| first.arrived);
                        let at = Duration::from_nanos(was.arrived.since(zero).0);
                        runs.push(Run::new(at, asked.contains(&was.request), request));
                        were.push(was);
                    }
                }
                Err(why) if asked.contains(&was.request) => return Err(RerunError::Refused(why)),
                Err(_) => left_out += usize::from(!is_without),
            }
        }
        let span = Duration::from_nanos(were.first().map_or(0, |first| end.since(first.arrived).0));
        let session = Session::begin(self, span, wanted)?;
        let mut warmed_tokens = 0;
        for (index, (request, cached)) in prefixes.iter().enumerate() {
            if *cached > shared_tokens(request, &prefixes[..index]) {
                session.run(&mut [Run::new(Duration::ZERO, true, request.beginning(*cached))])?;
                warmed_tokens += cached;
            }
        }
        session.run(&mut runs)?;
        let views = session.views.lock().unwrap_or_else(PoisonError::into_inner);
        let past = views.history.share().since(Nanos(0), self.0.limits.clone(), None);
        let mut answers = Vec::new();
        for (was, run) in were.iter().zip(&runs).filter(|(_, run)| run.is_asked) {
            let id = run.stream.as_ref().map_or(was.request, Stream::id);
            let now = views.accounts.summary(id, Nanos(0)).map_or(0, |now| now.cached_tokens);
            let hashes = &kept[&was.request].answers;
            answers.extend(past.answers.iter().filter(|past| past.request.id == id).map(|past| {
                let since = |at: Nanos| at.since(past.request.arrived);
                RerunAnswer {
                    request: was.request,
                    times: [since(past.first_token), since(past.last_token), past.longest_gap],
                    same_text: hashes[past.index].finish() == run.answers[past.index].finish(),
                    cached_tokens: [was.cached_tokens, now],
                }
            }));
        }
        let (requests, evicted_blocks) = (runs.len(), views.counters.evicted_blocks);
        tracing::info!(requests, left_out, warmed_tokens, evicted_blocks, "requests were run again");
        Ok(Rerun { answers, requests, left_out, warmed_tokens, evicted_blocks })
    }

    /// A request that ended by itself and was computed here, to be sent again.
    fn to_run(
        &self,
        was: &RequestSummary,
        kept: Option<&KeptRequest>,
        world: u64,
    ) -> Result<ValidatedRequest, &'static str> {
        let forgotten = "its prompt is no longer kept (of the last 64 requests it is, 16 MiB at most)";
        let (request, rule) = kept.ok_or(forgotten)?.request.as_ref().map_err(|why| *why)?;
        if was.state != RequestState::Ended(Ending::Finished) {
            return Err("it did not end by itself");
        }
        if self.timeline(was.request).is_some_and(|timeline| timeline.away.is_some()) {
            return Err("its prompt was read by another worker");
        }
        let grammar = rule.as_ref().map(|rule| self.0.model.grammar(rule, &request.shown_tokens)).transpose();
        Ok(request.again(world, rule.clone().zip(grammar.map_err(|_| "its rule cannot be compiled again")?)))
    }
}

/// Tokens that a prompt begins with as an earlier one does: if the cache had them, that may be why.
fn shared_tokens(request: &ValidatedRequest, earlier: &[(ValidatedRequest, usize)]) -> usize {
    let earlier = earlier.iter().filter(|(earlier, _)| earlier.salt == request.salt);
    let shared = earlier.map(|(earlier, _)| {
        earlier.prompt.iter().zip(&*request.prompt).take_while(|(one, other)| one == other).count()
    });
    shared.max().unwrap_or(0)
}

/// From its begin to its drop the engine's facts go to these views.
struct Session<'a> {
    engine: &'a Engine,
    views: Arc<Mutex<Views>>,
    deadline: Instant,
    is_wanted: IsWanted<'a>,
}

impl<'a> Session<'a> {
    /// `span`: how long it took then.
    fn begin(engine: &'a Engine, span: Duration, is_wanted: IsWanted<'a>) -> Result<Session<'a>, RerunError> {
        let busy = RerunError::Busy("the engine has requests: one that is over is run again while it has none");
        if span >= MOST_TIME {
            return Err(TOO_LONG);
        }
        if engine.health().open_requests > 0 {
            return Err(busy);
        }
        let deadline = Instant::now() + (span * 3 + LITTLE).min(MOST_TIME);
        let views = Arc::new(Mutex::new(Views::new(engine.0.model.block_size)));
        let (told, answer) = oneshot::channel();
        // An engine that is gone tells nothing.
        let _ = engine.0.commands.send(Command::BeginRerun(views.clone(), told));
        if !answer.blocking_recv().unwrap_or(false) {
            return Err(busy);
        }
        Ok(Session { engine, views, deadline, is_wanted })
    }

    fn submit(&self, request: &ValidatedRequest) -> Stream {
        let engine = &*self.engine.0;
        let id = RequestId(engine.next_id.fetch_add(1, Ordering::Relaxed));
        let (events, mut stream) = Stream::open(id, request.prompt.clone());
        let (at, held) = engine.clock.now_and_held();
        let arrived = ArrivalInfo { at, held, permit: None };
        stream.commands = Some(engine.commands.clone());
        let request = NewRequest { id, request: Box::new(request.clone()), arrived, events, peer: None };
        // An engine that is gone drops it, and the stream ends.
        let _ = engine.commands.send(Command::Rerun(request));
        stream
    }

    /// Sends each at its time, until those that are asked about are over.
    fn run(&self, runs: &mut [Run]) -> Result<(), RerunError> {
        let begun = Instant::now();
        while Instant::now() < self.deadline {
            let (mut wait, mut is_over) = (POLL, true);
            for run in &mut *runs {
                let left = run.at.saturating_sub(begun.elapsed());
                if run.stream.is_none() && left.is_zero() {
                    run.stream = Some(self.submit(&run.request));
                } else if run.stream.is_none() {
                    wait = wait.min(left);
                }
                is_over &= run.read()? || !run.is_asked;
            }
            if is_over {
                return Ok(());
            }
            if !(self.is_wanted)() {
                return Err(STOPPED);
            }
            std::thread::sleep(wait);
        }
        Err(TOO_LONG)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // An engine that is gone has ended it.
        let _ = self.engine.0.commands.send(Command::EndRerun);
    }
}
