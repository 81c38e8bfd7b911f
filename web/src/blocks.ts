// The KV cache block by block, now and after each step that the log has: what the Step page draws.

import type { Name } from "./wire";

/** A block: free, cached without a user (evictable), or used by a request and perhaps shared. */
export type Block = { kind: "free" } | { kind: "cached" } | { kind: "used"; by: Name; sharers: number };

export class Blocks {
  version = 0;

  clear(): void {
    this.version += 1;
  }

  event(_value: unknown): void {
    this.version += 1;
  }
}
