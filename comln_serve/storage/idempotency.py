"""Idempotency keys: which classifier a request has made, for as long as its key is kept."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage.dialects import upsert
from comln_serve.storage.tables import idempotency_keys as keys


@dataclass(frozen=True)
class IdempotencyKey:
    """A key a client chose for a request, so that sending it again does nothing again.

    Attributes:
        key: the client's. fingerprint: of the request; equal for equal requests only.
        expires_at: UTC, until when it is remembered.
    """

    key: str
    fingerprint: str
    expires_at: datetime


class KeyTakenError(Exception):
    """Another request with the key has made its classifier in the meantime."""


def claim(
    connection: Connection, tenant: str, key: IdempotencyKey, classifier_id: str, now: datetime
) -> None:
    """Note which classifier the request makes. To be the first thing its transaction does: of two
    with the same key the later one waits here for the other.

    Raises:
        KeyTakenError: the key is remembered already.
    """
    values = {
        "fingerprint": key.fingerprint,
        "classifier": classifier_id,
        "expires_at": key.expires_at,
    }
    insert = upsert(connection, keys).values(tenant=tenant, key=key.key, **values)
    claimed = connection.execute(
        insert.on_conflict_do_update(
            index_elements=[keys.c.tenant, keys.c.key], set_=values, where=keys.c.expires_at <= now
        ).returning(keys.c.key)
    )
    if claimed.first() is None:
        raise KeyTakenError


def made_by(connection: Connection, tenant: str, key: IdempotencyKey, now: datetime) -> str | None:
    """The id of the classifier that the request made when it came before; None: it did not.

    Raises:
        ServiceError: IDEMPOTENCY_MISMATCH, the key came with another request.
    """
    row = connection.execute(
        select(keys.c.fingerprint, keys.c.classifier).where(
            keys.c.tenant == tenant, keys.c.key == key.key, keys.c.expires_at > now
        )
    ).first()
    if row is None:
        return None
    if row.fingerprint != key.fingerprint:
        raise ServiceError(
            ErrorCode.IDEMPOTENCY_MISMATCH,
            "This Idempotency-Key came with another request before. Send a new key with a new "
            "request, and the same key only to repeat a request as it was.",
        )
    return str(row.classifier)
