// The timeline: a lane holds one request at a time, time from left to right, every step to scale.
//
//   lane 1  ....[####prefill####]|d|d|d|d |d|d|   .... queue, [#] prompt tokens, |d| one token of the answer
//   lane 2      ....[##prefill##][##pre#]|d|/////|d|    / what another request's prompt made of the step
//               a step is one column: every request in it waits for all of it
//   lane 1  ....[####prefill####]|d#o|d|d##|         d## tokens that came together, o a rejected draft
//           time in which nothing was to be done is folded to a mark: [60 s]
//
// lanes.ts paints lanes and steps, marks.ts what lies over them; seats.ts says which lane a request has, folds.ts where a
// moment is, tips.ts what a place is; selection.ts keeps and sums what was chosen. Here are the view, the pointer and the keys.
// Nothing in a frame reads layout.

import type { App } from "./app";
import { el, fill, say, show } from "./dom";
import { arrow, Surface, theme, watchTheme } from "./draw";
import { Folds } from "./folds";
import { dropFrame, wantFrame } from "./frames";
import { Lanes, shapeOf } from "./lanes";
import type { Log, Request, Token } from "./log";
import { AXIS, type Frame, LEAST_LANES, paintAways, paintFolds, paintGrid, paintLabels, paintLate, paintSteps, TALLEST_LANE } from "./marks";
import { Overview } from "./overview";
import { find, Search } from "./search";
import { Seats } from "./seats";
import { type Range, Selection } from "./selection";
import { saveTrace } from "./trace";
import { describe, extent, type Hit, isSame, ownersOf, requestOf, type TimelineAnswer } from "./tips";
import type { Name } from "./wire";

const SHORTEST_SPAN = 20;
/** A key pans by this part of the view. */
const PAN = 0.25;
const LONGEST_SPAN = 120_000;
const FLATTEST_LANE = 4;
/** The feed speaks every 50 ms; so far behind, steps enter at the edge one after another. */
const BEHIND_MS = 60;

/** So long after its first token a request's arrival is told, if ever. */
const ARRIVAL_TOLD_MS = 1000;

/** A pointer that moved less has clicked. */
const CLICK_PX = 4;
export class Timeline {
  readonly element: HTMLElement;
  private surface: Surface;
  private lanes: Lanes;
  private seats: Seats;
  private folds: Folds;
  private folding = true;
  /** Width and right edge of the view in shown time (folds.ts). */
  private span = 8000;
  private right = 0;
  private follow = true;
  /** Where the pointer is; what it points at is zoomed about. */
  private pointer: number | null = null;
  /** A request whose lane has to be in view. */
  private wantedLane: Request | null = null;
  private scroll = 0;
  private wanted = 0;
  private hit: Hit | null = null;
  /** What was clicked, or the stretch that was dragged: it stays until Escape. */
  private pinned: Hit | null = null;
  private range: Range | null = null;
  private selection = new Selection(() => this.unpin());
  private overview: Overview;
  private search: Search;
  private byKeyboard = false;
  private tip = el("div", { class: "tip", hidden: true });
  private spoken = el("div", { class: "visually-hidden", "aria-live": "polite" });
  private followButton: HTMLButtonElement;
  private lanesText = el("span");
  private lanesUp = el("button", { type: "button", class: "small", "aria-label": "Lanes above", onclick: () => this.turn(-1) }, "▴");
  private lanesDown = el("button", { type: "button", class: "small", "aria-label": "Lanes below", onclick: () => this.turn(1) }, "▾");
  private stops: (() => void)[] = [];
  private calm = matchMedia("(prefers-reduced-motion: reduce)");
  private log: Log;

  constructor(private app: App) {
    this.log = app.feed.log;
    this.folds = new Folds(this.log);
    this.seats = new Seats(this.log, this.folds);
    this.lanes = new Lanes(this.log, this.folds);
    const canvas = el("canvas", {
      class: "timeline",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": "Requests over time. Arrow keys go from token to token and from lane to lane, Enter keeps what is told, with Shift they select a stretch to sum, Escape lets go, W and S zoom, A and D go through time, 0 fits, F follows. The same facts are in the table below.",
    });
    this.surface = new Surface(canvas, () => this.redraw());
    this.overview = new Overview(app, this);
    this.search = new Search((query) => find(this.log, query, app.info.name), (hit) => this.visit(hit), () => {
      this.point(null, false);
      this.unpin();
      canvas.focus();
    });
    const button = (text: string, label: string, act: () => void): HTMLButtonElement => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    this.followButton = button("Follow now", "Follow now (F)", () => this.setFollow(!this.follow));
    this.followButton.setAttribute("aria-pressed", "true");
    const fold = button("Fold idle", "Fold idle time: a mark with its length", () => {
      this.folding = !this.folding;
      fold.setAttribute("aria-pressed", String(this.folding));
      this.redraw();
    });
    fold.setAttribute("aria-pressed", "true");
    const failed = el("p", { class: "note", role: "status", hidden: true });
    let isSaving = false;
    const trace = button("Trace", "Trace: save what is shown, for ui.perfetto.dev", () => {
      if (isSaving) return;
      isSaving = true;
      const tell = (problem: string): void => {
        isSaving = false;
        say(failed, problem);
        show(failed, problem !== "");
      };
      saveTrace(app, this.window).then(() => tell(""), (error: unknown) => tell(`No trace: ${error instanceof Error ? error.message : error}`));
    });
    this.element = el(
      "div",
      { class: "timeline-box" },
      el("div", { class: "row toolbar" }, legend(), el("span", { class: "row tools" }, button("−", "Zoom out (-)", () => this.zoom(2)), button("+", "Zoom in (+)", () => this.zoom(0.5)), button("Fit", "Fit the last stretch of work (0)", () => this.fit()), fold, this.followButton, this.search.element, trace)),
      failed,
      this.overview.element,
      el("div", { class: "stage" }, canvas, this.tip),
      el("p", { class: "quiet-text hint" }, "Point at a token to see what it waited for; click to keep that. Drag to go back; drag along the time axis, or with Shift, to sum a stretch. Pinch, Ctrl and wheel, or W and S zoom. ", this.lanesText, this.lanesUp, this.lanesDown),
      this.selection.element,
      this.spoken,
    );
    this.listen(canvas);
    this.stops.push(
      app.feed.subscribe(this.redraw),
      watchTheme(() => {
        this.lanes.forget();
        this.redraw();
      }),
    );
    this.redraw();
  }

  end(): void {
    for (const stop of this.stops) stop();
    dropFrame(this.draw);
    this.surface.end();
    this.overview.end();
    this.search.end();
  }

  /** Brings a request into view as a whole, and says what is known of its first token. False if the log has none of it. */
  reveal(name: Name): boolean {
    const request = this.log.requests.get(name);
    const token = request?.tokens[0];
    if (!request || !token) return false;
    // When it came is told a moment after its steps; for one that came before the feed, not before its end.
    if (request.ttft == null && request.isOpen && this.log.newest - token.at < ARRIVAL_TOLD_MS) return false;
    this.setFollow(false);
    this.scaleTo((this.folds.shown(request.to) - this.folds.shown(request.from)) * 1.25);
    this.right = this.folds.shown(request.from) + this.span * 0.9;
    this.wantedLane = request;
    const hit: Hit = { kind: "token", token, step: this.log.stepById(token.step) };
    this.point(hit, false);
    this.pin(hit);
    return true;
  }

  private redraw = (): void => wantFrame(this.draw);

  private setFollow(follow: boolean): void {
    this.follow = follow;
    this.followButton.setAttribute("aria-pressed", String(follow));
    this.redraw();
  }

  /** Shows the newest stretch of work as a whole: back to where nothing happened for a second. */
  fit(): void {
    const { steps } = this.log;
    const last = steps[steps.length - 1];
    if (!last) return;
    let first = last;
    for (let i = steps.length - 2; i >= 0 && first.at - steps[i]!.end < 1000; i -= 1) first = steps[i]!;
    // What is read elsewhere is work too.
    let from = first.at;
    for (const { away } of this.log.requests.values()) if (away && (away.to_ms ?? last.end) >= first.at) from = Math.min(from, away.from_ms);
    this.scaleTo((this.folds.shown(last.end) - this.folds.shown(from)) * 1.08);
    this.right = this.folds.shown(last.end) + this.span * 0.02;
    this.setFollow(true);
  }

  /** The stretch of the engine's time that is shown. */
  get window(): Range {
    return { from: this.folds.time(this.left), to: this.folds.time(this.right) };
  }

  /** Shows a stretch of the engine's time. */
  look({ from, to }: Range): void {
    this.setFollow(false);
    this.scaleTo(this.folds.shown(to) - this.folds.shown(from));
    this.right = this.folds.shown(to);
    this.redraw();
  }

  /** Shows what is around a moment. */
  centre(time: number): void {
    this.setFollow(false);
    this.right = this.folds.shown(time) + this.span / 2;
    this.redraw();
  }

  /** Brings a place into view, says what it is and keeps it. */
  private visit(hit: Hit): void {
    this.setFollow(false);
    const { from, to, request } = extent(hit);
    const [begin, end] = [from, to ?? this.log.newest].map((time) => this.folds.shown(time)) as [number, number];
    if (end - begin > this.span) this.right = begin + this.span * 0.9;
    else if (begin < this.left || end > this.right) this.right = (begin + end + this.span) / 2;
    this.wantedLane = request;
    this.point(hit, true);
    this.pin(hit);
  }

  /** Another width of the view, whose right edge stays at its moment: folds are others at each scale, and lanes are assigned again. */
  private scaleTo(span: number): void {
    this.span = Math.min(LONGEST_SPAN, Math.max(SHORTEST_SPAN, span));
    this.arrange();
  }

  /** Brings folds and lanes up to date with the log and the scale. */
  private arrange(): void {
    const scale = this.span / this.plotWidth;
    const edge = this.folds.time(this.right);
    const isFolded = this.folds.set(this.folding ? scale : 0);
    if (isFolded) this.right = this.folds.shown(edge);
    const isSeated = this.seats.update(scale);
    if (isFolded || isSeated) this.lanes.forget();
  }

  private turn(by: number): void {
    this.scroll += by * this.plotHeight * 0.8;
    this.redraw();
  }

  zoom(factor: number, x = this.gutter + this.plotWidth): void {
    // The moment under the pointer stays where it is; in the right edge's case that is now.
    const under = this.timeAt(x);
    const share = (x - this.gutter) / Math.max(1, this.plotWidth);
    this.scaleTo(this.span * factor);
    this.right = this.folds.shown(under) + (1 - share) * this.span;
    this.redraw();
  }

  pan(by: number): void {
    this.setFollow(false);
    this.right += by * this.span;
    this.redraw();
  }

  // Geometry, in CSS pixels

  private get gutter(): number {
    return this.surface.width < 640 ? 0 : 66;
  }

  private get plotWidth(): number {
    return Math.max(1, this.surface.width - this.gutter);
  }

  private get plotHeight(): number {
    return Math.max(1, this.surface.height - AXIS);
  }

  private get laneHeight(): number {
    return Math.min(TALLEST_LANE, Math.max(FLATTEST_LANE, Math.floor(this.plotHeight / Math.max(1, this.seats.lanes))));
  }

  private get left(): number {
    return this.right - this.span;
  }

  private timeAt(x: number): number {
    return this.folds.time(this.left + ((x - this.gutter) / this.plotWidth) * this.span);
  }

  private xAt(time: number): number {
    return this.gutter + ((this.folds.shown(time) - this.left) / this.span) * this.plotWidth;
  }

  private get isBusy(): boolean {
    const { log } = this;
    const stats = log.stats[log.stats.length - 1];
    const now = this.app.feed.now();
    if (this.app.feed.state.kind !== "open") return false;
    // What happened last does not leave a view that is not wider than that.
    if (log.lastStep != null && now - log.lastStep.end < Math.min(1000, this.span / 4)) return true;
    // Before the first word of a request the time since the last one is idle, and will be folded.
    return stats != null && stats.running + stats.waiting > 0 && !stats.paused && [...log.requests.values()].some((request) => request.isOpen);
  }

  // Drawing

  private draw = (): void => {
    const { surface, log } = this;
    if (surface.width === 0) return;
    const busy = this.isBusy;
    this.arrange();
    const { lanes } = this.seats;
    // As high as its lanes want, once there are more than ever.
    const wanted = AXIS + Math.max(LEAST_LANES, lanes) * TALLEST_LANE;
    if (wanted > this.wanted) {
      this.wanted = wanted;
      surface.canvas.style.height = `min(56vh, 460px, ${wanted}px)`;
    }
    if (this.follow) {
      // At rest the picture rests too: the last thing that happened stays in view, and nothing is drawn.
      const now = this.folds.shown(busy ? this.app.feed.now() - BEHIND_MS : (log.lastStep?.end ?? this.app.feed.now()));
      // Calm is to move rarely, but never so far that what happened last is out of view.
      const stride = Math.min(500, this.span / 4);
      const shown = this.calm.matches ? Math.ceil(now / stride) * stride : now;
      this.right = shown + this.span * 0.02;
    }
    const height = this.laneHeight;
    this.bring(height);
    this.scroll = Math.min(Math.max(0, this.scroll), Math.max(0, lanes * height - this.plotHeight));
    const context = surface.begin();
    const { ratio } = surface;
    const first = Math.floor(this.scroll / height);
    const number = Math.max(1, Math.min(lanes - first, Math.ceil(this.plotHeight / height) + 1));
    const seen = Math.floor(this.plotHeight / height);
    const all = seen >= lanes;
    const { from, to } = this.window;
    // What tests and other tools look at: the stretch in ms, up to where steps are known, the lanes, the folds.
    Object.assign(surface.canvas.dataset, { window: `${from.toFixed(3)} ${to.toFixed(3)}`, until: log.lastStep?.end ?? 0, lanes, folds: this.folds.folds.length });
    this.tellLimits(from, all ? "" : `Lanes ${first + 1} to ${Math.min(lanes, first + seen)} of ${lanes.toLocaleString("en")} `);
    show(this.lanesUp, !all);
    show(this.lanesDown, !all);
    this.lanes.paint({ left: this.left, span: this.span, columns: Math.round(this.plotWidth * ratio), lane: first, lanes: number, ratio, now: this.app.feed.now() });
    context.save();
    context.beginPath();
    context.rect(0, AXIS, surface.width, this.plotHeight);
    context.clip();
    this.lanes.blit(context, { x: this.gutter, y: AXIS - (this.scroll % height), width: this.plotWidth, height });
    context.restore();
    const frame: Frame = {
      context, log, folds: this.folds, now: this.app.feed.now(), from, to, span: this.span, gutter: this.gutter, width: surface.width, bottom: surface.height, height,
      xAt: (time) => this.xAt(time), yOf: (lane) => AXIS + lane * height - this.scroll,
    };
    for (const paint of [paintAways, paintSteps, paintFolds, paintGrid, paintLate, paintLabels]) paint(frame);
    this.chosen(context, height);
    this.mark(context, height, this.hit);
    this.place();
    this.overview.redraw();
    if (this.follow && busy && !this.calm.matches) this.redraw();
  };

  /** What there is to say of lanes out of view, and of steps that are no longer known. */
  private tellLimits(from: number, lanes: string): void {
    const first = this.log.steps[0];
    const isOld = first != null && from < first.at && [...this.log.requests.values()].some(({ firstPass }) => firstPass != null && firstPass < first.at);
    say(this.lanesText, `${isOld ? `Steps are known from ${this.log.wall.clock(first.at)} on. ` : ""}${lanes}`);
  }

  /** Has the lane in view that is wanted there. */
  private bring(height: number): void {
    const request = this.wantedLane;
    this.wantedLane = null;
    const y = (request?.lane ?? 0) * height;
    if (request && (y < this.scroll || y + height > this.scroll + this.plotHeight)) this.scroll = y - this.plotHeight / 2;
  }

  /** Around what is pointed at. */
  private mark(context: CanvasRenderingContext2D, height: number, hit: Hit | null): void {
    const where = hit && extent(hit);
    if (!where) return;
    const x0 = Math.max(this.gutter, this.xAt(where.from));
    const x1 = Math.min(this.surface.width, this.xAt(where.to ?? this.app.feed.now()));
    const y = AXIS + where.request.lane * height - this.scroll;
    context.strokeStyle = theme().ink;
    context.lineWidth = 2;
    context.strokeRect(x0 - 1, y - 1, Math.max(4, x1 - x0) + 2, shapeOf(height).bar + 2);
    context.lineWidth = 1;
  }

  /** What was clicked, with lines from those who delayed it, or the stretch that was dragged. */
  private chosen(context: CanvasRenderingContext2D, height: number): void {
    const { range, pinned } = this;
    if (range) {
      const [x0, x1] = [this.xAt(range.from), this.xAt(range.to)].map((x) => Math.min(this.surface.width, Math.max(this.gutter, x)));
      context.fillStyle = theme().accent;
      context.globalAlpha = 0.16;
      context.fillRect(x0!, 0, x1! - x0!, this.surface.height);
      context.globalAlpha = 1;
      for (const x of [x0!, x1!]) context.fillRect(Math.round(x) - 1, 0, 2, this.surface.height);
    }
    if (!pinned) return;
    this.mark(context, height, pinned);
    if (pinned.kind !== "token") return;
    const middle = (lane: number): number => AXIS + lane * height - this.scroll + shapeOf(height).bar / 2;
    const to = { x: this.xAt(pinned.step?.at ?? pinned.token.at), y: middle(pinned.token.request.lane) };
    context.strokeStyle = context.fillStyle = theme().ink;
    for (const other of this.log.delayedBy(pinned.token).slice(0, 3)) {
      const step = this.log.stepById(other.largest);
      if (step) arrow(context, { x: this.xAt((step.at + step.end) / 2), y: middle(other.request.lane) }, to);
    }
  }

  // Pointing

  private listen(canvas: HTMLCanvasElement): void {
    const held = new Map<number, { x: number; y: number }>();
    let moved = 0;
    let begun: number | null = null;
    const on = <K extends keyof HTMLElementEventMap>(kind: K, act: (event: HTMLElementEventMap[K]) => void): void => canvas.addEventListener(kind, act, { passive: false });
    on("pointerdown", (event) => {
      held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
      begun = event.shiftKey || event.offsetY < AXIS ? this.timeAt(event.offsetX) : null;
      // What one begins to measure stands still.
      if (begun != null) this.setFollow(false);
    });
    on("pointermove", (event) => {
      const before = held.get(event.pointerId);
      this.pointer = event.offsetX;
      if (!before) return this.point(this.hitAt(event.offsetX, event.offsetY), false);
      moved += Math.abs(event.offsetX - before.x) + Math.abs(event.offsetY - before.y);
      const others = [...held].filter(([id]) => id !== event.pointerId);
      const other = others[0]?.[1];
      if (begun != null && !other) {
        if (moved > CLICK_PX) this.select(begun, this.timeAt(event.offsetX));
      } else if (other) {
        const [was, is] = [Math.abs(before.x - other.x), Math.abs(event.offsetX - other.x)];
        if (was > 8 && is > 8) this.zoom(was / is, (event.offsetX + other.x) / 2);
      } else if (Math.abs(event.offsetX - before.x) + Math.abs(event.offsetY - before.y) > 0) {
        if (this.follow && Math.abs(event.offsetX - before.x) > 2) this.setFollow(false);
        this.right -= ((event.offsetX - before.x) / this.plotWidth) * this.span;
        this.scroll -= event.offsetY - before.y;
        this.redraw();
      }
      held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      return undefined;
    });
    const release = (event: PointerEvent): void => {
      held.delete(event.pointerId);
      if (event.type !== "pointerup") return;
      const hit = this.hitAt(event.offsetX, event.offsetY);
      this.point(hit, false);
      if (moved > CLICK_PX) return;
      if (hit) this.pin(hit);
      else this.unpin();
    };
    on("pointerup", release);
    on("pointercancel", release);
    on("pointerleave", () => {
      this.pointer = null;
      this.point(null, false);
    });
    on("wheel", (event) => {
      // The page keeps its wheel: zooming wants Ctrl (or a pinch), panning a sideways wheel.
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(event.deltaY * 0.004), event.offsetX);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.setFollow(false);
        this.right += (event.deltaX / this.plotWidth) * this.span;
      } else return;
      event.preventDefault();
      this.redraw();
    });
    on("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.key(event.key, event.shiftKey)) event.preventDefault();
    });
    on("blur", () => this.point(null, false));
  }

  private key(key: string, shift: boolean): boolean {
    const act: Record<string, () => void> = {
      ArrowLeft: () => this.stride(-1, shift),
      ArrowRight: () => this.stride(1, shift),
      ArrowUp: () => this.climb(-1),
      ArrowDown: () => this.climb(1),
      Home: () => this.walk(-Infinity),
      End: () => this.walk(Infinity),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      w: () => this.zoom(1 / 1.5, this.pointer ?? this.middle),
      s: () => this.zoom(1.5, this.pointer ?? this.middle),
      a: () => this.pan(-PAN),
      d: () => this.pan(PAN),
      "0": () => this.fit(),
      f: () => this.setFollow(!this.follow),
      Enter: () => this.hit && this.pin(this.hit),
      Escape: () => {
        this.point(null, true);
        this.unpin();
      },
    };
    const wanted = act[key.length === 1 ? key.toLowerCase() : key];
    wanted?.();
    return wanted !== undefined;
  }

  /** To another token; with Shift, everything from where one was is selected. */
  private stride(by: number, selects: boolean): void {
    const before = this.hit && extent(this.hit);
    this.walk(by);
    const after = this.hit && extent(this.hit);
    if (!selects || !before || !after) return;
    // The end that was reached last moves on, the other stays.
    const at = before.to ?? before.from;
    const fixed = !this.range ? at : this.range.from === at ? this.range.to : this.range.from;
    this.select(fixed, after.to ?? after.from);
  }

  /** To another token of the request; the view stops following and goes along. */
  private walk(by: number): void {
    const request = this.hit ? requestOf(this.hit) : this.inView()[0];
    const last = request ? request.tokens.length - 1 : -1;
    if (!request || last < 0) return;
    const here = this.hit?.kind === "token" ? request.tokens.indexOf(this.hit.token) : by > 0 ? -1 : last + 1;
    const token = request.tokens[Math.min(last, Math.max(0, here + by))]!;
    this.setFollow(false);
    this.toView(token.at);
    this.point({ kind: "token", token, step: this.log.stepById(token.step) }, true);
  }

  private climb(by: number): void {
    const there = this.inView();
    const here = this.hit ? there.indexOf(requestOf(this.hit)) : by > 0 ? -1 : there.length;
    const request = there[Math.min(there.length - 1, Math.max(0, here + by))];
    if (!request) return;
    const time = this.hit ? (extent(this.hit).to ?? this.right) : this.right;
    const token = nearest(request.tokens, time);
    this.wantedLane = request;
    this.setFollow(false);
    if (token) this.point({ kind: "token", token, step: this.log.stepById(token.step) }, true);
  }

  private toView(time: number): void {
    const shown = this.folds.shown(time);
    if (shown > this.right || shown < this.left) this.right = shown + this.span / 2;
  }

  /** The middle of the view; while it follows, its right edge, which is now. */
  private get middle(): number {
    return this.gutter + (this.follow ? 1 : 0.5) * this.plotWidth;
  }

  private inView(): Request[] {
    const { from, to } = this.window;
    const shown = [...this.log.requests.values()].filter((request) => request.tokens.length > 0 && request.to > from && request.from < to);
    return shown.sort((a, b) => a.lane - b.lane || a.from - b.from);
  }

  private hitAt(x: number, y: number): Hit | null {
    const lane = Math.floor((y - AXIS + this.scroll) / this.laneHeight);
    const time = this.timeAt(x);
    const slack = (this.span / this.plotWidth) * 4;
    if (y < AXIS || x < this.gutter) return null;
    for (const request of this.log.requests.values()) {
      if (request.lane !== lane || request.from > time + slack || (!request.isOpen && request.to < time - slack)) continue;
      for (let i = Math.max(0, this.log.firstStepAfter(time - slack)); i < this.log.steps.length; i += 1) {
        const step = this.log.steps[i]!;
        if (step.at > time + slack) break;
        const row = step.prefillOf.indexOf(request);
        if (row >= 0 && step.end > time) return { kind: "chunk", request, row: step.prefill[row]!, step };
        if (step.end < time || !step.decodeOf.includes(request)) continue;
        const token = request.tokens.find((token) => token.step === step.id);
        if (token) return { kind: "token", token, step };
      }
      const pause = request.pauses.find((pause) => pause.from <= time && (pause.to ?? Infinity) >= time);
      if (pause) return { kind: "pause", request, ...pause };
      const { away } = request;
      if (away && away.from_ms <= time && (away.to_ms ?? Infinity) >= time) return { kind: "away", request, from: away.from_ms, to: away.to_ms, away };
      if (request.arrived != null && request.arrived <= time && (request.firstPass ?? Infinity) >= time) {
        return { kind: "queue", request, from: request.arrived, to: request.firstPass };
      }
      // Its steps are no longer known, or none carried it just then.
      if (request.from <= time && !request.isOpen && request.to >= time) return { kind: "whole", request };
    }
    return null;
  }

  // The tip

  private point(hit: Hit | null, byKeyboard: boolean): void {
    if (isSame(hit, this.hit) || (!hit && !this.hit)) return;
    this.hit = hit;
    this.byKeyboard = byKeyboard;
    show(this.tip, hit != null);
    if (hit) this.tell(describe(hit, this.log));
    if (hit) void this.askOwners(hit);
    this.redraw();
  }

  /** Keeps a place until Escape. */
  private pin(hit: Hit): void {
    this.range = null;
    this.pinned = hit;
    this.selection.place(hit, this.log);
    void this.askOwners(hit);
    this.redraw();
  }

  /** Keeps a stretch of time, and sums it. */
  private select(one: number, other: number): void {
    this.setFollow(false);
    this.pinned = null;
    this.range = { from: Math.max(0, Math.min(one, other)), to: Math.max(one, other) };
    this.selection.stretch(this.range, this.log);
    this.redraw();
  }

  private unpin(): void {
    this.pinned = this.range = null;
    this.selection.clear();
    this.redraw();
  }

  private tell(lines: string[]): void {
    const [first, ...rest] = lines;
    fill(this.tip, el("strong", {}, first ?? ""), ...rest.map((line) => el("p", {}, line)));
    if (this.byKeyboard) fill(this.spoken, `${first}. ${rest.join(" ")}`);
  }

  /** Moves the tip to what it speaks of. */
  private place(): void {
    if (!this.hit) return;
    const where = extent(this.hit);
    const x = Math.min(this.surface.width, Math.max(this.gutter, where.to == null ? this.surface.width : this.xAt(where.to)));
    const y = AXIS + (where.request.lane + 1) * this.laneHeight - this.scroll;
    const low = y > this.surface.height * 0.6;
    const late = x > this.surface.width / 2;
    const { style } = this.tip;
    style.transform = `translate(${late ? "calc(-100% - 4px)" : "4px"}, ${low ? `calc(-100% - ${this.laneHeight + 6}px)` : "6px"})`;
    style.left = `${x}px`;
    style.top = `${Math.min(this.surface.height, y)}px`;
  }

  /** For one's own requests the server's ledger knows to the microsecond which request a token's time, or the queue's, was spent on. */
  private async askOwners(hit: Hit): Promise<void> {
    if ((hit.kind !== "token" && hit.kind !== "queue" && hit.kind !== "away") || typeof requestOf(hit).name !== "string") return;
    // A pointer that only passes asks nothing.
    await new Promise((resolve) => setTimeout(resolve, 200));
    if (this.hit !== hit && this.pinned !== hit) return;
    const request = requestOf(hit);
    const response = await this.app.api(`/v1/requests/${encodeURIComponent(String(request.name))}/timeline`).catch(() => null);
    if (!response?.ok) return;
    const told = ownersOf((await response.json()) as TimelineAnswer, hit);
    if (told && this.hit === hit) this.tell([...describe(hit, this.log), ...told]);
    if (told && this.pinned === hit) this.selection.owners(told);
  }
}

function nearest(tokens: Token[], time: number): Token | undefined {
  return tokens.reduce<Token | undefined>((best, token) => (!best || Math.abs(token.at - time) < Math.abs(best.at - time) ? token : best), undefined);
}

function legend(): HTMLElement {
  const item = (kind: string, text: string): HTMLElement => el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text);
  return el(
    "ul",
    { class: "legend", "aria-label": "Colours" },
    item("prefill", "prefill: the prompt"),
    item("decode", "decode: the answer"),
    item("thinking", "decode: a thought before it"),
    item("rejected", "a rejected draft"),
    item("other", "another request's prompt in the same step"),
    item("machine", "the machine ran other programs"),
    item("queue", "waiting"),
    item("preempted", "preempted"),
    item("cached", "cached prefix"),
    item("away", "another worker reads the prompt, its blocks come"),
    item("late", "late token"),
  );
}
