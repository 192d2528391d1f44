"""Checks API keys, if the server requires them.

A route declares which keys may call it, or that it takes requests without a key, by one of the decorators below. One
that declares neither refuses every request.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request
from starlette.types import Scope as HttpScope

from comln_serve.api.context import current_record
from comln_serve.configuration.settings import Settings
from comln_serve.engine.line import Line
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.security.keys import ApiKey, KeyRing, Scope, is_right, parse_key
from comln_serve.security.rate_limit import RateLimiter
from comln_serve.storage import KeyStore, utc_now

# The tenant of every request if keys are not required.
_EVERYBODY = ""
_SCOPES = "__comln_serve_scopes__"
_READ_AT_ONCE = 4  # keys

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def _needs(*any_of: Scope) -> Callable[[_Endpoint], _Endpoint]:
    """Declare that a key with one of these scopes, or `admin`, may call the route."""

    def declare(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _SCOPES, any_of)
        return endpoint

    return declare


public = _needs()
uses = _needs(Scope.PREDICT, Scope.ADAPT)  # whoever may change classifiers may use them
adapts = _needs(Scope.ADAPT)
operates = _needs(Scope.ADMIN)


def scopes_of(endpoint: Callable[..., Any] | None) -> tuple[Scope, ...] | None:
    """Scopes declared by `needs`; empty if the route is public; None if it declares nothing."""
    return getattr(endpoint, _SCOPES, None)


def tenant_of(request: Request) -> str:
    """The tenant of the request's key. Public routes have none."""
    tenant: str = request.state.tenant
    return tenant


def held_by(scope: HttpScope) -> str:
    """The tenant whose request holds memory; "" where its key has not been checked."""
    tenant: str = scope.get("state", {}).get("tenant", _EVERYBODY)
    return tenant


class Authentication:
    """Dependency of every route: checks the key before any of the body is read."""

    def __init__(self, settings: Settings, keys: KeyStore, folder: Path | None) -> None:
        """`folder` is shared by the server's processes; None: there is only one."""
        self._required = settings.require_keys
        self._per_minute = settings.requests_per_minute
        self._keys, self._ring = keys, KeyRing(keys.find)
        self._limiter = None
        if self._required:
            self._limiter = RateLimiter(None if folder is None else folder / "rate_limits.sqlite")
        self._reading = Line(_READ_AT_ONCE)

    async def __call__(self, request: Request) -> None:
        """Check the key and store its `tenant` and `requests_per_minute`, None for any number, in the request's state.

        Raises:
            ServiceError: UNAUTHORIZED, FORBIDDEN, RATE_LIMITED, STORAGE_UNAVAILABLE.
        """
        if not self._required:
            request.state.tenant, request.state.requests_per_minute = _EVERYBODY, None
            return
        any_of = scopes_of(request.scope["endpoint"])
        if any_of is None:
            raise ServiceError(ErrorCode.FORBIDDEN, "This route does not declare which keys may call it: none may.")
        if not any_of:
            return
        key = await self._authenticate(request)
        current_record().key = key.id
        limit = key.requests_per_minute or self._per_minute
        wait = 0.0 if limit is None or self._limiter is None else self._limiter.take(key.id, limit)
        if wait:
            seconds = math.ceil(wait)
            raise ServiceError(
                ErrorCode.RATE_LIMITED,
                f"This API key has used its {limit} requests of this minute. Try again in {seconds} s.",
                limit=limit,
                retry_after_seconds=seconds,
            )
        if not key.allows(any_of):
            scopes = sorted(key.scopes)
            raise ServiceError(
                ErrorCode.FORBIDDEN,
                f"This API key lacks the scope {' or '.join(any_of)}; it has {', '.join(scopes)}. Use a key that has "
                "it.",
                received=scopes,
                allowed=list(dict.fromkeys((*any_of, Scope.ADMIN))),
            )
        request.state.tenant, request.state.requests_per_minute = key.tenant, limit

    def close(self) -> None:
        """Close what counts the requests of keys. No request may follow."""
        if self._limiter is not None:
            self._limiter.close()

    async def _authenticate(self, request: Request) -> ApiKey:
        given = request.headers.getlist("authorization")
        if not given:
            raise ServiceError(
                ErrorCode.UNAUTHORIZED, "This server requires an API key. Send the header Authorization: Bearer KEY."
            )
        scheme, _, text = given[0].partition(" ")
        parsed = parse_key(text.strip(" "))
        if len(given) > 1 or scheme.lower() != "bearer" or parsed is None:
            raise _unauthorized()
        key_id, secret = parsed
        key = self._ring.remembered(key_id)
        if key is None:
            # Of many requests with one key the first read it, and the others find it in memory. Keys take turns.
            async with self._reading.turn(key_id):
                key = self._ring.remembered(key_id) or await to_thread.run_sync(
                    self._ring.read, key_id, limiter=request.app.state.threads
                )
        right = is_right(secret, None if key is None else key.secret_sha256)
        if key is None or not right or not key.is_valid(utc_now()):
            raise _unauthorized()
        self._keys.note_use(key.id)
        return key


def _unauthorized() -> ServiceError:
    """One message for every reason, so that it tells nothing about which keys exist."""
    return ServiceError(
        ErrorCode.UNAUTHORIZED,
        "The header Authorization holds no valid API key: it is malformed, unknown, revoked or "
        "expired. Send Authorization: Bearer KEY with a key that was made for this server.",
    )
