// The live roofline (Williams et al., 2009): each step a point, arithmetic intensity to the right, achieved rate upwards,
// both logarithmic. The roof is what this machine was measured to do: memory bandwidth on the left, arithmetic on the right.

import type { App } from "./app";
import { el } from "./dom";
import { Surface, theme, watchTheme } from "./draw";
import { dropFrame, wantFrame } from "./frames";
import { own } from "./limits";
import type { Step } from "./log";
import { short } from "./units";

const SHOWN = 600;
const REDRAW_MS = 250;
const [LEFT, RIGHT, TOP, BOTTOM] = [84, 18, 14, 34];

export class Roofline {
  readonly element: HTMLElement;
  private surface: Surface;
  private drawn = -1;
  private last = 0;
  private timer = 0;
  private stops: (() => void)[];

  constructor(private app: App) {
    const canvas = el("canvas", { class: "roofline", role: "img", "aria-label": "Roofline: each step a point by its FLOP per byte and its FLOP per second, under the limits of this machine" });
    this.element = canvas;
    this.surface = new Surface(canvas, () => this.redraw());
    this.stops = [app.feed.subscribe(() => this.changed()), watchTheme(() => this.redraw())];
  }

  end(): void {
    for (const stop of this.stops) stop();
    clearTimeout(this.timer);
    dropFrame(this.draw);
    this.surface.end();
  }

  private changed(): void {
    if (this.app.feed.log.stepVersion === this.drawn || this.timer) return;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      this.redraw();
    }, Math.max(0, this.last + REDRAW_MS - performance.now()));
  }

  private redraw(): void {
    wantFrame(this.draw);
  }

  private draw = (now: number): void => {
    const { surface } = this;
    const { log } = this.app.feed;
    if (surface.width === 0) return;
    this.last = now;
    this.drawn = log.stepVersion;
    const context = surface.begin();
    const colours = theme();
    const limits = this.app.info.limits;
    const steps = log.steps.slice(-SHOWN).filter((step) => step.flops > 0 && step.bytes > 0 && (own(step, limits) ?? 0) > 0);
    const rate = (step: Step): number => Math.log10(step.flops / (own(step, limits)! / 1000));
    if (steps.length === 0 && !limits) return;
    const xs = steps.map((step) => Math.log10(step.flops / step.bytes));
    const ys = steps.map(rate);
    if (limits) {
      const ridge = Math.log10(limits.matrix_flops / limits.read_bandwidth);
      xs.push(ridge - 1, ridge + 0.7);
      ys.push(Math.log10(limits.matrix_flops) + 0.15, Math.log10(limits.matrix_flops) - 1.5);
    }
    const [x0, x1] = [Math.floor(Math.min(...xs) * 2) / 2, Math.ceil(Math.max(...xs) * 2) / 2];
    const [y0, y1] = [Math.floor(Math.min(...ys) * 2) / 2, Math.ceil(Math.max(...ys) * 2) / 2];
    const px = (x: number): number => LEFT + ((x - x0) / (x1 - x0)) * (surface.width - LEFT - RIGHT);
    const py = (y: number): number => surface.height - BOTTOM - ((y - y0) / (y1 - y0)) * (surface.height - TOP - BOTTOM);
    this.axes(context, x0, x1, y0, y1, px, py);
    if (limits) {
      const top = Math.log10(limits.matrix_flops);
      const band = Math.log10(limits.read_bandwidth);
      context.save();
      context.beginPath();
      context.rect(LEFT, TOP, surface.width - LEFT - RIGHT, surface.height - TOP - BOTTOM);
      context.clip();
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(px(x0), py(x0 + band));
      context.lineTo(px(top - band), py(top));
      context.lineTo(px(x1), py(top));
      context.stroke();
      context.restore();
      context.lineWidth = 1;
      context.fillStyle = colours.quiet;
      context.textAlign = "right";
      context.fillText(`compute limit ${short(limits.matrix_flops)}FLOP/s`, surface.width - RIGHT - 4, py(top) - 8 < TOP ? py(top) + 10 : py(top) - 8);
      // Along the slope, above it.
      const middle = (Math.max(x0, y0 - band) + top - band) / 2;
      context.save();
      context.translate(px(middle), py(middle + band));
      context.rotate(Math.atan2(py(1) - py(0), px(1) - px(0)));
      context.textAlign = "center";
      context.fillText(`bandwidth limit ${short(limits.read_bandwidth)}B/s`, 0, -10);
      context.restore();
    }
    for (const step of steps) this.point(context, step, px(Math.log10(step.flops / step.bytes)), py(rate(step)));
  };

  private point(context: CanvasRenderingContext2D, step: Step, x: number, y: number): void {
    const colours = theme();
    context.globalAlpha = 0.65;
    // Prefill is a square and decode a disc, as everywhere; a step that carried both is a square with a disc in it.
    if (step.prefill.length > 0) {
      context.fillStyle = colours.prefill;
      context.fillRect(x - 3, y - 3, 6, 6);
    } else dot(context, x, y, 3, colours.decode);
    if (step.prefill.length > 0 && step.decode.length > 0) dot(context, x, y, 1.8, colours.decode);
    context.globalAlpha = 1;
  }

  private axes(context: CanvasRenderingContext2D, x0: number, x1: number, y0: number, y1: number, px: (x: number) => number, py: (y: number) => number): void {
    const { width, height } = this.surface;
    const colours = theme();
    context.strokeStyle = colours.line;
    context.fillStyle = colours.quiet;
    context.beginPath();
    context.textAlign = "center";
    for (let x = Math.ceil(x0); x <= x1; x += 1) {
      context.moveTo(px(x), TOP);
      context.lineTo(px(x), height - BOTTOM);
      context.fillText(x >= 0 ? String(10 ** x) : (10 ** x).toFixed(-x), px(x), height - BOTTOM + 10);
    }
    context.textAlign = "right";
    for (let y = Math.ceil(y0); y <= y1; y += 1) {
      context.moveTo(LEFT, py(y));
      context.lineTo(width - RIGHT, py(y));
      context.fillText(`${power(y)}FLOP/s`, LEFT - 6, py(y));
    }
    context.stroke();
    context.textAlign = "center";
    context.fillText("FLOP per byte read", (LEFT + width - RIGHT) / 2, height - 8);
  }
}

function dot(context: CanvasRenderingContext2D, x: number, y: number, radius: number, colour: string): void {
  context.fillStyle = colour;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

/** `10 G` for 10: powers of ten need no decimals. */
function power(exponent: number): string {
  return short(10 ** exponent).replace(/\.0+/, "");
}
