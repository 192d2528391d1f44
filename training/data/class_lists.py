"""The classes of the splits train, val and test.

Few-shot splits are of classes, never of images: a model is measured on classes that it was not
trained on. `splits/*.json` are the standard ones: miniImageNet (Ravi and Larochelle 2017), CIFAR-FS
(Bertinetto et al. 2019, [superclass, class]), FC100 (Oreshkin et al. 2018, superclasses), CUB
(100 / 50 / 50 as in Chen et al. 2019: every second class is for training), Omniglot (Vinyals et al. 2016).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np

from training.data.images import DataError

SPLITS = ("train", "val", "test")
ALL = "all"
"""A split of its own: all classes of the data."""

_SHUFFLE_SEED = 0

# What folders of splits are called elsewhere, besides the names of splits here; in any case.
_LIKE_SPLITS = {*SPLITS, "training", "valid", "validation", "dev", "testing", "eval"}


def standard_split(name: str, split: str) -> Any:
    """What `splits/<name>-<split>.json` holds: a list of classes; of Omniglot a tree."""
    text = (files("training.data") / "splits" / f"{name}-{split}.json").read_text("utf-8")
    return json.loads(text)


def classes_by_share(names: list[str], split: str, shares: tuple[float, float, float], root: Path) -> list[str]:
    """The share of the sorted `names` that belongs to `split`, after a shuffle with a fixed seed."""
    order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(names))
    ends = np.round(np.cumsum(shares) * len(names)).astype(int)
    starts = [0, *ends[:-1]]
    which = SPLITS.index(split)
    found = [names[i] for i in sorted(order[starts[which] : ends[which]])]
    if names and not found:
        raise DataError(
            f"{root}: data.class_shares, {', '.join(f'{share:g}' for share in shares)} of the classes for "
            f"{', '.join(SPLITS)}, leaves none of its {len(names)} for {split}. Add classes, or set data.class_shares; "
            f"evaluate, calibrate and study measure all of them with --split {ALL}"
        )
    return found


def like_split(name: str) -> bool:
    """Whether a class, by its path, is in a folder that is named like a split."""
    folder, separator, _ = name.partition("/")
    return separator != "" and folder.lower() in _LIKE_SPLITS


def in_several_splits(where: object, names: Sequence[str]) -> str:
    """A warning of classes in more than one folder named like a split, such as train/x and val/x; "" without any."""
    counted = Counter(name.partition("/")[2] for name in names if like_split(name))
    twice = sorted(name for name, count in counted.items() if count > 1)
    if not twice:
        return ""
    return (
        f"{where}: classes with folders in several splits: {len(twice)}, first {twice[0]!r}; each folder counts as "
        "a class of its own. If they are the same class, put all its images into one folder, or give the folder of "
        "one split as --data"
    )


def own_split(lists: str | Mapping[Any, str], root: Path, split: str) -> list[str]:
    """The user's classes for `split`, sorted. All lists are read, to check that they are disjoint.

    Args:
        lists: a JSON file {split: [classes]}, or a file for each split: one class a line, or a
            JSON list. Files are relative to `root`.
    """
    if isinstance(lists, str):
        where: dict[str, Path] = dict.fromkeys(SPLITS, root / lists)
        read = _json(root / lists)
        if not isinstance(read, dict):
            raise DataError(f"{root / lists}: expected {{split: [classes]}}, found {_what(read)}")
        by_split = {
            name: _class_list(cast("dict[str, object]", read)[name], root / lists, f"{name!r}: ")
            for name in SPLITS
            if name in read
        }
    else:
        where = {name: root / file for name, file in lists.items()}
        by_split = {name: _list_file(path) for name, path in where.items()}
    if split not in by_split:
        raise DataError(
            f"{where.get(split, root)}: no class list for {split!r}; there are lists for "
            f"{', '.join(by_split) or 'no split'}"
        )
    check_disjoint(by_split, where)
    return sorted(by_split[split])


def check_disjoint(by_split: Mapping[str, Sequence[str]], where: Mapping[str, Path]) -> None:
    """Refuse a class that is listed twice, in one split or in two."""
    seen: dict[str, str] = {}
    for split, names in by_split.items():
        for name in names:
            if name in seen:
                raise DataError(
                    f"{where[split]}: class {name!r} of {split!r} is also in {seen[name]!r}; a "
                    "class belongs to one split, and is listed once"
                )
            seen[name] = split


def _list_file(path: Path) -> list[str]:
    if path.suffix.lower() == ".json":
        return _class_list(_json(path), path)
    lines = (line.strip() for line in _text(path).splitlines())
    return _class_list([line for line in lines if line], path)


def _class_list(content: object, path: Path, what: str = "") -> list[str]:
    names = cast("list[object]", content) if isinstance(content, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: {what}expected a list of class names, found {_what(content)}")
    return cast("list[str]", names)


def _what(content: object) -> str:
    return f"{type(content).__name__} {content!r:.60}"


def _json(path: Path) -> object:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON ({error})") from error


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8 ({error})") from error
