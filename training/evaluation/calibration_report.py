"""What a calibration comes to, as tables for the terminal and the model card."""

from collections.abc import Sequence

from comln_serve.bundle import Calibration
from comln_serve.bundle.calibration import CalibrationTask
from comln_serve.bundle.manifest import Shots, describe_task

Table = tuple[Sequence[str], list[list[str]]]


def calibration_table(calibration: Calibration) -> Table:
    """How far probabilities are off, before and after; errors in percent."""
    rows = [
        [
            *_names(calibration, task),
            f"{100 * task.ece_before:.1f}",
            f"{100 * task.ece_after:.1f}",
            f"{task.nll_before:.3f}",
            f"{task.nll_after:.3f}",
        ]
        for task in calibration.tasks
    ]
    header = ["ECE before, %", "after", "cross-entropy before", "after"]
    return [*_first_columns(calibration), *header], rows


def unknown_table(calibration: Calibration) -> Table:
    """How well images of other classes are told from those of the task's."""
    rows = [
        [
            *_names(calibration, task),
            str(task.strangers),
            f"{task.auroc:.3f} +- {task.interval:.3f}",
            f"{100 * task.known_refused:.1f}",
            f"{100 * task.strangers_refused:.1f}",
        ]
        for task in calibration.tasks
    ]
    header = ["other classes", "AUROC", "known refused, %", "others refused, %"]
    return [*_first_columns(calibration), *header], rows


def suspects_table(calibration: Calibration) -> Table:
    """How support images with wrong labels are found."""
    rows = [
        [
            *_names(calibration, task),
            f"{100 * task.suspects.share:.0f}",
            f"{task.suspects.auroc:.3f} +- {task.suspects.interval:.3f}",
            "-" if task.suspects.precision is None else f"{100 * task.suspects.precision:.0f}",
            f"{100 * task.suspects.recall:.0f}",
        ]
        for task in calibration.tasks
        if task.suspects is not None
    ]
    header = ["labels wrong, %", "AUROC", "precision, %", "recall, %"]
    return [*_first_columns(calibration), *header], rows


def mean_by_shots(calibration: Calibration) -> Table:
    """What matters most, as the mean over data sets and ways: errors and AUROC by shots."""
    groups: dict[Shots, list[CalibrationTask]] = {}
    for task in calibration.tasks:
        groups.setdefault(task.shots, []).append(task)
    rows = [
        [
            f"{shots}" if isinstance(shots, int) else f"{shots[0]} to {shots[1]}",
            f"{100 * _mean([t.ece_before for t in tasks]):.1f}",
            f"{100 * _mean([t.ece_after for t in tasks]):.1f}",
            f"{_mean([t.auroc for t in tasks]):.3f}",
            f"{100 * _mean([t.known_refused for t in tasks]):.1f}",
            f"{100 * _mean([t.strangers_refused for t in tasks]):.1f}",
        ]
        for shots, tasks in groups.items()
    ]
    header = ["images a class", "ECE before, %", "after", "AUROC of unknown", "known refused, %", "others refused, %"]
    return header, rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _first_columns(calibration: Calibration) -> list[str]:
    return ["data", "task"] if _is_named(calibration) else ["task"]


def _names(calibration: Calibration, task: CalibrationTask) -> list[str]:
    words = describe_task(task.ways, task.shots)
    return [task.data or "", words] if _is_named(calibration) else [words]


def _is_named(calibration: Calibration) -> bool:
    return any(task.data is not None for task in calibration.tasks)
