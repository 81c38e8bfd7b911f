// Chat: a conversation with the engine, and under each answer what both phases did for it.

import type { App } from "../app";
import { type Answer, ask, longPrompt, longestGap, type Progress } from "../ask";
import { copyButton } from "../copy";
import { add, el, say, show } from "../dom";
import { labelled } from "../form";
import { Markdown } from "../markdown";
import { phaseFooter } from "../phases";
import { type Change, Talk, type Turn } from "../talk";
import { count, ms } from "../units";
import "./chat.css";

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
  { field: "temperature", name: "Temperature", min: 0, max: 2, step: 0.05, hint: "0: always the most likely token", initial: "" },
  { field: "top_p", name: "Top p", min: 0.01, max: 1, step: 0.01, hint: "nucleus: smallest set of tokens with total probability p", initial: "" },
  { field: "top_k", name: "Top k", min: 0, max: 1000, step: 1, hint: "keep the k most likely tokens; 0: all", initial: "" },
  { field: "min_p", name: "Min p", min: 0, max: 1, step: 0.01, hint: "drop tokens below this share of the most likely one's probability", initial: "" },
  { field: "repetition_penalty", name: "Repetition penalty", min: 0.1, max: 2, step: 0.05, hint: "1: none", initial: "" },
  { field: "max_tokens", name: "Max tokens", min: 1, max: 1_000_000, step: 1, hint: "most tokens of an answer", initial: "256" },
  { field: "seed", name: "Seed", min: 0, max: 2 ** 53 - 1, step: 1, hint: "same seed, same answer", initial: "" },
];

/** So near to its end a conversation is at its end: pixels of a screen are not always whole. */
const AT_END = 4;

// They outlive a visit to another page; the conversation a reload too.
const talk = new Talk();
const chosen = new Map<string, string>();
const disturbed: string[] = [];

export function mount(root: HTMLElement, app: App): () => void {
  const log = el("div", { class: "conversation", role: "log", "aria-label": "Conversation", tabindex: 0 });
  const status = el("p", { class: "status", role: "status" });
  const message = el("textarea", { rows: 3, required: true, placeholder: "Ask something" });
  const send = el("button", { type: "submit", class: "primary" }, "Send");
  const stop = el("button", { type: "button", disabled: true }, "Stop");
  const clear = el("button", { type: "button" }, "New conversation");
  const system = remembered("system", el("textarea", { rows: 2, placeholder: "none" }));
  const inputs = CONTROLS.map((control) => {
    const { field, min, max, step } = control;
    const input = el("input", { type: "number", min, max, step, value: control.initial, placeholder: field === "seed" ? "random" : "the model's" });
    return { control, input: remembered(field, input) };
  });
  const longTokens = el("input", { type: "number", min: 16, step: 1, max: app.info.max_model_len - 1, value: defaultLength(app) });
  const beside = el("button", { type: "button" }, "Inject a long prompt");
  const besideResults = el("ul", { class: "beside-results", "aria-label": "Long prompts sent" }, ...disturbed.map((text) => el("li", {}, text)));
  const articles = new Map<Turn, HTMLElement>();
  const texts = new Map<Turn, Markdown>();

  const answer = (): void => {
    stuck = true;
    const filled = inputs.filter(({ input }) => input.value !== "");
    const sampling = Object.fromEntries(filled.map(({ control, input }) => [control.field, input.valueAsNumber]));
    void talk.answer(app, system.value.trim(), sampling);
  };

  /** A question stays as it was written; an answer is Markdown, of which only the end is made anew while it streams. */
  const grow = (article: HTMLElement, turn: Turn): void => {
    if (turn.role === "user") return;
    const text = texts.get(turn) ?? new Markdown(article.querySelector(".text")!);
    texts.set(turn, text);
    text.grow(turn.content, turn.answer != null);
  };

  const draw = (change: Change): void => {
    const last = talk.turns.at(-1);
    if (change === "turns") {
      for (const [turn, article] of articles) {
        if (talk.turns.includes(turn)) continue;
        article.remove();
        articles.delete(turn);
        texts.delete(turn);
      }
      for (const turn of talk.turns) {
        const article = articles.get(turn) ?? log.appendChild(articleOf(turn));
        articles.set(turn, article);
        think(article, turn);
        grow(article, turn);
        if (turn.answer && !article.querySelector(".actions")) finish(app, article, turn.answer, turn.content);
        const again = article.querySelector<HTMLButtonElement>("button.again");
        if (again) show(again, turn === last);
      }
      send.disabled = talk.isAnswering;
      stop.disabled = !talk.isAnswering;
      say(status, talk.isAnswering ? "The engine answers…" : !last?.answer ? "" : last.answer.error ? "No answer." : "The answer is complete.");
    }
    const article = last && articles.get(last);
    if (article) {
      read(article, talk.progress);
      think(article, last);
      grow(article, last);
    }
    stickToEnd();
  };

  log.addEventListener("click", (event) => {
    if (talk.isAnswering || !(event.target as Element).matches("button.again")) return;
    talk.takeBack();
    answer();
  });

  // A reader who has scrolled up stays there; one at the end stays at the end, however much comes at once.
  let stuck = true;
  log.addEventListener("scroll", () => (stuck = log.scrollHeight - log.scrollTop - log.clientHeight <= AT_END));
  const stickToEnd = (): void => {
    if (stuck) log.scrollTop = log.scrollHeight;
  };
  // A line grows when the figures that it lacks have come.
  new MutationObserver(stickToEnd).observe(log, { childList: true, subtree: true, characterData: true });

  const sendBeside = async (): Promise<void> => {
    const length = Math.round(longTokens.valueAsNumber);
    if (!longTokens.reportValidity()) return;
    const line = el("li", {}, `${count(length, "token")}: sending…`);
    besideResults.append(line);
    const from = performance.now();
    const told = await disturb(app, length, from).catch((error: unknown) => (error instanceof Error ? error.message : String(error)));
    disturbed.push(`${count(length, "token")}: ${told}`);
    say(line, disturbed.at(-1)!);
  };

  const form = el(
    "form",
    {
      class: "ask",
      onsubmit: (event: Event) => {
        event.preventDefault();
        if (talk.isAnswering || message.value.trim() === "" || !settings.reportValidity()) return;
        talk.say(message.value);
        message.value = "";
        answer();
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
  stop.addEventListener("click", () => talk.stop());
  clear.addEventListener("click", () => talk.clear());
  beside.addEventListener("click", () => void sendBeside());

  const settings = el(
    "form",
    { class: "settings", onsubmit: (event: Event) => event.preventDefault() },
    labelled("System prompt", system),
    el("div", { class: "grid" }, ...inputs.map(({ control, input }) => labelled(control.name, input, control.hint))),
  );
  const experiment = el(
    "section",
    { class: "beside panel", "aria-label": "Interference test" },
    el("h2", {}, "Interference test"),
    el("p", {}, "While an answer streams, another request's long prompt arrives. Its prefill shares steps with the answer's decode, and makes them longer."),
    labelled("Tokens of the long prompt", longTokens),
    beside,
    besideResults,
  );
  const escape = (event: KeyboardEvent): void => {
    if (event.key === "Escape") talk.stop();
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
  const end = talk.subscribe(draw);
  draw("turns");
  message.focus();
  return () => {
    end();
    document.removeEventListener("keydown", escape);
  };
}

/** A field that has what it had at the last visit to the page. */
function remembered<E extends HTMLInputElement | HTMLTextAreaElement>(name: string, field: E): E {
  const before = chosen.get(name);
  if (before !== undefined) field.value = before;
  field.addEventListener("input", () => chosen.set(name, field.value));
  return field;
}

function articleOf({ role, content }: Turn): HTMLElement {
  const who = role === "user" ? "You" : "Model";
  return el("article", { class: `turn ${role}`, "aria-label": who }, el("h2", {}, who), el("div", { class: "text" }, role === "user" && content));
}

/** What was thought, folded, above what was said. */
function think(article: HTMLElement, { thought, content, answer }: Turn): void {
  if (thought === "") return;
  let details = article.querySelector<HTMLDetailsElement>("details.thought");
  if (!details) {
    details = el("details", { class: "thought" }, el("summary", {}, ""), el("div", { class: "thought-text" }, document.createTextNode("")));
    article.querySelector(".text")!.before(details);
  }
  say(details.querySelector("summary")!, content === "" && !answer ? "Thinking…" : "What it thought");
  const text = details.querySelector(".thought-text")!.firstChild as Text;
  if (text.length < thought.length) text.appendData(thought.slice(text.length));
}

const NOTES: Record<string, string> = {
  cancelled: "Stopped. Its cache blocks are free again.",
  length: "Ended by the limit of tokens.",
  reload: "The page was loaded again before this answer was complete.",
};

function finish(app: App, article: HTMLElement, answer: Answer, text: string): void {
  const note = NOTES[answer.finish];
  const copy = copyButton(() => text);
  const again = el("button", { type: "button", class: "again" }, "Regenerate");
  add(
    article,
    answer.error !== "" && el("p", { class: "error", role: "alert" }, answer.error),
    note !== undefined && el("p", { class: "note" }, note),
    phaseFooter(app, answer),
    el("div", { class: "actions" }, copy, again),
  );
}

/** Sends a long prompt beside whatever streams, and says what it met and did. */
async function disturb(app: App, length: number, from: number): Promise<string> {
  const prompt = await longPrompt(app, length);
  const answer = await ask(app, "/v1/completions", { prompt, max_tokens: 1, ignore_eos: true });
  if (answer.error) return answer.error;
  const gap = longestGap(talk.moments, from);
  const stream = gap > 0 ? ` The longest pause of the stream meanwhile was ${ms(gap)}.` : "";
  return `first token after ${ms(answer.timings?.ttft_ms ?? 0)}.${stream}`;
}

/** A prompt that is long for this model, and fits. */
function defaultLength(app: App): number {
  return Math.max(16, Math.min(4096, Math.floor(app.info.max_model_len / 2)));
}

function wide(): boolean {
  return window.matchMedia("(min-width: 60rem)").matches;
}

/** How far the prompt is read, over an answer that has not begun: only where reading takes several steps. */
function read(article: HTMLElement, progress: Progress | null): void {
  article.querySelector(".reading")?.remove();
  if (!progress || progress.processed === progress.total || progress.processed === progress.cache) return;
  const { total, processed } = progress;
  const bar = el("progress", { "aria-label": "Reading the prompt", max: total, value: processed });
  const words = `Reading the prompt: ${processed.toLocaleString("en")} of ${count(total, "token")}`;
  article.querySelector(".text")!.before(el("p", { class: "reading quiet-text" }, bar, " ", words));
}
