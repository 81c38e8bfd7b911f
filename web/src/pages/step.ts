// Step: one pass of the model at a time. Stop the engine, let it do one step, go back through its log, and see what a step
// did: the tokens in it, the blocks of the KV cache, what it cost, and which limit of the machine bound it.

import type { App } from "../app";
import { ask, told } from "../ask";
import { BlockTable } from "../blocktable";
import { add, el, say, show } from "../dom";
import { exampleButton, LONG_PROMPT, STORY } from "../examples";
import { dropFrame, wantFrame } from "../frames";
import { KvMap } from "../kvmap";
import { bound, isUndisturbed, least, NOT_KNOWN, own } from "../limits";
import { outputTokens, type Step } from "../log";
import { PassView } from "../pass";
import { count, ms, percent, short, shortName } from "../units";
import { WhatIf } from "../whatif";
import { WordView } from "../wordview";
import { words } from "../words";

/** While it follows the engine, the page shows another step at most this often. */
const REFRESH_MS = 250;

export function mount(root: HTMLElement, app: App): () => void {
  const { feed } = app;
  const pass = new PassView(app);
  const wordView = new WordView(app);
  const map = new KvMap(app);
  const table = new BlockTable(app);
  const costs = new Costs(app);
  const whatIf = new WhatIf(app);
  const controls = new Controls(app);
  const sentence = el("p", { class: "sentence" });
  const nothing = el("div", { class: "row" }, "No step yet. ", exampleButton(app, "Send an example", [STORY]));

  // The step that is shown; `null` follows the newest.
  let chosen: number | null = null;
  // A link from the timeline names one; the log knows it once the feed has told of it.
  let sought = Number(new URLSearchParams(location.hash.split("?")[1]).get("step") ?? NaN);
  const slider = el("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": "Step" });
  const where = el("output", { class: "number" });
  const latest = el("button", { type: "button", "aria-pressed": "true" }, "Newest");
  const choose = (id: number | null): void => {
    const { steps } = feed.log;
    const last = feed.log.lastStep;
    chosen = id == null || !last || id > last.id ? null : Math.max(id, steps[0]!.id);
    latest.setAttribute("aria-pressed", String(chosen == null));
    wantFrame(draw);
  };
  slider.addEventListener("input", () => choose(Number(slider.value)));
  latest.addEventListener("click", () => choose(chosen == null ? (feed.log.lastStep?.id ?? null) : null));
  const go = (by: number): void => choose((chosen ?? feed.log.lastStep?.id ?? 0) + by);
  const back = el("button", { type: "button", "aria-label": "One step back", onclick: () => go(-1) }, "◂");
  const forth = el("button", { type: "button", "aria-label": "One step forward", onclick: () => go(1) }, "▸");

  add(
    root,
    el("h1", {}, "Step"),
    el("p", { class: "lead" }, "The engine works in steps: one forward pass of the model, in which every running sequence gets a token and waiting prompts get the rest of the token budget. Here is one step at a time."),
    el(
      "section",
      { class: "panel", "aria-label": "Engine and step log" },
      controls.element,
      el("div", { class: "scrub" }, back, slider, forth, where, latest),
      el("p", { class: "quiet-text" }, "The slider goes back through the step log, with the arrow keys too."),
    ),
    nothing,
    el("section", { class: "panel" }, el("h2", {}, "What it did"), sentence, pass.element, wordView.element, sender(app)),
    el("div", { class: "two" }, el("section", { class: "panel" }, el("h2", {}, "What it cost"), costs.element), el("section", { class: "panel" }, el("h2", {}, "KV cache after it"), map.element, table.element)),
    el(
      "section",
      { class: "panel" },
      el("h2", {}, "With and without chunked prefill"),
      whatIf.element,
      el("p", { class: "quiet-text row" }, "To see it, let a long prompt meet a running answer: ", exampleButton(app, "Send two stories and a long prompt", [STORY, STORY, LONG_PROMPT])),
    ),
  );

  const draw = (): void => {
    const { log } = feed;
    const first = log.steps[0];
    const last = log.lastStep;
    show(nothing, !last);
    slider.disabled = back.disabled = forth.disabled = !last;
    if (!first || !last) return;
    if (sought >= first.id && sought <= last.id) {
      choose(sought);
      sought = NaN;
    }
    if (chosen != null && chosen < first.id) chosen = first.id;
    const shown = log.steps[log.indexOf(chosen ?? last.id)] ?? last;
    slider.min = String(first.id);
    slider.max = String(last.id);
    slider.value = String(shown.id);
    slider.setAttribute("aria-valuetext", `step ${shown.id}`);
    say(where, `${shown.id.toLocaleString("en")} of ${first.id.toLocaleString("en")}–${last.id.toLocaleString("en")}`);
    say(sentence, story(shown, app.feed.log.wall.clock(shown.at, 3)));
    pass.show(shown);
    wordView.show(shown);
    costs.show(shown);
    map.show(shown.id);
    table.show(shown);
  };

  let timer = 0;
  const stop = feed.subscribe(() => {
    controls.tell();
    timer ||= window.setTimeout(() => {
      timer = 0;
      wantFrame(draw);
    }, REFRESH_MS);
  });
  controls.tell();
  draw();
  return () => {
    stop();
    clearTimeout(timer);
    dropFrame(draw);
    for (const part of [pass, wordView, map, table, whatIf]) part.end();
  };
}

/** A prompt of one's own: its steps are told in words. */
function sender(app: App): HTMLElement {
  const prompt = el("input", { type: "text", value: "Once upon a time", maxlength: 2000, "aria-label": "Prompt" });
  const said = el("span", { class: "quiet-text", role: "status" });
  const button = el("button", { type: "submit" }, "Send this prompt");
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (prompt.value === "") return;
    say(said, "Sent.");
    const answer = await ask(app, "/v1/completions", { model: app.info.name, prompt: prompt.value, max_tokens: 32, temperature: 0 }, { words });
    say(said, answer.error || `Answered: ${answer.text.trim().slice(0, 200)}`);
  };
  return el("form", { class: "row", onsubmit: (event: Event) => void send(event) }, prompt, button, said);
}

/** What a step did, as a person would say it. */
function story(step: Step, began: string): string {
  const parts: string[] = [];
  step.prefill.forEach((row, i) => {
    const name = shortName(step.prefillOf[i]!.name);
    const cached = row.cached > 0 && row.start <= row.cached ? ` (the ${row.cached.toLocaleString("en")} before them came from the prefix cache)` : "";
    const end = row.samples > 0 ? ", the last ones of the prompt, so its first token came of it" : "";
    parts.push(`read ${count(row.len, "prompt token")} of ${name} in one go, positions ${row.start} to ${row.start + row.len - 1}${cached}${end}`);
  });
  const drafts = step.decode.reduce((sum, row) => sum + (row.drafts ?? 0), 0);
  const accepted = outputTokens(step) - step.decode.length;
  if (step.decode.length > 0) parts.push(`wrote one token for ${step.decode.length === 1 ? `the answer of ${shortName(step.decodeOf[0]!.name)}` : `each of ${count(step.decode.length, "answer")}`}${drafts > 0 ? ` and checked ${count(drafts, "draft token")}: ${accepted === 0 ? "none was accepted" : `${accepted} accepted, ${count(accepted, "token")} more from the same reading of the weights`}` : ""}`);
  for (const { r, tokens, verdict } of step.preempted) parts.push(`took the blocks of ${shortName(r)} away, ${count(tokens, "token")} (${verdict})`);
  const waiting = step.waiting > 0 ? ` ${count(step.waiting, "request")} waited${step.blocked ? `, for ${{ kv: "KV blocks", seats: "a slot", budget: "token budget" }[step.blocked]}` : ""}.` : "";
  const blocks = [
    step.blocks.taken > 0 && `took ${count(step.blocks.taken, "KV block")}`,
    step.blocks.evicted > 0 && `${step.blocks.evicted} of which lost a cached prefix`,
    step.blocks.copied > 0 && `copied ${step.blocks.copied}`,
  ].filter((part) => part !== false);
  return `Step ${step.id.toLocaleString("en")} ${parts.join("; it ") || "carried no rows"}.${blocks.length > 0 ? ` It ${blocks.join(", ")}.` : ""}${waiting} It began at ${began}.`;
}

/** Pause, one step, resume. */
class Controls {
  readonly element: HTMLElement;
  private said = el("span", { class: "quiet-text", role: "status" });
  private buttons: Record<"pause" | "step" | "resume", HTMLButtonElement>;
  private busy = false;
  private problem = "";

  constructor(private app: App) {
    const button = (verb: "pause" | "step" | "resume", text: string): HTMLButtonElement => el("button", { type: "button", onclick: () => void this.ask(verb) }, text);
    this.buttons = { pause: button("pause", "Pause"), step: button("step", "One step"), resume: button("resume", "Resume") };
    this.element = el("div", { class: "row", role: "group", "aria-label": "Engine" }, ...Object.values(this.buttons), this.said);
  }

  private get paused(): boolean {
    const { stats } = this.app.feed.log;
    return stats[stats.length - 1]?.paused ?? false;
  }

  private async ask(verb: "pause" | "step" | "resume"): Promise<void> {
    this.busy = true;
    this.problem = "";
    this.tell();
    try {
      const headers = { "X-Hold-Token": this.app.hold.token ?? "" };
      const response = await this.app.api(`/live/${verb}`, { method: "POST", headers });
      if (response.status === 403) this.app.hold.forget();
      if (!response.ok) this.problem = await told(response);
    } catch {
      this.problem = "The server cannot be reached.";
    }
    this.busy = false;
    this.tell();
  }

  tell(): void {
    const { paused } = this;
    const open = this.app.feed.state.kind === "open";
    const hasToken = this.app.hold.token != null;
    const may = this.app.info.pause_allowed && hasToken && open && !this.busy;
    this.buttons.pause.disabled = !may || paused;
    this.buttons.step.disabled = !may;
    this.buttons.resume.disabled = !may || !paused;
    const reason = !this.app.info.pause_allowed
      ? "This server may not be paused from here: that wants serve --allow-pause."
      : !hasToken
        ? "Pausing takes the link that the server printed when it started: open the page with it."
      : !open
        ? "No connection to the server."
        : paused
          ? "The engine is paused. Requests wait; none fails. It goes on by itself 30 seconds after the last page is closed."
          : "The engine is running.";
    say(this.said, this.problem || reason);
  }
}

/** Measured beside predicted, beside the least that each limit of the machine allows. */
class Costs {
  readonly element: HTMLElement;
  private words = el("p", {});
  private bars: Record<"took" | "stolen" | "predicted" | "compute" | "bandwidth", { bar: HTMLElement; value: HTMLElement; row: HTMLElement }>;

  constructor(private app: App) {
    const row = (label: string, kind: string): { bar: HTMLElement; value: HTMLElement; row: HTMLElement } => {
      const [bar, value] = [el("span", { class: `fill ${kind}` }), el("span", { class: "number" })];
      return { bar, value, row: el("div", { class: "cost" }, el("span", {}, label), el("span", { class: "bar", "aria-hidden": "true" }, bar), value) };
    };
    this.bars = { took: row("It took", "ink"), stolen: row("Of that, others ran", "preempted"), predicted: row("Predicted", "queue"), compute: row("Lower bound: compute", "prefill"), bandwidth: row("Lower bound: memory", "decode") };
    this.element = el("div", {}, ...Object.values(this.bars).map(({ row }) => row), this.words);
  }

  show(step: Step): void {
    const { limits } = this.app.info;
    const { compute, bandwidth } = limits ? least(step, limits) : { compute: 0, bandwidth: 0 };
    const predicted = Math.max(step.predicted, compute, bandwidth);
    const most = Math.max(step.took, predicted, 1e-9);
    const set = (name: keyof Costs["bars"], value: number, shown: boolean): void => {
      const { bar, value: text, row } = this.bars[name];
      show(row, shown);
      bar.style.transform = `scaleX(${value / most})`;
      say(text, ms(value));
    };
    set("took", step.took, true);
    set("stolen", step.stolen ?? 0, (step.stolen ?? 0) > 0);
    set("predicted", predicted, step.predicted > 0);
    set("compute", compute, limits != null);
    set("bandwidth", bandwidth, limits != null);
    say(this.words, this.explain(step));
  }

  private explain(step: Step): string {
    const alone = own(step, this.app.info.limits);
    const stolen = step.stolen ?? 0;
    const error = step.predicted > 0 && alone ? (step.predicted - alone) / alone : null;
    const prediction = error == null ? "" : !isUndisturbed(step) ? " The cost model is not judged by it." : Math.abs(error) < 0.005 ? " The cost model was right." : ` The cost model was ${percent(Math.abs(error))} ${error > 0 ? "above" : "below"} it.`;
    // For so long nothing of the machine bound it: it was not there.
    const uncertain = step.uncertain ? `, give or take ${ms(step.uncertain)}` : "";
    const elsewhere = stolen > 0 ? ` For ${ms(stolen)} of its ${ms(step.took)} the machine ran other programs on the cores that it needs; by itself it took ${alone == null ? `a time that is ${NOT_KNOWN}` : `${ms(alone)}${uncertain}`}.` : "";
    const work = `${short(step.flops)}FLOP over ${short(step.bytes)}B: ${(step.flops / Math.max(1, step.bytes)).toFixed(1)} FLOP per byte.`;
    const binding = bound(step, this.app.info.limits);
    if (!binding) return `${work}${elsewhere}${prediction}`;
    const rows = step.decode.reduce((sum, row) => sum + 1 + (row.drafts ?? 0), 0) + step.prefill.reduce((sum, row) => sum + row.len, 0);
    const compute = binding.by === "compute";
    const why = !compute
      ? "Memory-bound: every weight is read for few tokens, and the arithmetic waits."
      : `Compute-bound${rows >= 16 ? ": the tokens share each weight, so reading the weights is the lesser part" : ""}.`;
    const rest = binding.share == null ? ` Its share of that limit is ${NOT_KNOWN}.` : ` It reached ${percent(binding.share)} of that limit${stolen > 0 ? " in that time" : ""}.`;
    return `${work}${elsewhere} ${why}${rest}${prediction}`;
  }
}
