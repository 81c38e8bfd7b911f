// The tour's trials: how one is made, and what those that count say on the built-in model.

import assert from "node:assert/strict";
import { until } from "./lib.mjs";

/** Presses the button of the page's trial, or of its second one, and returns what it says, its rows and its outcome. */
export async function tryIt(page, at = 0) {
  await page.locator(".try button.primary").nth(at).click();
  const status = page.locator(".try .status").nth(at);
  await until("a result", async () => /^(?!The engine is at work).+/.test(await status.textContent()));
  const rows = await page.locator(".try table").nth(at).locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  const unclear = await page.locator(".try table").nth(at).locator("tr.unclear").count();
  return { said: await status.textContent(), outcome: await status.getAttribute("data-outcome"), rows, unclear };
}

/** What each trial that counts says on the built-in model, whatever the machine does beside it. */
export const COUNTS = {
  1: ({ said, rows }) => {
    assert.equal(said, "1 pass of 4 rows for the prompt, then 3 passes of one row each.");
    assert.deepEqual(rows.map((row) => row.slice(0, 3)), [["pass 1", "4 rows", " there 100 %"], ["pass 2", "1 row", " was 100 %"], ["pass 3", "1 row", " a 95 %"], ["pass 4", "1 row", " you 8.9 %"]]);
    assert.ok(rows.every((row) => row[3].split(", ").length === 4), "and what else could have come");
  },
  2: ({ said, rows }) => {
    assert.deepEqual(rows[0].slice(0, 1), ["1000 + 200, sent to this server"]);
    assert.match(rows[0][1], /^[2-9]\d* \+ 199$/);
    assert.deepEqual(rows[1], ["1000 + 200, 7B on an A100 (planned)", "1 + 199", "75 ms", "12 ms", "2.50 s", "3.0 %"]);
    assert.match(said, /^75 ms to the first token \+ 199 × 12 ms = 2\.50 s; 82 tokens a second/);
  },
  // 4 + 5 + ... + 43 rows, and 4 + 39.
  3: ({ said, rows }) => {
    assert.deepEqual(rows.map((row) => row[2]), ["940", "43", "125,250 or 500"]);
    assert.equal(said, "940 rows against 43, and the same 40 tokens.");
  },
  4: ({ rows }) => {
    assert.deepEqual(rows.map((row) => row[1]), ["512", "15"]);
    assert.ok(Number(rows[0][2]) > 100 && Number(rows[1][2]) < 2, JSON.stringify(rows));
  },
  6: ({ rows, said }) => {
    assert.deepEqual(rows.map((row) => row[1]), ["8.43 MB", "4.21 MB", "2.48 MB", "13476 MB", "14496 MB", "3976 MB"]);
    assert.deepEqual(rows.map((row) => row[2]), ["2,560 B", "1,360 B", "1,360 B", "524,288 B", "131,072 B", "67,584 B"]);
    assert.match(said, /4 times fewer bytes/);
  },
  7: ({ rows }) => {
    assert.deepEqual(rows.map((row) => row[0]), ["position 16", "position 1,000", "position 4,000"]);
    // The weights, and 2,560 bytes for each token before.
    assert.deepEqual(rows.map((row) => row[1]), ["8.48 MB", "11.00 MB", "18.68 MB"]);
  },
  8: ({ said, rows }) => {
    assert.deepEqual(rows.map((row) => row[0]), ["here", "this minute in chunks of 128 (simulated)", "this minute in one piece (simulated)"]);
    assert.ok(Number(rows[0][1]) >= Math.ceil(4000 / 512), "a pass has 512 tokens at most");
    assert.deepEqual([rows[1][1], rows[2][1]], ["32", "1"]);
    assert.match(said, /^(Who delayed the stream: the prompt of 4,000 tokens|The prompt met no token)/);
  },
  9: ({ rows, said }) => {
    assert.deepEqual(rows.map((row) => row.slice(1)), [["1,024 tokens", "0 tokens"], ["32 tokens", "992 tokens"], ["1,024 tokens", "0 tokens"], ["2,000,000 tokens", "0 tokens"], ["20,000 tokens", "1,980,000 tokens"]]);
    assert.equal(said, "Of 1,024 tokens, 992 were there the second time: whole blocks of 32. Behind another first word none was.");
  },
  10: ({ rows }) => {
    assert.deepEqual(rows[0], ["as long as allowed", "6,144", "128"]);
    assert.ok(Number(rows[1][2].replaceAll(",", "")) > 128, JSON.stringify(rows));
  },
  11: ({ rows, said }) => {
    assert.deepEqual(rows[0], ["this pool", "24,576", "0", "0"]);
    assert.deepEqual(rows[1].slice(0, 2), ["a small one (simulated)", "38"]);
    assert.match(said, /^Each needs 21 blocks\. .* 4 of 4 said the same, to the letter\./);
  },
  13: ({ rows, said }) => {
    assert.deepEqual(rows[0], ["without drafts", "159 tokens", "159", "1.0", "0", "0"]);
    // How many pay is the machine's to say; each pass gives a token, and each accepted draft one more.
    assert.equal(Number(rows[1][2]) + Number(rows[1][5]), 159);
    assert.match(said, /The words are the same\.$|^There were no drafts/);
  },
  14: ({ rows, said }) => {
    assert.deepEqual(rows.map((row) => row.slice(0, 2)), [["budget 0", "0"], ["budget 64", "9"]]);
    assert.match(said, /^9 tokens were decoded before there was anything to see/);
  },
  15: ({ rows }) => assert.deepEqual(rows[0], ["7B on an A100 (planned)", "524 MB", "42 ms", "313 ms"]),
  16: ({ rows }) => assert.deepEqual(rows.map((row) => row.slice(1)), [["0.04", "6.77"], ["0.04", "0.90"], ["0.04", "0.17"]]),
  18: ({ rows }) => {
    assert.deepEqual(rows.map((row) => row[0]), ["slow start", "slowing chat", "stutter", "out of memory"]);
    assert.deepEqual([rows[0][2], rows[1][2], rows[1][3], rows[3][2]], ["2,000", "13,555 kB", "early: 8,476 kB", "128"]);
  },
};

/** Trials that compare times: the lesson, and which of its buttons. */
export const COMPARED = [[5, 0], [7, 1], [12, 0]];
