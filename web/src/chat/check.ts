// What is read from a file or from the browser's storage, looked at before it is believed: either of them may have been written by
// another program. What is not as it should be is an error that names the field.

import type { Answer, Timings } from "../ask";
import type { Attachment, Conversation, Message, Settings } from "./tree";

type Fields = Record<string, unknown>;

/** Characters of a text, and of a name. */
const LONGEST = 16 * 2 ** 20;
const LONGEST_NAME = 1_000;
const MOST_FILES = 100;

/** A record of the storage as a conversation; `null` for anything else. */
export function asConversation(value: unknown): Conversation | null {
  return attempt(() => {
    const fields = object(value, "a conversation");
    const leaf = fields["leaf"];
    return { ...conversationOf(fields, "a conversation"), id: text(fields, "id", "a conversation", LONGEST_NAME), leaf: typeof leaf === "string" ? leaf : null };
  });
}

/** A record of the storage as a message; `null` for anything else. */
export function asMessage(value: unknown): Message | null {
  return attempt(() => {
    const fields = object(value, "a message");
    const parent = fields["parent"];
    const [id, conversation] = [text(fields, "id", "a message", LONGEST_NAME), text(fields, "conversation", "a message", LONGEST_NAME)];
    return { ...messageOf(fields, "a message"), id, conversation, parent: typeof parent === "string" ? parent : null };
  });
}

function attempt<T>(read: () => T): T | null {
  try {
    return read();
  } catch {
    return null;
  }
}

/** What a conversation has by itself; `where` begins an error. */
export function conversationOf(fields: Fields, where: string): Omit<Conversation, "id" | "leaf"> {
  return { title: text(fields, "title", where, LONGEST_NAME), created: number(fields, "created", where), changed: number(fields, "changed", where), settings: settingsOf(fields["settings"], `${where}.settings`) };
}

export function settingsOf(value: unknown, where: string): Settings {
  const fields = object(value ?? {}, where);
  const sampling = Object.entries(object(fields["sampling"] ?? {}, `${where}.sampling`)).slice(0, 32);
  // Numbers of the form, as text.
  const kept = sampling.filter(([name, entry]) => /^[a-z_]{1,32}$/.test(name) && typeof entry === "string" && /^[\d.eE+-]{0,32}$/.test(entry));
  return { model: text(fields, "model", where, LONGEST_NAME, ""), system: text(fields, "system", where, LONGEST, ""), stop: text(fields, "stop", where, LONGEST_NAME * 10, ""), sampling: Object.fromEntries(kept) as Record<string, string> };
}

/** What a message has by itself. */
export function messageOf(fields: Fields, where: string): Omit<Message, "id" | "conversation" | "parent"> {
  const { role } = fields;
  if (role !== "user" && role !== "assistant") throw new Error(`${where}.role is ${show(role)}: it has to be "user" or "assistant"`);
  const files = list(fields["files"] ?? [], `${where}.files`, MOST_FILES).map((file, i) => fileOf(file, `${where}.files[${i}]`));
  const content = text(fields, "content", where, LONGEST);
  const thought = text(fields, "thought", where, LONGEST, "");
  return { role, content, files, thought, answer: role === "user" ? null : answerOf(fields["answer"], `${where}.answer`), at: number(fields, "at", where) };
}

function fileOf(value: unknown, where: string): Attachment {
  const fields = object(value, where);
  return { name: text(fields, "name", where, LONGEST_NAME), text: text(fields, "text", where, LONGEST) };
}

const NUMBERS = ["queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "total_ms", "prefill_tokens", "cached_tokens", "decode_tokens", "prefill_tokens_per_second", "decode_tokens_per_second", "preemptions"] as const;
const OPTIONAL = ["drafted_tokens", "accepted_tokens"] as const;

/** An answer that is over; where nothing is said of it, the page was closed before. */
function answerOf(value: unknown, where: string): Answer {
  const fields = object(value ?? { finish: "reload" }, where);
  const whole = (name: string): number => (isNumber(fields[name]) ? fields[name] : 0);
  return {
    id: text(fields, "id", where, LONGEST_NAME, ""), finish: text(fields, "finish", where, LONGEST_NAME, ""), error: text(fields, "error", where, LONGEST, ""), text: "", thought: "", moments: [], timings: timingsOf(fields["timings"]),
    tokens: whole("tokens"), promptTokens: whole("promptTokens"), thoughtTokens: whole("thoughtTokens"), thoughtMs: whole("thoughtMs"),
  };
}

/** Figures that are all there, or none. */
function timingsOf(value: unknown): Timings | null {
  if (typeof value !== "object" || value == null) return null;
  const fields = value as Fields;
  if (!NUMBERS.every((name) => isNumber(fields[name]))) return null;
  const kept = [...NUMBERS, ...OPTIONAL].filter((name) => isNumber(fields[name])).map((name) => [name, fields[name]]);
  return Object.fromEntries(kept) as unknown as Timings;
}

export function object(value: unknown, where: string): Fields {
  if (typeof value !== "object" || value == null || Array.isArray(value)) throw new Error(`${where} is ${show(value)}: it has to be an object`);
  return value as Fields;
}

export function list(value: unknown, where: string, most: number): unknown[] {
  if (!Array.isArray(value)) throw new Error(`${where} is ${show(value)}: it has to be a list`);
  if (value.length > most) throw new Error(`${where} has ${value.length.toLocaleString("en")} entries: at most ${most.toLocaleString("en")} are read`);
  return value;
}

export function text(fields: Fields, name: string, where: string, most: number, otherwise?: string): string {
  const value = fields[name] ?? otherwise;
  if (typeof value !== "string") throw new Error(`${where}.${name} is ${show(value)}: it has to be a text`);
  if (value.length > most) throw new Error(`${where}.${name} has ${value.length.toLocaleString("en")} characters: at most ${most.toLocaleString("en")} are read`);
  return value;
}

function number(fields: Fields, name: string, where: string): number {
  const value = fields[name];
  if (!isNumber(value)) throw new Error(`${where}.${name} is ${show(value)}: it has to be a number`);
  return value;
}

function isNumber(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

function show(value: unknown): string {
  return value === undefined ? "missing" : (JSON.stringify(value)?.slice(0, 60) ?? "no JSON");
}
