"""Rows of the comparison of meta-gradients: one contender on one case, kept in a CSV file."""

import csv
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.contenders import Case

RESULTS = Path(__file__).parent / "results"
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
    with CSV.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [
                "part",
                "contender",
                "on",
                "ways",
                "shots",
                "d",
                "steps",
                "T",
                "median_ms",
                "runs",
                "extra_mb",
                "error_phi",
                "error_W0",
                "error_T",
                "note",
                "offset",
                "run",
            ]
        )
        for row in rows:
            case, errors = row.case, [row.errors.get(key) for key in INPUTS]
            writer.writerow(
                [
                    row.part,
                    row.contender,
                    case.on,
                    case.ways,
                    case.shots,
                    case.d,
                    case.steps,
                    f"{case.T:g}",
                    f"{row.median:.3f}",
                    row.runs,
                    f"{row.extra_mb:.1f}",
                    *["" if x is None else f"{x:.1e}" for x in errors],
                    row.note,
                    f"{case.offset:g}",
                    row.run,
                ]
            )


def merge(old: list[Row], new: list[Row]) -> list[Row]:
    """`new` in the place of what it measures anew: its contenders in its panels."""
    measured = {(row.part, row.contender, row.panel) for row in new}
    rows = [row for row in old if (row.part, row.contender, row.panel) not in measured] + new
    return sorted(rows, key=lambda row: (PARTS.index(row.part), row.case.on != "images", row.case.d, row.case.offset))
