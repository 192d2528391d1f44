// Small pictures that the server keeps of classes, where its operator allows it.

import { el } from "./dom.js";
import { download, pathOf, Refused } from "./server.js";

const AT_ONCE = 4;
const MOST = 400; // remembered, of 3 kB each

const known = new Map(); // by id and example number: a promise of the picture, null if there is none
const queue = []; // of what has come into sight
let loading = 0;

export const hasKept = ({ thumbnail }) => typeof thumbnail === "number";

async function load(id, number) {
  try {
    return (await download(`${pathOf(id)}/examples/${number}/thumbnail`)).blob;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    known.delete(`${id} ${number}`); // may come another time
    if (error.status === 429) queue.length = 0; // the key's requests are for what the user does
    return null;
  }
}

function blobOf(id, number) {
  const key = `${id} ${number}`;
  if (!known.has(key)) {
    if (known.size >= MOST) known.delete(known.keys().next().value);
    known.set(key, load(id, number));
  }
  return known.get(key);
}

async function work() {
  if (loading >= AT_ONCE || queue.length === 0) return;
  const { place, id, number, alt } = queue.shift();
  loading += 1;
  try {
    const blob = await blobOf(id, number);
    if (blob) {
      const url = URL.createObjectURL(blob);
      const image = el("img", { alt, src: url });
      image.onload = image.onerror = () => URL.revokeObjectURL(url);
      place.replaceWith(image);
    }
  } finally {
    loading -= 1;
    work();
  }
}

const waiting = new WeakMap();
const sight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    sight.unobserve(target);
    queue.push(waiting.get(target));
    work();
  }
}, { rootMargin: "200px" });

/** The picture of an example that the server keeps, loaded once it comes into sight. Its frame has the size. */
export function keptPicture({ id }, number, alt = "") {
  const place = el("span", { class: "no-picture" });
  waiting.set(place, { place, id, number, alt });
  sight.observe(place);
  return place;
}

// Whoever changes the key may be somebody else.
document.addEventListener("key-changed", () => known.clear());
