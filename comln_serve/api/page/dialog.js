// The page's one dialog.

import { button, byId, el } from "./dom.js";

/** Opens the dialog with a title and content. closed() is called when it goes. */
export function openDialog(title, content, { closed = () => {}, wide = false } = {}) {
  const dialog = byId("dialog");
  if (dialog.open) dialog.close();
  const close = button("×", () => dialog.close(), { class: "icon", "aria-label": "Close" });
  dialog.replaceChildren(
    el("div", { class: "dialog-head" }, el("h2", { id: "dialog-title" }, title), close),
    el("div", { class: "dialog-body" }, content),
  );
  dialog.classList.toggle("wide", wide);
  dialog.addEventListener("close", closed, { once: true });
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  dialog.showModal();
}

export const closeDialog = () => byId("dialog").close();
