// What was before the page was opened: requests in the table, charts in times of the wall, and the story behind a link.

import assert from "node:assert/strict";
import { test, until } from "./lib.mjs";

test("a page that is opened later shows what was, and a board's link tells a request's story", async (context) => {
  const server = await context.server();
  const post = async (body) => (await fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();
  const first = await post({ prompt: "The fox looked at the lantern in the window.", max_tokens: 40, ignore_eos: true });
  // More steps than a feed begins with, so that the first one's are gone from it.
  await post({ prompt: "Once", max_tokens: 700, ignore_eos: true });

  const page = await context.open(server, "/#/live");
  await page.locator("summary", { hasText: "table" }).click();
  const rows = page.getByRole("region", { name: "Requests" }).locator("tbody tr");
  // Others may have asked this server before.
  const ours = rows.filter({ has: page.locator(`th[title="${first.id}"]`) });
  await until("its row", async () => (await ours.count()) === 1);
  const cells = await ours.locator("td").allTextContents();
  const [state, prompt, , answer, queue, token, between, worst, , came] = cells;
  assert.equal(state, "length");
  assert.equal(Number(prompt), first.usage.prompt_tokens);
  assert.equal(Number(answer), 40);
  for (const time of [queue, token, between, worst]) assert.match(time, / (ms|s)$/, `${cells}`);
  assert.match(came, /^\d\d:\d\d:\d\d$/);
  // The charts have a point from before.
  await until("the charts", async () => (await page.evaluate(() => document.querySelectorAll(".series canvas").length)) === 6);

  await page.goto(`${server.origin}/#/live?request=${first.id}`);
  const story = page.getByRole("region", { name: "Why was it slow" });
  await story.getByText(/^The first token came after /).waitFor();
  await story.getByText(/^Then 39 tokens came in /).waitFor();
});
