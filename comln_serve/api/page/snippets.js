// How programs use a classifier: curl and Python.

const base = () => new URL(".", document.baseURI).href.replace(/\/$/, "");
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export const link = (reference) => `${base()}/?classifier=${encodeURIComponent(reference)}`;

export function curl(reference, keyed) {
  const key = keyed ? ` \\\n  -H "Authorization: Bearer $COMLN_KEY"` : "";
  return `curl -s ${quoted(`${base()}/predict`)}${key} \\\n  -F classifier=${quoted(reference)} -F unknown=true \\\n  -F images=@photo.jpg`;
}

export function python(reference, keyed) {
  const headers = keyed ? `\n    headers={"Authorization": "Bearer " + os.environ["COMLN_KEY"]},` : "";
  return `${keyed ? "import os\n" : ""}import requests

photos = ["photo.jpg"]
answer = requests.post(
    ${JSON.stringify(`${base()}/predict`)},${headers}
    data={"classifier": ${JSON.stringify(reference)}, "unknown": "true"},
    files=[("images", open(photo, "rb")) for photo in photos],
)
answer.raise_for_status()
for photo, found in zip(photos, answer.json()["predictions"]):
    print(photo, found["label"], round(found["probability"], 3), found["unknown"])
`;
}
