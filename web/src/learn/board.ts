// The board of lesson 17: fourteen cards into four boxes. Each says what it helps and what it harms.

import { add, el, fill, say } from "../dom";
import type { Experiment } from "./types";

const BOXES = ["helps prefill", "helps decode", "keeps them apart", "makes room"] as const;
type BoxName = (typeof BOXES)[number];

interface BoardCard {
  name: string;
  box: BoxName;
  helps: string;
  harms: string;
}

export const BOARD: BoardCard[] = [
  { name: "Chunked prefill", box: "keeps them apart", helps: "streams keep their pace beside a long prompt.", harms: "the newcomer, whose first token comes a little later." },
  { name: "Quantized weights", box: "helps decode", helps: "fewer bytes in each reading.", harms: "4 bits sometimes prefill, where they are unpacked for arithmetic; and a little exactness." },
  { name: "Prompt caching", box: "helps prefill", helps: "what was read before is not computed again.", harms: "room: cached blocks take memory until it is needed." },
  { name: "Pages", box: "makes room", helps: "no holes of reservation, so more requests fit.", harms: "attention has a table to look into." },
  { name: "Continuous batching", box: "helps decode", helps: "more streams share each reading.", harms: "TPOT of each stream, a little." },
  { name: "Tiled attention", box: "helps prefill", helps: "scores stay in fast memory, block by block.", harms: "nothing; it hardly helps one row alone." },
  { name: "Classes of requests", box: "keeps them apart", helps: "people first, batch work in the gaps.", harms: "batch work, which waits." },
  { name: "Speculation", box: "helps decode", helps: "several tokens from one reading.", harms: "large batches, where rejected rows cost time." },
  { name: "W8A8 and FP8 products", box: "helps prefill", helps: "twice the operations a second.", harms: "a little exactness, where activations have outliers." },
  { name: "Quantized KV cache", box: "helps decode", helps: "fewer bytes of keys and values; room besides.", harms: "a little exactness in long contexts." },
  { name: "Separate pools", box: "keeps them apart", helps: "no prompt ever meets a stream.", harms: "the link, and small fleets that lose to rounding." },
  { name: "Shared heads (GQA, MQA)", box: "helps decode", helps: "a quarter of the keys and values, or less; room besides.", harms: "it has to be trained that way; few heads can cost quality." },
  { name: "Tensor parallelism", box: "helps prefill", helps: "large products divide well; decode gains too, less the time on the link.", harms: "the link, twice in each layer." },
  { name: "Preemption and swap", box: "makes room", helps: "running answers can grow when the pool is full.", harms: "the one that has to leave, in time and not in words." },
];

const HINTS: Record<BoxName, string> = {
  "helps prefill": "It does not make a prompt cheaper to compute.",
  "helps decode": "It does not make a token's reading smaller or more shared.",
  "keeps them apart": "It makes a phase itself quicker, or more of it fit; it does not separate them.",
  "makes room": "It is not about how many fit.",
};

export const sortingBoard: Experiment = ({ root, tried }) => {
  const placed = new Map<string, BoxName>();
  const lists = new Map(BOXES.map((name) => [name, el("ul", {})]));
  const status = el("p", { class: "status", role: "status" });
  const show = (): void => {
    for (const [name, list] of lists) {
      const names = BOARD.filter((card) => placed.get(card.name) === name && card.box === name).map((card) => el("li", {}, card.name));
      fill(list, ...(names.length > 0 ? names : [el("li", { class: "quiet-text" }, "empty")]));
    }
    const right = BOARD.filter(({ name, box }) => placed.get(name) === box).length;
    say(status, right === BOARD.length ? `All ${BOARD.length} cards are in their boxes.` : `${right} of ${BOARD.length} cards are in their boxes.`);
    if (right === BOARD.length) tried();
  };
  const cards = BOARD.map(({ name, box, helps, harms }, at) => {
    const verdict = el("p", { class: "verdict", role: "status" });
    const choose = (into: BoxName) => (): void => {
      placed.set(name, into);
      verdict.dataset["right"] = String(into === box);
      say(verdict, into === box ? `Helps: ${helps} Harms: ${harms}` : HINTS[into]);
      show();
    };
    const radios = BOXES.map((into) => el("label", { class: "choice" }, el("input", { type: "radio", name: `board-${at}`, onchange: choose(into) }), el("span", {}, into)));
    return el("li", {}, el("fieldset", { class: "card" }, el("legend", {}, name), el("div", { class: "row" }, ...radios), verdict));
  });
  const boxes = BOXES.map((name) => el("section", { class: "box", "aria-label": name }, el("h4", {}, name), lists.get(name)!));
  add(root, el("div", { class: "boxes" }, ...boxes), status, el("ol", { class: "cards" }, ...cards));
  show();
};
