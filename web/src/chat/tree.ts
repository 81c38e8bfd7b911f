// A conversation as a tree: an edited question and a retried answer stand beside the first, and what is shown is one path.
//
//   question ── answer ── question ── answer
//           └── answer             └─ (edited) question ── answer   <- leaf: the path to here is shown

import type { Answer } from "../ask";

export interface Attachment {
  name: string;
  text: string;
}

export interface Message {
  id: string;
  conversation: string;
  /** What it answers or follows; `null`: it is a beginning. */
  parent: string | null;
  role: "user" | "assistant";
  content: string;
  /** Text files that go with a question. */
  files: Attachment[];
  /** What was thought before it was said. */
  thought: string;
  /** What came of it, when it is over; of a question `null`. */
  answer: Answer | null;
  /** ms since 1970. */
  at: number;
}

/** How answers of a conversation are made. */
export interface Settings {
  /** Which model answers, where the server has several; empty: its first. */
  model: string;
  system: string;
  /** A string in each line. */
  stop: string;
  /** Fields of the API by name, as they stand in the form; an empty one is not sent. */
  sampling: Record<string, string>;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  changed: number;
  /** The last message of the path that is shown. */
  leaf: string | null;
  settings: Settings;
}

export const NO_TITLE = "New conversation";
const LONGEST_TITLE = 48;

export function newConversation(settings: Settings): Conversation {
  const now = Date.now();
  return { id: newId(), title: NO_TITLE, created: now, changed: now, leaf: null, settings };
}

export function newId(): string {
  // `randomUUID` is missing where the page has no secure origin.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

type Messages = ReadonlyMap<string, Message>;

/** From the beginning to `leaf`. */
export function pathTo(messages: Messages, leaf: string | null): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>();
  for (let id = leaf; id != null && !seen.has(id); ) {
    const message = messages.get(id);
    if (!message) break;
    seen.add(id);
    path.push(message);
    id = message.parent;
  }
  return path.reverse();
}

/** Those with the same parent, oldest first. */
export function siblings(messages: Messages, message: Message): Message[] {
  return childrenOf(messages, message.parent);
}

function childrenOf(messages: Messages, parent: string | null): Message[] {
  return [...messages.values()].filter((each) => each.parent === parent).sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
}

/** The end of the path that goes on from a message with the newest at each fork. */
export function newestLeaf(messages: Messages, from: string): string {
  const newest = new Map<string, Message>();
  for (const message of messages.values()) {
    const before = message.parent == null ? undefined : newest.get(message.parent);
    if (message.parent != null && (!before || message.at >= before.at)) newest.set(message.parent, message);
  }
  let leaf = from;
  for (let steps = messages.size; steps > 0 && newest.has(leaf); steps -= 1) leaf = newest.get(leaf)!.id;
  return leaf;
}

/** The first words of a question. */
export function titleOf({ content, files }: Message): string {
  const words = content.trim().split(/\s+/).slice(0, 12).join(" ") || files[0]?.name || NO_TITLE;
  return words.length <= LONGEST_TITLE ? words : `${[...words.slice(0, LONGEST_TITLE)].slice(0, -1).join("").trimEnd()}…`;
}

/** A question as the model reads it: its words, then each file under its name, in a fence longer than any in it. */
export function asSent({ content, files }: Message): string {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(/`{3,}/g)].map(([ticks]) => ticks.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [content, ...parts].filter((part) => part !== "").join("\n\n");
}
