"""Errors that are shown to callers, each with a stable code.

A message says what was received, what is allowed and what to do; `detail` holds the same facts for
programs. Only `comln_serve.api.errors` maps codes to HTTP statuses.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Self


class ErrorCode(StrEnum):
    """Every code that can appear in an error body."""

    MALFORMED_HTTP = "malformed_http"
    HEAD_TOO_LARGE = "head_too_large"
    FOREIGN_HOST = "foreign_host"
    FOREIGN_ORIGIN = "foreign_origin"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    INVALID_REQUEST = "invalid_request"
    INVALID_IMAGE = "invalid_image"
    IMAGE_TOO_LARGE = "image_too_large"
    TOO_MANY_IMAGES = "too_many_images"
    RECEIVE_TIMEOUT = "receive_timeout"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    MODEL_NOT_FOUND = "model_not_found"
    CLASSIFIER_NOT_FOUND = "classifier_not_found"
    EXAMPLE_NOT_FOUND = "example_not_found"
    THUMBNAIL_NOT_FOUND = "thumbnail_not_found"
    MODEL_CHANGED = "model_changed"
    NAME_TAKEN = "name_taken"
    NAME_MOVED = "name_moved"
    TOO_MANY_CLASSIFIERS = "too_many_classifiers"
    NOTHING_TO_ROLL_BACK_TO = "nothing_to_roll_back_to"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    CANNOT_ADAPT = "cannot_adapt"
    CANNOT_EXPORT = "cannot_export"
    CANNOT_RELOAD = "cannot_reload"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    INFERENCE_TIMEOUT = "inference_timeout"
    CLIENT_GONE = "client_gone"
    NOT_READY = "not_ready"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    INTERNAL = "internal"


class ServiceError(Exception):
    """An error that is shown to the caller.

    Attributes:
        code: stable identifier.
        message: one or two sentences for a person.
        detail: the same facts for a program; JSON values only.
    """

    def __init__(self, code: ErrorCode, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail: Mapping[str, Any] = detail

    def __reduce__(self) -> tuple[partial[Self], tuple[()]]:
        """Pickle all constructor arguments, for errors that cross processes: `args` lacks some."""
        return partial(type(self), self.code, self.message, **self.detail), ()


def invalid(message: str, **detail: Any) -> ServiceError:
    """The error INVALID_REQUEST."""
    return ServiceError(ErrorCode.INVALID_REQUEST, message, **detail)


class StartupError(RuntimeError):
    """The server cannot start as configured; the message says what to change."""


class NotYetError(StartupError):
    """The server cannot start now, but may later, with the same configuration."""
