// A server whose feed is played from a script, so that every figure on the Live page is known.

import { until } from "./lib.mjs";

const sse = (events) => events.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join("");

/** One step of the model. */
export const step = (id, at, took, { decode = [], prefill = [], ...more }) => [
  "step",
  {
    id, at, took, predicted: took, decode, prefill, preempted: [], waiting: 0, waiting_tokens: 0, blocked: null,
    blocks: { used: 1, taken: 0, evicted: 0, copied: 0 }, recomputed: 0, flops: 1e6, bytes: 1e6, ...more,
  },
];

/** The figures of the moment. */
export const stats = (at, more = {}) => [
  "stats",
  {
    at, running: 1, waiting: 0, used_blocks: 10, cached_blocks: 5, total_blocks: 100, kv_seconds_to_full: null, prefill_backlog_ms: 0, steps: 1,
    prefill_tokens: at, decode_tokens: at, prefix_queries: at, prefix_hits: at / 2, preemptions: 0, paused: false,
    ttft_p50_ms: 5, ttft_p99_ms: 9, itl_p50_ms: 5, itl_p99_ms: 9, ...more,
  },
];

/** The Live page on a feed that says `events` and ends. */
export async function scripted(context, events, { limits, ...options } = {}) {
  const server = await context.server();
  const prepare = async (page) => {
    await page.route("**/live/info", async (route) => {
      // A page that is closed meanwhile takes its answers with it.
      const info = await route.fetch().then((response) => response.json()).catch(() => null);
      if (info) await route.fulfill({ json: { ...info, now_ms: 400, targets: { ttft_ms: null, tpot_ms: 25 }, limits: limits ?? info.limits } }).catch(() => {});
    });
    await page.route("**/live/feed*", (route) => route.fulfill({ contentType: "text/event-stream", body: sse(events) }));
    await page.route("**/v1/requests/**", (route) => route.fulfill({ status: 404, json: {} }));
  };
  const page = await context.open(server, "/#/live", { prepare, expected: /status of 404|willReadFrequently/, ...options });
  // A feed that ended is asked for again and again: what the page says about that would move the lanes under the pointer.
  await page.evaluate(() => (document.querySelector(".notice").style.display = "none"));
  await page.locator("canvas.timeline").focus();
  await until("the script", async () => {
    await page.keyboard.press("End");
    return page.locator(".timeline-box .tip").isVisible();
  });
  await page.keyboard.press("Escape");
  // All of it, to the pixel: 310 ms and 8 % of room.
  await page.keyboard.press("0");
  await page.waitForTimeout(300);
  // And no longer after the present, which moves when the feed is asked for again.
  await page.keyboard.press("f");
  return page;
}
