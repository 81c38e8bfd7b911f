// What a lesson of the tour consists of. The lessons are tables of these (part1.ts to part4.ts); scene.ts, quiz.ts and bench.ts show them.

import type { App } from "../app";
import type { PaperKey } from "./papers";
import type { Scene } from "./scene";

/** An answer to choose, and what is to be said about it, right or wrong. */
export interface Choice {
  text: string;
  isRight: boolean;
  explanation: string;
}

export interface Question {
  /** `Q1` to `Q14` are those of the exam; others have a name of their own. */
  id: string;
  asks: string;
  choices: Choice[];
}

/** A sentence that beginners hold for true, or for false. */
export interface Card {
  says: string;
  isTrue: boolean;
  why: string;
}

/** Two statements that are both in the literature, in which regime each holds, and what this program's own arithmetic says. */
export interface Note {
  about: string;
  one: string;
  other: string;
  regimes: string;
  ours: string;
}

export interface Lesson {
  title: string;
  /** A question of daily life. */
  asks: string;
  why: string;
  scene: Scene;
  /** What there is to try: fills `root`; `signal` ends it, `tried` is called when it gave something. */
  experiment: Experiment;
  questions: Question[];
  analogy: string;
  papers: PaperKey[];
  note?: Note;
  cards?: Card[];
  /** Where to go on from here: address and words. */
  links?: [string, string][];
}

export interface Trial {
  root: HTMLElement;
  app: App;
  signal: AbortSignal;
  tried: () => void;
}

export type Experiment = (trial: Trial) => void;

export const right = (text: string, explanation: string): Choice => ({ text, isRight: true, explanation });
export const wrong = (text: string, explanation: string): Choice => ({ text, isRight: false, explanation });
export const isTrue = (says: string, why: string): Card => ({ says, isTrue: true, why });
export const isFalse = (says: string, why: string): Card => ({ says, isTrue: false, why });
