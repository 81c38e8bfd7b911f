// Clients for Node against a running twostroke server: node run.mjs http://127.0.0.1:8000 [API_KEY]. Ends with
// `N passed, N failed`. Like served.py, which is this in Python.

import { runAll, served } from "./served.mjs";

const [address, key = "no-key"] = process.argv.slice(2);
if (!address) {
  console.error("usage: run.mjs ADDRESS [API_KEY]");
  process.exit(2);
}
for (const client of ["openai", "anthropic", "ai"]) await import(`./test_${client}.mjs`);
process.exit((await runAll({ address, key, v1: `${address}/v1`, model: await served(address, key) })) ? 0 : 1);
