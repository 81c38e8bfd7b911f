// The block table of a request: where each piece of its keys and values is in the pool.
//
//   table   0    1    2            positions 0 to 31, 32 to 63, 64 on
//           |     \  /
//           |      \/              arrows: any page will do, in any order
//           |      /\
//   page    17   23   40           [#####......]  5 of 32 slots are filled

import type { App } from "./app";
import { el, fill, say, show } from "./dom";
import { arrow, FONT, Surface, theme, watchTheme } from "./draw";
import { dropFrame, wantFrame } from "./frames";
import type { Request, Step } from "./log";
import { count, shortName } from "./units";

/** Entries that are drawn, the last ones; and requests to choose from. */
const MOST_ENTRIES = 24;
const MOST_REQUESTS = 64;
const [TOP, DOWN, HEIGHT] = [18, 62, 96];
const WIDEST = 74;

/** Of a page the number; one that a request before this one holds too; or one that was given back before it was told. */
type Page = number | "shared" | "unknown";

/** An entry: its page, and how many of the page's slots are filled. */
interface Entry {
  index: number;
  page: Page;
  filled: number;
}

export class BlockTable {
  readonly element: HTMLElement;
  private canvas = el("canvas", { class: "block-table", role: "img", "aria-label": "Block table" });
  private surface: Surface;
  private choice = el("select", { "aria-label": "Request of the block table" });
  private words = el("p", { class: "quiet-text" });
  private box: HTMLElement;
  private step: Step | null = null;
  private entries: Entry[] = [];
  private names = "";
  private stop: () => void;

  constructor(private app: App) {
    this.surface = new Surface(this.canvas, () => wantFrame(this.draw));
    this.stop = watchTheme(() => wantFrame(this.draw));
    this.box = el("div", { class: "row" }, el("h3", { class: "inline" }, "Block table of"), this.choice);
    this.element = el("div", { hidden: true }, this.box, this.canvas, this.words);
    this.choice.addEventListener("change", () => this.tell());
  }

  end(): void {
    this.stop();
    dropFrame(this.draw);
    this.surface.end();
  }

  show(step: Step): void {
    this.step = step;
    const requests = [...new Set([...step.prefillOf, ...step.decodeOf])].slice(0, MOST_REQUESTS);
    const names = JSON.stringify(requests.map(({ name }) => name));
    if (names !== this.names) {
      const chosen = this.choice.value;
      fill(this.choice, ...requests.map(({ name }) => el("option", { value: JSON.stringify(name) }, shortName(name))));
      // The one that was looked at stays, step after step.
      if (requests.some(({ name }) => JSON.stringify(name) === chosen)) this.choice.value = chosen;
    }
    this.names = names;
    this.tell();
  }

  private tell(): void {
    const { step } = this;
    const request = step && [...step.prefillOf, ...step.decodeOf].find(({ name }) => JSON.stringify(name) === this.choice.value);
    const told = step && request ? this.pagesOf(step, request) : null;
    show(this.element, told != null);
    if (!step || !request || !told) return;
    const positions = positionsOf(step, request);
    const size = this.app.info.block_size;
    const number = positions.length === 1 ? Math.ceil(positions[0]! / size) : told.length;
    this.entries = Array.from({ length: number }, (_, index) => ({ index, page: told[index] ?? "unknown", filled: positions.length === 1 ? Math.min(size, positions[0]! - index * size) : size }));
    say(this.words, this.describe(request, positions, size));
    const said = ({ index, page }: Entry): string => `${index} ${page === "shared" ? "is shared" : page === "unknown" ? "is not known" : `to page ${page}`}`;
    this.canvas.setAttribute("aria-label", `Block table of ${shortName(request.name)}: ${this.entries.slice(-MOST_ENTRIES).map(said).join(", ")}`);
    wantFrame(this.draw);
  }

  /**
   * The pages of a request in their order, as they were told next, or last before it gave them back; `null`: never. What it needed
   * more than it was the first holder of is a prefix that others hold, and comes first.
   */
  private pagesOf(step: Step, { name }: Request): Page[] | null {
    const { blocks, log } = this.app.feed;
    for (const at of [blocks.toldFrom(step.id), blocks.toldBefore(step.id)]) {
      const pages = at == null ? [] : blocks.pagesOf(name, at);
      if (at == null || pages.length === 0) continue;
      let i = log.steps[log.indexOf(at)]?.id === at ? log.indexOf(at) : log.indexOf(at) - 1;
      let positions: number[] = [];
      for (; i >= 0 && positions.length === 0; i -= 1) positions = positionsOf(log.steps[i]!, { name });
      const shared = positions.length === 1 ? Math.max(0, Math.ceil(positions[0]! / this.app.info.block_size) - pages.length) : 0;
      return [...Array.from({ length: shared }, () => "shared" as const), ...pages];
    }
    return null;
  }

  private describe(request: Request, positions: number[], size: number): string {
    const name = shortName(request.name);
    if (positions.length > 1) return `${name} has ${count(positions.length, "answer")}, and their pages are not told apart.`;
    const [shared, unknown] = ["shared", "unknown"].map((kind) => this.entries.filter(({ page }) => page === kind).length) as [number, number];
    const last = [...this.entries].reverse().find(({ filled }) => filled > 0);
    const left = this.entries.length - MOST_ENTRIES;
    const parts = [
      `${count(positions[0] ?? 0, "position")} of ${name} in ${count(this.entries.length, "page")} of ${size}`,
      last && `the last has ${last.filled} of ${size} slots filled`,
      shared > 0 && `the first ${shared === 1 ? "is" : `${shared} are`} held by requests before it too`,
      unknown > 0 && `${count(unknown, "page")} of them ${unknown === 1 ? "was" : "were"} given back before it was told`,
      left > 0 && `the first ${left === 1 ? "is" : `${left} are`} not drawn`,
    ];
    return `${parts.filter((part) => typeof part === "string").join("; ")}.`;
  }

  private draw = (): void => {
    const { surface } = this;
    if (surface.width === 0) return;
    const shown = this.entries.slice(-MOST_ENTRIES);
    const context = surface.begin();
    const colours = theme();
    const size = this.app.info.block_size;
    const left = 46;
    const width = Math.min(WIDEST, (surface.width - left) / Math.max(1, shown.length));
    // Pages stand by their numbers, so that the arrows cross as the table does.
    const order = ({ page }: Entry): number => (page === "shared" ? -1 : page === "unknown" ? Infinity : page);
    const places = [...shown].sort((a, b) => (order(a) === order(b) ? a.index - b.index : order(a) - order(b)));
    const middle = (place: number): number => left + (place + 0.5) * width;
    context.textAlign = "left";
    context.fillStyle = colours.quiet;
    context.fillText("table", 0, TOP / 2 + 1);
    context.fillText("page", 0, DOWN + 9);
    context.textAlign = "center";
    shown.forEach((entry, i) => {
      const place = places.indexOf(entry);
      context.strokeStyle = context.fillStyle = entry.page === "shared" ? colours.cached : colours.quiet;
      arrow(context, { x: middle(i), y: TOP + 2 }, { x: middle(place), y: DOWN - 2 });
      context.strokeStyle = colours.line;
      context.strokeRect(left + i * width + 1.5, 0.5, width - 3, TOP);
      context.fillStyle = colours.ink;
      if (width >= 16) context.fillText(String(entry.index), middle(i), TOP / 2 + 1);
      const x = left + place * width + 1.5;
      context.strokeRect(x, DOWN + 0.5, width - 3, HEIGHT - DOWN - 2);
      if (width >= 22) context.fillText(entry.page === "unknown" ? "?" : String(entry.page), middle(place), DOWN + 9);
      context.fillStyle = entry.page === "shared" ? colours.cached : colours.decode;
      context.fillRect(x + 1, HEIGHT - 14, ((width - 5) * entry.filled) / size, 11);
    });
    context.font = FONT;
  };
}

/** How many positions of each of its answers are computed after a step. */
function positionsOf(step: Step, { name }: Pick<Request, "name">): number[] {
  const ends = new Map<number, number>();
  step.prefill.forEach((row) => row.r === name && ends.set(row.a, Math.max(ends.get(row.a) ?? 0, row.start + row.len)));
  step.decode.forEach((row) => row.r === name && ends.set(row.a, Math.max(ends.get(row.a) ?? 0, row.start + (row.tokens ?? 1))));
  return [...ends.values()];
}
