"""Headers of every answer, that keep browsers and caches from doing more than was asked."""

from collections.abc import Sequence

RawHeaders = Sequence[tuple[bytes, bytes]]

_DEFAULTS = {
    # Answers hold what users sent or made: nobody keeps them on the way.
    b"cache-control": b"no-store",
    # Nothing here is a page, but for those that bring a policy of their own.
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}

# Of a server that serves TLS itself: browsers use nothing but https with it for a year. Where a
# proxy does, it is the proxy's to say.
STRICT_TRANSPORT = ("Strict-Transport-Security", "max-age=31536000")


def with_safe_headers(headers: RawHeaders, *, overriding: RawHeaders = ()) -> RawHeaders:
    """The headers of an answer as they are sent, names in lower case.

    Args:
        headers: of the route, which win.
        overriding: those that win over the route's.
    """
    ours = dict(overriding)
    routes = [header for header in headers if header[0] not in ours]
    taken = {name for name, _ in routes}
    ours.update((name, value) for name, value in _DEFAULTS.items() if name not in taken)
    return [*routes, *ours.items()]
