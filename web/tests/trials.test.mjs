// What the tour lets one try: counts are the same on any machine, and times have one of three outcomes.

import assert from "node:assert/strict";
import { go } from "./lessons.mjs";
import { test, until } from "./lib.mjs";
import { Course, lesson } from "./scripted.mjs";
import { COMPARED, COUNTS, tryIt } from "./trials.mjs";

const OUTCOMES = ["shown", "unclear", "reversed"];

test("what counts, counts the same on any machine", async (context) => {
  const server = await context.server();
  for (const [number, check] of Object.entries(COUNTS)) {
    const page = await context.open(server, `/#/learn/${number}`);
    const result = await tryIt(page);
    assert.ok(!result.said.startsWith("That did not work"), `${number}: ${result.said}`);
    check(result);
    assert.match(await page.locator(".tour [aria-current] .ring").getAttribute("data-done"), number === "18" ? /^0/ : /^1/, `${number}: tried`);
    console.log(`figure  learn ${number}: ${result.said}`);
    await context.picture(page, `learn ${number} tried`);
    await page.close();
  }
});

test("times that are compared have one of three outcomes", async (context) => {
  const server = await context.server();
  for (const [number, at] of COMPARED) {
    const page = await context.open(server, `/#/learn/${number}`);
    const { said, outcome, rows, unclear } = await tryIt(page, at);
    assert.ok(OUTCOMES.includes(outcome), said);
    assert.match(said, { shown: /^Shown \(\d pairs of \d\): /, unclear: /^Not clear on this machine now: \d pairs? of \d .* Predicted instead: .*\d/, reversed: /^The other way round on this machine/ }[outcome]);
    assert.equal(unclear, outcome === "unclear" ? 2 : 0, "figures that teach nothing are grey");
    for (const row of rows.slice(0, 2)) assert.match(row[2], /^[\d,]+ of [\d,]+$/, "how many steps the figure is of");
    console.log(`figure  learn ${number}: ${said}`);
    await context.picture(page, `learn ${number} compared`);
    await page.close();
  }
});

/** Seven pairs, and what is sent once behind them: two streams, and four. */
const pairs = (course, send) => {
  for (let pair = 0; pair < 7; pair += 1) send(course, pair);
  return course.send(1, { prompt: 16, tokens: 32, n: 2 }).send(1, { prompt: 16, tokens: 32, n: 4 });
};
const oneAndEight = (course) => course.send(1, { prompt: 16, tokens: 32 }).send(1, { prompt: 16, tokens: 32, n: 8 });
const nearAndFar = (course) => course.send(1, { prompt: 16, tokens: 32 }).send(1, { prompt: 4000, tokens: 32 });

test("a time is of undisturbed steps alone: shown, not clear, or the other way round", async (context) => {
  const dear = () => new Course((rows) => rows * 4 - 2);
  const far = () => new Course((_, prompt) => 2 + prompt / 4000);
  const near = () => new Course((_, prompt) => 4 - prompt / 4000);
  // Eight rows take 3 ms and one 2.125, unless the course says something else. `used`: of the steps of the second row.
  const cases = [
    [5, 0, new Course().disturb(0), oneAndEight, "shown", "217 of 217", /^Shown \(7 pairs of 7\): 8 streams wrote 5\.7 times as many tokens a second as one, and each waited 1\.41 times/],
    // The machine has half of two steps in three: the others give the figure.
    [5, 0, new Course().disturb(0.5, 0.01, 0), oneAndEight, "shown", /^7\d of 217$/, /5\.7 times/],
    [5, 0, new Course().disturb(0.5, 0.05), oneAndEight, "unclear", "0 of 217", /^Not clear on this machine now: 0 pairs of 7 could be compared.* Predicted instead: .* tok\/s alone/],
    // Not sure by more than a fiftieth.
    [5, 0, new Course().disturb(0, 0.03), oneAndEight, "unclear", "0 of 217", /^Not clear/],
    [5, 0, dear().disturb(0), oneAndEight, "reversed", "217 of 217", /^The other way round on this machine \(7 pairs of 7\): 8 streams wrote fewer tokens a second than one/],
    // Four undisturbed pairs are too few.
    [5, 0, new Course(), (course, pair) => oneAndEight(pair < 4 ? course.disturb(0) : course.disturb(0.5, 0.05)), "unclear", /of 217$/, /4 pairs of 7/],
    [7, 1, far().disturb(0), nearAndFar, "shown", "217 of 217", /^Shown \(7 pairs of 7\): a token at position 4,000 took 3\.0 ms, at 16 2\.0 ms\.$/],
    [7, 1, near().disturb(0), nearAndFar, "reversed", "217 of 217", /^The other way round .* took 3\.0 ms, less than 4\.0 ms at 16\.$/],
    // Equal times are neither.
    [7, 1, new Course().disturb(0), nearAndFar, "unclear", "217 of 217", /^Not clear .* Predicted instead: [\d.]+ ms at 16 and [\d.]+ ms at 4,000\.$/],
  ];
  for (const [number, at, course, send, outcome, used, says] of cases) {
    const page = await lesson(context, number, pairs(course, send));
    const result = await tryIt(page, at);
    assert.equal(result.outcome, outcome, result.said);
    assert.match(result.said, says);
    if (typeof used === "string") assert.equal(result.rows[1][2], used);
    else assert.match(result.rows[1][2], used);
    assert.equal(result.unclear, outcome === "unclear" ? 2 : 0);
    if (number === 5) assert.deepEqual(result.rows.slice(2, 4).map((row) => row[0]), ["2 streams, once", "4 streams, once"]);
    await context.picture(page, `learn ${number} ${outcome}`);
    await page.close();
  }
});

/** What a server cannot show, and that its lessons teach all the same. */
const SERVERS = [
  [["--no-enable-prefix-caching"], { 9: /^Nothing was found again: this server keeps no prefixes \(--no-enable-prefix-caching\)/, 7: /times what it reads at 16\.$/ }],
  [["--speculate", "off"], { 13: /^There were no drafts: this server was started with --speculate off/ }],
  [["--max-model-len", "512"], { 2: /This server reads at most 512 tokens, so this is planned and not sent\.$/, 3: /^940 rows against 43/, 4: /^A byte is used for/, 7: /at position 480/, 8: /the prompt of 511 tokens|met no token/, 9: /^Of 504 tokens, 480 were/, 11: /4 of 4 said the same/, 13: /The words are the same|no drafts/, 18: /^Four figures/ }],
  // A pool of 100 blocks.
  [["--kv-cache-memory-bytes", "8192000"], { 8: /^(Who delayed the stream: the prompt of 1,600 tokens|The prompt met no token)/, 10: /In 100 blocks/, 11: /4 of 4 said the same/, 18: /^Four figures/ }],
  [["--max-num-seqs", "1"], { 5: /^This server computes one request at a time \(--max-num-seqs 1\), so there is no batch to try\. Predicted instead: /, 8: /^This server computes one request at a time/, 11: /1 of 1 said the same/, 12: /^This server computes one request at a time/ }],
];

for (const [flags, lessons] of SERVERS) {
  test(`a server with ${flags.join(" ")}: each lesson says what it cannot show`, async (context) => {
    const server = await context.server(...flags);
    for (const [number, says] of Object.entries(lessons)) {
      const page = await context.open(server, `/#/learn/${number}`);
      const { said } = await tryIt(page);
      assert.match(said, says, `${number}`);
      if (flags[0] === "--max-model-len" && ["4", "7", "8", "9", "11"].includes(number)) assert.match(await page.locator(".try .limit").textContent(), /^This server reads at most 512 tokens, so the trial takes/);
      assert.ok((await page.locator(".scene li").count()) >= 3 && (await page.locator(".lesson > .question").count()) >= 1, `${number}: it teaches all the same`);
      await page.close();
    }
  });
}

test("a server that asks for a key: the trials send it", async (context) => {
  const server = await context.server("--api-key", "open-sesame");
  const page = await context.open(server, "/#/learn/1", { ready: false, expected: /status of 401/ });
  await page.getByLabel("Key", { exact: true }).fill("open-sesame");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "1. Pause, then stream" }).waitFor();
  COUNTS[1](await tryIt(page));
});

test("another model in mid-lesson: figures of two are never in one table", async (context) => {
  let [name, endFeed, answerPlan] = [null, null, null];
  const prepare = async (page) => {
    await page.route("**/live/info", async (route) => {
      const info = await route.fetch().then((response) => response.json()).catch(() => null);
      if (info) await route.fulfill({ json: { ...info, name: name ?? info.name } }).catch(() => {});
    });
    // The first feed ends when the test says so; the page asks again what the server is.
    let isFirst = true;
    await page.route("**/live/feed*", async (route) => {
      if (!isFirst) return route.continue();
      isFirst = false;
      await new Promise((resolve) => (endFeed = resolve));
      await route.fulfill({ contentType: "text/event-stream", body: "" }).catch(() => {});
    });
    await page.route("**/plan?*", async (route) => {
      if (name) await new Promise((resolve) => (answerPlan = resolve));
      await route.continue().catch(() => {});
    });
  };
  const page = await context.open(await context.server(), "/#/learn/6", { prepare, ready: false });
  await page.getByRole("heading", { name: "6. Fewer bytes" }).waitFor();
  assert.match((await tryIt(page)).rows[0][0], /^lantern, as it is served/);
  // Changed while it is at work.
  name = "other";
  await page.locator(".try button.primary").click();
  await until("a question to the plan", () => answerPlan);
  endFeed();
  await page.locator("#top .model", { hasText: "other" }).waitFor();
  const status = page.locator(".try .status");
  for (const stop = performance.now() + 20_000; !(await status.textContent()).startsWith("That") && performance.now() < stop; await page.waitForTimeout(20)) answerPlan();
  assert.match(await status.textContent(), /the server has another model now \(other, bf16\)/);
  name = null;
  assert.match((await page.locator(".try table tbody tr").first().textContent()), /^lantern/);
  await page.locator(".try button.primary").click();
  await until("rows of the other", async () => (await page.locator(".try tbody tr").count()) === 6);
  assert.match(await page.locator(".try tbody tr").first().textContent(), /^other, as it is served/);
});

test("a trial that the server refuses says why, and leaving the page ends what it had started", async (context) => {
  const server = await context.server();
  const prepare = (page) => page.route("**/v1/completions", (route) => route.fulfill({ status: 503, json: { error: { message: "The queue is full." } } }));
  const refused = await context.open(server, "/#/learn/1", { prepare, expected: /status of 503/ });
  assert.equal((await tryIt(refused)).said, "That did not work: The queue is full.");
  assert.equal(await refused.locator(".tour [aria-current] .ring").getAttribute("data-done"), "0/3", "what failed was not tried");
  const page = await context.open(server, "/#/learn/8");
  await page.locator(".try button.primary").click();
  await until("a request", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests > 0);
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  await until("an idle engine", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests === 0);
  const other = await context.open(server, "/#/learn/16", { expected: /status of 400/ });
  for (const [value, says] of [["0", /the price has to be a number above 0/], ["-1", /above 0/], ["", /above 0/]]) {
    await other.getByLabel("Price of an hour").fill(value);
    assert.match((await tryIt(other)).said, says, value);
  }
  await go(other, 15);
  await other.getByLabel("Tokens of the prompt").fill("1000000000");
  assert.match((await tryIt(other)).said, /^That did not work: .{20,}/, "the server says why");
});
