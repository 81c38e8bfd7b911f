//! One line in the log for each request that is over, and a warning, in words, for each that was slow.
//!
//! ```text
//! an answer ends --Guard--> queue --one thread--> info access: ... status=200 ttft_ms=1.9 longest_gap_ms=0.9 ...
//! a refusal ----------------/  | full: counted    warn slow:   The first token came after 2.31 s: 1.90 s in ...
//! ```
//!
//! A task that answers a request only drops a guard: reading accounts, making text and waiting for the reader of
//! standard error happens on the thread. Numbers are the ledger's. Lines that the queue had no room for are counted, and
//! told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::{Observe, RequestSummary};
use protocol::Nanos;

use crate::metrics::ThoughtTimes;
use crate::requests::RequestLine;
use crate::time_format::ms;
use crate::timeline::{Registry, RequestTrace};
use crate::why;

/// Requests that are over and may wait for their line.
const MOST_QUEUED: usize = 4096;
/// For the engine to close the books of a request whose client has left: so often, with this pause.
const CLOSING: (usize, Duration) = (20, Duration::from_millis(5));
/// nginx's status of a request whose client left before it was answered. It is never sent.
pub const CLIENT_LEFT: u16 = 499;

/// From when on a request is worth a warning; `None`: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowOptions {
    /// Arrival to first token.
    pub ttft: Option<Duration>,
    /// Between two tokens of one answer.
    pub gap: Option<Duration>,
}

/// What the log says of a request that is over.
struct Ended {
    trace: Arc<RequestTrace>,
    route: &'static str,
    is_stream: bool,
    status: u16,
}

/// What it says of one that the engine never saw.
pub struct Refused {
    pub route: &'static str,
    pub request_id: String,
    /// The key's number, counted from 1.
    pub key: Option<usize>,
    pub status: u16,
    pub why: String,
}

enum Entry {
    Ended(Ended),
    Refused(Refused),
}

/// Takes what is over, and writes it down from a thread of its own.
pub struct AccessLog {
    queue: Mutex<Option<SyncSender<Entry>>>,
    lost: Arc<AtomicU64>,
    /// Says that the thread has ended.
    done: Mutex<Receiver<()>>,
}

impl AccessLog {
    pub fn start(
        engine: Arc<dyn Observe>,
        registry: Arc<Registry>,
        slow: SlowOptions,
        thoughts: Arc<ThoughtTimes>,
    ) -> Arc<AccessLog> {
        let (queue, entries) = sync_channel(MOST_QUEUED);
        let (is_done, done) = sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer { engine, registry, slow, lost: lost.clone(), thoughts };
        std::thread::spawn(move || {
            writer.run(&entries);
            // The receiver may be gone.
            let _ = is_done.send(());
        });
        Arc::new(AccessLog { queue: Mutex::new(Some(queue)), lost, done: Mutex::new(done) })
    }

    /// A request that was refused before the engine saw it.
    pub fn refused(&self, refused: Refused) {
        self.send(Entry::Refused(refused));
    }

    fn send(&self, entry: Entry) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.as_ref().is_some_and(|queue| queue.try_send(entry).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nothing more comes: waits until what is queued is written, or has had its time.
    pub fn finish(&self, limit: Duration) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let written = self.done.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(limit);
        if written == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("access log: last lines dropped");
        }
    }
}

/// Hands a request over when it is dropped, however it ended.
pub struct Guard {
    log: Arc<AccessLog>,
    ended: Option<Ended>,
}

impl Guard {
    /// A stream has its status from the beginning; a whole answer has it when it is sent ([`Guard::answered`]).
    pub fn new(log: Arc<AccessLog>, trace: Arc<RequestTrace>, route: &'static str, is_stream: bool) -> Guard {
        let status = if is_stream { 200 } else { CLIENT_LEFT };
        Guard { log, ended: Some(Ended { trace, route, is_stream, status }) }
    }

    /// What the client is answered with.
    pub fn answered(&mut self, status: u16) {
        if let Some(ended) = &mut self.ended {
            ended.status = status;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            self.log.send(Entry::Ended(ended));
        }
    }
}

/// Its account was evicted by later requests.
fn forgotten(ended: &Ended) {
    let Ended { trace, route, status, .. } = ended;
    tracing::info!(
        target: "access",
        route,
        status,
        id = trace.response_id,
        request_id = ?trace.request_id,
        key = trace.key,
        prompt_tokens = trace.prompt_tokens.iter().sum::<usize>(),
        "request (its times are forgotten)"
    );
}

/// Milliseconds, to the microsecond.
fn short(nanos: Nanos) -> f64 {
    ms(Nanos(nanos.0 / 1_000 * 1_000))
}

/// What the thread owns.
struct Writer {
    engine: Arc<dyn Observe>,
    registry: Arc<Registry>,
    slow: SlowOptions,
    lost: Arc<AtomicU64>,
    thoughts: Arc<ThoughtTimes>,
}

impl Writer {
    fn run(&self, entries: &Receiver<Entry>) {
        while let Ok(entry) = entries.recv() {
            match entry {
                Entry::Ended(ended) => self.ended(&ended),
                Entry::Refused(Refused { route, request_id, key, status, why }) => {
                    tracing::info!(target: "access", route, status, request_id = ?request_id, key, why, "refused");
                }
            }
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                tracing::warn!(target: "access", lost, "requests ended faster than their lines were written");
            }
        }
    }

    fn ended(&self, ended: &Ended) {
        let (thinking, first_visible) = self.thinking(ended);
        let slow = [self.slow.ttft, self.slow.gap];
        if !tracing::enabled!(target: "access", tracing::Level::INFO) && slow == [None; 2] {
            return;
        }
        let Ended { trace, route, is_stream, status } = ended;
        let prompts = self.closed(trace).unwrap_or_default();
        let Some(line) = RequestLine::of(trace, &|id| prompts.iter().find(|prompt| prompt.request == id)) else {
            return forgotten(ended);
        };
        tracing::info!(
            target: "access",
            route,
            status,
            id = trace.response_id,
            request_id = ?trace.request_id,
            key = trace.key,
            state = line.state,
            finish_reason = line.finish_reason(),
            stream = is_stream,
            prompt_tokens = line.prompt_tokens,
            cached_tokens = line.cached_tokens,
            completion_tokens = line.generated,
            queue_ms = short(line.queue),
            ttft_ms = line.first_token.map(|_| short(line.ttft)),
            thinking_ms = thinking.map(short),
            first_visible_ms = first_visible.map(short),
            tpot_ms = line.tpot.map(|seconds| (seconds * 1e6).round() / 1e3),
            longest_gap_ms = short(line.longest_gap),
            total_ms = short(line.total()),
            "request"
        );
        let late =
            |time: Nanos, limit: Option<Duration>| limit.is_some_and(|limit| u128::from(time.0) >= limit.as_nanos());
        if late(line.ttft, self.slow.ttft) || late(line.longest_gap, self.slow.gap) {
            self.slow(trace, &line);
        }
    }

    /// How long it thought, and when there was something to see, which is counted.
    fn thinking(&self, Ended { trace, .. }: &Ended) -> (Option<Nanos>, Option<Nanos>) {
        let thinking = trace.thinking(&*self.engine);
        if let (Some(time), visible) = thinking {
            self.thoughts.observe(time, visible);
        }
        thinking
    }

    /// Each prompt of it that was slow, in words.
    fn slow(&self, trace: &RequestTrace, line: &RequestLine<'_>) {
        let name = |id| self.registry.words(trace.tenant, id);
        for &id in &trace.requests {
            let Some(timeline) = self.engine.timeline(id) else { continue };
            tracing::warn!(
                target: "slow",
                id = trace.response_id,
                request_id = ?trace.request_id,
                key = trace.key,
                ttft_ms = short(line.ttft),
                longest_gap_ms = short(line.longest_gap),
                "{}",
                why::tell(&timeline, &|token| trace.message_at(token), &name, None).join(" ")
            );
        }
    }

    /// What the engine's books say. Where a client has left, the engine hears of it between two steps.
    fn closed(&self, trace: &RequestTrace) -> Option<Vec<RequestSummary>> {
        let (tries, pause) = CLOSING;
        for again in 0..tries {
            let prompts: Option<Vec<RequestSummary>> =
                trace.requests.iter().map(|&id| self.engine.request(id)).collect();
            match prompts {
                Some(prompts) if again + 1 < tries && prompts.iter().any(|prompt| !prompt.is_over()) => {
                    std::thread::sleep(pause);
                }
                prompts => return prompts,
            }
        }
        None
    }
}
