"""`comln-train fit`: train from a recipe."""

import argparse
import shlex
import sys
from pathlib import Path

from training.checkpoint_names import LAST, PRETRAINING
from training.commands.options import add_overrides
from training.config import Config, ConfigError, load_config
from training.config.files import override_without_folders
from training.data.several import load_training, named_path, shared_classes
from training.memory import keep_freed_memory


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("recipe", type=Path, help="YAML file, e.g. training/recipes/*.yaml")
    command.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="[NAME=]PATH",
        help="folder or archive of images; for a recipe of several data sets, one for each name",
    )
    command.add_argument("--out", type=Path, required=True, help="folder for checkpoints and log")
    add_overrides(command, "override a value of the recipe, e.g. --set optimiser.lr=0.05; repeatable")
    command.add_argument("--resume", action="store_true", help="continue the run in --out")


def run(args: argparse.Namespace) -> None:
    """Train."""
    config = load_config(args.recipe, tuple(args.overrides))
    from training.runs.fit import fit  # noqa: PLC0415 - needs torch, which the options and recipes do not
    from training.runs.report import REPORT  # noqa: PLC0415

    keep_freed_memory()
    if args.out.exists() and not args.out.is_dir():
        raise ConfigError(f"--out {args.out} is a file; a run is a folder. Name another")
    train, val = load_training(config.data, args.data)
    for warning in shared_classes(config.data, train, val):
        print(f"warning: {warning}", file=sys.stderr)
    try:
        best = fit(config, train, val, args.out, resume=args.resume, command=_command(args, config))
    except KeyboardInterrupt:
        print(_what_is_saved(args.out, config), file=sys.stderr)
        raise
    print(f"best of {config.updates} updates: update {best.update}, in {args.out}; see {args.out / REPORT}")


def _command(args: argparse.Namespace, config: Config) -> str:
    """The command for the model card, which must not show where recipe and data were on this machine."""
    recipe = args.recipe.name if args.recipe.is_absolute() else str(args.recipe)
    data = [f"{named_path(text)[0]}=DATA" for text in args.data] if config.data.sets else ["DATA"]
    return shlex.join(
        ["comln-train", "fit", recipe]
        + [part for place in data for part in ("--data", place)]
        + ["--out", "RUN"]
        + [part for override in args.overrides for part in ("--set", override_without_folders(override))]
    )


def _what_is_saved(out: Path, config: Config) -> str:
    """What an interrupted run has left in its folder, and how to continue it."""
    measurement = f"measurement, which is after every {config.validation.every} updates"
    continued = "the same command with --resume continues it from there"
    if (out / LAST).exists():
        return f"{out} holds the run as it was at its last {measurement}; {continued}"
    if (out / PRETRAINING).exists():
        return f"{out} holds the run as it was after its last whole epoch of pre-training; {continued}"
    return f"{out}: nothing was saved yet; a run is saved at each {measurement}"
