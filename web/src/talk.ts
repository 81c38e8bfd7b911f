// The conversation of the chat page, apart from the page: an answer goes on while another page is shown, and what
// was said is still there after a reload. It is kept in the tab's session storage: another tab, or tomorrow, begins anew.

import type { App } from "./app";
import { type Answer, ask, type Progress } from "./ask";
import { dropFrame, wantFrame } from "./frames";

export interface Turn {
  role: "user" | "assistant";
  content: string;
  /** What was thought before it was said. */
  thought: string;
  /** What came of it, when it is over. */
  answer: Answer | null;
}

/** `text`: the last turn has grown; `progress`: more of its prompt is read; `turns`: anything else. */
export type Change = "text" | "progress" | "turns";

const NAME = "twostroke-chat";
/** Text of a conversation that is kept; more than that, and its beginning is forgotten by a reload. */
const MOST_CHARACTERS = 1_000_000;

export class Talk {
  turns: Turn[] = [];
  /** When the pieces of the newest answer came. */
  moments: number[] = [];
  /** How far the prompt of the newest answer is read, before the answer begins. */
  progress: Progress | null = null;
  private abort: AbortController | null = null;
  private isLeaving = false;
  private listeners = new Set<(change: Change) => void>();

  constructor() {
    this.turns = restored();
    // What has come of an answer until the page goes is kept: the rest is not coming, and its failing is no news.
    window.addEventListener("pagehide", () => {
      this.keep();
      this.isLeaving = true;
    });
    window.addEventListener("pageshow", () => (this.isLeaving = false));
  }

  get isAnswering(): boolean {
    return this.abort != null;
  }

  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  say(content: string): void {
    this.turns.push({ role: "user", content, thought: "", answer: null });
    this.changed();
  }

  /** Forgets the last answer, to have another. */
  takeBack(): void {
    if (this.isAnswering || this.turns.at(-1)?.role !== "assistant") return;
    this.turns.pop();
    this.changed();
  }

  stop(): void {
    this.abort?.abort();
  }

  clear(): void {
    this.stop();
    this.turns = [];
    this.changed();
  }

  /** Has the engine answer what was said last. `body`: how it is sampled. */
  async answer(app: App, system: string, body: Record<string, unknown>): Promise<Answer> {
    const abort = new AbortController();
    this.abort = abort;
    const said = this.turns.filter(({ content }) => content !== "").map(({ role, content }) => ({ role, content }));
    const messages = system === "" ? said : [{ role: "system", content: system }, ...said];
    const turn: Turn = { role: "assistant", content: "", thought: "", answer: null };
    this.turns.push(turn);
    this.changed();
    // Tokens may come by the thousand a second: they are told once a frame.
    const tell = (): void => this.tell("text");
    const onText = (piece: string, answer: Answer): void => {
      this.moments = answer.moments;
      this.progress = null;
      turn.content += piece;
      turn.thought = answer.thought;
      wantFrame(tell);
    };
    const onProgress = (progress: Progress): void => {
      this.progress = progress;
      this.tell("progress");
    };
    const answer = await ask(app, "/v1/chat/completions", { ...body, messages }, abort.signal, onText, onProgress);
    dropFrame(tell);
    this.progress = null;
    turn.answer = answer;
    // Another may have been begun: this one was stopped by a new conversation.
    if (this.abort === abort) this.abort = null;
    this.changed();
    return answer;
  }

  private tell(change: Change): void {
    for (const listener of this.listeners) listener(change);
  }

  private changed(): void {
    this.keep();
    this.tell("turns");
  }

  private keep(): void {
    if (this.isLeaving) return;
    let room = MOST_CHARACTERS;
    const kept = [...this.turns].reverse().filter(({ content, thought }) => (room -= content.length + thought.length) >= 0);
    const turns = kept.reverse().map(({ role, content, thought, answer }) => ({ role, content, thought, answer: answer && { ...answer, text: "", thought: "", moments: [] } }));
    try {
      sessionStorage.setItem(NAME, JSON.stringify(turns));
    } catch {
      // A full storage, or one that is forbidden: a reload begins anew.
    }
  }
}

/** What the last page of this tab kept. */
function restored(): Turn[] {
  try {
    const kept: unknown = JSON.parse(sessionStorage.getItem(NAME) ?? "[]");
    return (Array.isArray(kept) ? kept : []).filter(isTurn).map((turn) => ({ ...turn, thought: turn.thought ?? "", answer: turn.role === "user" ? null : settled(turn) }));
  } catch {
    return [];
  }
}

function isTurn(value: unknown): value is Turn {
  const turn = value as Partial<Turn> | null;
  return turn != null && (turn.role === "user" || turn.role === "assistant") && typeof turn.content === "string";
}

/** An answer that was cut off by the reload ends there. */
function settled({ content, answer }: Turn): Answer {
  return { id: "", finish: "reload", timings: null, error: "", ...answer, text: content, thought: "", moments: [] };
}
