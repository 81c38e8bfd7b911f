// Where a question is written: words, and text files beside them. What is pasted at length becomes a file too.

import { el, fill, say, show } from "../dom";
import { labelled } from "../form";
import { count } from "../units";
import type { Attachment } from "./tree";

/** Bytes of a file, and files of a question. */
const LARGEST = 2 ** 20;
const MOST = 16;
/** Characters of a paste that are still words. */
const LONGEST_PASTE = 2_000;

export class Composer {
  readonly message = el("textarea", { rows: 3, placeholder: "Ask something" });
  readonly send = el("button", { type: "submit", class: "primary" }, "Send");
  readonly stop = el("button", { type: "button", disabled: true }, "Stop");
  readonly form: HTMLFormElement;
  private files: Attachment[] = [];
  private chips = el("ul", { class: "chips", "aria-label": "Attached", hidden: true });
  private problem = el("p", { class: "error", role: "alert", hidden: true });
  private pasted = 0;

  constructor(private ask: (content: string, files: Attachment[]) => boolean) {
    const picker = el("input", { type: "file", multiple: true, hidden: true, "aria-label": "Text files" });
    const attach = el("button", { type: "button", onclick: () => picker.click() }, "Attach a file");
    picker.addEventListener("change", () => void this.attach([...(picker.files ?? [])]).then(() => (picker.value = "")));
    this.form = el(
      "form",
      { class: "ask" },
      this.chips,
      this.problem,
      labelled("Message", this.message, "Enter sends, Shift and Enter starts a new line, Escape stops the answer."),
      el("div", { class: "row" }, this.send, this.stop, attach, picker),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.form.addEventListener("dragover", (event) => event.preventDefault());
    this.form.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      void this.attach([...event.dataTransfer.files]);
    });
    this.message.addEventListener("paste", (event) => this.paste(event));
    this.message.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
  }

  private submit(): void {
    const content = this.message.value;
    if ((content.trim() === "" && this.files.length === 0) || !this.ask(content, this.files)) return;
    this.message.value = "";
    this.files = [];
    this.complain("");
    this.draw();
  }

  private paste(event: ClipboardEvent): void {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length > 0 && text === "") {
      event.preventDefault();
      void this.attach(files);
    } else if (text.length > LONGEST_PASTE) {
      event.preventDefault();
      this.pasted += 1;
      this.add({ name: this.pasted === 1 ? "pasted text" : `pasted text ${this.pasted}`, text });
    }
  }

  private async attach(files: File[]): Promise<void> {
    this.complain("");
    for (const file of files) {
      const text = await read(file).catch((error: Error) => this.complain(error.message));
      if (text !== undefined) this.add({ name: file.name, text });
    }
    this.message.focus();
  }

  private add(file: Attachment): void {
    if (new Blob([file.text]).size > LARGEST) this.complain(`${file.name} has more than 1 MiB of text: attach a part of it.`);
    else if (this.files.length >= MOST) this.complain(`A question takes ${MOST} files at most.`);
    else this.files.push(file);
    this.draw();
  }

  private draw(): void {
    show(this.chips, this.files.length > 0);
    const chip = (file: Attachment): HTMLElement => {
      const remove = el("button", { type: "button", "aria-label": `Remove ${file.name}` }, "×");
      remove.addEventListener("click", () => {
        this.files = this.files.filter((each) => each !== file);
        this.draw();
        this.message.focus();
      });
      return el("li", {}, `${file.name}, ${count(file.text.length, "character")}`, remove);
    };
    fill(this.chips, ...this.files.map(chip));
  }

  private complain(problem: string): undefined {
    say(this.problem, problem);
    show(this.problem, problem !== "");
  }
}

/** The text of a file; an error says why it has none. */
async function read(file: File): Promise<string> {
  if (file.size > LARGEST) throw new Error(`${file.name} has ${(file.size / LARGEST).toFixed(1)} MiB: at most 1 MiB is attached.`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // other bytes than those of UTF-8
  }
  throw new Error(`${file.name} is no text in UTF-8: only text files are attached.`);
}
