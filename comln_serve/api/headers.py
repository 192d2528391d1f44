"""Headers of every answer, that keep browsers and caches from doing more than was asked."""

from starlette.datastructures import MutableHeaders

_DEFAULTS = {
    # Answers hold what users sent or made: nobody keeps them on the way.
    "Cache-Control": "no-store",
    # Nothing here is a page, but for those that bring a policy of their own.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def add_safe_headers(headers: MutableHeaders) -> None:
    """Add those that the route has not set itself."""
    for name, value in _DEFAULTS.items():
        headers.setdefault(name, value)
