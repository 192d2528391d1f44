"""The tables, as the newest migration leaves them, and the types of their columns.

The version that a name stands for is not stored. It is the one with the highest `promotion`, then
the highest `version`, of those that have not been deleted or expired. So deleting and expiring need
no further update, and a rollback resets one promotion.
"""

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql, sqlite


class JsonText(TypeDecorator[Any]):
    """A JSON value as ASCII text: labels may hold NUL, which PostgreSQL's text and jsonb cannot."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class UtcTime(TypeDecorator[datetime]):
    """A time, written from any zone and read in UTC. SQLite stores no zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


# SQLite autoincrements only columns of type INTEGER.
_Sequence = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()


def _of_classifier() -> Column[int]:
    foreign = ForeignKey("classifiers.sequence", ondelete="CASCADE")
    return Column("classifier", _Sequence, foreign, primary_key=True, autoincrement=False)


classifiers = Table(
    "classifiers",
    metadata,
    Column("sequence", _Sequence, primary_key=True, autoincrement=True),
    Column("tenant", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text),
    Column("version", Integer),
    Column("promotion", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("embedder_sha256", Text, nullable=False),
    Column("head_sha256", Text),  # null in the rows of releases that kept none
    Column("labels", JsonText, nullable=False),
    Column("examples", JsonText, nullable=False),
    Column("horizon", Double, nullable=False),
    Column("horizon_rule", Text, nullable=False),
    Column("support_loss", Double, nullable=False),
    Column("support_accuracy", Double, nullable=False),
    Column("metadata", JsonText, nullable=False),
    Column("report", JsonText),
    # As in the report, which lists do not read.
    Column("held_out_accuracy", Double),
    Column("held_out_judged", Integer),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("weights", LargeBinary, nullable=False),
    UniqueConstraint("tenant", "name", "version", name="one_of_each_version"),
    Index("classifiers_by_promotion", "tenant", "name", "promotion", "version"),
    Index("classifiers_by_position", "tenant", "position", unique=True),
    Index("classifiers_by_name", "tenant", "name", "position"),
    Index("classifiers_by_model", "tenant", "model", "position"),
    Index("classifiers_by_expiry", "tenant", "expires_at"),
    Index("classifiers_by_expiry_of_all", "expires_at"),
    sqlite_autoincrement=True,  # sequence numbers are never reused
)

# One row per classifier. A separate table, as predicting never reads it.
supports = Table(
    "supports",
    metadata,
    _of_classifier(),
    Column("labels", JsonText, nullable=False),
    Column("numbers", JsonText, nullable=False),
    Column("next_number", Integer, nullable=False),
    Column("embeddings", LargeBinary, nullable=False),
    Column("scales", LargeBinary),  # null where the embeddings are float32, not int16
    Column("hashes", JsonText),  # null in the rows of releases before there were hashes
)

# Small JPEGs of some examples, if the operator has the server keep them. A row per class at most.
thumbnails = Table(
    "thumbnails",
    metadata,
    _of_classifier(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, nullable=False),
    Column("jpeg", LargeBinary, nullable=False),
    # Lists of classifiers read these columns only, not the JPEGs.
    Index("thumbnails_by_position", "classifier", "position", "number"),
)

# The last numbers used under a name. Rows outlive the versions, whose numbers are not reused. A
# transaction that changes a name's versions locks the name's row first.
names = Table(
    "names",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("last_version", Integer, nullable=False),
    Column("last_promotion", Integer, nullable=False),
)

# A transaction that adds or deletes classifiers locks their tenant's row first. `stored` is their number.
tenants = Table(
    "tenants",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("last_position", BigInteger, nullable=False),
    Column("stored", BigInteger, nullable=False),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("classifier", Text, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("rejected", JsonText),
    Index("idempotency_keys_by_expiry", "expires_at"),
)

# Holds hashes of the keys' secrets, never the secrets.
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text),
    Column("scopes", JsonText, nullable=False),
    Column("secret_sha256", Text, nullable=False),
    Column("requests_per_minute", Integer),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    Column("used_at", UtcTime),
)


def upsert(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT into `table` that supports ON CONFLICT: the same in both databases, but two classes in SQLAlchemy."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)
