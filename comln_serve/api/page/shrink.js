// Makes photos smaller before they are sent: a model looks at a few hundred pixels of them.

const AT_A_TIME = Math.max(2, Math.min(4, (navigator.hardwareConcurrency || 2) - 1));
const QUALITY = 0.92;
// These have no transparency, so JPEG loses none. Others become PNG.
const OPAQUE = new Set(["image/jpeg", "image/heic", "image/heif"]);

let free = AT_A_TIME;
const queue = [];

async function taken(work) {
  if (free === 0) await new Promise((resolve) => queue.push(resolve));
  else free -= 1;
  try {
    return await work();
  } finally {
    const next = queue.shift();
    if (next) next();
    else free += 1;
  }
}

/** The image with `enough` pixels on its shorter side, upright; itself if it has no more, or if the
 * browser cannot decode it. */
export const shrink = (file, enough) => taken(() => shrunk(file, enough));

async function shrunk(file, enough) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return file;
  }
  try {
    const scale = enough / Math.min(bitmap.width, bitmap.height);
    if (scale >= 1) return file;
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(bitmap.width * scale);
    canvas.height = Math.round(bitmap.height * scale);
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const type = OPAQUE.has(file.type) ? "image/jpeg" : "image/png";
    const made = await new Promise((resolve) => canvas.toBlob(resolve, type, QUALITY));
    return made !== null && made.size < file.size ? made : file;
  } finally {
    bitmap.close();
  }
}
