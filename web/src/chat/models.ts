// Which models the server has, and whether each is loaded: a menu where there are several.

import type { App } from "../app";
import { el, fill, show } from "../dom";

const STATES = ["loaded", "loading", "unloaded", "failed"] as const;

export interface Card {
  name: string;
  /** `null`: the server does not say. */
  state: (typeof STATES)[number] | null;
  /** Tokens of its context; `null`: that is not said either. */
  context: number | null;
}

const MOST = 1_000;
const LONGEST_NAME = 1_000;

export class Models {
  cards: Card[] = [];

  /** Asks the server. True if something is new. */
  async refresh(app: App): Promise<boolean> {
    const response = await app.api("/v1/models").catch(() => null);
    const answer: unknown = response?.ok ? await response.json().catch(() => null) : null;
    const data = (answer as { data?: unknown } | null)?.data;
    if (!Array.isArray(data)) return false;
    const before = JSON.stringify(this.cards);
    this.cards = data.slice(0, MOST).flatMap((each) => cardOf(each) ?? []);
    return JSON.stringify(this.cards) !== before;
  }

  /** What a request has to say: the model that was chosen, where there is a choice. */
  sent(chosen: string): { model?: string } {
    const name = this.cards.length > 1 ? chosen || this.cards[0]!.name : "";
    return name === "" ? {} : { model: name };
  }

  /** The card of what was chosen, or the first. */
  card(chosen: string): Card | undefined {
    return this.cards.find(({ name }) => name === chosen) ?? (chosen === "" ? this.cards[0] : undefined);
  }
}

function cardOf(value: unknown): Card | null {
  const { id, status, max_model_len } = (value ?? {}) as { id?: unknown; status?: { value?: unknown } | null; max_model_len?: unknown };
  if (typeof id !== "string" || id === "" || id.length > LONGEST_NAME) return null;
  return { name: id, state: STATES.find((state) => state === status?.value) ?? null, context: typeof max_model_len === "number" && max_model_len > 0 ? max_model_len : null };
}

const WORDS = { loaded: "", loading: ", loading", unloaded: ", not loaded", failed: ", failed" };

export class ModelMenu {
  readonly element: HTMLElement;
  private select = el("select", {});
  private drawn = "";

  constructor(
    private models: Models,
    chose: (name: string) => void,
    opened: () => void,
  ) {
    this.element = el("label", { class: "preset", hidden: true }, "model ", this.select);
    this.select.addEventListener("change", () => chose(this.select.value));
    this.select.addEventListener("focus", opened);
  }

  draw(chosen: string): void {
    const { cards } = this.models;
    const here = cards.length > 1;
    const value = chosen || (cards[0]?.name ?? "");
    // One that the server no longer has stays chosen, and the server says what it thinks of it.
    const all: Card[] = cards.some(({ name }) => name === value) ? cards : [...cards, { name: value, state: null, context: null }];
    const options = all.map((card) => [card.name, cards.includes(card) ? WORDS[card.state ?? "loaded"] : ", not here"] as const);
    const state = JSON.stringify([here, value, options]);
    if (state === this.drawn) return;
    this.drawn = state;
    show(this.element, here);
    fill(this.select, ...options.map(([name, words]) => el("option", { value: name }, name + words)));
    this.select.value = value;
  }
}
