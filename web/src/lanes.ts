// Lanes of requests, painted into images of one pixel per lane and column, which are then stretched: what a frame costs does
// not depend on how steps and lanes happen to touch. When time moves on, the images are shifted, and only their new columns
// are painted.
//
//   own        [####]      [####]          what a request's own rows cost; paler while it thinks
//   others           [////]                what others' rows made of the same step, in their phase's colour: hatched
//                                          and, grey, what the machine ran meanwhile that is none of ours

import { pixel, stripes, theme } from "./draw";
import type { Log, Step } from "./log";
import type { DecodeRow } from "./wire";

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

/** Which columns of which lanes the images show. */
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

/** Pixels of the screen from a stripe to the next, for each of CSS. */
const STRIPES = 6;

/** An image that lies on a canvas. */
class Sheet {
  readonly canvas = document.createElement("canvas");
  words = new Uint32Array(0);
  private context = this.canvas.getContext("2d")!;
  private image: ImageData | null = null;

  /** True if it is a new one. */
  resize(width: number, height: number): boolean {
    if (this.image?.width === width && this.image.height === height) return false;
    this.image = this.context.createImageData(width, height);
    this.words = new Uint32Array(this.image.data.buffer);
    this.canvas.width = width;
    this.canvas.height = height;
    return true;
  }

  shift(by: number): void {
    const { width, height } = this.image!;
    for (let row = 0; row < height && by > 0; row += 1) this.words.copyWithin(row * width, row * width + by, (row + 1) * width);
  }

  put(from: number): void {
    const { width, height } = this.image!;
    this.context.putImageData(this.image!, 0, 0, from, 0, width, height);
  }
}

export class Lanes {
  private own = new Sheet();
  private shared = new Sheet();
  private hatched = document.createElement("canvas").getContext("2d")!;
  private pattern: { ratio: number; stripes: CanvasPattern } | null = null;
  private painted: Painted | null = null;
  /** Pixels of the screen for one of CSS. */
  private ratio = 1;

  constructor(private log: Log) {}

  /** The next image is painted anew: the colours are others. */
  forget(): void {
    this.painted = null;
  }

  /** Brings the images up to date with the log and the view. */
  paint(view: View): void {
    const { log } = this;
    const { columns: width, lane, lanes } = view;
    this.ratio = view.ratio;
    const sheets = [this.own, this.shared];
    if (sheets.map((sheet) => sheet.resize(width, lanes)).includes(true)) this.painted = null;
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
        for (const sheet of sheets) sheet.shift(shift);
        from = Math.min(known, width - shift);
      }
      if (shift === 0 && before.steps === log.stepVersion) from = width;
    }
    if (from < width) {
      this.columns(from, width, view, column, scale);
      const all = from === 0 || before?.column !== column;
      for (const sheet of sheets) sheet.put(all ? 0 : from);
    }
    this.painted = { scale, column, lane, version: events, steps: log.stepVersion, until: log.lastStep?.end ?? 0 };
  }

  private columns(from: number, to: number, view: View, column: number, scale: number): void {
    const { log } = this;
    const { words } = this.own;
    const others = this.shared.words;
    const { columns: width, lane, lanes } = view;
    const colours = theme();
    const [prefill, decode, idle] = [pixel(colours.prefill), pixel(colours.decode), pixel(colours.lane)];
    const thinking = pixel(colours.thinking);
    const [queue, cached, out, machine] = [pixel(colours.queue), pixel(colours.cached), pixel(colours.preempted), pixel(colours.quiet)];
    const unit = Math.max(1, Math.round(view.ratio));
    const at = (time: number): number => Math.floor(time / scale) - column;
    const clamp = (x: number): number => Math.min(to, Math.max(from, x));
    for (let row = 0; row < lanes; row += 1) {
      words.fill(0, row * width + from, row * width + to);
      others.fill(0, row * width + from, row * width + to);
    }

    const band = (on: Uint32Array, row: number, begin: number, end: number, colour: number): void => {
      on.fill(colour, row * width + clamp(begin), row * width + clamp(end));
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
      if (request.firstPass != null) band(words, row, at(request.firstPass), at(request.to), idle);
      if (request.arrived != null) dots(row, at(request.arrived), at(request.firstPass ?? (open ? now : request.to)), queue);
      for (const pause of request.pauses) dots(row, at(pause.from), at(pause.to ?? (open ? now : request.to)), out);
    }
    for (let i = log.firstStepAfter((column + from) * scale); i < log.steps.length; i += 1) {
      const step = log.steps[i]!;
      const begin = at(step.at);
      if (begin >= to) break;
      const end = Math.max(begin + 1, at(step.end));
      // Where a step is wide enough, a gap shows where it ends.
      const last = end - begin >= 4 * unit ? end - unit : end;
      for (let k = 0; k < step.decodeOf.length; k += 1) {
        const row = step.decodeOf[k]!.lane - lane;
        if (row < 0 || row >= lanes) continue;
        const made = step.decode[k]!;
        const [own, decoded, prompts] = borders(step, made, begin, last);
        const colour = step.decodeOf[k]!.thinks(made.a, made.start) ? thinking : decode;
        for (let x = row * width + clamp(begin); x < row * width + clamp(own); x += 1) if (words[x] !== prefill) words[x] = colour;
        band(others, row, own, decoded, decode);
        band(others, row, decoded, prompts, prefill);
        band(others, row, prompts, last, machine);
      }
      for (let k = 0; k < step.prefillOf.length; k += 1) {
        const row = step.prefillOf[k]!.lane - lane;
        if (row < 0 || row >= lanes) continue;
        const chunk = step.prefill[k]!;
        const [own, decoded, prompts] = borders(step, chunk, begin, last);
        band(words, row, begin, own, prefill);
        band(others, row, own, decoded, decode);
        band(others, row, decoded, prompts, prefill);
        band(others, row, prompts, last, machine);
        if (chunk.cached > 0 && chunk.start <= chunk.cached) band(words, row, begin, Math.min(begin + 4 * unit, last), cached);
      }
    }
  }

  /** Draws the images: their top left corner, their width, and the height of a lane. */
  blit(context: CanvasRenderingContext2D, to: { x: number; y: number; width: number; height: number }): void {
    const { canvas } = this.own;
    const lanes = canvas.height;
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, 0, 0, canvas.width, lanes, to.x, to.y, to.width, lanes * to.height);
    this.hatch(lanes * to.height);
    context.drawImage(this.hatched.canvas, to.x, to.y, to.width, lanes * to.height);
    if (to.height < 4) return;
    const gap = to.height >= 12 ? 3 : 1;
    for (let lane = 1; lane <= lanes; lane += 1) context.clearRect(to.x, to.y + lane * to.height - gap, to.width, gap);
  }

  /** The image of other requests at its full height, seen through stripes that move with the time. */
  private hatch(height: number): void {
    const { hatched, ratio } = this;
    const { canvas } = this.shared;
    const [width, tall] = [canvas.width, Math.max(1, Math.round(height * ratio))];
    if (hatched.canvas.width !== width || hatched.canvas.height !== tall) Object.assign(hatched.canvas, { width, height: tall });
    if (this.pattern?.ratio !== ratio) this.pattern = { ratio, stripes: stripes(hatched, 2 * Math.round((STRIPES * ratio) / 2)) };
    hatched.imageSmoothingEnabled = false;
    hatched.globalCompositeOperation = "copy";
    hatched.drawImage(canvas, 0, 0, width, canvas.height, 0, 0, width, tall);
    hatched.globalCompositeOperation = "destination-in";
    this.pattern.stripes.setTransform(new DOMMatrix().translate(-(this.painted?.column ?? 0), 0));
    hatched.fillStyle = this.pattern.stripes;
    hatched.fillRect(0, 0, width, tall);
  }
}

/**
 * Where in a step's columns a row's own share ends, that of others' decode rows, and that of others' prompts; what follows is the
 * machine's. A single column shows the largest part.
 */
function borders(step: Step, row: DecodeRow, begin: number, end: number): [number, number, number] {
  if (row.own == null && !step.stolen) return [end, end, end];
  const { own, decode, prefill, machine } = timeOf(step, row);
  const all = Math.max(1e-9, step.took);
  if (end - begin > 1) {
    const at = (ms: number): number => begin + Math.round((ms / all) * (end - begin));
    return [at(own), at(own + decode), at(own + decode + prefill)];
  }
  const most = Math.max(own, decode, prefill, machine);
  return most === own ? [end, end, end] : most === decode ? [begin, end, end] : most === prefill ? [begin, begin, end] : [begin, begin, begin];
}

/** Milliseconds of a step by whose they were, seen from one of its rows. */
export function timeOf(step: Step, row: DecodeRow): { own: number; decode: number; prefill: number; machine: number } {
  const machine = Math.min(step.took, step.stolen ?? 0);
  const took = step.took - machine;
  const own = row.own ?? 1;
  const prefill = row.other_prefill ?? 0;
  return { own: own * took, decode: Math.max(0, 1 - own - prefill) * took, prefill: prefill * took, machine };
}
