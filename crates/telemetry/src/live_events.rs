//! The events of a feed: what the engine's log says, as the types of [`wire`](crate::live_wire) and as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use engine::ledger::{LATE_FLOOR, LATE_MEDIANS, RowShares, row_shares};
use engine::{
    DeviceLimits, End, Ended, FinishReason, HandoffOutcome, KvMap, ModelInfo, Observe, Percentiles, RemotePrefillTrace,
    RequestId, RequestSnapshot, SecondStats, Stats,
};
use protocol::Nanos;
use roofline::{Demands, peak};
use scheduler::latency_bound::COVERAGE;
use scheduler::{BlockUse, Blocked, BoundKind, CostModel, Preempted, PreemptionMode, RecordRow, StepRecord};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::live_wire::{
    AwayEvent, AwayStep, AwayTimes, BlockState, DecodeRow, EndedEvent, HistoryEvent, Info, KvEvent, LandedBlocks,
    LateRule, Limits, Name, OpenAnswer, PeakRates, PreemptedRow, PrefillRow, RequestsEvent, StatsEvent, StepBlocks,
    StepEvent, TargetTimes,
};
use crate::time_format::ms;
use crate::timeline::Registry;
use crate::timeline::Tenant;

/// Names that a reader remembers between two looks at the log.
const MOST_NAMES: usize = 4096;
/// Stands where a request was never looked up, which no event does.
static UNKNOWN: Name = Name::Other(0);

/// Requests as one tenant may see them.
pub struct Names {
    tenant: Option<Tenant>,
    known: BTreeMap<RequestId, Name>,
}

impl Names {
    pub fn of(tenant: Option<Tenant>) -> Names {
        Names { tenant, known: BTreeMap::new() }
    }

    /// Requests `0..count` under their numbers.
    pub fn numbered(count: u64) -> Names {
        Names { tenant: None, known: (0..count).map(|number| (RequestId(number), Name::Other(number))).collect() }
    }

    /// Learns the names of all that appear in a step. False if one has none yet, and the step is fresh: then it may get
    /// one.
    pub fn learn(&mut self, registry: &Registry, record: &StepRecord, is_fresh: bool) -> bool {
        let rows = record.decode.iter().chain(&record.prefill).map(|row| row.request);
        for id in rows.chain(record.preempted.iter().map(|preempted| preempted.request)) {
            if is_fresh && !self.known.contains_key(&id) && !registry.knows(id) {
                return false;
            }
            self.look_up(registry, id);
        }
        true
    }

    pub fn look_up(&mut self, registry: &Registry, id: RequestId) -> &Name {
        self.known.entry(id).or_insert_with(|| registry.name(self.tenant, id))
    }

    /// Of one that was looked up since names were last forgotten.
    pub fn get(&self, id: RequestId) -> &Name {
        self.known.get(&id).unwrap_or(&UNKNOWN)
    }

    /// Forgets the oldest beyond the limit: they are the least likely to come again.
    pub fn forget(&mut self) {
        while self.known.len() > MOST_NAMES {
            self.known.pop_first();
        }
    }
}

/// An event as text.
pub fn write(text: &mut String, event: &str, data: &impl Serialize) {
    let _ = write!(text, "event: {event}\ndata: {}\n\n", written(data));
}

pub fn written(data: &impl Serialize) -> String {
    serde_json::to_string(data).expect("names are texts and the rest has no maps")
}

/// What a model asks of a machine, and what that costs on this one: what a step's figures are worked out from.
pub struct Prices {
    demands: Demands,
    cost: Option<CostModel>,
}

impl Prices {
    pub fn of(engine: &dyn Observe) -> Prices {
        Prices { demands: engine.model().demands(), cost: engine.cost() }
    }

    /// Costs change while the engine runs.
    pub fn refresh(&mut self, engine: &dyn Observe) {
        self.cost = engine.cost();
    }
}

pub fn step<'a>(number: u64, record: &StepRecord, names: &'a Names, prices: &Prices) -> StepEvent<'a> {
    let parts = row_shares(record, prices.cost.as_ref());
    let (of_decode, of_prefill) = parts.split_at(record.decode.len().min(parts.len()));
    let decode = |(index, row): (usize, &RecordRow)| DecodeRow {
        drafts: (row.drafts > 0).then_some(row.drafts),
        tokens: (row.drafts > 0).then_some(row.samples),
        ..first_row(row, of_decode.get(index), names)
    };
    let prefill = |(index, row): (usize, &RecordRow)| PrefillRow {
        row: first_row(row, of_prefill.get(index), names),
        len: row.len,
        samples: row.samples,
        cached: row.cached_tokens,
    };
    let preempted = |preempted: &Preempted| PreemptedRow {
        r: names.get(preempted.request),
        tokens: preempted.tokens,
        verdict: match preempted.decision.mode {
            PreemptionMode::Recompute => "recompute",
            PreemptionMode::Swap => "swap",
        },
    };
    let stolen = |time: Nanos| (time > Nanos(0)).then(|| micros(time));
    let work = prices.demands.step(
        record.decode.iter().map(|row| (row.start, row.len)),
        record.prefill.iter().map(|row| (row.start, row.len)),
        record.logit_rows().iter().sum(),
    );
    StepEvent {
        id: number,
        at: micros(record.began_at),
        took: micros(record.took()),
        // Not rounded below what the machine can do.
        predicted: micros(Nanos(record.predicted.0.next_multiple_of(1000))),
        stolen: stolen(record.stolen.during),
        uncertain: stolen(record.stolen.uncertain),
        stolen_before: stolen(record.stolen.before),
        decode: record.decode.iter().enumerate().map(decode).collect(),
        prefill: record.prefill.iter().enumerate().map(prefill).collect(),
        preempted: record.preempted.iter().map(preempted).collect(),
        waiting: record.waiting_requests,
        waiting_tokens: record.waiting_tokens,
        blocked: record.blocked.map(|blocked| match blocked {
            Blocked::Kv => "kv",
            Blocked::Seats => "seats",
            Blocked::Budget => "budget",
        }),
        blocks: StepBlocks {
            used: record.used_blocks,
            taken: record.taken_blocks,
            evicted: record.evicted_blocks,
            copied: record.copied_blocks,
        },
        recomputed: record.recomputed_rows,
        flops: work.flops() as u64,
        bytes: work.bytes as u64,
    }
}

/// What every row has; `shares`: whose the step's time was, seen from it.
fn first_row<'a>(row: &RecordRow, shares: Option<&RowShares>, names: &'a Names) -> DecodeRow<'a> {
    let share = |of: fn(&RowShares) -> f64| shares.map(|shares| (of(shares) * 1e3).round() / 1e3);
    DecodeRow {
        r: names.get(row.request),
        a: row.answer,
        start: row.start,
        drafts: None,
        tokens: None,
        own: share(|shares| shares.own),
        other_prefill: share(|shares| shares.other_prefill),
    }
}

/// Milliseconds to the microsecond: there are hundreds of steps a second, and the rest is noise.
fn micros(time: Nanos) -> f64 {
    (time.0 / 1000) as f64 / 1e3
}

pub fn away<'a>(
    id: RequestId,
    away: &'a RemotePrefillTrace,
    names: &'a mut Names,
    registry: &Registry,
) -> AwayEvent<'a> {
    AwayEvent { r: names.look_up(registry, id), away: away_times(away, Nanos(0)) }
}

/// Moments as milliseconds since `origin`.
pub fn away_times(away: &RemotePrefillTrace, origin: Nanos) -> AwayTimes<'_> {
    let since = |moment: Nanos| ms(moment.since(origin));
    let steps = away.steps.iter();
    let landed = away.received.iter();
    AwayTimes {
        worker: away.worker.as_deref(),
        from_ms: since(away.from),
        to_ms: away.to.map(since),
        result: away.outcome.map(HandoffOutcome::name),
        steps: steps
            .map(|step| AwayStep { from_ms: since(step.from), to_ms: since(step.to), rows: step.rows })
            .collect(),
        landed: landed.map(|&(at, blocks)| LandedBlocks { at_ms: since(at), blocks }).collect(),
    }
}

/// What came before the first step of the feed, a row for each second in which there was one.
pub fn history(seconds: &[SecondStats], engine: &dyn Observe) -> HistoryEvent {
    let pair = |of: Option<[f64; 2]>| of.map_or([None; 2], |pair| pair.map(|ms| Some((ms * 1e3).round() / 1e3)));
    let row = |second: &SecondStats| {
        let queries = second.queried_tokens;
        let hits = (queries > 0).then(|| second.hit_tokens as f64 / queries as f64);
        let ([ttft50, ttft99], [gap50, gap99]) = (pair(second.ttft_ms), pair(second.gap_ms));
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
    };
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
    HistoryEvent { total_blocks: engine.model().num_blocks, columns, seconds: seconds.iter().map(row).collect() }
}

pub fn ended<'a>(ended: &Ended, names: &'a mut Names, registry: &Registry) -> EndedEvent<'a> {
    EndedEvent {
        r: names.look_up(registry, ended.request),
        at: ms(ended.at),
        ending: match ended.end {
            End::Finished(FinishReason::Stop(_)) => "stop",
            End::Finished(FinishReason::Length) => "length",
            End::Cancelled => "cancelled",
            End::Failed => "error",
        },
        arrived: ms(ended.arrived),
        queue_ms: ended.first_scheduled.map(|first| ms(first.since(ended.arrived))),
        longest_gap_ms: ms(ended.longest_gap),
        ttft_ms: ended.ttft_ms,
        tpot_ms: ended.tpot_ms,
        prompt_tokens: ended.prompt_tokens,
        generated: ended.generated,
        cached: ended.cached,
    }
}

/// The whole map if `before` is another cache's or none, else what changed. `None` if that is nothing and no step was
/// made since.
pub fn map<'a>(map: &KvMap, before: &KvMap, names: &'a mut Names, registry: &Registry) -> Option<KvEvent<'a>> {
    let full = before.uses.len() != map.uses.len();
    if !full && before.step == map.step && before.uses == map.uses {
        return None;
    }
    let changed = || map.uses.iter().enumerate().filter(|&(block, state)| full || before.uses[block] != *state);
    for (_, state) in changed() {
        if let BlockUse::Held { by, .. } = *state {
            names.look_up(registry, by);
        }
    }
    let names = &*names;
    let states = changed().map(|(block, state)| match *state {
        BlockUse::Free => (block, BlockState::Unused(0)),
        BlockUse::Cached => (block, BlockState::Unused(1)),
        BlockUse::Held { by, holders } => (block, BlockState::Held(names.get(by), holders)),
    });
    Some(match full {
        true => KvEvent::Full { step: map.step, full, blocks: states.map(|(_, state)| state).collect() },
        false => KvEvent::Changes { step: map.step, full, changed: states.collect() },
    })
}

pub fn requests<'a>(scene: &RequestSnapshot, names: &'a mut Names, registry: &Registry) -> RequestsEvent<'a> {
    for one in &scene.sequences {
        names.look_up(registry, one.request);
    }
    let names = &*names;
    let those = |waits: bool| {
        let them = scene.sequences.iter().filter(|one| one.waits == waits);
        let open = them.map(|one| OpenAnswer {
            r: names.get(one.request),
            a: one.answer,
            since: ms(one.since),
            prompt_tokens: one.prompt_tokens,
            computed: one.computed,
            generated: one.generated,
        });
        open.collect()
    };
    RequestsEvent { at: ms(scene.at), waiting: those(true), running: those(false) }
}

pub fn peaks(limits: &DeviceLimits, model: &ModelInfo) -> PeakRates {
    PeakRates { read_bandwidth: limits.bandwidth_for(model.weight_bytes), matrix_flops: peak(limits, model.weights) }
}

/// What is served under this name, and what the machine can do. `pause_allowed`: the engine may be held.
pub fn info<'a>(engine: &'a dyn Observe, name: &'a str, pause_allowed: bool) -> Info<'a> {
    let (model, targets, now) = (engine.model(), engine.targets(), engine.now());
    let limits = engine.device_limits().map(|limits| Limits {
        peaks: peaks(&limits, model),
        matrix_kind: if model.weights.name() == "bf16" { limits.bf16_kind } else { limits.int8_kind },
        in_cache: limits.holds(model.weight_bytes),
        not_sure: limits.doubt().map(|doubt| doubt.to_string()),
    });
    Info {
        name,
        version: env!("CARGO_PKG_VERSION"),
        weights: model.weights.name(),
        kv_dtype: model.kv_dtype.name(),
        isa: &model.device.kernels,
        arithmetic: model.arithmetic.name(),
        threads: model.device.threads,
        block_size: model.block_size,
        blocks: model.num_blocks,
        kv_bytes_per_token: model.kv_bytes_per_token,
        weight_bytes: model.weight_bytes,
        max_model_len: model.max_model_len,
        max_num_seqs: model.max_num_seqs,
        max_num_batched_tokens: model.max_num_batched_tokens,
        targets: TargetTimes { ttft_ms: targets.ttft.map(ms), tpot_ms: targets.tpot.map(ms) },
        promises: promises(&engine.stats()),
        // The ledger's rule, told and not written twice.
        late: LateRule { medians: LATE_MEDIANS, floor_ms: ms(LATE_FLOOR) },
        limits,
        pause_allowed,
        now_ms: ms(now),
        now_unix_ms: engine.unix(now).as_millis_f64(),
    }
}

/// How promises were kept: the share of the last 200, and all of them.
fn promises(stats: &Stats) -> Value {
    let mut kinds: Map<String, Value> = Map::new();
    kinds.insert("share".into(), COVERAGE.into());
    for (kind, kept) in BoundKind::ALL.iter().zip(&stats.promises) {
        let of = json!({"kept": kept.kept, "broken": kept.broken, "rolling": kept.rolling});
        kinds.insert(kind.name().into(), of);
    }
    Value::Object(kinds)
}

pub fn stats(now: Nanos, engine: &dyn Observe, [ttft, itl]: [Option<Percentiles>; 2]) -> StatsEvent {
    let stats = engine.stats();
    StatsEvent {
        at: ms(now),
        unix_ms: engine.unix(now).as_millis_f64(),
        running: stats.running_requests,
        waiting: stats.waiting_requests,
        used_blocks: stats.used_blocks,
        cached_blocks: stats.cached_blocks,
        total_blocks: stats.total_blocks,
        // JSON has no infinity.
        kv_seconds_to_full: Some(stats.kv_seconds_to_full).filter(|seconds| seconds.is_finite()),
        prefill_backlog_ms: stats.prefill_backlog_seconds * 1e3,
        late: stats.late_prompts,
        oldest_late_ms: stats.oldest_late_seconds * 1e3,
        promises_kept: stats.promises[0].rolling,
        oldest_waiting_ms: stats.oldest_waiting_seconds * 1e3,
        steps: stats.steps,
        prefill_tokens: stats.prefill_tokens,
        decode_tokens: stats.decode_tokens,
        prefix_queries: stats.prefix_queries,
        prefix_hits: stats.prefix_hits,
        cache_saved_of_optimum: stats.cache_saved_of_optimum,
        preemptions: stats.preemptions,
        paused: engine.is_paused(),
        ttft_p50_ms: ttft.map(|ttft| ttft.p50),
        ttft_p99_ms: ttft.map(|ttft| ttft.p99),
        itl_p50_ms: itl.map(|itl| itl.p50),
        itl_p99_ms: itl.map(|itl| itl.p99),
        limits: engine.device_limits().map(|limits| peaks(&limits, engine.model())),
    }
}
