// The README's picture: docs/live.png is what this makes of docs/live.json (target/web/readme.png).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "./lib.mjs";
import { scripted } from "./scripted.mjs";

test("a long prompt among four answers, as the README shows it", async (context) => {
  const events = JSON.parse(readFileSync(new URL("../../docs/live.json", import.meta.url), "utf8"));
  const page = await scripted(context, events, { width: 1000, height: 900 });
  const lanes = page.locator("canvas.timeline");
  // The worst wait of the first stream: behind the long prompt.
  await page.keyboard.press("Home");
  for (let press = 0; press < 19; press += 1) await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  const selection = page.getByRole("region", { name: "Selection" });
  assert.match(await selection.textContent(), /story-1 · token \d+ · late.*It waited for the prompt of report/);
  await page.keyboard.press("0");
  await lanes.evaluate((canvas) => canvas.blur());
  // Of half a second the strip of the last minutes shows nothing.
  await page.locator(".overview-box").evaluate((strip) => (strip.hidden = true));
  await page.waitForTimeout(300);
  await page.locator(".timeline-panel").screenshot({ path: join(context.artefacts, "readme.png") });
});
