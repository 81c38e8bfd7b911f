// The browser tests: node web/tests/run.mjs BINARY CHROMIUM ARTEFACTS [FILTER]. Ends with `N passed, M failed`.

import { readdirSync } from "node:fs";
import { beginArea, runAll } from "./lib.mjs";

const [binary, chromiumPath, artefacts, filter = ""] = process.argv.slice(2);
if (!artefacts) {
  console.error("usage: run.mjs BINARY CHROMIUM ARTEFACTS [FILTER]");
  process.exit(2);
}
// A promise that is not awaited fails the run too.
process.on("unhandledRejection", (error) => {
  console.error(error);
  console.log("0 passed, 1 failed");
  process.exit(1);
});
const files = readdirSync(new URL(".", import.meta.url)).filter((name) => name.endsWith(".test.mjs"));
for (const file of files.sort()) {
  beginArea(file.replace(".test.mjs", ""));
  await import(`./${file}`);
}
const { passed, failed } = await runAll({ binary, chromiumPath, artefacts, filter });
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 && passed > 0 ? 0 : 1);
