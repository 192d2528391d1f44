"""Idempotency keys: remembers which classifier a request has made, until the key expires."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from comln_serve.domain.rejected import Rejected, apart, together
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage.tables import idempotency_keys as keys
from comln_serve.storage.tables import upsert


@dataclass(frozen=True)
class IdempotencyKey:
    """A client's key for a request, so that repeating the request makes nothing new.

    Attributes:
        key: chosen by the client.
        fingerprint: of the request; equal for equal requests only.
        expires_at: UTC, when the key is forgotten.
        rejected: images that the request went on without, for the answer to a repeated request.
    """

    key: str
    fingerprint: str
    expires_at: datetime
    rejected: tuple[Rejected, ...] = ()


class KeyTakenError(Exception):
    """Another request with the key has made its classifier meanwhile."""


def claim(connection: Connection, tenant: str, key: IdempotencyKey, classifier_id: str, now: datetime) -> None:
    """Store which classifier the request makes. Must be the transaction's first statement: the
    later of two requests with the same key waits here for the other.

    Raises:
        KeyTakenError: the key is stored already.
    """
    values = {
        "fingerprint": key.fingerprint,
        "classifier": classifier_id,
        "expires_at": key.expires_at,
        "rejected": together(key.rejected),
    }
    insert = upsert(connection, keys).values(tenant=tenant, key=key.key, **values)
    claimed = connection.execute(
        insert.on_conflict_do_update(
            index_elements=[keys.c.tenant, keys.c.key], set_=values, where=keys.c.expires_at <= now
        ).returning(keys.c.key)
    )
    if claimed.first() is None:
        raise KeyTakenError


def made_by(
    connection: Connection, tenant: str, key: IdempotencyKey, now: datetime
) -> tuple[str, tuple[Rejected, ...]] | None:
    """The id of the classifier that an earlier request with this key made, and the images that the
    request went on without; None if there was none.

    Raises:
        ServiceError: IDEMPOTENCY_MISMATCH, the earlier request was a different one.
    """
    row = connection.execute(
        select(keys.c.fingerprint, keys.c.classifier, keys.c.rejected).where(
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
    return str(row.classifier), apart(row.rejected or ())
