// Sorted photos in a folder for each class, as an archive.

import { isLeftOut, labelOf } from "./corrections.js";
import { REFUSED, folderNames } from "./folder-names.js";
import { zipOf } from "./zip.js";

const SUFFIXES = { "image/jpeg": ".jpg", "image/png": ".png" };

/** Stem and suffix of the name that a photo gets. A copy made smaller may be of another type than the file was. */
function named({ name, file, blob }) {
  const [, stem, suffix] = /([^/]*?)(\.[^./]*)?$/.exec(name);
  return [stem, file ? suffix ?? "" : SUFFIXES[blob.type] ?? suffix ?? ""];
}

/** Puts sorted photos into an archive. Returns it, how many photos it holds, how many of them are copies made smaller,
 * since only those outlast a visit, and the paths of those that could not be read. */
export async function foldersOf(photos) {
  const folderOf = folderNames();
  const taken = new Set();
  const files = photos.filter(({ result }) => result).map((photo) => {
    const folder = isLeftOut(photo) ? REFUSED : folderOf(labelOf(photo));
    const [stem, suffix] = named(photo);
    let path = `${folder}/${stem}${suffix}`;
    for (let number = 2; taken.has(path.toLowerCase()); number += 1) path = `${folder}/${stem} (${number})${suffix}`;
    taken.add(path.toLowerCase());
    return [path, photo.file ?? photo.blob];
  });
  const failed = [];
  const archive = await zipOf(files, (path) => failed.push(path));
  const reduced = photos.filter(({ result, file }) => result && !file).length;
  return { archive, count: files.length - failed.length, reduced, failed };
}
