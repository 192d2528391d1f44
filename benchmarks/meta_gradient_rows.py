"""Rows of the comparison of meta-gradients: one contender on one case, kept in a CSV file."""

import csv
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.contenders import Case
from benchmarks.publishing import RESULTS
from training.results.tables import write_csv

CSV = RESULTS / "meta_gradient.csv"
PARTS = ("goals", "offset", "steps", "sizes", "share")
INPUTS = ("phi", "W0", "T")
RUN = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


@dataclass
class Row:
    """One contender on one case.

    Attributes:
        median: ms. runs: number of timed runs. extra_mb: peak of memory over that before the run.
        errors: relative errors of the gradients, by input. note: why there is no measurement.
        run: when its run began (rows of the first three runs: when their results were stored).
    """

    part: str
    contender: str
    case: Case
    median: float = float("nan")
    runs: int = 0
    extra_mb: float = float("nan")
    errors: dict[str, float] = field(default_factory=dict[str, float])
    note: str = ""
    run: str = RUN

    @property
    def panel(self) -> tuple[str, int, float]:
        """What it is compared on: the rows on equal data."""
        return self.case.on, self.case.d, self.case.offset


def stored() -> list[Row]:
    """The rows of an earlier run."""
    if not CSV.exists():
        return []
    rows: list[Row] = []
    with CSV.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            on: Any = line["on"]
            counts = (int(line[key]) for key in ("ways", "shots", "steps", "d"))
            case = Case(on, *counts, offset=float(line["offset"]))
            errors = {key: line[f"error_{key}"] for key in INPUTS}
            rows.append(
                Row(
                    line["part"],
                    line["contender"],
                    case,
                    float(line["median_ms"]),
                    int(line["runs"]),
                    float(line["extra_mb"]),
                    {key: float(value) for key, value in errors.items() if value},
                    line["note"],
                    line["run"],
                )
            )
    return rows


def store(rows: list[Row]) -> None:
    """Write the CSV."""
    RESULTS.mkdir(exist_ok=True)
    write_csv(CSV, [_values(row) for row in rows])


def _values(row: Row) -> dict[str, object]:
    case = row.case
    errors = {f"error_{key}": f"{row.errors[key]:.1e}" if key in row.errors else "" for key in INPUTS}
    return {
        "part": row.part,
        "contender": row.contender,
        "on": case.on,
        "ways": case.ways,
        "shots": case.shots,
        "d": case.d,
        "steps": case.steps,
        "T": f"{case.T:g}",
        "median_ms": f"{row.median:.3f}",
        "runs": row.runs,
        "extra_mb": f"{row.extra_mb:.1f}",
        **errors,
        "note": row.note,
        "offset": f"{case.offset:g}",
        "run": row.run,
    }


def merge(old: list[Row], new: list[Row]) -> list[Row]:
    """`new` in the place of what it measures anew: its contenders in its panels."""
    measured = {(row.part, row.contender, row.panel) for row in new}
    rows = [row for row in old if (row.part, row.contender, row.panel) not in measured] + new
    return sorted(rows, key=lambda row: (PARTS.index(row.part), row.case.on != "images", row.case.d, row.case.offset))
