// The second step: how good the classifier is.

import { announce } from "./announce.js";
import { bars, horizonChart, interval, intervalChart } from "./charts.js";
import { picture } from "./classes.js";
import { confusionTable, mistakes, mistakeWords, NARROW } from "./confusion.js";
import { openDialog } from "./dialog.js";
import { button, byId, el, theirs } from "./dom.js";
import { picturesOf } from "./memory.js";
import { ask, wordsOf } from "./server.js";
import { allImages, moveImage, isDraft, onChange, removeImage, work } from "./work.js";
import { counted, dated, figure, milliseconds, percent, quoted } from "./words.js";

const MOST_CLASSES = 100; // as many as the server lists with one prediction

let drawn; // the classifier that is shown
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
  return image ? picture(image, { alt: "" }) : el("span", { class: "no-picture" }, `#${number}`);
};

// --- The headline -------------------------------------------------------------------------------

function worth(heldOut, classes) {
  const { accuracy, judged } = heldOut;
  const right = Math.round(accuracy * judged);
  const [low, high] = interval(right, judged);
  const chance = 1 / classes.length;
  const wide = high - low > 0.25;
  const sentences = [
    `${right} of ${counted(judged, "image")} were recognised by a classifier that had not seen them.`,
    `On new images like these expect ${percent(low)} to ${percent(high)}; guessing gets ${percent(chance)}.`,
  ];
  if (low <= chance) sentences.push("This may be no better than guessing.");
  if (wide) sentences.push("More images make the estimate sharper, and usually the classifier better.");
  return { accuracy, right, range: [low, high], chance, text: sentences.join(" ") };
}

function headline(detail) {
  const heldOut = detail.report?.held_out ?? null;
  if (heldOut === null) {
    return el("div", { class: "headline" }, el("div", {},
      el("p", { class: "big" }, "not known"),
      el("p", {}, "How good it is on new images cannot be said: no image could be left out to test it. Give each class two images or more.")));
  }
  const { accuracy, range, chance, text } = worth(heldOut, detail.classes);
  return el("div", { class: "headline" },
    el("div", { class: "number" }, el("p", { class: "big", id: "accuracy" }, percent(accuracy)),
      el("p", { class: "hint" }, "held-out accuracy")),
    el("div", { class: "meaning" }, intervalChart(accuracy, range, chance), el("p", { id: "worth" }, text)),
  );
}

// --- Parts --------------------------------------------------------------------------------------

function part(title, ...content) {
  return el("section", { class: "part" }, el("h2", {}, title), ...content);
}

/** As wide as the page. */
function widePart(...content) {
  const made = part(...content);
  made.classList.add("wide");
  return made;
}

function byClass(heldOut, labels, classes) {
  const lines = heldOut.confusion.map((row, index) => {
    const total = row.reduce((sum, count) => sum + count, 0);
    return { name: labels[index], share: total ? row[index] / total : 0, text: total ? `${row[index]} of ${total}` : "not judged" };
  });
  const few = classes.filter(({ examples }) => examples < 3).length;
  return (labels.length > NARROW ? widePart : part)("Each class", bars(lines),
    few > 0 && el("p", { class: "hint" }, `${counted(few, "class has", "classes have")} fewer than three images: add some to those first.`));
}

function suspects(list) {
  const items = list.map(({ number, label, likelier }) => {
    const image = isDraft() ? allImages().find((one) => one.number === number) : undefined;
    const target = work.classes.find((one) => one.label === likelier);
    const actions = !image || work.edited ? null : el("p", { class: "actions" },
      target && button(`Move to ${likelier}`, () => act(() => moveImage(image, target), `Moved to ${likelier}.`), { class: "small" }),
      button("Remove", () => act(() => removeImage(image), "Removed."), { class: "small" }));
    return el("li", {}, el("div", { class: "frame" }, examplePicture(number)),
      el("div", {}, el("p", {}, theirs(exampleImage(number)?.name ?? `example ${number}`)),
        el("p", { class: "hint" }, "given as ", theirs(label), ", looks like ", theirs(likelier)), actions));
  });
  return widePart("Images that look mislabelled", el("ul", { class: "suspects", id: "suspects" }, items),
    el("p", { class: "hint" }, "Look at them: about every second one is wrong where the classifier is weak, four of five where it is strong."));

  function act(change, words) {
    change();
    announce(`${words} Make the classifier again for this to count.`);
    draw(true);
  }
}

/** The images behind a cell of the confusion matrix.
 *
 * The report counts images and names only those that look mislabelled. The others are ordered by how
 * much the finished classifier, which has seen them, takes them for the predicted class. */
async function openCell(detail, given, predicted, count) {
  const labels = detail.classes.map(({ label }) => label);
  const own = isDraft() && !work.edited
    ? allImages().filter((image) => image.number !== null && work.classes.some((one) => one.label === labels[given] && one.images.includes(image)))
    : [];
  const known = own.length ? own : await remembered(detail, labels[given]);
  const suspected = (detail.report.held_out.suspects ?? []).filter((one) => one.label === labels[given] && one.likelier === labels[predicted]);
  const right = given === predicted;
  const text = right
    ? `${counted(count, "image")} of ${quoted(labels[given])} recognised when left out.`
    : `${counted(count, "image")} of ${quoted(labels[given])} taken for ${quoted(labels[predicted])} when left out.`;
  const list = el("ul", { class: "thumbnails large" });
  const note = el("p", { class: "hint" });
  openDialog(right ? labels[given] : `${labels[given]} → ${labels[predicted]}`, [el("p", {}, text), note, list], { wide: true });
  if (known.length === 0) {
    note.textContent = "The server keeps no images, and this browser has none of this class: it was made elsewhere or long ago.";
    return;
  }
  const suspectNumbers = new Set(suspected.map(({ number }) => number));
  let shares = new Map();
  if (!right && labels.length <= MOST_CLASSES) {
    try {
      shares = await sharesOf(detail.id, known, labels[predicted]);
      note.textContent = `The report counts images without naming them. Here are those of ${quoted(labels[given])}, the ones the finished classifier takes most for ${quoted(labels[predicted])} first.`;
    } catch (error) {
      note.textContent = wordsOf(error);
    }
  }
  const rank = (image) => (suspectNumbers.has(image.number) ? 2 : 0) + (shares.get(image) ?? 0);
  const sorted = [...known].sort((a, b) => rank(b) - rank(a));
  list.replaceChildren(...sorted.map((image) => el("li", { class: suspectNumbers.has(image.number) ? "suspect" : "" },
    el("div", { class: "frame" }, picture(image, { alt: "" })),
    el("p", { class: "hint" }, theirs(image.name)))));
}

async function remembered(detail, label) {
  const { examples } = await ask(`classifiers/${detail.id}/examples`).catch(() => ({ examples: [] }));
  return examples.filter((one) => one.label === label && pictures.has(one.number)).map(({ number }) => pictures.get(number));
}

async function sharesOf(id, images, label) {
  const some = images.slice(0, 200);
  const form = new FormData();
  for (const image of some) form.append("images", image.small ?? image.blob, image.name);
  for (const [name, value] of Object.entries({ classifier: id, top_k: MOST_CLASSES })) form.append(name, String(value));
  const { predictions } = await ask("predict", { method: "POST", body: form });
  return new Map(predictions.map(({ top }, index) => [some[index], top.find((one) => one.label === label)?.probability ?? 0]));
}

const RULES = { given: "given", learned: "the model's own", auto: "chosen from the images" };

function facts(detail, section) {
  const stages = Object.entries(detail.timings_ms ?? {}).filter(([stage]) => stage !== "total").map(([stage, time]) => `${stage} ${milliseconds(time)}`);
  const lines = [
    ["Model", detail.model],
    ["Examples", counted(detail.classes.reduce((sum, { examples }) => sum + examples, 0), "image")],
    ["Its own images right", `${percent(detail.support_accuracy, 1)} (no estimate for new images)`],
    ["Horizon T", `${figure(detail.horizon)}, ${RULES[detail.horizon_rule] ?? detail.horizon_rule}`],
    ["Made", dated(detail.created_at)],
    detail.timings_ms && ["Time", `${milliseconds(detail.timings_ms.total)} (${stages.join(", ")})`],
  ].filter(Boolean);
  return section("Facts", el("dl", { class: "facts", id: "facts" }, lines.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, theirs(value))))),
    el("ul", { class: "hint", id: "notes" }, (detail.report?.notes ?? []).map((note) => el("li", {}, theirs(note)))));
}

async function draw(again = false) {
  const detail = work.classifier;
  if (detail === drawn && !again) return;
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
  if (heldOut) {
    if (heldOut.suspects.length) parts.push(suspects(heldOut.suspects));
    parts.push(byClass(heldOut, labels, detail.classes));
    const worst = mistakes(heldOut.confusion).slice(0, 3);
    parts.push((labels.length > NARROW ? widePart : part)("Mistakes",
      el("p", {}, worst.length ? worst.map((one) => mistakeWords(one, labels)).join("; ") + "." : "None among the images left out."),
      confusionTable(heldOut.confusion, labels, (given, predicted) => openCell(detail, given, predicted, heldOut.confusion[given][predicted])),
      el("p", { class: "hint" }, "Press a number to see the images.")));
  }
  if (choice) {
    parts.push(part("How far to adapt", horizonChart(choice.candidates, detail.horizon, choice.learned),
      el("p", { class: "hint" }, `Held-out accuracy by T. The chosen T, ${figure(detail.horizon)}, is marked; the dashed line is the one the model has learned, ${figure(choice.learned)}.`)));
  }
  parts.push(facts(detail, choice ? part : widePart));
  place.replaceChildren(...parts);
}

export function installReport() {
  onChange(() => draw());
}
