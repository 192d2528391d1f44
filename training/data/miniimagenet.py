"""miniImageNet (Vinyals et al. 2016) with the split of Ravi and Larochelle (2017).

In any of its usual forms: two kinds of pickles, a CSV file for each split, or class folders. Classes
are checked against the standard lists, so that no model is measured on a class it was trained on.
"""

from collections.abc import Iterable
from pathlib import Path

from comln_serve.imaging import Preprocessing
from training.data.arrays import check_classes, load_data_and_labels, load_image_cache
from training.data.class_lists import standard_split
from training.data.image_csv import load_rows, split_rows
from training.data.image_folder import load_listed_classes
from training.data.images import DataError, ImageSet

_PHASES = {"train": "train_phase_train", "val": "val", "test": "test"}


def load_miniimagenet(root: Path, split: str, preprocessing: Preprocessing) -> ImageSet:
    """The 64, 16 or 20 classes of one split, in alphabetical order.

    Reads the first of these that `root` has: `mini-imagenet-cache-<split>.pkl`,
    `miniImageNet_category_split_<split>.pickle`, `<split>.csv` with `images/`, class folders
    (`<split>/<wnid>`, `<wnid>` or `images/<wnid>`).
    """
    wanted: list[str] = standard_split("miniimagenet", split)
    cache = root / f"mini-imagenet-cache-{split}.pkl"
    if cache.is_file():
        data = load_image_cache(cache, preprocessing)
        _check_names(data.names, wanted, cache, split)
        return data
    pickled = root / f"miniImageNet_category_split_{_PHASES[split]}.pickle"
    if pickled.is_file():  # its labels are numbers
        return check_classes(load_data_and_labels(pickled, preprocessing), len(wanted), pickled, split)
    if (root / f"{split}.csv").is_file():
        rows = split_rows(root, split)
        _check_names({row.label for row in rows}, wanted, root / f"{split}.csv", split)
        return load_rows(rows, preprocessing, f"{root}, split {split}")
    if not any((root / folder).is_dir() for folder in (split, "images", *wanted)):
        raise DataError(
            f"{root}: nothing of miniImageNet's {split} split; expected {cache.name}, "
            f"{pickled.name}, {split}.csv with images/, or class folders {split}/<wnid> or <wnid>"
        )
    places = {name: [root / split / name, root / name, root / "images" / name] for name in wanted}
    return load_listed_classes(places, preprocessing, split, root)


def _check_names(found: Iterable[str], wanted: list[str], path: Path, split: str) -> None:
    """Refuse a file whose classes are not exactly those of the split."""
    other, missing = sorted(set(found) - set(wanted)), sorted(set(wanted) - set(found))
    if other or missing:
        first = f"{other[0]!r} is not one of them" if other else f"{missing[0]!r} is missing"
        raise DataError(
            f"{path}: expected the {len(wanted)} classes of the {split} split of Ravi and "
            f"Larochelle; {len(other)} others are there and {len(missing)} are missing ({first})"
        )
