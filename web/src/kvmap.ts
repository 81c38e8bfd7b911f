// The KV cache as a map: a cell for each block, in the colour of the request that holds it.

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
const PALE = 110;
/** Blocks behind the last one that was ever in use are left out, but this number is shown at least. */
const LEAST_SHOWN = 1024;

export class KvMap {
  readonly element: HTMLElement;
  private canvas = el("canvas", { class: "kv", tabindex: 0, role: "application", "aria-roledescription": "map", "aria-label": "Blocks of the KV cache. Arrow keys go from block to block." });
  private surface: Surface;
  private summary = el("p", { class: "quiet-text" });
  private users = el("ul", { class: "legend users" });
  private tip = el("div", { class: "tip", hidden: true });
  private spoken = el("div", { class: "visually-hidden", "aria-live": "polite" });
  private sheet = document.createElement("canvas");
  private step = Infinity;
  private drawn = "";
  private pointed: number | null = null;
  private cell = LARGEST;
  private columns = 1;
  /** Up to the last block that was seen in use. */
  private shown = 0;
  private stops: (() => void)[];

  constructor(private app: App) {
    this.surface = new Surface(this.canvas, () => this.redraw());
    this.element = el("div", {}, this.summary, el("div", { class: "stage" }, this.canvas, this.tip), this.users, this.spoken);
    this.stops = [app.feed.watchBlocks(), watchTheme(() => this.redraw())];
    this.canvas.addEventListener("pointermove", (event) => this.point(this.blockAt(event.offsetX, event.offsetY), false));
    this.canvas.addEventListener("pointerleave", () => this.point(null, false));
    this.canvas.addEventListener("blur", () => this.point(null, false));
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      const there = this.pointed == null ? 0 : this.pointed + by;
      if (there >= 0 && there < app.feed.blocks.size) this.point(there, true);
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
    const number = blocks.size;
    show(this.canvas, number > 0);
    if (number === 0) return say(this.summary, this.app.feed.state.kind === "open" ? "The map comes with the next step." : "No map: the server is not there.");
    const map = blocks.at(this.step);
    if (surface.width === 0) return;
    for (let i = this.shown; i < number; i += 1) if (map[i] !== 0) this.shown = i + 1;
    const shown = Math.min(number, Math.max(LEAST_SHOWN, 2 ** Math.ceil(Math.log2(this.shown * 1.1))));
    this.layOut(shown);
    const dark = isDark();
    const colours = theme();
    const colourOf = new Map<number, number>();
    const owned = new Map<Name, number>();
    const rows = Math.ceil(shown / this.columns);
    const context = this.sheet.getContext("2d")!;
    const image = context.createImageData(this.columns, rows);
    const words = new Uint32Array(image.data.buffer);
    let [cached, used, shared] = [0, 0, 0];
    const numbered: [number, number][] = [];
    for (let i = 0; i < shown; i += 1) {
      const code = map[i]!;
      let colour = colourOf.get(code);
      const block = code > 1 || colour === undefined ? blocks.decode(code) : null;
      if (colour === undefined) {
        if (block!.kind === "used") colour = pixel(requestColour(log.requests.get(block!.by)?.index ?? hash(block!.by), dark));
        // Paler than those in use: it may be taken at any time.
        else colour = block!.kind === "free" ? pixel(colours.lane) : pixel(colours.cached, PALE);
        colourOf.set(code, colour);
      }
      words[i] = colour;
      if (code === 1) cached += 1;
      if (block?.kind !== "used") continue;
      used += 1;
      owned.set(block.by, (owned.get(block.by) ?? 0) + 1);
      if (block.sharers < 2) continue;
      shared += 1;
      numbered.push([i, block.sharers]);
    }
    context.putImageData(image, 0, 0);
    this.paint(rows, numbered);
    this.write(number, shown, used, shared, cached, owned, dark);
  };

  /** Chooses the number of columns: the whole cache is seen at once, with cells as large as that allows. */
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
      context.strokeRect((this.pointed % columns) * cell - 1, Math.floor(this.pointed / columns) * cell - 1, cell + 1, cell + 1);
    }
  }

  private write(number: number, shown: number, used: number, shared: number, cached: number, owned: Map<Name, number>, dark: boolean): void {
    const { log, blocks } = this.app.feed;
    const free = number - used - cached;
    const early = blocks.since != null && this.step < blocks.since ? ` The map is known from step ${blocks.since} on, since this page was opened.` : "";
    say(
      this.summary,
      `${count(number, "block")} of ${this.app.info.block_size} tokens: ${used.toLocaleString("en")} in use${shared > 0 ? ` (${shared.toLocaleString("en")} by more than one request, with their number)` : ""}, ${cached.toLocaleString("en")} cached and free to be taken, ${free.toLocaleString("en")} empty.${number > shown ? ` Of the empty ones, ${(number - shown).toLocaleString("en")} are not drawn.` : ""}${early}`,
    );
    const most = [...owned].sort((a, b) => b[1] - a[1]);
    const items = most.slice(0, NAMED).map(([name, blocks]) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = requestColour(log.requests.get(name)?.index ?? hash(name), dark);
      return el("li", { title: String(name) }, swatch, `${shortName(name)}: ${blocks}`);
    });
    if (cached > 0) items.push(el("li", {}, el("span", { class: "swatch cached pale", "aria-hidden": "true" }), "cached"));
    if (most.length > NAMED) items.push(el("li", {}, `and ${count(most.length - NAMED, "request")} more`));
    fill(this.users, ...items);
    if (this.pointed != null) this.tell(this.byKeyboard);
  }

  private byKeyboard = false;

  private blockAt(x: number, y: number): number | null {
    const column = Math.floor(x / this.cell);
    const block = Math.floor(y / this.cell) * this.columns + column;
    return column < this.columns && block >= 0 && block < this.sheet.height * this.columns && block < this.app.feed.blocks.size ? block : null;
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
    const [x, y] = [(index % this.columns) * this.cell, (Math.floor(index / this.columns) + 1) * this.cell];
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
