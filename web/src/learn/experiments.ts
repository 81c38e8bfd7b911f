// What the tour lets one try. Every number comes from the engine: the `timings` of the answers and the steps of the feed. Times are
// those of the work itself, without what the machine took for others; where that was too much there is no lesson in them.

import type { App } from "../app";
import { type Answer, ask, longPrompt, told as refusal, type Timings } from "../ask";
import { add, el, fill, say } from "../dom";
import { labelled } from "../form";
import { own } from "../limits";
import { Log, type Step } from "../log";
import { phaseBar, rate, told } from "../phases";
import { count, median, ms, percent } from "../units";
import { CourseView } from "../whatif";
import type { StepEvent } from "../wire";

/** Tokens of a prompt that is long for this model, and leaves room for the answer. */
function long(app: App, wanted: number): number {
  return Math.max(16, Math.min(wanted, Math.floor(app.info.max_model_len / 2)));
}

/** What came back of a prompt that was sent. */
type Sent = Pick<Answer, "id" | "text" | "timings">;

/**
 * Sends a prompt; the answer has exactly `tokens` tokens, each of a pass. It comes in one piece: a page that reads a stream takes
 * the cores that are to be measured. A refusal is thrown.
 */
async function send(app: App, prompt: number[] | number[][] | string, tokens: number, signal: AbortSignal, more: object = {}): Promise<Sent> {
  const body = JSON.stringify({ prompt, max_tokens: tokens, ignore_eos: true, temperature: 0, speculate: false, timings_detail: true, ...more });
  const response = await app.api("/v1/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
  if (!response.ok) throw new Error(await refusal(response));
  const { id, choices, timings } = await response.json();
  return { id, text: choices[0].text, timings };
}

/** What the machine took is left out of a time. That may be wrong by this share of what is left: beyond it the time teaches nothing. */
const UNSURE = 0.2;

const sum = (values: number[]): number => values.reduce((sum, value) => sum + value, 0);

/** Those of the steps that teach something, with the time that they took by themselves; `null`: not a quarter of them do. */
function alone(app: App, steps: Step[]): Step[] | null {
  const known = steps.flatMap((step) => {
    const took = own(step, app.info.limits);
    return took == null || (step.uncertain ?? 0) > UNSURE * took ? [] : [{ ...step, took }];
  });
  return known.length > 0 && known.length * 4 >= steps.length ? known : null;
}

/** The time that such a step takes, or a thing of which each has some. */
const each = (steps: Step[] | null, of: (step: Step) => number = () => 1): number | null => steps && sum(steps.map((step) => step.took)) / sum(steps.map(of));

/** The share of an answer's time that is not the machine's; `null` as above, and where not each millisecond has an owner. */
function left({ timings }: Sent, of: "ttft" | "gaps"): number | null {
  const detail = timings?.detail?.[0];
  if (!detail) return null;
  const whole = Math.max(1e-9, sum(Object.values(detail[of])));
  const machine = (detail[of]["machine_ms"] ?? 0) + (detail[of]["remote_machine_ms"] ?? 0);
  return (detail.uncertain?.[`${of}_ms`] ?? 0) > UNSURE * (whole - machine) ? null : 1 - machine / whole;
}

/** The time to an answer's first token without what the machine had of it. */
function aloneTtft(sent: Sent): number | null {
  const share = left(sent, "ttft");
  return share && sent.timings!.ttft_ms * share;
}

/** All times of an answer, likewise. */
function aloneTimings(sent: Sent): Timings | null {
  const [{ timings }, ttft_ms, share] = [sent, aloneTtft(sent), left(sent, "gaps")];
  if (!timings || ttft_ms == null || share == null) return null;
  const queue_ms = Math.min(timings.queue_ms, ttft_ms);
  const decode_ms = timings.decode_ms * share;
  return { ...timings, ttft_ms, queue_ms, prefill_ms: ttft_ms - queue_ms, decode_ms, total_ms: ttft_ms + decode_ms };
}

/** Time per output token in ms. */
function tpot({ decode_ms, decode_tokens }: Timings): number {
  return decode_tokens > 0 ? decode_ms / decode_tokens : 0;
}

/** Rows of a request's prompt in a step. */
const rowsOf = (id: string) => (step: Step): number => sum(step.prefill.filter((row) => row.r === id).map((row) => row.len));

/** The passes over a request's prompt. */
function prefillsOf(app: App, id: string): Step[] {
  return app.feed.log.steps.filter((step) => rowsOf(id)(step) > 0);
}

/** The passes without a prompt that decoded for one of these requests; with `rows`, those of that number of rows, all of them theirs. */
function decodesOf(app: App, ids: unknown[], rows?: number): Step[] {
  const theirs = (row: { r: unknown }): boolean => ids.includes(row.r);
  return app.feed.log.steps.filter(({ prefill, decode }) => prefill.length === 0 && (rows == null ? decode.some(theirs) : decode.length === rows && decode.every(theirs)));
}

/** A line of results: its name, its figures, and the phases to scale. */
interface Result {
  name: string;
  cells: string[];
  answer: Sent | null;
}

/**
 * A button that runs something, a place for what it does now, and a table of what came out. `work` says what that teaches, or
 * `null`: the machine was too busy. Then there is a button to try again, which replaces the rows of that time.
 */
function bench(
  root: HTMLElement,
  signal: AbortSignal,
  caption: string,
  columns: string[],
  controls: HTMLElement[],
  name: string,
  work: (show: (result: Result) => void) => Promise<string | null>,
): void {
  const status = el("p", { class: "status", role: "status" });
  const body = el("tbody", {});
  const head = el("tr", {}, ...["", ...columns].map((column) => el("th", { scope: "col" }, column)));
  const table = el("table", {}, el("caption", {}, caption), el("thead", {}, head), body);
  const results = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption, hidden: true }, table);
  let rows: HTMLElement[] = [];
  const show = ({ name, cells, answer }: Result) => {
    results.hidden = false;
    const timings = answer && aloneTimings(answer);
    const row = el("tr", {}, el("th", { scope: "row" }, name, timings && phaseBar(timings)), ...cells.map((cell) => el("td", {}, cell)));
    rows.push(row);
    add(body, row);
  };
  const run = async () => {
    start.disabled = true;
    for (const row of rows) row.remove();
    rows = [];
    say(status, "The engine is at work…");
    try {
      const lesson = await work(show);
      if (lesson == null) fill(status, "Your machine is busy: ", el("button", { type: "button", onclick: () => void run() }, "again"));
      else {
        say(status, lesson);
        rows = [];
      }
    } catch (error) {
      if (!signal.aborted) say(status, `That did not work: ${error instanceof Error ? error.message : String(error)}`);
    }
    start.disabled = false;
    // The button that was pressed may be gone, and the keyboard goes on from here.
    if (document.activeElement === document.body && !signal.aborted) (status.querySelector("button") ?? start).focus({ preventScroll: true });
  };
  const start = el("button", { type: "button", class: "primary", onclick: () => void run() }, name);
  add(root, ...controls, el("div", { class: "row" }, start), status, results);
}

export function twoPhases(root: HTMLElement, app: App, signal: AbortSignal): void {
  const [prompt, tokens] = [long(app, 1024), 64];
  const columns = ["prompt", "passes", "time each", "answer", "passes", "time each"];
  bench(root, signal, "One prompt that is long, one answer that is long", columns, [], "Send both", async (show) => {
    const run = async (name: string, promptTokens: number, answerTokens: number) => {
      const answer = await send(app, await longPrompt(app, promptTokens), answerTokens, signal);
      await told(app, answer.id);
      const [prefill, decode] = [prefillsOf(app, answer.id), decodesOf(app, [answer.id])];
      const [token, pace] = [each(alone(app, prefill), rowsOf(answer.id)), each(alone(app, decode))];
      show({ name, cells: [count(promptTokens, "token"), String(prefill.length), ms(token), count(answerTokens, "token"), String(decode.length), ms(pace)], answer });
      return { token, pace };
    };
    const { token } = await run("long prompt", prompt, 8);
    const { pace } = await run("long answer", 16, tokens);
    if (!token || !pace) return null;
    return `A token of the long prompt took ${ms(token)}, a token of the long answer ${ms(pace)}: ${(pace / token).toFixed(1)} times as long, through the same weights.`;
  });
}

export function ttftAndTpot(root: HTMLElement, app: App, signal: AbortSignal): void {
  const slider = (max: number, value: number) => el("input", { type: "range", min: 16, max, step: 16, value });
  const prompt = slider(long(app, 4096), Math.min(512, long(app, 4096)));
  const tokens = slider(long(app, 256), Math.min(64, long(app, 256)));
  const shown = (input: HTMLInputElement) => {
    const output = el("output", { class: "number" }, input.value);
    input.addEventListener("input", () => say(output, input.value));
    return output;
  };
  const controls = [
    el("div", { class: "slider" }, labelled("Tokens of the prompt", prompt), shown(prompt)),
    el("div", { class: "slider" }, labelled("Tokens of the answer", tokens), shown(tokens)),
  ];
  bench(root, signal, "What you sent", ["TTFT", "TPOT", "total", "prefill's share"], controls, "Send", async (show) => {
    const [promptTokens, answerTokens] = [prompt.valueAsNumber, tokens.valueAsNumber];
    const answer = await send(app, await longPrompt(app, promptTokens), answerTokens, signal);
    const timings = aloneTimings(answer);
    const { ttft_ms, total_ms, decode_tokens } = timings ?? {};
    const cells = timings ? [ms(ttft_ms), ms(tpot(timings)), ms(total_ms), percent(timings.ttft_ms / timings.total_ms)] : ["–", "–", "–", "–"];
    show({ name: `${promptTokens} + ${answerTokens}`, cells, answer });
    return timings && `${ms(ttft_ms)} to the first token + ${decode_tokens} × ${ms(tpot(timings))} = ${ms(total_ms)}.`;
  });
}

export function batching(root: HTMLElement, app: App, signal: AbortSignal): void {
  const TOKENS = 96;
  const many = Math.max(2, Math.min(8, app.info.max_num_seqs));
  bench(root, signal, "Streams at once", ["time per token", "each stream", "all together"], [], `One stream, then ${many}`, async (show) => {
    const run = async (streams: number) => {
      const prompts = await Promise.all(Array.from({ length: streams }, () => longPrompt(app, 16)));
      // In one call: a browser holds back what is more than six.
      const { id } = await send(app, prompts, TOKENS, signal);
      await told(app, id);
      const pace = each(alone(app, decodesOf(app, [id], streams)));
      const cells = pace ? [ms(pace), rate(1000 / pace), rate((streams * 1000) / pace)] : ["–", "–", "–"];
      show({ name: count(streams, "stream"), cells, answer: null });
      return pace;
    };
    const single = await run(1);
    const crowd = await run(many);
    if (!single || !crowd) return null;
    return `${many} streams wrote ${((many * single) / crowd).toFixed(1)} times as many tokens per second as one, and each waited ${(crowd / single).toFixed(2)} times as long for its next token.`;
  });
}

export function chunks(root: HTMLElement, app: App, signal: AbortSignal): void {
  const length = long(app, 4096);
  bench(root, signal, "A long prompt, alone and beside a stream", ["passes", "rows of a pass", "time of a pass (median)", "TTFT"], [], "Start a stream and disturb it", async (show) => {
    const run = async (name: string) => {
      const answer = await send(app, await longPrompt(app, length), 1, signal);
      await told(app, answer.id);
      const prefill = prefillsOf(app, answer.id);
      const rows = prefill.map(rowsOf(answer.id));
      const known = alone(app, prefill);
      const pass = known && median(known.map((step) => step.took));
      const chunks = prefill.length === 0 ? "–" : Math.min(...rows) === Math.max(...rows) ? String(rows[0]) : `${Math.min(...rows)} to ${Math.max(...rows)}`;
      show({ name, cells: [String(prefill.length), chunks, ms(pass), ms(aloneTtft(answer))], answer });
      return { token: each(known, rowsOf(answer.id)), pass };
    };
    const { token } = await run("the prompt, alone");
    const streamEnd = new AbortController();
    signal.addEventListener("abort", () => streamEnd.abort());
    let stream = "";
    const short = await longPrompt(app, 16);
    // It ends when the prompt has been computed, or at the model's own limit.
    const body = { prompt: short, max_tokens: app.info.max_model_len - 16, ignore_eos: true, temperature: 0, speculate: false };
    const running = ask(app, "/v1/completions", body, { signal: streamEnd.signal, onText: (_, answer) => (stream = answer.id) });
    await soon(() => stream !== "" || signal.aborted);
    await pause(300); // some of its tokens undisturbed
    const { pass } = await run("the prompt, beside a stream");
    streamEnd.abort();
    await running;
    const quiet = decodesOf(app, [stream]);
    const known = alone(app, quiet);
    const usual = known && median(known.map((step) => step.took));
    show({ name: "the stream, undisturbed", cells: [String(quiet.length), "1", ms(usual), ""], answer: null });
    if (usual == null || pass == null || token == null) return null;
    return `The stream's passes took ${ms(usual)} each, beside the prompt ${ms(pass)}. Alone the prompt took ${ms(token * length)}: that long the stream would have stood still had it come in one piece.`;
  });
}

export function prefixCache(root: HTMLElement, app: App, signal: AbortSignal): void {
  const length = long(app, 2048);
  bench(root, signal, "The same prompt twice", ["computed", "from the cache", "TTFT", "TPOT"], [], "Send it twice", async (show) => {
    const prompt = await longPrompt(app, length);
    const run = async (name: string) => {
      const answer = await send(app, prompt, 32, signal);
      const [timings, ttft] = [aloneTimings(answer), aloneTtft(answer)];
      const { prefill_tokens, cached_tokens: cached } = answer.timings!;
      show({ name, cells: [count(prefill_tokens, "token"), count(cached, "token"), ms(ttft), ms(timings && tpot(timings))], answer });
      return { ttft, cached };
    };
    const first = await run("first time");
    const second = await run("second time");
    if (first.ttft == null || second.ttft == null) return null;
    return `Of ${count(length, "token")}, ${second.cached.toLocaleString("en")} were there already: the first token came after ${ms(second.ttft)} instead of ${ms(first.ttft)}.`;
  });
}

/** The part of `GET /live/whatif` that is read here. */
interface SmallPool {
  whatif: { preemptions: number; ttft?: { p99: number } };
  steps: { whatif: StepEvent[] };
}

export function kvWall(root: HTMLElement, app: App, signal: AbortSignal): void {
  const { block_size, blocks } = app.info;
  const [prompt, tokens, requests] = [long(app, 1536), 256, Math.max(1, Math.min(4, app.info.max_num_seqs))];
  const each = Math.ceil((prompt + tokens) / block_size) + 1;
  // One fits, two do not grow to their ends.
  const small = Math.min(blocks, Math.ceil(1.9 * each));
  const picture = el("div", {});
  const columns = ["blocks in use", "of the pool", "steps with requests waiting for blocks", "preemptions"];
  bench(root, signal, "The same requests in this pool and in a small one", columns, [], `Send ${requests} long requests`, async (show) => {
    const before = app.feed.log.lastStep?.id ?? -1;
    const preempted = app.feed.log.stats.at(-1)?.preemptions ?? 0;
    const prompts = await Promise.all(Array.from({ length: requests }, () => longPrompt(app, prompt)));
    const answers = await Promise.all(prompts.map((prompt) => send(app, prompt, tokens, signal)));
    await Promise.all(answers.map((answer) => told(app, answer.id)));
    const line = (name: string, pool: number, steps: StepEvent[], preemptions: number): number => {
      const peak = Math.max(0, ...steps.map((step) => step.blocks.used));
      const waited = steps.filter((step) => step.blocked === "kv").length;
      show({ name, cells: [peak.toLocaleString("en"), `${((100 * peak) / pool).toFixed(1)} %`, `${waited.toLocaleString("en")} of ${steps.length.toLocaleString("en")}`, String(preemptions)], answer: null });
      return waited;
    };
    line(`this pool, ${count(blocks, "block")}`, blocks, app.feed.log.steps.filter((step) => step.id > before), (app.feed.log.stats.at(-1)?.preemptions ?? 0) - preempted);
    // The same minute again, through the production scheduler with a pool that is too small.
    const response = await app.api(`/live/whatif?${new URLSearchParams({ minutes: "1", kv_blocks: String(small) })}`, { signal });
    if (!response.ok) throw new Error((await response.text()).slice(0, 300));
    const { whatif, steps } = (await response.json()) as SmallPool;
    const waited = line(`simulated, ${count(small, "block")}`, small, steps.whatif, whatif.preemptions);
    lanesOf(picture, steps.whatif, signal);
    const firsts = answers.map(aloneTtft);
    const isWall = waited > 0 || whatif.preemptions > 0;
    // Several that are sent together and do not meet were held up on their way.
    if (!firsts.every((ttft) => ttft != null) || (!isWall && requests > 1)) return null;
    const slowest = Math.max(...firsts);
    const wall = isWall ? `With a pool of ${count(small, "block")} they hit the wall: requests waited for blocks in ${count(waited, "step")}, ${count(whatif.preemptions, "request")} lost ${whatif.preemptions === 1 ? "its" : "their"} blocks for a while, and the slowest first token came after ${ms(whatif.ttft?.p99)} instead of ${ms(slowest)}.` : "Even a small pool was enough: this server computes one at a time.";
    return `A request of ${prompt} + ${tokens} tokens needs ${count(each, "block")}, so ${Math.floor(blocks / each).toLocaleString("en")} of them fit into this server's pool. ${wall}`;
  });
  add(root, picture);
}

/** It repeats itself, and so will its answer: n-grams find many drafts. */
const REPEATS = "The fox sat by the door. The owl sang of gold.\n".repeat(4);

export function drafts(root: HTMLElement, app: App, signal: AbortSignal): void {
  const tokens = long(app, 160);
  const many = Math.max(2, Math.min(8, app.info.max_num_seqs));
  bench(root, signal, "The same words without drafts and with them", ["tokens", "passes", "tokens of a pass", "time of a pass", "drafted", "accepted"], [], "Send it", async (show) => {
    const run = async (name: string, streams: number, more: object) => {
      const answer = await send(app, REPEATS, tokens, signal, { n: streams, ...more });
      await told(app, answer.id);
      const known = alone(app, decodesOf(app, [answer.id], streams));
      const took = known && median(known.map((step) => step.took));
      const { decode_tokens, drafted_tokens: drafted = 0, accepted_tokens: accepted = 0 } = answer.timings!;
      // The first tokens came of the prompt; of the others each had a row of its own, or was an accepted draft.
      const passes = decode_tokens - accepted;
      const each = decode_tokens / Math.max(1, passes);
      const cells = [count(decode_tokens, "token"), String(passes / streams), (each * streams).toFixed(1), ms(took), String(drafted), String(accepted)];
      show({ name, cells, answer });
      return { took, each, drafted, accepted, text: answer.text, passes: passes / streams };
    };
    const without = await run("without", 1, {});
    const crowd = await run(`${many} answers at once`, many, {});
    const withDrafts = await run("with drafts", 1, { speculate: true });
    if (!without.took || !crowd.took) return null;
    const rows = `A pass with ${many} rows took ${(crowd.took / without.took).toFixed(2)} times as long as one with a single row: that is what further rows cost.`;
    if (withDrafts.drafted === 0) return `${rows} There were no drafts: start the server without --speculate off to see what fills them.`;
    const same = withDrafts.text === without.text ? "The words are the same." : "The words differ, which must not be.";
    return `${rows} With drafts, ${withDrafts.accepted} of ${withDrafts.drafted} were accepted: ${withDrafts.passes} passes instead of ${without.passes}, ${withDrafts.each.toFixed(1)} tokens each. ${same}`;
  });
}

/** The lanes of simulated steps, to scale. */
function lanesOf(root: HTMLElement, steps: StepEvent[], signal: AbortSignal): void {
  const log = new Log(Infinity);
  for (const step of steps) log.step(step);
  const [first, last] = [log.steps[0], log.lastStep];
  if (!first || !last) return;
  const view = new CourseView({ title: "The same requests in the small pool", log, worst: null, ttft: { median: null, slowest: null } }, first.at, (last.end - first.at) * 1.02);
  signal.addEventListener("abort", () => view.end());
  fill(root, view.element);
}

function pause(wait: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, wait));
}

/** Waits until `is` holds, at most ten seconds. */
async function soon(is: () => boolean): Promise<void> {
  for (let tries = 0; tries < 500 && !is(); tries += 1) await pause(20);
}
