"""Changes a classifier's name, metadata and time of expiry. Weights, examples and id stay."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from comln_serve.domain.reference import parse_reference
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage.versions import Names


@dataclass(frozen=True)
class Edit:
    """What to change of a classifier.

    Attributes:
        name: of one without a name, whose next version it becomes; of a name, what all its versions are called from
            now on; None: no change.
        promote: let the name stand for the classifier, if that gets its first name; a name without versions always
            does.
        metadata: takes the place of what is there; None: no change.
        expires_in: time from now on; None: it never expires.
        keeps_expiry: the time of expiry does not change.
    """

    name: str | None = None
    promote: bool = True
    metadata: Mapping[str, str] | None = None
    expires_in: timedelta | None = None
    keeps_expiry: bool = True

    def apply(self, names: Names, row: Row[Any], reference: str, now: datetime) -> dict[str, Any]:
        """Rename all versions of a name, if that is asked for. The caller has locked the tenant.

        Args:
            row: the classifier that `reference` stands for.

        Returns:
            New values of the classifier's other columns, which the caller writes.

        Raises:
            ServiceError: INVALID_REQUEST, the reference is to one of the versions of a name; NAME_TAKEN.
        """
        values: dict[str, Any] = {}
        if self.metadata is not None:
            values["metadata"] = self.metadata
        if not self.keeps_expiry:
            values["expires_at"] = None if self.expires_in is None else now + self.expires_in
        if self.name is None or self.name == row.name:
            return values
        if row.name is None:
            version, promotion = names.next_version(self.name, promote=self.promote)
            return {**values, "name": self.name, "version": version, "promotion": promotion}
        asked = parse_reference(reference)
        if asked is None or asked.name is None or asked.version is not None:
            raise ServiceError(
                ErrorCode.INVALID_REQUEST,
                f"{reference!r} is version {row.version} of {row.name!r}. The versions of a name are renamed together: "
                f"PATCH /classifiers/{row.name}.",
                received=reference,
            )
        names.rename(row.name, self.name)
        return values
