// Chat with several models in one server, and presets of one's own.

import assert from "node:assert/strict";
import { answerAll, said, streamed } from "./answers.mjs";
import { violations } from "./axe.mjs";
import { test, until } from "./lib.mjs";
import { PAYLOADS } from "./payloads.mjs";

/** Has a page's server list these models. */
const list = (page, cards) => page.route("**/v1/models", (route) => route.fulfill({ json: { object: "list", data: cards().map(([id, value, more]) => ({ id, object: "model", ...(value ? { status: { value } } : {}), ...more })) } }));
const menu = (page) => page.getByRole("combobox", { name: "model" });
const options = (page) => menu(page).locator("option").allTextContents();

test("with one model there is no menu, and no request names it", async (context) => {
  const server = await context.server();
  const sent = [];
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, (body) => sent.push(body) && streamed(["Yes."])) });
  await said(page, "a");
  assert.equal(await menu(page).count(), 0);
  assert.ok(!("model" in sent[0]));
});

test("with several, each request names the one that was chosen, and each conversation remembers its own", async (context) => {
  const server = await context.server();
  const sent = [];
  let cards = [["big", "loaded", { max_model_len: 4096 }], ["small", "unloaded", { max_model_len: 100 }], ["broken", "failed"], ["quiet"]];
  const prepare = async (page) => {
    await list(page, () => cards);
    await answerAll(page, (body) => sent.push(body.model) && streamed(["Yes."]));
  };
  const page = await context.open(server, "/#/chat", { prepare });
  await until("the menu", async () => (await options(page)).join("|") === "big|small, not loaded|broken, failed|quiet");
  assert.equal(await menu(page).inputValue(), "big");
  await said(page, "first");
  await page.getByRole("button", { name: "New conversation" }).click();
  await menu(page).selectOption("small");
  // The context is that of the model.
  assert.equal(await page.getByRole("meter", { name: "Context used" }).getAttribute("aria-valuemax"), "100");
  await said(page, "second");
  await page.getByRole("navigation", { name: "Conversations" }).getByRole("button", { name: "first", exact: true }).click();
  await until("its model", async () => (await menu(page).inputValue()) === "big");
  await said(page, "third");
  await page.waitForTimeout(500); // settings are kept when they have been still for a moment
  await page.getByRole("navigation", { name: "Conversations" }).getByRole("button", { name: "second", exact: true }).click();
  await page.reload();
  await until("its model after a reload", async () => (await menu(page).inputValue()) === "small");
  await said(page, "fourth");
  assert.deepEqual(sent, ["big", "small", "big", "small"]);
  // What is gone stays chosen, and says so.
  cards = cards.filter(([name]) => name !== "small");
  await menu(page).focus();
  await until("it is gone", async () => (await options(page)).includes("small, not here"));
  assert.equal(await menu(page).inputValue(), "small");
  assert.deepEqual(await violations(page), []);
});

test("while the first request to a model waits for it to be loaded, the page says so", async (context) => {
  const server = await context.server();
  let state = "unloaded";
  let release;
  const held = new Promise((resolve) => (release = resolve));
  const page = await context.open(server, "/#/chat", {
    prepare: async (page) => {
      await list(page, () => [["big", "loaded"], ["small", state]]);
      await page.route("**/v1/chat/completions", async (route) => {
        state = "loading";
        await held;
        await route.fulfill({ contentType: "text/event-stream", body: streamed(["Here."]) });
      });
    },
  });
  await until("the menu", async () => (await options(page)).length === 2);
  await menu(page).selectOption("small");
  await page.getByLabel("Message", { exact: true }).fill("hello");
  await page.keyboard.press("Enter");
  await page.locator(".talk .status").getByText("Loading small…").waitFor();
  await until("its state in the menu", async () => (await options(page)).includes("small, loading"));
  state = "loaded";
  await page.locator(".talk .status").getByText("The engine answers…").waitFor();
  await until("and in the menu", async () => (await options(page)).join() === "big,small");
  release();
  await page.getByText("The answer is complete.").waitFor();
});

test("lists that are none, names that are markup, and states that are not known change nothing", async (context) => {
  const server = await context.server();
  let answer = { json: { data: PAYLOADS.map((id) => ({ id, status: { value: id } })) } };
  const prepare = async (page) => {
    await page.addInitScript(() => (window.pwn = () => (window.__pwned = true)));
    await page.route("**/v1/models", (route) => route.fulfill(answer));
    await answerAll(page, () => streamed(["Yes."]));
  };
  const page = await context.open(server, "/#/chat", { prepare, expected: /status of 500/ });
  await until("all of them", async () => (await options(page).catch(() => [])).length === PAYLOADS.length);
  assert.deepEqual(await menu(page).locator("option").evaluateAll((all) => all.map((each) => each.value)), PAYLOADS);
  assert.equal(await page.evaluate(() => window.__pwned ?? false), false);
  for (const wrong of [{ status: 500, json: {} }, { body: "no JSON" }, { json: null }, { json: { data: 7 } }, { json: { data: [null, 7, {}, { id: 7 }, { id: "" }, { id: "x".repeat(2000) }, { id: "one", status: null }] } }]) {
    answer = wrong;
    await page.reload();
    await page.getByRole("log").waitFor();
    await said(page, "hello");
    assert.equal(await menu(page).count(), 0, JSON.stringify(wrong).slice(0, 60));
  }
});

test("settings are saved under a name, chosen in another conversation and tab, and deleted", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  const preset = (page) => page.getByLabel("preset");
  const value = (page, name) => page.getByLabel(name, { exact: true }).inputValue();
  const save = async (name) => {
    await page.getByRole("button", { name: "Save preset" }).click();
    await page.getByLabel("Save as").fill(name);
    await page.keyboard.press("Enter");
  };
  const chosen = (page) => preset(page).evaluate((select) => select.selectedOptions[0].textContent);
  await page.getByLabel("Temperature").fill("0.3");
  await page.getByLabel("Max tokens").fill("99");
  await page.getByLabel("Stop strings").fill("END");
  assert.equal(await chosen(page), "own");
  await save("for code");
  await until("it is chosen", async () => (await chosen(page)) === "for code");
  // Names that are taken, and hostile ones.
  await save("precise");
  await page.getByText('"precise" is built in: choose another name.').waitFor();
  await page.keyboard.press("Escape");
  await page.getByLabel("Temperature").fill("0.9");
  assert.equal(await chosen(page), "own", "another setting is no longer that preset");
  await save(PAYLOADS[6].slice(0, 40));
  await until("its name is text", async () => (await chosen(page)) === PAYLOADS[6].slice(0, 40));
  // Elsewhere.
  await page.reload();
  await page.getByRole("button", { name: "New conversation" }).click();
  const other = await page.context().newPage();
  await other.goto(`${server.origin}/#/chat`);
  await until("it is in another tab", async () => (await preset(other).locator("option").allTextContents()).includes("for code"));
  await preset(other).selectOption("for code");
  assert.deepEqual([await value(other, "Temperature"), await value(other, "Max tokens"), await value(other, "Stop strings")], ["0.3", "99", "END"]);
  await preset(other).selectOption("balanced");
  assert.deepEqual([await value(other, "Temperature"), await value(other, "Max tokens")], ["", "99"]);
  await preset(other).selectOption("for code");
  assert.deepEqual(await violations(other), []);
  await other.getByRole("button", { name: "Delete preset" }).click();
  await until("gone here", async () => !(await preset(page).locator("option").allTextContents()).includes("for code"));
  assert.equal(await value(other, "Temperature"), "0.3", "its settings stay");
  // What another program left there is no preset.
  for (const kept of ["no JSON", "7", '[{"name":7}]', `[{"name":"x","stop":7}]`, JSON.stringify(Array(60).fill({ name: "y" }))]) {
    await page.evaluate((kept) => localStorage.setItem("twostroke-presets", kept), kept);
    await page.reload();
    await page.getByRole("log").waitFor();
    assert.deepEqual(await preset(page).locator("option").allTextContents(), ["precise", "balanced", "creative", "own"], kept.slice(0, 30));
  }
});

test("the menu, an own preset and the field for another have no violation, wide and narrow, light and dark", async (context) => {
  const server = await context.server();
  for (const [dark, width] of [[false, 1440], [true, 1440], [false, 390], [true, 390]]) {
    const page = await context.open(server, "/#/chat", { dark, width, height: 844, prepare: (page) => list(page, () => [["a-model-of-a-long-name-that-goes-on:30b", "loaded"], ["small", "unloaded"]]) });
    await until("the menu", async () => (await options(page).catch(() => [])).length === 2);
    for (const name of ["mine", ""]) {
      await page.getByRole("button", { name: "Save preset" }).click();
      await page.getByLabel("Save as").fill(name);
      if (name) await page.keyboard.press("Enter");
    }
    await page.getByRole("button", { name: "Delete preset" }).waitFor();
    assert.deepEqual(await violations(page), [], `${dark ? "dark" : "light"}, ${width} px`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${width} px: ${wide} px too wide`);
    await context.picture(page, `models ${dark ? "dark" : "light"} ${width}`);
    await page.close();
  }
});
