"""Labelled images in memory, grouped by class."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from comln_serve.imaging import FORMATS, ImageError, Preprocessing, pixel_views, prepare_views
from comln_serve.machine import usable_cpus
from training.errors import CorrectableError

ReadFile = Callable[[], bytes]
Embed = Callable[[NDArray[Any]], NDArray[np.float32]]
"""A network: images (n, S, S, 3) uint8, or embeddings (n, d) that it may change -> embeddings (n, d) float32."""

# Formats of data sets. The files are the user's own, so the trainer decodes more formats than the
# server accepts from its callers.
_READ = (*FORMATS, "PPM")

# Files that an error about several of them names.
_MOST_NAMED = 20


class DataError(CorrectableError, ValueError):
    """Data that is missing or not usable; the message names the file. Everything here that reads data raises it."""


@dataclass(frozen=True)
class ImageSet:
    """Images, or embeddings of images, of a set of classes.

    Attributes:
        images: (n, S, S, 3) uint8 RGB; or their embeddings, (n, d) float32. With V views of each, (n, V, S, S, 3) and
            (n, V, d); see `comln_serve.bundle.views`.
        members: for each base class, the indices of its images.
        names: name of each base class.
        rotations: 1, or 4 if each base class is four classes, one for each quarter turn.
        files: (n,) file name of each image, None if the images are stored in arrays.
        groups: (n,) group of each image, such as frames of one video, which are nearly the same image; None if there
            are no groups. A query of an episode is never in the same group as a support image.
    """

    images: NDArray[Any]
    members: tuple[NDArray[np.intp], ...]
    names: tuple[str, ...]
    rotations: int = 1
    files: tuple[str, ...] | None = None
    groups: NDArray[np.intp] | None = None

    @property
    def n_classes(self) -> int:
        return len(self.members) * self.rotations

    @property
    def views(self) -> int:
        """V."""
        axes = 3 if self.images.dtype == np.uint8 else 1  # of one view
        return self.images.shape[1] if self.images.ndim == axes + 2 else 1

    @property
    def all_views(self) -> NDArray[Any]:
        """(n V, ...), image by image."""
        return self.images.reshape(-1, *self.images.shape[2:]) if self.views > 1 else self.images

    @property
    def first_views(self) -> NDArray[Any]:
        """(n, ...)."""
        return self.images[:, 0] if self.views > 1 else self.images

    def embedded(self, embed: Embed) -> "ImageSet":
        """The set with embeddings (n, d), or (n, V, d), in place of its images."""
        found = embed(self.all_views)
        if self.views > 1:
            found = found.reshape(len(self.images), self.views, -1)
        return replace(self, images=found)


def build_image_set(
    classes: Sequence[tuple[str, Sequence[tuple[str, ReadFile]]]],
    preprocessing: Preprocessing,
    where: str,
    *,
    rotations: int = 1,
) -> ImageSet:
    """Decode and prepare the files of each class, (class name, [(file name, function that reads it)]).

    Each file is read just before it is decoded, so the files need not fit in memory together.

    Args:
        where: what errors begin with.

    Raises:
        DataError: no class, or files that are not images; all of them are tried, so that they
            can be removed at once.
    """
    if not classes:
        raise DataError(f"{where}: no class was found")
    flat = [(f"{name}/{file}", read) for name, files in classes for file, read in files]
    members, start = [], 0
    for _, files in classes:
        members.append(np.arange(start, start + len(files)))
        start += len(files)
    refused: dict[int, str] = {}

    def prepare(i: int) -> NDArray[np.uint8] | int:
        try:
            return _prepare(*flat[i], preprocessing)
        except DataError as error:
            refused[i] = str(error)
            return 0

    images = _fill(prepare, len(flat), preprocessing)
    if refused:
        raise DataError(f"{where}: {_one_message([refused[i] for i in sorted(refused)])}")
    names = tuple(name for name, _ in classes)
    paths = tuple(file for _, files in classes for file, _ in files)
    return ImageSet(images, tuple(members), names, rotations, paths)


def fit_pixels(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Decoded RGB images (n, height, width, 3) as in `ImageSet`; unchanged if of that size and not cropped."""
    side = preprocessing.image_size
    if pixels.shape[1:3] == (side, side) and preprocessing.shares == (1.0,):
        return pixels
    return _fill(lambda i: pixel_views(pixels[i], preprocessing), len(pixels), preprocessing)


def _fill(
    make: Callable[[int], NDArray[np.uint8] | int], count: int, preprocessing: Preprocessing
) -> NDArray[np.uint8]:
    """An array of `count` images made on all CPUs, in place: a list first would double the memory."""
    side, views = preprocessing.image_size, len(preprocessing.shares)
    images = np.empty((count, views, side, side, 3), dtype=np.uint8)

    def put(i: int) -> None:
        images[i] = make(i)

    with ThreadPoolExecutor(usable_cpus()) as pool:
        done = pool.map(put, range(count))
        for _ in tqdm(done, total=count, desc="images", unit="img", leave=False, disable=None):
            pass
    return images if views > 1 else images[:, 0]


def _one_message(messages: Sequence[str]) -> str:
    """The messages of all files that cannot be used as one, with the first of them."""
    if len(messages) == 1:
        return messages[0]
    lines = [f"{len(messages)} files cannot be used; remove or replace them:", *messages[:_MOST_NAMED]]
    if (left := len(messages) - _MOST_NAMED) > 0:
        lines.append(f"and {left} more")
    return "\n  ".join(lines)


def _prepare(name: str, read: ReadFile, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    try:
        return prepare_views(read(), preprocessing, formats=_READ)
    except ImageError as error:
        raise DataError(f"{name}: {error.message}") from error
    except OSError as error:
        raise DataError(f"{name}: {error}") from error
