"""Where results are kept, and what they say of the machine."""

import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from comln_serve.machine import usable_cpus

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def machine() -> str:
    """This machine and Python, in words."""
    return f"{usable_cpus()} CPU cores ({platform.machine()}), Python {platform.python_version()}"


def spread(values: Sequence[float], form: str = ".0f") -> str:
    """Median and range of figures."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def publish(name: str, text: str) -> None:
    """Print Markdown, and write it to benchmarks/results/NAME.md."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    print(text)
