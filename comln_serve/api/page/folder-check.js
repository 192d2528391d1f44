// Measures a classifier with photos to sort whose folders have the names of its classes.

import { interval } from "./charts.js";
import { trimmed } from "./checks.js";
import { counted, listed, percent, quoted } from "./words.js";

const composed = (label) => label.normalize("NFC");

/** Map of each folder of the photos to the class of its name, null if there is none.
 *
 * Empty where fewer than two thirds of the folders have names of classes: the folders are not about classes then. */
export function classesOfFolders(photos, labels) {
  const own = new Set(labels);
  const known = new Map(labels.map((label) => [composed(label), label]));
  // The page leaves out blanks around labels that it makes of folders.
  const classOf = (folder) => (own.has(folder) ? folder : known.get(composed(folder)) ?? known.get(composed(trimmed(folder))) ?? null);
  const folders = new Set(photos.map(({ folder }) => folder).filter(Boolean));
  const found = new Map([...folders].map((folder) => [folder, classOf(folder)]));
  const named = [...found.values()].filter((label) => label !== null).length;
  return 3 * named >= 2 * found.size ? found : new Map();
}

/** Sentences on how many of the photos are right; none where their folders say nothing about it.
 *
 * classes: as classesOfFolders returns them; id: of the classifier; results of others are not counted. */
export function measured(photos, classes, id) {
  const some = photos.filter(({ folder }) => classes.get(folder));
  const judged = some.filter(({ result }) => result?.classifier === id);
  if (judged.length === 0) return [];
  const right = judged.filter(({ folder, result }) => result.label === classes.get(folder)).length;
  const [low, high] = interval(right, judged.length);
  const share = `${percent(right / judged.length)}, 95% interval ${percent(low)} to ${percent(high)}`;
  const others = [...classes].filter(([, label]) => label === null).map(([folder]) => quoted(folder));
  const left = [
    [photos.filter(({ folder }) => classes.get(folder) === null), `of other folders (${listed(others)})`],
    [photos.filter(({ folder }) => !folder), "in no folder"],
    [some.filter(({ result }) => result?.classifier !== id), "not sorted by this classifier"],
  ].filter(([{ length }]) => length > 0).map(([{ length }, what]) => `${counted(length, "photo")} ${what}`);
  return [
    `The folders have names of your classes: ${right} of ${counted(judged.length, "photo is", "photos are")} right (${share}).`,
    ...(left.length ? [`Not counted: ${left.join(", ")}.`] : []),
    "Photos that the classifier was made from must not be among them.",
  ];
}
