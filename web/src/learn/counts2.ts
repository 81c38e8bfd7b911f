// Trials of part two that count: bytes, chunks, blocks, tokens.

import { add, el } from "../dom";
import { Log, type Step } from "../log";
import { told } from "../ask";
import { count, ms } from "../units";
import type { StepEvent } from "../wire";
import { compared, counted } from "./bench";
import { decodesOf, long, planned, prefillsOf, prompts, salt, sampled, send, shortContext, sum } from "./engine";
import type { Experiment, Trial } from "./types";

const megabytes = (bytes: number): string => `${(bytes / 1e6).toFixed(bytes < 1e8 ? 2 : 0)} MB`;
const number = (value: number): string => value.toLocaleString("en");

/** A place of its own in the trial's, for a second table. */
export function part(trial: Trial): Trial {
  const root = el("div", { class: "part" });
  add(trial.root, root);
  return { ...trial, root };
}

/** What a token reads, by class of the weights and by heads: this model's, then two of the size of 7B. */
export const bytesByClass: Experiment = (trial) => {
  const { app, signal } = trial;
  counted(trial, {
    caption: "Bytes by precision and by shared heads",
    columns: ["weights", "KV of a token", "read at position 1,000"],
    button: "Count the bytes",
    work: async (show) => {
      const { info } = app;
      const line = (name: string, weights: number, kv: number, isPlanned: boolean) => show({ name, ...(isPlanned && { basis: "planned" }), cells: [megabytes(weights), `${number(Math.round(kv))} B`, megabytes(weights + 1000 * kv)] });
      line(`${info.name}, as it is served`, info.weight_bytes, info.kv_bytes_per_token, false);
      const limits: [string, Record<string, string>][] = [
        [`${info.name}, int8`, { model: "here", weights: "int8", kv: "int8" }],
        [`${info.name}, int4`, { model: "here", weights: "int4", kv: "int8" }],
        ["Llama 2 7B, 32 KV heads", { model: "llama-2-7b" }],
        ["Mistral 7B, 8 shared", { model: "mistral-7b" }],
        ["Mistral 7B, 8 shared, int4", { model: "mistral-7b", weights: "int4", kv: "int8" }],
      ];
      const kv: number[] = [];
      for (const [name, question] of limits) {
        const { memory } = await planned(app, { machine: "a100", prompt: 64, response: 64, ...question }, signal);
        line(name, memory.weights, memory.kv_per_token, true);
        kv.push(memory.kv_per_token);
      }
      return `Shared heads take ${number(kv[2]! / kv[3]!)} times fewer bytes of keys and values; quantizing the weights takes most where contexts are short.`;
    },
  });
};

/** Bytes of a pass at the beginning of a context, and far in it; and the time of those passes. */
export const bytesByPosition: Experiment = (trial) => {
  const { app, signal } = trial;
  const positions = [...new Set([16, long(app, 1000, 32), long(app, 4000, 32)])];
  const far = positions.at(-1)!;
  counted(part(trial), {
    caption: "What one token reads",
    columns: ["bytes", "of them weights"],
    button: "Count at each position",
    limit: shortContext(app, 4000, 32),
    work: async (show) => {
      const bytes: number[] = [];
      for (const position of positions) {
        const [tokens] = await prompts(app, 1, position);
        const { id } = await send(app, tokens!, 4, signal, { cache_salt: salt() });
        const [step] = await decodesOf(app, id, true);
        if (!step) throw new Error("other requests shared each of these passes. Try again when the server is quiet");
        show({ name: `position ${number(position)}`, cells: [megabytes(step.bytes), `${((100 * Math.min(step.bytes, app.info.weight_bytes)) / step.bytes).toFixed(0)} %`] });
        bytes.push(step.bytes);
      }
      return `The weights stay, keys and values grow: at position ${number(far)} a token reads ${(bytes.at(-1)! / bytes[0]!).toFixed(2)} times what it reads at 16.`;
    },
  });
  // The same prompts in each pair: with a prefix cache, only the first one waits for them to be read.
  let asked: Promise<number[][]> | null = null;
  compared(part(trial), {
    caption: "The time of these passes, in turns",
    button: "Compare their times",
    column: "time of a token",
    a: "position 16",
    b: `position ${number(far)}`,
    run: async (which) => {
      asked ??= Promise.all([16, far].map(async (length) => (await prompts(app, 1, length))[0]!));
      const { id } = await send(app, (await asked)[which === "a" ? 0 : 1]!, 32, signal);
      return sampled(app, await decodesOf(app, id, true));
    },
    gain: (a, b) => b / a,
    format: ms,
    shown: (a, b) => `a token at position ${number(far)} took ${ms(b)}, at 16 ${ms(a)}.`,
    reversed: (a, b) => `a token at position ${number(far)} took ${ms(b)}, less than ${ms(a)} at 16.`,
    predicted: async () => {
      const at = async (prompt: number): Promise<number> => (await planned(app, { model: "here", machine: "here", prompt, response: 16, batch: 1 }, signal)).tpot_ms;
      return `${ms(await at(16))} at 16 and ${ms(await at(far))} at ${number(far)}.`;
    },
  });
};

/** The part of `GET /live/whatif` that is read here. */
interface WhatIf {
  whatif: { preemptions: number; answers: number };
  steps: { whatif: StepEvent[] };
}

/** The last minute again, through the production scheduler with other settings, under an imagined clock. */
async function whatIf({ app, signal }: Trial, changes: Record<string, string>): Promise<WhatIf> {
  const response = await app.api(`/live/whatif?${new URLSearchParams({ minutes: "1", ...changes })}`, { signal });
  if (!response.ok) throw new Error(await told(response));
  return response.json();
}

/** Times between two tokens of the streams that these passes fell between. */
function gapsBeside(log: Log, passes: Step[]): number[] {
  const [first, last] = [passes[0]?.at ?? Infinity, passes.at(-1)?.end ?? -Infinity];
  const tokens = [...log.requests.values()].flatMap(({ tokens }) => tokens);
  return tokens.flatMap(({ at, gap }) => (gap != null && at > first && at - gap < last ? [gap] : []));
}

/** What the simulated minute holds besides the trial's own requests. */
const besides = (answers: number, own: number): string => (answers > own ? ` The simulated minute has ${count(answers - own, "other request")} in it.` : "");

/** A stream and a long prompt: how they shared passes here, and the same minute in chunks and in one piece. */
export const chunksBothWays: Experiment = (trial) => {
  const { app, signal } = trial;
  // Both fit into the pool, however small: the newcomer does not wait for blocks.
  const half = Math.floor((app.info.blocks * app.info.block_size) / 2);
  const length = Math.min(long(app, 4000, 1), half);
  counted(trial, {
    caption: "A long prompt beside a stream",
    columns: ["passes with the prompt", "of them with the stream's token", "longest gap"],
    button: "Disturb a stream",
    limit: length < long(app, 4000, 1) ? `This server's pool has ${count(app.info.blocks, "block")}, so the prompt has ${number(length)} tokens.` : shortContext(app, 4000, 1),
    work: async (show) => {
      const [quiet, loud] = [await prompts(app, 1, 16), await prompts(app, 1, length)];
      const tokens = Math.max(16, Math.min(1500, app.info.max_model_len - 32, half - 64));
      const stream = send(app, quiet[0]!, tokens, signal);
      stream.catch(() => undefined); // awaited below
      await new Promise((resolve) => setTimeout(resolve, 60));
      const newcomer = await send(app, loud[0]!, 1, signal, { cache_salt: salt() });
      const { id } = await stream;
      const passes = await prefillsOf(app, newcomer.id);
      const shared = passes.filter(({ decode }) => decode.some((row) => row.r === id)).length;
      show({ name: "here", cells: [String(passes.length), String(shared), ""] });
      const course = async (name: string, rows: number): Promise<[number, number, number]> => {
        const { whatif, steps } = await whatIf(trial, { max_num_batched_tokens: String(rows), max_prefill_chunk: String(rows), tpot_slo: "off", ttft_slo: "off" });
        const log = new Log(Infinity);
        for (const step of steps.whatif) log.step(step);
        // The newest of its length is the trial's own.
        const newcomer = [...log.requests.values()].filter((request) => request.promptTokens === length).at(-1);
        const passes = log.steps.filter((step) => step.prefill.some((row) => row.r === newcomer?.name));
        const gap = Math.max(0, ...gapsBeside(log, passes));
        show({ name, cells: [String(passes.length), String(passes.filter(({ decode }) => decode.length > 0).length), ms(gap)], basis: "simulated" });
        return [passes.length, gap, whatif.answers];
      };
      const [pieces, short, answers] = await course("this minute in chunks of 128", 128);
      const [one, hole] = await course("this minute in one piece", app.info.max_model_len);
      const isAlone = app.info.max_num_seqs < 2 ? "This server computes one request at a time (--max-num-seqs 1): the newcomer waits for all of the stream." : "";
      const who = isAlone || (shared > 0 ? `Who delayed the stream: the prompt of ${number(length)} tokens, in ${count(shared, "pass", "passes")} that carried both.` : "The prompt met no token of the stream here: it was over before. Press the button again.");
      return `${who} Simulated, ${count(pieces, "piece")} with a longest gap of ${ms(short)}, or ${count(one, "piece")} with ${ms(hole)}.${besides(answers, 2)}`;
    },
  });
};

/** Three prompts in order: new, the same, and the same behind another first word. */
export const threePrompts: Experiment = (trial) => {
  const { app, signal } = trial;
  const length = long(app, 1024, 8);
  counted(trial, {
    caption: "Three prompts in order",
    columns: ["computed", "from the cache"],
    button: "Send all three",
    limit: shortContext(app, 1024, 8),
    work: async (show) => {
      const [[prompt], [other]] = [await prompts(app, 1, length), await prompts(app, 1, 16)];
      const own = { cache_salt: salt() };
      const found: number[] = [];
      const run = async (name: string, tokens: number[]): Promise<void> => {
        const { timings } = await send(app, tokens, 8, signal, own);
        show({ name, cells: [count(timings.prefill_tokens, "token"), count(timings.cached_tokens, "token")] });
        found.push(timings.cached_tokens);
      };
      await run("new", prompt!);
      await run("the same again", prompt!);
      await run("another first word", [other!.find((token) => token !== prompt![0]) ?? 0, ...prompt!.slice(1)]);
      show({ name: "20,000 tokens, asked 100 times, no cache", basis: "planned", cells: ["2,000,000 tokens", "0 tokens"] });
      show({ name: "the same with a cache", basis: "planned", cells: ["20,000 tokens", "1,980,000 tokens"] });
      if (found[1] === 0) return "Nothing was found again: this server keeps no prefixes (--no-enable-prefix-caching), so it cannot show this. The scene and the question do.";
      return `Of ${count(length, "token")}, ${number(found[1]!)} were there the second time: whole blocks of ${app.info.block_size}. Behind another first word ${found[2] === 0 ? "none was" : `${number(found[2]!)} were`}.`;
    },
  });
};

/** The lengths of the last requests, packed into the pool of this server as reservations and as pages. */
export const packing: Experiment = (trial) => {
  const { app, signal } = trial;
  counted(trial, {
    caption: "The last requests in this server's pool, both ways",
    columns: ["tokens held by each", "fit at once"],
    button: "Pack them",
    work: async (show) => {
      const { blocks, block_size, max_model_len } = app.info;
      const lengths = (): number[] => [...app.feed.log.requests.values()].flatMap(({ ended }) => (ended && ended.prompt_tokens > 0 ? [ended.prompt_tokens + ended.generated] : [])).slice(-50);
      if (lengths().length < 6) {
        // Nothing to pack yet: a few of different lengths.
        const sent = await Promise.all([20, 60, 120, 200, 50, 90].map(async (length) => send(app, (await prompts(app, 1, long(app, length, 8)))[0]!, 8, signal)));
        for (const { id } of sent) await prefillsOf(app, id);
      }
      const known = lengths();
      if (known.length === 0) throw new Error("the feed has told of no request that has ended");
      const inBlocks = known.map((length) => Math.ceil(length / block_size));
      const [mean, held] = [sum(known) / known.length, (sum(inBlocks) * block_size) / known.length];
      const [reserved, paged] = [Math.floor((blocks * block_size) / max_model_len), Math.floor((blocks * block_size) / held)];
      show({ name: "as long as allowed", cells: [number(max_model_len), number(reserved)] });
      show({ name: `in pages of ${block_size}`, cells: [number(Math.round(held)), number(paged)] });
      return `The last ${count(known.length, "request")} had ${number(Math.round(mean))} tokens in the mean, and pages waste ${number(Math.round(held - mean))} of them each. In ${count(blocks, "block")}, ${number(paged)} such requests fit in pages and ${number(reserved)} by reservation.`;
    },
  });
};

/** The same requests alone and together, and in a pool that is too small for them. */
export const smallPool: Experiment = (trial) => {
  const { app, signal } = trial;
  const { block_size, blocks } = app.info;
  const [prompt, tokens, many] = [long(app, 512, 128), 128, Math.max(1, Math.min(4, app.info.max_num_seqs))];
  const each = Math.ceil((prompt + tokens) / block_size) + 1;
  // Two prompts fit, and do not grow to their ends.
  const small = Math.min(blocks, each + Math.ceil(prompt / block_size) + 1);
  counted(trial, {
    caption: "The same requests in this pool and in a small one",
    columns: ["blocks", "steps with requests waiting for blocks", "preemptions"],
    button: `Send ${many} long requests`,
    limit: shortContext(app, 512, 128),
    work: async (show) => {
      const before = app.feed.log.lastStep?.id ?? -1;
      const wanted = await prompts(app, many, prompt);
      const answers = await Promise.all(wanted.map((prompt) => send(app, prompt, tokens, signal)));
      for (const { id } of answers) await prefillsOf(app, id);
      const steps = app.feed.log.steps.filter((step) => step.id > before);
      const line = (name: string, pool: number, steps: StepEvent[], isSimulated: boolean): [number, number] => {
        const [waited, out] = [steps.filter((step) => step.blocked === "kv").length, sum(steps.map((step) => step.preempted.length))];
        show({ name, ...(isSimulated && { basis: "simulated" }), cells: [number(pool), number(waited), String(out)] });
        return [waited, out];
      };
      line("this pool", blocks, steps, false);
      const { whatif, steps: simulated } = await whatIf(trial, { kv_blocks: String(small) });
      const [waited] = line("a small one", small, simulated.whatif, true);
      let same = 0;
      for (const [at, prompt] of wanted.entries()) if ((await send(app, prompt, tokens, signal)).text === answers[at]!.text) same += 1;
      const inLittle = small >= blocks ? `This server's pool is as small: ${count(blocks, "block")}.` : `In ${count(small, "block")} requests waited for room in ${count(waited, "step")}, and ${count(whatif.preemptions, "request")} had to leave for a while.`;
      return `Each needs ${count(each, "block")}. ${inLittle} Sent alone, ${same} of ${many} said the same, to the letter.${besides(whatif.answers, many)}`;
    },
  });
};

