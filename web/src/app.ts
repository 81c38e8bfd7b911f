// What every page is given, and the shell around the pages: navigation, connection, key, theme.

import { el, fill, say, show } from "./dom";
import { themeChanged } from "./draw";
import { Feed } from "./feed";
import { Shown } from "./shown";
import type { Info } from "./wire";

/** A page: fills `root`, and returns what takes it down again. */
export type Mount = (root: HTMLElement, app: App) => () => void;

export const PAGES = ["live", "step", "chat", "calculator", "learn"] as const;
export type Page = (typeof PAGES)[number];

export interface App {
  /** What holds the engine: the token of the link that the server printed at its start, if this tab was opened with it. */
  hold: Hold;
  /** `fetch` on this server, with the key. An answer that asks for one brings up the form; the answer is returned all the same. */
  api(path: string, init?: RequestInit): Promise<Response>;
  feed: Feed;
  /** What the server says of itself; there before any page is mounted, and the same object after a restart. */
  info: Info;
  navigate(page: Page): void;
}

/** A secret of this tab. It is out of the address bar before it can be copied from there. */
export class Hold {
  private static readonly NAME = "twostroke-hold";

  /** Takes the token out of an address such as `#/step?hold=0123`, and returns what is left. */
  takeFrom(hash: string): string {
    const [path, query] = hash.split("?", 2);
    const asked = new URLSearchParams(query ?? "");
    const token = asked.get("hold");
    if (token == null) return hash;
    // What no token is made of never becomes a header.
    if (/^[0-9a-f]{1,64}$/.test(token)) sessionStorage.setItem(Hold.NAME, token);
    asked.delete("hold");
    return asked.size > 0 ? `${path}?${asked}` : path!;
  }

  get token(): string | null {
    return sessionStorage.getItem(Hold.NAME);
  }

  /** The server did not know it: it was started again. */
  forget(): void {
    sessionStorage.removeItem(Hold.NAME);
  }
}

const KEY = "twostroke-key";
const THEME = "twostroke-theme";
const TITLES: Record<Page, string> = { live: "Live", step: "Step", chat: "Chat", calculator: "Calculator", learn: "Learn" };

/** Runs the shell in the document. */
export function start(mounts: Record<Page, Mount>): void {
  const hold = new Hold();
  const strip = (): void => {
    const hash = hold.takeFrom(location.hash);
    if (hash !== location.hash) history.replaceState(null, "", hash || "#");
  };
  strip();
  const main = document.getElementById("main")!;
  const key = new KeyForm(() => feed.start());
  const api = async (path: string, init: RequestInit = {}): Promise<Response> => {
    const headers = new Headers(init.headers);
    const kept = sessionStorage.getItem(KEY);
    if (kept) headers.set("authorization", `Bearer ${kept}`);
    const response = await fetch(shown.path(path), { ...init, ...shown.body(path, init.body), headers });
    if (response.status === 401) key.ask(kept != null);
    return response;
  };
  const info = {} as Info;
  const feed = new Feed(api, (told) => {
    Object.assign(info, told);
    key.dismiss();
    say(model, `${info.name} · ${info.weights}`);
    model.title = `${info.name} ${info.version}: weights ${info.weights}, KV ${info.kv_dtype}, ${info.isa}, ${info.threads} threads`;
    mount();
    void shown.refresh(app, info.name);
  });
  const app: App = { hold, api, feed, info, navigate: (page) => (location.hash = `#/${page}`) };

  const model = el("span", { class: "model" });
  const shown = new Shown(() => {
    mounted = null; // its pages are of the engine that was shown
    feed.change();
  });
  const connection = el("span", { class: "connection", role: "status" });
  const links = PAGES.map((page) => el("a", { href: `#/${page}` }, TITLES[page]));
  fill(
    document.getElementById("top")!,
    el("a", { class: "brand", href: "#/live", "aria-label": "twostroke" }, el("span", { class: "stroke prefill" }), el("span", { class: "stroke decode" }), "twostroke"),
    model,
    shown.menu,
    el("nav", { "aria-label": "Pages" }, ...links),
    connection,
    themeSwitch(),
  );
  document.body.append(key.dialog);
  const notice = el("section", { class: "notice", "aria-live": "polite" });
  main.append(notice);
  const root = el("div", { id: "page" });
  main.append(root);

  let mounted: Page | null = null;
  let unmount: (() => void) | null = null;
  const mount = (): void => {
    const page = pageOf(location.hash);
    if (!("name" in info) || page === mounted) return;
    unmount?.();
    root.replaceChildren();
    mounted = page;
    document.title = `${TITLES[page]} · twostroke`;
    root.className = `page ${page}`;
    links.forEach((link, i) => (PAGES[i] === page ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
    unmount = mounts[page](root, app);
  };
  window.addEventListener("hashchange", () => {
    strip();
    shown.left = "";
    mount();
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  });

  const tell = (): void => {
    const { state } = feed;
    if (state.kind === "absent" && shown.leave()) return;
    const known = "name" in info;
    const seconds = state.kind === "retrying" ? Math.max(0, Math.ceil((state.at - performance.now()) / 1000)) : 0;
    const paused = state.kind === "open" && feed.log.isPaused;
    connection.dataset["state"] = state.kind;
    connection.classList.toggle("paused", paused);
    const words = { connecting: "connecting", open: paused ? "paused" : "live", retrying: "reconnecting", key: "API key required", absent: "no live view" };
    say(connection, words[state.kind]);
    show(notice, (state.kind !== "open" || shown.left !== "") && !(state.kind === "connecting" && known));
    if (state.kind === "connecting") say(notice, "Connecting to the server …");
    else if (state.kind === "retrying") {
      const when = seconds > 0 ? `in ${seconds} s` : "now";
      say(notice, known ? `Connection lost: ${state.reason}. What you see is the last that it said. Trying again ${when}.` : `No answer: ${state.reason}. Trying again ${when}.`);
    } else if (state.kind === "key") say(notice, "This server requires an API key.");
    else if (state.kind === "open") say(notice, `${shown.left} is no longer in memory: a request to it loads it. This is ${info.name}.`);
    else if (state.kind === "absent") say(notice, "This server has no live view: it was started with --no-ui.");
  };
  feed.subscribe(tell);
  setInterval(tell, 1000);
  setInterval(() => void shown.look(app, info.name), 5000);
  tell();
  feed.start();
}

function pageOf(hash: string): Page {
  const name = hash.replace(/^#\/?/, "").split(/[/?]/)[0];
  return PAGES.find((page) => page === name) ?? "live";
}

/** The form for the API key. It stays in this tab's session storage: another tab, or tomorrow, asks again. */
class KeyForm {
  readonly dialog: HTMLDialogElement;
  private message = el("p", {});

  constructor(private given: () => void) {
    const input = el("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const submit = (event: Event): void => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      input.value = "";
      this.dialog.close();
      this.given();
    };
    this.dialog = el(
      "dialog",
      { class: "key", "aria-labelledby": "key-title" },
      el(
        "form",
        { onsubmit: submit },
        el("h2", { id: "key-title" }, "API key"),
        this.message,
        el("label", { for: "key" }, "Key"),
        input,
        el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, "Continue")),
      ),
    );
  }

  ask(refused: boolean): void {
    say(this.message, refused ? "The server did not accept this key." : "The server was started with API keys. The key is kept for this tab only.");
    if (!this.dialog.open) this.dialog.showModal();
  }

  dismiss(): void {
    if (this.dialog.open) this.dialog.close();
  }
}

/** As the system has it, light, dark: one button that goes round. */
function themeSwitch(): HTMLElement {
  const names = ["auto", "light", "dark"];
  const button = el("button", { class: "theme quiet", type: "button" });
  const set = (name: string): void => {
    if (name === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = name;
    say(button, { auto: "◐", light: "☀", dark: "☾" }[name] ?? "◐");
    button.setAttribute("aria-label", `Theme: ${name}. Change`);
    button.title = `Theme: ${name}`;
    themeChanged();
  };
  let chosen = localStorage.getItem(THEME) ?? "auto";
  button.addEventListener("click", () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length]!;
    localStorage.setItem(THEME, chosen);
    set(chosen);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
  set(chosen);
  return button;
}
