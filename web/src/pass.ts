// One pass of the model, token by token: what each request brought into it.
//
//   A  [cached][ earlier ][#### this pass ####]           a chunk of a prompt: many tokens at once
//   B  [       earlier        ][#][#][o]                  an answer: one token, and drafts of the next: solid if accepted

import type { App } from "./app";
import { el, fill, say, show } from "./dom";
import { FONT, Surface, theme, watchTheme } from "./draw";
import { dropFrame, wantFrame } from "./frames";
import type { Request, Step } from "./log";
import { count, shortName } from "./units";

const ROW = 20;
const MOST_ROWS = 24;
const LARGEST_CELL = 11;

interface Row {
  request: Request;
  /** Tokens before it that the prefix cache had, tokens before it in all, and tokens in it. */
  cached: number;
  start: number;
  len: number;
  /** Behind them, rejected drafts. */
  rejected: number;
  phase: "prefill" | "decode";
}

export class PassView {
  readonly element: HTMLElement;
  private canvas = el("canvas", { class: "pass", role: "img", "aria-label": "The tokens of the step" });
  private surface: Surface;
  private more = el("p", { class: "quiet-text" });
  private draftRows = el("tbody", {});
  private drafts = el(
    "div",
    { class: "scroll drafts", tabindex: 0, role: "region", "aria-label": "Drafts", hidden: true },
    el("table", {}, el("caption", {}, "Drafts"), el("thead", {}, el("tr", {}, ...["Request", "Drafted", "Accepted"].map((text) => el("th", { scope: "col" }, text)))), this.draftRows),
  );
  private step: Step | null = null;
  private stop: () => void;

  constructor(_app: App) {
    this.surface = new Surface(this.canvas, () => wantFrame(this.draw));
    this.stop = watchTheme(() => wantFrame(this.draw));
    this.element = el("div", {}, this.canvas, this.more, this.drafts);
  }

  end(): void {
    this.stop();
    dropFrame(this.draw);
    this.surface.end();
  }

  show(step: Step): void {
    if (this.step === step) return;
    this.step = step;
    const shown = Math.min(MOST_ROWS, step.prefill.length + step.decode.length);
    const hidden = step.prefill.length + step.decode.length - shown;
    say(this.more, hidden > 0 ? `And ${count(hidden, "answer")} more, a token each.` : "");
    // In fours, so that what is below does not move with every step.
    const height = `${Math.ceil(shown / 4) * 4 * ROW + 18}px`;
    if (this.canvas.style.height !== height) this.canvas.style.height = height;
    this.canvas.setAttribute("aria-label", `Tokens of step ${step.id} by request`);
    this.list(step);
    wantFrame(this.draw);
  }

  /** Requests with drafts in the step, and how many were accepted. */
  private list(step: Step): void {
    const rows = step.decode.flatMap((row, i) => {
      if (!row.drafts) return [];
      const { name } = step.decodeOf[i]!;
      const cells = [row.drafts, (row.tokens ?? 1) - 1].map((value) => el("td", {}, value.toLocaleString("en")));
      return [el("tr", {}, el("th", { scope: "row", title: String(name) }, shortName(name)), ...cells)];
    });
    fill(this.draftRows, ...rows);
    show(this.drafts, rows.length > 0);
  }

  private draw = (): void => {
    const { surface, step } = this;
    if (!step || surface.width === 0) return;
    const rows: Row[] = [
      ...step.prefill.map((row, i): Row => ({ request: step.prefillOf[i]!, cached: Math.min(row.cached, row.start), start: row.start, len: row.len, rejected: 0, phase: "prefill" })),
      ...step.decode.map((row, i): Row => ({ request: step.decodeOf[i]!, cached: 0, start: row.start, len: row.tokens ?? 1, rejected: 1 + (row.drafts ?? 0) - (row.tokens ?? 1), phase: "decode" })),
    ].slice(0, MOST_ROWS);
    const context = surface.begin();
    const colours = theme();
    const left = 70;
    const width = surface.width - left - 8;
    const longest = Math.max(32, ...rows.map((row) => row.start + row.len + row.rejected));
    const cell = Math.min(LARGEST_CELL, width / longest);
    context.font = FONT;
    rows.forEach((row, i) => {
      const y = i * ROW + 3;
      context.fillStyle = colours.quiet;
      context.textAlign = "right";
      context.fillText(shortName(row.request.name), left - 8, y + 7);
      cells(context, left, y, cell, 0, row.cached, colours.cached);
      cells(context, left, y, cell, row.cached, row.start - row.cached, colours.lane);
      cells(context, left, y, cell, row.start, row.len, colours[row.phase]);
      hollow(context, left, y, cell, row.start + row.len, row.rejected, colours[row.phase]);
    });
    context.fillStyle = colours.quiet;
    context.textAlign = "left";
    const y = rows.length * ROW + 8;
    context.fillText("position 0", left, y);
    context.textAlign = "right";
    context.fillText(String(longest - 1), left + longest * cell, y);
  };
}

/** A row of tokens: cells where there is room for them, else a bar. What the pass did is seen however small. */
function cells(context: CanvasRenderingContext2D, left: number, y: number, cell: number, start: number, len: number, colour: string): void {
  if (len <= 0) return;
  context.fillStyle = colour;
  const x = left + start * cell;
  if (cell < 3) return context.fillRect(x, y, Math.max(2, len * cell), 13);
  for (let i = 0; i < len; i += 1) context.fillRect(left + (start + i) * cell, y, cell - 1, 13);
}

/** Tokens that were computed and thrown away: the rims of cells, or of a bar. */
function hollow(context: CanvasRenderingContext2D, left: number, y: number, cell: number, start: number, len: number, colour: string): void {
  if (len <= 0) return;
  context.strokeStyle = colour;
  const rim = (x: number, width: number): void => context.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), 12);
  if (cell < 3) return rim(left + start * cell, Math.max(2, len * cell));
  for (let i = 0; i < len; i += 1) rim(left + (start + i) * cell, cell - 1);
}
