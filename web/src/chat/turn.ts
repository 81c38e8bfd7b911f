// One message of a conversation on the page: a question as it was written, an answer as Markdown with its thought and its phases.

import type { App } from "../app";
import type { Answer, Progress } from "../ask";
import { Pieces } from "../code";
import { copyButton } from "../copy";
import { el, fill, say, show } from "../dom";
import { labelled } from "../form";
import { Markdown } from "../markdown";
import { phaseDetails, phaseLineOf } from "../phases";
import { count, ms } from "../units";
import type { Attachment, Message } from "./tree";

const NOTES: Record<string, string> = {
  cancelled: "Stopped. Its cache blocks are free again.",
  length: "Ended by the limit of tokens.",
  reload: "The page was loaded again before this answer was complete, or another tab still gets it.",
};

/** What a reader can do with a message. */
export interface Actions {
  edit(message: Message, content: string): void;
  retry(message: Message): void;
  branch(message: Message): void;
  walk(message: Message, by: number): void;
}

/** Which of the messages that stand at one place this is, counted from 0. */
export interface Place {
  at: number;
  of: number;
}

export class Turn {
  readonly element: HTMLElement;
  private text = el("div", { class: "text" });
  private foot = el("div", { class: "foot" });
  private markdown: Markdown | null = null;
  private thought: { details: HTMLElement; summary: HTMLElement; pieces: Pieces; length: number } | null = null;
  private reading: HTMLElement | null = null;
  private drawn = "";

  constructor(
    private app: App,
    private message: Message,
    private actions: Actions,
  ) {
    const { role, content, files } = message;
    const who = role === "user" ? "You" : "Model";
    this.element = el("article", { class: `turn ${role}`, "aria-label": who }, el("h2", {}, who), ...files.map(fileOf), this.text, this.foot);
    if (role === "user") this.text.append(content);
    else this.markdown = new Markdown(this.text);
  }

  /** This one if it shows that message; another object of the same message may say more. */
  of(message: Message): Turn | null {
    return message === this.message ? this : null;
  }

  /** Shows what has come; `sofar` of the answer that is being written, `null` of others. */
  draw(place: Place, sofar: Answer | null, isBusy: boolean): void {
    const { content, answer } = this.message;
    this.think(sofar);
    this.markdown?.grow(content, answer != null);
    const state = [place.at, place.of, answer != null && !sofar, isBusy].join();
    if (state === this.drawn) return;
    this.drawn = state;
    this.drawFoot(place, sofar != null, isBusy);
  }

  /** How far the prompt is read, over an answer that has not begun: only where reading takes several steps. */
  read(progress: Progress | null): void {
    this.reading?.remove();
    this.reading = null;
    if (!progress || progress.processed === progress.total || progress.processed === progress.cache) return;
    const { total, processed } = progress;
    const bar = el("progress", { "aria-label": "Reading the prompt", max: total, value: processed });
    const words = `Reading the prompt: ${processed.toLocaleString("en")} of ${count(total, "token")}`;
    this.reading = el("p", { class: "reading quiet-text" }, bar, " ", words);
    this.text.before(this.reading);
  }

  /** What was thought, folded, above what was said. */
  private think(sofar: Answer | null): void {
    const { thought, content } = this.message;
    if (thought === "") return;
    if (!this.thought) {
      const [summary, text] = [el("summary", {}, ""), el("div", { class: "thought-text" })];
      const details = el("details", { class: "thought" }, summary, text);
      this.thought = { details, summary, pieces: new Pieces(text), length: 0 };
      this.text.before(details);
    }
    const { thoughtTokens, thoughtMs } = sofar ?? this.message.answer ?? { thoughtTokens: 0, thoughtMs: 0 };
    const length = thoughtTokens > 0 ? `${count(thoughtTokens, "token")}, ${ms(thoughtMs)}` : "";
    say(this.thought.summary, sofar && content === "" ? `Thinking… ${length}` : `Thought ${length}`);
    this.thought.pieces.add(thought.slice(this.thought.length));
    this.thought.length = thought.length;
  }

  private drawFoot(place: Place, isOpen: boolean, isBusy: boolean): void {
    const { answer, role } = this.message;
    const versions = place.of > 1 && this.versions(place, isBusy);
    if (role === "user") {
      const edit = el("button", { type: "button", disabled: isBusy, onclick: () => this.edit() }, "Edit");
      return fill(this.foot, el("div", { class: "actions" }, edit, versions));
    }
    if (isOpen || !answer) return fill(this.foot, versions && el("div", { class: "versions-only" }, versions));
    const why = el("div", { class: "why", hidden: true });
    const toggle = el("button", { type: "button", "aria-expanded": "false" }, "Why");
    toggle.addEventListener("click", () => {
      if (!why.firstChild) why.append(phaseDetails(answer));
      show(why, why.hidden);
      toggle.setAttribute("aria-expanded", String(!why.hidden));
    });
    const note = NOTES[answer.finish];
    const button = (name: string, press: () => void) => el("button", { type: "button", disabled: isBusy, onclick: press }, name);
    fill(
      this.foot,
      answer.error !== "" && el("p", { class: "error", role: "alert" }, answer.error),
      note !== undefined && el("p", { class: "note" }, note),
      el(
        "div",
        { class: "actions" },
        answer.timings && phaseLineOf(this.app, answer, answer.timings),
        copyButton(() => this.message.content),
        button("Retry", () => this.actions.retry(this.message)),
        el("button", { type: "button", onclick: () => this.actions.branch(this.message) }, "Branch"),
        (answer.timings || answer.id) && toggle,
        versions,
      ),
      why,
    );
  }

  private versions({ at, of }: Place, isBusy: boolean): HTMLElement {
    const go = (by: number, name: string, sign: string) =>
      el("button", { type: "button", "aria-label": name, disabled: isBusy || at + by < 0 || at + by >= of, onclick: () => this.actions.walk(this.message, by) }, sign);
    return el("span", { class: "versions", role: "group", "aria-label": "Versions" }, go(-1, "Previous version", "<"), ` ${at + 1}/${of} `, go(1, "Next version", ">"));
  }

  /** The question as a field; what is sent stands beside the first. */
  private edit(): void {
    const field = el("textarea", { rows: Math.min(12, this.message.content.split("\n").length + 1) });
    field.value = this.message.content;
    const done = (): void => {
      form.replaceWith(this.text);
      show(this.foot, true);
      this.foot.querySelector("button")?.focus();
    };
    const form = el("form", { class: "edit" }, labelled("Edit the question", field), el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, "Send again"), el("button", { type: "button", onclick: done }, "Cancel")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim() === "" && this.message.files.length === 0) return;
      done();
      this.actions.edit(this.message, field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    this.text.replaceWith(form);
    show(this.foot, false);
    field.focus();
  }
}

/** A file of a question, folded. */
function fileOf({ name, text }: Attachment): HTMLElement {
  const inside = el("div", { class: "file-text", tabindex: 0, role: "group", "aria-label": `Text of ${name}` });
  const details = el("details", { class: "file" }, el("summary", {}, `${name}, ${count(text.length, "character")}`), inside);
  details.addEventListener("toggle", () => {
    if (details.open && !inside.firstChild) new Pieces(inside).add(text);
  });
  return details;
}
