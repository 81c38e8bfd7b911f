// Live: what the engine does now. A lane per request, the distance to the machine's limits, the figures of each phase.

import type { App } from "../app";
import { add, el, say, show } from "../dom";
import { exampleButton, STORY } from "../examples";
import { decodeDistance, lastKnown, newest, prefillDistance, type Distance } from "../limits";
import { Roofline } from "../roofline";
import { Series } from "../series";
import { RequestTable } from "../table";
import { Timeline } from "../timeline";
import { ms, percent, short } from "../units";
import { Story } from "../why";

/** The newest steps with this many ms of work make up the big numbers. */
const WINDOW_MS = 3000;
const REFRESH_MS = 250;

export function mount(root: HTMLElement, app: App): () => void {
  const { feed } = app;
  const timeline = new Timeline(app);
  const series = new Series(app);
  const roofline = new Roofline(app);
  const table = new RequestTable(app);
  const story = new Story(app);
  const gauges = { prefill: new Gauge("prefill", "Prefill", "compute"), decode: new Gauge("decode", "Decode", "bandwidth") };
  const tiles = new Tiles(app);
  const warning = el("p", { class: "notice", role: "status", hidden: true });
  // Its last steps come with the feed, a moment after its answer.
  const empty = emptyState(app, () => setTimeout(() => timeline.fit(), 300));

  add(
    root,
    el("h1", {}, "Live"),
    el(
      "p",
      { class: "lead" },
      "A lane holds one request at a time. First its whole prompt is processed, many tokens per step: ",
      el("strong", { class: "prefill-text" }, "prefill"),
      ", compute-bound. Then its answer is generated, one token per step: ",
      el("strong", { class: "decode-text" }, "decode"),
      ", bound by memory bandwidth.",
    ),
    warning,
    el("section", { class: "gauges", "aria-label": "Distance to the limits of this machine" }, gauges.prefill.element, gauges.decode.element),
    tiles.element,
    el("section", { class: "panel timeline-panel", "aria-label": "Timeline" }, timeline.element, empty),
    story.element,
    el("section", { "aria-label": "Over time" }, series.element),
    el(
      "section",
      { class: "panel" },
      el("h2", {}, "Roofline"),
      el("p", { class: "quiet-text" }, "Each point is a step. The further right, the more FLOP per byte read; no step can be above the line, and one whose own time is not known (machine busy) has no point. Prefill sits under its flat part (compute-bound), decode under its slope (memory-bound): that is why there are two phases."),
      roofline.element,
    ),
    table.element,
  );

  let timer = 0;
  const refresh = (): void => {
    timer = 0;
    const steps = newest(feed.log.steps, WINDOW_MS);
    const before = (phase: "prefill" | "decode") => lastKnown(phase, feed.log.steps, WINDOW_MS, app.info.limits);
    const prefill = prefillDistance(steps, app.info.limits) ?? before("prefill");
    const decode = decodeDistance(steps, app.info.limits) ?? before("decode");
    gauges.prefill.tell(prefill, app);
    gauges.decode.tell(decode, app);
    const doubts = doubtsOf([prefill, decode], app);
    say(warning, doubts);
    show(warning, doubts !== "");
    tiles.tell();
    show(empty, feed.log.requests.size === 0);
  };
  // Chat links to the lane of an answer; the feed may tell of it a moment later.
  let sought: string | null = null;
  const seek = (): void => {
    // Another client's request has a number for a name.
    if (sought != null && timeline.reveal(/^\d+$/.test(sought) ? Number(sought) : sought)) sought = null;
  };
  // So does a board, whose request may be older than the lanes: its story is told all the same.
  const follow = (): void => {
    sought = new URLSearchParams(location.hash.split("?")[1]).get("request");
    void story.tell(sought ?? "");
    seek();
  };
  window.addEventListener("hashchange", follow);
  const stop = feed.subscribe(() => {
    seek();
    timer ||= window.setTimeout(refresh, REFRESH_MS);
  });
  follow();
  refresh();
  return () => {
    stop();
    window.removeEventListener("hashchange", follow);
    clearTimeout(timer);
    for (const part of [timeline, series, roofline, table]) part.end();
  };
}

/** What there is to warn of, once for the page: why figures are missing or not sure. */
function doubtsOf(distances: (Distance | null)[], app: App): string {
  const isBusy = distances.some((distance) => distance != null && distance.achieved == null);
  const unsure = app.info.limits?.not_sure;
  const parts = [isBusy && "This machine is busy: other programs ran in nearly all of some steps, so a distance is not known.", unsure && `The limits of this machine are not sure: ${unsure}.`];
  return parts.filter((part) => typeof part === "string").join(" ");
}

/** A phase and how near it is to the limit that binds it. */
class Gauge {
  readonly element: HTMLElement;
  private number = el("span", { class: "big number" }, "–");
  private detail = el("p", { class: "quiet-text" });
  private bar = el("span", { class: "fill" });

  constructor(
    private phase: "prefill" | "decode",
    title: string,
    limit: string,
  ) {
    this.element = el(
      "article",
      { class: `panel gauge ${phase}` },
      el("h2", {}, title),
      el("p", { class: "distance" }, this.number, ` of the ${limit} limit`),
      el("div", { class: "bar", "aria-hidden": "true" }, this.bar),
      this.detail,
    );
  }

  /** With an `age` it is what was last known: none of the newest steps was of this phase. */
  tell(distance: (Distance & { age?: number }) | null, app: App): void {
    const share = distance?.share ?? null;
    this.element.classList.toggle("stale", distance?.age != null);
    say(this.number, share == null ? "–" : percent(share));
    this.bar.style.transform = `scaleX(${Math.min(1, share ?? 0)})`;
    say(this.detail, this.words(distance, app));
  }

  private words(distance: (Distance & { age?: number }) | null, app: App): string {
    const prefill = this.phase === "prefill";
    if (!distance) return prefill ? "No prefill since this page was opened." : "No decode-only step since this page was opened.";
    const since = prefill ? "no prefill" : "no decode-only step";
    const age = distance.age == null ? "" : ` Last known ${ms(distance.age)} ago: ${since} in the last 3 s.`;
    const unit = prefill ? "FLOP/s" : "B/s";
    const { limits } = app.info;
    const limit = limits && (prefill ? limits.matrix_flops : limits.read_bandwidth);
    const rate = distance.achieved == null ? "Distance not known" : `${short(distance.achieved)}${unit}${limit ? ` of ${short(limit)}${unit}` : ": limits of this machine unknown"}`;
    const tokens = `${short(distance.tokens).trim()} ${prefill ? "prompt" : "output"} tokens per second`;
    const cache = !prefill && limits?.in_cache ? " The weights stay in the processor's cache, and its bandwidth is the limit." : "";
    return `${rate} · ${tokens} in such steps.${cache}${age}`;
  }
}

/** The figures of the moment. */
class Tiles {
  readonly element = el("dl", { class: "tiles" });
  private values = new Map<string, { value: HTMLElement; note: HTMLElement }>();

  constructor(private app: App) {
    for (const name of ["Running", "Waiting", "Time to first token", "Inter-token latency", "KV cache", "Prefix hits"]) {
      const [value, note] = [el("span", { class: "number" }, "–"), el("small", {})];
      this.values.set(name, { value, note });
      this.element.append(el("div", { class: "panel" }, el("dt", {}, name), el("dd", {}, value, note)));
    }
  }

  tell(): void {
    const stats = this.app.feed.log.stats[this.app.feed.log.stats.length - 1];
    if (!stats) return;
    const set = (name: string, value: string, note: string): void => {
      const tile = this.values.get(name)!;
      say(tile.value, value);
      say(tile.note, note);
    };
    set("Running", String(stats.running), stats.paused ? "the engine is paused" : `of ${this.app.info.max_num_seqs} slots`);
    this.values.get("Waiting")!.value.classList.toggle("news", stats.waiting > 0);
    const backlog = stats.prefill_backlog_ms >= 1 ? `prefill backlog ${ms(stats.prefill_backlog_ms)}` : "no prefill backlog";
    set("Waiting", String(stats.waiting), stats.oldest_waiting_ms >= 1 ? `oldest ${ms(stats.oldest_waiting_ms)} · ${backlog}` : backlog);
    const kept = stats.promises_kept == null ? "" : ` · ${percent(stats.promises_kept)} within their bounds`;
    const late = stats.late > 0 ? ` · ${stats.late} late, oldest ${ms(stats.oldest_late_ms)}` : "";
    set("Time to first token", ms(stats.ttft_p50_ms), (stats.ttft_p99_ms == null ? "median" : `median · p99 ${ms(stats.ttft_p99_ms)}`) + kept + late);
    set("Inter-token latency", ms(stats.itl_p50_ms), stats.itl_p99_ms == null ? "median" : `median · p99 ${ms(stats.itl_p99_ms)}`);
    const full = stats.kv_seconds_to_full;
    set("KV cache", percent(stats.used_blocks / Math.max(1, stats.total_blocks)), full == null || full > 3600 ? `of ${stats.total_blocks.toLocaleString("en")} blocks` : `full in ${ms(full * 1000)}`);
    const queries = stats.prefix_queries;
    const saved = stats.cache_saved_of_optimum == null ? "" : ` · saved ${percent(stats.cache_saved_of_optimum)} of what foresight would`;
    set("Prefix hits", queries > 0 ? percent(stats.prefix_hits / queries) : "–", queries > 0 ? `of ${short(queries).trim()} prompt tokens${saved}` : "no prompt yet");
  }
}

/** Before the first request: what to do. */
function emptyState(app: App, done: () => void): HTMLElement {
  return el("div", { class: "empty", hidden: true }, el("p", {}, "No request yet. Send one to this server, or let this page do it:"), exampleButton(app, "Send an example", [STORY], done));
}
