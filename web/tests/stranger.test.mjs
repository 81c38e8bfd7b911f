// A page of another site in a browser that can reach the server: it makes nothing happen and reads nothing.
//
//   http://localhost:PORT   another origin on this machine, as a page on the web is one
//   http://evil.test:PORT   another origin by name
//   http://evil.test:SERVER a page whose name was rebound: the same origin as the server for the browser

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { EVIL, NAMED, test } from "./lib.mjs";

const POSTS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/plan", "/live/resume", "/live/step", "/live/pause"];
const GETS = ["/v1/models", "/metrics", "/health", "/version", "/live/info", "/live/whatif", "/plan/presets"];
const TYPES = ["text/plain", "application/x-www-form-urlencoded", "application/json"];
/** What a browser says when a page is not let: the point of the test. */
const EXPECTED = /CORS|ERR_FAILED|status of (4\d\d)|X-Frame-Options|frame-ancestors|Refused to|Framing|violates|chrome-error|Unsafe attempt|Private|Local Network|insecure|ERR_BLOCKED|net::|Opener-Policy/i;

/** A site of the test's own; its pages do nothing by themselves. */
async function site() {
  const server = createServer((request, response) => response.writeHead(200, { "content-type": "text/html" }).end("<!doctype html><title>stranger</title><h1>hello</h1>"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { port: server.address().port, close: () => server.close() };
}

/** Tokens that the engine has read and written. */
async function state(server) {
  const metrics = await (await fetch(`${server.origin}/metrics`)).text();
  const sample = (name) => Number(new RegExp(`^${name} (\\d+)$`, "m").exec(metrics)[1]);
  return { tokens: sample("twostroke_generation_tokens_total"), prompts: sample("twostroke_prompt_tokens_total") };
}

/** Everything that a page can try with `fetch`; what it could read of the answers. */
function tryAll({ target, posts, gets, types, token }) {
  const body = JSON.stringify({ model: "lantern", prompt: "The fox", messages: [{ role: "user", content: "hi" }], max_tokens: 2, ignore_eos: true });
  const attempts = [];
  const attempt = (path, init) =>
    attempts.push(
      fetch(target + path, { ...init, signal: AbortSignal.timeout(20000) })
        .then(async (response) => ({ path, type: response.type, status: response.status, text: await response.text() }))
        .catch((error) => ({ path, type: "error", status: 0, text: "", error: String(error) })),
    );
  for (const path of posts) {
    for (const type of types) {
      attempt(path, { method: "POST", body, headers: { "content-type": type } });
      attempt(path, { method: "POST", mode: "no-cors", body: new Blob([body], { type }) });
    }
    // With the token, as if the page had seen the link.
    attempt(path, { method: "POST", body, headers: { "x-hold-token": token } });
    navigator.sendBeacon(target + path, body);
  }
  for (const path of gets) {
    attempt(path, {});
    attempt(path, { mode: "no-cors" });
  }
  return Promise.all(attempts);
}

/** A form of `page` that posts to `url`, as JSON in disguise, in a frame. */
async function postForm(page, url) {
  await page.evaluate((url) => {
    const frame = document.createElement("iframe");
    frame.name = `frame${Math.random()}`;
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: url, enctype: "text/plain", target: frame.name });
    const field = document.createElement("input");
    Object.assign(field, { name: '{"prompt":"The fox","max_tokens":2,"x":"', value: '"}' });
    form.append(field);
    document.body.append(frame, form);
    form.submit();
  }, url);
}

for (const [what, host, address] of [
  ["a page of another origin on this machine", "localhost", "127.0.0.1"],
  ["a page of another site", EVIL, "127.0.0.1"],
  ["a page of another site, to a server with a name in the local network,", EVIL, NAMED],
]) {
  test(`${what} makes nothing happen and reads nothing`, async (context) => {
    const server = await context.server("--allow-pause", "--max-num-seqs", "8", ...(address === NAMED ? ["--allowed-host", NAMED] : []));
    const target = server.origin.replace("127.0.0.1", address);
    const other = await site();
    const before = await state(server);
    const origin = `http://${host}:${other.port}`;
    const page = await context.open({ origin }, "/", { expected: EXPECTED, ready: false, others: true });
    const answers = await page.evaluate(tryAll, { target, posts: POSTS, gets: GETS, types: TYPES, token: server.token });
    assert.ok(answers.length > 60, String(answers.length));
    assert.deepEqual(answers.filter(({ text, type }) => text !== "" || !["error", "opaque"].includes(type)), []);
    for (const path of POSTS) await postForm(page, target + path);
    await page.waitForTimeout(1000);
    // Pictures, scripts and frames of it show nothing.
    const loaded = await page.evaluate((target) => {
      const tried = ["/live/info", "/metrics", "/plan/presets", "/app.js", "/"].flatMap((path) =>
        ["img", "script", "iframe"].map((tag) => new Promise((resolve) => {
          const element = document.createElement(tag);
          element.onload = () => resolve(tag === "iframe" ? (() => { try { return element.contentDocument?.body?.textContent ?? ""; } catch { return ""; } })() : `${tag} ${path}`);
          element.onerror = () => resolve("");
          element.src = target + path;
          document.body.append(element);
          setTimeout(resolve, 5000, "");
        })),
      );
      return Promise.all(tried);
    }, target);
    assert.deepEqual(loaded.filter((text) => text !== ""), []);
    assert.equal((await (await fetch(`${server.origin}/health`)).json()).open_requests, 0);
    assert.deepEqual(await state(server), before, "the engine did nothing");
    // Not paused: it answers at once, not when an engine without viewers moves again.
    const asked = await fetch(`${server.origin}/v1/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: '{"prompt":"The fox","max_tokens":2}', signal: AbortSignal.timeout(15_000) });
    assert.equal(asked.status, 200);
    other.close();
  });
}

test("a page whose name was rebound to the server gets no page, no data and no work", async (context) => {
  const server = await context.server("--allow-pause", "--max-num-seqs", "8");
  const { port } = new URL(server.origin);
  const before = await state(server);
  const origin = `http://${EVIL}:${port}`;
  // The same origin for the browser: it reads every answer, so every answer must be the refusal.
  const page = await context.open({ origin }, "/", { expected: EXPECTED, ready: false, others: true });
  assert.match(await page.locator("body").textContent(), /unknown_host/);
  const answers = await page.evaluate(tryAll, { target: origin, posts: POSTS, gets: [...GETS, "/", "/app.js", "/live/feed"], types: TYPES, token: server.token });
  const wrong = answers.filter(({ type, status, text }) => type !== "error" && !(status === 403 && text.includes("unknown_host")));
  assert.deepEqual(wrong, []);
  assert.ok(answers.filter(({ status }) => status === 403).length > 60);
  for (const path of POSTS) await postForm(page, origin + path);
  await page.waitForTimeout(500);
  assert.deepEqual(await state(server), before, "the engine did nothing");
  assert.equal((await fetch(`${server.origin}/health`)).status, 200);
});

test("no other page frames the page", async (context) => {
  const server = await context.server("--allow-pause", "--max-num-seqs", "8");
  const other = await site();
  const page = await context.open({ origin: `http://${EVIL}:${other.port}` }, "/", { expected: EXPECTED, ready: false, others: true });
  const shown = await page.evaluate((url) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.onload = () => resolve(true);
    frame.src = url;
    document.body.append(frame);
  }), server.page);
  assert.ok(shown, "a frame that is refused loads the browser's own error");
  await page.waitForTimeout(500);
  assert.equal(page.frames().length, 2);
  for (const frame of page.frames()) {
    assert.ok(!frame.url().startsWith(server.origin), frame.url());
    assert.equal(await frame.locator("#main").count(), 0, frame.url());
  }
  other.close();
});

test("a page of an allowed origin asks and reads", async (context) => {
  const other = await site();
  const origin = `http://${EVIL}:${other.port}`;
  const server = await context.server("--allowed-origin", origin);
  const page = await context.open({ origin }, "/", { ready: false, others: true });
  const text = await page.evaluate(async (target) => {
    const body = JSON.stringify({ prompt: "The fox", max_tokens: 2, stream: true });
    const response = await fetch(`${target}/v1/completions`, { method: "POST", headers: { "content-type": "application/json", "x-stainless-os": "any" }, body });
    return `${response.headers.get("x-request-id")} ${await response.text()}`;
  }, server.origin);
  assert.match(text, /^req-.*\[DONE\]\s*$/s);
  other.close();
});
