// Part four: all of it together.

import { sortingBoard } from "./board";
import { fourComplaints } from "./diagnose";
import { of } from "./figures";
import { complaints, whoHelps } from "./scenes3";
import { isFalse, isTrue, type Lesson, right, wrong } from "./types";

export const PART_FOUR: Lesson[] = [
  {
    title: "Who helps whom",
    asks: "Is there one trick that makes everything faster?",
    why: "No: nearly every technique helps one phase, and many harm another or someone else. Ask of each: fewer operations, fewer bytes, more shared readings, less disturbance, or more room? And who pays?",
    scene: whoHelps,
    experiment: sortingBoard,
    questions: [
      {
        id: "Q11",
        asks: "Which of these lists holds only what mainly helps decode?",
        choices: [
          wrong("Prompt caching, tiled attention, FP8 products.", "All three help prefill: less to compute, or faster arithmetic."),
          right("Quantized weights, quantized KV, shared heads, batches, speculation.", "Fewer bytes for each token, or more tokens from each reading."),
          wrong("Chunks, separate pools, classes.", "They keep the phases from disturbing each other and make neither faster by itself."),
        ],
      },
    ],
    analogy: "A compiler reads the whole source and then writes out code: what speeds the reader need not speed the writer.",
    papers: ["flash", "smoothquant", "sarathi"],
    note: {
      about: "which phase does tensor parallelism help?",
      one: "prefill: its large products divide well.",
      other: "decode: each machine reads a part of the weights.",
      regimes: "Both divide. Decode then talks over the link for every token, with tiny messages, so it keeps less of its gain; prefill's messages are large and their time hides behind arithmetic on a fast link.",
      ours: `a 7B model on two machines: a token in ${of("tensor")} in place of 7, and ${of("tensorLink")} on the link; a prompt of 4,000 tokens, ${of("prefill4000")}, in half.`,
    },
  },
  {
    title: "Diagnose",
    asks: "Four people complain. What do you look at first?",
    why: "A complaint names a feeling; evidence names a phase. Slow start: queue and prefill. Slowing chat: bytes a token. Stutter: others' prompts between tokens. Out of memory: blocks. Pick evidence first, then a cure for that phase.",
    scene: complaints,
    experiment: fourComplaints,
    questions: [
      {
        id: "diagnose",
        asks: "TTFT is fine, TPOT is fine, but now and then one gap is ten times the others. Where do you look?",
        choices: [
          wrong("At the weights' precision.", "That would move every gap, not one of them."),
          right("At what shared the pass: another request's prompt.", "The delay has an owner, and the request's timeline names it."),
          wrong("At the length of the answer.", "Longer answers have slowly growing gaps, without a hole."),
        ],
      },
    ],
    analogy: "A doctor takes the temperature before writing a prescription.",
    papers: ["roofline", "distserve"],
    cards: [
      isFalse("The mean time of all requests says how a server feels.", "people feel their own, and remember the slowest. Look at the 99th percentile, per phase."),
      isTrue("The two phases share the weights and little else.", "limits, figures and cures differ, so measure them apart."),
      isFalse("If the machine is at 100 %, buy another.", "look whether it is past the knee, out of blocks, or reading the same prompts again."),
    ],
  },
];
