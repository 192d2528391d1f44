// The page to try the server with. Labels, file names and the server's answers may be hostile: they
// are inserted as text only, by textContent and properties, never as HTML.

const TOP = 5;

const byId = (id) => document.getElementById(id);

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** An element for text from a user or the server, whose writing direction may differ from the page's. */
function named(tag, text, className = "") {
  const made = element(tag, text, className);
  made.dir = "auto";
  return made;
}

const copyOf = (template) => byId(template).content.firstElementChild.cloneNode(true);
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const milliseconds = (time) => `${time.toFixed(1)} ms`;
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// --- The server ---------------------------------------------------------------------------------

class Refused extends Error {}

/** The JSON of an answer. Throws Refused, with the server's message if it sent one. */
async function ask(path, options = {}) {
  const key = byId("key").value.trim();
  // Headers cannot hold these characters: the browser would report a network error.
  if (/[^\x21-\x7e]/.test(key)) throw new Refused("An API key holds no such characters.");
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch {
    throw new Refused("The server did not answer, or an image can no longer be read. Try again.");
  }
  byId("key").setAttribute("aria-invalid", String(answer.status === 401));
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  const message = body?.error?.message;
  throw new Refused(
    typeof message === "string" ? message : `The answer was ${answer.status} ${answer.statusText}.`,
  );
}

/** The message of an error of the server or the network. Throws others on, as they are bugs. */
function wordsOf(error) {
  if (error instanceof Refused) return error.message;
  throw error;
}

// --- Images -------------------------------------------------------------------------------------

/** Calls back with the files that the user chooses in, or drops on, an area. */
function takeFiles(area, input, take) {
  input.addEventListener("change", () => {
    const chosen = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    take(chosen);
  });
  area.addEventListener("dragover", () => area.classList.add("over"));
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    area.classList.remove("over");
    const items = [...event.dataTransfer.items].filter(
      (item) => item.kind === "file" && !item.webkitGetAsEntry()?.isDirectory,
    );
    take(items.map((item) => item.getAsFile()).filter(Boolean));
  });
}

// A file dropped outside of an area must not replace the page.
for (const kind of ["dragover", "drop"]) {
  window.addEventListener(kind, (event) => event.preventDefault());
}

/** Shows an image in a copy of a template, with a button to remove it. */
function show(file, template, removed) {
  const node = copyOf(template);
  const picture = node.querySelector("img");
  picture.src = URL.createObjectURL(file);
  picture.alt = file.name;
  const button = node.querySelector(".remove");
  button.setAttribute("aria-label", `Remove ${file.name}`);
  const image = { file, node, drop, turn: 0 };
  function drop() {
    image.turn = 0; // ignores answers that arrive later
    URL.revokeObjectURL(picture.src);
    node.remove();
  }
  button.addEventListener("click", () => {
    drop();
    removed(image);
  });
  return image;
}

// --- 1. Classes ---------------------------------------------------------------------------------

let classes = [];

function addClass() {
  const node = copyOf("class-template");
  const input = node.querySelector("input[type=file]");
  const made = { node, label: node.querySelector(".label"), images: [] };
  takeFiles(node.querySelector(".drop"), input, (files) => {
    for (const file of files) {
      const image = show(file, "thumbnail-template", () => {
        made.images = made.images.filter((other) => other !== image);
        input.focus(); // the focused button has been removed
      });
      made.images.push(image);
      node.querySelector(".thumbnails").append(image.node);
    }
  });
  node.querySelector(".remove-class").addEventListener("click", () => {
    for (const image of made.images) image.drop();
    classes = classes.filter((other) => other !== made);
    node.remove();
    number();
    byId("add-class").focus();
  });
  classes.push(made);
  byId("classes").append(node);
  number();
  return made;
}

function number() {
  classes.forEach(({ node }, index) => {
    node.querySelector("legend").textContent = `Class ${index + 1}`;
    const input = node.querySelector("input[type=file]");
    input.setAttribute("aria-label", `Add images of class ${index + 1}`);
    node.querySelector(".remove-class").setAttribute("aria-label", `Remove class ${index + 1}`);
  });
}

let adapting = false;

async function adapt() {
  if (adapting) return;
  const support = classes.flatMap(({ label, images }) =>
    images.map((image) => ({ image, label: label.value })),
  );
  const form = new FormData();
  for (const { image, label } of support) {
    form.append("images", image.file, image.file.name);
    form.append("labels", label);
  }
  if (byId("model").value) form.append("model", byId("model").value);
  if (byId("name").value) form.append("name", byId("name").value);

  adapting = true;
  byId("adapt").setAttribute("aria-disabled", "true");
  byId("adapt-error").textContent = "";
  byId("adapt-status").textContent = `Adapting to ${counted(support.length, "image")} ...`;
  try {
    const made = await ask("adapt", { method: "POST", body: form });
    const reference = made.name === null ? made.id : `${made.name}@${made.version}`;
    byId("adapt-status").textContent =
      `Made ${reference} in ${milliseconds(made.timings_ms.total)}. It is chosen below.`;
    showReport(made, support);
    byId("classifier").value = reference;
    listClassifiers();
    classify(queries); // with the new classifier
  } catch (error) {
    byId("adapt-status").textContent = "";
    byId("adapt-error").textContent = wordsOf(error);
  } finally {
    adapting = false;
    byId("adapt").removeAttribute("aria-disabled");
  }
}

// --- 2. How good is it? -------------------------------------------------------------------------

function showReport(made, support) {
  const heldOut = made.report?.held_out ?? null;
  const labels = made.classes.map(({ label }) => label);
  const stages = Object.entries(made.timings_ms)
    .filter(([stage]) => stage !== "total")
    .map(([stage, time]) => `${stage} ${time.toFixed(1)}`);
  const figures = [
    ["Time", milliseconds(made.timings_ms.total), stages.join(", ")],
    ["Its own images right", percent(made.support_accuracy), "no estimate for new images"],
  ];
  if (heldOut !== null) {
    const more = `${counted(heldOut.judged, "image")}, left out in ${heldOut.folds} parts`;
    figures.push(["Held-out accuracy", percent(heldOut.accuracy), more]);
  }
  byId("figures").replaceChildren(
    ...figures.map(([name, value, more]) => {
      const figure = element("div");
      const shown = element("dd");
      shown.append(element("span", value, "value"), element("span", more, "more"));
      figure.append(element("dt", name), shown);
      return figure;
    }),
  );
  showSuspects(heldOut?.suspects ?? [], support);
  byId("confusion").hidden = heldOut === null;
  if (heldOut !== null) showConfusion(heldOut.confusion, labels);
  byId("notes").replaceChildren(...(made.report?.notes ?? []).map((note) => element("li", note)));
  byId("report").hidden = false;
  byId("classify-number").textContent = "3";
}

function showSuspects(suspects, support) {
  for (const { images } of classes) {
    for (const { node } of images) {
      node.classList.remove("suspect");
      node.querySelector(".mark").hidden = true;
    }
  }
  const lines = [];
  for (const { number, label, likelier } of suspects) {
    const sent = support[number - 1]; // a fresh classifier's examples are numbered as sent, from 1
    if (sent === undefined) continue;
    const { node, file } = sent.image;
    node.classList.add("suspect");
    const mark = node.querySelector(".mark");
    mark.replaceChildren("looks like ", named("bdi", likelier));
    mark.hidden = false;
    const line = element("li");
    line.append(named("bdi", file.name), ", given as ", named("bdi", label));
    line.append(", looks like ", named("bdi", likelier));
    lines.push(line);
  }
  byId("suspects").hidden = lines.length === 0;
  byId("suspects").querySelector("ul").replaceChildren(...lines);
}

function showConfusion(counts, labels) {
  const header = (text, scope) => {
    const cell = named("th", text);
    cell.scope = scope;
    cell.title = text; // full text, as the cell may cut it short
    return cell;
  };
  const top = element("tr");
  top.append(element("td"), ...labels.map((label) => header(label, "col")));
  const rows = counts.map((row, given) => {
    const line = element("tr");
    const cells = row.map((count, predicted) => {
      const meaning = given === predicted ? "right" : "wrong";
      return element("td", String(count), count === 0 ? "none" : meaning);
    });
    line.append(header(labels[given], "row"), ...cells);
    return line;
  });
  const [head, body] = [element("thead"), element("tbody")];
  head.append(top);
  body.append(...rows);
  byId("confusion").querySelector("table").replaceChildren(head, body);
}

// --- 3. Classify --------------------------------------------------------------------------------

let queries = [];
let turns = 0; // numbers requests, so that a late answer does not replace that of a newer request

function addQueries(files) {
  const added = files.map((file) =>
    show(file, "result-template", (image) => {
      queries = queries.filter((other) => other !== image);
      byId("queries").focus();
    }),
  );
  for (const { node, file } of added) {
    node.querySelector(".file").textContent = file.name;
    byId("results").append(node);
  }
  queries.push(...added);
  classify(added);
}

async function classify(images) {
  if (images.length === 0) return;
  images = [...images]; // a copy, as images may be added before the answer arrives
  turns += 1;
  const turn = turns;
  const waiting = () => images.filter((image) => image.turn === turn);
  const form = new FormData();
  for (const image of images) {
    image.turn = turn; // only this request's answer is shown
    form.append("images", image.file, image.file.name);
    image.node.querySelector(".best").textContent = "...";
    image.node.querySelector(".bars").replaceChildren();
  }
  form.append("classifier", byId("classifier").value.trim());
  form.append("top_k", String(TOP));
  form.append("unknown", "true");
  byId("predict-error").textContent = "";
  byId("predict-status").textContent = `Classifying ${counted(images.length, "image")} ...`;
  try {
    const answer = await ask("predict", { method: "POST", body: form });
    if (waiting().length === 0) return;
    answer.predictions.forEach((prediction, index) => {
      if (images[index].turn === turn) showPrediction(images[index].node, prediction);
    });
    const { total } = answer.timings_ms;
    const lines = [
      `Classified ${counted(images.length, "image")} with ${answer.classifier} in ${milliseconds(total)}.`,
    ];
    if (answer.unknown_threshold === null) {
      lines.push("Whether an image is of none of the classes cannot be said: its images were too few.");
    }
    if (!answer.calibrated) lines.push("The probabilities are not calibrated.");
    byId("predict-status").textContent = lines.join(" ");
  } catch (error) {
    if (waiting().length === 0) return;
    for (const { node } of waiting()) node.querySelector(".best").textContent = "not classified";
    byId("predict-status").textContent = "";
    byId("predict-error").textContent = wordsOf(error);
  }
}

function showPrediction(node, { label, probability, top, unknown }) {
  const best = node.querySelector(".best");
  best.replaceChildren(named("bdi", label), ` ${percent(probability)}`);
  if (unknown === true) best.append(" ", element("span", "unknown", "unknown-mark"));
  node.querySelector(".bars").replaceChildren(
    ...top.map((entry) => {
      const line = element("li");
      const name = named("span", entry.label, "name");
      name.title = entry.label; // full text, as it may be cut short
      const track = element("span", "", "track");
      const bar = element("span", "", "bar");
      bar.style.width = percent(entry.probability).replace(" ", "");
      track.append(bar);
      line.append(name, track, element("span", percent(entry.probability), "percent"));
      return line;
    }),
  );
}

// --- Lists of models and classifiers ------------------------------------------------------------

/** The JSON of an answer; nothing, without an error, if the key does not allow it or the server fails. */
const askQuietly = (path) => ask(path).catch((error) => void wordsOf(error));

let models = [];

async function listModels() {
  const answer = await askQuietly("models");
  models = answer?.models ?? [];
  const select = byId("model");
  const chosen = select.value;
  const options = models.map(({ name }) => new Option(name, name));
  const standard = models.find((model) => model.default);
  const first = standard ? `${standard.name} (the default)` : "the server's default";
  select.replaceChildren(new Option(first, ""), ...options.filter((_, i) => !models[i].default));
  if (models.some(({ name }) => name === chosen)) select.value = chosen;
  describeModel();
}

function describeModel() {
  const chosen = byId("model").value;
  const model = models.find((one) => (chosen ? one.name === chosen : one.default));
  const ways = model?.ways ? ` It takes exactly ${model.ways} classes.` : "";
  byId("model-description").textContent = model ? model.description + ways : "";
}

async function listClassifiers() {
  const answer = await askQuietly("classifiers");
  const options = (answer?.classifiers ?? []).map((item) => {
    const option = document.createElement("option");
    option.value = item.name === null ? item.id : `${item.name}@${item.version}`;
    option.label = item.classes.map(({ label }) => label).join(", ").slice(0, 80);
    return option;
  });
  byId("classifiers").replaceChildren(...options);
}

function list() {
  listModels();
  listClassifiers();
}

// --- Start --------------------------------------------------------------------------------------

byId("add-class").addEventListener("click", () => addClass().label.focus());
byId("adapt").addEventListener("click", adapt);
byId("model").addEventListener("change", describeModel);
byId("key").addEventListener("change", list);
takeFiles(byId("query-drop"), byId("queries"), addQueries);
byId("classifier").addEventListener("change", () => classify(queries));
byId("again").addEventListener("click", () => classify(queries));
byId("clear").addEventListener("click", () => {
  for (const image of queries) image.drop();
  queries = [];
  byId("predict-status").textContent = byId("predict-error").textContent = "";
});
addClass();
addClass();
list();
