// Time as the timeline shows it: stretches in which no request was there are folded to a mark, so that work is what fills the view.
//
//   engine   #######.................idle..................######       ms since its start
//   shown    #######[60 s]######                                        the same, less what is folded
//
// A mark has the same width on the screen at any scale, so what is shown is another time at each.

import type { Log } from "./log";

/** Idle for longer than this, ms, is folded. */
const IDLE_MS = 1000;
/** The width of a mark in pixels. */
export const MARK_PX = 24;

interface Stretch {
  from: number;
  to: number;
}

export interface Fold extends Stretch {
  /** Engine time less shown time, at its end. */
  shift: number;
}

export class Folds {
  /** Oldest first. */
  folds: Fold[] = [];
  private idle: Stretch[] = [];
  private breaks = -1;
  private mark = 0;

  constructor(private log: Log) {}

  /** Folds for a view of so many ms a pixel, or none for 0. True if what is shown is another time than before. */
  set(scale: number): boolean {
    const mark = MARK_PX * scale;
    if (this.breaks === this.log.breaks && mark === this.mark) return false;
    if (this.breaks !== this.log.breaks) this.idle = idleOf(this.log);
    this.breaks = this.log.breaks;
    this.mark = mark;
    const before = this.folds;
    let shift = 0;
    this.folds = mark === 0 ? [] : this.idle.flatMap(({ from, to }) => {
      if (to - from <= Math.max(IDLE_MS, mark)) return [];
      shift += to - from - mark;
      return [{ from, to, shift }];
    });
    return before.length !== this.folds.length || before.some((fold, i) => fold.shift !== this.folds[i]!.shift || fold.to !== this.folds[i]!.to);
  }

  /** Where a moment of the engine is shown. */
  shown(time: number): number {
    const fold = this.folds[this.first(({ to }) => time < to)];
    const before = this.before(fold);
    if (!fold || time <= fold.from) return time - before;
    return fold.from - before + ((time - fold.from) / (fold.to - fold.from)) * this.mark;
  }

  /** The moment of the engine that is shown there. */
  time(shown: number): number {
    const fold = this.folds[this.first(({ to, shift }) => shown < to - shift)];
    const before = this.before(fold);
    const into = fold ? shown - (fold.from - before) : 0;
    if (!fold || into <= 0) return shown + before;
    return fold.from + (into / this.mark) * (fold.to - fold.from);
  }

  /** What is folded before a fold, or in all. */
  private before(fold: Fold | undefined): number {
    if (!fold) return this.folds[this.folds.length - 1]?.shift ?? 0;
    return fold.shift - (fold.to - fold.from - this.mark);
  }

  private first(isBehind: (fold: Fold) => boolean): number {
    let [low, high] = [0, this.folds.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isBehind(this.folds[middle]!)) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** The stretches between the first moment and the last that is known in which there was neither a step nor a request. */
function idleOf(log: Log): Stretch[] {
  const busy: Stretch[] = log.steps.map((step) => ({ from: step.at, to: step.end }));
  for (const request of log.requests.values()) busy.push({ from: request.from, to: request.isOpen ? Infinity : request.to });
  busy.sort((a, b) => a.from - b.from);
  const idle: Stretch[] = [];
  let end = busy[0]?.from ?? 0;
  for (const { from, to } of busy) {
    if (from - end > IDLE_MS) idle.push({ from: end, to: from });
    end = Math.max(end, to);
  }
  return idle;
}
