"""Fills a database with many classifiers, row for row as the server would have written them.

Adapting a hundred thousand times takes hours. So classifiers that a server has made are stored again and again, each
time with an id, name, version, position, times, embeddings and weights of its own.
"""

import contextlib
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from sqlalchemy import Connection, MetaData, Table, func, insert, select

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.reference import ID_PREFIX
from comln_serve.domain.sixteen_bits import rounded, to_int16
from comln_serve.domain.support import SupportSet
from comln_serve.storage import rows, sqlite_file
from comln_serve.storage.database import Database
from comln_serve.storage.schema import migrate
from comln_serve.storage.tables import JsonText, UtcTime
from comln_serve.storage.tables import metadata as newest

Made = tuple[Classifier, SupportSet]

TENANT = ""
VERSIONS = 5  # of each name
OLD_MODEL = "retired"  # of the first classifier alone
_EXPIRING = 10  # one of so many expires, in a month
_BATCH = 500


def fill(url: str, made: Sequence[Made], count: int, seed: int = 0, revision: str = "head") -> None:
    """Fill an empty database with `count` classifiers of one tenant.

    The versions of a name are spread over the whole database, as those of names that are used for long are.

    Args:
        made: what a server has made; the classifiers are made from these in turns.
        revision: of the tables, to leave the database as an earlier release did.
    """
    rng = np.random.default_rng(seed)
    n_names = -(-count // VERSIONS)
    database = Database(url)
    try:
        with database.connection(writes=True) as connection:
            migrate(connection, revision)
            connection.commit()
        with database.connection() as connection:
            tables = _tables(connection)
        for start in range(0, count, _BATCH):
            numbers = range(start, min(start + _BATCH, count))
            new = [_another(made[i % len(made)], i, n_names, rng) for i in numbers]
            with database.connection(writes=True) as connection:
                _insert(connection, tables, new, first_position=start + 1)
                connection.commit()
        with database.connection(writes=True) as connection:
            _insert_counters(connection, tables)
            connection.commit()
    finally:
        database.close()
    _settle(url)


def name_of(number: int) -> str:
    """The name with this number, from 0."""
    return f"shop-{number}"


def _another(made: Made, number: int, n_names: int, rng: np.random.Generator) -> Made:
    classifier, support = made
    created_at = classifier.created_at + timedelta(seconds=number)
    named = replace(
        classifier,
        id=ID_PREFIX + uuid.UUID(bytes=rng.bytes(16), version=4).hex,
        name=name_of(number % n_names),
        version=number // n_names + 1,
        model=classifier.model if number else OLD_MODEL,
        created_at=created_at,
        expires_at=created_at + timedelta(days=30) if number % _EXPIRING == 1 else None,
        W=_altered(classifier.W, rng),
    )
    embeddings = _altered(support.embeddings, rng)
    if to_int16(support.embeddings) is not None:
        embeddings = rounded(embeddings)
    return named, replace(support, embeddings=embeddings)


def _altered(values: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Nearly the same values; zeros stay, and no other is the same."""
    return (values * (1 + 0.01 * rng.standard_normal(values.shape, dtype=np.float32))).astype(np.float32)


def _tables(connection: Connection) -> dict[str, Table]:
    """The tables as they are in the database, with the types of those of this release."""
    reflected = MetaData()
    reflected.reflect(connection, resolve_fks=False)
    for table in reflected.tables.values():
        for column in table.columns:
            if table.name in newest.tables and column.name in newest.tables[table.name].columns:
                kept = newest.tables[table.name].columns[column.name].type
                column.type = kept if isinstance(kept, JsonText | UtcTime) else column.type
    return dict(reflected.tables)


def _insert(connection: Connection, tables: dict[str, Table], new: Sequence[Made], *, first_position: int) -> None:
    classifiers, supports = tables["classifiers"], tables["supports"]
    values = [
        {
            "tenant": TENANT,
            "position": first_position + i,
            "promotion": classifier.version,
            "horizon_given": classifier.horizon_rule == "given",
            **rows.classifier_values(classifier),
        }
        for i, (classifier, _) in enumerate(new)
    ]
    statement = insert(classifiers).returning(classifiers.c.sequence, sort_by_parameter_order=True)
    sequences = connection.scalars(statement, _known(classifiers, values)).all()
    examples = [
        {"classifier": sequence, **rows.support_values(support)}
        for sequence, (_, support) in zip(sequences, new, strict=True)
    ]
    connection.execute(insert(supports), _known(supports, examples))


def _known(table: Table, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key in table.columns} for row in values]


def _insert_counters(connection: Connection, tables: dict[str, Table]) -> None:
    """What the server counts as it adds classifiers."""
    of = tables["classifiers"].c
    last = select(of.tenant, of.name, func.max(of.version), func.max(of.promotion)).group_by(of.tenant, of.name)
    connection.execute(insert(tables["names"]).from_select(["tenant", "name", "last_version", "last_promotion"], last))
    sums = {"last_position": func.max(of.position), "stored": func.count()}
    columns = [name for name in sums if name in tables["tenants"].columns]
    tallies = select(of.tenant, *(sums[name] for name in columns)).group_by(of.tenant)
    connection.execute(insert(tables["tenants"]).from_select(["tenant", *columns], tallies))


def _settle(url: str) -> None:
    """Do at once what the database would do in the background in a while."""
    file = sqlite_file(url)
    if file is not None:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
