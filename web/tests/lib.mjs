// What the browser tests share: servers of the built binary, pages that are watched, and a runner of a page's length.
//
// A page that a test opens is watched until the test ends, whatever the test looks at: an error on the console, an
// exception, a dialog, a request to another origin or a violation of the content security policy fails it.

import { execFile, spawn } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

const TEST_TIMEOUT_MS = 300_000;
/** For what the engine or the page needs: local and quick, but the machine may have other work. */
export const PATIENCE_MS = 60_000;

/** A name that leads to this machine, as the name of a hostile page does once its owner has changed it (DNS rebinding). */
export const EVIL = "evil.test";
/** What a server in the local network is called: without TLS a browser says less to it than to this machine. */
export const NAMED = "lan.test";
const REBOUND = `--host-resolver-rules=MAP ${EVIL} 127.0.0.1, MAP ${NAMED} 127.0.0.1`;

const tests = [];
let area = "";

/** What is declared from here on belongs to `name`. */
export function beginArea(name) {
  area = name;
}

/** Declares a test. Its `context` opens pages and servers, and closes them. */
export function test(name, body) {
  tests.push({ name: `${area}: ${name}`, body });
}

/** Runs all tests whose name holds `filter`, or one of several with | between them; returns how many passed and failed. */
export async function runAll({ binary, chromiumPath, artefacts, filter }) {
  mkdirSync(artefacts, { recursive: true });
  const browser = await chromium.launch({ executablePath: chromiumPath, args: ["--disable-gpu", "--disable-dev-shm-usage", REBOUND] });
  const servers = new Servers(binary, artefacts);
  let [passed, failed] = [0, 0];
  try {
    for (const { name, body } of tests.filter(({ name }) => filter.split("|").some((part) => name.includes(part)))) {
      const context = new Context(browser, servers, artefacts);
      const start = performance.now();
      const error = await withTimeout(body(context), TEST_TIMEOUT_MS).then(() => null, (error) => error);
      // A browser that is gone closes nothing.
      const complaints = await withTimeout(context.close(error ? name : null), TEST_TIMEOUT_MS).catch((error) => [String(error)]);
      const took = `${((performance.now() - start) / 1000).toFixed(1)} s`;
      if (!error && complaints.length === 0) {
        passed += 1;
        console.log(`ok      ${name} (${took})`);
      } else {
        failed += 1;
        console.log(`FAILED  ${name} (${took})`);
        if (error) console.log(indent(error.stack ?? String(error)));
        for (const complaint of complaints) console.log(indent(complaint));
      }
    }
  } finally {
    await servers.close();
    await withTimeout(browser.close(), TEST_TIMEOUT_MS).catch(() => {});
  }
  return { passed, failed };
}

function withTimeout(promise, limit) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${limit / 1000} s`)), limit);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

function indent(text) {
  return text.replace(/^/gm, "        ");
}

/** Running servers by their flags: tests that want the same flags share one. */
class Servers {
  running = new Map();

  constructor(binary, artefacts) {
    this.binary = binary;
    this.artefacts = artefacts;
  }

  get(flags) {
    const key = JSON.stringify(flags);
    if (!this.running.has(key)) this.running.set(key, startServer(this.binary, this.artefacts, flags));
    return this.running.get(key);
  }

  async close() {
    for (const server of await Promise.allSettled(this.running.values())) server.value?.child.kill("SIGKILL");
    this.running.clear();
  }
}

/** `twostroke serve` with the built-in model on a free port. */
async function startServer(binary, artefacts, flags) {
  // What one server measures of the machine serves the next.
  const env = { ...process.env, XDG_CACHE_HOME: join(artefacts, "cache") };
  const child = spawn(binary, ["serve", "--port", "0", "--json", ...flags], { env, stdio: ["ignore", "pipe", "ignore"] });
  process.once("exit", () => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout });
  const first = await Promise.race([
    new Promise((resolve) => lines.once("line", resolve)),
    new Promise((_, reject) => child.once("exit", (code) => reject(new Error(`serve ${flags.join(" ")} ended with ${code}`)))),
  ]);
  const started = JSON.parse(first);
  return { child, origin: `http://127.0.0.1:${started.port}`, page: started.page, token: started.hold_token };
}

class Context {
  complaints = [];
  profiles = [];
  pages = [];

  constructor(browser, servers, artefacts) {
    this.browser = browser;
    this.servers = servers;
    this.artefacts = artefacts;
  }

  /** What the program prints for these arguments. */
  async run(...words) {
    return (await promisify(execFile)(this.servers.binary, words)).stdout;
  }

  /** The server with these flags. */
  server(...flags) {
    return this.servers.get(flags);
  }

  /**
   * Opens `path` of `server` in a browser profile of its own. `expected` matches console messages that belong to the
   * test, such as that of a status which the test provokes; `prepare` gets the page before it loads; `others`: it may
   * ask other origins.
   */
  async open(server, path, { dark = false, width = 1280, height = 900, motion = false, expected = null, prepare = null, ready = true, others = false } = {}) {
    const profile = await this.browser.newContext({ colorScheme: dark ? "dark" : "light", viewport: { width, height }, reducedMotion: motion ? "no-preference" : "reduce" });
    this.profiles.push(profile);
    profile.setDefaultTimeout(PATIENCE_MS);
    const page = await profile.newPage();
    this.pages.push(page);
    this.watch(page, server.origin, expected, others);
    await page.addInitScript(() => {
      window.__violations = [];
      document.addEventListener("securitypolicyviolation", (event) => window.__violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
    });
    // `TWOSTROKE_UI=DIRECTORY`: pages that were just built, before they are in a binary.
    if (process.env.TWOSTROKE_UI && !others) await profile.route("**/*", (route) => fresh(process.env.TWOSTROKE_UI, route));
    if (prepare) await prepare(page);
    await page.goto(server.origin + path);
    // The page is there when the server has said what it is, and knows what has happened when the feed has begun.
    if (ready) {
      await page.locator("#page h1").waitFor();
      await page.locator(".connection[data-state=open], .connection[data-state=retrying]").waitFor();
      // The lessons are in a file of their own.
      if (path.startsWith("/#/learn")) await page.locator(".lesson h2").waitFor();
    }
    return page;
  }

  watch(page, origin, expected, others) {
    const complain = (text) => this.complaints.push(text);
    page.on("console", (message) => {
      const text = message.text();
      if (["error", "warning"].includes(message.type()) && !(expected && expected.test(text))) complain(`console: ${text}`);
    });
    page.on("pageerror", (error) => complain(`exception: ${error.stack ?? error}`));
    page.on("dialog", (dialog) => {
      complain(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("request", (request) => {
      const url = request.url();
      if (!others && !url.startsWith(`${origin}/`) && !url.startsWith("data:") && !url.startsWith("blob:")) complain(`request to ${url}`);
    });
  }

  /** Keeps a picture of the page, to be looked at. */
  async picture(page, name) {
    await page.screenshot({ path: join(this.artefacts, `${name}.png`), fullPage: true });
  }

  /** Closes everything, keeps a picture of a page that failed, and returns the complaints. */
  async close(failure) {
    for (const page of this.pages) {
      if (page.isClosed()) continue;
      const violations = await page.evaluate(() => window.__violations ?? []).catch(() => []);
      this.complaints.push(...violations.map((violation) => `content security policy: ${violation}`));
      if (failure) await page.screenshot({ path: join(this.artefacts, `failed ${failure.replaceAll(/[/:]/g, "")}.png`) }).catch(() => {});
    }
    // What happens while a page is closed is no longer the test's.
    const complaints = [...this.complaints];
    await Promise.allSettled(this.profiles.map((profile) => profile.close()));
    return complaints;
  }
}

/** A file of the page from `directory`, with the server's own headers; everything else goes to the server. */
async function fresh(directory, route) {
  const path = new URL(route.request().url()).pathname;
  const file = join(directory, path === "/" ? "index.html" : path.slice(1));
  const isFile = /^\/[a-z]*(\.[a-z]+)?$/.test(path) && (path === "/" || path.includes(".")) && existsSync(file);
  if (!isFile) return route.fallback();
  // A busy machine may lose a connection, and a page that is closed meanwhile takes its answers with it.
  const response = await route.fetch({ maxRetries: 2 }).catch(() => null);
  await route.fulfill({ path: file, headers: response?.ok() ? response.headers() : {} }).catch(() => {});
}

/** Waits until `probe` gives something true and returns it; its last value is in the error. */
export async function until(what, probe) {
  const deadline = performance.now() + PATIENCE_MS;
  let value;
  while (performance.now() < deadline) {
    value = await probe();
    if (value) return value;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${what}: not in ${PATIENCE_MS / 1000} s, last ${JSON.stringify(value)}`);
}

/** Streams of the test's own, so that there is something to see; returns what ends them. */
export async function streams(server, number, tokens = 4000) {
  const abort = new AbortController();
  const headers = { "Content-Type": "application/json" };
  const started = Array.from({ length: number }, async (_, at) => {
    const body = JSON.stringify({ prompt: `Story number ${at} begins`, max_tokens: tokens, ignore_eos: true, stream: true, seed: at });
    const response = await fetch(`${server.origin}/v1/completions`, { method: "POST", headers, body, signal: abort.signal });
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
    const reader = response.body.getReader();
    void (async () => {
      while (!(await reader.read()).done);
    })().catch(() => {});
  });
  await Promise.all(started);
  return () => abort.abort();
}
