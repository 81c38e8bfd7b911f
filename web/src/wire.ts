// Written by the test in crates/telemetry/src/live_wire.rs, from the types there: change those.

/** A request: the response id of one's own, a number for those of others. */
export type Name = string | number;

/** `GET /live/info`. */
export type Info = { name: string, version: string, weights: string, kv_dtype: string, isa: string, arithmetic: string, threads: number,
/** Tokens of a KV block. */
block_size: number, blocks: number, kv_bytes_per_token: number, weight_bytes: number, max_model_len: number, max_num_seqs: number, max_num_batched_tokens: number, targets: TargetTimes,
/** How promises were kept: the share that is promised; by kind, of the last 200 and of all. */
promises: Record<string, unknown>, late: LateRule, limits: Limits | null, pause_allowed: boolean, now_ms: number,
/** What a clock on the wall showed at `now_ms`, ms since 1970. */
now_unix_ms: number, };

export type TargetTimes = { ttft_ms: number | null, tpot_ms: number | null, };

/** Without a target a gap is late above this multiple of its answer's median gap, and above the floor. */
export type LateRule = { medians: number, floor_ms: number, };

/** What the machine can do at most with this model, reading from where its weights are. */
export type PeakRates = {
/** Bytes per second. */
read_bandwidth: number,
/** Operations per second in the class of the weights. */
matrix_flops: number, };

/** What this machine can do at most, measured. */
export type Limits = { matrix_kind: string,
/** The weights stay in the last level of cache, and `read_bandwidth` is the cache's. */
in_cache: boolean,
/** Why they are not sure; `null`: they are. */
not_sure: string | null,
/** Bytes per second. */
read_bandwidth: number,
/** Operations per second in the class of the weights. */
matrix_flops: number, };

/** One token of an answer, computed alone. */
export type DecodeRow = { r: Name,
/** Which answer of the request. */
a: number,
/** Position of the row. */
start: number,
/** Drafts of the tokens behind it that were checked. Absent: none. */
drafts?: number,
/** With drafts, the tokens that came: one, and the accepted drafts. */
tokens?: number,
/** Of the time of the step's rows, the share of its own rows; the rest is other requests' decode. Only in steps in
 * which a prompt met another request. */
own?: number,
/** The share of other requests' prompts, likewise. */
other_prefill?: number, };

/** A piece of a prompt, computed in one pass. */
export type PrefillRow = {
/** Rows. */
len: number,
/** First tokens that came of it: 0 unless the prompt is complete. */
samples: number,
/** Tokens before `start` that the prefix cache had. */
cached: number, r: Name,
/** Which answer of the request. */
a: number,
/** Position of the row. */
start: number,
/** Drafts of the tokens behind it that were checked. Absent: none. */
drafts?: number,
/** With drafts, the tokens that came: one, and the accepted drafts. */
tokens?: number,
/** Of the time of the step's rows, the share of its own rows; the rest is other requests' decode. Only in steps in
 * which a prompt met another request. */
own?: number,
/** The share of other requests' prompts, likewise. */
other_prefill?: number, };

export type PreemptedRow = { r: Name, tokens: number, verdict: string, };

export type StepBlocks = { used: number, taken: number, evicted: number, copied: number, };

/** Event `step`: one pass of the model. */
export type StepEvent = {
/** Counts from the engine's start. */
id: number,
/** When it was planned. */
at: number, took: number,
/** What the cost model said that it would take; 0 without one. */
predicted: number,
/** What the machine took of it for others; absent: nothing. */
stolen?: number,
/** By how much that may be wrong; absent: by nothing. */
uncertain?: number,
/** And of the time before it. */
stolen_before?: number, decode: Array<DecodeRow>, prefill: Array<PrefillRow>, preempted: Array<PreemptedRow>, waiting: number, waiting_tokens: number, blocked: "kv" | "seats" | "budget" | null, blocks: StepBlocks, recomputed: number,
/** Floating-point operations, as the model's shapes ask for them. */
flops: number,
/** Bytes read, likewise. */
bytes: number, };

/** Event `requests`: who waits and who runs. */
export type RequestsEvent = { at: number, waiting: Array<OpenAnswer>, running: Array<OpenAnswer>, };

export type OpenAnswer = { r: Name, a: number,
/** When it came, or got its first rows. */
since: number, prompt_tokens: number, computed: number, generated: number, };

/** Event `thought`: the rows of an answer from one on are thought, up to another where that is known. */
export type ThoughtEvent = { r: Name, a: number, from: number, to: number | null, };

/** Event `away`: another worker reads a prompt, or has read it. */
export type AwayEvent = { r: Name,
/** `HOST:PORT`; `null` while several are asked, and where none did. */
worker: string | null, from_ms: number,
/** `null`: it still is. */
to_ms: number | null,
/** How it went, as `twostroke_remote_prefills_total` names it. */
result: string | null,
/** That worker's steps with rows of it. */
steps: Array<AwayStep>,
/** How many KV blocks had come, and since when. */
landed: Array<LandedBlocks>, };

/** The time in which another worker reads a prompt. */
export type AwayTimes = {
/** `HOST:PORT`; `null` while several are asked, and where none did. */
worker: string | null, from_ms: number,
/** `null`: it still is. */
to_ms: number | null,
/** How it went, as `twostroke_remote_prefills_total` names it. */
result: string | null,
/** That worker's steps with rows of it. */
steps: Array<AwayStep>,
/** How many KV blocks had come, and since when. */
landed: Array<LandedBlocks>, };

export type AwayStep = { from_ms: number, to_ms: number, rows: number, };

export type LandedBlocks = { at_ms: number, blocks: number, };

/** Event `ended`: a request is over. */
export type EndedEvent = { r: Name, at: number,
/** `stop`, `length`, `cancelled` or `error`. */
ending: string, arrived: number,
/** Until its first row; `null` if it had none. */
queue_ms: number | null, longest_gap_ms: number, ttft_ms: number | null, tpot_ms: number | null, prompt_tokens: number, generated: number, cached: number, };

/** Event `history`: the minutes before the feed began, a row for each second that had a step. */
export type HistoryEvent = { total_blocks: number,
/** Names of the values of a row. */
columns: string[],
/** Percentiles to within an eighth. */
seconds: (number | null)[][], };

/** Event `stats`: gauges and counters of `/metrics`, and percentiles. Counters only grow. */
export type StatsEvent = { at: number,
/** What a clock on the wall showed then, ms since 1970. */
unix_ms: number, running: number, waiting: number, used_blocks: number, cached_blocks: number, total_blocks: number,
/** `null`: not as it goes now. */
kv_seconds_to_full: number | null, prefill_backlog_ms: number,
/** Requests past their time to first token that have none. */
late: number,
/** How long the oldest of these has waited. */
oldest_late_ms: number,
/** Share of the last promises of a first token that were kept. */
promises_kept: number | null,
/** Age of the request that has waited longest for its first token; 0 if none waits. */
oldest_waiting_ms: number, steps: number, prefill_tokens: number, decode_tokens: number,
/** Prompt tokens that were looked up in the prefix cache. */
prefix_queries: number,
/** Those that were found. */
prefix_hits: number,
/** Of what a cache that knows which prompts come would have saved; `null`: nothing. */
cache_saved_of_optimum: number | null, preemptions: number, paused: boolean,
/** Of the last 256 times to first token; who still waits counts with its age. */
ttft_p50_ms: number | null, ttft_p99_ms: number | null,
/** Of the last 2,048 times from token to token. */
itl_p50_ms: number | null, itl_p99_ms: number | null,
/** They rise with what steps reach. */
limits: PeakRates | null, };

/** Event `kv`: what each block of the cache is used for, or which have changed. */
export type KvEvent = { step: number, full: true, blocks: Array<BlockState>, } | { step: number, full: false, changed: Array<[number, BlockState]>, };

/** A block: 0 free, 1 unused with a cached prefix; or its first user and the number of its users. */
export type BlockState = 0 | 1 | [Name, number];
