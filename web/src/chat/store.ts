// Where conversations are kept: the browser's IndexedDB, which every tab of this address shares. The server stores nothing.
//
//   conversations   id -> title, settings, leaf        messages   id -> its text, parent, conversation (indexed)
//
// A browser without storage, or with a full one, keeps them for as long as the page is open, and the page says so.

import { type IDBPDatabase, openDB } from "idb";
import { asConversation, asMessage } from "./check";
import type { Conversation, Message } from "./tree";

const NAME = "twostroke-chat";
/** A browser that has not opened its storage by then, ms, has none. */
const PATIENCE_MS = 5_000;
/** Conversations whose words hold what is searched for. */
const MOST_FOUND = 100;

export class Store {
  /** Why nothing is kept beyond this page; empty where it is. */
  problem = "";
  private conversations = new Map<string, Conversation>();
  private messages = new Map<string, Map<string, Message>>();
  private database: Promise<IDBPDatabase | null> = this.open();
  private channel = "BroadcastChannel" in window ? new BroadcastChannel(NAME) : null;

  /** Calls `listener` when another tab has changed a conversation. */
  onChange(listener: (conversation: string) => void): void {
    this.channel?.addEventListener("message", ({ data }) => typeof data === "string" && listener(data));
  }

  /** All, the last changed first. */
  async all(): Promise<Conversation[]> {
    const database = await this.database;
    const kept: unknown[] = database ? await database.getAll("conversations") : [...this.conversations.values()];
    return kept.flatMap((each) => asConversation(each) ?? []).sort((a, b) => b.changed - a.changed);
  }

  /** The messages of a conversation by their ids. */
  async messagesOf(conversation: string): Promise<Map<string, Message>> {
    const database = await this.database;
    const kept: unknown[] = database ? await database.getAllFromIndex("messages", "conversation", conversation) : [...(this.messages.get(conversation)?.values() ?? [])];
    return new Map(kept.flatMap((each) => asMessage(each) ?? []).map((message) => [message.id, message]));
  }

  /** Keeps a conversation and these messages of it. */
  async put(conversation: Conversation, messages: Message[]): Promise<void> {
    const database = await this.database;
    if (!database) return this.remember(conversation, messages);
    try {
      const change = database.transaction(["conversations", "messages"], "readwrite");
      const puts = messages.map((message) => change.objectStore("messages").put(message));
      await Promise.all([change.objectStore("conversations").put(conversation), ...puts, change.done]);
      this.channel?.postMessage(conversation.id);
    } catch (error) {
      this.problem = `The browser's storage takes no more (${error instanceof Error ? error.name : error}): what is said now is gone when the page is closed. Export it, or delete conversations.`;
    }
  }

  /** Forgets a conversation with its messages. */
  async remove(conversation: string): Promise<void> {
    this.conversations.delete(conversation);
    this.messages.delete(conversation);
    const database = await this.database;
    if (!database) return;
    const change = database.transaction(["conversations", "messages"], "readwrite");
    const ids = await change.objectStore("messages").index("conversation").getAllKeys(conversation);
    await Promise.all([change.objectStore("conversations").delete(conversation), ...ids.map((id) => change.objectStore("messages").delete(id)), change.done]);
    this.channel?.postMessage(conversation);
  }

  /** Conversations of which a message has these words, in any case of letters. */
  async find(words: string): Promise<Set<string>> {
    const found = new Set<string>();
    const wanted = words.toLowerCase();
    const look = ({ conversation, content }: Partial<Message>): void => {
      if (conversation && !found.has(conversation) && content?.toLowerCase().includes(wanted)) found.add(conversation);
    };
    const database = await this.database;
    if (!database) for (const messages of this.messages.values()) messages.forEach(look);
    let cursor = await database?.transaction("messages").store.openCursor();
    while (cursor && found.size < MOST_FOUND) {
      look(cursor.value);
      cursor = await cursor.continue();
    }
    return found;
  }

  private remember(conversation: Conversation, messages: Message[]): void {
    this.conversations.set(conversation.id, conversation);
    const known = this.messages.get(conversation.id) ?? new Map<string, Message>();
    for (const message of messages) known.set(message.id, message);
    this.messages.set(conversation.id, known);
  }

  private async open(): Promise<IDBPDatabase | null> {
    try {
      const opened = openDB(NAME, 1, {
        upgrade(database) {
          database.createObjectStore("conversations", { keyPath: "id" });
          database.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
        },
      });
      opened.catch(() => {}); // heard below, or too late
      const late = new Promise<never>((_, reject) => setTimeout(() => reject(new Error("it does not open")), PATIENCE_MS));
      return await Promise.race([opened, late]);
    } catch {
      this.problem = "This browser keeps nothing for this page: conversations are gone when the page is closed or loaded again.";
      return null;
    }
  }
}
