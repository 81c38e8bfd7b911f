// Live: what the engine does is there while it does it, for the pointer, the keyboard and a screen reader.

import assert from "node:assert/strict";
import { test, until } from "./lib.mjs";

test("the example of an idle engine, its figures, and its row in the table", async (context) => {
  // A server of its own, which has had no request.
  const server = await context.server("--max-num-seqs", "16");
  const page = await context.open(server, "/#/live");
  await page.getByText("No request yet.").waitFor();
  await page.getByText("A lane holds one request at a time.").waitFor();
  await page.getByRole("button", { name: "Send an example" }).first().click();
  await page.locator("summary", { hasText: "table" }).click();
  const row = page.getByRole("region", { name: "Requests" }).locator("tbody tr").first();
  await until("its end", async () => /stop|length/.test(await row.locator("td").first().textContent()));
  const [, prompt, , answer, , first] = await row.locator("td").allTextContents();
  assert.ok(Number(prompt.replace(",", "")) > 0 && Number(answer) > 1 && / (ms|s)$/.test(first), `${prompt} ${answer} ${first}`);
  await until("the gauges", async () => (await page.locator(".gauge .number").allTextContents()).every((text) => /%/.test(text)));
});

test("the keyboard goes from token to token, and says what each waited for", async (context) => {
  const server = await context.server();
  const post = (body) => fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  await (await post({ prompt: "Once", max_tokens: 24, ignore_eos: true })).json();
  const page = await context.open(server, "/#/live");
  const spoken = page.locator(".timeline-box .visually-hidden");
  const number = async () => Number(/token (\d+)/.exec(await spoken.textContent())?.[1] ?? 0);
  // What came before the page was opened reaches it piece by piece. The answer takes a few milliseconds: it has to stay in
  // view however far one zooms in.
  let last = 0;
  await until("two tokens", async () => {
    await page.locator("canvas.timeline").focus();
    for (const key of ["Escape", "0", "End"]) await page.keyboard.press(key);
    last = await number();
    return last > 1;
  });
  await page.keyboard.press("ArrowLeft");
  await until("the token before", async () => (await number()) === last - 1);
  assert.match(await spoken.textContent(), /Step \d+: /);
});

test("the link under an answer leads to its lane", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  await page.getByLabel("Message", { exact: true }).fill("What is 3 + 4?");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Why" }).click();
  await page.getByRole("link", { name: "Its lane on Live" }).click();
  await until("its first token", async () => /token 1/.test((await page.locator(".timeline-box .tip").textContent()) ?? ""));
});
