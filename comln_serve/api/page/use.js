// The fourth step: the classifier from elsewhere, its versions, and its examples on the server.

import { announce, complain } from "./announce.js";
import { closeDialog, openDialog } from "./dialog.js";
import { button, byId, el, part, redraw, theirs } from "./dom.js";
import { exported, isLeaving, promote, remove } from "./manage.js";
import { openNaming } from "./naming.js";
import { examplePicture } from "./report.js";
import { ask, pathOf, referenceOf, wordsOf } from "./server.js";
import { curl, link, python } from "./snippets.js";
import { behindWords, instead, standing } from "./standing.js";
import { undoable } from "./undo.js";
import { onChange, work } from "./work.js";
import { counted, dated, percent } from "./words.js";

const VERSIONS = 100;
const LOCAL = /^(localhost|127\..*|\[::1\])$/;

let go = () => {};
let renamed = () => {};
let turn = 0;

function copyable(name, text) {
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      announce(`${name} copied.`);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      announce("Selected. Copy it with the keyboard.");
    }
  }, { class: "small", "aria-label": `Copy ${name}` });
  const code = el("code", {}, text);
  return el("div", { class: "snippet" }, el("div", { class: "snippet-head" }, el("strong", {}, name), copy), el("pre", { tabIndex: 0, "aria-label": name }, code));
}

function versionLine(item, versions, changed, opened) {
  const reference = referenceOf(item);
  return el("li", {},
    el("span", {}, el("a", { href: `./?classifier=${encodeURIComponent(reference)}`, "data-go": "", "aria-current": opened ? "true" : null }, reference),
      item.promoted && el("span", { class: "badge" }, "promoted"), el("span", { class: "hint" }, ` ${dated(item.created_at)}, ${item.held_out === null ? "accuracy not known" : `accuracy ${percent(item.held_out.accuracy)}`}`)),
    el("span", { class: "actions" },
      !item.promoted && button("Promote", () => promote(item, versions).then(changed), { class: "small", "aria-label": `Promote ${reference}` }),
      button("Delete", () => remove(item, changed), { class: "small danger", "aria-label": `Delete ${reference}` })));
}

async function draw() {
  const detail = work.classifier;
  const place = byId("step-use");
  turn += 1;
  if (detail === null) {
    place.replaceChildren(el("p", { class: "empty" }, "There is no classifier yet. Make one, or open one of the list."));
    return;
  }
  const mine = turn;
  const reference = detail.name !== null && detail.promoted ? detail.name : referenceOf(detail);
  const keyed = byId("key").value !== "";
  const versions = detail.name === null ? [] : await ask(`classifiers?name=${encodeURIComponent(detail.name)}&limit=${VERSIONS}`).then(
    (answer) => answer.classifiers,
    (error) => (complain(theirs(wordsOf(error))), []),
  );
  if (mine !== turn) return;
  const shown = versions.filter((item) => !isLeaving(item));
  const again = () => reload(detail);
  const naming = (text) => button(text, () => openNaming(detail, async (now) => {
    await renamed(detail, now);
    if (work.classifier?.id === now.id) await draw();
  }), { id: "rename" });
  redraw(place,
    part("For other people",
      LOCAL.test(location.hostname) && el("p", { class: "note warn" }, "This address works on this computer only; others need the server's own."),
      copyable("Link to this classifier", link(reference))),
    part("From a program",
      el("p", { class: "hint" }, detail.name !== null && detail.promoted ? "The name stands for the version that is promoted, also when another one is." : "This stands for exactly this classifier."),
      copyable("curl", curl(reference, keyed)), copyable("Python", python(reference, keyed))),
    part("Without the server",
      el("p", {}, "One file for ONNX Runtime: images in, probabilities out. Or the adapted layer alone."),
      el("p", { class: "actions" }, button("Export ONNX", () => exported(detail, "onnx"), { id: "export-onnx" }),
        button("Export safetensors", () => exported(detail, "safetensors")))),
    detail.name === null
      ? part("Versions", el("p", {}, "A classifier without a name has no versions."), el("p", { class: "actions" }, naming("Give it a name")))
      : part("Versions", el("ul", { class: "versions", id: "versions" }, shown.map((item) => versionLine(item, versions, again, item.id === detail.id))),
        el("p", { class: "actions" }, naming("Rename"), shown.length > 1 && el("span", { class: "hint" }, "To go back to an older version, promote it. Accuracies on different images do not compare: sort the same photos with both versions."))),
    detail.name !== null ? "" : part("Delete", el("p", { class: "actions" }, button("Delete this classifier", () => remove(detail, again), { class: "danger", id: "delete" }))),
  );
}

/** Shows what has become of a classifier after it, or another of its versions, was changed. */
async function reload(detail) {
  if (isLeaving(detail)) {
    go("./?view=classifiers");
    return;
  }
  const now = await ask(pathOf(detail.id)).catch(() => null);
  if (now !== null && work.classifier?.id === detail.id) {
    Object.assign(detail, { promoted: now.promoted });
    draw();
  }
  document.dispatchEvent(new CustomEvent("classifier-changed"));
}

/** The examples of a class that the server keeps, each with a button to remove it. */
export async function showExamples(owner) {
  const { classifier } = work;
  let [examples, now] = [];
  try {
    ({ examples } = await ask(`${pathOf(classifier.id)}/examples`));
    now = await standing(classifier.name);
  } catch (error) {
    complain(theirs(wordsOf(error)));
    return;
  }
  const own = examples.filter(({ label }) => label === owner.label);
  const list = el("ul", { class: "thumbnails large" }, own.map(({ number }) =>
    el("li", {}, el("div", { class: "frame" }, examplePicture(number)), el("p", { class: "hint" }, `example ${number}`),
      button("×", () => takeExample(classifier, number), { class: "icon remove", "aria-label": `Remove example ${number}` }))));
  const named = classifier.name !== null;
  openDialog(`Examples of ${owner.label}`, [
    el("p", { class: "hint" }, named ? "Removing one makes the next version." : "Removing one changes this classifier."),
    now && now.id !== classifier.id && el("p", { class: "note warn" }, behindWords(classifier, now), " ",
      button(`Open version ${now.version}`, () => {
        closeDialog();
        instead(now);
      }, { class: "small" })),
    el("p", {}, counted(own.length, "example")), list].filter(Boolean), { wide: true });
}

function takeExample(classifier, number) {
  closeDialog();
  undoable(`Example ${number} was removed.`, {
    undo() {},
    async commit(gone) {
      try {
        const made = await ask(`${pathOf(classifier.id)}/examples/${number}`, { method: "DELETE", keepalive: gone });
        document.dispatchEvent(new CustomEvent("classifier-made", { detail: { made, parent: classifier.id } }));
      } catch (error) {
        complain(theirs(wordsOf(error)));
      }
    },
  });
}

/** goTo(address) opens one; hasName(before, now) is called when a classifier has got another name. */
export function installUse(goTo, hasName) {
  go = goTo;
  renamed = hasName;
  let last;
  onChange(() => {
    if (work.classifier === last) return;
    last = work.classifier;
    draw();
  });
}
