// Example photos, served with the page: three products of the Grocery Store data set (MIT licence).

import { Refused } from "./server.js";

const LABELS = ["banana", "cucumber", "zucchini"];

async function fileOf(name) {
  const answer = await fetch(`page/starter/${name}`).catch(() => null);
  if (!answer?.ok) throw new Refused("The example photos cannot be loaded.");
  return new File([await answer.blob()], name, { type: "image/jpeg" });
}

const numbered = (from, count) => Array.from({ length: count }, (_, index) => `${from}-${index + 1}.jpg`);

/** {classes: [{label, files}], others: files to sort} */
export async function starter() {
  const classes = await Promise.all(
    LABELS.map(async (label) => ({ label, files: await Promise.all(numbered(label, 5).map(fileOf)) })),
  );
  const others = await Promise.all(LABELS.flatMap((label) => numbered(`new-${label}`, 2)).map(fileOf));
  return { classes, others };
}
