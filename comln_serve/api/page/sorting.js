// The third step: photos sorted by the classifier.

import { announce, complain } from "./announce.js";
import { bar } from "./charts.js";
import { holdsImages, partsWords, picture } from "./classes.js";
import { correct, correction, isLeftOut, labelOf, shareOf, whenLearned } from "./corrections.js";
import { csvOf, save } from "./csv.js";
import { closeDialog, openDialog } from "./dialog.js";
import { button, byId, el, theirs } from "./dom.js";
import { chosen, onDrop, partsOf, transferred } from "./files.js";
import { classesOfFolders, measured } from "./folder-check.js";
import * as memory from "./memory.js";
import { inPieces, small } from "./pieces.js";
import { foldersOf } from "./sorted-folders.js";
import { askPatiently, referenceOf, stopped, wordsOf } from "./server.js";
import { isUnknown, onThresholds, resetSimilarity, sayThresholds, spread } from "./thresholds.js";
import { undoable } from "./undo.js";
import { newImage, onChange, recordOf, restored, work } from "./work.js";
import { counted, listed, percent, quoted } from "./words.js";

const KEY = "sort";
const TOP = 5;
const LOOK_AHEAD = 8; // photos made smaller at a time, in each of two lines
const LINES = 2;
const PAGE = 120; // tiles, until more are asked for

// Images, each with result: {classifier, label, probability, top, unknown, similarity}; one that was removed is `gone`
// where it is still being prepared or sorted.
let photos = [];
let tiles = new Map();
let shown = PAGE;
let running = null;
let threshold = null; // of the last answer
let calibrated = true;
let classesOf = new Map(); // by folder, as classesOfFolders says

const isHere = ({ gone }) => !gone;
const unsorted = () => photos.filter(({ result, problem }) => result === null && !problem);
/** The class that a wrong photo is of, by its folder; "" where the folder says none, or the photo is right. */
function missed({ folder, result }) {
  const label = classesOf.get(folder);
  return label && result?.classifier === work.classifier?.id && result.label !== label ? label : "";
}
/** Photos that the present classifier is still to sort, where it has sorted others; none where it has not begun. */
function rest() {
  const isDone = ({ result }) => result?.classifier === work.classifier?.id;
  return photos.some(isDone) ? photos.filter((photo) => !isDone(photo) && !photo.problem) : [];
}
const results = () => photos.filter(({ result }) => result).map(({ result }) => result);

// --- Sending ---

/** Sorts photos by the present classifier. Returns whether it was not stopped. */
async function sort(wanted) {
  if (running || work.classifier === null) return true;
  if (wanted.length === 0) return true;
  running = new AbortController();
  const { signal } = running;
  const { id } = work.classifier;
  const queue = [...wanted];
  const answered = new Set();
  // Photos that are removed meanwhile are neither sent nor counted.
  const staying = () => wanted.filter(isHere);
  const done = () => staying().filter((photo) => answered.has(photo)).length;
  const began = performance.now();
  byId("sort-progress").hidden = false;
  byId("sort-status").textContent = "";
  for (const photo of wanted) photo.problem = "";
  const progress = (text = "") => {
    byId("sort-bar").max = Math.max(1, staying().length);
    byId("sort-bar").value = done();
    byId("sort-doing").textContent = text || `${done()} of ${counted(staying().length, "photo")} sorted`;
  };
  const settled = (photo) => {
    answered.add(photo);
    drawTile(photo);
    progress();
  };
  async function line() {
    while (queue.length > 0) {
      const some = queue.splice(0, LOOK_AHEAD).filter(isHere);
      const failed = new Set();
      await Promise.all(some.map((photo) => photo.prepare?.().catch(() => failed.add(photo))));
      signal.throwIfAborted();
      for (const photo of failed) {
        photo.problem = "The file can no longer be read.";
        settled(photo);
      }
      const ready = some.filter((photo) => isHere(photo) && !failed.has(photo));
      await inPieces(ready, small(), {
        signal,
        send: (piece) => predict(id, piece, signal, progress),
        done(piece, answer) {
          ({ unknown_threshold: threshold, calibrated } = answer);
          answer.predictions.filter((one) => one !== null).forEach((prediction, place) => {
            piece[place].result = { ...prediction, classifier: id, threshold };
            settled(piece[place]);
          });
          keep(piece);
        },
        bad(photo, problem) {
          Object.assign(photo, { problem, result: null });
          keep([photo]);
          settled(photo);
        },
      });
    }
  }
  progress();
  announce(`Sorting ${counted(wanted.length, "photo")}.`);
  let halted = false;
  try {
    await memory.whileKeeping(Promise.all(Array.from({ length: LINES }, () => line().catch((error) => {
      queue.length = 0; // the other line ends, too
      throw error;
    }))));
  } catch (error) {
    running.abort();
    if (stopped(error)) halted = true;
    else complain(theirs(wordsOf(error)));
  }
  running = null;
  byId("sort-progress").hidden = true;
  draw();
  const left = staying();
  if (left.length === 0) return !halted; // that they were removed has been said
  const failed = left.filter(({ problem }) => problem);
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  const lines = [halted
    ? `Stopped after ${done()} of ${counted(left.length, "photo")}.`
    : done() < left.length ? `Sorted ${done() - failed.length} of ${counted(left.length, "photo")}.`
      : `Sorted ${counted(done() - failed.length, "photo")} in ${seconds} s.`];
  if (failed.length) lines.push(`${counted(failed.length, "file")} could not be read: ${listed(failed.map(({ name }) => name))}.`);
  if (done() > failed.length && threshold === null) lines.push("Whether a photo is unlike every class cannot be said: there are too few examples.");
  if (!calibrated) lines.push("The probabilities are not calibrated.");
  byId("sort-status").textContent = [...lines, outdated()].join(" ");
  announce([lines[0], ...drawMeasured().slice(0, 1)].join(" "));
  return !halted;
}

function predict(id, piece, signal, progress) {
  const form = new FormData();
  for (const { blob, name } of piece) form.append("images", blob, name);
  form.append("classifier", id);
  form.append("top_k", String(TOP));
  form.append("unknown", "true");
  form.append("all_views", String(byId("closer").checked));
  form.append("partial", "true");
  return askPatiently("predict", { method: "POST", body: form, signal }, {
    waiting: (seconds, reason) => progress(`${reason} Waiting ${Math.round(seconds)} s ...`),
  });
}

/** Keeps photos for the next visit, but for those that were removed meanwhile. */
const keep = (some) => memory.keepAll("images", some.filter(isHere).map((photo) => recordOf(photo, KEY)));

/** Shows and keeps photos that no classifier can sort yet. */
async function keepWaiting(some) {
  for (const photo of some) {
    if (!isHere(photo)) continue;
    await photo.prepare?.().catch(() => null);
    if (photo.blob) await keep([photo]);
    drawTile(photo);
  }
}

// --- Tiles ---

/** Made once, so that the picture is not loaded again whenever its tile changes. */
function frameOf(photo) {
  if (!photo.url) return el("span", { class: "frame" }, el("span", { class: "no-picture" }, "..."));
  photo.frame ??= el("span", { class: "frame" }, picture(photo, { alt: "" }));
  return photo.frame;
}

function drawTile(photo) {
  const tile = tiles.get(photo);
  if (!tile) return;
  const { result, problem } = photo;
  const face = button(frameOf(photo), () => openPhoto(photo), { class: "face" });
  if (problem) {
    face.append(el("span", { class: "best bad" }, "not sorted"), el("span", { class: "mark" }, problem));
  } else if (result) {
    const refused = isLeftOut(photo);
    const share = shareOf(photo);
    face.append(
      el("span", { class: "best" }, theirs(labelOf(photo)), " ", el("span", { class: "share" }, share === null ? "" : percent(share))),
      bar(share ?? 0, refused ? "dim" : ""));
    if (correction(photo)) face.append(el("span", { class: "badge" }, "as you said"));
    if (refused) face.append(el("span", { class: "badge warn" }, isUnknown(result) ? "unlike every class" : "refused"));
    tile.classList.toggle("refused", refused);
    if (work.classifier && result.classifier !== work.classifier.id) face.append(el("span", { class: "mark" }, "outdated"));
    if (missed(photo) && !correction(photo)) face.append(el("span", { class: "mark" }, "wrong: it is in the folder ", theirs(photo.folder)));
  } else {
    face.append(el("span", { class: "best hint" }, correction(photo) ? theirs(correction(photo)) : "waiting"));
  }
  face.append(el("span", { class: "file" }, theirs(photo.name)));
  const focused = tile.contains(document.activeElement);
  tile.replaceChildren(face);
  if (focused) face.focus();
}

function openPhoto(photo) {
  const { result } = photo;
  const targets = work.classes.filter(({ label }) => label);
  const choice = el("select", { "aria-label": "Class" }, targets.map(({ label }) => new Option(label, label, false, label === labelOf(photo))));
  const list = selected();
  const next = list[list.indexOf(photo) + 1] ?? list.at(-2);
  const goOn = () => (tiles.get(tiles.has(photo) ? photo : next)?.firstElementChild ?? byId("queries")).focus();
  const content = [
    el("div", { class: "frame big-frame" }, picture(photo)),
    photo.problem && el("p", { class: "problem" }, photo.problem),
    missed(photo) && el("p", { class: "problem" }, "Wrong: it is in the folder ", theirs(photo.folder), "."),
    result && el("ul", { class: "bars" }, result.top.map(({ label, probability }) => el("li", {},
      el("span", { class: "name", title: label }, theirs(label)), bar(probability), el("span", { class: "value" }, percent(probability, 1))))),
    result && el("p", { class: "hint" }, `Similarity ${result.similarity.toFixed(3)}${result.threshold === null ? "" : `; unlike every class below ${result.threshold.toFixed(3)}`}.`),
    targets.length > 0 && !photo.problem && el("p", { class: "actions" }, "It is", choice,
      button("Put it in this class", async () => {
        closeDialog();
        await correct(photo, targets.find(({ label }) => label === choice.value), () => {
          if (photo.blob) keep([photo]);
          draw();
        });
        goOn();
      })),
    targets.length > 0 && !photo.problem && el("p", { class: "hint" }, `The classifier learns from it ${whenLearned()}.`),
    el("p", { class: "actions" }, button("Remove from this list", () => {
      closeDialog();
      remove([photo]);
      goOn();
    }, { class: "small" })),
  ];
  openDialog(photo.name, content.filter(Boolean));
}

// --- The grid ---

function selected() {
  const [label, state, order] = ["filter-class", "filter-state", "filter-order"].map((id) => byId(id).value);
  const fits = {
    "": () => true,
    kept: (photo) => photo.result && !isLeftOut(photo),
    refused: (photo) => photo.result && isLeftOut(photo),
    unknown: (photo) => photo.result && isUnknown(photo.result) && !correction(photo),
    corrected: correction,
    failed: ({ result }) => !result,
    wrong: missed,
  }[state];
  const found = photos.filter((photo) => fits(photo) && (label === "" || labelOf(photo) === label.slice(1)));
  const share = ({ result }) => result?.probability ?? 0;
  if (order === "unsure") found.sort((a, b) => share(a) - share(b));
  if (order === "sure") found.sort((a, b) => share(b) - share(a));
  return found;
}

function drawFilter() {
  const counts = new Map();
  for (const label of photos.map(labelOf).filter(Boolean)) counts.set(label, (counts.get(label) ?? 0) + 1);
  const field = byId("filter-class");
  const before = field.value;
  // A value begins with a blank, so that no label is taken for "all".
  field.replaceChildren(new Option(`all (${photos.length})`, ""), ...[...counts].sort().map(([label, count]) => new Option(`${label} (${count})`, ` ${label}`)));
  field.value = [...field.options].some(({ value }) => value === before) ? before : "";
}

/** Says how good the classifier is on photos whose folders have names of its classes; returns the sentences. */
function drawMeasured() {
  classesOf = classesOfFolders(photos, (work.classifier?.classes ?? []).map(({ label }) => label));
  const sentences = measured(photos, classesOf, work.classifier?.id);
  const text = sentences.join(" ");
  byId("measured").textContent = text;
  byId("measured").hidden = text === "";
  const state = byId("filter-state");
  const option = [...state.options].find(({ value }) => value === "wrong");
  if (text && !option) state.append(new Option("wrong by folder", "wrong"));
  if (!text) option?.remove(); // if it was chosen, all are shown
  return sentences;
}

/** How many results are of another classifier, in words; "": none are. */
function outdated() {
  const old = results().filter(({ classifier }) => classifier !== work.classifier?.id).length;
  return old && work.classifier ? `Outdated: ${counted(old, "photo was", "photos were")} sorted by another classifier or version.` : "";
}

function draw() {
  byId("sorted").hidden = photos.length === 0;
  if (photos.length === 0) byId("sort-status").textContent = work.classifier ? "" : "Make or open a classifier first; photos wait for it.";
  const done = results();
  threshold = done.at(-1)?.threshold ?? threshold;
  byId("similarity-field").hidden = done.length === 0;
  spread(done, threshold);
  drawFilter();
  drawMeasured();
  drawGrid();
  const old = outdated();
  byId("again").hidden = !work.classifier || photos.length === 0;
  byId("again").textContent = old && rest().length === 0 ? `Sort again with ${referenceOf(work.classifier)}`
    : rest().length > 0 ? `Sort the other ${rest().length}` : "Sort again";
  if (old && !running) byId("sort-status").textContent = old;
}

function drawGrid() {
  const found = selected();
  const some = found.slice(0, shown);
  tiles = new Map(some.map((photo) => [photo, tiles.get(photo) ?? el("li", {})]));
  for (const photo of some) drawTile(photo);
  const focused = document.activeElement;
  byId("results").replaceChildren(...tiles.values());
  if (byId("results").contains(focused)) focused.focus();
  byId("more-results").hidden = found.length <= shown;
  byId("more-results").textContent = `Show ${Math.min(PAGE, found.length - shown)} more of ${found.length}`;
  sayThresholds(photos.filter((photo) => photo.result && !correction(photo)).map(({ result }) => result), results().length);
}

/** Whether a photo of this name is among those to sort. */
export const holdsPhoto = (name) => photos.some((photo) => photo.name === name);

export async function addPhotos(found) {
  if (!holdsImages(found)) return;
  const { images } = found;
  const split = partsOf(images);
  if (split) complain(theirs(`${partsWords(split)} To see how many photos are right, drop the folder ${quoted(split.test)} alone.`));
  const added = images.map(({ file, path, label }) => Object.assign(newImage(file, { later: true }), { name: path, folder: label, file }));
  photos.push(...added);
  draw();
  if (work.classifier === null) await keepWaiting(added);
  sortNew();
}

/** Photos that came while others were being sorted are next. */
export async function sortNew() {
  while (!running && work.classifier && unsorted().length > 0) {
    const before = unsorted().length;
    if (!(await sort(unsorted())) || unsorted().length >= before) return;
  }
}

function remove(some) {
  const gone = new Set(some);
  const before = photos;
  photos = photos.filter((photo) => !gone.has(photo));
  for (const photo of some) photo.gone = true;
  memory.dropAll("images", some.map(({ id }) => id));
  draw();
  undoable(`${counted(some.length, "photo was", "photos were")} removed from the list.`, {
    async undo() {
      photos = [...before, ...photos.filter((photo) => !before.includes(photo))];
      for (const photo of some) photo.gone = false;
      keep(some.filter(({ blob }) => blob));
      draw();
      if (work.classifier === null) await keepWaiting(some.filter(({ blob }) => !blob));
      sortNew();
    },
    commit() {
      for (const { url } of some) if (url) URL.revokeObjectURL(url);
    },
  });
}

function table() {
  const head = ["file", "label", "probability", "similarity", "unknown", "refused", "second", "second_probability", "classifier", "error", "corrected"];
  const rows = selected().map((photo) => {
    const { name, result, problem } = photo;
    const said = Boolean(correction(photo));
    return result
      ? [name, labelOf(photo), shareOf(photo), result.similarity, isUnknown(result), isLeftOut(photo), result.top[1]?.label, result.top[1]?.probability, result.classifier, "", said]
      : [name, correction(photo), "", "", "", "", "", "", "", problem || "not sorted", said];
  });
  return csvOf([head, ...rows]);
}

/** Downloads the photos shown that are sorted, in a folder for each class. */
async function downloadFolders() {
  byId("folders").disabled = true;
  byId("sort-status").textContent = "Putting the photos into folders ...";
  let text;
  try {
    const { archive, count, reduced, failed } = await foldersOf(selected());
    if (count) save(archive, "sorted.zip");
    text = [count ? `${counted(count, "photo")} in folders, in one ZIP file.` : "No photo that is shown is sorted.",
      reduced ? `${reduced} of an earlier visit as they were sent, which may be smaller.` : "",
      failed.length ? `${counted(failed.length, "file")} can no longer be read: ${listed(failed)}.` : ""].filter(Boolean).join(" ");
  } catch (error) {
    text = error.message;
  }
  byId("folders").disabled = false;
  byId("sort-status").textContent = text;
  announce(text);
}

export const pastePhotos = async (data) => {
  const found = await transferred(data);
  if (found.images.length === 0) return false;
  await addPhotos(found);
  return true;
};

/** Brings back the photos of the last visit. */
export async function restorePhotos() {
  photos = (await memory.imagesOf(KEY)).map(restored);
  draw();
}

export function installSorting() {
  let last = null;
  onChange(() => {
    const id = work.classifier?.id ?? null;
    if (id === last && photos.length === 0) return;
    if (id !== last) resetSimilarity();
    last = id;
    draw();
  });
  for (const id of ["queries", "query-folder"]) byId(id).addEventListener("change", () => addPhotos(chosen(byId(id))));
  onDrop(byId("step-sort"), addPhotos);
  for (const id of ["filter-class", "filter-state", "filter-order"]) {
    byId(id).addEventListener("change", () => {
      shown = PAGE;
      drawGrid();
      announce(`${counted(selected().length, "photo")} shown.`);
    });
  }
  onThresholds(drawGrid);
  byId("more-results").addEventListener("click", () => {
    shown += PAGE;
    drawGrid();
  });
  byId("folders").addEventListener("click", downloadFolders);
  byId("csv").addEventListener("click", () => save(new Blob(["\ufeff", table()], { type: "text/csv" }), "sorted.csv"));
  byId("again").addEventListener("click", async () => {
    if (await sort(rest().length > 0 ? rest() : [...photos])) sortNew();
  });
  byId("clear").addEventListener("click", () => {
    running?.abort();
    remove(photos);
    byId("queries").focus();
  });
  byId("sort-stop").addEventListener("click", () => running?.abort());
}
