// Gives a classifier a name, or all versions of its name another one.

import { announce, complain } from "./announce.js";
import { checkName } from "./checks.js";
import { setProblem } from "./classes.js";
import { closeDialog, isShown, openDialog } from "./dialog.js";
import { button, el, theirs } from "./dom.js";
import { ask, pathOf, referenceOf, wordsOf } from "./server.js";
import { standing } from "./standing.js";

function problemOf(wanted, { name }) {
  if (wanted === "") return "Write a name.";
  return wanted === name ? "It has this name already." : checkName(wanted).problem;
}

/** Opens the dialog. named(now) is called when the classifier has its new name; now: what the server says of it. */
export function openNaming(classifier, named) {
  const { id, name } = classifier;
  const first = name === null;
  const title = first ? "Give it a name" : `Rename ${name}`;
  const does = first ? "Give it this name" : "Rename all versions";
  const problem = el("p", { class: "problem", id: "new-name-problem", role: "alert" });
  const note = el("p", { class: "note warn", role: "alert", hidden: true });
  const field = el("input", {
    id: "new-name", autocomplete: "off", spellcheck: false, value: name ?? "", "aria-describedby": "new-name-problem new-name-hint",
  });
  const give = button(does, send, { class: "primary" });
  let next = ""; // a name in use, of which the user has been told
  let sending = false;

  field.addEventListener("input", () => {
    setProblem(problem, field, checkName(field.value.trim()).problem);
    next = "";
    note.hidden = true;
    give.textContent = does;
  });
  field.addEventListener("keydown", (event) => event.key === "Enter" && send());

  function refuse(text) {
    setProblem(problem, field, text);
    field.focus();
  }

  async function send() {
    const wanted = field.value.trim();
    const wrong = problemOf(wanted, classifier);
    if (wrong) return refuse(wrong);
    if (sending) return;
    sending = true;
    try {
      if (first && next !== wanted && (await hasVersions(wanted))) return;
      // A name stands for one version, but all are renamed; an id is of one classifier, which has no name yet.
      await ask(pathOf(name ?? id), {
        method: "PATCH", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name: wanted }),
      });
      const now = await ask(pathOf(id));
      if (isShown(field)) closeDialog();
      await named(now);
      announce(first ? `It is called ${referenceOf(now)} now.` : `${name} is called ${now.name} now.`);
    } catch (error) {
      const text = wordsOf(error);
      if (isShown(field)) refuse(text);
      else complain(theirs(text));
    } finally {
      sending = false;
    }
  }

  /** Whether the name is in use, which the user is told: it can be given all the same then. */
  async function hasVersions(wanted) {
    const now = await standing(wanted);
    if (now === null) return false;
    next = wanted;
    note.textContent = `${wanted} stands for version ${now.version} of another classifier. This one becomes its next version, and ${wanted} will stand for it.`;
    note.hidden = false;
    give.textContent = `Make it the next version of ${wanted}`;
    return true;
  }

  openDialog(title, [
    el("div", { class: "field" },
      el("label", { htmlFor: "new-name" }, first ? "Name" : "New name"), field, problem,
      el("p", { class: "hint", id: "new-name-hint" }, first
        ? "With a name it is easy to find, and it has versions."
        : `All its versions are renamed. ${name} stands for nothing then: change the programs and links that use it.`)),
    note,
    el("p", { class: "actions" }, give),
  ]);
  field.select();
  field.focus();
}
