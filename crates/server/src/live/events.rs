//! The events of a feed as text. A step is written by hand and not through a tree of values: there are hundreds a
//! second with dozens of rows each, and the core that writes them is one that computes.

use std::collections::BTreeMap;
use std::fmt::Write;

use engine::ledger::{RowShares, row_shares};
use engine::{
    Away, DeviceLimits, End, Ended, FinishReason, InScene, KvMap, LoggedStep, ModelInfo, Observe, Percentiles,
    RemoteStep, RequestId, Scene, Second, Way,
};
use roofline::{Demands, peak};
use scheduler::{BlockUse, Blocked, CostModel, Nanos, PreemptionMode, RecordRow, StepRecord};
use serde_json::{Value, json};

use crate::auth::Tenant;
use crate::json::nullable;
use crate::moment::ms;
use crate::timeline::Registry;

/// Names that a reader remembers at most.
const MOST_NAMES: usize = 4096;

/// Requests as one tenant may see them, in JSON.
pub(crate) struct Names {
    tenant: Option<Tenant>,
    known: BTreeMap<RequestId, Box<str>>,
}

impl Names {
    pub(crate) fn of(tenant: Option<Tenant>) -> Names {
        Names { tenant, known: BTreeMap::new() }
    }

    /// Requests `0..count` under their numbers.
    pub(crate) fn numbered(count: u64) -> Names {
        let known = (0..count).map(|number| (RequestId(number), number.to_string().into())).collect();
        Names { tenant: None, known }
    }

    /// Learns the names of all that appear in a step. False if one has none yet, and the step is fresh: then it may get
    /// one.
    pub(crate) fn learn(&mut self, registry: &Registry, record: &StepRecord, is_fresh: bool) -> bool {
        let rows = record.decode.iter().chain(&record.prefill).map(|row| row.request);
        for id in rows.chain(record.preempted.iter().map(|preempted| preempted.request)) {
            if self.known.contains_key(&id) {
                continue;
            }
            if is_fresh && !registry.knows(id) {
                return false;
            }
            self.look_up(registry, id);
        }
        true
    }

    fn look_up(&mut self, registry: &Registry, id: RequestId) -> &str {
        if self.known.len() >= MOST_NAMES && !self.known.contains_key(&id) {
            // The oldest are the least likely to come again.
            self.known.pop_first();
        }
        self.known.entry(id).or_insert_with(|| registry.name(self.tenant, id).to_string().into())
    }

    /// In JSON.
    pub(crate) fn get(&self, id: RequestId) -> &str {
        self.known.get(&id).map_or("null", |name| name)
    }
}

/// `event: step`.
pub(crate) fn step(text: &mut String, step: &LoggedStep, names: &Names, prices: &Prices) {
    text.push_str("event: step\ndata: ");
    step_object(text, step.number, &step.record, names, prices);
    text.push_str("\n\n");
}

/// `event: thought`: the rows of an answer from this one on are thought, up to another if that is known.
pub(crate) fn thought(text: &mut String, name: &str, answer: usize, from: usize, to: Option<usize>) {
    let to = nullable(to);
    let _ = write!(text, "event: thought\ndata: {{\"r\":{name},\"a\":{answer},\"from\":{from},\"to\":{to}}}\n\n");
}

/// What a model asks of a machine, and what that costs on this one: what a step's figures are worked out from.
pub(crate) struct Prices {
    demands: Demands,
    cost: Option<CostModel>,
}

impl Prices {
    pub(crate) fn of(engine: &dyn Observe) -> Prices {
        Prices { demands: engine.model().demands(), cost: engine.cost() }
    }

    /// Costs change while the engine runs.
    pub(crate) fn refresh(&mut self, engine: &dyn Observe) {
        self.cost = engine.cost();
    }
}

/// A step as one object.
pub(crate) fn step_object(text: &mut String, number: u64, record: &StepRecord, names: &Names, prices: &Prices) {
    let parts = row_shares(record, prices.cost.as_ref());
    let (of_decode, of_prefill) = parts.split_at(record.decode.len().min(parts.len()));
    text.push_str("{\"id\":");
    integer(text, number);
    text.push_str(",\"at\":");
    milliseconds(text, record.began_at);
    text.push_str(",\"took\":");
    milliseconds(text, record.took());
    text.push_str(",\"predicted\":");
    milliseconds(text, record.predicted);
    for (name, stolen) in [(",\"stolen\":", record.stolen.during), (",\"stolen_before\":", record.stolen.before)] {
        if stolen > Nanos(0) {
            text.push_str(name);
            milliseconds(text, stolen);
        }
    }
    text.push_str(",\"decode\":[");
    for (index, row) in record.decode.iter().enumerate() {
        begin_row(text, index, row, names);
        if row.drafts > 0 {
            let _ = write!(text, ",\"drafts\":{},\"tokens\":{}", row.drafts, row.samples);
        }
        shares(text, of_decode.get(index));
        text.push('}');
    }
    text.push_str("],\"prefill\":[");
    for (index, row) in record.prefill.iter().enumerate() {
        begin_row(text, index, row, names);
        for (name, value) in
            [(",\"len\":", row.len), (",\"samples\":", row.samples), (",\"cached\":", row.cached_tokens)]
        {
            text.push_str(name);
            integer(text, value as u64);
        }
        shares(text, of_prefill.get(index));
        text.push('}');
    }
    text.push_str("],\"preempted\":[");
    for (index, preempted) in record.preempted.iter().enumerate() {
        let verdict = match preempted.decision.mode {
            PreemptionMode::Recompute => "recompute",
            PreemptionMode::Swap => "swap",
        };
        let (comma, name) = (if index > 0 { "," } else { "" }, names.get(preempted.request));
        let _ = write!(text, "{comma}{{\"r\":{name},\"tokens\":{},\"verdict\":\"{verdict}\"}}", preempted.tokens);
    }
    let blocked = match record.blocked {
        None => "null",
        Some(Blocked::Kv) => "\"kv\"",
        Some(Blocked::Seats) => "\"seats\"",
        Some(Blocked::Budget) => "\"budget\"",
    };
    let work = prices.demands.step(
        record.decode.iter().map(|row| (row.start, row.len)),
        record.prefill.iter().map(|row| (row.start, row.len)),
        record.logit_rows().iter().sum(),
    );
    let _ = write!(
        text,
        "],\"waiting\":{},\"waiting_tokens\":{},\"blocked\":{blocked},\"blocks\":{{\"used\":{},\"taken\":{},\
         \"evicted\":{},\"copied\":{}}},\"recomputed\":{},\"flops\":{},\"bytes\":{}}}",
        record.waiting_requests,
        record.waiting_tokens,
        record.used_blocks,
        record.taken_blocks,
        record.evicted_blocks,
        record.copied_blocks,
        record.recomputed_rows,
        work.flops() as u64,
        work.bytes as u64,
    );
}

/// `{"r":"…","a":0,"start":88`.
fn begin_row(text: &mut String, index: usize, row: &RecordRow, names: &Names) {
    text.push_str(if index > 0 { ",{\"r\":" } else { "{\"r\":" });
    text.push_str(names.get(row.request));
    text.push_str(",\"a\":");
    integer(text, row.answer as u64);
    text.push_str(",\"start\":");
    integer(text, row.start as u64);
}

/// Whose the step's time was, seen from a row: `,"own":0.213,"other_prefill":0.702`.
fn shares(text: &mut String, parts: Option<&RowShares>) {
    let Some(parts) = parts else { return };
    for (name, share) in [(",\"own\":", parts.own), (",\"other_prefill\":", parts.other_prefill)] {
        text.push_str(name);
        thousandths(text, (share * 1000.0).round() as u64);
    }
}

/// Digits, without the machinery of `write!`.
fn integer(text: &mut String, mut value: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(&digits[first..]).expect("digits are ASCII"));
}

/// To the microsecond: `1234.567`.
fn milliseconds(text: &mut String, time: Nanos) {
    thousandths(text, time.0 / 1000);
}

/// `1234567` as `1234.567`.
fn thousandths(text: &mut String, value: u64) {
    integer(text, value / 1000);
    text.push('.');
    // A one before the three digits keeps their zeros.
    let start = text.len();
    integer(text, 1000 + value % 1000);
    text.remove(start);
}

/// `event: away`: another worker reads a prompt, or has read it.
pub(crate) fn away(text: &mut String, id: RequestId, away: &Away, names: &mut Names, registry: &Registry) {
    named_event(text, "away", names.look_up(registry, id), &away_object(away, Nanos(0)));
}

/// The same as an object, its moments as milliseconds since `origin`.
pub(crate) fn away_object(away: &Away, origin: Nanos) -> Value {
    let since = |moment: Nanos| ms(moment.since(origin));
    let step = |step: &RemoteStep| json!({"from_ms": since(step.from), "to_ms": since(step.to), "rows": step.rows});
    let landed = |&(at, blocks): &(Nanos, usize)| json!({"at_ms": since(at), "blocks": blocks});
    json!({
        "worker": away.worker,
        "from_ms": since(away.from),
        "to_ms": away.to.map(since),
        "result": away.way.map(Way::name),
        "steps": away.steps.iter().map(step).collect::<Vec<_>>(),
        "landed": away.landed.iter().map(landed).collect::<Vec<_>>(),
    })
}

/// `event: history`: what came before the first step of the feed, a row for each second in which there was one.
pub(crate) fn history(text: &mut String, seconds: &[Second], engine: &dyn Observe) {
    let rows: Vec<Value> = seconds
        .iter()
        .map(|second| {
            let queries = second.queried_tokens;
            let hits = (queries > 0).then(|| second.hit_tokens as f64 / queries as f64);
            let [ttft50, ttft99] = pair(second.ttft_ms);
            let [gap50, gap99] = pair(second.gap_ms);
            json!([
                ms(second.began),
                second.prefill_tokens,
                second.decode_tokens,
                second.running,
                second.waiting,
                second.used_blocks,
                second.cached_blocks,
                hits,
                ttft50,
                ttft99,
                gap50,
                gap99,
            ])
        })
        .collect();
    let columns = [
        "at",
        "prefill_tokens",
        "decode_tokens",
        "running",
        "waiting",
        "used_blocks",
        "cached_blocks",
        "hits",
        "ttft_p50_ms",
        "ttft_p99_ms",
        "itl_p50_ms",
        "itl_p99_ms",
    ];
    let data = json!({"total_blocks": engine.model().num_blocks, "columns": columns, "seconds": rows});
    let _ = write!(text, "event: history\ndata: {data}\n\n");
}

fn pair(of: Option<[f64; 2]>) -> [Option<f64>; 2] {
    of.map_or([None; 2], |pair| pair.map(|ms| Some((ms * 1e3).round() / 1e3)))
}

/// `event: ended`.
pub(crate) fn ended(text: &mut String, ended: &Ended, names: &mut Names, registry: &Registry) {
    let ending = match ended.end {
        End::Finished(FinishReason::Stop(_)) => "stop",
        End::Finished(FinishReason::Length) => "length",
        End::Cancelled => "cancelled",
        End::Failed => "error",
    };
    let data = json!({
        "at": ms(ended.at),
        "ending": ending,
        "arrived": ms(ended.arrived),
        "queue_ms": nullable(ended.first_scheduled.map(|first| ms(first.since(ended.arrived)))),
        "longest_gap_ms": ms(ended.longest_gap),
        "ttft_ms": nullable(ended.ttft_ms),
        "tpot_ms": nullable(ended.tpot_ms),
        "prompt_tokens": ended.prompt_tokens,
        "generated": ended.generated,
        "cached": ended.cached,
    });
    named_event(text, "ended", names.look_up(registry, ended.request), &data);
}

/// An event whose object begins with a name that is JSON already.
fn named_event(text: &mut String, event: &str, name: &str, rest: &Value) {
    let rest = rest.to_string();
    let _ = write!(text, "event: {event}\ndata: {{\"r\":{name},{}\n\n", &rest[1..]);
}

/// `event: kv`: the whole map if `before` is another cache's or none, else what changed. Nothing if that is nothing and
/// no step was made since.
pub(crate) fn map(text: &mut String, map: &KvMap, before: &KvMap, names: &mut Names, registry: &Registry) {
    let is_full = before.uses.len() != map.uses.len();
    if !is_full && before.step == map.step && before.uses == map.uses {
        return;
    }
    let list = if is_full { "blocks" } else { "changed" };
    let _ = write!(text, "event: kv\ndata: {{\"step\":{},\"full\":{is_full},\"{list}\":[", map.step);
    let mut comma = "";
    for (block, &state) in map.uses.iter().enumerate() {
        if !is_full && before.uses[block] == state {
            continue;
        }
        text.push_str(comma);
        comma = ",";
        if !is_full {
            text.push('[');
            integer(text, block as u64);
            text.push(',');
        }
        match state {
            BlockUse::Free => text.push('0'),
            BlockUse::Cached => text.push('1'),
            BlockUse::Held { by, holders } => {
                text.push('[');
                text.push_str(names.look_up(registry, by));
                text.push(',');
                integer(text, u64::from(holders));
                text.push(']');
            }
        }
        if !is_full {
            text.push(']');
        }
    }
    text.push_str("]}\n\n");
}

/// `event: requests`.
pub(crate) fn requests(text: &mut String, scene: &Scene, names: &mut Names, registry: &Registry) {
    let _ = write!(text, "event: requests\ndata: {{\"at\":{}", ms(scene.at));
    for (list, waits) in [("waiting", true), ("running", false)] {
        let _ = write!(text, ",\"{list}\":[");
        for (index, one) in scene.sequences.iter().filter(|one| one.waits == waits).enumerate() {
            let &InScene { request, answer, since, prompt_tokens, computed, generated, .. } = one;
            let (comma, name) = (if index > 0 { "," } else { "" }, names.look_up(registry, request));
            let since = ms(since);
            let _ = write!(
                text,
                "{comma}{{\"r\":{name},\"a\":{answer},\"since\":{since},\"prompt_tokens\":{prompt_tokens},\
                 \"computed\":{computed},\"generated\":{generated}}}"
            );
        }
        text.push(']');
    }
    text.push_str("}\n\n");
}

/// What the machine can do at most with this model: reading from where its weights are.
pub(crate) fn limits(limits: &DeviceLimits, model: &ModelInfo) -> Value {
    json!({
        "read_bandwidth": limits.bandwidth_for(model.weight_bytes),
        "matrix_flops": peak(limits, model.weights),
    })
}

/// `event: stats`: gauges and counters of `/metrics`, and the percentiles of the last 256 times to first token (who still
/// waits counts with his age) and of the last 2,048 times from token to token.
pub(crate) fn stats(text: &mut String, now: Nanos, engine: &dyn Observe, percentiles: [Option<Percentiles>; 2]) {
    let ([ttft, itl], stats) = (percentiles, engine.stats());
    let data = json!({
        "at": ms(now),
        "unix_ms": engine.unix(now).as_millis_f64(),
        "running": stats.running_requests,
        "waiting": stats.waiting_requests,
        "used_blocks": stats.used_blocks,
        "cached_blocks": stats.cached_blocks,
        "total_blocks": stats.total_blocks,
        // JSON has no infinity: null is "not as it goes now".
        "kv_seconds_to_full": nullable(Some(stats.kv_seconds_to_full).filter(|seconds| seconds.is_finite())),
        "prefill_backlog_ms": stats.prefill_backlog_seconds * 1e3,
        "late": stats.late_prompts,
        "oldest_late_ms": stats.oldest_late_seconds * 1e3,
        "promises_kept": nullable(stats.promises[0].rolling),
        "oldest_waiting_ms": stats.oldest_waiting_seconds * 1e3,
        "steps": stats.steps,
        "prefill_tokens": stats.prefill_tokens,
        "decode_tokens": stats.decode_tokens,
        "prefix_queries": stats.prefix_queries,
        "prefix_hits": stats.prefix_hits,
        "preemptions": stats.preemptions,
        "paused": engine.is_paused(),
        "ttft_p50_ms": nullable(ttft.map(|ttft| ttft.p50)),
        "ttft_p99_ms": nullable(ttft.map(|ttft| ttft.p99)),
        "itl_p50_ms": nullable(itl.map(|itl| itl.p50)),
        "itl_p99_ms": nullable(itl.map(|itl| itl.p99)),
        // They rise with what steps reach.
        "limits": nullable(engine.device_limits().map(|found| limits(&found, engine.model()))),
    });
    let _ = write!(text, "event: stats\ndata: {data}\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for value in [0, 7, 10, 1_234_567, u64::MAX] {
            let mut text = String::new();
            integer(&mut text, value);
            assert_eq!(text, value.to_string());
        }
        for (nanos, written) in [(0, "0.000"), (1_999, "0.001"), (1_050_000, "1.050"), (12_345_678_900, "12345.678")] {
            let mut text = String::new();
            milliseconds(&mut text, Nanos(nanos));
            assert_eq!(text, written);
        }
    }
}
