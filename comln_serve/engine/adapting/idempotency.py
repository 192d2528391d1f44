"""Fingerprints of requests, to recognise a repeated one."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from comln_serve.engine.embedding.decoders import File


def fingerprint(operation: str, support: Sequence[tuple[File, str]], options: Mapping[str, object]) -> str:
    """A hash of a request's content: the same for equal requests in any encoding.

    Args:
        support: image files, or the errors of those refused already, and their labels.
        options: JSON values.
    """
    images = [
        [hashlib.sha256(file).hexdigest() if isinstance(file, bytes) else file.message, label]
        for file, label in support
    ]
    text = json.dumps([operation, images, options], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
