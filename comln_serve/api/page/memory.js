// What outlives a reload, in this browser's IndexedDB: the draft, photos to sort, and pictures of
// the examples of classifiers made here (the server keeps none, or a small one of each class). Never the API key.
//
// Where the browser refuses (private windows, a full disk), the page works without it, and says so.

const STORES = { works: "key", images: "id", pictures: "id", families: "classifier" };
const FAMILIES = 8; // classifiers, with all their versions, of which pictures are kept

let database = null;

const opened = new Promise((resolve) => {
  const request = indexedDB.open("comln-serve", 1);
  request.onupgradeneeded = () => {
    for (const [name, keyPath] of Object.entries(STORES)) request.result.createObjectStore(name, { keyPath });
    request.transaction.objectStore("images").createIndex("work", "work");
    request.transaction.objectStore("pictures").createIndex("family", "family");
  };
  request.onsuccess = () => resolve((database = request.result));
  request.onerror = request.onblocked = () => resolve(null);
}).catch(() => null);

let keeping = 0;

/** Work that ends with something kept: the page asks before it is left meanwhile. */
export async function whileKeeping(work) {
  keeping += 1;
  document.documentElement.dataset.keeping = "";
  try {
    return await work;
  } finally {
    keeping -= 1;
    if (keeping === 0) delete document.documentElement.dataset.keeping;
  }
}

window.addEventListener("beforeunload", (event) => {
  if (keeping > 0) event.preventDefault();
});

let whenLost = () => {};

/** lost() is called when something cannot be kept. */
export const onLost = (lost) => (whenLost = lost);

const run = (store, mode, action, otherwise) =>
  mode === "readwrite" ? whileKeeping(transact(store, mode, action, otherwise)) : transact(store, mode, action, otherwise);

async function transact(store, mode, action, otherwise) {
  await opened;
  try {
    return await new Promise((resolve, reject) => {
      if (database === null) throw new Error("There is no database.");
      const transaction = database.transaction(store, mode);
      const request = action(transaction.objectStore(store));
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onabort = () => reject(transaction.error);
    });
  } catch {
    if (mode === "readwrite") whenLost();
    return otherwise;
  }
}

export const keep = (store, record) => run(store, "readwrite", (all) => all.put(record));
export const keepAll = (store, records) => run(store, "readwrite", (all) => void records.forEach((one) => all.put(one)));
export const recall = (store, key) => run(store, "readonly", (all) => all.get(key));
export const drop = (store, key) => run(store, "readwrite", (all) => all.delete(key));
export const dropAll = (store, keys) => run(store, "readwrite", (all) => void keys.forEach((key) => all.delete(key)));
export const imagesOf = (work) =>
  run("images", "readonly", (all) => all.index("work").getAll(work), []).then((found) =>
    found.sort((a, b) => a.order - b.order),
  );

/** Keeps pictures of a classifier's examples: [{number, blob, name}].
 *
 * parent: id of the classifier that it was made of by adding or removing examples; null if of none. */
export async function keepPictures(classifier, parent, pictures) {
  const family = (parent && (await recall("families", parent))?.family) ?? classifier;
  await keep("families", { classifier, family, at: Date.now() });
  await keepAll("pictures", pictures.map((one) => ({ ...one, family, id: `${family} ${one.number}` })));
  await forgetOldFamilies();
}

/** Map of example number to {blob, name}; empty if the classifier was not made in this browser. */
export async function picturesOf(classifier) {
  const family = (await recall("families", classifier))?.family;
  if (family === undefined) return new Map();
  const found = await run("pictures", "readonly", (all) => all.index("family").getAll(family), []);
  return new Map(found.map((picture) => [picture.number, picture]));
}

async function forgetOldFamilies() {
  const links = await run("families", "readonly", (all) => all.getAll(), []);
  const latest = new Map();
  for (const { family, at } of links) latest.set(family, Math.max(at, latest.get(family) ?? 0));
  const old = [...latest].sort((a, b) => b[1] - a[1]).slice(FAMILIES).map(([family]) => family);
  for (const family of old) {
    const keys = await run("pictures", "readonly", (all) => all.index("family").getAllKeys(family), []);
    await dropAll("pictures", keys);
  }
  await dropAll("families", links.filter(({ family }) => old.includes(family)).map(({ classifier }) => classifier));
}
