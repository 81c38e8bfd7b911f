// Lanes of requests, painted into an image of one pixel per lane and column, which is then stretched: what a frame costs
// does not depend on how passes and lanes happen to touch. When time moves on, the image is shifted, and only its new columns
// are painted.

import { pixel, theme } from "./draw";
import type { Log } from "./log";

/** What is to be seen. */
export interface View {
  /** Milliseconds at the left edge, and from there to the right one. */
  left: number;
  span: number;
  /** Width of the image in pixels of the screen, and how many of them make one of CSS. */
  columns: number;
  ratio: number;
  /** The first lane, and how many. */
  lane: number;
  lanes: number;
  now: number;
}

/** Which columns of which lanes the image shows. */
interface Painted {
  /** Milliseconds of a column. */
  scale: number;
  /** The column of the image's left edge, counted from the start of the engine. */
  column: number;
  lane: number;
  version: number;
  steps: number;
  /** Up to where everything was known. */
  until: number;
}

export class Lanes {
  private image: ImageData | null = null;
  private words = new Uint32Array(0);
  private sheet = document.createElement("canvas");
  private context = this.sheet.getContext("2d")!;
  private painted: Painted | null = null;

  constructor(private log: Log) {}

  /** The next image is painted anew: the colours are others. */
  forget(): void {
    this.painted = null;
  }

  /** Brings the image up to date with the log and the view. */
  paint(view: View): void {
    const { log } = this;
    const { columns: width, lane, lanes } = view;
    if (!this.image || this.image.width !== width || this.image.height !== lanes) {
      this.image = this.context.createImageData(width, lanes);
      this.words = new Uint32Array(this.image.data.buffer);
      this.sheet.width = width;
      this.sheet.height = lanes;
      this.painted = null;
    }
    const scale = view.span / width;
    const column = Math.round(view.left / scale);
    const before = this.painted;
    const events = log.version - log.stepVersion;
    let from = 0;
    if (before && before.scale === scale && before.lane === lane && before.version === events) {
      const shift = column - before.column;
      // What runs or waits grows with the time, so everything after the last step is painted again.
      const known = Math.floor(before.until / scale) - column - 1;
      if (shift >= 0 && shift < width && known > 0) {
        for (let row = 0; row < lanes && shift > 0; row += 1) this.words.copyWithin(row * width, row * width + shift, (row + 1) * width);
        from = Math.min(known, width - shift);
      }
      if (shift === 0 && before.steps === log.stepVersion) from = width;
    }
    if (from < width) {
      this.columns(from, width, view, column, scale);
      const all = from === 0 || before?.column !== column;
      this.context.putImageData(this.image, 0, 0, all ? 0 : from, 0, width, lanes);
    }
    this.painted = { scale, column, lane, version: events, steps: log.stepVersion, until: log.lastStep?.end ?? 0 };
  }

  private columns(from: number, to: number, view: View, column: number, scale: number): void {
    const { log, words } = this;
    const { columns: width, lane, lanes } = view;
    const colours = theme();
    const [prefill, decode, idle] = [pixel(colours.prefill), pixel(colours.decode), pixel(colours.lane)];
    const [queue, cached, out] = [pixel(colours.queue), pixel(colours.cached), pixel(colours.preempted)];
    const unit = Math.max(1, Math.round(view.ratio));
    const at = (time: number): number => Math.floor(time / scale) - column;
    const clamp = (x: number): number => Math.min(to, Math.max(from, x));
    for (let row = 0; row < lanes; row += 1) words.fill(0, row * width + from, row * width + to);

    const band = (row: number, begin: number, end: number, colour: number): void => {
      words.fill(colour, row * width + clamp(begin), row * width + clamp(end));
    };
    const dots = (row: number, begin: number, end: number, colour: number): void => {
      for (let x = clamp(begin); x < clamp(end); x += 1) {
        if ((x + column) % (4 * unit) < 2 * unit) words[row * width + x] = colour;
      }
    };
    const now = Math.max(log.newest, view.now);
    for (const request of log.requests.values()) {
      const row = request.lane - lane;
      const open = request.isOpen;
      if (row < 0 || row >= lanes || at(request.from) >= to || (!open && at(request.to) < from)) continue;
      if (request.firstPass != null) band(row, at(request.firstPass), at(request.to), idle);
      if (request.arrived != null) dots(row, at(request.arrived), at(request.firstPass ?? (open ? now : request.to)), queue);
      for (const pause of request.pauses) dots(row, at(pause.from), at(pause.to ?? (open ? now : request.to)), out);
    }
    for (let i = log.firstStepAfter((column + from) * scale); i < log.steps.length; i += 1) {
      const step = log.steps[i]!;
      const begin = at(step.at);
      if (begin >= to) break;
      const end = Math.max(begin + 1, at(step.end));
      // Where a pass is wide enough, a gap shows where it ends.
      const [x0, x1] = [clamp(begin), clamp(end - begin >= 4 * unit ? end - unit : end)];
      for (const request of step.decodeOf) {
        const row = request.lane - lane;
        if (row < 0 || row >= lanes) continue;
        for (let x = row * width + x0; x < row * width + x1; x += 1) if (words[x] !== prefill) words[x] = decode;
      }
      for (let k = 0; k < step.prefillOf.length; k += 1) {
        const row = step.prefillOf[k]!.lane - lane;
        if (row < 0 || row >= lanes) continue;
        words.fill(prefill, row * width + x0, row * width + x1);
        const chunk = step.prefill[k]!;
        if (chunk.cached > 0 && chunk.start <= chunk.cached) band(row, begin, Math.min(begin + 4 * unit, end), cached);
      }
    }
  }

  /** Draws the image: its top left corner, its width, and the height of a lane. */
  blit(context: CanvasRenderingContext2D, to: { x: number; y: number; width: number; height: number }): void {
    const lanes = this.image!.height;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.sheet, 0, 0, this.sheet.width, lanes, to.x, to.y, to.width, lanes * to.height);
    if (to.height < 4) return;
    const gap = to.height >= 12 ? 3 : 1;
    for (let lane = 1; lane <= lanes; lane += 1) context.clearRect(to.x, to.y + lane * to.height - gap, to.width, gap);
  }
}
