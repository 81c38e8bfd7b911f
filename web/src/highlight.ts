// Colours of code: highlight.js, whose emitter makes elements here in place of HTML. A file of its own, fetched when there is code.

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES = { bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, python, ruby, rust, sql, typescript, xml, yaml };

/** Elements of what highlight.js finds: an `Emitter` of its. */
class Elements {
  readonly root = document.createDocumentFragment();
  private open: Node[] = [this.root];

  addText(text: string): void {
    if (text !== "") this.here.appendChild(document.createTextNode(text));
  }

  startScope(scope: string): void {
    const span = document.createElement("span");
    span.className = `code-${scope.split(".")[0]}`;
    this.here.appendChild(span);
    this.open.push(span);
  }

  endScope(): void {
    if (this.open.length > 1) this.open.pop();
  }

  openNode(scope: string): void {
    this.startScope(scope);
  }

  closeNode(): void {
    this.endScope();
  }

  /** Code of another language inside: a script in a page. */
  __addSublanguage(emitter: Elements): void {
    this.here.appendChild(emitter.root);
  }

  finalize(): void {
    this.open = [this.root];
  }

  /** What highlight.js hands on; the elements are what is used. */
  toHTML(): string {
    return "";
  }

  private get here(): Node {
    return this.open[this.open.length - 1]!;
  }
}

hljs.configure({ __emitter: Elements as never });
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

/** The code in colours; `null` for a language that is not among the above. */
export function colour(text: string, language: string): Node | null {
  if (!hljs.getLanguage(language)) return null;
  const result = hljs.highlight(text, { language, ignoreIllegals: true });
  const { root } = result._emitter as unknown as Elements;
  return result.errorRaised || root.textContent !== text ? null : root;
}
