// Learn: seven pages, each with something to try on the running engine and a question that explains every choice.

import assert from "node:assert/strict";
import { test, until } from "./lib.mjs";
import { Course, lesson } from "./scripted.mjs";

const TITLES = ["Why two phases", "TTFT against TPOT", "Batching", "Chunked prefill", "Prefix cache", "The KV wall", "Why a draft is cheap"];

/** What stands where the times of a busy machine would teach what is not so. */
const AGAIN = "Your machine is busy: again";

/** Runs what the page offers to try and returns what it says of it, and the rows of its table. A busy machine gets five more chances. */
async function tryIt(page, chances = 5) {
  let result = await press(page, ".try .primary");
  for (; chances > 0 && result.said === AGAIN; chances -= 1) result = await press(page, ".try .status button");
  return result;
}

async function press(page, button) {
  await page.locator(button).click();
  const status = page.locator(".try .status");
  await until("a result", async () => /^(?!The engine is at work).+/.test(await status.textContent()));
  const rows = await page.locator(".try tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  return { said: await status.textContent(), rows };
}

test("the tour goes through seven pages, and each question explains each of its choices", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/learn");
  for (const [at, title] of TITLES.entries()) {
    await page.getByRole("heading", { name: `${at + 1}. ${title}` }).waitFor();
    assert.equal(await page.locator(".tour [aria-current=step]").textContent(), title);
    assert.ok(await page.locator(".picture .lane").count() >= 2 && (await page.locator(".picture [role=img]").getAttribute("aria-label")).length > 40, `a picture of ${title}`);
    const choices = page.getByRole("radio");
    const said = [];
    for (let choice = 0; choice < (await choices.count()); choice += 1) {
      await choices.nth(choice).check();
      const verdict = page.locator(".verdict");
      said.push([await verdict.getAttribute("data-right"), await verdict.textContent()]);
    }
    assert.equal(said.length, 3, title);
    assert.equal(said.filter(([right]) => right === "true").length, 1, title);
    assert.equal(new Set(said.map(([, text]) => text)).size, 3, title);
    if (at + 1 < TITLES.length) await page.getByRole("link", { name: `Next: ${TITLES[at + 1]}` }).click();
  }
  await page.getByRole("link", { name: "Back: The KV wall" }).click();
  await page.getByRole("heading", { name: "6. The KV wall" }).waitFor();
});

test("each lesson is that of the work itself, whatever the machine took beside it, or there is none", async (context) => {
  // What each page sends, and what it says.
  const lessons = {
    1: [(course) => course.send(1, { prompt: 1024, tokens: 8 }).send(1, { prompt: 16, tokens: 64 }), /took 0\.06 ms, a token of the long answer 2\.1 ms: 34\.0 times as long/],
    2: [(course) => course.send(1, { prompt: 512, tokens: 64 }), /^32 ms to the first token \+ 63 × 2\.1 ms = 166 ms\.$/],
    3: [(course) => course.send(1, { prompt: 16, tokens: 96 }).send(1, { prompt: 16, tokens: 96, n: 8 }), /^8 streams wrote 5\.7 times as many tokens per second as one, and each waited 1\.41 times as long/],
    4: [
      (course) => {
        const stream = `r${course.answers.length + 1}`;
        course.send(1, { prompt: 3072, tokens: 1, chunk: 2048 }).send(1, { prompt: 16, tokens: 99 }).send(1, { prompt: 3072, tokens: 1, chunk: 256, beside: [stream] });
      },
      /^The stream's passes took 2\.1 ms each, beside the prompt 17 ms\. Alone the prompt took 192 ms:/,
    ],
    5: [(course) => course.send(1, { prompt: 2048, tokens: 32 }).send(1, { prompt: 2048, tokens: 32, cached: 2016 }), /2,016 were there already: the first token came after 2\.0 ms instead of 128 ms\.$/],
    6: [(course) => course.send(4, { prompt: 1536, tokens: 256 }), /they hit the wall: .* the slowest first token came after 1\.50 s instead of 96 ms\.$/],
    7: [(course) => course.send(1, { prompt: 48, tokens: 160 }).send(1, { prompt: 48, tokens: 160, n: 8 }).send(1, { prompt: 48, tokens: 160 }), /^A pass with 8 rows took 1\.41 times as long/],
  };
  for (const [number, [send, teaches]] of Object.entries(lessons)) {
    for (const [machine, ...more] of [[0], [0.15, 0.04], [0.5, 0.08], [0.1, 0.01, 0.97]]) {
      const course = new Course().disturb(machine, ...more);
      send(course);
      const page = await lesson(context, number, course);
      const { said } = await press(page, ".try .primary");
      assert.match(said, teaches, `${number}, the machine had ${machine}, ${more}`);
      await page.close();
    }
    // Of half of it too much is not sure, then of most of it, then nothing.
    const course = new Course();
    for (const [machine, uncertain] of [[0.5, 0.12], [0.1, 0.2], [0, 0]]) send(course.disturb(machine, uncertain));
    const page = await lesson(context, number, course);
    const busy = await press(page, ".try .primary");
    assert.equal(busy.said, AGAIN, number);
    assert.doesNotMatch(busy.rows.flatMap((row) => row.slice(1)).join(), /\d m?s\b/, `${number}: no time that is not the work's`);
    await context.picture(page, `learn ${number} busy`);
    assert.equal((await press(page, ".try .status button")).said, AGAIN, number);
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "again", "the keyboard goes on from there");
    const after = await press(page, ".try .status button");
    assert.match(after.said, teaches, `${number}, again`);
    assert.equal(after.rows.length, busy.rows.length, "what was no lesson is gone");
    await page.close();
  }
});

test("slow to start but streams fast: the page lets a newcomer find out which phase that is", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/learn/2");
  // A long prompt, a short answer: nearly all of the time is prefill, and the page says so in numbers.
  await page.getByRole("slider", { name: "Tokens of the prompt" }).fill("3072");
  await page.getByRole("slider", { name: "Tokens of the answer" }).fill("16");
  const long = await tryIt(page);
  const share = ([, , , , share]) => Number.parseInt(share, 10);
  await page.getByRole("slider", { name: "Tokens of the prompt" }).fill("16");
  await page.getByRole("slider", { name: "Tokens of the answer" }).fill("256");
  const short = await tryIt(page);
  if (![long.said, short.said].includes(AGAIN)) {
    assert.match(long.said, /to the first token \+ 15 × .+ = /);
    assert.ok(share(long.rows[0]) > share(short.rows.at(-1)), JSON.stringify([long, short]));
  }
  await page.getByRole("group", { name: "slow to start but then streams fast" }).getByText("Prefill, or the queue before it.").click();
  assert.equal(await page.locator(".verdict").getAttribute("data-right"), "true");
  await context.picture(page, "learn 2 tried");
});

test("what each page lets one try runs on the engine, and counts what it did", async (context) => {
  const server = await context.server();
  // Rows of the table that are counts and not times: they are the same on any machine.
  const checks = {
    1: ({ rows }) => assert.deepEqual([rows[0][1], rows[0][4], rows[0][5], rows[1][1], rows[1][2], rows[1][4], rows[1][5]], ["1,024 tokens", "8 tokens", "7", "16 tokens", "1", "64 tokens", "63"]),
    3: ({ rows }) => assert.deepEqual(rows.map((row) => row[0]), ["1 stream", "8 streams"]),
    // Beside a stream a prompt of 3,072 tokens comes in more pieces than alone.
    4: ({ rows }) => assert.ok(rows.length === 3 && Number(rows[1][1]) > Number(rows[0][1]), JSON.stringify(rows)),
    5: ({ rows }) => assert.deepEqual(rows.map((row) => row.slice(1, 3)), [["2,048 tokens", "0 tokens"], ["32 tokens", "2,016 tokens"]]),
    // How many of the four ran at once is a matter of time; one of them needs the blocks of its prompt. The small pool is a wall.
    6: ({ said, rows }) => {
      assert.ok(Number(rows[0][1].replace(",", "")) >= 1536 / 32, JSON.stringify(rows));
      assert.ok(Number.parseFloat(rows[1][2]) > 50 && Number.parseInt(rows[1][3], 10) > 0, JSON.stringify(rows));
      assert.ok(said === AGAIN || said.includes("they hit the wall"), said);
    },
  };
  for (const [number, check] of Object.entries(checks)) {
    const page = await context.open(server, `/#/learn/${number}`);
    const result = await tryIt(page);
    assert.ok(!result.said.startsWith("That did not work"), `${number}: ${result.said}`);
    check(result);
    console.log(`figure  learn ${number}: ${result.said}`);
    await context.picture(page, `learn ${number} tried`);
    await page.close();
  }
});

test("why a draft is cheap: the same words of fewer passes, and without drafts what a row costs", async (context) => {
  for (const flags of [[], ["--speculate", "off"]]) {
    const server = await context.server(...flags);
    const page = await context.open(server, "/#/learn/7");
    const { said, rows } = await tryIt(page);
    assert.equal(rows.length, 3, said);
    assert.deepEqual([rows[0].slice(1, 4), rows[0].slice(5)], [["159 tokens", "159", "1.0"], ["0", "0"]], said);
    assert.deepEqual([rows[1][1], rows[1][3]], ["1,272 tokens", "8.0"]);
    const lesson = said === AGAIN ? null : said;
    if (lesson) assert.match(said, /^A pass with 8 rows took (?!0\.00)\d+\.\d\d times as long as one with a single row/);
    const [, tokens, passes, , , drafted, accepted] = rows[2];
    assert.equal(tokens, "159 tokens");
    if (flags.length === 0) {
      // How many are worth their rows is the machine's to say; some are always tried.
      assert.ok(Number(drafted) > 0 && Number(accepted) <= Number(drafted), JSON.stringify(rows[2]));
      assert.equal(Number(passes) + Number(accepted), 159, "a token of each pass, and the accepted drafts");
      if (lesson) assert.match(said, /The words are the same\.$/);
    } else {
      assert.deepEqual([passes, drafted], ["159", "0"]);
      if (lesson) assert.match(said, /start the server without --speculate off/);
    }
    console.log(`figure  learn 7: ${said}`);
    await context.picture(page, `learn 7 tried${flags.join("")}`);
    await page.close();
  }
});

test("leaving a page ends what it had started", async (context) => {
  const server = await context.server();
  const page = await context.open(server, "/#/learn/4");
  await page.locator(".try button").click();
  await page.getByRole("link", { name: "Chat" }).click();
  await until("an idle engine", async () => (await (await fetch(`${server.origin}/health`)).json()).open_requests === 0);
});
