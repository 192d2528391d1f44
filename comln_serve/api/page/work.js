// What the user is working on: classes with images, the classifier made of them, and settings.
//
// A work is the draft of a new classifier, or a stored classifier with images to be added to it.

import { trimmed } from "./checks.js";
import { isLeaving } from "./manage.js";
import * as memory from "./memory.js";
import { enoughPixels } from "./models.js";
import { ask, pathOf, referenceOf, Refused } from "./server.js";
import { shrink } from "./shrink.js";

const DRAFT = "draft";

export const work = {
  key: DRAFT, // or the id of a stored classifier
  classes: [], // [{id, label, stored, images}]; stored: number of examples that the server has
  options: { name: "", model: "", horizon: "", originals: false },
  classifier: null, // the server's description of the one that is shown, with its report
  unreached: null, // id of the draft's classifier while the server does not say what it is; null: it has said
  edited: false, // whether the classes have changed since it was made
};

/** Pages of the same browser, which keep the same draft. */
export const otherTabs = new BroadcastChannel("comln-draft");

const listeners = new Set();
export const onChange = (listener) => listeners.add(listener);

let serial = 0;
const newId = () => `${Date.now().toString(36)}-${(serial += 1)}`;

/** Tells the page, and keeps the work for the next visit. */
export function changed({ edited = true } = {}) {
  if (edited && (work.classifier ?? work.unreached)) work.edited = true;
  for (const listener of listeners) listener();
  if (isDraft()) otherTabs.postMessage("");
  return memory.keep("works", {
    key: work.key,
    classes: work.classes.map(({ id, label }) => ({ id, label })),
    options: work.options,
    classifier: work.classifier?.id ?? work.unreached,
    edited: work.edited,
  });
}

export const isDraft = () => work.key === DRAFT;
export const allImages = () => work.classes.flatMap(({ images }) => images);

// --- Opening ---

let opening = 0;

/** A classifier of the server. One that was deleted here is gone, even while that can be undone. Throws `Refused`. */
async function stored(reference) {
  const found = await ask(pathOf(reference));
  if (isLeaving(found)) throw new Refused(`${referenceOf(found)} was deleted.`, { status: 404 });
  return found;
}

/** Opens the draft, or a stored classifier by its reference, unless another was opened meanwhile.
 * Throws `Refused`. */
export async function open(reference) {
  const mine = (opening += 1);
  const classifier = reference === null ? null : await stored(reference);
  const key = classifier?.id ?? DRAFT;
  const kept = await memory.recall("works", key);
  const records = await memory.imagesOf(key);
  if (mine !== opening) return;
  leave();
  const unreached = classifier ? null : kept?.classifier ?? null;
  Object.assign(work, { key, classifier, unreached, edited: unreached !== null && kept.edited });
  work.options = { name: "", model: "", horizon: "", originals: false, ...(kept?.options ?? {}) };
  const ids = new Map((kept?.classes ?? []).map(({ id, label }) => [label, id]));
  work.classes = (classifier?.classes ?? []).map(({ label, examples }) => made(label, ids.get(label), examples));
  for (const { id, label } of kept?.classes ?? []) {
    if (!work.classes.some((other) => other.id === id)) work.classes.push(made(label, id));
  }
  for (const record of records) {
    const owner = work.classes.find(({ id }) => id === record.class);
    if (owner) owner.images.push(imageOf(record));
  }
  // A class that the server no longer has, and that holds no new images, was removed.
  if (classifier) work.classes = work.classes.filter(({ stored, images }) => stored > 0 || images.length > 0);
  if (!classifier) while (work.classes.length < 2) work.classes.push(made(""));
  for (const listener of listeners) listener();
}

/** Asks for the classifier that the draft was made into, where the server has not said yet what it is: it may have been
 * away, or want a key. One that was deleted is forgotten. Throws `Refused`. */
export async function reach() {
  const { unreached } = work;
  if (unreached === null) return;
  let classifier = null;
  try {
    classifier = await stored(unreached);
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  if (work.unreached !== unreached) return;
  Object.assign(work, { classifier, unreached: null, edited: work.edited && classifier !== null });
  for (const listener of listeners) listener();
}

function leave() {
  for (const image of allImages()) URL.revokeObjectURL(image.url);
}

const made = (label, id = newId(), stored = 0) => ({ id, label, stored, images: [] });

// --- Images ---

function imageOf({ id, name, blob, small = blob, order, problem = "", number = null, result = null, folder = "", given, of }) {
  const url = URL.createObjectURL(small);
  return { id, name, blob, small, order, problem, number, result, folder, given, of, url, ready: Promise.resolve() };
}

/** An image of a file; its `blob`, what is sent, and `url` are there once it is `ready`. */
export function newImage(file, { later = false } = {}) {
  const image = { id: newId(), name: file.name, blob: null, small: null, url: "" };
  Object.assign(image, { order: Date.now() + serial / 1e4, problem: "", number: null, result: null });
  const { originals } = work.options;
  let begun = null;
  async function prepare() {
    image.small = await shrink(file, enoughPixels());
    image.blob = originals ? file : image.small;
    image.url = URL.createObjectURL(image.small);
  }
  image.prepare = () => (begun ??= prepare());
  if (!later) image.ready = image.prepare();
  return image;
}

export const recordOf = (image, key, owner = null) => ({
  id: image.id,
  work: key,
  class: owner,
  name: image.name,
  blob: image.blob,
  small: image.small === image.blob ? undefined : image.small,
  order: image.order,
  problem: image.problem,
  number: image.number,
  result: image.result,
  folder: image.folder,
  given: image.given,
  of: image.of,
});

export const restored = imageOf;

/** Adds files to a class. They are shown, and kept, as soon as each has been made smaller. */
export function addImages(owner, files) {
  const added = files.map((file) => newImage(file));
  owner.images.push(...added);
  memory.whileKeeping(Promise.all(added.map(keepWhenReady)));
  changed();
  return added;
}

async function keepWhenReady(image) {
  const { key } = work;
  await image.ready;
  image.shown?.();
  const holder = work.classes.find(({ images }) => images.includes(image));
  if (work.key === key && holder) await memory.keep("images", recordOf(image, key, holder.id));
}

export function removeImage(image) {
  const owner = work.classes.find(({ images }) => images.includes(image));
  owner.images = owner.images.filter((other) => other !== image);
  URL.revokeObjectURL(image.url);
  memory.drop("images", image.id);
  changed();
}

export function moveImage(image, target) {
  const owner = work.classes.find(({ images }) => images.includes(image));
  owner.images = owner.images.filter((other) => other !== image);
  target.images.push(image);
  memory.keep("images", recordOf(image, work.key, target.id));
  changed();
}

/** Notes why an image cannot be used. Nothing is sent of it any more. */
export function markBad(image, problem) {
  image.problem = problem;
  const owner = work.classes.find(({ images }) => images.includes(image));
  if (owner) memory.keep("images", recordOf(image, work.key, owner.id));
}

export function keepImages(images) {
  const owners = new Map(work.classes.flatMap(({ id, images: all }) => all.map((image) => [image, id])));
  const kept = images.filter((image) => owners.has(image));
  return memory.keepAll("images", kept.map((image) => recordOf(image, work.key, owners.get(image))));
}

// --- Classes ---

export function addClass(label = "") {
  const added = made(label);
  work.classes.push(added);
  changed({ edited: false });
  return added;
}

/** The class of this label, made if there is none. An empty class without a label is used first. */
export function classNamed(label) {
  const wanted = trimmed(label);
  // A stored classifier may have been given labels with blanks around them.
  const found = [label, wanted].map((text) => work.classes.find((one) => one.label === text && wanted !== "")).find(Boolean);
  if (found) return found;
  const empty = work.classes.find((one) => one.label === "" && one.images.length === 0);
  if (!empty) return addClass(wanted);
  empty.label = wanted;
  return empty;
}

/** Takes a class away; returns how to bring it back. */
export function removeClass(removed) {
  const place = work.classes.indexOf(removed);
  const { key } = work;
  work.classes.splice(place, 1);
  memory.dropAll("images", removed.images.map(({ id }) => id));
  changed();
  return () => {
    if (work.key !== key) return;
    work.classes.splice(place, 0, removed);
    keepImages(removed.images);
    changed();
  };
}

/** Gives a class a label. Returns the class that had it already and now has the images, or null. */
export function rename(renamed, label) {
  if (renamed.label === label) return null;
  const other = work.classes.find((one) => one !== renamed && one.label === label && label !== "");
  if (other) {
    other.images.push(...renamed.images);
    keepImages(renamed.images);
    work.classes = work.classes.filter((one) => one !== renamed);
  } else {
    renamed.label = label;
  }
  changed();
  return other ?? null;
}

/** Empties the draft; returns how to bring it back. */
export function startOver() {
  const before = { ...work };
  memory.dropAll("images", allImages().map(({ id }) => id));
  Object.assign(work, { classes: [made(""), made("")], classifier: null, unreached: null, edited: false });
  work.options = { ...work.options, name: "" };
  changed();
  return () => {
    if (!isDraft()) return;
    const since = work.classes.filter(({ images }) => images.length > 0);
    Object.assign(work, before);
    for (const { label, images } of since) classNamed(label).images.push(...images);
    keepImages(allImages());
    changed({ edited: since.length > 0 });
  };
}

/** The images that were to be added to this classifier; returns how to have them added to the one that is opened next. */
export async function carried() {
  await Promise.all(allImages().map(({ ready }) => ready));
  const owners = work.classes.filter(({ images }) => images.length > 0);
  return async () => {
    for (const { label, images } of owners) {
      for (const image of images) image.url = URL.createObjectURL(image.small); // the one before went with the classes
      classNamed(label).images.push(...images);
    }
    await keepImages(allImages());
    await changed({ edited: false });
  };
}

/** Takes over another name of a classifier. The draft that it was made of makes its next versions, not the old name's. */
export async function takeName(before, now) {
  const draft = isDraft() ? { ...work, classifier: work.classifier?.id ?? work.unreached } : await memory.recall("works", DRAFT);
  const its = draft?.classifier && (before.name === null ? draft.classifier === now.id : draft.options.name === before.name);
  if (its) draft.options.name = now.name;
  if (its && !isDraft()) await memory.keep("works", draft);
  if (work.classifier?.id === now.id) {
    const { name, version, promoted, revision } = now;
    Object.assign(work.classifier, { name, version, promoted, revision });
  }
  return changed({ edited: false });
}

/** Takes over a classifier that was just made of the classes. */
export function take(classifier) {
  Object.assign(work, { classifier, unreached: null, edited: false });
  return changed({ edited: false });
}
