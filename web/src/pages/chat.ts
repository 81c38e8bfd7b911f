// Chat: a conversation with the engine, and under each answer what both phases did for it.

import type { App } from "../app";
import { type Answer, ask, longPrompt, longestGap, type Progress } from "../ask";
import { add, el, fill, show } from "../dom";
import { labelled } from "../form";
import { dropFrame, wantFrame } from "../frames";
import { phaseFooter } from "../phases";
import { count, ms } from "../units";
import "./chat.css";

interface Turn {
  role: "user" | "assistant";
  content: string;
  /** As it is shown, with what stands under it. */
  article: HTMLElement;
}

/** A sampling control: its field in the API, its range, and what it does. An empty one is not sent. */
interface Control {
  field: string;
  name: string;
  min: number;
  max: number;
  step: number;
  hint: string;
  initial: string;
}

const CONTROLS: Control[] = [
  { field: "temperature", name: "Temperature", min: 0, max: 2, step: 0.05, hint: "0: always the likeliest token", initial: "" },
  { field: "top_p", name: "Top p", min: 0.01, max: 1, step: 0.01, hint: "smallest set with this probability", initial: "" },
  { field: "top_k", name: "Top k", min: 0, max: 1000, step: 1, hint: "so many likeliest; 0: all", initial: "" },
  { field: "min_p", name: "Min p", min: 0, max: 1, step: 0.01, hint: "share of the likeliest one's probability", initial: "" },
  { field: "repetition_penalty", name: "Repetition penalty", min: 0.1, max: 2, step: 0.05, hint: "1: none", initial: "" },
  { field: "max_tokens", name: "Max tokens", min: 1, max: 1_000_000, step: 1, hint: "the answer's longest length", initial: "256" },
  { field: "seed", name: "Seed", min: 0, max: 2 ** 53 - 1, step: 1, hint: "same seed, same answer", initial: "" },
];

// The conversation outlives a visit to another page.
const turns: Turn[] = [];

export function mount(root: HTMLElement, app: App): () => void {
  const log = el("div", { class: "conversation", role: "log", "aria-label": "Conversation", tabindex: 0 });
  const status = el("p", { class: "status", role: "status" });
  const message = el("textarea", { rows: 3, required: true, placeholder: "Ask something" });
  const send = el("button", { type: "submit", class: "primary" }, "Send");
  const stop = el("button", { type: "button", disabled: true }, "Stop");
  const clear = el("button", { type: "button" }, "New conversation");
  const system = el("textarea", { rows: 2, placeholder: "none" });
  const inputs = CONTROLS.map((control) => {
    const { min, max, step } = control;
    return { control, input: el("input", { type: "number", min, max, step, value: control.initial, placeholder: control.field === "seed" ? "random" : "the model's" }) };
  });
  const longTokens = el("input", { type: "number", min: 16, step: 1, max: app.info.max_model_len - 1, value: defaultLength(app) });
  const beside = el("button", { type: "button" }, "A long prompt beside it");
  const besideResults = el("ul", { class: "beside-results", "aria-label": "Long prompts sent" });

  let running: AbortController | null = null;
  // When the pieces of the newest answer came: what a long prompt does to them is measured here.
  let moments: number[] = [];
  const others = new AbortController();

  const answerTo = async () => {
    const abort = new AbortController();
    running = abort;
    const body = { messages: conversation(), ...sampling() };
    const turn = say("assistant", "");
    const text = document.createTextNode("");
    turn.article.querySelector(".text")!.append(text);
    // Tokens may come by the thousand a second: they are written once a frame.
    let fresh = "";
    const write = () => {
      text.appendData(fresh);
      fresh = "";
      stickToEnd();
    };
    busy(true);
    const reading = promptBar();
    turn.article.querySelector(".text")!.before(reading.element);
    const onText = (piece: string, answer: Answer) => {
      reading.element.remove();
      moments = answer.moments;
      fresh += piece;
      wantFrame(write);
    };
    const answer = await ask(app, "/v1/chat/completions", body, abort.signal, onText, reading.tell);
    reading.element.remove();
    dropFrame(write);
    write();
    running = null;
    turn.content = answer.text;
    finish(turn.article, answer);
    busy(false);
    fill(status, answer.error ? "No answer." : "The answer is complete.");
    stickToEnd();
  };

  const conversation = () => {
    const content = system.value.trim();
    const first = content === "" ? [] : [{ role: "system", content }];
    // An answer that failed before its first word is no part of the conversation.
    return [...first, ...turns.filter(({ content }) => content !== "").map(({ role, content }) => ({ role, content }))];
  };

  const sampling = () => {
    const filled = inputs.filter(({ input }) => input.value !== "");
    return Object.fromEntries(filled.map(({ control, input }) => [control.field, input.valueAsNumber]));
  };

  const busy = (is: boolean) => {
    send.disabled = is;
    stop.disabled = !is;
    if (is) fill(status, "The engine answers…");
    for (const button of log.querySelectorAll<HTMLButtonElement>("button.again")) button.disabled = is;
  };

  const say = (role: Turn["role"], content: string): Turn => {
    for (const button of log.querySelectorAll("button.again")) button.remove();
    const who = role === "user" ? "You" : "Model";
    const article = el("article", { class: `turn ${role}`, "aria-label": who }, el("h3", {}, who), el("div", { class: "text" }, content));
    const turn = { role, content, article };
    turns.push(turn);
    log.append(article);
    stickToEnd();
    return turn;
  };

  const finish = (article: HTMLElement, answer: Answer) => {
    if (answer.error) add(article, el("p", { class: "error", role: "alert" }, answer.error));
    if (answer.finish === "cancelled") add(article, el("p", { class: "note" }, "Stopped. Its cache blocks are free again."));
    if (answer.finish === "length") add(article, el("p", { class: "note" }, "Ended by the limit of tokens."));
    const copy = el("button", { type: "button", onclick: () => void copyText(answer.text, copy) }, "Copy");
    const again = el("button", { type: "button", class: "again" }, "Regenerate");
    add(article, phaseFooter(app, answer), el("div", { class: "actions" }, copy, again));
  };

  // Heard here and not by the button, which may be older than this visit to the page.
  log.addEventListener("click", (event) => {
    if (running || !(event.target as Element).matches("button.again")) return;
    turns.pop()?.article.remove();
    void answerTo();
  });

  // Whoever has scrolled up to read is left there.
  const stickToEnd = () => {
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
  };

  const sendBeside = async () => {
    const length = Math.round(longTokens.valueAsNumber);
    if (!longTokens.reportValidity()) return;
    const line = el("li", {}, `${count(length, "token")}: on their way…`);
    besideResults.append(line);
    const from = performance.now();
    try {
      const prompt = await longPrompt(app, length);
      const answer = await ask(app, "/v1/completions", { prompt, max_tokens: 1, ignore_eos: true }, others.signal);
      if (answer.error) fill(line, `${count(length, "token")}: ${answer.error}`);
      else fill(line, `${count(length, "token")}: ${told(answer, from)}`);
    } catch (error) {
      fill(line, `${count(length, "token")}: ${error instanceof Error ? error.message : String(error)}`);
    }
  };

  const told = (answer: Answer, from: number) => {
    const ttft = ms(answer.timings?.ttft_ms ?? 0);
    const gap = longestGap(moments, from);
    const stream = gap > 0 ? ` The stream above paused for at most ${ms(gap)} meanwhile.` : "";
    return `first token after ${ttft}.${stream}`;
  };

  const form = el(
    "form",
    {
      class: "ask",
      onsubmit: (event: Event) => {
        event.preventDefault();
        if (running || message.value.trim() === "" || !settings.reportValidity()) return;
        say("user", message.value);
        message.value = "";
        void answerTo();
      },
    },
    labelled("Message", message, "Enter sends, Shift and Enter starts a new line, Escape stops the answer."),
    el("div", { class: "row" }, send, stop, clear),
  );
  message.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => running?.abort());
  clear.addEventListener("click", () => {
    running?.abort();
    turns.length = 0;
    fill(log);
    fill(status);
  });
  beside.addEventListener("click", () => void sendBeside());

  const settings = el(
    "form",
    { class: "settings", onsubmit: (event: Event) => event.preventDefault() },
    labelled("System prompt", system),
    el("div", { class: "grid" }, ...inputs.map(({ control, input }) => labelled(control.name, input, control.hint))),
  );
  const experiment = el(
    "section",
    { class: "beside panel", "aria-label": "A long prompt beside the stream" },
    el("h3", {}, "Disturb it"),
    el("p", {}, "While an answer streams, somebody else's long prompt comes. Its prefill rides in the same steps."),
    labelled("Tokens of the long prompt", longTokens),
    beside,
    besideResults,
  );
  const escape = (event: KeyboardEvent) => {
    if (event.key === "Escape") running?.abort();
  };
  document.addEventListener("keydown", escape);

  add(
    root,
    el("h1", {}, "Chat"),
    el(
      "div",
      { class: "columns" },
      el("div", { class: "talk panel" }, log, status, form),
      el("aside", { "aria-label": "Settings" }, el("details", { class: "panel", open: wide() }, el("summary", {}, "Sampling"), settings), experiment),
    ),
  );
  log.append(...turns.map(({ article }) => article));
  log.scrollTop = log.scrollHeight;
  message.focus();
  return () => {
    running?.abort();
    others.abort();
    document.removeEventListener("keydown", escape);
  };
}

/** A prompt that is long for this model, and fits. */
function defaultLength(app: App): number {
  return Math.max(16, Math.min(4096, Math.floor(app.info.max_model_len / 2)));
}

function wide(): boolean {
  return window.matchMedia("(min-width: 60rem)").matches;
}

/** Says on the button whether it worked: a page without a secure origin may not write to the clipboard. */
async function copyText(text: string, button: HTMLButtonElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    fill(button, "Copied");
  } catch {
    fill(button, "Not allowed");
  }
  setTimeout(() => fill(button, "Copy"), 1500);
}

/** How far a long prompt is read, until the first word comes. One that is read at once shows nothing. */
function promptBar(): { element: HTMLElement; tell: (progress: Progress) => void } {
  const bar = el("progress", { "aria-label": "Reading the prompt" });
  const words = el("span", {});
  const element = el("p", { class: "reading quiet-text", hidden: true }, bar, " ", words);
  const tell = ({ total, cache, processed }: Progress): void => {
    if (processed === total || processed === cache) return;
    show(element, true);
    bar.max = total;
    bar.value = processed;
    fill(words, `Reading the prompt: ${processed.toLocaleString("en")} of ${count(total, "token")}`);
  };
  return { element, tell };
}
