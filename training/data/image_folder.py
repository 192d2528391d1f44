"""Any image folder: `<root>/<split>/<class>/<image>`."""

from pathlib import Path

from comln_serve.imaging import Preprocessing
from training.data.images import DataError, ImageSet, build_image_set

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"}


def load_image_folder(root: Path, split: str, preprocessing: Preprocessing) -> ImageSet:
    """The classes of one split, in alphabetical order.

    Raises:
        DataError: no such folder, no class in it, or a class without images.
    """
    folder = root / split
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected <root>/{split}/<class>/<image>")
    classes = [
        (
            child.name,
            [
                (path.name, path.read_bytes())
                for path in sorted(child.iterdir())
                if path.suffix.lower() in SUFFIXES
            ],
        )
        for child in sorted(folder.iterdir())
        if child.is_dir()
    ]
    try:
        return build_image_set(classes, preprocessing)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error
