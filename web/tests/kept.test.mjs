// Kept conversations: they are there after a reload and in another tab, fork and are walked, and travel as files.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { answerAll, answerInFrames, said, streamed } from "./answers.mjs";
import { violations } from "./axe.mjs";
import { test, until } from "./lib.mjs";
import { PAYLOADS } from "./payloads.mjs";

/** Answers that tell which question, and how often it was asked. */
const echo = (times = new Map()) => ({ messages }) => {
  const question = messages.at(-1).content;
  times.set(question, (times.get(question) ?? 0) + 1);
  return streamed([`answer ${times.get(question)} to `, question]);
};

const texts = (page) => page.locator(".turn .text").allTextContents();
const titles = (page) => page.getByRole("navigation", { name: "Conversations" }).locator(".open").allTextContents();
const opened = (page, title) => page.getByRole("navigation", { name: "Conversations" }).getByRole("button", { name: title, exact: true }).click();
const complete = (page) => page.getByText("The answer is complete.").waitFor();

/** The path of the conversation of a file, and its tree: each text with those below it. */
async function exported(page, name, artefacts) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name, exact: true }).click()]);
  const path = join(artefacts, `${Math.random()}-${download.suggestedFilename()}`);
  await download.saveAs(path);
  return { path, text: readFileSync(path, "utf8") };
}

test("a reload and a second tab have all conversations, and what one tab does the other shows", async (context) => {
  const server = await context.server();
  const prepare = (page) => answerAll(page, echo());
  const page = await context.open(server, "/#/chat", { prepare });
  await page.getByLabel("System prompt").fill("Be brief.");
  await said(page, "the first question of a long row of words that go on and on");
  await page.getByRole("button", { name: "New conversation" }).click();
  assert.equal(await page.getByLabel("System prompt").inputValue(), "", "a system prompt is of one conversation");
  await said(page, "second");
  await until("both in the list", async () => (await titles(page)).length === 2);
  assert.deepEqual(await titles(page), ["second", "the first question of a long row of words that…"]);
  await page.reload();
  await until("the conversation", async () => (await texts(page)).join() === "second,answer 1 to second");
  await opened(page, "the first question of a long row of words that…");
  await until("the other", async () => (await texts(page)).length === 2 && (await texts(page))[0].startsWith("the first"));
  assert.equal(await page.getByLabel("System prompt").inputValue(), "Be brief.");

  const other = await page.context().newPage();
  await prepare(other);
  await other.goto(`${server.origin}/#/chat`);
  await until("both in the other tab", async () => (await titles(other)).length === 2);
  await opened(other, "second");
  await until("its words", async () => (await texts(other)).length === 2);
  await opened(page, "second");
  await until("the same here", async () => (await texts(page))[0] === "second");
  await said(other, "third");
  await until("it is here too", async () => (await texts(page)).join() === "second,answer 1 to second,third,answer 1 to third");
  // Deleted there, gone here; and back again.
  await other.getByRole("button", { name: "Delete second" }).click();
  await until("it is gone", async () => (await titles(page)).length === 1 && (await texts(page)).length === 0);
  await other.getByRole("button", { name: "Undo" }).click();
  await until("it is back", async () => (await titles(page)).length === 2);
});

test("edit and retry make siblings that are walked, branch copies a path, and a file makes the same tree", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, echo()) });
  await said(page, "one");
  await said(page, "two");
  const answers = page.locator(".turn.assistant");
  const questions = page.locator(".turn.user");
  // Another answer stands beside the first.
  await answers.nth(1).getByRole("button", { name: "Retry" }).click();
  await until("the second answer", async () => (await texts(page)).join() === "one,answer 1 to one,two,answer 2 to two");
  await complete(page);
  assert.match(await answers.nth(1).locator(".versions").textContent(), /2\/2/);
  await answers.nth(1).getByRole("button", { name: "Previous version" }).click();
  assert.equal((await texts(page)).at(-1), "answer 1 to two");
  // Another question, with the keyboard.
  await questions.nth(0).getByRole("button", { name: "Edit" }).focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Control+a");
  await page.keyboard.type("uno");
  await page.keyboard.press("Enter");
  await until("its answer", async () => (await texts(page)).join() === "uno,answer 1 to uno");
  await complete(page);
  await questions.nth(0).getByRole("button", { name: "Previous version" }).click();
  assert.deepEqual(await texts(page), ["one", "answer 1 to one", "two", "answer 2 to two"], "the newest of what follows");
  // Nothing of that is lost by a reload.
  await page.reload();
  await until("the path", async () => (await texts(page)).join() === "one,answer 1 to one,two,answer 2 to two");
  assert.match(await questions.nth(0).locator(".versions").textContent(), /1\/2/);

  const first = await exported(page, "This as JSON", context.artefacts);
  const { conversations: [tree] } = JSON.parse(first.text);
  assert.deepEqual(tree.messages.map(({ content, parent }) => [content, parent]), [["one", null], ["answer 1 to one", 0], ["two", 1], ["answer 1 to two", 2], ["answer 2 to two", 2], ["uno", null], ["answer 1 to uno", 5]]);
  assert.equal(tree.leaf, 4);
  const markdown = await exported(page, "This as Markdown", context.artefacts);
  assert.equal(markdown.text, "# one\n\n## You\n\none\n\n## Model\n\nanswer 1 to one\n\n## You\n\ntwo\n\n## Model\n\nanswer 2 to two\n");
  await answers.nth(0).getByRole("button", { name: "Branch" }).click();
  await until("the branch", async () => (await texts(page)).join() === "one,answer 1 to one");
  await said(page, "three");
  assert.deepEqual(await texts(page), ["one", "answer 1 to one", "three", "answer 1 to three"]);
  const all = await exported(page, "All as JSON", context.artefacts);
  assert.equal(JSON.parse(all.text).conversations.length, 2);

  // In a browser that has nothing: what is imported is what was exported.
  const fresh = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, echo()) });
  await fresh.getByLabel("File of conversations").setInputFiles(all.path);
  await fresh.getByText("2 conversations imported.").waitFor();
  assert.equal((await titles(fresh)).length, 2);
  const again = await exported(fresh, "All as JSON", context.artefacts);
  assert.deepEqual(JSON.parse(again.text), JSON.parse(all.text));
});

test("files that are no export change nothing, and the page says what is wrong with them", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat");
  const message = { parent: null, role: "user", content: "a", at: 1 };
  const whole = { title: "t", created: 1, changed: 1, leaf: null, messages: [message] };
  const file = (change, entry = {}) => JSON.stringify({ format: "twostroke-conversations", version: 1, conversations: [{ ...whole, ...change, messages: [{ ...message, ...entry }] }] });
  for (const [text, said] of [
    ["no JSON", "the file is no JSON"],
    ["[]", "the file is []: it has to be an object"],
    ["{}", 'the file is no export of this page: "format" has to be "twostroke-conversations" and "version" 1'],
    [file({ title: 7 }), "conversations[0].title is 7: it has to be a text"],
    [file({ created: "x" }), 'conversations[0].created is "x": it has to be a number'],
    [file({ leaf: 9 }), "conversations[0].leaf is 9: it has to be null or the place of an earlier message"],
    [file({}, { role: "system" }), 'conversations[0].messages[0].role is "system": it has to be "user" or "assistant"'],
    [file({}, { content: null }), "conversations[0].messages[0].content is missing: it has to be a text"],
    [file({}, { parent: 0 }), "conversations[0].messages[0].parent is 0: it has to be null or the place of an earlier message"],
    [file({}, { files: [{ name: "a" }] }), "conversations[0].messages[0].files[0].text is missing: it has to be a text"],
    [file({}, { files: 1 }), "conversations[0].messages[0].files is 1: it has to be a list"],
  ]) {
    await page.getByLabel("File of conversations").setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(text) });
    await until(said, async () => (await page.locator(".exports .note").textContent()).startsWith(`Nothing was imported: ${said}`));
  }
  assert.equal((await titles(page)).length, 0);
});

test("hostile titles, texts, file names and figures of a file stay text", async (context) => {
  const server = await context.server();
  const timings = { queue_ms: "<b>", prefill_ms: {}, prefill_tokens: "1" };
  const conversations = PAYLOADS.map((payload, i) => ({
    title: payload, created: i, changed: i, leaf: 1, settings: { system: payload, stop: payload, sampling: { [payload]: payload, temperature: payload, top_p: "0.5" } },
    messages: [
      { parent: null, role: "user", content: payload, at: 1, files: [{ name: payload, text: payload }] },
      { parent: 0, role: "assistant", content: payload, thought: payload, at: 2, answer: { id: payload, finish: payload, error: payload, timings } },
    ],
  }));
  const path = join(context.artefacts, "hostile.json");
  writeFileSync(path, JSON.stringify({ format: "twostroke-conversations", version: 1, conversations }));
  const page = await context.open(server, "/#/chat", { prepare: (page) => page.addInitScript(() => (window.pwn = () => (window.__pwned = true))) });
  await page.getByLabel("File of conversations").setInputFiles(path);
  await page.getByText(`${PAYLOADS.length} conversations imported.`).waitFor();
  const open = page.getByRole("navigation", { name: "Conversations" }).locator(".open");
  assert.deepEqual((await open.allTextContents()).sort(), [...PAYLOADS].sort());
  for (let at = 0; at < PAYLOADS.length; at += 7) {
    const title = await open.nth(at).textContent();
    await open.nth(at).click();
    await until("its question", async () => (await texts(page))[0] === title);
    await page.locator(".turn summary").first().click();
    await page.getByRole("button", { name: "Why" }).click();
    assert.equal(await page.getByRole("alert").textContent(), title);
  }
  const foreign = await page.evaluate(() => ({ pwned: window.__pwned ?? false, elements: document.querySelectorAll("body script, iframe, object, embed, svg, img, style:not(head style), [onerror], [onload], [href^='javascript:' i]").length }));
  assert.deepEqual(foreign, { pwned: false, elements: 0 });
});

test("without storage it goes on in memory, and says so", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat", {
    prepare: async (page) => {
      await page.addInitScript(() => (IDBFactory.prototype.open = () => { throw new DOMException("no", "SecurityError"); }));
      await answerAll(page, echo());
    },
  });
  await page.getByText("This browser keeps nothing for this page").waitFor();
  await said(page, "one");
  await page.getByRole("button", { name: "New conversation" }).click();
  await said(page, "two");
  await opened(page, "one");
  await until("the first", async () => (await texts(page)).join() === "one,answer 1 to one");
  assert.equal(await page.getByText("This browser keeps nothing for this page").count(), 1);
});

test("search finds titles and words, and Ctrl K leads there", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, ({ messages }) => streamed([messages[0].content === "stars" ? "Betelgeuse is red." : "No."])) });
  for (const question of ["stars", "foxes", "lanterns"]) {
    await said(page, question);
    await page.getByRole("button", { name: "New conversation" }).click();
  }
  await page.keyboard.press("Control+k");
  for (const [words, found] of [["FOX", ["foxes"]], ["betelgeuse", ["stars"]], ["nothing of it", []]]) {
    await page.keyboard.press("Control+a");
    await page.keyboard.type(words);
    await until(words, async () => JSON.stringify(await titles(page)) === JSON.stringify(found));
  }
  await page.getByText("None has these words.").waitFor();
  await page.keyboard.press("Escape");
  await until("all again", async () => (await titles(page)).length === 3);
  await page.keyboard.type("stars");
  await page.keyboard.press("Enter");
  await until("the first that was found", async () => (await texts(page))[0] === "stars");
});

test("an answer goes on while another conversation is shown", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerInFrames(page, '() => Array(20_000).fill("word ")') });
  await page.getByLabel("Message", { exact: true }).fill("a long story");
  await page.keyboard.press("Enter");
  const text = page.locator(".turn.assistant .text");
  await until("words", async () => (await text.textContent()).length > 0);
  const before = (await text.textContent()).length;
  await page.getByRole("button", { name: "New conversation" }).click();
  assert.equal(await page.locator(".turn").count(), 0);
  assert.ok(await page.getByRole("button", { name: "Stop" }).isDisabled());
  await page.getByRole("navigation", { name: "Conversations" }).getByRole("button", { name: /^a long story/ }).click();
  await until("more", async () => (await text.textContent()).length > before);
  await page.keyboard.press("Escape");
  await page.getByText("Stopped. Its cache").waitFor();
});

test("files and long pastes are chips that the model reads, and what is no text is refused", async (context) => {
  const server = await context.server();
  const sent = [];
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, ({ messages }) => sent.push(messages) && streamed(["Read."])) });
  const chips = page.getByRole("list", { name: "Attached" }).getByRole("listitem");
  const paste = (text) => page.getByLabel("Message", { exact: true }).evaluate((field, text) => {
    const data = new DataTransfer();
    data.setData("text/plain", text);
    field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  }, text);
  await paste("short");
  assert.equal(await chips.count(), 0);
  await paste("y".repeat(2_001));
  assert.deepEqual(await chips.allTextContents(), ["pasted text, 2,001 characters×"]);
  const attach = (name, bytes) => page.getByLabel("Text files").setInputFiles({ name, mimeType: "text/plain", buffer: Buffer.from(bytes) });
  const hostile = PAYLOADS[6].replaceAll("/", "");
  await attach(hostile, "a ```code``` b");
  await until("the chip", async () => (await chips.count()) === 2);
  for (const [name, bytes, said] of [
    ["big.txt", "x".repeat(2 ** 20 + 1), "big.txt has 1.0 MiB: at most 1 MiB is attached."],
    ["picture.png", [0x89, 0x50, 0xff, 0xfe], "picture.png is no text in UTF-8: only text files are attached."],
    ["zero.bin", [0, 1, 2], "zero.bin is no text in UTF-8: only text files are attached."],
  ]) {
    await attach(name, bytes);
    await until(said, async () => (await page.locator(".ask [role=alert]").textContent()) === said);
  }
  await page.getByRole("button", { name: "Remove pasted text" }).click();
  const article = await said(page, "what is this?");
  assert.equal(await article.locator(".text").textContent(), "Read.");
  assert.equal(await chips.count(), 0);
  assert.deepEqual(sent[0], [{ role: "user", content: `what is this?\n\n${hostile}:\n\`\`\`\`\na \`\`\`code\`\`\` b\n\`\`\`\`` }]);
  const file = page.locator(".turn.user details.file");
  assert.equal(await file.locator("summary").textContent(), `${hostile}, 14 characters`);
  await file.locator("summary").click();
  await until("its text", async () => (await file.locator(".file-text").textContent()) === "a ```code``` b");
});

test("presets, stop strings and the system prompt are sent, and kept with the conversation", async (context) => {
  const server = await context.server();
  const sent = [];
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, (body) => sent.push(body) && streamed(["Yes."])) });
  const preset = page.getByLabel("preset");
  assert.equal(await preset.inputValue(), "balanced");
  await preset.selectOption("precise");
  assert.equal(await page.getByLabel("Temperature").inputValue(), "0");
  await page.getByLabel("System prompt").fill("Be kind.");
  await page.getByLabel("Stop strings").fill("END\n\\n\\n\n");
  await said(page, "a");
  const { temperature, top_p, stop, messages, max_tokens, stream } = sent[0];
  assert.deepEqual({ temperature, top_p, stop, messages, max_tokens, stream }, { temperature: 0, top_p: undefined, stop: ["END", "\n\n"], messages: [{ role: "system", content: "Be kind." }, { role: "user", content: "a" }], max_tokens: 256, stream: true });
  await page.getByLabel("Temperature").fill("0.7");
  assert.equal(await preset.inputValue(), "own");
  await preset.selectOption("creative");
  assert.equal(await page.getByLabel("Min p").inputValue(), "0.05");
  await page.waitForTimeout(500); // settings are kept when they have been still for a moment
  await page.reload();
  await until("the settings", async () => (await preset.inputValue()) === "creative");
  assert.equal(await page.getByLabel("Stop strings").inputValue(), "END\n\\n\\n\n");
});

test("the context that is used is always in view, and warns when it is nearly full", async (context) => {
  const server = await context.server();
  let ids = 10;
  const page = await context.open(server, "/#/chat", {
    prepare: (page) => answerAll(page, () => `data: ${JSON.stringify({ id: "a", prompt_token_ids: Array(ids).fill(1), choices: [] })}\n\n${streamed(["one"])}`),
  });
  const whole = (await (await fetch(`${server.origin}/live/info`)).json()).max_model_len;
  const meter = page.getByRole("meter", { name: "Context used" });
  assert.equal(await meter.getAttribute("aria-valuenow"), "0");
  await said(page, "a");
  assert.equal(await meter.getAttribute("aria-valuenow"), "11");
  assert.equal(await page.locator(".context.nearly-full").count(), 0);
  ids = Math.ceil(whole * 0.8);
  await said(page, "b");
  assert.equal(await meter.getAttribute("aria-valuenow"), String(ids + 1));
  assert.match(await page.locator(".context.nearly-full").textContent(), /nearly full/);
  // It is that of the conversation.
  await page.getByRole("button", { name: "New conversation" }).click();
  assert.equal(await meter.getAttribute("aria-valuenow"), "0");
});

test("a thought is folded, and says how many tokens it took", async (context) => {
  const server = await context.server();
  const deltas = ["I ", "think ", "so."].map((reasoning) => ({ reasoning }));
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, () => streamed(["Yes."], { deltas })) });
  const article = await said(page, "really?");
  assert.match(await article.locator(".thought summary").textContent(), /^Thought 3 tokens, [\d.]+ m?s$/);
  assert.equal(await article.locator(".thought-text").isVisible(), false);
  await article.locator(".thought summary").click();
  assert.equal(await article.locator(".thought-text").textContent(), "I think so.");
});

test("an answer of 200 kB streams, and the figures of its frames are told", async (context) => {
  const server = await context.server();
  // 8,000 tokens a second are 130 in a frame of 60.
  const pieces = `() => Array.from({ length: 400 }, (_, i) => (i % 8 ? "Some words of *prose* with \`code\` in them, and more. ".repeat(10) : "\\n\\n## Part " + i + "\\n\\n- item\\n- item\\n\\n\`\`\`rust\\nfn main() {}\\n\`\`\`\\n\\n"))`;
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerInFrames(page, pieces) });
  const article = await said(page, "go");
  await until("all of it", async () => (await article.locator(".text").evaluate((text) => text.textContent.length)) > 150_000);
  const took = await page.evaluate(() => window.__frames.samples().map((frame) => frame.took).sort((a, b) => a - b));
  console.log(`figure  an answer of 200 kB: drawing a frame takes ${took[took.length >> 1].toFixed(1)} ms (p99 ${took[Math.floor(took.length * 0.99)].toFixed(1)})`);
});

test("a conversation with everything has no violation, wide and narrow, light and dark", async (context) => {
  const server = await context.server();
  for (const [dark, width] of [[false, 1440], [true, 1440], [false, 390], [true, 390]]) {
    const deltas = [{ reasoning: "Hm." }];
    const page = await context.open(server, "/#/chat", { dark, width, height: 844, prepare: (page) => answerAll(page, () => streamed(["Yes, **really**."], { deltas })) });
    if (width < 960) for (const name of ["Sampling", "Conversations"]) await page.locator("summary", { hasText: name }).click();
    await page.getByLabel("Text files").setInputFiles({ name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("text") });
    await said(page, "one");
    await page.getByRole("button", { name: "Retry" }).click();
    await until("two versions", async () => (await page.locator(".versions").count()) === 1);
    await page.getByRole("button", { name: "Why" }).click();
    await page.getByLabel("Text files").setInputFiles({ name: "b.txt", mimeType: "text/plain", buffer: Buffer.from("text") });
    await page.getByRole("button", { name: "Edit" }).click();
    assert.deepEqual(await violations(page), [], `${dark ? "dark" : "light"}, ${width} px`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${width} px: ${wide} px too wide`);
    await context.picture(page, `kept ${dark ? "dark" : "light"} ${width}`);
    await page.close();
  }
});
