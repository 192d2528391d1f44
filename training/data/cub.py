"""Caltech-UCSD Birds 200-2011 (CUB) with the split 100 / 50 / 50 usual in few-shot learning."""

from pathlib import Path

from comln_serve.imaging import Preprocessing
from training.data.class_lists import standard_split
from training.data.image_folder import load_listed_classes
from training.data.images import DataError, ImageSet


def load_cub(root: Path, split: str, preprocessing: Preprocessing) -> ImageSet:
    """The classes of one split, such as 001.Black_footed_Albatross, in the order of their numbers.

    Read from `images/<class>` in CUB_200_2011 or in a folder that contains it, or from `<class>` or
    `<split>/<class>`. Images are not cropped to the bounding boxes.
    """
    wanted: list[str] = standard_split("cub", split)
    bases = (root / "images", root / "CUB_200_2011" / "images", root / split, root)
    if not any((base / name).is_dir() for base in bases for name in wanted):
        raise DataError(
            f"{root}: no class of CUB's {split} split; expected images/<class> (as in "
            f"CUB_200_2011), <class> or {split}/<class>, such as images/{wanted[0]}"
        )
    places = {name: [base / name for base in bases] for name in wanted}
    return load_listed_classes(places, preprocessing, split, root)
