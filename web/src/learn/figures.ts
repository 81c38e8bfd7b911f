// Every figure that a lesson states about a machine or a model which is not this one, worked out here and nowhere else. The page
// `#/learn/figures` lists them with their formulas, to be checked in one's head or by a test.

/** A model of 7 billion parameters in 16 bits on an A100 with round figures: the one of the calculator's worked example. */
const PARAMETERS = 7e9;
const FLOP_PER_TOKEN = 2 * PARAMETERS;
const WEIGHT_BYTES = 2 * PARAMETERS;
const FLOPS = 312e12;
const BANDWIDTH = 2e12;
/** That of the vendor's sheet, for the knee. */
const BANDWIDTH_EXACT = 2.039e12;
/** 32 layers with heads of 128 numbers, keys and values, 2 bytes each; 32 heads in each layer, or 8 that share, or 1. */
const kvBytes = (heads: number): number => 32 * heads * 128 * 2 * 2;
/** Operations of a query on a key and its value, in 32 layers of 32 heads. */
const ATTENTION_FLOP = 4 * 32 * 32 * 128;

/** What `twostroke plan -m 7b --machine a100` says for 1,024 + 256 tokens, in ms: a prompt; a token of the answer at batch 1, 8 and 64. */
const PLANNED = { prompt: 76.53, one: 12.194, eight: 13.03, many: 19.719 };
const PRICE_PER_MS = 2 / 3600 / 1000;

export interface Figure {
  what: string;
  formula: string;
  value: number;
  /** As the lessons write it. */
  shown: string;
}

const figures: Record<string, Figure> = {};

function figure(key: string, what: string, formula: string, value: number, shown: (value: number) => string): void {
  figures[key] = { what, formula, value, shown: shown(value) };
}

const whole = (unit: string) => (value: number) => `${Math.round(value).toLocaleString("en")}${unit}`;
const tenth = (unit: string) => (value: number) => `${value.toFixed(1)}${unit}`;
const cents = (value: number): string => value.toFixed(2);

const prefillMs = (tokens: number): number => (tokens * FLOP_PER_TOKEN * 1e3) / FLOPS;
const tokenMs = (WEIGHT_BYTES * 1e3) / BANDWIDTH;
/** Prefill's share of a prompt and 200 tokens of answer, by the weights alone. */
const share = (tokens: number): number => (100 * prefillMs(tokens)) / (prefillMs(tokens) + 199 * tokenMs);
const attentionMs = (tokens: number): number => ((ATTENTION_FLOP * tokens * (tokens / 2)) / FLOPS) * 1e3;
const cachedTokenMs = (tokens: number): number => tokenMs + (kvBytes(8) * (tokens + 100) * 1e3) / BANDWIDTH;
const long = prefillMs(100_000) + attentionMs(100_000);

figure("prefill1024", "a prompt of 1,024 tokens at least", "1,024 × 14 GFLOP / 312 TFLOP/s", prefillMs(1024), whole(" ms"));
figure("token", "a token of the answer at least", "14 GB / 2 TB/s", tokenMs, whole(" ms"));
figure("pace", "tokens a second at 25 ms each", "1,000 / 25", 1000 / 25, whole(""));
figure("share1k", "prefill's share of 1,000 + 200 tokens, per cent", "44.9 / (44.9 + 199 × 7)", share(1_000), whole(" %"));
figure("share10k", "prefill's share of 10,000 + 200", "449 / (449 + 199 × 7)", share(10_000), whole(" %"));
figure("share100k", "prefill's share of 100,000 + 200, weights alone", "4,487 / (4,487 + 199 × 7)", share(100_000), whole(" %"));
figure("shareAttention", "the same with attention, keys and values", "(4,487 + 8,402) / (12,889 + 199 × 13.6)", (100 * long) / (long + 199 * cachedTokenMs(100_000)), whole(" %"));
figure("rows40", "rows for 40 tokens without a KV cache", "1 + 2 + … + 40", (40 * 41) / 2, whole(""));
figure("rows500", "rows for 500 tokens without a KV cache", "1 + 2 + … + 500", (500 * 501) / 2, whole(""));
figure("knee", "rows from which the weights take longer to multiply than to read", "312 TFLOP/s / 2.039 TB/s, and one more", Math.floor(FLOPS / BANDWIDTH_EXACT) + 1, whole(""));
figure("rowsAt500", "time of a pass of 500 rows", "500 × 14 GFLOP / 312 TFLOP/s", prefillMs(500), whole(" ms"));
figure("int8", "weights in 8 bits, GB", "7 × 1", PARAMETERS / 1e9, whole(" GB"));
figure("int4", "weights in 4 bits, GB", "7 × 0.5", PARAMETERS / 2e9, tenth(" GB"));
figure("mha", "keys and values of a token, 32 heads, kB", "32 × 32 × 128 × 2 × 2", kvBytes(32) / 1e3, whole(" kB"));
figure("gqa", "the same with 8 heads that are shared", "32 × 8 × 128 × 2 × 2", kvBytes(8) / 1e3, whole(" kB"));
figure("mqa", "the same with 1", "32 × 1 × 128 × 2 × 2", kvBytes(1) / 1e3, whole(" kB"));
figure("kv10k", "keys and values of 10,000 tokens, 8 heads, GB", "10,000 × 131,072", (1e4 * kvBytes(8)) / 1e9, tenth(" GB"));
figure("kvAsWeights", "tokens whose keys and values are as large as the weights", "14 GB / 131,072", WEIGHT_BYTES / kvBytes(8), (value) => `${Math.round(value / 1000).toLocaleString("en")},000`);
figure("chunks", "pieces of a prompt of 4,000 tokens in chunks of 512", "4,000 / 512, rounded up", Math.ceil(4000 / 512), whole(""));
figure("hole", "a prompt of 4,000 tokens at 0.2 ms each", "4,000 × 0.2", 4000 * 0.2, whole(" ms"));
figure("piece", "a chunk of 512 at 0.2 ms each", "512 × 0.2", 512 * 0.2, (value) => `${(Math.round(value / 10) * 10).toFixed(0)} ms`);
figure("again", "rows for a contract of 20,000 tokens that is asked 100 questions", "20,000 × 100", 20_000 * 100, whole(""));
figure("reserved", "users of 1,800 tokens in a pool of 16,384 that reserves 8,192 each", "16,384 / 8,192", Math.floor(16_384 / 8_192), whole(""));
figure("paged", "the same in pages of 16", "16,384 / (113 × 16)", Math.floor(16_384 / (Math.ceil(1_800 / 16) * 16)), whole(""));
figure("drafts", "tokens of a pass with 3 drafts, each accepted 8 times of 10", "1 + 0.8 + 0.8² + 0.8³", 1 + 0.8 + 0.8 ** 2 + 0.8 ** 3, tenth(""));
figure("thought", "seconds of 400 thought tokens at 7 ms", "400 × 7 / 1,000", (400 * tokenMs) / 1e3, tenth(" s"));
figure("shipped", "keys and values of a prompt of 4,000 tokens, MB", "4,000 × 131,072", (4000 * kvBytes(8)) / 1e6, whole(" MB"));
figure("link", "their way over a link of 100 Gbit/s", "524 MB / 12.5 GB/s", (4000 * kvBytes(8) * 1e3) / 12.5e9, whole(" ms"));
figure("prefill4000", "a prompt of 4,000 tokens at least", "4,000 × 14 GFLOP / 312 TFLOP/s", prefillMs(4000), whole(" ms"));
figure("tensor", "a token at least on two machines", "14 GB / 2 / 2 TB/s", tokenMs / 2, tenth(" ms"));
figure("tensorLink", "its waits on the link, two of 10 µs in each of 32 layers", "2 × 32 × 0.01 ms", 2 * 32 * 0.01, tenth(" ms"));
figure("planOne", "a token by `plan`, which takes 62 % of the peaks: batch 1", "12.194 ms, from /plan", PLANNED.one, tenth(" ms"));
figure("planEight", "the same, batch 8", "13.030 ms, from /plan", PLANNED.eight, tenth(" ms"));
figure("planMany", "the same, batch 64", "19.719 ms, from /plan", PLANNED.many, tenth(" ms"));
figure("rateOne", "tokens a second, batch 1", "1,000 / 12.194", 1000 / PLANNED.one, whole(""));
figure("rateEight", "tokens a second, batch 8", "8 × 1,000 / 13.030", 8000 / PLANNED.eight, whole(""));
figure("rateMany", "tokens a second, batch 64", "64 × 1,000 / 19.719", 64_000 / PLANNED.many, whole(""));
figure("priceIn", "a million tokens of prompt at 2.00 an hour, by the time of `plan`", "2.00 / 3,600 × 0.0765 s / 1,024 × 10⁶", (PRICE_PER_MS * PLANNED.prompt * 1e6) / 1024, cents);
figure("priceOut1", "a million tokens of answers, likewise, batch 1", "2.00 / 3,600 × 0.0122 s × 10⁶", PRICE_PER_MS * PLANNED.one * 1e6, cents);
figure("priceOut8", "the same, batch 8", "2.00 / 3,600 × 0.0130 s / 8 × 10⁶", (PRICE_PER_MS * PLANNED.eight * 1e6) / 8, cents);
figure("priceOut64", "the same, batch 64", "2.00 / 3,600 × 0.0197 s / 64 × 10⁶", (PRICE_PER_MS * PLANNED.many * 1e6) / 64, cents);

export const FIGURES: ReadonlyMap<string, Figure> = new Map(Object.entries(figures));

/** A figure as the lessons write it. */
export function of(key: string): string {
  const known = FIGURES.get(key);
  if (!known) throw new Error(`no figure ${key}`);
  return known.shown;
}

/** Its value, for a scene that draws it to scale. */
export function valueOf(key: string): number {
  return FIGURES.get(key)!.value;
}
