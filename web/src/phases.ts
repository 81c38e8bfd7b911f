// The line under an answer: what each phase did, in the words of `twostroke run`, and whose work was in its way.

import type { App } from "./app";
import type { Answer, Timings } from "./ask";
import { add, el, say } from "./dom";
import { least, own } from "./limits";
import { count, ms, percent } from "./units";
import type { Limits, StepEvent } from "./wire";

/** Share of the machine's limit in the steps that carried a request's rows, by phase; null where nothing is known. */
export interface Shares {
  prefill: number | null;
  decode: number | null;
}

/**
 * How close the machine came to its limits in the steps that carried `request`: the roofline's time of all work in those
 * steps (the longer of arithmetic and reading) over the time they took, where that is known. The steps of a prompt are its prefill.
 */
export function sharesOf(request: string, steps: Iterable<StepEvent>, limits: Limits | null): Shares {
  const sums = { prefill: { ideal: 0, took: 0 }, decode: { ideal: 0, took: 0 } };
  if (limits) {
    for (const step of steps) {
      const has = (rows: { r: unknown }[]) => rows.some((row) => row.r === request);
      const phase = has(step.prefill) ? sums.prefill : has(step.decode) ? sums.decode : null;
      if (!phase || !step.flops || !step.bytes) continue;
      const alone = own(step, limits);
      if (alone == null) continue;
      const { compute, bandwidth } = least(step, limits);
      phase.ideal += Math.max(compute, bandwidth);
      phase.took += alone;
    }
  }
  const share = ({ ideal, took }: { ideal: number; took: number }) => (took > 0 ? Math.min(1, ideal / took) : null);
  return { prefill: share(sums.prefill), decode: share(sums.decode) };
}

/** `prefill 812 tok in 96 ms (8.4k tok/s, 61 % of limit) · decode 41.3 tok/s (88 % of limit)`. */
export function phaseLine(timings: Timings, shares: Shares): string {
  const of = (share: number | null) => (share === null ? "" : `${percent(share)} of limit`);
  const list = (...parts: string[]) => parts.filter((part) => part !== "").join(", ");
  const cached = timings.cached_tokens > 0 ? ` (+ ${timings.cached_tokens} cached)` : "";
  const speed = list(rate(timings.prefill_tokens_per_second), of(shares.prefill));
  let line = `prefill ${timings.prefill_tokens} tok${cached} in ${ms(timings.prefill_ms)} (${speed})`;
  if (timings.decode_tokens > 0) {
    const share = of(shares.decode);
    line += ` · decode ${rate(timings.decode_tokens_per_second)}${share && ` (${share})`}`;
    if (timings.drafted_tokens) line += `, ${timings.accepted_tokens ?? 0} of ${count(timings.drafted_tokens, "draft token")} accepted`;
  }
  return line;
}

/** What the line leaves out: waiting, and what other requests' prompts added. Empty if there was nothing of the kind. */
export function delays(timings: Timings): string {
  const parts: string[] = [];
  if (timings.queue_ms >= 1) parts.push(`waited ${ms(timings.queue_ms)} before its first row`);
  const owners = timings.detail?.[0];
  const others = owners?.gaps.other_prefill_ms ?? 0;
  const inFirst = owners?.ttft.other_prefill_ms ?? 0;
  if (inFirst >= 1) parts.push(`other prompts took ${ms(inFirst)} of the time to its first token`);
  if (others >= 1) parts.push(`other prompts took ${ms(others)} of the time between its tokens`);
  const machine = (owners?.ttft.machine_ms ?? 0) + (owners?.gaps.machine_ms ?? 0);
  if (machine >= 1) parts.push(`the machine ran others for ${ms(machine)}`);
  const reads = (owners?.ttft.expert_reads_ms ?? 0) + (owners?.gaps.expert_reads_ms ?? 0);
  if (reads >= 1) parts.push(`experts were read from disk for ${ms(reads)}`);
  const there = owners?.ttft.remote_machine_ms ?? 0;
  if (there >= 1) parts.push(`the machine that read its prompt ran others for ${ms(there)}`);
  const drafts = (owners?.ttft.other_drafts_ms ?? 0) + (owners?.gaps.other_drafts_ms ?? 0);
  if (drafts >= 1) parts.push(`drafts of other requests took ${ms(drafts)}`);
  if (timings.preemptions > 0) parts.push(`lost its cache blocks ${count(timings.preemptions, "time")}`);
  return parts.join(" · ");
}

/** Both phases drawn to scale: how long it waited, prefilled and decoded. Told in words to those who do not see it. */
export function phaseBar(timings: Timings): HTMLElement {
  const parts = [
    { name: "waiting", ms: timings.queue_ms },
    { name: "prefill", ms: timings.prefill_ms },
    { name: "decode", ms: timings.decode_ms },
  ];
  const text = parts.map((part) => `${part.name} ${ms(part.ms)}`).join(", ");
  const bar = el("div", { class: "phase-bar", role: "img", "aria-label": text, title: text });
  for (const part of parts.filter((part) => part.ms > 0)) {
    const piece = el("span", { class: part.name });
    piece.style.flexGrow = String(part.ms);
    bar.append(piece);
  }
  return bar;
}

/** `41.3 tok/s`, `8.4k tok/s`. */
export function rate(perSecond: number): string {
  if (perSecond < 99.95) return `${perSecond.toFixed(1)} tok/s`;
  if (perSecond < 999.5) return `${perSecond.toFixed(0)} tok/s`;
  return `${(perSecond / 1e3).toFixed(perSecond < 99_950 ? 1 : 0)}k tok/s`;
}

/** The feed is behind the answer by a step or two; it never takes this long. */
const FEED_PATIENCE_MS = 3000;

/** The line of a finished answer; the shares of the limit follow when the feed has told of the answer's last step. */
export function phaseLineOf(app: App, answer: Answer, timings: Timings): HTMLElement {
  const line = el("p", { class: "phase-line" }, phaseLine(timings, { prefill: null, decode: null }));
  void told(app, answer.id).then(() => say(line, phaseLine(timings, sharesOf(answer.id, app.feed.log.steps, app.info.limits))));
  return line;
}

/** What is behind the line: both phases to scale, the delays, what the cache had of the prompt, and the way to the answer's lane. */
export function phaseDetails({ id, timings, tokens }: Answer): HTMLElement {
  const details = el("div", { class: "phases" });
  if (timings) {
    const late = delays(timings);
    const prompt = `Of the prompt ${count(timings.cached_tokens, "token")} came from the prefix cache and ${timings.prefill_tokens.toLocaleString("en")} were read`;
    const written = tokens > 0 ? `; ${count(tokens, "token")} came in ${ms(timings.total_ms)}.` : ".";
    add(details, phaseBar(timings), late && el("p", { class: "delays" }, late), el("p", {}, prompt + written));
  }
  if (id) add(details, el("a", { href: `#/live?request=${encodeURIComponent(id)}` }, "Its lane on Live"));
  return details;
}

/** Resolves when the feed has told how `request` ended, or will not. */
export function told(app: App, request: string): Promise<void> {
  return new Promise((resolve) => {
    const isOver = () => app.feed.log.requests.get(request)?.ended != null;
    const done = () => {
      clearTimeout(timer);
      end();
      resolve();
    };
    const end = app.feed.subscribe(() => isOver() && done());
    const timer = setTimeout(done, FEED_PATIENCE_MS);
    if (isOver()) done();
  });
}
