// Names of the folders that sorted photos go to.

const MOST_BYTES = 255; // of a folder's name, on most file systems

/** Of photos that the thresholds refuse. No class has this name. */
export const REFUSED = "(refused)";

// What a folder's name cannot have or mean on one system or another, "%2F", and the folder of refused photos; but for
// that as `comln predict --copy-to` does.
const NOT_IN_NAMES = /[\p{Cc}/\\:*?"<>|]|^[. ]|[. ]+$|^(?=(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)).|^\((?=refused\)$)|%(?=[0-9a-f]{2})/giu;

const bytesOf = (text) => new TextEncoder().encode(text);
const asInAddresses = (text) => [...bytesOf(text)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("");

/** `text` followed by `end`, of which so many characters are left out in between that it fits a folder's name. */
function fitting(text, end) {
  const characters = [...text];
  while (bytesOf(characters.join("") + end).length > MOST_BYTES) characters.pop();
  return characters.join("") + end;
}

/** A function from a class's label to the name of its folder. A label that is too long is cut, and if another class has
 * that name then, numbered. */
export function folderNames() {
  const named = new Map();
  const taken = new Set();
  return (label) => {
    if (!named.has(label)) {
      const whole = label.replace(NOT_IN_NAMES, asInAddresses);
      let name = whole;
      if (bytesOf(whole).length > MOST_BYTES) {
        name = fitting(whole, "…");
        for (let number = 2; taken.has(name); number += 1) name = fitting(whole, `… (${number})`);
      }
      named.set(label, name);
      taken.add(name);
    }
    return named.get(label);
  };
}
