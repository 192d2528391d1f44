// What a name stands for. Others may change that while the page shows one of its versions.

import { announce } from "./announce.js";
import { choose } from "./dialog.js";
import { askPatiently, pathOf } from "./server.js";
import { listed, quoted } from "./words.js";

/** The version that a name stands for; null: none does. (The list is asked first, as an empty one is no error.) */
export async function standing(name, options = {}) {
  const { signal } = options;
  if (!name) return null;
  const [newest] = (await askPatiently(`classifiers?name=${encodeURIComponent(name)}&limit=1`, { signal }, options)).classifiers;
  return newest === undefined || newest.promoted ? newest ?? null : askPatiently(pathOf(name), { signal }, options);
}

let openInstead = () => {};
export const onInstead = (open) => (openInstead = open);
export const instead = (version) => openInstead(version);

/** What a change of a version means while its name stands for another, `now`. */
export const behindWords = ({ name, version }, now) =>
  `You have version ${version} of ${name} open, but ${name} stands for version ${now.version}. What you change here makes the ` +
  `next version out of version ${version}, without what is only in version ${now.version}, and ${name} will stand for it.`;

/** Whether a version is to be changed. Where its name stands for another, the user is asked, and may open that. */
export async function mayChange(classifier, now) {
  if (now === null || now.id === classifier.id) return true;
  const chosen = await choose(`${classifier.name} stands for version ${now.version}`, behindWords(classifier, now), [
    [`Open version ${now.version}, with the new images`, "open"],
    [`Go on with version ${classifier.version}`, "on"],
  ]);
  if (chosen === "open") await instead(now);
  if (chosen === null) announce("Nothing was changed.");
  return chosen === "on";
}

/** Whether a new classifier is to have a name that stands for another one, `now`; null: for none. */
export async function mayTakeName(now) {
  if (now === null) return true;
  const { name, version, classes } = now;
  const chosen = await choose(`There is a classifier ${name} already`,
    `${name} stands for version ${version}, of the classes ${listed(classes.map(({ label }) => quoted(label)), 4)}. The classifier that you ` +
    `are making becomes its next version, and ${name} will stand for it: links and programs that use this name get yours.`,
    [["Choose another name", false], [`Make the next version of ${name}`, true]]);
  return chosen === true;
}

/** Lets a name stand for a version in place of one of `known` (ids); the user is asked about any other. null: left. */
export async function promoteInstead({ id, name, version }, known, options) {
  for (const agreed = [...known]; ; ) {
    const now = await standing(name, options);
    if (now !== null && now.id !== id && !agreed.includes(now.id)) {
      const chosen = await choose(`${name} stands for version ${now.version}`,
        `At present ${name} stands for version ${now.version}. Version ${version} may lack what is in that one.`,
        [[`Promote version ${version} all the same`, true], [`Leave it at version ${now.version}`, false]]);
      if (chosen !== true) return null;
      agreed.push(now.id);
    }
    try {
      const only = now === null ? "" : `?instead_of=${now.id}`;
      return await askPatiently(`${pathOf(id)}/promote${only}`, { method: "POST" }, options);
    } catch (error) {
      if (error.code !== "name_moved") throw error; // else somebody has promoted another one since
    }
  }
}
