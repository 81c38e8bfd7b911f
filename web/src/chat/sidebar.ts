// The conversations that are kept, those of today first, with a search in their titles and words.

import { el, fill, say, show } from "../dom";
import type { Talk } from "../talk";
import type { Conversation } from "./tree";

/** Entries that are shown; a search finds the others. */
const MOST_SHOWN = 200;
const SEARCH_AFTER_MS = 150;

export class Sidebar {
  readonly element: HTMLDetailsElement;
  private search = el("input", { type: "search", placeholder: "Search (Ctrl K)", "aria-label": "Search conversations", maxlength: 200 });
  private list = el("nav", { "aria-label": "Conversations" });
  private problem = el("p", { class: "note", role: "status", hidden: true });
  private undo = el("p", { class: "note row", role: "status", hidden: true });
  private found: Set<string> | null = null;
  private timer = 0;
  private drawn = "";

  constructor(
    private talk: Talk,
    isOpen: boolean,
    private opened: () => void,
  ) {
    this.element = el("details", { class: "panel sidebar", open: isOpen }, el("summary", {}, "Conversations"), this.search, this.problem, this.undo, this.list);
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.look(), SEARCH_AFTER_MS);
    });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.search.value = "";
      if (event.key === "Escape" || event.key === "Enter") void this.look().then(() => event.key === "Enter" && this.list.querySelector("button")?.click());
    });
  }

  /** Ctrl K: to the search. */
  focus(): void {
    this.element.open = true;
    this.search.focus();
    this.search.select();
  }

  draw(): void {
    show(this.problem, this.talk.store.problem !== "");
    say(this.problem, this.talk.store.problem);
    const wanted = this.search.value.trim().toLowerCase();
    const all = this.talk.conversations.filter(({ id, title }) => wanted === "" || this.found?.has(id) || title.toLowerCase().includes(wanted));
    const midnight = new Date().setHours(0, 0, 0, 0);
    const state = JSON.stringify([wanted, midnight, this.talk.current.id, all.slice(0, MOST_SHOWN).map((each) => [each.id, each.title, each.changed >= midnight, this.talk.isAnsweringIn(each.id)]), all.length]);
    if (state === this.drawn) return; // what has the focus keeps it
    this.drawn = state;
    const shown = all.slice(0, MOST_SHOWN);
    const group = (name: string, entries: Conversation[]) => entries.length > 0 && [el("h2", {}, name), el("ul", {}, ...entries.map((each) => this.entry(each)))];
    const groups = [group("Today", shown.filter(({ changed }) => changed >= midnight)), group("Earlier", shown.filter(({ changed }) => changed < midnight))];
    const rest = all.length - shown.length;
    fill(this.list, ...groups.flatMap((each) => each || []), rest > 0 && el("p", { class: "note" }, `${rest.toLocaleString("en")} more: search for them.`), all.length === 0 && el("p", { class: "note" }, wanted === "" ? "None yet." : "None has these words."));
  }

  private entry(conversation: Conversation): HTMLElement {
    const { title, id } = conversation;
    const isShown = id === this.talk.current.id;
    const open = el("button", { type: "button", class: "open", "aria-current": isShown ? "true" : null, title }, title, this.talk.isAnsweringIn(id) && " …");
    const remove = el("button", { type: "button", class: "delete", "aria-label": `Delete ${title}` }, "×");
    open.addEventListener("click", () => void this.talk.open(conversation).then(this.opened));
    remove.addEventListener("click", () => void this.remove(conversation));
    return el("li", {}, open, remove);
  }

  private async remove(conversation: Conversation): Promise<void> {
    await this.talk.remove(conversation);
    const back = el("button", { type: "button" }, "Undo");
    back.addEventListener("click", () => {
      show(this.undo, false);
      void this.talk.undo();
      this.search.focus();
    });
    fill(this.undo, "Deleted. ", back);
    show(this.undo, true);
    back.focus();
  }

  private async look(): Promise<void> {
    const wanted = this.search.value.trim();
    this.found = wanted === "" ? null : await this.talk.store.find(wanted);
    if (this.search.value.trim() === wanted) this.draw();
  }
}
