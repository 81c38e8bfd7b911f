// Finding requests on the timeline by what is known of them.
//
//   9f21            the end of an id          waiting     time in the queue       model:qwen   answered by such a model
//   late            each late token           preempted   time without blocks     late 9f21    both

import { el, say } from "./dom";
import type { Log, Request } from "./log";
import { extent, type Hit } from "./tips";
import { count } from "./units";

/** Places that are walked through. */
const MOST_HITS = 4096;
/** A queue in which one waits for less, ms, is none. */
const LEAST_WAIT_MS = 1;

const KINDS: Record<string, (request: Request, log: Log) => Hit[]> = {
  late: (request, log) => request.tokens.flatMap((token) => (token.late ? [{ kind: "token" as const, token, step: log.stepById(token.step) }] : [])),
  waiting: (request, log) => {
    const { arrived: from, firstPass: to } = request;
    return from == null || (to ?? log.newest) - from < LEAST_WAIT_MS ? [] : [{ kind: "queue", request, from, to }];
  },
  preempted: (request) => request.pauses.map((pause) => ({ kind: "pause" as const, request, ...pause })),
};

/** The places that a query means, oldest first; each word of it narrows them. */
export function find(log: Log, query: string, model: string): Hit[] {
  const terms = query.toLowerCase().split(/\s+/).filter((term) => term !== "");
  const kinds = terms.flatMap((term) => KINDS[term] ?? []);
  const names = terms.filter((term) => !KINDS[term]);
  const isNamed = ({ name }: Request): boolean => names.every((term) => (term.startsWith("model:") ? model.toLowerCase().includes(term.slice(6)) : String(name).toLowerCase().endsWith(term)));
  const hits: Hit[] = [];
  for (const request of terms.length > 0 ? log.requests.values() : []) {
    if (!isNamed(request)) continue;
    const found = kinds.map((kind) => kind(request, log));
    if (found.every((some) => some.length > 0)) hits.push(...(found.length > 0 ? found.flat() : [{ kind: "whole" as const, request }]));
  }
  return hits.sort((a, b) => extent(a).from - extent(b).from).slice(0, MOST_HITS);
}

/** The field: Enter goes to the next place, with Shift to the one before, Escape leaves. */
export class Search {
  readonly element: HTMLElement;
  private field = el("input", { type: "search", placeholder: "Search ( / )", "aria-label": "Search requests", title: "End of an id, late, waiting, preempted, model:x. Enter goes through what is found.", maxlength: 200 });
  private said = el("span", { class: "quiet-text number", role: "status" });
  private hits: Hit[] = [];
  private at = -1;

  constructor(
    private look: (query: string) => Hit[],
    private go: (hit: Hit) => void,
    leave: () => void,
  ) {
    this.element = el("span", { class: "row search" }, this.field, this.said);
    this.field.addEventListener("input", () => this.refresh());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.walk(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") {
        this.field.value = "";
        this.refresh();
        leave();
      } else return;
      event.preventDefault();
    });
    document.addEventListener("keydown", this.slash);
  }

  end(): void {
    document.removeEventListener("keydown", this.slash);
  }

  private slash = (event: KeyboardEvent): void => {
    const isWriting = event.target instanceof Element && event.target.closest("input, textarea, select, dialog");
    if (event.key !== "/" || isWriting || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.field.focus();
    this.field.select();
  };

  private refresh(): void {
    this.hits = this.look(this.field.value);
    this.at = -1;
    say(this.said, this.field.value.trim() === "" ? "" : this.hits.length > 0 ? count(this.hits.length, "hit") : "nothing");
  }

  private walk(by: number): void {
    const before = this.hits[this.at];
    // What came meanwhile is found too, and one goes on from where one was.
    this.refresh();
    const same = before ? this.hits.findIndex((hit) => hit.kind === before.kind && extent(hit).from === extent(before).from && extent(hit).request === extent(before).request) : -1;
    if (this.hits.length === 0) return;
    this.at = same < 0 ? (by > 0 ? 0 : this.hits.length - 1) : (same + by + this.hits.length) % this.hits.length;
    say(this.said, `${(this.at + 1).toLocaleString("en")} of ${this.hits.length.toLocaleString("en")}`);
    this.go(this.hits[this.at]!);
  }
}
