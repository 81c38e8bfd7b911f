// Requests that a page sends so that there is something to look at.

import type { App } from "./app";
import { el, say } from "./dom";

/** A chat to send. */
export interface Example {
  prompt: (app: App) => string;
  tokens: number;
}

/** A short prompt and a long answer: decode. */
export const STORY: Example = { prompt: () => "Tell me a story about a lantern and a fox.", tokens: 120 };

/** A prompt of about half of what the model can read, and a short answer: prefill. */
export const LONG_PROMPT: Example = {
  prompt: (app) => {
    const sentence = "The fox looked at the lantern, and the lantern looked at the sea. ";
    // A sentence is about sixteen tokens; the salt keeps the prefix cache out of it.
    const times = Math.max(8, Math.min(200, Math.floor(app.info.max_model_len / 40)));
    return `Number ${Math.floor(Math.random() * 1e6)}. ${sentence.repeat(times)}What did the fox look at?`;
  },
  tokens: 16,
};

/** A button that sends examples at once, and says what became of them. */
export function exampleButton(app: App, label: string, ...examples: Example[]): HTMLElement {
  const said = el("span", { class: "quiet-text", role: "status" });
  const button = el("button", { type: "button" }, label);
  button.addEventListener("click", () => {
    button.disabled = true;
    say(said, "Sent.");
    Promise.all(examples.map((example) => send(app, example)))
      .then(() => say(said, "Answered."))
      .catch((error: unknown) => say(said, error instanceof Error ? error.message : String(error)))
      .finally(() => (button.disabled = false));
  });
  return el("span", { class: "row" }, button, said);
}

/** Sends it and reads the answer to its end, which nobody shows. */
async function send(app: App, example: Example): Promise<void> {
  const body = { model: app.info.name, stream: true, max_tokens: example.tokens, messages: [{ role: "user", content: example.prompt(app) }] };
  const response = await app.api("/v1/chat/completions", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  if (!response.ok) {
    const told = (await response.json().catch(() => null)) as { error?: { message?: string } } | null;
    throw new Error(told?.error?.message ?? `The server answered ${response.status}.`);
  }
  const reader = response.body!.getReader();
  while (!(await reader.read()).done);
}
