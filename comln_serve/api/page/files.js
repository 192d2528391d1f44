// Files and folders that the user chooses, drops or pastes.

const IMAGE = /\.(jpe?g|png|webp|bmp|gif|heic|heif|avif|tiff?)$/i;
const HIDDEN = /(^|\/)(\.[^/]*|Thumbs\.db|desktop\.ini)$/i;

export const ACCEPT = "image/*,.heic,.heif,.avif,.tif,.tiff";

/** Files with the folders they lie in: [{file, folders}], and the names of those that are no images. */
function sortOut(found) {
  const images = [];
  const others = [];
  for (const { file, folders } of found) {
    const path = [...folders, file.name].join("/");
    if (file.type.startsWith("image/") || IMAGE.test(file.name)) images.push({ file, folders, path });
    else if (!HIDDEN.test(path)) others.push(path);
  }
  const order = new Intl.Collator(undefined, { numeric: true });
  images.sort((a, b) => order.compare(a.path, b.path));
  return { images, others };
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

/** Images by the folder that names their class: Map of label to files; "" for files in no folder.
 *
 * The folders that all have in common name nothing, unless an image lies in the last of them. */
export function byFolder(images) {
  const inFolders = images.filter(({ folders }) => folders.length > 0);
  let common = inFolders[0]?.folders ?? [];
  for (const { folders } of inFolders) {
    let same = 0;
    while (same < common.length && common[same] === folders[same]) same += 1;
    common = common.slice(0, same);
  }
  const classes = new Map();
  for (const { file, folders } of images) {
    const label = folders.length === 0 ? "" : (folders[common.length] ?? common.at(-1));
    classes.set(label, [...(classes.get(label) ?? []), file]);
  }
  return classes;
}

/** Calls take(found) with what is dropped on an area, which is marked meanwhile. */
export function onDrop(area, take) {
  let depth = 0; // dragenter and dragleave also come from children
  const mark = (by) => area.classList.toggle("over", (depth = Math.max(0, depth + by)) > 0);
  area.addEventListener("dragenter", () => mark(1));
  area.addEventListener("dragleave", () => mark(-1));
  area.addEventListener("drop", async (event) => {
    mark(-depth);
    event.preventDefault();
    event.stopPropagation();
    take(await transferred(event.dataTransfer));
  });
}

// A file dropped anywhere must not replace the page.
for (const kind of ["dragover", "drop"]) {
  window.addEventListener(kind, (event) => event.preventDefault());
}
