// The confusion matrix: readable with a dozen classes at once, with more by scrolling and zooming.

import { button, el, theirs } from "./dom.js";
import { counted } from "./words.js";

export const NARROW = 8; // classes whose matrix fits half the page
const SIZES = [1.25, 1.75, 2.25, 3];

/** A table of counts by label given (rows) and predicted (columns).
 *
 * open(given, predicted): called for a cell that is not 0. Arrow keys move among these. */
export function confusionTable(counts, labels, open) {
  let size = labels.length > 24 ? 1 : labels.length > NARROW && labels.length <= 16 ? 3 : 2;
  const heading = (text, scope) =>
    el("th", { scope, title: text }, el("span", {}, theirs(text)));
  const cell = (count, given, predicted) => {
    if (count === 0) return el("td", { class: "none" }, "·");
    const total = counts[given].reduce((sum, one) => sum + one, 0);
    const meaning = given === predicted ? "right" : "wrong";
    const words = `${count} of ${total} images of ${labels[given]} taken for ${labels[predicted]}`;
    const strength = Math.ceil((4 * count) / total);
    return el("td", { class: `${meaning} s${strength}` },
      button(String(count), () => open(given, predicted), { "aria-label": words, title: words, tabIndex: -1 }));
  };
  const table = el("table", { class: "confusion" },
    el("caption", { class: "unseen" }, "Label given by row, label predicted by column"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "corner" }, el("span", { class: "hint" }, "given ↓ predicted →")),
      labels.map((label) => heading(label, "col")))),
    el("tbody", {}, counts.map((row, given) => el("tr", {}, heading(labels[given], "row"),
      row.map((count, predicted) => cell(count, given, predicted))))),
  );
  const first = table.querySelector("td button");
  if (first) first.tabIndex = 0;
  table.addEventListener("keydown", move);
  const zoom = (by) => {
    size = Math.max(0, Math.min(SIZES.length - 1, size + by));
    table.style.setProperty("--cell", `${SIZES[size]}rem`);
    smaller.disabled = size === 0;
    larger.disabled = size === SIZES.length - 1;
  };
  const smaller = button("−", () => zoom(-1), { class: "icon", "aria-label": "Smaller cells" });
  const larger = button("+", () => zoom(1), { class: "icon", "aria-label": "Larger cells" });
  zoom(0);
  const region = el("div", { class: "scroll", role: "region", "aria-label": "Confusion matrix", tabIndex: 0 }, table);
  return el("div", {}, el("div", { class: "zoom" }, el("span", { class: "hint" }, counted(labels.length, "class", "classes")), smaller, larger), region);
}

function move(event) {
  const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const step = steps[event.key];
  const from = event.target.closest("td");
  if (!step || !from) return;
  event.preventDefault();
  const rows = [...event.currentTarget.tBodies[0].rows];
  let [row, column] = [rows.indexOf(from.parentElement), from.cellIndex];
  for (;;) {
    [row, column] = [row + step[0], column + step[1]];
    const there = rows[row]?.cells[column];
    if (!there || column === 0) return;
    const found = there.querySelector("button");
    if (!found) continue;
    event.target.tabIndex = -1;
    found.tabIndex = 0;
    found.focus();
    return;
  }
}

/** The most frequent mistakes: [{given, predicted, count}]. */
export function mistakes(counts) {
  return counts
    .flatMap((row, given) => row.map((count, predicted) => ({ given, predicted, count })))
    .filter(({ given, predicted, count }) => given !== predicted && count > 0)
    .sort((a, b) => b.count - a.count);
}

/** Texts and elements: labels of another writing direction must not turn the count around. */
export const mistakeWords = ({ given, predicted, count }, labels) =>
  ["“", theirs(labels[given]), "” taken for “", theirs(labels[predicted]), `”: ${counted(count, "time")}. `];
