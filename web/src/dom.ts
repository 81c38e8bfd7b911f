// Elements without a framework. Text goes into text nodes only, so nothing that a model or a person wrote can become markup.

export type Child = Node | string | number | null | undefined | false;
type Properties = Record<string, string | number | boolean | EventListener | null | undefined>;

/**
 * An element: `el("button", { class: "quiet", onclick: stop }, "Stop")`. Properties that begin with `on` are listeners;
 * `true` sets an empty attribute, `false`, `null` and `undefined` none.
 */
export function el<K extends keyof HTMLElementTagNameMap>(tag: K, properties: Properties = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  add(element, ...children);
  return element;
}

/** Appends nodes, and strings and numbers as text. */
export function add(parent: Node, ...children: Child[]): void {
  for (const child of children) {
    if (child instanceof Node) parent.appendChild(child);
    else if (child != null && child !== false) parent.appendChild(document.createTextNode(String(child)));
  }
}

/** Sets the text of an element if it is another one: a frame that changes nothing costs no layout. */
export function say(element: Node, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows or hides an element, likewise. */
export function show(element: HTMLElement, shown: boolean): void {
  if (element.hidden === shown) element.hidden = !shown;
}

/** Replaces everything inside an element. */
export function fill(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  add(parent, ...children);
}
