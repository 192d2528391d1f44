"""`comln-train`; says what to install if a library is missing that the server does without."""

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
        extra = next((extra for extra, names in EXTRAS.items() if error.name in names), None)
        if extra is None:
            raise
        print(
            f"comln-train: this needs {error.name}, which the server does not need. In a clone: "
            f'pip install -c constraints.txt ".[{extra}]"',
            file=sys.stderr,
        )
        return 2
