"""The web page: what is served to browsers and programs, and what the page is allowed."""

import re
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from comln_serve.api.page import LINKS, page_files, wants_html
from comln_serve.errors import ErrorCode
from tests.api.test_headers import check_headers
from tests.support.html import Page
from tests.support.messages import check_error
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "comln_serve" / "api" / "page"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
SCRIPTS = sorted(FOLDER.glob("*.js"))
MOST_BYTES = 327_000
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "jpg": "image/jpeg", "txt": "text/plain"}


def page_of(client: TestClient) -> Any:
    return client.get("/", headers={"Accept": BROWSER})


def test_browsers_get_the_page(client: TestClient) -> None:
    answer = page_of(client)
    assert answer.status_code == 200
    assert answer.content == (FOLDER / "index.html").read_bytes()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["vary"] == "Accept"
    check_headers(answer)
    head = client.head("/", headers={"Accept": BROWSER})
    assert head.status_code == 200
    assert head.content == b""
    check_error(client.post("/"), ErrorCode.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize("accept", ["*/*", "application/json", "", "text/html;q=0, */*"])
def test_programs_get_links(client: TestClient, accept: str) -> None:
    answer = client.get("/?monitor=1", headers={"Accept": accept})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["vary"] == "Accept"
    check_headers(answer)
    body = answer.json()
    assert body["name"] == "comln-serve"
    assert body["links"] == LINKS
    for link in LINKS.values():
        assert not link.startswith("/")  # relative: a proxy may serve it under a prefix
        assert client.get(urljoin("/", link)).status_code == 200


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (BROWSER, True),
        ("Text/HTML", True),
        ("application/xhtml+xml", True),
        ("text/html;q=0.1", True),
        ("text/html; q=0.000", False),
        ("text/*", False),
        ("", False),
    ],
)
def test_what_asks_for_html(accept: str, expected: bool) -> None:
    assert wants_html(accept) is expected


def test_the_old_address(client: TestClient) -> None:
    for query in ("", "?classifier=shop"):
        answer = client.get(f"/try{query}", follow_redirects=False)
        assert answer.status_code == 308
        assert answer.headers["location"] == f"./{query}"
        check_headers(answer)
    assert client.get("/try", headers={"Accept": BROWSER}).text == page_of(client).text


@pytest.mark.parametrize("path", page_files())
def test_files_are_served_as_they_are(client: TestClient, path: str) -> None:
    answer = client.get(f"/page/{path}")
    assert answer.status_code == 200
    assert answer.content == (FOLDER / path).read_bytes()
    assert answer.headers["content-type"].partition(";")[0] == TYPES[path.rpartition(".")[2]]
    check_headers(answer)
    head = client.head(f"/page/{path}")
    assert head.content == b""
    assert head.headers["content-length"] == answer.headers["content-length"]
    check_error(client.post(f"/page/{path}"), ErrorCode.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize(
    "path", ["", "nothing.js", "__init__.py", "index.html", "../app.py", "%2e%2e/app.py", "starter"]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    check_error(client.get(f"/page/{path}"), ErrorCode.ROUTE_NOT_FOUND)


def test_the_policy(client: TestClient) -> None:
    for answer in (page_of(client), *(client.get(f"/page/{path}") for path in page_files())):
        policy = answer.headers["content-security-policy"]
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
        allowed = dict(part.split("=") for part in answer.headers["permissions-policy"].split(", "))
        assert {name for name, to in allowed.items() if to != "()"} == {"camera"}
        assert allowed["camera"] == "(self)"


def test_everything_it_names_is_served_here(client: TestClient) -> None:
    page = Page(page_of(client).text)
    assert page.inline == []
    assert [script.text.strip() for script in page.all("script") if script.text.strip()] == []
    assert page.tags.isdisjoint({"style", "iframe", "object", "embed", "base", "form"})
    ids, links = page.values("id"), page.values("href", "src", "action")
    assert len(set(ids)) == len(ids)
    for link in links:
        # Relative, so that it holds behind a proxy's prefix, too.
        assert not link.startswith("/")
        assert ":" not in link
        assert client.get(urljoin("/", link)).status_code == 200
    named = {urljoin("/", link).partition("?")[0].partition("#")[0] for link in links}
    for script in SCRIPTS:
        modules = re.findall(r'^import .*from "\./([a-z-]+\.js)";$', script.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(modules) <= set(page_files()), script.name
        named |= {f"/page/{module}" for module in modules}
    pages = {f"/page/{path}" for path in page_files()}
    assert pages - named == {f"/page/{path}" for path in page_files() if path.endswith(".jpg")}


def test_nothing_comes_from_elsewhere() -> None:
    for path in (*SCRIPTS, *FOLDER.glob("*.css"), *FOLDER.glob("*.html"), *FOLDER.glob("*.svg")):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*// .*$|\s// .*$|^//$", "", text, flags=re.MULTILINE), path.name
        assert not re.search(r"\burl\(|@import|\bimport\(", text), path.name
        for source in re.findall(r"\bfrom (\S+);", text):
            assert re.fullmatch(r'"\./[a-z-]+\.js"', source), path.name


def test_the_scripts_set_texts_only() -> None:
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
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
            "localStorage",
            "sessionStorage",
            "cookie",
        ):
            assert way not in text, (script.name, way)


def test_the_scripts_find_what_they_look_for() -> None:
    ids = set(Page((FOLDER / "index.html").read_text(encoding="utf-8")).values("id"))
    sought: set[str] = set()
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        sought |= set(re.findall(r'byId\("([a-z-]+)"\)', text))
        ids |= set(re.findall(r'\bid: "([a-z-]+)"', text))
    assert len(sought) > 40
    assert sought <= ids


def test_it_is_small() -> None:
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(sizes) < MOST_BYTES


def test_the_example_photos_state_their_licence(client: TestClient) -> None:
    text = client.get("/page/starter/LICENSE.txt").text
    assert "Grocery Store data set" in text
    assert "The MIT License" in text
    assert sum(path.endswith(".jpg") for path in page_files()) == 21
