// The tour's pictures: steps as columns, requests as lanes, as the Live page draws them. Elements and no images, so that they
// follow the theme, and told in words to those who do not see them.

import { el } from "../dom";

type Kind = "prefill" | "decode" | "rejected" | "other" | "queue" | "preempted" | "cached" | "none";

/** Cells of one kind next to each other; `size` in widths of a token. */
interface Piece {
  kind: Kind;
  cells: number;
  size?: number;
}

interface Lane {
  name: string;
  pieces: Piece[];
}

export interface Picture {
  /** What there is to see, in words. */
  words: string;
  lanes: Lane[];
}

const prefill = (cells: number, size = 1): Piece => ({ kind: "prefill", cells, size });
const decode = (cells: number, size = 1): Piece => ({ kind: "decode", cells, size });
const rejected = (cells: number, size = 1): Piece => ({ kind: "rejected", cells, size });
const other = (size: number): Piece => ({ kind: "other", cells: 1, size });
const queue = (size: number): Piece => ({ kind: "queue", cells: 1, size });
const none = (size: number): Piece => ({ kind: "none", cells: 1, size });

export const PICTURES: Picture[] = [
  {
    words: "Prefill: the tokens of a prompt go through the model together, in one step. Decode: the tokens of the answer follow one by one, a step each.",
    lanes: [
      { name: "position 1", pieces: [prefill(1, 2)] },
      { name: "position 2", pieces: [prefill(1, 2)] },
      { name: "position 3", pieces: [prefill(1, 2)] },
      { name: "position 4", pieces: [prefill(1, 2)] },
      { name: "position 5", pieces: [none(2), decode(1)] },
      { name: "position 6", pieces: [none(3), decode(1)] },
      { name: "position 7", pieces: [none(4), decode(1)] },
    ],
  },
  {
    words: "The time to first token is the queue and prefill; from there on each token takes the time per output token.",
    lanes: [
      { name: "long prompt", pieces: [queue(1), prefill(1, 6), decode(3)] },
      { name: "long answer", pieces: [queue(1), prefill(1, 1), decode(8)] },
    ],
  },
  {
    words: "Alone, a stream reads all weights for one token a step. Four streams share each reading, and a step takes hardly longer.",
    lanes: [
      { name: "alone", pieces: [decode(9)] },
      { name: "stream 1", pieces: [decode(8, 1.12)] },
      { name: "stream 2", pieces: [decode(8, 1.12)] },
      { name: "stream 3", pieces: [decode(8, 1.12)] },
      { name: "stream 4", pieces: [decode(8, 1.12)] },
    ],
  },
  {
    words: "In one piece, a prompt makes a stream wait for all of it. In chunks, each step of the stream is a little longer: striped is the prompt's part of it.",
    lanes: [
      { name: "stream", pieces: [decode(2), decode(1), other(8), decode(3)] },
      { name: "whole prompt", pieces: [none(2), prefill(1, 9)] },
      { name: "stream", pieces: [decode(1), decode(1), other(1.6), decode(1), other(1.6), decode(1), other(1.6), decode(1), other(1.6), decode(1), other(1.6)] },
      { name: "in chunks", pieces: [none(1), prefill(5, 2.6)] },
    ],
  },
  {
    words: "The second time, the blocks that are in the prefix cache are not computed again: prefill begins behind them, and decode takes as long as before.",
    lanes: [
      { name: "first", pieces: [prefill(8), decode(5)] },
      { name: "second", pieces: [{ kind: "cached", cells: 7, size: 0.14 }, prefill(1), decode(5)] },
    ],
  },
  {
    words: "Two requests fill the pool. A third waits for blocks. When an answer cannot grow, one request is preempted, and goes on when there is room.",
    lanes: [
      { name: "first", pieces: [prefill(1, 2), decode(9)] },
      { name: "second", pieces: [prefill(1, 2), decode(4), { kind: "preempted", cells: 1, size: 5 }, prefill(1, 1), decode(2)] },
      { name: "third", pieces: [queue(11), prefill(1, 2), decode(1)] },
    ],
  },
  {
    words: "Above, a token comes of each pass. Below, three draft tokens go with each token: nine tokens of three passes, each a little longer. Solid are tokens, hollow the rejected drafts.",
    lanes: [
      { name: "without", pieces: [decode(9)] },
      { name: "token", pieces: [decode(3, 1.15)] },
      { name: "draft", pieces: [decode(3, 1.15)] },
      { name: "draft", pieces: [decode(2, 1.15), rejected(1, 1.15)] },
      { name: "draft", pieces: [decode(1, 1.15), rejected(2, 1.15)] },
    ],
  },
];

/** A picture; its caption is what it shows. */
export function drawn({ words, lanes }: Picture): HTMLElement {
  const widest = Math.max(...lanes.map(({ pieces }) => pieces.reduce((sum, { cells, size = 1 }) => sum + cells * size, 0)));
  const line = ({ name, pieces }: Lane): HTMLElement => {
    const bar = el("span", { class: "bar" });
    for (const { kind, cells, size = 1 } of pieces) {
      for (let cell = 0; cell < cells; cell += 1) {
        const piece = el("span", { class: kind });
        piece.style.width = `${(100 * size) / widest}%`;
        bar.append(piece);
      }
    }
    return el("div", { class: "lane" }, el("span", { class: "name" }, name), bar);
  };
  return el("figure", { class: "picture" }, el("div", { role: "img", "aria-label": words }, ...lanes.map(line)), el("figcaption", {}, words));
}
