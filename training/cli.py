"""`comln-train`: wrap, fit, report, export, evaluate, calibrate, study."""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path, PurePath

from comln_serve.bundle import BundleError
from comln_serve.errors import StartupError
from comln_serve.flow import FlowError
from training.backbones import BackboneError
from training.bundles.backbone_graph import ExportError
from training.bundles.calibration_images import load_calibration_images
from training.bundles.export import export_bundle, with_backbone
from training.bundles.int8 import quantise_bundle
from training.bundles.wrap_command import add_wrap
from training.bundles.writer import About
from training.checkpoint import BEST, Checkpoint, CheckpointError
from training.config import ConfigError, load_config
from training.data import DataError
from training.data.several import load_training, named_path
from training.evaluation.calibrate_command import add_calibrate
from training.evaluation.evaluate_command import add_evaluate
from training.evaluation.study_command import add_study
from training.memory import keep_freed_memory
from training.runs.fit import fit
from training.runs.report import REPORT, write_report

_CORRECTABLE = (
    BackboneError,
    BundleError,
    CheckpointError,
    ConfigError,
    DataError,
    ExportError,
    FlowError,
    OSError,
    StartupError,
)


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

    add_wrap(commands)

    command = commands.add_parser("fit", help="meta-train a model from a recipe")
    command.add_argument("recipe", type=Path, help="YAML file, e.g. training/recipes/*.yaml")
    command.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="[NAME=]PATH",
        help="folder or archive of images; for a recipe of several data sets, one for each name",
    )
    command.add_argument("--out", type=Path, required=True, help="folder for checkpoints and log")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a value of the recipe, e.g. --set optimiser.lr=0.05; repeatable",
    )
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
    weights = command.add_mutually_exclusive_group()
    weights.add_argument("--half", action="store_true", help="store the backbone's weights in 16 bits: half the size")
    weights.add_argument(
        "--int8",
        action="store_true",
        help="a backbone that computes in 8-bit integers: smaller and faster on CPUs, slightly "
        "less accurate; needs --calibration",
    )
    command.add_argument(
        "--calibration",
        type=Path,
        metavar="IMAGES",
        help="with --int8: folder with images like those the model will see, in folders or not",
    )
    command.add_argument(
        "--calibration-images",
        type=int,
        default=96,
        metavar="N",
        help="how many of them are taken, spread over the folders (default: %(default)s)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="of a run on embeddings: the network that makes them, e.g. --set backbone.kind=onnx "
        "--set backbone.path=model.onnx; of a run on an ONNX file: where it is now; of "
        "any run on images: backbone.mirror=true",
    )
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
    train, val = load_training(config.data, args.data)
    # The model card does not show where the data lay here.
    places = ["DATA"]
    if config.data.sets:
        places = [f"{named_path(text)[0]}=DATA" for text in args.data]
    best = fit(
        config,
        train,
        val,
        args.out,
        resume=args.resume,
        command=shlex.join(
            ["comln-train", "fit", _shown(args.recipe)]
            + [part for place in places for part in ("--data", place)]
            + ["--out", "RUN"]
            + [part for override in args.overrides for part in ("--set", _named(override))]
        ),
    )
    print(f"best of {config.updates} updates: update {best.update}, in {args.out}; see {args.out / REPORT}")
    return 0


def _report(args: argparse.Namespace) -> int:
    print(f"wrote {write_report(args.run_folder)}")
    return 0


def _export(args: argparse.Namespace) -> int:
    about = About(description=args.description, licence=args.licence, data=args.data_description, notes=args.notes)
    if args.int8 != (args.calibration is not None):
        raise ExportError(
            "--int8 and --calibration IMAGES go together: the range of every activation is set "
            "from images like those the model will see"
        )
    if args.calibration_images < 1:
        raise ExportError(f"--calibration-images must be 1 or more, got {args.calibration_images}")
    checkpoint = Checkpoint.load(args.run_folder / BEST)
    if args.overrides:
        checkpoint = with_backbone(checkpoint, tuple(args.overrides))
    if args.int8:
        _export_int8(checkpoint, about, args)
        return 0
    difference = export_bundle(checkpoint, args.to, about, half=args.half)
    print(f"wrote {args.to}; its embeddings differ from the run's by {difference:.1g} at most")
    return 0


def _export_int8(checkpoint: Checkpoint, about: About, args: argparse.Namespace) -> None:
    images = load_calibration_images(args.calibration, args.calibration_images, checkpoint.config.data.preprocessing)
    with tempfile.TemporaryDirectory(prefix="comln-export-") as workshop:
        floats = Path(workshop) / args.to.name
        export_bundle(checkpoint, floats, about)
        found = quantise_bundle(floats, args.to, images, args.calibration.resolve().name)
    print(
        f"wrote {args.to} in INT8, calibrated on {len(images)} images; cosine of their embeddings "
        f"to those in float32: {found.mean:.4f} on average, {found.least:.4f} at least"
    )


if __name__ == "__main__":
    sys.exit(main())
