// Part one: two phases. Each lesson asks about the figure that its trial has just made.

import { twoClocks, theLimit, pauseThenStream, whyCache, oneTruck } from "./scenes1";
import { fourWords, fortyAnswers, intensities, lengths } from "./counts1";
import { streamsAtOnce } from "./times";
import { of } from "./figures";
import { isFalse, isTrue, type Lesson, right, wrong } from "./types";

export const PART_ONE: Lesson[] = [
  {
    title: "Pause, then stream",
    asks: "Why does a chatbot pause, and then write word after word?",
    why: "An answer is two jobs on the same weights. Prefill reads the prompt: all its tokens are known, so one pass computes them together and yields the first token. Decode writes the rest: token n + 1 needs token n, so each takes a pass of its own.",
    scene: pauseThenStream,
    experiment: fourWords,
    questions: [
      {
        id: "Q1",
        asks: "Why can all tokens of a prompt be computed at once, and those of an answer not?",
        choices: [
          wrong("A prompt's words are simpler.", "A token is a token: each passes the same layers and costs the same arithmetic, whatever it says."),
          right("The inputs are all known; token n + 1 needs token n.", "A pass takes as many known tokens as there are. An answer's next input is the pass's own output, so there is one at a time."),
          wrong("Decode runs on fewer cores.", "Both phases have the whole machine. In decode most of it waits, because there is one row to work on."),
        ],
      },
    ],
    analogy: "A lawyer takes in the whole case file at once, then dictates the letter word by word. Ten students read ten pages together; they cannot write one sentence together.",
    papers: ["attention", "splitwise"],
    links: [["#/step", "Hold the engine and watch these passes one at a time"]],
  },
  {
    title: "Two clocks",
    asks: "Slow to start or slow to write: which do you mind?",
    why: `Time to first token (TTFT) is the queue, then prefill. Time per output token (TPOT) is the pace of decode. Total = TTFT + (n − 1) × TPOT. At 25 ms a token come ${of("pace")} a second, faster than anyone reads.`,
    scene: twoClocks,
    experiment: lengths,
    questions: [
      {
        id: "Q2",
        asks: "An answer is slow to start but then streams fast. What is it?",
        choices: [
          right("TTFT: prefill, or the queue before it.", "The start is the queue and prefill. A shorter prompt, a cached one or less waiting helps; faster memory would not."),
          wrong("TPOT: decode.", "The pace was fine. Trouble there looks the other way round: it starts at once, then crawls."),
          wrong("The answer is too long.", "A longer answer takes longer to its end. It does not begin later."),
        ],
      },
    ],
    analogy: "A kitchen: preparing takes until the first plate, then plates leave one by one. A play in two acts, and the audience times each.",
    papers: ["distserve", "flash"],
    note: {
      about: "is prefill linear in the prompt?",
      one: "its time grows with the number of tokens.",
      other: "it grows with the square, for each token attends to all before it.",
      regimes: "Both hold: the weights' part is linear, attention's part is quadratic and overtakes it late. Rules of thumb such as 10 / 90 and 80 / 20 take one regime for all.",
      ours: `a 7B model at peak on 100,000 + 200 tokens: ${of("share100k")} prefill by the weights alone, ${of("shareAttention")} with attention.`,
    },
    cards: [
      isFalse("TTFT is the time of prefill.", "before it comes the queue, and prompts of others. timings.queue_ms says how much."),
      isFalse("A benchmark of 10-token answers shows how fast a model writes.", "with 10 tokens most of the time is prefill and set-up. Decode shows itself over hundreds."),
      isTrue("Two servers with the same tokens per second may feel different.", "one number mixes both phases. Ask for TTFT and TPOT, and their 99th percentiles."),
    ],
    links: [["#/calculator?model=7b&machine=a100&prompt=2000&response=200&batch=1", "The cost profile of 2,000 + 200 in the calculator: 1 pass, then 199"]],
  },
  {
    title: "Why a KV cache",
    asks: "Does the model read everything again for each new word?",
    why: `Attention compares each token with all before it, through their keys and values. Without a cache, 500 tokens take 1 + 2 + … + 500 = ${of("rows500")} rows; with their keys and values kept, 500. It is memory, spent to save arithmetic.`,
    scene: whyCache,
    experiment: fortyAnswers,
    questions: [
      {
        id: "why-cache",
        asks: "Why not compute the earlier tokens again for each new one?",
        choices: [
          right("Because n tokens would take 1 + 2 + … + n rows, about n² / 2.", "The trial counts it: the same words, far more rows. Memory is spent to save that arithmetic."),
          wrong("Because the result would be another one.", "It would be the same to the bit. Only the work differs."),
          wrong("Because the prompt has been deleted by then.", "The tokens are still there; what is kept are their keys and values in each layer."),
        ],
      },
    ],
    analogy: "An exam with your book: you can read it from page one for each question, or take notes once. The notes are the model's short-term memory.",
    papers: ["attention", "paged"],
  },
  {
    title: "Where the limit is",
    asks: "Why can a fast chip write slowly?",
    why: `Each pass reads all weights. One row, the work of one token, has two operations for each number that is read, so reading is the limit: 14 GB / 2 TB/s = ${of("token")}. For hundreds of rows the same reading feeds hundreds of times the arithmetic: 1,024 × 14 GFLOP / 312 TFLOP/s = ${of("prefill1024")}.`,
    scene: theLimit,
    experiment: intensities,
    questions: [
      {
        id: "limit",
        asks: "Twice the FLOP/s, or twice the bandwidth: who gains?",
        choices: [
          wrong("Both phases, from either.", "A phase gains from what it waits for. The other resource idles already."),
          right("Prefill from FLOP/s, decode from bandwidth.", "Prefill has hundreds of operations for each byte, decode one or two: the trial counted both."),
          wrong("Decode from FLOP/s, prefill from bandwidth.", "The other way round: one row leaves arithmetic idle, hundreds of rows leave memory idle."),
        ],
      },
    ],
    analogy: "A factory works on what it has; a paint shop may wait for the pipe. Decode wants wide pipes, prefill many workers.",
    papers: ["roofline", "flash", "flashDecoding"],
    note: {
      about: "a token of a 7B model: 7 ms, or 20 to 50?",
      one: "7 ms: 14 GB over 2 TB/s.",
      other: "20 to 50 ms are what services show.",
      regimes: "7 ms is the floor at peak for one stream. Services reach part of the peak, batch many streams, and lose time between passes.",
      ours: `${of("token")} at peak; ${of("planOne")} at the 62 % that engines reach, with the time between passes; ${of("planMany")} with 64 streams.`,
    },
    cards: [
      isFalse("Twice the FLOP/s makes answers stream twice as fast.", "decode waits for memory; only prefill gains."),
      isTrue("A token of the prompt costs the same arithmetic as one of the answer.", "two operations for each weight, in either phase. Sharing the reading makes the difference."),
      isFalse("Tokens per second is the one metric of a server.", "it hides who waits: prefill and decode need a figure each."),
    ],
  },
  {
    title: "Batching and its knee",
    asks: "Why does the hundredth user cost almost nothing, and the thousandth a lot?",
    why: "Streams in one batch share each reading of the weights, so tokens per second grow with streams. Each row adds arithmetic, each stream its own KV cache to read. Where multiplying takes longer than reading, the gift ends.",
    scene: oneTruck,
    experiment: streamsAtOnce,
    questions: [
      {
        id: "join",
        asks: "One stream runs; seven join. What happens?",
        choices: [
          wrong("The first becomes eight times slower.", "So it would with a reading each. They share one."),
          right("It becomes a little slower, and far more comes out in all.", "The weights are read once for all eight; rows and caches are each stream's own."),
          wrong("Nothing: batching is free.", "Almost free, up to the knee. Each row has its arithmetic and its own keys and values."),
        ],
      },
      {
        id: "busy",
        asks: "A server is 90 % busy and each user gets two words a second. What now?",
        choices: [
          wrong("All is well: the machine is used.", "Used is not useful: beyond the knee streams only wait for each other."),
          right("It is past the knee: cap the batch by a target for TPOT.", "Throughput is flat there, so a smaller batch costs nothing and each stream is faster."),
          wrong("Raise the batch, there is 10 % left.", "More rows, same arithmetic per second: everyone becomes slower."),
        ],
      },
    ],
    analogy: "One truck drives for one parcel or sixty-four, until loading takes longer than driving.",
    papers: ["orca", "roofline"],
    note: {
      about: "is decode bound by memory at any batch?",
      one: "decode is bound by memory, always.",
      other: "a large batch makes it compute-bound.",
      regimes: "Weights turn compute-bound at the knee. Keys and values are never shared, so with long contexts attention stays bound by memory at any batch.",
      ours: `a 7B model on an A100 has its knee at ${of("knee")} rows; with contexts of 1,280 tokens it is bound by memory at 256 all the same.`,
    },
    cards: [
      isFalse("A batch makes every stream faster.", "it makes all of them together faster, each a little slower."),
      isTrue("Prefill gains little from a batch.", "one long prompt fills the arithmetic by itself."),
    ],
  },
];
