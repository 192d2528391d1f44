"""Small files in the formats of public data sets, for the tests of their readers."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comln_serve.imaging import Preprocessing
from tests.support.image_files import image_bytes
from training.config import DataConfig
from training.data import ImageSet, load_split

SIZE = 8
POLICY = Preprocessing(image_size=SIZE)
SPLITS = ("train", "val", "test")


def load(kind: str, root: Path, split: str, *, size: int = SIZE, **options: Any) -> ImageSet:
    """What a recipe's `data` section gives, images of `size` pixels."""
    config = {"kind": kind, "preprocessing": {"image_size": size}} | options
    return load_split(DataConfig.model_validate(config), root, split)


def pictures(count: int, size: int = SIZE, seed: int = 0) -> NDArray[np.uint8]:
    """(count, size, size, 3), every image different."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def write_pickle(path: Path, content: object, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))


def write_class(folder: Path, count: int = 2, suffix: str = ".png") -> None:
    """A class folder of `count` different images."""
    folder.mkdir(parents=True)
    for i in range(count):
        seed = sum(folder.name.encode()) + i
        (folder / f"{i}{suffix}").write_bytes(image_bytes(seed=seed, size=(SIZE, SIZE)))


def pickle_of_python2(content: object) -> bytes:
    """The pickle (protocol 2) that Python 2 and a numpy of its time wrote of `content`.

    Dictionaries, lists, integers, arrays; strings are Python 2's byte strings.
    """
    return b"\x80\x02" + _python2(content) + b"."


def _python2(value: object) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(part) for pair in value.items() for part in pair) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value  # BINSTRING
    if isinstance(value, np.ndarray):
        return _python2_array(value)
    assert isinstance(value, int), value
    return b"J" + struct.pack("<i", value)


def _python2_array(array: NDArray[Any], content: bytes | None = None) -> bytes:
    raw = array.tobytes() if content is None else content
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01"
        b"("
        + b"".join(map(_python2, array.shape))
        + b"t"
        + b"cnumpy\ndtype\n"
        + _python2(array.dtype.str[1:])
        + b"K\x00K\x01\x87R"
        + b"(K\x03"
        + _python2(array.dtype.str[0])
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89"
        + _python2(raw)
        + b"tb"
    )
