// Deleting takes effect a while after it was asked for, so that it can be undone.

import { announce } from "./announce.js";
import { byId } from "./dom.js";

const SECONDS = 10;

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
  announce(`${text} It can be undone.`);
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

export function installUndo() {
  const bar = byId("undo");
  for (const kind of ["pointerenter", "focusin"]) bar.addEventListener(kind, () => clearTimeout(timer));
  for (const kind of ["pointerleave", "focusout"]) bar.addEventListener(kind, start);
  byId("undo-button").addEventListener("click", () => {
    taken()?.undo();
    announce("Undone.");
    byId("main").focus();
  });
  // Firefox loses about half of the requests that begin as late as pagehide; others may not tell before.
  for (const kind of ["beforeunload", "pagehide"]) window.addEventListener(kind, () => settle(true));
}
