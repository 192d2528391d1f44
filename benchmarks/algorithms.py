"""Meta-learning algorithms trained on equal terms: the same network, data, tasks and CPU time for all.

    python -m benchmarks.algorithms --data miniimagenet=PATH --data omniglot=PATH [--shots 5 1] [--budget 1200]
    python -m benchmarks.algorithms --table     # only writes the page of what has been run

The budget is CPU time of this process with one thread, so that other work on the machine takes nothing from anybody.
What was run before is not run again: every cell (data, shots, algorithm, seed, budget) is a file of
benchmarks/results/algorithms. After each cell, docs/algorithms.md and its figure are written. `--data` may name one of
the two data sets only; docs/data.md says what PATH may hold.
"""

import argparse
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from benchmarks.algorithms_page import write_page
from benchmarks.measure import extra_memory
from benchmarks.rivals.listing import RIVALS
from benchmarks.rivals.record import Cell, Measured, Result
from benchmarks.rivals.rival import Rival
from benchmarks.rivals.tasks import PROBLEMS, draw, load_images
from benchmarks.rivals.training import episodes, seconds_of, train, yardstick
from training.data import DataError, Episode
from training.data.resident import ResidentImages
from training.memory import keep_freed_memory
from training.results.accuracy import mean_and_interval
from training.runs.hardware import processor

WAYS = 5
_GRADIENTS = 5  # timed


def run(cell: Cell, images: ResidentImages, validation: ResidentImages, count: int, few: int) -> Result:
    """Train and measure a cell.

    Args:
        count, few: validation episodes at the end and before it.
    """
    torch.manual_seed(cell.seed)
    rival = RIVALS[cell.algorithm].build(PROBLEMS[cell.data], cell.ways)
    measured = episodes(validation, count, ways=cell.ways, shots=cell.shots)
    curve: list[Measured] = []
    speeds: list[float] = []
    for point in train(rival, images, ways=cell.ways, shots=cell.shots, budget=cell.budget, seed=cell.seed):
        speeds.append(yardstick())
        chosen = measured if point.last else measured[:few]
        curve.append(measure(rival, validation, chosen, point.seconds, point.updates))
        print(f"  {point.seconds:7.0f} s, {point.updates:5} updates: {curve[-1].usual}", flush=True)
    tasks = draw(images, np.random.default_rng(cell.seed), 1, cell.ways, cell.shots)

    def gradient() -> dict[str, np.ndarray]:
        rival.accumulate(tasks)
        return {}

    gradient()  # its parameters' gradients stay
    return Result(
        cell,
        tuple(curve),
        gradient_ms=1e3 * seconds_of(gradient, _GRADIENTS),
        gradient_mb=float(np.median([extra_memory(gradient)[0] for _ in range(3)])),
        yardstick_ms=1e3 * float(np.median(speeds)),
        machine=processor(),
        torch=torch.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        learned=rival.learned(),
    )


def measure(
    rival: Rival, validation: ResidentImages, chosen: Sequence[Episode], seconds: float, updates: int
) -> Measured:
    """Accuracy on episodes of the validation classes."""
    found = rival.accuracies(validation, chosen)
    usual, alone = mean_and_interval(found.usual), mean_and_interval(found.alone)
    return Measured(round(seconds, 2), updates, len(chosen), *usual, *alone)


def missing(data: Sequence[str], shots: Sequence[int], seeds: int, budget: float, only: Sequence[str]) -> list[Cell]:
    """Cells without a file: one seed of all data and algorithms after the other."""
    cells = (
        Cell(name, WAYS, k, algorithm, seed, budget)
        for seed, name, k, algorithm in product(range(seeds), data, shots, only)
    )
    return [cell for cell in cells if not cell.path.exists()]


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description="Meta-learning algorithms trained on equal terms.")
    parser.add_argument("--data", action="append", metavar="NAME=PATH", default=[], help=f"of {', '.join(PROBLEMS)}")
    parser.add_argument("--shots", type=int, nargs="+", default=[5, 1], help="images of each class (default 5 1)")
    parser.add_argument("--budget", type=float, default=1200.0, help="CPU seconds of a cell (default 1200)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds from 0 (default 3)")
    parser.add_argument("--episodes", type=int, nargs=2, default=[600, 100], metavar=("END", "BEFORE"))
    parser.add_argument("--algorithm", action="append", choices=list(RIVALS), help="only this one; may be repeated")
    parser.add_argument("--table", action="store_true", help="write the page of what has been run, and run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        write_page()
        return
    paths = _paths(parser, arguments.data)
    if arguments.budget <= 0 or arguments.seeds < 1 or min(*arguments.shots, *arguments.episodes) < 1:
        parser.error("--budget, --seeds, --shots and --episodes must be positive")
    cells = missing(list(paths), arguments.shots, arguments.seeds, arguments.budget, arguments.algorithm or [*RIVALS])
    torch.set_num_threads(1)
    keep_freed_memory()
    loaded: dict[str, tuple[ResidentImages, ResidentImages]] = {}
    for number, cell in enumerate(cells, start=1):
        if cell.data not in loaded:
            try:
                split = partial(load_images, cell.data, paths[cell.data])
                loaded[cell.data] = (split("train"), split("val"))
            except DataError as error:
                parser.exit(2, f"{error}\n")
        print(f"{number} of {len(cells)}: {cell.algorithm}, {cell.data} {cell.ways}x{cell.shots}, seed {cell.seed}")
        run(cell, *loaded[cell.data], *arguments.episodes).save()
        write_page()


def _paths(parser: argparse.ArgumentParser, given: Sequence[str]) -> dict[str, Path]:
    """The paths of `--data` by data set."""
    paths: dict[str, Path] = {}
    for text in given:
        name, separator, path = text.partition("=")
        if name not in PROBLEMS or not separator:
            parser.error(f"--data takes NAME=PATH with NAME one of {', '.join(PROBLEMS)}, got {text!r}")
        paths[name] = Path(path)
    if not paths:
        parser.error(f"--data NAME=PATH is needed, with NAME one of {', '.join(PROBLEMS)}")
    return paths


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
