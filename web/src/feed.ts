// The one reader of the server's live feed. It reads with `fetch` and not with `EventSource`, because the key travels in a
// header; it connects again by itself, waiting longer each time.
//
//   GET /live/feed?after=STEP --> text/event-stream --> events --> Log, and the KV map while a view shows it
//                                                              --> subscribers, once per piece that arrived

import { Blocks } from "./blocks";
import { raise } from "./limits";
import { Log } from "./log";
import type { AwayEvent, EndedEvent, HistoryEvent, Info, Limits, RequestsEvent, StatsEvent, StepEvent, ThoughtEvent } from "./wire";

/** Where the connection stands. */
export type State =
  | { kind: "connecting" }
  | { kind: "open" }
  /** It broke; the next attempt is at `at` (of `performance.now()`). */
  | { kind: "retrying"; at: number; reason: string }
  /** The server asks for a key, or refused the one it got. */
  | { kind: "key" }
  /** There is a server, and it has no such route. */
  | { kind: "absent" };

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
/** The server speaks every half second; when it has been silent for so long, the connection is dead. */
const SILENCE_MS = 15_000;

type Api = (path: string, init?: RequestInit) => Promise<Response>;

export class Feed {
  readonly log = new Log();
  readonly blocks = new Blocks();
  state: State = { kind: "connecting" };
  private listeners = new Set<() => void>();
  private watchers = 0;
  private connection: AbortController | null = null;
  private timer = 0;
  private wait = FIRST_WAIT_MS;
  private offset = Infinity;
  private running = false;
  /** Those of the last `Info`, raised by what steps reach. */
  private limits: Limits | null = null;

  constructor(
    private api: Api,
    /** Called with what a server says of itself, at the start and after every reconnect. */
    private onInfo: (info: Info) => void,
  ) {}

  /** Connects, and stays connected. Call it again when there is a new key. */
  start(): void {
    this.running = true;
    void this.connect();
  }

  /** Connects to another engine, of which nothing is known yet. */
  change(): void {
    this.restart();
    this.limits = null;
    this.start();
  }

  /** Calls `listener` after every change, at most once per piece that arrived. Returns what ends it. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Asks for the map of KV blocks too, until the returned function is called. */
  watchBlocks(): () => void {
    this.watchers += 1;
    if (this.watchers === 1 && this.running) void this.connect();
    return () => {
      this.watchers -= 1;
      if (this.watchers > 0) return;
      this.blocks.clear();
      if (this.running) void this.connect();
    };
  }

  /** The server's clock in ms, estimated from its last event. */
  now(): number {
    return this.offset === Infinity ? this.log.newest : Math.max(this.log.newest, performance.now() - this.offset);
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }

  private become(state: State): void {
    this.state = state;
    this.notify();
  }

  private async connect(): Promise<void> {
    this.connection?.abort();
    clearTimeout(this.timer);
    const connection = new AbortController();
    this.connection = connection;
    if (this.state.kind !== "open") this.become({ kind: "connecting" });
    let reason = "the server closed the connection";
    try {
      const refusal = await this.listen(connection);
      if (connection.signal.aborted) return;
      if (refusal) return this.become({ kind: refusal });
    } catch (error) {
      if (this.connection !== connection) return; // another attempt took its place
      reason = error instanceof TypeError ? "the server cannot be reached" : String(error instanceof Error ? error.message : error);
    }
    this.become({ kind: "retrying", at: performance.now() + this.wait, reason });
    this.timer = window.setTimeout(() => void this.connect(), this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }

  /** Reads until the server ends it. Returns why it did not begin, if there is no sense in trying again. */
  private async listen(connection: AbortController): Promise<"key" | "absent" | undefined> {
    const { signal } = connection;
    const about = await this.api("/live/info", { signal });
    if (about.status === 401 || about.status === 403) return "key";
    if (about.status === 404) return "absent";
    if (!about.ok) throw new Error(`the server answered ${about.status}`);
    const info = (await about.json()) as Info;
    if (info.now_ms < this.log.newest - 1000) this.restart();
    this.log.tpotTarget = info.targets.tpot_ms;
    this.log.late = info.late;
    this.log.wall.hear(info.now_ms, info.now_unix_ms);
    this.limits = info.limits;
    this.onInfo(info);
    this.hear(info.now_ms);

    const wanted = new URLSearchParams();
    if (this.log.lastStep) wanted.set("after", String(this.log.lastStep.id));
    if (this.watchers > 0) wanted.set("kv", "1");
    const response = await this.api(`/live/feed?${wanted}`, { signal });
    if (response.status === 401) return "key";
    if (!response.ok || !response.body) throw new Error(`the feed answered ${response.status}`);
    this.wait = FIRST_WAIT_MS;
    this.become({ kind: "open" });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let silence = 0;
    try {
      for (;;) {
        silence = window.setTimeout(() => {
          void reader.cancel().catch(() => undefined);
        }, SILENCE_MS);
        const { value, done } = await reader.read();
        clearTimeout(silence);
        if (done) return undefined;
        const pieces = (rest + value).split("\n\n");
        rest = pieces.pop()!;
        for (const piece of pieces) this.event(piece);
        if (pieces.length > 0) this.notify();
      }
    } finally {
      clearTimeout(silence);
    }
  }

  private restart(): void {
    this.log.reset();
    this.blocks.clear();
    this.offset = Infinity;
  }

  /** The server's clock is at least `at` now. */
  private hear(at: number): void {
    // The smallest difference is that of the message that travelled fastest.
    this.offset = Math.min(this.offset, performance.now() - at);
  }

  private event(piece: string): void {
    let kind = "";
    let data = "";
    for (const line of piece.split("\n")) {
      if (line.startsWith("event:")) kind = line.slice(6).trim();
      else if (line.startsWith("data:")) data += line.slice(5);
    }
    if (!data) return; // a comment that keeps the connection open
    const value: unknown = JSON.parse(data);
    if (kind === "step") {
      const step = value as StepEvent;
      raise(this.limits, step);
      this.log.step(step);
      this.hear(step.at + step.took);
    } else if (kind === "kv") this.blocks.event(value);
    else if (kind === "requests") this.log.people(value as RequestsEvent);
    else if (kind === "thought") this.log.thought(value as ThoughtEvent);
    else if (kind === "away") this.log.leaves(value as AwayEvent);
    else if (kind === "ended") this.log.end(value as EndedEvent);
    else if (kind === "history") this.log.past(value as HistoryEvent);
    else if (kind === "stats") {
      const stats = value as StatsEvent;
      this.log.stat(stats);
      if (this.limits && stats.limits) Object.assign(this.limits, stats.limits);
      this.hear(stats.at);
    }
  }
}
