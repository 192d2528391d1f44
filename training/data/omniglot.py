"""Omniglot (Lake et al. 2015) with the split of Vinyals et al. (2016): 1028 / 172 / 423 characters.

The split's lists, `splits/omniglot-*.json`, are {"background" | "evaluation": {alphabet:
[characters]}}. Two layouts are read: torchvision's folders (`omniglot-py/images_background/
<alphabet>/<character>/*.png` and `images_evaluation`, with or without `omniglot-py`), and a tar
archive of the two folders.
"""

import tarfile
from collections import defaultdict
from functools import partial
from operator import itemgetter
from pathlib import Path, PurePosixPath

from comln_serve.imaging import Preprocessing
from training.data.class_lists import standard_split
from training.data.images import DataError, ImageSet, ReadFile, build_image_set

_HALVES = {"background": "images_background", "evaluation": "images_evaluation"}

# (half, alphabet, character) -> [(file name, function that reads it)]
_Files = dict[tuple[str, str, str], list[tuple[str, ReadFile]]]


def load_omniglot(root: Path, split: str, preprocessing: Preprocessing, *, rotations: bool) -> ImageSet:
    """The characters of one split ("train", "val", "test"), in a fixed order."""
    wanted = _characters(split)
    found = _from_archive(root) if root.is_file() else _from_folders(root, wanted)
    missing = [key for key in wanted if not found.get(key)]
    if missing:
        half, alphabet, character = missing[0]
        raise DataError(
            f"{root}: {len(missing)} of the {len(wanted)} characters of the {split} split are "
            f"missing, first {_HALVES[half]}/{alphabet}/{character}"
        )
    classes = [(f"{key[1]}/{key[2]}", sorted(found[key], key=itemgetter(0))) for key in wanted]
    return build_image_set(classes, preprocessing, str(root), rotations=4 if rotations else 1)


def _characters(split: str) -> list[tuple[str, str, str]]:
    tree: dict[str, dict[str, list[str]]] = standard_split("omniglot", split)
    return sorted(
        (half, alphabet, character)
        for half, alphabets in tree.items()
        for alphabet, characters in alphabets.items()
        for character in characters
    )


def _from_folders(root: Path, wanted: list[tuple[str, str, str]]) -> _Files:
    base = next(
        (
            folder
            for folder in (root, root / "omniglot-py")
            if all((folder / half).is_dir() for half in _HALVES.values())
        ),
        None,
    )
    if base is None:
        raise DataError(
            f"{root}: expected an archive, or a folder with images_background and "
            "images_evaluation (directly or in omniglot-py)"
        )
    return {
        (half, alphabet, character): [
            (path.name, path.read_bytes) for path in (base / _HALVES[half] / alphabet / character).glob("*.png")
        ]
        for half, alphabet, character in wanted
    }


def _from_archive(path: Path) -> _Files:
    halves = {folder: half for half, folder in _HALVES.items()}
    found: _Files = defaultdict(list)
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts[-4:]
                if len(parts) == 4 and parts[0] in halves and parts[3].endswith(".png"):
                    stream = archive.extractfile(member)
                    if stream is not None:
                        key = (halves[parts[0]], parts[1], parts[2])
                        found[key].append((parts[3], partial(bytes, stream.read())))
    except (OSError, tarfile.TarError, EOFError) as error:
        raise DataError(f"{path}: not a readable tar archive ({error})") from error
    return found
