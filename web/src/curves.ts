// The calculator's curves: time to first token over the prompt, time per token and throughput over the batch. All points are
// the server's, of one answer; the bound is dashed and the question's own point is marked.

import uPlot from "uplot";
import { el } from "./dom";
import { FONT, theme, watchTheme } from "./draw";
import type { Plan } from "./plan";
import { ms, short } from "./units";

type Curves = Plan["curves"];
type Values = (number | null)[];

interface Chart {
  title: string;
  colour: "prefill" | "decode";
  /** What the dashed line is called. */
  bound: string;
  x: "prompt" | "batch";
  unit: string;
  lines: [keyof Curves, keyof Curves];
  format: (value: number) => string;
}

const rate = (value: number): string => `${short(value)}tok/s`;

const CHARTS: Chart[] = [
  { title: "TTFT over the prompt", colour: "prefill", bound: "floor", x: "prompt", unit: "tokens", lines: ["ttft_ms", "ttft_floor_ms"], format: ms },
  { title: "TPOT over the batch", colour: "decode", bound: "floor", x: "batch", unit: "requests", lines: ["tpot_ms", "tpot_floor_ms"], format: ms },
  { title: "Throughput over the batch", colour: "decode", bound: "at most", x: "batch", unit: "requests", lines: ["tokens_per_second", "tokens_per_second_at_most"], format: rate },
];

const HEIGHT = 190;

export class CurveCharts {
  readonly element = el("div", { class: "curves" });
  private plots: { chart: Chart; box: HTMLElement; plot: uPlot | null }[];
  private data: Plan | null = null;
  private observer: ResizeObserver;
  private stop: () => void;

  constructor() {
    this.observer = new ResizeObserver((entries) => {
      for (const { target, contentRect } of entries) this.draw(target as HTMLElement, contentRect.width);
    });
    this.plots = CHARTS.map((chart) => {
      const box = el("div", { class: "plot", role: "img" });
      this.element.append(el("figure", {}, el("figcaption", {}, el("h3", {}, chart.title)), box));
      this.observer.observe(box);
      return { chart, box, plot: null };
    });
    this.stop = watchTheme(() => this.plots.forEach(({ plot }) => plot?.redraw(false)));
  }

  show(plan: Plan): void {
    this.data = plan;
    for (const { chart, box, plot } of this.plots) {
      box.setAttribute("aria-label", described(chart, plan));
      plot?.setData(dataOf(chart, plan));
    }
  }

  end(): void {
    this.stop();
    this.observer.disconnect();
    for (const { plot } of this.plots) plot?.destroy();
  }

  private draw(box: HTMLElement, width: number): void {
    const made = this.plots.find((each) => each.box === box)!;
    // Out of the page: the width is none.
    if (!this.data || width === 0) return;
    if (made.plot) made.plot.setSize({ width, height: HEIGHT });
    else made.plot = new uPlot(options(made.chart, width, (line) => ownPoint(made.chart, this.data!, line)), dataOf(made.chart, this.data), box);
  }
}

function dataOf(chart: Chart, plan: Plan): [number[], ...Values[]] {
  const at = plan.curves[chart.x];
  const [line, bound] = chart.lines.map((name) => plan.curves[name]);
  return [at, line!, bound!, at.map((x, i) => (x === plan.ask[chart.x] ? line![i]! : null))];
}

/** The question's own value on the axis (0) or on a line of a chart. */
function ownPoint(chart: Chart, plan: Plan, line: number): number | null {
  const name = [chart.x, ...chart.lines, chart.lines[0]][line]!;
  return plan.curves[name][plan.curves[chart.x].indexOf(plan.ask[chart.x])] ?? null;
}

/** The marked point in words. */
function described(chart: Chart, plan: Plan): string {
  const [line, bound] = [1, 2].map((line) => chart.format(ownPoint(chart, plan, line)!));
  return `${chart.title}: ${line} at ${plan.ask[chart.x].toLocaleString("en")} ${chart.unit}, ${chart.bound} ${bound}`;
}

function options(chart: Chart, width: number, own: (line: number) => number | null): uPlot.Options {
  const colour = (): string => theme()[chart.colour];
  const grid = { stroke: () => theme().line, width: 1 };
  const axis = { stroke: () => theme().quiet, font: FONT, grid, ticks: { show: false } };
  const told = (_: uPlot, splits: (number | null)[]): string[] => splits.map((value) => (value === null ? "" : chart.format(value)));
  // Without a pointer, the question's own point.
  const value = (_: uPlot, at: number | null, line: number): string => {
    const shown = at ?? own(line);
    return shown == null ? "–" : chart.format(shown);
  };
  return {
    width,
    height: HEIGHT,
    padding: [8, 24, 0, 0],
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: true, live: true, markers: { width: 2, fill: () => "transparent", dash: (_, i) => (i === 2 ? "dashed" : "solid") } },
    scales: { x: { time: false, distr: 3, log: 2 }, y: { distr: 3, log: 10 } },
    axes: [
      { ...axis, size: 26, space: 56, values: (_, splits) => splits.map((at) => (at === null ? "" : at.toLocaleString("en"))) },
      { ...axis, size: 66, space: 26, values: told },
    ],
    series: [
      { label: chart.unit, value: (_, at) => (at ?? own(0))?.toLocaleString("en") ?? "–" },
      { label: "predicted", stroke: colour, width: 1.75, points: { show: false }, value },
      { label: chart.bound, stroke: () => theme().quiet, width: 1.25, dash: [5, 4], points: { show: false }, value },
      // The largest of what is drawn: where one is.
      { label: "yours", stroke: colour, paths: () => null, points: { show: true, size: 10, fill: colour, stroke: () => theme().panel, width: 2 }, value },
    ],
  };
}
