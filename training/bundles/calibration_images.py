"""The images of a folder on which an 8-bit backbone is calibrated."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comln_serve.imaging import Preprocessing
from training.data.image_folder import SUFFIXES
from training.data.images import DataError, build_image_set

_SEED = 0


def load_calibration_images(folder: Path, count: int, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """At most `count` images below a folder, (n, S, S, 3) RGB, as the bundle prepares them for predictions.

    Equally many are taken from every subfolder with images, as long as it has enough. The same files
    always give the same images.

    Raises:
        DataError: no such folder, no image below it, or a file that is not an image.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; images to calibrate with are expected below it")
    chosen = _spread(folder, count)
    if not chosen:
        raise DataError(f"{folder}: no image below it; images to calibrate with end in {', '.join(sorted(SUFFIXES))}")
    files = [(str(path.relative_to(folder)), path.read_bytes) for path in chosen]
    return build_image_set([(folder.name, files)], preprocessing.of_predictions, str(folder)).images


def _spread(folder: Path, count: int) -> list[Path]:
    """Files drawn from one folder after another in turns, at random within each folder."""
    rng = np.random.default_rng(_SEED)
    groups: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        # Archives made on macOS have a "._x.jpg" beside every "x.jpg".
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and not hidden and path.is_file():
            groups.setdefault(path.parent, []).append(path)
    # Shuffled, so that with fewer images than folders they are not of the first folders only.
    shuffled = [list(groups.values())[i] for i in rng.permutation(len(groups))]
    drawn = [[paths[i] for i in rng.permutation(len(paths))] for paths in shuffled]
    rounds = max(map(len, drawn), default=0)
    ordered = [paths[i] for i in range(rounds) for paths in drawn if i < len(paths)]
    return ordered[:count]
