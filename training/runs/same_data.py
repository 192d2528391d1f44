"""Notices that a run is resumed on other data than it was started on."""

import hashlib
from pathlib import Path

import numpy as np

from training.checkpoint_names import DATA, LAST, PRETRAINING
from training.data.several import Sets
from training.errors import CheckpointError, writing

# Images of a data set that are looked at, spread evenly: all of a large one would take many seconds at each start.
_MOST_IMAGES = 1000


def check_same_data(out: Path, train: Sets, val: Sets, *, leads: bool) -> None:
    """Keep a hash of a new run's data in its folder, or compare it with that of the run that is there.

    Without the hash nothing is compared: whoever goes on with other data deletes it.

    Args:
        leads: whether this process writes the files of the run.

    Raises:
        CheckpointError: the run in `out` was started on other data.
        WriteError: the hash cannot be written.
    """
    path, now = out / DATA, _hash(train, val)
    if not any((out / name).exists() for name in (LAST, PRETRAINING)):
        if leads:
            with writing(path):
                path.write_text(f"{now}\n", encoding="ascii")
    elif path.exists() and path.read_text(encoding="ascii").strip() != now:
        raise CheckpointError(
            f"{out} belongs to a run on other data: its classes, images or their order have changed. Give the data "
            f"that it was started with, or another folder. To go on with what is there now, delete {path}"
        )


def _hash(train: Sets, val: Sets) -> str:
    """SHA-256 of the sets' names, their classes, which images these have, and up to `_MOST_IMAGES` of them."""
    digest = hashlib.sha256()
    for use, sets in (("train", train), ("val", val)):
        for name, data in sets.items():
            digest.update(repr((use, name, data.names, data.rotations, data.images.shape)).encode())
            for members in data.members:
                digest.update(members.astype(np.int64).tobytes())
            some = np.linspace(0, len(data.images) - 1, min(_MOST_IMAGES, len(data.images))).astype(np.intp)
            for index in some:
                digest.update(data.images[index].tobytes())
    return digest.hexdigest()
