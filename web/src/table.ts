// What the timeline shows, as a table: for screen readers, and for those who want figures.

import type { App } from "./app";
import { el, fill } from "./dom";
import type { Log, Request } from "./log";
import { ms, shortName } from "./units";

const ROWS = 40;
const REFRESH_MS = 1000;
const HEADS = ["Request", "State", "Prompt", "Cached", "Answer", "Queue", "TTFT", "Mean ITL", "Worst gap", "Delayed most by", "Came at"];

export class RequestTable {
  readonly element: HTMLDetailsElement;
  private body = el("tbody");
  private timer: number;

  constructor(private app: App) {
    const head = el("tr", {}, ...HEADS.map((text) => el("th", { scope: "col" }, text)));
    this.element = el(
      "details",
      { class: "panel" },
      el("summary", {}, el("h2", { class: "inline" }, "The same as a table")),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Requests" }, el("table", {}, el("caption", { class: "visually-hidden" }, "Requests, the newest first"), el("thead", {}, head), this.body)),
    );
    this.element.addEventListener("toggle", () => this.refresh());
    this.timer = window.setInterval(() => this.refresh(), REFRESH_MS);
  }

  end(): void {
    clearInterval(this.timer);
  }

  private refresh(): void {
    if (!this.element.open || document.hidden) return;
    const { log } = this.app.feed;
    const newest = [...log.requests.values()].slice(-512).sort((a, b) => Number(b.isOpen) - Number(a.isOpen) || b.from - a.from).slice(0, ROWS);
    fill(this.body, ...newest.map((request) => row(request, log)));
  }
}

function row(request: Request, log: Log): HTMLElement {
  const gaps = request.tokens.filter((token) => token.gap != null);
  const worst = gaps.reduce<(typeof gaps)[number] | null>((best, token) => (best && best.gap! >= token.gap! ? best : token), null);
  const culprit = worst?.late ? log.delayedBy(worst)[0] : undefined;
  const state = request.ended?.ending ?? (request.gone ? "over" : request.firstPass == null ? "waiting" : request.firstToken == null ? "prefill" : "decode");
  const queue = request.arrived == null || request.firstPass == null ? null : Math.max(0, request.firstPass - request.arrived);
  const mean = gaps.length > 0 ? gaps.reduce((sum, token) => sum + token.gap!, 0) / gaps.length : null;
  const cells = [
    state,
    request.promptTokens.toLocaleString("en"),
    request.cached.toLocaleString("en"),
    (request.ended?.generated ?? request.tokens.length).toLocaleString("en"),
    ms(queue),
    ms(request.ttft),
    ms(mean ?? request.ended?.tpot_ms),
    ms(worst?.gap ?? request.ended?.longest_gap_ms),
    culprit ? shortName(culprit.request.name) : "–",
    log.wall.clock(request.from),
  ];
  return el("tr", {}, el("th", { scope: "row", title: String(request.name) }, shortName(request.name)), ...cells.map((text) => el("td", {}, text)));
}
