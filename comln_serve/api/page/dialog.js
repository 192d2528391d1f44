// The page's one dialog.

import { button, byId, el } from "./dom.js";

let whenGone = () => {};

function gone() {
  const closed = whenGone;
  whenGone = () => {};
  closed();
}

/** Opens the dialog with a title and content. closed() is called when it goes. */
export function openDialog(title, content, { closed = () => {}, wide = false } = {}) {
  const dialog = byId("dialog");
  if (dialog.open) dialog.close();
  gone(); // now: the event of a dialog that was closed comes when the next content is open
  const close = button("×", () => dialog.close(), { class: "icon", "aria-label": "Close" });
  dialog.replaceChildren(
    el("div", { class: "dialog-head" }, el("h2", { id: "dialog-title" }, title), close),
    el("div", { class: "dialog-body" }, content),
  );
  dialog.classList.toggle("wide", wide);
  whenGone = closed;
  dialog.onclose = () => dialog.open || gone();
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  dialog.showModal();
}

/** Whether this is in the dialog, and to be seen. */
export const isShown = (node) => byId("dialog").open && byId("dialog").contains(node);

export const closeDialog = () => byId("dialog").close();

/** Asks the user. choices: [[text, value]]; resolves to the value of the one that is pressed, null if none is. */
export function choose(title, text, choices) {
  return new Promise((resolve) => {
    let chosen = null;
    const take = (value) => {
      chosen = value;
      closeDialog();
    };
    const buttons = choices.map(([name, value]) => button(name, () => take(value)));
    openDialog(title, [el("p", {}, text), el("p", { class: "actions" }, buttons)], { closed: () => resolve(chosen) });
  });
}
