"""One trained and measured algorithm, as a JSON file of benchmarks/results/algorithms."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.results.accuracy import Estimate

RESULTS = Path(__file__).parents[1] / "results" / "algorithms"


@dataclass(frozen=True)
class Cell:
    """What is trained: each cell has a file of its own, and is run if that is missing.

    Attributes:
        budget: CPU seconds.
    """

    data: str
    ways: int
    shots: int
    algorithm: str
    seed: int
    budget: float

    @property
    def path(self) -> Path:
        """Its file."""
        name = re.sub(r"[^a-z0-9]+", "-", self.algorithm.lower())
        return RESULTS / f"{self.data}-{self.ways}x{self.shots}-{self.budget:g}s-{name}-{self.seed}.json"


@dataclass(frozen=True)
class Measured:
    """Accuracy on validation classes after some of the training.

    Attributes:
        seconds: CPU time spent on training. updates: done in it.
        mean, interval: as the algorithm's authors measure; half the width of the 95% interval.
        alone_mean, alone_interval: with every query classified by itself.
    """

    seconds: float
    updates: int
    episodes: int
    mean: float
    interval: float
    alone_mean: float
    alone_interval: float

    @property
    def usual(self) -> Estimate:
        """As the authors measure."""
        return Estimate(self.mean, self.interval)

    @property
    def alone(self) -> Estimate:
        """Every query by itself."""
        return Estimate(self.alone_mean, self.alone_interval)


@dataclass(frozen=True)
class Result:
    """A cell's measurements.

    Attributes:
        curve: in the order of training; the last is that of the trained algorithm.
        gradient_ms: CPU time of a meta-gradient of one task after training, median.
        gradient_mb: peak of memory during one above that before it.
        yardstick_ms: CPU time of a fixed piece of work (`training.yardstick`), median over the run: the same on a
            machine that nothing else uses.
        learned: meta-parameters that are single numbers.
        machine, torch: processor, and version of torch. date: UTC.
    """

    cell: Cell
    curve: tuple[Measured, ...]
    gradient_ms: float
    gradient_mb: float
    yardstick_ms: float
    machine: str
    torch: str
    date: str
    learned: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def final(self) -> Measured:
        """Of the trained algorithm."""
        return self.curve[-1]

    def save(self) -> None:
        """Write the cell's file, whole or not at all."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        part = self.cell.path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(self.cell.path)


def load() -> list[Result]:
    """All results, in the order of their files' names."""
    return [_parse(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"))]


def _parse(tree: dict[str, Any]) -> Result:
    curve: Iterable[dict[str, Any]] = tree.pop("curve")
    return Result(cell=Cell(**tree.pop("cell")), curve=tuple(Measured(**point) for point in curve), **tree)
