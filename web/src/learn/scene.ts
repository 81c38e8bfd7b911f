// The picture of a lesson: a few frames that text and drawing walk through together, by one key.
//
//   frame   sentence + shapes by key  --->  shapes that are there move, new ones appear, others go
//
// A scene is data: each frame declares all that is to be seen, and the player finds what has changed. What moves is moved by the
// style sheet's transitions, so who prefers no motion sees the frames jump.

import { add, el, fill, say } from "../dom";

/** Colours mean the same everywhere: prefill, decode, cached, waiting, late. `free` and `ghost` are outlines, `other` is hatched. */
export type Tone = "prefill" | "decode" | "cached" | "queue" | "late" | "preempted" | "thought" | "plain" | "free" | "ghost" | "other";

interface Box {
  kind: "box";
  key: string;
  x: number;
  y: number;
  width: number;
  height: number;
  tone: Tone;
  label: string;
}

interface Label {
  kind: "text";
  key: string;
  x: number;
  y: number;
  label: string;
  anchor: "start" | "middle" | "end";
}

interface Arrow {
  kind: "arrow";
  key: string;
  from: [number, number];
  to: [number, number];
}

export type Shape = Box | Label | Arrow;

export interface Frame {
  says: string;
  shapes: Shape[];
}

export interface Scene {
  title: string;
  height: number;
  frames: Frame[];
}

/** Width of every scene, in its own units. */
export const WIDTH = 360;

export const box = (key: string, x: number, y: number, width: number, height: number, tone: Tone, label = ""): Box => ({ kind: "box", key, x, y, width, height, tone, label });
export const text = (key: string, x: number, y: number, label: string, anchor: Label["anchor"] = "start"): Label => ({ kind: "text", key, x, y, label, anchor });
export const arrow = (key: string, from: [number, number], to: [number, number]): Arrow => ({ kind: "arrow", key, from, to });
export const frame = (says: string, ...shapes: (Shape | Shape[])[]): Frame => ({ says, shapes: shapes.flat() });
export const range = <T>(many: number, of: (at: number) => T): T[] => Array.from({ length: many }, (_, at) => of(at));

/** `many` cells of one tone beside each other, named `key0`, `key1` and so on. */
export function cells(key: string, x: number, y: number, many: number, tone: Tone | ((at: number) => Tone), width = 16, height = 16, gap = 2): Box[] {
  return range(many, (at) => box(`${key}${at}`, x + at * (width + gap), y, width, height, typeof tone === "function" ? tone(at) : tone));
}

/** A line of a bar chart: its name on the left, its parts to scale, and what it comes to on the right. */
export function bar(key: string, y: number, name: string, parts: [Tone, number][], value: string, scale: number): Shape[] {
  let x = 92;
  const boxes = parts.map(([tone, size], at) => {
    const piece = box(`${key}-${at}`, x, y, Math.max(1, size * scale), 18, tone);
    x += size * scale;
    return piece;
  });
  return [text(`${key}-name`, 0, y + 13, name), ...boxes, text(`${key}-value`, x + 5, y + 13, value)];
}

const SVG = "http://www.w3.org/2000/svg";

function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Record<string, string | number> = {}): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  return element;
}

function set(element: Element, attributes: Record<string, string | number>): void {
  for (const [name, value] of Object.entries(attributes)) if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Elements of one shape, which follow it from frame to frame. */
class Drawn {
  readonly element: SVGGElement = svg("g");
  private rect: SVGRectElement | null = null;
  private line: SVGPathElement | null = null;
  private label = svg("text");

  constructor(readonly kind: Shape["kind"]) {
    if (kind === "box") this.element.append((this.rect = svg("rect", { rx: 2 })));
    if (kind === "arrow") this.element.append((this.line = svg("path")));
    else this.element.append(this.label);
  }

  follow(shape: Shape): void {
    if (shape.kind === "arrow") {
      this.element.setAttribute("class", "arrow");
      set(this.line!, { d: arrowPath(shape.from, shape.to) });
      return;
    }
    // By the object model: the policy of the page forbids the attribute.
    this.element.style.transform = `translate(${shape.x}px, ${shape.y}px)`;
    say(this.label, shape.label);
    if (shape.kind === "text") {
      this.element.setAttribute("class", "label");
      set(this.label, { "text-anchor": shape.anchor });
      return;
    }
    this.element.setAttribute("class", `box ${shape.tone}${shape.label ? " named" : ""}`);
    set(this.rect!, { width: shape.width, height: shape.height });
    set(this.label, { x: shape.width / 2, y: shape.height / 2 + 4, "text-anchor": "middle" });
  }
}

function arrowPath([x0, y0]: [number, number], [x1, y1]: [number, number]): string {
  const angle = Math.atan2(y1 - y0, x1 - x0);
  const back = (turn: number): string => `${(x1 - 7 * Math.cos(angle + turn)).toFixed(1)} ${(y1 - 7 * Math.sin(angle + turn)).toFixed(1)}`;
  return `M${x0} ${y0}L${x1} ${y1}M${back(0.5)}L${x1} ${y1}L${back(-0.5)}`;
}

/** A scene on the page. Space and the arrow keys go through it while it has the focus, the buttons always. */
export class Player {
  readonly element: HTMLElement;
  private at = 0;
  private drawn = new Map<string, Drawn>();
  private picture: SVGSVGElement;
  private sentences: HTMLElement[];
  private told = el("p", { class: "visually-hidden", role: "status" });
  private place = el("span", { class: "number" });
  private back: HTMLButtonElement;
  private next: HTMLButtonElement;

  /** `seen` is called when the last frame is there. */
  constructor(
    private scene: Scene,
    private seen: () => void,
  ) {
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${scene.height}`, role: "img", "aria-label": scene.title });
    this.sentences = scene.frames.map(({ says }) => el("li", {}, says));
    this.back = el("button", { type: "button", onclick: () => this.go(this.at - 1) }, "Back");
    this.next = el("button", { type: "button", onclick: () => this.go(this.at + 1) }, "Next");
    const words = el("div", { class: "words" }, el("ol", {}, ...this.sentences), el("div", { class: "row" }, this.back, this.next, this.place));
    const keys = "Space and the arrow keys go through it";
    this.element = el("div", { class: "scene", tabindex: 0, role: "group", "aria-label": `${scene.title}. ${keys}`, title: keys, onkeydown: (event) => this.key(event as KeyboardEvent) });
    add(this.element, words, this.picture, this.told);
    this.show();
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const onButton = event.target instanceof HTMLButtonElement;
    const steps: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -this.at, End: this.scene.frames.length };
    const step = event.key === " " && !onButton ? 1 : steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.go(this.at + step);
  }

  private go(at: number): void {
    const to = Math.max(0, Math.min(this.scene.frames.length - 1, at));
    if (to === this.at) return;
    this.at = to;
    this.show();
    say(this.told, `${to + 1} of ${this.scene.frames.length}: ${this.scene.frames[to]!.says}`);
    // A button that is disabled loses the focus, and the keys with it.
    if (document.activeElement === document.body) this.element.focus({ preventScroll: true });
    if (to === this.scene.frames.length - 1) this.seen();
  }

  private show(): void {
    const { frames, title } = this.scene;
    const here = frames[this.at]!;
    this.sentences.forEach((sentence, at) => {
      sentence.hidden = at > this.at;
      if (at === this.at) sentence.setAttribute("aria-current", "step");
      else sentence.removeAttribute("aria-current");
    });
    const [first, last] = [this.at === 0, this.at === frames.length - 1];
    const hadFocus = document.activeElement;
    this.back.disabled = first;
    this.next.disabled = last;
    if ((first && hadFocus === this.back) || (last && hadFocus === this.next)) this.element.focus({ preventScroll: true });
    say(this.place, `${this.at + 1} of ${frames.length}`);
    this.picture.setAttribute("aria-label", `${title}: ${here.says}`);
    this.draw(here.shapes);
  }

  private draw(shapes: Shape[]): void {
    const wanted = new Set(shapes.map(({ key }) => key));
    for (const [key, drawn] of this.drawn) {
      if (wanted.has(key)) continue;
      drawn.element.remove();
      this.drawn.delete(key);
    }
    for (const shape of shapes) {
      let drawn = this.drawn.get(shape.key);
      if (!drawn) {
        drawn = new Drawn(shape.kind);
        this.drawn.set(shape.key, drawn);
        this.picture.append(drawn.element);
      }
      drawn.follow(shape);
    }
  }
}

/** The lesson's scene in a place of its own. */
export function scene(root: HTMLElement, of: Scene, seen: () => void): void {
  fill(root, new Player(of, seen).element);
}
