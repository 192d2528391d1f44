// What is done with a stored classifier: promote, delete, export. (Naming is a dialog of its own.)

import { announce, complain } from "./announce.js";
import { save } from "./csv.js";
import { theirs } from "./dom.js";
import { ask, download, pathOf, referenceOf, wordsOf } from "./server.js";
import { promoteInstead } from "./standing.js";
import { undoable } from "./undo.js";

async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    complain(theirs(wordsOf(error)));
    return null;
  }
}

/** Lets a name stand for a version. shown: classifiers that the page shows, by which the user has decided. */
export const promote = (classifier, shown) =>
  attempt(async () => {
    const known = shown.find(({ name, promoted }) => promoted && name === classifier.name);
    const promoted = await promoteInstead(classifier, known ? [known.id] : []);
    if (promoted) announce(`${classifier.name} now stands for version ${promoted.version}.`);
    return promoted;
  });

const leaving = new Set(); // ids that are to be deleted, and are shown no more

export const isLeaving = ({ id }) => leaving.has(id);

/** Deletes a classifier in a while, unless it is undone. changed() is called at once, and when it is undone. */
export function remove(classifier, changed) {
  const path = pathOf(classifier.id);
  undoable(`${referenceOf(classifier)} was deleted.`, {
    undo() {
      leaving.delete(classifier.id);
      changed();
    },
    async commit(gone) {
      const done = await attempt(() => ask(path, { method: "DELETE", keepalive: gone }).then(() => true));
      if (done) return;
      leaving.delete(classifier.id);
      changed();
    },
  });
  leaving.add(classifier.id);
  changed();
}

export const exported = (classifier, format) =>
  attempt(async () => {
    announce("The server makes the file.");
    const { blob, name } = await download(`${pathOf(classifier.id)}/export?format=${format}`);
    save(blob, name ?? `${referenceOf(classifier)}.${format}`);
    announce("The file is downloaded.");
    return true;
  });
