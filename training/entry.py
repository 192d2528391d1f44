"""`comln-train`; says what to install if a library is missing, of the server or of the trainer alone."""

import sys

# Of the extras of pyproject.toml, by the names that are imported.
EXTRAS = {
    "wrap": ("matplotlib", "onnx", "scipy", "sklearn", "tqdm", "yaml"),
    "train": ("onnxscript", "tensorboard", "timm", "torch", "torchdiffeq", "torchvision"),
}

# Exit status after Ctrl-C, as shells have it: 128 and the number of SIGINT.
_INTERRUPTED = 130


def main() -> int:
    """Entry point of the console script; returns the exit status."""
    try:
        from training.cli import main as run  # noqa: PLC0415 (its imports need some of these libraries)

        return run()
    except KeyboardInterrupt:
        print("comln-train: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "comln_serve", "training"):
            raise
        extra = next((extra for extra, names in EXTRAS.items() if name in names), None)
        # Where only the client is installed, the server's libraries are missing, too.
        needs, extras = (
            (f"the server, and {name} is not installed", "cpu,wrap")
            if extra is None
            else (f"{name}, which the server does not need", extra)
        )
        print(
            f'comln-train: this needs {needs}. In a clone: pip install -c constraints.txt ".[{extras}]"',
            file=sys.stderr,
        )
        return 2
