"""A web page of predicted photos, mistakes first: one file, which loads nothing from elsewhere."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --line: light-dark(#c8c8c8, #555);
  --bad: light-dark(#b00020, #ff8a80); --good: light-dark(#1b6e2a, #81c995); }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; font: 1rem/1.4 system-ui, sans-serif; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem;
  list-style: none; margin: 0; padding: 0; }
li { border: 2px solid var(--line); border-radius: .4rem; overflow: hidden;
  overflow-wrap: anywhere; }
li.wrong { border: 2px dashed var(--bad); }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: cover; }
li p { margin: .4rem .5rem; }
strong { color: var(--good); }
.wrong strong { color: var(--bad); }
small { display: block; opacity: .75; }
"""


@dataclass(frozen=True)
class Predicted:
    """One photo: the file, its class, and the class it was given with which probability."""

    path: Path
    truth: str
    label: str
    probability: float

    @property
    def right(self) -> bool:
        """Whether it was given its class."""
        return self.label == self.truth


def contact_sheet(title: str, facts: Sequence[str], photos: Sequence[Predicted]) -> str:
    """The page as HTML text, the photos (JPEG) in it.

    Args:
        title: heading. facts: lines below it.
        photos: shown in two parts, the mistakes, most confident first, and the others, least
            confident first.
    """
    wrong = sorted((p for p in photos if not p.right), key=lambda p: -p.probability)
    right = sorted((p for p in photos if p.right), key=lambda p: p.probability)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
            f"<h1>{escape(title)}</h1>",
            *(f"<p>{escape(fact)}</p>" for fact in facts),
            f"<h2>Mistakes ({len(wrong)}), most confident first</h2>",
            *_photos(wrong),
            f"<h2>Right ({len(right)}), least confident first</h2>",
            *_photos(right),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _photos(photos: Sequence[Predicted]) -> list[str]:
    return ["<ul>", *map(_photo, photos), "</ul>"] if photos else ["<p>None.</p>"]


def _photo(photo: Predicted) -> str:
    """One photo. Right or wrong is said in words and by the border, not by colour alone."""
    verdict = "Right" if photo.right else f"Wrong: is {photo.truth}"
    name = "/".join(photo.path.parts[-3:])  # class/query/file
    data = base64.b64encode(photo.path.read_bytes()).decode("ascii")
    return (
        f'<li class="{"right" if photo.right else "wrong"}">'
        f'<img src="data:image/jpeg;base64,{data}" alt="Photo of {escape(photo.truth)}">'
        f"<p>{escape(photo.label)} {photo.probability:.0%}<br>"
        f"<strong>{escape(verdict)}</strong><small>{escape(name)}</small></p></li>"
    )
