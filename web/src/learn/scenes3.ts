// The scenes of parts three and four: serving many, and all of it together.

import { of } from "./figures";
import { arrow, bar, box, cells, frame, range, type Scene, type Shape, text, type Tone } from "./scene";

/** Answers in time for each second, over arrivals: a line up to the knee, then down. */
const curve = (upTo: number): Shape[] => [arrow("x", [40, 140], [340, 140]), arrow("y", [40, 140], [40, 20]), text("xs", 340, 156, "requests a second", "end"), text("ys", 46, 26, "answers in time"), range(upTo, (at) => box(`point${at}`, 52 + at * 28, at < 7 ? 124 - at * 13 : 46 + (at - 6) * 26, 12, 12, at < 7 ? "cached" : "late"))].flat();

export const goodput: Scene = {
  title: "Goodput against arrivals",
  height: 170,
  frames: [
    frame("Few requests: all are answered within their targets.", curve(4)),
    frame("More arrive: batches grow, TPOT rises, targets still hold.", curve(7)),
    frame("Beyond that, much is answered and ever less in time.", curve(10), text("cliff", 270, 44, "past the knee")),
  ],
};

const draftRow = (y: number, key: string, tones: Tone[], came: string): Shape[] => [...cells(key, 80, y, tones.length, (at) => tones[at]!, 36, 22, 4), text(`${key}-came`, 80 + tones.length * 40 + 8, y + 16, came)];

export const drafts: Scene = {
  title: "A pass with drafts: solid comes, hollow is thrown away",
  height: 160,
  frames: [
    frame("Plain decode: one row a pass, one token.", text("n1", 0, 46, "pass 1"), draftRow(30, "plain", ["decode"], "1 token")),
    frame("Three drafts ride along, in rows of their own, on the same reading.", text("n1", 0, 46, "pass 1"), draftRow(30, "plain", ["decode"], "1 token"), text("n2", 0, 86, "pass 2"), draftRow(70, "drafted", ["decode", "ghost", "ghost", "ghost"], "1 + ?")),
    frame("Two agree with the model's own choice and stay; the third goes.", text("n1", 0, 46, "pass 1"), draftRow(30, "plain", ["decode"], "1 token"), text("n2", 0, 86, "pass 2"), draftRow(70, "drafted", ["decode", "decode", "decode", "ghost"], "3 tokens")),
    frame("In a large batch those rows would cost time: drafting stops.", text("n2", 0, 46, "64 streams"), cells("crowd", 80, 30, 14, "decode", 14, 22, 4), text("none", 80, 78, "no drafts: rows are not free here")),
  ],
};

export const thinking: Scene = {
  title: "A pale lane before the answer",
  height: 130,
  frames: [
    frame("Without thought: prompt, then words.", text("n1", 0, 44, "no thought"), box("p1", 80, 30, 30, 20, "prefill"), box("a1", 112, 30, 70, 20, "decode", "answer")),
    frame("With thought, decode runs first, unseen.", text("n1", 0, 44, "no thought"), box("p1", 80, 30, 30, 20, "prefill"), box("a1", 112, 30, 70, 20, "decode", "answer"), text("n2", 0, 84, "thought"), box("p2", 80, 70, 30, 20, "prefill"), box("t2", 112, 70, 150, 20, "thought", "unseen"), box("a2", 264, 70, 70, 20, "decode", "answer")),
    frame(`400 unseen tokens at 7 ms: the first visible word ${of("thought")} later.`, text("n2", 0, 84, "thought"), box("p2", 80, 70, 30, 20, "prefill"), box("t2", 112, 70, 150, 20, "thought", of("thought")), box("a2", 264, 70, 70, 20, "decode", "answer"), arrow("wait", [112, 110], [262, 110])),
  ],
};

const pools = [box("left", 10, 30, 120, 90, "free"), box("right", 230, 30, 120, 90, "free"), text("l", 70, 22, "prefill: FLOP/s", "middle"), text("r", 290, 22, "decode: bandwidth", "middle")];

export const apart: Scene = {
  title: "Two pools, and blocks that travel",
  height: 165,
  frames: [
    frame("One pool for prompts, one for answers.", pools, box("prompt", 30, 50, 80, 30, "prefill", "prompt")),
    frame(`The prompt's keys and values travel: ${of("shipped")} in ${of("link")}.`, pools, box("prompt", 30, 50, 80, 30, "prefill", "prompt"), cells("travel", 140, 58, 4, "cached", 16, 16, 4), arrow("way", [134, 90], [226, 90])),
    frame("Decode goes on there. A prompt never interrupts it.", pools, cells("travel", 240, 46, 4, "cached", 16, 16, 4), cells("answer", 240, 74, 5, "decode", 16, 16, 4)),
    frame("Each grows alone, in its own precision.", pools, box("prompt", 30, 60, 80, 30, "prefill", "prompts"), box("stream", 250, 60, 80, 30, "decode", "answers"), box("more", 10, 126, 120, 24, "prefill", "FP8 products"), box("fewer", 230, 126, 120, 24, "decode", "int4 weights")),
  ],
};

const price = (key: string, y: number, name: string, tone: Tone, shown: string): Shape[] => bar(key, y, name, [[tone, Number(shown)]], shown, 32);
const prices = [price("in", 24, "input", "prefill", of("priceIn")), price("one", 52, "output, 1", "decode", of("priceOut1")), price("eight", 80, "output, 8", "decode", of("priceOut8")), price("many", 108, "output, 64", "decode", of("priceOut64"))];

export const money: Scene = {
  title: "Price of a million tokens at 2.00 an hour",
  height: 140,
  frames: [
    frame(`Input: a thousand tokens share one reading: ${of("priceIn")}.`, prices[0]!),
    frame(`Output alone: a reading for each token: ${of("priceOut1")}.`, ...prices.slice(0, 2)),
    frame(`Batches of 8 and 64 share it: ${of("priceOut8")}, ${of("priceOut64")}.`, ...prices),
  ],
};

const boxOf = (key: string, x: number, y: number, name: string, tone: Tone): Shape => box(key, x, y, 160, 44, tone, name);
const four = [boxOf("prefill", 10, 20, "helps prefill", "prefill"), boxOf("decode", 190, 20, "helps decode", "decode"), boxOf("apart", 10, 90, "keeps them apart", "cached"), boxOf("room", 190, 90, "makes room", "preempted")];

export const whoHelps: Scene = {
  title: "Four boxes for fourteen cards",
  height: 150,
  frames: [
    frame("Prefill wants less arithmetic, or more of it at once.", four.slice(0, 1)),
    frame("Decode wants fewer bytes, or more tokens from each reading.", four.slice(0, 2)),
    frame("Some only keep one from disturbing the other; some make room.", four),
  ],
};

const sign = (y: number, key: string, name: string, parts: [Tone, number][]): Shape[] => {
  let x = 110;
  return [text(`${key}-n`, 0, y + 14, name), ...parts.map(([tone, width], at) => box(`${key}${at}`, (x += width + 2) - width - 2, y, width, 18, tone))];
};
const signs = [
  sign(20, "slow", "slow start", [["queue", 30], ["prefill", 150], ...range(6, (): [Tone, number] => ["decode", 6])]),
  sign(50, "chat", "slowing chat", range(9, (at): [Tone, number] => ["decode", 6 + at * 4])),
  sign(80, "gap", "stutter", [["decode", 8], ["decode", 8], ["other", 80], ["decode", 8], ["decode", 8]]),
  sign(110, "full", "out of memory", [["queue", 60], ["preempted", 60], ["prefill", 20], ["decode", 20]]),
];

export const complaints: Scene = {
  title: "Four complaints and their signs",
  height: 140,
  frames: [
    frame("A long wait, then a fast stream.", signs[0]!),
    frame("A pace that falls turn by turn.", ...signs.slice(0, 2)),
    frame("A hole in the middle.", ...signs.slice(0, 3)),
    frame("Waiting, and thrown out half way.", ...signs),
  ],
};
