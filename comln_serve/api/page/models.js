// The models that the server has and what they need, and how much it takes in a request.

import { ask, wordsOf } from "./server.js";

export let models = [];
export let limits = null; // the answer of /limits; null until the server has said

// Twice the pixels that a model looks at, as the server itself keeps when it decodes large JPEGs.
const MARGIN = 2;
const UNKNOWN = 512; // no model needs more by default; used until the server has said

export async function loadModels() {
  const [served, allowed] = await Promise.all(
    ["models", "limits"].map((path) => ask(path).catch((error) => void wordsOf(error))),
  );
  models = served?.models ?? [];
  limits = allowed ?? null;
}

export const modelNamed = (name) => models.find((model) => (name ? model.name === name : model.default));

/** Pixels of the shorter side that an image keeps: enough for every model, so that it can be changed. */
export const enoughPixels = () => MARGIN * Math.max(...models.map((model) => model.image_size), models.length ? 0 : UNKNOWN);
