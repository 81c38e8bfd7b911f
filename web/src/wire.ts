// What the server's /live routes say, as it is on the wire. Unknown fields are ignored; times are milliseconds since the
// engine started, unless a name says otherwise.

/** A request: the response id of one's own, a number for everybody else's. */
export type Name = string | number;

/** `GET /live/info`. */
export interface Info {
  name: string;
  version: string;
  weights: string;
  kv_dtype: string;
  isa: string;
  threads: number;
  /** Tokens of a KV block. */
  block_size: number;
  blocks: number;
  kv_bytes_per_token: number;
  max_model_len: number;
  max_num_seqs: number;
  max_num_batched_tokens: number;
  targets: { ttft_ms: number | null; tpot_ms: number | null };
  /** Without a target a gap is late above so many medians of its answer's gaps, and above the floor. */
  late: { medians: number; floor_ms: number };
  limits: Limits | null;
  pause_allowed: boolean;
  now_ms: number;
  /** What a clock on the wall showed at `now_ms`, ms since 1970. */
  now_unix_ms: number;
}

/** What this machine can do at most, measured. */
export interface Limits {
  /** Bytes per second. */
  read_bandwidth: number;
  /** Operations per second in the class of the weights. */
  matrix_flops: number;
  matrix_kind: string;
  /** The weights stay in the last level of cache, and `read_bandwidth` is the cache's. */
  in_cache: boolean;
  /** Why they are not sure; `null`: they are. */
  not_sure: string | null;
}

/** One token of an answer, computed alone. */
export interface DecodeRow {
  r: Name;
  /** Which answer of the request. */
  a: number;
  /** Position of the row. */
  start: number;
  /** Guesses at the tokens behind it that were checked, and the tokens that came: one, and those that held. Absent: none and one. */
  drafts?: number;
  tokens?: number;
  /**
   * Of the time of the step's rows, the share of its own rows and that of other requests' prompts; the rest is other requests'
   * decode. Only in steps in which somebody's prompt met another request.
   */
  own?: number;
  other_prefill?: number;
}

/** A piece of a prompt, computed in one pass. */
export interface PrefillRow extends DecodeRow {
  /** Rows. */
  len: number;
  /** First tokens that came of it: 0 unless the prompt is complete. */
  samples: number;
  /** Tokens before `start` that the prefix cache had. */
  cached: number;
}

export interface Preempted {
  r: Name;
  tokens: number;
  verdict: string;
}

/** Event `step`: one pass of the model. */
export interface StepEvent {
  id: number;
  /** When it was planned. */
  at: number;
  took: number;
  /** What the cost model said that it would take; 0 without one. */
  predicted: number;
  /** What the machine took of it for others, and of the time before it; absent: nothing. */
  stolen?: number;
  stolen_before?: number;
  decode: DecodeRow[];
  prefill: PrefillRow[];
  preempted: Preempted[];
  waiting: number;
  waiting_tokens: number;
  blocked: "kv" | "seats" | "budget" | null;
  blocks: { used: number; taken: number; evicted: number; copied: number };
  recomputed: number;
  /** Floating-point operations and bytes read, as the model's shapes ask for them. */
  flops: number;
  bytes: number;
}

/** Event `requests`: who waits and who runs. */
export interface RequestsEvent {
  at: number;
  waiting: { r: Name; since: number; prompt_tokens: number }[];
  running: { r: Name; since: number; prompt_tokens: number; computed: number; generated: number }[];
}

/** Event `thought`: the rows of an answer from one on are thought, up to another where that is known. */
export interface ThoughtEvent {
  r: Name;
  a: number;
  from: number;
  to: number | null;
}

/** Event `away`: another worker reads a prompt, or has read it. */
export interface AwayEvent {
  r: Name;
  /** `HOST:PORT`; `null` while several are asked, and where nobody did. */
  worker: string | null;
  from_ms: number;
  /** `null`: it still is. */
  to_ms: number | null;
  /** How it went. */
  result: "whole" | "in_part" | "refused" | "slower" | "lost" | "cancelled" | null;
  /** That worker's steps with rows of it. */
  steps: { from_ms: number; to_ms: number; rows: number }[];
  /** How many KV blocks had come, and since when. */
  landed: { at_ms: number; blocks: number }[];
}

/** Event `ended`. */
export interface EndedEvent {
  r: Name;
  at: number;
  ending: string;
  arrived: number;
  /** Until its first row; `null` if it had none. */
  queue_ms: number | null;
  longest_gap_ms: number;
  ttft_ms: number | null;
  tpot_ms: number | null;
  prompt_tokens: number;
  generated: number;
  cached: number;
}

/** Event `history`: the minutes before the feed began, a row for each second that had a step. */
export interface HistoryEvent {
  total_blocks: number;
  /** Names of the values of a row. */
  columns: string[];
  seconds: (number | null)[][];
}

/** Event `stats`: counters only grow. */
export interface StatsEvent {
  at: number;
  /** What a clock on the wall showed then, ms since 1970. */
  unix_ms: number;
  running: number;
  waiting: number;
  used_blocks: number;
  cached_blocks: number;
  total_blocks: number;
  kv_seconds_to_full: number | null;
  prefill_backlog_ms: number;
  /** Requests past their time to first token that have none, and how long the oldest has waited. */
  late: number;
  oldest_late_ms: number;
  /** Share of the last promises of a first token that were kept. */
  promises_kept: number | null;
  /** Age of the request that has waited longest for its first token; 0 where nobody waits. */
  oldest_waiting_ms: number;
  steps: number;
  prefill_tokens: number;
  decode_tokens: number;
  /** Prompt tokens that were looked up in the prefix cache, and found. */
  prefix_queries: number;
  prefix_hits: number;
  preemptions: number;
  paused: boolean;
  /** They rise with what steps reach. */
  limits: Pick<Limits, "read_bandwidth" | "matrix_flops"> | null;
  /** Who still waits counts with his age. */
  ttft_p50_ms: number | null;
  ttft_p99_ms: number | null;
  itl_p50_ms: number | null;
  itl_p99_ms: number | null;
}
