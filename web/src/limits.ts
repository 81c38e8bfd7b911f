// How close the machine comes to what it can do, from the step log: prefill against the compute limit, decode against the
// bandwidth limit (the roofline model: Williams et al., 2009).

import { outputTokens, type Step } from "./log";
import type { Limits } from "./wire";

/** What a step has reached is possible: the limits are at least that, whatever was measured. */
export function raise(limits: Limits | null, step: { took: number; flops: number; bytes: number }): void {
  if (!limits || step.took <= 0) return;
  limits.matrix_flops = Math.max(limits.matrix_flops, (step.flops / step.took) * 1000);
  limits.read_bandwidth = Math.max(limits.read_bandwidth, (step.bytes / step.took) * 1000);
}

/** The newest steps in which the engine worked for about `busy` ms. */
export function newest(steps: Step[], busy: number): Step[] {
  let sum = 0;
  let i = steps.length;
  while (i > 0 && sum < busy) {
    i -= 1;
    sum += steps[i]!.took;
  }
  return steps.slice(i);
}

/** Whether the time that a step took is its own, as the server counts it: at most a fiftieth was others'. */
export function isUndisturbed(step: { took: number; stolen?: number; uncertain?: number }): boolean {
  return ((step.stolen ?? 0) + (step.uncertain ?? 0)) * 50 <= step.took;
}

/**
 * What a step took by itself: without the time in which the machine ran others. Limits are held against that. It is an estimate, which
 * proves nothing: it raises no limit, and a share of one ends at all of it.
 */
export function own(step: { took: number; stolen?: number }): number {
  return Math.max(0, step.took - (step.stolen ?? 0));
}

export interface Distance {
  /** Per second. */
  achieved: number;
  /** Of the limit; `null` where it is not known. */
  share: number | null;
  /** Tokens per second of these steps. */
  tokens: number;
  steps: number;
}

const reads = (step: Step): boolean => step.prefill.length > 0;
const writesOnly = (step: Step): boolean => step.prefill.length === 0 && step.decode.length > 0;

/** Steps that carried prompts, against the operations that the machine can do; `null` without any. */
export function prefillDistance(steps: Step[], limits: Limits | null): Distance | null {
  return distance(
    steps.filter(reads),
    (step) => step.flops,
    limits?.matrix_flops,
    (step) => step.prefill.reduce((sum, row) => sum + row.len, 0),
  );
}

/** Steps of answers alone, against the bytes that it can read. */
export function decodeDistance(steps: Step[], limits: Limits | null): Distance | null {
  return distance(
    steps.filter(writesOnly),
    (step) => step.bytes,
    limits?.read_bandwidth,
    outputTokens,
  );
}

/** The last that is known of a phase which none of the newest steps shows, and how long ago that was in ms. */
export function lastKnown(phase: "prefill" | "decode", steps: Step[], busy: number, limits: Limits | null): (Distance & { age: number }) | null {
  const own = newest(steps.filter(phase === "prefill" ? reads : writesOnly), busy);
  const known = phase === "prefill" ? prefillDistance(own, limits) : decodeDistance(own, limits);
  return known && { ...known, age: steps[steps.length - 1]!.end - own[own.length - 1]!.end };
}

function distance(steps: Step[], amount: (step: Step) => number, limit: number | undefined, tokens: (step: Step) => number): Distance | null {
  const seconds = steps.reduce((sum, step) => sum + own(step), 0) / 1000;
  if (seconds === 0) return null;
  const achieved = steps.reduce((sum, step) => sum + amount(step), 0) / seconds;
  return { achieved, share: limit ? Math.min(1, achieved / limit) : null, tokens: steps.reduce((sum, step) => sum + tokens(step), 0) / seconds, steps: steps.length };
}

/** Which limit is nearer to a step, and how near: `null` where the limits are not known. */
export function bound(step: Step, limits: Limits | null): { by: "compute" | "bandwidth"; share: number; least: number } | null {
  if (!limits || own(step) <= 0) return null;
  const compute = (step.flops / limits.matrix_flops) * 1000;
  const bandwidth = (step.bytes / limits.read_bandwidth) * 1000;
  const least = Math.max(compute, bandwidth);
  return { by: compute > bandwidth ? "compute" : "bandwidth", share: Math.min(1, least / own(step)), least };
}
