// Trials that compare times, in pairs; everything else counts.

import type { App } from "../app";
import { add, el, say } from "../dom";
import { labelled } from "../form";
import { rate } from "../phases";
import { ms } from "../units";
import { compared, counted } from "./bench";
import { part } from "./counts2";
import { decodesOf, planned, prompts, type Sample, sampled, send } from "./engine";
import type { Experiment } from "./types";

const SHORT = 16;

/** Why there is no company to be had. */
const alone = ({ info }: App): string => (info.max_num_seqs < 2 ? "This server computes one request at a time (--max-num-seqs 1), so there is no batch to try." : "");

/** One stream against several: the time of a token, all streams together. */
export const streamsAtOnce: Experiment = (trial) => {
  const { app, signal } = trial;
  const many = Math.max(2, Math.min(8, app.info.max_num_seqs));
  const measured = async (streams: number): Promise<Sample> => {
    const { id } = await send(app, await prompts(app, streams, SHORT), 32, signal);
    const steps = (await decodesOf(app, id, true)).filter((step) => step.decode.length === streams);
    return sampled(app, steps, (own) => own / streams);
  };
  compared(trial, {
    caption: "One stream and several at once, in turns",
    button: `1 stream, then ${many}, seven times`,
    column: "time for each token, all streams together",
    cannot: alone(app),
    a: "1 stream",
    b: `${many} streams`,
    run: (which) => measured(which === "a" ? 1 : many),
    gain: (a, b) => a / b,
    format: ms,
    shown: (a, b) => `${many} streams wrote ${(a / b).toFixed(1)} times as many tokens a second as one, and each waited ${((b * many) / a).toFixed(2)} times as long for its next.`,
    reversed: (a, b) => `${many} streams wrote fewer tokens a second than one: ${ms(b)} for each against ${ms(a)}. Rows cost more than a reading here: this machine's knee is below ${many}.`,
    predicted: async () => {
      const plan = await planned(app, { model: "here", machine: "here", prompt: SHORT, response: 32, batch: 1 }, signal);
      const at = plan.by_batch.find(({ batch }) => batch === many);
      return `${rate(plan.tokens_per_second)} alone, ${at ? rate(at.tokens_per_second) : "–"} with ${many}; the knee is at ${plan.knee ?? "–"} rows.`;
    },
    more: async (show) => {
      for (const streams of [2, 4].filter((streams) => streams < many && streams <= app.info.max_num_seqs)) {
        const { value, used, steps } = await measured(streams);
        show({ name: `${streams} streams, once`, cells: [ms(value), `${used} of ${steps}`] });
      }
      const plan = await planned(app, { model: "7b", machine: "a100", prompt: 1024, response: 256, batch: 1 }, signal);
      for (const { batch, tpot_ms, tokens_per_second } of plan.by_batch.filter(({ batch }) => [1, 8, 64, 256].includes(batch))) show({ name: `7B on an A100, ${batch}`, basis: "planned", cells: [`${ms(1000 / tokens_per_second)} (each waits ${ms(tpot_ms)})`, ""] });
      show({ name: "7B on an A100, knee", basis: "planned", cells: [`${plan.knee ?? "–"} rows`, ""] });
    },
  });
};

/** A chat alone, and beside work that can wait; and how many users a machine holds. */
export const chatBesideFlex: Experiment = (trial) => {
  const { app, signal } = trial;
  const flex = Math.max(2, Math.min(20, app.info.max_num_seqs - 1));
  compared(part(trial), {
    caption: "A chat alone and beside flex work, in turns",
    button: `Chat alone, then beside ${flex}`,
    column: "time of the chat's token",
    cannot: alone(app),
    a: "the chat, alone",
    b: `beside ${flex} flex requests`,
    run: async (which) => {
      const [chat] = await prompts(app, 1, SHORT);
      const crowd = which === "b" ? send(app, await prompts(app, flex, SHORT), 64, signal, { service_tier: "flex" }) : null;
      crowd?.catch(() => undefined); // awaited below
      const { id } = await send(app, chat!, 24, signal);
      await crowd;
      const steps = await decodesOf(app, id);
      return sampled(app, steps.filter(({ decode }) => (crowd ? decode.length > 1 : decode.length === 1)));
    },
    gain: (a, b) => b / a,
    format: ms,
    shown: (a, b) => `the chat's token took ${ms(a)} alone and ${ms(b)} in company: that is the price of ${flex} more streams.`,
    reversed: (a, b) => `the chat's token took ${ms(b)} in company and ${ms(a)} alone.`,
    predicted: async () => {
      const at = async (batch: number): Promise<string> => ms((await planned(app, { model: "here", machine: "here", prompt: SHORT, response: 24, batch }, signal)).tpot_ms);
      return `${await at(1)} alone, ${await at(flex + 1)} in a batch of ${flex + 1}.`;
    },
  });
  const users = el("input", { type: "range", min: 100, max: 5000, step: 100, value: 1000 });
  const shown = el("output", { class: "number" }, "1,000");
  users.addEventListener("input", () => say(shown, users.valueAsNumber.toLocaleString("en")));
  const second = part(trial);
  add(second.root, el("h4", {}, "Users of a 7B model on A100s"));
  counted(second, {
    caption: "Who limits, by what they ask",
    columns: ["limited by", "prefill's share", "machines"],
    controls: [el("div", { class: "slider" }, labelled("Users, one question a minute each", users), shown)],
    button: "Plan for them",
    work: async (show) => {
      const kinds: [string, number, number][] = [["chat: 300 + 300", 300, 300], ["documents: 8,000 + 20", 8000, 20]];
      const limits: string[] = [];
      for (const [name, prompt, response] of kinds) {
        const { fleet } = await planned(app, { model: "7b", machine: "a100", prompt, response, users: users.valueAsNumber, rate: "1/min", batch: 1 }, signal);
        if (!fleet) throw new Error("the server planned no fleet");
        show({ name, basis: "planned", cells: [fleet.limiting, `${(100 * fleet.prefill_share).toFixed(0)} %`, String(fleet.machines)] });
        limits.push(fleet.limiting);
      }
      return `Chats are limited by ${limits[0]}, documents with short answers by ${limits[1]}.`;
    },
  });
};
