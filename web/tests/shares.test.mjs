// Whose a step was, on the lanes: one's own share solid, another request's prompt hatched; what is clicked stays, what is
// dragged is summed. The server's feed is played from a script here, so that every figure is known.

import assert from "node:assert/strict";
import { violations } from "./axe.mjs";
import { test, until } from "./lib.mjs";
import { scripted, stats, step } from "./scripted.mjs";

const token = (start, more = {}) => ({ r: "victim", a: 0, start, ...more });

/** Ten tokens 10 ms apart, then one that waits 100 ms for another request's prompt, and ten more. */
function course() {
  const events = [step(0, 0, 10, { prefill: [{ ...token(0), len: 8, samples: 1, cached: 0 }] })];
  for (let i = 0; i < 10; i += 1) events.push(step(1 + i, 10 + 10 * i, 10, { decode: [token(8 + i)] }));
  const chunk = { r: 4711, a: 0, start: 0, len: 512, samples: 1, cached: 0, own: 0.95, other_prefill: 0 };
  events.push(step(11, 110, 100, { decode: [token(18, { own: 0.2, other_prefill: 0.8 })], prefill: [chunk] }));
  for (let i = 0; i < 10; i += 1) events.push(step(12 + i, 210 + 10 * i, 10, { decode: [token(19 + i)] }));
  return events;
}

const SPAN = 310 * 1.08;
const AXIS = 20;
const GUTTER = 66;

/** Where a moment is on the canvas, in pixels of CSS: the newest is 2 % of the span from the right edge, moved on in calm strides. */
async function places(page) {
  const box = await page.locator("canvas.timeline").boundingBox();
  const width = box.width - GUTTER;
  const stride = Math.min(500, SPAN / 4);
  const right = Math.ceil(310 / stride) * stride + SPAN * 0.02;
  return { box, at: (time) => GUTTER + ((time - (right - SPAN)) / SPAN) * width };
}

/** How much of a strip of the canvas has each of some colours. */
async function colours(page, x0, x1, y0, y1) {
  return page.evaluate(([x0, x1, y0, y1]) => {
    const canvas = document.querySelector("canvas.timeline");
    const ratio = canvas.width / canvas.clientWidth;
    const style = getComputedStyle(document.documentElement);
    const wanted = Object.fromEntries(["prefill", "decode", "lane"].map((name) => [name, Number.parseInt(style.getPropertyValue(`--${name}`).trim().slice(1), 16)]));
    const data = canvas.getContext("2d").getImageData(x0 * ratio, y0 * ratio, (x1 - x0) * ratio, (y1 - y0) * ratio).data;
    const found = { prefill: 0, decode: 0, lane: 0 };
    for (let i = 0; i < data.length; i += 4) {
      const colour = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
      for (const name of Object.keys(wanted)) if (wanted[name] === colour) found[name] += 4 / data.length;
    }
    return found;
  }, [x0, x1, y0, y1]);
}

test("a victim's lane: its own share is solid, that of others hatched in the phase's colour", async (context) => {
  const page = await scripted(context, course());
  const { at } = await places(page);
  await context.picture(page, "live shares");
  const strip = (from, to) => colours(page, at(from) + 2, at(to) - 2, AXIS + 8, AXIS + 20);
  const alone = await strip(60, 110);
  assert.ok(alone.decode > 0.7 && alone.prefill === 0, `a step of its own: ${JSON.stringify(alone)}`);
  const own = await strip(110, 130);
  assert.ok(own.decode > 0.95 && own.prefill === 0, `its own fifth of the shared step: ${JSON.stringify(own)}`);
  const others = await strip(130, 210);
  assert.ok(others.decode === 0, JSON.stringify(others));
  // Stripes: as much ink as gap, but for their soft edges.
  assert.ok(others.prefill > 0.25 && others.prefill < 0.6 && others.lane > 0.25, `hatched: ${JSON.stringify(others)}`);
  // The prompt's own lane is solid: no other request took part of it.
  const prompt = await colours(page, at(110) + 2, at(200), AXIS + 26 + 8, AXIS + 26 + 20);
  assert.ok(prompt.prefill > 0.95, JSON.stringify(prompt));
});

test("a click keeps what there is to say until Escape, and says whose the step was", async (context) => {
  const page = await scripted(context, course());
  const { box, at } = await places(page);
  const selection = page.getByRole("region", { name: "Selection" });
  assert.equal(await selection.count(), 0);
  await page.mouse.click(box.x + at(150), box.y + AXIS + 12);
  await selection.waitFor();
  const text = await selection.textContent();
  for (const words of [/token 12 · late/, /100 ms after the one before \(usually 10 ms\)/, /It waited for the prompt of #4711 \(512 tokens\)/, /Of this step: 20 ms its own rows, 80 ms the prompts of others/]) assert.match(text, words);
  await page.mouse.move(5, 5);
  await page.waitForTimeout(100);
  assert.ok(await selection.isVisible(), "it stays when the pointer has gone");
  assert.deepEqual(await violations(page), []);
  await context.picture(page, "live pinned");
  await selection.getByRole("link", { name: "Step 11 in detail" }).click();
  await page.locator(".sentence", { hasText: "Step 11 " }).waitFor();
  await page.getByRole("link", { name: "Live", exact: true }).click();
  await until("the last token, by the keyboard", async () => {
    await page.locator("canvas.timeline").focus();
    for (const key of ["0", "End", "Enter"]) await page.keyboard.press(key);
    return selection.isVisible();
  });
  await page.keyboard.press("Escape");
  assert.equal(await selection.count(), 0);
});

test("a stretch that is dragged is summed: tokens, and time by owner", async (context) => {
  const page = await scripted(context, course());
  const { box, at } = await places(page);
  const selection = page.getByRole("region", { name: "Selection" });
  const row = async (name) => (await selection.locator("tr", { has: page.locator("th", { hasText: name }) }).locator("td").allTextContents()).join(" | ");
  // Along the axis, from the middle of a step to the middle of another.
  await page.mouse.move(box.x + at(95), box.y + 8);
  await page.mouse.down();
  await page.mouse.move(box.x + at(150), box.y + 8, { steps: 4 });
  await page.mouse.move(box.x + at(225), box.y + 8, { steps: 4 });
  await page.mouse.up();
  await selection.waitFor();
  const text = await selection.textContent();
  assert.match(text, /1(29|30|31) ms selected/);
  // Steps 9 (half), 10, 11, 12, 13 (half): tokens come at their ends.
  assert.match(text, /5 steps, 512 prompt tokens, 5 output tokens, 1 of them late\./);
  const parts = await row("victim");
  assert.match(parts, /^0 \| 4 \| (49|50|51) ms \| 0 ms \| 80 ms \| 0 ms \| 0 ms$/);
  assert.match(await row("#4711"), /^512 \| 1 \| 95 ms \| 5\.0 ms \| 0 ms \| 0 ms \| 0 ms$/);
  // Shift and drag over the lanes does the same; a plain drag moves the picture and keeps the selection.
  await page.keyboard.down("Shift");
  await page.mouse.move(box.x + at(115), box.y + AXIS + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + at(195), box.y + AXIS + 60, { steps: 6 });
  await page.mouse.up();
  await page.keyboard.up("Shift");
  assert.match(await selection.textContent(), /(79|80|81) ms selected/);
  await page.locator("canvas.timeline").focus();
  await page.keyboard.press("Escape");
  assert.equal(await selection.count(), 0);
  // And the keyboard, from a token on.
  for (const key of ["Home", "Shift+ArrowRight", "Shift+ArrowRight"]) await page.keyboard.press(key);
  assert.match(await selection.textContent(), /20 ms selected.*2 steps, 0 prompt tokens, 2 output tokens/);
});

/** Four steps of 50 ms with three accepted drafts each, then one of 100 ms with four, two accepted. */
function drafted() {
  const events = [step(0, 0, 10, { prefill: [{ ...token(0), len: 8, samples: 1, cached: 0 }] })];
  let start = 8;
  const decode = (id, at, took, more) => {
    events.push(step(id, at, took, { decode: [token(start, more)] }));
    start += more.tokens ?? 1;
  };
  for (let i = 0; i < 4; i += 1) decode(1 + i, 10 + 50 * i, 50, { drafts: 3, tokens: 4 });
  decode(5, 210, 100, { drafts: 4, tokens: 3 });
  return events;
}

test("an accepted draft is a solid cell, a rejected one a hollow one, and a run is one step", async (context) => {
  const page = await scripted(context, drafted());
  const { box, at } = await places(page);
  await context.picture(page, "live drafts");
  // Five cells of 20 ms: the token, two accepted drafts, two rejected ones.
  const cell = (place) => colours(page, at(210 + 20 * place) + 2, at(230 + 20 * place) - 2, AXIS + 7, AXIS + 18);
  const cells = [];
  for (let place = 0; place < 5; place += 1) cells.push(await cell(place));
  for (const accepted of cells.slice(0, 3)) assert.ok(accepted.decode > 0.9, JSON.stringify(cells));
  for (const rejected of cells.slice(3)) assert.ok(rejected.decode < 0.1 && rejected.lane > 0.9, JSON.stringify(cells));
  // Their rims are those of a token.
  const rim = await colours(page, at(270) + 2, at(310) - 4, AXIS + 4, AXIS + 6);
  assert.ok(rim.decode > 0.9, JSON.stringify(rim));
  const selection = page.getByRole("region", { name: "Selection" });
  await page.mouse.click(box.x + at(250), box.y + AXIS + 12);
  await selection.waitFor();
  const text = await selection.textContent();
  for (const words of [/token 18 /, /100 ms after the one before \(usually 50 ms\)/, /Of 4 draft tokens behind it 2 were accepted\. Tokens 19 to 20 came with it\./]) assert.match(text, words);
  // The keyboard goes through the run, token by token.
  await page.locator("canvas.timeline").focus();
  const said = [];
  for (const key of ["End", "ArrowLeft", "ArrowLeft", "ArrowLeft"]) {
    await page.keyboard.press(key);
    said.push(await page.locator(".timeline-box .tip strong").textContent());
  }
  assert.deepEqual(said.map((line) => /token (\d+)/.exec(line)[1]), ["20", "19", "18", "17"]);
  await page.keyboard.press("End");
  assert.match(await page.locator(".timeline-box .tip").textContent(), /It came with token 18, of the same step: an accepted draft\./);
  assert.deepEqual(await violations(page), []);
  // The step's own page lists it.
  await page.evaluate(() => (location.hash = "#/step?step=5"));
  const list = page.getByRole("region", { name: "Drafts" });
  await list.waitFor();
  assert.deepEqual(await list.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))), [["victim", "4", "2"]]);
  await page.locator(".sentence").getByText("checked 4 draft tokens: 2 accepted").waitFor();
  await context.picture(page, "step drafts");
  assert.deepEqual(await violations(page), []);
});

test("what came late because the engine was paused is not late, and the header says that it is paused", async (context) => {
  // One step, a pause, one step by hand that takes long, and on.
  const events = [];
  for (let i = 0; i < 8; i += 1) events.push(step(i, 10 * i, 10, { decode: [token(8 + i)] }));
  events.push(stats(80, { paused: true }), step(8, 80, 90, { decode: [token(16)] }), stats(170, { paused: true }));
  const paused = await scripted(context, events);
  const state = paused.locator(".connection");
  const last = async (page) => {
    await page.locator("canvas.timeline").focus();
    for (const key of ["Escape", "0", "End", "Enter"]) await page.keyboard.press(key);
    return page.getByRole("region", { name: "Selection" }).textContent();
  };
  const text = await last(paused);
  assert.ok(/The engine was paused meanwhile/.test(text) && !/· late/.test(text), text);
  // Without the hold it is.
  const free = await scripted(context, events.filter(([kind]) => kind === "step"));
  assert.match(await last(free), /· late/);
  // The header of a page whose feed is open.
  const server = await context.server("--allow-pause");
  const page = await context.open(server, "/#/live");
  const hold = (how) => fetch(`${server.origin}/live/${how}`, { method: "POST", headers: { "x-hold-token": server.token } });
  const header = page.locator(".connection");
  await until("live", async () => (await header.textContent()) === "live");
  await hold("pause");
  await until("paused", async () => (await header.textContent()) === "paused");
  await hold("resume");
  await until("live again", async () => (await header.textContent()) === "live");
  assert.ok(await state.count());
});

test("a first token tells its time to first token, and whose that was", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/live");
  const body = JSON.stringify({ prompt: "Once", max_tokens: 12, ignore_eos: true });
  const answer = await (await fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body })).json();
  await page.evaluate((id) => (location.hash = `#/chat?${id}`), "x");
  await page.evaluate((id) => (location.hash = `#/live?request=${encodeURIComponent(id)}`), answer.id);
  const selection = page.getByRole("region", { name: "Selection" });
  await selection.waitFor();
  await selection.getByText(/time to first token [\d.]+ (ms|s)/).waitFor();
  await selection.getByText(/The ledger: .*own prefill [\d.]+ (ms|s)/).waitFor();
  assert.doesNotMatch(await selection.textContent(), /usually/);
});

test("six charts without a hole, each line with its newest figure, one scale each", async (context) => {
  const server = await context.server();
  for (const width of [1280, 800, 390]) {
    const page = await context.open(server, "/#/live", { width });
    await until("figures", async () => (await page.locator(".u-legend .u-value").allTextContents()).filter((text) => /\d/.test(text)).length >= 4);
    const boxes = await page.locator(".series figure").evaluateAll((figures) => figures.map((figure) => figure.getBoundingClientRect().left));
    const columns = new Set(boxes).size;
    assert.ok(boxes.length === 6 && 6 % columns === 0, `${width}: ${boxes.length} charts in ${columns} columns`);
    assert.deepEqual((await page.locator(".u-legend .u-series:not(:first-child) .u-value").allTextContents()).filter((text) => text === ""), []);
    // A line's mark is a piece of it: where two have one colour, one is dashed.
    const marks = await page.locator(".u-legend tr:not(:first-child)").evaluateAll((rows) => rows.map((row) => [row.querySelector(".u-label").textContent, getComputedStyle(row.querySelector(".u-marker")).borderTopStyle]));
    assert.deepEqual(marks.filter(([label]) => label === "p99").map(([, style]) => style), ["dashed", "dashed"]);
    assert.ok(marks.filter(([label]) => label === "median").every(([, style]) => style === "solid"));
    await page.close();
  }
});

test("where the system chooses the colours, prefill and decode keep theirs", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/live", { prepare: (page) => page.emulateMedia({ forcedColors: "active" }) });
  const shown = (name) => page.locator(`.legend .swatch.${name}`).evaluate((swatch, name) => {
    const probe = document.body.appendChild(document.createElement("span"));
    probe.style.forcedColorAdjust = "none";
    probe.style.color = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
    const wanted = getComputedStyle(probe).color;
    probe.remove();
    return getComputedStyle(swatch).backgroundColor === wanted;
  }, name);
  assert.ok((await shown("prefill")) && (await shown("decode")));
});

test("a step nearly all of which the machine took says that nothing is known, and nothing is above a limit", async (context) => {
  const limits = { matrix_flops: 1e10, read_bandwidth: 1e9, matrix_kind: "test", in_cache: false, not_sure: null };
  // Reading its bytes takes 1 ms; of 10 ms others had all but a thousandth.
  const work = { stolen: 9.99, predicted: 0.01, bytes: 1e6 };
  const events = [step(0, 0, 10, { prefill: [{ ...token(0), len: 8, samples: 1, cached: 0 }], ...work, flops: 1e8 })];
  for (let i = 0; i < 30; i += 1) events.push(step(1 + i, 10 + 10 * i, 10, { decode: [token(8 + i)], ...work }));
  const shown = async (page) => {
    const text = await page.locator("#page").textContent();
    for (const [, share] of text.matchAll(/([\d.,]+)\u00a0? ?%/g)) assert.ok(Number(share.replaceAll(",", "")) <= 100, text);
    return text;
  };
  const page = await scripted(context, [...events, stats(310)], { limits });
  for (const phase of ["prefill", "decode"]) await page.locator(`.gauge.${phase}`).getByText("Distance not known").waitFor();
  // Why is said once, not in each card.
  assert.equal(await page.getByText("This machine is busy").count(), 1);
  assert.doesNotMatch(await shown(page), /of 1\.00 GB\/s|of 10\.0 GFLOP\/s/);
  await page.evaluate(() => (location.hash = "#/step?step=5"));
  await page.getByText("Its share of that limit is not known (machine busy).").waitFor();
  const text = await shown(page);
  assert.match(text, /by itself it took a time that is not known \(machine busy\)/);
  assert.match(text, /Predicted1\.0 ms/, "no prediction is below the lower bound");
  // The same steps alone are what they are.
  const alone = await scripted(context, [...events.map(([kind, data]) => [kind, { ...data, stolen: 0 }]), stats(310)], { limits });
  await alone.locator(".gauge.decode").getByText("10 %", { exact: false }).first().waitFor();
});
