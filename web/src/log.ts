// What the events of the feed add up to: the newest steps, and the life of each request in them.
//
//   step, requests, ended  -->  Log  -->  steps    oldest first, as many as the server keeps
//                                         requests queue, passes, tokens with their gaps
//   history, stats         -->            the past one entry each second, then each half second
//
// Nothing here knows a clock, the network or the page: events in, state out.

import { median } from "./units";
import { Wall } from "./wall";
import type { AwayEvent, EndedEvent, HistoryEvent, Info, Name, PrefillRow, RequestsEvent, StatsEvent, StepEvent, ThoughtEvent } from "./wire";

/** Steps that are kept; the server keeps as many. */
const KEPT_STEPS = 4096;
/** Requests that are kept: twice as many as have a timeline in the server is more than a reader scrolls to. */
const KEPT_REQUESTS = 2048;
/** Seconds that a feed begins with, and the half seconds after them: fifteen minutes and more. */
const KEPT_STATS = 2400;
/** Gaps that the usual one of a request is taken from. */
const USUAL_OF = 64;
/** When late tokens came: as many moments as there are steps. */
const KEPT_LATE = 4096;
/** A request that no step has carried for so long, ms, and that does not wait for its blocks either, is over: its end was not told. */
const SILENCE_MS = 5000;
/** Without a step for so long, ms, the engine may have been idle. */
const BREAK_MS = 1000;

/** One pass of the model. */
export interface Step extends StepEvent {
  /** When it was over. */
  end: number;
  /** The requests of `decode` and `prefill`, in their order. */
  decodeOf: Request[];
  prefillOf: Request[];
  /** Tokens that came of it late. */
  late: Token[];
}

/** Tokens that a step's decode rows made: one each, and the accepted drafts. */
export function outputTokens(step: StepEvent): number {
  return step.decode.reduce((sum, row) => sum + (row.tokens ?? 1), 0);
}

/** A token of an answer, when it came. */
export interface Token {
  request: Request;
  answer: number;
  /** 0 for the first one of the answer that the log saw. */
  index: number;
  at: number;
  /** Since the one before; `null` for the first. */
  gap: number | null;
  /** Tokens of its answer that came of its step, and its place among them, from 0: those behind the first were drafted. */
  run: number;
  place: number;
  /** Id of the step that made it. */
  step: number;
  /** It came later than the target, or than is usual. */
  late: boolean;
  /** The engine was paused meanwhile, so it is not late. */
  paused: boolean;
}

/** Out of the batch for a while. */
export interface Pause {
  from: number;
  /** `null`: it still is. */
  to: number | null;
  verdict: string;
}

/** When a gap is late where there is no target (`Info`). */
type LateRule = Info["late"];

/** A request, as far as the log saw it. */
export class Request {
  arrived: number | null = null;
  firstPass: number | null = null;
  lastPass: number | null = null;
  firstToken: number | null = null;
  promptTokens = 0;
  cached = 0;
  computed = 0;
  ended: EndedEvent | null = null;
  /** The server stopped speaking of it, and its end was not seen. */
  gone = false;
  tokens: Token[] = [];
  pauses: Pause[] = [];
  /** The time in which another worker read its prompt. */
  away: AwayEvent | null = null;
  /** What is thought in each of its answers: rows from, and up to. */
  private thoughts = new Map<number, { from: number; to: number | null }>();
  /** The median of its last gaps in ms; `null` before there are four. */
  usualGap: number | null = null;
  /** The line that the timeline draws it in; -1: none yet. */
  lane = -1;
  private lastOfAnswer = new Map<number, Token>();

  constructor(
    readonly name: Name,
    /** How many there were before: its colour. */
    readonly index: number,
  ) {}

  /** From arrival to the first token in ms; `null` where one of them is not known. */
  get ttft(): number | null {
    if (this.ended?.ttft_ms != null) return this.ended.ttft_ms;
    return this.firstToken == null || this.arrived == null ? null : this.firstToken - this.arrived;
  }

  /** A row of an answer makes a token of a thought. */
  thinks(answer: number, row: number): boolean {
    const thought = this.thoughts.get(answer);
    return thought != null && row >= thought.from && row < (thought.to ?? Infinity);
  }

  hears(event: ThoughtEvent): void {
    this.thoughts.set(event.a, { from: event.from, to: event.to });
  }

  get isOpen(): boolean {
    return !this.ended && !this.gone;
  }

  /** The first moment that is known of it, and the last. */
  get from(): number {
    return this.arrived ?? this.firstPass ?? this.ended?.at ?? 0;
  }
  get to(): number {
    return this.ended?.at ?? this.lastPass ?? this.away?.to_ms ?? this.from;
  }

  /** Above this a gap is late: the target for all requests, or the server's rule on the usual gap. */
  lateAbove(tpotTarget: number | null, late: LateRule): number {
    return tpotTarget ?? (this.usualGap == null ? Infinity : Math.max(late.floor_ms, late.medians * this.usualGap));
  }

  /** A token came, at this place of a run; returns it. */
  token(answer: number, at: number, step: number, place: number, run: number): Token {
    const before = this.lastOfAnswer.get(answer);
    const token = { request: this, answer, index: before ? before.index + 1 : 0, at, gap: before ? at - before.at : null, run, place, step, late: false, paused: false };
    this.lastOfAnswer.set(answer, token);
    this.tokens.push(token);
    this.firstToken ??= at;
    const n = this.tokens.length;
    if (n <= 16 || n % 16 === 0) {
      // Those that came with another were not waited for.
      const gaps = this.tokens.slice(-USUAL_OF).flatMap((token) => (token.gap == null || token.place > 0 ? [] : [token.gap]));
      if (gaps.length >= 4) this.usualGap = median(gaps);
    }
    return token;
  }
}

/** The figures that charts show of a moment. */
export type Moment = Pick<StatsEvent, "at" | "running" | "waiting" | "total_blocks" | "ttft_p50_ms" | "ttft_p99_ms" | "itl_p50_ms" | "itl_p99_ms"> & {
  /** Null where no step told them. */
  used_blocks: number | null;
  cached_blocks: number | null;
};

/** Tokens per second of each phase over a half second. */
export interface Rates {
  at: number;
  /** `null`: nothing ran. */
  prefill: number | null;
  decode: number | null;
  /** Prompt tokens found in the prefix cache, of those looked up in it; `null` without any. */
  hits: number | null;
}

/** What a chart has of a moment in which nothing ran. */
const NOTHING = { used_blocks: null, cached_blocks: null, ttft_p50_ms: null, ttft_p99_ms: null, itl_p50_ms: null, itl_p99_ms: null };

export class Log {
  constructor(
    /** Steps that are kept. */
    private kept = KEPT_STEPS,
  ) {}

  steps: Step[] = [];
  requests = new Map<Name, Request>();
  stats: StatsEvent[] = [];
  /** What was before the feed began, and then `stats`. */
  moments: Moment[] = [];
  rates: Rates[] = [];
  /** What the engine's clock is on the wall. */
  readonly wall = new Wall();
  /** When the newest late tokens came, oldest first. */
  lates: number[] = [];
  /** Grows with every request that is new, or goes on though it was thought to be over. */
  seen = 0;
  /** Grows where the engine may have been idle. */
  breaks = 0;
  /** Grows where a request is known to have come, waited, ended or thought otherwise than before. */
  version = 0;
  /** Grows with every step. */
  stepVersion = 0;
  tpotTarget: number | null = null;
  /** The server's, as soon as it has said it. */
  late: LateRule = { medians: 2, floor_ms: 20 };
  /** The last pause of the engine. */
  private pausedFrom = Infinity;
  private pausedTo = -Infinity;

  /** Forgets everything: another server speaks. */
  reset(): void {
    const version = this.version + 1;
    const breaks = this.breaks + 1;
    const fresh = new Log();
    fresh.tpotTarget = this.tpotTarget;
    fresh.late = this.late;
    const { wall } = this;
    wall.forget();
    Object.assign(this, fresh, { version, breaks, stepVersion: this.stepVersion + 1, wall });
  }

  get lastStep(): Step | undefined {
    return this.steps[this.steps.length - 1];
  }

  /** The newest moment that anything is known of, in ms. */
  get newest(): number {
    return Math.max(this.lastStep?.end ?? 0, this.stats[this.stats.length - 1]?.at ?? 0);
  }

  step(event: StepEvent): void {
    const last = this.lastStep;
    if (last && event.id <= last.id) return; // seen before a reconnect
    // Moments only grow, also where a clock was set back.
    const at = Math.max(event.at, last?.at ?? 0);
    const end = Math.max(at + Math.max(0, event.took), last?.end ?? 0);
    const step: Step = { ...event, at, end, decodeOf: [], prefillOf: [], late: [] };
    if (!last || at - last.end > BREAK_MS) this.breaks += 1;
    for (const row of event.prefill) step.prefillOf.push(this.prefill(row, step));
    for (const row of event.decode) {
      const request = this.pass(row.r, step);
      const tokens = row.tokens ?? 1;
      request.computed = Math.max(request.computed, row.start + tokens);
      for (let place = 0; place < tokens; place += 1) this.came(request, row.a, step, place, tokens);
      step.decodeOf.push(request);
    }
    for (const { r, verdict } of event.preempted) this.request(r).pauses.push({ from: at, to: null, verdict });
    this.steps.push(step);
    if (event.id % 256 === 0) this.forget();
    if (this.steps.length > this.kept) this.steps.splice(0, this.steps.length - this.kept);
    this.stepVersion += 1;
  }

  private prefill(row: PrefillRow, step: Step): Request {
    const request = this.pass(row.r, step);
    request.computed = Math.max(request.computed, row.start + row.len);
    request.cached = Math.max(request.cached, row.cached);
    request.promptTokens = Math.max(request.promptTokens, row.start + row.len);
    for (let sample = 0; sample < row.samples; sample += 1) this.came(request, row.a + sample, step);
    return request;
  }

  private came(request: Request, answer: number, step: Step, place = 0, run = 1): void {
    const limit = request.lateAbove(this.tpotTarget, this.late);
    const token = request.token(answer, step.end, step.id, place, run);
    if (token.gap == null) return;
    token.paused = token.at - token.gap <= this.pausedTo && token.at >= this.pausedFrom;
    token.late = !token.paused && token.gap > limit;
    if (!token.late) return;
    step.late.push(token);
    this.lates.push(token.at);
    if (this.lates.length > KEPT_LATE) this.lates.shift();
  }

  private pass(name: Name, step: Step): Request {
    const request = this.request(name);
    const pause = request.pauses[request.pauses.length - 1];
    if (pause && pause.to == null) pause.to = step.at;
    request.firstPass ??= step.at;
    request.lastPass = step.end;
    const wasOpen = request.isOpen;
    request.gone = false;
    // Several prompts of one call have one name, and one of them may be over before the others.
    if (request.ended && request.ended.at < step.at) request.ended = null;
    if (request.isOpen && !wasOpen) {
      this.seen += 1;
      this.version += 1;
    }
    return request;
  }

  private request(name: Name): Request {
    let request = this.requests.get(name);
    if (!request) {
      request = new Request(name, this.seen);
      this.seen += 1;
      if (this.newest - (this.lastStep?.end ?? 0) > BREAK_MS) this.breaks += 1;
      this.requests.set(name, request);
      if (this.requests.size > KEPT_REQUESTS && this.seen % 256 === 0) this.forget();
    }
    return request;
  }

  /** Beyond a number the oldest requests that are over; of those that were over before the oldest step, the tokens. */
  private forget(): void {
    const horizon = this.steps[0]?.at ?? 0;
    const silent = this.newest - SILENCE_MS;
    for (const request of this.requests.values()) {
      const isOut = request.pauses[request.pauses.length - 1]?.to === null;
      if (request.isOpen && !isOut && request.lastPass != null && request.lastPass < silent) request.gone = true;
    }
    let many = this.requests.size - KEPT_REQUESTS * 0.9;
    for (const [name, request] of this.requests) {
      if (request.isOpen) continue;
      if (request.to < horizon) request.tokens = [];
      if (many <= 0) continue;
      this.requests.delete(name);
      many -= 1;
    }
  }

  people(event: RequestsEvent): void {
    const open = new Set<Name>();
    const known = this.seen;
    let isOther = false;
    for (const { r, since, prompt_tokens } of event.waiting) {
      open.add(r);
      const request = this.request(r);
      isOther ||= request.arrived == null;
      request.arrived ??= since;
      request.promptTokens = Math.max(request.promptTokens, prompt_tokens);
    }
    for (const { r, prompt_tokens, computed } of event.running) {
      open.add(r);
      const request = this.request(r);
      request.promptTokens = prompt_tokens;
      request.computed = Math.max(request.computed, computed);
    }
    const complete = event.waiting.length < 256 && event.running.length < 256;
    for (const request of this.requests.values()) {
      if (!complete || !request.isOpen || open.has(request.name)) continue;
      if ((request.lastPass ?? request.from) >= event.at - 1000) continue;
      request.gone = true;
      isOther = true;
    }
    if (isOther || this.seen !== known) this.version += 1;
  }

  thought(event: ThoughtEvent): void {
    const request = this.requests.get(event.r);
    if (!request) return;
    request.hears(event);
    this.version += 1;
  }

  /** Whatever is told twice is the same. One that is back and of which nothing else is known may be long over: its lane is free. */
  leaves(event: AwayEvent): void {
    const isBack = !this.requests.has(event.r) && event.to_ms != null;
    const request = this.request(event.r);
    request.gone ||= isBack;
    request.away = event;
    request.arrived ??= event.from_ms;
    this.version += 1;
  }

  end(event: EndedEvent): void {
    const request = this.request(event.r);
    // One of before the steps that are known: it was busy where there is none.
    if (request.firstPass == null) this.breaks += 1;
    request.ended = event;
    request.arrived ??= event.arrived;
    if (event.queue_ms != null) request.firstPass ??= event.arrived + event.queue_ms;
    request.cached = event.cached;
    request.promptTokens = event.prompt_tokens;
    if (event.ttft_ms != null && request.firstToken != null) request.arrived ??= request.firstToken - event.ttft_ms;
    this.version += 1;
  }

  /** What was before the feed began. Seconds without a step are left out there, and are nothing here. */
  past({ columns, seconds, total_blocks }: HistoryEvent): void {
    if (this.stats.length > 0) return; // known from before a reconnect
    const of = (row: (number | null)[], name: string): number | null => row[columns.indexOf(name)] ?? null;
    const number = (row: (number | null)[], name: string): number => of(row, name) ?? 0;
    for (const row of seconds) {
      const at = number(row, "at") + 1000;
      const last = this.moments[this.moments.length - 1];
      for (const idle of last && last.at + 1000 < at ? [last.at + 1000, at - 1000] : []) {
        this.rates.push({ at: idle, prefill: null, decode: null, hits: null });
        this.moments.push({ ...last!, at: idle, running: 0, waiting: 0, ...NOTHING });
      }
      this.rates.push({ at, prefill: number(row, "prefill_tokens"), decode: number(row, "decode_tokens"), hits: of(row, "hits") });
      this.moments.push({
        at,
        running: number(row, "running"),
        waiting: number(row, "waiting"),
        used_blocks: number(row, "used_blocks"),
        cached_blocks: number(row, "cached_blocks"),
        total_blocks,
        ttft_p50_ms: of(row, "ttft_p50_ms"),
        ttft_p99_ms: of(row, "ttft_p99_ms"),
        itl_p50_ms: of(row, "itl_p50_ms"),
        itl_p99_ms: of(row, "itl_p99_ms"),
      });
    }
  }

  /** Whether the engine is paused now. */
  get isPaused(): boolean {
    return this.stats[this.stats.length - 1]?.paused ?? false;
  }

  stat(event: StatsEvent): void {
    this.wall.hear(event.at, event.unix_ms);
    const before = this.stats[this.stats.length - 1];
    // Single steps come while it is paused.
    if (event.paused && !before?.paused) this.pausedFrom = event.at;
    if (event.paused) this.pausedTo = Infinity;
    else if (this.pausedTo === Infinity) this.pausedTo = event.at;
    let ran = true;
    if (before && event.at > before.at) {
      const seconds = (event.at - before.at) / 1000;
      const queries = event.prefix_queries - before.prefix_queries;
      const [prefill, decode] = [event.prefill_tokens - before.prefill_tokens, event.decode_tokens - before.decode_tokens];
      ran = prefill > 0 || decode > 0 || event.running > 0 || before.running > 0;
      this.rates.push({
        at: event.at,
        prefill: ran ? prefill / seconds : null,
        decode: ran ? decode / seconds : null,
        hits: queries > 0 ? (event.prefix_hits - before.prefix_hits) / queries : null,
      });
    }
    this.stats.push(event);
    // The second that was under way when the feed began is in both.
    if (this.moments.length === 0 || event.at > this.moments[this.moments.length - 1]!.at) this.moments.push(ran ? event : { ...event, ...NOTHING });
    if (this.stats.length > KEPT_STATS) this.stats.splice(0, this.stats.length - KEPT_STATS);
    if (this.moments.length > KEPT_STATS) this.moments.splice(0, this.moments.length - KEPT_STATS);
    if (this.rates.length > KEPT_STATS) this.rates.splice(0, this.rates.length - KEPT_STATS);
  }

  /** Index of the first step that ends after `time`. */
  firstStepAfter(time: number): number {
    let [low, high] = [0, this.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle]!.end > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** Where the step of this id is, or the one after it if it is not there: a reconnect may have lost some. */
  indexOf(id: number): number {
    let [low, high] = [0, this.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle]!.id < id) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  stepById(id: number): Step | undefined {
    const step = this.steps[this.indexOf(id)];
    return step?.id === id ? step : undefined;
  }

  /** Who computed prompts between a token and the one before it, most tokens first: whose prefill it waited for. */
  delayedBy(token: Token): Delay[] {
    if (token.gap == null) return [];
    const found = new Map<Request, Delay & { most: number }>();
    for (let i = this.firstStepAfter(token.at - token.gap); i < this.steps.length; i += 1) {
      const step = this.steps[i]!;
      if (step.end > token.at) break;
      step.prefill.forEach((row, k) => {
        const request = step.prefillOf[k]!;
        if (request === token.request) return;
        const entry = found.get(request) ?? { request, rows: 0, largest: step.id, most: 0 };
        entry.rows += row.len;
        if (row.len > entry.most) Object.assign(entry, { most: row.len, largest: step.id });
        found.set(request, entry);
      });
    }
    return [...found.values()].sort((a, b) => b.rows - a.rows);
  }
}

/** A prompt that a token waited for. */
export interface Delay {
  request: Request;
  /** Its tokens that were computed meanwhile. */
  rows: number;
  /** Id of the step that had most of them. */
  largest: number;
}
