// Learn: a tour of seven pages over the running engine. Each says one thing, lets one try it, and asks one question.

import type { App } from "../app";
import { add, el, fill, say } from "../dom";
import { LESSONS, type Lesson } from "../learn/lessons";
import { drawn, PICTURES } from "../learn/pictures";
import "./learn.css";

export function mount(root: HTMLElement, app: App): () => void {
  let leave = new AbortController();
  const links = LESSONS.map((lesson, at) => el("a", { href: address(at) }, lesson.title));
  const page = el("article", { class: "lesson panel" });
  add(
    root,
    el("h1", {}, "Learn"),
    el("p", {}, "A tour of the two phases in seven short pages, on the engine that runs here. What you try is sent to it, and the numbers are its own."),
    el("nav", { class: "tour", "aria-label": "The tour" }, el("ol", {}, ...links.map((link) => el("li", {}, link)))),
    page,
  );

  const show = (): void => {
    if (!location.hash.startsWith("#/learn")) return;
    const at = lessonOf(location.hash);
    leave.abort();
    leave = new AbortController();
    links.forEach((link, i) => (i === at ? link.setAttribute("aria-current", "step") : link.removeAttribute("aria-current")));
    fillLesson(page, app, LESSONS[at]!, at, leave.signal);
  };
  window.addEventListener("hashchange", show);
  show();
  return () => {
    leave.abort();
    window.removeEventListener("hashchange", show);
  };
}

function address(at: number): string {
  return `#/learn/${at + 1}`;
}

function lessonOf(hash: string): number {
  const number = Number.parseInt(hash.split("/")[2] ?? "1", 10);
  return Number.isNaN(number) ? 0 : Math.max(0, Math.min(LESSONS.length - 1, number - 1));
}

function fillLesson(page: HTMLElement, app: App, lesson: Lesson, at: number, signal: AbortSignal): void {
  const experiment = el("section", { class: "try", "aria-label": "Try it" }, el("h3", {}, "Try it"));
  fill(
    page,
    el("h2", {}, `${at + 1}. ${lesson.title}`),
    ...lesson.text(app).map((text) => el("p", {}, text)),
    drawn(PICTURES[at]!),
    experiment,
    question(lesson),
    el(
      "div",
      { class: "row turns" },
      at > 0 && el("a", { href: address(at - 1), rel: "prev" }, `Back: ${LESSONS[at - 1]!.title}`),
      at + 1 < LESSONS.length
        ? el("a", { href: address(at + 1), rel: "next" }, `Next: ${LESSONS[at + 1]!.title}`)
        : el("span", {}, "The end of the tour. Both phases of your own requests are on ", el("a", { href: "#/live" }, "Live"), ", one step at a time on ", el("a", { href: "#/step" }, "Step"), "."),
    ),
  );
  lesson.experiment(experiment, app, signal);
}

/** The question: choosing an answer says at once what there is to say about it, and another may be tried. */
function question(lesson: Lesson): HTMLElement {
  const verdict = el("p", { class: "verdict", role: "status" });
  const name = `question-${LESSONS.indexOf(lesson)}`;
  const choices = lesson.choices.map((choice) => {
    const choose = (): void => {
      verdict.dataset["right"] = String(choice.isRight);
      say(verdict, choice.explanation);
    };
    const input = el("input", { type: "radio", name, onchange: choose });
    return el("label", { class: "choice" }, input, el("span", {}, choice.text));
  });
  return el("fieldset", { class: "question" }, el("legend", {}, lesson.question), ...choices, verdict);
}
