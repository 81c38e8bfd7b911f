// Lanes of requests, painted into images of one pixel per lane and column, which are then stretched: what a frame costs does
// not depend on how steps and lanes happen to touch. When time moves on, the images are shifted, and only their new columns
// are painted.
//
//   [####]                   prefill is as tall as the bar
//   [####][##|##|////]       decode and waiting are lower; hatched: another request's prompt in the same step
//               ------       the machine ran other programs: a line below, and nothing of it in the bar
//
// A step's bar is divided as the time of its rows was. What of it is another prompt's and too narrow for hatching is a dark edge.

import { darker, pixel, stripes, theme } from "./draw";
import type { Folds } from "./folds";
import type { Log, Step } from "./log";
import type { DecodeRow, PrefillRow } from "./wire";

/** What is to be seen. */
export interface View {
  /** Milliseconds of shown time (folds.ts) at the left edge, and from there to the right one. */
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
  /** How often what was painted has moved to another place. */
  moves: number;
  /** Up to where everything was known. */
  until: number;
}

/** Pixels of the screen from a stripe to the next, for each of CSS. */
const STRIPES = 6;
/** Narrower, in CSS pixels, another's prompt is not hatched. */
const HATCHED_PX = 4;

/** A lane of some height, in CSS pixels from its top: the bar's end, where decode begins, and the machine's line, if there is room. */
export function shapeOf(height: number): { bar: number; low: number; line: number | null } {
  if (height >= 12) return { bar: height - 5, low: Math.round(height / 6), line: height - 4 };
  return height >= 7 ? { bar: height - 3, low: 1, line: height - 3 } : { bar: Math.max(1, height - 1), low: 0, line: null };
}

const HAS = { tall: 1, hatched: 2, machine: 4 };

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
  private tall = new Sheet();
  private low = new Sheet();
  private shared = new Sheet();
  private machine = new Sheet();
  private hatched = document.createElement("canvas").getContext("2d")!;
  private pattern: { ratio: number; stripes: CanvasPattern } | null = null;
  private painted: Painted | null = null;
  private moves = 0;
  /** What there is in each lane beside its ground: the images are drawn of those lanes only. */
  private has = new Uint8Array(0);
  /** Pixels of the screen for one of CSS. */
  private ratio = 1;

  constructor(
    private log: Log,
    private folds: Folds,
  ) {}

  /** The next image is painted anew: colours, lanes or times are others. */
  forget(): void {
    this.moves += 1;
  }

  private get sheets(): Sheet[] {
    return [this.tall, this.low, this.shared, this.machine];
  }

  /** Brings the images up to date with the log and the view. */
  paint(view: View): void {
    const { log, sheets, folds, moves } = this;
    const { columns: width, lane, lanes } = view;
    this.ratio = view.ratio;
    if (sheets.map((sheet) => sheet.resize(width, lanes)).includes(true)) this.painted = null;
    const scale = view.span / width;
    const column = Math.round(view.left / scale);
    const before = this.painted;
    let from = 0;
    if (before && before.scale === scale && before.lane === lane && before.version === log.version && before.moves === moves) {
      const shift = column - before.column;
      // What runs or waits grows with the time, so everything after the last step is painted again.
      const known = Math.floor(folds.shown(before.until) / scale) - column - 1;
      if (shift >= 0 && shift < width && known > 0) {
        for (const sheet of sheets) sheet.shift(shift);
        from = Math.min(known, width - shift);
      }
      if (shift === 0 && before.steps === log.stepVersion) from = width;
    }
    if (from === 0) this.has = new Uint8Array(lanes);
    if (from < width) {
      this.columns(from, width, view, column, scale);
      const all = from === 0 || before?.column !== column;
      for (const sheet of sheets) sheet.put(all ? 0 : from);
    }
    this.painted = { scale, column, lane, version: log.version, steps: log.stepVersion, moves, until: log.lastStep?.end ?? 0 };
  }

  private columns(from: number, to: number, view: View, column: number, scale: number): void {
    const { log, folds } = this;
    const [tall, low, shared, machine] = this.sheets.map((sheet) => sheet.words) as [Uint32Array, Uint32Array, Uint32Array, Uint32Array];
    const { columns: width, lane, lanes } = view;
    const colours = theme();
    const [prefill, decode, idle, thinking] = [pixel(colours.prefill), pixel(colours.decode), pixel(colours.lane), pixel(colours.thinking)];
    const [queue, cached, out, grey, edge] = [pixel(colours.queue), pixel(colours.cached), pixel(colours.preempted), pixel(colours.quiet), pixel(darker(colours.prefill))];
    const unit = Math.max(1, Math.round(view.ratio));
    const at = (time: number): number => Math.floor(folds.shown(time) / scale) - column;
    const clamp = (x: number): number => Math.min(to, Math.max(from, x));
    for (const { words } of this.sheets) for (let row = 0; row < lanes; row += 1) words.fill(0, row * width + from, row * width + to);

    const band = (on: Uint32Array, row: number, begin: number, end: number, colour: number): void => {
      on.fill(colour, row * width + clamp(begin), row * width + clamp(end));
    };
    const dots = (row: number, begin: number, end: number, colour: number): void => {
      for (let x = clamp(begin); x < clamp(end); x += 1) {
        if ((x + column) % (4 * unit) < 2 * unit) low[row * width + x] = colour;
      }
    };
    /** A row's part of a step in its colour, and what is another prompt's. */
    const part = (on: Uint32Array, row: number, made: DecodeRow, begin: number, last: number, colour: number): void => {
      const others = Math.round((made.other_prefill ?? 0) * (last - begin));
      const isWide = others >= HATCHED_PX * unit;
      band(on, row, begin, isWide ? last - others : last, colour);
      if (isWide) band(shared, row, last - others, last, prefill);
      else if (others > 0) band(on, row, Math.max(begin, last - unit), last, edge);
      this.has[row]! |= (on === tall ? HAS.tall : 0) | (isWide ? HAS.hatched : 0);
    };
    const now = Math.max(log.newest, view.now);
    for (const request of log.requests.values()) {
      const row = request.lane - lane;
      const open = request.isOpen;
      if (row < 0 || row >= lanes || at(request.from) >= to || (!open && at(request.to) < from)) continue;
      if (request.firstPass != null) band(low, row, at(request.firstPass), at(request.to), idle);
      if (request.arrived != null) dots(row, at(request.arrived), at(request.firstPass ?? (open ? now : request.to)), queue);
      for (const pause of request.pauses) dots(row, at(pause.from), at(pause.to ?? (open ? now : request.to)), out);
    }
    for (let i = log.firstStepAfter(folds.time((column + from) * scale)); i < log.steps.length; i += 1) {
      const step = log.steps[i]!;
      const begin = at(step.at);
      if (begin >= to) break;
      const end = Math.max(begin + 1, at(step.end));
      // Where a step is wide enough, a gap shows where it ends.
      const last = end - begin >= 4 * unit ? end - unit : end;
      const elsewhere = step.took > 0 ? Math.round((Math.min(1, (step.stolen ?? 0) / step.took)) * (end - begin)) : 0;
      const mark = (row: number): void => {
        if (elsewhere <= 0) return;
        band(machine, row, end - elsewhere, end, grey);
        this.has[row]! |= HAS.machine;
      };
      for (let k = 0; k < step.decodeOf.length; k += 1) {
        const request = step.decodeOf[k]!;
        const row = request.lane - lane;
        if (row < 0 || row >= lanes) continue;
        const made = step.decode[k]!;
        part(low, row, made, begin, last, request.thinks(made.a, made.start) ? thinking : decode);
        mark(row);
      }
      for (let k = 0; k < step.prefillOf.length; k += 1) {
        const row = step.prefillOf[k]!.lane - lane;
        if (row < 0 || row >= lanes) continue;
        const chunk = step.prefill[k]!;
        part(tall, row, chunk, begin, last, prefill);
        mark(row);
        if (begins(chunk)) band(tall, row, begin, Math.min(begin + 3 * unit, last), cached);
      }
    }
  }

  /** Draws the images: their top left corner, their width, and the height of a lane. */
  blit(context: CanvasRenderingContext2D, to: { x: number; y: number; width: number; height: number }): void {
    const { bar, low, line } = shapeOf(to.height);
    const lanes = this.low.canvas.height;
    if (this.has.some((has) => has & HAS.hatched)) this.hatch(lanes * to.height);
    context.imageSmoothingEnabled = false;
    const scale = this.hatched.canvas.height / lanes;
    const row = ({ canvas }: Sheet, lane: number, y: number, height: number): void => context.drawImage(canvas, 0, lane, canvas.width, 1, to.x, to.y + lane * to.height + y, to.width, height);
    for (let lane = 0; lane < lanes; lane += 1) {
      row(this.low, lane, low, bar - low);
      const has = this.has[lane]!;
      if (has & HAS.tall) row(this.tall, lane, 0, bar);
      const hatched = (bar - low) * (scale / to.height);
      if (has & HAS.hatched) context.drawImage(this.hatched.canvas, 0, lane * scale, this.hatched.canvas.width, hatched, to.x, to.y + lane * to.height + low, to.width, bar - low);
      if (line != null && has & HAS.machine) row(this.machine, lane, line, 2);
    }
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

/** The first piece of a prompt of which the prefix cache had some. */
export function begins(chunk: PrefillRow): boolean {
  return chunk.cached > 0 && chunk.start <= chunk.cached;
}

/** Milliseconds of a step by whose they were, seen from one of its rows. */
export function timeOf(step: Step, row: DecodeRow): { own: number; decode: number; prefill: number; machine: number } {
  const machine = Math.min(step.took, step.stolen ?? 0);
  const took = step.took - machine;
  const own = row.own ?? 1;
  const prefill = row.other_prefill ?? 0;
  return { own: own * took, decode: Math.max(0, 1 - own - prefill) * took, prefill: prefill * took, machine };
}
