"""The results of `comln-train evaluate` for a terminal, as Markdown, as JSON, and as manifest entries."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from comln_serve.bundle import AccuracyEntry, ComparisonEntry, Head
from training.evaluation.compare import Measured
from training.evaluation.tasks import Task
from training.results import tables
from training.results.accuracy import Difference, Estimate, mean_by_head, mean_over
from training.results.verdict import START, verdict

Format = Literal["text", "markdown", "json"]

_START_ROW = "start alone (T = 0)"

_PAIRED = """Every head classifies the same embeddings in the same episodes; the difference is taken
episode by episode. "inside": it is no larger than its 95% interval."""

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Comparison:
    """A simple head, or the bundle's own start, measured on the bundle's episodes.

    Attributes:
        description: the head in words, with its setting and where that comes from.
        ahead: how far the bundle's own head is ahead of it.
    """

    head: str
    description: str
    measured: Measured
    ahead: Difference


@dataclass(frozen=True)
class TaskResult:
    """Everything measured on one task of one data set.

    Attributes:
        data: name of the data set. recorded: its name in the manifest, None where it has none.
        comparisons: the bundle's start first.
        command: the command that measures the bundle alone. comparison_command: the one that
            measures the other heads as well.
    """

    data: str
    recorded: str | None
    task: Task
    own: Measured
    comparisons: tuple[Comparison, ...]
    command: str
    comparison_command: str


@dataclass(frozen=True)
class TaskMean:
    """One task as the mean over data sets, each of which counts the same.

    Attributes:
        own: the bundle's accuracy. heads: that of every other head.
        ahead: how far the bundle is ahead of each.
    """

    task: Task
    own: Estimate
    heads: dict[str, Estimate]
    ahead: dict[str, Difference]

    @property
    def verdict(self) -> str:
        """In words."""
        return verdict(self.ahead)

    def rows(self) -> list[list[str]]:
        """A table row for the bundle, and one for every other head."""
        return [
            [self.task.words, "bundle", str(self.own), "", ""],
            *(
                [self.task.words, _row_name(head), str(accuracy), str(self.ahead[head]), self.ahead[head].verdict]
                for head, accuracy in self.heads.items()
            ),
        ]


def mean_over_data(results: Sequence[TaskResult]) -> TaskMean:
    """The mean of one task's results on one or several data sets."""
    return TaskMean(
        results[0].task,
        mean_over([result.own.accuracy.estimate for result in results]),
        mean_by_head([{c.head: c.measured.accuracy.estimate for c in result.comparisons} for result in results]),
        mean_by_head([{c.head: c.ahead for c in result.comparisons} for result in results]),
    )


@dataclass(frozen=True)
class Report:
    """All data sets and tasks of one run of the command.

    Attributes:
        notes: further remarks, such as which heads were left out.
    """

    bundle: str
    own_description: str
    split: str
    episodes: int
    seed: int
    results: tuple[TaskResult, ...]
    notes: tuple[str, ...] = ()

    def render(self, form: Format) -> str:
        """The whole report, without a newline at its end."""
        return json.dumps(self._tree(), indent=2) if form == "json" else self._tables(form)

    def accuracies(self) -> list[AccuracyEntry]:
        """The bundle's own accuracies, for its manifest."""
        return [
            AccuracyEntry(split=self.split, data=result.recorded, command=result.command, **vars(result.own.accuracy))
            for result in self.results
        ]

    def comparisons(self) -> list[ComparisonEntry]:
        """The other heads' accuracies, for the manifest."""
        return [
            ComparisonEntry(
                split=self.split,
                data=result.recorded,
                command=result.comparison_command,
                **vars(other.measured.accuracy),
                head=other.head,
                description=other.description,
                ahead=other.ahead.mean,
                ahead_interval=other.ahead.interval,
                unconverged=other.measured.unconverged,
            )
            for result in self.results
            for other in result.comparisons
        ]

    def means(self) -> list[TaskMean]:
        """The mean over data sets of every task that was measured on several."""
        by_task = _grouped(self.results, lambda result: result.task)
        return [mean_over_data(results) for results in by_task.values() if len(results) > 1]

    def _tables(self, form: Format) -> str:
        table = tables.markdown if form == "markdown" else tables.aligned
        header = ["task", "head", "accuracy, %", "bundle ahead by", "the bundle is"]

        def block(title: str, means: Sequence[TaskMean]) -> list[str]:
            verdicts = "\n".join(f"- {mean.task.words}: {mean.verdict}" for mean in means)
            return [title, table(header, [row for mean in means for row in mean.rows()]), verdicts]

        title = (
            f"{self.bundle} on split {self.split}: {self.episodes} episodes a task, seed "
            f"{self.seed}; means with 95% intervals"
        )
        blocks = [title]
        by_data = _grouped(self.results, lambda result: result.data)
        for data, results in by_data.items():
            title = f"Data set {data}, {results[0].task.queries} queries a class"
            blocks += block(title, [mean_over_data([result]) for result in results])
        if means := self.means():
            title = (
                f"Mean over the {len(by_data)} data sets, each of which counts the same; the "
                "interval is that\nof the episodes drawn, not of the data sets chosen"
            )
            blocks += block(title, means)
        blocks += [_PAIRED, table(["data", "task", "head", "what it is"], self._descriptions())]
        return "\n\n".join([*blocks, *self.notes, *self._warnings()])

    def _descriptions(self) -> list[list[str]]:
        """What each head is. One row serves all tasks and data sets on which a head has the same settings."""
        found: dict[tuple[str, str], list[TaskResult]] = {}
        for result in self.results:
            for other in result.comparisons:
                found.setdefault((_row_name(other.head), other.description), []).append(result)

        def names(results: Iterable[TaskResult], of: Callable[[TaskResult], str]) -> str:
            some = list(dict.fromkeys(map(of, results)))
            return "all" if len(some) == len(set(map(of, self.results))) else " ".join(some)

        return [
            ["all", "all", "bundle", self.own_description],
            *(
                [names(results, lambda r: r.data), names(results, lambda r: str(r.task)), head, description]
                for (head, description), results in found.items()
            ),
        ]

    def _warnings(self) -> list[str]:
        return [
            f"{other.measured.unconverged} fits of {other.head} in the {self.episodes} episodes of "
            f"task {result.task} of {result.data} stopped before they converged: its accuracy is "
            "that of unfinished fits."
            for result in self.results
            for other in result.comparisons
            if other.measured.unconverged
        ]

    def _tree(self) -> dict[str, Any]:
        return {
            "bundle": self.bundle,
            "own": self.own_description,
            "split": self.split,
            "notes": list(self.notes),
            "tasks": [
                {
                    "data": result.data,
                    "task": str(result.task),
                    **vars(result.own.accuracy),
                    "command": result.comparison_command,
                    "verdict": mean_over_data([result]).verdict,
                    "start": _branch(result.comparisons[0]),
                    "baselines": [_branch(other) for other in result.comparisons[1:]],
                }
                for result in self.results
            ],
            "means": [
                {
                    "task": str(mean.task),
                    **vars(mean.own),
                    "verdict": mean.verdict,
                    "heads": [{"head": head, **_figures(mean.heads[head], mean.ahead[head])} for head in mean.heads],
                }
                for mean in self.means()
            ],
        }


def describe_own(head: Head) -> str:
    """The bundle's head in words."""
    scale = "" if head.alpha is None else f" (alpha = {head.alpha:g})"
    task = "" if head.exponents is None else ", which follows the task"
    return f"the bundle's gradient flow: {head.start} start{scale}, T = {head.horizon:g}{task}"


def _grouped(results: Iterable[TaskResult], key: Callable[[TaskResult], _Key]) -> dict[_Key, list[TaskResult]]:
    groups: dict[_Key, list[TaskResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def _row_name(head: str) -> str:
    return _START_ROW if head == START else head


def _branch(other: Comparison) -> dict[str, Any]:
    return {
        "head": other.head,
        "description": other.description,
        **_figures(other.measured.accuracy.estimate, other.ahead),
        "unconverged": other.measured.unconverged,
    }


def _figures(accuracy: Estimate, ahead: Difference) -> dict[str, float]:
    return {**vars(accuracy), "ahead": ahead.mean, "ahead_interval": ahead.interval}
