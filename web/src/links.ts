// Where an answer may lead, and character references in its text.

import { el } from "./dom";

const SCHEMES = ["http:", "https:", "mailto:"];

/** A link that leads elsewhere by one of three schemes, and tells the other page nothing; `null` for any other address. */
export function linkTo(address: string, title?: string | null): HTMLAnchorElement | null {
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    return null; // relative ones too: an answer is no page of this server
  }
  if (!SCHEMES.includes(url.protocol)) return null;
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: title ? decode(title) : null });
}

const NAMES: Record<string, string> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", deg: "°", plusmn: "±", times: "×", divide: "÷",
  middot: "·", bull: "•", hellip: "…", ndash: "–", mdash: "—", larr: "←", rarr: "→", uarr: "↑", darr: "↓", le: "≤", ge: "≥", ne: "≠", infin: "∞",
};

/** `&lt;` and `&#60;` as the character that they stand for; a name that is not known stays as it is. */
export function decode(text: string): string {
  return text.replace(/&(?:([a-z]{2,6})|#(\d{1,7})|#x([\da-f]{1,6}));/gi, (whole, name?: string, decimal?: string, hex?: string) => {
    if (name) return Object.hasOwn(NAMES, name) ? NAMES[name]! : whole;
    const point = decimal ? Number(decimal) : parseInt(hex!, 16);
    const isCharacter = point > 0 && point <= 0x10ffff && !(point >= 0xd800 && point <= 0xdfff);
    return isCharacter ? String.fromCodePoint(point) : "\ufffd";
  });
}
