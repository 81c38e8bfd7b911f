// Calculator: the numbers are the server's, the worked example is there to the digit, and a slider asks once.

import assert from "node:assert/strict";
import { test, until } from "./lib.mjs";

const ready = (page) => page.getByText("The same on the command line").waitFor();

test("the worked example: 14 GFLOP a token, 46 ms at 312 TFLOP/s, 14 GB at 2 TB/s are 7 ms", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator");
  await ready(page);
  await page.getByRole("button", { name: "Worked example" }).click();
  const floors = page.getByRole("region", { name: "Lower bound (roofline)" });
  await floors.getByText("14.0 GFLOP a token × 1,024 tokens / 312 TFLOP/s = 46 ms").waitFor();
  await floors.getByText("14.0 GB of weights / 2.00 TB/s = 7.0 ms a token").waitFor();
  const binding = await page.locator(".binding").textContent();
  assert.ok(binding.startsWith("Prefill is bound by compute, decode by memory"), binding);
  assert.equal(await page.locator(".command code").textContent(), "twostroke plan -m 7b --flops 312T --bandwidth 2T --memory 80G --weights bf16 -p 1024 -n 256 -b 1");
  // To the digit: the same figures from the same place.
  const plan = await (await fetch(`${server.origin}/plan?model=7b&flops=312T&bandwidth=2T&memory=80G&weights=fp16&prompt=1024&response=256&batch=1`)).json();
  assert.equal(plan.floors.weights_ttft_ms, Number((((14e9 * 1024) / 312e12) * 1e3).toFixed(6)));
  assert.equal(plan.floors.weights_tpot_ms, 7);
  assert.ok(plan.floors.ttft_ms > plan.floors.weights_ttft_ms && plan.ttft_ms >= plan.floors.ttft_ms, "attention is in the floor");
  await floors.getByText("47 ms to the first token, 7.1 ms a token").waitFor();
  assert.equal(await page.locator(".headline dd").first().evaluate((value) => value.firstChild.textContent), `${plan.ttft_ms.toFixed(0)} ms`);
  await context.picture(page, "calculator worked example");
});

test("sliders move by keyboard, ask when they rest, and the address holds the question", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator");
  await ready(page);
  let asked = 0;
  page.on("request", (request) => (asked += request.url().includes("/plan?") ? 1 : 0));
  const slider = page.getByRole("slider", { name: "Prompt" });
  await slider.focus();
  const before = Number(await slider.getAttribute("aria-valuetext"));
  // Thirty changes at once, as a hand that drags makes them.
  await slider.evaluate((range) => {
    for (let step = 0; step < 30; step += 1) {
      range.value = String(range.valueAsNumber + 5);
      range.dispatchEvent(new Event("input"));
    }
  });
  await until("an answer", () => asked > 0);
  await page.waitForTimeout(500);
  assert.equal(asked, 1);
  await page.keyboard.press("ArrowRight");
  const after = Number(await slider.getAttribute("aria-valuetext"));
  assert.ok(after > before, `${before} ${after}`);
  assert.equal(await page.getByRole("spinbutton", { name: "Prompt" }).inputValue(), String(after));
  await until("the address", () => page.url().includes(`prompt=${after}`));
  const copy = await context.open(server, new URL(page.url()).hash.replace(/^/, "/"));
  await ready(copy);
  assert.equal(await copy.getByRole("spinbutton", { name: "Prompt" }).inputValue(), String(after));
});

test("what cannot be planned is said in the server's words, and the next question is answered", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=7b&machine=a100&prompt=1024&response=256&batch=1", { expected: /status of 400/ });
  await ready(page);
  await page.getByLabel("Parameters").fill("nonsense");
  const told = page.locator(".result [role=alert]");
  await told.waitFor();
  const response = await fetch(`${server.origin}/plan?model=nonsense&machine=a100&prompt=1024&response=256&batch=1`);
  assert.equal(response.status, 400);
  assert.equal(await told.textContent(), (await response.json()).error.message);
  await page.getByLabel("Parameters").fill("13b");
  await ready(page);
});

test("a fleet of users, and the phase that limits it", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=llama-3.1-8b&machine=h100&prompt=1024&response=256&batch=1");
  await ready(page);
  await page.getByLabel("Users").fill("1000");
  await page.getByLabel("Requests per minute of each").fill("2");
  const fleet = page.getByRole("region", { name: "The fleet" });
  await fleet.getByText(/1,000 users send 33\.3 requests per second and need \d+ machines?/).waitFor();
  await fleet.getByText(/The limiting phase is (prefill|decode)\./).waitFor();
});

test("a model by its config.json, pasted or from a file", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=config.json&machine=a100&prompt=1024&response=256&batch=1", { expected: /status of 400/ });
  await page.getByText("Paste a config.json").waitFor();
  const config = {
    architectures: ["LlamaForCausalLM"], model_type: "llama", hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32,
    num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 131072, rms_norm_eps: 1e-5,
    rope_theta: 500000, tie_word_embeddings: false, hidden_act: "silu",
  };
  await page.getByLabel("From a file").setInputFiles({ name: "config.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(config)) });
  await ready(page);
  const known = await (await fetch(`${server.origin}/plan?model=llama-3.1-8b&machine=a100&prompt=1024&response=256&batch=1`)).json();
  await until("the plan", async () => (await page.locator(".headline dd").first().evaluate((value) => value.firstChild?.textContent)) === `${known.ttft_ms.toFixed(0)} ms`);
  assert.match(await page.locator(".command code").textContent(), /-m config\.json --machine a100/);
  await page.getByLabel("config.json", { exact: true }).fill("{}");
  await page.locator(".result [role=alert]").getByText("not a config.json to plan with").waitFor();
});

test("a calculator that was opened while the server was away works when it is back", async (context) => {
  const server = await context.server();
  let away = true;
  const prepare = async (page) => {
    for (const path of ["**/plan/presets", "**/live/*"]) {
      // The page itself is there: it was loaded before.
      await page.route(path, (route) => (away && page.url().includes("calculator") && !route.request().url().endsWith("/live/info") ? route.abort() : route.continue()));
    }
  };
  const page = await context.open(server, "/#/calculator", { prepare, expected: /ERR_FAILED/, ready: false });
  await page.locator(".result [role=alert]").waitFor();
  away = false;
  await page.locator(".connection[data-state=open]").waitFor();
  await ready(page);
});

test("a link to another question in the same tab is followed, and the way back leads back", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=llama-3.1-70b&machine=h100&prompt=512&response=128&batch=4");
  await ready(page);
  const asked = async () => [await page.getByLabel("Machine").inputValue(), await page.getByRole("spinbutton", { name: "Prompt" }).inputValue(), await page.getByRole("spinbutton", { name: "Batch size" }).inputValue()].join(" ");
  assert.equal(await asked(), "h100 512 4");
  await page.evaluate(() => (location.hash = "#/calculator?model=7b&machine=a100&prompt=1024&response=256&batch=1"));
  await until("the other question", async () => (await asked()) === "a100 1024 1");
  await page.locator(".binding", { hasText: "a100" }).waitFor();
  await page.goBack();
  await until("the first again", async () => (await asked()) === "h100 512 4");
  // Users without a rate ask once a minute each.
  await page.evaluate(() => (location.hash = "#/calculator?model=llama-3.1-8b&machine=h100&prompt=1024&response=256&batch=1&users=600"));
  await page.getByRole("region", { name: "The fleet" }).getByText(/600 users send 10 requests per second/).waitFor();
  assert.equal(await page.getByLabel("Requests per minute of each").inputValue(), "1");
});
