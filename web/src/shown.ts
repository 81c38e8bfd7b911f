// Of which model the pages are, where a server has several in memory: each has an engine, with steps and a cache of its own.

import type { App } from "./app";
import { Models } from "./chat/models";
import { el, fill, show } from "./dom";

const KEPT = "twostroke-shown";

export class Shown {
  readonly menu: HTMLElement;
  /** One that was shown and left memory; empty: none did. */
  left = "";
  private models = new Models();
  private select = el("select", { "aria-label": "Engine shown" });
  private drawn = "";
  /** Empty: the server's first. */
  private name = sessionStorage.getItem(KEPT) ?? "";

  constructor(private changed: () => void) {
    this.menu = el("span", { class: "shown", hidden: true }, this.select);
    this.select.addEventListener("change", () => {
      this.left = "";
      this.turn(this.select.value === this.models.cards[0]?.name ? "" : this.select.value);
    });
  }

  /** Where to ask about the engine that is shown. */
  path(path: string): string {
    if (this.name === "" || !path.startsWith("/live/")) return path;
    return `${path}${path.includes("?") ? "&" : "?"}model=${encodeURIComponent(this.name)}`;
  }

  /** A prompt is for the model that is shown, unless it says for which. */
  body(path: string, body: RequestInit["body"]): RequestInit {
    if (this.name === "" || typeof body !== "string" || !/^\/(v1|tokenize|detokenize)\b/.test(path)) return {};
    const asked: unknown = JSON.parse(body);
    return asked == null || typeof asked !== "object" || "model" in asked ? {} : { body: JSON.stringify({ ...asked, model: this.name }) };
  }

  /** The one that was shown is gone: back to the first. False if that was shown. */
  leave(): boolean {
    if (this.name === "") return false;
    this.left = this.name;
    this.turn("");
    return true;
  }

  /** Asks the server again where it has several. */
  async look(app: App, name: string): Promise<void> {
    if (this.models.cards.length > 1 && !document.hidden) await this.refresh(app, name);
  }

  /** Asks the server which models are in memory; `name` is that of the one that is shown. */
  async refresh(app: App, name: string): Promise<void> {
    await this.models.refresh(app);
    const names = this.models.cards.filter(({ state }) => state === "loaded").map((card) => card.name);
    const state = JSON.stringify([names, name]);
    // A menu that is open stays as it is.
    if (state === this.drawn) return;
    this.drawn = state;
    show(this.menu, names.length > 1);
    fill(this.select, ...names.map((each) => el("option", { value: each }, each)));
    this.select.value = name;
  }

  private turn(name: string): void {
    this.name = name;
    sessionStorage.setItem(KEPT, name);
    this.changed();
  }
}
