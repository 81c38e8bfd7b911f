// What the pages' forms are made of.

import { el } from "./dom";

let made = 0;

/** A labelled control: clicking the label reaches it, the label is its accessible name, and the hint its description. */
export function labelled(text: string, control: HTMLElement, hint = ""): HTMLElement {
  made += 1;
  control.id = `field-${made}`;
  if (hint) control.setAttribute("aria-describedby", `hint-${made}`);
  return el(
    "div",
    { class: "field" },
    el("label", { for: control.id, class: "name" }, text),
    control,
    hint && el("small", { id: `hint-${made}` }, hint),
  );
}
