"""`/try`: a page to make a classifier and use it, with images from the user's own disk.

It is public: it is a plain API client and gets only what its user's API key allows. Its files are
served as they are, without a build step, and load nothing from other hosts.
"""

from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

# Labels and messages may be hostile. The page sets them as text only; the last two directives make
# browsers that know them enforce that.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY}

# By path. The page links to its files relatively, so that a proxy may serve it under a prefix.
PAGE_FILES = {
    "/try": ("try.html", "text/html"),
    "/try/page.css": ("page.css", "text/css"),
    "/try/page.js": ("page.js", "text/javascript"),
    "/try/icon.svg": ("icon.svg", "image/svg+xml"),
}


def install_page(app: FastAPI) -> None:
    """Serve the page's files, which are read once, here."""
    for path, (name, media_type) in PAGE_FILES.items():
        content = files(__name__).joinpath(name).read_text(encoding="utf-8").encode()
        _serve(app, path, content, media_type)


def _serve(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    async def answer(_request: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=media_type)

    app.add_route(path, answer, include_in_schema=False)
