// The conversations of the chat page, apart from the page: an answer goes on while another page or another conversation is
// shown, and what was said is there after a reload and in every tab. The browser keeps it (chat/store.ts), the server nothing.

import type { App } from "./app";
import { type Answer, ask, noAnswer, type Progress } from "./ask";
import { Models } from "./chat/models";
import { Store } from "./chat/store";
import { fromJson, type Kept } from "./chat/transfer";
import { asMessage } from "./chat/check";
import { asSent, type Attachment, type Conversation, type Message, newConversation, newestLeaf, newId, NO_TITLE, pathTo, type Settings, siblings, titleOf } from "./chat/tree";
import { dropFrame, wantFrame } from "./frames";
import { words } from "./words";

/** `text`: the answer that is written has grown; `progress`: more of its prompt is read; `turns`: the conversation is another; `list`: another one is. */
export type Change = "text" | "progress" | "turns" | "list";

/** An answer that is being written. */
interface Run {
  conversation: Conversation;
  message: Message;
  abort: AbortController;
  progress: Progress | null;
  /** What has come of it. */
  sofar: Answer;
}

/** Which conversation this tab shows. */
const SHOWN = "twostroke-conversation";
/** What had come of answers when the page was left: the browser's storage may not take it then. */
const UNFINISHED = "twostroke-unfinished";
/** An answer that is written is kept this often, ms, should the tab be killed. */
const KEEP_EVERY_MS = 2_000;
const SETTLE_MS = 300;

export class Talk {
  readonly store = new Store();
  readonly models = new Models();
  /** Those that have messages, the last changed first. */
  conversations: Conversation[] = [];
  current = newConversation({ model: "", system: "", stop: "", sampling: { max_tokens: "256" } });
  messages = new Map<string, Message>();
  /** When the pieces of the newest answer came. */
  moments: number[] = [];
  private runs = new Map<string, Run>();
  private removed: Kept | null = null;
  private timer = 0;
  private isLeaving = false;
  private listeners = new Set<(change: Change) => void>();

  constructor() {
    window.addEventListener("pagehide", () => {
      this.leave();
      this.isLeaving = true;
    });
    window.addEventListener("pageshow", () => (this.isLeaving = false));
    this.store.onChange((id) => void this.changedElsewhere(id));
    void this.restore();
  }

  /** From the first question to the message that is last shown. */
  get turns(): Message[] {
    return pathTo(this.messages, this.current.leaf);
  }

  get isAnswering(): boolean {
    return this.runs.has(this.current.id);
  }

  /** Whether an answer of another conversation is being written. */
  isAnsweringIn(conversation: string): boolean {
    return this.runs.has(conversation);
  }

  /** How far the prompt of the answer that is written is read, before the answer begins. */
  get progress(): Progress | null {
    return this.runs.get(this.current.id)?.progress ?? null;
  }

  /** Tokens of the model's context that the conversation takes: those of its last prompt and answer. */
  get used(): number {
    const run = this.runs.get(this.current.id);
    if (run) return (run.sofar.promptTokens || run.progress?.total || 0) + run.sofar.tokens;
    const answer = [...this.turns].reverse().find(({ answer }) => answer?.timings)?.answer;
    if (!answer?.timings) return 0;
    const { prefill_tokens, cached_tokens, decode_tokens } = answer.timings;
    return answer.promptTokens > 0 ? answer.promptTokens + answer.tokens : prefill_tokens + cached_tokens + decode_tokens + 1;
  }

  /** What has come of the answer that is written in this conversation. */
  get sofar(): Answer | null {
    return this.runs.get(this.current.id)?.sofar ?? null;
  }

  /** Nothing has come of the answer that is written, not even word that its prompt is read. */
  get isSilent(): boolean {
    const run = this.runs.get(this.current.id);
    return run != null && run.progress == null && run.sofar.id === "";
  }

  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Begins another conversation, with the same sampling. */
  begin(): void {
    this.show(newConversation({ ...structuredClone(this.current.settings), system: "" }), new Map());
  }

  async open(conversation: Conversation): Promise<void> {
    const messages = await this.store.messagesOf(conversation.id);
    const run = this.runs.get(conversation.id);
    if (run) messages.set(run.message.id, run.message);
    this.show(conversation, messages);
  }

  /** A question, and its answer. */
  ask(app: App, content: string, files: Attachment[]): void {
    this.add({ parent: this.turns.at(-1)?.id ?? null, role: "user", content, files });
    void this.answer(app);
  }

  /** The question again in other words, beside the first. */
  edit(app: App, { parent, files }: Message, content: string): void {
    if (this.isAnswering) return;
    this.add({ parent, role: "user", content, files });
    void this.answer(app);
  }

  /** Another answer to the same question, beside the first. */
  retry(app: App, { parent }: Message): void {
    if (this.isAnswering || parent == null) return;
    this.current.leaf = parent;
    void this.answer(app);
  }

  /** The next or the one before of the messages that stand at one place. */
  walk(message: Message, by: number): void {
    const all = siblings(this.messages, message);
    const next = all[all.indexOf(message) + by];
    if (!next || this.isAnswering) return;
    this.current.leaf = newestLeaf(this.messages, next.id);
    void this.keep(this.current, []);
    this.tell("turns");
  }

  /** A conversation of its own that has the path up to a message. */
  async branch(message: Message): Promise<void> {
    const copy = newConversation(structuredClone(this.current.settings));
    copy.title = this.current.title;
    const messages: Message[] = [];
    for (const each of pathTo(this.messages, message.id)) {
      messages.push({ ...structuredClone(each), id: newId(), conversation: copy.id, parent: messages.at(-1)?.id ?? null });
    }
    copy.leaf = messages.at(-1)?.id ?? null;
    await this.keep(copy, messages);
    this.show(copy, new Map(messages.map((each) => [each.id, each])));
  }

  stop(): void {
    this.runs.get(this.current.id)?.abort.abort();
  }

  /** Forgets a conversation; `undo` brings the last such back. */
  async remove(conversation: Conversation): Promise<void> {
    this.runs.get(conversation.id)?.abort.abort();
    this.removed = { conversation, messages: [...(await this.store.messagesOf(conversation.id)).values()] };
    this.conversations = this.conversations.filter((each) => each !== conversation);
    if (this.current === conversation) this.begin();
    await this.store.remove(conversation.id);
    this.tell("list");
  }

  async undo(): Promise<void> {
    const { removed } = this;
    this.removed = null;
    if (removed) await this.keep(removed.conversation, removed.messages);
    this.tell("list");
  }

  /** Settings of the conversation have been changed. */
  settle(change: Partial<Settings>): void {
    Object.assign(this.current.settings, change);
    clearTimeout(this.timer);
    const { current } = this;
    this.timer = window.setTimeout(() => void (this.conversations.includes(current) && this.store.put(current, [])), SETTLE_MS);
  }

  /** This conversation, or all, with their messages. */
  async kept(which: "this" | "all"): Promise<Kept[]> {
    if (which === "this") return [{ conversation: this.current, messages: [...this.messages.values()] }];
    const all: Kept[] = [];
    for (const conversation of this.conversations) all.push({ conversation, messages: [...(await this.store.messagesOf(conversation.id)).values()] });
    return all;
  }

  /** Takes in what was exported, beside what is there; says how many conversations. An error says what is wrong with the file. */
  async take(json: string): Promise<number> {
    const all = fromJson(json);
    for (const { conversation, messages } of all) await this.store.put(conversation, messages);
    this.conversations.push(...all.map(({ conversation }) => conversation));
    this.sort();
    if (all[0]) await this.open(all[0].conversation);
    return all.length;
  }

  private add(words: Pick<Message, "parent" | "role" | "content" | "files">): Message {
    const message: Message = { ...words, id: newId(), conversation: this.current.id, thought: "", answer: null, at: Date.now() };
    // Brothers of one millisecond have an order too.
    for (const other of siblings(this.messages, message)) message.at = Math.max(message.at, other.at + 1);
    this.messages.set(message.id, message);
    this.current.leaf = message.id;
    if (this.current.title === NO_TITLE && message.role === "user") this.current.title = titleOf(message);
    remember(SHOWN, this.current.id);
    void this.keep(this.current, [message]);
    this.tell("turns");
    return message;
  }

  /** Has the engine answer the last question of the path. */
  private async answer(app: App): Promise<void> {
    const conversation = this.current;
    const { settings } = conversation;
    const path = this.turns.filter(({ content, files }) => content !== "" || files.length > 0);
    const said = path.map((message) => ({ role: message.role as string, content: message.role === "user" ? asSent(message) : message.content }));
    const system = settings.system.trim();
    const messages = system === "" ? said : [{ role: "system", content: system }, ...said];
    const abort = new AbortController();
    const run: Run = { conversation, message: null!, abort, progress: null, sofar: noAnswer() };
    this.runs.set(conversation.id, run);
    run.message = this.add({ parent: conversation.leaf, role: "assistant", content: "", files: [] });
    const answer = await this.stream(app, run, { ...this.models.sent(settings.model), ...fieldsOf(settings), messages, return_token_ids: true });
    run.message.answer = { ...answer, text: "", thought: "", moments: [] };
    this.runs.delete(conversation.id);
    const isKept = this.isKnown(conversation);
    this.tell("turns");
    if (isKept) await this.keep(conversation, [run.message]);
  }

  private async stream(app: App, run: Run, body: Record<string, unknown>): Promise<Answer> {
    // Tokens may come by the thousand a second: they are told once a frame.
    const tell = (): void => this.tell("text");
    let kept = performance.now();
    const onText = (piece: string, answer: Answer): void => {
      this.moments = answer.moments;
      run.progress = null;
      run.sofar = answer;
      run.message.content += piece;
      run.message.thought = answer.thought;
      wantFrame(tell);
      if (performance.now() - kept < KEEP_EVERY_MS) return;
      kept = performance.now();
      void this.keep(run.conversation, [run.message]);
    };
    const onProgress = (progress: Progress): void => {
      run.progress = progress;
      this.tell("progress");
    };
    const answer = await ask(app, "/v1/chat/completions", body, { signal: run.abort.signal, onText, onProgress, words });
    dropFrame(tell);
    return answer;
  }

  /** It is shown, or has been kept and not been deleted. */
  private isKnown(conversation: Conversation): boolean {
    return conversation === this.current || this.conversations.includes(conversation);
  }

  private show(conversation: Conversation, messages: Map<string, Message>): void {
    this.current = conversation;
    this.messages = messages;
    remember(SHOWN, conversation.id);
    this.tell("turns");
  }

  private async keep(conversation: Conversation, messages: Message[]): Promise<void> {
    if (this.isLeaving) return;
    conversation.changed = Date.now();
    if (!this.conversations.includes(conversation)) this.conversations.push(conversation);
    this.sort();
    await this.store.put(conversation, messages);
    if (this.store.problem) this.tell("list");
  }

  private sort(): void {
    this.conversations.sort((a, b) => b.changed - a.changed);
  }

  /** What has come of answers until the page goes is kept: the rest is not coming, and its failing is no news. */
  private leave(): void {
    const open = [...this.runs.values()].map(({ message }) => message);
    remember(UNFINISHED, JSON.stringify(open));
    for (const { conversation, message } of this.runs.values()) void this.store.put(conversation, [message]);
  }

  private async restore(): Promise<void> {
    const [shown, unfinished] = [remembered(SHOWN), remembered(UNFINISHED)];
    remember(UNFINISHED, "[]");
    const kept = await this.store.all();
    for (const message of parsed(unfinished)) {
      const conversation = kept.find(({ id }) => id === message.conversation);
      if (conversation) await this.store.put(conversation, [message]);
    }
    this.conversations.push(...kept.filter(({ id }) => id !== this.current.id));
    this.sort();
    const last = kept.find(({ id }) => id === shown);
    if (last && this.messages.size === 0) await this.open(last);
    else this.tell("list");
  }

  /** Another tab has changed a conversation, made one or deleted one. */
  private async changedElsewhere(id: string): Promise<void> {
    const kept = await this.store.all();
    const known = new Map(this.conversations.map((each) => [each.id, each]));
    // One that is answered here is as it is here.
    this.conversations = kept.map((each) => (this.runs.has(each.id) ? (known.get(each.id) ?? each) : Object.assign(known.get(each.id) ?? {}, each, this.current.id === each.id ? { leaf: this.current.leaf, settings: this.current.settings } : {})));
    if (id !== this.current.id || this.isAnswering) return this.tell("list");
    const fresh = kept.find((each) => each.id === id);
    if (!fresh) return this.messages.size > 0 ? this.begin() : this.tell("list");
    const messages = await this.store.messagesOf(id);
    for (const [id, message] of this.messages) {
      const other = messages.get(id);
      if (other?.content === message.content && other.answer?.finish === message.answer?.finish) messages.set(id, message); // it is on the page
    }
    const ours = this.current.leaf;
    if (fresh.leaf && pathTo(messages, fresh.leaf).some((each) => each.id === ours)) this.current.leaf = fresh.leaf;
    this.show(this.current, messages);
  }

  private tell(change: Change): void {
    for (const listener of this.listeners) listener(change);
  }
}

/** Fields of the API, as the settings have them. */
function fieldsOf({ sampling, stop }: Settings): Record<string, unknown> {
  const filled = Object.entries(sampling).filter(([, value]) => value !== "");
  const stops = stop.split("\n").filter((line) => line !== "");
  const strings = stops.map((line) => line.replaceAll("\\n", "\n"));
  return { ...Object.fromEntries(filled.map(([name, value]) => [name, Number(value)])), ...(strings.length > 0 ? { stop: strings } : {}) };
}

function remember(name: string, value: string): void {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // A full storage, or one that is forbidden: a reload begins anew.
  }
}

function remembered(name: string): string | null {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

function parsed(unfinished: string | null): Message[] {
  try {
    const kept: unknown = JSON.parse(unfinished ?? "[]");
    return (Array.isArray(kept) ? kept : []).flatMap((each) => asMessage(each) ?? []);
  } catch {
    return [];
  }
}
