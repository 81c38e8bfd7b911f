// Part two: memory decides how many, and how fast.

import { bytesByClass, bytesByPosition, chunksBothWays, packing, smallPool, threePrompts } from "./counts2";
import { of } from "./figures";
import { fewerBytes, noisyNeighbour, pages, promptCaching, slowingChat, theWall } from "./scenes2";
import { isFalse, isTrue, type Lesson, right, wrong } from "./types";

export const PART_TWO: Lesson[] = [
  {
    title: "Fewer bytes",
    asks: "Why does a smaller file make a faster writer?",
    why: `Decode's time is bytes over bandwidth, so fewer bytes are more speed. Weights in 8 bits take ${of("int8")} in place of 14, in 4 bits ${of("int4")}. Keys and values shrink too: by shared heads, by 8 bits. Where cores wait for memory, more cores wait too.`,
    scene: fewerBytes,
    experiment: bytesByClass,
    questions: [
      {
        id: "Q10",
        asks: "While answers stream, cores are at 18 % and memory bandwidth at 95 %. What helps?",
        choices: [
          wrong("More cores.", "They would wait as well: 82 % of what is there does so already."),
          right("Quantized weights or KV cache (or faster memory).", "Memory is the limit, so move fewer bytes for each token, or the same ones faster."),
          wrong("A better scheduler.", "It decides who waits for memory, not how long memory takes."),
        ],
      },
    ],
    analogy: "If the road is full, send lighter parcels; more drivers only queue.",
    papers: ["gqa", "gptq", "awq"],
  },
  {
    title: "Chats that slow",
    asks: "Why does a long chat write slower than a new one?",
    why: "Each token reads all weights and the keys and values of everything before it. The first part stays, the second grows with each turn. And where the history is no longer cached, the next question reads it all again first.",
    scene: slowingChat,
    experiment: bytesByPosition,
    questions: [
      {
        id: "Q8",
        asks: "A chat streams ever more slowly, turn by turn. Why?",
        choices: [
          wrong("The model is tired of the subject: later tokens run through more layers.", "Every token runs through the same layers. What grows is what attention reads."),
          right("Decode reads all keys and values so far; history that is not cached is also read again.", "Bytes a token grow with the position. The second part is prefill, and shows in TTFT."),
          wrong("The server gives old chats less.", "Not without being told. The trial shows the bytes of one request alone."),
        ],
      },
    ],
    analogy: "Each new sentence of the minutes is written after leafing through all the minutes so far.",
    papers: ["flashDecoding", "gqa"],
  },
  {
    title: "The noisy neighbour",
    asks: "Why does my answer freeze when someone else sends a document?",
    why: "Prompt and streams share passes. One pass over 4,000 tokens, 0.2 ms each on a slower machine than the A100 of other lessons, holds all streams. Chunked prefill cuts it: each pass carries every stream's next token and a piece of the prompt. The newcomer's own first token comes a little later. Streams first, without a share for prompts, is the opposite error: prefill starvation.",
    scene: noisyNeighbour,
    experiment: chunksBothWays,
    questions: [
      {
        id: "Q3",
        asks: "What does chunked prefill change, and who pays?",
        choices: [
          right("Streams get a token between chunks; the newcomer pays a little.", "Its prompt takes more passes, each shared. No stream waits longer than a chunk."),
          wrong("The prompt costs less arithmetic.", "The same rows, in more passes: if anything a little more."),
          wrong("Answers become less exact.", "The same bits come out however the passes are cut."),
        ],
      },
    ],
    analogy: "A shopper with a full trolley lets others with one item pass after every tenth of his.",
    papers: ["sarathi", "orca"],
    links: [["#/step", "The last minutes both ways, and one step at a time"]],
  },
  {
    title: "Prompt caching",
    asks: "Why is the second question about the same contract quick?",
    why: `A block's keys and values depend only on the tokens up to it. A prompt that begins as an earlier one finds its blocks and computes the rest. A contract of 20,000 tokens, asked 100 questions: ${of("again")} rows, or 20,000 and the questions. TTFT falls, TPOT stays. It saves most where long beginnings repeat: system prompts, agents, chats, one document. Keep what changes at the end.`,
    scene: promptCaching,
    experiment: threePrompts,
    questions: [
      {
        id: "Q4",
        asks: "Where does prompt caching save most?",
        choices: [
          wrong("In TPOT: cached tokens need no attention.", "Decode reads their keys and values all the same; its pace stays."),
          wrong("Equally everywhere, a fixed time each.", "What is saved is the prefill of what was found, which grows with its length."),
          right("In long contexts: it saves all that their prefill costs, which grows (more than) linearly.", "TTFT falls, TPOT stays. With 20,000 tokens it is most of the wait, with 20 nothing."),
        ],
      },
    ],
    analogy: "A lawyer who flagged the clauses yesterday answers today without reading the file.",
    papers: ["paged", "mooncake"],
  },
  {
    title: "Pages",
    asks: "Why does memory run out while half of it is empty?",
    why: `How long an answer becomes is not known before it ends. Reserving the longest holds ${of("reserved")} users where ${of("paged")} would fit. Pages of a few tokens, handed out as answers grow, waste less than one page each.`,
    scene: pages,
    experiment: packing,
    questions: [
      {
        id: "Q13",
        asks: "A server fails after the second user, with memory left. Why?",
        choices: [
          right("Each reserves the longest answer: holes. A page table wastes less than a block each.", "The memory was taken, not used. Pages give it out by need."),
          wrong("Two users need two copies of the weights.", "All share one copy; a user's own are keys and values."),
          wrong("The cores cannot do more than two.", "Then it would be slow. Failing with memory left is a matter of how memory is handed out."),
        ],
      },
    ],
    analogy: "A restaurant that keeps a table of eight for each guest is full with two.",
    papers: ["paged"],
  },
  {
    title: "The wall",
    asks: "What happens when every seat is taken?",
    why: "Running requests keep growing. When no block is free, newcomers wait; when a running one cannot grow, another is preempted: it gives its blocks back and returns later, with the same answer. So scale on KV occupancy and backlog. A machine's load in percent says nothing of that: cores that wait for memory count as busy, so one stream is enough.",
    scene: theWall,
    experiment: smallPool,
    questions: [
      {
        id: "Q5",
        asks: "The KV pool is full and all streams need another block. What happens, and what tells you to scale?",
        choices: [
          wrong("Requests fail; scale on errors.", "A full pool is an everyday state. No request fails for it."),
          wrong("The oldest tokens are forgotten; scale on CPU load.", "Answers would depend on how busy it is; and one stream keeps the machine busy."),
          right("Newcomers wait, one is preempted and gives the same answer later; scale on KV occupancy and backlog.", "It costs time, not words; these two figures rise before people wait."),
        ],
      },
    ],
    analogy: "A full café: newcomers queue, one guest lends his table and gets it back with his notes intact.",
    papers: ["paged", "fairness"],
    cards: [
      isFalse("CPU or GPU load tells when to scale.", "one stream keeps it busy already, if only with waiting. KV occupancy and backlog tell."),
      isFalse("A preempted request loses what it has said.", "its tokens are read again or brought back, and it goes on with the same text."),
      isTrue("A cached prompt does not make an answer stream faster.", "it shortens TTFT alone."),
    ],
  },
];
