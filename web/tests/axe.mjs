// axe-core, run in a page.

import axe from "axe-core";

const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

/** Violations of a page as it is now: the rule, and where. */
export async function violations(page) {
  await page.evaluate(axe.source);
  const found = await page.evaluate((tags) => window.axe.run(document, { runOnly: { type: "tag", values: tags } }), TAGS);
  return found.violations.flatMap(({ id, help, nodes }) => nodes.map((node) => `${id} (${help}): ${node.target.join(" ")}: ${node.any[0]?.message ?? ""}`));
}
