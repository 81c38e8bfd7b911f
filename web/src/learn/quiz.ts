// Questions that explain each of their choices, and cards to be called true or false.

import { add, el, fill, say } from "../dom";
import type { Card, Note, Question } from "./types";

/** Choosing an answer says at once what there is to say about it, and another may be tried. `answered` hears of each. */
export function question({ id, asks, choices }: Question, answered: (isRight: boolean) => void): HTMLElement {
  const verdict = el("p", { class: "verdict", role: "status" });
  const radios = choices.map((choice) => {
    const choose = (): void => {
      verdict.dataset["right"] = String(choice.isRight);
      say(verdict, choice.explanation);
      answered(choice.isRight);
    };
    return el("label", { class: "choice" }, el("input", { type: "radio", name: `question-${id}`, onchange: choose }), el("span", {}, choice.text));
  });
  return el("fieldset", { class: "question", "data-question": id }, el("legend", {}, asks), ...radios, verdict);
}

/** Beginners' errors among truths: each is called one or the other, and says why. */
export function trueOrFalse(cards: Card[]): HTMLElement {
  const list = el("ol", { class: "cards" });
  cards.forEach((card, at) => {
    const verdict = el("p", { class: "verdict", role: "status" });
    const call = (isTrue: boolean) => (): void => {
      verdict.dataset["right"] = String(isTrue === card.isTrue);
      say(verdict, `${card.isTrue ? "True" : "False"}: ${card.why}`);
    };
    const radio = (name: string, value: boolean) => el("label", { class: "choice" }, el("input", { type: "radio", name: `card-${at}`, onchange: call(value) }), el("span", {}, name));
    add(list, el("li", {}, el("fieldset", { class: "card" }, el("legend", {}, card.says), el("div", { class: "row" }, radio("true", true), radio("false", false)), verdict)));
  });
  return el("section", { "aria-label": "True or false" }, el("h3", {}, "True or false?"), list);
}

/** Where sources disagree. */
export function note({ about, one, other, regimes, ours }: Note): HTMLElement {
  const aside = el("aside", { class: "note", "aria-label": `Sources disagree: ${about}` });
  fill(aside, el("h3", {}, `Sources disagree: ${about}`), el("p", {}, `One says: ${one}`), el("p", {}, `Another says: ${other}`), el("p", {}, regimes), el("p", {}, `Our figure: ${ours}`));
  return aside;
}
