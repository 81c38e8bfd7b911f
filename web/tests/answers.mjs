// Answers that a test writes: a page asks, and what comes back is known to the letter.

const sse = (events) => events.map((data) => `data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`).join("");

export const TIMINGS = { queue_ms: 0, prefill_ms: 1, decode_ms: 1, ttft_ms: 1, total_ms: 2, prefill_tokens: 1, cached_tokens: 0, decode_tokens: 1, prefill_tokens_per_second: 1, decode_tokens_per_second: 1, preemptions: 0 };

/** A streamed chat answer of these pieces; `deltas`: events before them, as they are. */
export function streamed(pieces, { id = "chat-1", deltas = [], timings = TIMINGS, finish = "stop" } = {}) {
  const event = (delta) => ({ id, choices: [{ index: 0, delta }] });
  const events = [...deltas, ...pieces.map((content) => ({ content }))].map(event);
  return sse([...events, { id, choices: [{ index: 0, delta: {}, finish_reason: finish }], timings }, "[DONE]"]);
}

/** Has a page's questions answered by `answer(body)`, which gives the body of the response. */
export async function answerAll(page, answer) {
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body: answer(route.request().postDataJSON()) }));
}

/** Asks, and waits until the answer is complete: its article. */
export async function said(page, text) {
  const answers = page.locator(".turn.assistant");
  const before = await answers.count();
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.getByRole("button", { name: "Send" }).click();
  await answers.nth(before).locator(".actions").waitFor();
  return answers.nth(before);
}

/** Has a page's questions answered piece by piece: `pieces` of the last question as said by `window.pieces(question)`, one in each frame. */
export async function answerInFrames(page, pieces) {
  await page.addInitScript(`window.pieces = ${pieces}`);
  await page.addInitScript((timings) => {
    const real = window.fetch;
    window.fetch = async (path, init) => {
      if (!String(path).endsWith("/v1/chat/completions")) return real(path, init);
      const question = JSON.parse(init.body).messages.at(-1).content;
      const stream = new ReadableStream({
        async start(controller) {
          const send = (event) => controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify({ id: "chat-1", ...event })}\n\n`));
          init.signal?.addEventListener("abort", () => controller.error(init.signal.reason));
          for (const content of window.pieces(question)) {
            send({ choices: [{ index: 0, delta: { content } }] });
            await new Promise(requestAnimationFrame);
          }
          send({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }], timings });
          controller.close();
        },
      });
      return new Response(stream, { headers: { "content-type": "text/event-stream" } });
    };
  }, TIMINGS);
}
