// The tour of the Learn page: 18 lessons over the running engine, an exam and an end. A file of its own, fetched when the page opens.
//
//   #/learn/1 ... #/learn/18   #/learn/exam   #/learn/end   #/learn/figures

import type { App } from "../app";
import { add, el, fill } from "../dom";
import { end, exam, figures } from "./exam";
import { LESSONS, PARTS } from "./lessons";
import { PAPERS } from "./papers";
import { note, question, trueOrFalse } from "./quiz";
import { scene } from "./scene";
import { Score, share } from "./score";
import type { Lesson } from "./types";

const PLACES: Record<string, [string, (root: HTMLElement, score: Score) => void]> = {
  exam: ["Exam", exam],
  end: ["End", end],
  figures: ["Figures", figures],
};

export function mount(root: HTMLElement, app: App): () => void {
  let leave = new AbortController();
  const score = new Score(LESSONS.length);
  const links = new Map<string, HTMLAnchorElement>();
  const rings = LESSONS.map((lesson, at) => ringOf(lesson, at + 1, score));
  const link = (place: string, ...children: (HTMLElement | SVGElement | string)[]): HTMLElement => {
    const anchor = el("a", { href: `#/learn/${place}` }, ...children);
    links.set(place, anchor);
    return el("li", {}, anchor);
  };
  let number = 0;
  const parts = PARTS.map(([name, lessons]) =>
    el("div", { class: "part" }, el("p", { class: "name" }, name), el("ol", { "aria-label": name }, ...lessons.map(({ title }) => link(String((number += 1)), rings[number - 1]!.element, el("span", {}, `${number}. `, el("span", { class: "title" }, title)))))),
  );
  const places = el("ul", { class: "places", "aria-label": "More" }, ...Object.entries(PLACES).map(([place, [name]]) => link(place, name)));
  const page = el("article", { class: "lesson panel" });
  add(root, el("nav", { class: "tour", "aria-label": "The tour" }, ...parts, places), page);
  const stop = score.subscribe(() => rings.forEach(({ show }) => show()));

  const show = (): void => {
    if (!location.hash.startsWith("#/learn")) return;
    const place = placeOf(location.hash);
    leave.abort();
    leave = new AbortController();
    for (const [name, anchor] of links) {
      if (name === place) anchor.setAttribute("aria-current", "step");
      else anchor.removeAttribute("aria-current");
    }
    const other = PLACES[place];
    if (other) other[1](page, score);
    else fillLesson(page, app, Number(place), score, leave.signal);
  };
  window.addEventListener("hashchange", show);
  show();
  return () => {
    stop();
    leave.abort();
    window.removeEventListener("hashchange", show);
  };
}

/** A lesson's number, or the name of another place; what is neither leads to the nearest lesson. */
function placeOf(hash: string): string {
  const name = hash.split(/[/?]/)[2] ?? "1";
  if (Object.hasOwn(PLACES, name)) return name;
  const number = Number.parseInt(name, 10);
  return String(Number.isNaN(number) ? 1 : Math.max(1, Math.min(LESSONS.length, number)));
}

const SVG = "http://www.w3.org/2000/svg";
const RADIUS = 6;
const ROUND = 2 * Math.PI * RADIUS;

/** A ring that closes as a lesson's scene, trial and questions are done. */
function ringOf({ questions }: Lesson, number: number, score: Score): { element: SVGElement; show: () => void } {
  const ring = document.createElementNS(SVG, "svg");
  const circle = (kind: string): SVGCircleElement => {
    const element = document.createElementNS(SVG, "circle");
    for (const [name, value] of Object.entries({ class: kind, cx: 8, cy: 8, r: RADIUS })) element.setAttribute(name, String(value));
    ring.append(element);
    return element;
  };
  for (const [name, value] of Object.entries({ class: "ring", viewBox: "0 0 16 16", role: "img" })) ring.setAttribute(name, value);
  circle("all");
  const arc = circle("done");
  const show = (): void => {
    const [done, all] = share(score.of(number), questions.map(({ id }) => id));
    ring.setAttribute("aria-label", `${done} of ${all} done:`);
    ring.dataset["done"] = `${done}/${all}`;
    arc.setAttribute("stroke-dasharray", `${((ROUND * done) / all).toFixed(2)} ${ROUND.toFixed(2)}`);
  };
  show();
  return { element: ring, show };
}

function fillLesson(page: HTMLElement, app: App, number: number, score: Score, signal: AbortSignal): void {
  const lesson = LESSONS[number - 1]!;
  const done = score.of(number);
  const picture = el("div", {});
  const trial = el("section", { class: "try", "aria-label": "Try it" }, el("h3", {}, "Try it"));
  const [before, after] = [LESSONS[number - 2], LESSONS[number]];
  fill(
    page,
    el("h2", {}, `${number}. ${lesson.title}`),
    el("p", { class: "asks" }, lesson.asks),
    el("p", { class: "why" }, lesson.why),
    picture,
    trial,
    ...lesson.questions.map((asked) => question(asked, (isRight) => isRight && score.note(() => (score.of(number).right[asked.id] = true)))),
    el("p", { class: "analogy" }, lesson.analogy),
    lesson.note && note(lesson.note),
    lesson.cards && trueOrFalse(lesson.cards),
    lesson.links && el("ul", { class: "links" }, ...lesson.links.map(([to, words]) => el("li", {}, el("a", { href: to }, words)))),
    el("details", { class: "papers" }, el("summary", {}, "Papers"), el("ul", {}, ...lesson.papers.map((key) => el("li", {}, PAPERS[key])))),
    el(
      "div",
      { class: "row turns" },
      before && el("a", { href: `#/learn/${number - 1}`, rel: "prev" }, `Back: ${before.title}`),
      after ? el("a", { href: `#/learn/${number + 1}`, rel: "next" }, `Next: ${after.title}`) : el("a", { href: "#/learn/exam", rel: "next" }, "Next: the exam"),
    ),
  );
  scene(picture, lesson.scene, () => done.seen || score.note(() => (score.of(number).seen = true)));
  lesson.experiment({ root: trial, app, signal, tried: () => score.note(() => (score.of(number).tried = true)) });
}

