// What there is to say about a place of the timeline: a token, a chunk of a prompt, a wait.

import { timeOf } from "./lanes";
import { outputTokens, type Log, type Request, type Step, type Token } from "./log";
import { count, ms, shortName } from "./units";
import type { AwayEvent, DecodeRow, PrefillRow } from "./wire";

/** What is under the pointer or the keyboard. */
export type Hit =
  | { kind: "token"; token: Token; step: Step | undefined }
  | { kind: "chunk"; request: Request; row: PrefillRow; step: Step }
  | { kind: "whole"; request: Request }
  | { kind: "queue"; request: Request; from: number; to: number | null }
  | { kind: "away"; request: Request; from: number; to: number | null; away: AwayEvent }
  | { kind: "pause"; request: Request; from: number; to: number | null; verdict: string };

export function requestOf(hit: Hit): Request {
  return hit.kind === "token" ? hit.token.request : hit.request;
}

export function extent(hit: Hit): { request: Request; from: number; to: number | null } {
  const request = requestOf(hit);
  if (hit.kind === "token") return { request, from: hit.step?.at ?? hit.token.at, to: hit.token.at };
  if (hit.kind === "chunk") return { request, from: hit.step.at, to: hit.step.end };
  if (hit.kind === "whole") return { request, from: request.from, to: request.isOpen ? null : request.to };
  return { request, from: hit.from, to: hit.to };
}

export function isSame(a: Hit | null, b: Hit | null): boolean {
  if (a?.kind === "token" && b?.kind === "token") return a.token === b.token; // of a run, each is another
  return a != null && b != null && a.kind === b.kind && extent(a).from === extent(b).from && requestOf(a) === requestOf(b);
}

/** The row of a request in a step, whichever phase it is in. */
export function rowOf(step: Step, request: Request): DecodeRow | undefined {
  const decode = step.decodeOf.indexOf(request);
  return decode >= 0 ? step.decode[decode] : step.prefill[step.prefillOf.indexOf(request)];
}

/** What a person wants to know of it, the headline first. */
export function describe(hit: Hit, log: Log): string[] {
  const name = shortName(requestOf(hit).name);
  if (hit.kind === "whole") return all(hit.request, name);
  if (hit.kind === "queue") {
    const length = (hit.to ?? log.newest) - hit.from;
    return [`${name} · waiting ${ms(length)}`, "In the queue: no step has carried a token of it yet."];
  }
  if (hit.kind === "away") return elsewhere(hit.away, (hit.to ?? log.newest) - hit.from, name);
  if (hit.kind === "pause") {
    const length = (hit.to ?? log.newest) - hit.from;
    return [`${name} · preempted for ${ms(length)}`, `It gave its KV blocks back to make room (${hit.verdict}).`];
  }
  if (hit.kind === "chunk") return chunk(hit.request, hit.row, hit.step, name);
  return token(hit.token, hit.step, log, name);
}

/** A request as a whole. */
function all(request: Request, name: string): string[] {
  const { ended, tokens, promptTokens, cached } = request;
  const state = ended?.ending ?? (request.gone ? "over" : "open");
  const lines = [`${name} · ${state}`, `${count(promptTokens, "prompt token")}${cached > 0 ? `, ${cached.toLocaleString("en")} of them cached` : ""}, ${count(ended?.generated ?? tokens.length, "output token")}.`];
  const times: [string, number | null | undefined][] = [["queue", ended?.queue_ms], ["time to first token", request.ttft], ["a token", ended?.tpot_ms], ["longest gap", ended?.longest_gap_ms]];
  const known = times.filter(([, value]) => value != null && value > 0);
  if (known.length > 0) lines.push(`${known.map(([what, value]) => `${what} ${ms(value)}`).join(", ")}.`);
  if (tokens.length === 0) lines.push("Its steps are no longer known.");
  return lines;
}

function chunk(request: Request, row: PrefillRow, step: Step, name: string): string[] {
  const whole = request.promptTokens > row.len ? ` of ${request.promptTokens.toLocaleString("en")}` : "";
  const lines = [`${name} · prefill`, `${count(row.len, "prompt token")}${whole} in one step of ${ms(step.took)}.`];
  if (row.cached > 0) lines.push(`${count(row.cached, "token")} before them came from the prefix cache.`);
  if (taken(step)) lines.push(`The machine ran other programs for ${ms(taken(step))} of it.`);
  if (step.decode.length > 0) lines.push(`${count(step.decode.length, "sequence")} in decode shared the step and waited for it.`);
  if (row.samples > 0) lines.push(`The first token came of it${request.ttft == null ? "" : `, ${ms(request.ttft)} after the request`}.`);
  const shared = whose(step, row);
  if (shared) lines.push(shared);
  return lines;
}

/** A prompt that another worker reads, or has read. */
function elsewhere({ worker, result, steps, landed, from_ms }: AwayEvent, length: number, name: string): string[] {
  const lines = [`${name} · away ${ms(length)}`];
  if (worker == null) return [...lines, result == null ? "Other workers are asked to read its prompt." : "No other worker read its prompt: it was read here."];
  const last = landed[landed.length - 1];
  const rows = steps.reduce((sum, step) => sum + step.rows, 0);
  const read = steps.length > 0 ? `: ${count(rows, "token")} in ${count(steps.length, "step")}` : "";
  lines.push(`The worker at ${worker} ${result == null ? "reads" : "read"} its prompt${read}.`);
  if (!last) lines.push("No KV block of it has come.");
  else lines.push(`${count(last.blocks, "KV block")} came, the first ${ms(landed[0]!.at_ms - from_ms)} after it left, the last after ${ms(last.at_ms - from_ms)}.`);
  if (result != null && result !== "whole") lines.push("What did not come was computed here.");
  return lines;
}

function token(token: Token, step: Step | undefined, log: Log, name: string): string[] {
  const { request, gap } = token;
  const row = step && rowOf(step, request);
  const thought = row && request.thinks(token.answer, row.start) ? " · thought" : "";
  const lines = [`${name} · token ${token.index + 1}${thought}${token.late ? " · late" : ""}`];
  if (token.place > 0) lines.push(`It came with token ${token.index - token.place + 1}, of the same step: an accepted draft.`);
  else if (gap != null) lines.push(`${ms(gap)} after the one before${request.usualGap == null ? "" : ` (usually ${ms(request.usualGap)})`}.`);
  else if (token.index === 0 && request.firstToken === token.at && request.ttft != null) lines.push(`The first of its answer: time to first token ${ms(request.ttft)}${waited(request)}.`);
  else lines.push("The first of its answer that this page saw.");
  if (token.place === 0 && step) lines.push(...drafts(token, step));
  if (token.paused) lines.push("The engine was paused meanwhile: that time has no owner, and the token is not late.");
  const others = log.delayedBy(token);
  if (others.length > 0) {
    const named = others.slice(0, 3).map((other) => `${shortName(other.request.name)} (${count(other.rows, "token")})`);
    lines.push(`${token.late ? "It waited for the prompt of" : "In the same time the engine read the prompt of"} ${named.join(", ")}${others.length > 3 ? ` and ${others.length - 3} more` : ""}.`);
  } else if (token.late && !taken(step)) lines.push("No prompt was read in this time: it was left out of a step, preempted, or the step itself was slow.");
  if (taken(step)) lines.push(`The machine ran other programs for ${ms(taken(step))} of it.`);
  if (step) {
    const shared = row && whose(step, row);
    lines.push(`Step ${step.id}: ${ms(step.took)}, ${count(outputTokens(step), "output token")}${step.prefill.length > 0 ? `, ${count(step.prefill.reduce((sum, row) => sum + row.len, 0), "prompt token")}` : ""}.`);
    if (shared) lines.push(shared);
  }
  return lines;
}

/** How many drafts of what follows a token were accepted. */
function drafts({ request, index, run, answer }: Token, step: Step): string[] {
  const row = step.decode.find((row, k) => step.decodeOf[k] === request && row.a === answer);
  if (!row?.drafts) return [];
  const together = run === 1 ? "" : run === 2 ? ` Token ${index + 2} came with it.` : ` Tokens ${index + 2} to ${index + run} came with it.`;
  return [`Of ${count(row.drafts, "draft token")} behind it ${run === 1 ? "none was" : run === 2 ? "1 was" : `${run - 1} were`} accepted.${together}`];
}

/** What the machine took of a step and of the time before it, if that is worth a word. */
function taken(step: Step | undefined): number {
  const stolen = (step?.stolen ?? 0) + (step?.stolen_before ?? 0);
  return stolen >= 0.05 ? stolen : 0;
}

/** Of a first token: how long before its first step. */
function waited(request: Request): string {
  if (request.arrived == null || request.firstPass == null || request.firstPass - request.arrived < 0.05) return "";
  return `, of which ${ms(request.firstPass - request.arrived)} in the queue`;
}

/** Whose a shared step was; nothing where it was not shared. */
function whose(step: Step, row: DecodeRow): string {
  if (row.own == null) return "";
  const { own, decode, prefill } = timeOf(step, row);
  const parts = [`${ms(own)} its own rows`];
  if (prefill >= 0.005) parts.push(`${ms(prefill)} the prompts of others`);
  if (decode >= 0.005) parts.push(`${ms(decode)} the decode of others`);
  return `Of this step: ${parts.join(", ")}.`;
}

/** The part of `GET /v1/requests/{id}/timeline` that is read here. */
export interface TimelineAnswer {
  prompts: {
    ttft_ms: number | null;
    ttft: Record<string, number>;
    ttft_delayed_by: Delay[];
    late_tokens: Gap[];
    longest_gaps: Gap[];
  }[];
}

interface Delay {
  request: string | number | null;
  ms: number;
}

interface Gap {
  answer: number;
  at_ms: number;
  owners: Record<string, number>;
  delayed_by: Delay[];
}

/** The server's clock and the feed's are one; what is printed is rounded. */
const SLACK_MS = 2;

/** What the server's ledger says of a token or of the queue, in words: whose its time was, and who delayed it. `null`: it keeps nothing of this one. */
export function ownersOf(answer: TimelineAnswer, hit: Hit): string[] | null {
  const token = hit.kind === "token" ? hit.token : null;
  const { ttft } = requestOf(hit);
  for (const prompt of answer.prompts) {
    if (token?.gap == null) {
      // One that still waits is the only one of its answer, or it is unknown which it is.
      const isIt = prompt.ttft_ms == null || ttft == null ? answer.prompts.length === 1 : Math.abs(prompt.ttft_ms - ttft) <= SLACK_MS;
      if (!isIt) continue;
      return words(prompt.ttft, prompt.ttft_delayed_by);
    }
    const since = token.at - (token.request.firstToken ?? 0) + (prompt.ttft_ms ?? 0);
    const gap = [...prompt.late_tokens, ...prompt.longest_gaps].find((gap) => gap.answer === token.answer && Math.abs(gap.at_ms - since) <= SLACK_MS);
    if (gap) return words(gap.owners, gap.delayed_by);
  }
  return null;
}

function words(owners: Record<string, number>, delays: Delay[]): string[] {
  const parts = Object.entries(owners).filter(([, value]) => value >= 0.005).sort((a, b) => b[1] - a[1]);
  const lines = [`The ledger: ${parts.map(([name, value]) => `${name.replace(/_ms$/, "").replaceAll("_", " ")} ${ms(value)}`).join(", ")}.`];
  const others = delays.filter((other) => other.ms >= 0.005);
  if (others.length > 0) lines.push(`Delayed by ${others.map((other) => `${other.request == null ? "others" : shortName(other.request)} ${ms(other.ms)}`).join(", ")}.`);
  return lines;
}
