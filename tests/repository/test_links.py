"""Relative links of the documents lead to files that exist, and to headings that these have."""

import re
import unicodedata
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

DOCUMENTS = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "examples" / "README.md",
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def prose(document: Path) -> str:
    """A document without its blocks of code."""
    return FENCED.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """The fragments of a document's headings, as code hosts and the site make them of plain words."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE):
        words = unicodedata.normalize("NFKD", re.sub(r"[`*_]|\[|\]\([^)]*\)", "", heading)).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        assert slug not in found, f"{document.name}: two headings make #{slug}"
        found.add(slug)
    return found


def links(document: Path) -> list[str]:
    return [target for target in LINK.findall(prose(document)) if not target.startswith("https://")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in links(document):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.is_file(), target
        if anchor:
            assert anchor in anchors(path), target


def test_the_documents_link_to_files_and_headings() -> None:
    found = [target for document in DOCUMENTS for target in links(document)]
    assert sum("#" in target for target in found) > 20
    assert len(found) > 100


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, waiting = {REPOSITORY / "README.md"}, [REPOSITORY / "README.md"]
    while waiting:
        here = waiting.pop()
        targets = {(here.parent / target.partition("#")[0]).resolve() for target in links(here)}
        new = {path for path in targets if path.suffix == ".md" and path.is_file()} - reached
        reached |= new
        waiting += new
    assert set(DOCUMENTS) <= reached
