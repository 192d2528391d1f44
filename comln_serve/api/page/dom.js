// Making and finding elements. Texts of users and of the server may be hostile: they are set by
// textContent and properties, never as HTML.

export const byId = (id) => document.getElementById(id);

const given = (child) => child !== null && child !== undefined && child !== false;

/** An element with properties or attributes, and children (nodes or texts; null and false are left out). */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && !name.startsWith("aria")) made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter(given));
  return made;
}

/** Text of a user or the server, whose writing direction may differ from the page's. */
export const theirs = (text) => el("bdi", {}, String(text));

export const button = (text, onclick, properties = {}) =>
  el("button", { type: "button", onclick, ...properties }, text);

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** Text in a drawing. */
export function svgText(text, attributes) {
  const made = svg("text", attributes);
  made.textContent = text;
  return made;
}

const nameOf = (stop) => stop.getAttribute("aria-label") ?? stop.textContent;

/** Replaces what is in a place. The focus stays on the link or button that it was on; where that is gone, it goes to the
 * nearest link before it, or else to what came after it. */
export function redraw(place, ...children) {
  const stops = () => [...place.querySelectorAll("a, button")];
  const before = stops();
  const at = before.indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (at < 0) return;
  const links = before.slice(0, at).reverse().filter(({ tagName }) => tagName === "A");
  const wanted = [before[at], ...links, ...before.slice(at + 1)].map(nameOf);
  const now = new Map(stops().map((stop) => [nameOf(stop), stop]));
  const [first] = now.values();
  (now.get(wanted.find((name) => now.has(name))) ?? first ?? byId("main")).focus();
}

/** A part of a view, under a heading. */
export const part = (title, ...content) => el("section", { class: "part" }, el("h2", {}, title), ...content);
