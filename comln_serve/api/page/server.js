// Requests to the server, and what it answers.

import { byId } from "./dom.js";

/** The server's refusal, or that it did not answer: `status` is 0 then. */
export class Refused extends Error {
  constructor(message, { status = 0, code = "", detail = {}, wait = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, detail, wait });
  }
}

export const stopped = (error) => error?.name === "AbortError";

/** The message of a refusal. Throws others on, as they are bugs. */
export function wordsOf(error) {
  if (error instanceof Refused) return error.message;
  throw error;
}

function keyed(headers = {}) {
  const key = byId("key").value.trim();
  // Headers cannot hold these characters: the browser would report a network error.
  if (/[^\x21-\x7e]/.test(key)) throw new Refused("An API key holds no such characters.", { status: 401 });
  return key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
}

const KEY_HINT = byId("key-hint").textContent;

async function answerOf(path, options) {
  const headers = keyed(options.headers);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (stopped(error)) throw error;
    throw new Refused("The server did not answer, or a file can no longer be read. If this goes on, tell whoever runs the server.");
  }
  const wanted = answer.status === 401;
  const key = headers.Authorization ? "The server does not accept this API key." : "This server requires an API key: enter it above.";
  byId("key").setAttribute("aria-invalid", String(wanted));
  byId("key-hint").textContent = wanted ? `${key} Ask whoever runs the server for one.` : KEY_HINT;
  if (wanted) document.dispatchEvent(new CustomEvent("key-wanted"));
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  const error = body?.error;
  throw new Refused(
    wanted ? key : typeof error?.message === "string" ? error.message : `The answer was ${answer.status} ${answer.statusText}.`,
    {
      status: answer.status,
      code: error?.code ?? "",
      detail: error?.detail ?? {},
      wait: Number(answer.headers.get("Retry-After")) || 0,
    },
  );
}

/** The JSON of an answer; null if it has no body. Throws `Refused`. */
export async function ask(path, options = {}) {
  const answer = await answerOf(path, options);
  if (answer.status === 204) return null;
  return answer.json().catch((error) => {
    if (stopped(error)) throw error;
    throw new Refused("The server's answer broke off.");
  });
}

/** A file that the server makes, as {blob, name}. */
export async function download(path) {
  const answer = await answerOf(path, {});
  const name = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") ?? "")?.[1];
  return { blob: await answer.blob(), name };
}

const TRIES = 10;
const TRIES_UNANSWERED = 6; // a quarter of a minute: the server may be starting
const LONGEST_WAIT = 15;

const pause = (seconds, signal) =>
  new Promise((resolve, reject) => {
    if (signal?.aborted) reject(signal.reason);
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

/** As `ask`, but waits and asks again where the server is busy, starting or not to be reached.
 *
 * waiting(seconds, reason) is called before each wait; `signal` ends it. */
export async function askPatiently(path, options, { waiting = () => {}, signal = options.signal } = {}) {
  for (let turn = 1; ; turn += 1) {
    try {
      return await ask(path, options);
    } catch (error) {
      const passing = error instanceof Refused && [0, 429, 503].includes(error.status);
      if (!passing || turn === (error.status === 0 ? TRIES_UNANSWERED : TRIES)) throw error;
      const seconds = Math.max(error.wait, Math.min(LONGEST_WAIT, 2 ** (turn - 1) / 2));
      waiting(seconds, error.message);
      await pause(seconds, signal);
    }
  }
}

export const pathOf = (reference) => `classifiers/${encodeURIComponent(reference)}`;

/** name@version, or the id of a classifier without a name. */
export const referenceOf = ({ id, name, version }) => (name === null ? id : `${name}@${version}`);

/** Random text for the header Idempotency-Key. (crypto.randomUUID is missing on plain http.) */
export const onceKey = () =>
  [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
