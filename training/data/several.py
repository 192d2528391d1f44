"""The data of a run: one data set, or several by their names.

On the command line a data set is given as `PATH` or `NAME=PATH`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.config import ConfigError, DataConfig
from training.config.data import NAME, SEVERAL
from training.data import ImageSet, load_split
from training.data.class_lists import in_several_splits

Sets = Mapping[str | None, ImageSet]
"""Data sets by their names; the name is None if there is only one."""

Data = ImageSet | Mapping[str, ImageSet] | Sets


def by_name(data: Data) -> Sets:
    """The data sets by their names."""
    return {None: data} if isinstance(data, ImageSet) else dict(data.items())


def named_path(text: str) -> tuple[str | None, str]:
    """(name, path) of NAME=PATH. A text that is an existing path has no name, even with a "=" in it."""
    name, separator, path = text.partition("=")
    if separator and path and re.fullmatch(NAME, name) and not Path(text).exists():
        return name, path
    return None, text


def load_training(config: DataConfig, given: Sequence[str]) -> tuple[Data, Data]:
    """The classes to train on and those to validate on.

    Args:
        given: PATH of the one data set, or NAME=PATH of each of several, in any order.

    Raises:
        ConfigError: names or a number of paths other than those of the recipe's data sets.
        DataError: as `load_split`.
    """
    if config.kind != SEVERAL:
        if len(given) != 1:
            raise ConfigError(f'this recipe takes one --data PATH, got {len(given)}; data.kind "{SEVERAL}" takes more')
        root = Path(given[0])
        return load_split(config, root, "train"), load_split(config, root, "val")
    paths = _paths(config, given)
    train, val = (
        {part.name: load_split(config.one(part), paths[part.name], split, use=part.use) for part in parts}
        for split, parts in (("train", config.used_for("train")), ("val", config.used_for("val")))
    )
    return train, val


def shared_classes(config: DataConfig, train: Data, val: Data) -> list[str]:
    """A warning for each data set of folders with names of classes in several splits.

    They may be numbers, of different classes. Mostly they are folders that divide the images of each class, as for an
    ordinary classifier. Other kinds have their own splits of classes, or labels that are numbers.
    """
    kinds = {part.name: part.kind for part in config.sets} | {None: config.kind}
    of_train, of_val = (
        {name: part.names for name, part in by_name(data).items() if kinds[name] == "image_folder"}
        for data in (train, val)
    )
    parts = (*of_train.items(), *of_val.items())
    warnings = [in_several_splits(name or "the data", classes) for name, classes in parts]
    for name, classes in of_train.items():
        others = of_val.get(name, ())
        if shared := sorted(set(classes) & set(others)):
            where = "" if name is None else f"{name}: "
            warnings.append(
                f"{where}{len(shared)} of the {len(others)} classes of val have the name of one of train, first "
                f"{shared[0]!r}. If they are the same classes, validation says nothing about new ones: "
                "put all images of a class into one folder, <class>/<image>, and the trainer divides the classes"
            )
    return [warning for warning in warnings if warning]


def _paths(config: DataConfig, given: Sequence[str]) -> dict[str, Path]:
    names = [part.name for part in config.sets]
    wanted = f"the recipe's data sets are {', '.join(names)}: give --data NAME=PATH for each"
    paths: dict[str, Path] = {}
    for text in given:
        name, path = named_path(text)
        if name is None:
            raise ConfigError(f"--data {text} has no name; {wanted}")
        if name not in names:
            raise ConfigError(f"--data {text}: unknown name {name!r}; {wanted}")
        if name in paths:
            raise ConfigError(f"--data {name}= is given twice; {wanted}")
        paths[name] = Path(path)
    missing = [name for name in names if name not in paths]
    if missing:
        raise ConfigError(f"no --data for {', '.join(missing)}; {wanted}")
    return paths
