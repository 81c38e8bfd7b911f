// Lanes that can be read under load: who is in which lane, what fills a bar, and what idle time becomes. The feed is a script.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { violations } from "./axe.mjs";
import { streams, test, until } from "./lib.mjs";
import { ended, scripted, stats, step } from "./scripted.mjs";

const AXIS = 20;
const LANE = 26;
const GUTTER = 66;

/** How many of the canvas's pixels have each of some colours: an area in CSS pixels, or all of the lanes. */
export async function colours(page, area = null) {
  return page.evaluate((area) => {
    const canvas = document.querySelector("canvas.timeline");
    const ratio = canvas.width / canvas.clientWidth;
    const style = getComputedStyle(document.documentElement);
    const value = (name) => Number.parseInt(style.getPropertyValue(`--${name}`).trim().slice(1), 16);
    const names = new Map(["prefill", "decode", "lane", "late", "cached", "quiet", "queue"].map((name) => [value(name), name]));
    const prefill = value("prefill");
    names.set([16, 8, 0].reduce((sum, shift) => sum + (Math.round(((prefill >> shift) & 255) * 0.55) << shift), 0), "edge");
    const [x, y, width, height] = (area ?? [66, 20, canvas.clientWidth - 66, canvas.clientHeight - 20]).map((each) => Math.round(each * ratio));
    const { data } = canvas.getContext("2d").getImageData(x, y, width, height);
    const found = {};
    for (let i = 0; i < data.length; i += 4) {
      const name = data[i + 3] === 0 ? "nothing" : (names.get((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]) ?? "other");
      found[name] = (found[name] ?? 0) + 1;
    }
    return found;
  }, area);
}

/** Which colours each column of an area has. */
async function columnsOf(page, area) {
  return page.evaluate((area) => {
    const canvas = document.querySelector("canvas.timeline");
    const style = getComputedStyle(document.documentElement);
    const names = new Map(["prefill", "decode", "quiet"].map((name) => [Number.parseInt(style.getPropertyValue(`--${name}`).trim().slice(1), 16), name]));
    const { data, width } = canvas.getContext("2d").getImageData(...area.map((each) => Math.round(each * (canvas.width / canvas.clientWidth))));
    const columns = Array.from({ length: width }, () => ({}));
    for (let i = 0; i < data.length; i += 4) {
      const name = data[i + 3] === 255 && names.get((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
      if (name) columns[(i / 4) % width][name] = true;
    }
    return columns;
  }, area);
}

/** Where a moment is after a fit of `length` ms of work that began at 0. */
async function placesOf(page, length) {
  const wide = await page.locator("canvas.timeline").evaluate((canvas) => canvas.clientWidth - 66);
  const span = length * 1.08;
  const right = Math.ceil(length / (span / 4)) * (span / 4) + span * 0.02;
  return (time) => GUTTER + ((time - right + span) / span) * wide;
}

/** How many lanes the picture has. */
const lanesOf = (page) => page.locator("canvas.timeline").evaluate((canvas) => Number(canvas.dataset.lanes));

/** Requests one after the other: a prompt and three tokens of 5 ms each. */
function inTurn(number, gap = 0) {
  const events = [];
  for (let i = 0, at = 0; i < number; i += 1) {
    const r = `turn-${i}`;
    const begin = at;
    events.push(step(4 * i, at, 5, { prefill: [{ r, a: 0, start: 0, len: 8, samples: 1, cached: 0 }] }));
    for (let k = 1; k < 4; k += 1) events.push(step(4 * i + k, at + 5 * k, 5, { decode: [{ r, a: 0, start: 7 + k }] }));
    at += 20;
    events.push(ended(r, at, { arrived: begin, generated: 4 }));
    at += gap;
  }
  return events;
}

test("a hundred requests in turn use two lanes at most, however far one zooms", async (context) => {
  const page = await scripted(context, inTurn(100));
  assert.ok((await lanesOf(page)) <= 2, `fitted: ${await lanesOf(page)} lanes`);
  for (const key of ["s", "s", "s", "s", "s", "s", "w", "w", "w", "w", "w", "w", "w", "w", "w", "w"]) {
    await page.keyboard.press(key);
    await page.waitForTimeout(30);
    assert.ok((await lanesOf(page)) <= 2, `${key}: ${await lanesOf(page)} lanes`);
  }
  await context.picture(page, "lanes in turn");
});

/** 24 streams of 24 ms a step, of which the machine took 40 %; every eighth step reads a piece of a newcomer's prompt too. */
export function underLoad(steps = 80) {
  const events = [];
  const streams = Array.from({ length: 24 }, (_, i) => `stream-${i}`);
  for (const [i, r] of streams.entries()) events.push(step(i, 6 * i, 6, { prefill: [{ r, a: 0, start: 0, len: 16, samples: 1, cached: i % 4 === 0 ? 8 : 0 }] }));
  for (let i = 0, at = 144; i < steps; i += 1) {
    const isShared = i % 8 === 7;
    const took = isShared ? 48 : 24;
    const decode = streams.map((r) => ({ r, a: 0, start: 16 + i, ...(isShared ? { own: 0.02, other_prefill: 0.5 } : {}) }));
    const prefill = isShared ? [{ r: `long-${i}`, a: 0, start: 0, len: 512, samples: 1, cached: 0, own: 0.5, other_prefill: 0 }] : [];
    events.push(step(24 + i, at, took, { decode, prefill, stolen: 0.4 * took }));
    at += took;
    if (isShared) events.push(ended(`long-${i}`, at, { arrived: at - took, prompt_tokens: 512, generated: 1 }));
  }
  return events;
}

test("of 24 streams with 40 % machine time the bars are their own colour, and the machine's time is a line below", async (context) => {
  const page = await scripted(context, underLoad(), { height: 1000 });
  await context.picture(page, "lanes under load");
  const { wide, height } = await page.locator("canvas.timeline").evaluate((canvas) => ({ wide: canvas.clientWidth, height: Math.floor((canvas.clientHeight - 20) / Number(canvas.dataset.lanes)) }));
  const x = await placesOf(page, 2304);
  const area = (lane, top, bottom) => [x(150), AXIS + lane * height + top, Math.min(wide, x(2300)) - x(150), bottom - top];
  const sum = { solid: 0, hatched: 0, machine: 0, line: 0, all: 0 };
  for (let lane = 0; lane < 24; lane += 1) {
    // A column of a bar is solid, hatched, or the gap between two steps.
    const bar = await columnsOf(page, area(lane, Math.round(height / 6) + 2, height - 5));
    sum.solid += bar.filter((found) => found.decode).length;
    sum.hatched += bar.filter((found) => !found.decode && found.prefill).length;
    sum.machine += bar.filter((found) => found.quiet).length;
    const line = await columnsOf(page, area(lane, height - 4, height - 2));
    sum.line += line.filter((found) => found.quiet).length;
    sum.all += line.length;
  }
  assert.ok(sum.solid / (sum.solid + sum.hatched) >= 0.6 && sum.solid / sum.all >= 0.6, `solid own colour: ${JSON.stringify(sum)}`);
  assert.ok(sum.hatched > 0 && sum.hatched / (sum.solid + sum.hatched) <= 0.15, `hatched: ${JSON.stringify(sum)}`);
  assert.equal(sum.machine, 0, "nothing of the machine's time is in a bar");
  assert.ok(sum.line / sum.all > 0.35 && sum.line / sum.all < 0.45, `below it a line of 40 %: ${JSON.stringify(sum)}`);
});

test("a bar keeps its lane while time moves on and others come, and lanes are assigned again only on zoom", async (context) => {
  // A short one ends, and its lane stays empty below it: those behind it stay where they are.
  const rows = (names, start) => names.map((r) => ({ r, a: 0, start }));
  const events = [step(0, 0, 10, { prefill: rows(["first", "second", "third"], 0).map((row) => ({ ...row, len: 4, samples: 1, cached: 0 })) }), ended("first", 10, { arrived: 0 })];
  for (let i = 1; i < 20; i += 1) events.push(step(i, 10 * i, 10, { decode: rows(["second", "third"], 3 + i) }));
  events.push(step(20, 200, 10, { decode: rows(["second", "third"], 23), prefill: [{ r: "fourth", a: 0, start: 0, len: 4, samples: 1, cached: 0 }] }));
  const page = await scripted(context, events);
  assert.equal(await lanesOf(page), 3, "the fourth has the lane of the first");
  await context.picture(page, "lanes kept");
  const orange = async (lane) => (await colours(page, [GUTTER + 200, AXIS + lane * LANE, 950, 20])).prefill ?? 0;
  const found = [await orange(0), await orange(1), await orange(2)];
  assert.ok(found[0] > 100 && found[1] === 0 && found[2] === 0, `and no other moved: ${found}`);
});

test("another request's prompt is hatched where it has room, and a dark edge where it has none", async (context) => {
  const events = [step(0, 0, 10, { prefill: [{ r: "a", a: 0, start: 0, len: 4, samples: 1, cached: 0 }] })];
  const shared = (id, at, took, others) => step(id, at, took, { decode: [{ r: "a", a: 0, start: 3 + id, own: 1 - others, other_prefill: others }], prefill: [{ r: "b", a: 0, start: 64 * id, len: 64, samples: 0, cached: 0, own: others, other_prefill: 0 }] });
  for (let i = 1; i < 20; i += 1) events.push(shared(i, 10 * i, 10, 0.05));
  events.push(shared(20, 200, 100, 0.5), step(21, 300, 10, { prefill: [{ r: "c", a: 0, start: 64, len: 4, samples: 1, cached: 64 }] }));
  const page = await scripted(context, events);
  const x = await placesOf(page, 310);
  const lane = (from, to, y = 6) => colours(page, [x(from), AXIS + y, x(to) - x(from), 20 - y]);
  const [narrow, room] = [await lane(30, 180), await lane(205, 280)];
  assert.ok(narrow.edge > 0 && !narrow.prefill && narrow.decode > 8 * narrow.edge, `edges: ${JSON.stringify(narrow)}`);
  assert.ok(room.prefill > 0 && !room.edge, `hatched: ${JSON.stringify(room)}`);
  // Shapes: prefill is taller than decode, and what was cached is a wedge.
  const top = (from, to) => colours(page, [x(from), AXIS, x(to) - x(from), 3]);
  const below = await colours(page, [x(100), AXIS + LANE, x(180) - x(100), 3]);
  assert.ok(below.prefill > 0 && !(await top(100, 180)).decode, "prefill reaches the top of its lane, decode does not");
  const wedge = (y) => colours(page, [x(300) - 1, AXIS + 2 * LANE + y, 20, 3]);
  const [point, corner] = [(await wedge(9)).cached, (await wedge(0)).cached];
  assert.ok(point > corner && corner > 0, `a wedge: ${point} and ${corner}`);
});

test("idle time folds to a mark with its length, and a switch unfolds it", async (context) => {
  // Two seconds of work with two minutes between them; the second one after half a second of waiting, which is no idle time.
  const work = (id, at, r) => [...Array.from({ length: 20 }, (_, i) => step(id + i, at + 100 * i, 100, i === 0 ? { prefill: [{ r, a: 0, start: 0, len: 8, samples: 1, cached: 0 }] } : { decode: [{ r, a: 0, start: 7 + i }] })), ended(r, at + 2000, { arrived: at - 500 })];
  const page = await scripted(context, [...work(0, 1000, "before"), ...work(20, 123_500, "behind")]);
  const said = () => page.locator("canvas.timeline").getAttribute("data-folds");
  for (const key of ["s", "s", "s", "s"]) await page.keyboard.press(key);
  await until("the fold", async () => (await said()) === "1");
  await page.waitForTimeout(500);
  const found = await colours(page);
  await context.picture(page, "lanes folded");
  await page.getByRole("button", { name: "Fold idle" }).click();
  await until("no fold", async () => (await said()) === "0");
  await page.waitForTimeout(500);
  const unfolded = await colours(page);
  assert.ok(found.decode > 1.5 * unfolded.decode, `two works were in view, and there is one: ${found.decode} and ${unfolded.decode}`);
  assert.equal(await page.getByRole("button", { name: "Fold idle" }).getAttribute("aria-pressed"), "false");
});

test("charts have gaps where nothing ran", async (context) => {
  const columns = ["at", "prefill_tokens", "decode_tokens", "running", "waiting", "used_blocks", "cached_blocks", "hits", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"];
  const second = (at) => [at, 100, 50, 2, 0, 10, 5, 0.5, 20, 30, 5, 9];
  const seconds = [...Array.from({ length: 20 }, (_, i) => second(1000 * i)), ...Array.from({ length: 20 }, (_, i) => second(60_000 + 1000 * i))];
  const page = await scripted(context, [["history", { total_blocks: 100, columns, seconds }], ...inTurn(2).map(([kind, data]) => [kind, { ...data, at: data.at + 80_000 }])]);
  await context.picture(page, "live gaps");
  const blue = await page.locator(".plot canvas").nth(1).evaluate((canvas) => {
    const colour = Number.parseInt(getComputedStyle(document.documentElement).getPropertyValue("--decode").trim().slice(1), 16);
    const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const columns = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200 && Math.abs(((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]) - colour) < 0x080808) columns.add((i / 4) % width);
    return [...columns].sort((a, b) => a - b);
  });
  const gaps = blue.slice(1).map((x, i) => x - blue[i]);
  assert.equal(gaps.filter((gap) => gap > 20).length, 1, `one gap between two stretches: ${Math.max(...gaps)}`);
});

/** 256 requests that ended before the feed began, one that was preempted, one that waits, and one whose last token came late. */
function finished() {
  const events = Array.from({ length: 256 }, (_, i) => ended(`cmpl-${(i * 7919 + 4096).toString(16).padStart(8, "0")}`, 100 + 10 * i, { arrived: 90 + 10 * i }));
  const decode = (r, start) => ({ r, a: 0, start });
  events.push(step(0, 3000, 10, { prefill: [{ r: "slow", a: 0, start: 0, len: 4, samples: 1, cached: 0 }] }));
  for (let i = 1; i < 8; i += 1) events.push(step(i, 3000 + 10 * i, 10, { decode: [decode("slow", 3 + i), decode("taken", 3 + i)] }));
  events.push(step(8, 3080, 90, { decode: [decode("slow", 11)], preempted: [{ r: "taken", tokens: 8, verdict: "recompute" }] }));
  events.push(["requests", { at: 3170, waiting: [{ r: 77, a: 0, since: 3100, prompt_tokens: 9, computed: 0, generated: 0 }], running: [] }]);
  return events;
}

test("search finds by the end of an id among 256 requests that ended, and by what befell them", async (context) => {
  const page = await scripted(context, finished(), { height: 1000 });
  const field = page.getByRole("searchbox", { name: "Search requests" });
  const status = page.locator(".search [role=status]");
  const tip = page.locator(".timeline-box .tip");
  await page.locator("canvas.timeline").focus();
  await page.keyboard.press("/");
  assert.ok(await field.evaluate((field) => field === document.activeElement), "a slash leads there");
  const wanted = `cmpl-${(200 * 7919 + 4096).toString(16).padStart(8, "0")}`;
  for (const [query, hits, words] of [
    [wanted.slice(-6), "1 of 1", /· length/],
    [wanted.slice(-6).toUpperCase(), "1 of 1", /8 prompt tokens, 4 output tokens/],
    ["late", "1 of 1", /slow · token 9 · late/],
    ["waiting", "1 of 1", /#77 · waiting/],
    ["waiting 77", "1 of 1", /#77 · waiting 70 ms/],
    ["preempted", "1 of 1", /taken · preempted .*\(recompute\)/],
    ["late slow", "1 of 1", /token 9/],
    ["late taken", "nothing", null],
    ["model:lant late", "1 of 1", /token 9/],
    ["model:other late", "nothing", null],
    ["no such id", "nothing", null],
  ]) {
    await field.fill(query);
    await page.keyboard.press("Enter");
    assert.equal(await status.textContent(), hits, query);
    if (words) assert.match(await tip.textContent(), words, query);
  }
  // Enter walks on, Shift and Enter back, and round.
  const many = finished().filter(([kind, { r }]) => kind === "ended" && r.endsWith("f")).length;
  await field.fill("f");
  assert.equal(await status.textContent(), `${many} hits`);
  const seen = [];
  for (const key of ["Enter", "Enter", "Shift+Enter", "Shift+Enter"]) {
    await page.keyboard.press(key);
    seen.push(await status.textContent());
  }
  assert.deepEqual(seen, [1, 2, 1, many].map((at) => `${at} of ${many}`));
  await page.keyboard.press("Escape");
  assert.equal(await field.inputValue(), "");
  assert.ok(await page.locator("canvas.timeline").evaluate((canvas) => canvas === document.activeElement), "Escape leads back to the lanes");
  assert.equal(await page.getByRole("region", { name: "Selection" }).count(), 0);
});

test("what is shown is saved as a trace without a malformed event, and nothing of it is out of the window", async (context) => {
  // A server of its own: nothing but this work is on its lanes.
  const server = await context.server("--max-num-seqs", "12");
  const page = await context.open(server, "/#/live", { expected: /status of 429/ });
  const post = (body) => fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ignore_eos: true, ...body }) }).then((response) => response.json());
  await Promise.all([post({ prompt: "Once", max_tokens: 300 }), post({ prompt: "The fox ".repeat(300), max_tokens: 4 })]);
  const trace = async () => {
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Trace" }).click()]);
    assert.equal(download.suggestedFilename(), "twostroke-trace.json");
    const path = join(context.artefacts, `${Math.random()}.json`);
    await download.saveAs(path);
    return JSON.parse(readFileSync(path, "utf8")).traceEvents;
  };
  const known = () => page.locator("canvas.timeline").evaluate((canvas) => Number(canvas.dataset.until));
  await until("all steps", async () => {
    const before = await known();
    await page.waitForTimeout(700);
    return before > 0 && (await lanesOf(page)) >= 2 && (await known()) === before;
  });
  await page.locator("canvas.timeline").focus();
  await page.keyboard.press("0");
  await page.waitForTimeout(300);
  const slices = (events) => events.filter(({ ph }) => ph === "X");
  const whole = await trace();
  // A part of it.
  await page.locator("canvas.timeline").focus();
  for (const key of ["f", "w", "w"]) await page.keyboard.press(key);
  await page.waitForTimeout(300);
  const part = await trace();
  for (const events of [whole, part]) {
    const wrong = events.filter(({ ph, pid, name, ts, dur }) => !(["M", "X", "C", "s", "f"].includes(ph) && Number.isFinite(pid) && typeof name === "string" && (ph === "M" || (Number.isFinite(ts) && ts >= 0)) && (ph !== "X" || dur >= 0)));
    assert.deepEqual(wrong, []);
    const ends = new Map();
    for (const { ph, id } of events.filter(({ ph }) => ph === "s" || ph === "f")) ends.set(id, [...(ends.get(id) ?? []), ph]);
    assert.deepEqual([...ends.values()].filter((pair) => pair.join() !== "s,f"), [], "an arrow has two ends");
  }
  assert.ok(slices(part).length > 0 && slices(part).length < slices(whole).length, `${slices(part).length} of ${slices(whole).length}`);
  const [from, to] = await page.locator("canvas.timeline").evaluate((canvas) => canvas.dataset.window.split(" ").map((ms) => Number(ms) * 1000));
  assert.deepEqual(slices(part).filter(({ ts, dur }) => ts + dur < from - 1 || ts > to + 1), []);
  // A server that gives none says why.
  await page.route("**/live/trace*", (route) => route.fulfill({ status: 429, json: { error: { message: "A trace is being made." } } }));
  await page.getByRole("button", { name: "Trace" }).click();
  await page.getByText("No trace: A trace is being made.").waitFor();
});

test("the strip of the last minutes shows where the lanes are, and its window is dragged, by an edge too, and moved by keys", async (context) => {
  const events = [];
  for (let i = 0; i < 230; i += 1) {
    events.push(step(i, 500 * i, 400, { decode: [{ r: "long", a: 0, start: 8 + i }] }), stats(500 * i + 450, { prefill_tokens: 100 * (i % 7), decode_tokens: 10 * i }));
  }
  const page = await scripted(context, events, { width: 1280 });
  const strip = page.getByRole("slider", { name: "Shown stretch of the last minutes" });
  const now = async () => Number(await strip.getAttribute("aria-valuenow"));
  const shown = () => page.locator("canvas.timeline").evaluate((canvas) => canvas.dataset.window.split(" ").map(Number));
  // A window of a few seconds.
  for (let press = 0; press < 6; press += 1) await page.keyboard.press("w");
  const { x, y, width } = await strip.boundingBox();
  const [least, most] = await strip.evaluate((strip) => [strip.ariaValueMin, strip.ariaValueMax].map((seconds) => Number(seconds) * 1000));
  assert.ok(most - least === 120_000 || most - least === 119_000, `two minutes are the least that has all: ${least} to ${most}`);
  const at = (time) => x + ((time - least) / 120_000) * width;
  await page.mouse.click(at(90_000), y + 20);
  await until("the middle", async () => Math.abs((await shown())[0] + (await shown())[1] - 180_000) < 600);
  const [from, to] = await shown();
  // The whole, by 30 s; then its right edge, by 10.
  await page.mouse.move(at((from + to) / 2), y + 20);
  await page.mouse.down();
  await page.mouse.move(at((from + to) / 2 - 30_000), y + 20, { steps: 5 });
  await page.mouse.up();
  await until("30 s earlier", async () => Math.abs((await shown())[0] - from + 30_000) < 600 && Math.abs((await shown())[1] - to + 30_000) < 600);
  await page.mouse.move(at(to - 30_000), y + 20);
  await page.mouse.down();
  await page.mouse.move(at(to - 20_000), y + 20, { steps: 5 });
  await page.mouse.up();
  await until("a wider one", async () => Math.abs((await shown())[0] - from + 30_000) < 600 && Math.abs((await shown())[1] - to + 20_000) < 600);
  await context.picture(page, "live overview");
  await strip.focus();
  const before = await now();
  await page.keyboard.press("PageDown");
  await until("one window later", async () => (await now()) > before);
  await page.keyboard.press("PageUp");
  await until("and back", async () => (await now()) === before);
  assert.match(await strip.getAttribute("aria-valuetext"), /^12:0\d:\d\d to 12:0\d:\d\d$/);
  await page.keyboard.press("ArrowDown");
  await until("wider", async () => (await now()) < before);
  await page.keyboard.press("Home");
  await until("the beginning", async () => (await now()) <= 0);
  assert.deepEqual(await violations(page), []);
});

test("on a phone the name of a request stands in its bar", async (context) => {
  const page = await scripted(context, underLoad(), { width: 390, height: 844 });
  await context.picture(page, "lanes on a phone");
  // Ink of letters, over the bars, at their beginning.
  const text = await page.locator("canvas.timeline").evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 20 * devicePixelRatio, 100 * devicePixelRatio, canvas.height - 20 * devicePixelRatio);
    let dark = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255 && data[i] + data[i + 1] + data[i + 2] < 150) dark += 1;
    return dark;
  });
  assert.ok(text > 200, `${text} pixels of letters`);
  assert.deepEqual(await violations(page), []);
});

test("ten thousand lanes, steps of 0 and of 60 s, a clock that was set back, ids that repeat and are skipped: the page goes on", async (context) => {
  const many = Array.from({ length: 10_000 }, (_, i) => ({ r: `lane-${i}`, a: 0, start: 3 }));
  const one = (id, at, took) => step(id, at, took, { decode: [{ r: "lane-0", a: 0, start: 4 + id }] });
  const events = [
    step(1, 100, 20, { prefill: many.map((row) => ({ ...row, start: 0, len: 3, samples: 1, cached: 0 })) }),
    step(2, 120, 20, { decode: many }),
    one(3, 140, 0), one(4, 140, 0), // no time at all
    one(5, 140, 60_000),
    one(9, 60_140, 10), // skipped
    one(9, 60_150, 10), one(7, 60_160, 10), // told already
    one(10, 20, 10), one(11, 60_000, -5), // the clock was set back
    one(12, 60_200, 10),
    stats(60_210), stats(60_000, { unix_ms: 0 }), stats(60_700, { unix_ms: Date.UTC(2026, 0, 1, 11) }),
  ];
  const page = await scripted(context, events);
  assert.equal(await lanesOf(page), 10_000);
  await page.getByText(/Lanes 1 to \d+ of 10,000/).waitFor();
  await page.getByRole("button", { name: "Lanes below" }).click();
  await page.getByText(/Lanes [2-9]\d+ to \d+ of 10,000/).waitFor();
  for (const key of ["w", "w", "s", "s", "s", "a", "d", "0", "Home", "ArrowDown", "End", "Enter", "Escape", "f"]) await page.keyboard.press(key);
  const field = page.getByRole("searchbox", { name: "Search requests" });
  await field.fill("lane-9999");
  await page.keyboard.press("Enter");
  await until("the last lane", async () => /lane-9999/.test(await page.locator(".timeline-box .tip").textContent()));
  await page.getByText(/to 10,?000 of 10,000/).waitFor();
  // Moments only grow: the token of the step of 60 s is one, and nothing is older than what was before it.
  for (const [query, words] of [["lane-0", /lane-0 · open.*9 output tokens/], ["late lane-0", /60\.0 s after the one before/]]) {
    await field.fill(query);
    await page.keyboard.press("Enter");
    assert.match(await page.locator(".timeline-box .tip").textContent(), words);
  }
  assert.equal(await page.getByText(/NaN|Infinity|undefined/).count(), 0);
});

test("a page of 24 streams draws its frames: figures, and that every lane is there", async (context) => {
  const server = await context.server("--max-num-seqs", "24");
  const page = await context.open(server, "/#/live", { motion: true });
  const stop = await streams(server, 24);
  await until("24 lanes", async () => (await lanesOf(page)) >= 24);
  const first = await page.evaluate(() => window.__frames.count);
  await page.waitForTimeout(4000);
  const frames = await page.evaluate((first) => window.__frames.samples().slice(-Math.min(600, window.__frames.count - first)), first);
  stop();
  const seconds = (frames.at(-1).at - frames[0].at) / 1000;
  const took = frames.map((frame) => frame.took).sort((a, b) => a - b);
  console.log(`figure  24 streams: ${((frames.length - 1) / seconds).toFixed(0)} frames a second, drawing takes ${took[took.length >> 1].toFixed(1)} ms (p99 ${took[Math.floor(took.length * 0.99)].toFixed(1)})`);
  assert.ok(frames.length > 1);
  await context.picture(page, "live 24 streams");
});
