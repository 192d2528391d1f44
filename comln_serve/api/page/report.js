// The second step: how good the classifier is.

import { announce } from "./announce.js";
import { bars, horizonChart, interval, intervalChart } from "./charts.js";
import { picture } from "./classes.js";
import { confusionTable, mistakes, mistakeWords, NARROW } from "./confusion.js";
import { openDialog } from "./dialog.js";
import { button, byId, el, part, redraw, theirs } from "./dom.js";
import { hasKept, keptPicture } from "./kept.js";
import { picturesOf } from "./memory.js";
import { limits } from "./models.js";
import { ask, wordsOf } from "./server.js";
import { allImages, moveImage, isDraft, onChange, removeImage, work } from "./work.js";
import { counted, dated, figure, percent, quoted } from "./words.js";

const MOST_GROUPS = 20; // of near-duplicates, shown
const MOST_SUSPECTS = 12; // shown, until all are asked for

let drawn; // the classifier that is shown
let allSuspects = false; // whether all of its suspects are
let pictures = new Map(); // by example number: {blob, name, url}

/** The image of an example: of the draft, or the picture this browser remembers; undefined if it knows none. */
function exampleImage(number) {
  return (isDraft() && allImages().find((image) => image.number === number)) || pictures.get(number);
}

async function loadPictures(id) {
  for (const { url } of pictures.values()) URL.revokeObjectURL(url);
  pictures = await picturesOf(id);
  for (const one of pictures.values()) one.url = URL.createObjectURL(one.blob);
}

export const examplePicture = (number) => {
  const image = exampleImage(number);
  if (image) return picture(image, { alt: "" });
  const kept = work.classifier?.classes.some(({ thumbnail }) => thumbnail === number);
  return kept ? keptPicture(work.classifier, number) : el("span", { class: "no-picture" }, `#${number}`);
};

// --- The headline ---

function worth({ held_out: heldOut, near_duplicates: near = [] }, classes) {
  const { accuracy, judged } = heldOut;
  const right = Math.round(accuracy * judged);
  const [low, high] = interval(right, judged);
  const chance = 1 / classes.length;
  const wide = high - low > 0.25;
  const sentences = [
    `${right} of ${counted(judged, "image")} were recognised by a classifier that had not seen them.`,
    `On new images like these expect ${percent(low)} to ${percent(high)}; guessing gets ${percent(chance)}.`,
  ];
  if (near.length) {
    sentences.push(`${counted(near.flat().length, "image")} are nearly the same photo as others of their class: if new photos are of other occasions, expect less.`);
  }
  const corrected = isDraft() ? allImages().filter(({ of, number }) => of && number !== null).length : 0;
  if (corrected > 0) {
    sentences.push(`In step 3 you put ${counted(corrected, "image")} of these in a class. Photos that were sorted wrongly are harder than most: this accuracy can fall while the classifier gets better.`);
  }
  if (low <= chance) sentences.push("This may be no better than guessing.");
  if (wide) sentences.push("More images make the estimate sharper, and usually the classifier better.");
  return { accuracy, range: [low, high], chance, text: sentences.join(" ") };
}

function headline(detail) {
  const heldOut = detail.report?.held_out ?? null;
  const goSort = button("Sort photos with it", () => document.querySelector("[data-step=sort]").click(), { id: "go-sort" });
  if (heldOut === null) {
    const why = detail.report?.near_duplicates?.length
      ? "most images are nearly the same photo as others of their class. Add photos of other occasions."
      : "no image could be left out to test it. Give each class two images or more.";
    return el("div", { class: "headline" }, el("div", {},
      el("p", { class: "big" }, "not known"),
      el("p", {}, `How good it is on new images cannot be said: ${why}`)), goSort);
  }
  const { accuracy, range, chance, text } = worth(detail.report, detail.classes);
  return el("div", { class: "headline" },
    el("div", { class: "number" }, el("p", { class: "big", id: "accuracy" }, percent(accuracy)),
      el("p", { class: "hint" }, "accuracy on photos it had not seen")),
    el("div", { class: "meaning" }, intervalChart(accuracy, range, chance), el("p", { id: "worth" }, text)),
    goSort,
  );
}

// --- Parts ---

/** As wide as the page. */
function widePart(...content) {
  const made = part(...content);
  made.classList.add("wide");
  return made;
}

function byClass(heldOut, labels, detail) {
  const { classes } = detail;
  const lines = heldOut.confusion.map((row, index) => {
    const total = row.reduce((sum, count) => sum + count, 0);
    const picture = hasKept(classes[index]) && keptPicture(detail, classes[index].thumbnail);
    return { name: labels[index], picture, share: total ? row[index] / total : 0, text: total ? `${row[index]} of ${total}` : "not judged" };
  });
  const few = classes.filter(({ examples }) => examples < 3).length;
  return (labels.length > NARROW ? widePart : part)("Each class", bars(lines),
    few > 0 && el("p", { class: "hint" }, `${counted(few, "class has", "classes have")} fewer than three images: add some to those first.`));
}

/** A picture of each class, for reports that have no other list of them. */
function gallery(detail) {
  return widePart("Classes", el("ul", { class: "thumbnails", id: "gallery" }, detail.classes.filter(hasKept).map(({ label, thumbnail }) =>
    el("li", {}, el("div", { class: "frame" }, keptPicture(detail, thumbnail)), el("p", { class: "hint" }, theirs(label))))));
}

function suspects(list) {
  const items = list.map(({ number, label, likelier }) => {
    const image = isDraft() ? allImages().find((one) => one.number === number) : undefined;
    const target = work.classes.find((one) => one.label === likelier);
    const isThere = image && work.classes.some((one) => one.label === label && one.images.includes(image));
    const actions = !isThere ? null : el("p", { class: "actions" },
      target && button(`Move to ${likelier}`, () => act(() => moveImage(image, target), `Moved to ${likelier}.`),
        { class: "small", "aria-label": `Move to ${likelier}: ${image.name}` }),
      button("Remove", () => act(() => removeImage(image), "Removed."), { class: "small", "aria-label": `Remove ${image.name}` }));
    return el("li", {}, el("div", { class: "frame" }, examplePicture(number)),
      el("div", {}, el("p", {}, theirs(exampleImage(number)?.name ?? `example ${number}`)),
        el("p", { class: "hint" }, "given as ", theirs(label), ", looks like ", theirs(likelier)), actions));
  });
  const shown = el("ul", { class: "suspects", id: "suspects" }, allSuspects ? items : items.slice(0, MOST_SUSPECTS));
  const more = shown.children.length < items.length && button(`Show all ${items.length}`, () => {
    allSuspects = true;
    shown.append(...items.slice(MOST_SUSPECTS));
    more.remove();
    items[MOST_SUSPECTS].querySelector("button")?.focus();
  }, { class: "small" });
  return widePart("Images that look mislabelled", shown,
    more, el("p", { class: "hint" }, "Look at each before you move it: a photo in its right class that is only hard to recognise is listed, too."));
}

function act(change, words) {
  change();
  announce(`${words} Make the classifier again for this to count.`);
  draw(true);
}

/** The images behind a cell of the confusion matrix: those that were predicted so when they were left out. */
async function openCell(detail, given, predicted, count) {
  const labels = detail.classes.map(({ label }) => label);
  const right = given === predicted;
  const text = right
    ? `${counted(count, "image")} of ${quoted(labels[given])} recognised when left out.`
    : `${counted(count, "image")} of ${quoted(labels[given])} taken for ${quoted(labels[predicted])} when left out.`;
  const list = el("ul", { class: "thumbnails large" });
  const note = el("p", { class: "hint" });
  openDialog(right ? labels[given] : `${labels[given]} → ${labels[predicted]}`, [el("p", {}, text), note, list], { wide: true });
  let examples, revision;
  try {
    ({ examples, revision } = await ask(`classifiers/${detail.id}/examples`));
  } catch (error) {
    note.textContent = wordsOf(error);
    return;
  }
  if (revision !== detail.revision) {
    note.textContent = "The classifier has changed since. Open it again to see its images.";
    return;
  }
  const found = detail.report.held_out.predicted;
  const inCell = examples.filter(({ label }, place) => label === labels[given] && (!found || found[place] === predicted));
  if (!found) note.textContent = `This report counts images without naming them. Here are all of ${quoted(labels[given])}.`;
  if (!inCell.some(({ number }) => exampleImage(number))) {
    const kept = limits?.keep_thumbnails ? "at most one small picture of a class, and this browser has none" : "no images, and this browser has none of these";
    note.textContent = `The server keeps ${kept}: the classifier was made elsewhere or long ago.`;
  }
  const suspected = new Set(detail.report.held_out.suspects.map(({ number }) => number));
  list.replaceChildren(...inCell.map(({ number }) => el("li", { class: suspected.has(number) ? "suspect" : "" }, ...named(number))));
}

/** An example's picture and name. */
const named = (number) => [
  el("div", { class: "frame" }, examplePicture(number)),
  el("p", { class: "hint" }, theirs(exampleImage(number)?.name ?? `example ${number}`)),
];

function groupsOfExamples(title, groups, kind, hint, more = () => null) {
  return widePart(title, el("div", { class: "groups" }, groups.slice(0, MOST_GROUPS).map((numbers) =>
    el("ul", { class: `thumbnails ${kind}` }, numbers.map((number) => el("li", {}, ...named(number), more(number)))))),
    groups.length > MOST_GROUPS && el("p", {}, `and ${counted(groups.length - MOST_GROUPS, "group")} more`),
    el("p", { class: "hint" }, hint));
}

const nearDuplicates = (groups) => groupsOfExamples("Nearly the same photo", groups, "near-duplicates",
  "Such images are not judged by one another, and teach little more than one of them.");

const contradictory = (groups) => groupsOfExamples("The same photo in different classes", groups, "contradictory",
  "One of its classes is wrong: remove it there, and make the classifier again.", (number) => {
    const image = isDraft() && allImages().find((one) => one.number === number);
    const owner = image && work.classes.find(({ images }) => images.includes(image));
    return owner && button(`Remove from ${owner.label}`, () => act(() => removeImage(image), "Removed."), { class: "small" });
  });

const RULES = { given: "given", learned: "the model's own", auto: "chosen from the images" };

function facts(detail, section) {
  const lines = [
    ["Model", detail.model],
    ["Examples", counted(detail.classes.reduce((sum, { examples }) => sum + examples, 0), "image")],
    ["Horizon T", `${figure(detail.horizon)}, ${RULES[detail.horizon_rule] ?? detail.horizon_rule}`],
    ["Made", dated(detail.created_at)],
  ];
  return section("Facts", el("dl", { class: "facts", id: "facts" }, lines.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, theirs(value))))),
    el("ul", { class: "hint", id: "notes" }, (detail.report?.notes ?? []).map((note) => el("li", {}, theirs(note)))));
}

async function draw(again = false) {
  const detail = work.classifier;
  if (detail === drawn && !again) return;
  if (detail !== drawn) allSuspects = false;
  drawn = detail;
  const place = byId("step-quality");
  if (detail === null) {
    place.replaceChildren(el("p", { class: "empty" }, "There is no classifier yet. Add images and make one; here you will see how good it is."));
    return;
  }
  await loadPictures(detail.id);
  if (detail !== work.classifier) return;
  const heldOut = detail.report?.held_out ?? null;
  const choice = detail.report?.horizon_choice ?? null;
  const labels = detail.classes.map(({ label }) => label);
  const parts = [headline(detail)];
  if (detail.report?.contradictory?.length) parts.push(contradictory(detail.report.contradictory));
  if (heldOut) {
    if (heldOut.suspects.length) parts.push(suspects(heldOut.suspects));
    parts.push(byClass(heldOut, labels, detail));
    const worst = mistakes(heldOut.confusion).slice(0, 3);
    parts.push((labels.length > NARROW ? widePart : part)("Mistakes",
      el("p", {}, worst.length ? worst.flatMap((one) => mistakeWords(one, labels)) : "None among the images left out."),
      confusionTable(heldOut.confusion, labels, (given, predicted) => openCell(detail, given, predicted, heldOut.confusion[given][predicted])),
      el("p", { class: "hint" }, "Press a number to see the images.")));
  } else if (detail.classes.some(hasKept)) {
    parts.push(gallery(detail));
  }
  if (detail.report?.near_duplicates?.length) parts.push(nearDuplicates(detail.report.near_duplicates));
  if (choice) {
    parts.push(part("How far to adapt", horizonChart(choice.candidates, detail.horizon, choice.learned),
      el("p", { class: "hint" }, `Held-out accuracy by T. The chosen T, ${figure(detail.horizon)}, is marked; the dashed line is the one the model has learned, ${figure(choice.learned)}.`)));
  }
  parts.push(facts(detail, choice ? part : widePart));
  redraw(place, ...parts);
}

export function installReport() {
  onChange(() => draw());
}
