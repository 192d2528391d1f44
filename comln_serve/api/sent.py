"""The images of a request. A partial request goes on without some: its answer or error, log line and metrics say so."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from comln_serve.api.context import current_record
from comln_serve.api.schemas import RejectedImage
from comln_serve.domain.rejected import Rejected
from comln_serve.engine.embedding.decoders import File
from comln_serve.errors import ErrorCode, ServiceError


@dataclass(frozen=True)
class Sent:
    """The images of a request.

    Attributes:
        labels: label of each image; empty: the images have none.
        names: file name of each image; empty: the images have none.
        partial: the request goes on without images that cannot be used.
    """

    images: Sequence[File] = ()
    labels: Sequence[str] = ()
    names: Sequence[str | None] = ()
    partial: bool = False

    @property
    def support(self) -> list[tuple[File, str]]:
        """The images with their labels."""
        return list(zip(self.images, self.labels, strict=True))

    def described(self, rejected: Iterable[Rejected]) -> list[RejectedImage] | None:
        """Rejected images as the answer has them; None unless the request is partial."""
        return [RejectedImage(**self._named(one.facts())) for one in rejected] if self.partial else None

    @contextmanager
    def naming_errors(self) -> Generator[None, None, None]:
        """Add names and labels to the rejected images in an error of this block."""
        try:
            yield
        except ServiceError as error:
            rejected = error.detail.get("rejected")
            if rejected is None:
                raise
            current_record().rejected = [ErrorCode(facts["code"]) for facts in rejected]
            detail = {**error.detail, "rejected": [self._named(facts) for facts in rejected]}
            # The job has the error, whose traceback would keep job and images until a garbage collection.
            raise ServiceError(error.code, error.message, **detail) from error.with_traceback(None)

    def _named(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        index = facts["index"]
        label = {"label": self.labels[index]} if self.labels else {}
        return {"index": index, "file": self.names[index] if self.names else None, **label, **facts}
