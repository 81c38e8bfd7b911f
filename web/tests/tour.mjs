// What the tour teaches on a busy machine: node web/tests/tour.mjs BINARY CHROMIUM ARTEFACTS [TIMES [LOOPS...]]. Each lesson is
// tried that often (20) beside each number of busy loops (0, 1, 2, 8), and must be that of a quiet machine, or say that there is none.

import { spawn } from "node:child_process";
import { beginArea, runAll, test, until } from "./lib.mjs";

const [binary, chromiumPath, artefacts, times = "20", ...loops] = process.argv.slice(2);

const numbers = (said) => [...said.matchAll(/\d[\d,]*(\.\d+)?(?= (ms|s\b|times|µs))/g)].map(([text]) => Number(text.replaceAll(",", "")));
const milliseconds = (said) => [...said.matchAll(/(\d[\d,.]*) (ms|s|µs)\b/g)].map(([, value, unit]) => Number(value.replaceAll(",", "")) * { ms: 1, s: 1000, µs: 0.001 }[unit]);

/** Whether a lesson is the right one. */
const LESSONS = {
  1: (said) => numbers(said).at(-1) > 2, // a token of an answer takes many times as long as one of a prompt
  2: (said) => milliseconds(said).at(0) < milliseconds(said).at(-1),
  3: (said) => numbers(said)[0] > 1 && numbers(said)[1] < 8,
  4: (said) => milliseconds(said)[0] < milliseconds(said)[1] && milliseconds(said)[1] < milliseconds(said)[2],
  5: (said) => milliseconds(said)[0] < milliseconds(said)[1],
  6: (said) => said.includes("they hit the wall"),
  7: (said) => numbers(said)[0] < 8 && said.includes("The words are the same."),
};

beginArea("tour");
for (const count of loops.length > 0 ? loops.map(Number) : [0, 1, 2, 8]) {
  for (const [number, isRight] of Object.entries(LESSONS)) {
    test(`beside ${count} loops, lesson ${number}`, async (context) => {
      const server = await context.server();
      const page = await context.open(server, `/#/learn/${number}`);
      const busy = Array.from({ length: count }, () => spawn("sh", ["-c", "while :; do :; done"]));
      const found = { right: 0, none: 0, wrong: [] };
      try {
        for (let time = 0; time < Number(times); time += 1) {
          await page.locator(".try .primary").click();
          const status = page.locator(".try .status");
          await until("a result", async () => /^(?!The engine is at work).+/.test(await status.textContent()));
          const said = await status.textContent();
          if (said === "Your machine is busy: again") found.none += 1;
          else if (isRight(said)) found.right += 1;
          else found.wrong.push(said);
        }
      } finally {
        for (const loop of busy) loop.kill("SIGKILL");
      }
      console.log(`figure  ${count} loops, lesson ${number}: ${found.right} right, ${found.none} "again", ${found.wrong.length} wrong ${found.wrong.join(" | ")}`);
    });
  }
}
const { passed, failed } = await runAll({ binary, chromiumPath, artefacts, filter: "" });
process.exit(failed === 0 && passed > 0 ? 0 : 1);
