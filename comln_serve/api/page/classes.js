// The first step: classes and their images.

import { announce, complain } from "./announce.js";
import { hasCamera, openCamera } from "./camera.js";
import { alikeWords, checkLabel, trimmed } from "./checks.js";
import { button, byId, el, theirs } from "./dom.js";
import { ACCEPT, byLabel, chosen, onDrop, partsOf, transferred } from "./files.js";
import { hasKept, keptPicture } from "./kept.js";
import { undoable } from "./undo.js";
import { addClass, addImages, classNamed, isDraft, onChange, removeClass, removeImage, rename, work } from "./work.js";
import { counted, listed, quoted } from "./words.js";

const SHOWN = 40; // thumbnails of a class, until more are asked for
const cards = new Map(); // class to what is shown of it
let lastUsed = null; // the class that pasted images go to

export const titleOf = (one) => one.label || `class ${work.classes.indexOf(one) + 1}`;

// --- Thumbnails ---

/** The picture of an image, or, where the browser cannot show it, the kind of its file. */
export function picture(image, properties = {}) {
  const kind = /\.([a-z0-9]{1,5})$/i.exec(image.name)?.[1]?.toUpperCase() ?? "?";
  const fallback = () => el("span", { class: "no-picture" }, kind);
  if (!image.url) return fallback();
  const shown = el("img", { src: image.url, alt: image.name, loading: "lazy", decoding: "async", ...properties });
  shown.addEventListener("error", () => shown.replaceWith(fallback()), { once: true });
  return shown;
}

function thumbnail(image, owner) {
  const remove = button("×", () => {
    const next = node.nextElementSibling?.querySelector("button") ?? cards.get(owner)?.input;
    removeImage(image);
    next?.focus();
  }, { class: "icon remove", "aria-label": `Remove ${image.name}` });
  const place = el("div", { class: "frame" });
  const node = el("li", {}, place, remove);
  function draw() {
    place.replaceChildren(image.url ? picture(image) : el("span", { class: "no-picture" }, "..."));
    node.classList.toggle("bad", image.problem !== "");
    node.querySelector(".mark")?.remove();
    if (image.problem) node.append(el("p", { class: "mark" }, `${image.name}: ${image.problem}`));
  }
  image.shown = draw;
  draw();
  return node;
}

// --- A class ---

function card(owner) {
  const nodes = new Map();
  let all = false;
  const count = el("span", { class: "count" });
  const problem = el("p", { class: "problem", id: `problem-${owner.id}` });
  const input = el("input", { type: "file", accept: ACCEPT, multiple: true });
  const list = el("ul", { class: "thumbnails" });
  const more = button("", () => {
    all = true;
    draw();
  }, { class: "small" });
  const label = owner.stored > 0 ? el("strong", { class: "label fixed" }, theirs(owner.label)) : labelField();
  const drop = button("Remove", () => takeAway(owner), { class: "small remove-class" });
  const shoot = hasCamera() ? button("Camera", () => openCamera(titleOf(owner), (file) => put(owner, [file]))) : null;
  const examples = owner.stored > 0 ? button("", () => examplesShown(owner), { class: "small stored" }) : null;
  const stored = owner.stored > 0 ? work.classifier.classes.find((one) => one.label === owner.label) : null;
  const kept = stored && hasKept(stored) && el("span", { class: "frame" }, keptPicture(work.classifier, stored.thumbnail));
  const node = el("div", { class: "class", role: "group" },
    el("div", { class: "class-head" }, kept, label, count, owner.stored > 0 ? null : drop),
    problem,
    examples,
    list,
    more,
    el("p", { class: "actions" }, el("label", { class: "button" }, input, "Add photos"), shoot,
      el("span", { class: "hint wide-only" }, "or drop or paste them")),
  );

  function labelField() {
    const field = el("input", {
      class: "label", autocomplete: "off", dir: "auto", value: owner.label, placeholder: "Class, e.g. Lemon",
      "aria-label": "Label", "aria-describedby": `problem-${owner.id}`,
    });
    field.addEventListener("change", () => named(owner, field));
    return field;
  }

  function draw() {
    const title = titleOf(owner);
    node.setAttribute("aria-label", `Class ${title}`);
    input.setAttribute("aria-label", `Add photos of ${title}`);
    drop.setAttribute("aria-label", `Remove ${title}`);
    shoot?.setAttribute("aria-label", `Camera, for ${title}`);
    if (label.tagName === "INPUT" && document.activeElement !== label) label.value = owner.label;
    if (examples) examples.textContent = `${counted(owner.stored, "example")} on the server`;
    const usable = owner.images.filter((image) => !image.problem).length;
    count.textContent = owner.stored > 0 ? (usable ? `+ ${usable} new` : "") : usable ? counted(usable, "image") : "";
    setProblem(problem, label, checkLabel(owner.label, owner.images.length));
    const shown = all ? owner.images : owner.images.slice(0, SHOWN);
    const wanted = new Set(shown);
    for (const [image, thumb] of nodes) {
      if (!wanted.has(image)) {
        thumb.remove();
        nodes.delete(image);
      }
    }
    for (const image of shown) {
      if (nodes.has(image)) continue;
      nodes.set(image, thumbnail(image, owner));
      list.append(nodes.get(image));
    }
    more.hidden = all || owner.images.length <= SHOWN;
    more.textContent = `Show all ${owner.images.length}`;
  }

  input.addEventListener("change", () => takeInto(owner, chosen(input)));
  onDrop(node, (found) => takeInto(owner, found));
  node.addEventListener("focusin", () => (lastUsed = owner));
  return { node, draw, input, label, problem };
}

export function setProblem(line, field, text) {
  if (line.textContent !== text) line.textContent = text;
  field.setAttribute?.("aria-invalid", String(text !== ""));
}

function named(owner, field) {
  const written = field.value;
  const label = trimmed(written);
  const other = rename(owner, label);
  if (other) {
    const text = `There is a class ${quoted(label)} already, so these images went to it.`;
    announce(text);
    byId("classes-note").textContent = text;
    cards.get(other)?.label.focus?.();
    return;
  }
  field.value = label;
  byId("classes-note").textContent = written !== label ? `The blanks around ${quoted(label)} were left out.` : "";
  const alike = work.classes.filter((one) => one === owner || alikeWords([one.label, label]));
  announce(`${byId("classes-note").textContent} ${alikeWords(alike.map((one) => one.label))}`.trim());
}

function takeAway(owner) {
  const place = work.classes.indexOf(owner);
  const back = removeClass(owner);
  const next = work.classes[Math.min(place, work.classes.length - 1)];
  (cards.get(next)?.input ?? byId("add-class")).focus();
  if (owner.images.length === 0) return;
  undoable(`${quoted(titleOf(owner))} with ${counted(owner.images.length, "image")} was removed.`, { undo: back });
}

let examplesShown = () => {};
export const onExamples = (open) => (examplesShown = open);

// --- Adding images ---

/** Whether there are images in a choice, a drop or a paste. Says which files are left out, or that there were none. */
export function holdsImages({ images, others }) {
  if (others.length > 0) {
    complain(`${counted(others.length, "file is no image and was", "files are no images and were")} left out: `, theirs(listed(others)), ".");
  } else if (images.length === 0) {
    complain("No image was found. If you dropped photos, choose them instead: some browsers do not pass on dropped files.");
  }
  return images.length > 0;
}

function put(owner, files) {
  addImages(owner, files);
  lastUsed = owner;
}

function takeInto(owner, found) {
  if (!holdsImages(found)) return;
  const { images } = found;
  put(owner, images.map(({ file }) => file));
  announce(`${counted(images.length, "image")} added to ${titleOf(owner)}.`);
}

/** "“grocery” holds the folders “train” and “test”, which look like parts of a data set, not classes." */
export function partsWords({ root, parts }) {
  const names = listed(parts.map(quoted), 6);
  return root ? `${quoted(root)} holds the folders ${names}, which look like parts of a data set, not classes.`
    : `The folders ${names} look like parts of a data set, not classes.`;
}

/** Makes classes of folders; images in no folder make a class without a label yet. */
function takeFolders(found) {
  if (!holdsImages(found)) return;
  const { images } = found;
  const split = partsOf(images);
  if (split) {
    complain(theirs(`${partsWords(split)} Nothing was added. Choose the folder ${quoted(split.train)} here, and keep ` +
      `${quoted(split.test)} to check the result with: drop it on step 3, Sort photos. If they are classes, choose them one at a time.`));
    return;
  }
  const folders = new Map(); // by the class that their images went to
  for (const [label, files] of byLabel(images)) {
    const owner = classNamed(label);
    owner.label ||= trimmed(label);
    put(owner, files);
    if (label) folders.set(owner, [...(folders.get(owner) ?? []), label]);
  }
  const labels = [...folders.keys()].map(({ label }) => quoted(label));
  const sentences = [labels.length
    ? `${counted(images.length, "image")} in ${counted(labels.length, "class", "classes")}: ${listed(labels, 6)}.`
    : `${counted(images.length, "image")} added. Say what they show.`];
  for (const [{ label }, names] of folders) {
    if (names.length > 1) sentences.push(`The folders ${listed(names.map(quoted))} are one class, ${quoted(label)}: blanks around a label are left out.`);
  }
  const outer = images.find(({ folders: path }) => path.length > 0)?.folders[0];
  if (labels.length > 1 && images.every(({ folders: [top = outer] }) => top === outer) && images.some(({ label }) => label === outer)) {
    sentences.push(`${quoted(outer)} holds photos itself, beside its folders, so it is a class, too, and all labels begin with its name.`);
  }
  const text = sentences.join(" ");
  byId("classes-note").textContent = text;
  announce(`${text} ${byId("alike-note").textContent}`.trim());
}

/** Pasted images go to the class used last, else to the first without images. */
export async function paste(data) {
  const found = await transferred(data);
  if (found.images.length + found.others.length === 0) return false;
  const open = work.classes.includes(lastUsed) ? lastUsed : null;
  takeInto(open ?? work.classes.find(({ images }) => images.length === 0) ?? addClass(), found);
  return true;
}

// --- All of them ---

function draw() {
  for (const [owner, { node }] of cards) {
    if (!work.classes.includes(owner)) {
      node.remove();
      cards.delete(owner);
    }
  }
  work.classes.forEach((owner, place) => {
    if (!cards.has(owner)) cards.set(owner, card(owner));
    const { node } = cards.get(owner);
    const list = byId("classes");
    // Moving a node takes the focus from it: only those in another place are moved.
    if (list.children[place] !== node) list.insertBefore(node, list.children[place] ?? null);
    cards.get(owner).draw();
  });
  const alike = alikeWords(work.classes.map(({ label }) => label));
  const text = alike && isDraft() ? `${alike} To make them one class, give them the same label.` : alike;
  if (byId("alike-note").textContent !== text) byId("alike-note").textContent = text;
  byId("alike-note").hidden = text === "";
}

/** What keeps the classes from being sent, in words, and the field that it is about. */
export function obstacle() {
  const used = work.classes.filter(({ label, images, stored }) => label || images.length || stored);
  for (const owner of used) {
    const usable = owner.images.filter((image) => !image.problem);
    const problem = checkLabel(owner.label, owner.images.length);
    if (problem) return { text: `Class ${work.classes.indexOf(owner) + 1}: ${problem}`, field: cards.get(owner)?.label };
    if (usable.length === 0 && owner.stored === 0) {
      return { text: `${quoted(owner.label)} has no images. Add some, or remove the class.`, field: cards.get(owner)?.input };
    }
  }
  if (isDraft() && used.length < 2) {
    return { text: "A classifier tells classes apart: two or more are needed, with images of each.", field: cards.get(work.classes[used.length])?.input };
  }
  return null;
}

export function installClasses() {
  onChange(draw);
  byId("classes").after(el("p", { id: "classes-note", class: "hint" }), el("p", { id: "alike-note", class: "note warn", hidden: true }));
  byId("add-class").addEventListener("click", () => {
    const added = addClass();
    cards.get(added).label.focus();
  });
  byId("folder").addEventListener("change", () => takeFolders(chosen(byId("folder"))));
  onDrop(byId("step-images"), takeFolders);
}
