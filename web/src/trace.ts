// What the timeline shows, as a trace for ui.perfetto.dev: the server's trace of the last seconds, cut to the view.

import type { App } from "./app";
import { told } from "./ask";
import { download } from "./chat/transfer";
import type { Range } from "./selection";

/** What the server gives at most. */
const MOST_SECONDS = 3600;

/** An event of the Trace Event Format; times in microseconds of the engine's clock. */
interface TraceEvent {
  ph: string;
  ts?: number;
  dur?: number;
  id?: unknown;
}

/** Saves it; an error says why there is none. */
export async function saveTrace(app: App, { from, to }: Range): Promise<void> {
  const seconds = Math.min(MOST_SECONDS, Math.max(1, Math.ceil((app.feed.now() - from) / 1000) + 1));
  const response = await app.api(`/live/trace?seconds=${seconds}`);
  if (!response.ok) throw new Error(await told(response));
  const trace = (await response.json()) as { traceEvents: TraceEvent[] };
  download("twostroke-trace.json", "application/json", JSON.stringify({ ...trace, traceEvents: cut(trace.traceEvents, from * 1000, to * 1000) }));
}

/** Names, what overlaps the stretch, and arrows of which both ends are in it. */
function cut(events: TraceEvent[], from: number, to: number): TraceEvent[] {
  const isIn = ({ ts = 0, dur = 0 }: TraceEvent): boolean => ts + dur >= from && ts <= to;
  const ends = new Map<unknown, number>();
  const isFlow = ({ ph }: TraceEvent): boolean => ph === "s" || ph === "f";
  for (const event of events) if (isFlow(event) && isIn(event)) ends.set(event.id, (ends.get(event.id) ?? 0) + 1);
  return events.filter((event) => event.ph === "M" || (isIn(event) && (!isFlow(event) || ends.get(event.id) === 2)));
}
