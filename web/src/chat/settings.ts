// How the answers of a conversation are made: system prompt, sampling, stop strings, and presets of the sampling.

import { add, el } from "../dom";
import { labelled } from "../form";
import type { Talk } from "../talk";

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

/** What a preset sets; `balanced` is the model's own. */
const PRESETS: Record<string, Record<string, string>> = {
  precise: { temperature: "0", top_p: "", top_k: "", min_p: "" },
  balanced: { temperature: "", top_p: "", top_k: "", min_p: "" },
  creative: { temperature: "1.1", top_p: "0.95", top_k: "", min_p: "0.05" },
};

export class SettingsForm {
  readonly form = el("form", { class: "settings", onsubmit: (event: Event) => event.preventDefault() });
  readonly preset = el("select", {}, ...[...Object.keys(PRESETS), "own"].map((name) => el("option", { value: name }, name)));
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
    for (const [field, value] of Object.entries(PRESETS[this.preset.value] ?? {})) this.inputs.get(field)!.value = value;
    this.changed();
  }

  private tellPreset(): void {
    const is = ([, values]: [string, Record<string, string>]) => Object.entries(values).every(([field, value]) => this.inputs.get(field)!.value === value);
    this.preset.value = Object.entries(PRESETS).find(is)?.[0] ?? "own";
  }
}
