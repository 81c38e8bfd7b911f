// The same minutes twice, through the production scheduler under an imagined clock: prompts in chunks, and prompts in one
// piece. What it shows: a long prompt in one pass makes every running answer wait for all of it.

import type { App } from "./app";
import { told } from "./ask";
import { add, el, fill, say } from "./dom";
import { FONT, Surface, theme, tick, watchTheme } from "./draw";
import { Folds } from "./folds";
import { dropFrame, wantFrame } from "./frames";
import { Lanes } from "./lanes";
import { Log, type Token } from "./log";
import { Seats } from "./seats";
import { count, ms, shortName } from "./units";
import type { StepEvent } from "./wire";

const CHUNK = 128;
const MINUTES = 5;
const LANE = 14;
const MOST_LANES = 16;
const AXIS = 18;

/** The part of `GET /live/whatif` that is read here. */
interface Answer {
  whatif: { ttft?: { p50: number; p99: number } };
  steps: { whatif: StepEvent[] };
}

/** One of the two courses. */
interface Course {
  title: string;
  log: Log;
  worst: Token | null;
  /** Milliseconds to the first token. */
  ttft: { median: number | null; slowest: number | null };
}

export class WhatIf {
  readonly element: HTMLElement;
  private said = el("p", { class: "quiet-text", role: "status" });
  private results = el("div", { class: "courses" });
  private views: CourseView[] = [];

  constructor(private app: App) {
    const button = el("button", { type: "button" }, "Run the last minutes both ways");
    button.addEventListener("click", () => {
      button.disabled = true;
      say(this.said, "Simulating …");
      this.run()
        .catch((error: unknown) => say(this.said, error instanceof Error ? error.message : String(error)))
        .finally(() => (button.disabled = false));
    });
    this.element = el(
      "div",
      {},
      el("p", { class: "quiet-text" }, `What this server did in the last ${MINUTES} minutes, simulated with the same arrivals and lengths: once with chunks of ${CHUNK} rows, once with each prompt in one pass.`),
      el("div", { class: "row" }, button, this.said),
      this.results,
    );
  }

  end(): void {
    for (const view of this.views) view.end();
  }

  private async run(): Promise<void> {
    const whole = this.app.info.max_model_len;
    const [chunked, unchunked] = [await this.ask(`In chunks of ${CHUNK}`, CHUNK), await this.ask("Each prompt in one pass", whole)];
    if (chunked.log.steps.length === 0) {
      say(this.said, "Nothing happened in the last minutes. Send something first, best a long prompt beside a running answer.");
      return;
    }
    this.end();
    const [left, span] = stretch(chunked.log, unchunked.worst ?? chunked.worst, unchunked.log);
    this.views = [chunked, unchunked].map((course) => new CourseView(course, left, span));
    fill(this.results, ...this.views.map((view) => view.element));
    const [with_, without] = [chunked.worst?.gap, unchunked.worst?.gap];
    if (with_ == null || without == null) say(this.said, "No answer had two tokens.");
    else if (without < 1.15 * with_) say(this.said, "It made little difference: no long prompt met a running answer in these minutes.");
    else {
      const trade = `In one piece, the worst wait between two tokens is ${(without / with_).toFixed(1)} times as long`;
      const [late, soon] = [chunked.ttft.slowest, unchunked.ttft.slowest];
      say(this.said, late != null && soon != null && soon < late ? `${trade}; in chunks, the slowest first token comes after ${ms(late)} and not after ${ms(soon)}. That is the trade.` : `${trade}.`);
    }
  }

  private async ask(title: string, rows: number): Promise<Course> {
    const query = new URLSearchParams({ minutes: String(MINUTES), max_num_batched_tokens: String(rows), max_prefill_chunk: String(rows), tpot_slo: "off", ttft_slo: "off" });
    const response = await this.app.api(`/live/whatif?${query}`);
    if (!response.ok) throw new Error(await told(response));
    const answer = (await response.json()) as Answer;
    const log = new Log(Infinity);
    for (const step of answer.steps.whatif) log.step(step);
    let worst: Token | null = null;
    for (const request of log.requests.values()) {
      for (const token of request.tokens) if (token.gap != null && token.gap > (worst?.gap ?? 0)) worst = token;
    }
    return { title, log, worst, ttft: { median: answer.whatif.ttft?.p50 ?? null, slowest: answer.whatif.ttft?.p99 ?? null } };
  }
}

/** Where not chunking hurts most: from the beginning of that wait to where the prompt is read in both courses; start and length in ms. */
function stretch(chunked: Log, worst: Token | null, unchunked: Log): [number, number] {
  if (!worst || worst.gap == null) return [chunked.steps[0]!.at, 1000];
  const begin = worst.at - worst.gap;
  const culprit = unchunked.delayedBy(worst)[0]?.request;
  const read = culprit && chunked.requests.get(culprit.name)?.firstToken;
  const length = Math.max(worst.at, read ?? 0) - begin;
  return [begin - 0.1 * length, 1.25 * length];
}

/** A stretch of a course, to scale. */
export class CourseView {
  readonly element: HTMLElement;
  private surface: Surface;
  private lanes: Lanes;
  private seats: Seats;
  private stop: () => void;

  constructor(
    private course: Course,
    private left: number,
    private span: number,
  ) {
    const { log, worst, ttft, title } = course;
    // Nothing more comes: each request is over, and its lane is free for another.
    for (const request of log.requests.values()) request.gone = true;
    const folds = new Folds(log);
    this.lanes = new Lanes(log, folds);
    this.seats = new Seats(log, folds);
    this.seats.update(1);
    const canvas = el("canvas", { class: "course", role: "img", "aria-label": `${title}: steps to scale` });
    this.surface = new Surface(canvas, () => wantFrame(this.draw));
    canvas.style.height = `${AXIS + Math.min(MOST_LANES, this.seats.lanes) * LANE}px`;
    this.stop = watchTheme(() => {
      this.lanes.forget();
      wantFrame(this.draw);
    });
    this.element = el("figure", {}, el("figcaption", {}, el("h3", {}, title)), canvas);
    const culprit = worst ? log.delayedBy(worst)[0] : undefined;
    const parts = [`worst gap ${ms(worst?.gap)}${culprit ? ` (behind the prompt of ${shortName(culprit.request.name)}, ${count(culprit.rows, "row")})` : ""}`, `first token after ${ms(ttft.median)} (median), ${ms(ttft.slowest)} (p99)`, count(log.steps.length, "step")];
    if (worst) add(this.element, el("p", { class: "quiet-text" }, parts.join(" · ")));
  }

  end(): void {
    this.stop();
    dropFrame(this.draw);
    this.surface.end();
  }

  private draw = (): void => {
    const { surface, course, left, span } = this;
    if (surface.width === 0) return;
    const context = surface.begin();
    const colours = theme();
    const { worst } = course;
    const lanes = Math.min(MOST_LANES, this.seats.lanes);
    const first = Math.max(0, Math.min(this.seats.lanes - lanes, (worst?.request.lane ?? 0) - lanes / 2) | 0);
    const x = (time: number): number => ((time - left) / span) * surface.width;
    context.font = FONT;
    this.lanes.paint({ left, span, columns: Math.round(surface.width * surface.ratio), ratio: surface.ratio, lane: first, lanes, now: 0 });
    this.lanes.blit(context, { x: 0, y: AXIS, width: surface.width, height: LANE });
    context.globalCompositeOperation = "destination-over";
    const distance = tick(span, surface.width / 90);
    for (let since = 0; since < span; since += distance) {
      context.fillStyle = colours.quiet;
      context.fillText(since === 0 ? "0" : `+${ms(since)}`, x(left + since) + 3, 8);
      context.fillStyle = colours.line;
      context.fillRect(x(left + since), 2, 1, surface.height);
    }
    context.globalCompositeOperation = "source-over";
    if (!worst || worst.gap == null) return;
    context.strokeStyle = colours.late;
    context.lineWidth = 2;
    context.strokeRect(x(worst.at - worst.gap), AXIS + (worst.request.lane - first) * LANE - 1, (worst.gap / span) * surface.width, LANE - 1);
  };
}
