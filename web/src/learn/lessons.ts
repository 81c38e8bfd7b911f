// The tour's parts, and its lessons in their order.

import { PART_FOUR } from "./part4";
import { PART_ONE } from "./part1";
import { PART_THREE } from "./part3";
import { PART_TWO } from "./part2";
import type { Lesson } from "./types";

export const PARTS: [string, Lesson[]][] = [
  ["Two phases", PART_ONE],
  ["Memory", PART_TWO],
  ["Serving many", PART_THREE],
  ["All together", PART_FOUR],
];

export const LESSONS: Lesson[] = PARTS.flatMap(([, lessons]) => lessons);
