"""`comln-train`; says what to install if the trainer's libraries are missing."""

import sys
from importlib.util import find_spec


def main() -> int:
    """Entry point of the console script; returns the exit status."""
    needed = ("torch", "onnx", "yaml", "sklearn", "matplotlib")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        print(
            f"comln-train needs {', '.join(missing)}, which the server does not need: "
            "pip install 'comln-serve[train]' (in a clone: make test sets everything up)",
            file=sys.stderr,
        )
        return 2
    from training.cli import main as run  # noqa: PLC0415 (its imports need these libraries)

    return run()
