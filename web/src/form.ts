// What the pages' forms are made of.

import { add, el } from "./dom";

/** A labelled control: the label is its accessible name, and clicking it reaches the control. */
export function labelled(text: string, control: HTMLElement, hint = ""): HTMLLabelElement {
  const label = el("label", { class: "field" }, el("span", { class: "name" }, text), control);
  if (hint) add(label, el("small", {}, hint));
  return label;
}
