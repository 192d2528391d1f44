"""Versions of a name: numbers them, and promotes the one that the name stands for.

Every function that writes first locks the name's row, so that changes of a name are serialised.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Row, Select, and_, or_, select, update

from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage.tables import classifiers, names, upsert

_BY_PROMOTION = (classifiers.c.promotion.desc(), classifiers.c.version.desc())

RowQuery = Select[*tuple[Any, ...]]


def alive(now: datetime, table: FromClause = classifiers) -> ColumnElement[bool]:
    """SQL condition: the row of a table with `expires_at` has not expired."""
    return or_(table.c.expires_at.is_(None), table.c.expires_at > now)


def of_name(tenant: str, name: str, now: datetime) -> ColumnElement[bool]:
    """SQL condition: the classifier is a version of the name, and has not expired."""
    return and_(classifiers.c.tenant == tenant, classifiers.c.name == name, alive(now))


def promoted_first(query: RowQuery) -> RowQuery:
    """Restrict a query over the versions of a name to the one that the name stands for."""
    return query.order_by(*_BY_PROMOTION).limit(1)


def is_promoted(now: datetime) -> ColumnElement[bool]:
    """SQL condition: the classifier is the version that its name stands for."""
    other = classifiers.alias("other")
    promoted = (
        select(other.c.id)
        .where(other.c.tenant == classifiers.c.tenant, other.c.name == classifiers.c.name, alive(now, other))
        .order_by(other.c.promotion.desc(), other.c.version.desc())
        .limit(1)
        .scalar_subquery()
    )
    return and_(classifiers.c.name.is_not(None), classifiers.c.id == promoted)


def next_version(connection: Connection, tenant: str, name: str, now: datetime, *, promote: bool) -> tuple[int, int]:
    """The number and the promotion (0: none) of a new version, whose row the caller inserts. The name stands for
    what it did until then.

    The first version of a name is always promoted. If a name stands for its newest version because
    none is promoted, that version is promoted first, so that the name does not move to the new one.
    """
    version, _ = _advance(connection, tenant, name, versions=1)
    if not promote:
        current = _current(connection, tenant, name, now)
        if current is not None:
            if current.promotion == 0:
                promote_version(connection, tenant, name, current.id)
            return version, 0
    return version, _advance(connection, tenant, name, promotions=1)[1]


def check_stands_for(
    connection: Connection, tenant: str, name: str, expected: str, promoted: str, now: datetime
) -> None:
    """Check what a name stands for, before another version is promoted. Locks the name, so that this stays true.

    Args:
        expected: id of the version that it should stand for.
        promoted: id of the one to promote. That it stands for this one already is right, too: the request is repeated.

    Raises:
        ServiceError: NAME_MOVED.
    """
    _advance(connection, tenant, name)
    current = _current(connection, tenant, name, now)  # None: all have just been deleted or renamed
    if current is not None and current.id not in (expected, promoted):
        raise ServiceError(
            ErrorCode.NAME_MOVED,
            f"{name!r} stands for its version {current.version}, not for {expected!r}: it has been changed meanwhile. "
            "Nothing was promoted.",
            received=expected,
            promoted=current.version,
        )


def promote_version(connection: Connection, tenant: str, name: str, classifier_id: str) -> None:
    """Let a name stand for one of its versions, if that still exists."""
    _, promotion = _advance(connection, tenant, name, promotions=1)
    connection.execute(
        update(classifiers)
        .where(classifiers.c.tenant == tenant, classifiers.c.id == classifier_id)
        .values(promotion=promotion)
    )


def roll_back(connection: Connection, tenant: str, name: str, now: datetime) -> str | None:
    """Let a name stand for the version promoted before, each by its last promotion. Returns its id; None if the name
    does not exist.

    Raises:
        ServiceError: NOTHING_TO_ROLL_BACK_TO.
    """
    row = select(names.c.name).where(names.c.tenant == tenant, names.c.name == name)
    # Not by `_advance`, which would insert a row for a name that does not exist.
    if connection.execute(row.with_for_update()).first() is None:
        return None
    latest = connection.execute(
        select(classifiers.c.id, classifiers.c.version, classifiers.c.promotion)
        .where(of_name(tenant, name, now))
        .order_by(*_BY_PROMOTION)
        .limit(2)
    ).all()
    if not latest:
        return None
    if len(latest) < 2 or latest[1].promotion == 0:
        raise ServiceError(
            ErrorCode.NOTHING_TO_ROLL_BACK_TO,
            f"{name!r} stands for its version {latest[0].version}, and there is none left to go back to. "
            f"Promote one: POST /classifiers/{name}@N/promote.",
            promoted=latest[0].version,
        )
    connection.execute(update(classifiers).where(classifiers.c.id == latest[0].id).values(promotion=0))
    return str(latest[1].id)


def rename(connection: Connection, tenant: str, old: str, new: str, now: datetime) -> None:
    """Move all versions of a name to another one, which has none. The caller has locked the tenant's row, so that no
    two transactions lock names in different orders.

    They keep their numbers, unless there have been versions of the new name: then they are numbered after these.

    Raises:
        ServiceError: NAME_TAKEN.
    """
    last = _advance(connection, tenant, old)
    version, _ = _advance(connection, tenant, new)
    there = _current(connection, tenant, new, now)
    if there is not None:
        raise ServiceError(
            ErrorCode.NAME_TAKEN,
            f"There is a classifier {new!r} already, which stands for its version {there.version}. Choose another "
            "name, or delete its versions first.",
            received=new,
        )
    connection.execute(
        update(classifiers)
        .where(classifiers.c.tenant == tenant, classifiers.c.name == old)
        .values(name=new, version=classifiers.c.version + version, revision=classifiers.c.revision + 1)
    )
    _advance(connection, tenant, new, versions=last[0], promotions=last[1])


def _current(connection: Connection, tenant: str, name: str, now: datetime) -> Row[Any] | None:
    """Id, version and promotion of the classifier that a name stands for; None: there is none."""
    query = select(classifiers.c.id, classifiers.c.version, classifiers.c.promotion).where(of_name(tenant, name, now))
    return connection.execute(promoted_first(query)).first()


def _advance(
    connection: Connection, tenant: str, name: str, *, versions: int = 0, promotions: int = 0
) -> tuple[int, int]:
    """Raise a name's last version and promotion, and return them. Locks the name's row."""
    insert = upsert(connection, names).values(
        tenant=tenant, name=name, last_version=versions, last_promotion=promotions
    )
    row = connection.execute(
        insert.on_conflict_do_update(
            index_elements=[names.c.tenant, names.c.name],
            set_={
                "last_version": names.c.last_version + versions,
                "last_promotion": names.c.last_promotion + promotions,
            },
        ).returning(names.c.last_version, names.c.last_promotion)
    ).one()
    return row.last_version, row.last_promotion
