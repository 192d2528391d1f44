"""What `comln-train evaluate` found, for a terminal, as Markdown, as JSON, and as manifest data."""

import json
from dataclasses import dataclass
from typing import Literal

from comln_serve.bundle import AccuracyEntry, ComparisonEntry
from training.evaluation import tables
from training.evaluation.compare import Difference, Measured
from training.evaluation.tasks import Task

Format = Literal["text", "markdown", "json"]

_PAIRED = """Every head classifies the same embeddings in the same episodes; the difference is taken
episode by episode. "inside": it is no larger than its 95% interval."""


@dataclass(frozen=True)
class Against:
    """A simple head on the bundle's episodes.

    Attributes:
        description: what it is, with its setting and where that comes from.
        ahead: how far the bundle's own head is ahead of it.
    """

    head: str
    description: str
    measured: Measured
    ahead: Difference


@dataclass(frozen=True)
class TaskResult:
    """Everything measured on one task.

    Attributes:
        command: what measures the bundle again. comparison: what measures the others again.
    """

    task: Task
    own: Measured
    against: tuple[Against, ...]
    command: str
    comparison: str


@dataclass(frozen=True)
class Report:
    """All tasks of one run of the command."""

    bundle: str
    own_description: str
    split: str
    episodes: int
    seed: int
    results: tuple[TaskResult, ...]

    def render(self, form: Format) -> str:
        """The whole report, without a newline at its end."""
        return json.dumps(self._tree(), indent=2) if form == "json" else self._tables(form)

    def accuracies(self) -> list[AccuracyEntry]:
        """The bundle's own, for its manifest."""
        return [
            AccuracyEntry(split=self.split, command=result.command, **vars(result.own.accuracy))
            for result in self.results
        ]

    def comparisons(self) -> list[ComparisonEntry]:
        """The others', for the manifest."""
        return [
            ComparisonEntry(
                split=self.split, command=result.comparison, **vars(other.measured.accuracy),
                head=other.head, description=other.description, ahead=other.ahead.mean,
                ahead_interval=other.ahead.interval, unconverged=other.measured.unconverged,
            )
            for result in self.results
            for other in result.against
        ]  # fmt: skip

    def _tables(self, form: Format) -> str:
        table = tables.markdown if form == "markdown" else tables.aligned
        compared = any(result.against for result in self.results)
        header = ["task", "queries", "head", "accuracy, %"]
        rows: list[list[str]] = []
        for result in self.results:
            name = [result.task.words, str(result.task.queries)]
            rows.append([*name, "bundle", _percent(result.own)] + ["", ""] * compared)
            rows += [
                [*name, other.head, _percent(other.measured), str(other.ahead), other.ahead.verdict]
                for other in result.against
            ]
        if compared:
            header += ["bundle ahead by", "the bundle is"]
        title = (
            f"{self.bundle} on split {self.split}: {self.episodes} episodes a task, seed "
            f"{self.seed}; means with 95% intervals"
        )
        blocks = [title, table(header, rows)]
        if compared:
            blocks += [_PAIRED, table(["task", "head", "what it is"], self._descriptions())]
        blocks += self._warnings()
        return "\n\n".join(blocks)

    def _descriptions(self) -> list[list[str]]:
        """A head of the same settings in all tasks has one row."""
        found: dict[tuple[str, str], list[str]] = {}
        for result in self.results:
            for other in result.against:
                found.setdefault((other.head, other.description), []).append(str(result.task))
        everywhere = len(self.results)
        rows = [["all", "bundle", self.own_description]]
        for (head, description), tasks in found.items():
            rows.append(["all" if len(tasks) == everywhere else " ".join(tasks), head, description])
        return rows

    def _warnings(self) -> list[str]:
        return [
            f"{other.measured.unconverged} of {self.episodes} fits of {other.head} in task "
            f"{result.task} stopped before they converged: its accuracy is that of unfinished fits."
            for result in self.results
            for other in result.against
            if other.measured.unconverged
        ]

    def _tree(self) -> dict[str, object]:
        return {
            "bundle": self.bundle,
            "own": self.own_description,
            "split": self.split,
            "tasks": [
                {
                    "task": str(result.task),
                    **vars(result.own.accuracy),
                    "command": result.comparison if result.against else result.command,
                    "baselines": [
                        {
                            "head": other.head,
                            "description": other.description,
                            "mean": other.measured.accuracy.mean,
                            "interval": other.measured.accuracy.interval,
                            "ahead": other.ahead.mean,
                            "ahead_interval": other.ahead.interval,
                            "unconverged": other.measured.unconverged,
                        }
                        for other in result.against
                    ],
                }
                for result in self.results
            ],
        }


def describe_own(start: str, horizon: float, *, alpha: float | None) -> str:
    """The bundle's head in words."""
    scale = "" if alpha is None else f" (alpha = {alpha:g})"
    return f"the bundle's gradient flow: {start} start{scale}, T = {horizon:g}"


def _percent(measured: Measured) -> str:
    return f"{100 * measured.accuracy.mean:.2f} +- {100 * measured.accuracy.interval:.2f}"
