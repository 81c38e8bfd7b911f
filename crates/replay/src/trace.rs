//! Steps and requests as a trace that `ui.perfetto.dev` and `chrome://tracing` open.
//!
//! ```text
//! engine    steps      [ prefill 512 ][ decode 8 ][ 8 + 120 ][ decode 9 ]        counters: waiting, KV blocks
//! requests  cmpl-1     [ queue ][ prefill        ][ decode                  ]
//!                               [ 512 ][ 88      ][ . ][ . ][ late .      ]
//!                        [ read by HOST:PORT ]      where another worker has read the prompt, with its steps
//!           cmpl-2     [ queue         ][ prefill     ]      ^
//!                                       [ 120 ]--------------+  delayed: from a chunk to the token that it made late
//! ```
//!
//! The format is the JSON of the Trace Event Format
//! (<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>), as Perfetto reads it
//! (<https://perfetto.dev/docs/getting-started/other-formats>): complete events (`X`), counters (`C`), flows
//! (`s`, `f`) and names (`M`). Times are microseconds of the engine's clock; `otherData.began_at_unix_ns` says what a
//! clock on the wall showed at 0. Readers sort events by time and keep the order of the file where times are equal, so
//! what contains another comes before it.
//!
//! Events are written as they become known, and a request when it has ended: memory is that of what is open.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Write};

use engine::{HandoffOutcome, RemotePrefillTrace};
use ledger::{Account, Gap, Owner, Shares};
use protocol::{Nanos, RequestId};
use scheduler::{RecordRow, StepRecord};
use serde_json::{Map, Value, json};

use crate::read::{Recording, RecordingError};
use crate::replay::{ReplayEvent, Replayed, replay};

/// The process of steps and counters, and that of requests.
const ENGINE: u64 = 1;
const REQUESTS: u64 = 2;
/// Chunks of prompts that are remembered for the requests they delayed.
const MOST_CHUNKS: usize = 1 << 16;
/// Steps of a request that its account keeps, for the median of its gaps.
const KEPT_VISITS: usize = 1024;

/// What a request's rows in a step were for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Prompt,
    Recompute,
    Decode,
}

/// All rows of one request in one step.
#[derive(Clone, Copy, Debug)]
struct Slice {
    step: u64,
    from: Nanos,
    to: Nanos,
    work: For,
    rows: usize,
    start: usize,
    cached: usize,
    tokens: usize,
}

/// A request that is open.
#[derive(Debug, Default)]
struct Lane {
    slices: Vec<Slice>,
    has_token: bool,
}

/// A prompt's rows in a step: what may delay others.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    request: RequestId,
    from: Nanos,
    to: Nanos,
}

/// What is written of a request, beside its rows.
#[derive(Clone, Copy)]
pub struct Traced<'a> {
    /// Which.
    pub request: RequestId,
    /// The name of its lane.
    pub name: &'a str,
    /// Its account, where the reader may see it: phases, owners, who delayed it.
    pub account: Option<&'a Account>,
    /// When it ended, if that is known.
    pub until: Option<Nanos>,
    /// The part of its prompt's time that it was with another worker.
    pub away: Option<&'a RemotePrefillTrace>,
    /// The names of others.
    pub other: &'a dyn Fn(RequestId) -> String,
}

/// What comes before the first member of a file.
const BEGIN: &str = "{\"displayTimeUnit\":\"ms\",\"otherData\":";

/// Whether a file that begins so is one that a [`TraceWriter`] wrote.
pub fn is_trace(head: &[u8]) -> bool {
    let other = head.strip_prefix(BEGIN.as_bytes());
    other.is_some_and(|other| other.starts_with(b"{\"program\":\"twostroke "))
}

/// Writes a trace. See the module's picture.
pub struct TraceWriter<W> {
    out: W,
    /// Events so far.
    events: u64,
    flows: u64,
    lanes: BTreeMap<RequestId, Lane>,
    /// In the order of their ends.
    chunks: VecDeque<Chunk>,
    /// Requests that were written: a lane has one name.
    named: BTreeSet<RequestId>,
    counters: Option<[usize; 3]>,
}

impl<W: Write> TraceWriter<W> {
    /// Begins. `began_unix_ns`: nanoseconds since 1970 UTC at moment 0, if that is known.
    pub fn new(mut out: W, began_unix_ns: Option<u64>) -> io::Result<TraceWriter<W>> {
        // First in the file: see [`is_trace`].
        let other = json!({
            "program": concat!("twostroke ", env!("CARGO_PKG_VERSION")),
            "began_at_unix_ns": began_unix_ns.map(|nanos| nanos.to_string()),
        });
        write!(out, "{BEGIN}{other},\"traceEvents\":[")?;
        let (lanes, chunks, named) = (BTreeMap::new(), VecDeque::new(), BTreeSet::new());
        let mut writer = TraceWriter { out, events: 0, flows: 0, lanes, chunks, named, counters: None };
        for (pid, name) in [(ENGINE, "engine"), (REQUESTS, "requests")] {
            writer.name("process_name", pid, 0, name)?;
            let order = json!({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}});
            writer.put(&order)?;
        }
        writer.name("thread_name", ENGINE, 1, "steps")?;
        Ok(writer)
    }

    /// A step, in its order; `number` counts them since the start.
    pub fn step(&mut self, number: u64, record: &StepRecord) -> io::Result<()> {
        let (from, to) = (record.began_at, record.completed_at);
        let rows: usize = record.prefill.iter().map(|row| row.len).sum();
        let name = match (record.decode.len(), rows) {
            (decode, 0) => format!("decode {decode}"),
            (0, prefill) => format!("prefill {prefill}"),
            (decode, prefill) => format!("decode {decode} + prefill {prefill}"),
        };
        let requests: BTreeSet<RequestId> =
            record.decode.iter().chain(&record.prefill).map(|row| row.request).collect();
        let args = json!({
            "step": number,
            "decode_rows": record.decode.len(),
            "prefill_rows": rows,
            "requests": requests.len(),
            "predicted_ms": ms(record.predicted),
            "waiting": record.waiting_requests,
            "preempted": record.preempted.len(),
            "used_blocks": record.used_blocks,
            "recomputed_rows": record.recomputed_rows,
        });
        self.slice(ENGINE, 1, &name, (from, to), args)?;
        let counters = [record.waiting_requests, record.decode.len() + record.prefill.len(), record.used_blocks];
        if self.counters.replace(counters) != Some(counters) {
            for (name, unit, value) in [
                ("waiting", "requests", counters[0]),
                ("in the step", "sequences", counters[1]),
                ("KV", "blocks", counters[2]),
            ] {
                let at = micros(from);
                self.put(&json!({"ph": "C", "pid": ENGINE, "tid": 1, "name": name, "ts": at, "args": {unit: value}}))?;
            }
        }
        for (list, of_prompt) in [(&record.decode, false), (&record.prefill, true)] {
            for row in list {
                self.row(number, (from, to), row, of_prompt);
            }
        }
        Ok(())
    }

    fn row(&mut self, step: u64, (from, to): (Nanos, Nanos), row: &RecordRow, of_prompt: bool) {
        let Lane { slices, has_token } = self.lanes.entry(row.request).or_default();
        // Rows of several answers are one slice.
        if let Some(last) = slices.last_mut().filter(|last| last.step == step) {
            last.rows += row.len;
            last.tokens += row.samples;
        } else {
            let work = match (of_prompt, *has_token) {
                (false, _) => For::Decode,
                (true, false) => For::Prompt,
                (true, true) => For::Recompute,
            };
            let (rows, start, cached, tokens) = (row.len, row.start, row.cached_tokens, row.samples);
            slices.push(Slice { step, from, to, work, rows, start, cached, tokens });
        }
        *has_token |= row.samples > 0 || !of_prompt;
        if of_prompt {
            if self.chunks.len() == MOST_CHUNKS {
                self.chunks.pop_front();
            }
            self.chunks.push_back(Chunk { request: row.request, from, to });
        }
    }

    /// Requests that had rows and were not written yet.
    pub fn open(&self) -> Vec<RequestId> {
        self.lanes.keys().copied().collect()
    }

    /// Writes a request: it has ended, or the trace has.
    pub fn request(&mut self, traced: &Traced<'_>) -> io::Result<()> {
        let Lane { slices, .. } = self.lanes.remove(&traced.request).unwrap_or_default();
        let Some(phases) = Phases::of(traced, &slices) else { return Ok(()) };
        let tid = traced.request.0;
        if self.named.insert(traced.request) {
            self.name("thread_name", REQUESTS, tid, traced.name)?;
            let index = json!({"ph": "M", "pid": REQUESTS, "tid": tid, "name": "thread_sort_index",
                "args": {"sort_index": self.named.len()}});
            self.put(&index)?;
        }
        let account = traced.account;
        let tokens: usize = slices.iter().map(|slice| slice.tokens).sum();
        let mut args = Map::from_iter([("tokens_in_this_trace".to_owned(), json!(tokens))]);
        if let Some(account) = account {
            args.insert("prompt_tokens".into(), account.prompt_tokens.into());
            args.insert("cached_tokens".into(), account.cached_tokens.into());
            args.insert("tokens".into(), account.num_tokens().into());
            args.insert("preemptions".into(), account.preemptions.into());
            args.insert("cost_to_others_ms".into(), ms(account.bill.cost.total()).into());
        }
        self.slice(REQUESTS, tid, traced.name, phases.whole, Value::Object(args))?;
        let ttft = account.map_or(Value::Null, |account| owners(&account.bill.ttft));
        let gaps = account.map_or(Value::Null, |account| owners(&account.bill.gaps));
        let late: Vec<Gap> = account.map_or_else(Vec::new, told_gaps);
        let mut phases = phases.parts.into_iter().peekable();
        for slice in &slices {
            while let Some((name, span)) = phases.next_if(|(_, (from, _))| *from <= slice.from) {
                self.phase(tid, name, span, (&ttft, &gaps))?;
            }
            self.visit(tid, slice, late.iter().find(|gap| gap.at == slice.to))?;
        }
        for (name, span) in phases {
            self.phase(tid, name, span, (&ttft, &gaps))?;
        }
        if let Some((away, to)) = traced.away.and_then(|away| Some((away, away.to?))) {
            self.away(tid, away, to)?;
        }
        match account {
            Some(account) => self.arrows(account, &slices, &late, traced),
            None => Ok(()),
        }
    }

    fn phase(&mut self, tid: u64, name: &str, span: (Nanos, Nanos), (ttft, gaps): (&Value, &Value)) -> io::Result<()> {
        let args = if name == "decode" { json!({"gaps": gaps}) } else { json!({"ttft": ttft}) };
        self.slice(REQUESTS, tid, name, span, args)
    }

    /// Within the queue: that another worker read the prompt, and its steps. Blocks that came are an argument.
    fn away(&mut self, tid: u64, away: &RemotePrefillTrace, to: Nanos) -> io::Result<()> {
        let worker = away.worker.as_deref().unwrap_or("no worker");
        let blocks = away.received.last().map_or(0, |&(_, count)| count);
        let args = json!({"way": away.outcome.map(HandoffOutcome::name), "blocks": blocks});
        self.slice(REQUESTS, tid, &format!("read by {worker}"), (away.from, to), args)?;
        for step in &away.steps {
            let name = format!("{} of the prompt, there", step.rows);
            self.slice(REQUESTS, tid, &name, (step.from, step.to), json!({"rows": step.rows}))?;
        }
        Ok(())
    }

    fn visit(&mut self, tid: u64, slice: &Slice, late: Option<&Gap>) -> io::Result<()> {
        let Slice { step, from, to, work, rows, start, cached, tokens } = *slice;
        let name = match work {
            For::Prompt => format!("{rows} of the prompt"),
            For::Recompute => format!("{rows} again"),
            For::Decode if late.is_some() => "late token".to_owned(),
            For::Decode if tokens > 1 => format!("{tokens} tokens"),
            For::Decode => "token".to_owned(),
        };
        let mut args = json!({"step": step, "rows": rows, "position": start, "tokens": tokens});
        if cached > 0 {
            args["cached"] = cached.into();
        }
        if let Some(gap) = late {
            args["gap_ms"] = ms(gap.shares.total()).into();
            args["owners"] = owners(&gap.shares);
        }
        self.slice(REQUESTS, tid, &name, (from, to), args)
    }

    /// From the chunks of others to the first token and to the late ones that they delayed.
    fn arrows(&mut self, account: &Account, slices: &[Slice], late: &[Gap], traced: &Traced<'_>) -> io::Result<()> {
        let first = account.first_token.map(|at| (at, account.arrived, account.bill.ttft_others));
        let gaps = late.iter().map(|gap| (gap.at, gap.at.since(gap.shares.total()), gap.others));
        for (at, since, others) in first.into_iter().chain(gaps) {
            let Some(token) = slices.iter().find(|slice| slice.to == at) else { continue };
            for (culprit, nanos) in others.entries() {
                let Some(chunk) = self.chunk(culprit, since, at) else { continue };
                self.flows += 1;
                let (id, delay) = (self.flows, json!({"ms": ms(nanos), "by": (traced.other)(culprit)}));
                let end = |ph: &str, tid: RequestId, at: Nanos, args: &Value| {
                    json!({"ph": ph, "pid": REQUESTS, "tid": tid.0, "ts": micros(at), "id": id, "cat": "delay",
                        "name": "delayed", "args": args})
                };
                // Each is within its slice; where both are of one step, the cause comes first.
                let cause = Nanos(chunk.from.0 + chunk.to.since(chunk.from).0 / 2);
                let effect = Nanos(token.from.0 + token.to.since(token.from).0 * 3 / 4);
                self.put(&end("s", culprit, cause, &delay))?;
                let mut finish = end("f", traced.request, effect.max(cause), &delay);
                finish["bp"] = "e".into();
                self.put(&finish)?;
            }
        }
        Ok(())
    }

    /// The last chunk of a request's prompt that ended after `since` and not after `at`.
    fn chunk(&self, request: RequestId, since: Nanos, at: Nanos) -> Option<Chunk> {
        let end = self.chunks.partition_point(|chunk| chunk.to <= at);
        let within = self.chunks.range(..end).rev().take_while(|chunk| chunk.to > since);
        within.copied().find(|chunk| chunk.request == request)
    }

    /// The end. Gives back what was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b"\n]}\n")?;
        Ok(self.out)
    }

    fn slice(&mut self, pid: u64, tid: u64, name: &str, (from, to): (Nanos, Nanos), args: Value) -> io::Result<()> {
        let (ts, dur) = (micros(from), micros(to.since(from)));
        self.put(&json!({"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}))
    }

    fn name(&mut self, what: &str, pid: u64, tid: u64, name: &str) -> io::Result<()> {
        self.put(&json!({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}))
    }

    fn put(&mut self, event: &Value) -> io::Result<()> {
        let comma = if self.events > 0 { "," } else { "" };
        self.events += 1;
        write!(self.out, "{comma}\n{event}")
    }
}

/// A request's time and the phases in it, each with its beginning and end.
struct Phases {
    whole: (Nanos, Nanos),
    parts: Vec<(&'static str, (Nanos, Nanos))>,
}

impl Phases {
    /// By the account, or else by the rows alone; `None` where there is neither.
    fn of(traced: &Traced<'_>, slices: &[Slice]) -> Option<Phases> {
        let (first_row, last_row) = (slices.first(), slices.last());
        let arrived = traced.account.map(|account| account.arrived).or(first_row.map(|slice| slice.from))?;
        let begin = first_row.map_or(arrived, |slice| slice.from.min(arrived));
        let seen = last_row.map_or(begin, |slice| slice.to);
        let end = traced.until.unwrap_or(seen).max(seen);
        let scheduled = match traced.account {
            Some(account) => account.first_scheduled,
            None => first_row.map(|slice| slice.from),
        };
        let first_token = match traced.account {
            Some(account) => account.first_token,
            // Rows of an answer after rows of a prompt, as far as there are both.
            None => slices
                .iter()
                .find(|slice| slice.tokens > 0 || slice.work == For::Decode)
                .map(|slice| if slice.work == For::Decode { slice.from } else { slice.to }),
        };
        let bounds = [begin, scheduled.unwrap_or(end), first_token.unwrap_or(end), end];
        let names = ["queue", "prefill", "decode"];
        let parts = names.into_iter().zip(bounds.windows(2).map(|pair| (pair[0], pair[1].max(pair[0]))));
        Some(Phases { whole: (begin, end), parts: parts.filter(|(_, (from, to))| to > from).collect() })
    }
}

/// Gaps worth an arrow: late ones, and those that others' prompts took half of, but for what the machine took.
fn told_gaps(account: &Account) -> Vec<Gap> {
    let late = account.late_gaps();
    let half = |gap: &&Gap| {
        let ours = gap.shares.total().since(gap.shares.of(Owner::Machine));
        gap.shares.of(Owner::OtherPrefill).0 * 2 >= ours.0.max(1)
    };
    let more: Vec<Gap> = account.longest_gaps.iter().filter(half).filter(|gap| !late.contains(gap)).copied().collect();
    late.into_iter().chain(more).collect()
}

fn owners(shares: &Shares) -> Value {
    let parts = Owner::ALL.into_iter().filter(|&owner| shares.of(owner) > Nanos(0));
    parts.map(|owner| (format!("{}_ms", owner.name()), ms(shares.of(owner)).into())).collect::<Map<_, _>>().into()
}

fn ms(nanos: Nanos) -> f64 {
    nanos.0 as f64 / 1e6
}

/// The unit of the format, to the nanosecond.
fn micros(nanos: Nanos) -> f64 {
    nanos.0 as f64 / 1e3
}

/// Why a trace was not made.
#[derive(Debug, thiserror::Error)]
pub enum TracingError {
    /// Of the recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Replays a recording and writes it as a trace; requests have their numbers for names.
pub fn trace(recording: Recording, out: impl Write) -> Result<Replayed, TracingError> {
    let mut writer = TraceWriter::new(out, recording.header.began_unix_ns)?;
    let mut ledger = ledger::Ledger::new(KEPT_VISITS);
    let name = |id: RequestId| format!("request {}", id.0);
    let (mut steps, mut now, mut problem) = (0, Nanos(0), None);
    let write = |writer: &mut TraceWriter<_>, request: RequestId, account: Option<&Account>, until: Nanos| {
        writer.request(&Traced { request, name: &name(request), account, until: Some(until), away: None, other: &name })
    };
    let replayed = replay(recording, &mut |told| {
        let done = match told {
            ReplayEvent::Admitted(request) => {
                ledger.admit(request);
                Ok(())
            }
            ReplayEvent::Offered(_) => Ok(()),
            ReplayEvent::Step(record, cost) => {
                ledger.step(record, cost, &mut |_| {});
                (steps, now) = (steps + 1, record.completed_at);
                writer.step(steps - 1, record)
            }
            ReplayEvent::AnswerEnded(request, answer, reason) => {
                ledger.end_answer(request, answer, reason);
                Ok(())
            }
            ReplayEvent::Ended(request) => write(&mut writer, request, ledger.end(request).as_ref(), now),
        };
        problem = problem.take().or(done.err());
    })?;
    if let Some(problem) = problem {
        return Err(problem.into());
    }
    for request in writer.open() {
        write(&mut writer, request, ledger.end(request).as_ref(), now)?;
    }
    writer.finish()?.flush()?;
    Ok(replayed)
}
