// Lanes that can be read under load: who is in which lane, what fills a bar, and what idle time becomes. The feed is a script.

import assert from "node:assert/strict";
import { test, until } from "./lib.mjs";
import { ended, scripted, stats, step } from "./scripted.mjs";

const AXIS = 20;
const LANE = 26;
const GUTTER = 66;

/** How many of the canvas's pixels have each of some colours: an area in CSS pixels, or all of the lanes. */
export async function colours(page, area = null) {
  return page.evaluate((area) => {
    const canvas = document.querySelector("canvas.timeline");
    const ratio = canvas.width / canvas.clientWidth;
    const style = getComputedStyle(document.documentElement);
    const value = (name) => Number.parseInt(style.getPropertyValue(`--${name}`).trim().slice(1), 16);
    const names = new Map(["prefill", "decode", "lane", "late", "cached", "quiet", "queue"].map((name) => [value(name), name]));
    const prefill = value("prefill");
    names.set([16, 8, 0].reduce((sum, shift) => sum + (Math.round(((prefill >> shift) & 255) * 0.55) << shift), 0), "edge");
    const [x, y, width, height] = (area ?? [66, 20, canvas.clientWidth - 66, canvas.clientHeight - 20]).map((each) => Math.round(each * ratio));
    const { data } = canvas.getContext("2d").getImageData(x, y, width, height);
    const found = {};
    for (let i = 0; i < data.length; i += 4) {
      const name = data[i + 3] === 0 ? "nothing" : (names.get((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]) ?? "other");
      found[name] = (found[name] ?? 0) + 1;
    }
    return found;
  }, area);
}

/** The lanes of the table are not told: how many there are is in the height of the picture, or in words. */
const lanesOf = (page) => page.locator("canvas.timeline").evaluate((canvas) => Number(canvas.dataset.lanes));

/** Requests one after the other: a prompt and three tokens of 5 ms each. */
function inTurn(number, gap = 0) {
  const events = [];
  for (let i = 0, at = 0; i < number; i += 1) {
    const r = `turn-${i}`;
    const begin = at;
    events.push(step(4 * i, at, 5, { prefill: [{ r, a: 0, start: 0, len: 8, samples: 1, cached: 0 }] }));
    for (let k = 1; k < 4; k += 1) events.push(step(4 * i + k, at + 5 * k, 5, { decode: [{ r, a: 0, start: 7 + k }] }));
    at += 20;
    events.push(ended(r, at, { arrived: begin, generated: 4 }));
    at += gap;
  }
  return events;
}

test("a hundred requests in turn use two lanes at most, however far one zooms", async (context) => {
  const page = await scripted(context, inTurn(100));
  assert.ok((await lanesOf(page)) <= 2, `fitted: ${await lanesOf(page)} lanes`);
  for (const key of ["s", "s", "s", "s", "s", "s", "w", "w", "w", "w", "w", "w", "w", "w", "w", "w"]) {
    await page.keyboard.press(key);
    await page.waitForTimeout(30);
    assert.ok((await lanesOf(page)) <= 2, `${key}: ${await lanesOf(page)} lanes`);
  }
  await context.picture(page, "lanes in turn");
});

/** 24 streams of 24 ms a step, of which the machine took 40 %; every eighth step reads a piece of a newcomer's prompt too. */
export function underLoad(steps = 80) {
  const events = [];
  const streams = Array.from({ length: 24 }, (_, i) => `stream-${i}`);
  for (const [i, r] of streams.entries()) events.push(step(i, 6 * i, 6, { prefill: [{ r, a: 0, start: 0, len: 16, samples: 1, cached: i % 4 === 0 ? 8 : 0 }] }));
  for (let i = 0, at = 144; i < steps; i += 1) {
    const isShared = i % 8 === 7;
    const took = isShared ? 48 : 24;
    const decode = streams.map((r) => ({ r, a: 0, start: 16 + i, ...(isShared ? { own: 0.02, other_prefill: 0.5 } : {}) }));
    const prefill = isShared ? [{ r: `long-${i}`, a: 0, start: 0, len: 512, samples: 1, cached: 0, own: 0.5, other_prefill: 0 }] : [];
    events.push(step(24 + i, at, took, { decode, prefill, stolen: 0.4 * took }));
    at += took;
    if (isShared) events.push(ended(`long-${i}`, at, { arrived: at - took, prompt_tokens: 512, generated: 1 }));
  }
  return events;
}

test("of 24 streams with 40 % machine time the bars are their own colour, and the machine's time is a line below", async (context) => {
  const page = await scripted(context, underLoad(), { height: 1000 });
  const found = await colours(page);
  await context.picture(page, "lanes under load");
  const solid = (found.decode ?? 0) + (found.prefill ?? 0);
  // Hatching has as much ground as ink: what is orange and not of a prompt's own bar counts twice.
  const own = (count) => count / (solid + (found.edge ?? 0) + (found.lane ?? 0));
  assert.ok(own(found.decode) >= 0.6, `own colour: ${own(found.decode)} ${JSON.stringify(found)}`);
  assert.ok(own(2 * found.prefill) <= 0.15 + own(found.lane), JSON.stringify(found));
  // A lane of its own: a bar without grey, and a grey line under 40 % of it.
  const wide = await page.locator("canvas.timeline").evaluate((canvas) => canvas.clientWidth);
  const bar = (top, bottom) => colours(page, [GUTTER + 80, AXIS + top, wide - GUTTER - 200, bottom - top]);
  const height = await page.locator("canvas.timeline").evaluate((canvas) => (canvas.clientHeight - 20) / Number(canvas.dataset.lanes));
  if (height >= 12) {
    const [inside, below] = [await bar(0, Math.floor(height) - 5), await bar(Math.floor(height) - 4, Math.floor(height) - 2)];
    const share = (found) => (found.quiet ?? 0) / Object.values(found).reduce((a, b) => a + b);
    assert.equal(share(inside), 0, `nothing of it is in the bar: ${JSON.stringify(inside)}`);
    assert.ok(share(below) > 0.35 && share(below) < 0.45, `a line of 40 %: ${JSON.stringify(below)}`);
  }
});
