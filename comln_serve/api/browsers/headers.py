"""Security headers of every answer."""

from starlette.datastructures import MutableHeaders

_DEFAULTS = {
    # Answers hold users' data: proxies and browsers must not store them.
    "Cache-Control": "no-store",
    # Default for answers that are not pages; /docs and the page set their own policies.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

# For a server that terminates TLS itself: browsers use only https with it for a year. Behind a
# proxy that terminates TLS, the proxy sets this header.
STRICT_TRANSPORT = ("Strict-Transport-Security", "max-age=31536000")


def add_safe_headers(headers: MutableHeaders) -> None:
    """Add those of the default headers that the route has not set itself."""
    for name, value in _DEFAULTS.items():
        headers.setdefault(name, value)
