// ZIP archives of files as they are: each is read for its checksum only, so that gigabytes need no memory.

const MOST_BYTES = 2 ** 32 - 1; // beyond these an archive has another format
const MOST_FILES = 2 ** 16 - 1;
const FIRST_TIME = 3.16e11; // in 1980, where dates in archives begin

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

async function checksum(blob) {
  const reader = blob.stream().getReader();
  let crc = -1;
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
    for (const byte of value) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  }
  return ~crc;
}

/** Bytes of numbers, the lowest byte first: of two bytes each, or of four if `wide`. */
const numbers = (wide, ...values) => new Uint8Array(values.flatMap((value) => [0, 8, 16, 24].slice(0, wide ? 4 : 2).map((shift) => value >>> shift)));
const short = (...values) => numbers(false, ...values);
const long = (...values) => numbers(true, ...values);

function dated(blob) {
  const at = new Date(Math.max(blob.lastModified ?? Date.now(), FIRST_TIME));
  const day = ((at.getFullYear() - 1980) << 9) | ((at.getMonth() + 1) << 5) | at.getDate();
  return short((at.getHours() << 11) | (at.getMinutes() << 5) | (at.getSeconds() >> 1), day);
}

/** An archive of files, [path, blob] each. Those that can no longer be read are left out and passed to `failed(path)`.
 * Throws an Error, with a remedy, if they are too many or too large. */
export async function zipOf(files, failed) {
  const bytes = files.reduce((sum, [path, { size }]) => sum + size + 6 * path.length + 100, 0);
  if (files.length > MOST_FILES || bytes > MOST_BYTES) throw new Error("These are too many for one archive, which holds 4 GB and 65,535 files. Show one class, and download each by itself.");
  const parts = [];
  const directory = [];
  let [offset, count] = [0, 0];
  for (const [path, blob] of files) {
    let crc;
    try {
      crc = await checksum(blob);
    } catch {
      failed(path);
      continue;
    }
    const name = new TextEncoder().encode(path);
    // Version 2.0, names in UTF-8, stored without compression, no extra fields.
    const about = [short(20, 0x800, 0), dated(blob), long(crc, blob.size, blob.size), short(name.length, 0)];
    const entry = [long(0x04034b50), ...about, name, blob];
    directory.push(long(0x02014b50), short(20), ...about, short(0, 0, 0), long(0, offset), name);
    parts.push(...entry);
    offset += 30 + name.length + blob.size;
    count += 1;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  return new Blob([...parts, ...directory, long(0x06054b50), short(0, 0, count, count), long(size, offset), short(0)], { type: "application/zip" });
}
