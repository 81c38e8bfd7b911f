// One streamed request to the engine, and what both phases did in it.

import type { App } from "./app";
import { isAboutWords, wordFields, type Words } from "./words";

/** The server's `timings`, as they are in the last events of an answer. */
export interface Timings {
  queue_ms: number;
  prefill_ms: number;
  decode_ms: number;
  ttft_ms: number;
  total_ms: number;
  prefill_tokens: number;
  cached_tokens: number;
  decode_tokens: number;
  /** Draft tokens that were checked, and those that were accepted; absent without drafts. */
  drafted_tokens?: number;
  accepted_tokens?: number;
  prefill_tokens_per_second: number;
  decode_tokens_per_second: number;
  preemptions: number;
  detail?: (Detail | null)[];
}

/** Who owned the time of one prompt. */
export interface Detail {
  ttft: Record<string, number>;
  gaps: Record<string, number>;
  /** By how much the machine's part of either may be wrong. */
  uncertain?: { ttft_ms: number; gaps_ms: number };
  saved_by_cache_ms: number;
}

/** What came back. A request that failed has an `error`, in the server's own words, and what had come until then. */
export interface Answer {
  id: string;
  text: string;
  /** What was thought before it. */
  thought: string;
  finish: string;
  timings: Timings | null;
  error: string;
  /** When each piece of text came, in ms of the page's clock. */
  moments: number[];
  /** Tokens of the answer, of its thought among them, and of the prompt; 0 where the server did not say. */
  tokens: number;
  thoughtTokens: number;
  promptTokens: number;
  /** From the thought's first token to its last. */
  thoughtMs: number;
}

/** Before anything has come. */
export function noAnswer(): Answer {
  return { id: "", text: "", thought: "", finish: "", timings: null, error: "", moments: [], tokens: 0, thoughtTokens: 0, promptTokens: 0, thoughtMs: 0 };
}

/** How far a prompt is read, in tokens; `cache` of them had been read before. */
export interface Progress {
  total: number;
  cache: number;
  processed: number;
}

/** What is heard of an answer while it comes. */
export interface Hooks {
  signal?: AbortSignal | null;
  /** Each piece of the answer, thought or text, as it comes and with what it added to. */
  onText?: (piece: string, answer: Answer) => void;
  /** Each piece of the prompt that is read before that. */
  onProgress?: ((progress: Progress) => void) | null;
  /** The answer's tokens and those that were next in line, for the Step page. */
  words?: Words | null;
}

/** Sends `body` to `path` as a stream. Never throws. */
export async function ask(app: App, path: string, body: Record<string, unknown>, { signal = null, onText = () => {}, onProgress = null, words = null }: Hooks = {}): Promise<Answer> {
  const answer = noAnswer();
  const post = (more: Record<string, unknown>): Promise<Response> =>
    app.api(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, ...more, stream: true, timings_detail: true, return_progress: onProgress != null }),
      signal,
    });
  try {
    let response = await post(words ? wordFields(path) : {});
    if (words && response.status === 400 && (await isAboutWords(response.clone()))) response = await post({});
    if (!response.ok || !response.body) {
      answer.error = await told(response);
      return answer;
    }
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      words?.hear(event);
      if (event?.prompt_progress) onProgress?.(event.prompt_progress);
      take(answer, event, onText);
      if (answer.error) break;
    }
    if (!answer.finish && !answer.error) answer.error = "The stream ended before the answer did.";
  } catch (error) {
    if (signal?.aborted) answer.finish = "cancelled";
    else answer.error = `No answer from the server (${error instanceof Error ? error.message : String(error)}).`;
  }
  return answer;
}

/** What the server said about a request that it refused. */
export async function told(response: Response): Promise<string> {
  const text = await response.text();
  try {
    const message = JSON.parse(text)?.error?.message;
    if (typeof message === "string") return message;
  } catch {
    // not JSON: something between us and the server answered
  }
  return `The server answered ${response.status}: ${text.slice(0, 300)}`;
}

function take(answer: Answer, event: any, onText: (piece: string, answer: Answer) => void): void {
  if (event?.error) {
    answer.error = String(event.error.message ?? "The server ended the answer with an error.");
    return;
  }
  if (typeof event?.id === "string") answer.id = event.id;
  if (event?.timings) answer.timings = event.timings;
  if (Array.isArray(event?.prompt_token_ids)) answer.promptTokens = event.prompt_token_ids.length;
  const choice = event?.choices?.[0];
  if (!choice) return;
  if (typeof choice.finish_reason === "string") answer.finish = choice.finish_reason;
  const thought = choice.delta?.reasoning;
  const piece = choice.delta?.content ?? choice.text;
  const isThought = typeof thought === "string" && thought !== "";
  const isText = typeof piece === "string" && piece !== "";
  // Without ids a piece is a token: there is an event for each.
  answer.tokens += Array.isArray(choice.token_ids) ? choice.token_ids.length : isThought || isText ? 1 : 0;
  if (!isThought && !isText) return;
  const now = performance.now();
  answer.moments.push(now);
  if (isThought) {
    answer.thought += thought;
    answer.thoughtTokens = answer.tokens;
    answer.thoughtMs = now - answer.moments[0];
  }
  if (isText) answer.text += piece;
  onText(isText ? piece : "", answer);
}

/** The `data` of each server-sent event. */
async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data:"));
        if (data.length > 0) yield data.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The longest pause between two pieces of text, in ms; 0 for fewer than two. */
export function longestGap(moments: number[], from = -Infinity, to = Infinity): number {
  let longest = 0;
  for (let i = 1; i < moments.length; i += 1) {
    if (moments[i] >= from && moments[i - 1] <= to) longest = Math.max(longest, moments[i] - moments[i - 1]);
  }
  return longest;
}

/**
 * A prompt of exactly `length` token ids, unlike any sent before (the prefix cache must not have it): text of numbered
 * words through the server's own tokenizer, cut to length. Its server's error as an exception.
 */
export async function longPrompt(app: App, length: number, salt = Math.floor(Math.random() * 1e9)): Promise<number[]> {
  const ids: number[] = [];
  for (let page = 0; ids.length < length; page += 1) {
    const words = Array.from({ length: Math.ceil(length / 8) }, (_, i) => `Lantern ${salt + page * 7919 + i} of ${i}.`);
    const response = await app.api("/tokenize", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ prompt: words.join(" "), add_special_tokens: page === 0 }),
    });
    if (!response.ok) throw new Error(await told(response));
    const { tokens } = await response.json();
    if (!Array.isArray(tokens) || tokens.length === 0) throw new Error("the server's tokenizer gave no tokens");
    ids.push(...tokens);
  }
  return ids.slice(0, length);
}
