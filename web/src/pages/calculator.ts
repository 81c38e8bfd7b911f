// Calculator: how long an answer takes, what it needs and what binds it, before anything is sent. Every number is the
// server's (`/plan`); this page asks and draws.

import type { App } from "../app";
import { told } from "../ask";
import { CurveCharts } from "../curves";
import { type Child, add, el, fill, show } from "../dom";
import { labelled } from "../form";
import { NOT_KNOWN } from "../limits";
import { type Choice, type Cost, type Plan, type Presets, type Profile, type Question, commandLine } from "../plan";
import { count, ms, percent, short } from "../units";
import "./calculator.css";

/** A model of 7 billion parameters in fp16 on an A100: the numbers that can be checked in one's head. */
const WORKED_EXAMPLE: Question = { model: "7b", flops: "312T", bandwidth: "2T", memory: "80G", weights: "fp16", prompt: "1024", response: "256", batch: "1" };
const DEFAULT: Question = { model: "here", machine: "here", prompt: "1024", response: "256", batch: "1" };
/** While a slider is dragged, a question waits for a pause this long. */
const PAUSE_MS = 120;
/** Of a fleet's users, where it is not said how often they ask. */
const USUAL_RATE = "1/min";
const OWN = "own figures";
const COUNTED = "a number of parameters";
/** Of the slider of a model's size, in billions. */
const [SMALLEST, LARGEST] = [0.1, 1000];
/** Of machines, where it is not said how long they wait. */
const USUAL_UTILIZATION = 70;
/** Stands for a model in a question: its configuration is sent along. It is a path on the command line. */
const CONFIG = "config.json";

// Where one was, for the way back from another page.
let last: Question = DEFAULT;
/** The text of a pasted config.json. */
let config = "";

export function mount(root: HTMLElement, app: App): () => void {
  // Before the form: on a phone it stays in sight while the form is scrolled.
  const short = el("section", { class: "panel short", "aria-label": "The answer in short", "aria-live": "polite", hidden: true });
  const form = el("div", { class: "panel ask" });
  const result = el("div", { class: "result", "aria-live": "polite", "aria-busy": "true" });
  add(
    root,
    el("h1", {}, "Calculator"),
    el("p", {}, "How long an answer takes, how much memory it needs, and what bounds each phase, computed before a weight is read."),
    el("div", { class: "columns" }, short, form, result),
  );
  const leave = new AbortController();
  const curves = new CurveCharts();
  const top = document.getElementById("top")!;
  const below = new ResizeObserver(() => short.style.setProperty("--below-top", `${top.offsetHeight}px`));
  below.observe(top);
  let opened = false;
  const open = async (): Promise<void> => {
    if (opened) return;
    opened = true;
    try {
      const response = await app.api("/plan/presets", { signal: leave.signal });
      if (!response.ok) throw new Error(await told(response));
      ask({ short, form, result, curves }, app, (await response.json()) as Presets, leave.signal);
    } catch (error) {
      if (leave.signal.aborted) return;
      // The server was not there: again when it is.
      opened = false;
      fill(result, el("p", { class: "error", role: "alert" }, message(error)));
      result.setAttribute("aria-busy", "false");
    }
  };
  let state = app.feed.state.kind;
  const end = app.feed.subscribe(() => {
    const before = state;
    state = app.feed.state.kind;
    if (state === "open" && before !== "open") void open();
  });
  void open();
  return () => {
    end();
    below.disconnect();
    curves.end();
    leave.abort();
  };
}

/** The parts of the page. */
interface Parts {
  short: HTMLElement;
  form: HTMLElement;
  result: HTMLElement;
  curves: CurveCharts;
}

/** The form, which asks the server when it changes. */
function ask({ short, form, result, curves }: Parts, app: App, presets: Presets, signal: AbortSignal): void {
  let question = fromAddress() ?? last;
  let timer = 0;
  let asking: AbortController | null = null;

  const send = async (): Promise<void> => {
    asking?.abort();
    asking = new AbortController();
    const here = asking;
    signal.addEventListener("abort", () => here.abort());
    result.setAttribute("aria-busy", "true");
    if (question["model"] === CONFIG && config.trim() === "") {
      show(short, false);
      fill(result, el("p", { class: "quiet-text" }, "Paste a config.json, or choose the file."));
      result.setAttribute("aria-busy", "false");
      return;
    }
    try {
      const { path, init } = request(question);
      const response = await app.api(path, { ...init, signal: here.signal });
      if (!response.ok) throw new Error(await told(response));
      const plan = (await response.json()) as Plan;
      if (!here.signal.aborted) {
        fill(short, headline(plan));
        show(short, true);
        curves.show(plan);
        fill(result, ...drawn(plan, curves.element, commandLine(question, presets)));
      }
    } catch (error) {
      if (here.signal.aborted) return;
      show(short, false);
      fill(result, el("p", { class: "error", role: "alert" }, message(error)));
    }
    result.setAttribute("aria-busy", "false");
  };

  const change = (changes: Question, wait = PAUSE_MS): void => {
    question = { ...question, ...changes };
    for (const [name, value] of Object.entries(question)) if (value === "") delete question[name];
    last = question;
    history.replaceState(null, "", `#/calculator?${new URLSearchParams(question)}`);
    clearTimeout(timer);
    timer = window.setTimeout(() => void send(), wait);
  };

  const build = (): void => fill(form, ...controls(question, presets, change, restart));
  const restart = (other: Question): void => {
    question = {};
    change(other, 0);
    build();
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  // A link to another question, or the way back from one.
  const follow = (): void => {
    const asked = location.hash.startsWith("#/calculator") && fromAddress();
    if (asked) restart(asked);
  };
  window.addEventListener("hashchange", follow, { signal });
  build();
  change({}, 0);
}

/** How the server is asked: of a model that it does not know, with the configuration as the body. */
function request(question: Question): { path: string; init: RequestInit } {
  const { model, ...rest } = question;
  if (model !== CONFIG) return { path: `/plan?${new URLSearchParams(question)}`, init: {} };
  const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: config };
  return { path: `/plan?${new URLSearchParams(rest)}`, init };
}

/** The question in the address, if there is one: the address can be sent to another reader. */
function fromAddress(): Question | null {
  const query = location.hash.split("?")[1];
  if (!query) return null;
  const question = Object.fromEntries(new URLSearchParams(query));
  return question["users"] && !question["rate"] ? { ...question, rate: USUAL_RATE } : question;
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

type Change = (changes: Question, wait?: number) => void;

function controls(question: Question, presets: Presets, change: Change, restart: (question: Question) => void): Child[] {
  const model = presets.models.find((model) => model.name === question["model"]);
  const isConfig = question["model"] === CONFIG;
  const isCounted = question["model"] !== undefined && !model && !isConfig;
  const isOwn = question["flops"] !== undefined || question["bandwidth"] !== undefined;
  const option = (value: string, text: string, chosen: boolean): HTMLElement => el("option", { value, selected: chosen }, text);

  const modelSelect = el(
    "select",
    { onchange: () => restart({ ...question, model: modelSelect.value === COUNTED ? "7b" : modelSelect.value }) },
    ...presets.models.map(({ name, title, parameters }) =>
      option(name, title === undefined ? `${name}, ${short(parameters)}` : `${title}, served here`, name === question["model"]),
    ),
    option(CONFIG, "another, by its config.json", isConfig),
    option(COUNTED, COUNTED, isCounted),
  );
  const machineSelect = el(
    "select",
    {
      onchange: () => {
        const { machine: _machine, flops: _flops, bandwidth: _bandwidth, memory: _memory, ...rest } = question;
        const own = { flops: "312T", bandwidth: "2T", memory: "80G" };
        restart(machineSelect.value === OWN ? { ...rest, ...own } : { ...rest, machine: machineSelect.value });
      },
    },
    ...presets.machines.map(({ name }) => option(name, name === "here" ? "this machine" : name, !isOwn && name === question["machine"])),
    option(OWN, OWN, isOwn),
  );
  const precision = (parameter: string, names: string[], held: string | undefined): HTMLSelectElement => {
    const select: HTMLSelectElement = el(
      "select",
      { onchange: () => change({ [parameter]: select.value }) },
      option("", held === undefined ? "bf16" : `${held}, as served`, !question[parameter]),
      ...names.filter((name) => held !== undefined || name !== "bf16").map((name) => option(name, name, name === question[parameter] || (name === "bf16" && question[parameter] === "fp16"))),
    );
    return select;
  };
  const text = (parameter: string, name: string, hint: string): HTMLElement => {
    const input: HTMLInputElement = el("input", { type: "text", value: question[parameter] ?? "", oninput: () => change({ [parameter]: input.value.trim() }) });
    return labelled(name, input, hint);
  };
  const number = (parameter: string, name: string, hint = "", empty = ""): HTMLElement => {
    const input: HTMLInputElement = el("input", { type: "number", min: 0, step: "any", value: question[parameter] ?? "", placeholder: empty });
    input.addEventListener("input", () => change({ [parameter]: input.value }));
    return labelled(name, input, hint);
  };
  /** A share, in per cent. */
  const share = (parameter: string, name: string, empty: string): HTMLElement => {
    const known = question[parameter];
    const input: HTMLInputElement = el("input", { type: "number", min: 0, max: 100, step: "any", value: known === undefined ? "" : String(twice(Number(known) * 100)), placeholder: empty });
    input.addEventListener("input", () => change({ [parameter]: input.value === "" ? "" : String(twice(input.valueAsNumber / 100)) }));
    return labelled(name, input);
  };
  const watts = presets.machines.find(({ name }) => name === question["machine"])?.watts;
  const longest = model?.context_limit ?? 131_072;
  return [
    el("button", { type: "button", onclick: () => restart(WORKED_EXAMPLE) }, "Worked example: 7B on an A100"),
    labelled("Model", modelSelect),
    ...(isCounted ? modelSize(question, change) : []),
    ...(isConfig ? configuration(change) : []),
    labelled("Weights", precision("weights", presets.weights, model?.weights)),
    labelled("KV cache dtype", precision("kv", presets.kv, model?.kv_dtype)),
    labelled("Machine", machineSelect),
    isOwn && text("flops", "Peak compute, FLOP/s", "such as 312T"),
    isOwn && text("bandwidth", "Memory bandwidth, bytes/s", "such as 2T"),
    isOwn && text("memory", "Memory", "such as 80G; empty: unknown"),
    group("Tensor parallel", number("machines", "Number in an instance", "", "1"), text("link", "Link, bytes/s", "such as 450G; empty: no loss")),
    slider("Prompt, tokens", "prompt", question, longest, change),
    slider("Response, tokens", "response", question, longest, change),
    slider("Batch size (concurrent requests)", "batch", question, 1024, change),
    group("Of the request", number("thinking", "Thinking, tokens", "", "none"), share("cached", "Cached share of it, %", "0"), share("acceptance", "Draft acceptance, %", "no drafts")),
    group("What it costs", text("price", "Price per hour", "2.00, or several: a100=2.00,h100=3.50"), number("watts", "Watts", "", watts == null ? "unknown" : String(watts)), share("utilization", "Utilization, %", String(USUAL_UTILIZATION))),
    fleet(question, change, [number("ttft", "TTFT target, ms", "", "none"), number("tpot", "TPOT target, ms", "", "none")]),
  ];
}

/** Without the noise of a division by a hundred. */
const twice = (value: number): number => Number(value.toPrecision(12));

function group(name: string, ...fields: HTMLElement[]): HTMLElement {
  return el("fieldset", {}, el("legend", {}, name), el("div", { class: "pair" }, ...fields));
}

/** A model of which only the size is known: of a mixture, how much of it a token uses. Sliders and the text are one value. */
function modelSize(question: Question, change: Change): HTMLElement[] {
  const name: HTMLInputElement = el("input", { type: "text", value: question["model"] ?? "" });
  const size: HTMLInputElement = el("input", { type: "range", min: 0, max: 1000 });
  const active: HTMLInputElement = el("input", { type: "range", min: 1, max: 100 });
  const spread = Math.log(LARGEST / SMALLEST);
  const place = (): void => {
    const [all, used] = sizesOf(name.value);
    if (!(all > 0)) return;
    size.value = String(Math.round((1000 * Math.log(all / SMALLEST)) / spread));
    active.value = String(Math.round((100 * used) / all));
    size.setAttribute("aria-valuetext", `${all} billion`);
    active.setAttribute("aria-valuetext", used < all ? `${used} billion a token` : "all of it: dense");
  };
  const slide = (): void => {
    const all = digits(SMALLEST * Math.exp((spread * size.valueAsNumber) / 1000));
    const used = digits((all * active.valueAsNumber) / 100);
    name.value = active.valueAsNumber === 100 ? `${all}b` : `${all}b-a${used}b`;
    place();
    change({ model: name.value });
  };
  name.addEventListener("input", () => {
    place();
    change({ model: name.value.trim() });
  });
  for (const range of [size, active]) range.addEventListener("input", slide);
  place();
  return [labelled("Model size", size), labelled("Share that a token uses (dense: all)", active), labelled("Parameters", name, "such as 7b, 350m, or 30b-a3b")];
}

/** `30b-a3b`: billions of parameters, and those that a token uses. */
function sizesOf(name: string): [number, number] {
  const factors: Record<string, number> = { m: 1e-3, b: 1, t: 1e3 };
  const [all, used] = name.trim().toLowerCase().split("-a").map((part) => Number(part.slice(0, -1)) * (factors[part.slice(-1)] ?? Number.NaN));
  return [all!, used ?? all!];
}

/** Two digits are as fine as a slider is. */
const digits = (value: number): number => Number(value.toPrecision(2));

/** A config.json, pasted or from a file. It goes to this server and is not kept. */
function configuration(change: Change): HTMLElement[] {
  const text: HTMLTextAreaElement = el("textarea", { rows: 6, spellcheck: "false", placeholder: '{"architectures": ["LlamaForCausalLM"], …}' });
  text.value = config;
  const take = (value: string): void => {
    config = value;
    change({ model: CONFIG });
  };
  text.addEventListener("input", () => take(text.value));
  const file: HTMLInputElement = el("input", { type: "file", accept: ".json,application/json" });
  file.addEventListener("change", () => {
    void file.files?.[0]?.text().then((value) => {
      text.value = value;
      take(value);
    });
  });
  return [labelled("config.json", text), labelled("From a file", file)];
}

/** A slider that grows by factors, and the number itself: one value. */
function slider(name: string, parameter: string, question: Question, most: number, change: Change): HTMLElement {
  const value = Number(question[parameter]);
  const position = (value: number): number => Math.round(1000 * (Math.log(Math.max(1, value)) / Math.log(most)));
  const number: HTMLInputElement = el("input", { type: "number", min: 1, step: 1, value, "aria-label": name });
  const range: HTMLInputElement = el("input", { type: "range", min: 0, max: 1000, value: position(value), "aria-valuetext": String(value) });
  range.addEventListener("input", () => {
    number.value = String(Math.max(1, twoDigits(most ** (range.valueAsNumber / 1000))));
    range.setAttribute("aria-valuetext", number.value);
    change({ [parameter]: number.value });
  });
  number.addEventListener("input", () => {
    range.value = String(position(number.valueAsNumber));
    range.setAttribute("aria-valuetext", number.value);
    change({ [parameter]: number.value });
  });
  return el("div", { class: "slider-and-number" }, labelled(name, range), number);
}

/** Two digits are as fine as a slider is; powers of two stay whole, for those are what people mean. */
function twoDigits(value: number): number {
  const power = 2 ** Math.round(Math.log2(value));
  if (Math.abs(value / power - 1) < 0.02) return power;
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(value)) - 1);
  return Math.round(value / unit) * unit;
}

/** Users and how often each asks; empty: not asked for. */
function fleet(question: Question, change: Change, targets: HTMLElement[]): HTMLElement {
  const users: HTMLInputElement = el("input", { type: "number", min: 1, step: 1, value: question["users"] ?? "", placeholder: "none" });
  const rate: HTMLInputElement = el("input", { type: "number", min: 0, step: "any", value: (question["rate"] ?? USUAL_RATE).split("/")[0] });
  const rest = { users: "", rate: "", ttft: "", tpot: "" };
  const both = (): void => change(users.value === "" ? rest : { users: users.value, rate: `${rate.value}/min` });
  users.addEventListener("input", both);
  rate.addEventListener("input", both);
  return group("A fleet", labelled("Users", users), labelled("Requests per minute of each", rate), ...targets);
}

function drawn(plan: Plan, curves: HTMLElement, command: string): Child[] {
  return [
    el("section", { class: "panel", "aria-label": "Both phases" }, phases(plan), binding(plan), ...besides(plan)),
    el("section", { class: "panel", "aria-label": "Curves" }, el("h2", {}, "Curves"), curves),
    el("section", { class: "panel", "aria-label": "Lower bound (roofline)" }, el("h2", {}, "Lower bound (roofline)"), ...floors(plan)),
    el("section", { class: "panel", "aria-label": "Cost profile of a request" }, el("h2", {}, "Cost profile of a request"), profiles(plan)),
    el("section", { class: "panel", "aria-label": "Memory" }, el("h2", {}, "Memory"), ...memory(plan)),
    el("section", { class: "panel", "aria-label": "Costs" }, el("h2", {}, "Costs"), ...costs(plan)),
    plan.choices && el("section", { class: "panel", "aria-label": "Machines that meet the targets" }, el("h2", {}, "Machines that meet the targets"), ...choices(plan.choices)),
    plan.fleet && el("section", { class: "panel", "aria-label": "The fleet" }, el("h2", {}, "The fleet"), ...fleetOf(plan.fleet)),
    el("section", { class: "panel", "aria-label": "As the prompt grows" }, el("h2", {}, "As the prompt grows"), byPrompt(plan)),
    el("section", { class: "panel", "aria-label": "As the batch grows" }, el("h2", {}, "As the batch grows"), byBatch(plan)),
    el("section", { class: "panel", "aria-label": "The same on the command line" }, el("h2", {}, "The same on the command line"), commandWith(command)),
  ];
}

function headline({ ttft_ms, tpot_ms, total_ms, tokens_per_second, ask }: Plan): HTMLElement {
  const figure = (name: string, value: string, what: string): HTMLElement =>
    el("div", {}, el("dt", {}, name), el("dd", { class: "number" }, value, el("small", {}, what)));
  return el(
    "dl",
    { class: "headline" },
    figure("TTFT", ms(ttft_ms), "to the first token"),
    figure("TPOT", ms(tpot_ms), "from a token to the next"),
    figure("Total", ms(total_ms), count(ask.thinking + ask.response, "token")),
    figure("Rate", `${short(tokens_per_second)}tok/s`, ask.batch === 1 ? "one stream" : `${ask.batch} concurrent streams`),
  );
}

/** Both phases of the request to scale. */
function phases({ prefill, decode, ttft_ms, total_ms }: Plan): HTMLElement {
  const words = `prefill ${ms(ttft_ms)}, ${percent(prefill.share)}; decode ${ms(total_ms - ttft_ms)}, ${percent(decode.share)}`;
  return el(
    "figure",
    {},
    bar("phase-bar", words, [
      ["prefill", prefill.share],
      ["decode", decode.share],
    ]),
    el("figcaption", {}, el("span", { class: "prefill-text" }, `prefill ${ms(ttft_ms)}`), " · ", el("span", { class: "decode-text" }, `decode ${ms(total_ms - ttft_ms)}`)),
  );
}

/** Parts of a whole in a line; told in words to those who do not see it. */
function bar(kind: string, words: string, parts: [string, number][]): HTMLElement {
  const made = el("div", { class: kind, role: "img", "aria-label": words, title: words });
  for (const [name, share] of parts.filter(([, share]) => share > 0)) {
    const piece = el("span", { class: name });
    piece.style.flexGrow = String(share);
    made.append(piece);
  }
  return made;
}

/** What thinking and drafts change. */
function besides({ thinking, speculation, ask }: Plan): HTMLElement[] {
  const told: string[] = [];
  if (thinking) told.push(`Thinking takes ${ms(thinking.ms)}: there is something to see after ${ms(thinking.first_visible_ms)}, and without it all would be there after ${ms(thinking.total_without_ms)}.`);
  if (speculation) {
    const { acceptance, drafts, tokens_per_step, tpot_ms, gain, stops_at_batch } = speculation;
    const ends = stops_at_batch === null ? "some pay at any batch" : `none pays from a batch of ${stops_at_batch} on`;
    told.push(
      drafts > 0
        ? `With ${short(drafts).trim()} drafts a step, of which ${percent(acceptance)} are accepted: ${tokens_per_step.toFixed(2)} tokens a step, TPOT ${ms(tpot_ms)}, ${gain.toFixed(2)} times as fast; ${ends}.`
        : `No draft pays at this batch; ${ends}.`,
    );
  }
  if (ask.cached > 0) told.push(`${count(ask.cached, "token")} of the prompt are in the prefix cache.`);
  return told.map((text) => el("p", {}, text));
}

/** Two decimals, or two digits of what is smaller. */
function money(price: number | null): string {
  if (price === null) return "–";
  return price.toFixed(price > 0 && price < 0.1 ? Math.min(9, Math.ceil(1 - Math.log10(price))) : 2);
}

function costs({ cost, ask, machine }: Plan): HTMLElement[] {
  const row = (name: string, of: Cost | null): HTMLElement | false =>
    of !== null &&
    el("tr", {}, el("th", { scope: "row" }, name), ...[money(of.price), of.watt_hours === null ? "–" : `${short(of.watt_hours)}Wh`, ms(of.machine_seconds * 1e3)].map((cell) => el("td", {}, cell)));
  const rows = [row("Million input tokens", cost.input), row("Million cached tokens", cost.cached), row("Million output tokens", cost.output), row("This request", cost.request)];
  const hour = machine.price_per_hour === null ? "No price is built in: yours goes into the form." : `${money(machine.price_per_hour)} an hour.`;
  return [
    table("Costs, a table", ["of", "price", "energy", "machine time"], rows.filter((each) => each !== false)),
    el("p", { class: "quiet-text" }, `At a batch of ${cost.batch} and machines that work ${percent(ask.utilization)} of the time. ${hour} Energy is at the most that the machine draws.`),
  ];
}

function choices({ rows, left_off, words }: NonNullable<Plan["choices"]>): Child[] {
  const row = (choice: Choice): HTMLElement => {
    const cells = [
      `${choice.instances.toLocaleString("en")} of ${choice.machines_per_instance}`,
      choice.weights,
      String(choice.batch),
      ms(choice.ttft_ms),
      ms(choice.tpot_ms),
      money(choice.price_per_hour),
      choice.watts === null ? "–" : `${short(choice.watts)}W`,
      choice.capped_by,
    ];
    return el("tr", {}, el("th", { scope: "row" }, `${choice.machines.toLocaleString("en")} × ${choice.machine}`), ...cells.map((cell) => el("td", {}, cell)));
  };
  return [
    el("p", { class: rows.length > 0 ? "" : "error" }, `${words.charAt(0).toUpperCase()}${words.slice(1)}.`),
    rows.length > 0 && table("Machines that meet the targets, a table", ["machines", "instances", "weights", "batch", "TTFT", "TPOT", "price/h", "power", "batch capped by"], rows.map(row)),
    left_off > 0 && el("p", { class: "quiet-text" }, `And ${left_off} more.`),
  ];
}

function binding({ prefill, decode, dominant, machine, model }: Plan): HTMLElement {
  return el(
    "p",
    { class: "binding" },
    `Prefill is bound by ${prefill.bound_by}, decode by ${decode.bound_by}; most of the time goes to ${dominant}. `,
    el("span", { class: "quiet-text" }, `${model.name} in ${model.weights}, KV cache in ${model.kv_dtype}, on ${machine.name === "given" ? "the machine described" : machine.name}: ${machine.basis}.`),
  );
}

/** The weights' part as one would work it out on paper, and the floors. */
function floors({ floors, ask, machine, prefill }: Plan): HTMLElement[] {
  const { tokens } = prefill;
  const flops = (floors.weights_ttft_ms / 1e3) * machine.flops;
  const bytes = (floors.weights_tpot_ms / 1e3) * machine.bandwidth;
  return [
    el(
      "p",
      { class: "floor number" },
      el("strong", { class: "prefill-text" }, "Prefill: "),
      `${short(flops / tokens)}FLOP a token × ${count(tokens, "token")} / ${short(machine.flops)}FLOP/s = ${ms(floors.weights_ttft_ms)}`,
    ),
    el(
      "p",
      { class: "floor number" },
      el("strong", { class: "decode-text" }, "Decode: "),
      `${short(bytes)}B of weights / ${short(machine.bandwidth)}B/s = ${ms(floors.weights_tpot_ms)} a token`,
    ),
    el(
      "p",
      { class: "floor" },
      `With attention, keys and values: `,
      el("strong", { class: "number" }, `${ms(floors.ttft_ms)} to the first token, ${ms(floors.tpot_ms)} a token`),
      ask.batch > 1 ? ` of ${ask.batch} requests together.` : ".",
    ),
    el("p", { class: "quiet-text" }, "The predictions above add the share of its peaks that a machine reaches, and the time between passes."),
  ];
}

const shareOf = (per_cent: number | null): string => (per_cent == null ? NOT_KNOWN : percent(per_cent / 100));

function profiles({ prefill, decode }: Plan): HTMLElement {
  const row = (name: string, of: (profile: Profile) => string): HTMLElement =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, of(prefill)), el("td", {}, of(decode)));
  return table(
    "Cost profile, a table",
    ["figure", "prefill", "decode"],
    [
      row("Steps", ({ passes }) => passes.toLocaleString("en")),
      row("Tokens", ({ tokens }) => tokens.toLocaleString("en")),
      row("Compute", ({ flops }) => `${short(flops)}FLOP`),
      row("Bytes read", ({ bytes }) => `${short(bytes)}B`),
      row("Operations per byte", ({ intensity }) => short(intensity)),
      row("Time", (profile) => ms(profile.ms)),
      row("Share of the time", ({ share }) => percent(share)),
      row("Of peak FLOP/s", ({ compute_percent }) => shareOf(compute_percent)),
      row("Of peak bandwidth", ({ memory_percent }) => shareOf(memory_percent)),
      row("Bound by", ({ bound_by }) => bound_by),
    ],
  );
}

/** A table that scrolls sideways where it is too wide, by the keyboard too. */
function table(name: string, columns: Child[], rows: HTMLElement[]): HTMLElement {
  const head = el("thead", {}, el("tr", {}, ...columns.map((column) => el("th", { scope: "col" }, column))));
  return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": name }, el("table", {}, head, el("tbody", {}, ...rows)));
}

function memory({ memory, ask, fits }: Plan): Child[] {
  const kv = memory.kv_per_request * ask.batch;
  const parts: [string, string, number][] = [
    ["weights", "weights", memory.weights],
    ["kv", `KV cache of ${count(ask.batch, "request")}`, kv],
    ["rest", "activations and reserve", memory.activations + memory.reserved],
  ];
  const used = parts.reduce((sum, [, , bytes]) => sum + bytes, 0);
  const total = memory.total ?? used;
  const words = parts.map(([, name, bytes]) => `${name} ${short(bytes)}B`).join(", ");
  const verdict =
    fits === null || memory.total === null
      ? "The memory size of this machine is unknown."
      : fits
        ? `It fits into ${short(memory.total)}B; so would ${count(Math.floor(memory.requests ?? 0), "request")} of this length at once.`
        : `It does not fit into ${short(memory.total)}B.`;
  return [
    bar("memory-bar", words, [...parts.map(([kind, , bytes]): [string, number] => [kind, bytes]), ["left", Math.max(0, total - used)]]),
    el("p", { class: fits === false ? "error" : "" }, verdict),
    el("p", { class: "quiet-text" }, `${words}. KV cache: ${short(memory.kv_per_token)}B per token.`),
  ];
}

function fleetOf(fleet: NonNullable<Plan["fleet"]>): HTMLElement[] {
  const machines = count(fleet.machines, "machine");
  return [
    el("p", {}, `${count(fleet.users, "user")} send ${short(fleet.requests_per_second)}requests per second and need ${machines} (${fleet.busy_machines.toFixed(1)} busy). The limiting phase is ${fleet.limiting}.`),
    bar("phase-bar", `prefill ${percent(fleet.prefill_share)} of the machines' time, decode the rest`, [
      ["prefill", fleet.prefill_share],
      ["decode", 1 - fleet.prefill_share],
    ]),
    el(
      "p",
      { class: "quiet-text" },
      `${count(fleet.batch, "concurrent request")} on each (${fleet.batch_capped_by}), at ${ms(fleet.tpot_ms)} a token.`,
    ),
    el("p", { class: "quiet-text" }, `Prefill and decode on machines of their own: ${fleet.apart.why}.`),
  ];
}

function byPrompt(plan: Plan): HTMLElement {
  const rows = plan.by_prompt.map((at) => {
    const share = bar("phase-bar", `prefill ${percent(at.prefill_share)}`, [
      ["prefill", at.prefill_share],
      ["decode", 1 - at.prefill_share],
    ]);
    const cells = [ms(at.ttft_ms), ms(at.tpot_ms), percent(at.prefill_share), percent(at.attention_share), at.prefill_bound_by, at.decode_bound_by];
    const isAsked = at.prompt === plan.ask.prompt;
    return el("tr", { class: isAsked ? "asked" : "" }, el("th", { scope: "row" }, count(at.prompt, "token"), share), ...cells.map((cell) => el("td", {}, cell)));
  });
  return table("By prompt length, a table", ["prompt", "TTFT", "TPOT", "prefill share", "attention share", "prefill bound by", "decode bound by"], rows);
}

function byBatch(plan: Plan): HTMLElement {
  const fastest = Math.max(...plan.by_batch.map((at) => at.tokens_per_second));
  const rows = plan.by_batch.map((at) => {
    const of = at.tokens_per_second / fastest;
    const rate = bar("rate-bar", `${short(at.tokens_per_second)}tokens per second`, [
      ["decode", of],
      ["none", 1 - of],
    ]);
    const cells = [ms(at.tpot_ms), `${short(at.tokens_per_second)}tok/s`, short(at.intensity), at.bound_by, at.fits === null ? "unknown" : at.fits ? "yes" : "no"];
    return el("tr", { class: at.batch === plan.ask.batch ? "asked" : "" }, el("th", { scope: "row" }, String(at.batch), rate), ...cells.map((cell) => el("td", {}, cell)));
  });
  return table("By batch size, a table", ["batch", "TPOT", "throughput", "FLOP/byte", "bound by", "fits"], rows);
}

function commandWith(command: string): HTMLElement {
  const copy: HTMLButtonElement = el("button", { type: "button" }, "Copy");
  copy.addEventListener("click", () => {
    const say = (text: string): void => fill(copy, text);
    navigator.clipboard.writeText(command).then(
      () => say("Copied"),
      () => say("Not allowed"),
    );
  });
  return el("div", { class: "row command" }, el("code", { tabindex: 0 }, command), copy);
}
