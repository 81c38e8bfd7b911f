// Export and import of conversations, on the page.

import { add, el, say } from "../dom";
import type { Talk } from "../talk";
import { count } from "../units";
import { download, LARGEST_FILE, toJson, toMarkdown } from "./transfer";

export function exportPanel(talk: Talk): HTMLElement {
  const status = el("p", { class: "note", role: "status" });
  const picker = el("input", { type: "file", accept: "application/json,.json", hidden: true, "aria-label": "File of conversations" });
  const give = async (which: "this" | "all", kind: "json" | "md"): Promise<void> => {
    const kept = await talk.kept(which);
    const name = which === "all" ? "conversations" : talk.current.title.replaceAll(/[^\p{L}\p{N} -]/gu, "").trim().slice(0, 60) || "conversation";
    if (kind === "json") download(`${name}.json`, "application/json", toJson(kept));
    else download(`${name}.md`, "text/markdown", toMarkdown(kept));
  };
  const button = (name: string, which: "this" | "all", kind: "json" | "md") => el("button", { type: "button", onclick: () => void give(which, kind) }, name);
  const take = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    try {
      if (file.size > LARGEST_FILE) throw new Error(`the file has ${(file.size / 2 ** 20).toFixed(0)} MiB, and at most ${LARGEST_FILE / 2 ** 20} are read`);
      say(status, `${count(await talk.take(await file.text()), "conversation")} imported.`);
    } catch (error) {
      say(status, `Nothing was imported: ${error instanceof Error ? error.message : error}.`);
    }
    picker.value = "";
  };
  picker.addEventListener("change", () => void take(picker.files?.[0]));
  const panel = el("section", { class: "panel exports", "aria-label": "Export and import" }, el("h2", {}, "Export and import"));
  add(
    panel,
    el("div", { class: "row" }, button("This as JSON", "this", "json"), button("This as Markdown", "this", "md"), button("All as JSON", "all", "json"), button("All as Markdown", "all", "md")),
    el("div", { class: "row" }, el("button", { type: "button", onclick: () => picker.click() }, "Import JSON"), picker),
    status,
  );
  return panel;
}
