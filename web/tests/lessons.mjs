// What the tour has to have: its lessons, the questions of the exam, the places of what it grew from, and its figures worked out again.

export const TITLES = [
  "Pause, then stream", "Two clocks", "Why a KV cache", "Where the limit is", "Batching and its knee",
  "Fewer bytes", "Chats that slow", "The noisy neighbour", "Prompt caching", "Pages", "The wall",
  "Latency or throughput", "A draft is cheap", "Thinking", "Apart", "Money",
  "Who helps whom", "Diagnose",
];

export const PARTS = { "Two phases": [1, 5], Memory: [6, 11], "Serving many": [12, 16], "All together": [17, 18] };

/** The lesson of each question of the exam, and what its right answer says. */
export const EXAM = {
  Q1: [1, /inputs are all known; token n \+ 1 needs token n/],
  Q2: [2, /TTFT: prefill, or the queue/],
  Q3: [8, /token between chunks; the newcomer pays a little/],
  Q4: [9, /long contexts.*\(more than\) linearly/],
  Q5: [11, /wait.*preempted.*same answer.*KV occupancy and backlog/],
  Q6: [13, /Decode: one reading checks several rows; same text; it loses in large batches/],
  Q7: [16, /prompt token shares one reading with its prompt, an output token only with the batch/],
  Q8: [7, /reads all keys.*not cached is also read again/],
  Q9: [12, /Usually decode; long prompts with short answers flip it/],
  Q10: [6, /Quantized weights or KV cache \(or faster memory\)/],
  Q11: [17, /Quantized weights, quantized KV, shared heads, batches, speculation/],
  Q12: [15, /FLOP\/s for one, bandwidth for the other, each scaled alone.*interference costs more than the transfer/],
  Q13: [10, /holes.*less than a block each/],
  Q14: [14, /Mostly decode: unseen tokens cost time and money/],
};

/** Images, tasks and numbers that must not get lost, and where each is. */
export const SEEDS = [
  ["the lawyer and the case file", 1, /lawyer takes in the whole case file/],
  ["flagged clauses", 9, /flagged the clauses/],
  ["ten students", 1, /Ten students/],
  ["exam, book and notes", 3, /exam with your book.*notes/],
  ["short-term memory", 3, /short-term memory/],
  ["factory and paint shop", 4, /factory.*paint shop/],
  ["wide pipes", 4, /wide pipes/],
  ["kitchen", 2, /kitchen/],
  ["two acts", 2, /two acts/],
  ["compiler", 17, /compiler/],
  ["three prompts in order, part 1", 2, /10 \+ 200.*1,000 \+ 200.*10,000 \+ 200/],
  ["three prompts in order, part 2", 9, /Send all three/],
  ["three prompts in order, part 4", 18, /Make the four complaints/],
  ["50-page PDF, 20 documents", 18, /PDF of 50 pages and 20 documents/],
  ["sliders", 2, /Tokens of the prompt.*Tokens of the answer/],
  ["cost profile of 2,000 + 200", 2, /cost profile of 2,000 \+ 200.*1 pass, then 199/],
  ["step by step, from 1", 1, /one at a time/],
  ["step by step, from 8", 8, /one step at a time/],
  ["25 ms, 40 tokens a second", 2, /25 ms a token come 40 a second/],
  ["125,250 against 500", 3, /125,250 rows.* 500/],
  ["46 ms", 4, /1,024 × 14 GFLOP \/ 312 TFLOP\/s = 46 ms/],
  ["7 ms", 4, /14 GB \/ 2 TB\/s = 7 ms/],
  ["knee 154", 5, /154/],
  ["7 join", 5, /seven join/],
  ["90 % busy, 2 words a second", 5, /90 % busy.*two words a second/],
  ["cores 18 %, memory 95 %", 6, /18 %.*95 %/],
  ["hole of 800 ms, 8 of 100", 8, /800 ms.*8 chunks of 512.*100 ms/],
  ["prefill starvation", 8, /prefill starvation/],
  ["20k x 100", 9, /20,000 tokens, asked 100 questions: 2,000,000/],
  ["2 users, 9 users", 10, /holds 2 users where 9 would fit/],
  ["1,000 chat users", 12, /1,000 users chat/],
  ["prices", 16, /0\.04.*6\.77.*0\.17/],
  ["10-token benchmarks", 2, /benchmark of 10-token answers/],
  ["one metric", 4, /one metric/],
  ["TTFT is prefill alone", 2, /TTFT is the time of prefill/],
  ["load for scaling", 11, /load tells when to scale/],
  ["hidden thinking", 14, /Hidden thinking costs nothing/],
  ["decode and batch size", 5, /Sources disagree: is decode bound by memory at any batch/],
  ["prefill linear or quadratic", 2, /Sources disagree: is prefill linear/],
  ["tensor parallelism", 17, /Sources disagree: which phase does tensor parallelism help/],
  ["7 or 20 to 50 ms", 4, /Sources disagree: a token of a 7B model: 7 ms, or 20 to 50/],
];

/** True/false cards follow these lessons. */
export const WITH_CARDS = [2, 4, 5, 11, 14, 18];
export const WITH_NOTES = [2, 4, 5, 17];

/** The board's cards, by box. */
export const BOARD = {
  "helps prefill": ["Prompt caching", "Tiled attention", "W8A8 and FP8 products", "Tensor parallelism"],
  "helps decode": ["Quantized weights", "Continuous batching", "Speculation", "Quantized KV cache", "Shared heads (GQA, MQA)"],
  "keeps them apart": ["Chunked prefill", "Classes of requests", "Separate pools"],
  "makes room": ["Pages", "Preemption and swap"],
};

const sumTo = (n) => Array.from({ length: n }, (_, i) => i + 1).reduce((sum, i) => sum + i, 0);
const kv = (heads) => 2 * 32 * heads * 128 * 2;
const prefill = (tokens) => (tokens * 14e9) / 312e12;
const attention = (tokens) => (4 * 32 * 4096 * tokens * tokens) / 2 / 312e12;
const decode = (tokens, context) => (tokens * (14e9 + kv(8) * context)) / 2e12;
const share = (tokens, context = 0, extra = 0) => (100 * (prefill(tokens) + extra)) / (prefill(tokens) + extra + decode(199, context));

/** Each figure of the tour, worked out again; `plans`: what the server plans at batch 1, 8 and 64 for 1,024 + 256 tokens. */
export function figures(plans) {
  const price = (seconds, tokens) => (2 / 3600) * (seconds / tokens) * 1e6;
  return {
    prefill1024: 1000 * prefill(1024), token: 1000 * decode(1, 0), pace: 40,
    share1k: share(1000), share10k: share(10_000), share100k: share(100_000), shareAttention: share(100_000, 100_100, attention(100_000)),
    rows40: sumTo(40), rows500: sumTo(500), knee: Math.ceil(312 / 2.039), rowsAt500: 1000 * prefill(500),
    int8: 7, int4: 3.5, mha: kv(32) / 1000, gqa: kv(8) / 1000, mqa: kv(1) / 1000, kv10k: (kv(8) * 1e4) / 1e9, kvAsWeights: 14e9 / kv(8),
    chunks: Math.ceil(4000 / 512), hole: 800, piece: 102.4, again: 2e6, reserved: 2, paged: Math.floor(16384 / (16 * Math.ceil(1800 / 16))),
    drafts: 2.952, thought: 2.8, shipped: (kv(8) * 4000) / 1e6, link: (1000 * kv(8) * 4000) / 12.5e9, prefill4000: 1000 * prefill(4000),
    tensor: 3.5, tensorLink: 0.64,
    planOne: plans[1].tpot_ms, planEight: plans[8].tpot_ms, planMany: plans[64].tpot_ms,
    rateOne: plans[1].tokens_per_second, rateEight: plans[8].tokens_per_second, rateMany: plans[64].tokens_per_second,
    priceIn: price(plans[1].ttft_ms / 1000, 1024), priceOut1: price(plans[1].tpot_ms / 1000, 1), priceOut8: price(plans[8].tpot_ms / 1000, 8), priceOut64: price(plans[64].tpot_ms / 1000, 64),
  };
}

/** Leads an open page to another place of the tour. */
export async function go(page, place) {
  await page.evaluate((place) => (location.hash = `#/learn/${place}`), String(place));
  const title = { exam: "Exam", end: "The end of the tour", figures: "The figures" }[place] ?? `${place}. ${TITLES[place - 1]}`;
  await page.getByRole("heading", { name: title, exact: true }).waitFor();
}

/** The right choice of each question of the tour, found by trying all of them in the lessons. */
export async function rightChoices(page) {
  const found = {};
  for (let lesson = 1; lesson <= TITLES.length; lesson += 1) {
    await go(page, lesson);
    for (const { id, choices } of await tryAll(page)) found[id] = choices.find(({ right }) => right === "true").text;
  }
  return found;
}

/** Chooses each choice of each question on the page, and says what came. */
export async function tryAll(page) {
  return page.evaluate(() =>
    [...document.querySelectorAll(".lesson > fieldset.question")].map((question) => ({
      id: question.dataset.question,
      choices: [...question.querySelectorAll("input")].map((input) => {
        input.click();
        const verdict = question.querySelector(".verdict");
        return { text: input.nextSibling.textContent, right: verdict.dataset.right, explanation: verdict.textContent };
      }),
    })),
  );
}
