// Which predictions to keep: the thresholds that the user sets, and what they would refuse.

import { byId } from "./dom.js";
import { counted, figure, percent } from "./words.js";

let similarity = null; // null: the server's threshold, or none

const leastProbability = () => Number(byId("least-probability").value) / 100;

export const isUnknown = (result) =>
  similarity === null ? result.unknown === true : result.similarity < similarity;

export const isRefused = (result) => isUnknown(result) || result.probability < leastProbability();

/** Starts the similarity at the server's threshold, within the values that there are. */
export function spread(results, threshold) {
  const values = results.map((result) => result.similarity).concat(threshold ?? []);
  const slider = byId("least-similarity");
  slider.min = String(Math.floor(200 * Math.min(0, ...values)) / 200);
  slider.max = String(Math.ceil(200 * Math.max(0.005, ...values)) / 200);
  if (similarity === null) slider.value = String(threshold ?? slider.min);
}

export function resetSimilarity() {
  similarity = null;
}

/** results: of photos that the thresholds may refuse; count: of all that are sorted. */
export function sayThresholds(results, count) {
  const least = leastProbability();
  const slider = byId("least-similarity");
  byId("least-probability-value").textContent = percent(least);
  byId("least-similarity-value").textContent = figure(Number(slider.value));
  const unsure = results.filter((result) => result.probability < least).length;
  const unlike = results.filter(isUnknown).length;
  const refused = results.filter(isRefused).length;
  const why = [unlike && `${unlike} unlike every class`, unsure && `${unsure} below ${percent(least)}`].filter(Boolean);
  byId("threshold-says").textContent = count === 0 ? ""
    : `${refused} of ${counted(count, "photo")} refused${why.length ? `: ${why.join(", ")}` : ""}.`;
}

export function onThresholds(moved) {
  byId("least-probability").addEventListener("input", moved);
  byId("least-similarity").addEventListener("input", () => {
    similarity = Number(byId("least-similarity").value);
    moved();
  });
}
