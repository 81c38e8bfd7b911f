// What axe-core finds (WCAG 2.2 A and AA, and its best practices): nothing, on every page, wide and narrow, light and dark.

import assert from "node:assert/strict";
import { violations } from "./axe.mjs";
import { streams, test } from "./lib.mjs";

/** What a page has to show before it is looked at. */
const READY = {
  live: async (page) => {
    await page.locator("summary", { hasText: "table" }).click();
    await page.getByRole("region", { name: "Requests" }).locator("tbody tr").first().waitFor();
  },
  step: async (page) => void (await page.locator(".users tr, .users li").first().waitFor({ timeout: 5000 }).catch(() => {})),
  chat: async (page) => {
    await page.getByLabel("Max tokens").fill("8");
    await page.getByLabel("Message", { exact: true }).fill("What is 7 + 5?");
    await page.keyboard.press("Enter");
    await page.locator(".turn.assistant .phase-line").waitFor();
  },
  calculator: async (page) => void (await page.getByText("The same on the command line").waitFor()),
  "calculator?model=30b-a3b&machine=gb10&prompt=2000&response=200&batch=2&thinking=300&cached=0.5&acceptance=0.8&price=2&users=50&rate=1/min&ttft=5000": async (page) =>
    void (await page.getByRole("region", { name: "Machines that meet the targets" }).waitFor()),
  learn: async () => {},
  "learn/17": async () => {},
};

test("no page has a violation, in two widths and two themes", async (context) => {
  const server = await context.server();
  const stop = await streams(server, 4);
  const found = [];
  for (const [name, ready] of Object.entries(READY)) {
    for (const [dark, width] of [[false, 1440], [true, 1440], [false, 390], [true, 390]]) {
      const page = await context.open(server, `/#/${name}`, { dark, width, height: 844 });
      if (name === "chat" && width < 960) await page.locator("summary", { hasText: "Sampling" }).click();
      await ready(page);
      for (const violation of await violations(page)) found.push(`${name}, ${dark ? "dark" : "light"}, ${width} px: ${violation}`);
      await page.close();
    }
  }
  stop();
  assert.deepEqual(found, []);
});
