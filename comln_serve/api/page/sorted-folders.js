// Sorted photos in a folder for each class, as an archive.

import { isRefused } from "./thresholds.js";
import { zipOf } from "./zip.js";

const REFUSED = "(refused)";
const SUFFIXES = { "image/jpeg": ".jpg", "image/png": ".png" };
// What a folder's name cannot have or mean on one system or another, and "%2F"; as `comln predict --copy-to` does.
const NOT_IN_NAMES = /[\p{Cc}/\\:*?"<>|]|^[. ]|[. ]+$|^(?=(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)).|%(?=[0-9a-f]{2})/giu;

const asInAddresses = (text) => [...new TextEncoder().encode(text)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("");

/** Stem and suffix of the name that a photo gets. A copy made smaller may be of another type than the file was. */
function named({ name, file, blob }) {
  const [, stem, suffix] = /([^/]*?)(\.[^./]*)?$/.exec(name);
  return [stem, file ? suffix ?? "" : SUFFIXES[blob.type] ?? suffix ?? ""];
}

/** Puts sorted photos into an archive. Returns it, how many photos it holds, how many of them are copies made smaller,
 * since only those outlast a visit, and the paths of those that could not be read. */
export async function foldersOf(photos) {
  const taken = new Set();
  const files = photos.filter(({ result }) => result).map((photo) => {
    const folder = isRefused(photo.result) ? REFUSED : photo.result.label.replace(NOT_IN_NAMES, asInAddresses);
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
