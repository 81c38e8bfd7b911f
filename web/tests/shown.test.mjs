// Several models in memory: the pages are of the one that is chosen.

import assert from "node:assert/strict";
import { violations } from "./axe.mjs";
import { test, until } from "./lib.mjs";

const SEVERAL = ["--models=lantern", `--models=${JSON.stringify({ model: "lantern", name: "second" })}`, "--kv-cache-memory-bytes", "16MiB"];

const menu = (page) => page.getByRole("combobox", { name: "Engine shown" });
const lanes = (page) => page.locator(".connection[data-state=open]").waitFor();

async function post(server, path, body) {
  const response = await fetch(server.origin + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  assert.equal(response.status, 200, path);
  return response.json();
}

const complete = (server, model, more = {}) => post(server, "/v1/completions", { model, prompt: "Once upon a time", max_tokens: 4, temperature: 0, ...more });

test("a server with one model has no menu", async (context) => {
  const page = await context.open(await context.server(), "/");
  assert.equal(await menu(page).count(), 0);
});

test("each model in memory can be looked at, and what a page sends goes to that one", async (context) => {
  const server = await context.server(...SEVERAL);
  await complete(server, "second");
  const asked = [];
  const page = await context.open(server, "/#/step", {
    prepare: (page) => page.on("request", (request) => asked.push([new URL(request.url()).pathname + new URL(request.url()).search, request.postData()])),
  });
  await until("the menu", async () => (await menu(page).locator("option").allTextContents()).join() === "lantern,second");
  assert.deepEqual(await violations(page), []);
  assert.ok(asked.some(([path]) => path === "/live/info"));
  await menu(page).selectOption("second");
  await until("its name", async () => ((await page.locator("#top .model").textContent()) ?? "").startsWith("second"));
  await lanes(page);
  await page.getByRole("button", { name: "Send this prompt" }).click();
  // Its steps are those of its engine: the other has none.
  const steps = async (model) => (await (await fetch(`${server.origin}/v1/requests?model=${model}`)).json()).data.length;
  await until("its end", async () => (await steps("second")) === 2);
  assert.equal(await steps("lantern"), 0);
  const sent = asked.filter(([path]) => path === "/v1/completions").map(([, body]) => JSON.parse(body).model);
  assert.deepEqual(sent, ["second"]);
  // It stays chosen, in this tab.
  await page.reload();
  await until("its name after a reload", async () => ((await page.locator("#top .model").textContent()) ?? "").startsWith("second"));
  await menu(page).selectOption("lantern");
  await until("the first again", async () => ((await page.locator("#top .model").textContent()) ?? "").startsWith("lantern"));
});

test("a model that leaves is said to have left, and the first is shown", async (context) => {
  const server = await context.server(...SEVERAL, "--keep-alive", "1h");
  await complete(server, "second");
  const page = await context.open(server, "/", { expected: /status of 404/ });
  await menu(page).selectOption("second");
  await until("its name", async () => ((await page.locator("#top .model").textContent()) ?? "").startsWith("second"));
  await lanes(page);
  await post(server, "/api/generate", { model: "second", keep_alive: 0 });
  await page.getByText("second is no longer in memory").waitFor();
  await until("the first", async () => ((await page.locator("#top .model").textContent()) ?? "").startsWith("lantern"));
});
