// A block of code: its language, a button that copies it, and colours once it is whole. What colours it is a file of its own
// (highlight.ts), which is fetched for the first block in a language that it knows.

import { copyButton } from "./copy";
import { el } from "./dom";

/** Lines, or characters of one line, in one element: the page lays out the last of these anew and not all of them. */
const LINES = 100;
const CHARACTERS = 8_000;
/** Longer code stays in one colour. */
const MOST_COLOURED = 20_000;

/** Text that grows at its end, in elements of bounded size. */
export class Pieces {
  private element: HTMLElement | null = null;
  private lines = 0;
  private characters = 0;

  constructor(private root: HTMLElement) {}

  add(text: string): void {
    for (let at = 0; at < text.length; ) {
      if (!this.element || this.lines >= LINES || this.characters >= CHARACTERS) {
        this.element = this.root.appendChild(el("span", { class: "piece" }, document.createTextNode("")));
        this.lines = this.characters = 0;
      }
      const room = text.slice(at, at + CHARACTERS - this.characters);
      const part = upTo(room, LINES - this.lines);
      (this.element.firstChild as Text).appendData(part);
      this.characters += part.length;
      this.lines += part.split("\n").length - 1;
      at += part.length;
    }
  }
}

/** The first `most` lines of a text. */
function upTo(text: string, most: number): string {
  let end = -1;
  for (let line = 0; line < most; line += 1) {
    end = text.indexOf("\n", end + 1);
    if (end < 0) return text;
  }
  return text.slice(0, end + 1);
}

export interface CodeBlock {
  figure: HTMLElement;
  /** Whole lines. */
  add(text: string): void;
  /** The line that has not ended, in place of the last such. */
  last(text: string): void;
}

/** An empty block in the language that the words behind its fence name. */
export function codeBlock(info: string): CodeBlock {
  const language = info.trim().split(/\s+/)[0]!.slice(0, 40);
  const code = el("code");
  const open = el("span", { class: "open-line" });
  const pieces = new Pieces(code);
  const copy = copyButton(() => textOf(code));
  const figure = el("figure", { class: "code" }, el("figcaption", {}, el("span", { class: "language" }, language), copy), el("pre", { tabindex: 0 }, code));
  figure.dataset["language"] = language;
  const add = (text: string): void => {
    open.remove();
    pieces.add(text);
  };
  const last = (text: string): void => {
    open.textContent = text;
    if (text !== "") code.append(open);
  };
  return { figure, add, last };
}

/** Gives each whole block in `node`, or the block that it is, its colours, once. */
export function colourAll(node: Node): void {
  if (!(node instanceof HTMLElement)) return;
  const inside = node.querySelectorAll<HTMLElement>("figure.code[data-language]");
  for (const figure of node.matches("figure.code") ? [node] : inside) colourOne(figure);
}

function colourOne(figure: HTMLElement): void {
  const language = figure.dataset["language"];
  delete figure.dataset["language"];
  const code = figure.querySelector("code")!;
  if (!language || code.textContent!.length > MOST_COLOURED) return;
  void import("./highlight")
    .then(({ colour }) => {
      const coloured = colour(textOf(code), language);
      if (coloured) code.replaceChildren(coloured, "\n");
    })
    .catch(() => {}); // the file could not be fetched: the code is there all the same
}

function textOf(code: HTMLElement): string {
  return code.textContent!.replace(/\n$/, "");
}
