"""API keys: the text that the owner holds, and the record that the server stores."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from comln_serve.short_memory import ShortMemory

# Lets people and secret scanners recognise a key.
_PREFIX = "comln"
_ID_BYTES, _SECRET_BYTES = 8, 32
_TEXT = re.compile(rf"{_PREFIX}_([0-9a-f]{{{2 * _ID_BYTES}}})_([0-9a-f]{{{2 * _SECRET_BYTES}}})")

# Compared with the secret of an unknown key. No secret has this hash.
_NO_HASH = "0" * 64

# The empty tenant owns classifiers made while keys were not required.
TENANT_PATTERN = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$"


class Scope(StrEnum):
    """What a key may be used for."""

    PREDICT = "predict"  # predict and read
    ADAPT = "adapt"  # change classifiers, and what predict allows
    ADMIN = "admin"  # both, and operate the server: metrics, models


@dataclass(frozen=True)
class ApiKey:
    """The stored record of a key.

    Attributes:
        id: the public part of the key's text.
        tenant: whose classifiers the key can use; "" for those made without keys.
        secret_sha256: hash of the secret part, as hexadecimal digits.
        name: chosen by the key's maker, or None.
        requests_per_minute: None: the server's setting.
        expires_at, revoked_at: UTC, after which the key is invalid; None: never.
        used_at: UTC, when it was last used, to a minute or so; None: never, as far as is stored.
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
    used_at: datetime | None = None

    def allows(self, any_of: Collection[Scope]) -> bool:
        """Whether the key has one of these scopes, or `admin`."""
        return Scope.ADMIN in self.scopes or not self.scopes.isdisjoint(any_of)

    def is_valid(self, now: datetime) -> bool:
        """Whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyRing(ShortMemory[str, ApiKey]):
    """Keys by id, cached. All servers refuse a revoked key after at most `seconds`."""

    seconds = 1.0


def make_key(
    tenant: str,
    scopes: Iterable[Scope],
    *,
    now: datetime,
    name: str | None = None,
    requests_per_minute: int | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key. Returns its record and its text, `comln_<id>_<secret>`, which is not stored."""
    key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    key = ApiKey(
        id=key_id,
        tenant=tenant,
        scopes=frozenset(scopes),
        secret_sha256=_hashed(secret),
        created_at=now,
        name=name,
        requests_per_minute=requests_per_minute,
        expires_at=expires_at,
    )
    return key, f"{_PREFIX}_{key_id}_{secret}"


def parse_key(text: str) -> tuple[str, str] | None:
    """Id and secret, not verified, of `comln_<id>_<secret>`; None if the text has another form."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1], found[2])


def is_right(secret: str, secret_sha256: str | None) -> bool:
    """Whether a secret has this hash. Always False for None, the hash of an unknown key.

    Takes the same time for right and wrong secrets and for unknown keys.
    """
    return hmac.compare_digest(_hashed(secret), secret_sha256 or _NO_HASH)


def _hashed(secret: str) -> str:
    """SHA-256 in hexadecimal digits: slow hashes protect passwords that people choose; secrets are 256 random bits."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()
