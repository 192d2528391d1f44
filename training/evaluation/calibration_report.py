"""What a calibration comes to, as tables for the terminal and the model card."""

from collections.abc import Sequence

from comln_serve.bundle import Calibration
from comln_serve.bundle.manifest import describe_task

Table = tuple[Sequence[str], list[list[str]]]


def calibration_table(calibration: Calibration) -> Table:
    """How far probabilities are off, before and after; errors in percent."""
    rows = [
        [
            describe_task(task.ways, task.shots),
            f"{100 * task.ece_before:.1f}",
            f"{100 * task.ece_after:.1f}",
            f"{task.nll_before:.3f}",
            f"{task.nll_after:.3f}",
        ]
        for task in calibration.tasks
    ]
    return ["task", "ECE before, %", "after", "cross-entropy before", "after"], rows


def unknown_table(calibration: Calibration) -> Table:
    """How well images of other classes are told from those of the task's."""
    rows = [
        [
            describe_task(task.ways, task.shots),
            str(task.strangers),
            f"{task.auroc:.3f} +- {task.interval:.3f}",
            f"{100 * task.known_refused:.1f}",
            f"{100 * task.strangers_refused:.1f}",
        ]
        for task in calibration.tasks
    ]
    header = ["task", "other classes", "AUROC", "known refused, %", "others refused, %"]
    return header, rows


def suspects_table(calibration: Calibration) -> Table:
    """How support images with wrong labels are found."""
    rows = [
        [
            describe_task(task.ways, task.shots),
            f"{100 * task.suspects.share:.0f}",
            f"{task.suspects.auroc:.3f} +- {task.suspects.interval:.3f}",
            "-" if task.suspects.precision is None else f"{100 * task.suspects.precision:.0f}",
            f"{100 * task.suspects.recall:.0f}",
        ]
        for task in calibration.tasks
        if task.suspects is not None
    ]
    return ["task", "labels wrong, %", "AUROC", "precision, %", "recall, %"], rows
