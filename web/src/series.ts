// The small charts of the Live page, over the last minutes: uPlot draws them, twice a second at most.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { App } from "./app";
import { el } from "./dom";
import { FONT, theme, watchTheme } from "./draw";
import type { Log } from "./log";
import { ms, percent, short } from "./units";
import type { Wall } from "./wall";

type Colour = "prefill" | "decode" | "queue" | "cached" | "late" | "quiet" | "ink";
type Values = (number | null)[];

interface Line {
  label: string;
  colour: Colour;
  dashed?: true;
}

interface Chart {
  title: string;
  about: string;
  lines: Line[];
  format: (value: number) => string;
  /** The largest value that the axis always shows. */
  least?: number;
  data: (log: Log) => [number[], ...Values[]];
}

const seconds = (rows: { at: number }[]): number[] => rows.map((row) => row.at / 1000);
const perSecond = (value: number): string => short(value).trim();

const CHARTS: Chart[] = [
  {
    title: "Prefill, prompt tokens/s",
    about: "Prompt tokens that were computed, per second.",
    lines: [{ label: "prefill", colour: "prefill" }],
    format: perSecond,
    data: ({ rates }) => [seconds(rates), rates.map((rate) => rate.prefill)],
  },
  {
    title: "Decode, output tokens/s",
    about: "Output tokens, of all answers together, per second.",
    lines: [{ label: "decode", colour: "decode" }],
    format: perSecond,
    data: ({ rates }) => [seconds(rates), rates.map((rate) => rate.decode)],
  },
  {
    title: "Time to first token (TTFT)",
    about: "From a request to its first token.",
    lines: [
      { label: "median", colour: "prefill" },
      { label: "p99", colour: "prefill", dashed: true },
    ],
    format: ms,
    data: ({ moments }) => [seconds(moments), moments.map((stat) => stat.ttft_p50_ms), moments.map((stat) => stat.ttft_p99_ms)],
  },
  {
    title: "Inter-token latency (ITL)",
    about: "From a token to the next of the same answer.",
    lines: [
      { label: "median", colour: "decode" },
      { label: "p99", colour: "decode", dashed: true },
    ],
    format: ms,
    data: ({ moments }) => [seconds(moments), moments.map((stat) => stat.itl_p50_ms), moments.map((stat) => stat.itl_p99_ms)],
  },
  {
    title: "Requests",
    about: "In the batch, and in the queue.",
    lines: [
      { label: "running", colour: "ink" },
      { label: "waiting", colour: "late" },
    ],
    format: (value) => value.toFixed(0),
    least: 4,
    data: ({ moments }) => [seconds(moments), moments.map((stat) => stat.running), moments.map((stat) => stat.waiting)],
  },
  {
    title: "KV cache",
    about: "Blocks that requests hold, those and the blocks of cached prefixes, and the prompt tokens found in the cache of those looked up in each half second.",
    lines: [
      { label: "used", colour: "ink" },
      { label: "used or cached", colour: "cached" },
      { label: "prefix hits", colour: "cached", dashed: true },
    ],
    format: percent,
    least: 1,
    data: (log) => {
      const hits = new Map(log.rates.map((rate) => [rate.at, rate.hits]));
      const { moments } = log;
      // Between prompts the share of the last one stands.
      let share: number | null = null;
      const shares = moments.map((stat) => (share = stat.used_blocks === null ? null : (hits.get(stat.at) ?? share)));
      return [
        seconds(moments),
        moments.map((stat) => (stat.used_blocks === null ? null : stat.used_blocks / stat.total_blocks)),
        moments.map((stat) => (stat.used_blocks === null || stat.cached_blocks === null ? null : (stat.used_blocks + stat.cached_blocks) / stat.total_blocks)),
        shares,
      ];
    },
  },
];

const REDRAW_MS = 500;
const HEIGHT = 130;

export class Series {
  readonly element = el("div", { class: "series" });
  private plots: { plot: uPlot; chart: Chart }[] = [];
  private observer: ResizeObserver;
  private timer = 0;
  private stops: (() => void)[];

  constructor(private app: App) {
    this.observer = new ResizeObserver((entries) => {
      for (const entry of entries) this.size(entry.target as HTMLElement, entry.contentRect.width);
    });
    for (const chart of CHARTS) {
      const box = el("div", { class: "plot" });
      this.element.append(el("figure", { class: "panel" }, el("figcaption", { title: chart.about }, el("h3", {}, chart.title)), box));
      this.observer.observe(box);
    }
    this.stops = [app.feed.subscribe(() => this.later()), watchTheme(() => this.plots.forEach(({ plot }) => plot.redraw(false)))];
  }

  end(): void {
    for (const stop of this.stops) stop();
    clearTimeout(this.timer);
    this.observer.disconnect();
    for (const { plot } of this.plots) plot.destroy();
  }

  private later(): void {
    this.timer ||= window.setTimeout(() => {
      this.timer = 0;
      this.refresh();
    }, REDRAW_MS);
  }

  private refresh(): void {
    if (document.hidden) return;
    for (const { plot, chart } of this.plots) plot.setData(chart.data(this.app.feed.log));
  }

  private size(box: HTMLElement, width: number): void {
    const made = this.plots.find(({ plot }) => plot.root.parentElement === box);
    if (made) return made.plot.setSize({ width, height: HEIGHT });
    const chart = CHARTS[[...this.element.querySelectorAll(".plot")].indexOf(box)]!;
    this.plots.push({ chart, plot: new uPlot(options(chart, width, this.app.feed.log.wall), chart.data(this.app.feed.log), box) });
  }
}

function newest(values: ArrayLike<number | null | undefined> | undefined): number | null {
  for (let i = (values?.length ?? 0) - 1; i >= 0; i -= 1) if (values![i] != null) return values![i]!;
  return null;
}

function options(chart: Chart, width: number, wall: Wall): uPlot.Options {
  const quiet = (): string => theme().quiet;
  const grid = { stroke: () => theme().line, width: 1 };
  const values = (_: uPlot, splits: number[]): string[] => splits.map(chart.format);
  const range = (_: uPlot, __: number, max: number): uPlot.Range.MinMax => [0, Math.max(chart.least ?? 0, (max || 0) * 1.1) || 1];
  const axis = { stroke: quiet, font: FONT, grid, ticks: { show: false }, space: 28 };
  return {
    width,
    height: HEIGHT,
    padding: [8, 10, 0, 0],
    cursor: { sync: { key: "live" }, drag: { x: false, y: false }, points: { size: 5 } },
    legend: { show: true, live: true, markers: { width: 2, fill: () => "transparent", dash: (_, i) => (chart.lines[i - 1]?.dashed ? "dashed" : "solid") } },
    scales: { x: { time: false }, y: { range } },
    axes: [
      { ...axis, space: 60, size: 24, values: (_, splits) => splits.map((at) => wall.clock(at * 1000, splits[1]! - splits[0]! < 1 ? 1 : 0)) },
      { ...axis, size: 54, values },
    ],
    series: [
      { label: "at", value: (_, at) => (at == null ? "" : wall.clock(at * 1000, 1)) },
      ...chart.lines.map((line) => ({
        label: line.label,
        stroke: () => theme()[line.colour],
        width: 1.5,
        points: { show: false },
        // Nothing ran, nothing is known: a gap, and no line from what was before to what came behind.
        spanGaps: false,
        ...(line.dashed ? { dash: [4, 3] } : {}),
        // Without a pointer, the newest.
        value: (plot: uPlot, value: number | null, at: number) => {
          const shown = value ?? newest(plot.data[at]);
          return shown == null ? "–" : chart.format(shown);
        },
      })),
    ],
  };
}
