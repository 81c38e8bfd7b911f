//! Requests as OpenTelemetry spans, sent to a collector by OTLP over HTTP in JSON.
//!
//! ```text
//! an answer ends --Guard--> queue of 1024 --one thread--> POST {endpoint}/v1/traces
//!                             | full: the span is dropped and counted
//!
//! span   |------------------------- chat lantern -------------------------|     gen_ai.* attributes, owners of the time
//!        |-- queue --|--- prefill ---|------------- decode ---------------|     late tokens are events of it
//! ```
//!
//! Nothing waits for a collector: no step, no answer. A collector that is away costs its spans. Times are the ledger's.
//! (The official crates would bring some forty others; these few spans are a page of JSON.)

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::ledger::{Account, Gap, Owner, Shares};
use engine::{Ending, Observe, Timeline};
use protocol::Nanos;
use serde_json::{Value, json};

use crate::timeline::RequestTrace;

/// Answers that may wait to be sent.
const MOST_QUEUED: usize = 1024;
/// Answers in one message.
const MOST_AT_ONCE: usize = 64;
/// A message is sent so long after its first answer.
const LINGER: Duration = Duration::from_millis(200);
/// For a collector to take a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// For the engine to close the books of a request whose client has left.
const CLOSING: Duration = Duration::from_millis(50);

/// Where spans go.
#[derive(Clone, Debug)]
pub struct OtelOptions {
    /// The URL that traces are posted to, path included.
    pub traces_endpoint: String,
    /// Further headers of each message, such as a key of the collector's.
    pub headers: Vec<(String, String)>,
    /// `service.name` of the spans.
    pub service_name: String,
}

/// The parent of a request's span: the header `traceparent` of W3C Trace Context, `00-<trace>-<parent>-<flags>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace: String,
    span: String,
}

impl TraceParent {
    /// `None` for anything but version 0's form; then the span begins a trace of its own.
    pub fn parse(header: &str) -> Option<TraceParent> {
        let mut parts = header.split('-');
        let hex = |part: Option<&str>, len: usize| {
            let part = part.filter(|part| part.len() == len)?;
            let lower = part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            (lower && part.bytes().any(|byte| byte != b'0')).then(|| part.to_owned())
        };
        let version = parts.next();
        let (trace, span) = (hex(parts.next(), 32)?, hex(parts.next(), 16)?);
        let flags = parts.next().filter(|flags| flags.len() == 2);
        (version == Some("00") && flags.is_some() && parts.next().is_none()).then_some(TraceParent { trace, span })
    }
}

/// An answer that has ended, or whose client has left.
struct Ended {
    request: Arc<RequestTrace>,
    model: String,
    operation: &'static str,
    parent: Option<TraceParent>,
}

/// Takes ended answers and sends them from a thread of its own.
pub struct Exporter {
    queue: Mutex<Option<SyncSender<Ended>>>,
    dropped: Arc<AtomicU64>,
    /// Says that the thread has ended.
    done: Mutex<Receiver<()>>,
}

impl Exporter {
    pub fn start(options: OtelOptions, engine: Arc<dyn Observe>) -> Arc<Exporter> {
        let (queue, ended) = sync_channel(MOST_QUEUED);
        let (is_done, done) = sync_channel(1);
        let dropped = Arc::new(AtomicU64::new(0));
        let sender = Sender::new(options, engine, dropped.clone());
        std::thread::spawn(move || {
            sender.run(&ended);
            // The receiver may be gone.
            let _ = is_done.send(());
        });
        Arc::new(Exporter { queue: Mutex::new(Some(queue)), dropped, done: Mutex::new(done) })
    }

    /// Nothing more comes: waits until what is queued has been sent, or has had its time.
    pub fn finish(&self, limit: Duration) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let sent = self.done.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(limit);
        if sent == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the OpenTelemetry collector did not take the last spans in time");
        }
    }
}

/// Hands an answer over when it is dropped, however it ended.
pub struct Guard {
    exporter: Arc<Exporter>,
    ended: Option<Ended>,
}

impl Guard {
    pub fn new(
        exporter: Arc<Exporter>,
        request: Arc<RequestTrace>,
        model: String,
        operation: &'static str,
        parent: Option<TraceParent>,
    ) -> Guard {
        Guard { exporter, ended: Some(Ended { request, model, operation, parent }) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let queue = self.exporter.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(queue), Some(ended)) = (queue.as_ref(), self.ended.take())
            && queue.try_send(ended).is_err()
        {
            self.exporter.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the thread owns.
struct Sender {
    options: OtelOptions,
    engine: Arc<dyn Observe>,
    agent: ureq::Agent,
    dropped: Arc<AtomicU64>,
    secret: RandomState,
    next_id: AtomicU64,
}

impl Sender {
    fn new(options: OtelOptions, engine: Arc<dyn Observe>, dropped: Arc<AtomicU64>) -> Sender {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .user_agent(concat!("twostroke/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = config.new_agent();
        Sender { options, engine, agent, dropped, secret: RandomState::new(), next_id: AtomicU64::new(0) }
    }

    fn run(&self, queue: &Receiver<Ended>) {
        let mut complained = false;
        while let Ok(first) = queue.recv() {
            let mut batch = vec![first];
            let deadline = Instant::now() + LINGER;
            while batch.len() < MOST_AT_ONCE
                && let Ok(next) = queue.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                batch.push(next);
            }
            let spans: Vec<Value> = batch.iter().flat_map(|ended| self.spans(ended)).collect();
            let problem = self.post(&self.message(spans));
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if let Some(problem) = problem.or_else(|| (dropped > 0).then(|| "too many spans".to_owned()))
                && !std::mem::replace(&mut complained, true)
            {
                tracing::warn!(problem, dropped, "OpenTelemetry spans were lost; further losses are not told");
            }
        }
    }

    /// Why it was not taken.
    fn post(&self, message: &Value) -> Option<String> {
        let mut request = self.agent.post(&self.options.traces_endpoint).content_type("application/json");
        for (name, value) in &self.options.headers {
            request = request.header(name, value);
        }
        match request.send(message.to_string()) {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("the collector answered {}", response.status().as_u16())),
            Err(error) => Some(error.to_string()),
        }
    }

    fn message(&self, spans: Vec<Value>) -> Value {
        let service = [
            attribute("service.name", json!({"stringValue": self.options.service_name})),
            attribute("service.version", json!({"stringValue": env!("CARGO_PKG_VERSION")})),
        ];
        let scope = json!({"name": "twostroke", "version": env!("CARGO_PKG_VERSION")});
        json!({"resourceSpans": [{
            "resource": {"attributes": service},
            "scopeSpans": [{"scope": scope, "spans": spans}],
        }]})
    }

    /// The spans of each prompt of a request.
    fn spans(&self, ended: &Ended) -> Vec<Value> {
        let trace = ended.parent.as_ref().map_or_else(|| self.id(16), |parent| parent.trace.clone());
        let prompts = ended.request.requests.iter().zip(&ended.request.prompt_tokens);
        let timeline = |id| {
            let timeline = self.engine.timeline(id)?;
            if timeline.ending.is_some() {
                return Some(timeline);
            }
            // The client has left, and the engine hears of it between two steps.
            std::thread::sleep(CLOSING);
            self.engine.timeline(id)
        };
        let span = |(&id, &tokens)| Some(self.prompt(ended, &trace, &timeline(id)?, tokens));
        prompts.filter_map(span).flatten().collect()
    }

    fn prompt(&self, ended: &Ended, trace: &str, timeline: &Timeline, prompt_tokens: usize) -> Vec<Value> {
        let account = &timeline.account;
        let unix = |moment| unix(&*self.engine, moment);
        let id = self.id(8);
        let mut root = json!({
            "traceId": trace,
            "spanId": id,
            "name": format!("{} {}", ended.operation, ended.model),
            "kind": 2, // server
            "startTimeUnixNano": unix(account.arrived),
            "endTimeUnixNano": unix(timeline.until),
            "attributes": self.attributes(ended, account, prompt_tokens),
            "status": {"code": if timeline.ending == Some(Ending::Failed) { 2 } else { 0 }},
        });
        if let Some(parent) = &ended.parent {
            root["parentSpanId"] = parent.span.as_str().into();
        }
        let first_step = account.visits.first().map_or(timeline.until, |visit| visit.from);
        let first_token = account.first_token.unwrap_or(timeline.until);
        let last_token = account.visits.last().map_or(first_token, |visit| visit.to);
        let child = |name: &str, from: Nanos, to: Nanos, owners: Vec<Value>, events: Vec<Value>| {
            json!({
                "traceId": trace,
                "spanId": self.id(8),
                "parentSpanId": id,
                "name": name,
                "kind": 1, // internal
                "startTimeUnixNano": unix(from),
                "endTimeUnixNano": unix(to.max(from)),
                "attributes": owners,
                "events": events,
            })
        };
        let owners = |shares: &Shares, of: &[Owner]| -> Vec<Value> {
            let part = |&owner: &Owner| seconds(&format!("twostroke.{}_seconds", owner.name()), shares.of(owner));
            of.iter().filter(|&&owner| shares.of(owner) > Nanos(0)).map(part).collect()
        };
        let (queue, prefill) = Owner::OF_TTFT.split_at(3);
        let mut spans = vec![root];
        spans.push(child("queue", account.arrived, first_step, owners(&account.bill.ttft, queue), Vec::new()));
        if !account.visits.is_empty() {
            spans.push(child("prefill", first_step, first_token, owners(&account.bill.ttft, prefill), Vec::new()));
        }
        if account.first_token.is_some() {
            let late = account.late_gaps().iter().map(|gap| late_token(unix(gap.at), gap)).collect();
            spans.push(child("decode", first_token, last_token, owners(&account.bill.gaps, &Owner::OF_GAP), late));
        }
        spans
    }

    fn attributes(&self, ended: &Ended, account: &Account, prompt_tokens: usize) -> Vec<Value> {
        let text = |key: &str, value: &str| attribute(key, json!({"stringValue": value}));
        let count = |key: &str, value: usize| attribute(key, json!({"intValue": value.to_string()}));
        let mut attributes = vec![
            text("gen_ai.operation.name", ended.operation),
            text("gen_ai.provider.name", "twostroke"),
            text("gen_ai.request.model", &ended.model),
            text("gen_ai.response.model", &ended.model),
            text("gen_ai.response.id", &ended.request.response_id),
            count("gen_ai.usage.input_tokens", prompt_tokens),
            count("gen_ai.usage.output_tokens", account.num_tokens()),
        ];
        if let Some(first) = account.first_token {
            attributes.push(seconds("gen_ai.server.time_to_first_token", first.since(account.arrived)));
        }
        attributes.push(seconds("twostroke.cost_to_others_seconds", account.bill.cost.total()));
        attributes
    }

    /// Random bytes in hexadecimal, not all zero.
    fn id(&self, bytes: usize) -> String {
        let word = || self.secret.hash_one(self.next_id.fetch_add(1, Ordering::Relaxed)).max(1);
        (0..bytes / 8).map(|_| format!("{:016x}", word())).collect()
    }
}

/// A token that came late: an event of the decode span.
fn late_token(at: String, gap: &Gap) -> Value {
    json!({
        "timeUnixNano": at,
        "name": "late token",
        "attributes": [
            attribute("twostroke.token", json!({"intValue": gap.token.to_string()})),
            seconds("twostroke.gap_seconds", gap.shares.total()),
            seconds("twostroke.other_prefill_seconds", gap.shares.of(Owner::OtherPrefill)),
            seconds("twostroke.other_drafts_seconds", gap.shares.of(Owner::OtherDrafts)),
        ],
    })
}

fn attribute(key: &str, value: Value) -> Value {
    json!({"key": key, "value": value})
}

fn seconds(key: &str, nanos: Nanos) -> Value {
    attribute(key, json!({"doubleValue": nanos.as_secs_f64()}))
}

/// Nanoseconds since 1970, as OTLP's JSON writes 64 bits: in a string.
fn unix(engine: &dyn Observe, moment: Nanos) -> String {
    engine.unix(moment).0.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_traceparent_is_a_parent() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let good = TraceParent::parse(&format!("00-{trace}-{span}-01"));
        assert_eq!(good, Some(TraceParent { trace: trace.into(), span: span.into() }));
        let zeros = "0".repeat(32);
        for bad in [
            String::new(),
            format!("01-{trace}-{span}-01"),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-x"),
            format!("00-{zeros}-{span}-01"),
            format!("00-{trace}-{}-01", &zeros[..16]),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{}-01", &span[1..]),
        ] {
            assert_eq!(TraceParent::parse(&bad), None, "{bad}");
        }
    }
}
