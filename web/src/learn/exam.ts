// The exam of fourteen, the end page with what to read again, and the list of figures.

import { download } from "../chat/transfer";
import { add, el, fill, say } from "../dom";
import { count } from "../units";
import { FIGURES } from "./figures";
import { LESSONS } from "./lessons";
import { PAPERS } from "./papers";
import { type Score, share } from "./score";
import type { Choice, Question } from "./types";

/** A question of the exam and the lesson that answers it, counted from 1. */
interface Asked {
  question: Question;
  lesson: number;
}

/** `Q1` to `Q14`, in this order. */
export const EXAM: Asked[] = LESSONS.flatMap(({ questions }, at) => questions.map((question) => ({ question, lesson: at + 1 })))
  .filter(({ question }) => /^Q\d+$/.test(question.id))
  .sort((a, b) => Number(a.question.id.slice(1)) - Number(b.question.id.slice(1)));

const address = (lesson: number): string => `#/learn/${lesson}`;
const nameOf = (lesson: number): string => `${lesson}. ${LESSONS[lesson - 1]!.title}`;

function shuffled<T>(values: T[]): T[] {
  const left = [...values];
  return values.map(() => left.splice(Math.floor(Math.random() * left.length), 1)[0]!);
}

export function exam(root: HTMLElement, score: Score): void {
  const chosen = new Map<string, Choice>();
  const status = el("p", { class: "status", role: "status" });
  const verdicts = new Map<string, HTMLElement>();
  const sheets = EXAM.map(({ question: { id, asks, choices }, lesson }) => {
    const verdict = el("p", { class: "verdict" });
    verdicts.set(id, verdict);
    const radios = shuffled(choices).map((choice) => el("label", { class: "choice" }, el("input", { type: "radio", name: `exam-${id}`, onchange: () => chosen.set(id, choice) }), el("span", {}, choice.text)));
    return el("fieldset", { class: "question", "data-question": id, "data-lesson": lesson }, el("legend", {}, `${id.slice(1)}. ${asks}`), ...radios, verdict);
  });
  const check = (): void => {
    const result = Object.fromEntries(EXAM.map(({ question: { id } }) => [id, chosen.get(id)?.isRight === true]));
    score.note(() => (score.exam = result));
    for (const { question, lesson } of EXAM) {
      const choice = chosen.get(question.id);
      const verdict = verdicts.get(question.id)!;
      verdict.dataset["right"] = String(choice?.isRight === true);
      fill(verdict, choice ? choice.explanation : "It was not answered.", choice?.isRight !== true && " Read again: ", choice?.isRight !== true && el("a", { href: address(lesson) }, nameOf(lesson)));
    }
    say(status, `${points(result)} of ${EXAM.length}.`);
    add(status, " ", el("a", { href: "#/learn/end" }, "What to read again"));
  };
  const button = el("button", { type: "button", class: "primary", onclick: check }, "Check my answers");
  fill(root, el("h2", {}, "Exam"), el("p", {}, `Fourteen questions, their choices in another order each time. Answers are checked together.`), ...sheets, el("div", { class: "row" }, button, status));
}

const points = (result: Record<string, boolean>): number => EXAM.filter(({ question }) => result[question.id] === true).length;

/** Lessons to read again: of each question of the exam that was not answered right. */
function readAgain(score: Score): number[] {
  const { exam } = score;
  if (!exam) return [];
  return [...new Set(EXAM.filter(({ question }) => exam[question.id] !== true).map(({ lesson }) => lesson))].sort((a, b) => a - b);
}

export function end(root: HTMLElement, score: Score): void {
  const again = readAgain(score);
  const line = (lesson: number): HTMLElement => el("li", {}, el("a", { href: address(lesson) }, nameOf(lesson)));
  const result = score.exam ? `Exam: ${points(score.exam)} of ${EXAM.length}.` : "The exam has not been taken yet.";
  const status = el("p", { class: "status", role: "status" });
  const forget = (): void => {
    score.forget();
    end(root, score);
    root.querySelector<HTMLElement>("button")?.focus();
  };
  const head = el("tr", {}, ...["lesson", "done"].map((name) => el("th", { scope: "col" }, name)));
  const rows = LESSONS.map(({ questions }, at) => {
    const [done, all] = share(score.of(at + 1), questions.map(({ id }) => id));
    return el("tr", {}, el("th", { scope: "row" }, el("a", { href: address(at + 1) }, nameOf(at + 1))), el("td", {}, `${done} of ${all}`));
  });
  fill(
    root,
    el("h2", {}, "The end of the tour"),
    el("p", { class: "result" }, result),
    again.length > 0 && el("h3", {}, "Read again"),
    again.length > 0 && el("ul", { class: "again" }, ...again.map(line)),
    score.exam && again.length === 0 && el("p", {}, "There is nothing to read again."),
    el("div", { class: "row" }, el("a", { href: "#/learn/exam" }, score.exam ? "Take the exam again" : "Take the exam"), el("button", { type: "button", onclick: () => download("twostroke-tour.md", "text/markdown", markdown(score)) }, "Export as Markdown"), el("button", { type: "button", onclick: forget }, "Start over")),
    status,
    !score.isKept && el("p", { class: "limit" }, "This browser keeps nothing for this page, so the score is gone when you leave it. Export it to keep it."),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lessons" }, el("table", {}, el("caption", {}, "Lessons: scene, trial and questions"), el("thead", {}, head), el("tbody", {}, ...rows))),
    el("h3", {}, "Papers of the tour"),
    el("ul", {}, ...Object.values(PAPERS).map((paper) => el("li", {}, paper))),
    el("p", {}, "What this program takes from each of them, and from more, is in docs/papers.md. The code of both phases, file by file, is in the guide's page on the two phases."),
  );
}

/** All of it as a text to keep. */
function markdown(score: Score): string {
  const lessons = LESSONS.map(({ title, questions }, at) => {
    const [done, all] = share(score.of(at + 1), questions.map(({ id }) => id));
    return `| ${at + 1} | ${title} | ${done} of ${all} |`;
  });
  const { exam } = score;
  const answers = exam ? EXAM.map(({ question, lesson }) => `| ${question.id} | ${question.asks} | ${exam[question.id] ? "right" : `read lesson ${lesson} again`} |`) : [];
  const again = readAgain(score).map((lesson) => `- ${nameOf(lesson)}`);
  return [
    "# The tour of the two phases",
    "",
    exam ? `Exam: ${points(exam)} of ${EXAM.length}.` : "The exam has not been taken.",
    "",
    "| | lesson | done |",
    "| --- | --- | --- |",
    ...lessons,
    ...(answers.length > 0 ? ["", "| | question | |", "| --- | --- | --- |", ...answers] : []),
    ...(again.length > 0 ? ["", "Read again:", "", ...again] : []),
    "",
    "Papers:",
    "",
    ...Object.values(PAPERS).map((paper) => `- ${paper}`),
    "",
  ].join("\n");
}

/** Every figure that the lessons state, with its formula. */
export function figures(root: HTMLElement): void {
  const head = el("tr", {}, ...["figure", "worked out", "as written"].map((name) => el("th", { scope: "col" }, name)));
  const rows = [...FIGURES].map(([key, { what, formula, value, shown }]) => el("tr", { "data-figure": key, "data-value": value }, el("th", { scope: "row" }, what), el("td", {}, formula), el("td", {}, shown)));
  fill(
    root,
    el("h2", {}, "The figures"),
    el("p", {}, `${count(FIGURES.size, "figure")} that the lessons state, of a model of 7 billion parameters in 16 bits on an A100 where nothing else is said: 312 TFLOP/s and 2 TB/s, at their peak.`),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Figures" }, el("table", { class: "figures" }, el("caption", {}, "To be checked with pencil and paper"), el("thead", {}, head), el("tbody", {}, ...rows))),
  );
}
