"""`comln-train`: fit, evaluate, export."""

import argparse
import sys
from pathlib import Path

from training.checkpoint import CheckpointError
from training.config import ConfigError, load_config
from training.data import DataError, load_split
from training.fit import fit
from training.memory import keep_freed_memory


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status (2: something the caller can correct)."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
    except (ConfigError, DataError, CheckpointError) as error:
        print(f"comln-train: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="comln-train", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("fit", help="meta-train a model from a recipe")
    command.add_argument("recipe", type=Path, help="YAML file, e.g. training/recipes/*.yaml")
    command.add_argument("--data", type=Path, required=True, help="folder or archive of images")
    command.add_argument("--out", type=Path, required=True, help="folder for checkpoints and log")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override a value of the recipe, e.g. --set optimiser.lr=0.05; repeatable",
    )  # fmt: skip
    command.add_argument("--resume", action="store_true", help="continue the run in --out")
    command.set_defaults(run=_fit)
    return parser


def _fit(args: argparse.Namespace) -> int:
    config = load_config(args.recipe, tuple(args.overrides))
    keep_freed_memory()
    train, val = (load_split(config.data, args.data, split) for split in ("train", "val"))
    best = fit(config, train, val, args.out, resume=args.resume)
    print(f"best of {config.updates} updates: update {best.update}, in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
