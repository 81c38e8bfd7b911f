// Whatever a model, a client or an address says stays text: no script, no dialog, no request elsewhere, no new element.

import assert from "node:assert/strict";
import { test, until } from "./lib.mjs";
import { PAYLOADS } from "./payloads.mjs";

/**
 * Elements that no page of ours has, but for the pictures of the tour, which its own code draws; and attributes that nothing of ours sets.
 */
const FOREIGN =
  "body script, iframe, object, embed, svg:not(.ring):not(.scene svg), math, base, form[action], video, audio, marquee, template, slot, style:not(head style), img:not([src^='data:']), meta[http-equiv], [onerror], [onload], [onfocus], [onclick], [ontoggle], [srcdoc], [href^='javascript:' i], [popover]";

/** Before anything of the page runs: what a payload would call. */
async function trap(page) {
  await page.addInitScript(() => {
    window.__pwned = 0;
    window.pwn = () => (window.__pwned += 1);
  });
}

async function assertClean(page, what) {
  const found = await page.evaluate((foreign) => {
    // The bundle is the one script, and it is in the head.
    const elements = [...document.querySelectorAll(foreign)].map((element) => element.outerHTML.slice(0, 200));
    return { pwned: window.__pwned, elements };
  }, FOREIGN);
  assert.deepEqual(found, { pwned: 0, elements: [] }, what);
}

const sse = (events) => events.map(([event, data]) => `${event ? `event: ${event}\n` : ""}data: ${JSON.stringify(data)}\n\n`).join("");

/** Changes what `/live/info` says. */
async function withInfo(page, change) {
  await page.route("**/live/info", async (route) => {
    try {
      const response = await route.fetch();
      await route.fulfill({ json: { ...(await response.json()), ...change } });
    } catch (error) {
      // The page was closed meanwhile, and nothing waits for it.
      if (!/disposed|closed/.test(String(error))) throw error;
    }
  });
}

test("there are at least sixty hostile texts, all different", async () => {
  assert.ok(PAYLOADS.length >= 60, String(PAYLOADS.length));
  assert.equal(new Set(PAYLOADS).size, PAYLOADS.length);
});

/** Of an answer, texts that are Markdown: emphasis, code, and characters by their numbers and names. */
const AS_MARKDOWN = new Map([
  ["__proto__", "proto"],
  ["*/pwn()/*", "/pwn()/"],
  ["`;pwn();`", ";pwn();"],
  ["&lt;img src=x onerror=pwn()&gt;", "<img src=x onerror=pwn()>"],
  ["&#60;img src=x onerror=pwn()&#62;", "<img src=x onerror=pwn()>"],
]);

test("hostile questions, answers, ids and errors in the chat stay text", async (context) => {
  const server = await context.server();
  let payload = "";
  const answer = () => {
    const chunk = (choice) => ["", { id: payload, object: "chat.completion.chunk", model: payload, choices: [{ index: 0, ...choice }] }];
    const timings = { queue_ms: 0, prefill_ms: 1, decode_ms: 1, ttft_ms: 1, total_ms: 2, prefill_tokens: 1, cached_tokens: 0, decode_tokens: 1, prefill_tokens_per_second: 1, decode_tokens_per_second: 1, preemptions: 0 };
    const done = [null, { id: payload, choices: [{ index: 0, delta: {}, finish_reason: "stop" }], timings }];
    return sse([chunk({ delta: { content: payload } }), done]) + "data: [DONE]\n\n";
  };
  const page = await context.open(server, "/#/chat", {
    expected: /status of 400/,
    prepare: async (page) => {
      await trap(page);
      await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body: answer() }));
    },
  });
  const message = page.getByLabel("Message", { exact: true });
  for (payload of PAYLOADS) {
    await message.fill(payload);
    await page.getByRole("button", { name: "Send" }).click();
    const shown = page.locator(".turn.assistant").last();
    await shown.locator(".phase-line").waitFor();
    assert.equal(await shown.locator(".text").textContent(), AS_MARKDOWN.get(payload) ?? payload);
    assert.equal(await page.locator(".turn.user").last().locator(".text").textContent(), payload);
    await shown.getByRole("button", { name: "Why" }).click();
    assert.equal(await shown.getByRole("link").getAttribute("href"), `#/live?request=${encodeURIComponent(payload)}`);
  }
  await assertClean(page, "after answers");
  await page.unroute("**/v1/chat/completions");
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 400, json: { error: { message: payload } } }));
  for (payload of PAYLOADS.slice(0, 12)) {
    await message.fill("and now an error");
    await page.getByRole("button", { name: "Send" }).click();
    const shown = page.locator(".turn.assistant").last();
    await shown.getByRole("alert").waitFor();
    assert.equal(await shown.getByRole("alert").textContent(), payload);
  }
  await assertClean(page, "after errors");
});

test("a real server with hostile names of its model and of requests", async (context) => {
  const name = PAYLOADS[6];
  const server = await context.server("--served-model-name", name);
  const { data } = await (await fetch(`${server.origin}/v1/models`)).json();
  assert.equal(data[0].id, name);
  const page = await context.open(server, "/#/live", { prepare: trap });
  assert.ok((await page.locator("#top .model").textContent()).includes(name));
  // A request id may have any printable ASCII but no space.
  for (const payload of PAYLOADS.filter((payload) => /^[\x21-\x7e]{1,128}$/.test(payload))) {
    const headers = { "Content-Type": "application/json", "X-Request-Id": payload };
    const body = JSON.stringify({ model: name, messages: [{ role: "user", content: payload }], max_tokens: 2 });
    const response = await fetch(`${server.origin}/v1/chat/completions`, { method: "POST", headers, body });
    assert.equal(response.headers.get("x-request-id"), payload);
    assert.equal(response.status, 200, await response.text());
  }
  await page.locator("summary", { hasText: "table" }).click();
  await page.getByRole("region", { name: "Requests" }).locator("tbody tr").first().waitFor();
  await assertClean(page, "live");
  for (const path of ["step", "chat", "calculator", "learn"]) {
    await page.goto(`${server.origin}/#/${path}`);
    await page.locator("#page h1").waitFor();
    await assertClean(page, path);
  }
});

test("hostile words in every field of the feed stay text", async (context) => {
  const server = await context.server();
  const step = (payload, id) => ({
    id,
    at: id * 10,
    took: 9,
    predicted: 9,
    decode: [{ r: payload, a: 0, start: 9 }],
    prefill: [{ r: `${payload} `, a: 0, start: 0, len: 8, samples: 1, cached: 0 }],
    preempted: [{ r: payload, tokens: 8, verdict: payload }],
    waiting: 1,
    waiting_tokens: 1,
    blocked: payload,
    blocks: { used: 1, taken: 1, evicted: 0, copied: 0 },
    recomputed: 0,
    flops: 1e6,
    bytes: 1e6,
  });
  const events = PAYLOADS.flatMap((payload, i) => [
    ["step", step(payload, 2 * i + 1)],
    ["step", step(payload, 2 * i + 2)],
    ["ended", { r: payload, at: i * 20 + 20, ending: payload, ttft_ms: 5, tpot_ms: 5, prompt_tokens: 8, generated: 3, cached: 0 }],
  ]);
  const prepare = async (page) => {
    await trap(page);
    await withInfo(page, { name: PAYLOADS[0], version: PAYLOADS[6], weights: PAYLOADS[7], kv_dtype: PAYLOADS[20], isa: PAYLOADS[30], limits: { read_bandwidth: 1e10, matrix_flops: 1e12, matrix_kind: PAYLOADS[8] } });
    await page.route("**/live/feed*", (route) => route.fulfill({ contentType: "text/event-stream", body: sse(events) }));
  };
  // The page asks the server about requests by their names, and it has none of these.
  const page = await context.open(server, "/#/live", { prepare, expected: /status of 404/ });
  await page.locator("summary", { hasText: "table" }).click();
  const rows = page.getByRole("region", { name: "Requests" }).locator("tbody tr");
  await until("rows of the table", async () => (await rows.count()) >= 40);
  const titles = await rows.locator("th").evaluateAll((cells) => cells.map((cell) => cell.title));
  assert.deepEqual(titles.filter((title) => !PAYLOADS.includes(title.trimEnd())), []);
  // What the pointer and the keyboard bring up are the same words.
  const timeline = page.locator("canvas.timeline");
  const box = await timeline.boundingBox();
  for (let x = 0.1; x < 1; x += 0.1) await page.mouse.move(box.x + box.width * x, box.y + box.height / 2);
  await timeline.focus();
  for (let press = 0; press < 20; press += 1) await page.keyboard.press("ArrowLeft");
  await assertClean(page, "live");
  await page.goto(`${server.origin}/#/step`);
  await page.locator("#page h1").waitFor();
  await assertClean(page, "step");
});

test("hostile addresses stay addresses", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/learn", { prepare: trap, expected: /status of (400|404)/ });
  for (const payload of PAYLOADS) {
    for (const path of [`#/learn/${payload}`, `#/live?request=${payload}`, `#/${payload}`, `#/calculator?model=${encodeURIComponent(payload)}`]) {
      await page.evaluate((hash) => (location.hash = hash), path);
      await page.locator("#page h1").waitFor();
    }
  }
  await page.waitForTimeout(300);
  await assertClean(page, "addresses");
});

test("hostile presets and plans stay text", async (context) => {
  const server = await context.server();
  const payload = PAYLOADS[12];
  const profile = { passes: 1, tokens: 1, flops: 1, bytes: 1, intensity: 1, ms: 1, share: 0.5, compute_percent: 1, memory_percent: 1, bound_by: payload };
  const cost = { machine_seconds: 1, price: 1, watt_hours: 1 };
  const plan = {
    model: { name: payload, parameters: 1, weights: payload, kv_dtype: payload, context_limit: 1 },
    machine: { name: payload, flops: 1, bandwidth: 1, memory: 1, basis: payload, count: 1, watts: 1, price_per_hour: 1 },
    ask: { prompt: 1, cached: 0, response: 1, thinking: 0, batch: 1, utilization: 1 },
    fits: true,
    ttft_ms: 1,
    tpot_ms: 1,
    total_ms: 2,
    tokens_per_second: 1,
    floors: { ttft_ms: 1, tpot_ms: 1, weights_ttft_ms: 1, weights_tpot_ms: 1 },
    memory: { total: 1, weights: 1, kv_per_token: 1, kv_per_request: 1, activations: 0, reserved: 0, left: 0, requests: 1 },
    prefill: profile,
    decode: profile,
    dominant: payload,
    limiting: payload,
    by_prompt: [{ prompt: 1, ttft_ms: 1, tpot_ms: 1, prefill_share: 0.5, attention_share: 0.1, prefill_bound_by: payload, decode_bound_by: payload }],
    by_batch: [{ batch: 1, tpot_ms: 1, tokens_per_second: 1, intensity: 1, bound_by: payload, fits: true }],
    curves: { prompt: [1, 2], ttft_ms: [1, 2], ttft_floor_ms: [1, 1], batch: [1, 2], tpot_ms: [1, 2], tpot_floor_ms: [1, 1], tokens_per_second: [1, 2], tokens_per_second_at_most: [1, 2] },
    thinking: null,
    speculation: null,
    cost: { batch: 1, input: cost, cached: null, output: cost, request: cost },
    choices: {
      rows: [{ machine: payload, machines_per_instance: 1, weights: payload, instances: 1, machines: 1, batch: 1, capped_by: payload, ttft_ms: 1, tpot_ms: 1, price_per_hour: 1, watts: 1 }],
      left_off: 0,
      words: payload,
    },
    fleet: { users: 1, requests_per_second: 1, batch: 1, batch_capped_by: payload, tpot_ms: 1, limiting: payload, prefill_share: 0.5, busy_machines: 1, machines: 1, apart: { prefill: 1, decode: 1, machines: 2, pays: true, why: payload } },
  };
  const models = [{ name: "here", title: payload, parameters: 1, context_limit: 10, weights: payload, kv_dtype: payload }, ...PAYLOADS.map((name) => ({ name, parameters: 1, context_limit: 10 }))];
  const machines = PAYLOADS.map((name) => ({ name, flops: 1, bandwidth: 1, memory: 1, watts: 1 }));
  const page = await context.open(server, "/#/calculator", {
    prepare: async (page) => {
      await trap(page);
      await page.route("**/plan?*", (route) => route.fulfill({ json: plan }));
      await page.route("**/plan/presets", (route) => route.fulfill({ json: { models, machines, weights: PAYLOADS, kv: PAYLOADS } }));
    },
  });
  await page.getByText("The same on the command line").waitFor();
  assert.equal(await page.getByLabel("Machine").locator("option").count(), PAYLOADS.length + 1);
  assert.ok((await page.locator(".binding").textContent()).includes(payload));
  await assertClean(page, "calculator");
});
