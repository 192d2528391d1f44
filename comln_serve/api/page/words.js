// Numbers and lists as words.

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}\u00a0%`;

export const counted = (number, noun, plural = `${noun}s`) =>
  `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;

/** "a, b and 3 more" */
export function listed(names, most = 3) {
  const more = names.length - most;
  if (more > 0) return `${names.slice(0, most).join(", ")} and ${more} more`;
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

export const quoted = (text) => `“${text}”`;

export const dated = (text) =>
  new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Four significant digits, without an exponent where a person would write none. */
export const figure = (value) => String(Number(value.toPrecision(4)));
