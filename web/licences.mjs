// What is in the scripts of others, and under which licence: a plugin of the build.

import { readdirSync, readFileSync } from "node:fs";

const PERMITTED = ["MIT", "BSD-3-Clause", "ISC", "Apache-2.0"];

/** Writes `licences.txt`: the notice of each package of which the scripts have a part. A licence that is not permitted ends the build. */
export function licences() {
  return {
    name: "licences",
    generateBundle(_, bundle) {
      const files = Object.values(bundle).flatMap((file) => (file.type === "chunk" ? Object.keys(file.modules) : []));
      const folders = new Set(files.flatMap((file) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file.replace(/^\0/, ""))?.[0] ?? []));
      const notices = [...folders].sort().map((folder) => {
        const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
        if (!PERMITTED.includes(license)) throw new Error(`${name}: ${license} is not among ${PERMITTED.join(", ")}`);
        const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
        if (!file) throw new Error(`${name} has no file with its licence`);
        return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n`;
      });
      this.emitFile({ type: "asset", fileName: "licences.txt", source: notices.join(`\n${"-".repeat(80)}\n\n`) });
    },
  };
}
