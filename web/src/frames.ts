// One animation loop for the page. A view asks for a frame when something changed; without a request nothing runs.
//
// What the frames cost can be read from outside, as tests do: `window.__frames`.

/** The newest frames: when each began (ms of `performance.now()`), and how long drawing it took. */
export interface Measured {
  /** Frames drawn since the page was loaded. */
  count: number;
  /** The newest 600, oldest first. */
  samples(): { at: number; took: number }[];
}

declare global {
  interface Window {
    __frames: Measured;
  }
}

const KEPT = 600;
const began = new Float64Array(KEPT);
const took = new Float64Array(KEPT);
const wanted = new Set<(now: number) => void>();
let asked = 0;

export const frames: Measured = {
  count: 0,
  samples: () => {
    const number = Math.min(frames.count, KEPT);
    return Array.from({ length: number }, (_, i) => {
      const slot = (frames.count - number + i) % KEPT;
      return { at: began[slot]!, took: took[slot]! };
    });
  },
};
window.__frames = frames;

/** Has `draw` called in the next frame, once however often it is asked for. */
export function wantFrame(draw: (now: number) => void): void {
  wanted.add(draw);
  asked ||= requestAnimationFrame(frame);
}

/** Takes the wish back. */
export function dropFrame(draw: (now: number) => void): void {
  wanted.delete(draw);
}

function frame(now: number): void {
  asked = 0;
  const draws = [...wanted];
  wanted.clear();
  const start = performance.now();
  for (const draw of draws) draw(now);
  const slot = frames.count % KEPT;
  began[slot] = now;
  took[slot] = performance.now() - start;
  frames.count += 1;
}
