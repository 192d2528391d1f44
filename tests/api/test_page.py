"""The page to try the server with: its files, its content security policy, and that it loads nothing else."""

import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from comln_serve.api.page import PAGE_FILES
from comln_serve.errors import ErrorCode
from tests.api.test_headers import check_headers
from tests.support.messages import check_error
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "comln_serve" / "api" / "page"


class Page(HTMLParser):
    """What a page refers to, and what it would run of itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.own_script = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on") or name == "style"]
        self.links += [given[name] or "" for name in ("href", "src", "action") if name in given]
        self.ids += [given["id"] or ""] if "id" in given else []

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.own_script += data.strip()


@pytest.mark.parametrize(("path", "file"), PAGE_FILES.items())
def test_the_page_s_files_are_served_unchanged(client: TestClient, path: str, file: tuple[str, str]) -> None:
    name, media_type = file
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"].partition(";")[0] == media_type
    check_headers(answer)
    head = client.head(path)
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == answer.headers["content-length"]
    check_error(client.post(path), ErrorCode.METHOD_NOT_ALLOWED)


def test_the_content_security_policy_of_the_page(client: TestClient) -> None:
    for path in PAGE_FILES:
        policy = client.get(path).headers["content-security-policy"]
        directives = dict(part.split(" ", 1) for part in policy.split("; "))
        assert directives == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' blob:",
            "connect-src": "'self'",
            "form-action": "'none'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }


def test_every_file_the_page_names_is_served_here(client: TestClient) -> None:
    page = Page(client.get("/try").text)
    assert page.own_script == ""
    assert page.tags.isdisjoint({"style", "iframe", "object", "embed", "base", "form"})
    assert len(set(page.ids)) == len(page.ids)
    for link in page.links:
        # Relative, so that it holds behind a proxy's prefix, too.
        assert not link.startswith("/")
        assert ":" not in link
        assert client.get(urljoin("/try", link)).status_code == 200
    named = {urljoin("/try", link) for link in page.links}
    assert named == {*PAGE_FILES, "/docs"} - {"/try"}


def test_the_page_loads_nothing_from_elsewhere() -> None:
    for name, _ in PAGE_FILES.values():
        text = (FOLDER / name).read_text(encoding="utf-8")
        text = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "//" not in re.sub(r"^\s*// .*$|\s// .*$", "", text, flags=re.MULTILINE), name
        assert not re.search(r"url\(|@import|\bimport\b", text), name


def test_the_script_sets_texts_only() -> None:
    text = (FOLDER / "page.js").read_text(encoding="utf-8")
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "setHTML",
        "DOMParser",
        "Storage",
        "cookie",
    ):
        assert way not in text, way


def test_the_script_finds_what_it_looks_for() -> None:
    ids = Page((FOLDER / "try.html").read_text(encoding="utf-8")).ids
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    sought = re.findall(r'(?:byId|copyOf|show)\((?:file, )?"([a-z-]+)"', script)
    assert len(sought) > 20
    assert set(sought) <= set(ids)


@pytest.mark.process
def test_a_wheel_carries_the_files(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])",
            str(tmp_path),
        ],
        cwd=_sources(tmp_path / "sources"),
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"comln_serve/api/page/{name}" for name, _ in PAGE_FILES.values()} <= names


def _sources(folder: Path) -> Path:
    """As much as the build backend needs, where it may leave its folders."""
    page = folder / FOLDER.relative_to(REPOSITORY)
    page.mkdir(parents=True)
    for path in FOLDER.iterdir():
        if path.is_file():
            (page / path.name).write_bytes(path.read_bytes())
    for package in (folder / "comln_serve", folder / "comln_serve" / "api"):
        (package / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (folder / name).write_bytes((REPOSITORY / name).read_bytes())
    return folder
