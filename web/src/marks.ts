// What the timeline draws over its lanes: moments along the axis, folded time, late tokens, drafts, prompts that are away, names.

import { FONT, theme, tick } from "./draw";
import { type Folds, MARK_PX } from "./folds";
import { begins, shapeOf } from "./lanes";
import type { Log, Request } from "./log";
import { ms, shortName } from "./units";
import type { DecodeRow } from "./wire";

/** Height of the axis, above the lanes. */
export const AXIS = 20;
export const TALLEST_LANE = 26;
export const LEAST_LANES = 6;
/** The width of a row of drafts in its step; in narrower ones the number of tokens is written. */
const CELL_PX = 5;
const COUNTED_PX = 12;
/** Narrower than this no bar has a name on it. */
const NAMED_PX = 64;

/** What one frame shows, in CSS pixels and ms of the engine. */
export interface Frame {
  context: CanvasRenderingContext2D;
  log: Log;
  folds: Folds;
  now: number;
  /** The stretch of time that is shown, and how long it is without what is folded. */
  from: number;
  to: number;
  span: number;
  /** Where lanes begin, and how wide and high all is. */
  gutter: number;
  width: number;
  bottom: number;
  /** Of a lane. */
  height: number;
  xAt: (time: number) => number;
  /** The top of a lane. */
  yOf: (lane: number) => number;
}

/** Moments along the axis, and lines below them, behind the lanes, which are drawn already. */
export function paintGrid({ context, folds, log, span, gutter, width, bottom, from, to, xAt }: Frame): void {
  const colours = theme();
  const wanted = Math.max(2, Math.floor((width - gutter) / 85));
  const distance = tick(span, wanted);
  context.fillStyle = colours.quiet;
  context.strokeStyle = colours.line;
  context.textAlign = "left";
  context.globalCompositeOperation = "destination-over";
  context.beginPath();
  let free = 0;
  for (let time = Math.ceil(Math.max(0, from) / distance) * distance; time < to; time += distance) {
    const fold = folds.folds.find((fold) => fold.from <= time && time < fold.to);
    if (fold) time = Math.ceil(fold.to / distance) * distance;
    const x = Math.round(xAt(time)) + 0.5;
    if (x > width) break;
    context.moveTo(x, AXIS - 6);
    context.lineTo(x, bottom);
    const text = log.wall.clock(time, distance < 10 ? 3 : distance < 100 ? 2 : distance < 1000 ? 1 : 0);
    if (x < free || x + 40 >= width) continue;
    context.fillText(text, x + 3, 8);
    free = x + 60;
  }
  context.stroke();
  context.globalCompositeOperation = "source-over";
}

/** Time that is folded: a band with its length. */
export function paintFolds({ context, folds, gutter, width, bottom, xAt }: Frame): void {
  const colours = theme();
  context.font = FONT;
  context.textAlign = "center";
  for (const { from, to } of folds.folds) {
    const x = xAt(from);
    if (x > width || x + MARK_PX < gutter) continue;
    context.fillStyle = colours.panel;
    context.fillRect(x + 1, AXIS, MARK_PX - 2, bottom - AXIS);
    context.strokeStyle = colours.line;
    context.beginPath();
    // The two torn edges.
    for (const edge of [x + 2, x + MARK_PX - 2]) {
      for (let y = 0; y <= bottom - AXIS; y += 4) context.lineTo(edge + (y % 8 === 0 ? 1.5 : -1.5), AXIS + y);
      context.moveTo(x + MARK_PX - 2, AXIS);
    }
    context.stroke();
    context.save();
    context.translate(x + MARK_PX / 2, AXIS + Math.min(bottom - AXIS, LEAST_LANES * TALLEST_LANE) / 2);
    context.rotate(-Math.PI / 2);
    context.fillStyle = colours.quiet;
    context.fillText(`idle ${ms(to - from)}`, 0, 0.5);
    context.restore();
  }
}

/** Prompts that other workers read: their steps there, pale, and how their blocks came here, as stairs up to all of them. */
export function paintAways(frame: Frame): void {
  const { context, log, height, now, from, to, bottom, xAt, yOf } = frame;
  const colours = theme();
  const tall = shapeOf(height).bar;
  context.save();
  context.beginPath();
  context.rect(frame.gutter, AXIS, frame.width - frame.gutter, bottom - AXIS);
  context.clip();
  for (const { away, lane } of log.requests.values()) {
    if (!away || away.from_ms >= to || (away.to_ms ?? now) <= from) continue;
    const y = yOf(lane);
    if (y < AXIS - height || y > bottom) continue;
    const [x0, x1] = [xAt(away.from_ms), xAt(away.to_ms ?? now)];
    context.fillStyle = colours.lane;
    context.fillRect(x0, y, x1 - x0, tall);
    context.fillStyle = colours.prefill;
    context.globalAlpha = 0.45;
    for (const step of away.steps) {
      const x = xAt(step.from_ms);
      context.fillRect(x, y, Math.max(1, xAt(step.to_ms) - x - 1), tall);
    }
    context.globalAlpha = 1;
    context.fillStyle = colours.cached;
    const all = away.landed[away.landed.length - 1]?.blocks ?? 1;
    away.landed.forEach(({ at_ms, blocks }, i) => {
      const x = xAt(at_ms);
      const next = away.landed[i + 1];
      const rise = Math.max(1, Math.round((blocks / all) * tall));
      context.fillRect(x, y + tall - rise, 1, rise);
      context.fillRect(x, y + tall - rise, Math.max(1, (next ? xAt(next.at_ms) : x1) - x), Math.min(2, rise));
    });
    context.strokeStyle = colours.quiet;
    context.strokeRect(x0 + 0.5, y + 0.5, Math.max(1, x1 - x0 - 1), tall - 1);
  }
  context.restore();
}

/** Signs in steps that are wide enough: a cached prefix, and the rows of drafts: accepted ones are tokens and solid, the others hollow. */
export function paintSteps(frame: Frame): void {
  const { context, log, height, from, to, bottom, xAt, yOf } = frame;
  if (height < 12) return;
  const { bar } = shapeOf(height);
  context.save();
  context.beginPath();
  context.rect(frame.gutter, AXIS, frame.width - frame.gutter, bottom - AXIS);
  context.clip();
  context.font = FONT;
  context.textAlign = "center";
  for (let i = log.firstStepAfter(from); i < log.steps.length; i += 1) {
    const step = log.steps[i]!;
    if (step.at >= to) break;
    const x = xAt(step.at);
    const width = xAt(step.end) - x;
    if (width < CELL_PX) continue;
    step.prefill.forEach((chunk, k) => {
      const y = yOf(step.prefillOf[k]!.lane);
      if (!begins(chunk) || y < AXIS - height || y > bottom) return;
      context.fillStyle = theme().cached;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + Math.min(width, 9), y + bar / 2);
      context.lineTo(x, y + bar);
      context.fill();
    });
    if (width < COUNTED_PX) continue;
    step.decode.forEach((row, k) => {
      const y = yOf(step.decodeOf[k]!.lane);
      if (row.drafts && y >= AXIS - height && y <= bottom) drafts(context, row, { x, y, height, width: width * (1 - (row.other_prefill ?? 0)) - 1 });
    });
  }
  context.restore();
}

function drafts(context: CanvasRenderingContext2D, { drafts = 0, tokens = 1 }: DecodeRow, { x, y, width, height }: { x: number; y: number; width: number; height: number }): void {
  const { bar, low } = shapeOf(height);
  const colours = theme();
  const cell = width / (1 + drafts);
  for (let place = 1; cell >= CELL_PX && place <= drafts; place += 1) {
    context.fillStyle = colours.lane;
    const [left, right] = [x + place * cell, x + (place + 1) * cell];
    if (place < tokens) context.fillRect(left - 0.5, y + low, 1, bar - low);
    else context.fillRect(left + 0.5, y + low + 2, right - left - 2, bar - low - 4);
  }
  if (cell >= CELL_PX || tokens === 1 || width < COUNTED_PX) return;
  context.fillStyle = colours.panel;
  context.fillText(String(tokens), x + width / 2, y + (low + bar) / 2 + 0.5);
}

/** Marks over the tokens that came late, one a pixel at most: a triangle where there is room for a shape. */
export function paintLate({ context, log, height, from, to, bottom, xAt, yOf }: Frame): void {
  const drawn = new Map<number, number>();
  const tall = Math.max(2, Math.round(height * 0.3));
  context.fillStyle = theme().late;
  for (let i = log.firstStepAfter(from); i < log.steps.length; i += 1) {
    const step = log.steps[i]!;
    if (step.at > to) break;
    const x = Math.round(xAt(step.end)) - 2;
    for (const { request } of step.late) {
      const y = yOf(request.lane);
      if (drawn.get(request.lane) === x || y < AXIS || y > bottom) continue;
      drawn.set(request.lane, x);
      if (height < 12) context.fillRect(x, y, 2, tall);
      else {
        context.beginPath();
        context.moveTo(x - 3, y);
        context.lineTo(x + 5, y);
        context.lineTo(x + 1, y + tall);
        context.fill();
      }
    }
  }
}

/** Who is in a lane at the right edge of the view; where it shows several, each bar has its name. */
export function paintLabels(frame: Frame): void {
  const { context, log, height, gutter, from, to, bottom, yOf } = frame;
  if (height < 11) return;
  const lanes = new Map<number, Request[]>();
  for (const request of log.requests.values()) {
    if (request.from >= to || request.to <= from) continue;
    const there = lanes.get(request.lane);
    if (there) there.push(request);
    else lanes.set(request.lane, [request]);
  }
  context.font = FONT;
  for (const [lane, requests] of lanes) {
    const y = yOf(lane) + shapeOf(height).bar / 2;
    if (y < AXIS || y > bottom) continue;
    const last = requests.reduce((last, request) => (request.from > last.from ? request : last));
    if (gutter > 0) {
      context.textAlign = "right";
      context.fillStyle = last.isOpen ? theme().ink : theme().quiet;
      context.fillText(shortName(last.name), gutter - 8, y + 0.5);
    }
    if (requests.length > 1 || gutter === 0) for (const request of requests) name(frame, request, y);
  }
  context.globalAlpha = 1;
}

/** The name of a request on its bar, if there is room. */
function name({ context, log, gutter, width, xAt }: Frame, request: Request, y: number): void {
  const x = Math.max(gutter, xAt(request.from)) + 3;
  const end = Math.min(width, xAt(request.isOpen ? log.newest : request.to));
  if (end - x < NAMED_PX) return;
  const text = shortName(request.name);
  context.textAlign = "left";
  context.globalAlpha = 0.85;
  context.fillStyle = theme().panel;
  context.fillRect(x - 1, y - 7, context.measureText(text).width + 6, 14);
  context.globalAlpha = 1;
  context.fillStyle = theme().ink;
  context.fillText(text, x + 2, y + 0.5);
}
