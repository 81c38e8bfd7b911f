// Step: the engine is paused, goes one step at a time and on again, and its log is there to go back through.

import assert from "node:assert/strict";
import { violations } from "./axe.mjs";
import { streams, test, until } from "./lib.mjs";

/** The step that is shown, and the newest of the log; -1 before there is one. */
async function where(page) {
  const found = /([\d,]+) of ([\d,]+)–([\d,]+)/.exec(await page.locator(".scrub output").textContent());
  const [shown, , newest] = (found?.slice(1) ?? ["-1", "-1", "-1"]).map((text) => Number(text.replaceAll(",", "")));
  return { shown, newest };
}

/** How many steps the engine has made, by its own count; they are numbered from 0. */
async function steps(server) {
  const page = await (await fetch(`${server.origin}/metrics`)).text();
  return Number(/^twostroke_steps_total (\d+)$/m.exec(page)[1]);
}

test("pause, one step at a time, back through the log, and on: no request fails for it", async (context) => {
  const server = await context.server("--allow-pause");
  const page = await context.open(server, `/#/step?hold=${server.token}`);
  // The token is out of sight and out of reach of a reader who is sent the address.
  assert.equal(page.url(), `${server.origin}/#/step`);
  const stop = await streams(server, 3, 5000);
  await until("three streams that write", async () => (await where(page)).newest > 30);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByText("The engine is paused.").waitFor();
  // Paused is said when no step is under way, so the server's count stands; the feed brings the last of them when it can.
  const last = (await steps(server)) - 1;
  await until("the last step before the pause", async () => (await where(page)).newest === last);
  const { newest } = await where(page);
  // Paused is not stuck: a load balancer keeps its server.
  assert.equal((await fetch(`${server.origin}/health`)).status, 200);
  for (let step = 1; step <= 3; step += 1) {
    await page.getByRole("button", { name: "One step", exact: true }).click();
    await until(`step ${step}`, async () => (await where(page)).newest === newest + step);
    assert.equal(await steps(server), last + 1 + step, "one step, not more");
  }
  await page.locator(".sentence").getByText(`Step ${(newest + 3).toLocaleString("en")} wrote one token for each of 3 answers`).waitFor();
  // Back through the log, with the keyboard.
  await page.getByRole("slider", { name: "Step" }).focus();
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("ArrowLeft");
  await until("two steps back", async () => (await where(page)).shown === newest + 1);
  await page.locator(".sentence").getByText(`Step ${(newest + 1).toLocaleString("en")} `).waitFor();
  await page.getByRole("button", { name: "One step back" }).click();
  await until("a third one", async () => (await where(page)).shown === newest);
  await context.picture(page, "step paused");
  // The map of the cache is that of the step: three requests hold blocks.
  await until("the map", async () => /in use/.test(await page.locator(".stage").locator("xpath=..").locator("p").first().textContent()));
  // Each prompt once, as many tokens as it has; each answer one token a step.
  await page.getByRole("button", { name: "Resume" }).click();
  await until("the engine runs again", async () => (await where(page)).newest > newest + 20);
  stop();
});

test("who may not pause is told what it takes", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/step");
  assert.ok(await page.getByRole("button", { name: "Pause" }).isDisabled());
  await page.getByText("--allow-pause").waitFor();
  const response = await fetch(`${server.origin}/live/pause`, { method: "POST" });
  assert.equal(response.status, 403);
});

test("who has no link may not pause, and a link of an earlier start is told so", async (context) => {
  const server = await context.server("--allow-pause");
  assert.match(server.token, /^[0-9a-f]{32}$/);
  assert.equal(server.page, `${server.origin}/#/step?hold=${server.token}`);
  const page = await context.open(server, "/#/step", { expected: /status of 403/ });
  const pause = page.getByRole("button", { name: "Pause" });
  await page.getByText("the link that the server printed when it started").waitFor();
  assert.ok(await pause.isDisabled());
  // An old link: the token looks like one.
  await page.evaluate(() => (location.hash = "#/step?hold=0123456789abcdef0123456789abcdef"));
  await until("the address without it", () => page.url() === `${server.origin}/#/step`);
  await until("the button", async () => !(await pause.isDisabled()));
  await pause.click();
  await page.getByText("takes the token of this start").waitFor();
  await until("the button to go", () => pause.isDisabled());
  // The right one, in a tab that is open already.
  await page.evaluate((token) => (location.hash = `#/live?hold=${token}`), server.token);
  await page.getByRole("link", { name: "Step", exact: true }).click();
  await until("the button", async () => !(await pause.isDisabled()));
  await pause.click();
  await page.getByText("The engine is paused.").waitFor();
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByText("The engine is running.").waitFor();
});

test("the same minutes with and without chunked prefill, side by side", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/step");
  await page.getByRole("button", { name: "Send two stories and a long prompt" }).click();
  await until("requests", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests > 0);
  await until("their end", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests === 0);
  await page.getByRole("button", { name: "Run the last minutes both ways" }).click();
  await until("both courses", async () => (await page.locator("canvas.course").count()) === 2);
  await context.picture(page, "step with and without chunks");
});

test("what the machine took of a step is said, and no limit is blamed for it", async (context) => {
  const server = await context.server();
  // A step of 8 ms on a core that others had for 24 ms.
  const step = (id) => ({
    id,
    at: id * 40,
    took: 32,
    stolen: 24,
    predicted: 8,
    decode: [{ r: "a-stream", a: 0, start: 9 + id }],
    prefill: [],
    preempted: [],
    waiting: 0,
    waiting_tokens: 0,
    blocked: null,
    blocks: { used: 1, taken: 0, evicted: 0, copied: 0 },
    recomputed: 0,
    flops: 1e6,
    bytes: 4e7,
  });
  const feed = [1, 2].map((id) => `event: step\ndata: ${JSON.stringify(step(id))}\n\n`).join("");
  const prepare = async (page) => {
    const info = { ...(await (await fetch(`${server.origin}/live/info`)).json()), limits: { read_bandwidth: 1e10, matrix_flops: 1e12, matrix_kind: "x" } };
    await page.route("**/live/info", (route) => route.fulfill({ json: info }));
    await page.route("**/live/feed*", (route) => route.fulfill({ contentType: "text/event-stream", body: feed }));
  };
  const page = await context.open(server, "/#/step", { prepare });
  const cost = page.locator("section", { has: page.getByRole("heading", { name: "What it cost" }) }).last();
  await cost.getByText("Of that, others ran").waitFor();
  await cost.getByText("For 24 ms of its 32 ms the machine ran other programs on the cores that it needs; by itself it took 8.0 ms.").waitFor();
  // 40 MB at 10 GB/s are 4 ms: half of what it took by itself, and an eighth of 32.
  await cost.getByText("It reached 50 % of that limit in that time. The cost model is not judged by it.").waitFor();
});

test("the pool is one bar, the map has the pages in use alone, and the block table leads to them in the order they were taken", async (context) => {
  const server = await context.server();
  const { block_size: size } = await (await fetch(`${server.origin}/live/info`)).json();
  const step = (id, rows) => ["step", { id, at: id * 10, took: 9, predicted: 9, decode: [], prefill: [], preempted: [], waiting: 0, waiting_tokens: 0, blocked: null, blocks: { used: 1, taken: 1, evicted: 0, copied: 0 }, recomputed: 0, flops: 1e6, bytes: 1e6, ...rows }];
  const row = (r, start, len) => ({ r, a: 0, start, len, samples: 1, cached: 0 });
  // 1,000 pages: 990 free, 6 cached, and page 700 is the elder's. The younger takes page 40, then 17, then 500; its first is the elder's.
  const blocks = Array.from({ length: 1000 }, (_, i) => (i === 700 ? ["elder", 2] : i < 6 ? 1 : 0));
  const events = [
    step(1, { prefill: [row("elder", 0, size)] }),
    ["kv", { step: 1, full: true, blocks }],
    step(2, { prefill: [row("younger", size, size)] }), ["kv", { step: 2, full: false, changed: [[40, ["younger", 1]]] }],
    step(3, { prefill: [row("younger", 2 * size, size)] }), ["kv", { step: 3, full: false, changed: [[17, ["younger", 1]]] }],
    step(4, { prefill: [{ ...row("younger", 3 * size, 5), samples: 1 }], decode: [{ r: "elder", a: 0, start: size }] }), ["kv", { step: 4, full: false, changed: [[500, ["younger", 1]], [900, ["elder", 1]]] }],
    // The elder ends and leaves what was shared; of two steps the map is told once; and with its last step the younger gives all back.
    step(5, { decode: [{ r: "younger", a: 0, start: 3 * size + 5 }] }),
    step(6, { decode: [{ r: "younger", a: 0, start: 3 * size + 6 }] }), ["kv", { step: 6, full: false, changed: [[700, ["younger", 1]], [900, 0]] }],
    step(7, { decode: [{ r: "younger", a: 0, start: 3 * size + 7 }] }), ["kv", { step: 7, full: false, changed: [[700, 1], [40, 0], [17, 0], [500, 0]] }],
  ];
  const feed = events.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join("");
  const page = await context.open(server, "/#/step", { prepare: (page) => page.route("**/live/feed*", (route) => route.fulfill({ contentType: "text/event-stream", body: feed })) });
  const pool = page.locator(".pool");
  const table = page.locator("canvas.block-table");
  const label = async (what, wanted) => until(what, async () => (await table.getAttribute("aria-label")) === `Block table of ${wanted}`);
  await label("what it had before it gave all back", "younger: 0 to page 700, 1 to page 40, 2 to page 17, 3 to page 500");
  await until("an empty pool", async () => (await pool.getAttribute("aria-label")) === "in use 0, cached 7, free 993");
  await page.getByRole("slider", { name: "Step" }).focus();
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("ArrowLeft");
  await label("of a step between two maps, what was told next", "younger: 0 to page 700, 1 to page 40, 2 to page 17, 3 to page 500");
  await page.keyboard.press("ArrowLeft");
  await until("the pool", async () => (await pool.getAttribute("aria-label")) === "in use 5, cached 6, free 989");
  const widths = await pool.locator("span").evaluateAll((parts) => parts.map((part) => part.getBoundingClientRect().width));
  assert.ok(widths[2] > 0.7 * (widths[0] + widths[1] + widths[2]), `to scale, as far as words allow: ${widths}`);
  // The keyboard goes from page in use to page in use.
  await page.locator("canvas.kv").focus();
  const seen = [];
  for (let press = 0; press < 7; press += 1) {
    await page.keyboard.press("ArrowRight");
    seen.push(await page.locator(".stage .tip strong").textContent());
  }
  assert.deepEqual(seen.slice(0, 5), ["Block 17", "Block 40", "Block 500", "Block 700", "Block 900"]);
  assert.equal(seen[6], "Block 900", "and no further");
  assert.equal(await table.getAttribute("aria-label"), "Block table of younger: 0 is shared, 1 to page 40, 2 to page 17, 3 to page 500");
  await page.getByText(`${(3 * size + 5).toLocaleString("en")} positions of younger in 4 pages of ${size}; the last has 5 of ${size} slots filled; the first is held by requests before it too.`).waitFor();
  await context.picture(page, "step block table");
  await page.getByLabel("Request of the block table").selectOption("elder");
  assert.equal(await table.getAttribute("aria-label"), "Block table of elder: 0 to page 700, 1 to page 900");
  // Back through the log the table is what it was.
  await page.getByRole("button", { name: "One step back" }).click();
  await until("the table of step 3", async () => (await table.getAttribute("aria-label")) === "Block table of younger: 0 is shared, 1 to page 40, 2 to page 17");
  await until("and its pool", async () => (await pool.getAttribute("aria-label")) === "in use 3, cached 6, free 991");
  assert.deepEqual(await violations(page), []);
});
