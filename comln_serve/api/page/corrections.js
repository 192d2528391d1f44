// What the user says that a photo to sort is of. It wins over what the classifier says, which learns from it when it is
// made again.

import { complain } from "./announce.js";
import { theirs } from "./dom.js";
import { isRefused } from "./thresholds.js";
import { undoable } from "./undo.js";
import { addImages, allImages, isDraft, moveImage, removeImage, work } from "./work.js";

/** The class that the user has put a photo in; "" if none, or if no class has this label any more. */
export function correction({ given }) {
  const isThere = given && [...work.classes, ...(work.classifier?.classes ?? [])].some(({ label }) => label === given);
  return isThere ? given : "";
}

/** The class of a photo that is sorted or corrected. */
export const labelOf = (photo) => correction(photo) || photo.result?.label;

/** Whether a sorted photo is kept in no class. */
export const isLeftOut = (photo) => !correction(photo) && isRefused(photo.result);

/** The probability of a sorted photo's class; null if it is not among the likeliest. */
export const shareOf = (photo) => photo.result.top.find(({ label }) => label === labelOf(photo))?.probability ?? null;

/** When the classifier learns from a correction. */
export const whenLearned = () => (isDraft() ? "when it is made again" : "when the new images are added in step 1");

/** Puts a photo in a class, as an image to learn from, too; one that waits to be sorted is made smaller first.
 *
 * changed() is called when that is done, and when it is undone. */
export async function correct(photo, target, changed) {
  try {
    await photo.prepare?.();
  } catch {
    complain(theirs(photo.name), ": The file can no longer be read.");
    return;
  }
  const { given } = photo;
  const earlier = allImages().find(({ of }) => of === photo.id);
  const owner = work.classes.find(({ images }) => images.includes(earlier));
  photo.given = target.label;
  let image = earlier;
  if (!image) {
    [image] = addImages(target, [new File([photo.blob], photo.name.split("/").at(-1), { type: photo.blob.type })]);
    image.of = photo.id;
  } else if (owner !== target) {
    moveImage(image, target);
  }
  changed();
  undoable(`${photo.name} is in ${target.label} now. The classifier learns from it ${whenLearned()}.`, {
    undo() {
      photo.given = given;
      const isHere = allImages().includes(image);
      if (isHere && !earlier) removeImage(image);
      else if (isHere && work.classes.includes(owner)) moveImage(image, owner);
      changed();
    },
  });
}
