// Learn: a tour over the running engine. Only its head is here; the lessons are in a file of their own, fetched when the page opens.

import type { App } from "../app";
import { add, el, say } from "../dom";
import "./learn.css";

export function mount(root: HTMLElement, app: App): () => void {
  const status = el("p", { class: "quiet-text", role: "status" }, "Fetching the lessons…");
  const tour = el("div", {});
  add(root, el("h1", {}, "Learn"), el("p", {}, "A tour of the two phases in 18 short lessons, on the engine that runs here. What you try is sent to it, and the numbers are its own unless they are marked as planned."), status, tour);
  let isLeft = false;
  let leave = (): void => undefined;
  import("../learn/tour").then(
    (lessons) => {
      if (isLeft) return;
      status.remove();
      leave = lessons.mount(tour, app);
    },
    () => say(status, "The lessons could not be fetched (/tour.js). Reload the page when the server can be reached."),
  );
  return () => {
    isLeft = true;
    leave();
  };
}
