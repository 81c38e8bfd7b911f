// Chat: conversations with the engine that are kept in the browser, and under each answer what both phases did for it.
//
//   conversations | context used, preset        | system prompt, sampling
//                 | turns: a path of the tree   | export, import
//                 | where a question is written | interference test

import type { App } from "../app";
import { ask, longestGap, longPrompt } from "../ask";
import { Composer } from "../chat/composer";
import { ContextBar } from "../chat/context";
import { exportPanel } from "../chat/exports";
import { ModelMenu } from "../chat/models";
import { SettingsForm } from "../chat/settings";
import { Sidebar } from "../chat/sidebar";
import { siblings } from "../chat/tree";
import { type Actions, Turn } from "../chat/turn";
import { add, el, say } from "../dom";
import { labelled } from "../form";
import { type Change, Talk } from "../talk";
import { count, ms } from "../units";
import "./chat.css";

/** How often a model's state is asked for while it loads. */
const MODELS_EVERY_MS = 1_000;
/** So near to its end a conversation is at its end: pixels of a screen are not always whole. */
const AT_END = 4;

// They outlive a visit to another page.
let made: Talk | null = null;
const disturbed: string[] = [];

export function mount(root: HTMLElement, app: App): () => void {
  const talk = (made ??= new Talk());
  const log = el("div", { class: "conversation", role: "log", "aria-label": "Conversation", tabindex: 0 });
  const status = el("p", { class: "status", role: "status" });
  const settings = new SettingsForm(talk);
  const context = new ContextBar(app, talk);
  const { models } = talk;
  const lookAtModels = async (): Promise<void> => void ((await models.refresh(app)) && draw("turns"));
  const menu = new ModelMenu(
    models,
    (model) => {
      talk.settle({ model });
      draw("turns");
    },
    () => void lookAtModels(),
  );
  const turns = new Map<string, Turn>();
  const composer = new Composer((content, files) => {
    if (talk.isAnswering || !settings.isValid()) return false;
    stuck = true;
    talk.ask(app, content, files);
    return true;
  });
  const sidebar = new Sidebar(talk, wide(), () => composer.message.focus());
  const begin = el("button", { type: "button" }, "New conversation");
  begin.addEventListener("click", () => {
    talk.begin();
    composer.message.focus();
  });
  const actions: Actions = {
    edit: (message, content) => void (settings.isValid() && talk.edit(app, message, content)),
    retry: (message) => void (settings.isValid() && talk.retry(app, message)),
    branch: (message) => void talk.branch(message),
    walk: (message, by) => talk.walk(message, by),
  };

  /** What is said while an answer is awaited: a model may have to be loaded first. */
  const waiting = (): string => {
    const card = models.cards.length > 1 ? models.card(talk.current.settings.model) : undefined;
    return card?.state && card.state !== "loaded" && talk.isSilent ? `Loading ${card.name}…` : "The engine answers…";
  };
  // While one loads, its state is asked for.
  const asking = setInterval(() => {
    if (models.cards.length > 1 && (talk.isSilent || models.cards.some(({ state }) => state === "loading"))) void lookAtModels();
  }, MODELS_EVERY_MS);

  let shown = "";
  const drawTurns = (): void => {
    const path = talk.turns;
    const ids = new Set(path.map(({ id }) => id));
    for (const [id, turn] of turns) {
      if (ids.has(id)) continue;
      turn.element.remove();
      sizes.unobserve(turn.element);
      turns.delete(id);
    }
    for (const [place, message] of path.entries()) {
      // Another tab may have brought more of a message: it is made anew.
      const turn = turns.get(message.id)?.of(message) ?? new Turn(app, message, actions);
      if (turns.get(message.id) !== turn) turns.get(message.id)?.element.remove();
      turns.set(message.id, turn);
      const all = siblings(talk.messages, message);
      turn.draw({ at: all.indexOf(message), of: all.length }, message === path.at(-1) ? talk.sofar : null, talk.isAnswering);
      sizes.observe(turn.element);
      if (log.children[place] !== turn.element) log.insertBefore(turn.element, log.children[place] ?? null);
    }
    const last = path.at(-1)?.answer;
    composer.send.disabled = talk.isAnswering;
    composer.stop.disabled = !talk.isAnswering;
    say(status, talk.isAnswering ? waiting() : !last ? "" : last.error ? "No answer." : "The answer is complete.");
    if (shown !== talk.current.id) settings.show();
    shown = talk.current.id;
  };
  const draw = (change: Change): void => {
    if (change === "turns") drawTurns();
    if (change === "turns" || change === "list") sidebar.draw();
    const last = talk.turns.at(-1);
    const turn = last && turns.get(last.id);
    if (turn && talk.isAnswering) {
      const all = siblings(talk.messages, last);
      turn.read(talk.progress);
      turn.draw({ at: all.indexOf(last), of: all.length }, talk.sofar, true);
    } else turn?.read(null);
    if (talk.isAnswering) say(status, waiting());
    menu.draw(talk.current.settings.model);
    context.draw();
    stickToEnd();
  };

  // A reader who has scrolled up stays there; one at the end stays at the end, however much comes at once.
  let stuck = true;
  let top = 0;
  log.addEventListener("scroll", () => {
    if (log.scrollHeight - log.scrollTop - log.clientHeight <= AT_END) stuck = true;
    else if (log.scrollTop < top) stuck = false; // else what is above has become taller
    top = log.scrollTop;
  });
  const stickToEnd = (): void => {
    if (stuck) log.scrollTop = log.scrollHeight;
  };
  // A line grows when the figures that it lacks have come, and a block when it comes into view.
  new MutationObserver(stickToEnd).observe(log, { childList: true, subtree: true, characterData: true });
  const sizes = new ResizeObserver(stickToEnd);

  composer.stop.addEventListener("click", () => talk.stop());
  const keys = (event: KeyboardEvent): void => {
    const isEditing = (event.target as Element | null)?.closest?.(".edit, .sidebar");
    if (event.key === "Escape" && !isEditing) talk.stop();
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
    event.preventDefault();
    sidebar.focus();
  };
  document.addEventListener("keydown", keys);

  add(
    root,
    el("h1", {}, "Chat"),
    el(
      "div",
      { class: "columns" },
      sidebar.element,
      el("div", { class: "talk panel" }, el("div", { class: "bar-top" }, begin, menu.element, context.element, settings.presetBar), log, status, composer.form),
      el("aside", { "aria-label": "Settings" }, el("details", { class: "panel", open: wide() }, el("summary", {}, "Sampling"), settings.form), exportPanel(talk), interference(app, talk)),
    ),
  );
  const end = talk.subscribe(draw);
  const presets = ({ key }: StorageEvent): void => void (key?.startsWith("twostroke-presets") && settings.reloadPresets());
  window.addEventListener("storage", presets);
  draw("turns");
  void lookAtModels();
  composer.message.focus();
  return () => {
    end();
    sizes.disconnect();
    clearInterval(asking);
    window.removeEventListener("storage", presets);
    document.removeEventListener("keydown", keys);
  };
}

/** The experiment: a long prompt of another request beside the answer. */
function interference(app: App, talk: Talk): HTMLElement {
  const tokens = el("input", { type: "number", min: 16, step: 1, max: app.info.max_model_len - 1, value: defaultLength(app) });
  const button = el("button", { type: "button" }, "Inject a long prompt");
  const results = el("ul", { class: "beside-results", "aria-label": "Long prompts sent" }, ...disturbed.map((text) => el("li", {}, text)));
  const send = async (): Promise<void> => {
    const length = Math.round(tokens.valueAsNumber);
    if (!tokens.reportValidity()) return;
    const line = el("li", {}, `${count(length, "token")}: sending…`);
    results.append(line);
    const from = performance.now();
    const told = await disturb(app, talk, length, from).catch((error: unknown) => (error instanceof Error ? error.message : String(error)));
    disturbed.push(`${count(length, "token")}: ${told}`);
    say(line, disturbed.at(-1)!);
  };
  button.addEventListener("click", () => void send());
  return el(
    "section",
    { class: "beside panel", "aria-label": "Interference test" },
    el("h2", {}, "Interference test"),
    el("p", {}, "While an answer streams, another request's long prompt arrives. Its prefill shares steps with the answer's decode, and makes them longer."),
    labelled("Tokens of the long prompt", tokens),
    button,
    results,
  );
}

/** Sends a long prompt beside whatever streams, and says what it met and did. */
async function disturb(app: App, talk: Talk, length: number, from: number): Promise<string> {
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
