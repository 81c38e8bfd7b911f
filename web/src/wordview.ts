// What a step read and what came of it, in words, for the requests that this tab has sent.
//
//   Once  upon  a  time   ->  there  99.9 %    lived 0.1 %   was 0.0 %
//                  there  ->  was    99.9 %    ...

import type { App } from "./app";
import { el, fill, show } from "./dom";
import { dropFrame, wantFrame } from "./frames";
import type { Step } from "./log";
import { percent, shortName } from "./units";
import { type Word, words } from "./words";

/** Rows of the table, and words of a row: the last ones, from which the next follows. */
const MOST_ROWS = 24;
const MOST_WORDS = 24;

interface Row {
  request: string;
  /** The positions that were read: from `start`, `len` of them; the last `tokens` of these made a token each. */
  start: number;
  len: number;
  tokens: number;
}

export class WordView {
  readonly element: HTMLElement;
  private rows = el("tbody", {});
  private step: Step | null = null;
  private drawn = "";
  private stop: () => void;

  constructor(private app: App) {
    const head = ["Request", "Read", "Came of it", "Most likely"].map((text) => el("th", { scope: "col" }, text));
    const table = el("table", {}, el("caption", {}, "In words, for the requests that this tab has sent"), el("thead", {}, el("tr", {}, ...head)), this.rows);
    this.element = el("div", { class: "scroll words", tabindex: 0, role: "region", "aria-label": "Words", hidden: true }, table);
    this.stop = words.subscribe(() => wantFrame(this.draw));
  }

  end(): void {
    this.stop();
    dropFrame(this.draw);
  }

  show(step: Step): void {
    if (this.step === step) return;
    this.step = step;
    wantFrame(this.draw);
  }

  private draw = (): void => {
    const rows = this.step ? rowsOf(this.step) : [];
    show(this.element, rows.length > 0);
    for (const { request } of rows) void words.learn(this.app, request);
    const lines = rows.map((row) => ({ row, read: readOf(row), came: cameOf(row) }));
    const state = JSON.stringify(lines);
    if (state === this.drawn) return;
    this.drawn = state;
    fill(this.rows, ...lines.map(({ row, read, came }) => el("tr", {}, el("th", { scope: "row", title: row.request }, shortName(row.request)), el("td", {}, ...read.map(wordOf)), el("td", {}, ...came.flatMap(chosen)), el("td", {}, ...came.slice(-1).flatMap(others)))));
  };
}

/** The rows of a step whose words are known here. */
function rowsOf(step: Step): Row[] {
  const isOurs = ({ r, a }: { r: string | number; a: number }): boolean => typeof r === "string" && a === 0 && words.knows(r);
  const prefill = step.prefill.filter(isOurs).map((row): Row => ({ request: String(row.r), start: row.start, len: row.len, tokens: row.samples > 0 ? 1 : 0 }));
  const decode = step.decode.filter(isOurs).map((row): Row => ({ request: String(row.r), start: row.start, len: row.tokens ?? 1, tokens: row.tokens ?? 1 }));
  return [...prefill, ...decode].slice(0, MOST_ROWS);
}

/** The last words that were read; `null` in front: there were more. */
function readOf({ request, start, len }: Row): (string | null)[] {
  const from = Math.max(0, len - MOST_WORDS);
  const read = Array.from({ length: len - from }, (_, i) => words.at(request, start + from + i)?.text ?? "?");
  return from > 0 ? [null, ...read] : read;
}

function cameOf({ request, start, len, tokens }: Row): Word[] {
  const came = Array.from({ length: tokens }, (_, i) => words.at(request, start + len - tokens + 1 + i));
  return came.filter((word) => word != null);
}

/** A token with its spaces, and signs for what cannot be seen. */
function wordOf(text: string | null): Node {
  return text == null ? el("span", { class: "quiet-text" }, "… ") : el("span", { class: "word" }, visible(text));
}

function visible(text: string): string {
  return JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("\\\\", "\\").replaceAll(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function chosen({ text, probability }: Word): Node[] {
  return [wordOf(text), el("span", { class: "quiet-text" }, probability == null ? " " : ` ${percent(probability)} `)];
}

/** What else could have come, the most likely first. */
function others({ text, top }: Word): Node[] {
  return top.filter((each) => each.text !== text).flatMap((each) => [wordOf(each.text), el("span", { class: "quiet-text" }, ` ${percent(each.probability)} `)]);
}
