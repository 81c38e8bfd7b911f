//! The sockets and the clock: sends each request at its moment, on a connection of its own, and notes when each event
//! came.
//!
//! One thread drives all of them: a thousand streams are mostly waiting. What a request waits for a place below
//! `max_concurrency` is not part of its times, as with vLLM.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::plan::{Ask, Prompt};

const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// A server that sends nothing for so long has forgotten the request.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);
/// Most bytes of a line of the stream, and of an error's body.
const LONGEST_LINE: usize = 1 << 20;
const LONGEST_ERROR: usize = 300;

/// Which of the two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`, with token ids.
    Completions,
    /// `/v1/chat/completions`, with text.
    Chat,
}

/// Where requests go, and what all of them have in common.
#[derive(Clone, Debug)]
pub struct Target {
    host: String,
    port: u16,
    path: String,
    headers: HeaderMap,
    /// Which route it is.
    pub api: Api,
    /// The model's name in requests; empty: left out.
    pub model: String,
    /// Further fields of every body, such as `temperature` or `ignore_eos`.
    pub fields: Map<String, Value>,
}

/// Why a server cannot be asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// Not a URL that is understood.
    #[error("{url}: {problem}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A header that is none.
    #[error("--header {0:?} is not NAME=VALUE")]
    Header(String),
    /// It was asked and gave no usable answer.
    #[error("{0}")]
    Answer(String),
}

/// What came of one request. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// From the run's begin to the sending.
    pub start: f64,
    /// Waiting for a place below the concurrency limit, before `start`.
    pub queued: f64,
    /// From the sending to the first token.
    pub ttft: f64,
    /// From each event with text to the next.
    pub itls: Vec<f64>,
    /// From the sending to the end.
    pub latency: f64,
    /// Tokens of the prompt: the server's count if it gives one.
    pub prompt_tokens: usize,
    /// Tokens of the answer: the server's count if it gives one, else events.
    pub output_tokens: usize,
    /// The answer's name at the server.
    pub id: String,
    /// Why there is no answer; the times are then meaningless.
    pub error: Option<String>,
}

impl Outcome {
    /// Seconds per token after the first; `None` for answers of one token.
    pub fn tpot(&self) -> Option<f64> {
        (self.output_tokens > 1).then(|| (self.latency - self.ttft) / (self.output_tokens - 1) as f64)
    }
}

impl Target {
    /// A server at `base_url` (`http://HOST[:PORT][/PREFIX]`) with its route for `api`, or `endpoint` instead.
    pub fn new(base_url: &str, endpoint: Option<&str>, api: Api) -> Result<Target, TargetError> {
        let refuse = |problem: &str| TargetError::Url { url: base_url.to_owned(), problem: problem.to_owned() };
        let uri: Uri = base_url.parse().map_err(|_| refuse("is not a URL such as http://127.0.0.1:8000"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(refuse("https is not spoken here; measure behind the encryption, or use http"));
            }
            _ => return Err(refuse("does not begin with http://")),
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| refuse("names no host"))?;
        let route = endpoint.unwrap_or(match api {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        });
        if !route.starts_with('/') {
            return Err(TargetError::Url { url: route.to_owned(), problem: "an endpoint begins with /".to_owned() });
        }
        Ok(Target {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(80),
            path: format!("{}{route}", uri.path().trim_end_matches('/')),
            headers: HeaderMap::new(),
            api,
            model: String::new(),
            fields: Map::new(),
        })
    }

    /// Sends `NAME=VALUE` with every request.
    pub fn add_header(&mut self, header: &str) -> Result<(), TargetError> {
        let refuse = || TargetError::Header(header.to_owned());
        let (name, value) = header.split_once('=').ok_or_else(refuse)?;
        let name: HeaderName = name.trim().parse().map_err(|_| refuse())?;
        self.headers.insert(name, value.trim().parse().map_err(|_| refuse())?);
        Ok(())
    }

    /// Sends this key as a bearer token with every request.
    pub fn set_key(&mut self, key: &str) -> Result<(), TargetError> {
        let mut value: HeaderValue = format!("Bearer {key}")
            .parse()
            .map_err(|_| TargetError::Answer("the API key has unprintable characters".into()))?;
        value.set_sensitive(true);
        self.headers.insert(AUTHORIZATION, value);
        Ok(())
    }

    fn body(&self, ask: &Ask) -> String {
        let mut body = self.fields.clone();
        if !self.model.is_empty() {
            body.insert("model".into(), json!(self.model));
        }
        match &ask.prompt {
            Prompt::Tokens(ids) => body.insert("prompt".into(), json!(ids)),
            Prompt::Words(text) if self.api == Api::Chat => {
                body.insert("messages".into(), json!([{ "role": "user", "content": text }]))
            }
            Prompt::Words(text) => body.insert("prompt".into(), json!(text)),
        };
        body.insert("max_tokens".into(), json!(ask.max_tokens));
        body.insert("stream".into(), json!(true));
        body.insert("stream_options".into(), json!({ "include_usage": true }));
        Value::Object(body).to_string()
    }

    async fn send(&self, method: Method, path: &str, body: String) -> Result<Response<Incoming>, String> {
        let at = format!("{}:{}", self.host, self.port);
        let connect = timeout(CONNECT_LIMIT, TcpStream::connect((self.host.as_str(), self.port)));
        let stream = connect.await.map_err(|_| format!("{at}: no connection within {} s", CONNECT_LIMIT.as_secs()))?;
        let stream = stream.map_err(|error| format!("{at}: {error}"))?;
        let _ = stream.set_nodelay(true); // a loopback without it works as well
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| format!("{at}: {error}"))?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, &at);
        if let Some(headers) = request.headers_mut() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.extend(self.headers.clone());
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let answer = timeout(SILENCE_LIMIT, sender.send_request(request)).await;
        answer.map_err(|_| silence())?.map_err(|error| format!("{at}: {}", chain(&error)))
    }
}

/// An error with its causes: hyper's own text alone often says only "connection error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn silence() -> String {
    format!("the server sent nothing for {} s", SILENCE_LIMIT.as_secs())
}

/// The name of the first model that the server has.
pub async fn first_model(target: &Target) -> Result<String, TargetError> {
    let path =
        format!("{}/models", target.path.split_once("/v1/").map_or("/v1".into(), |(prefix, _)| format!("{prefix}/v1")));
    let answer = target.send(Method::GET, &path, String::new()).await.map_err(TargetError::Answer)?;
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(|error| TargetError::Answer(chain(&error)))?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = body["data"][0]["id"].as_str();
    name.map(str::to_owned)
        .ok_or_else(|| TargetError::Answer(format!("{path} answered {status} and names no model: set --model")))
}

/// One request before the run: whether the server answers at all, and as expected.
pub async fn probe(target: &Target, ask: &Ask) -> Result<Outcome, TargetError> {
    let outcome = answer(target, ask, Instant::now()).await;
    match outcome.error {
        Some(error) => Err(TargetError::Answer(error)),
        None => Ok(outcome),
    }
}

/// Sends every request at its moment. Ends when all have ended, or when `stop` does: then what is open is given up and
/// left out. `ended` hears how many have ended. Outcomes come in the order of the load.
pub async fn run(
    target: Arc<Target>,
    load: Vec<Ask>,
    max_concurrency: Option<usize>,
    stop: impl Future<Output = ()>,
    mut ended: impl FnMut(usize),
) -> Vec<Outcome> {
    let begin = Instant::now();
    let places = Arc::new(Semaphore::new(max_concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
    let mut open = JoinSet::new();
    let mut outcomes = Vec::with_capacity(load.len());
    let mut load = load.into_iter().enumerate().peekable();
    tokio::pin!(stop);
    while load.peek().is_some() || !open.is_empty() {
        let next = load.peek().map(|(_, ask)| tokio::time::Instant::from_std(begin + ask.at));
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(outcome) = open.join_next() => {
                // A task that panicked or was given up has no outcome.
                outcomes.extend(outcome.ok());
                ended(outcomes.len());
            }
            () = sleep_until(next.unwrap_or_else(tokio::time::Instant::now)), if next.is_some() => {
                let Some((index, ask)) = load.next() else { continue };
                let (target, places) = (target.clone(), places.clone());
                open.spawn(async move {
                    let arrived = Instant::now();
                    let _place = places.acquire_owned().await;
                    let queued = arrived.elapsed().as_secs_f64();
                    (index, Outcome { queued, ..answer(&target, &ask, begin).await })
                });
            }
        }
    }
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Sends one request and reads its answer to the end.
async fn answer(target: &Target, ask: &Ask, begin: Instant) -> Outcome {
    let body = target.body(ask);
    let sent = Instant::now();
    let mut outcome = Outcome {
        start: sent.duration_since(begin).as_secs_f64(),
        prompt_tokens: ask.prompt_tokens,
        ..Outcome::default()
    };
    outcome.error = read(target, body, sent, &mut outcome).await.err();
    outcome.latency = sent.elapsed().as_secs_f64();
    outcome
}

async fn read(target: &Target, body: String, sent: Instant, outcome: &mut Outcome) -> Result<(), String> {
    let response = target.send(Method::POST, &target.path, body).await?;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        return Err(format!("the server answered {status}: {}", shown(&bytes)));
    }
    let mut lines = Lines::default();
    let mut stream = Tokens::default();
    while let Some(frame) = timeout(SILENCE_LIMIT, body.frame()).await.map_err(|_| silence())? {
        let frame = frame.map_err(|error| format!("the connection broke: {}", chain(&error)))?;
        let Some(bytes) = frame.data_ref() else { continue };
        lines.push(bytes)?;
        while let Some(line) = lines.next() {
            if stream.take(&line, sent, outcome)? {
                return Ok(());
            }
        }
    }
    match stream.finished {
        true => Ok(()),
        false if outcome.ttft == 0.0 => Err("the answer is not a stream of events (`data: {...}`)".into()),
        false => Err("the connection ended before the answer did".into()),
    }
}

/// The start of a body, for an error message.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_ERROR)]);
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// What has come of an answer so far.
#[derive(Default)]
struct Tokens {
    last: Option<Instant>,
    events: usize,
    finished: bool,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    id: String,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<Value>,
}

#[derive(Deserialize)]
struct Delta {
    role: Option<String>,
    content: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
}

impl Tokens {
    /// Takes a line of the stream. True: it was the last one.
    fn take(&mut self, line: &[u8], sent: Instant, outcome: &mut Outcome) -> Result<bool, String> {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { return Ok(false) };
        if data == b"[DONE]" {
            return if outcome.ttft > 0.0 { Ok(true) } else { Err("the answer has no token".into()) };
        }
        let event: Event =
            serde_json::from_slice(data).map_err(|error| format!("an event is not JSON ({error}): {}", shown(data)))?;
        if let Some(error) = event.error {
            return Err(format!("the server reported: {}", shown(error.to_string().as_bytes())));
        }
        if outcome.id.is_empty() {
            outcome.id = event.id;
        }
        if let Some(choice) = event.choices.first() {
            self.finished |= choice.finish_reason.as_ref().is_some_and(|reason| !reason.is_null());
            if choice.is_token() {
                let now = Instant::now();
                match self.last {
                    None => outcome.ttft = now.duration_since(sent).as_secs_f64().max(f64::MIN_POSITIVE),
                    Some(last) => outcome.itls.push(now.duration_since(last).as_secs_f64()),
                }
                self.last = Some(now);
                self.events += 1;
                outcome.output_tokens = self.events;
            }
        }
        if let Some(usage) = event.usage {
            outcome.prompt_tokens = usage.prompt_tokens.unwrap_or(outcome.prompt_tokens);
            outcome.output_tokens = usage.completion_tokens.unwrap_or(outcome.output_tokens);
        }
        Ok(false)
    }
}

impl Choice {
    /// An event with text is a token; so is one without, unless it only opens or closes the answer: the bytes of a
    /// character may take several tokens.
    fn is_token(&self) -> bool {
        let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let (delta, opens) = match &self.delta {
            Some(delta) => (has(&delta.content) || has(&delta.reasoning_content), delta.role.is_some()),
            None => (false, false),
        };
        let closes = self.finish_reason.as_ref().is_some_and(|reason| !reason.is_null());
        has(&self.text) || delta || !(opens || closes)
    }
}

/// Lines out of bytes as they come.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    begin: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes.drain(..self.begin);
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > LONGEST_LINE + bytes.len() {
            Err("the server sends a line without an end".into())
        } else {
            Ok(())
        }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let rest = &self.bytes[self.begin..];
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line = rest[..end].trim_ascii_end().to_vec();
        self.begin += end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(lines: &[&str]) -> (Outcome, Result<bool, String>) {
        let (mut tokens, mut outcome) = (Tokens::default(), Outcome::default());
        let sent = Instant::now();
        let mut last = Ok(false);
        for line in lines {
            last = tokens.take(line.as_bytes(), sent, &mut outcome);
        }
        (outcome, last)
    }

    #[test]
    fn what_is_a_token() {
        // (events, tokens by events)
        let cases: &[(&[&str], usize)] = &[
            (
                &[
                    r#"data: {"choices":[{"text":"a","finish_reason":null}]}"#,
                    r#"data: {"choices":[{"text":"b","finish_reason":"length"}]}"#,
                ],
                2,
            ),
            (&[r#"data: {"choices":[{"text":"a"}]}"#, r#"data: {"choices":[{"text":"","finish_reason":"stop"}]}"#], 1),
            (
                &[
                    r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                    r#"data: {"choices":[{"delta":{"content":"a"}}]}"#,
                ],
                1,
            ),
            (&[r#"data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}"#], 1),
            (&[r#"data: {"choices":[{"text":""}]}"#, ": a comment", "", "event: x"], 1),
        ];
        for (lines, expected) in cases {
            assert_eq!(events(lines).0.output_tokens, *expected, "{lines:?}");
        }
    }

    #[test]
    fn the_servers_own_count_is_believed() {
        let (outcome, last) = events(&[
            r#"data: {"id":"cmpl-1","choices":[{"text":"abc"}]}"#,
            r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
            "data: [DONE]",
        ]);
        assert_eq!((outcome.id.as_str(), outcome.prompt_tokens, outcome.output_tokens), ("cmpl-1", 7, 3));
        assert_eq!(last, Ok(true));
    }

    #[test]
    fn rubbish_is_an_error_that_shows_it() {
        assert!(events(&["data: <html>"]).1.unwrap_err().contains("<html>"));
        assert!(events(&[r#"data: {"error":{"message":"too hot"}}"#]).1.unwrap_err().contains("too hot"));
        assert!(events(&["data: [DONE]"]).1.unwrap_err().contains("no token"));
    }

    #[test]
    fn urls_that_are_none_are_refused() {
        for (url, problem) in [
            ("localhost:8000", "does not begin with http://"),
            ("ftp://x", "does not begin with http://"),
            ("https://x", "https is not spoken"),
            ("http://", "is not a URL"),
            ("not a url", "is not a URL"),
        ] {
            let error = Target::new(url, None, Api::Chat).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(url), "{url}: {error}");
        }
        let target = Target::new("http://h:81/base/", None, Api::Chat).unwrap();
        assert_eq!((target.host.as_str(), target.port, target.path.as_str()), ("h", 81, "/base/v1/chat/completions"));
        assert!(Target::new("http://h", Some("v1"), Api::Chat).is_err());
    }

    #[test]
    fn lines_are_found_across_frames() {
        let mut lines = Lines::default();
        lines.push(b"da").unwrap();
        assert_eq!(lines.next(), None);
        lines.push(b"ta: 1\r\n\ndata").unwrap();
        assert_eq!(lines.next(), Some(b"data: 1".to_vec()));
        assert_eq!(lines.next(), Some(b"".to_vec()));
        assert_eq!(lines.next(), None);
        lines.push(b": 2\n").unwrap();
        assert_eq!(lines.next(), Some(b"data: 2".to_vec()));
    }
}
