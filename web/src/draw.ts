// Canvas helpers and the colours of the theme. Prefill has one colour and decode another, the same two everywhere.

/** Colours as CSS text, read from the style sheet. */
export interface Colours {
  prefill: string;
  decode: string;
  thinking: string;
  queue: string;
  cached: string;
  late: string;
  preempted: string;
  ink: string;
  quiet: string;
  line: string;
  panel: string;
  lane: string;
  accent: string;
}

let colours: Colours | null = null;
const onTheme = new Set<() => void>();

/** The colours of the current theme. */
export function theme(): Colours {
  if (!colours) {
    const style = getComputedStyle(document.documentElement);
    const read = (name: string): string => style.getPropertyValue(`--${name}`).trim();
    colours = {
      prefill: read("prefill"),
      decode: read("decode"),
      thinking: read("thinking"),
      queue: read("queue"),
      cached: read("cached"),
      late: read("late"),
      preempted: read("preempted"),
      ink: read("ink"),
      quiet: read("quiet"),
      line: read("line"),
      panel: read("panel"),
      lane: read("lane"),
      accent: read("accent"),
    };
  }
  return colours;
}

/** The theme became another one. */
export function themeChanged(): void {
  colours = null;
  for (const listener of onTheme) listener();
}

/** Calls `listener` when the theme changes. Returns what ends it. */
export function watchTheme(listener: () => void): () => void {
  onTheme.add(listener);
  return () => onTheme.delete(listener);
}

/** `#rrggbb` as a pixel of `ImageData` seen as 32-bit words (little-endian: alpha, blue, green, red); `alpha` is 255 at most. */
export function pixel(colour: string, alpha = 255): number {
  const value = Number.parseInt(colour.slice(1), 16);
  return ((alpha << 24) | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** The same colour, nearer to black. */
export function darker(colour: string): string {
  return `#${[1, 3, 5].map((at) => Math.round(Number.parseInt(colour.slice(at, at + 2), 16) * 0.55).toString(16).padStart(2, "0")).join("")}`;
}

/** Colours that tell requests apart, stable per request: none is like those of the phases and of the cache. `index` counts requests. */
export function requestColour(index: number, dark: boolean): string {
  // Neighbours are a golden angle apart on what is left of the circle of hues: violet to red, yellow to green, cyan.
  const part = (index * 0.618034 * 200) % 200;
  const hue = part < 115 ? 232 + part : part < 180 ? 50 + (part - 115) : 172 + (part - 180);
  return hex(hue, dark ? 0.55 : 0.6, [0.1, 0, -0.1][index % 3]! * 0.9 + (dark ? 0.62 : 0.48));
}

function hex(hue: number, saturation: number, lightness: number): string {
  const a = saturation * Math.min(lightness, 1 - lightness);
  const part = (n: number): string => {
    const k = (n + hue / 30) % 12;
    const value = lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(value * 255).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}

/** Whether the page is dark now: the switch, or what the system prefers. */
export function isDark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** A canvas that fills its parent's width and keeps its own pixels sharp. */
export class Surface {
  readonly context: CanvasRenderingContext2D;
  /** Size in CSS pixels. */
  width = 0;
  height = 0;
  private observer: ResizeObserver;

  /** `changed` is called when the size is another one; the size comes from the observer, so no frame asks for layout. */
  constructor(
    readonly canvas: HTMLCanvasElement,
    changed: () => void,
  ) {
    this.context = canvas.getContext("2d")!;
    this.observer = new ResizeObserver(([entry]) => {
      const { width, height } = entry!.contentRect;
      if (width === this.width && height === this.height) return;
      this.width = width;
      this.height = height;
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      changed();
    });
    this.observer.observe(canvas);
  }

  get ratio(): number {
    return window.devicePixelRatio || 1;
  }

  /** An empty surface to draw on in CSS pixels. */
  begin(): CanvasRenderingContext2D {
    const { context } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = FONT;
    context.textBaseline = "middle";
    return context;
  }

  end(): void {
    this.observer.disconnect();
  }
}

/** Diagonal stripes of `period` pixels, as much ink as gap: what is drawn through them is time of other requests. */
export function stripes(context: CanvasRenderingContext2D, period: number): CanvasPattern {
  const sheet = document.createElement("canvas");
  sheet.width = sheet.height = period;
  const brush = sheet.getContext("2d")!;
  const half = period / 2;
  // A band from the lower left to the upper right, and its continuation in the corner.
  for (const shift of [0, -period]) {
    brush.beginPath();
    brush.moveTo(shift, period);
    brush.lineTo(shift + period, 0);
    brush.lineTo(shift + period + half, 0);
    brush.lineTo(shift + half, period);
    brush.fill();
  }
  return context.createPattern(sheet, "repeat")!;
}

export interface Point {
  x: number;
  y: number;
}

/** From the request that caused a wait to the one that waited. */
export function arrow(context: CanvasRenderingContext2D, from: Point, to: Point): void {
  const angle = Math.atan2(to.y - from.y, to.x - from.x);
  const back = (turn: number): [number, number] => [to.x - 9 * Math.cos(angle + turn), to.y - 9 * Math.sin(angle + turn)];
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.lineTo(to.x, to.y);
  context.stroke();
  context.beginPath();
  context.moveTo(to.x, to.y);
  context.lineTo(...back(0.4));
  context.lineTo(...back(-0.4));
  context.fill();
  context.beginPath();
  context.arc(from.x, from.y, 3.5, 0, 2 * Math.PI);
  context.fill();
  context.lineWidth = 1;
}

export const FONT = "11px system-ui, sans-serif";

/** Round distances for about `wanted` lines of an axis: 1, 2 or 5 times a power of ten. */
export function tick(range: number, wanted: number): number {
  const raw = range / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = raw / power;
  return (step <= 1 ? 1 : step <= 2 ? 2 : step <= 5 ? 5 : 10) * power;
}
