// Makes a classifier of the classes, or adds their new images to a stored one.

import { announce, complain, quiet } from "./announce.js";
import { checkName } from "./checks.js";
import { obstacle, setProblem, titleOf } from "./classes.js";
import { button, byId, el, theirs } from "./dom.js";
import * as memory from "./memory.js";
import { modelNamed, models } from "./models.js";
import { inPieces, large } from "./pieces.js";
import { ask, askPatiently, onceKey, pathOf, Refused, referenceOf, stopped, wordsOf } from "./server.js";
import { mayChange, mayTakeName, promoteInstead, standing } from "./standing.js";
import { allImages, changed, isDraft, keepImages, markBad, onChange, take, work } from "./work.js";
import { counted, quoted } from "./words.js";

let running = null; // AbortController of the one under way
let whenMade = () => {};

const usable = () => allImages().filter((image) => !image.problem);

/** Images taken in turns from all classes: if several requests are needed, the first has every class. */
function ordered() {
  const lists = work.classes.map((owner) =>
    owner.images.filter((image) => !image.problem).map((image) => ({ image, blob: image.blob, owner })),
  );
  const longest = Math.max(...lists.map((list) => list.length));
  return Array.from({ length: longest }, (_, turn) => lists.map((list) => list[turn]).filter(Boolean)).flat();
}

async function prepared(images, signal, progress) {
  let ready = 0;
  await Promise.all(images.map((image) => image.ready.then(() => {
    signal.throwIfAborted();
    ready += 1;
    progress(`Preparing ${ready} of ${images.length} photos`, ready / images.length);
  })));
}

/** Sends everything; returns {made, sent, left}: the classifier, images in the order of their
 * numbers, and those that the server could not read.
 *
 * stood: the version that the name stands for now, as far as the user knows; null: none. */
async function send(signal, progress, stood) {
  await prepared(usable(), signal, progress);
  const all = ordered();
  const most = large();
  const fits = all.length <= most.images && all.reduce((sum, { blob }) => sum + blob.size, 0) <= most.bytes;
  const base = isDraft() ? null : work.classifier;
  const result = { made: base, sent: [], left: [] };
  const passed = []; // unfinished versions, deleted in the end
  let whole = fits;
  async function request(piece, last) {
    const form = new FormData();
    for (const { image, blob, owner } of piece) {
      form.append("images", blob, image.name);
      form.append("labels", owner.label);
    }
    const first = result.made === null;
    const at = first ? "adapt" : `${pathOf(result.made.id)}/examples`;
    whole = last && result.sent.length === 0;
    form.append("promote", String(whole));
    form.append("partial", "true");
    if (first) {
      const { name, model, horizon } = work.options;
      for (const [field, value] of Object.entries({ name, model, horizon })) if (value) form.append(field, value);
    }
    const many = result.sent.length + piece.length;
    progress(fits ? `Learning from ${counted(many, "image")}` : `Learning from ${many} of ${counted(all.length, "image")}`, fits ? null : (many - piece.length / 2) / all.length);
    const headers = { "Idempotency-Key": onceKey() };
    // A request under way is not broken off: the server might have made something of it already.
    return askPatiently(at, { method: "POST", body: form, headers }, { waiting: showWaiting, signal });
  }
  function done(piece, answer) {
    if (result.made && result.made.id !== answer.id && result.made.id !== base?.id) passed.push(result.made.id);
    result.made = answer;
    result.sent.push(...piece.map(({ image }) => image));
  }
  function bad({ image, owner }, problem) {
    markBad(image, problem);
    image.shown?.();
    result.left.push({ image, problem, label: titleOf(owner) });
    if (owner.stored === 0 && owner.images.every((other) => other.problem)) {
      throw new Refused(`None of the images of ${quoted(titleOf(owner))} can be used: ${image.name}: ${problem}`);
    }
  }
  const remove = (ids) => Promise.all(ids.map((id) => askPatiently(pathOf(id), { method: "DELETE" }).catch(() => null)));
  try {
    await inPieces(all, most, { send: request, done, bad, signal });
    signal.throwIfAborted();
  } catch (error) {
    // Of what was to become one classifier nothing half made stays behind.
    if (result.made && result.made.id !== base?.id) await remove([...passed, result.made.id]);
    // A stored classifier without a name has changed in place: what it took over is not sent again.
    if (result.sent.length > 0 && result.made.id === base?.id) {
      await number(result, base.id);
      await added(result.sent);
    }
    throw error;
  }
  try {
    // What was made is whole, and stays, whether the name is to stand for it or not.
    const known = [stood?.id, base?.id, ...passed].filter(Boolean);
    if (!whole && result.made?.name && !result.made.promoted) await promoteInstead(result.made, known, { signal });
  } finally {
    await remove(passed);
  }
  return result;
}

/** Numbers the images as the server does, and keeps their pictures. */
async function number({ made, sent }, parent) {
  const { examples } = await ask(`${pathOf(made.id)}/examples`);
  examples.slice(-sent.length).forEach((example, place) => (sent[place].number = example.number));
  const small = sent.filter(({ small: one }) => one.size < 1e6);
  await memory.keepPictures(made.id, parent, small.map((image) => ({ number: image.number, blob: image.small, name: image.name })));
  await keepImages(sent);
}

async function adapt() {
  if (running) return;
  quiet();
  const name = checkName(work.options.name);
  const problem = isDraft() && name.problem ? { text: name.problem, field: byId("name") } : obstacle();
  if (problem) {
    complain(theirs(problem.text));
    problem.field?.focus?.();
    return;
  }
  running = new AbortController();
  const parent = isDraft() ? null : work.classifier.id;
  byId("adapt").setAttribute("aria-disabled", "true");
  byId("adapt-progress").hidden = false;
  announce(`Learning from ${counted(usable().length, "image")}.`);
  try {
    const { signal } = running;
    const stood = await standing(parent === null ? work.options.name : work.classifier.name, { waiting: showWaiting, signal });
    if (parent !== null && !(await mayChange(work.classifier, stood))) return;
    if (parent === null && stood?.id !== work.classifier?.id && !(await mayTakeName(stood))) {
      byId("name").focus();
      return;
    }
    const result = await memory.whileKeeping(send(signal, showProgress, stood));
    await number(result, parent);
    const made = await ask(pathOf(result.made.id));
    sayLeft(result.left);
    if (parent === null) await take(made);
    else await added(result.sent);
    announce(`Made ${referenceOf(made)}.`);
    whenMade(made);
  } catch (error) {
    if (stopped(error)) announce("Stopped.");
    else complain(theirs(wordsOf(error)));
  } finally {
    running = null;
    byId("adapt").removeAttribute("aria-disabled");
    byId("adapt-progress").hidden = true;
    changed({ edited: false });
  }
}

/** The images are the server's now. */
async function added(sent) {
  const gone = new Set(sent);
  await memory.dropAll("images", sent.map(({ id }) => id));
  for (const owner of work.classes) owner.images = owner.images.filter((image) => !gone.has(image));
  await changed({ edited: false });
}

function sayLeft(left) {
  if (left.length === 0) return;
  const lines = left.slice(0, 5).map(({ image, problem, label }) => el("li", {}, theirs(label), ": ", theirs(image.name), `: ${problem}`));
  const more = left.length > 5 ? [el("li", {}, `and ${left.length - 5} more, marked at their classes`)] : [];
  complain(el("p", {}, `${counted(left.length, "image was", "images were")} left out:`), el("ul", {}, lines, more));
}

const showWaiting = (seconds, reason) => showProgress(`${reason} Waiting ${Math.round(seconds)} s ...`, null);

function showProgress(text, share) {
  byId("adapt-doing").textContent = text;
  if (share === null) byId("adapt-bar").removeAttribute("value");
  else byId("adapt-bar").value = share;
}

// --- The fields ---

function drawName() {
  const { problem, suggestion } = checkName(byId("name").value.trim());
  const line = byId("name-problem");
  setProblem(line, byId("name"), problem);
  if (problem && suggestion && !checkName(suggestion).problem) {
    line.append(" ", button(`Use ${suggestion}`, () => {
      byId("name").value = suggestion;
      writeName();
      byId("name").focus();
    }, { class: "small" }));
  }
}

function writeName() {
  work.options.name = byId("name").value.trim();
  drawName();
  changed({ edited: false });
}

export function drawModels() {
  const first = modelNamed("");
  const others = models.filter((model) => !model.default);
  byId("model").replaceChildren(
    new Option(first ? `${first.name} (the default)` : "the server's default", ""),
    ...others.map(({ name }) => new Option(name, name)),
  );
  byId("model").value = models.some(({ name }) => name === work.options.model) ? work.options.model : "";
  describeModel();
}

function describeModel() {
  const model = modelNamed(work.options.model);
  const ways = model?.ways ? ` It takes exactly ${model.ways} classes.` : "";
  byId("model-description").textContent = model ? `${model.description}${ways} Licence: ${model.licence}.` : "";
}

function draw() {
  const draft = isDraft();
  for (const id of ["starter", "starter-note", "settings", "start-over"]) byId(id).hidden = !draft;
  byId("name").closest(".field").hidden = !draft;
  if (document.activeElement !== byId("name")) byId("name").value = work.options.name;
  drawName();
  byId("horizon").value = work.options.horizon;
  byId("originals").checked = work.options.originals;
  if (byId("model").value !== work.options.model) drawModels();
  const count = usable().length;
  const classes = work.classes.filter(({ images }) => images.length > 0).length;
  byId("adapt").textContent = draft ? (work.classifier ? "Make it again" : "Make the classifier") : "Add the new images";
  byId("make-summary").textContent = draft
    ? `${counted(classes, "class", "classes")}, ${counted(count, "image")}`
    : `${counted(count, "new image")}${work.classifier?.name ? ", as the next version" : ""}`;
}

/** made(classifier) is called when there is a new one. */
export function installTeaching(made) {
  whenMade = made;
  onChange(draw);
  byId("adapt").addEventListener("click", adapt);
  byId("adapt-stop").addEventListener("click", () => {
    running?.abort();
    showProgress("Stopping ...", null);
  });
  byId("name").addEventListener("input", drawName);
  byId("name").addEventListener("change", writeName);
  for (const [id, field] of [["model", "value"], ["horizon", "value"], ["originals", "checked"]]) {
    byId(id).addEventListener("change", () => {
      work.options[id] = byId(id)[field];
      describeModel();
      changed({ edited: id !== "originals" });
    });
  }
}
