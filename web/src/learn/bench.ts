// The frame of a trial: a button, what is happening, a table. Counts stand as they are; times are compared in pairs.
//
//   A B  A B  A B ... 7 pairs or 10 s  -->  6 of 7 as the lesson says        shown
//                                           6 of 7 the other way round       said as such
//                                           else                             not clear on this machine now: the prediction
//
// Times within a fiftieth of each other are neither: steps are undisturbed to within that.

import { add, el, fill, say } from "../dom";
import { count, median } from "../units";
import type { Sample } from "./engine";
import type { Trial } from "./types";

/** A line of results: its name and its figures. */
export interface Row {
  name: string;
  cells: string[];
  /** Not counted here, but computed by `/plan` or by the simulator. */
  basis?: "planned" | "simulated";
}

export interface Bench {
  caption: string;
  columns: string[];
  button: string;
  controls?: HTMLElement[];
  /** What this server cannot show; empty: nothing. */
  limit?: string;
  /** Results stay when it is run again, at most this many. */
  keeps?: number;
  work: (show: (row: Row) => HTMLElement) => Promise<string>;
}

/** A trial that counts: what comes out is the same on a busy machine. */
export function counted({ root, app, signal, tried }: Trial, { caption, columns, button, controls = [], limit = "", keeps = 0, work }: Bench): void {
  const status = el("p", { class: "status", role: "status" });
  const body = el("tbody", {});
  const head = el("tr", {}, el("td", {}), ...columns.map((column) => el("th", { scope: "col" }, column)));
  const table = el("table", {}, el("caption", {}, caption), el("thead", {}, head), body);
  const results = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption, hidden: true }, table);
  const model = (): string => `${app.info.name}, ${app.info.weights}`;
  let shownOf = model();
  const show = ({ name, cells, basis }: Row): HTMLElement => {
    results.hidden = false;
    const row = el("tr", { class: basis }, el("th", { scope: "row" }, name, basis && el("small", {}, ` (${basis})`)), ...cells.map((cell) => el("td", {}, cell)));
    add(body, row);
    return row;
  };
  const run = async (): Promise<void> => {
    start.disabled = true;
    delete status.dataset["outcome"];
    const asked = model();
    if (asked !== shownOf) body.replaceChildren();
    shownOf = asked;
    if (keeps === 0) body.replaceChildren();
    while (body.rows.length >= keeps && body.rows.length > 0) body.rows[0]!.remove();
    say(status, "The engine is at work…");
    try {
      const said = await work(show);
      if (model() !== asked) throw new Error(`the server has another model now (${model()}), so these figures are of two. Press the button again`);
      say(status, said);
      tried();
    } catch (error) {
      if (!signal.aborted) fill(status, `That did not work: ${error instanceof Error ? error.message : String(error)}`);
    }
    start.disabled = false;
    // A button that was disabled has lost the focus, and the keyboard goes on from here.
    if (document.activeElement === document.body && !signal.aborted) start.focus({ preventScroll: true });
  };
  const start = el("button", { type: "button", class: "primary", onclick: () => void run() }, button);
  add(root, limit && el("p", { class: "limit" }, limit), ...controls, el("div", { class: "row" }, start), status, results);
}

/** Two things whose times are compared, in turns. */
export interface Contest {
  caption: string;
  button: string;
  /** The unit's name, as the head of its column. */
  column: string;
  limit?: string;
  /** Why this server cannot run it at all; empty: it can. Then there is only the prediction. */
  cannot?: string;
  a: string;
  b: string;
  run: (which: "a" | "b") => Promise<Sample>;
  /** Above 1: a pair is as the lesson says. */
  gain: (a: number, b: number) => number;
  format: (value: number) => string;
  shown: (a: number, b: number) => string;
  reversed: (a: number, b: number) => string;
  predicted: () => Promise<string>;
  /** What else the table shows, after the pairs. */
  more?: (show: (row: Row) => void) => Promise<void>;
}

const MOST_PAIRS = 7;
const FEWEST_PAIRS = 5;
const MOST_MS = 10_000;
const TIE = 1.02;

type Outcome = "shown" | "unclear" | "reversed";

/** Six of seven, or all of fewer; with fewer than five pairs nothing is clear. */
function outcomeOf(gains: number[]): Outcome {
  const areMost = (some: number[]): boolean => some.length * MOST_PAIRS >= (MOST_PAIRS - 1) * gains.length;
  if (gains.length < FEWEST_PAIRS) return "unclear";
  if (areMost(gains.filter((gain) => gain > TIE))) return "shown";
  return areMost(gains.filter((gain) => gain < 1 / TIE)) ? "reversed" : "unclear";
}

export function compared(trial: Trial, contest: Contest): void {
  const { root } = trial;
  const work = async (show: (row: Row) => HTMLElement): Promise<string> => {
    if (contest.cannot) {
      await contest.more?.((row) => show(row));
      return `${contest.cannot} Predicted instead: ${await contest.predicted()}`;
    }
    const samples: { a: Sample; b: Sample }[] = [];
    const start = performance.now();
    while (samples.length < MOST_PAIRS && performance.now() - start < MOST_MS && !trial.signal.aborted) samples.push({ a: await contest.run("a"), b: await contest.run("b") });
    const pairs = samples.flatMap(({ a, b }) => (a.value == null || b.value == null ? [] : [[a.value, b.value] as const]));
    const outcome = outcomeOf(pairs.map(([a, b]) => contest.gain(a, b)));
    const line = (which: "a" | "b"): HTMLElement => {
      const own = samples.map((sample) => sample[which]);
      const values = own.flatMap(({ value }) => (value == null ? [] : [value]));
      const steps = own.reduce((sum, { steps }) => sum + steps, 0);
      const used = own.reduce((sum, { used }) => sum + used, 0);
      return show({ name: contest[which], cells: [values.length > 0 ? contest.format(median(values)) : "–", `${used.toLocaleString("en")} of ${steps.toLocaleString("en")}`] });
    };
    const rows = [line("a"), line("b")];
    for (const row of rows) row.classList.toggle("unclear", outcome === "unclear");
    await contest.more?.((row) => show(row));
    root.querySelector<HTMLElement>(".status")!.dataset["outcome"] = outcome;
    const [a, b] = [median(pairs.map(([a]) => a)), median(pairs.map(([, b]) => b))];
    const agreeing = `${count(pairs.length, "pair")} of ${samples.length}`;
    if (outcome === "shown") return `Shown (${agreeing}): ${contest.shown(a, b)}`;
    if (outcome === "reversed") return `The other way round on this machine (${agreeing}): ${contest.reversed(a, b)}`;
    return `Not clear on this machine now: ${agreeing} could be compared, from the undisturbed steps. Predicted instead: ${await contest.predicted()}`;
  };
  counted(trial, { caption: contest.caption, columns: [contest.column, "steps used"], button: contest.button, limit: contest.limit ?? "", work });
}
