// What one has chosen on the timeline, below it, until Escape: a place that was clicked, or a stretch of time, summed.
//
//   steps in the stretch --> sum() --> tokens by phase, and for each request: own, others' decode, others' prompts, the machine's, waiting

import { add, el, fill, show } from "./dom";
import { timeOf } from "./lanes";
import type { Log, Request, Step } from "./log";
import { describe, type Hit, requestOf } from "./tips";
import { count, ms, shortName } from "./units";
import type { DecodeRow } from "./wire";

const ROWS = 12;

/** A stretch of time. */
export interface Range {
  from: number;
  to: number;
}

/** Milliseconds of one request by owner, and its tokens. */
interface Owned {
  request: Request;
  prompt: number;
  output: number;
  own: number;
  decode: number;
  prefill: number;
  machine: number;
  waiting: number;
}

/** What happened in a stretch. */
export interface Sum {
  steps: number;
  promptTokens: number;
  outputTokens: number;
  late: number;
  /** Milliseconds of steps by what they carried, and of none. */
  time: { prefill: number; both: number; decode: number; none: number };
  requests: Owned[];
}

export function sum(log: Log, { from, to }: Range): Sum {
  const result: Sum = { steps: 0, promptTokens: 0, outputTokens: 0, late: 0, time: { prefill: 0, both: 0, decode: 0, none: to - from }, requests: [] };
  const owned = new Map<Request, Owned>();
  const of = (request: Request): Owned => {
    const known = owned.get(request) ?? { request, prompt: 0, output: 0, own: 0, decode: 0, prefill: 0, machine: 0, waiting: 0 };
    owned.set(request, known);
    return known;
  };
  const row = (step: Step, share: number, ended: boolean, request: Request, row: DecodeRow, prompt: number, output: number): void => {
    const sum = of(request);
    const time = timeOf(step, row);
    sum.own += time.own * share;
    sum.decode += time.decode * share;
    sum.prefill += time.prefill * share;
    sum.machine += time.machine * share;
    if (!ended) return;
    sum.prompt += prompt;
    sum.output += output;
    result.promptTokens += prompt;
    result.outputTokens += output;
  };
  for (let i = log.firstStepAfter(from); i < log.steps.length; i += 1) {
    const step = log.steps[i]!;
    if (step.at >= to) break;
    const overlap = Math.max(0, Math.min(step.end, to) - Math.max(step.at, from));
    const share = step.took > 0 ? overlap / step.took : 0;
    // A token comes when its step is over.
    const ended = step.end <= to;
    result.steps += 1;
    result.late += ended ? step.late.length : 0;
    result.time.none -= overlap;
    result.time[step.prefill.length === 0 ? "decode" : step.decode.length === 0 ? "prefill" : "both"] += overlap;
    step.decode.forEach((decode, k) => row(step, share, ended, step.decodeOf[k]!, decode, 0, decode.tokens ?? 1));
    step.prefill.forEach((chunk, k) => row(step, share, ended, step.prefillOf[k]!, chunk, chunk.len, chunk.samples));
  }
  const within = (begin: number, end: number): number => Math.max(0, Math.min(end, to) - Math.max(begin, from));
  for (const request of log.requests.values()) {
    const now = request.isOpen ? log.newest : request.to;
    let waiting = request.arrived == null ? 0 : within(request.arrived, request.firstPass ?? now);
    for (const pause of request.pauses) waiting += within(pause.from, pause.to ?? now);
    if (waiting > 0) of(request).waiting += waiting;
  }
  result.time.none = Math.max(0, result.time.none);
  result.requests = [...owned.values()].sort((a, b) => total(b) - total(a));
  return result;
}

function total({ own, decode, prefill, machine, waiting }: Owned): number {
  return own + decode + prefill + machine + waiting;
}

/** The panel. */
export class Selection {
  readonly element: HTMLElement;
  private body = el("div", {});
  private ledger: HTMLElement | null = null;

  constructor(close: () => void) {
    const button = el("button", { type: "button", class: "small", onclick: close }, "Close (Esc)");
    this.element = el("section", { class: "selection", "aria-label": "Selection", hidden: true }, button, this.body);
  }

  clear(): void {
    show(this.element, false);
    fill(this.body);
  }

  /** A place that was clicked. */
  place(hit: Hit, log: Log): void {
    const [first, ...rest] = describe(hit, log);
    this.ledger = el("div", {});
    const name = requestOf(hit).name;
    fill(
      this.body,
      el("h3", {}, first ?? ""),
      ...rest.map((line) => el("p", {}, line)),
      this.ledger,
      el("p", { class: "quiet-text" }, `Request ${String(name)}. `, "step" in hit && hit.step && el("a", { href: `#/step?step=${hit.step.id}` }, `Step ${hit.step.id} in detail`)),
    );
    show(this.element, true);
  }

  /** What the server's ledger says of the place that is shown. */
  owners(lines: string[]): void {
    if (this.ledger) fill(this.ledger, ...lines.map((line) => el("p", {}, line)));
  }

  stretch(range: Range, log: Log): void {
    const found = sum(log, range);
    const { time } = found;
    const parts: [string, number][] = [["prefill only", time.prefill], ["prefill and decode together", time.both], ["decode only", time.decode], ["no step", time.none]];
    fill(
      this.body,
      el("h3", {}, `${ms(range.to - range.from)} selected`),
      el("p", {}, `${count(found.steps, "step")}, ${count(found.promptTokens, "prompt token")}, ${count(found.outputTokens, "output token")}, ${found.late.toLocaleString("en")} of them late.`),
      el("p", {}, `Time of the engine: ${parts.filter(([, value]) => value >= 0.005).map(([name, value]) => `${name} ${ms(value)}`).join(", ")}.`),
    );
    if (found.requests.length > 0) add(this.body, tableOf(found.requests));
    show(this.element, true);
  }
}

const HEADS = ["Request", "Prompt tokens", "Output tokens", "Own rows", "Others' decode", "Others' prompts", "Machine", "Waiting"];

/** Time by owner, for each request and for all. */
function tableOf(requests: Owned[]): HTMLElement {
  const cells = (one: Omit<Owned, "request">): HTMLElement[] =>
    [one.prompt.toLocaleString("en"), one.output.toLocaleString("en"), ms(one.own), ms(one.decode), ms(one.prefill), ms(one.machine), ms(one.waiting)].map((text) => el("td", {}, text));
  const all = { prompt: 0, output: 0, own: 0, decode: 0, prefill: 0, machine: 0, waiting: 0 };
  for (const one of requests) for (const key of Object.keys(all) as (keyof typeof all)[]) all[key] += one[key];
  const rows = requests.slice(0, ROWS).map((one) => el("tr", {}, el("th", { scope: "row", title: String(one.request.name) }, shortName(one.request.name)), ...cells(one)));
  if (requests.length > ROWS) rows.push(el("tr", {}, el("th", { scope: "row" }, `and ${count(requests.length - ROWS, "request")} more`), el("td", { colspan: 7 })));
  if (requests.length > 1) rows.push(el("tr", {}, el("th", { scope: "row" }, "all together"), ...cells(all)));
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": "Time by owner, a table" },
    el("table", {}, el("thead", {}, el("tr", {}, ...HEADS.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows)),
  );
}
