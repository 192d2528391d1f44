// Names and labels, checked where they are written.

import { limits } from "./models.js";
import { counted, listed, quoted } from "./words.js";

const LONGEST_LABEL = 256; // used until the server has said
const MOST_ALIKE = 5; // groups of labels, named
/** What the server takes as a classifier's name, but for those that begin as ids do. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/** {problem, suggestion} of a classifier's name, in words; problem "" if it is fine. */
export function checkName(name) {
  if (name === "" || (NAME.test(name) && !name.startsWith("clf_"))) return { problem: "", suggestion: "" };
  const suggestion = name
    .normalize("NFKD")
    .replace(/\p{M}/gu, "")
    .replace(/^clf_/, "")
    .replace(/[^A-Za-z0-9._-]+/g, "-")
    .replace(/^[._-]+|[._-]+$/g, "")
    .slice(0, 64);
  return { problem: reason(name), suggestion };
}

function reason(name) {
  if (name.length > 64) return `A name has at most 64 characters; this one has ${name.length}.`;
  if (name.startsWith("clf_")) return "A name does not begin with clf_, as the server's own ids do.";
  if (/\s/.test(name)) return "A name has no spaces. Use a hyphen instead.";
  if (/^[._-]/.test(name)) return "A name begins with a letter or a digit.";
  const odd = [...new Set(name.match(/[^A-Za-z0-9._-]/gu))].slice(0, 3).map(quoted).join(" ");
  return `A name has only the letters a to z, digits, dots, hyphens and underscores, so not ${odd}.`;
}

/** A label without blanks around it. (Others within it are the user's.) */
export const trimmed = (label) => label.trim();

export function checkLabel(label, images) {
  const length = [...label].length;
  const most = limits?.max_label_length ?? LONGEST_LABEL;
  if (length > most) return `A label has at most ${most} characters; this one has ${length}.`;
  if (label === "" && images > 0) return "Say what these images show.";
  return "";
}

/** Names the labels that differ only in capitals, blanks or composition: they are of separate classes. "": none do. */
export function alikeWords(labels) {
  const groups = new Map();
  for (const label of new Set(labels)) {
    const key = label.normalize("NFC").replace(/\s+/g, "").toLowerCase();
    if (key) groups.set(key, [...(groups.get(key) ?? []), label]);
  }
  const found = [...groups.values()].filter(({ length }) => length > 1);
  if (found.length === 0) return "";
  const names = found.slice(0, MOST_ALIKE).map((group) => listed(group.map(quoted), 4));
  if (found.length > MOST_ALIKE) names.push(counted(found.length - MOST_ALIKE, "more group"));
  return `${names.join("; ")} are separate classes, though their labels differ only in capitals, blanks or the encoding of letters.`;
}
