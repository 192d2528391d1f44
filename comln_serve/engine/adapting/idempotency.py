"""Fingerprints of requests, to recognise a repeated one."""

import hashlib
import json
from collections.abc import Mapping, Sequence


def fingerprint(operation: str, support: Sequence[tuple[bytes, str]], options: Mapping[str, object]) -> str:
    """A hash of a request's content: the same for equal requests in any encoding.

    Args:
        support: image files and their labels.
        options: JSON values.
    """
    images = [[hashlib.sha256(data).hexdigest(), label] for data, label in support]
    text = json.dumps([operation, images, options], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
