// Trials of part three that count: tokens of a pass, hidden tokens, bytes on a link, prices.

import { el } from "../dom";
import { labelled } from "../form";
import { count, ms, short } from "../units";
import { counted } from "./bench";
import { chat, long, planned, send } from "./engine";
import type { Experiment } from "./types";

/** It repeats itself, and so will its answer: n-grams find many drafts. */
const REPEATS = "The fox sat by the door. The owl sang of gold.\n".repeat(4);

/** The same words without drafts and with them, in passes. */
export const tokensOfPass: Experiment = (trial) => {
  const { app, signal } = trial;
  const tokens = long(app, 160, 240);
  counted(trial, {
    caption: "The same words without drafts and with them",
    columns: ["tokens", "passes", "tokens of a pass", "drafted", "accepted"],
    button: "Send it both ways",
    work: async (show) => {
      const run = async (name: string, more: object) => {
        const { text, timings } = await send(app, REPEATS, tokens, signal, more);
        const { decode_tokens, drafted_tokens: drafted = 0, accepted_tokens: accepted = 0 } = timings;
        // The first token came of the prompt; of the others each had a pass, or was an accepted draft.
        const passes = decode_tokens - accepted;
        show({ name, cells: [count(decode_tokens, "token"), String(passes), (decode_tokens / Math.max(1, passes)).toFixed(1), String(drafted), String(accepted)] });
        return { text, passes, drafted, accepted };
      };
      const without = await run("without drafts", {});
      const drafts = await run("with drafts", { speculate: true });
      if (drafts.drafted === 0) return "There were no drafts: this server was started with --speculate off, or drafts do not pay now. The scene and the question show what they would do.";
      const same = drafts.text === without.text ? "The words are the same." : "The words differ, which must not be.";
      return `${drafts.passes} passes in place of ${without.passes}: ${drafts.accepted} of ${count(drafts.drafted, "draft")} were the model's own choice. ${same}`;
    },
  });
};

/** A question with no thought allowed, and with 64 tokens of it. */
export const thoughtBudget: Experiment = (trial) => {
  const { app, signal } = trial;
  counted(trial, {
    caption: "“What is 7 + 5?” with two budgets of thought",
    columns: ["tokens thought", "first visible token", "tokens in all"],
    button: "Ask with both budgets",
    work: async (show) => {
      const run = async (budget: number): Promise<number> => {
        const { thought, timings } = await chat(app, "What is 7 + 5?", long(app, 128, 64), signal, { thinking_token_budget: budget });
        const all = timings.decode_tokens + 1;
        show({ name: `budget ${budget}`, cells: [String(thought), thought === 0 ? "the first" : `after ${count(thought, "token")} and its marks`, String(all)] });
        return thought;
      };
      await run(0);
      const thought = await run(64);
      if (thought === 0) return `${app.info.name} does not think, with any budget. A model that does decodes all of it before the first visible word: the scene shows how long that is.`;
      return `${count(thought, "token")} were decoded before there was anything to see; ${thought >= 64 ? "the budget ended the thought." : "the thought was shorter than its budget."}`;
    },
  });
};

const figure = (name: string, value: number, step: string): { input: HTMLInputElement; row: HTMLElement } => {
  const input = el("input", { type: "number", min: 0, step, value });
  return { input, row: labelled(name, input) };
};

function positive(input: HTMLInputElement, name: string): number {
  if (input.valueAsNumber > 0 && Number.isFinite(input.valueAsNumber)) return input.valueAsNumber;
  throw new Error(`${name} has to be a number above 0`);
}

/** A prompt's keys and values over a link, against the prefill that they save. */
export const shipping: Experiment = (trial) => {
  const { app, signal } = trial;
  const [prompt, link] = [figure("Tokens of the prompt", 4000, "1"), figure("Link, Gbit/s", 100, "any")];
  counted(trial, {
    caption: "Bytes that travel, against prefill that is saved",
    columns: ["bytes", "on the link", "prefill"],
    controls: [el("div", { class: "row" }, prompt.row, link.row)],
    button: "Ship it",
    work: async (show) => {
      const [tokens, rate] = [Math.round(positive(prompt.input, "the prompt")), positive(link.input, "the link") * 1.25e8];
      const line = async (name: string, question: Record<string, string>): Promise<[number, number]> => {
        const plan = await planned(app, { ...question, prompt: tokens, response: 2, batch: 1 }, signal);
        const bytes = tokens * plan.memory.kv_per_token;
        const way = (bytes * 1000) / rate;
        show({ name, basis: "planned", cells: [`${short(bytes)}B`, ms(way), ms(plan.ttft_ms)] });
        return [way, plan.ttft_ms];
      };
      const [way, prefill] = await line("7B on an A100", { model: "7b", machine: "a100" });
      if (tokens < app.info.max_model_len) await line(`${app.info.name}, here`, { model: "here", machine: "here" });
      return way < prefill ? `The way takes ${((100 * way) / prefill).toFixed(0)} % of the prefill: apart pays where prompts disturb streams for longer than that.` : `The way takes ${(way / prefill).toFixed(1)} times as long as the prefill that it saves: over this link, one pool with chunks is better.`;
    },
  });
};

/** Prices of a million tokens from a price of an hour, by the times of both phases. */
export const ownPrice: Experiment = (trial) => {
  const { app, signal } = trial;
  const [hour, busy] = [figure("Price of an hour", 2, "any"), figure("Busy, per cent of the time", 100, "1")];
  counted(trial, {
    caption: "Price of a million tokens of a 7B model on an A100",
    columns: ["input", "output"],
    controls: [el("div", { class: "row" }, hour.row, busy.row)],
    button: "Work it out",
    work: async (show) => {
      const share = positive(busy.input, "the share of the time") / 100;
      if (share > 1) throw new Error("the share of the time has to be at most 100");
      const perMs = positive(hour.input, "the price") / 3.6e6 / share;
      const money = (value: number): string => value.toFixed(2);
      const prices: number[] = [];
      let input = 0;
      for (const batch of [1, 8, 64]) {
        const plan = await planned(app, { model: "7b", machine: "a100", prompt: 1024, response: 256, batch }, signal);
        if (batch === 1) input = (perMs * plan.ttft_ms * 1e6) / 1024;
        const output = (perMs * plan.tpot_ms * 1e6) / batch;
        show({ name: `batch ${batch}`, basis: "planned", cells: [money(input), money(output)] });
        prices.push(output);
      }
      return `A million tokens of input cost ${money(input)}, of output ${money(prices[0]!)} alone and ${money(prices[2]!)} in a batch of 64: ${(prices[2]! / input).toFixed(0)} times the input's price even then.`;
    },
  });
};
