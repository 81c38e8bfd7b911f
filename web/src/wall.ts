// The server's clock as people's clocks show it. The engine counts milliseconds since its start, and stands still while
// it is paused; now and then the server says what a clock on the wall shows.
//
//   engine    0 ---- 5000 ---- 9000 (paused) -- 9100
//   wall      t      t + 5 s   t + 9 s          t + 40 s      a new difference counts from where it was heard

/** Differences that are remembered. */
const KEPT = 256;
/** Two readings that are not further apart are the same, ms. */
const SLACK_MS = 50;

export class Wall {
  private since: { at: number; difference: number }[] = [];

  /** At `at` of the engine's clock a clock on the wall showed `unix`, ms since 1970. */
  hear(at: number, unix: number): void {
    const last = this.since[this.since.length - 1];
    const difference = unix - at;
    if (last && (Math.abs(last.difference - difference) < SLACK_MS || at < last.at)) return;
    if (last && last.at === at) {
      last.difference = difference; // the engine is still paused
      return;
    }
    // What was before the first reading has its difference too.
    this.since.push({ at: last ? at : -Infinity, difference });
    if (this.since.length > KEPT) this.since.shift();
  }

  /** ms since 1970, or `null` if the server has not said. */
  at(time: number): number | null {
    for (let i = this.since.length - 1; i >= 0; i -= 1) {
      const { at, difference } = this.since[i]!;
      if (at <= time || i === 0) return time + difference;
    }
    return null;
  }

  /** `03:12:04`, where the reader is; with this number of digits behind the second. */
  clock(time: number, digits = 0): string {
    const unix = this.at(time);
    if (unix == null) return `${(time / 1000).toFixed(digits)} s`;
    const moment = new Date(unix);
    const two = (n: number): string => String(n).padStart(2, "0");
    const fraction = digits > 0 ? `.${String(moment.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : "";
    return `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}${fraction}`;
  }

  forget(): void {
    this.since = [];
  }
}
