// The words of requests that this tab has sent, for the Step page: the feed tells of tokens by their positions and never what they
// say, the answer tells its sender. They are joined here by position, and leave the tab with it.
//
//   prompt        0 1 2 3        the words at these positions were sent
//   answer                4 5    and these came, each with the five that were most likely
//   feed   step 12: rows 0 to 3 -> the token at 4        step 13: row 4 -> the token at 5

import type { App } from "./app";

export interface Word {
  text: string;
  /** From 0 to 1; `null` of a prompt's. */
  probability: number | null;
  /** The most likely in its place, itself among them. */
  top: { text: string; probability: number }[];
}

interface Story {
  prompt: number[];
  /** What the prompt's tokens say; `null` before that is known. */
  texts: string[] | null;
  isAsked: boolean;
  words: Word[];
}

/** Requests that are kept, tokens of an answer, and tokens of a prompt of which the words are asked for. */
const MOST_STORIES = 64;
const MOST_WORDS = 8_192;
const LONGEST_PROMPT = 32_768;
const TOP = 5;
/** Tokens that are asked for one by one, where a text is not cut as it came. */
const MOST_SINGLE = 64;

export class Words {
  private stories = new Map<string, Story>();
  private listeners = new Set<() => void>();

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** An event of an answer that was asked for with [`wordFields`]. */
  hear(event: any): void {
    const choice = event?.choices?.[0];
    const id: unknown = event?.id;
    if (typeof id !== "string") return;
    const prompt: unknown = event.prompt_token_ids ?? choice?.prompt_token_ids;
    if (Array.isArray(prompt) && !this.stories.has(id)) this.begin(id, prompt);
    const story = this.stories.get(id);
    const came = story ? wordsOf(choice?.logprobs) : [];
    if (!story || came.length === 0) return;
    if (story.words.length < MOST_WORDS) story.words.push(...came);
    this.tell();
  }

  private begin(id: string, prompt: unknown[]): void {
    this.stories.set(id, { prompt: prompt.filter((each) => typeof each === "number"), texts: null, isAsked: false, words: [] });
    for (const oldest of this.stories.keys()) {
      if (this.stories.size <= MOST_STORIES) break;
      this.stories.delete(oldest);
    }
  }

  knows(request: string): boolean {
    return this.stories.has(request);
  }

  /** The token of a request at a position; `null` where that is not known. */
  at(request: string, position: number): Word | null {
    const story = this.stories.get(request);
    if (!story) return null;
    const text = story.texts?.[position];
    if (position < story.prompt.length) return text == null ? null : { text, probability: null, top: [] };
    return story.words[position - story.prompt.length] ?? null;
  }

  /** Asks the server, once, what the tokens of a request's prompt say. */
  async learn(app: App, request: string): Promise<void> {
    const story = this.stories.get(request);
    if (!story || story.isAsked || story.prompt.length > LONGEST_PROMPT) return;
    story.isAsked = true;
    story.texts = await textsOf(app, story.prompt).catch(() => null);
    this.tell();
  }

  private tell(): void {
    for (const listener of this.listeners) listener();
  }
}

/** Those of this tab. */
export const words = new Words();

/** What asks for words, in the terms of each route. */
export function wordFields(path: string): Record<string, unknown> {
  const top = path.endsWith("/chat/completions") ? { logprobs: true, top_logprobs: TOP } : { logprobs: TOP };
  return { ...top, return_token_ids: true };
}

/** Whether a server that refused a request did so for the words: it may give fewer log probabilities than these. */
export async function isAboutWords(response: Response): Promise<boolean> {
  const { error } = (await response.json().catch(() => ({}))) ?? {};
  return error?.param === "logprobs" || error?.param === "top_logprobs";
}

/** The tokens of an event, in the shape of either route. */
function wordsOf(logprobs: any): Word[] {
  if (Array.isArray(logprobs?.content)) {
    return logprobs.content.map(({ token, logprob, top_logprobs }: any) => ({ text: String(token), probability: share(logprob), top: (top_logprobs ?? []).map((each: any) => ({ text: String(each?.token), probability: share(each?.logprob) })) }));
  }
  if (!Array.isArray(logprobs?.tokens)) return [];
  return logprobs.tokens.map((token: unknown, i: number) => {
    const top = Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([text, value]) => ({ text, probability: share(value) }));
    return { text: String(token), probability: share(logprobs.token_logprobs?.[i]), top: top.sort((a, b) => b.probability - a.probability).slice(0, TOP) };
  });
}

function share(logprob: unknown): number {
  return typeof logprob === "number" ? Math.min(1, Math.exp(logprob)) : 0;
}

/** What each of these tokens says: their text cut again, which gives the same tokens, or else one by one. */
async function textsOf(app: App, ids: number[]): Promise<string[]> {
  const post = async (path: string, body: unknown): Promise<any> => {
    const response = await app.api(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    if (!response.ok) throw new Error(`${path} answered ${response.status}`);
    return response.json();
  };
  const { content } = await post("/detokenize", { tokens: ids });
  const { tokens } = await post("/tokenize", { content, with_pieces: true });
  if (Array.isArray(tokens) && tokens.length === ids.length && tokens.every(({ id }, i) => id === ids[i])) return tokens.map(({ piece }) => textOf(piece));
  const single = [...new Set(ids)].slice(0, MOST_SINGLE);
  const texts = await Promise.all(single.map(async (id) => [id, String((await post("/detokenize", { tokens: [id] })).content)] as const));
  const known = new Map(texts);
  return ids.map((id) => known.get(id) ?? `#${id}`);
}

/** A piece, or the bytes of a part of a character. */
function textOf(piece: unknown): string {
  return Array.isArray(piece) ? piece.map((byte) => `\\x${Number(byte).toString(16).padStart(2, "0")}`).join("") : String(piece);
}
