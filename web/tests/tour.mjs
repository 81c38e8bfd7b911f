// The tour on a busy machine: node web/tests/tour.mjs BINARY CHROMIUM ARTEFACTS [TIMES [LOOPS...]]. Each trial is made that often
// (3) beside each number of busy loops (0, 4): what counts must count the same, and no time may come out the other way round.

import { spawn } from "node:child_process";
import { beginArea, runAll, test } from "./lib.mjs";
import { COMPARED, COUNTS, tryIt } from "./trials.mjs";

const [binary, chromiumPath, artefacts, times = "3", ...loops] = process.argv.slice(2);

/** Runs `body` beside `count` loops that do nothing but take a core. */
async function beside(count, body) {
  const busy = Array.from({ length: count }, () => spawn("sh", ["-c", "while :; do :; done"]));
  try {
    await body();
  } finally {
    for (const loop of busy) loop.kill("SIGKILL");
  }
}

beginArea("tour");
for (const count of loops.length > 0 ? loops.map(Number) : [0, 4]) {
  for (let time = 1; time <= Number(times); time += 1) {
    test(`beside ${count} loops, time ${time}: counts`, async (context) => {
      const server = await context.server();
      await beside(count, async () => {
        for (const [number, check] of Object.entries(COUNTS)) {
          const page = await context.open(server, `/#/learn/${number}`);
          check(await tryIt(page));
          await page.close();
        }
      });
    });
    test(`beside ${count} loops, time ${time}: times`, async (context) => {
      const server = await context.server();
      await beside(count, async () => {
        for (const [number, at] of COMPARED) {
          const page = await context.open(server, `/#/learn/${number}`);
          const { said, outcome } = await tryIt(page, at);
          console.log(`figure  ${count} loops, lesson ${number}: ${outcome}: ${said}`);
          if (outcome === "reversed") throw new Error(`lesson ${number}: ${said}`);
          await page.close();
        }
      });
    });
  }
}
const { passed, failed } = await runAll({ binary, chromiumPath, artefacts, filter: "" });
process.exit(failed === 0 && passed > 0 ? 0 : 1);
