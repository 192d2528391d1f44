// What screen readers are told: one sentence for each thing that happened, and errors at once.

import { byId, button, el } from "./dom.js";

let waiting = 0;

/** Says a sentence once. A newer one within a moment takes its place. */
export function announce(text) {
  clearTimeout(waiting);
  byId("announcer").textContent = "";
  waiting = setTimeout(() => (byId("announcer").textContent = text), 150);
}

/** Shows and says what went wrong, or was left out, until it is put away. The page is scrolled to it. */
export function complain(...content) {
  const close = button("×", () => line.remove(), { class: "icon", "aria-label": "Put this message away" });
  const line = el("div", { class: "message" }, el("div", {}, ...content), close);
  const list = byId("messages");
  while (list.children.length > 3) list.firstElementChild.remove();
  list.append(line);
  line.scrollIntoView({ block: "nearest" });
}

export const quiet = () => byId("messages").replaceChildren();
