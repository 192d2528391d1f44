"""`comln-train export`: make a bundle from a run's best checkpoint."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from comln_serve.bundle.manifest import MANIFEST
from training.bundles.writer import About
from training.checkpoint_names import BEST
from training.commands.destination import add_to, check_to
from training.commands.options import add_overrides
from training.errors import ExportError

if TYPE_CHECKING:
    from training.checkpoint import Checkpoint


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder given to fit as --out")
    add_to(command)
    command.add_argument("--description", required=True, help="what the model is for")
    command.add_argument("--data-description", required=True, help="what it was trained on")
    command.add_argument("--licence", required=True, help="licence of the weights")
    command.add_argument("--notes", default="", help="further remarks for the model card")
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
        help="with --int8: folder with images like those the model will see, in subfolders or not",
    )
    command.add_argument(
        "--calibration-images",
        type=int,
        default=96,
        metavar="N",
        help="how many of these images are used, spread over the subfolders (default: %(default)s)",
    )
    command.add_argument(
        "--float-layers",
        type=int,
        default=0,
        metavar="N",
        help="with --int8: this many convolutions and matrix products at the beginning stay in float32 "
        "(default: %(default)s); networks with depthwise convolutions become more accurate by it, and often faster",
    )
    add_overrides(
        command,
        "for a run on embeddings: the network that computes them, e.g. --set backbone.kind=onnx "
        "--set backbone.path=model.onnx; for a run on an ONNX file: where the file is now; for "
        "any run on images: backbone.mirror=true",
    )


def run(args: argparse.Namespace) -> None:
    """Write the bundle."""
    about = About(description=args.description, licence=args.licence, data=args.data_description, notes=args.notes)
    if args.int8 != (args.calibration is not None):
        raise ExportError(
            "--int8 and --calibration IMAGES go together: the range of every activation is set "
            "from images like those the model will see"
        )
    if args.calibration_images < 1:
        raise ExportError(f"--calibration-images must be 1 or more, got {args.calibration_images}")
    if args.float_layers < 0 or (args.float_layers and not args.int8):
        raise ExportError(f"--float-layers must be 0 or more, and goes with --int8; got {args.float_layers}")
    check_to(args)
    # These need torch, which the options do not.
    from training.bundles.export import export_bundle, with_backbone  # noqa: PLC0415
    from training.checkpoint import Checkpoint  # noqa: PLC0415

    checkpoint = Checkpoint.load(args.run_folder / BEST)
    replaces = (args.to / MANIFEST).exists()
    if args.overrides:
        checkpoint = with_backbone(checkpoint, tuple(args.overrides))
    if args.int8:
        _export_int8(checkpoint, about, args)
    else:
        difference = export_bundle(checkpoint, args.to, about, half=args.half)
        print(f"wrote {args.to}; its embeddings differ from the run's by {difference:.1g} at most")
    if replaces:
        print(
            "It replaced the bundle that was there, with the accuracies and the calibration recorded in it. "
            "Classifiers made with another network or preprocessing cannot predict unless that is served again."
        )


def _export_int8(checkpoint: "Checkpoint", about: About, args: argparse.Namespace) -> None:
    from training.bundles.export import export_bundle  # noqa: PLC0415 - as above
    from training.bundles.int8 import load_calibration_images, quantise_bundle  # noqa: PLC0415

    images = load_calibration_images(args.calibration, args.calibration_images, checkpoint.config.data.preprocessing)
    with tempfile.TemporaryDirectory(prefix="comln-export-") as temporary:
        floats = Path(temporary) / args.to.name
        export_bundle(checkpoint, floats, about, to_quantise=True)
        print(
            f"rounding weights to 7 bits and activations to 8 on {len(images)} images; for large networks this takes "
            "minutes",
            flush=True,
        )
        cosines = quantise_bundle(floats, args.to, images, args.calibration.resolve().name, args.float_layers)
    print(
        f"wrote {args.to} in INT8, calibrated on {len(images)} images; cosine of their embeddings "
        f"to those in float32: {cosines.mean():.4f} on average, {cosines.min():.4f} at least"
    )
