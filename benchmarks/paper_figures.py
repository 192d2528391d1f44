"""The paper's Figures 3, 4 and 5 as numbers, and tables of them beside what was measured here, for docs/paper.md.

The paper's numbers are the points of its plots, read from its LaTeX source (arXiv 2203.01443). Of Figure 5, left, the
source has a picture only.
"""

import json

from benchmarks import meta_gradient_rows
from benchmarks.meta_gradient_rows import Row
from benchmarks.publishing import RESULTS
from training.results.tables import markdown

DECADES = [10**exponent for exponent in range(9)]
NOT_MEASURED, OURS_ONLY = "-", "our adjoint"

# By algorithm: (gradient steps, GB). Constant ones have one point.
Points = dict[int, float]
_CONV4_MEMORY: dict[str, Points] = {
    "MAML": {1: 1.392, 10: 5.765},
    "iMAML": dict.fromkeys(DECADES, 1.392),
    "ANIL": {1: 1.046, 10: 1.047, 100: 1.050, 1000: 1.079, 10_000: 1.372, 100_000: 4.308},
    "COMLN": dict.fromkeys(DECADES, 1.047),
}
_RESNET12_MEMORY: dict[str, Points] = {
    "MAML": {1: 7.496},
    "iMAML": dict.fromkeys(DECADES, 7.496),
    "ANIL": {1: 4.637, 10: 4.640, 100: 4.668, 1000: 4.944, 10_000: 7.709},
    "COMLN": dict.fromkeys(DECADES, 4.638),
}
# (gradient steps, ms)
_CONV4_TIME: dict[str, Points] = {
    "MAML": {1: 21.15, 10: 207.56},
    "ANIL": {1: 13.13, 10: 13.99, 100: 22.95, 1000: 147.69, 10_000: 1386.54},
    "COMLN (Euler)": {10: 12.28, 100: 26.37, 1000: 157.78, 10_000: 1453.21},
    "COMLN": dict(zip(DECADES[1:], (14.15, 17.90, 19.91, 28.08, 52.29, 86.14, 100.38, 147.38), strict=True)),
}
_RESNET12_TIME: dict[str, Points] = {
    "MAML": {1: 376.40},
    "ANIL": {1: 177.69, 10: 181.13, 100: 202.79, 1000: 410.08, 10_000: 2169.17},
    "COMLN (Euler)": {10: 170.24, 100: 192.45, 1000: 342.63, 10_000: 1799.53},
    "COMLN": dict(zip(DECADES[1:], (172.48, 182.98, 185.28, 194.74, 210.66, 223.66, 237.41, 255.32), strict=True)),
}
# The network's embedding size -> memory and time.
PAPER = {1600: (_CONV4_MEMORY, _CONV4_TIME), 16_000: (_RESNET12_MEMORY, _RESNET12_TIME)}

# Figure 5, right: T, fixed -> accuracy in percent; and the learned T with its accuracy.
FIXED_T = {0.1: 28.13, 1.0: 53.37, 10.0: 67.97, 100.0: 70.06, 1000.0: 70.48, 10_000.0: 70.30}
LEARNED_T = (4532.58, 70.54)

# The paper's name -> ours, of the rows on images.
_COLUMNS = {
    "MAML": "MAML",
    "iMAML": "iMAML",
    "ANIL": "ANIL",
    "COMLN (Euler)": "forward, Euler",
    "COMLN": "forward",
    OURS_ONLY: "adjoint",
}
_TIME_ONLY = {"COMLN (Euler)"}
# Of the paper's recipe: tasks of an update, and updates.
TASKS, UPDATES = 8, 60_000


def _measured(d: int) -> dict[tuple[str, int], Row]:
    """Rows by contender and steps: on images through the network of embedding size `d`."""
    return {
        (row.contender, row.case.steps): row
        for row in meta_gradient_rows.stored()
        if (row.part, row.case.on, row.case.d) == ("steps", "images", d) and not row.note
    }


def beside(d: int) -> str:
    """Figure 3 (d = 1600) or 4 (16000): a table of memory and one of time."""
    memory, time = PAPER[d]
    return f"{_table(memory, _measured(d), 'GB')}\n\n{_table(time, _measured(d), 'ms')}"


def _table(paper: dict[str, Points], ours: dict[tuple[str, int], Row], unit: str) -> str:
    """The paper's / ours by gradient steps, in GB or ms."""
    names = [name for name, mine in _COLUMNS.items() if name in paper or ((mine, 1) in ours and name not in _TIME_ONLY)]

    def cell(name: str, steps: int) -> str:
        row, cited = ours.get((_COLUMNS[name], steps)), paper.get(name, {}).get(steps)
        here = None if row is None else row.median if unit == "ms" else row.extra_mb / 1e3
        if name == OURS_ONLY or cited is here is None:
            return "" if here is None else _number(here, unit)
        return f"{NOT_MEASURED if cited is None else f'{cited:,g}'} / {_number(here, unit)}"

    heads = [name if name == OURS_ONLY else f"{name}, paper / here" for name in names]
    rows = [[f"{steps:,}", *(cell(name, steps) for name in names)] for steps in DECADES]
    return markdown([f"gradient steps; {unit}", *heads], rows)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return NOT_MEASURED
    return f"{value:.2f}" if unit == "GB" else f"{value:,.0f}"


def an_update() -> str:
    """Memory and time of the paper's recipe for both networks: of one task as measured, scaled to its updates."""
    found: list[list[str]] = []
    for name, d in (("Conv-4", 1600), ("ResNet-12", 16_000)):
        row = _measured(d)["adjoint", 10_000]
        memory, time = (part["COMLN"][10_000] for part in PAPER[d])
        for machine, gigabytes, ms in (
            ("two CPU cores", row.extra_mb / 1e3, row.median),
            ("the paper's V100 (cited)", memory, time),
        ):
            update = TASKS * ms / 1e3
            hours = UPDATES * update / 3600
            found.append(
                [
                    name,
                    machine,
                    f"{gigabytes:.1f} GB, {ms / 1e3:.2f} s",
                    f"{TASKS * gigabytes:.0f} GB, {update:.3g} s",
                    f"{hours:.0f} hours" if hours < 100 else f"{hours / 24:.0f} days",
                ]
            )
    return markdown(["network", "on", "one task", f"an update, x {TASKS}", f"{UPDATES:,} updates"], found)


def whole_update() -> str:
    """Time of a whole update of Conv-4, as measured, and of as many as the recipe has."""
    measured: dict[str, float] = json.loads((RESULTS / "training_step.json").read_text(encoding="utf-8"))
    seconds = measured["step_ms"] / 1e3
    return f"{seconds:.1f} s in another run, or {UPDATES * seconds / 3600:.0f} hours for all of them"
