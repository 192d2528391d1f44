"""What `comln-train evaluate` found, for a terminal, as Markdown, as JSON, and as manifest data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from comln_serve.bundle import AccuracyEntry, ComparisonEntry
from training.evaluation import tables
from training.evaluation.compare import Difference, Measured
from training.evaluation.tasks import Task
from training.evaluation.verdict import START, mean_difference, verdict

Format = Literal["text", "markdown", "json"]

_START_ROW = "start alone (T = 0)"

_PAIRED = """Every head classifies the same embeddings in the same episodes; the difference is taken
episode by episode. "inside": it is no larger than its 95% interval."""


@dataclass(frozen=True)
class Against:
    """A simple head, or the bundle's own start, on the bundle's episodes.

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
    """Everything measured on one task of one data set.

    Attributes:
        data: name of the data set. recorded: the same for the manifest, None where it has none.
        against: the bundle's start first.
        command: what measures the bundle again. comparison: what measures the others again.
    """

    data: str
    recorded: str | None
    task: Task
    own: Measured
    against: tuple[Against, ...]
    command: str
    comparison: str

    @property
    def verdict(self) -> str:
        """In words."""
        return verdict({other.head: other.ahead for other in self.against})


@dataclass(frozen=True)
class HeadMean:
    """Means over data sets, of a head's accuracy and of how far the bundle is ahead of it."""

    head: str
    accuracy: Difference
    ahead: Difference


@dataclass(frozen=True)
class TaskMean:
    """One task over all data sets, each of which counts the same."""

    task: Task
    own: Difference
    against: tuple[HeadMean, ...]

    @property
    def verdict(self) -> str:
        """In words."""
        return verdict({other.head: other.ahead for other in self.against})


@dataclass(frozen=True)
class Report:
    """All data sets and tasks of one run of the command.

    Attributes:
        notes: what else to say, such as which heads were left out.
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
        """The bundle's own, for its manifest."""
        return [
            AccuracyEntry(split=self.split, data=result.recorded, command=result.command, **vars(result.own.accuracy))
            for result in self.results
        ]

    def comparisons(self) -> list[ComparisonEntry]:
        """The others', for the manifest."""
        return [
            ComparisonEntry(
                split=self.split,
                data=result.recorded,
                command=result.comparison,
                **vars(other.measured.accuracy),
                head=other.head,
                description=other.description,
                ahead=other.ahead.mean,
                ahead_interval=other.ahead.interval,
                unconverged=other.measured.unconverged,
            )
            for result in self.results
            for other in result.against
        ]

    def means(self) -> list[TaskMean]:
        """Over the data sets, where there are several."""
        by_task: dict[Task, list[TaskResult]] = {}
        for result in self.results:
            by_task.setdefault(result.task, []).append(result)
        return [_mean(task, results) for task, results in by_task.items() if len(results) > 1]

    def _tables(self, form: Format) -> str:
        table = tables.markdown if form == "markdown" else tables.aligned
        by_data: dict[str, list[TaskResult]] = {}
        for result in self.results:
            by_data.setdefault(result.data, []).append(result)
        title = (
            f"{self.bundle} on split {self.split}: {self.episodes} episodes a task, seed "
            f"{self.seed}; means with 95% intervals"
        )
        blocks = [title]
        header = ["task", "head", "accuracy, %", "bundle ahead by", "the bundle is"]
        for data, results in by_data.items():
            rows = [
                row
                for result in results
                for row in _rows(
                    result.task, _percent(result.own), [(o.head, _percent(o.measured), o.ahead) for o in result.against]
                )
            ]
            title = f"Data set {data}, {results[0].task.queries} queries a class"
            blocks += [title, table(header, rows), _verdicts(results)]
        means = self.means()
        if means:
            rows = [
                row
                for mean in means
                for row in _rows(
                    mean.task, _plain(mean.own), [(o.head, _plain(o.accuracy), o.ahead) for o in mean.against]
                )
            ]
            title = (
                f"Mean over the {len(by_data)} data sets, each of which counts the same; the "
                "interval is that\nof the episodes drawn, not of the data sets chosen"
            )
            blocks += [title, table(header, rows), _verdicts(means)]
        blocks += [_PAIRED, table(["data", "task", "head", "what it is"], self._descriptions())]
        blocks += [*self.notes, *self._warnings()]
        return "\n\n".join(blocks)

    def _descriptions(self) -> list[list[str]]:
        """A head of the same settings in all tasks, or all data sets, has one row."""
        found: dict[tuple[str, str], list[TaskResult]] = {}
        for result in self.results:
            for other in result.against:
                name = _START_ROW if other.head == START else other.head
                found.setdefault((name, other.description), []).append(result)
        rows = [["all", "all", "bundle", self.own_description]]
        every_data, every_task = (
            len({result.data for result in self.results}),
            len({result.task for result in self.results}),
        )
        for (head, description), results in found.items():
            data = dict.fromkeys(result.data for result in results)
            tasks = dict.fromkeys(str(result.task) for result in results)
            rows.append(
                [
                    "all" if len(data) == every_data else " ".join(data),
                    "all" if len(tasks) == every_task else " ".join(tasks),
                    head,
                    description,
                ]
            )
        return rows

    def _warnings(self) -> list[str]:
        return [
            f"{other.measured.unconverged} fits of {other.head} in the {self.episodes} episodes of "
            f"task {result.task} of {result.data} stopped before they converged: its accuracy is "
            "that of unfinished fits."
            for result in self.results
            for other in result.against
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
                    "command": result.comparison,
                    "verdict": result.verdict,
                    "start": _branch(result.against[0]),
                    "baselines": [_branch(other) for other in result.against[1:]],
                }
                for result in self.results
            ],
            "means": [
                {
                    "task": str(mean.task),
                    "mean": mean.own.mean,
                    "interval": mean.own.interval,
                    "verdict": mean.verdict,
                    "heads": [
                        {
                            "head": other.head,
                            "mean": other.accuracy.mean,
                            "interval": other.accuracy.interval,
                            "ahead": other.ahead.mean,
                            "ahead_interval": other.ahead.interval,
                        }
                        for other in mean.against
                    ],
                }
                for mean in self.means()
            ],
        }


def _mean(task: Task, results: Sequence[TaskResult]) -> TaskMean:
    def over(measured: Sequence[Measured]) -> Difference:
        return mean_difference([Difference(m.accuracy.mean, m.accuracy.interval) for m in measured])

    heads = [other.head for other in results[0].against]
    of = [{other.head: other for other in result.against} for result in results]
    return TaskMean(
        task,
        over([result.own for result in results]),
        tuple(
            HeadMean(
                head,
                over([others[head].measured for others in of]),
                mean_difference([others[head].ahead for others in of]),
            )
            for head in heads
        ),
    )


def _branch(other: Against) -> dict[str, Any]:
    return {
        "head": other.head,
        "description": other.description,
        "mean": other.measured.accuracy.mean,
        "interval": other.measured.accuracy.interval,
        "ahead": other.ahead.mean,
        "ahead_interval": other.ahead.interval,
        "unconverged": other.measured.unconverged,
    }


def _rows(task: Task, own: str, others: Sequence[tuple[str, str, Difference]]) -> list[list[str]]:
    """The bundle's row and those of the others: (head, accuracy, how far the bundle is ahead)."""
    return [
        [task.words, "bundle", own, "", ""],
        *(
            [task.words, _START_ROW if head == START else head, accuracy, str(ahead), ahead.verdict]
            for head, accuracy, ahead in others
        ),
    ]


def _verdicts(results: Sequence[TaskResult | TaskMean]) -> str:
    return "\n".join(f"- {result.task.words}: {result.verdict}" for result in results)


def describe_own(start: str, horizon: float, *, alpha: float | None, follows: bool = False) -> str:
    """The bundle's head in words; `follows`: whether its T depends on the task."""
    scale = "" if alpha is None else f" (alpha = {alpha:g})"
    task = ", which follows the task" if follows else ""
    return f"the bundle's gradient flow: {start} start{scale}, T = {horizon:g}{task}"


def _percent(measured: Measured) -> str:
    return _plain(Difference(measured.accuracy.mean, measured.accuracy.interval))


def _plain(found: Difference) -> str:
    return f"{100 * found.mean:.2f} +- {100 * found.interval:.2f}"
