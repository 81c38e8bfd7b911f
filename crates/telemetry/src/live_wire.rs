//! What the routes below `/live` say. `web/src/wire.ts` is written from these types, by the test at the end.
//!
//! Readers ignore fields that they do not know. Moments are milliseconds since the engine started, unless a name says
//! otherwise.

use serde::Serialize;
use serde_json::Value;
#[cfg(test)]
use ts_rs::TS;

/// A request: the response id of one's own, a number for those of others.
#[derive(Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS))]
#[serde(untagged)]
#[cfg_attr(test, ts(untagged))]
pub enum Name {
    Own(String),
    Other(u64),
}

/// `GET /live/info`.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct Info<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub weights: &'a str,
    pub kv_dtype: &'a str,
    pub isa: &'a str,
    pub arithmetic: &'a str,
    pub threads: usize,
    /// Tokens of a KV block.
    pub block_size: usize,
    pub blocks: usize,
    pub kv_bytes_per_token: usize,
    pub weight_bytes: usize,
    pub max_model_len: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub targets: TargetTimes,
    /// How promises were kept: the share that is promised; by kind, of the last 200 and of all.
    #[cfg_attr(test, ts(type = "Record<string, unknown>"))]
    pub promises: Value,
    pub late: LateRule,
    pub limits: Option<Limits>,
    pub pause_allowed: bool,
    pub now_ms: f64,
    /// What a clock on the wall showed at `now_ms`, ms since 1970.
    pub now_unix_ms: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct TargetTimes {
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
}

/// Without a target a gap is late above this multiple of its answer's median gap, and above the floor.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct LateRule {
    pub medians: u64,
    pub floor_ms: f64,
}

/// What the machine can do at most with this model, reading from where its weights are.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct PeakRates {
    /// Bytes per second.
    pub read_bandwidth: f64,
    /// Operations per second in the class of the weights.
    pub matrix_flops: f64,
}

/// What this machine can do at most, measured.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct Limits {
    #[serde(flatten)]
    #[cfg_attr(test, ts(flatten))]
    pub peaks: PeakRates,
    pub matrix_kind: &'static str,
    /// The weights stay in the last level of cache, and `read_bandwidth` is the cache's.
    pub in_cache: bool,
    /// Why they are not sure; `null`: they are.
    pub not_sure: Option<String>,
}

/// One token of an answer, computed alone.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
#[cfg_attr(test, ts(optional_fields))]
pub struct DecodeRow<'a> {
    pub r: &'a Name,
    /// Which answer of the request.
    pub a: usize,
    /// Position of the row.
    pub start: usize,
    /// Drafts of the tokens behind it that were checked. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafts: Option<usize>,
    /// With drafts, the tokens that came: one, and the accepted drafts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Of the time of the step's rows, the share of its own rows; the rest is other requests' decode. Only in steps in
    /// which a prompt met another request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<f64>,
    /// The share of other requests' prompts, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_prefill: Option<f64>,
}

/// A piece of a prompt, computed in one pass.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct PrefillRow<'a> {
    #[serde(flatten)]
    #[cfg_attr(test, ts(flatten))]
    pub row: DecodeRow<'a>,
    /// Rows.
    pub len: usize,
    /// First tokens that came of it: 0 unless the prompt is complete.
    pub samples: usize,
    /// Tokens before `start` that the prefix cache had.
    pub cached: usize,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct PreemptedRow<'a> {
    pub r: &'a Name,
    pub tokens: usize,
    pub verdict: &'static str,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct StepBlocks {
    pub used: usize,
    pub taken: usize,
    pub evicted: usize,
    pub copied: usize,
}

/// Event `step`: one pass of the model.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct StepEvent<'a> {
    /// Counts from the engine's start.
    pub id: u64,
    /// When it was planned.
    pub at: f64,
    pub took: f64,
    /// What the cost model said that it would take; 0 without one.
    pub predicted: f64,
    /// What the machine took of it for others; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub stolen: Option<f64>,
    /// By how much that may be wrong; absent: by nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub uncertain: Option<f64>,
    /// And of the time before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub stolen_before: Option<f64>,
    pub decode: Vec<DecodeRow<'a>>,
    pub prefill: Vec<PrefillRow<'a>>,
    pub preempted: Vec<PreemptedRow<'a>>,
    pub waiting: usize,
    pub waiting_tokens: usize,
    #[cfg_attr(test, ts(type = "\"kv\" | \"seats\" | \"budget\" | null"))]
    pub blocked: Option<&'static str>,
    pub blocks: StepBlocks,
    pub recomputed: usize,
    /// Floating-point operations, as the model's shapes ask for them.
    pub flops: u64,
    /// Bytes read, likewise.
    pub bytes: u64,
}

/// Event `requests`: who waits and who runs.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct RequestsEvent<'a> {
    pub at: f64,
    pub waiting: Vec<OpenAnswer<'a>>,
    pub running: Vec<OpenAnswer<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct OpenAnswer<'a> {
    pub r: &'a Name,
    pub a: usize,
    /// When it came, or got its first rows.
    pub since: f64,
    pub prompt_tokens: usize,
    pub computed: usize,
    pub generated: usize,
}

/// Event `thought`: the rows of an answer from one on are thought, up to another where that is known.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct ThoughtEvent<'a> {
    pub r: &'a Name,
    pub a: usize,
    pub from: usize,
    pub to: Option<usize>,
}

/// Event `away`: another worker reads a prompt, or has read it.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct AwayEvent<'a> {
    pub r: &'a Name,
    #[serde(flatten)]
    #[cfg_attr(test, ts(flatten))]
    pub away: AwayTimes<'a>,
}

/// The time in which another worker reads a prompt.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct AwayTimes<'a> {
    /// `HOST:PORT`; `null` while several are asked, and where none did.
    pub worker: Option<&'a str>,
    pub from_ms: f64,
    /// `null`: it still is.
    pub to_ms: Option<f64>,
    /// How it went, as `twostroke_remote_prefills_total` names it.
    pub result: Option<&'static str>,
    /// That worker's steps with rows of it.
    pub steps: Vec<AwayStep>,
    /// How many KV blocks had come, and since when.
    pub landed: Vec<LandedBlocks>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct AwayStep {
    pub from_ms: f64,
    pub to_ms: f64,
    pub rows: usize,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct LandedBlocks {
    pub at_ms: f64,
    pub blocks: usize,
}

/// Event `ended`: a request is over.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct EndedEvent<'a> {
    pub r: &'a Name,
    pub at: f64,
    /// `stop`, `length`, `cancelled` or `error`.
    pub ending: &'static str,
    pub arrived: f64,
    /// Until its first row; `null` if it had none.
    pub queue_ms: Option<f64>,
    pub longest_gap_ms: f64,
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub prompt_tokens: usize,
    pub generated: usize,
    pub cached: usize,
}

/// Event `history`: the minutes before the feed began, a row for each second that had a step.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct HistoryEvent {
    pub total_blocks: usize,
    /// Names of the values of a row.
    #[cfg_attr(test, ts(type = "string[]"))]
    pub columns: [&'static str; 12],
    /// Percentiles to within an eighth.
    #[cfg_attr(test, ts(type = "(number | null)[][]"))]
    pub seconds: Vec<Value>,
}

/// Event `stats`: gauges and counters of `/metrics`, and percentiles. Counters only grow.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
pub struct StatsEvent {
    pub at: f64,
    /// What a clock on the wall showed then, ms since 1970.
    pub unix_ms: f64,
    pub running: usize,
    pub waiting: usize,
    pub used_blocks: usize,
    pub cached_blocks: usize,
    pub total_blocks: usize,
    /// `null`: not as it goes now.
    pub kv_seconds_to_full: Option<f64>,
    pub prefill_backlog_ms: f64,
    /// Requests past their time to first token that have none.
    pub late: usize,
    /// How long the oldest of these has waited.
    pub oldest_late_ms: f64,
    /// Share of the last promises of a first token that were kept.
    pub promises_kept: Option<f64>,
    /// Age of the request that has waited longest for its first token; 0 if none waits.
    pub oldest_waiting_ms: f64,
    pub steps: u64,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
    /// Prompt tokens that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Those that were found.
    pub prefix_hits: u64,
    /// Of what a cache that knows which prompts come would have saved; `null`: nothing.
    pub cache_saved_of_optimum: Option<f64>,
    pub preemptions: u64,
    pub paused: bool,
    /// Of the last 256 times to first token; who still waits counts with its age.
    pub ttft_p50_ms: Option<f64>,
    pub ttft_p99_ms: Option<f64>,
    /// Of the last 2,048 times from token to token.
    pub itl_p50_ms: Option<f64>,
    pub itl_p99_ms: Option<f64>,
    /// They rise with what steps reach.
    pub limits: Option<PeakRates>,
}

/// Event `kv`: what each block of the cache is used for, or which have changed.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
#[serde(untagged)]
#[cfg_attr(test, ts(untagged))]
pub enum KvEvent<'a> {
    Full {
        step: u64,
        #[cfg_attr(test, ts(type = "true"))]
        full: bool,
        blocks: Vec<BlockState<'a>>,
    },
    Changes {
        step: u64,
        #[cfg_attr(test, ts(type = "false"))]
        full: bool,
        changed: Vec<(usize, BlockState<'a>)>,
    },
}

/// A block: 0 free, 1 unused with a cached prefix; or its first user and the number of its users.
#[derive(Serialize)]
#[cfg_attr(test, derive(TS))]
#[serde(untagged)]
#[cfg_attr(test, ts(untagged))]
pub enum BlockState<'a> {
    Unused(#[cfg_attr(test, ts(type = "0 | 1"))] u8),
    Held(&'a Name, u32),
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ts_rs::Config;

    use super::*;

    fn declared<T: TS>(file: &mut String) {
        let config = Config::new().with_large_int("number");
        let docs = T::docs().unwrap_or_default();
        *file += &format!("\n{docs}export {}\n", T::decl(&config));
    }

    #[test]
    fn the_page_has_these_types() {
        let mut file =
            "// Written by the test in crates/telemetry/src/live_wire.rs, from the types there: change those.\n"
                .to_owned();
        for declared in [
            declared::<Name>,
            declared::<Info<'_>>,
            declared::<TargetTimes>,
            declared::<LateRule>,
            declared::<PeakRates>,
            declared::<Limits>,
            declared::<DecodeRow<'_>>,
            declared::<PrefillRow<'_>>,
            declared::<PreemptedRow<'_>>,
            declared::<StepBlocks>,
            declared::<StepEvent<'_>>,
            declared::<RequestsEvent<'_>>,
            declared::<OpenAnswer<'_>>,
            declared::<ThoughtEvent<'_>>,
            declared::<AwayEvent<'_>>,
            declared::<AwayTimes<'_>>,
            declared::<AwayStep>,
            declared::<LandedBlocks>,
            declared::<EndedEvent<'_>>,
            declared::<HistoryEvent>,
            declared::<StatsEvent>,
            declared::<KvEvent<'_>>,
            declared::<BlockState<'_>>,
        ] {
            declared(&mut file);
        }
        for (wide, narrow) in [("/**\n * ", "/** "), ("\n */", " */"), (" \n", "\n")] {
            file = file.replace(wide, narrow);
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/src/wire.ts");
        if fs::read_to_string(path).unwrap_or_default() != file {
            fs::write(path, file).expect("the page's sources can be written");
            panic!("web/src/wire.ts was not what these types say, and is now: look at it and commit it");
        }
    }
}
