// Files and folders that the user chooses, drops or pastes.

const IMAGE = /\.(jpe?g|png|webp|bmp|gif|heic|heif|avif|tiff?)$/i;
// What file managers leave in folders, and archives made by them.
const LITTER = /^(\..*|Thumbs\.db|desktop\.ini|__MACOSX)$/i;

export const ACCEPT = "image/*,.heic,.heif,.avif,.tif,.tiff";

const isHidden = ({ file, folders }) => [...folders.slice(1), file.name].some((name) => LITTER.test(name));

/** Of files with the folders they lie in, the images: [{file, folders, path, label}], and the paths of the others.
 * Hidden files are neither, but for images that were chosen one by one. */
function sortOut(found) {
  const images = [];
  const others = [];
  for (const one of found) {
    const { file, folders } = one;
    const path = [...folders, file.name].join("/");
    const isImage = file.type.startsWith("image/") || IMAGE.test(file.name);
    if (isHidden(one) && !(isImage && folders.length === 0)) continue;
    if (isImage) images.push({ file, folders, path });
    else others.push(path);
  }
  const order = new Intl.Collator(undefined, { numeric: true });
  images.sort((a, b) => order.compare(a.path, b.path));
  setLabels(images);
  return { images, others };
}

/** A class is a folder that holds images itself. Its label is its path below the folder that was chosen or dropped; the
 * label begins with that folder's name if that folder holds images itself, or if several were dropped. "": in no folder. */
function setLabels(images) {
  const tops = new Set(images.filter(({ folders }) => folders.length > 0).map(({ folders }) => folders[0]));
  const above = tops.size === 1 && !images.some(({ folders }) => folders.length === 1) ? 1 : 0;
  for (const image of images) image.label = image.folders.slice(above).join("/");
}

/** Of an <input type=file>, with or without `webkitdirectory`. */
export function chosen(input) {
  const found = [...input.files].map((file) => ({
    file,
    folders: (file.webkitRelativePath || file.name).split("/").slice(0, -1),
  }));
  input.value = ""; // so that the same file can be chosen again
  return sortOut(found);
}

/** Of a drop or a paste: files, and all files in folders. */
export async function transferred(data) {
  // Entries have to be taken before the first wait: the list is emptied then.
  const taken = [...data.items]
    .filter((item) => item.kind === "file")
    .map((item) => ({ entry: item.webkitGetAsEntry?.() ?? null, file: item.getAsFile() }));
  const found = [];
  for (const { entry, file } of taken) {
    if (entry?.isDirectory) await walk(entry, [], found);
    else if (file) found.push({ file, folders: [] });
  }
  return sortOut(found);
}

async function walk(folder, above, found) {
  const folders = [...above, folder.name];
  const reader = folder.createReader();
  for (;;) {
    // A hundred entries at a time, until there are none.
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)).catch(() => []);
    if (entries.length === 0) return;
    for (const entry of entries) {
      if (entry.isDirectory) {
        await walk(entry, folders, found);
        continue;
      }
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject)).catch(() => null);
      if (file) found.push({ file, folders });
    }
  }
}

const PART = /^(train(ing)?|val(id|idation)?|test(ing)?)$/i;

/** The folders of images that look like the parts of a data set: {root, parts, train, test}, null if there are none.
 * parts: names of two or more, below the folders that all images have in common; root: the last of these, "" if none.
 * train, test: the parts to make a classifier of, and to measure it with. */
export function partsOf(images) {
  const paths = images.map(({ folders }) => folders).filter((folders) => folders.length > 0);
  let depth = 0;
  while (paths.length > 0 && paths.every((path) => path.length > depth && path[depth] === paths[0][depth])) depth += 1;
  const parts = [...new Set(paths.map((path) => path[depth]))].filter((name) => PART.test(name ?? ""));
  if (parts.length < 2) return null;
  const train = parts.find((name) => /^tr/i.test(name)) ?? parts.find((name) => /^v/i.test(name)) ?? parts[0];
  const others = parts.filter((name) => name !== train);
  return { root: paths[0][depth - 1] ?? "", parts, train, test: others.find((name) => /^te/i.test(name)) ?? others[0] };
}

/** Map of label to files. */
export function byLabel(images) {
  const classes = new Map();
  for (const { file, label } of images) classes.set(label, [...(classes.get(label) ?? []), file]);
  return classes;
}

/** Calls take(found) with what is dropped on an area, which is marked meanwhile. */
export function onDrop(area, take) {
  let depth = 0; // dragenter and dragleave also come from children
  const mark = (by) => area.classList.toggle("over", (depth = Math.max(0, depth + by)) > 0);
  area.addEventListener("dragenter", () => mark(1));
  area.addEventListener("dragleave", () => mark(-1));
  area.addEventListener("drop", () => mark(-depth), true); // on the way down: also where a child takes the drop
  area.addEventListener("drop", async (event) => {
    event.preventDefault();
    event.stopPropagation();
    take(await transferred(event.dataTransfer));
  });
}

// A file dropped anywhere must not replace the page.
for (const kind of ["dragover", "drop"]) {
  window.addEventListener(kind, (event) => event.preventDefault());
}
