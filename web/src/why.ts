// The story of one request, in the server's words: what a link to `#/live?request=ID` opens beside its lane.

import type { App } from "./app";
import { el, fill, show } from "./dom";

export class Story {
  readonly element = el("section", { class: "panel", "aria-label": "Why was it slow", hidden: true });
  private asked = 0;

  constructor(private app: App) {}

  /** Asks for the timeline of the request of this name, and tells it; nothing for an empty name. */
  async tell(name: string): Promise<void> {
    const asked = (this.asked += 1);
    show(this.element, name !== "");
    if (name === "") return;
    fill(this.element, el("h2", {}, name), el("p", { class: "quiet-text" }, "Asking the server …"));
    let lines: string[];
    try {
      const response = await this.app.api(`/v1/requests/${encodeURIComponent(name)}/timeline`);
      const body: unknown = await response.json();
      lines = response.ok ? told(body) : ["The server does not know this request any more, or it was made with another key."];
    } catch {
      lines = ["The server cannot be reached."];
    }
    if (asked !== this.asked) return; // another one was asked for meanwhile
    fill(this.element, el("h2", {}, name), ...lines.map((line) => el("p", {}, line)));
  }
}

/** What a timeline says of each of its prompts. */
function told(body: unknown): string[] {
  const { prompts } = body as { prompts?: { state: string; arrived_at: string; why?: string[] }[] };
  return (prompts ?? []).flatMap((prompt) => [`It came at ${prompt.arrived_at} and is ${prompt.state}.`, ...(prompt.why ?? [])]);
}
