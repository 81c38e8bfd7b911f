// Conversations as files: JSON, which can be read in again and makes the same tree, and Markdown, for people.
//
//   { "format": "twostroke-conversations", "version": 1, "conversations": [ { "title", ..., "leaf": 3, "messages": [ { "parent": 0, ... } ] } ] }
//
// A message is called by its place in the list, and comes after its parent.

import { conversationOf, list, messageOf, object } from "./check";
import { type Conversation, type Message, newId, pathTo } from "./tree";

const FORMAT = "twostroke-conversations";
/** Bytes of a file, conversations in it, and messages of one. */
export const LARGEST_FILE = 64 * 2 ** 20;
const MOST_CONVERSATIONS = 10_000;
const MOST_MESSAGES = 100_000;

export interface Kept {
  conversation: Conversation;
  messages: Message[];
}

/** Parents before children, and the older before the newer. */
function inOrder(messages: Message[]): Message[] {
  const children = new Map<string | null, Message[]>();
  const known = new Set(messages.map(({ id }) => id));
  for (const message of [...messages].sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1))) {
    const parent = message.parent != null && known.has(message.parent) ? message.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), message]);
  }
  const ordered: Message[] = [];
  const open = [...(children.get(null) ?? [])].reverse();
  for (let next = open.pop(); next; next = open.pop()) {
    ordered.push(next);
    open.push(...(children.get(next.id) ?? []).reverse());
  }
  return ordered;
}

export function toJson(all: Kept[]): string {
  const conversations = all.map(({ conversation, messages }) => {
    const ordered = inOrder(messages);
    const place = new Map(ordered.map(({ id }, at) => [id, at]));
    const { title, created, changed, settings } = conversation;
    const written = ordered.map((message) => {
      const { parent, role, content, files, thought, answer, at } = message;
      const about = answer && { id: answer.id, finish: answer.finish, error: answer.error, tokens: answer.tokens, promptTokens: answer.promptTokens, thoughtTokens: answer.thoughtTokens, thoughtMs: answer.thoughtMs, timings: answer.timings && { ...answer.timings, detail: undefined } };
      return { parent: place.get(parent ?? "") ?? null, role, content, files, thought, answer: about, at };
    });
    return { title, created, changed, settings, leaf: place.get(conversation.leaf ?? "") ?? null, messages: written };
  });
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** What a file holds, under new names. An error says which field is not as it should be. */
export function fromJson(json: string): Kept[] {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    throw new Error(`the file is no JSON (${error instanceof Error ? error.message : error})`);
  }
  const file = object(value, "the file");
  if (file["format"] !== FORMAT || file["version"] !== 1) throw new Error(`the file is no export of this page: "format" has to be "${FORMAT}" and "version" 1`);
  return list(file["conversations"], "conversations", MOST_CONVERSATIONS).map((each, i) => read(each, `conversations[${i}]`));
}

function read(value: unknown, where: string): Kept {
  const fields = object(value, where);
  const entries = list(fields["messages"], `${where}.messages`, MOST_MESSAGES);
  const id = newId();
  const ids = entries.map(() => newId());
  const named = (place: unknown, before: number, name: string): string | null => {
    if (place == null) return null;
    if (typeof place === "number" && Number.isInteger(place) && place >= 0 && place < before) return ids[place]!;
    throw new Error(`${name} is ${JSON.stringify(place)?.slice(0, 60)}: it has to be null or the place of an earlier message`);
  };
  const messages = entries.map((entry, i): Message => {
    const here = `${where}.messages[${i}]`;
    const fields = object(entry, here);
    return { ...messageOf(fields, here), id: ids[i]!, conversation: id, parent: named(fields["parent"], i, `${here}.parent`) };
  });
  const leaf = named(fields["leaf"], ids.length, `${where}.leaf`);
  return { conversation: { ...conversationOf(fields, where), id, leaf }, messages };
}

/** The path that is shown, as Markdown. */
export function toMarkdown(all: Kept[]): string {
  return all
    .map(({ conversation, messages }) => {
      const byId = new Map(messages.map((message) => [message.id, message]));
      const parts = pathTo(byId, conversation.leaf).map(({ role, content, files }) => {
        const names = files.map(({ name }) => `*${name}*\n\n`).join("");
        return `## ${role === "user" ? "You" : "Model"}\n\n${names}${content}\n`;
      });
      const system = conversation.settings.system === "" ? "" : `> ${conversation.settings.system.replaceAll("\n", "\n> ")}\n\n`;
      return `# ${conversation.title}\n\n${system}${parts.join("\n")}`;
    })
    .join("\n---\n\n");
}

/** Hands a file to the reader. */
export function download(name: string, kind: string, content: string): void {
  const address = URL.createObjectURL(new Blob([content], { type: kind }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
