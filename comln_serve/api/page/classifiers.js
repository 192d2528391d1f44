// The list of all classifiers: search by name, pages, and what is done with each.

import { complain } from "./announce.js";
import { NAME } from "./checks.js";
import { button, byId, el, redraw, theirs } from "./dom.js";
import { hasKept, keptPicture } from "./kept.js";
import { isLeaving, promote, remove } from "./manage.js";
import { ask, referenceOf, wordsOf } from "./server.js";
import { counted, dated, listed, percent } from "./words.js";

const PAGE = 20;
const SCAN = 1000; // classifiers in one answer while searching
const MOST_SCANNED = 10000;
const PICTURES = 4; // of a row

let before = null; // where the page begins; null: with the newest
let newer = []; // where the pages before it began
let turn = 0;

async function page() {
  const answer = await ask(`classifiers?limit=${PAGE}${before === null ? "" : `&before=${before}`}`);
  return { found: answer.classifiers, next: answer.next, status: "" };
}

/** Names that contain the text: first those that are the text, then by looking through the list. */
async function search(text, mine) {
  const found = new Map();
  const add = (list) => list.forEach((item) => found.set(item.id, item));
  if (NAME.test(text)) add((await ask(`classifiers?limit=${PAGE}&name=${encodeURIComponent(text)}`)).classifiers);
  const wanted = text.toLowerCase();
  let [next, looked] = [null, 0];
  do {
    const answer = await ask(`classifiers?limit=${SCAN}${next === null ? "" : `&before=${next}`}`);
    looked += answer.classifiers.length;
    add(answer.classifiers.filter(({ name, id }) => (name ?? id).toLowerCase().includes(wanted)));
    next = answer.next;
  } while (next !== null && found.size < PAGE && looked < MOST_SCANNED && mine === turn);
  const shown = [...found.values()].slice(0, PAGE);
  const more = found.size > shown.length || next !== null ? " There may be more: write more of the name." : "";
  return { found: shown, next: null, status: `${counted(shown.length, "classifier")} found.${more}` };
}

function row(item, found) {
  const reference = referenceOf(item);
  const examples = item.classes.reduce((sum, { examples: count }) => sum + count, 0);
  const pictures = item.classes.filter(hasKept).slice(0, PICTURES);
  return el("tr", {},
    el("th", { scope: "row" }, el("a", { href: `./?classifier=${encodeURIComponent(reference)}`, "data-go": "" }, reference), " ",
      item.promoted && item.name !== null && el("span", { class: "badge" }, "promoted")),
    el("td", { "data-name": "Made" }, dated(item.created_at)),
    el("td", { "data-name": "Classes" },
      pictures.length > 0 && el("span", { class: "row-pictures" }, pictures.map(({ label, thumbnail }) =>
        el("span", { class: "frame" }, keptPicture(item, thumbnail, label)))), `${item.classes.length}: `, theirs(listed(item.classes.map(({ label }) => label)))),
    el("td", { class: "figure", "data-name": "Images" }, String(examples)),
    el("td", { class: "figure", "data-name": "Accuracy" }, item.held_out === null ? "not known" : percent(item.held_out.accuracy)),
    el("td", { class: "row-actions" },
      item.name !== null && !item.promoted && button("Promote", () => promote(item, found).then(list), { class: "small", "aria-label": `Promote ${reference}` }),
      button("Delete", () => remove(item, list), { class: "small danger", "aria-label": `Delete ${reference}` })),
  );
}

const HEADS = ["Name", "Made", "Classes", "Images", "Accuracy"];

/** Shows the present page, or what the search finds. */
async function list() {
  const mine = (turn += 1);
  const text = byId("search").value.trim();
  let answer;
  try {
    answer = text ? await search(text, mine) : await page();
  } catch (error) {
    if (mine === turn) complain(theirs(wordsOf(error)));
    return;
  }
  if (mine !== turn) return;
  const rows = answer.found.filter((item) => !isLeaving(item)).map((item) => row(item, answer.found));
  redraw(byId("list-table"),
    el("thead", {}, el("tr", {}, HEADS.map((head) => el("th", { scope: "col" }, head)), el("td", {}))),
    el("tbody", {}, rows));
  byId("list-table").hidden = rows.length === 0;
  byId("list-status").textContent = answer.status || (rows.length === 0 ? "There are no classifiers yet." : "");
  byId("newer").disabled = newer.length === 0 || text !== "";
  byId("older").disabled = answer.next === null;
  byId("paging").hidden = byId("newer").disabled && byId("older").disabled;
  byId("older").onclick = () => {
    newer.push(before);
    before = answer.next;
    list();
  };
}

export function installList() {
  byId("newer").addEventListener("click", () => {
    before = newer.pop() ?? null;
    list();
  });
  let timer = 0;
  byId("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(list, 300);
  });
}

export function firstPage() {
  [before, newer] = [null, []];
  return list();
}
