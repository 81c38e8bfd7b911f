// Lesson 18: four complaints, made on the engine. For each, the evidence to look at and the cure.

import { add, el } from "../dom";
import { counted } from "./bench";
import { decodesOf, long, prefillsOf, prompts, rowsOf, salt, send, sum } from "./engine";
import { question } from "./quiz";
import { type Choice, type Experiment, right, wrong } from "./types";

interface Complaint {
  name: string;
  says: string;
  evidence: Choice[];
  cure: Choice[];
}

const COMPLAINTS: Complaint[] = [
  {
    name: "slow start",
    says: "“I sent a PDF of 50 pages and 20 documents. Nothing for a long time, then it writes fast.”",
    evidence: [wrong("TPOT", "The pace is fine, so decode is."), right("Queue and prefill in the timings of the answer", "The wait is before the first token: one of these two has it."), wrong("The share of the memory's limit in decode", "That would explain a slow pace, not a late start.")],
    cure: [right("Cache the documents' prefix, or send less", "What is found in the cache is not computed; nothing else shortens a prompt."), wrong("Quantize the weights to 4 bits", "Fewer bytes help decode. A long prompt waits for arithmetic."), wrong("Draft the next tokens", "Drafts help once the answer has begun.")],
  },
  {
    name: "slowing chat",
    says: "“Our chat was quick in the morning. Now each word takes longer.”",
    evidence: [right("Bytes a token, by position", "They grow with the context: the pace falls though nothing else changes."), wrong("The queue", "Waiting comes before the first token, not between later ones."), wrong("The number of other prompts", "They would make single holes, not a slow decline.")],
    cure: [wrong("Smaller chunks", "There is no prompt in the way."), wrong("A larger batch", "It would make each stream slower still."), right("Quantize the KV cache, or shorten the history", "Fewer bytes of keys and values in each pass; a cached history spares the reading again.")],
  },
  {
    name: "stutter",
    says: "“It writes well, then freezes for a second, then goes on.”",
    evidence: [wrong("The mean TPOT", "A mean hides a single hole."), wrong("The length of my prompt", "It was read before the first word."), right("Which other prompt shared the pass of that gap", "The gap has an owner: the timeline names it.")],
    cure: [right("Smaller chunks, a TPOT target, or pools apart", "Each bounds what a prompt may take between two tokens."), wrong("Faster memory", "The hole is made of another prompt's arithmetic."), wrong("A longer context limit", "Nothing was too long.")],
  },
  {
    name: "out of memory",
    says: "“With the third user it refuses, and half the memory is free.”",
    evidence: [wrong("CPU load", "One stream keeps it busy, if only with waiting."), right("Blocks in use, and how they are reserved", "What is taken is not what is used."), wrong("TTFT of the first two", "They are served well; it is room that lacks.")],
    cure: [wrong("A second copy of the weights", "It would take room, not make it."), wrong("Fewer cores", "Cores hold no keys."), right("Pages in place of reservations, then preemption at the wall", "Room by need; and when it is truly full, waiting in place of failing.")],
  },
];

/** The four, as counts: what each leaves behind in the engine. */
const evidence: Experiment = (trial) => {
  const { app, signal } = trial;
  counted(trial, {
    caption: "What the four leave behind, on this engine",
    columns: ["evidence", "figure", "for comparison"],
    button: "Make the four complaints",
    work: async (show) => {
      const [[pdf], [short], [other]] = [await prompts(app, 1, long(app, 2000, 8)), await prompts(app, 1, 16), await prompts(app, 1, long(app, 1000, 1))];
      const late = await send(app, pdf!, 8, signal, { cache_salt: salt() });
      show({ name: "slow start", cells: ["rows of the prompt", late.timings.prefill_tokens.toLocaleString("en"), `rows of the answer: ${late.timings.decode_tokens}`] });
      const far = (await decodesOf(app, late.id))[0];
      const begun = await send(app, short!, 8, signal);
      const near = (await decodesOf(app, begun.id))[0];
      const kilobytes = (step: { bytes: number } | undefined): string => (step ? `${(step.bytes / 1e3).toLocaleString("en", { maximumFractionDigits: 0 })} kB` : "–");
      show({ name: "slowing chat", cells: ["bytes a token, late", kilobytes(far), `early: ${kilobytes(near)}`] });
      const stream = send(app, short!, Math.max(16, Math.min(1000, app.info.max_model_len - 32)), signal);
      stream.catch(() => undefined); // awaited below
      await new Promise((resolve) => setTimeout(resolve, 40));
      const loud = await send(app, other!, 1, signal, { cache_salt: salt() });
      const { id } = await stream;
      const shared = (await prefillsOf(app, loud.id)).filter(({ decode }) => decode.some((row) => row.r === id));
      show({ name: "stutter", cells: ["rows of another prompt in the stream's passes", sum(shared.map(rowsOf(loud.id))).toLocaleString("en"), `passes: ${shared.length}`] });
      const { blocks, block_size, max_model_len } = app.info;
      show({ name: "out of memory", cells: ["users that fit by reservation", Math.floor((blocks * block_size) / max_model_len).toLocaleString("en"), `in pages, of ${long(app, 2000, 8).toLocaleString("en")} tokens: ${Math.floor(blocks / Math.ceil(long(app, 2000, 8) / block_size)).toLocaleString("en")}`] });
      return "Four figures, one for each. Now pick for each complaint what to look at, and what to do.";
    },
  });
};

export const fourComplaints: Experiment = (trial) => {
  evidence({ ...trial, tried: () => undefined });
  const right = new Map<string, boolean>();
  const total = COMPLAINTS.length * 2;
  const note = (id: string) => (isRight: boolean): void => {
    right.set(id, isRight);
    if ([...right.values()].filter(Boolean).length === total) trial.tried();
  };
  COMPLAINTS.forEach(({ name, says, evidence, cure }, at) => {
    const ask = (what: string, choices: Choice[]): HTMLElement => question({ id: `${what}-${at}`, asks: what === "evidence" ? "What do you look at?" : "And the cure?", choices }, note(`${what}-${at}`));
    add(trial.root, el("section", { class: "complaint", "aria-label": `Complaint: ${name}` }, el("h4", {}, name), el("p", {}, says), ask("evidence", evidence), ask("cure", cure)));
  });
};
