// The scenes of part one: two phases.

import { of, valueOf } from "./figures";
import { arrow, bar, box, cells, frame, range, type Scene, type Shape, text, type Tone, WIDTH } from "./scene";

const MODEL = { x: 120, y: 84, width: 120, height: 36 };

/** A pass through the model: words above it, words below. */
function pass(words: [string, Tone][], came: string[]): Shape[] {
  const place = (at: number, many: number): number => WIDTH / 2 - (many * 58) / 2 + at * 58;
  return [
    box("model", MODEL.x, MODEL.y, MODEL.width, MODEL.height, "plain", "the model"),
    ...words.map(([word, tone], at) => box(`word-${word}`, place(at, words.length), 34, 54, 24, tone, word)),
    ...came.map((word, at) => box(`word-${word}`, place(at, came.length), 146, 54, 24, "decode", word)),
  ];
}

export const pauseThenStream: Scene = {
  title: "Four words in, one word out",
  height: 190,
  frames: [
    frame("The four words of the prompt are all known.", pass([["Once", "prefill"], ["upon", "prefill"], ["a", "prefill"], ["time", "prefill"]], []), text("pass", 180, 20, "before the first pass", "middle")),
    frame("They go in together: one pass, four rows, one new word.", pass([["Once", "prefill"], ["upon", "prefill"], ["a", "prefill"], ["time", "prefill"]], ["there"]), text("pass", 180, 20, "pass 1: 4 rows", "middle"), arrow("out", [180, 122], [180, 142])),
    frame("The new word goes in alone, for the next.", pass([["there", "decode"]], ["was"]), text("pass", 180, 20, "pass 2: 1 row", "middle"), arrow("out", [180, 122], [180, 142])),
    frame("Each further word is a pass of one row.", pass([["was", "decode"]], ["a "]), text("pass", 180, 20, "pass 3: 1 row", "middle"), arrow("out", [180, 122], [180, 142])),
  ],
};

function split(key: string, y: number, name: string, percent: number): Shape[] {
  return bar(key, y, name, [["prefill", percent], ["decode", 100 - percent]], `${Math.round(percent)} / ${Math.round(100 - percent)}`, 2);
}

const lines = [
  split("short", 30, "1,000 + 200", valueOf("share1k")),
  split("middle", 62, "10,000 + 200", valueOf("share10k")),
  split("long", 94, "100,000 + 200", valueOf("share100k")),
  split("attention", 126, "with attention", valueOf("shareAttention")),
];
const unit = text("unit", 92, 18, "per cent of the time: prefill / decode");

export const twoClocks: Scene = {
  title: "Prefill's and decode's share of three requests",
  height: 160,
  frames: [
    frame("1,000 tokens in, 200 out: nearly all of the time is decode.", unit, lines[0]!),
    frame("Ten times the prompt, the same answer: a quarter is prefill.", unit, ...lines.slice(0, 2)),
    frame("A book of 100,000 as the prompt: three quarters.", unit, ...lines.slice(0, 3)),
    frame("Attention over all those tokens adds more.", unit, ...lines),
  ],
};

/** Row `n` of the triangle: what is computed again for token `n`, in grey, and its own row. */
function triangle(rows: number, isCached: boolean): Shape[] {
  return range(rows, (at) => cells(isCached ? `line${at}-` : `row${at}-`, isCached ? 200 : 20, 30 + at * 18, at + 1, (i) => (i === at ? "decode" : isCached ? "cached" : "late"), 14, 14)).flat();
}

export const whyCache: Scene = {
  title: "A triangle of rows against a line",
  height: 190,
  frames: [
    frame("Without a cache the second word reads the first again.", text("left", 20, 20, "no cache"), triangle(2, false)),
    frame("The eighth reads seven again: red rows were computed before.", text("left", 20, 20, "no cache: 36 rows"), triangle(8, false)),
    frame("A cache keeps their keys and values, green; only the new row is computed.", text("left", 20, 20, "no cache: 36 rows"), triangle(8, false), text("right", 200, 20, "cache: 8 rows"), triangle(8, true)),
  ],
};

const belt = (rows: number): Shape[] => [
  ...cells("weight", 20, 96, 16, "plain", 18, 18, 2),
  text("belt", 20, 132, "weights go past, all of them, once per pass"),
  ...cells("row", 20, 60, Math.min(rows, 16), rows > 1 ? "prefill" : "decode", 18, 18, 2),
];

/** The roofline, with round axes: FLOP a byte to the right, FLOP/s upwards. */
const roof: Shape[] = [arrow("x", [60, 150], [330, 150]), arrow("y", [60, 150], [60, 24]), text("xs", 330, 166, "FLOP for each byte", "end"), text("ys", 66, 30, "FLOP/s"), arrow("slope", [60, 150], [170, 60]), arrow("flat", [170, 60], [320, 60])];

export const theLimit: Scene = {
  title: "Weights on a belt, past one row and past 500",
  height: 175,
  frames: [
    frame("Decode: all weights go past one row. The row waits for memory.", belt(1), text("time", 20, 40, `1 row: ${of("token")}, nearly all reading`)),
    frame("Prefill: past 500 rows. Memory waits for arithmetic.", belt(500), text("time", 20, 40, `500 rows: ${of("rowsAt500")}, nearly all multiplying`)),
    frame("The roofline: decode lies on the slope, prefill under the flat roof.", roof, box("row0", 76, 126, 10, 10, "decode"), text("d", 92, 136, "decode"), box("row1", 262, 64, 10, 10, "prefill"), text("p", 276, 84, "prefill", "middle")),
  ],
};

function truck(parcels: number, time: string): Shape[] {
  const perRow = 16;
  return [
    box("truck", 16, 50, 300, 76, "plain"),
    box("cabin", 318, 84, 34, 42, "plain"),
    box("wheel1", 50, 126, 18, 12, "queue"),
    box("wheel2", 290, 126, 18, 12, "queue"),
    ...range(parcels, (at) => box(`parcel${at}`, 22 + (at % perRow) * 18, 54 + Math.floor(at / perRow) * 17, 15, 14, "decode")),
    text("time", 16, 36, time),
  ];
}

export const oneTruck: Scene = {
  title: "One truck with 1, 8 and 64 parcels",
  height: 165,
  frames: [
    frame(`One parcel: the trip takes ${of("planOne")}.`, truck(1, `1 stream: ${of("planOne")} a token, ${of("rateOne")} a second in all`)),
    frame("Eight: nearly the same trip, seven and a half times as much.", truck(8, `8 streams: ${of("planEight")} a token, ${of("rateEight")} a second in all`)),
    frame("Sixty-four: each brings its own KV cache and waits longer, 40 times as much arrives.", truck(64, `64 streams: ${of("planMany")} a token, ${of("rateMany")} a second in all`)),
    frame(`From ${of("knee")} rows on loading takes longer than driving: the knee.`, truck(64, `${of("knee")} rows: the knee of a 7B model on an A100`), text("more", 16, 158, "beyond it more streams only wait for each other")),
  ],
};
