// Which lane a request is drawn in: the first one whose last bar ended some pixels before.
//
//   lane 1   [aaaaaa]    [cccc]  [dddddd      d came when c was over, and there is a gap between them
//   lane 2        [bbbbbbbbbb] [eee]
//
// A request keeps its lane while time moves on. What fits into a lane depends on how wide a gap is on the screen, so all lanes are
// assigned again when the scale is another.

import type { Folds } from "./folds";
import type { Log, Request } from "./log";

/** Between two bars of a lane; behind one that is narrower, its own width. */
const GAP_PX = 4;

export class Seats {
  /** Lanes in use, or that were. */
  lanes = 0;
  private last: Request[] = [];
  private scale = 0;
  private seen = -1;
  private requests: Log["requests"] | null = null;

  constructor(
    private log: Log,
    private folds: Folds,
  ) {}

  /** A lane for each request, in a view of so many ms a pixel. True if one that had a lane got another. */
  update(scale: number): boolean {
    const { log } = this;
    const anew = scale !== this.scale || log.requests !== this.requests;
    if (!anew && log.seen === this.seen) return false;
    if (anew) this.last = [];
    Object.assign(this, { scale, seen: log.seen, requests: log.requests });
    const wanting: Request[] = [];
    let moved = false;
    for (const request of log.requests.values()) {
      // One that was thought to be over and is not may have lost its lane: its earlier passes would lie on others'.
      const has = !anew && request.lane >= 0 && (!request.isOpen || this.last[request.lane] === request);
      if (!has) wanting.push(request);
      moved ||= !has && request.lane >= 0;
    }
    wanting.sort((a, b) => a.from - b.from);
    // Those of open requests are not free, however many there are.
    const free = this.last.flatMap((request, lane) => (request.isOpen ? [] : [lane]));
    for (const request of wanting) {
      let place = free.findIndex((lane) => this.fits(request, this.last[lane]!));
      if (place < 0) place = free.push(this.last.length) - 1;
      request.lane = free[place]!;
      this.last[request.lane] = request;
      if (request.isOpen) free.splice(place, 1);
    }
    this.lanes = this.last.length;
    return moved;
  }

  private fits(request: Request, before: Request): boolean {
    const { folds, scale } = this;
    const end = folds.shown(before.to);
    const width = end - folds.shown(before.from);
    return folds.shown(request.from) - end >= Math.min(GAP_PX * scale, width);
  }
}
