// Markdown of an answer: what becomes of it, that pieces make the same as the whole, and that nothing of it is more than text.

import assert from "node:assert/strict";
import { answerAll, answerInFrames, said, streamed } from "./answers.mjs";
import { test, until } from "./lib.mjs";
import { violations } from "./axe.mjs";
import { PAYLOADS } from "./payloads.mjs";

/** What an element is, in short: tags without attributes but those that matter, and text. */
const shape = (element) =>
  element.evaluate((root) => {
    const tell = (node) => {
      if (node.nodeType === Node.TEXT_NODE) return node.data;
      const inside = () => [...node.childNodes].map(tell).join("");
      if (node.matches("figure.code")) return `[code ${node.querySelector(".language").textContent}|${node.querySelector("code").textContent.trimEnd()}]`;
      if (node.matches(".scroll, span.piece")) return inside();
      const tag = node.localName;
      const more = { a: ` ${node.getAttribute("href")}`, ol: node.start !== 1 && node.start ? ` ${node.start}` : "", input: node.checked ? " x" : "", th: node.className && ` ${node.className}`, td: node.className && ` ${node.className}` }[tag] ?? "";
      return `<${tag}${more}>${inside()}</${tag}>`;
    };
    return [...root.childNodes].map(tell).join("");
  });

// What an answer says, and what the page makes of it.
const CASES = [
  ["plain", "<p>plain</p>"],
  ["one\ntwo", "<p>one\ntwo</p>"],
  ["one\n\ntwo", "<p>one</p><p>two</p>"],
  ["one  \ntwo", "<p>one<br></br>two</p>"],
  ["*a* **b** ***c*** ~~d~~", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del></p>"],
  ["snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>"],
  ["`a < b` and ``a ` b``", "<p><code>a < b</code> and <code>a ` b</code></p>"],
  ["\\*not\\*", "<p>*not*</p>"],
  ["a &lt; b &amp;&nbsp;c &#65; &unknown; &#0;", "<p>a < b &\u00a0c A &unknown; \ufffd</p>"],
  // A level that is skipped is not skipped on the page: h2 says who speaks.
  ["# One\n## Two\n#### Four", "<h3>One</h3><h4>Two</h4><h5>Four</h5>"],
  ["### Three", "<h3>Three</h3>"],
  ["One\n===", "<h3>One</h3>"],
  ["a\n\n---\n\nb", "<p>a</p><hr></hr><p>b</p>"],
  ["> quoted\n> > deeper", "<blockquote><p>quoted</p><blockquote><p>deeper</p></blockquote></blockquote>"],
  ["- a\n- b\n  - c\n    1. d", "<ul><li>a</li><li>b<ul><li>c<ol><li>d</li></ol></li></ul></li></ul>"],
  ["3. a\n4. b", "<ol 3><li>a</li><li>b</li></ol>"],
  ["- [x] done\n- [ ] to do", "<ul><li><input x></input>done</li><li><input></input>to do</li></ul>"],
  ["- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  ["| a | b |\n|---|--:|\n| 1 | `2` |", "<table><thead><tr><th>a</th><th right>b</th></tr></thead><tbody><tr><td>1</td><td right><code>2</code></td></tr></tbody></table>"],
  ["```rust\nfn main() {}\n```", "[code rust|fn main() {}]"],
  ["~~~\na\n\n```\n~~~\nb", "[code |a\n\n```]<p>b</p>"],
  ["before\n```js\n1\n```\nafter", "<p>before</p>[code js|1]<p>after</p>"],
  ["```\nnever closed", "[code |never closed]"],
  ["````md\n```\ninner\n```\n````", "[code md|```\ninner\n```]"],
  ["    indented", "[code |indented]"],
  ["[a](https://a.example/x?y=1)", "<p><a https://a.example/x?y=1>a</a></p>"],
  ["<https://a.example> or https://b.example/c", "<p><a https://a.example/>https://a.example</a> or <a https://b.example/c>https://b.example/c</a></p>"],
  ["[**a**](mailto:a@b.example)", "<p><a mailto:a@b.example><strong>a</strong></a></p>"],
  ["[a][1]\n\n[1]: https://a.example/", "<p><a https://a.example/>a</a></p>"],
  // Pictures are links: nothing is fetched.
  ["![a cat](https://a.example/cat.png)", "<p><a https://a.example/cat.png>picture: a cat</a></p>"],
  ["![](https://a.example/cat.png)", "<p><a https://a.example/cat.png>picture: a.example</a></p>"],
  // Where no link may lead, it is what was written.
  ["[a](javascript:pwn())", "<p>[a](javascript:pwn())</p>"],
  ["[a](JAVASCRIPT&colon;pwn())", "<p>[a](JAVASCRIPT&colon;pwn())</p>"],
  ["[a](java&#x09;script:pwn())", "<p>[a](java&#x09;script:pwn())</p>"],
  ["[a](data:text/html,x)", "<p>[a](data:text/html,x)</p>"],
  ["[a](/v1/models)", "<p>[a](/v1/models)</p>"],
  ["[a](//evil.example/x)", "<p>[a](//evil.example/x)</p>"],
  ["![a](javascript:pwn())", "<p>![a](javascript:pwn())</p>"],
  ["![a](data:image/png;base64,AAAA)", "<p>![a](data:image/png;base64,AAAA)</p>"],
  ["<vbscript:pwn()>", "<p><vbscript:pwn()></p>"],
  // HTML is text, in a block and in a line.
  ["<div onclick=pwn()>a</div>", "<p><div onclick=pwn()>a</div></p>"],
  ["a <b>b</b> <img src=x onerror=pwn()>", "<p>a <b>b</b> <img src=x onerror=pwn()></p>"],
  ["<details>\n<summary>a</summary>\n\n*b*\n</details>", "<p><details>\n<summary>a</summary></p><p><em>b</em></p><p></details></p>"],
];

test("a table of what Markdown becomes", async (context) => {
  const server = await context.server();
  let text = "";
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, () => streamed([text])) });
  for (const [markdown, expected] of CASES) {
    text = markdown;
    const article = await said(page, "x");
    assert.equal(await shape(article.locator(".text")), expected, markdown);
  }
  const links = await page.locator(".turn.assistant .text a").evaluateAll((all) => all.map((link) => `${link.rel} ${link.target}`));
  assert.ok(links.length === 7 && links.every((each) => each === "noopener noreferrer _blank"), `${links}`);
});

/** A text with some of everything, longer than what is cut at once. */
const LONG = [
  "# Report", "Some *words* with `code` and [a link](https://a.example).", "- a\n- b\n  - nested\n\n- loose", "| a | b |\n|---|---|\n" + Array.from({ length: 120 }, (_, i) => `| row ${i} | **${i * i}** and some more words |`).join("\n"),
  "```python\n" + Array.from({ length: 300 }, (_, i) => `print(${i})  # a line of code`).join("\n") + "\n```", Array.from({ length: 200 }, (_, i) => `${i + 1}. item with *emphasis* number ${i}`).join("\n"),
  "> a quote\n> of two lines", "~~~\nlast\n~~~", "The end.",
].join("\n\n");

test("pieces of any size make the same as the whole", async (context) => {
  const server = await context.server();
  const pieces = `(size) => ${JSON.stringify(LONG)}.match(new RegExp("[^]{1," + size + "}", "g"))`;
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerInFrames(page, pieces) });
  let expected = null;
  for (const size of [100_000, 29, 97, 501, 3001]) {
    const article = await said(page, `${size}`);
    await until("the end", async () => (await article.locator(".text").textContent()).endsWith("The end."));
    const found = await shape(article.locator(".text"));
    expected ??= found;
    assert.equal(found, expected, `pieces of ${size}`);
  }
  assert.equal((expected.match(/<tr>/g) ?? []).length, 121);
  assert.equal((expected.match(/<li>/g) ?? []).length, 204);
});

test("hostile texts in links, fences, titles, tables and headings stay text", async (context) => {
  const server = await context.server();
  let text = "";
  const page = await context.open(server, "/#/chat", {
    prepare: async (page) => {
      await page.addInitScript(() => (window.pwn = () => (window.__pwned = true)));
      await answerAll(page, () => streamed([text]));
    },
  });
  const wrap = (payload) => {
    const line = payload.replaceAll("\n", " ");
    return [
      payload, `# ${line}`, `- ${line}`, `> ${line}`, `[${line}](https://a.example)`, `[a](${line})`, `[a](<${line}>)`, `[a](https://a.example "${line}")`, `![${line}](https://a.example)`, `![a](${line})`,
      `| ${line} | b |\n|---|---|\n| ${line} | c |`, `\`\`\`${line}\n${payload}\n\`\`\``, `\`${line}\``, `**${line}**`, `[x]: ${line}\n\n[x]`, `<${line}>`,
    ].join("\n\n");
  };
  for (const payload of PAYLOADS) {
    text = wrap(payload);
    await said(page, payload);
  }
  const found = await page.evaluate(() => {
    const mine = "p h2 h3 h4 h5 h6 ul ol li blockquote hr br strong em del code pre a span figure figcaption button table thead tbody tr th td div input".split(" ");
    const texts = [...document.querySelectorAll(".turn.assistant .text")];
    const all = texts.flatMap((text) => [...text.querySelectorAll("*")]);
    const foreign = all.filter((element) => !mine.includes(element.localName) || element.getAttributeNames().some((name) => !"class href target rel title tabindex role aria-label scope type disabled checked start data-language".split(" ").includes(name)));
    const links = all.filter((element) => element.localName === "a" && !/^(https?:\/\/|mailto:)/.test(element.getAttribute("href")));
    return { pwned: window.__pwned ?? false, foreign: foreign.map((element) => element.outerHTML.slice(0, 200)), links: links.map((link) => link.outerHTML) };
  });
  assert.deepEqual(found, { pwned: false, foreign: [], links: [] });
});

test("an answer of a megabyte without a line break, and others beyond all measure, leave the page usable", async (context) => {
  const server = await context.server();
  const texts = {
    "no line break": "word ".repeat(200_000),
    "one word": "x".repeat(1_000_000),
    "an open fence": "```js\n" + "let a = 1;\n".repeat(20_000),
    "quotes": ">".repeat(100_000),
    "lists": "- ".repeat(50_000),
    "nested lists": Array.from({ length: 200 }, (_, i) => `${" ".repeat(2 * i)}- ${i}`).join("\n"),
    "brackets": "[".repeat(100_000),
    "stars": "*a **b ".repeat(15_000),
    "emphasis in emphasis": "*".repeat(9_000) + "a" + "*".repeat(9_000),
    "a list of 20,000": "- item\n".repeat(20_000),
  };
  let text = "";
  const page = await context.open(server, "/#/chat", { prepare: (page) => answerAll(page, () => streamed(text.match(/[^]{1,20000}/g))) });
  for (const [name, each] of Object.entries(texts)) {
    text = each;
    const article = await said(page, name);
    const shown = async () => (await article.locator(".text").evaluate((element) => element.textContent.length)) > 0;
    await until(name, shown);
    await page.getByRole("button", { name: "New conversation" }).click();
    assert.equal(await page.locator(".turn").count(), 0);
  }
  // All of it is there.
  text = texts["no line break"];
  const article = await said(page, "again");
  await until("all of it", async () => (await article.locator(".text").evaluate((element) => element.textContent.length)) === text.length);
});

test("code has colours from a file of its own, and a button that copies it", async (context) => {
  const server = await context.server();
  const code = 'fn main() {\n    println!("<b>{}</b>", 1); // hello\n}';
  const answers = ["no code here", `\`\`\`rust\n${code}\n\`\`\`\n\n\`\`\`nosuchlanguage\nfn main() {}\n\`\`\`\n\n\`\`\`html\n<script>pwn()</script>\n\`\`\``];
  const asked = [];
  const page = await context.open(server, "/#/chat", {
    prepare: async (page) => {
      page.on("request", (request) => asked.push(new URL(request.url()).pathname));
      await answerAll(page, ({ messages }) => streamed([answers[messages.length > 1 ? 1 : 0]]));
    },
  });
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await said(page, "words");
  assert.ok(!asked.includes("/highlight.js"), "not before there is code");
  const article = await said(page, "code");
  const figures = article.locator("figure.code");
  await figures.nth(0).locator(".code-keyword").first().waitFor();
  assert.equal(await figures.nth(0).locator("code").textContent(), `${code}\n`);
  assert.equal(await figures.nth(0).locator(".code-string").first().textContent(), '"<b>{}</b>"');
  assert.equal(await figures.nth(1).locator("[class^=code-]").count(), 0);
  await figures.nth(2).locator(".code-tag").first().waitFor();
  assert.equal(asked.filter((path) => path === "/highlight.js").length, 1);
  await figures.nth(0).getByRole("button", { name: "Copy" }).click();
  await figures.nth(0).getByRole("button", { name: "Copied" }).waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), code);
});

test("Markdown has no violation of accessibility, wide and narrow, light and dark, and stays in its width", async (context) => {
  const server = await context.server();
  const text = `### Third\n\n${"wide ".repeat(5)}\n\n| ${"a long head | ".repeat(12)}\n|${"---|".repeat(12)}\n| ${"cell | ".repeat(12)}\n\n- [x] done\n- [ ] to do\n\n\`\`\`rust\n// ${"a comment ".repeat(30)}\nlet x: u32 = "a";\n\`\`\`\n\n\`\`\`\n\`\`\`\n\n> quote with \`code\` and [link](https://a.example/${"x".repeat(200)})\n\n${"x".repeat(300)}`;
  for (const [dark, width] of [[false, 1440], [true, 1440], [false, 390], [true, 390]]) {
    const page = await context.open(server, "/#/chat", { dark, width, height: 844, prepare: (page) => answerAll(page, () => streamed([text])) });
    await said(page, "all of it");
    await page.locator(".code-keyword").first().waitFor();
    assert.deepEqual(await violations(page), [], `${dark ? "dark" : "light"}, ${width} px`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${width} px: ${wide} px too wide`);
    await context.picture(page, `markdown ${dark ? "dark" : "light"} ${width}`);
    await page.close();
  }
});
