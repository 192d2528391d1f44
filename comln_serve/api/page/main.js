// The page: which of its views is shown, by its address, and what belongs to no single view.

import { announce, complain, quiet } from "./announce.js";
import { installClasses, onExamples, paste } from "./classes.js";
import { firstPage, installList } from "./classifiers.js";
import { closeDialog } from "./dialog.js";
import { byId, el, theirs } from "./dom.js";
import { isLeaving } from "./manage.js";
import { keepPictures, onLost } from "./memory.js";
import { limits, loadModels } from "./models.js";
import { installReport } from "./report.js";
import { referenceOf, wordsOf } from "./server.js";
import { addPhotos, holdsPhoto, installSorting, pastePhotos, restorePhotos, sortNew } from "./sorting.js";
import { onInstead } from "./standing.js";
import { starter } from "./starter.js";
import { drawModels, installTeaching } from "./teach.js";
import { installUndo, undoable } from "./undo.js";
import { installUse, showExamples } from "./use.js";
import { addImages, allImages, carried, classNamed, isDraft, onChange, open, otherTabs, reach, startOver, takeName, work } from "./work.js";
import { counted } from "./words.js";

const STEPS = ["images", "quality", "sort", "use"];
let step = "images";
let opened; // the reference that is open: null for the draft; undefined while none is

// --- Views ---

function drawStep() {
  for (const name of STEPS) {
    byId(`step-${name}`).hidden = name !== step;
    const link = document.querySelector(`[data-step=${name}]`);
    link.href = addressOf(opened, name);
    if (name === step) link.setAttribute("aria-current", "step");
    else link.removeAttribute("aria-current");
  }
}

/** A stored classifier is opened with its report, the draft with its images. */
const firstStep = (reference) => (reference ? "quality" : "images");

function addressOf(reference, name) {
  const query = new URLSearchParams();
  if (reference) query.set("classifier", reference);
  if (name !== firstStep(reference)) query.set("step", name);
  return String(query) ? `./?${query}` : "./";
}

function drawTitle() {
  const { classifier } = work;
  const unnamed = classifier ? "Classifier without a name" : isDraft() ? "New classifier" : "";
  byId("title").replaceChildren(classifier?.name ? theirs(classifier.name) : unnamed);
  const badges = [];
  if (classifier?.name) badges.push(el("span", { class: "badge" }, `version ${classifier.version}`), classifier.promoted && el("span", { class: "badge" }, "promoted"));
  if (classifier && !classifier.name && classifier.revision > 1) badges.push(el("span", { class: "badge" }, `revision ${classifier.revision}`));
  byId("badges").replaceChildren(...badges.filter(Boolean));
  const fresh = allImages().length;
  const text = isDraft()
    ? "Outdated: the classes have been changed since this classifier was made."
    : `${counted(fresh, "new image")} not added yet: what is shown here is without them.`;
  byId("start-over").textContent = classifier ? "Start another" : "Start over";
  const outdated = isDraft() ? work.edited : fresh > 0 && step !== "images";
  byId("outdated").hidden = !outdated;
  if (byId("outdated-text").textContent !== text) byId("outdated-text").textContent = text;
  byId("make-again").textContent = isDraft() ? "Make it again" : "Add the new images";
  document.title = view() === "list" ? "Classifiers – comln-serve" : `${classifier ? referenceOf(classifier) : "New classifier"} – comln-serve`;
}

const view = () => (new URLSearchParams(location.search).get("view") === "classifiers" ? "list" : "workspace");

let turn = 0;

/** Shows what the address says. */
async function route({ focus = false } = {}) {
  const mine = (turn += 1);
  const query = new URLSearchParams(location.search);
  const listing = view() === "list";
  byId("list").hidden = !listing;
  if (listing) byId("workspace").hidden = true;
  const wanted = query.get("classifier");
  for (const [id, current] of [["go-draft", !listing && wanted === null], ["go-classifiers", listing]]) {
    if (current) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  if (listing) {
    drawTitle();
    if (focus) byId("list-title").focus();
    await firstPage();
    return;
  }
  const asked = query.get("step");
  step = STEPS.includes(asked) ? asked : firstStep(wanted);
  const isGone = work.classifier !== null && isLeaving(work.classifier); // deleted since, as after the button Back
  if (opened === undefined || opened !== wanted || isGone) {
    try {
      await open(wanted);
      if (mine !== turn) return;
      opened = wanted;
    } catch (error) {
      if (mine !== turn) return;
      const called = error.status === 404 && wanted ? nowCalled(wanted) : null;
      if (called !== null) { // as after the button Back
        history.replaceState(null, "", addressOf(called, step));
        await route({ focus });
        return;
      }
      if (error.status === 401) quiet(); // as said of the models already
      complain(theirs(wordsOf(error)));
      opened = undefined;
      byId("workspace").hidden = true;
      if (error.status === 401) return; // the address is opened once there is a key
      history.replaceState(null, "", "./?view=classifiers");
      await route({ focus });
      return;
    }
  }
  await reach().catch((error) => {
    const words = wordsOf(error);
    if (error.status === 401 || mine !== turn) return; // the key's field says it
    quiet(); // as said before
    complain(theirs(`The classifier that was made of these images cannot be shown. ${words}`));
  });
  if (mine !== turn) return;
  byId("workspace").hidden = false; // not before it is filled: what is shown does not move then
  drawStep();
  drawTitle();
  if (focus) byId("title").focus();
  if (step === "sort") sortNew();
}

function go(address) {
  history.pushState(null, "", address);
  quiet();
  return route({ focus: true });
}

/** Shows a classifier that has just been made. */
async function showMade(made) {
  const reference = isDraft() ? null : referenceOf(made);
  if (reference) opened = undefined;
  history.pushState(null, "", addressOf(reference, "quality"));
  await route({ focus: true });
  window.scrollTo(0, 0);
  sortNew();
}

/** Opens another version of the classifier, with the images that were to be added to this one. */
async function openInstead(version) {
  const carry = await carried();
  const count = allImages().length;
  opened = undefined;
  await go(addressOf(referenceOf(version), "images"));
  if (work.classifier?.id !== version.id) return; // they wait where they were
  await carry();
  announce(`Version ${version.version} is open${count > 0 ? `, with ${counted(count, "new image")} to be added` : ""}.`);
}

const moved = new Map(); // by name that was changed here: {name, by}, by: what was added to the versions' numbers

/** What a reference from before its name was changed here is now; null: the name was not. */
function nowCalled(reference) {
  const [name, version] = reference.split("@");
  const to = moved.get(name);
  if (!to) return null;
  const called = version === undefined ? to.name : `${to.name}@${Number(version) + to.by}`;
  return nowCalled(called) ?? called;
}

/** Shows a classifier under its new name, in the address, too. */
async function showRenamed({ name, version }, now) {
  if (name !== null) {
    moved.delete(now.name);
    moved.set(name, { name: now.name, by: now.version - version });
  }
  const byNumber = opened?.includes("@") || !now.promoted;
  const isOpen = opened && opened === new URLSearchParams(location.search).get("classifier") && work.classifier?.id === now.id;
  if (isOpen && (name === null || opened !== now.id)) {
    opened = byNumber ? referenceOf(now) : now.name;
    history.replaceState(null, "", addressOf(opened, step));
    drawStep();
  }
  await takeName({ name }, now);
}

// --- The key ---

function showKey(visible) {
  byId("key-bar").hidden = !visible;
  byId("show-key").setAttribute("aria-expanded", String(visible));
}

async function start() {
  await loadModels();
  drawModels();
  byId("kept-note").hidden = !limits?.keep_thumbnails;
}

// --- Start ---

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-go], a[data-step]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  go(link.href);
});
window.addEventListener("popstate", () => {
  closeDialog();
  route({ focus: true });
});
otherTabs.onmessage = () => {
  if (opened !== null) return;
  otherTabs.onmessage = null; // said once
  complain("The draft was changed in another tab, and only one is kept: go on there, or reload this tab.");
};
window.addEventListener("paste", async (event) => {
  if (event.target.closest?.("input, textarea") && event.clipboardData.files.length === 0) return;
  if (view() === "list") return;
  if (step === "sort" ? await pastePhotos(event.clipboardData) : step === "images" && (await paste(event.clipboardData))) {
    announce("Pasted.");
  }
});
document.addEventListener("key-wanted", () => {
  showKey(true);
  window.scrollTo(0, 0); // where its field is
});
document.addEventListener("classifier-changed", () => (view() === "list" ? route() : drawTitle()));
document.addEventListener("classifier-made", async ({ detail: { made, parent } }) => {
  await keepPictures(made.id, parent, []);
  if (work.classifier?.id === parent) await showMade(made);
});
byId("show-key").addEventListener("click", () => {
  showKey(byId("key-bar").hidden);
  if (!byId("key-bar").hidden) byId("key").focus();
});
byId("key").addEventListener("change", async () => {
  quiet();
  document.dispatchEvent(new CustomEvent("key-changed"));
  await start();
  if (byId("key").getAttribute("aria-invalid") === "true") announce(byId("key-hint").textContent);
  await route();
});
byId("make-again").addEventListener("click", async () => {
  if (step !== "images") await go(addressOf(opened, "images"));
  byId("adapt").focus(); // beside which its progress is shown
  byId("adapt").click();
});
byId("start-over").addEventListener("click", () => {
  const kept = work.classifier ? " The classifier stays in the list." : "";
  undoable(`The draft was emptied.${kept}`, { undo: startOver() });
  go("./");
});
byId("starter").addEventListener("click", async () => {
  try {
    const { classes, others } = await starter();
    const empty = classes.filter(({ label }) => classNamed(label).images.length === 0);
    const absent = others.filter(({ name }) => !holdsPhoto(name));
    if (empty.length + absent.length === 0) return announce("The example photos are here already.");
    for (const { label, files } of empty) addImages(classNamed(label), files);
    if (absent.length > 0) await addPhotos({ images: absent.map((file) => ({ file, folders: [], path: file.name, label: "" })), others: [] });
    announce("The example photos were added.");
    // Else the user is in a field already.
    if ([document.body, byId("starter")].includes(document.activeElement)) byId("adapt").focus();
  } catch (error) {
    complain(theirs(wordsOf(error)));
  }
});

installUndo();
installClasses();
onExamples(showExamples);
onInstead(openInstead);
installTeaching(showMade);
installReport();
installSorting();
installUse(go, showRenamed);
installList();
onChange(drawTitle);
onLost(() => (byId("lost").hidden = false));
await start();
await restorePhotos();
await route();
document.documentElement.dataset.ready = "";
