// How much of the model's context the conversation takes, always in view.

import type { App } from "../app";
import { el, say } from "../dom";
import type { Talk } from "../talk";
import { short } from "../units";

/** From here on the bar warns. */
const NEARLY_FULL = 0.8;

export class ContextBar {
  private fill = el("span", { class: "fill" });
  private words = el("span", { class: "number" });
  private meter = el("span", { class: "meter", role: "meter", "aria-label": "Context used", "aria-valuemin": 0 }, this.fill);
  readonly element = el("div", { class: "context" }, "context ", this.meter, this.words);

  constructor(
    private app: App,
    private talk: Talk,
  ) {}

  draw(): void {
    const whole = this.talk.models.card(this.talk.current.settings.model)?.context ?? this.app.info.max_model_len;
    const used = Math.min(this.talk.used, whole);
    const share = whole > 0 ? used / whole : 0;
    const words = `${tokens(used)} of ${tokens(whole)}${share >= NEARLY_FULL ? ", nearly full" : ""}`;
    this.fill.style.width = `${(100 * share).toFixed(1)}%`;
    this.element.classList.toggle("nearly-full", share >= NEARLY_FULL);
    this.meter.setAttribute("aria-valuemax", String(whole));
    this.meter.setAttribute("aria-valuenow", String(used));
    this.meter.setAttribute("aria-valuetext", `${words} tokens`);
    say(this.words, words);
  }
}

function tokens(count: number): string {
  return count < 1000 ? String(count) : short(count).replace(" ", "");
}
