// Part three: serving many.

import { ownPrice, shipping, thoughtBudget, tokensOfPass } from "./counts3";
import { of } from "./figures";
import { apart, drafts, goodput, money, thinking } from "./scenes3";
import { chatBesideFlex } from "./times";
import { isFalse, isTrue, type Lesson, right, wrong } from "./types";

export const PART_THREE: Lesson[] = [
  {
    title: "Latency or throughput",
    asks: "Can one machine answer a person at once and a thousand documents by morning?",
    why: "Both want the same passes. Large batches give throughput and cost each stream time. So work has classes: batch work fills what people leave, and goodput counts only answers within their targets. Which phase limits depends on the work, not on how many ask: a thousand chats are mostly decode, long documents with short answers mostly prefill.",
    scene: goodput,
    experiment: chatBesideFlex,
    questions: [
      {
        id: "Q9",
        asks: "1,000 users chat. Which phase limits the server?",
        choices: [
          right("Usually decode; long prompts with short answers flip it.", "An answer is hundreds of passes, a prompt one or a few. Summaries of documents are mostly prefill."),
          wrong("Always prefill, for it needs more arithmetic.", "It needs more at once, and only once. Decode goes on for hundreds of passes."),
          wrong("Neither: the network.", "A token is a few bytes. The machine works milliseconds for it."),
        ],
      },
    ],
    analogy: "A bus that waits until it is full is cheap; those who wait pay with time.",
    papers: ["distserve", "fairness", "orca"],
  },
  {
    title: "A draft is cheap",
    asks: "Can a model write three words in the time of one?",
    why: `Decode reads all weights for one row, and arithmetic idles. So cheap drafts of the next tokens ride along (speculative decoding), and one pass checks them: what the model would have said itself stays. Three drafts, each right 8 times of 10: ${of("drafts")} tokens a pass.`,
    scene: drafts,
    experiment: tokensOfPass,
    questions: [
      {
        id: "Q6",
        asks: "Which phase does speculative decoding help, and does the text change?",
        choices: [
          wrong("Prefill: several tokens at once.", "Prefill has all its tokens at once already, and its arithmetic is busy."),
          wrong("Decode, with slightly other words.", "A draft that differs from the model's own choice is thrown away. The text is the same."),
          right("Decode: one reading checks several rows; same text; it loses in large batches.", "Rows are nearly free while memory is the limit. With many streams they are not."),
        ],
      },
    ],
    analogy: "A secretary finishes your sentences; you nod or correct.",
    papers: ["speculative", "lookup", "goodput"],
  },
  {
    title: "Thinking",
    asks: "Why does a thinking model take so long to say twelve?",
    why: "A thought is decode that is not shown: each of its tokens costs a pass, a place in the KV cache, and money. TTFT may look good while the first visible word is seconds away. A budget limits it.",
    scene: thinking,
    experiment: thoughtBudget,
    questions: [
      {
        id: "Q14",
        asks: "A model thinks 2,000 tokens before a short answer. Which phase is that?",
        choices: [
          wrong("Prefill: it happens before the answer.", "It is written token by token, as an answer is. Only the prompt is prefill."),
          right("Mostly decode: unseen tokens cost time and money.", "2,000 passes before the first visible word, and each is paid for."),
          wrong("Neither: thoughts are free.", "They are computed, cached and billed as other tokens are."),
        ],
      },
    ],
    analogy: "A guide who first tells himself the whole tour under his breath, at the usual fee.",
    papers: ["qwen3"],
    cards: [
      isFalse("Hidden thinking costs nothing, since it is not seen.", "every thought token is a pass of decode and a place in the cache."),
      isFalse("A rejected draft changes the answer.", "drafts are never shown; what is shown is the model's own choice."),
      isTrue("A good TTFT may hide a long wait.", "with thoughts, look at the first visible token."),
    ],
  },
  {
    title: "Apart",
    asks: "Should reading and writing have machines of their own?",
    why: `Then prompts never disturb streams, and each pool has what it needs. The price is the transfer: the keys and values of 4,000 tokens, ${of("shipped")}, take ${of("link")} over 100 Gbit/s, against ${of("prefill4000")} of prefill at the least. It pays where long prompts meet many streams: FLOP/s for one pool, bandwidth for the other.`,
    scene: apart,
    experiment: shipping,
    questions: [
      {
        id: "Q12",
        asks: "What do separate pools for prefill and decode give, and when do they pay?",
        choices: [
          right("FLOP/s for one, bandwidth for the other, each scaled alone; they pay if interference costs more than the transfer.", "With short prompts, or a slow link, one pool with chunks is better."),
          wrong("They halve the work of both.", "The work is the same. Only where it is done changes, and a transfer is added."),
          wrong("They always pay.", "A transfer that takes longer than the disturbance it saves is a loss."),
        ],
      },
    ],
    analogy: "A kitchen and a bakery: each with its own ovens, and a van between them.",
    papers: ["distserve", "splitwise", "mooncake"],
  },
  {
    title: "Money",
    asks: "Why do output tokens cost more than input tokens?",
    why: `At 2.00 an hour for an A100 at 62 % of its peaks, a 7B model reads a million tokens for ${of("priceIn")}. It writes a million for ${of("priceOut1")} alone, ${of("priceOut64")} in a batch of 64: who shares a reading shares its price.`,
    scene: money,
    experiment: ownPrice,
    questions: [
      {
        id: "Q7",
        asks: "Why is an input token cheaper than an output token?",
        choices: [
          wrong("It is shorter to transmit.", "Both are a few bytes; computing them is what costs."),
          right("A prompt token shares one reading with its prompt, an output token only with the batch.", "Hundreds or thousands of rows against a few dozen."),
          wrong("Input tokens skip some layers.", "All tokens pass all layers, with the same arithmetic."),
        ],
      },
    ],
    analogy: "A coach full of pupils, or a taxi for each word.",
    papers: ["splitwise", "vidur"],
  },
];
