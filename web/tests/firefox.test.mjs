// The pages in Firefox, which speaks WebDriver BiDi: each is opened in two widths and two themes, and used.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import puppeteer from "puppeteer-core";
import { violations } from "./axe.mjs";
import { PATIENCE_MS, streams, test, until } from "./lib.mjs";

/** What is done with each page, and how it is known to have worked. */
const PAGES = {
  live: async (page) => {
    await page.locator("::-p-xpath(//summary[contains(., 'table')])").click();
    await page.waitForSelector("[aria-label=Requests] tbody tr");
  },
  step: async (page) => {
    await page.locator("::-p-xpath(//button[.='Send this prompt'])").click();
    await until("steps", async () => / of /.test(await page.$eval(".scrub output", (output) => output.textContent)));
  },
  chat: async (page) => {
    await page.locator("textarea[placeholder='Ask something']").fill("What is 7 + 5?");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".turn.assistant .phase-line");
  },
  calculator: async (page) => void (await page.waitForSelector("::-p-text(The same on the command line)")),
  learn: async (page) => {
    await page.waitForSelector(".lesson h2");
    const before = await page.$eval(".scene", (scene) => scene.textContent);
    await page.locator("::-p-text(Next)").click();
    await until("the next step of the scene", async () => (await page.$eval(".scene", (scene) => scene.textContent)) !== before);
  },
};

function firefox() {
  for (const name of ["firefox-esr", "firefox"]) {
    try {
      return execFileSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).trim();
    } catch {
      // not this one
    }
  }
  throw new Error("no Firefox is on the search path: apt-get install firefox-esr");
}

test("each page in Firefox, wide and narrow, light and dark", async (context) => {
  const server = await context.server();
  const stop = await streams(server, 4);
  const browser = await puppeteer.launch({ browser: "firefox", executablePath: firefox(), headless: true });
  const found = [];
  try {
    for (const [name, use] of Object.entries(PAGES)) {
      for (const [theme, width] of [["light", 1440], ["dark", 1440], ["light", 390], ["dark", 390]]) {
        const page = await browser.newPage();
        page.setDefaultTimeout(PATIENCE_MS);
        const where = `${name}, ${theme}, ${width} px`;
        page.on("console", (message) => ["error", "warn"].includes(message.type()) && found.push(`${where}: console: ${message.text()}`));
        page.on("pageerror", (error) => found.push(`${where}: exception: ${error.message}`));
        await page.setViewport({ width, height: 900 });
        await page.goto(`${server.origin}/#/${name}`);
        await page.evaluate((theme) => localStorage.setItem("twostroke-theme", theme), theme);
        await page.reload();
        await page.waitForSelector(".connection[data-state=open]");
        await use(page).catch((error) => found.push(`${where}: ${error.message}`));
        for (const violation of await violations(page)) found.push(`${where}: ${violation}`);
        const [inside, whole] = await page.evaluate(() => [document.documentElement.clientWidth, document.documentElement.scrollWidth]);
        if (whole > inside) found.push(`${where}: ${whole} px wide`);
        await page.close();
      }
    }
  } finally {
    stop();
    await browser.close();
  }
  assert.deepEqual(found, []);
});
