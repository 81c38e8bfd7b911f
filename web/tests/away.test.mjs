// A prompt that another worker reads: its steps there and the blocks that come, on the request's own lane.

import assert from "node:assert/strict";
import { violations } from "./axe.mjs";
import { test } from "./lib.mjs";
import { scripted, step } from "./scripted.mjs";

const AXIS = 20;
const GUTTER = 66;
const SPAN = 310 * 1.08;

/** 200 ms away: read in two steps of 80 ms, a block after each and one at the end; then the tail and nine tokens here. */
function course() {
  const away = {
    r: "mine", worker: "10.0.0.7:9000", from_ms: 0, to_ms: 200, result: "in_part",
    steps: [{ from_ms: 10, to_ms: 90, rows: 64 }, { from_ms: 100, to_ms: 180, rows: 64 }],
    landed: [{ at_ms: 95, blocks: 1 }, { at_ms: 185, blocks: 2 }, { at_ms: 190, blocks: 3 }],
  };
  const events = [["away", { ...away, to_ms: null, result: null, steps: [], landed: [] }], ["away", away]];
  events.push(step(0, 200, 20, { prefill: [{ r: "mine", a: 0, start: 96, len: 33, samples: 1, cached: 96 }] }));
  for (let i = 0; i < 9; i += 1) events.push(step(1 + i, 220 + 10 * i, 10, { decode: [{ r: "mine", a: 0, start: 129 + i }] }));
  return events;
}

test("a prompt that is away has the other worker's steps and its blocks on its lane, and says who reads it", async (context) => {
  const page = await scripted(context, course());
  await page.keyboard.press("0");
  await context.picture(page, "live away");
  const box = await page.locator("canvas.timeline").boundingBox();
  const tip = page.locator(".timeline-box .tip");
  // Where a moment is: the view may have moved, so it is looked for.
  const point = async (time) => {
    const width = box.width - GUTTER;
    const stride = Math.min(500, SPAN / 4);
    const right = Math.ceil(310 / stride) * stride + SPAN * 0.02;
    await page.mouse.move(box.x + GUTTER + ((time - (right - SPAN)) / SPAN) * width, box.y + AXIS + 12);
    await page.waitForTimeout(100);
    return tip.textContent();
  };
  const told = await point(120);
  for (const words of [/mine · away 200 ms/, /The worker at 10\.0\.0\.7:9000 read its prompt: 128 tokens in 2 steps\./, /3 KV blocks came, the first 95 ms after it left, the last after 190 ms\./, /What did not come was computed here\./]) assert.match(told, words);
  assert.match(await point(210), /prefill/, "behind it is what was computed here");
  // Green stairs, and the other worker's steps behind them.
  const ink = await page.evaluate(([x, y]) => {
    const canvas = document.querySelector("canvas.timeline");
    const ratio = canvas.width / canvas.clientWidth;
    const wanted = Number.parseInt(getComputedStyle(document.documentElement).getPropertyValue("--cached").trim().slice(1), 16);
    const { data } = canvas.getContext("2d").getImageData(x * ratio, y * ratio, (canvas.clientWidth - x) * ratio, 23 * ratio);
    let green = 0;
    for (let i = 0; i < data.length; i += 4) if (((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]) === wanted) green += 1;
    return green;
  }, [GUTTER, AXIS]);
  assert.ok(ink > 100, `${ink} green pixels`);
  assert.match(await page.locator(".legend").textContent(), /another worker reads the prompt/);
  assert.deepEqual(await violations(page), []);
});
