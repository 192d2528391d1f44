// Deleting takes effect a while after it was asked for, so that it can be undone.

import { announce } from "./announce.js";
import { byId } from "./dom.js";

const SECONDS = 10;
// Where Control+Z takes back what was written.
const WRITING = "input:not([type=file], [type=checkbox], [type=range]), textarea";

let pending = null;
let timer = 0;

/** Says what was done, with a button to undo it.
 *
 * commit(leaving) makes it final: after a while, before the next such action, or as the page goes.
 * The time stands still while the pointer or the focus is on it. */
export function undoable(text, { undo, commit = () => {} }) {
  settle();
  pending = { undo, commit };
  byId("undo-text").textContent = text;
  byId("undo").hidden = false;
  announce(`${text} It can be undone by Control+Z.`);
  start();
}

/** What is pending, which it is no more. */
function taken() {
  clearTimeout(timer);
  const last = pending;
  pending = null;
  byId("undo").hidden = true;
  return last;
}

/** Makes what is pending final now. */
const settle = (leaving = false) => taken()?.commit(leaving);

function start() {
  clearTimeout(timer);
  if (pending) timer = setTimeout(() => settle(), 1000 * SECONDS);
}

function back() {
  taken()?.undo();
  announce("Undone.");
}

export function installUndo() {
  const bar = byId("undo");
  for (const kind of ["pointerenter", "focusin"]) bar.addEventListener(kind, () => clearTimeout(timer));
  for (const kind of ["pointerleave", "focusout"]) bar.addEventListener(kind, start);
  byId("undo-button").addEventListener("click", () => {
    back();
    byId("main").focus();
  });
  window.addEventListener("keydown", (event) => {
    const asked = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "z";
    if (!asked || !pending || event.target.matches(WRITING)) return;
    event.preventDefault();
    back();
  });
  // Firefox loses about half of the requests that begin as late as pagehide; others may not tell before.
  for (const kind of ["beforeunload", "pagehide"]) window.addEventListener(kind, () => settle(true));
}
