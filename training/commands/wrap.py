"""`comln-train wrap`: make a bundle from an ONNX model, without data or training."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args

from training.backbones.onnx_graph import Layout
from training.bundles.inspection import AS_GIVEN, Colour, Finding, Normalisation, WrapOptions, inspect_model
from training.bundles.wrap import wrap_model
from training.bundles.writer import About
from training.commands.destination import add_to, check_to
from training.config import ConfigError
from training.errors import BackboneError

NOT_STATED = "not stated"
_NOTES = (
    "Not trained; wrapped as it is, with a head whose values were meta-learned for embedding "
    "networks at large. The horizon is chosen for each task from its own support images."
)
_OPTIONS = [option.name for option in fields(WrapOptions)]  # named as the command's own
_KEY = re.compile(rf"\b(?:backbone|data\.preprocessing)\.({'|'.join(_OPTIONS)})\b")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("model", type=Path, metavar="MODEL.onnx")
    add_to(command)
    found = "default: found in the graph"
    command.add_argument(
        "--layout",
        choices=get_args(Layout),
        help=f"floats with channels second or last, or uint8 (batch, S, S, 3); {found}",
    )
    command.add_argument(
        "--output",
        metavar="TENSOR",
        help="the tensor that is the embedding, which need not be an output; default: the input of "
        "the classifier's last layer, or else the output",
    )
    command.add_argument(
        "--reduction",
        choices=("mean", "first", "none"),
        help="of an embedding that is a feature map or a transformer's tokens: their mean, or the first token, the "
        "class's; none: all of them, put together; default: by their number",
    )
    command.add_argument("--colour", choices=get_args(Colour), help="default: grey for one channel, or rgb")
    command.add_argument("--image-size", type=int, metavar="PIXELS", help=f"side; {found}")
    command.add_argument(
        "--mean",
        type=_numbers,
        metavar="R,G,B",
        help="of pixel values in [0, 1], in the order of the model's channels, "
        "separated by commas alone; --mean=-0.5,0,0 where the first is negative",
    )
    command.add_argument("--std", type=_numbers, metavar="R,G,B", help="likewise")
    command.add_argument(
        "--normalisation",
        choices=get_args(Normalisation),
        help="instead of --mean and --std: ImageNet's; 0.5 and 0.5; none: pixels from 0 to 1; raw: "
        "0 to 255. Default: what the graph does itself, or else ImageNet's is assumed",
    )
    command.add_argument("--resize", choices=("crop", "pad", "stretch"), default="crop")
    command.add_argument(
        "--crop-fraction",
        type=float,
        metavar="SHARE",
        help="with --resize crop: the share of the largest centred square's side that is kept, 0.875 for a network "
        "that was evaluated on 224 pixels of 256 (default: 1)",
    )
    command.add_argument(
        "--support-views",
        type=_shares,
        metavar="SHARE,...|none",
        help="with --resize crop: shares of the square in which each support image is embedded besides the crop that "
        "predictions see; adapting takes longer by as much (default: 1 and 0.65, but for that of --crop-fraction)",
    )
    command.add_argument(
        "--pooling",
        type=_numbers,
        metavar="SIGMA[,POWER]",
        help="for photos with the thing in the middle: positions in the centre weigh more, as a Gaussian of SIGMA of "
        "the side, and strong activations by a POWER mean, for maps after a ReLU; 0.285,2 is a good start "
        "(default: the plain mean)",
    )
    command.add_argument("--interpolation", choices=("bilinear", "bicubic", "lanczos"), default="bilinear")
    command.add_argument("--description", help="what the model is for")
    command.add_argument("--data-description", default=NOT_STATED, help="what it was trained on")
    command.add_argument("--licence", default=NOT_STATED, help="licence of the weights")


def run(args: argparse.Namespace) -> None:
    """Inspect, print the findings, wrap, print what to run next."""
    options = WrapOptions(**{name: getattr(args, name) for name in _OPTIONS})
    about = About(
        description=args.description or f"{args.model.name}, wrapped as it is.",
        licence=args.licence,
        data=args.data_description,
        notes=_NOTES,
    )
    check_to(args)
    try:
        config, findings = inspect_model(args.model, options)
        print(f"{args.model}:")
        print(_table(findings), flush=True)
        command = _command(args.model, findings, options)
        embedding_size, warning = wrap_model(config, args.to, about, command)
    except (BackboneError, ConfigError) as error:
        # Messages name keys of a recipe; this command has options instead.
        message = _KEY.sub(lambda key: f"--{key[1].replace('_', '-')}", str(error))
        raise type(error)(message) from error
    if warning is not None:
        print(f"WARNING: {warning}\n", file=sys.stderr)
    print(f"wrote {args.to}: embeddings of {embedding_size} numbers, divided by their norm. To serve it:\n")
    print(_next_steps(args.to))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"numbers separated by commas and nothing else are needed; got {text!r}"
        ) from error


def _shares(text: str) -> tuple[float, ...]:
    return () if text == "none" else _numbers(text)


def _table(findings: Sequence[Finding]) -> str:
    return "\n".join(
        f"  {finding.name + ':':15}{finding.value}\n{'':17}{finding.reason}"
        + ("" if finding.reason == AS_GIVEN else f" (change it with {finding.flag})")
        for finding in findings
    )


def _command(model: Path, findings: Sequence[Finding], options: WrapOptions) -> str:
    """The command that makes the same bundle again, for the model card, with all findings as options."""
    parts = ["comln-train", "wrap", model.name, "--to", "BUNDLE"]
    for finding in findings:
        if finding.flag.startswith("--normalisation"):
            if options.mean is not None and options.std is not None:
                for flag, values in (("--mean", options.mean), ("--std", options.std)):
                    parts.append(f"{flag}={','.join(map(str, values))}")
            else:
                parts += ["--normalisation", finding.value.split()[0]]
        else:
            parts += [finding.flag, finding.value]
    parts += ["--resize", options.resize, "--interpolation", options.interpolation]
    return shlex.join(parts)


def _next_steps(folder: Path) -> str:
    models_dir, name = shlex.quote(str(folder.parent)), shlex.quote(folder.name)
    return f"""  comln-serve --models-dir {models_dir} --default-model {name}
  curl localhost:8000/adapt -F name=mine \\
      -F images=@cat-1.jpg -F labels=cat -F images=@dog-1.jpg -F labels=dog
  curl localhost:8000/predict -F classifier=mine -F images=@what.jpg

To measure it on images of your own, <class>/<image>:

  comln-train evaluate {shlex.quote(str(folder))} --data my-images --split all --baselines all"""
