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

const figure = (page) => page.locator(".headline dd").first().evaluate((value) => value.firstChild?.textContent);
const answer = async (server, query) => (await fetch(`${server.origin}/plan?${query}`)).json();

test("prices are the user's: none at first, then those of the worked lesson on money", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=7b&machine=a100&prompt=1024&response=256&batch=1");
  await ready(page);
  const costs = page.getByRole("region", { name: "Costs" });
  const price = (row) => costs.getByRole("row", { name: row }).getByRole("cell").first().textContent();
  assert.equal(await price("Million output tokens"), "–");
  await costs.getByText("No price is built in").waitFor();
  await page.getByLabel("Price per hour").fill("2.00");
  await page.getByLabel("Utilization, %").fill("100");
  await until("the price of an output token alone", async () => (await price("Million output tokens")) === "6.77");
  assert.equal(await price("Million input tokens"), "0.042");
  await page.getByRole("spinbutton", { name: "Batch size" }).fill("64");
  await until("the price in a batch", async () => (await price("Million output tokens")) === "0.17");
  assert.match(await page.locator(".command code").textContent(), /-b 64 --price 2\.00 --utilization 1$/);
  const plan = await answer(server, "model=7b&machine=a100&price=2.00&utilization=1&batch=64&prompt=1024&response=256");
  assert.equal(plan.cost.output.price.toFixed(2), "0.17");
});

test("targets ask which machines, and what none meets is said with its distance", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=llama-3.1-8b&machine=h100&prompt=1024&response=256&batch=1&users=1000&rate=2/min");
  await ready(page);
  const machines = page.getByRole("region", { name: "Machines that meet the targets" });
  assert.equal(await machines.count(), 0);
  await page.getByLabel("TTFT target, ms").fill("500");
  await page.getByLabel("TPOT target, ms").fill("30");
  await page.getByLabel("Price per hour").fill("a100=1.5,h100=3,l40s=0.8");
  const query = "model=llama-3.1-8b&machine=h100&prompt=1024&response=256&batch=1&users=1000&rate=2/min&ttft=500&tpot=30&price=a100=1.5,h100=3,l40s=0.8";
  const { choices } = await answer(server, query);
  const rows = machines.locator("tbody tr");
  await until("the machines", async () => (await rows.count()) === choices.rows.length);
  const first = choices.rows[0];
  assert.equal(await rows.first().getByRole("rowheader").textContent(), `${first.machines.toLocaleString("en")} × ${first.machine}`);
  assert.equal(await rows.first().getByRole("cell").nth(5).textContent(), first.price_per_hour.toFixed(2));
  assert.equal(await rows.first().getByRole("cell").last().textContent(), first.capped_by);
  assert.match(await page.locator(".command code").textContent(), /--users 1000 --rate 2\/min --ttft-slo 500ms --tpot-slo 30ms$/);
  await context.picture(page, "calculator targets");
  await page.getByLabel("TTFT target, ms").fill("1");
  await machines.getByText(/none meets the targets; the best for a TTFT of 1\.0 ms: .* times that/).waitFor();
  assert.equal(await rows.count(), 0);
});

test("a model's size by a slider, dense or of which a token uses a share", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=7b&machine=a100&prompt=1024&response=256&batch=1");
  await ready(page);
  const size = page.getByRole("slider", { name: "Model size" });
  const active = page.getByRole("slider", { name: "Share that a token uses" });
  const name = page.getByLabel("Parameters");
  assert.equal(await size.getAttribute("aria-valuetext"), "7 billion");
  assert.equal(await active.getAttribute("aria-valuetext"), "all of it: dense");
  await size.focus();
  await page.keyboard.press("End");
  assert.equal(await name.inputValue(), "1000b");
  await page.keyboard.press("Home");
  assert.equal(await name.inputValue(), "0.1b");
  await name.fill("30b-a3b");
  assert.equal(await active.getAttribute("aria-valuetext"), "3 billion a token");
  const plan = await answer(server, "model=30b-a3b&machine=a100&prompt=1024&response=256&batch=1");
  assert.equal(plan.model.parameters, 30e9);
  assert.equal(plan.model.active_parameters, 3e9);
  await until("the answer", async () => (await figure(page)) === `${plan.ttft_ms.toFixed(0)} ms`);
  await active.focus();
  await page.keyboard.press("End");
  assert.equal(await name.inputValue(), "30b");
});

test("curves have the answer's own points, and say in words where the question stands", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=7b&flops=312T&bandwidth=2T&memory=80G&prompt=1024&response=256&batch=4");
  await ready(page);
  const { curves, ask, ...plan } = await answer(server, "model=7b&flops=312T&bandwidth=2T&memory=80G&prompt=1024&response=256&batch=4");
  for (const [line, axis] of [["ttft_ms", "prompt"], ["tpot_ms", "batch"]]) assert.equal(curves[line][curves[axis].indexOf(ask[axis])], plan[line], "the marked point is the answer");
  const drawn = page.getByRole("region", { name: "Curves" });
  await drawn.getByRole("img", { name: /^TTFT over the prompt: \d+ ms at 1,024 tokens, floor \d+ ms$/ }).waitFor();
  await drawn.getByRole("img", { name: /^TPOT over the batch: .* at 4 requests, floor / }).waitFor();
  await drawn.getByRole("img", { name: /^Throughput over the batch: .*tok\/s at 4 requests, at most .*tok\/s$/ }).waitFor();
  await until("three canvases with ink", () =>
    drawn.locator("canvas").evaluateAll((all) => all.length === 3 && all.every((canvas) => canvas.width > 0 && canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte > 0))),
  );
});

test("page, route and command line have the same digits", async (context) => {
  const server = await context.server();
  const questions = [
    "model=7b&machine=h100&machines=4&link=100G&prompt=2000&response=100&batch=8",
    "model=llama-3.1-8b&machine=gb10&weights=int4&prompt=3000&cached=0.8&response=200&batch=2",
    "model=qwen3-30b-a3b&machine=mi355x&prompt=500&thinking=1500&response=100&batch=16&acceptance=0.8&draft=0.5b",
    "model=llama-3.1-70b&machine=xeon-6980p&weights=int8&kv=int8&prompt=700&response=50&batch=1&price=1.2&utilization=0.55",
  ];
  const page = await context.open(server, `/#/calculator?${questions[0]}`);
  for (const question of questions) {
    await page.evaluate((hash) => (location.hash = hash), `#/calculator?${question}`);
    const plan = await answer(server, question);
    const shown = (ms) => (ms < 9.95 ? `${ms.toFixed(ms < 0.995 ? 2 : 1)} ms` : ms < 999.5 ? `${ms.toFixed(0)} ms` : ms < 99_500 ? `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)} s` : `${(ms / 60_000).toFixed(1)} min`);
    await until(question, async () => {
      const figures = await page.locator(".headline dd").evaluateAll((all) => all.map((value) => value.firstChild?.textContent));
      return JSON.stringify(figures.slice(0, 3)) === JSON.stringify([plan.ttft_ms, plan.tpot_ms, plan.total_ms].map(shown));
    });
    const command = await page.locator(".command code").textContent();
    const told = await context.run(...command.split(" ").slice(1), "--json");
    assert.deepEqual(JSON.parse(told), plan, command);
  }
});

test("on a phone the headline stays in sight while the form is filled in", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=7b&machine=a100&prompt=1024&response=256&batch=1", { width: 390, height: 800 });
  await ready(page);
  await page.getByLabel("TPOT target, ms").scrollIntoViewIfNeeded();
  await page.mouse.wheel(0, 200);
  const places = () => page.evaluate(() => [".headline", "#top", ".ask"].map((name) => document.querySelector(name).getBoundingClientRect()).map(({ top, bottom }) => [top, bottom]));
  await until("scrolled", async () => (await places())[2][0] < -300);
  const [[top, bottom], [, header]] = await places();
  assert.ok(top >= header && bottom < 250, `${top} to ${bottom}, below ${header}`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wide <= 0, `${wide} px too wide`);
});

test("each bad figure is named by the server, and the page keeps the form", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/calculator?model=llama-3.1-8b&machine=h100&prompt=1024&response=256&batch=1", { expected: /status of 400/ });
  await ready(page);
  const told = page.locator(".result [role=alert]");
  for (const [field, bad, good, name] of [
    ["Prompt", "0", "1024", "prompt"],
    ["Batch size", "-3", "1", "batch"],
    ["Thinking, tokens", "1000000", "", "thinking"],
    ["Cached share of it, %", "150", "", "cached"],
    ["Utilization, %", "0", "", "utilization"],
    ["Watts", "1e30", "", "watts"],
  ]) {
    const input = page.getByRole("spinbutton", { name: field });
    await input.fill(bad);
    await told.getByText(`'${name}':`).waitFor();
    assert.equal(await told.count(), 1);
    assert.ok(await page.locator(".short").isHidden(), "no figure of an earlier answer");
    await input.fill(good);
    await ready(page);
  }
  await page.getByLabel("Price per hour").fill("NaN");
  await told.getByText("'price':").waitFor();
});
