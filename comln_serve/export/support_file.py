"""A classifier's support set as a file, from which a server with the same bundle makes the same classifier."""

from typing import Annotated, Any

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, FailFast, ValidationError
from pydantic_core import from_json
from safetensors import SafetensorError

from comln_serve.domain.classifier import Classifier
from comln_serve.domain.support import SupportSet

FORMAT_VERSION = "1"

# Name, dtype and dimensions of each array; the first of each is that of examples.
_ARRAYS = {"embeddings": (np.float32, 2), "classes": (np.int64, 1), "hashes": (np.uint64, 1), "hashed": (np.bool_, 1)}
_LARGEST = 1e15  # number of an embedding: sums of the squares of larger ones exceed float32
_LENGTH = 8  # bytes of the header's length, with which a safetensors file begins


class SupportFileError(ValueError):
    """A file is not one of a support set. The message says why."""


class About(BaseModel):
    """What a support file says of itself, in JSON in its header. A header with many mistakes makes few reports.

    Attributes:
        labels: of its classes.
        model, embedder_sha256: the bundle that computed the embeddings.
        horizon: T, or the rule that sets it.
        name, metadata: of the classifier; the values of the metadata are not checked.
    """

    model_config = ConfigDict(strict=True)

    labels: Annotated[list[str], FailFast()]
    model: str
    embedder_sha256: str
    horizon: float | str
    name: str | None
    metadata: dict[str, Any]


def write_support(classifier: Classifier, support: SupportSet) -> bytes:
    """A safetensors file of a support set. docs/export.md lists its content."""
    tensors = {
        "embeddings": np.ascontiguousarray(support.embeddings, dtype=np.float32),
        "classes": support.class_indices().astype(np.int64),
        "hashes": np.array([one or 0 for one in support.hashes], dtype=np.uint64),
        "hashed": np.array([one is not None for one in support.hashes], dtype=np.bool_),
    }
    about = About(
        labels=list(support.classes),
        model=classifier.model,
        embedder_sha256=classifier.embedder_sha256,
        horizon=classifier.horizon if classifier.horizon_rule == "given" else classifier.horizon_rule,
        name=classifier.name,
        metadata=classifier.metadata,
    )
    return safetensors.numpy.save(
        tensors, metadata={"support_version": FORMAT_VERSION, "support": about.model_dump_json()}
    )


def read_support(
    content: bytes, *, most_header: int, most_classes: int, most_examples: int
) -> tuple[SupportSet, About]:
    """Read a file of `write_support`, which anybody may have made or changed.

    Args:
        most_header: bytes that the header may have.
        most_classes, most_examples: that there may be.

    Returns:
        The support set, with examples numbered from 1 and without thumbnails, and what the header says.

    Raises:
        SupportFileError: the file cannot be used.
    """
    about = _about(content, most_header)
    try:
        arrays = safetensors.numpy.load(content)
    except (SafetensorError, KeyError, ValueError, OverflowError) as error:  # types and shapes that NumPy does not have
        raise SupportFileError(f"it is no safetensors file ({str(error)[:200]})") from error
    for name, (kind, dimensions) in _ARRAYS.items():
        array = arrays.get(name)
        if array is None or (array.dtype, array.ndim) != (kind, dimensions):
            raise SupportFileError(f"it has no array {name!r} of {np.dtype(kind)} with {dimensions} dimensions")
    embeddings, classes, hashes, hashed = (arrays[name] for name in _ARRAYS)
    if not len(embeddings) == len(classes) == len(hashes) == len(hashed):
        raise SupportFileError("its arrays are not of equally many examples")
    _check(len(about.labels), most_classes, "labels (--max-classes)")
    _check(len(embeddings), most_examples, "examples (--max-examples)")
    if len(set(about.labels)) != len(about.labels):
        raise SupportFileError("two of its labels are the same")
    if not -_LARGEST <= embeddings.min(initial=0) <= embeddings.max(initial=0) <= _LARGEST:  # not so of NaN
        raise SupportFileError(f"it has embeddings that are not numbers up to {_LARGEST:g}")
    if not np.isin(classes, range(len(about.labels))).all():
        raise SupportFileError(f"it has examples of other classes than its {len(about.labels)} labels")
    found = [int(value) if known else None for value, known in zip(hashes, hashed, strict=True)]
    return SupportSet.of(embeddings, found, [about.labels[one] for one in classes]), about


def _about(content: bytes, most_header: int) -> About:
    length = int.from_bytes(content[:_LENGTH], "little")
    if not 0 < length <= len(content) - _LENGTH:
        raise SupportFileError("it is no safetensors file")
    _check(length, most_header, "bytes in its header")
    try:
        texts = from_json(content[_LENGTH : _LENGTH + length])["__metadata__"]
        version, about = texts["support_version"], texts["support"]
    except (ValueError, KeyError, TypeError) as error:
        raise SupportFileError("its header is not that of a support set") from error
    if version != FORMAT_VERSION:
        raise SupportFileError(f"its version is {version!r:.50}; this release reads version {FORMAT_VERSION}")
    try:
        return About.model_validate_json(about)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SupportFileError(f"its header says of {where!r:.100}: {first['msg']}") from error


def _check(count: int, most: int, what: str) -> None:
    if count > most:
        raise SupportFileError(f"it has {count} {what}; at most {most} are allowed")
