// Chat: an answer streams, its phases are told, it can be stopped and had again.

import assert from "node:assert/strict";
import { test, until } from "./lib.mjs";

const send = async (page, text) => {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.getByRole("button", { name: "Send" }).click();
};

test("a chat: the answer streams, its phases are told, and the conversation goes on", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Seed").fill("7");
  await send(page, "What is 7 + 5?");
  const first = page.locator(".turn.assistant").first();
  await first.locator(".phase-line").waitFor();
  const text = await first.locator(".text").textContent();
  assert.ok(text.length > 0 && !text.includes("think>"));
  // What it thought is folded above what it said.
  const thought = first.locator("details.thought");
  assert.equal(await thought.locator(".thought-text").isVisible(), false);
  await thought.locator("summary").click();
  assert.match(await thought.locator(".thought-text").textContent(), /\d/);
  // As `twostroke run` says it; the share of the limit follows from the feed.
  const line = /^prefill \d+ tok( \(\+ \d+ cached\))? in [\d.]+ (ms|s) \([\d.]+k? tok\/s, [\d.]+ % of limit\) · decode [\d.]+k? tok\/s \([\d.]+ % of limit\)(, \d+ of \d+ draft tokens? accepted)?$/;
  await until("the share of the limit", async () => line.test(await first.locator(".phase-line").textContent()));
  // The same request gives the same answer.
  await page.getByRole("button", { name: "Retry" }).click();
  await page.getByText("The answer is complete.").waitFor();
  assert.equal(await page.locator(".turn.assistant .text").last().textContent(), text);
  assert.equal(await page.locator(".turn").count(), 2);

  await send(page, "And 8 + 5?");
  await until("the second answer", async () => (await page.locator(".turn.assistant .phase-line").count()) === 2);
  // Its prompt holds the whole conversation.
  const tokens = async (at) => Number(/prefill (\d+) tok(?: \(\+ (\d+) cached\))?/.exec(await page.locator(".phase-line").nth(at).textContent()).slice(1).reduce((a, b) => Number(a) + Number(b ?? 0)));
  assert.ok((await tokens(1)) > (await tokens(0)));
  // It is still there after a visit elsewhere.
  await page.getByRole("link", { name: "Learn", exact: true }).click();
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  await until("the conversation", async () => (await page.locator(".turn").count()) === 4);
  await page.getByRole("button", { name: "New conversation" }).click();
  assert.equal(await page.locator(".turn").count(), 0);
});

test("an answer can be stopped, with the button and with Escape, and the engine hears of it", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  // A model may end a story before it is stopped; this one may not. Twice as much fits into its context.
  await page.route("**/v1/chat/completions", (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }) }));
  await page.getByLabel("Max tokens").fill("2900");
  const stops = [() => page.getByRole("button", { name: "Stop" }).click(), () => page.keyboard.press("Escape")];
  for (const [at, stop] of stops.entries()) {
    await send(page, "Tell me a story about a fox and a lantern, as long as you can.");
    await until("the first words", async () => (await page.locator(".turn.assistant .text").last().textContent()).length > 0);
    await stop();
    await until("the word that it was stopped", async () => (await page.locator(".turn.assistant .note").count()) === at + 1);
  }
  await until("an idle engine", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests === 0);
});

/** A story that only the test ends. */
const endless = async (page, tokens = 6000) => {
  await page.route("**/v1/chat/completions", (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }) }));
  await page.getByLabel("Max tokens").fill(String(tokens));
};

test("an answer goes on while one looks at another page, and a conversation survives a reload", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  await endless(page);
  await send(page, "Tell me a story about a fox and a lantern, as long as you can.");
  const text = page.locator(".turn.assistant .text").last();
  const length = async () => (await text.textContent()).length;
  await until("the first words", async () => (await length()) > 0);
  const before = await length();
  await page.getByRole("link", { name: "Live", exact: true }).click();
  await page.locator("canvas.timeline").waitFor();
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  await until("more of it", async () => (await length()) > before);
  assert.equal(await page.locator(".turn .note").count(), 0, "it was not stopped");
  assert.ok(await page.getByRole("button", { name: "Stop" }).isEnabled());
  assert.equal(await page.getByLabel("Max tokens").inputValue(), "6000", "settings stay too");
  // A reload ends the answer, and leaves what was there.
  await page.reload();
  await until("the conversation", async () => (await page.locator(".turn").count()) === 2);
  assert.ok((await length()) > before);
  await page.getByText("The page was loaded again before").waitFor();
  await page.getByLabel("Max tokens").fill("8");
  await send(page, "What is 7 + 5?");
  await until("the next answer", async () => (await page.locator(".turn").count()) === 4);
  await until("its end", async () => (await page.locator(".turn.assistant .actions").count()) === 2);
  await page.getByRole("button", { name: "New conversation" }).click();
  await page.reload();
  await page.getByRole("log").waitFor();
  assert.equal(await page.locator(".turn").count(), 0);
});

test("the end of the conversation stays in view, unless one has scrolled away from it", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  const log = page.locator(".conversation");
  const below = () => log.evaluate((log) => log.scrollHeight - log.scrollTop - log.clientHeight);
  // Taller than what is shown of it.
  await send(page, Array.from({ length: 60 }, (_, line) => `line ${line}`).join("\n"));
  await page.locator(".turn.assistant .actions").waitFor();
  assert.ok((await log.evaluate((log) => log.scrollHeight - log.clientHeight)) > 300, "it is longer than the page");
  await until("the end, footer and all", async () => (await below()) <= 4);
  await endless(page, 3000);
  await log.evaluate((log) => (log.scrollTop = 0));
  await page.waitForTimeout(100);
  await send(page, "Tell me a story about a fox and a lantern, as long as you can.");
  await until("the end again: sending leads there", async () => (await below()) <= 4);
  await until("words", async () => (await page.locator(".turn.assistant .text").last().textContent()).length > 0);
  await log.evaluate((log) => (log.scrollTop = 0));
  await page.waitForTimeout(300);
  assert.ok((await below()) > 300, "a reader who scrolled up is left there");
  await page.keyboard.press("Escape");
});

test("what the server refuses is shown as it says it", async (context) => {
  const server = await context.server("--max-tokens-beyond", "refuse");
  const page = await context.open(server, "/#/chat", { expected: /status of 400/ });
  await page.getByLabel("Max tokens").fill("999999");
  await send(page, "hello");
  const told = await page.locator(".turn [role=alert]").textContent();
  const body = JSON.stringify({ messages: [{ role: "user", content: "hello" }], max_tokens: 999_999, stream: true });
  const response = await fetch(`${server.origin}/v1/chat/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  assert.equal(told, (await response.json()).error.message);
});

test("a long prompt beside a stream shares its steps, and Live shows both", async (context) => {
  const server = await context.server("--allow-pause");
  const page = await context.open(server, "/#/chat");
  await page.getByLabel("Max tokens").fill("3000");
  await page.getByLabel("Tokens of the long prompt").fill("3000");
  // A story ends when the model ends it: the stream that is sure to be there is one of the test's own.
  const body = JSON.stringify({ prompt: "Once", max_tokens: 4000, ignore_eos: true, stream: true });
  const abort = new AbortController();
  const stream = await fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body, signal: abort.signal });
  const reader = stream.body.getReader();
  await reader.read();
  const id = stream.headers.get("x-request-id");
  // Held until the prompt is there: the stream could be over before a busy browser has sent it.
  const hold = (how) => fetch(`${server.origin}/live/${how}`, { method: "POST", headers: { "x-hold-token": server.token } });
  assert.equal((await hold("pause")).status, 200);
  await page.getByRole("button", { name: "Inject a long prompt" }).click();
  await until("both requests", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests === 2);
  assert.equal((await hold("resume")).status, 200);
  await page.getByText(/3,000 tokens: first token after/).waitFor();
  await page.getByRole("link", { name: "Live", exact: true }).click();
  await page.locator("summary", { hasText: "table" }).click();
  await until("both in the table", async () => {
    const prompts = await page.getByRole("region", { name: "Requests" }).locator("tbody tr td:nth-child(3)").allTextContents();
    return prompts.includes("3,000") && prompts.length >= 2;
  });
  await context.picture(page, "live with a long prompt");
  abort.abort();
  await reader.cancel().catch(() => {});
  // The engine says whose prompt stood between the stream's tokens.
  const timeline = await (await fetch(`${server.origin}/v1/requests/${id}/timeline`)).json();
  assert.ok(timeline.prompts[0].gaps.other_prefill_ms > 0, JSON.stringify(timeline).slice(0, 500));
});
