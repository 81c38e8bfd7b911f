// Step, in words: of requests that the tab has sent, what a step read, what came of it, and what else was likely.

import assert from "node:assert/strict";
import { PAYLOADS } from "./payloads.mjs";
import { test, until } from "./lib.mjs";

const cells = (page) => page.getByRole("region", { name: "Words" }).locator("tbody tr").first().locator("td").evaluateAll((all) => all.map((cell) => [...cell.querySelectorAll(".word")].map((word) => word.textContent)));
const shown = async (page) => Number(/^[\d,]+/.exec(await page.locator(".scrub output").textContent())?.[0].replaceAll(",", "") ?? -1);

test("paused, sent, one step: four words, then the first of the answer; the next step has that one, and the next", async (context) => {
  const server = await context.server("--allow-pause", "--speculate", "off");
  const page = await context.open(server, `/#/step?hold=${server.token}`);
  assert.equal(await page.getByRole("region", { name: "Words" }).count(), 0);
  // The answer to be expected, without the page.
  const body = JSON.stringify({ prompt: "Once upon a time", max_tokens: 3, temperature: 0, logprobs: 5 });
  const { choices } = await (await fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body })).json();
  const expected = choices[0].logprobs.tokens;
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByText("The engine is paused.").waitFor();
  await page.getByLabel("Prompt").fill("Once upon a time");
  await page.getByRole("button", { name: "Send this prompt" }).click();
  await until("the request", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests === 1);
  const one = page.getByRole("button", { name: "One step", exact: true });
  await one.click();
  await until("its words", async () => (await cells(page))[1]?.join() === expected[0]);
  const [read, , others] = await until("the words of the prompt", async () => {
    const row = await cells(page);
    // What the prefix cache had of the prompt is not read again.
    return row[0].length > 0 && "Once upon a time".endsWith(row[0].join("").trimStart()) && row;
  });
  assert.equal(others.length, 4);
  assert.ok(!others.includes(expected[0]));
  await until("a button", () => one.isEnabled());
  await one.click();
  await until("the next word", async () => JSON.stringify((await cells(page)).slice(0, 2)) === JSON.stringify([[expected[0]], [expected[1]]]));
  // Back through the log the words are there too.
  await page.getByRole("button", { name: "One step back" }).click();
  await until("the first again", async () => (await cells(page))[1]?.join() === expected[0]);
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByText(/^Answered: /).waitFor();
  assert.ok((await shown(page)) >= 0);
});

test("a question of the chat has its words on Step, and requests of others have none", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  await page.getByLabel("Max tokens").fill("8");
  await page.getByLabel("Message", { exact: true }).fill("What is 7 + 5?");
  await page.keyboard.press("Enter");
  await page.locator(".turn.assistant .actions").waitFor();
  await page.getByRole("link", { name: "Step", exact: true }).click();
  await until("words", async () => (await cells(page).catch(() => []))[1]?.length > 0);
  await fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ prompt: "Another", max_tokens: 4 }) });
  await until("a step of another", async () => (await page.getByRole("region", { name: "Words" }).count()) === 0);
});

test("a server that gives no log probabilities answers all the same", async (context) => {
  const server = await context.server("--max-logprobs", "0");
  const page = await context.open(server, "/#/chat", { expected: /status of 400/ });
  await page.getByLabel("Max tokens").fill("8");
  await page.getByLabel("Message", { exact: true }).fill("What is 7 + 5?");
  await page.keyboard.press("Enter");
  await page.locator(".turn.assistant .phase-line").waitFor();
});

test("hostile words, control characters, and ids that repeat or are skipped stay text", async (context) => {
  const server = await context.server();
  const texts = [...PAYLOADS, "\u0000\u001b[31m\u007f", "\u202eabc", "\ufffd", "\ud83d", "a\udc00", "", " ", "\n\n"];
  const step = (id, row) => ["step", { id, at: id * 10, took: 9, predicted: 9, decode: [], prefill: [], preempted: [], waiting: 0, waiting_tokens: 0, blocked: null, blocks: { used: 1, taken: 1, evicted: 0, copied: 0 }, recomputed: 0, flops: 1e6, bytes: 1e6, ...row }];
  const sse = (events) => events.map(([event, data]) => `${event ? `event: ${event}\n` : ""}data: ${JSON.stringify(data)}\n\n`).join("");
  const steps = [step(1, { prefill: [{ r: "x", a: 0, start: 0, len: 3, samples: 1, cached: 0 }] }), ...texts.map((_, i) => step(i + 2, { decode: [{ r: "x", a: 0, start: 3 + i }, { r: "x", a: 0, start: 9_999 }, { r: 7, a: 0, start: 1 }] }))];
  const page = await context.open(server, "/#/step", {
    expected: /status of (400|404)/,
    prepare: async (page) => {
      await page.addInitScript(() => (window.pwn = () => (window.__pwned = true)));
      await page.route("**/live/feed*", (route) => route.fulfill({ contentType: "text/event-stream", body: sse(steps) }));
      await page.route("**/detokenize", (route) => route.fulfill({ json: { content: PAYLOADS[6] } }));
      await page.route("**/tokenize", (route) => route.fulfill({ json: { tokens: [{ id: 1, piece: PAYLOADS[0] }, { id: 1, piece: [0xe2, 0x80] }, { id: 1, piece: PAYLOADS[7] }] } }));
      const tokens = texts.map((text) => ["", { id: "x", choices: [{ text, logprobs: { tokens: [text], token_logprobs: [-0.5], top_logprobs: [{ [text]: -0.5, [PAYLOADS[9]]: -9 }] } }] }]);
      await page.route("**/v1/completions", (route) => route.fulfill({ contentType: "text/event-stream", body: sse([["", { id: "x", choices: [{ text: "", prompt_token_ids: [1, 1, 1] }] }], ...tokens, ["", { id: "x", choices: [{ text: "", finish_reason: "stop" }] }]]) }));
    },
  });
  await page.getByRole("button", { name: "Send this prompt" }).click();
  await page.getByText(/^Answered/).waitFor();
  await until("the newest step", async () => (await shown(page)) === texts.length + 1);
  await page.getByRole("slider", { name: "Step" }).focus();
  await page.keyboard.press("Home");
  await until("the prompt", async () => JSON.stringify((await cells(page))[0]) === JSON.stringify([PAYLOADS[0], "\\xe2\\x80", PAYLOADS[7]]));
  for (let press = 0; press < texts.length; press += 1) await page.keyboard.press("ArrowRight");
  const found = await page.evaluate(() => ({ pwned: window.__pwned ?? false, foreign: document.querySelectorAll("body script, iframe, svg, img, object, embed, [onerror], [onload]").length }));
  assert.deepEqual(found, { pwned: false, foreign: 0 });
});
