// Sends many images in requests that the server takes.

import { limits } from "./models.js";
import { Refused } from "./server.js";

/** What goes into one request, as far as the server takes it. Smaller pieces show progress sooner. */
export const small = () => within({ images: 32, bytes: 8e6 });
export const large = () => within({ images: 512, bytes: 64e6 });

// Some of a body is not images: labels, and what is around them.
const within = ({ images, bytes }) => ({
  images: Math.min(images, limits?.max_images ?? images),
  bytes: Math.min(bytes, 0.75 * (limits?.max_body_bytes ?? Infinity)),
});

const bytesOf = (items) => items.reduce((sum, { blob }) => sum + blob.size, 0);

/** Takes from the front of `queue` as many items as one request holds, at least one. */
function cut(queue, most) {
  let bytes = 0;
  let count = 0;
  while (count < queue.length && count < most.images) {
    bytes += queue[count].blob.size;
    if (count > 0 && bytes > most.bytes) break;
    count += 1;
  }
  return queue.splice(0, count);
}

const without = (piece, rejected) => {
  const left = new Set(rejected.map(({ index }) => index));
  return piece.filter((_, place) => !left.has(place));
};

/** Sends items, in order, until all are answered or known to be bad.
 *
 * items: [{blob, ...}]
 * send(piece, last): makes the request, a partial one, for some of them; `last` if none are left after it.
 * done(piece, answer): the answer for those that can be used.
 * bad(item, message): one that cannot.
 */
export async function inPieces(items, { images, bytes }, { send, done, bad, signal }) {
  const queue = [];
  for (const item of items) {
    const most = limits?.max_image_bytes ?? Infinity;
    if (item.blob.size > most) bad(item, `has ${item.blob.size} bytes; the server takes ${most}`);
    else queue.push(item);
  }
  const own = { images, bytes }; // halved where a proxy takes less
  while (queue.length > 0) {
    signal?.throwIfAborted();
    let piece = cut(queue, own);
    const reject = (rejected) => rejected.forEach(({ index, message }) => bad(piece[index], message));
    while (piece.length > 0) {
      let answer;
      try {
        answer = await send(piece, queue.length === 0);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        const { rejected = [] } = error.detail;
        if (rejected.length > 0) {
          reject(rejected);
          piece = without(piece, rejected);
        } else if (piece.length > 1 && [408, 413, 504].includes(error.status)) {
          const half = Math.ceil(piece.length / 2);
          if (error.code === "body_too_large" || error.code === "too_many_images") {
            own.images = half;
            own.bytes = Math.max(1, bytesOf(piece.slice(0, half)));
          }
          queue.unshift(...piece.slice(half));
          piece = piece.slice(0, half);
        } else if ([408, 413, 504].includes(error.status)) {
          bad(piece[0], error.message);
          break;
        } else {
          throw error;
        }
        continue;
      }
      done(without(piece, answer.rejected), answer);
      reject(answer.rejected);
      break;
    }
  }
}
