// The scenes of part two: memory.

import { of, valueOf } from "./figures";
import { arrow, bar, box, cells, frame, range, type Scene, type Shape, text, type Tone } from "./scene";

const weights = [bar("bf16", 30, "bf16 weights", [["plain", 14]], "14 GB", 14), bar("int8", 56, "int8", [["plain", 7]], of("int8"), 14), bar("int4", 82, "int4", [["plain", 3.5]], of("int4"), 14)];
const heads = [
  bar("mha", 120, "KV: 32 heads", [["decode", valueOf("mha")]], of("mha"), 0.35),
  bar("gqa", 146, "8 shared", [["decode", valueOf("gqa")]], of("gqa"), 0.35),
  bar("mqa", 172, "1 shared", [["decode", valueOf("mqa")]], of("mqa"), 0.35),
];

export const fewerBytes: Scene = {
  title: "Bytes that a token of a 7B model takes",
  height: 200,
  frames: [
    frame("Each token reads all weights: 14 GB in 16 bits.", weights[0]!),
    frame("8 bits halve them, 4 bits halve them again.", ...weights),
    frame("Each earlier token adds keys and values: with 32 heads of them, 524 kB.", ...weights, heads[0]!),
    frame("Heads that share them (GQA, MQA) need a quarter, 131 kB, or a thirty-second.", ...weights, ...heads),
  ],
};

const turn = (key: string, y: number, name: string, kv: number): Shape[] => bar(key, y, name, [["plain", 14], ["decode", kv]], kv < 0.1 ? "14 GB" : `14 + ${kv.toFixed(1)} GB`, 8);

export const slowingChat: Scene = {
  title: "What a token reads, turn by turn",
  height: 150,
  frames: [
    frame("First question: the weights, and hardly any keys.", turn("first", 20, "turn 1", 0.01)),
    frame(`After 10,000 tokens of 131 kB (8 shared heads), ${of("kv10k")} of keys and values more.`, turn("first", 20, "turn 1", 0.01), turn("tenth", 50, "10,000", valueOf("kv10k"))),
    frame(`At ${of("kvAsWeights")} tokens they are as large as the weights.`, turn("first", 20, "turn 1", 0.01), turn("tenth", 50, "10,000", valueOf("kv10k")), turn("last", 80, of("kvAsWeights"), 14), text("twice", 0, 128, "a token then takes twice the time")),
  ],
};

/** Steps of a stream with a hole of `hole` units, or in pieces. */
const streamLine = (y: number, parts: [Tone, number][]): Shape[] => {
  let x = 60;
  return parts.map(([tone, width], at) => {
    const piece = box(`stream${at}`, x, y, width, 20, tone);
    x += width + 2;
    return piece;
  });
};
const steady = (many: number): [Tone, number][] => range(many, () => ["decode", 8]);
const names = [text("a", 0, 45, "stream"), text("b", 0, 85, "prompt")];

export const noisyNeighbour: Scene = {
  title: "A prompt of 4,000 tokens beside a stream",
  height: 160,
  frames: [
    frame("A stream has its token every few milliseconds.", names, streamLine(30, steady(24))),
    frame(`In one piece, the newcomer makes a hole of ${of("hole")}.`, names, streamLine(30, [...steady(4), ["other", 176], ...steady(5)]), box("whole", 102, 70, 176, 20, "prefill", of("hole"))),
    frame(`In ${of("chunks")} chunks of 512, a token comes after each ${of("piece")}.`, names, streamLine(30, [...steady(4), ...range(8, (): [Tone, number][] => [["other", 20], ["decode", 4]]).flat()]), cells("chunk", 102, 70, 8, "prefill", 22, 20, 6)),
    frame("Streams first, always, would starve the newcomer: prefill needs a share too.", names, streamLine(30, steady(28)), cells("chunk", 316, 70, 1, "prefill", 22, 20), box("wait", 102, 70, 208, 20, "queue", "waits")),
  ],
};

const BLOCKS = { x: 20, width: 36, gap: 4 };
const blocks = (y: number, key: string, tone: (at: number) => Tone): Shape[] => cells(key, BLOCKS.x, y, 8, tone, BLOCKS.width, 26, BLOCKS.gap);

export const promptCaching: Scene = {
  title: "Eight blocks of a prompt, asked again",
  height: 180,
  frames: [
    frame("First time: all eight blocks are computed.", text("n1", 20, 24, "first time"), blocks(30, "first", () => "prefill")),
    frame("Again with a new last question: seven are found, one computed.", text("n1", 20, 24, "first time"), blocks(30, "first", () => "prefill"), text("n2", 20, 78, "again, another question at the end"), blocks(84, "second", (at) => (at < 7 ? "cached" : "prefill"))),
    frame("Another first word, and none is found: keys depend on all before.", text("n1", 20, 24, "first time"), blocks(30, "first", () => "prefill"), text("n2", 20, 78, "again, another question at the end"), blocks(84, "second", (at) => (at < 7 ? "cached" : "prefill")), text("n3", 20, 132, "again, another first word"), blocks(138, "third", () => "prefill")),
  ],
};

const pool = box("pool", 10, 24, 340, 60, "free");
/** A user who holds `width` of the pool, of which `used` is written. */
const reserved = (at: number): Shape[] => [box(`hold${at}`, 14 + at * 168, 30, 162, 48, "ghost"), box(`used${at}`, 14 + at * 168, 30, 36, 48, "decode", `${at + 1}`)];

const OWN_PAGES = [1, 5, 8, 14];

export const pages: Scene = {
  title: "A pool that reserves, and one that hands out pages",
  height: 175,
  frames: [
    frame("Reserve the longest possible answer: two users, and it is full.", pool, text("n", 10, 16, "reserved: 8,192 tokens each"), reserved(0), reserved(1)),
    frame("Each uses 1,800 tokens. The rest is empty, and taken.", pool, text("n", 10, 16, "reserved: 8,192 tokens each"), reserved(0), reserved(1), box("third", 14, 110, 60, 26, "late", "refused"), arrow("no", [44, 108], [44, 88])),
    frame("Pages of 16 tokens, handed out as answers grow: nine users fit.", pool, text("n", 10, 16, "pages of 16 tokens"), range(9, (at) => box(at < 2 ? `used${at}` : `user${at}`, 14 + at * 37, 30, 34, 48, "decode", `${at + 1}`))),
    frame("A page table says where each part lies; at most one page is partly empty.", pool, text("n", 10, 16, "the pages of user 1, among those of others"), cells("page", 14, 36, 18, (at) => (OWN_PAGES.includes(at) ? "decode" : "plain"), 16, 36, 2.5), text("t", 10, 146, "table of user 1"), cells("entry", 110, 132, OWN_PAGES.length, "decode", 22, 18), OWN_PAGES.map((page, at) => arrow(`p${at}`, [121 + at * 24, 130], [22 + page * 18.5, 76]))),
  ],
};

const person = (key: string, y: number, parts: [Tone, number, string?][]): Shape[] => {
  let x = 60;
  return [
    text(`${key}-name`, 0, y + 14, key),
    ...parts.map(([tone, width, label], at) => {
      const piece = box(`${key}-${at}`, x, y, width, 20, tone, label ?? "");
      x += width + 2;
      return piece;
    }),
  ];
};

export const theWall: Scene = {
  title: "Three requests and room for two",
  height: 150,
  frames: [
    frame("Two requests fill the pool; a third waits.", person("first", 20, [["prefill", 30], ["decode", 80]]), person("second", 54, [["prefill", 30], ["decode", 80]]), person("third", 88, [["queue", 112, "waits"]])),
    frame("Both need another block. One is preempted: its blocks go to the other.", person("first", 20, [["prefill", 30], ["decode", 160]]), person("second", 54, [["prefill", 30], ["decode", 80], ["preempted", 78, "out"]]), person("third", 88, [["queue", 192, "waits"]])),
    frame("The first ends. The second is read again, and goes on as before.", person("first", 20, [["prefill", 30], ["decode", 160]]), person("second", 54, [["prefill", 30], ["decode", 80], ["preempted", 78, "out"], ["prefill", 24], ["decode", 60]]), person("third", 88, [["queue", 192, "waits"], ["prefill", 30], ["decode", 54]])),
  ],
};
