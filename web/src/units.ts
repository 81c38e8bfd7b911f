// Numbers as people read them.

/** Milliseconds: `0.82 ms`, `48 ms`, `1.4 s`, `3 min`. */
export function ms(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0 ms";
  if (size < 9.95) return `${value.toFixed(size < 0.995 ? 2 : 1)} ms`;
  if (size < 999.5) return `${value.toFixed(0)} ms`;
  if (size < 99_500) return `${(value / 1000).toFixed(size < 9950 ? 2 : 1)} s`;
  return `${(value / 60_000).toFixed(size < 6e5 ? 1 : 0)} min`;
}

const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

/** Three digits and a prefix: `1.23 G`, to be followed by a unit. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return "–";
  let size = Math.abs(value);
  let step = 0;
  while (size >= 999.5 && step < PREFIXES.length - 1) {
    size /= 1000;
    step += 1;
  }
  const digits = step === 0 && Number.isInteger(value) ? 0 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return `${value < 0 ? "-" : ""}${size.toFixed(digits)} ${PREFIXES[step]}`;
}

/** The middle of the values, or of the two in the middle, as the server's figures have it; 0 of none. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length === 0 ? 0 : (sorted[(sorted.length - 1) >> 1]! + sorted[half]!) / 2;
}

/** A share from 0 to 1 as per cent. */
export function percent(share: number): string {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value.toFixed(value < 9.95 && value > 0 ? 1 : 0)} %`;
}

/** `1 token`, `2 tokens`, `12,345 tokens`. */
export function count(number: number, one: string, many = `${one}s`): string {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** The end of a long response id tells it from the others: `…3f9a21`; numbers of other requests as `#4711`. */
export function shortName(name: string | number): string {
  if (typeof name === "number") return `#${name}`;
  return name.length <= 10 ? name : `…${name.slice(-7)}`;
}
