// How the answers of a conversation are made: system prompt, sampling, stop strings, and presets of the sampling.

import { add, el, fill, say, show } from "../dom";
import { labelled } from "../form";
import type { Talk } from "../talk";
import { BUILT_IN, LONGEST_NAME, OWN, Presets } from "./presets";

/** A sampling control: its field in the API, its range, and what it does. An empty one is not sent. */
interface Control {
  field: string;
  name: string;
  min: number;
  max: number;
  step: number;
  hint: string;
}

const CONTROLS: Control[] = [
  { field: "temperature", name: "Temperature", min: 0, max: 2, step: 0.05, hint: "0: always the most likely token" },
  { field: "top_p", name: "Top p", min: 0.01, max: 1, step: 0.01, hint: "nucleus: smallest set of tokens with total probability p" },
  { field: "top_k", name: "Top k", min: 0, max: 1000, step: 1, hint: "keep the k most likely tokens; 0: all" },
  { field: "min_p", name: "Min p", min: 0, max: 1, step: 0.01, hint: "drop tokens below this share of the most likely one's probability" },
  { field: "repetition_penalty", name: "Repetition penalty", min: 0.1, max: 2, step: 0.05, hint: "1: none" },
  { field: "max_tokens", name: "Max tokens", min: 1, max: 1_000_000, step: 1, hint: "most tokens of an answer" },
  { field: "seed", name: "Seed", min: 0, max: 2 ** 53 - 1, step: 1, hint: "same seed, same answer" },
];

export class SettingsForm {
  readonly form = el("form", { class: "settings", onsubmit: (event: Event) => event.preventDefault() });
  /** The menu of presets, and what keeps the present settings as one. */
  readonly presetBar: HTMLElement;
  private presets = new Presets();
  private preset = el("select", {});
  private remove = el("button", { type: "button", hidden: true }, "Delete preset");
  private naming: HTMLFormElement;
  private nameField = el("input", { type: "text", maxlength: LONGEST_NAME, required: true, placeholder: "name", "aria-label": "Save as" });
  private problem = el("span", { class: "note", role: "status" });
  private system = el("textarea", { rows: 2, placeholder: "none" });
  private stop = el("textarea", { rows: 2, placeholder: "none" });
  private inputs = new Map(
    CONTROLS.map(({ field, min, max, step }) => [field, el("input", { type: "number", min, max, step, placeholder: field === "seed" ? "random" : "the model's" })]),
  );

  constructor(private talk: Talk) {
    const controls = CONTROLS.map(({ field, name, hint }) => labelled(name, this.inputs.get(field)!, hint));
    add(
      this.form,
      labelled("System prompt", this.system, "of this conversation"),
      el("div", { class: "grid" }, ...controls),
      labelled("Stop strings", this.stop, "one in each line; \\n stands for a line break"),
    );
    this.form.addEventListener("input", () => this.changed());
    this.preset.addEventListener("change", () => this.choose());
    this.remove.addEventListener("click", () => {
      this.presets.remove(this.preset.value.slice(OWN.length));
      this.listPresets();
      this.preset.focus();
    });
    const save = el("button", { type: "button", onclick: () => this.name(true) }, "Save preset");
    this.naming = el("form", { class: "row", hidden: true }, this.nameField, el("button", { type: "submit" }, "Save"), el("button", { type: "button", onclick: () => this.name(false) }, "Cancel"));
    this.naming.addEventListener("submit", (event) => {
      event.preventDefault();
      this.keep(this.nameField.value.trim());
    });
    this.nameField.addEventListener("keydown", (event) => event.key === "Escape" && this.name(false));
    this.presetBar = el("span", { class: "row preset" }, el("label", {}, "preset ", this.preset), save, this.remove, this.naming, this.problem);
    this.listPresets();
  }

  /** Another tab has saved or deleted a preset. */
  reloadPresets(): void {
    this.presets.reload();
    this.listPresets();
  }

  private name(isAsked: boolean): void {
    show(this.naming, isAsked);
    say(this.problem, "");
    this.nameField.value = "";
    (isAsked ? this.nameField : this.preset).focus();
  }

  private keep(name: string): void {
    if (name === "" || !this.isValid()) return;
    this.changed(); // so that each field is said, the empty ones too
    const problem = this.presets.save(name, this.talk.current.settings);
    this.listPresets();
    if (problem === "") this.name(false);
    say(this.problem, problem);
  }

  /** Own presets have a sign before their names, so that none is like a built-in one. */
  private listPresets(): void {
    const option = (value: string, name = value): HTMLElement => el("option", { value }, name);
    const own = this.presets.own.map(({ name }) => option(OWN + name, name));
    fill(this.preset, ...Object.keys(BUILT_IN).map((name) => option(name)), option(OWN), own.length > 0 && el("optgroup", { label: "your own" }, ...own));
    this.tellPreset();
  }

  /** Shows the settings of the conversation. */
  show(): void {
    const { system, stop, sampling } = this.talk.current.settings;
    this.system.value = system;
    this.stop.value = stop;
    for (const [field, input] of this.inputs) input.value = sampling[field] ?? "";
    this.tellPreset();
  }

  /** Whether all are in their range; the browser says which is not. */
  isValid(): boolean {
    const isValid = this.form.checkValidity();
    if (!isValid) {
      const details = this.form.closest("details");
      if (details) details.open = true;
      this.form.reportValidity();
    }
    return isValid;
  }

  private changed(): void {
    const sampling = Object.fromEntries([...this.inputs].map(([field, input]) => [field, input.value]));
    this.talk.settle({ system: this.system.value, stop: this.stop.value, sampling });
    this.tellPreset();
  }

  private choose(): void {
    const own = this.presets.own.find(({ name }) => OWN + name === this.preset.value);
    for (const [field, value] of Object.entries(BUILT_IN[this.preset.value] ?? {})) this.inputs.get(field)!.value = value;
    if (own) {
      for (const [field, input] of this.inputs) input.value = own.sampling[field] ?? "";
      this.stop.value = own.stop;
    }
    this.changed();
  }

  private tellPreset(): void {
    const { value } = this.preset;
    const has = (values: Record<string, string>): boolean => Object.entries(values).every(([field, value]) => this.inputs.get(field)?.value === value);
    const own = this.presets.own.filter(({ sampling, stop }) => stop === this.stop.value && has(sampling)).map(({ name }) => OWN + name);
    const name = own.includes(value) ? value : own[0];
    this.preset.value = name ?? Object.entries(BUILT_IN).find(([, values]) => has(values))?.[0] ?? OWN;
    show(this.remove, name !== undefined);
  }
}
