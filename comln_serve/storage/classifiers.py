"""Adds, finds, lists, changes and deletes the classifiers of one tenant."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, outerjoin, select, update

from comln_serve.domain.classifier import Classifier, ClassifierRecord
from comln_serve.domain.reference import parse_reference
from comln_serve.domain.rejected import Rejected
from comln_serve.domain.support import SupportSet
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import idempotency, rows, tallies, versions
from comln_serve.storage.database import Database
from comln_serve.storage.editing import Edit
from comln_serve.storage.idempotency import IdempotencyKey
from comln_serve.storage.tables import classifiers, supports, tenants, thumbnails
from comln_serve.storage.versions import Names, RowQuery

# Joins the two tables.
_OF_CLASSIFIER = supports.c.classifier == classifiers.c.sequence


@dataclass(frozen=True)
class Resolved:
    """The classifier and revision that a reference stands for now."""

    id: str
    revision: int


Check = Callable[[ClassifierRecord], object]
"""Raises an error about a classifier that must not be used."""


def allow(_record: ClassifierRecord) -> None:
    """The check that refuses none."""


class ChangedError(Exception):
    """The classifier that a change is based on has changed or is gone; start over."""


class TenantStore:
    """Durable classifiers of one tenant, by reference (`comln_serve.domain.reference`).

    Every method may raise `ServiceError` STORAGE_UNAVAILABLE, and each that takes a reference, except
    `resolve`, CLASSIFIER_NOT_FOUND.
    """

    def __init__(
        self,
        database: Database,
        tenant: str,
        clock: Callable[[], datetime],
        *,
        show_thumbnails: bool = False,
        check: Check = allow,
    ) -> None:
        """Without `show_thumbnails`, no method returns thumbnails.

        Args:
            check: called by `edit`, `promote` and `roll_back` with a classifier that a name would stand for; with an
                error that it raises, nothing is changed.
        """
        self._database, self._tenant, self._clock, self._check = database, tenant, clock, check
        self._show_thumbnails = show_thumbnails
        self._thumbnails = rows.THUMBNAILS if show_thumbnails else rows.NO_THUMBNAILS

    # --- Reading ---------------------------------------------------------------------------------

    def resolve(self, reference: str) -> Resolved | None:
        """Id and revision of the classifier that a reference stands for, or None."""
        with self._database.single_read(self._tenant) as connection:
            return self._resolve(connection, reference)

    def find(self, reference: str) -> Classifier:
        """The classifier that a reference stands for."""
        with self._database.reading(self._tenant) as connection:
            return rows.to_classifier(self._row(connection, reference, classifiers.c.weights))

    def describe(self, reference: str) -> ClassifierRecord:
        """The classifier without its weights."""
        with self._database.reading(self._tenant) as connection:
            return rows.to_record(self._row(connection, reference))

    def support(self, reference: str) -> tuple[Classifier, SupportSet]:
        """The classifier and its support set."""
        more = (classifiers.c.weights, *rows.SUPPORT, supports.c.classifier)
        with self._database.reading(self._tenant) as connection:
            row = self._row(connection, reference, *more, where=_OF_CLASSIFIER)
            jpegs: dict[int, bytes] = {}
            if self._show_thumbnails:
                query = select(thumbnails.c.number, thumbnails.c.jpeg).where(thumbnails.c.classifier == row.classifier)
                jpegs = {found.number: found.jpeg for found in connection.execute(query)}
        return rows.to_classifier(row), rows.to_support(row, jpegs)

    def examples(self, reference: str) -> tuple[Resolved, list[tuple[int, str]]]:
        """The classifier's id and revision, and the number and label of each example. Does not read the embeddings,
        which take megabytes.
        """
        query = select(classifiers.c.id, classifiers.c.revision, *rows.EXAMPLES).where(_OF_CLASSIFIER)
        with self._database.reading(self._tenant) as connection:
            row = self._found(connection, query, reference)
        return Resolved(row.id, row.revision), list(zip(row.numbers, row.example_labels, strict=True))

    def thumbnail(self, reference: str, number: int) -> bytes | None:
        """The JPEG file that is kept of an example; None: there is none."""
        of_example = and_(thumbnails.c.classifier == classifiers.c.sequence, thumbnails.c.number == number)
        query = select(thumbnails.c.jpeg).select_from(outerjoin(classifiers, thumbnails, of_example))
        with self._database.reading(self._tenant) as connection:
            jpeg: bytes | None = self._found(connection, query, reference).jpeg
        return jpeg

    def page(
        self, *, limit: int, before: int | None = None, name: str | None = None, model: str | None = None
    ) -> tuple[list[ClassifierRecord], int | None]:
        """List at most `limit` classifiers without their reports, newest first.

        Args:
            before: where the page starts, from an earlier call; None: with the newest.
            name, model: list only classifiers with this name or model.

        Returns:
            The page, and `before` of the next page (None: this is the last).
        """
        now = self._clock()
        query = (
            select(*rows.LISTED, versions.is_promoted(now).label("promoted"), self._thumbnails, classifiers.c.position)
            .where(classifiers.c.tenant == self._tenant, versions.alive(now))
            .order_by(classifiers.c.position.desc())
            .limit(limit + 1)
        )
        if before is not None:
            query = query.where(classifiers.c.position < before)
        if name is not None:
            query = query.where(classifiers.c.name == name)
        if model is not None:
            # With a name, no index on the model may be used: most classifiers often have one model.
            column = classifiers.c.model if name is None else classifiers.c.model.concat("")
            query = query.where(column == model)
        with self._database.reading(self._tenant) as connection:
            found = connection.execute(query).all()
        page = [rows.to_record(row) for row in found[:limit]]
        return page, found[limit - 1].position if len(found) > limit else None

    def made_by(self, key: IdempotencyKey) -> tuple[str, tuple[Rejected, ...]] | None:
        """The classifier's id and the rejected images of an earlier request with this key, or None.

        Raises:
            ServiceError: IDEMPOTENCY_MISMATCH.
        """
        with self._database.reading(self._tenant) as connection:
            return idempotency.made_by(connection, self._tenant, key, self._clock())

    def check_room(self, limit: int) -> None:
        """Check early, before work on a classifier, that `add` would have room for it now.

        Raises:
            ServiceError: TOO_MANY_CLASSIFIERS.
        """
        with self._database.single_read(self._tenant) as connection:
            query = select(tenants.c.stored).where(tenants.c.tenant == self._tenant)
            stored = connection.execute(query).scalar_one_or_none() or 0
            self._check_room(connection, stored, limit, self._clock())

    # --- Writing ---------------------------------------------------------------------------------

    def add(
        self,
        classifier: Classifier,
        support: SupportSet,
        *,
        limit: int,
        promote: bool = True,
        key: IdempotencyKey | None = None,
        derived_from: tuple[str, Resolved] | None = None,
    ) -> Classifier:
        """Store a new classifier. A named one becomes the next version of its name.

        Args:
            limit: most classifiers the tenant may have.
            promote: let the name stand for this version; it always stands for its first version.
            key: of the request, stored with the classifier.
            derived_from: a reference, and what it must still stand for.

        Returns:
            The classifier with its version.

        Raises:
            ServiceError: TOO_MANY_CLASSIFIERS.
            KeyTakenError: another request with the key has made its classifier.
            ChangedError: `derived_from` is out of date.
        """
        now = self._clock()
        promotion = 0
        with self._database.writing(self._tenant) as connection:
            if key is not None:
                idempotency.claim(connection, self._tenant, key, classifier.id, now)
            position, stored = tallies.count_new(connection, self._tenant)
            self._check_room(connection, stored - 1, limit, now)
            if classifier.name is not None:
                names = Names(connection, self._tenant, now)
                version, promotion = names.next_version(classifier.name, promote=promote)
                classifier = replace(classifier, version=version, promoted=promotion > 0)
            if derived_from is not None:  # with the name locked, and before there is a row of the new version
                reference, expected = derived_from
                if self._resolve(connection, reference) != expected:
                    raise ChangedError
            sequence = connection.execute(
                insert(classifiers)
                .values(
                    tenant=self._tenant, position=position, promotion=promotion, **rows.classifier_values(classifier)
                )
                .returning(classifiers.c.sequence)
            ).scalar_one()
            connection.execute(insert(supports).values(classifier=sequence, **rows.support_values(support)))
            if support.thumbnails:
                connection.execute(insert(thumbnails), rows.thumbnail_values(support, sequence))
        return classifier

    def replace(self, classifier: Classifier, support: SupportSet, *, key: IdempotencyKey | None = None) -> None:
        """Replace the previous revision of a classifier and its support set.

        Raises:
            KeyTakenError: another request with the key has made its classifier.
            ChangedError: the stored revision is not the previous one.
        """
        now = self._clock()
        with self._database.writing(self._tenant) as connection:
            if key is not None:
                idempotency.claim(connection, self._tenant, key, classifier.id, now)
            sequence = connection.execute(
                update(classifiers)
                .where(
                    classifiers.c.tenant == self._tenant,
                    classifiers.c.id == classifier.id,
                    classifiers.c.revision == classifier.revision - 1,
                    versions.alive(now),
                )
                .values(**rows.classifier_values(classifier))
                .returning(classifiers.c.sequence)
            ).scalar_one_or_none()
            if sequence is None:
                raise ChangedError
            connection.execute(
                update(supports).where(supports.c.classifier == sequence).values(**rows.support_values(support))
            )
            connection.execute(delete(thumbnails).where(thumbnails.c.classifier == sequence))
            if support.thumbnails:
                connection.execute(insert(thumbnails), rows.thumbnail_values(support, sequence))

    def edit(self, reference: str, edit: Edit) -> ClassifierRecord:
        """Change name, metadata or time of expiry of a classifier. Returns its new description.

        Raises:
            ServiceError: INVALID_REQUEST, NAME_TAKEN, as of `Edit.apply`.
        """
        now = self._clock()
        with self._database.writing(self._tenant) as connection:
            if edit.name is not None:
                tallies.lock(connection, [self._tenant])
            row = self._row(connection, reference, report=False)
            values = edit.apply(Names(connection, self._tenant, now), row, reference, now)
            if values.get("promotion"):
                self._check(rows.to_record(row))
            if values:
                query = update(classifiers).where(classifiers.c.tenant == self._tenant, classifiers.c.id == row.id)
                connection.execute(query.values(revision=classifiers.c.revision + 1, **values))
            return rows.to_record(self._row(connection, row.id))

    def promote(self, reference: str, *, instead_of: str | None = None) -> ClassifierRecord:
        """Let a classifier's name stand for it. Returns its new description, without its report.

        Args:
            instead_of: promote only if the name still stands for the classifier with this id; None: for any.

        Raises:
            ServiceError: INVALID_REQUEST, the classifier has no name; NAME_MOVED, its name stands for another version
                than `instead_of`.
        """
        with self._database.writing(self._tenant) as connection:
            tallies.lock(connection, [self._tenant])  # so that the name is not changed meanwhile
            row = self._row(connection, reference, report=False)
            if row.name is None:
                raise ServiceError(
                    ErrorCode.INVALID_REQUEST,
                    f"Classifier {reference!r} has no name; only a version of a name can be promoted.",
                    received=reference,
                )
            names = Names(connection, self._tenant, self._clock())
            if instead_of is not None:
                names.check_stands_for(row.name, instead_of, row.id)
            self._check(rows.to_record(row))
            names.promote(row.name, row.id)
            return rows.to_record(self._row(connection, row.id, report=False))

    def roll_back(self, name: str) -> ClassifierRecord:
        """Let a name stand for the version promoted before. Returns that version, without its report.

        Raises:
            ServiceError: NOTHING_TO_ROLL_BACK_TO; INVALID_REQUEST, `name` is an id or a version.
        """
        reference = parse_reference(name)
        if reference is None:
            raise not_found(name)
        if reference.name is None or reference.version is not None:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"A name is rolled back, as it stands for one of several versions; {name!r} names one classifier.",
                received=name,
            )
        with self._database.writing(self._tenant) as connection:
            found = Names(connection, self._tenant, self._clock()).roll_back(name)
            if found is None:
                raise not_found(name)
            promoted = rows.to_record(self._row(connection, found, report=False))
            self._check(promoted)
            return promoted

    def delete(self, reference: str) -> Resolved:
        """Delete the classifier that a reference stands for. Returns it."""
        with self._database.writing(self._tenant) as connection:
            found = self._resolve(connection, reference)
            if found is None:
                raise not_found(reference)
            tallies.count_deleted(connection, self._tenant)
            query = delete(classifiers).where(classifiers.c.tenant == self._tenant, classifiers.c.id == found.id)
            if connection.execute(query).rowcount == 0:
                raise not_found(reference)
        return found

    # --- Within a transaction --------------------------------------------------------------------

    def _first(self, connection: Connection, query: RowQuery, reference: str) -> Row[Any] | None:
        """The row of a query over `classifiers` that a reference stands for, or None."""
        parsed, now = parse_reference(reference), self._clock()
        if parsed is None:
            return None
        if parsed.name is None:
            mine = classifiers.c.tenant == self._tenant, classifiers.c.id == parsed.id, versions.alive(now)
            return connection.execute(query.where(*mine)).first()
        query = query.where(versions.of_name(self._tenant, parsed.name, now))
        if parsed.version is not None:
            return connection.execute(query.where(classifiers.c.version == parsed.version)).first()
        return connection.execute(versions.promoted_first(query)).first()

    def _found(self, connection: Connection, query: RowQuery, reference: str) -> Row[Any]:
        """As `_first`, but an error if the reference stands for nothing."""
        row = self._first(connection, query, reference)
        if row is None:
            raise not_found(reference)
        return row

    def _resolve(self, connection: Connection, reference: str) -> Resolved | None:
        row = self._first(connection, select(classifiers.c.id, classifiers.c.revision), reference)
        return None if row is None else Resolved(row.id, row.revision)

    def _row(
        self,
        connection: Connection,
        reference: str,
        *more: Any,
        where: ColumnElement[bool] | None = None,
        report: bool = True,
    ) -> Row[Any]:
        """Columns `rows.INFO`, `promoted`, `thumbnails` and `more` of the classifier that a reference stands for.
        `where` joins the table of the columns `more`, if that is another one. Without `report` that column is null: it
        may have megabytes, and other writers wait while it is read.
        """
        promoted = versions.is_promoted(self._clock()).label("promoted")
        query = select(*(rows.INFO if report else rows.LISTED), promoted, self._thumbnails, *more)
        return self._found(connection, query if where is None else query.where(where), reference)

    def _check_room(self, connection: Connection, stored: int, limit: int, now: datetime) -> None:
        if stored < limit:
            return
        # What has expired is deleted within a minute or so: there is little of it to count.
        expired = classifiers.c.tenant == self._tenant, classifiers.c.expires_at <= now
        stored -= connection.execute(select(func.count()).select_from(classifiers).where(*expired)).scalar_one()
        if stored >= limit:
            raise ServiceError(
                ErrorCode.TOO_MANY_CLASSIFIERS,
                f"There are {stored} classifiers, and at most {limit} are kept. Delete some that "
                "are not needed, or let them expire (expires_in_seconds).",
                stored=stored,
                limit=limit,
            )


def not_found(reference: str) -> ServiceError:
    """The error for a reference that stands for no classifier."""
    return ServiceError(
        ErrorCode.CLASSIFIER_NOT_FOUND,
        f"There is no classifier {reference!r}: an id, a name or name@version. GET /classifiers lists them.",
        received=reference,
    )
