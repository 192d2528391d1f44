"""Security headers of every answer."""

from collections.abc import Sequence

RawHeaders = Sequence[tuple[bytes, bytes]]

_DEFAULTS = {
    # Answers hold users' data: proxies and browsers must not store them.
    b"cache-control": b"no-store",
    # Default for answers that are not pages; /docs and the page set their own policies.
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}

# For a server that terminates TLS itself: browsers use only https with it for a year. Behind a
# proxy that terminates TLS, the proxy sets this header.
STRICT_TRANSPORT = ("Strict-Transport-Security", "max-age=31536000")


def with_safe_headers(headers: RawHeaders, *, overriding: RawHeaders = ()) -> RawHeaders:
    """Merge the default headers into those of an answer. Names are in lower case.

    Args:
        headers: set by the route; they replace the defaults.
        overriding: replace the route's.
    """
    ours = dict(overriding)
    routes = [header for header in headers if header[0] not in ours]
    taken = {name for name, _ in routes}
    ours.update((name, value) for name, value in _DEFAULTS.items() if name not in taken)
    return [*routes, *ours.items()]
