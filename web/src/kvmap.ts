// The KV cache: one bar of the pool, and a map with a cell for each block in use, in the colour of the request that holds it.
//
//   [in use 12|cached 6|                     free 24,569                  ]

import type { App } from "./app";
import type { Block } from "./blocks";
import { el, fill, say, show } from "./dom";
import { Surface, isDark, pixel, requestColour, theme, watchTheme } from "./draw";
import { dropFrame, wantFrame } from "./frames";
import { count, shortName } from "./units";
import type { Name } from "./wire";

const [SMALLEST, LARGEST] = [4, 18];
const MOST_HEIGHT = 300;
const NAMED = 10;

export class KvMap {
  readonly element: HTMLElement;
  private canvas = el("canvas", { class: "kv", tabindex: 0, role: "application", "aria-roledescription": "map", "aria-label": "Blocks of the KV cache in use. Arrow keys go from block to block." });
  private surface: Surface;
  private summary = el("p", { class: "quiet-text" });
  private pool = el("div", { class: "pool", role: "img" });
  private users = el("ul", { class: "legend users" });
  private tip = el("div", { class: "tip", hidden: true });
  private spoken = el("div", { class: "visually-hidden", "aria-live": "polite" });
  private sheet = document.createElement("canvas");
  private step = Infinity;
  private drawn = "";
  private pointed: number | null = null;
  private cell = LARGEST;
  private columns = 1;
  /** The blocks in use, each in its cell. */
  private used: number[] = [];
  private stops: (() => void)[];

  constructor(private app: App) {
    this.surface = new Surface(this.canvas, () => this.redraw());
    this.element = el("div", {}, this.pool, this.summary, el("div", { class: "stage" }, this.canvas, this.tip), this.users, this.spoken);
    this.stops = [app.feed.watchBlocks(), watchTheme(() => this.redraw())];
    this.canvas.addEventListener("pointermove", (event) => this.point(this.blockAt(event.offsetX, event.offsetY), false));
    this.canvas.addEventListener("pointerleave", () => this.point(null, false));
    this.canvas.addEventListener("blur", () => this.point(null, false));
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      const there = this.pointed == null ? 0 : this.used.indexOf(this.pointed) + by;
      if (there >= 0 && there < this.used.length) this.point(this.used[there]!, true);
    });
  }

  end(): void {
    for (const stop of this.stops) stop();
    dropFrame(this.draw);
    this.surface.end();
  }

  /** Shows the map as it was after a step. */
  show(step: number): void {
    const { blocks } = this.app.feed;
    const key = `${step} ${blocks.version}`;
    if (key === this.drawn) return;
    this.drawn = key;
    this.step = step;
    this.redraw();
  }

  private redraw(): void {
    wantFrame(this.draw);
  }

  private draw = (): void => {
    const { surface } = this;
    const { blocks, log } = this.app.feed;
    show(this.pool, blocks.size > 0);
    if (blocks.size === 0) {
      show(this.canvas, false);
      return say(this.summary, this.app.feed.state.kind === "open" ? "The map comes with the next step." : "No map: the server is not there.");
    }
    const map = blocks.at(this.step);
    const dark = isDark();
    const owned = new Map<Name, number>();
    const colours: number[] = [];
    const numbered: [number, number][] = [];
    let cached = 0;
    this.used = [];
    map.forEach((code, i) => {
      if (code === 1) cached += 1;
      const block = code > 1 ? blocks.decode(code) : null;
      if (block?.kind !== "used") return;
      owned.set(block.by, (owned.get(block.by) ?? 0) + 1);
      if (block.sharers > 1) numbered.push([this.used.length, block.sharers]);
      this.used.push(i);
      colours.push(pixel(requestColour(log.requests.get(block.by)?.index ?? hash(block.by), dark)));
    });
    this.divide(map.length, this.used.length, cached);
    this.write(map.length, numbered.length, owned, dark);
    show(this.canvas, this.used.length > 0);
    if (surface.width === 0 || this.used.length === 0) return;
    this.layOut(this.used.length);
    const rows = this.sheet.height;
    const context = this.sheet.getContext("2d")!;
    const image = context.createImageData(this.columns, rows);
    new Uint32Array(image.data.buffer).set(colours);
    context.putImageData(image, 0, 0);
    this.paint(rows, numbered);
  };

  /** The bar of the pool. */
  private divide(all: number, used: number, cached: number): void {
    const parts: [string, number][] = [["in use", used], ["cached", cached], ["free", all - used - cached]];
    const words = parts.map(([name, number]) => `${name} ${number.toLocaleString("en")}`);
    if (this.pool.getAttribute("aria-label") === words.join(", ")) return;
    this.pool.setAttribute("aria-label", words.join(", "));
    fill(this.pool, ...parts.map(([name, number], i) => {
      const part = el("span", { class: name.replace(" ", "-") }, number > 0 && words[i]);
      part.style.flexGrow = String(number);
      return part;
    }));
  }

  /** Chooses the number of columns: all in use are seen at once, with cells as large as that allows. */
  private layOut(number: number): void {
    const { width } = this.surface;
    const fits = (cell: number): boolean => Math.ceil(number / Math.max(1, Math.floor(width / cell))) * cell <= MOST_HEIGHT;
    let cell = LARGEST;
    while (cell > SMALLEST && !fits(cell)) cell -= 1;
    this.cell = cell;
    this.columns = Math.max(1, Math.floor(width / cell));
    this.sheet.width = this.columns;
    this.sheet.height = Math.ceil(number / this.columns);
    const height = `${this.sheet.height * cell}px`;
    if (this.canvas.style.height !== height) this.canvas.style.height = height;
  }

  private paint(rows: number, numbered: [number, number][]): void {
    const { cell, columns, surface } = this;
    const context = surface.begin();
    const colours = theme();
    context.imageSmoothingEnabled = false;
    context.drawImage(this.sheet, 0, 0, columns, rows, 0, 0, columns * cell, rows * cell);
    context.fillStyle = colours.panel;
    for (let x = 1; x <= columns; x += 1) context.fillRect(x * cell - 1, 0, 1, rows * cell);
    for (let y = 1; y <= rows; y += 1) context.fillRect(0, y * cell - 1, columns * cell, 1);
    context.textAlign = "center";
    context.font = `600 ${Math.min(11, cell - 4)}px system-ui, sans-serif`;
    for (const [block, sharers] of numbered) {
      const [x, y] = [(block % columns) * cell, Math.floor(block / columns) * cell];
      if (cell >= 12) context.fillText(String(sharers), x + (cell - 1) / 2, y + cell / 2);
      else context.fillRect(x + cell - 4, y, 3, 2);
    }
    if (this.pointed != null) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      const place = this.used.indexOf(this.pointed);
      if (place >= 0) context.strokeRect((place % columns) * cell - 1, Math.floor(place / columns) * cell - 1, cell + 1, cell + 1);
    }
  }

  private write(number: number, shared: number, owned: Map<Name, number>, dark: boolean): void {
    const { log, blocks } = this.app.feed;
    const used = this.used.length;
    const early = blocks.since != null && this.step < blocks.since ? ` The map is known from step ${blocks.since} on, since this page was opened.` : "";
    const sharing = shared > 0 ? ` (${shared.toLocaleString("en")} by more than one request, with their number)` : "";
    say(this.summary, `${count(number, "block")} of ${this.app.info.block_size} tokens: ${used.toLocaleString("en")} in use${sharing}${used > 0 ? ", each a cell of the map" : ""}. Cached ones hold prefixes that no request uses, and are free to be taken.${early}`);
    const most = [...owned].sort((a, b) => b[1] - a[1]);
    const items = most.slice(0, NAMED).map(([name, blocks]) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = requestColour(log.requests.get(name)?.index ?? hash(name), dark);
      return el("li", { title: String(name) }, swatch, `${shortName(name)}: ${blocks}`);
    });
    if (most.length > NAMED) items.push(el("li", {}, `and ${count(most.length - NAMED, "request")} more`));
    fill(this.users, ...items);
    if (this.pointed != null) this.tell(this.byKeyboard);
  }

  private byKeyboard = false;

  private blockAt(x: number, y: number): number | null {
    const column = Math.floor(x / this.cell);
    const place = Math.floor(y / this.cell) * this.columns + column;
    return column < this.columns ? (this.used[place] ?? null) : null;
  }

  private point(block: number | null, byKeyboard: boolean): void {
    if (block === this.pointed) return;
    this.pointed = block;
    this.byKeyboard = byKeyboard;
    show(this.tip, block != null);
    if (block != null) this.tell(byKeyboard);
    this.redraw();
  }

  private tell(aloud: boolean): void {
    const index = this.pointed!;
    const block = this.app.feed.blocks.decode(this.app.feed.blocks.at(this.step)[index]!);
    const words = describe(block);
    fill(this.tip, el("strong", {}, `Block ${index}`), el("p", {}, words));
    if (aloud) fill(this.spoken, `Block ${index}: ${words}`);
    const place = Math.max(0, this.used.indexOf(index));
    const [x, y] = [(place % this.columns) * this.cell, (Math.floor(place / this.columns) + 1) * this.cell];
    const { style } = this.tip;
    style.left = `${x}px`;
    style.top = `${y}px`;
    style.transform = x > this.surface.width / 2 ? "translate(calc(-100% + 12px), 6px)" : "translate(0, 6px)";
  }
}

function describe(block: Block): string {
  if (block.kind === "free") return "Empty.";
  if (block.kind === "cached") return "Keys and values that no request uses now. A prompt with the same prefix finds them; they are evicted when blocks are needed.";
  if (block.sharers < 2) return `Used by ${shortName(block.by)}.`;
  return `Used by ${count(block.sharers, "request")}, ${shortName(block.by)} among them: they begin in the same way, and it is kept once.`;
}

/** A number for a request that the log does not know, so that it keeps one colour. */
function hash(name: Name): number {
  return [...String(name)].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 9973, 7);
}
