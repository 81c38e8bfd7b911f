// The Markdown of an answer as elements, while the answer streams. `marked` only cuts text into tokens; the elements are made
// here, of text nodes, so that HTML in an answer stays text, and nothing is fetched for it.
//
//   text   [ finished blocks: their elements stay ][ the open block: cut and made again with each piece ]
//           0                                     done                                             shown
//
// What could be cut ever more slowly is not: an open code fence only grows, a long list or table keeps its finished items, and a
// block with a line beyond all measure stays plain text.

import { Lexer, type MarkedToken, type Token, type Tokens } from "marked";
import { codeBlock, type CodeBlock, colourAll, Pieces } from "./code";
import { add, el } from "./dom";
import { decode, linkTo } from "./links";

/** Characters that are cut at once: a longer text takes several rounds, and several frames. */
const ROUND = 4_000;
/** A frame spends at most this on one answer, ms. */
const FRAME_MS = 8;
/** A line of more characters is no prose, and its block is shown as it is. */
const LONGEST_LINE = 10_000;
/** The same for a block that has not ended. */
const LONGEST_BLOCK = 40_000;
/** A cut that takes longer, ms, is not tried again on the same block. */
const SLOWEST_MS = 250;
/** Items and rows of an open block stay once it has this many characters. */
const LONG = 2_000;
/** Quotes and lists deeper than this are shown as they are written. */
const DEEPEST = 16;

const FENCE = /^(?:(`{3,})([^`\n]*)|(~{3,})([^\n]*))\n/;
/** Markers of quotes and lists without anything between them. */
const TOO_DEEP = new RegExp(`^(?:[ \\t]*(?:[>*+-]|\\d{1,9}[.)])){${2 * DEEPEST}}`, "m");

/** A list or a table of which finished items are in the page, and more may follow. */
interface Open {
  element: HTMLElement;
  /** What makes the rest one of these: the head of a table. */
  prefix: string;
  kind: string;
}

export class Markdown {
  private text = "";
  private isWhole = false;
  private done = 0;
  private shown = 0;
  private tail: Node[] = [];
  private open: Open | null = null;
  private fence: { marker: string; block: CodeBlock } | null = null;
  private plain: Pieces | null = null;
  private links: Lexer["tokens"]["links"] = {};
  /** Level of the last heading: none is skipped, whatever an answer skips. */
  private level = 2;
  private notBefore = 0;
  private frame = 0;

  constructor(private root: HTMLElement) {}

  /** Shows `text`, which begins with what was shown before; `isWhole`: nothing follows. */
  grow(text: string, isWhole: boolean): void {
    const next = text.includes("\r") ? text.replaceAll(/\r\n?/g, "\n") : text;
    if (this.isWhole || (next.length === this.text.length && !isWhole)) return;
    this.text = next;
    this.isWhole = isWhole;
    this.go();
  }

  /** A round or several; what does not fit into this frame is for the next. */
  private go(): void {
    cancelAnimationFrame(this.frame);
    const start = performance.now();
    if (start >= this.notBefore || this.isWhole) {
      do this.round(Math.min(this.text.length, this.shown + ROUND));
      while (this.shown < this.text.length && performance.now() - start < FRAME_MS);
    }
    if (this.shown < this.text.length) this.frame = requestAnimationFrame(() => this.go());
    else if (this.isWhole) this.finish();
  }

  private round(to: number): void {
    if (this.fence) this.growFence(to);
    else if (this.plain) this.growPlain(to);
    else this.cut(to);
  }

  private finish(): void {
    colourAll(this.root);
    this.tail = [];
  }

  /** Cuts the open block, and freezes what has become of it but the last. */
  private cut(to: number): void {
    const blank = this.open?.prefix ? "" : (/^(?:[ \t]*\n)+/.exec(this.text.slice(this.done, to))?.[0] ?? "");
    this.done += blank.length;
    const rest = this.text.slice(this.done, to);
    const fence = FENCE.exec(rest);
    if (fence) return this.beginFence(fence);
    const isLong = rest.length > LONGEST_BLOCK || rest.length - rest.lastIndexOf("\n") > LONGEST_LINE || TOO_DEEP.test(rest);
    if (isLong) return this.beginPlain();
    const source = (this.open?.prefix ?? "") + rest;
    const start = performance.now();
    const tokens = this.lex(source);
    const took = performance.now() - start;
    if (!tokens || took > SLOWEST_MS) return this.beginPlain();
    this.notBefore = took > FRAME_MS / 2 ? start + 8 * took : 0;
    this.shown = to;
    this.place(source, tokens);
  }

  private lex(source: string): Token[] | null {
    try {
      const lexer = new Lexer({ gfm: true });
      Object.assign(lexer.tokens.links, this.links);
      const tokens = lexer.lex(source);
      this.links = lexer.tokens.links;
      return tokens;
    } catch {
      return null; // marked calls itself for what is nested: a stack has an end
    }
  }

  private place(source: string, tokens: Token[]): void {
    for (const node of this.tail) node.parentNode?.removeChild(node);
    this.tail = [];
    let last = tokens.length - 1;
    while (last > 0 && tokens[last]!.type === "space") last -= 1;
    // Whether the line begins another block is known when it has ended.
    const isFinished = last > 0 && tokens[last]!.raw.includes("\n");
    const at = isFinished ? offset(source, tokens, last) : null;
    if (at != null) {
      for (const token of tokens.slice(0, last)) this.block(token).forEach(colourAll);
      this.done += at - (this.open?.prefix.length ?? 0);
      this.open = null;
      this.tail = this.block(tokens[last]!);
      return;
    }
    const only = tokens[last];
    const split = last === 0 && only && only.raw.length > LONG ? this.splitOf(only as MarkedToken) : null;
    if (split) this.done += split - (this.open?.prefix.length ?? 0);
    if (only && split) this.keepItems(only as MarkedToken);
    else this.tail = tokens.flatMap((token) => this.block(token));
  }

  /** Where the last item or row of a long block begins, if those before it can stay. */
  private splitOf(token: MarkedToken): number | null {
    if (token.type === "list" && token.items.length > 1) return offset(token.raw, token.items, token.items.length - 1);
    if (token.type !== "table" || token.rows.length < 2) return null;
    return token.raw.trimEnd().lastIndexOf("\n") + 1;
  }

  /** Freezes all items of a list or rows of a table but the last, which is made as the open one. */
  private keepItems(token: MarkedToken): void {
    const prefix = token.type === "table" ? token.raw.split("\n", 2).join("\n") + "\n" : "";
    const nodes = this.block(token);
    const element = this.open?.element ?? (nodes[0] as HTMLElement);
    const holder = element.querySelector("tbody") ?? element;
    this.tail = [holder.lastChild!];
    this.open = { element, prefix, kind: kindOf(token) };
  }

  /** Makes a block's elements, and says which they are. */
  private block(token: Token): Node[] {
    const { open } = this;
    if (open && kindOf(token as MarkedToken) === open.kind) {
      const made = this.make(token as MarkedToken, 0) as HTMLElement;
      const holder = open.element.querySelector("tbody") ?? open.element;
      const items = [...(made.querySelector("tbody") ?? made).children];
      holder.append(...items);
      return items;
    }
    const made = this.make(token as MarkedToken, 0);
    if (made) this.root.append(made);
    return made ? [made] : [];
  }

  private beginFence([head, ticks, language, tildes, other]: RegExpExecArray): void {
    this.forgetTail();
    const block = codeBlock(decode(language ?? other ?? ""));
    this.root.append(block.figure);
    this.fence = { marker: ticks ?? tildes!, block };
    this.done += head.length;
    this.shown = this.done;
  }

  /** Looks at whole lines: one of them may be the end. What may become the end is not shown yet. */
  private growFence(to: number): void {
    const { marker, block } = this.fence!;
    const lines = this.text.slice(this.done, to);
    const end = new RegExp(`^ {0,3}${marker[0]}{${marker.length},}[ \\t]*(?:\\n|$)`, "m").exec(lines);
    const isEnd = end && (end[0].endsWith("\n") || (this.isWhole && to === this.text.length));
    if (isEnd) {
      block.add(lines.slice(0, end.index));
      colourAll(block.figure);
      this.fence = null;
      this.done += end.index + end[0].length;
      this.shown = this.done;
      return;
    }
    const line = lines.lastIndexOf("\n") + 1;
    const mayEnd = /^ {0,3}[`~]*[ \t]*$/.test(lines.slice(line));
    const until = mayEnd && !(this.isWhole && to === this.text.length) ? line : lines.length;
    block.add(lines.slice(0, line));
    block.last(lines.slice(line, until));
    this.done += line;
    this.shown = to;
  }

  private beginPlain(): void {
    this.forgetTail();
    this.plain = new Pieces(this.root.appendChild(el("div", { class: "plain" })));
    this.shown = this.done;
  }

  /** As it is, until an empty line. */
  private growPlain(to: number): void {
    const before = Math.min(1, this.shown - this.done); // the first of two line breaks may have been shown
    const piece = this.text.slice(this.shown - before, to);
    const end = piece.indexOf("\n\n");
    this.plain!.add(piece.slice(before, end < 0 ? undefined : Math.max(before, end)));
    this.shown = end < 0 ? to : this.shown - before + end + 1;
    if (end >= 0) this.done = this.shown;
    if (end >= 0) this.plain = null;
  }

  private forgetTail(): void {
    for (const node of this.tail) node.parentNode?.removeChild(node);
    this.tail = [];
    this.open = null;
  }

  private make(token: MarkedToken, depth: number): HTMLElement | null {
    switch (token.type) {
      case "space":
      case "def":
        return null;
      case "heading":
        this.level = Math.min(token.depth + 2, this.level + 1, 6);
        return this.words(el(`h${this.level}` as "h3", { class: `heading-${token.depth}` }), token.tokens);
      case "paragraph":
        return this.words(el("p"), token.tokens);
      case "text":
        return this.words(el("p"), token.tokens ?? [token]);
      case "hr":
        return el("hr");
      case "code":
        return codeOf(token);
      case "blockquote":
        return depth < DEEPEST ? this.blocks(el("blockquote"), token.tokens, depth) : asWritten(token);
      case "list":
        return depth < DEEPEST ? this.list(token, depth) : asWritten(token);
      case "table":
        return this.table(token);
      default:
        return asWritten(token);
    }
  }

  private blocks<E extends HTMLElement>(parent: E, tokens: Token[], depth: number): E {
    for (const token of tokens) add(parent, this.make(token as MarkedToken, depth + 1));
    return parent;
  }

  private list(token: Tokens.List, depth: number): HTMLElement {
    const start = token.ordered && token.start !== 1 ? token.start : null;
    const list = el(token.ordered ? "ol" : "ul", { start });
    for (const item of token.items) {
      const entry = list.appendChild(el("li", { class: item.task ? "task" : null }));
      for (const part of item.tokens as MarkedToken[]) {
        if (part.type === "checkbox") entry.append(checkbox(part.checked));
        else if (part.type === "text") this.words(entry, part.tokens ?? [part]);
        else add(entry, this.make(part, depth + 1));
      }
    }
    return list;
  }

  private table({ header, rows }: Tokens.Table): HTMLElement {
    const cell = (tag: "th" | "td", { tokens, align }: Tokens.TableCell): HTMLElement => this.words(el(tag, { class: align, scope: tag === "th" ? "col" : null }), tokens);
    const head = el("thead", {}, el("tr", {}, ...header.map((each) => cell("th", each))));
    const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((each) => cell("td", each)))));
    return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, el("table", {}, head, body));
  }

  /** Inline tokens into `parent`. */
  private words<E extends HTMLElement>(parent: E, tokens: Token[], depth = 0): E {
    for (const token of tokens as MarkedToken[]) add(parent, this.inline(token, depth));
    return parent;
  }

  private inline(token: MarkedToken, depth: number): Node | string {
    if (depth > DEEPEST) return token.raw;
    const inside = (tag: "strong" | "em" | "del", tokens: Token[]): Node => this.words(el(tag), tokens, depth + 1);
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return inside(token.type, token.tokens);
      case "codespan":
        return el("code", {}, token.text);
      case "br":
        return el("br");
      case "escape":
        return token.text;
      case "text":
        return token.tokens ? this.words(el("span"), token.tokens, depth + 1) : decode(token.text);
      case "checkbox":
        return checkbox(token.checked);
      case "link": {
        const link = linkTo(token.autolink ? token.href : decode(token.href), token.title);
        return link ? this.words(link, token.tokens, depth + 1) : token.raw;
      }
      case "image": {
        const link = linkTo(decode(token.href), token.title);
        if (!link) return token.raw;
        add(link, `picture: ${decode(token.text) || link.host}`);
        return link;
      }
      default:
        return token.raw;
    }
  }
}

/** Lists of one kind go on in each other, and the rows of one table. */
function kindOf(token: MarkedToken): string {
  if (token.type === "table") return "table";
  return token.type === "list" ? `list ${token.ordered ? /\D/.exec(token.raw.trimStart().replace(/^\d+/, ""))?.[0] : token.raw.trimStart()[0]}` : "";
}

/** Where a token begins in what was cut; `null` where that is not sure. */
function offset(source: string, tokens: { raw: string }[], index: number): number | null {
  let at = 0;
  for (const { raw } of tokens.slice(0, index)) {
    if (!source.startsWith(raw, at)) return null;
    at += raw.length;
  }
  const { raw } = tokens[index]!;
  return source.startsWith(raw.trimEnd(), at) ? at : null;
}

function codeOf({ text, lang }: Tokens.Code): HTMLElement {
  const block = codeBlock(decode(lang ?? ""));
  block.add(text === "" ? "" : `${text}\n`);
  return block.figure;
}

function checkbox(checked: boolean): Node {
  return el("input", { type: "checkbox", disabled: true, checked, "aria-label": checked ? "done" : "to do" });
}

/** What is no Markdown of ours: HTML, and what is nested too deep. */
function asWritten({ raw }: { raw: string }): HTMLElement {
  return el("p", {}, raw.trimEnd());
}
