"""MkDocs hook: the documents' links, which are those of the repository, lead somewhere in the site, too.

README.md is the site's front page. A file outside docs/ that a document links to becomes part of the site under
`repository/`: Markdown and images as they are, other files as a page that shows their text. A link to a notebook
leads to its page (notebooks.py).
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s:]+)(?=[)#])")
FRONT_PAGE = PurePosixPath("README.md")
SHOWN_AS_THEY_ARE = {".md", ".png", ".svg"}


def site_path(path: PurePosixPath) -> PurePosixPath:
    """Where the site has a file of the repository, both relative to their roots."""
    if path == FRONT_PAGE:
        return PurePosixPath("index.md")
    if path.parts[0] == "docs":
        inside = path.relative_to("docs")
        return inside.with_suffix(".md") if inside.suffix == ".ipynb" else inside
    shown = path if path.suffix in SHOWN_AS_THEY_ARE else path.with_name(path.name + ".md")
    return "repository" / shown


def linked(root: Path, document: PurePosixPath, target: str) -> PurePosixPath | None:
    """The file of the repository that a document links to; None if there is none."""
    path = PurePosixPath(os.path.normpath(document.parent / target))
    return path if (root / path).is_file() else None


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the front page, and the files outside docs/ that can be reached from it or from docs/."""
    root = Path(config.config_file_path).parent
    waiting = [FRONT_PAGE, *("docs" / PurePosixPath(page.src_uri) for page in files.documentation_pages())]
    known = set(waiting)
    while waiting:
        path = waiting.pop()
        if path.parts[0] != "docs":
            files.append(_file(root, path, config))
        if path.suffix == ".md":
            text = (root / path).read_text(encoding="utf-8")
            found = {linked(root, path, match["target"]) for match in LINK.finditer(text)} - known - {None}
            known |= found
            waiting += [new for new in found if new is not None]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Turn links between files of the repository into links between those of the site."""
    root = Path(config.config_file_path).parent
    here = PurePosixPath(page.file.src_uri)
    if here == site_path(FRONT_PAGE):
        document = FRONT_PAGE
    elif here.parts[0] == "repository":
        document = here.relative_to("repository")
    else:
        document = "docs" / here
    if not (root / document).is_file():
        return markdown  # a page that shows the text of a file: its brackets are no links

    def in_site(match: re.Match[str]) -> str:
        path = linked(root, document, match["target"])
        return match["target"] if path is None else os.path.relpath(site_path(path), here.parent)

    return LINK.sub(in_site, markdown)


def _file(root: Path, path: PurePosixPath, config: MkDocsConfig) -> File:
    where = str(site_path(path))
    if path == FRONT_PAGE or path.suffix in SHOWN_AS_THEY_ARE:
        return File.generated(config, where, abs_src_path=str(root / path))
    text = (root / path).read_text(encoding="utf-8")
    return File.generated(config, where, content=f"# {path}\n\n````{path.suffix[1:]}\n{text}````\n")
