// What the server's /plan is asked and what it answers. The arithmetic is the server's, the same as `twostroke plan`.

/** `GET /plan/presets`: everything that has a name. `here` is what runs on this server, and its machine. */
export interface Presets {
  models: { name: string; title?: string; parameters: number; context_limit: number; weights?: string; kv_dtype?: string }[];
  machines: { name: string; flops: number; bandwidth: number; memory: number | null; watts: number | null }[];
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
  machine: { name: string; flops: number; bandwidth: number; memory: number | null; basis: string; count: number; watts: number | null; price_per_hour: number | null };
  /** `cached`: tokens of the prompt that are not computed. */
  ask: { prompt: number; cached: number; response: number; thinking: number; batch: number; utilization: number };
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
  /** A list for each axis and line. */
  curves: Record<"prompt" | "ttft_ms" | "ttft_floor_ms" | "batch" | "tpot_ms" | "tpot_floor_ms" | "tokens_per_second" | "tokens_per_second_at_most", number[]>;
  thinking: { ms: number; first_visible_ms: number; total_without_ms: number } | null;
  speculation: { acceptance: number; drafts: number; tokens_per_step: number; tpot_ms: number; gain: number; stops_at_batch: number | null } | null;
  /** Of a million tokens, and of the request. */
  cost: { batch: number; input: Cost; cached: Cost | null; output: Cost; request: Cost };
  /** With users and targets. */
  choices: { rows: Choice[]; left_off: number; words: string } | null;
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

/** `null`: the price, or the power of the machine, is not known. */
export interface Cost {
  machine_seconds: number;
  price: number | null;
  watt_hours: number | null;
}

/** Machines that meet the targets. */
export interface Choice {
  machine: string;
  machines_per_instance: number;
  weights: string;
  instances: number;
  machines: number;
  batch: number;
  capped_by: string;
  ttft_ms: number;
  tpot_ms: number;
  price_per_hour: number | null;
  watts: number | null;
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
    ["machines", "--machines-per-instance"],
    ["link", "--link"],
    ["weights", "--weights"],
    ["kv", "--kv-dtype"],
    ["prompt", "-p"],
    ["cached", "--cached"],
    ["thinking", "--thinking"],
    ["response", "-n"],
    ["batch", "-b"],
    ["acceptance", "--acceptance"],
    ["price", "--price"],
    ["watts", "--watts"],
    ["utilization", "--utilization"],
    ["users", "--users"],
    ["rate", "--rate"],
    ["ttft", "--ttft-slo"],
    ["tpot", "--tpot-slo"],
  ];
  const here = presets.models.find((model) => model.name === "here");
  const words = ["twostroke plan"];
  for (const [parameter, flag] of flags) {
    const value = question[parameter];
    if (!value) continue;
    const name = parameter === "model" && value === "here" ? (here?.title ?? value) : value;
    words.push(flag, quoted(spelled(parameter, name, question["draft"])));
  }
  return words.join(" ");
}

/** A parameter's value as its flag has it. */
function spelled(parameter: string, value: string, draft: string | undefined): string {
  if (parameter === "ttft" || parameter === "tpot") return `${value}ms`;
  if (parameter === "acceptance" && draft) return `${value},draft=${draft}`;
  // Two names of 16 bits; the command line knows the one that this engine computes in.
  return value === "fp16" ? "bf16" : value;
}

/** For a POSIX shell. */
function quoted(word: string): string {
  return /^[\w./:@%+=,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
