"""Refuses unknown query parameters, query parameters and headers sent more than once (but for lists), and bodies that
nobody reads.

FastAPI ignores what the route does not declare and takes one of several values: a misspelt or
misplaced parameter would have no effect, without an error. Query models that forbid further fields
would be needed in every route, and would take one of several values, too.
"""

from collections import Counter
from collections.abc import Mapping
from typing import get_origin

from fastapi import Request

from comln_serve.api.context import POLLED
from comln_serve.api.receive.intake import announces_body
from comln_serve.api.receive.limits import body_chunks
from comln_serve.errors import ServiceError, invalid

_MAX_NAMES = 10
_MAX_SHOWN = 100
_CHANGES = ("POST", "PATCH", "DELETE")


async def check_parameters(request: Request) -> None:
    """Check the request against the parameters that the route itself declares.

    Raises:
        ServiceError: INVALID_REQUEST, a query parameter is unknown, a query parameter or one of the route's headers
            came more than once, or a route that changes something has a body that it does not take.
    """
    declared = request.scope["route"].dependant
    if request.method in _CHANGES and not _takes_a_body(request) and await has_body(request):
        names = ", ".join(repr(parameter.alias) for parameter in declared.query_params)
        raise invalid(
            f"{request.method} {request.url.path[:_MAX_SHOWN]} takes no body, and one was received. Leave it out"
            f"{f'; {names} goes in the query' * bool(names)}.",
            received=request.headers.get("content-type", "")[:_MAX_SHOWN],
        )
    for header in declared.header_params:
        if len(values := request.headers.getlist(header.alias)) > 1:
            raise _repeated(f"header {header.alias}", len(values))
    # Most requests have no query and skip the check.
    if request.scope["query_string"] and request.scope["route"].path not in POLLED:
        _check_query(request, {p.alias: get_origin(p.field_info.annotation) is list for p in declared.query_params})


def _check_query(request: Request, declared: Mapping[str, bool]) -> None:
    """Check the query against the declared parameters, each with whether it may be repeated."""
    allowed = list(declared)
    counts = Counter(name for name, _ in request.query_params.multi_items())
    unknown = [name[:_MAX_SHOWN] for name in counts if name not in allowed][:_MAX_NAMES]
    if unknown:
        raise invalid(
            f"Received {', '.join(map(repr, unknown))} in the query; this route takes "
            f"{', '.join(map(repr, allowed)) or 'nothing'} there. Leave it out or correct its "
            f"name{', or send it in the body' * _takes_a_body(request)}.",
            received=unknown,
            allowed=allowed,
        )
    for name, count in counts.items():
        if count > 1 and not declared[name]:
            raise _repeated(f"query parameter {name!r}", count)


async def has_body(request: Request) -> bool:
    """Whether the request has a body. Of one in chunks, which is empty from some proxies, the first chunk is read.

    Raises:
        ServiceError: as `body_chunks`.
    """
    if "transfer-encoding" not in request.headers:
        return announces_body(request.scope["headers"])
    async for _ in body_chunks(request, request.app.state.engine.settings.max_body_bytes):
        return True
    return False


def _takes_a_body(request: Request) -> bool:
    return "requestBody" in (request.scope["route"].openapi_extra or {})


def _repeated(what: str, count: int) -> ServiceError:
    return invalid(f"The {what} came {count} times; send it once.", received=count)
