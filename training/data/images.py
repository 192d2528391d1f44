"""Labelled images in memory, grouped by class."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from comln_serve.errors import ServiceError
from comln_serve.imaging import Preprocessing, prepare_image
from comln_serve.machine import usable_cpus

ReadFile = Callable[[], bytes]

_T = TypeVar("_T")


class DataError(ValueError):
    """Data that is missing or not what it should be; the message names the file."""


@dataclass(frozen=True)
class ImageSet:
    """Images of a set of classes.

    Attributes:
        images: (n, S, S, 3) uint8 RGB.
        members: for each base class, the indices of its images.
        names: name of each base class.
        rotations: 1, or 4 when every base class stands for four, one a quarter turn.
    """

    images: NDArray[np.uint8]
    members: tuple[NDArray[np.intp], ...]
    names: tuple[str, ...]
    rotations: int = 1

    @property
    def n_classes(self) -> int:
        return len(self.members) * self.rotations

    def gather(self, classes: NDArray[np.intp], indices: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Images (n, S, S, 3) at `indices` (n,), turned as their classes (n,) ask."""
        picked = self.images[indices]
        turns = classes % self.rotations
        for turn in range(1, self.rotations):
            mask = turns == turn
            picked[mask] = np.rot90(picked[mask], turn, axes=(1, 2))
        return picked


def build_image_set(
    classes: Sequence[tuple[str, Sequence[tuple[str, ReadFile]]]],
    preprocessing: Preprocessing,
    *,
    rotations: int = 1,
) -> ImageSet:
    """Decode the files of each class, (class name, [(file name, how to read it)]), with the policy.

    A file is read when its turn to be decoded comes, so photos need not fit in memory.

    Raises:
        DataError: no class, a class without images, or a file that is not an image.
    """
    if not classes:
        raise DataError("no class was found")
    flat = [(f"{name}/{file}", read) for name, files in classes for file, read in files]
    with ThreadPoolExecutor(usable_cpus()) as pool:
        arrays = list(
            _progress(pool.map(lambda item: _prepare(item[0], item[1], preprocessing), flat), flat)
        )
    members, start = [], 0
    for name, files in classes:
        if not files:
            raise DataError(f"class {name!r} holds no image")
        members.append(np.arange(start, start + len(files)))
        start += len(files)
    names = tuple(name for name, _ in classes)
    return ImageSet(np.stack(arrays), tuple(members), names, rotations)


def _prepare(name: str, read: ReadFile, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    try:
        return prepare_image(read(), preprocessing)
    except ServiceError as error:
        raise DataError(f"{name}: {error.message}") from error
    except OSError as error:
        raise DataError(f"{name}: {error}") from error


def _progress(items: Iterable[_T], sized: Sequence[object]) -> Iterable[_T]:
    return tqdm(items, total=len(sized), desc="images", unit="img", leave=False, disable=None)
