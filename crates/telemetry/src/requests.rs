//! `GET /v1/requests`: which request was slow? The caller's own, those that wait and run and the last that ended.
//!
//! ```text
//! Registry (names)  --+
//!                     +--> one line per HTTP request --filter, sort, cut--> {"object": "list", "data": [..]}
//! engine's accounts --+                                    |
//!                                                          +--> its timeline says why: GET /v1/requests/{id}/timeline
//! ```
//!
//! | parameter | |
//! | --- | --- |
//! | `state` | `waiting`, `running`, `finished`, `cancelled`, `failed`; several by commas |
//! | `min_ttft`, `min_gap` | `500ms`, `2s`: at least so long to the first token, or between two; what waits counts so far |
//! | `since` | still open at that moment, or come later: RFC 3339, seconds or milliseconds since 1970, `15m` ago |
//! | `order` | `newest` (default), or the largest first by `ttft`, `gap` or `total` |
//! | `limit` | 1 to 1,000, default 50 |

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use engine::ledger::Owner;
use engine::{Ending, FinishReason, Observe, RequestId, RequestState, RequestSummary, UnixNanos};
use protocol::Nanos;
use serde_json::{Map, Value, json};

use crate::time_format;
use crate::time_format::ms;
use crate::timeline::RequestTrace;

/// A parameter that is wrong.
#[derive(Debug, PartialEq)]
pub enum WrongParameter {
    Unknown(String),
    /// Its name, and what it must be.
    Not(String, &'static str),
}

/// Default lines of an answer.
const LIMIT: usize = 50;
const MOST: usize = 1000;

#[derive(Debug, PartialEq)]
pub struct RequestQuery {
    /// Of [`STATES`]; none: all.
    states: Vec<&'static str>,
    min_ttft: Nanos,
    min_gap: Nanos,
    since: UnixNanos,
    order: Order,
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Newest,
    Ttft,
    Gap,
    Total,
}

const STATES: [&str; 5] = ["waiting", "running", "finished", "cancelled", "failed"];
const ORDERS: [(&str, Order); 4] =
    [("newest", Order::Newest), ("ttft", Order::Ttft), ("gap", Order::Gap), ("total", Order::Total)];

impl RequestQuery {
    /// Reads the names and values of a query.
    pub fn read<'a>(
        query: impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
        now: UnixNanos,
    ) -> Result<RequestQuery, WrongParameter> {
        let mut question = RequestQuery {
            states: Vec::new(),
            min_ttft: Nanos(0),
            min_gap: Nanos(0),
            since: UnixNanos(0),
            order: Order::Newest,
            limit: LIMIT,
        };
        for (name, value) in query {
            let wrong = |what| WrongParameter::Not(name.clone().into_owned(), what);
            let time = || {
                let ms = time_format::milliseconds(&value).filter(|ms| (0.0..=8.64e7).contains(ms));
                ms.map(|ms| Nanos((ms * 1e6) as u64))
                    .ok_or_else(|| wrong("a time of at most a day, such as 500ms or 2s"))
            };
            match &*name {
                "state" => {
                    for state in value.split(',') {
                        let known = STATES.into_iter().find(|known| *known == state);
                        question.states.push(known.ok_or_else(|| {
                            wrong(
                                "one or several of waiting, running, finished, cancelled, failed, with commas between",
                            )
                        })?);
                    }
                }
                "min_ttft" => question.min_ttft = time()?,
                "min_gap" => question.min_gap = time()?,
                "since" => {
                    question.since = time_format::parse(&value, now).ok_or_else(|| {
                        wrong("a moment: RFC 3339, seconds or milliseconds since 1970, or how long ago, such as 15m")
                    })?;
                }
                "order" => {
                    let known = ORDERS.into_iter().find(|(known, _)| *known == value);
                    question.order = known.ok_or_else(|| wrong("one of newest, ttft, gap, total"))?.1;
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                    question.limit = limit.ok_or_else(|| wrong("a whole number from 1 to 1000"))?;
                }
                _ => return Err(WrongParameter::Unknown(name.into_owned())),
            }
        }
        Ok(question)
    }

    fn wants(&self, line: &RequestLine, ended: UnixNanos) -> bool {
        (self.states.is_empty() || self.states.contains(&line.state))
            && line.ttft >= self.min_ttft
            && line.longest_gap >= self.min_gap
            && ended >= self.since
    }
}

/// One HTTP request: the sums or the largest of its prompts.
pub struct RequestLine<'a> {
    trace: &'a RequestTrace,
    pub state: &'static str,
    arrived: Nanos,
    pub queue: Nanos,
    pub ttft: Nanos,
    /// That of the last of its prompts; `None` while one of them has none.
    pub first_token: Option<Nanos>,
    until: Nanos,
    pub longest_gap: Nanos,
    /// Seconds.
    pub tpot: Option<f64>,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub generated: usize,
    reason: Option<FinishReason>,
    ttft_owner: Option<Owner>,
    gaps_owner: Option<Owner>,
}

impl<'a> RequestLine<'a> {
    /// `known`: what the engine knows of a prompt. `None` where it has forgotten one.
    pub fn of<'k>(
        trace: &'a RequestTrace,
        known: &dyn Fn(RequestId) -> Option<&'k RequestSummary>,
    ) -> Option<RequestLine<'a>> {
        let prompts: Vec<&RequestSummary> = trace.requests.iter().map(|&id| known(id)).collect::<Option<_>>()?;
        let (first, slowest) = (prompts.first()?, prompts.iter().max_by_key(|prompt| prompt.ttft())?);
        let roughest = prompts.iter().max_by_key(|prompt| prompt.longest_gap)?;
        let firsts: Option<Vec<Nanos>> = prompts.iter().map(|prompt| prompt.first_token).collect();
        let sum = |of: fn(&RequestSummary) -> usize| prompts.iter().map(|prompt| of(prompt)).sum();
        let started = |prompt: &RequestSummary| prompt.first_scheduled.unwrap_or(prompt.until);
        Some(RequestLine {
            trace,
            state: state(prompts.iter().map(|prompt| prompt.state)),
            arrived: first.arrived,
            queue: prompts.iter().map(|prompt| started(prompt).since(prompt.arrived)).max()?,
            ttft: slowest.ttft(),
            first_token: firsts.and_then(|firsts| firsts.into_iter().max()),
            until: prompts.iter().map(|prompt| prompt.until).max()?,
            longest_gap: roughest.longest_gap,
            tpot: prompts.iter().filter_map(|prompt| prompt.tpot).reduce(f64::max),
            prompt_tokens: sum(|prompt| prompt.prompt_tokens),
            cached_tokens: sum(|prompt| prompt.cached_tokens),
            generated: sum(|prompt| prompt.generated),
            reason: prompts.last()?.reason,
            ttft_owner: slowest.ttft_owner,
            gaps_owner: roughest.gaps_owner,
        })
    }

    /// Arrival to end, or to now.
    pub fn total(&self) -> Nanos {
        self.until.since(self.arrived)
    }

    /// Why the last of its answers ended, once it is over.
    pub fn finish_reason(&self) -> Option<&'static str> {
        self.reason.filter(|_| self.is_over()).map(|reason| match reason {
            FinishReason::Stop(_) => "stop",
            FinishReason::Length => "length",
        })
    }

    fn is_over(&self) -> bool {
        !["waiting", "running"].contains(&self.state)
    }

    fn json(&self, engine: &dyn Observe) -> Value {
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| _ = line.insert(name.to_owned(), value);
        put("id", self.trace.response_id.as_str().into());
        put("object", "request".into());
        put("request_id", self.trace.request_id.as_str().into());
        put("state", self.state.into());
        put("prompts", self.trace.requests.len().into());
        put("prompt_tokens", self.prompt_tokens.into());
        put("cached_tokens", self.cached_tokens.into());
        put("completion_tokens", self.generated.into());
        put("queue_ms", ms(self.queue).into());
        // Of one that waits for its first token, how long it has waited is `total_ms`.
        put("ttft_ms", self.first_token.map(|_| ms(self.ttft)).into());
        put("tpot_ms", self.tpot.map(|seconds| seconds * 1e3).into());
        put("longest_gap_ms", ms(self.longest_gap).into());
        put("total_ms", ms(self.total()).into());
        put("ttft_mostly", self.ttft_owner.map(Owner::name).into());
        put("gaps_mostly", self.gaps_owner.map(Owner::name).into());
        put("finish_reason", self.finish_reason().into());
        put("timeline", format!("/v1/requests/{}/timeline", self.trace.response_id).into());
        time_format::insert(&mut line, "arrived", engine, self.arrived);
        if let Some(first) = self.first_token {
            time_format::insert(&mut line, "first_token", engine, first);
        }
        if self.is_over() {
            time_format::insert(&mut line, "ended", engine, self.until);
        }
        Value::Object(line)
    }
}

/// Of one whose prompts are in these: it runs as soon as one does and until the last has ended.
fn state(prompts: impl Iterator<Item = RequestState> + Clone) -> &'static str {
    let has = |state: RequestState| prompts.clone().any(|prompt| prompt == state);
    match () {
        () if prompts.clone().all(|prompt| prompt == RequestState::Waiting) => "waiting",
        () if has(RequestState::Waiting) || has(RequestState::Running) => "running",
        () if has(RequestState::Ended(Ending::Failed)) => "failed",
        () if has(RequestState::Ended(Ending::Cancelled)) => "cancelled",
        () => "finished",
    }
}

/// The answer, of requests that the caller may see.
pub fn list(engine: &dyn Observe, traces: &[Arc<RequestTrace>], question: &RequestQuery) -> Value {
    let known: HashMap<RequestId, RequestSummary> =
        engine.requests().into_iter().map(|summary| (summary.request, summary)).collect();
    let lines = traces.iter().rev().filter_map(|trace| RequestLine::of(trace, &|id| known.get(&id)));
    let mut lines: Vec<RequestLine<'_>> = lines.filter(|line| question.wants(line, engine.unix(line.until))).collect();
    match question.order {
        Order::Newest => lines.sort_by_key(|line| Reverse(line.arrived)),
        Order::Ttft => lines.sort_by_key(|line| Reverse(line.ttft)),
        Order::Gap => lines.sort_by_key(|line| Reverse(line.longest_gap)),
        Order::Total => lines.sort_by_key(|line| Reverse(line.total())),
    }
    let has_more = lines.len() > question.limit;
    let data: Vec<Value> = lines.iter().take(question.limit).map(|line| line.json(engine)).collect();
    json!({"object": "list", "data": data, "has_more": has_more})
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixNanos = UnixNanos(1_795_316_720_000_000_000);

    fn read(query: &str) -> Result<RequestQuery, WrongParameter> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        RequestQuery::read(pairs.map(|(name, value)| (name.into(), value.into())), NOW)
    }

    #[test]
    fn a_question_is_read_or_its_parameter_named() {
        let found = read("state=running,waiting&min_ttft=2s&min_gap=50&since=1m&order=gap&limit=7");
        let wanted = RequestQuery {
            states: vec!["running", "waiting"],
            min_ttft: Nanos(2_000_000_000),
            min_gap: Nanos(50_000_000),
            since: UnixNanos(NOW.0 - 60_000_000_000),
            order: Order::Gap,
            limit: 7,
        };
        assert_eq!(found.expect("it is right"), wanted);
        for (query, param) in [
            ("state=slow", "state"),
            ("state=", "state"),
            ("min_ttft=-1", "min_ttft"),
            ("min_gap=1e3", "min_gap"),
            ("min_gap=100000s", "min_gap"),
            ("since=soon", "since"),
            ("order=slow", "order"),
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("page=2", "page"),
        ] {
            let (WrongParameter::Unknown(named) | WrongParameter::Not(named, _)) = read(query).expect_err(query);
            assert_eq!(named, param, "{query}");
        }
    }

    #[test]
    fn several_prompts_are_in_one_state() {
        use RequestState::{Ended, Running, Waiting};
        let (finished, cancelled, failed) = (Ended(Ending::Finished), Ended(Ending::Cancelled), Ended(Ending::Failed));
        for (prompts, wanted) in [
            (vec![Waiting, Waiting], "waiting"),
            (vec![Waiting, finished], "running"),
            (vec![Running, finished], "running"),
            (vec![finished, cancelled], "cancelled"),
            (vec![failed, cancelled], "failed"),
            (vec![finished], "finished"),
        ] {
            assert_eq!(state(prompts.into_iter()), wanted);
        }
    }
}
