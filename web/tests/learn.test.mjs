// Learn: eighteen lessons in four parts, each with a scene and questions; a score, an exam of fourteen, an end.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { violations } from "./axe.mjs";
import { BOARD, EXAM, figures, go, PARTS, rightChoices, SEEDS, TITLES, tryAll, WITH_CARDS, WITH_NOTES } from "./lessons.mjs";
import { test, until } from "./lib.mjs";

const LESSONS = TITLES.map((_, at) => at + 1);
const words = (text) => text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;

test("eighteen lessons in four parts: each of at most 150 words, with a scene, a trial, an analogy and known papers", async (context) => {
  const page = await context.open(await context.server(), "/#/learn");
  const papers = readFileSync(new URL("../../docs/papers.md", import.meta.url), "utf8");
  const parts = await page.locator(".tour .part").evaluateAll((parts) => parts.map((part) => [part.querySelector(".name").textContent, [...part.querySelectorAll("a")].map((link) => link.textContent)]));
  assert.deepEqual(parts, Object.entries(PARTS).map(([name, [first, last]]) => [name, LESSONS.slice(first - 1, last).map((n) => `${n}. ${TITLES[n - 1]}`)]));
  for (const n of LESSONS) {
    await go(page, n);
    assert.equal(await page.locator(".tour [aria-current=step]").textContent(), `${n}. ${TITLES[n - 1]}`);
    const scene = page.locator(".scene");
    await scene.focus();
    const pictures = [];
    const [, frames] = (await scene.locator(".number").textContent()).split(" of ").map(Number);
    for (let frame = 1; frame <= frames; frame += 1) {
      assert.equal(await scene.locator(".number").textContent(), `${frame} of ${frames}`);
      pictures.push(await scene.locator("svg").evaluate((svg) => [svg.getAttribute("aria-label"), svg.innerHTML]));
      await page.keyboard.press("Space");
    }
    assert.ok(frames >= 3 && frames <= 8, `${n}: ${frames} frames`);
    assert.equal(new Set(pictures.map(([words]) => words)).size, frames, `${n}: a sentence for each frame`);
    assert.equal(new Set(pictures.map(([, drawn]) => drawn)).size, frames, `${n}: a picture for each frame`);
    const prose = await page.locator(".lesson > .asks, .lesson > .why, .lesson > .analogy, .scene li").allTextContents();
    assert.ok(prose.length >= 6 && words(prose.join(" ")) <= 150, `${n}: ${words(prose.join(" "))} words`);
    assert.ok(await page.locator(".try input, .try button").count() > 0, `${n}: something to try`);
    const cited = await page.locator(".papers li").allTextContents();
    assert.ok(cited.length >= 1 && cited.length <= 3, `${n}: ${cited.length} papers`);
    for (const paper of cited) assert.ok(papers.includes(paper.replace(/^(.*?\. )(.*)$/, "$1*$2*")), `${n}: ${paper}`);
    assert.equal(await page.locator(".lesson .card legend").count() > 0, n === 17 || WITH_CARDS.includes(n), `${n}: cards`);
    assert.equal(await page.locator(".lesson .note").count(), WITH_NOTES.includes(n) ? 1 : 0, `${n}: a note`);
  }
  await page.getByRole("link", { name: "Back: Who helps whom" }).click();
  await page.getByRole("heading", { name: "17. Who helps whom" }).waitFor();
});

test("each choice of each question is explained, and one is right; each of the fourteen has its lesson and is in the exam", async (context) => {
  const page = await context.open(await context.server(), "/#/learn");
  const found = {};
  for (const n of LESSONS) {
    await go(page, n);
    const questions = await tryAll(page);
    assert.ok(questions.length >= 1, `${n}`);
    for (const { id, choices } of questions) {
      assert.equal(choices.length, 3, id);
      assert.equal(choices.filter(({ right }) => right === "true").length, 1, id);
      assert.equal(new Set(choices.map(({ explanation }) => explanation)).size, 3, id);
      for (const { explanation } of choices) assert.ok(explanation.length > 25, `${id}: ${explanation}`);
      found[id] = [n, choices.find(({ right }) => right === "true").text];
    }
  }
  for (const [id, [n, says]] of Object.entries(EXAM)) {
    assert.equal(found[id]?.[0], n, id);
    assert.match(found[id][1], says, id);
  }
  await go(page, "exam");
  const asked = await page.locator(".question").evaluateAll((sheets) => sheets.map(({ dataset }) => [dataset.question, Number(dataset.lesson)]));
  assert.deepEqual(asked, Object.entries(EXAM).map(([id, [n]]) => [id, n]));
});

test("nothing of what the tour grew from is lost: each image, task and number has its place", async (context) => {
  const page = await context.open(await context.server(), "/#/learn");
  const text = {};
  for (const n of LESSONS) {
    await go(page, n);
    text[n] = await page.evaluate(() => document.querySelector(".lesson").textContent.replaceAll(/\s+/g, " "));
  }
  for (const [item, n, says] of SEEDS) assert.match(text[n], says, item);
});

test("true or false: each card says why, whichever it is called", async (context) => {
  const page = await context.open(await context.server(), "/#/learn");
  for (const n of WITH_CARDS) {
    await go(page, n);
    const cards = await page.locator(".lesson > [aria-label='True or false'] .card").evaluateAll((cards) =>
      cards.map((card) => [...card.querySelectorAll("input")].map((input) => {
        input.click();
        const verdict = card.querySelector(".verdict");
        return [verdict.dataset.right, verdict.textContent];
      })),
    );
    assert.ok(cards.length >= 2, `${n}`);
    assert.deepEqual(new Set(cards.map(([[right]]) => right)), new Set(["true", "false"]), `${n}: some are true and some are not`);
    for (const card of cards) {
      assert.deepEqual(card.map(([right]) => right).sort(), ["false", "true"], `${n}`);
      for (const [, why] of card) assert.match(why, /^(True|False): .{20,}/);
    }
  }
});

test("every figure of the tour is what pencil and paper, and the server's plan, give", async (context) => {
  const server = await context.server();
  const plans = {};
  for (const batch of [1, 8, 64]) plans[batch] = await (await fetch(`${server.origin}/plan?model=7b&machine=a100&prompt=1024&response=256&batch=${batch}`)).json();
  assert.equal(plans[1].knee, 154);
  assert.equal(plans[1].by_batch.find(({ batch }) => batch === 256).bound_by, "memory", "lesson 5's note");
  const page = await context.open(server, "/#/learn/figures");
  const shown = await page.locator("[data-figure]").evaluateAll((rows) => rows.map(({ dataset, cells }) => [dataset.figure, Number(dataset.value), cells[2].textContent]));
  const wanted = figures(plans);
  assert.deepEqual(shown.map(([key]) => key).sort(), Object.keys(wanted).sort());
  for (const [key, value] of shown) assert.ok(Math.abs(value / wanted[key] - 1) < 1e-3, `${key}: ${value}, and not ${wanted[key]}`);
  const written = Object.fromEntries(shown.map(([key, , text]) => [key, text]));
  assert.deepEqual([written.prefill1024, written.token, written.rows500, written.knee, written.priceIn, written.priceOut1, written.priceOut64], ["46 ms", "7 ms", "125,250", "154", "0.04", "6.77", "0.17"]);
});

test("who answers right by the lessons gets 14 of 14, and the score, the end and the export say so, after a reload too", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/learn");
  const right = await rightChoices(page);
  await go(page, "exam");
  const orders = new Set();
  for (let visit = 0; visit < 6; visit += 1) {
    orders.add((await page.locator("[data-question=Q1] .choice").allTextContents()).join());
    await go(page, 1);
    await go(page, "exam");
  }
  assert.ok(orders.size > 1, "choices are shuffled");
  for (const id of Object.keys(EXAM)) await page.locator(`[data-question=${id}]`).getByLabel(right[id], { exact: true }).check();
  await page.getByRole("button", { name: "Check my answers" }).click();
  await page.getByText("14 of 14.").waitFor();
  await page.getByRole("link", { name: "What to read again" }).click();
  await page.getByText("There is nothing to read again.").waitFor();
  await page.reload();
  await page.getByText("Exam: 14 of 14.").waitFor();
  assert.ok((await page.locator(".ring").evaluateAll((rings) => rings.map((ring) => ring.dataset.done))).every((done) => Number(done[0]) >= 1), "each lesson's ring has its question");
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export as Markdown" }).click();
  const text = readFileSync(await (await download).path(), "utf8");
  assert.match(text, /^# The tour of the two phases\n\nExam: 14 of 14\./);
  for (const [at, title] of TITLES.entries()) assert.ok(text.includes(`| ${at + 1} | ${title} |`), title);
  await page.getByRole("button", { name: "Start over" }).click();
  await page.getByText("The exam has not been taken yet.").waitFor();
  assert.deepEqual(new Set(await page.locator(".ring").evaluateAll((rings) => rings.map((ring) => ring.dataset.done[0]))), new Set(["0"]));
});

test("who answers wrong, or not at all, sees why and which lessons to read again", async (context) => {
  const page = await context.open(await context.server(), "/#/learn");
  const right = await rightChoices(page);
  await go(page, "exam");
  // Two wrong, one not answered.
  for (const id of Object.keys(EXAM).filter((id) => id !== "Q9")) {
    const isWrong = ["Q3", "Q13"].includes(id);
    const choices = page.locator(`[data-question=${id}] .choice`);
    const texts = await choices.allTextContents();
    await choices.nth(texts.findIndex((text) => (text === right[id]) !== isWrong)).click();
  }
  await page.getByRole("button", { name: "Check my answers" }).click();
  await page.getByText("11 of 14.").waitFor();
  for (const [id, title] of [["Q3", "8. The noisy neighbour"], ["Q13", "10. Pages"], ["Q9", "12. Latency or throughput"]]) {
    const verdict = page.locator(`[data-question=${id}] .verdict`);
    assert.equal(await verdict.getAttribute("data-right"), "false");
    assert.equal(await verdict.getByRole("link").textContent(), title);
  }
  await go(page, "end");
  assert.deepEqual(await page.locator(".again li").allTextContents(), ["8. The noisy neighbour", "10. Pages", "12. Latency or throughput"]);
});

test("the board: fourteen cards in four boxes, and each says what it helps and what it harms", async (context) => {
  const page = await context.open(await context.server(), "/#/learn/17");
  const boxes = Object.entries(BOARD);
  assert.deepEqual(new Set(await page.locator(".try .card legend").allTextContents()), new Set(boxes.flatMap(([, cards]) => cards)));
  for (const [box, cards] of boxes) {
    for (const card of cards) {
      const group = page.getByRole("group", { name: card, exact: true });
      const other = boxes.find(([name]) => name !== box)[0];
      await group.getByLabel(other).check();
      assert.equal(await group.locator(".verdict").getAttribute("data-right"), "false");
      await group.getByLabel(box).check();
      assert.match(await group.locator(".verdict").textContent(), /^Helps: .{10,} Harms: .{5,}/, card);
    }
    assert.deepEqual((await page.getByRole("region", { name: box }).locator("li").allTextContents()).sort(), [...cards].sort());
  }
  await page.getByText("All 14 cards are in their boxes.").waitFor();
  assert.equal(await page.locator(".tour [aria-current] .ring").getAttribute("data-done"), "1/3");
});

test("the tour by keyboard alone, from the first scene to the end page", async (context) => {
  const page = await context.open(await context.server(), "/#/learn/1");
  const right = {};
  const active = (of) => page.evaluate(of);
  for (const n of LESSONS) {
    await page.getByRole("heading", { name: `${n}. ${TITLES[n - 1]}` }).waitFor();
    for (let presses = 0; ; presses += 1) {
      assert.ok(presses < 250, `${n}: no way to the next lesson`);
      await page.keyboard.press("Tab");
      const at = await active(() => {
        const { type, rel, className } = document.activeElement;
        return { type, rel, className };
      });
      if (at.className === "scene") for (let frame = 0; frame < 8; frame += 1) await page.keyboard.press(frame % 2 ? "ArrowRight" : "Space");
      if (at.type === "radio") {
        await page.keyboard.press("Space");
        const isRight = () => active(() => document.activeElement.closest("fieldset").querySelector(".verdict").dataset.right === "true");
        for (let choice = 0; choice < 4 && !(await isRight()); choice += 1) await page.keyboard.press("ArrowDown");
        assert.ok(await isRight(), `${n}`);
        const [id, text] = await active(() => [document.activeElement.closest("fieldset").dataset.question, document.activeElement.nextSibling.textContent]);
        right[id] = text;
      }
      if (at.rel === "next") break;
    }
    await page.keyboard.press("Enter");
  }
  await page.getByRole("heading", { name: "Exam" }).waitFor();
  for (let presses = 0; (await active(() => document.activeElement.textContent)) !== "Check my answers"; presses += 1) {
    assert.ok(presses < 200, "the button is reached");
    await page.keyboard.press("Tab");
    const here = () => active(() => [document.activeElement.type, document.activeElement.closest("fieldset")?.dataset.question, document.activeElement.nextSibling?.textContent]);
    if ((await here())[0] !== "radio") continue;
    await page.keyboard.press("Space");
    for (let choice = 0; choice < 3; choice += 1) {
      const [, id, text] = await here();
      if (text === right[id]) break;
      await page.keyboard.press("ArrowDown");
    }
  }
  await page.keyboard.press("Enter");
  await page.getByText("14 of 14.").waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByText("There is nothing to read again.").waitFor();
  // All but the trials.
  const rings = await page.locator(".ring").evaluateAll((rings) => rings.map((ring) => ring.dataset.done.split("/").map(Number)));
  assert.deepEqual(rings.map(([done, all], at) => all - done - (at < 16 ? 1 : 0)), LESSONS.map(() => 0));
});

test("a scene goes forward and back by keys and by buttons, says each frame, and jumps where motion is not wanted", async (context) => {
  const server = await context.server();
  for (const motion of [false, true]) {
    const page = await context.open(server, "/#/learn/3", { motion });
    const scene = page.locator(".scene");
    const at = () => scene.locator(".number").textContent();
    const shown = () => scene.locator("li:not([hidden])").allTextContents();
    await scene.focus();
    for (const [key, place] of [["Space", 2], ["ArrowLeft", 1], ["ArrowDown", 2], ["End", 3], ["Space", 3], ["Home", 1], ["ArrowUp", 1], ["ArrowRight", 2]]) {
      await page.keyboard.press(key);
      assert.equal(await at(), `${place} of 3`, key);
      const sentences = await shown();
      assert.equal(sentences.length, place);
      assert.equal(await scene.locator("li[aria-current=step]").textContent(), sentences.at(-1));
      assert.match(await scene.locator("svg").getAttribute("aria-label"), new RegExp(`: ${sentences.at(-1).slice(0, 20)}`));
    }
    assert.equal(await scene.getByRole("status").textContent(), `2 of 3: ${(await shown()).at(-1)}`);
    await scene.getByRole("button", { name: "Next" }).click();
    assert.equal(await at(), "3 of 3");
    assert.ok(await page.evaluate(() => document.activeElement.className === "scene"), "the keys go on where the button is at its end");
    const moves = await scene.locator("svg g").first().evaluate((shape) => [getComputedStyle(shape).transitionDuration, getComputedStyle(shape).animationName]);
    assert.deepEqual(moves, motion ? ["0.4s", "appear"] : ["0s", "none"]);
    await page.close();
  }
});

for (const [where, options] of [["a phone in dark", { dark: true, width: 390, height: 844 }], ["a desk in light", { dark: false }]]) {
  test(`every lesson on ${where}: nothing too wide, and no violation`, async (context) => {
    const server = await context.server();
    const found = [];
    const page = await context.open(server, "/#/learn", options);
    for (const place of [...LESSONS, "exam", "end", "figures"]) {
      await go(page, place);
      if (await page.locator(".scene").count()) {
        await page.locator(".scene").focus();
        await page.keyboard.press("End");
      }
      // What the head of the page covers is not too small.
      await page.evaluate(() => window.scrollTo(0, 0));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) found.push(`${place}, ${options.width ?? 1280} px: ${wide} px too wide`);
      for (const violation of await violations(page)) found.push(`${place}, ${options.width ?? 1280} px: ${violation}`);
      await context.picture(page, `learn ${place} ${options.width ?? 1280}`);
    }
    assert.deepEqual(found, []);
  });
}

test("addresses that are none lead to a lesson, and what is kept is read with care", async (context) => {
  const server = await context.server();
  for (const [address, title] of [["0", TITLES[0]], ["19", TITLES[17]], ["-3", TITLES[0]], ["x", TITLES[0]], ["constructor", TITLES[0]], ["1e9", TITLES[0]], ["7?x=1", TITLES[6]]]) {
    const page = await context.open(server, `/#/learn/${address}`);
    assert.match(await page.locator(".lesson h2").textContent(), new RegExp(`\\d+\\. ${title}$`), address);
    await page.close();
  }
  for (const kept of ["", "{", "null", "[]", '{"lessons":[[1,{"seen":true,"right":{"Q1":true,"x":"<b>"}}],[99,{}],"x",[2,null]],"exam":{"Q1":"yes","Q2":true}}', '{"lessons":5,"exam":7}']) {
    const prepare = (page) => page.addInitScript((kept) => localStorage.setItem("twostroke-tour", kept), kept);
    const page = await context.open(server, "/#/learn/end", { prepare });
    assert.equal(await page.locator(".result").textContent(), kept.includes("Q2") ? "Exam: 1 of 14." : "The exam has not been taken yet.", kept);
    assert.equal(await page.locator(".ring").first().getAttribute("data-done"), kept.includes("Q1") ? "2/3" : "0/3");
    await page.close();
  }
});

test("a browser that keeps nothing: the tour goes on, and says that the score is gone", async (context) => {
  const prepare = (page) => page.addInitScript(() => {
    const set = Storage.prototype.setItem;
    Storage.prototype.setItem = function (name, value) {
      if (name === "twostroke-tour") throw new DOMException("full", "QuotaExceededError");
      set.call(this, name, value);
    };
  });
  const page = await context.open(await context.server(), "/#/learn/1", { prepare });
  await page.getByText("The inputs are all known").click();
  await until("the ring", async () => (await page.locator(".tour [aria-current] .ring").getAttribute("data-done")) === "1/3");
  await go(page, "end");
  await page.getByText("This browser keeps nothing for this page").waitFor();
});

test("lessons that cannot be fetched: the page says what to do", async (context) => {
  const prepare = (page) => page.route("**/tour.js", (route) => route.abort());
  const page = await context.open(await context.server(), "/#/live", { prepare, expected: /ERR_FAILED|Failed to fetch/ });
  await page.getByRole("link", { name: "Learn", exact: true }).click();
  await page.getByText("The lessons could not be fetched (/tour.js). Reload the page").waitFor();
});
