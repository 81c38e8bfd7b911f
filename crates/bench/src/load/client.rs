//! The clock: sends each request at its moment, on its own connection, and notes when each event came.
//!
//! One thread drives all of them: a thousand streams are mostly waiting. What a request waits for a place below
//! `max_concurrency` is not part of its times, as with vLLM; nor is opening the connection, which vLLM's client mostly
//! finds open. Both are reported separately.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::load::events::{LONGEST_LINE, Lines, Tokens, complaint};
use crate::load::plan::PlannedRequest;
use crate::load::printable::said;
use crate::load::requests::RequestTimeline;
use crate::load::sessions::{Agenda, Said, Turn};
use crate::load::target::{Connection, Target, TargetError, chain, patiently};

/// A server that takes longer for eight tokens has no place for a load.
const PROBE_LIMIT: Duration = Duration::from_secs(120);

/// What came of one request. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOutcome {
    /// From the run's begin to the sending.
    pub start: f64,
    /// Waiting for a place below the concurrency limit, before `start`.
    pub queued: f64,
    /// Opening the connection, encryption included, before `start`.
    pub connect: f64,
    /// From the sending to the first token.
    pub ttft: f64,
    /// From each event with text to the next.
    pub itls: Vec<f64>,
    /// From the sending to the end.
    pub latency: f64,
    /// Tokens of the prompt: the server's count if it gives one.
    pub prompt_tokens: usize,
    /// Of these, tokens that its prefix cache had, by its own count.
    pub cached_tokens: usize,
    /// Tokens of the answer: the server's count if it gives one, else events.
    pub output_tokens: usize,
    /// The answer's name at the server.
    pub id: String,
    /// Which turn of its conversation it was, from 0.
    pub turn: usize,
    /// What prefill and decode cost, where the server says so.
    pub phases: [Option<PhaseFigures>; 2],
    /// Why there is no answer; the times are then meaningless.
    pub error: Option<String>,
}

/// What a phase of an answer cost, by the server's own account (`timings.prefill`, `timings.decode`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PhaseFigures {
    /// Operations.
    pub flops: f64,
    /// Bytes read.
    pub bytes: f64,
    /// Share of the machine's limit, in percent; `None` where the server does not know its limits.
    #[serde(default)]
    pub limit_percent: Option<f64>,
    /// What bound it.
    #[serde(default)]
    pub bound_by: Option<String>,
}

impl RequestOutcome {
    /// Seconds per token after the first; `None` for answers of one token.
    pub fn tpot(&self) -> Option<f64> {
        (self.output_tokens > 1).then(|| (self.latency - self.ttft) / (self.output_tokens - 1) as f64)
    }
}

/// The name of the first model that the server has.
pub async fn first_model(target: &Target) -> Result<String, TargetError> {
    let path = target.beside("models");
    let (status, body) = target.look_up(&path).await.map_err(TargetError::Answer)?;
    let body = said(&body);
    let name = body["data"][0]["id"].as_str();
    name.map(str::to_owned)
        .ok_or_else(|| TargetError::Answer(format!("{target}{path} answered {status} and names no model: set --model")))
}

/// What the server itself says about a request, if it is one that does: [`mod@crate::load::stalls`] reads it.
pub async fn timeline(target: &Target, id: &str) -> Option<RequestTimeline> {
    // Ids are the server's own words, and become part of a path.
    let is_plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !is_plain {
        return None;
    }
    let (status, body) = target.look_up(&target.beside(&format!("requests/{id}/timeline"))).await.ok()?;
    RequestTimeline::read(&said(&body)).filter(|_| status.is_success())
}

/// One request before the run: whether the server answers at all, and as expected.
pub async fn probe(target: &Target, ask: &PlannedRequest) -> Result<RequestOutcome, TargetError> {
    let outcome = timeout(PROBE_LIMIT, answer(target, ask, Instant::now())).await;
    let (outcome, _) = outcome.map_err(|_| {
        let seconds = PROBE_LIMIT.as_secs();
        TargetError::Answer(format!("the server gave no answer to a short request within {seconds} s"))
    })?;
    match outcome.error {
        Some(error) => Err(TargetError::Answer(error)),
        None => Ok(outcome),
    }
}

/// Sends every request at its moment. Ends when all have ended, or when `stop` does: then what is open is given up and
/// left out. `ended` receives how many have ended. Outcomes come in the order of the load.
pub async fn run(
    target: Arc<Target>,
    load: Vec<PlannedRequest>,
    max_concurrency: Option<usize>,
    stop: impl Future<Output = ()>,
    mut ended: impl FnMut(usize),
) -> Vec<RequestOutcome> {
    let begin = Instant::now();
    let places = Arc::new(Semaphore::new(max_concurrency.unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)));
    let mut open = JoinSet::new();
    let mut outcomes = Vec::with_capacity(load.len());
    let mut agenda = Agenda::of(load);
    tokio::pin!(stop);
    while agenda.next().is_some() || !open.is_empty() {
        let next = agenda.next().map(|at| tokio::time::Instant::from_std(begin + at));
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(joined) = open.join_next() => {
                // A task that panicked or was given up has no outcome.
                let Ok((index, outcome, turn)) = joined else { continue };
                let outcome: RequestOutcome = outcome;
                if outcome.error.is_some() {
                    let unsent = agenda.given_up(index).into_iter().map(|index| (index, not_sent()));
                    outcomes.extend(unsent);
                }
                agenda.ended(index, begin.elapsed(), turn);
                outcomes.push((index, outcome));
                ended(outcomes.len());
            }
            () = sleep_until(next.unwrap_or_else(tokio::time::Instant::now)), if next.is_some() => {
                let Some((index, ask)) = agenda.take() else { continue };
                let (target, places) = (target.clone(), places.clone());
                open.spawn(async move {
                    let arrived = Instant::now();
                    let _place = places.acquire_owned().await;
                    let queued = arrived.elapsed().as_secs_f64();
                    let (outcome, said) = answer(&target, &ask, begin).await;
                    let turn = said.filter(|_| outcome.error.is_none()).map(|said| Turn { prompt: ask.prompt, said });
                    (index, RequestOutcome { queued, ..outcome }, turn)
                });
            }
        }
    }
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Sends the same request again and again, evenly `rate` times per second, whatever became of those before, until
/// `until`. Returns when all are answered.
pub async fn beside(
    target: Arc<Target>,
    ask: PlannedRequest,
    rate: f64,
    until: impl Future<Output = ()>,
) -> Vec<RequestOutcome> {
    let begin = Instant::now();
    let mut clock = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    let mut open = JoinSet::new();
    tokio::pin!(until);
    loop {
        tokio::select! {
            biased;
            () = &mut until => break,
            _ = clock.tick() => {
                let (target, ask) = (target.clone(), ask.clone());
                open.spawn(async move { answer(&target, &ask, begin).await.0 });
            }
        }
    }
    open.join_all().await
}

/// What came of a turn whose session had ended.
fn not_sent() -> RequestOutcome {
    RequestOutcome {
        error: Some("not sent: an earlier turn of its session failed".into()),
        ..RequestOutcome::default()
    }
}

/// Sends one request and reads its answer to the end. With what it said, if that will be quoted.
async fn answer(target: &Target, ask: &PlannedRequest, begin: Instant) -> (RequestOutcome, Option<Said>) {
    let body = target.body(ask);
    let called = Instant::now();
    let connection = target.connect().await;
    let sent = Instant::now();
    let mut outcome = RequestOutcome {
        start: sent.duration_since(begin).as_secs_f64(),
        connect: sent.duration_since(called).as_secs_f64(),
        prompt_tokens: ask.prompt_tokens,
        turn: ask.turn,
        ..RequestOutcome::default()
    };
    let mut stream = Tokens::new(ask.is_quoted);
    outcome.error = match connection {
        Ok(mut connection) => read(target, &mut connection, body, sent, &mut stream, &mut outcome).await.err(),
        Err(problem) => Some(problem),
    };
    outcome.latency = sent.elapsed().as_secs_f64();
    (outcome, stream.said)
}

async fn read(
    target: &Target,
    connection: &mut Connection,
    body: String,
    sent: Instant,
    stream: &mut Tokens,
    outcome: &mut RequestOutcome,
) -> Result<(), String> {
    let response = target.post(connection, body).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut begin = Vec::new(); // of an error's text
    let mut lines = Lines::default();
    while let Some(frame) = patiently(body.frame()).await? {
        let frame = frame.map_err(|error| format!("the connection broke: {}", chain(&error)))?;
        let Some(bytes) = frame.data_ref() else { continue };
        if !status.is_success() {
            begin.extend_from_slice(bytes);
            if begin.len() < LONGEST_LINE { continue } else { break }
        }
        lines.push(bytes)?;
        while let Some(line) = lines.next() {
            if stream.take(&line, sent, outcome)? {
                return Ok(());
            }
        }
    }
    match stream.finished {
        _ if !status.is_success() => Err(format!("the server answered {status}: {}", complaint(&begin))),
        true => Ok(()),
        false if outcome.ttft == 0.0 => Err("the answer is not a stream of events (`data: {...}`)".into()),
        false => Err("the connection ended before the answer did".into()),
    }
}
