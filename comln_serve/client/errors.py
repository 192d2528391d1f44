"""Errors of the client."""

import copyreg
from collections.abc import Mapping, Sequence
from typing import Any


def _reduce(self: BaseException) -> tuple[Any, ...]:
    """What an error is pickled as, for an estimator in a worker: without a call of its class, as each takes other
    arguments.
    """
    return copyreg.__newobj__, (type(self), *self.args), vars(self)  # pyright: ignore[reportAttributeAccessIssue]


class ComlnError(Exception):
    """A call failed. Every error of the client is of this class.

    Attributes:
        message: what was received, what is allowed, what to do; for a person.
        code: the server's error code, as listed in docs/errors.md; None if the answer had none, or there was none.
        detail: the same facts for a program; JSON values only.
        status: HTTP status of the answer; None without an answer.
        request_id: the request's id in the server's log; None without an answer.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        detail: Mapping[str, Any] | None = None,
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.detail: Mapping[str, Any] = detail or {}
        self.status = status
        self.request_id = request_id

    __reduce__ = _reduce


class InputError(ComlnError, ValueError):
    """The arguments cannot be sent: a folder without classes, as many labels as images are needed, and the like."""


class BadImageError(InputError):
    """An image is damaged, or is no image file. Found by the client, or by the server (then `code` is set).

    Attributes:
        image: the file's path, or "image N" for data in memory, counted from 1.
        reason: what is wrong with it.
    """

    def __init__(self, image: str, reason: str, **more: Any) -> None:
        super().__init__(f"{image}: {reason}", **more)
        self.image, self.reason = image, reason


class NoAnswerError(ComlnError):
    """The server cannot be reached, the connection broke or timed out before its answer, or that cannot be decoded."""


class NotFoundError(ComlnError):
    """There is no such classifier, model, example or route (404)."""


class InterruptedPredicting(KeyboardInterrupt):
    """Ctrl-C ended a call of `predict` or `predict_folder` after some of several requests. `done`, `total` and `result`
    are as of `IncompleteError`.
    """

    def __init__(self, *, done: int, total: int, result: Any) -> None:
        super().__init__(f"predicting was interrupted after {done} of {total} images")
        self.done, self.total, self.result = done, total, result

    __reduce__ = _reduce


class IncompleteError(ComlnError):
    """A call of several requests ended after some of them. The message says what was done and what is left of it.

    `__cause__` is the error that ended it, whose code, detail, status and request id this error repeats.

    Attributes:
        done: number of images that the server had taken before.
        total: number of images of the call.
        leftover: ids of partial classifiers that the client could not delete.
        result: what was answered before: `Predictions` of `predict` and `predict_folder`; else None.
    """

    def __init__(
        self,
        message: str,
        cause: ComlnError,
        *,
        done: int,
        total: int,
        leftover: tuple[str, ...] = (),
        result: Any = None,
    ) -> None:
        super().__init__(
            message, code=cause.code, detail=cause.detail, status=cause.status, request_id=cause.request_id
        )
        self.done, self.total, self.leftover, self.result = done, total, leftover, result


def listed(texts: Sequence[str], most: int) -> str:
    """Texts for a message: the first ones, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
