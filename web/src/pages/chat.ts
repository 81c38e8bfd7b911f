import type { App } from "../app";
import { add, el } from "../dom";

export function mount(root: HTMLElement, _app: App): () => void {
  add(root, el("h1", {}, "Chat"), el("p", {}, "This page is not there yet."));
  return () => undefined;
}
