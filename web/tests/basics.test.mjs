// What holds on every page: headers, keyboard, names, width, colours, nothing drawn for nothing.

import assert from "node:assert/strict";
import { streams, test, until } from "./lib.mjs";

const PAGES = ["live", "step", "chat", "calculator", "learn"];

const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

test("the page's files say what may run, who may frame them, and that a copy is asked about", async (context) => {
  const server = await context.server();
  for (const path of ["/", "/app.js", "/calculator.js", "/highlight.js", "/tour.js", "/app.css", "/favicon.svg", "/licences.txt"]) {
    const response = await fetch(server.origin + path);
    assert.equal(response.status, 200, path);
    assert.equal(response.headers.get("content-security-policy"), POLICY, path);
    assert.equal(response.headers.get("x-frame-options"), "DENY", path);
    assert.ok(response.headers.get("etag") || response.headers.get("cache-control")?.includes("no-cache"), path);
  }
  const html = await (await fetch(server.origin)).text();
  assert.ok(!/<script(?![^>]* src=)|style=|\son\w+=|https?:/.test(html), html);
});

for (const [kind, options] of [
  ["in light", { dark: false }],
  ["in dark", { dark: true }],
  ["on a phone", { dark: true, width: 390, height: 800 }],
]) {
  test(`every page ${kind} without a horizontal scroll`, async (context) => {
    const server = await context.server();
    const stop = await streams(server, 6);
    for (const name of PAGES) {
      const page = await context.open(server, `/#/${name}`, options);
      if (name === "calculator") await page.getByText("The same on the command line").waitFor();
      await page.waitForTimeout(400);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      await context.picture(page, `${name} ${kind}`);
      assert.ok(wide <= 0, `${name} ${kind}: ${wide} px too wide`);
      await page.close();
    }
    stop();
  });
}

test("every control of every page has a name", async (context) => {
  const server = await context.server();
  const named = ["button", "link", "textbox", "searchbox", "combobox", "listbox", "slider", "spinbutton", "checkbox", "radio", "switch", "tab", "image", "img", "application", "region", "dialog", "group", "table", "progressbar", "meter"];
  for (const name of PAGES) {
    const page = await context.open(server, `/#/${name}`);
    if (name === "calculator") await page.getByText("The same on the command line").waitFor();
    const session = await page.context().newCDPSession(page);
    const { nodes } = await session.send("Accessibility.getFullAXTree");
    const controls = nodes.filter((node) => !node.ignored && named.includes(node.role?.value));
    assert.ok(controls.length > 8, `${name}: ${controls.length}`);
    // A table has its caption or the region around it; layout groups without a name are none to be announced.
    const bare = controls.filter((node) => !node.name?.value && !["table", "group"].includes(node.role.value));
    assert.deepEqual(bare.map((node) => `${node.role.value} ${JSON.stringify(node.properties)}`), [], name);
    await page.close();
  }
});

test("the keyboard alone reaches every control, and it shows where it is", async (context) => {
  const server = await context.server();
  for (const name of PAGES) {
    const page = await context.open(server, `/#/${name}`);
    if (name === "calculator") await page.getByText("The same on the command line").waitFor();
    await page.waitForTimeout(600); // what the feed brings at its beginning has been drawn
    // Each visible control that is not disabled; of radio buttons of one name the arrow keys reach the others.
    const wanted = await page.evaluate(() => {
      const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
      const visible = all.filter((element) => !element.disabled && element.checkVisibility() && element.closest("details:not([open]) > :not(summary)") === null);
      const groups = new Set();
      const kept = visible.filter((element) => {
        if (element.type !== "radio") return true;
        return !groups.has(element.name) && groups.add(element.name);
      });
      kept.forEach((element, at) => (element.dataset.wanted = at));
      document.activeElement?.blur();
      return kept.length;
    });
    assert.ok(wanted > 8, `${name}: ${wanted} controls`);
    await page.locator(".skip").evaluate((link) => link.focus());
    const reached = new Map();
    for (let press = 0; press < wanted + 20; press += 1) {
      const [at, outlined] = await page.evaluate(() => {
        const element = document.activeElement;
        const style = getComputedStyle(element);
        return [element?.dataset.wanted, style.outlineStyle !== "none" || style.boxShadow !== "none"];
      });
      if (at !== undefined) reached.set(at, outlined);
      await page.keyboard.press("Tab");
    }
    const missing = await page.evaluate((reached) => [...document.querySelectorAll("[data-wanted]")].filter((element) => !reached.includes(element.dataset.wanted)).map((element) => element.outerHTML.slice(0, 120)), [...reached.keys()]);
    assert.deepEqual(missing, [], name);
    assert.deepEqual([...reached].filter(([at, outlined]) => !outlined && at !== "0"), [], `${name}: focus that does not show`);
    await page.close();
  }
});

test("a page at rest draws only what the feed brings", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/live");
  await until("an idle engine", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests === 0);
  // The server speaks twice a second; a loop would draw 60 times. By the page's own clock, and as soon as it is at rest: a
  // busy machine takes longer to get there.
  const now = () => page.evaluate(() => ({ count: window.__frames.count, at: performance.now() }));
  await until("at most six frames a second", async () => {
    const before = await now();
    await page.waitForTimeout(2000);
    const after = await now();
    return (after.count - before.count) / (after.at - before.at) <= 6 / 1000;
  });
});

test("first paint, and frames with 256 lanes: figures, and that every lane is there", async (context) => {
  const server = await context.server("--max-num-seqs", "256");
  const first = await context.open(server, "/#/live");
  const paint = await first.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null);
  console.log(`figure  first contentful paint on loopback: ${paint?.toFixed(0)} ms`);
  assert.ok(paint !== null, "something was painted");
  await first.close();
  const stop = await streams(server, 256);
  const page = await context.open(server, "/#/live", { motion: true });
  await page.waitForTimeout(3000);
  await until("frames", () => page.evaluate(() => window.__frames.samples().length > 10));
  const { frames, lanes } = await page.evaluate(() => ({ frames: window.__frames.samples(), lanes: document.querySelectorAll("canvas.timeline").length }));
  const recent = frames.slice(-120);
  const took = recent.map((frame) => frame.took).sort((a, b) => a - b);
  const gaps = recent.slice(1).map((frame, at) => frame.at - recent[at].at).sort((a, b) => a - b);
  const at = (values, share) => values[Math.floor(values.length * share)]?.toFixed(1);
  console.log(`figure  256 lanes: ${recent.length} frames, drawing takes ${at(took, 0.5)} ms (p99 ${at(took, 0.99)}), ${at(gaps, 0.5)} ms apart (p90 ${at(gaps, 0.9)})`);
  await context.picture(page, "live 256 lanes");
  stop();
  assert.equal(lanes, 1);
});

test("a server with keys asks for one, refuses a wrong one, and the right one is kept for the tab", async (context) => {
  const server = await context.server("--api-key", "open-sesame");
  const page = await context.open(server, "/", { ready: false, expected: /status of 401/ });
  const give = async (key) => {
    await page.getByLabel("Key", { exact: true }).fill(key);
    await page.keyboard.press("Enter");
  };
  await page.getByRole("dialog").waitFor();
  await give("wrong");
  await page.getByText("did not accept this key").waitFor();
  await give("open-sesame");
  await page.locator("#page h1").waitFor();
  await page.reload();
  await page.locator("#page h1").waitFor();
  assert.equal(await page.evaluate(() => Object.values(sessionStorage).includes("open-sesame") && Object.keys(localStorage).every((name) => !localStorage[name].includes("sesame"))), true);
});

test("a server without its page has none of it", async (context) => {
  const server = await context.server("--no-ui");
  for (const path of ["/", "/app.js", "/live/info", "/live/feed"]) assert.equal((await fetch(server.origin + path)).status, 404, path);
  assert.equal((await fetch(`${server.origin}/v1/models`)).status, 200);
});
