// A server whose feed is played from a script, so that every figure on the Live page is known.

import { until } from "./lib.mjs";

const sse = (events) => events.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join("");

/** What a clock on the wall showed when the engine began. */
const NOON = Date.UTC(2026, 0, 1, 12);

/** One step of the model. */
export const step = (id, at, took, { decode = [], prefill = [], ...more }) => [
  "step",
  {
    id, at, took, predicted: took, decode, prefill, preempted: [], waiting: 0, waiting_tokens: 0, blocked: null,
    blocks: { used: 1, taken: 0, evicted: 0, copied: 0 }, recomputed: 0, flops: 1e6, bytes: 1e6, ...more,
  },
];

/** The end of a request. */
export const ended = (r, at, more = {}) => ["ended", { r, at, ending: "length", arrived: at, queue_ms: 0, longest_gap_ms: 5, ttft_ms: 5, tpot_ms: 5, prompt_tokens: 8, generated: 4, cached: 0, ...more }];

/** The figures of the moment. */
export const stats = (at, more = {}) => [
  "stats",
  {
    at, unix_ms: NOON + at, running: 1, waiting: 0, used_blocks: 10, cached_blocks: 5, total_blocks: 100, kv_seconds_to_full: null, prefill_backlog_ms: 0, steps: 1,
    prefill_tokens: at, decode_tokens: at, prefix_queries: at, prefix_hits: at / 2, preemptions: 0, paused: false,
    ttft_p50_ms: 5, ttft_p99_ms: 9, itl_p50_ms: 5, itl_p99_ms: 9, ...more,
  },
];

/** Makes a page's feed one that says `events` and ends. */
async function play(page, events, limits) {
  // A server whose clock is behind what its feed has said is another server.
  const now = events.reduce((now, [, { at, took }]) => Math.max(now, (at ?? 0) + (took ?? 0)), 400);
  await page.route("**/live/info", async (route) => {
    // A page that is closed meanwhile takes its answers with it.
    const info = await route.fetch().then((response) => response.json()).catch(() => null);
    if (info) await route.fulfill({ json: { ...info, now_ms: now, now_unix_ms: NOON + now, targets: { ttft_ms: null, tpot_ms: 25 }, limits: limits ?? info.limits } }).catch(() => {});
  });
  await page.route("**/live/feed*", (route) => route.fulfill({ contentType: "text/event-stream", body: sse(events) }));
  await page.route("**/v1/requests/**", (route) => route.fulfill({ status: 404, json: {} }));
}

/** The Live page on a feed that says `events` and ends. */
export async function scripted(context, events, { limits, ...options } = {}) {
  const server = await context.server();
  const prepare = (page) => play(page, events, limits);
  const page = await context.open(server, "/#/live", { prepare, expected: /status of 404|willReadFrequently/, ...options });
  // A feed that ended is asked for again and again: what the page says about that would move the lanes under the pointer.
  await page.evaluate(() => (document.querySelector(".notice").style.display = "none"));
  await page.locator("canvas.timeline").focus();
  // A long one comes in several pieces.
  const end = events.reduce((end, [kind, { at, took }]) => (kind === "step" ? Math.max(end, at + took) : end), 0);
  await until("the end of the script", () => page.locator("canvas.timeline").evaluate((canvas, end) => Number(canvas.dataset.until) >= end, end));
  await until("the script", async () => {
    await page.keyboard.press("End");
    return page.locator(".timeline-box .tip").isVisible();
  });
  await page.keyboard.press("Escape");
  // All of it, to the pixel: 310 ms and 8 % of room.
  await page.keyboard.press("0");
  await page.waitForTimeout(300);
  // And no longer after the present, which moves when the feed is asked for again.
  await page.keyboard.press("f");
  return page;
}

/** A course of requests `r0`, `r1` and so on: the steps that its feed tells, and what the server answers each. */
export class Course {
  events = [];
  answers = [];
  at = 0;
  steps = 0;

  /** `cost`: what a pass that decodes takes by itself in ms, by its rows and the length of the prompt before them. */
  constructor(cost = (rows) => 2 + rows / 8) {
    this.cost = cost;
  }

  /** The machine's share of what comes next, how much is not sure, and its share of each third pass. */
  disturb(machine, uncertain = 0, third = machine) {
    Object.assign(this, { machine, uncertain, third });
    return this;
  }

  /** A pass whose work takes `own` ms. */
  pass(own, rows) {
    const took = own / (1 - (this.steps % 3 === 2 ? this.third : this.machine));
    this.events.push(step(this.steps, this.at, took, { ...rows, stolen: took - own, uncertain: took * this.uncertain }));
    this.steps += 1;
    this.at += took;
  }

  /** `many` that come together: their prompts in passes of at most `chunk` rows, each beside the answer of `beside`, then all answers, `n` each. */
  send(many, { prompt, tokens, cached = 0, chunk = prompt, n = 1, beside = [] }) {
    const names = Array.from({ length: many }, (_, i) => `r${this.answers.length + i}`);
    const decode = names.flatMap((r) => Array.from({ length: n }, (_, a) => ({ r, a, start: prompt })));
    for (const r of names) {
      for (let start = cached; start < prompt; start += chunk) {
        const len = Math.min(chunk, prompt - start);
        this.pass(len / 16 + beside.length, { prefill: [{ r, a: 0, start, len, samples: start + len === prompt ? n : 0, cached }], decode: beside.map((r) => ({ r, a: 0, start: 99 })) });
      }
    }
    for (let i = 1; i < tokens; i += 1) this.pass(this.cost(decode.length, prompt), { decode });
    const time = (own) => ({ wall: own / (1 - this.machine), owners: (name) => ({ [name]: own, machine_ms: own / (1 - this.machine) - own }) });
    const [first, rest] = [time((prompt - cached) / 16), time((tokens - 1) * this.cost(decode.length, prompt))];
    for (const r of names) {
      this.events.push(["ended", { r, at: this.at, ending: "length", arrived: 0, queue_ms: 0, longest_gap_ms: 2, ttft_ms: first.wall, tpot_ms: 2, prompt_tokens: prompt, generated: tokens, cached }]);
      this.answers.push({
        queue_ms: 0, prefill_ms: first.wall, ttft_ms: first.wall, decode_ms: rest.wall, total_ms: first.wall + rest.wall,
        prefill_tokens: prompt - cached, cached_tokens: cached, decode_tokens: n * (tokens - 1), preemptions: 0,
        detail: [{ ttft: first.owners("own_prefill_ms"), gaps: rest.owners("own_decode_ms"), uncertain: { ttft_ms: first.wall * this.uncertain, gaps_ms: rest.wall * this.uncertain } }],
      });
    }
    return this;
  }
}

/** Page `number` of the tour, whose requests are answered as the course says. */
export async function lesson(context, number, { events, answers }) {
  let sent = 0;
  const prepare = async (page) => {
    await play(page, events);
    await page.route("**/v1/completions", async (route) => {
      const id = `r${sent}`;
      const timings = answers[sent];
      sent += 1;
      const said = { id, choices: [{ text: "a", finish_reason: "length" }], timings };
      await route.fulfill(route.request().postDataJSON().stream ? { contentType: "text/event-stream", body: sse([["message", said]]) } : { json: said });
    });
  };
  return context.open(await context.server(), `/#/learn/${number}`, { prepare, expected: /status of 404|willReadFrequently/ });
}
