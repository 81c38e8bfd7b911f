// What the trials send, and what the feed tells of it. Every figure is the engine's own.

import type { App } from "../app";
import { longPrompt, told as refusal, type Timings } from "../ask";
import { isUndisturbed, own } from "../limits";
import type { Step } from "../log";
import { told } from "../phases";
import type { Plan } from "../plan";
import { median } from "../units";

/** Tokens of a prompt: as many as wanted, where this server reads them and an answer of `answer` tokens. */
export function long(app: App, wanted: number, answer: number): number {
  return Math.max(16, Math.min(wanted, app.info.max_model_len - answer));
}

/** Why a trial is smaller here than elsewhere; empty: it is not. */
export function shortContext(app: App, wanted: number, answer: number): string {
  const { max_model_len } = app.info;
  const here = long(app, wanted, answer);
  return here === wanted ? "" : `This server reads at most ${max_model_len.toLocaleString("en")} tokens, so the trial takes ${here.toLocaleString("en")} in place of ${wanted.toLocaleString("en")}. The scene and the question hold for any length.`;
}

/** What came back of a prompt that was sent. */
export interface Sent {
  id: string;
  text: string;
  timings: Timings & { prefill?: { intensity: number } | null; decode?: { intensity: number } | null; first_visible_ms?: number };
  /** Ids of the answer's tokens, where they were asked for. */
  tokens: number[];
  prompt: number[];
  /** The answer's tokens as text, each with those that were next in line and their chances. */
  words: { text: string; top: [string, number][] }[];
  thought: number;
}

async function post(app: App, path: string, body: object, signal: AbortSignal): Promise<any> {
  const response = await app.api(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

/**
 * Sends a prompt; the answer has exactly `tokens` tokens, each of a pass. It comes in one piece: a page that reads a stream takes
 * the cores that are to be measured. A refusal is thrown.
 */
export async function send(app: App, prompt: number[] | number[][] | string, tokens: number, signal: AbortSignal, more: object = {}): Promise<Sent> {
  const body = { prompt, max_tokens: tokens, ignore_eos: true, temperature: 0, speculate: false, timings_detail: true, ...more };
  return sent(await post(app, "/v1/completions", body, signal));
}

/** Asks in a conversation, where a model may think. */
export async function chat(app: App, question: string, tokens: number, signal: AbortSignal, more: object = {}): Promise<Sent> {
  const body = { messages: [{ role: "user", content: question }], max_tokens: tokens, temperature: 0, speculate: false, return_token_ids: true, ...more };
  return sent(await post(app, "/v1/chat/completions", body, signal));
}

function sent({ id, choices, timings, usage }: any): Sent {
  const choice = choices[0];
  const tops: Record<string, number>[] = choice.logprobs?.top_logprobs ?? [];
  const words = (choice.logprobs?.tokens ?? []).map((text: string, at: number) => ({ text, top: Object.entries(tops[at] ?? {}).map(([text, chance]) => [text, Math.exp(chance)]) }));
  const thought = usage?.completion_tokens_details?.reasoning_tokens ?? 0;
  return { id, text: choice.text ?? choice.message?.content ?? "", timings, tokens: choice.token_ids ?? [], prompt: choice.prompt_token_ids ?? [], words, thought };
}

/** What `/plan` says; its arithmetic is that of `twostroke plan`, and no busy machine changes it. */
export async function planned(app: App, question: Record<string, string | number>, signal: AbortSignal): Promise<Plan & { knee: number | null }> {
  const asked = Object.entries(question).map(([name, value]): [string, string] => [name, String(value)]);
  const response = await app.api(`/plan?${new URLSearchParams(asked)}`, { signal });
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

export const sum = (values: number[]): number => values.reduce((sum, value) => sum + value, 0);

/** Rows of a request's prompt in a step. */
export const rowsOf = (id: string) => (step: Step): number => sum(step.prefill.filter((row) => row.r === id).map((row) => row.len));

/** The passes that carried a request, when the feed has told of all of them. */
async function passesOf(app: App, id: string): Promise<Step[]> {
  await told(app, id);
  const has = (rows: { r: unknown }[]): boolean => rows.some(({ r }) => r === id);
  const steps = app.feed.log.steps.filter(({ prefill, decode }) => has(prefill) || has(decode));
  if (steps.length === 0) throw new Error("the feed has not told of this request. Is the connection live?");
  return steps;
}

/** Those over its prompt. */
export async function prefillsOf(app: App, id: string): Promise<Step[]> {
  return (await passesOf(app, id)).filter((step) => rowsOf(id)(step) > 0);
}

/** Those of its answer without a prompt beside it; `alone`: without any other request. */
export async function decodesOf(app: App, id: string, alone = false): Promise<Step[]> {
  const theirs = (row: { r: unknown }): boolean => row.r === id;
  return (await passesOf(app, id)).filter(({ prefill, decode }) => prefill.length === 0 && (!alone || decode.every(theirs)));
}

/** A time: the median of the undisturbed ones of some steps, by their own time, and of how many it is. */
export interface Sample {
  value: number | null;
  steps: number;
  used: number;
}

/** Fewer undisturbed steps than this are no figure. */
const FEWEST = 3;

export function sampled(app: App, steps: Step[], of: (own: number, step: Step) => number = (own) => own): Sample {
  const times = steps.filter(isUndisturbed).flatMap((step) => {
    const alone = own(step, app.info.limits);
    return alone == null ? [] : [of(alone, step)];
  });
  return { value: times.length < FEWEST ? null : median(times), steps: steps.length, used: times.length };
}

/** `many` prompts of `length` tokens, unlike each other and all before. */
export function prompts(app: App, many: number, length: number): Promise<number[][]> {
  return Promise.all(Array.from({ length: many }, () => longPrompt(app, length)));
}

/** No request before had it: what is sent with it finds nothing in the prefix cache. */
export function salt(): string {
  return `tour-${Math.random().toString(36).slice(2)}`;
}
