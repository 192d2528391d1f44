"""What an API key is: a text that its owner holds, and what the server keeps of it."""

import re
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from comln_serve.security.hashing import hashed

# Recognised by people, and by programs that look for keys where none should be.
_PREFIX = "comln"
_ID_BYTES, _SECRET_BYTES = 8, 32
_TEXT = re.compile(rf"{_PREFIX}_([0-9a-f]{{{2 * _ID_BYTES}}})_([0-9a-f]{{{2 * _SECRET_BYTES}}})")

# The empty tenant owns what was made without keys.
TENANT_PATTERN = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$"


class Scope(StrEnum):
    """What a key may be used for."""

    PREDICT = "predict"  # predicting, and reading
    ADAPT = "adapt"  # changing classifiers, and reading
    ADMIN = "admin"  # both, and what operators ask


@dataclass(frozen=True)
class ApiKey:
    """What is kept of a key.

    Attributes:
        id: the public part of its text.
        tenant: whose classifiers it sees; "" for those made without keys.
        secret_sha256: of the secret part, as hexadecimal digits.
        name: what its maker calls it, or None.
        requests_per_minute: None for the server's own.
        expires_at, revoked_at: UTC, from when on it is worth nothing; None: not so.
    """

    id: str
    tenant: str
    scopes: frozenset[Scope]
    secret_sha256: str
    created_at: datetime
    name: str | None = None
    requests_per_minute: int | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def allows(self, any_of: Collection[Scope]) -> bool:
        """Whether it has one of these scopes, or the one that includes all."""
        return Scope.ADMIN in self.scopes or not self.scopes.isdisjoint(any_of)

    def is_valid(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class Presented:
    """A text that has the form of a key, in parts; whether it is one is not known yet."""

    id: str
    secret: str


def make_key(
    tenant: str,
    scopes: Iterable[Scope],
    *,
    now: datetime,
    name: str | None = None,
    requests_per_minute: int | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """A new key: what to keep of it, and its text, `comln_<id>_<secret>`, which is not kept."""
    presented = Presented(secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES))
    key = ApiKey(
        id=presented.id,
        tenant=tenant,
        scopes=frozenset(scopes),
        secret_sha256=hashed(presented.secret),
        created_at=now,
        name=name,
        requests_per_minute=requests_per_minute,
        expires_at=expires_at,
    )
    return key, f"{_PREFIX}_{presented.id}_{presented.secret}"


def parse_key(text: str) -> Presented | None:
    """The parts of a text that has the form of a key."""
    found = _TEXT.fullmatch(text)
    return None if found is None else Presented(*found.groups())
