"""A bundle's calibration as tables, for the terminal and the model card."""

from collections.abc import Callable, Sequence
from statistics import fmean

from comln_serve.bundle import Calibration
from comln_serve.bundle.calibration import CalibrationTask, Suspects
from comln_serve.bundle.manifest import Shots, describe_task

Table = tuple[Sequence[str], list[list[str]]]
"""Header and rows."""

# Below it the similarity tells next to nothing.
_LEAST_AUROC = 0.6


def calibration_table(calibration: Calibration) -> Table:
    """Errors of the probabilities before and after calibration, in percent."""
    return _by_task(
        calibration,
        ["ECE before, %", "after", "cross-entropy before", "after"],
        lambda task: [*_percent(task.ece_before, task.ece_after), f"{task.nll_before:.3f}", f"{task.nll_after:.3f}"],
    )


def made_worse(calibration: Calibration) -> str:
    """A sentence on the tasks whose cross-entropy is higher after calibration than before, "" if there are none."""
    worse = [task for task in calibration.tasks if f"{task.nll_after:.3f}" > f"{task.nll_before:.3f}"]
    if not worse:
        return ""
    named = _named(worse, lambda task: f"{task.nll_before:.3f} to {task.nll_after:.3f}")
    return f"The calibration raises the cross-entropy of {len(worse)} of {len(calibration.tasks)} tasks: {named}."


def unknown_table(calibration: Calibration) -> Table:
    """How well images of unknown classes are told from those of the task's classes."""
    return _by_task(
        calibration,
        ["other classes", "AUROC", "known refused, %", "others refused, %"],
        lambda task: [str(task.strangers), _auroc(task), *_percent(task.known_refused, task.strangers_refused)],
    )


def weak_unknown(calibration: Calibration) -> str:
    """A sentence on the tasks where `unknown` means little, "" if there are none."""
    weak = [task for task in calibration.tasks if task.auroc < _LEAST_AUROC]
    if not weak:
        return ""
    return (
        f"Images of other classes are hardly told from those of the task's own in {len(weak)} of "
        f"{len(calibration.tasks)} tasks, with 0.5 by chance: {_named(weak, lambda task: f'AUROC {task.auroc:.2f}')}. "
        "The threshold is part of a calibration all the same; do not rely on `unknown` there."
    )


def _named(tasks: Sequence[CalibrationTask], figure: Callable[[CalibrationTask], str]) -> str:
    return ", ".join(
        f"{f'{task.data}, ' if task.data else ''}{describe_task(task.ways, task.shots)} ({figure(task)})"
        for task in tasks
    )


def suspects_table(calibration: Calibration) -> Table:
    """How well support images with wrong labels are found; tasks where none can be held out have no row."""

    def cells(task: CalibrationTask) -> list[str] | None:
        if task.suspects is None:
            return None
        return [
            f"{100 * task.suspects.share:.0f}",
            _auroc(task.suspects),
            "-" if task.suspects.precision is None else f"{100 * task.suspects.precision:.0f}",
            f"{100 * task.suspects.recall:.0f}",
        ]

    return _by_task(calibration, ["labels wrong, %", "AUROC", "precision, %", "recall, %"], cells)


def mean_by_shots(calibration: Calibration) -> Table:
    """The main figures by shots, as means over data sets and ways."""
    groups: dict[Shots, list[CalibrationTask]] = {}
    for task in calibration.tasks:
        groups.setdefault(task.shots, []).append(task)
    rows = [
        [
            f"{shots}" if isinstance(shots, int) else f"{shots[0]} to {shots[1]}",
            *_percent(fmean(t.ece_before for t in tasks), fmean(t.ece_after for t in tasks)),
            f"{fmean(t.auroc for t in tasks):.3f}",
            *_percent(fmean(t.known_refused for t in tasks), fmean(t.strangers_refused for t in tasks)),
        ]
        for shots, tasks in groups.items()
    ]
    header = ["images a class", "ECE before, %", "after", "AUROC of unknown", "known refused, %", "others refused, %"]
    return header, rows


def _auroc(found: CalibrationTask | Suspects) -> str:
    return f"{found.auroc:.3f} +- {found.interval:.3f}"


def _percent(*shares: float) -> list[str]:
    return [f"{100 * share:.1f}" for share in shares]


def _by_task(
    calibration: Calibration, header: list[str], cells: Callable[[CalibrationTask], list[str] | None]
) -> Table:
    """A row for each task, of its cells after its name; a column for the data set where data sets have names."""
    named = any(task.data is not None for task in calibration.tasks)
    rows = [
        [*([task.data or ""] if named else []), describe_task(task.ways, task.shots), *found]
        for task in calibration.tasks
        if (found := cells(task)) is not None
    ]
    return [*(["data"] if named else []), "task", *header], rows
