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

/** What stands where a figure would exceed a limit. */
export const NOT_KNOWN = "not known (machine busy)";
/** Moments are told to the microsecond. */
const ROUNDING_MS = 0.002;

/** Milliseconds that each limit asks for this work at least: nothing takes or may be predicted to take less. */
export function least(work: { flops: number; bytes: number }, limits: Limits): { compute: number; bandwidth: number } {
  return { compute: (work.flops / limits.matrix_flops) * 1000, bandwidth: (work.bytes / limits.read_bandwidth) * 1000 };
}

/**
 * What a step took by itself: without the time in which the machine ran others. Limits are held against that. It is an estimate, which
 * proves nothing: it raises no limit, and it is not known (`null`) where it would leave the work less than the least that there is.
 */
export function own(step: { took: number; stolen?: number; flops: number; bytes: number }, limits: Limits | null): number | null {
  if (!step.stolen) return step.took;
  const alone = step.took - step.stolen;
  const { compute, bandwidth } = limits ? least(step, limits) : { compute: 0, bandwidth: 0 };
  return alone > Math.max(compute, bandwidth) + ROUNDING_MS ? alone : null;
}

export interface Distance {
  /** Per second; `null`: not known. */
  achieved: number | null;
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
    limits,
    limits?.matrix_flops,
    (step) => step.prefill.reduce((sum, row) => sum + row.len, 0),
  );
}

/** Steps of answers alone, against the bytes that it can read. */
export function decodeDistance(steps: Step[], limits: Limits | null): Distance | null {
  return distance(
    steps.filter(writesOnly),
    (step) => step.bytes,
    limits,
    limits?.read_bandwidth,
    outputTokens,
  );
}

/** The last that is known of a phase which none of the newest steps shows, and how long ago that was in ms. */
export function lastKnown(phase: "prefill" | "decode", steps: Step[], busy: number, limits: Limits | null): (Distance & { age: number }) | null {
  const last = newest(steps.filter(phase === "prefill" ? reads : writesOnly), busy);
  const known = phase === "prefill" ? prefillDistance(last, limits) : decodeDistance(last, limits);
  return known && { ...known, age: steps[steps.length - 1]!.end - last[last.length - 1]!.end };
}

function distance(steps: Step[], amount: (step: Step) => number, limits: Limits | null, limit: number | undefined, tokens: (step: Step) => number): Distance | null {
  const sum = (of: Step[], what: (step: Step) => number): number => of.reduce((sum, step) => sum + what(step), 0);
  if (sum(steps, (step) => step.took) === 0) return null;
  const known = steps.filter((step) => own(step, limits) != null);
  const seconds = sum(known, (step) => own(step, limits)!) / 1000;
  const achieved = seconds > 0 ? sum(known, amount) / seconds : null;
  const share = achieved != null && limit ? Math.min(1, achieved / limit) : null;
  return { achieved, share, tokens: (sum(steps, tokens) / sum(steps, (step) => step.took)) * 1000, steps: steps.length };
}

/** Which limit is nearer to a step, and how near, `null` if its own time is not known; `null` where the limits are not known. */
export function bound(step: Step, limits: Limits | null): { by: "compute" | "bandwidth"; share: number | null } | null {
  if (!limits || step.took <= 0) return null;
  const { compute, bandwidth } = least(step, limits);
  const alone = own(step, limits);
  return { by: compute > bandwidth ? "compute" : "bandwidth", share: alone == null ? null : Math.min(1, Math.max(compute, bandwidth) / alone) };
}
