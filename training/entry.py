"""`comln-train`, with a word of advice where the trainer's libraries are not installed."""

import sys
from importlib.util import find_spec


def main() -> int:
    """Entry point of the console script; returns the exit status."""
    needed = ("torch", "torchdiffeq", "onnx", "yaml", "sklearn", "matplotlib")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        print(
            f"comln-train needs {', '.join(missing)}, which the server does without: "
            "pip install 'comln-serve[train]' (in a clone: make test sets everything up)",
            file=sys.stderr,
        )
        return 2
    from training.cli import main as run  # noqa: PLC0415 (only once its imports can succeed)

    return run()
