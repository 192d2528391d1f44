"""The data sets on which a model is measured: `--data`, `--split`, `--kind` and `--group`."""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from training.commands.options import add_repeatable
from training.commands.subject import Subject
from training.config import ConfigError, DataConfig
from training.config.data import SEVERAL, Use
from training.data import DataError, ImageSet, load_split
from training.data.class_lists import ALL, in_several_splits
from training.data.several import named_path

KINDS: tuple[str, ...] = tuple(kind for kind in get_args(DataConfig.model_fields["kind"].annotation) if kind != SEVERAL)
SPLITS = ("train", "val", "test", ALL)


@dataclass(frozen=True)
class Domain:
    """One data set.

    Attributes:
        name: shown in tables. recorded: name in the bundle's manifest; None if it is the only data
            set and was given no name.
        root: folder or archive. config: how it is read. use: what its classes were used for in the bundle's training.
        options: the options of the command line that read it, without `--data`.
    """

    name: str
    recorded: str | None
    root: Path
    config: DataConfig
    options: tuple[str, ...]
    use: Use = "both"

    def load(self, split: str) -> ImageSet:
        """The images of a split, or of "all", without rotated classes."""
        try:
            data = load_split(self.config, self.root, split, use=self.use)
        except DataError as error:
            ruled_out = self.use not in {"both", split} and split != ALL
            if ruled_out or self.config.kind == "image_folder" or not self.root.is_dir():
                raise
            raise DataError(
                f"{error}. It was read as {self.config.kind}, which is the bundle's own kind "
                f"unless --kind says otherwise; --kind image_folder reads folders of classes"
            ) from error
        if self.config.kind == "image_folder" and (warning := in_several_splits(self.root, data.names)):
            print(f"warning: {warning}", file=sys.stderr)
        return replace(data, rotations=1)

    def arguments(self) -> list[str]:
        """The options that read it again, with DATA in place of the path."""
        data = "DATA" if self.recorded is None else f"{self.recorded}=DATA"
        return ["--data", data, *self.options]


def add_data_arguments(command: argparse.ArgumentParser) -> None:
    """`--data`, `--split`, `--kind` and `--group`."""
    command.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="[NAME=]PATH",
        help="folder or archive of images; evaluate and calibrate take several, by default named after their folders",
    )
    command.add_argument("--split", default="val", choices=SPLITS, help="all: every class of the data (default val)")
    add_repeatable(
        command,
        "--kind",
        "kinds",
        "[NAME=]KIND",
        f"how the data, or the data set of this name, is read: {', '.join(KINDS)} (default: as the "
        "bundle's own training data; if these were several data sets, as the one of the same name)",
    )
    add_repeatable(
        command,
        "--group",
        "groups",
        "[NAME=]REGEX",
        "searched for in file names: images with the same first group of the match, or the same "
        "whole match, are never in both the support and the query set of an episode; empty: no groups "
        "(default: as the bundle's own training data)",
    )


def find_domains(args: argparse.Namespace, subject: Subject) -> tuple[Domain, ...]:
    """The data sets of the command line."""
    given = [named_path(text) for text in args.data]
    paths = {name or Path(path).absolute().name: Path(path) for name, path in given}
    if len(paths) < len(given):
        raise ConfigError(
            f"two data sets have the same name; give them others: --data NAME=PATH, got {', '.join(args.data)}"
        )
    nameless = len(given) == 1 and given[0][0] is None
    kinds, groups = _by_name(args.kinds, paths), _by_name(args.groups, paths)
    domains: list[Domain] = []
    for name, path in paths.items():
        kind, group = kinds.get(name), groups.get(name)
        config, use = _reading(subject, name, kind, group)
        # By name, as a command that is recorded for several data sets has the options of all of them.
        prefix = "" if nameless else f"{name}="
        options = (*_option("--kind", kind, prefix), *_option("--group", group, prefix))
        domains.append(Domain(name, None if nameless else name, path, config, options, use))
    return tuple(domains)


def one_domain(args: argparse.Namespace, subject: Subject) -> Domain:
    """The data set of a command that takes only one."""
    domain, *others = find_domains(args, subject)
    if others:
        raise ConfigError(f"this command takes one --data, got {1 + len(others)}")
    return domain


def _by_name(texts: Sequence[str], names: dict[str, Any]) -> dict[str, str]:
    """The value for each data set: VALUE is for all, NAME=VALUE for the one of this name."""
    found: dict[str, str] = {}
    plain: str | None = None
    for text in texts:
        name, separator, value = text.partition("=")
        if separator and name in names:
            found[name] = value
        else:
            plain = text
    return found if plain is None else dict.fromkeys(names, plain) | found


def _reading(subject: Subject, name: str, kind: str | None, group: str | None) -> tuple[DataConfig, Use]:
    """How a data set is read, and what its classes were used for in the bundle's training."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--kind {kind}: neither a name of --data nor one of {', '.join(KINDS)}")
    own, use = _own_reading(subject.config.data, name, kind)
    if subject.bundle is None and own.kind == "embeddings" and kind not in {None, own.kind}:
        raise ConfigError(
            f"--kind {kind}: a run on embeddings cannot embed images; export it with the network that makes them"
        )
    if group:
        try:
            re.compile(group)
        except re.error as error:
            raise ConfigError(f"--group {group!r}: not a regular expression ({error})") from error
    # An empty expression means no groups.
    rule = own.group if group is None else group or None
    if kind is None or kind == own.kind:
        return own.model_copy(update={"group": rule}), use
    tree = {"kind": kind, "group": rule, "preprocessing": own.preprocessing}
    return DataConfig.model_validate(tree), "both"


def _own_reading(data: DataConfig, name: str, kind: str | None) -> tuple[DataConfig, Use]:
    """How the training data was read; if there were several data sets, the one of this name."""
    if data.kind != SEVERAL:
        return data, "both"
    for part in data.sets:
        if part.name == name:
            return data.one(part), part.use
    if kind is None:
        raise ConfigError(
            f"--data {name}: the model was trained on {', '.join(part.name for part in data.sets)} "
            f"and on no data set of this name. Say how it is read with --kind {name}=KIND, such as "
            "image_folder, or give it one of those names"
        )
    return DataConfig.model_validate({"kind": kind, "preprocessing": data.preprocessing}), "both"


def _option(option: str, value: str | None, prefix: str) -> tuple[str, ...]:
    return () if value is None else (option, prefix + value)
