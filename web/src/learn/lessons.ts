// The tour: what each of its seven pages says, what it lets one try, and what it asks.

import type { App } from "../app";
import { batching, chunks, drafts, kvWall, prefixCache, ttftAndTpot, twoPhases } from "./experiments";

/** An answer to choose, and what is to be said about it, right or wrong. */
export interface Choice {
  text: string;
  isRight: boolean;
  explanation: string;
}

export interface Lesson {
  title: string;
  /** Paragraphs; of the server's own numbers where it has them. */
  text: (app: App) => string[];
  /** What there is to try: fills `root` with its controls and results. `signal` ends it. */
  experiment: (root: HTMLElement, app: App, signal: AbortSignal) => void;
  question: string;
  choices: Choice[];
}

const right = (text: string, explanation: string): Choice => ({ text, isRight: true, explanation });
const wrong = (text: string, explanation: string): Choice => ({ text, isRight: false, explanation });

export const LESSONS: Lesson[] = [
  {
    title: "Why two phases",
    text: () => [
      "Every answer is two workloads that share nothing but the weights of the model.",
      "Prefill reads the prompt. All its tokens are known, so they go through the model together: a weight that was fetched from memory is used for hundreds of them. Prefill is compute-bound. Prefill leaves the keys and values of each token in the KV cache and yields the first token of the answer.",
      "Decode writes the rest, one token in a pass, because each token has to be known before the next can be computed. Every pass fetches all the weights again and uses them for that one token. Decode is bound by memory bandwidth.",
    ],
    experiment: twoPhases,
    question: "Why does a token of the prompt take less time than a token of the answer?",
    choices: [
      wrong("Prefill leaves out some layers of the model.", "Both phases run every layer. A token costs the same arithmetic in either; what differs is how many tokens share one reading of the weights."),
      right("The prompt is known, so one pass reads the weights once for many of its tokens.", "A pass over hundreds of rows keeps the arithmetic units busy. A pass over one row mostly waits for memory."),
      wrong("The words of a prompt are shorter.", "A token is a token. Send any text as a prompt: what counts is how many tokens go through the model in one pass."),
    ],
  },
  {
    title: "TTFT against TPOT",
    text: () => [
      "Two numbers say how an answer feels. The time to first token (TTFT) is the wait in the queue and then prefill; it grows with the prompt. The time per output token (TPOT) is the pace from there on; it grows with what a decode pass has to read, slowly with the context and with the other streams in the batch.",
      "The two add up: total = TTFT + (tokens - 1) × TPOT. The first token comes out of prefill, each further one out of a decode pass of its own.",
      "Make the prompt long and the answer short, then the other way round, and see which part of the bar grows.",
    ],
    experiment: ttftAndTpot,
    question: "An answer is slow to start but then streams fast. Which phase is it?",
    choices: [
      right("Prefill, or the queue before it.", "The start is the queue and prefill; the pace afterwards is decode. A shorter prompt, a cached prefix or less waiting helps; faster memory would not."),
      wrong("Decode.", "Decode is the pace between tokens, and that was fine. Trouble there looks the other way round: the answer starts at once, then crawls."),
      wrong("The network.", "Distance adds the same small delay to everything. The timings under an answer are the server's own, without the network: look there before blaming it."),
    ],
  },
  {
    title: "Batching",
    text: (app) => [
      "A decode pass reads all weights to make one token. If eight streams are in the batch, the same reading makes eight tokens. So the tokens per second of the whole server grow with the number of streams, almost for free, up to a point: each row adds some arithmetic, and each stream has a KV cache of its own to be read.",
      `Prefill has no such gift: one long prompt keeps the arithmetic busy on its own, and a second one beside it takes as long again. This server puts up to ${app.info.max_num_seqs.toLocaleString("en")} requests into a batch.`,
    ],
    experiment: batching,
    question: "One stream runs. Seven more join it. What happens to the pace of the first?",
    choices: [
      wrong("It becomes eight times slower, for eight share the machine.", "That would be so if each row had its own reading of the weights. They share one: look at the tokens per second of all streams together."),
      right("It becomes slower, but by far less than eight times.", "The reading of the weights is shared, the arithmetic of the rows and the reading of their caches are not. The server as a whole writes far more tokens per second."),
      wrong("Nothing at all: batching is free.", "Almost free is not free. Each further row brings its arithmetic and the reading of its own KV cache. With short contexts, as here, that is little; with long ones it is most of the time."),
    ],
  },
  {
    title: "Chunked prefill",
    text: (app) => [
      "Streams and prompts share the passes of the engine. If a long prompt went through in one pass, every stream would stand still until it is over. So the engine cuts it into chunks, and each chunk shares a step with the decode of the streams: Sarathi-Serve calls it stall-free batching.",
      app.info.targets.tpot_ms === null
        ? `Here a pass has up to ${app.info.max_num_batched_tokens.toLocaleString("en")} tokens, which bounds the chunk.`
        : `How large a chunk may be follows from the target for the time per output token, here ${app.info.targets.tpot_ms} ms: the engine predicts what a step will take, and gives the prompt as many tokens of it as fit, at most the ${app.info.max_num_batched_tokens.toLocaleString("en")} of a pass (of a model as small as this one that many may always fit).`,
      "The streams pay with somewhat longer gaps, the newcomer with a somewhat later first token, because its prompt takes more passes. Without streams a chunk may be as large as a pass allows.",
    ],
    experiment: chunks,
    question: "What would change if the whole prompt went through in a single pass?",
    choices: [
      wrong("Nothing: it is the same arithmetic.", "The sum is about the same, the order is not. All of it would stand between two tokens of every stream."),
      right("Each stream would pause for the whole prompt once, and the newcomer's first token would come somewhat sooner.", "A trade between two people. Chunks give the streams small pauses instead of one long one. The Step page replays the last minutes with both."),
      wrong("The answers would have other words.", "Not here. A row's result depends on the weights and on the tokens before it, never on how the passes were cut: the same request gives the same bits with any chunks."),
    ],
  },
  {
    title: "Prefix cache",
    text: (app) => [
      `The keys and values of a token depend on the tokens up to it and on nothing else. A prompt that begins like an earlier one need not be computed again from its start: full blocks of ${app.info.block_size} tokens are found by the hash of what is in them and before them, and prefill begins behind them.`,
      "That is why the second question of a chat starts sooner than the first: the conversation so far is sent again, and most of it is there already. The block that holds the first difference, and all behind it, is computed.",
    ],
    experiment: prefixCache,
    question: "A prompt was found in the cache almost as a whole. What became faster?",
    choices: [
      right("Only the start: prefill had less to compute.", "The time to first token fell. Decode still reads all weights, and the same keys and values, for every token."),
      wrong("Start and pace: there is less to compute everywhere.", "Decode never computed the prompt; it reads the prompt's keys and values, cached or fresh. Its pace is the same: compare the last column."),
      wrong("Nothing: the answer has to be computed anyway.", "The answer has, the prompt has not. Compare the two times to first token."),
    ],
  },
  {
    title: "The KV wall",
    text: (app) => {
      const { blocks, block_size, kv_bytes_per_token } = app.info;
      const tokens = blocks * block_size;
      return [
        `Each token of each open request keeps its keys and values until the request has ended: here ${kv_bytes_per_token.toLocaleString("en")} bytes a token. The pool of this server has ${blocks.toLocaleString("en")} blocks of ${block_size} tokens, which is ${tokens.toLocaleString("en")} tokens for all requests together. Often this, and not arithmetic, decides how many can be served at once.`,
        "Prefill takes blocks by the hundred, decode one now and then. When none is free, newcomers wait. When running requests cannot grow either, one of them is preempted: it gives its blocks back, waits, and goes on later from what the cache still has.",
        "A block whose request has ended is not wiped. It stays as a cached prefix until its room is needed.",
      ];
    },
    experiment: kvWall,
    question: "The pool is full, and every stream needs another block. What does the engine do?",
    choices: [
      wrong("It fails a request with an error.", "Running out of blocks is an everyday state, not an error. No request fails for it."),
      wrong("It forgets the oldest tokens of each request.", "Then answers would depend on how busy the server is. Here the same request gives the same answer, alone or in a crowd."),
      right("It preempts one of the lowest class that loses least, which goes on later with the same answer.", "Its blocks go to the others; later its tokens are found in the cache or computed again. That costs it time, not words."),
    ],
  },
  {
    title: "Why a draft is cheap",
    text: () => [
      "A decode pass reads every weight for one row of a stream, and arithmetic idles meanwhile. A second row for the same stream would cost next to nothing, if one knew what to put into it: the token after the next one is not known yet.",
      "So it is drafted. Where the last words stood before, in the prompt or in the answer, what followed there is a fair draft. The pass computes the known token and the draft tokens behind it, each in a row of its own. From each row a token is sampled as if the row were alone. As long as a draft token equals the token sampled before it, it is accepted, and the tokens come together; from the first rejected one on the rows are thrown away.",
      "A rejected draft costs its row and nothing else: no answer changes by a bit. In a batch that is large already, rows cost time, and the engine stops drafting by itself.",
    ],
    experiment: drafts,
    question: "A draft was rejected. What happens to the answer?",
    choices: [
      wrong("It has a wrong word in it.", "A draft is never shown. What is shown was sampled from the model's own row, and a row behind a rejected draft is not looked at."),
      wrong("Its pass has to be computed again.", "The row before the rejected draft is right, and a token came of it, as in any pass. Only the rows behind it were for nothing."),
      right("Nothing: the pass brought a token, as it would have without drafts.", "It took a little longer for the rows that were thrown away. That is all, and the live page shows them hollow."),
    ],
  },
];
