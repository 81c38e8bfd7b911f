// What the server's /plan is asked and what it answers. The arithmetic is the server's, the same as `twostroke plan`.

/** `GET /plan/presets`: everything that has a name. `here` is what runs on this server, and its machine. */
export interface Presets {
  models: { name: string; title?: string; parameters: number; context_limit: number; weights?: string; kv_dtype?: string }[];
  machines: { name: string; flops: number; bandwidth: number; memory: number | null }[];
  weights: string[];
  kv: string[];
}

/** One phase of a request. */
export interface Profile {
  passes: number;
  tokens: number;
  flops: number;
  bytes: number;
  /** FLOPs per byte. */
  intensity: number;
  ms: number;
  /** Of the request's time. */
  share: number;
  /** `null`: not known. */
  compute_percent: number | null;
  memory_percent: number | null;
  bound_by: string;
}

/** `GET /plan`: times in milliseconds, rates per second, sizes in bytes. */
export interface Plan {
  model: { name: string; parameters: number; weights: string; kv_dtype: string; context_limit: number };
  machine: { name: string; flops: number; bandwidth: number; memory: number | null; basis: string };
  ask: { prompt: number; response: number; batch: number };
  fits: boolean | null;
  ttft_ms: number;
  tpot_ms: number;
  total_ms: number;
  tokens_per_second: number;
  /** Attention, keys and values included; `weights_`: the weights' part alone, of one request. */
  floors: { ttft_ms: number; tpot_ms: number; weights_ttft_ms: number; weights_tpot_ms: number };
  memory: {
    total: number | null;
    weights: number;
    kv_per_token: number;
    kv_per_request: number;
    activations: number;
    reserved: number;
    left: number | null;
    requests: number | null;
  };
  prefill: Profile;
  decode: Profile;
  dominant: string;
  limiting: string;
  by_prompt: { prompt: number; ttft_ms: number; tpot_ms: number; prefill_share: number; attention_share: number; prefill_bound_by: string; decode_bound_by: string }[];
  by_batch: { batch: number; tpot_ms: number; tokens_per_second: number; intensity: number; bound_by: string; fits: boolean | null }[];
  fleet: {
    users: number;
    requests_per_second: number;
    batch: number;
    batch_capped_by: string;
    tpot_ms: number;
    limiting: string;
    prefill_share: number;
    busy_machines: number;
    machines: number;
    apart: { prefill: number; decode: number; machines: number; pays: boolean; why: string };
  } | null;
}

/** A question, in the parameters of the URL. */
export type Question = Record<string, string>;

/** The same question to the command line. `here` as a model is a path or a name that only the operator knows. */
export function commandLine(question: Question, presets: Presets): string {
  const flags: [string, string][] = [
    ["model", "-m"],
    ["machine", "--machine"],
    ["flops", "--flops"],
    ["bandwidth", "--bandwidth"],
    ["memory", "--memory"],
    ["weights", "--weights"],
    ["kv", "--kv-dtype"],
    ["prompt", "-p"],
    ["response", "-n"],
    ["batch", "-b"],
    ["users", "--users"],
    ["rate", "--rate"],
  ];
  const here = presets.models.find((model) => model.name === "here");
  const words = ["twostroke plan"];
  for (const [parameter, flag] of flags) {
    const value = question[parameter];
    if (!value) continue;
    const name = parameter === "model" && value === "here" ? (here?.title ?? value) : value;
    // Two names of 16 bits; the command line knows the one that this engine computes in.
    words.push(flag, quoted(name === "fp16" ? "bf16" : name));
  }
  return words.join(" ");
}

/** For a POSIX shell. */
function quoted(word: string): string {
  return /^[\w./:@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
