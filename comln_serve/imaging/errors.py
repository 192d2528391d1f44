"""Errors of image files."""

from typing import Any, Literal

Kind = Literal["invalid_image", "image_too_large"]


class ImageError(ValueError):
    """The file cannot be used as an image.

    Attributes:
        kind: "invalid_image" (not an image, a format that is not accepted, or damaged) or
            "image_too_large" (more pixels than allowed).
        message: what was received and what is allowed, for a person.
        detail: the same facts for a program; JSON values only.
    """

    def __init__(self, kind: Kind, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.kind, self.message, self.detail = kind, message, detail


class StoppedError(Exception):
    """Decoding was stopped, as nobody waits for the picture any more."""
