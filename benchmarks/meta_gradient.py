"""Cost of one exact meta-gradient: ours next to the alternatives, the paper's Figures 3 and 4 and more.

    python -m benchmarks.meta_gradient [--quick] [--only goals offset steps sizes share] [--contender NAME]
                                       [--panel conv4]
    python -m benchmarks.meta_gradient --only     # measures nothing, writes the report anew

Five parts. `goals`: one task of d = 1600, taken in turns with JAX's forward sensitivity. `offset`: the
same on embeddings that share a component, as those of real images do. `steps`: 1 to 1e8 gradient
steps, on images through Conv-4, on images through ResNet-12 and on embeddings of their sizes (1600 and 16000).
`sizes`: ways x shots. `share`: how much of a Conv-4 training step the meta-gradient is. Every
measurement runs in a process of its own; a contender whose next run would pass the limits below is
left out from there on, and the table says so.

Writes meta_gradient.csv, .md and .png to benchmarks/results; what is not measured anew there stays. The CSV says in
which run a row was measured, and the tables mark rows of another run than the panel's other rows. Rows that need JAX
or TorchOpt are left out where these are not installed (`make bench` installs them).
"""

# pyright: reportMissingImports=false

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Container
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks import meta_gradient_page
from benchmarks.contenders import FLOWS, TASKS, Case, naive_bytes
from benchmarks.meta_gradient_rows import PARTS, Row, merge, store, stored
from benchmarks.publishing import RESULTS
from comln_serve.machine import usable_cpus

SHARE = RESULTS / "training_step.json"
MOST_SECONDS, MOST_MB = 60.0, 10_000.0
KILLED_MB = 18_000.0  # a run that needs more fails

# Cost grows in proportion to the number of steps; the others choose their own.
PER_STEP = {"ANIL", "MAML", "MAML, checkpoints", "iMAML", "adjoint, Euler", "forward, Euler"}
NEEDS = {"JAX forward": "jax", "MAML": "torchopt", "iMAML": "torchopt"}

CONTENDERS = {*FLOWS, *TASKS, "ANIL", "MAML", "MAML, checkpoints", "iMAML", "JAX forward", "naive forward"}
GOALS = [Case("embeddings", 5, 5, 10_000), Case("embeddings", 10, 5, 10_000), Case("embeddings", 20, 5, 1_000)]
OFFSET = [replace(case, offset=1.0) for case in GOALS] + [replace(GOALS[0], steps=1_000_000, offset=3.0)]
STEPS = [10**exponent for exponent in range(9)]
FEW_STEPS = STEPS[:3] + STEPS[4::2]
SIZES = [(5, 1), (5, 5), (10, 1), (10, 5), (20, 1), (20, 5), (50, 1), (50, 5)]


def measure(part: str, contender: str, case: Case, repeats: int, *, check: bool) -> Row:
    """Run `benchmarks.measure` on one contender and case."""
    row = Row(part, contender, case)
    if contender in NEEDS and importlib.util.find_spec(NEEDS[contender]) is None:
        return replace(row, note=f"{NEEDS[contender]} is not installed")
    job = {
        "contender": contender,
        "case": asdict(case),
        "repeats": repeats,
        "check": check,
        "limit_s": MOST_SECONDS / 4,
        "limit_mb": KILLED_MB,
        "threads": usable_cpus(),
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.measure", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=4 * MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return replace(row, note=f"not done in {4 * MOST_SECONDS:.0f} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed"])[-1]
        if "allocate memory" in last or last.startswith("MemoryError"):
            return replace(row, note=f"needs more than {KILLED_MB / 1e3:.0f} GB")
        return replace(row, note=f"failed: {last[:80]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    row = replace(
        row,
        median=float(np.median(answer["ms"])),
        runs=len(answer["ms"]),
        extra_mb=answer["extra_mb"],
        errors=answer.get("errors", {}),
    )
    print(f"{part:6} {contender:15} {describe(case):34} {row.median:10.2f} ms", flush=True)
    return row


def describe(case: Case) -> str:
    """A case in words."""
    return f"{case.ways} x {case.shots}, d {case.d}, {case.steps:g} steps, {case.on}, offset {case.offset:g}"


def in_turns(part: str, cases: list[Case], rounds: int, wanted: Container[str]) -> list[Row]:
    """Cases with the contenders in turns; medians over the rounds."""
    rows: list[Row] = []
    for case in cases:
        contenders = ["adjoint", "adjoint, 8 tasks", "forward", "forward, torchdiffeq", "JAX forward"]
        if case.ways == 5 and not case.offset:
            contenders += ["adjoint, Euler", "ANIL"]
        turns: dict[str, list[Row]] = {name: [] for name in contenders if name in wanted}
        for _ in range(rounds):
            for name, same in turns.items():
                if not any(row.note for row in same):  # else it would only take as long again
                    same.append(measure(part, name, case, 30, check=True))
        for same in turns.values():
            median, extra = np.median([[row.median, row.extra_mb] for row in same], axis=0)
            runs = sum(row.runs for row in same)
            note = next((row.note for row in same if row.note), "")
            rows.append(replace(same[0], median=float(median), runs=runs, extra_mb=float(extra), note=note))
    return rows


@dataclass(frozen=True)
class Panel:
    """What is compared by number of gradient steps, 5-way 5-shot."""

    case: Case
    contenders: tuple[str, ...]
    steps: list[int] = field(default_factory=lambda: STEPS)


_FLOWS = ("adjoint", "forward", "forward, Euler", "ANIL")
PANELS = {
    "conv4": Panel(Case("images", 5, 5, 1), (*_FLOWS, "MAML", "MAML, checkpoints", "iMAML")),
    # A run takes seconds and gigabytes whatever the steps.
    "resnet12": Panel(Case("images", 5, 5, 1, 16_000), ("adjoint", "forward", "ANIL", "MAML", "iMAML"), FEW_STEPS),
    "1600": Panel(Case("embeddings", 5, 5, 1, 1600), (*_FLOWS, "adjoint, Euler", "JAX forward")),
    "16000": Panel(Case("embeddings", 5, 5, 1, 16_000), (*_FLOWS, "adjoint, Euler", "JAX forward")),
}


def steps(exponents: int, panels: list[str], wanted: Container[str]) -> list[Row]:
    """Cost by number of gradient steps."""
    rows: list[Row] = []
    for panel in map(PANELS.__getitem__, panels):
        for name in filter(wanted.__contains__, panel.contenders):
            done: list[Row] = []
            for count in panel.steps[:exponents]:
                case = replace(panel.case, steps=count)
                reason = _too_much(name, done, count)
                if reason:
                    done.append(Row("steps", name, case, note=reason))
                    break
                done.append(measure("steps", name, case, 3, check=case.on == "embeddings"))
            rows += done
    return rows


def _too_much(name: str, done: list[Row], count: int) -> str:
    """Why `count` steps are out of reach, by the rows of fewer; "" if they are not."""
    if not done:
        return ""
    first, last = done[0], done[-1]
    if last.note:
        return last.note
    # A single step tells nothing of the cost of a step: all that is done once outweighs it.
    growth = count / last.case.steps if name in PER_STEP and len(done) > 1 else 1.0

    def expected(fewest: float, most: float) -> float:
        return fewest + growth * max(0.0, most - fewest) if growth > 1.0 else most

    # Unrolled methods keep their steps; the others do not.
    megabytes = expected(first.extra_mb, last.extra_mb)
    if name in {"ANIL", "MAML"} and megabytes > MOST_MB:
        return f"would need about {megabytes / 1e3:.0f} GB"
    milliseconds = expected(first.median, last.median)
    if milliseconds > 1e3 * MOST_SECONDS:
        return f"would take about {milliseconds / 1e3:.0f} s"
    return ""


def sizes(quick: bool, wanted: Container[str]) -> list[Row]:
    """Cost by ways x shots at d = 1600 and T = 10 (1000 gradient steps)."""
    rows: list[Row] = []
    for ways, shots in SIZES[:4] if quick else SIZES:
        case = Case("embeddings", ways, shots, 1000)
        M = ways * shots
        forward_mb = 8e-6 * M * ways * (M * ways + M * (M + 1) / 2)
        jax_mb = 4e-6 * 8 * M * M * ways * (M + ways)
        for name, needed in (
            ("adjoint", 0.0),
            ("forward", forward_mb),
            ("JAX forward", jax_mb),
            ("adjoint, Euler", 0.0),
            ("ANIL", 0.0),
            ("naive forward", 1e-6 * naive_bytes(case)),
        ):
            too_long = name == "forward" and M * M * ways**2 * (M + ways) > 2e9
            if name not in wanted:
                continue
            if needed > MOST_MB or too_long:
                note = f"needs {needed / 1e3:.1f} GB" + (" and minutes" if too_long else "")
                rows.append(Row("sizes", name, case, note=note))
            else:
                rows.append(measure("sizes", name, case, 3, check=ways <= 20))
    small = Case("embeddings", 5, 1, 1000, d=64)  # where even the naive way fits
    rows += [measure("sizes", name, small, 3, check=True) for name in ("adjoint", "naive forward") if name in wanted]
    return rows


def training_step_share(rounds: int) -> None:
    """Time of the adaptation within real Conv-4 training steps."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training_step", str(rounds)], capture_output=True, text=True, check=True
    )
    print(done.stdout, flush=True)
    SHARE.write_text(done.stdout, encoding="utf-8")


def main() -> None:
    """Measure what is asked for and write the report."""
    parser = argparse.ArgumentParser(description="Cost of one exact meta-gradient.")
    parser.add_argument("--quick", action="store_true", help="fewer steps and sizes (minutes)")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--contender", action="append", help="only this one; may be repeated")
    parser.add_argument("--panel", action="append", choices=PANELS, help="of `steps`, only this one; may be repeated")
    arguments = parser.parse_args()
    wanted = arguments.contender or CONTENDERS
    rounds = 1 if arguments.quick else 3
    rows: list[Row] = []
    if "goals" in arguments.only:
        rows += in_turns("goals", GOALS, rounds, wanted)
    if "offset" in arguments.only:
        rows += in_turns("offset", OFFSET, rounds, wanted)
    if "steps" in arguments.only:
        rows += steps(3 if arguments.quick else len(STEPS), arguments.panel or [*PANELS], wanted)
    if "sizes" in arguments.only:
        rows += sizes(arguments.quick, wanted)
    if "share" in arguments.only:
        training_step_share(2 if arguments.quick else 5)
    share = json.loads(SHARE.read_text(encoding="utf-8")) if SHARE.exists() else None
    rows = merge(stored(), rows)
    store(rows)
    meta_gradient_page.write(rows, share)


if __name__ == "__main__":
    main()
