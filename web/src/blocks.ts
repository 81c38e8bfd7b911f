// The KV cache block by block, now and after each step that was seen: one map and the changes, so that it can be moved to
// and fro in time.
//
//   full map at step 100, changes of 101, 102, 103 ...   each change says what a block was and what it became
//   at(101): the map, with the changes after 101 undone

import type { BlockState, KvEvent, Name } from "./wire";

/** A block: free, cached without a user (it may be taken), or used by a request, with the number of its users. */
export type Block = { kind: "free" } | { kind: "cached" } | { kind: "used"; by: Name; sharers: number };

/** Changes that are kept; the step log keeps as many. */
const KEPT = 4096;
const [FREE, CACHED] = [0, 1];

interface Change {
  step: number;
  /** Block, what it was, what it became: three numbers each. */
  blocks: Int32Array;
}

export class Blocks {
  /** Grows with every event. */
  version = 0;
  /** After all changes before `cursor`. A block in use is the number of its user, from 2, times 4096, plus its sharers. */
  private map = new Int32Array(0);
  private changes: Change[] = [];
  private cursor = 0;
  /** The step of the full map; `null` before there is one. */
  private first: number | null = null;
  private users: Name[] = [];
  private numbers = new Map<Name, number>();

  clear(): void {
    this.version += 1;
    this.map = new Int32Array(0);
    this.changes = [];
    this.cursor = 0;
    this.first = null;
    this.users = [];
    this.numbers.clear();
  }

  /** The step that the map is known from; `null` before there is one. */
  get since(): number | null {
    return this.first;
  }

  get size(): number {
    return this.map.length;
  }

  event(value: unknown): void {
    const event = value as KvEvent;
    if (event.full) {
      this.clear();
      this.first = event.step;
      this.map = Int32Array.from(event.blocks, (state) => this.encode(state));
      return;
    }
    if (this.first == null) return;
    this.version += 1;
    this.seek(Infinity);
    const blocks = new Int32Array(event.changed.length * 3);
    event.changed.forEach(([block, state], i) => blocks.set([block, this.map[block]!, this.encode(state)], i * 3));
    this.changes.push({ step: event.step, blocks });
    if (this.changes.length > KEPT) {
      const { step } = this.changes.shift()!;
      this.cursor -= 1;
      this.first = step;
    }
    this.seek(Infinity);
  }

  /** What each block was after a step, for `decode`; the oldest known map for a step before that. Valid until the next call. */
  at(step: number): Int32Array {
    this.seek(step);
    return this.map;
  }

  /** The first step at or after this one after which the map was told; `null`: not yet. */
  toldFrom(step: number): number | null {
    if (this.first != null && this.first >= step) return this.first;
    return this.changes.find((change) => change.step >= step)?.step ?? null;
  }

  /** The last step before this one after which it was told. */
  toldBefore(step: number): number | null {
    let told = this.first != null && this.first < step ? this.first : null;
    for (const change of this.changes) if (change.step < step) told = change.step;
    return told;
  }

  /**
   * The blocks of which a request was the first user after a step, in the order in which it took them: first those that it had before the
   * map was known or that an earlier user of the same prefix left to it; these, and those of one step, by their numbers.
   */
  pagesOf(name: Name, step: number): number[] {
    this.seek(step);
    const user = (this.numbers.get(name) ?? -1) + 2;
    const taken = new Map<number, number>();
    if (user >= 2) this.map.forEach((code, block) => code >> 12 === user && taken.set(block, -1));
    for (let i = this.cursor - 1, open = taken.size; i >= 0 && open > 0; i -= 1) {
      const { step, blocks } = this.changes[i]!;
      for (let k = 0; k < blocks.length; k += 3) {
        if (taken.get(blocks[k]!) !== -1 || blocks[k + 1]! >> 12 === user) continue;
        if (blocks[k + 1]! <= CACHED) taken.set(blocks[k]!, step);
        open -= 1;
      }
    }
    return [...taken].sort((a, b) => a[1] - b[1] || a[0] - b[0]).map(([block]) => block);
  }

  decode(code: number): Block {
    if (code === FREE) return { kind: "free" };
    if (code === CACHED) return { kind: "cached" };
    return { kind: "used", by: this.users[(code >> 12) - 2]!, sharers: code & 0xfff };
  }

  private encode(state: BlockState): number {
    if (typeof state === "number") return state;
    const [name, sharers] = state;
    let number = this.numbers.get(name);
    if (number === undefined) {
      number = this.users.length;
      this.users.push(name);
      this.numbers.set(name, number);
    }
    return ((number + 2) << 12) | Math.min(sharers, 0xfff);
  }

  private seek(step: number): void {
    const { changes, map } = this;
    while (this.cursor < changes.length && changes[this.cursor]!.step <= step) {
      const { blocks } = changes[this.cursor]!;
      for (let i = 0; i < blocks.length; i += 3) map[blocks[i]!] = blocks[i + 2]!;
      this.cursor += 1;
    }
    while (this.cursor > 0 && changes[this.cursor - 1]!.step > step) {
      this.cursor -= 1;
      const { blocks } = changes[this.cursor]!;
      for (let i = blocks.length - 3; i >= 0; i -= 3) map[blocks[i]!] = blocks[i + 1]!;
    }
  }
}
