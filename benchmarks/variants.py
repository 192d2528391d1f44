"""COMLN with T learned or fixed, and with Runge-Kutta or Euler: the paper's Figure 5 and Table 4, at the size of a CPU.

    python -m benchmarks.variants --data PATH     # miniImageNet; runs what is missing
    python -m benchmarks.variants --figure        # writes docs/images/variants.png of what has been run

Conv-4 at 42 px, 5-way 5-shot, trained from random weights for BUDGET seconds of CPU time with one thread, as the
algorithms of `benchmarks.algorithms` are, and measured on the same EPISODES episodes of the validation classes.
"""

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor

from benchmarks.rivals.comln import Comln
from benchmarks.rivals.tasks import PROBLEMS, Problem, Task, load_images
from benchmarks.rivals.training import episodes, train
from training.data import DataError
from training.data.resident import ResidentImages
from training.gradient_flow import gradient_flow
from training.memory import keep_freed_memory
from training.results.accuracy import Difference, Estimate, mean_and_interval
from training.runs.hardware import processor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results" / "variants.json"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "variants.png"
DATA, WAYS, SHOTS, SEED = "miniimagenet", 5, 5, 0
BUDGET, EPISODES = 240.0, 300
EULER_STEP = 0.01  # the paper's


@dataclass(frozen=True)
class Variant:
    """T, fixed or that from which it is learned; and the solver: adaptive Dormand-Prince or Euler of EULER_STEP."""

    T: float = 1.0
    learned: bool = True
    euler: bool = False


VARIANTS = (
    Variant(),
    Variant(euler=True),
    *(Variant(T=T) for T in (0.1, 10.0)),
    *(Variant(T=T, learned=False) for T in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)),
)


@dataclass(frozen=True)
class Run:
    """A variant, trained and measured.

    Attributes:
        path: T after every update; empty where it is fixed.
        accuracies: of the episodes, share of the queries.
        seconds: CPU time spent on training.
    """

    variant: Variant
    path: tuple[float, ...]
    accuracies: tuple[float, ...]
    updates: int
    seconds: float
    machine: str
    date: str

    @property
    def accuracy(self) -> Estimate:
        """Mean and interval over the episodes."""
        return Estimate(*mean_and_interval(np.array(self.accuracies)))

    @property
    def T(self) -> float:
        """After training."""
        return self.path[-1] if self.path else self.variant.T

    def ahead_of(self, other: "Run") -> Difference:
        """Difference of the accuracies, episode by episode."""
        return Difference(*mean_and_interval(np.array(self.accuracies) - np.array(other.accuracies)))


class ComlnVariant(Comln):
    """COMLN as a variant has it.

    Attributes:
        path: T before every update.
    """

    def __init__(self, problem: Problem, ways: int, variant: Variant) -> None:
        super().__init__(problem, ways)
        self.variant = variant
        self.log_T = torch.nn.Parameter(torch.tensor(math.log(variant.T)), requires_grad=variant.learned)
        self.path: list[float] = []

    def accumulate(self, tasks: Sequence[Task]) -> float:
        self.path.append(self.log_T.exp().item())
        return super().accumulate(tasks)

    def logits(self, phi: Tensor, Y: Tensor, query: Tensor) -> Tensor:
        if not self.variant.euler:
            return super().logits(phi, Y, query)
        W = gradient_flow(phi, self.W0, Y, self.log_T.exp(), solver="euler", step_size=EULER_STEP)
        return query @ W.T


def run(comln: ComlnVariant, images: ResidentImages, validation: ResidentImages, *, budget: float, count: int) -> Run:
    """Train for `budget` CPU seconds, and measure on `count` episodes."""
    *_, last = train(comln, images, ways=WAYS, shots=SHOTS, budget=budget, seed=SEED)
    path = (*comln.path[1:], comln.log_T.exp().item()) if comln.variant.learned else ()
    found = comln.accuracies(validation, episodes(validation, count, ways=WAYS, shots=SHOTS)).usual
    return Run(
        comln.variant,
        tuple(round(T, 5) for T in path),
        tuple(found.round(4).tolist()),
        last.updates,
        round(last.seconds, 2),
        processor(),
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    )


def load() -> list[Run]:
    """What was run before."""
    if not RESULTS.exists():
        return []
    trees: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return [
        Run(Variant(**tree.pop("variant")), tuple(tree.pop("path")), tuple(tree.pop("accuracies")), **tree)
        for tree in trees
    ]


def save(runs: Sequence[Run]) -> None:
    """Store all runs, one a line."""
    text = ",\n".join(json.dumps(asdict(run)) for run in runs)
    RESULTS.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def plot(runs: Sequence[Run]) -> None:
    """T over meta-training, and accuracy by T."""
    figure, (over_time, by_T) = plt.subplots(1, 2, figsize=(10, 4.2))
    learned = [run for run in runs if run.variant.learned and not run.variant.euler]
    fixed = [run for run in runs if not run.variant.learned]
    for run in learned:
        over_time.semilogy(np.linspace(0.0, 1.0, len(run.path)), run.path, label=f"from T = {run.variant.T:g}")
    over_time.set(xlabel="meta-training", ylabel="T", title="T while it is learned")
    for chosen, label, colour in ((fixed, "T fixed", "C0"), (learned, "T learned", "C3")):
        means, intervals = (
            [100 * value for value in values]
            for values in zip(*((run.accuracy.mean, run.accuracy.interval) for run in chosen), strict=True)
        )
        by_T.errorbar([run.T for run in chosen], means, intervals, fmt="o", color=colour, label=label, capsize=3)
    by_T.set(xscale="log", xlabel="T after training", ylabel="accuracy, %", title="accuracy on validation classes")
    for axis in (over_time, by_T):
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=100, metadata={"Software": None})


def main() -> None:
    """Run what is missing, or draw the figure."""
    parser = argparse.ArgumentParser(description="COMLN with T learned or fixed, and with Runge-Kutta or Euler.")
    parser.add_argument("--data", type=Path, help="miniImageNet (docs/data.md)")
    parser.add_argument("--figure", action="store_true", help="draw what has been run, and run nothing")
    arguments = parser.parse_args()
    runs = load()
    if arguments.figure:
        plot(runs)
        return
    if arguments.data is None:
        parser.error("--data is needed")
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        images, validation = (load_images(DATA, arguments.data, split) for split in ("train", "val"))
    except DataError as error:
        parser.exit(2, f"{error}\n")
    done = {run.variant for run in runs}
    for variant in VARIANTS:
        if variant not in done:
            torch.manual_seed(SEED)
            comln = ComlnVariant(PROBLEMS[DATA], WAYS, variant)
            runs.append(run(comln, images, validation, budget=BUDGET, count=EPISODES))
            save(runs)
            print(f"{variant}: {runs[-1].accuracy}, T {runs[-1].T:.3g}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
