"""Versions of a name: numbers them, and promotes the one that the name stands for."""

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


class Names:
    """The names of a tenant within one transaction.

    Every method first locks the name's row, so that changes of a name are serialised.
    """

    def __init__(self, connection: Connection, tenant: str, now: datetime) -> None:
        self._connection, self._tenant, self._now = connection, tenant, now

    def next_version(self, name: str, *, promote: bool) -> tuple[int, int]:
        """The number and the promotion (0: none) of a new version, whose row the caller inserts. The name stands for
        what it did until then.

        The first version of a name is always promoted. If a name stands for its newest version because
        none is promoted, that version is promoted first, so that the name does not move to the new one.
        """
        version, _ = self._advance(name, versions=1)
        current = None if promote else self._current(name)
        if current is None:
            return version, self._advance(name, promotions=1)[1]
        if current.promotion == 0:
            self.promote(name, current.id)
        return version, 0

    def check_stands_for(self, name: str, expected: str, promoted: str) -> None:
        """Check what a name stands for, before another version is promoted. It stays locked, so that this stays true.

        Args:
            expected: id of the version that it should stand for.
            promoted: id of the one to promote. That it stands for this one already is right, too: the request is
                repeated.

        Raises:
            ServiceError: NAME_MOVED.
        """
        self._advance(name)
        current = self._current(name)  # None: all have just been deleted or renamed
        if current is not None and current.id not in (expected, promoted):
            raise ServiceError(
                ErrorCode.NAME_MOVED,
                f"{name!r} stands for its version {current.version}, not for {expected!r}: it has been changed "
                "meanwhile. Nothing was promoted.",
                received=expected,
                promoted=current.version,
            )

    def promote(self, name: str, classifier_id: str) -> None:
        """Let a name stand for one of its versions, if that still exists."""
        _, promotion = self._advance(name, promotions=1)
        mine = classifiers.c.tenant == self._tenant, classifiers.c.id == classifier_id
        self._connection.execute(update(classifiers).where(*mine).values(promotion=promotion))

    def roll_back(self, name: str) -> str | None:
        """Let a name stand for the version promoted before, each by its last promotion. Returns its id; None if the
        name does not exist.

        Raises:
            ServiceError: NOTHING_TO_ROLL_BACK_TO.
        """
        row = select(names.c.name).where(names.c.tenant == self._tenant, names.c.name == name)
        # Not by `_advance`, which would insert a row for a name that does not exist.
        if self._connection.execute(row.with_for_update()).first() is None:
            return None
        latest = self._connection.execute(self._versions(name).order_by(*_BY_PROMOTION).limit(2)).all()
        if not latest:
            return None
        if len(latest) < 2 or latest[1].promotion == 0:
            raise ServiceError(
                ErrorCode.NOTHING_TO_ROLL_BACK_TO,
                f"{name!r} stands for its version {latest[0].version}, and there is none left to go back to. "
                f"Promote one: POST /classifiers/{name}@N/promote.",
                promoted=latest[0].version,
            )
        self._connection.execute(update(classifiers).where(classifiers.c.id == latest[0].id).values(promotion=0))
        return str(latest[1].id)

    def rename(self, old: str, new: str) -> None:
        """Move all versions of a name to another one, which has none. The caller has locked the tenant's row, so that
        no two transactions lock names in different orders.

        They keep their numbers, unless there have been versions of the new name: then they are numbered after these.

        Raises:
            ServiceError: NAME_TAKEN.
        """
        last = self._advance(old)
        version, _ = self._advance(new)
        there = self._current(new)
        if there is not None:
            raise ServiceError(
                ErrorCode.NAME_TAKEN,
                f"There is a classifier {new!r} already, which stands for its version {there.version}. Choose another "
                "name, or delete its versions first.",
                received=new,
            )
        self._connection.execute(
            update(classifiers)
            .where(classifiers.c.tenant == self._tenant, classifiers.c.name == old)
            .values(name=new, version=classifiers.c.version + version, revision=classifiers.c.revision + 1)
        )
        self._advance(new, versions=last[0], promotions=last[1])

    def _versions(self, name: str) -> RowQuery:
        found = select(classifiers.c.id, classifiers.c.version, classifiers.c.promotion)
        return found.where(of_name(self._tenant, name, self._now))

    def _current(self, name: str) -> Row[Any] | None:
        """Id, version and promotion of the classifier that a name stands for; None: there is none."""
        return self._connection.execute(promoted_first(self._versions(name))).first()

    def _advance(self, name: str, *, versions: int = 0, promotions: int = 0) -> tuple[int, int]:
        """Raise a name's last version and promotion, and return them. Locks the name's row."""
        insert = upsert(self._connection, names).values(
            tenant=self._tenant, name=name, last_version=versions, last_promotion=promotions
        )
        more = {"last_version": names.c.last_version + versions, "last_promotion": names.c.last_promotion + promotions}
        row = self._connection.execute(
            insert.on_conflict_do_update(index_elements=[names.c.tenant, names.c.name], set_=more).returning(
                names.c.last_version, names.c.last_promotion
            )
        ).one()
        return row.last_version, row.last_promotion
