import "./style.css";
import { type Mount, start } from "./app";
import { el } from "./dom";
import { mount as chat } from "./pages/chat";
import { mount as learn } from "./pages/learn";
import { mount as live } from "./pages/live";
import { mount as step } from "./pages/step";

/** A page in a file of its own, which is fetched when the page is opened. */
function fetched(load: () => Promise<{ mount: Mount }>): Mount {
  return (root, app) => {
    let end: (() => void) | null = null;
    let isLeft = false;
    const failed = (error: unknown): void => root.replaceChildren(el("p", { class: "error", role: "alert" }, `This page could not be fetched (${String(error)}). Reload it when the server answers.`));
    void load().then(
      ({ mount }) => {
        if (!isLeft) end = mount(root, app);
      },
      (error) => {
        if (!isLeft) failed(error);
      },
    );
    return () => {
      isLeft = true;
      end?.();
    };
  };
}

start({ live, step, chat, calculator: fetched(() => import("./pages/calculator")), learn });
