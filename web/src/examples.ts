// Requests that a page sends so that there is something to look at.

import type { App } from "./app";
import { ask, longPrompt } from "./ask";
import { el, say } from "./dom";
import { words } from "./words";

/** What to send; the parts of a completion's body. */
export type Example = (app: App) => Promise<Record<string, unknown>>;

/** A short prompt and a long answer: decode. */
export const STORY: Example = async () => ({ prompt: "Once upon a time there was a fox who lived beside a lantern", max_tokens: 160, ignore_eos: true });

/** A prompt of half of what the model can read, unlike any before, and a short answer: prefill. */
export const LONG_PROMPT: Example = async (app) => ({ prompt: await longPrompt(app, Math.min(4096, app.info.max_model_len >> 1)), max_tokens: 8 });

/** A button that sends examples at once, and says what became of them; then calls `done`. */
export function exampleButton(app: App, label: string, examples: Example[], done: () => void = () => undefined): HTMLElement {
  const said = el("span", { class: "quiet-text", role: "status" });
  const button = el("button", { type: "button" }, label);
  const send = async (example: Example): Promise<void> => {
    const answer = await ask(app, "/v1/completions", { model: app.info.name, ...(await example(app)) }, { words });
    if (answer.error) throw new Error(answer.error);
  };
  button.addEventListener("click", () => {
    button.disabled = true;
    say(said, "Sent.");
    Promise.all(examples.map(send))
      .then(() => {
        say(said, "Answered.");
        done();
      })
      .catch((error: unknown) => say(said, error instanceof Error ? error.message : String(error)))
      .finally(() => (button.disabled = false));
  });
  return el("span", { class: "row" }, button, said);
}
