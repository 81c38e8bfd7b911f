// Sampling settings under names: three that are built in, and own ones, which the browser keeps.

import { list, object, settingsOf, text } from "./check";
import type { Settings } from "./tree";

/** What a preset sets; an own one sets all of it. */
export type Preset = { name: string } & Pick<Settings, "stop" | "sampling">;

/** Of the sampling alone; `balanced` is the model's own. */
export const BUILT_IN: Record<string, Record<string, string>> = {
  precise: { temperature: "0", top_p: "", top_k: "", min_p: "" },
  balanced: { temperature: "", top_p: "", top_k: "", min_p: "" },
  creative: { temperature: "1.1", top_p: "0.95", top_k: "", min_p: "0.05" },
};
/** What settings are called that are none of these. */
export const OWN = "own";

const KEPT = "twostroke-presets";
const MOST = 50;
export const LONGEST_NAME = 40;

export class Presets {
  own: Preset[] = read();

  /** Keeps settings under a name, in place of those that had it. Why they are not kept, or nothing. */
  save(name: string, { stop, sampling }: Settings): string {
    if (name in BUILT_IN || name === OWN) return `"${name}" is built in: choose another name.`;
    const others = this.own.filter((each) => each.name !== name);
    if (others.length >= MOST) return `${MOST} presets are kept at most: delete one.`;
    this.own = [...others, { name, stop, sampling: { ...sampling } }].sort((a, b) => a.name.localeCompare(b.name));
    return this.keep();
  }

  remove(name: string): void {
    this.own = this.own.filter((each) => each.name !== name);
    this.keep();
  }

  /** As another tab has them. */
  reload(): void {
    this.own = read();
  }

  private keep(): string {
    try {
      localStorage.setItem(KEPT, JSON.stringify(this.own));
      return "";
    } catch {
      return "The browser keeps nothing for this page: the preset is gone when the page is closed.";
    }
  }
}

/** Those that are kept; anything else that stands there is none. */
function read(): Preset[] {
  try {
    const kept = list(JSON.parse(localStorage.getItem(KEPT) ?? "[]"), "presets", MOST);
    return kept.map((each) => {
      const name = text(object(each, "a preset"), "name", "a preset", LONGEST_NAME);
      const { stop, sampling } = settingsOf(each, "a preset");
      return { name, stop, sampling };
    });
  } catch {
    return [];
  }
}
