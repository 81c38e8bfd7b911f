// The last minutes as a strip over the lanes, and in it the window that they show: it can be dragged, by its edges too.
//
//   5 min  __.:||||:.__...:|||||||:._____  [== window ==]     below decode, above it prefill, each of its own highest rate;
//             '     '        ' ''                             ticks where tokens came late

import type { App } from "./app";
import { el } from "./dom";
import { isDark, Surface, theme, watchTheme } from "./draw";
import { dropFrame, wantFrame } from "./frames";
import type { Range } from "./selection";

/** How much the strip shows, ms: the least of these that has all. */
const LENGTHS = [60_000, 120_000, 300_000, 900_000];
/** The strip moves on so often. */
const STRIDE_MS = 500;
/** Height of the ticks. */
const TICK = 4;
/** So near to an edge of the window one drags the edge. */
const EDGE_PX = 6;
const NARROWEST_PX = 6;

/** What the strip moves. */
export interface View {
  readonly window: Range;
  look(range: Range): void;
  centre(time: number): void;
  /** By a part of the window's width. */
  pan(by: number): void;
  zoom(factor: number): void;
  fit(): void;
}

export class Overview {
  readonly element: HTMLElement;
  private canvas = el("canvas", { class: "overview", tabindex: 0, role: "slider", "aria-orientation": "horizontal", "aria-label": "Shown stretch of the last minutes" });
  private surface: Surface;
  private sheet = document.createElement("canvas");
  private drawn = "";
  private stops: (() => void)[];

  constructor(
    private app: App,
    private view: View,
  ) {
    this.surface = new Surface(this.canvas, () => this.redraw());
    this.element = el("div", { class: "overview-box" }, this.canvas);
    this.listen();
    this.stops = [app.feed.subscribe(() => this.redraw()), watchTheme(() => this.redraw())];
  }

  end(): void {
    for (const stop of this.stops) stop();
    dropFrame(this.draw);
    this.surface.end();
  }

  /** The view is another one. */
  redraw(): void {
    wantFrame(this.draw);
  }

  /** What the strip shows. */
  private get range(): Range {
    const { log } = this.app.feed;
    const to = Math.ceil(log.newest / STRIDE_MS) * STRIDE_MS;
    const first = Math.min(log.rates[0]?.at ?? to, log.steps[0]?.at ?? to);
    const length = LENGTHS.find((each) => to - first <= each) ?? LENGTHS[LENGTHS.length - 1]!;
    return { from: to - length, to };
  }

  private draw = (): void => {
    const { surface } = this;
    if (surface.width === 0) return;
    const { from, to } = this.range;
    this.bars(from, to);
    const context = surface.begin();
    const colours = theme();
    context.drawImage(this.sheet, 0, 0, surface.width, surface.height);
    const [x0, x1] = this.edges();
    context.fillStyle = colours.panel;
    context.globalAlpha = 0.6;
    context.fillRect(0, 0, x0, surface.height);
    context.fillRect(x1, 0, surface.width - x1, surface.height);
    context.globalAlpha = 1;
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(x0 + 1, 1, Math.max(1, x1 - x0 - 2), surface.height - 2);
    context.lineWidth = 1;
    context.fillStyle = colours.quiet;
    context.textAlign = "left";
    context.fillText(`${(to - from) / 60_000} min`, 4, 8);
    this.tell();
  };

  /** The strip without the window: drawn again when it has moved on. */
  private bars(from: number, to: number): void {
    const { log } = this.app.feed;
    const { width, height, ratio } = this.surface;
    const last = log.rates[log.rates.length - 1];
    const key = [from, to, width, height, isDark(), log.rates.length, last?.at, log.lates.length, log.lates[log.lates.length - 1]].join();
    if (key === this.drawn) return;
    this.drawn = key;
    Object.assign(this.sheet, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const context = this.sheet.getContext("2d")!;
    context.scale(ratio, ratio);
    const colours = theme();
    const x = (time: number): number => ((time - from) / (to - from)) * width;
    const rows = log.rates.filter(({ at }) => at >= from);
    const [mostPrefill, mostDecode] = [Math.max(1e-9, ...rows.map((row) => row.prefill ?? 0)), Math.max(1e-9, ...rows.map((row) => row.decode ?? 0))];
    const half = (height - TICK) / 2;
    context.fillStyle = colours.lane;
    context.fillRect(0, height - 1, width, 1);
    rows.forEach((row, i) => {
      const before = rows[i - 1]?.at ?? row.at - STRIDE_MS;
      const [left, right] = [x(Math.max(before, row.at - 1000)), x(row.at)];
      const [decode, prefill] = [((row.decode ?? 0) / mostDecode) * half, ((row.prefill ?? 0) / mostPrefill) * half];
      context.fillStyle = colours.decode;
      context.fillRect(left, height - decode, Math.max(1, right - left), decode);
      context.fillStyle = colours.prefill;
      context.fillRect(left, height - decode - prefill, Math.max(1, right - left), prefill);
    });
    context.fillStyle = colours.late;
    for (const at of log.lates) if (at >= from) context.fillRect(Math.round(x(at)), 0, 1, TICK);
  }

  /** Where the window begins and ends, at least a few pixels apart. */
  private edges(): [number, number] {
    const { from, to } = this.range;
    const { width } = this.surface;
    const [x0, x1] = [this.view.window.from, this.view.window.to].map((time) => Math.min(width, Math.max(0, ((time - from) / (to - from)) * width))) as [number, number];
    const end = Math.max(x1, Math.min(width, x0 + NARROWEST_PX));
    return [Math.min(x0, end - NARROWEST_PX), end];
  }

  private timeAt(x: number): number {
    const { from, to } = this.range;
    return from + (x / Math.max(1, this.surface.width)) * (to - from);
  }

  private tell(): void {
    const { wall } = this.app.feed.log;
    const { range } = this;
    const { from, to } = this.view.window;
    const set = (name: string, value: string): void => void (this.canvas.getAttribute(name) !== value && this.canvas.setAttribute(name, value));
    const seconds = (time: number): string => Math.round(Math.max(range.from, Math.min(range.to, time)) / 1000).toFixed();
    set("aria-valuemin", seconds(range.from));
    set("aria-valuemax", seconds(range.to));
    set("aria-valuenow", seconds(from));
    set("aria-valuetext", `${wall.clock(Math.max(0, from))} to ${wall.clock(to)}`);
  }

  private listen(): void {
    const { canvas, view } = this;
    /** What the pointer holds: an edge, with the other one's moment, or the whole, with where in it. */
    let held: { fixed: number } | { into: number } | null = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const [x0, x1] = this.edges();
      const { from, to } = view.window;
      const x = event.offsetX;
      const isWide = x1 - x0 > 3 * EDGE_PX;
      if (isWide && Math.abs(x - x0) <= EDGE_PX) held = { fixed: to };
      else if (isWide && Math.abs(x - x1) <= EDGE_PX) held = { fixed: from };
      else {
        const middle = (from + to) / 2;
        const isInside = x >= x0 && x <= x1;
        held = { into: isInside ? this.timeAt(x) - middle : 0 };
        if (!isInside) view.centre(this.timeAt(x));
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      const time = this.timeAt(event.offsetX);
      if ("fixed" in held) view.look({ from: Math.min(held.fixed, time), to: Math.max(held.fixed, time) });
      else view.centre(time - held.into);
    });
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, () => (held = null));
    canvas.addEventListener("keydown", (event) => {
      const act: Record<string, () => void> = {
        ArrowLeft: () => view.pan(-0.25),
        ArrowRight: () => view.pan(0.25),
        PageUp: () => view.pan(-1),
        PageDown: () => view.pan(1),
        ArrowUp: () => view.zoom(1 / 1.5),
        ArrowDown: () => view.zoom(1.5),
        Home: () => view.centre(Math.max(this.range.from, this.app.feed.log.steps[0]?.at ?? 0)),
        End: () => view.fit(),
      };
      if (!act[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act[event.key]!();
    });
  }
}
