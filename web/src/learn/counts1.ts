// Trials of part one that count: rows, passes, operations and bytes.

import { add, el, say } from "../dom";
import { labelled } from "../form";
import { count, ms, percent } from "../units";
import { counted } from "./bench";
import { decodesOf, long, planned, prefillsOf, prompts, rowsOf, salt, send, shortContext, sum } from "./engine";
import { of, valueOf } from "./figures";
import type { Experiment } from "./types";

/** The 7B model on an A100 of the calculator. */
const SEVEN = { model: "7b", machine: "a100", batch: 1 };

const visible = (text: string): string => JSON.stringify(text).slice(1, -1);

/** Four words in, four out: a pass of four rows, then passes of one. */
export const fourWords: Experiment = (trial) => {
  const { app, signal } = trial;
  counted(trial, {
    caption: "“Once upon a time”, pass by pass",
    columns: ["rows", "came out", "next in line"],
    button: "Send four words",
    work: async (show) => {
      const answer = await send(app, "Once upon a time", 4, signal, { logprobs: 5, return_token_ids: true });
      const prefill = await prefillsOf(app, answer.id);
      const decode = await decodesOf(app, answer.id);
      const passes = [...prefill.map(rowsOf(answer.id)), ...decode.map((step) => step.decode.filter((row) => row.r === answer.id).length)];
      passes.forEach((rows, at) => {
        // A prompt in several passes makes no token before the last of them.
        const word = answer.words[at - (prefill.length - 1)];
        const next = word?.top.filter(([text]) => text !== word.text).slice(0, 4) ?? [];
        const chance = word?.top.find(([text]) => text === word.text)?.[1];
        show({ name: `pass ${at + 1}`, cells: [count(rows, "row"), word ? `${visible(word.text)}${chance == null ? "" : ` ${percent(chance)}`}` : "", next.map(([text, chance]) => `${visible(text)} ${percent(chance)}`).join(", ")] });
      });
      const rows = sum(prefill.map(rowsOf(answer.id)));
      return `${count(prefill.length, "pass", "passes")} of ${count(rows, "row")} for the prompt, then ${count(decode.length, "pass", "passes")} of one row each.`;
    },
  });
};

/** Prompt and answer by slider: passes here, times of both phases by plan. */
export const lengths: Experiment = (trial) => {
  const { app, signal } = trial;
  const slider = (name: string, max: number, value: number, step: number) => {
    const input = el("input", { type: "range", min: step, max, step, value });
    const shown = el("output", { class: "number" }, value.toLocaleString("en"));
    input.addEventListener("input", () => say(shown, input.valueAsNumber.toLocaleString("en")));
    return { input, row: el("div", { class: "slider" }, labelled(name, input), shown), shown };
  };
  const prompt = slider("Tokens of the prompt", 20_000, 1000, 10);
  const answer = slider("Tokens of the answer", 1000, 200, 10);
  const preset = (tokens: number) =>
    el("button", { type: "button", onclick: () => [prompt, answer].forEach(({ input, shown }, at) => say(shown, (input.valueAsNumber = [tokens, 200][at]!).toLocaleString("en"))) }, `${tokens.toLocaleString("en")} + 200`);
  counted(trial, {
    caption: "Passes, and the time of both phases",
    columns: ["passes", "TTFT", "TPOT", "total", "prefill's share"],
    controls: [el("div", { class: "row", role: "group", "aria-label": "Three prompts in order" }, ...[10, 1000, 10_000].map(preset)), prompt.row, answer.row],
    button: "Compute it",
    keeps: 6,
    work: async (show) => {
      const [p, n] = [prompt.input.valueAsNumber, answer.input.valueAsNumber];
      if (p + n <= app.info.max_model_len) {
        const [tokens] = await prompts(app, 1, p);
        const { id } = await send(app, tokens!, n, signal, { cache_salt: salt() });
        const [prefill, decode] = [await prefillsOf(app, id), await decodesOf(app, id)];
        // Beside the prompts of others a pass of the answer counts as one of theirs.
        const passes = Math.max(decode.length, n - 1);
        show({ name: `${p} + ${n}, sent to this server`, cells: [`${prefill.length} + ${passes}`, "", "", "", ""] });
      }
      const plan = await planned(app, { ...SEVEN, prompt: p, response: n }, signal);
      show({ name: `${p} + ${n}, 7B on an A100`, basis: "planned", cells: [`${plan.prefill.passes} + ${plan.decode.passes}`, ms(plan.ttft_ms), ms(plan.tpot_ms), ms(plan.total_ms), percent(plan.prefill.share)] });
      return `${ms(plan.ttft_ms)} to the first token + ${n - 1} × ${ms(plan.tpot_ms)} = ${ms(plan.total_ms)}; ${(1000 / plan.tpot_ms).toFixed(0)} tokens a second, and people read about 5 words.${p + n > app.info.max_model_len ? ` This server reads at most ${app.info.max_model_len.toLocaleString("en")} tokens, so this is planned and not sent.` : ""}`;
    },
  });
};

/** Forty tokens, each by a request of its own that reads all before it again; and forty of one. */
export const fortyAnswers: Experiment = (trial) => {
  const { app, signal } = trial;
  const many = long(app, 40, 32);
  counted(trial, {
    caption: "The same words without a KV cache and with it",
    columns: ["requests", "rows computed"],
    button: `Write ${many} tokens both ways`,
    work: async (show) => {
      const whole = await send(app, "Once upon a time", many, signal, { return_token_ids: true, cache_salt: salt() });
      const { prompt, tokens } = whole;
      if (tokens.length !== many || prompt.length === 0) throw new Error("the server does not give the ids of tokens (return_token_ids), which this trial sends again");
      let [rows, same] = [0, 0];
      for (let at = 0; at < many; at += 1) {
        const one = await send(app, [...prompt, ...tokens.slice(0, at)], 1, signal, { return_token_ids: true, cache_salt: salt() });
        rows += one.timings.prefill_tokens;
        if (one.tokens[0] === tokens[at]) same += 1;
      }
      const kept = whole.timings.prefill_tokens + whole.timings.decode_tokens;
      show({ name: "each word from the start again", cells: [String(many), rows.toLocaleString("en")] });
      show({ name: "with the KV cache", cells: ["1", kept.toLocaleString("en")] });
      show({ name: "500 words, without a prompt", basis: "planned", cells: ["500 or 1", `${of("rows500")} or 500`] });
      return `${rows.toLocaleString("en")} rows against ${kept}, and ${same === many ? "the same" : `${same} of`} ${many} tokens.`;
    },
  });
};

/** Operations for each byte in both phases, counted; and two divisions to do oneself. */
export const intensities: Experiment = (trial) => {
  const { root, app, signal } = trial;
  const fill = (name: string, key: string) => {
    const input = el("input", { type: "number", min: 0, step: "any" });
    const verdict = el("span", { class: "quiet-text", role: "status" });
    input.addEventListener("input", () => {
      const off = Math.abs(input.valueAsNumber / valueOf(key) - 1);
      say(verdict, Number.isNaN(off) ? "" : off < 0.03 ? `Right: ${of(key)}.` : "Not yet.");
    });
    return el("div", { class: "row fill-in" }, labelled(name, input), verdict);
  };
  add(root, fill("1,024 × 14 GFLOP / 312 TFLOP/s, in ms", "prefill1024"), fill("14 GB / 2 TB/s, in ms", "token"));
  const prompt = long(app, 512, 16);
  counted(trial, {
    caption: "Operations for each byte that is read",
    columns: ["rows", "FLOP a byte"],
    button: "Count both phases",
    limit: shortContext(app, 512, 16),
    work: async (show) => {
      const [tokens] = await prompts(app, 1, prompt);
      const { id, timings } = await send(app, tokens!, 16, signal, { cache_salt: salt() });
      const intensity = async (steps: { flops: number; bytes: number }[], told: number | undefined): Promise<number> => told ?? sum(steps.map(({ flops }) => flops)) / Math.max(1, sum(steps.map(({ bytes }) => bytes)));
      const [prefill, decode] = [await intensity(await prefillsOf(app, id), timings.prefill?.intensity), await intensity(await decodesOf(app, id), timings.decode?.intensity)];
      show({ name: "prefill", cells: [timings.prefill_tokens.toLocaleString("en"), prefill.toFixed(0)] });
      show({ name: "decode", cells: [timings.decode_tokens.toLocaleString("en"), decode.toFixed(1)] });
      const { limits } = app.info;
      const ridge = limits ? ` This machine does ${(limits.matrix_flops / limits.read_bandwidth).toFixed(1)} operations in the time of a byte: above that arithmetic is the limit, below it memory.` : "";
      return `A byte is used for ${prefill.toFixed(0)} operations in prefill and for ${decode.toFixed(1)} in decode.${ridge}`;
    },
  });
};
