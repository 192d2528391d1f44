"""Entry point of `comln-serve`: checks for ONNX Runtime, then runs the command."""

import sys
from importlib.metadata import distributions
from importlib.util import find_spec

_WHEELS = ("onnxruntime", "onnxruntime-gpu")


def main() -> int:
    """Run the command. Returns 2 without ONNX Runtime, or if two wheels of it overwrite each other's files."""
    found = [name for name in _WHEELS if any(distributions(name=name))]
    if find_spec("onnxruntime") is None:
        print(
            'comln-serve: ONNX Runtime is not installed: pip install "comln-serve[cpu]", or "comln-serve[cuda]" for '
            "NVIDIA GPUs",
            file=sys.stderr,
        )
        return 2
    if len(found) > 1:
        print(
            f"comln-serve: {' and '.join(found)} are both installed and overwrite each other's files. Keep one: pip "
            f'uninstall {" ".join(found)}, then pip install "comln-serve[cpu]", or "comln-serve[cuda]" for NVIDIA GPUs',
            file=sys.stderr,
        )
        return 2
    from comln_serve.cli import main as run  # noqa: PLC0415 - needs what was looked for

    return run()
