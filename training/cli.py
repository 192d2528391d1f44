"""`comln-train`: fit, report, export, evaluate, calibrate, study."""

import argparse
import shlex
import sys
from pathlib import Path, PurePath

from comln_serve.bundle import BundleError
from comln_serve.errors import StartupError
from comln_serve.flow import FlowError
from training.backbones import BackboneError
from training.checkpoint import BEST, Checkpoint, CheckpointError
from training.config import ConfigError, load_config
from training.data import DataError, load_split
from training.evaluation.calibrate_command import add_calibrate
from training.evaluation.evaluate_command import add_evaluate
from training.evaluation.study_command import add_study
from training.export import About, ExportError, export_bundle, with_backbone
from training.fit import fit
from training.memory import keep_freed_memory
from training.run_report import REPORT, write_report

_CORRECTABLE = (
    BackboneError, BundleError, CheckpointError, ConfigError, DataError, ExportError, FlowError,
    OSError, StartupError,
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status (2: something the caller can correct)."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
    except _CORRECTABLE as error:
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

    command = commands.add_parser("report", help="write a run's report.html (fit does at its end)")
    command.add_argument("run_folder", type=Path, metavar="RUN", help="what fit got as --out")
    command.set_defaults(run=_report)

    command = commands.add_parser("export", help="make a bundle of a run's best checkpoint")
    command.add_argument("run_folder", type=Path, metavar="RUN", help="what fit got as --out")
    command.add_argument("--to", type=Path, required=True, help="folder of the bundle")
    command.add_argument("--description", required=True, help="what the model is for")
    command.add_argument("--data-description", required=True, help="what it was trained on")
    command.add_argument("--licence", required=True, help="licence of the weights")
    command.add_argument("--notes", default="", help="what else belongs in the model card")
    command.add_argument(
        "--half", action="store_true", help="store the backbone's weights in 16 bits: half the size"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="of a run on embeddings: the network that makes them, e.g. --set backbone.kind=onnx "
             "--set backbone.path=model.onnx; of a run on an ONNX file: where it is now; of "
             "any run on images: backbone.mirror=true",
    )  # fmt: skip
    command.set_defaults(run=_export)

    add_evaluate(commands)
    add_calibrate(commands)
    add_study(commands)
    return parser


def _shown(recipe: Path) -> str:
    """A recipe's path as a model card may show it: nothing of whose machine it was."""
    return recipe.name if recipe.is_absolute() else str(recipe)


def _named(override: str) -> str:
    """An override for the model card: files by their names, not where they lie here."""
    key, _, value = override.partition("=")
    is_file = key in {"backbone.path", "backbone.warm_start", "backbone.weights"}
    return f"{key}={PurePath(value).name}" if is_file else override


def _fit(args: argparse.Namespace) -> int:
    config = load_config(args.recipe, tuple(args.overrides))
    keep_freed_memory()
    train, val = (load_split(config.data, args.data, split) for split in ("train", "val"))
    best = fit(
        config, train, val, args.out, resume=args.resume,
        command=shlex.join(
            ["comln-train", "fit", _shown(args.recipe), "--data", "DATA", "--out", "RUN"]
            + [part for override in args.overrides for part in ("--set", _named(override))]
        ),
    )  # fmt: skip
    print(
        f"best of {config.updates} updates: update {best.update}, in {args.out}; see "
        f"{args.out / REPORT}"
    )
    return 0


def _report(args: argparse.Namespace) -> int:
    print(f"wrote {write_report(args.run_folder)}")
    return 0


def _export(args: argparse.Namespace) -> int:
    about = About(
        description=args.description,
        licence=args.licence,
        data=args.data_description,
        notes=args.notes,
    )
    checkpoint = Checkpoint.load(args.run_folder / BEST)
    if args.overrides:
        checkpoint = with_backbone(checkpoint, tuple(args.overrides))
    difference = export_bundle(checkpoint, args.to, about, half=args.half)
    print(f"wrote {args.to}; its embeddings differ from the run's by {difference:.1g} at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
