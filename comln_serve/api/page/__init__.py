"""The web page: make classifiers, see how good they are, and sort photos with them.

`GET /` answers browsers with the page and programs with links to what the server offers. The page
is public: it is a plain API client and gets only what its user's API key allows. Its files are
served as they are, without a build step, and load nothing from other hosts.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

# Labels and messages may be hostile. The page sets them as text only; the last two directives make
# browsers that know them enforce that.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# The page may ask for the camera, to take pictures of a class, and for nothing else.
_PERMISSIONS = "camera=(self), microphone=(), geolocation=(), display-capture=()"
_HEADERS = {"Content-Security-Policy": _POLICY, "Permissions-Policy": _PERMISSIONS}
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
    ".txt": "text/plain",
}
# Relative, so that they hold where a proxy serves this server under a prefix.
LINKS = {
    "page": "./",
    "documentation": "docs",
    "openapi": "openapi.json",
    "models": "models",
    "limits": "limits",
    "classifiers": "classifiers",
    "health": "health/ready",
    "metrics": "metrics",
}


def page_files() -> dict[str, Traversable]:
    """The page's files but `index.html`, by their path below `/page/`."""
    folder = files(__name__)
    found = {item.name: item for item in folder.iterdir() if item.is_file() and item.name != "index.html"}
    found |= {f"starter/{item.name}": item for item in folder.joinpath("starter").iterdir()}
    return {path: item for path, item in found.items() if _suffix(item) in _MEDIA_TYPES}


def install_page(app: FastAPI) -> None:
    """Serve `/`, `/page/...` and `/try`. The files are read once, here."""
    page = _answer(files(__name__).joinpath("index.html"), Vary="Accept")
    others = {path: _answer(item) for path, item in page_files().items()}
    links = JSONResponse({"name": "comln-serve", "version": app.version, "links": LINKS}, headers={"Vary": "Accept"})

    async def root(request: Request) -> Response:
        return page if wants_html(request.headers.get("accept", "")) else links

    async def file(request: Request) -> Response:
        found = others.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404)
        return found

    async def old_address(request: Request) -> Response:
        query = request.url.query
        return RedirectResponse(f"./?{query}" if query else "./", status_code=308)

    app.add_route("/", root, include_in_schema=False)
    app.add_route("/page/{path:path}", file, include_in_schema=False)
    app.add_route("/try", old_address, include_in_schema=False)


def wants_html(accept: str) -> bool:
    """Whether the header `Accept` names HTML, as those of browsers do and those of programs do not."""
    for part in accept.split(","):
        kind, *parameters = (text.strip().lower() for text in part.split(";"))
        refused = any(text.replace(" ", "").rstrip("0").rstrip(".") in ("q=", "q=0") for text in parameters)
        if kind in ("text/html", "application/xhtml+xml") and not refused:
            return True
    return False


def _answer(item: Traversable, **headers: str) -> Response:
    return Response(item.read_bytes(), headers={**_HEADERS, **headers}, media_type=_MEDIA_TYPES[_suffix(item)])


def _suffix(item: Traversable) -> str:
    return PurePath(item.name).suffix
