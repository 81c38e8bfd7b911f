// A button that puts text on the clipboard.

import { el, fill } from "./dom";

/** What the button says and does; `text` is asked for when it is pressed. */
export function copyButton(text: () => string, name = "Copy"): HTMLButtonElement {
  const button = el("button", { type: "button", class: "copy", onclick: () => void copy() }, name);
  // A page without a secure origin may not write to the clipboard, and the button says so.
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text());
      fill(button, "Copied");
    } catch {
      fill(button, "Not allowed");
    }
    setTimeout(() => fill(button, name), 1500);
  };
  return button;
}
