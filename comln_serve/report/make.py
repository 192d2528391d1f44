"""From a support set and what was adapted to it to a report."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Calibration, Head
from comln_serve.flow import FlowSolution
from comln_serve.report import unknown
from comln_serve.report.content import HeldOutReport, Report, Suspect
from comln_serve.report.folds import assign, count_folds, fold_cost
from comln_serve.report.held_out import HeldOut, hold_out
from comln_serve.report.suspects import THRESHOLD, suspicion

_MOST_NAMED = 10


def make_report(
    head: Head,
    phi: NDArray[np.float32],
    classes: NDArray[np.intp],
    labels: Sequence[str],
    solution: FlowSolution,
    *,
    numbers: Sequence[int] | None = None,
    horizon: float | None = None,
    calibration: Calibration | None = None,
    cancel: NDArray[np.bool_] | None = None,
) -> Report:
    """Hold the support images out, as far as time allows, and report.

    Args:
        phi, classes, horizon, cancel: as in `Head.adapt`; solution: what it returned.
        labels: (N,) names of the classes. numbers: (M,) of the examples; by default 1 to M.
        calibration: of the model; without one the suspects are found at temperature 1.
    """
    per_class = np.bincount(classes, minlength=len(labels))
    notes = _not_judged(labels, per_class)
    folds = count_folds(
        int(per_class[per_class > 1].sum()), fold_cost(solution, *phi.shape), len(phi)
    )
    if folds == 0 and per_class.max() > 1:
        steps = solution.accepted + solution.rejected
        notes.append(
            f"Nothing was held out: adapting took {steps} steps, and doing so several times would "
            "take too long. Fewer images, or a shorter horizon, get a full report."
        )
    found = None
    if folds:
        fold_of = assign(classes, len(labels), folds)
        found = hold_out(head, phi, classes, len(labels), fold_of, horizon=horizon, cancel=cancel)
        if found.cut is not None:
            notes.append(
                f"{found.judged.sum()} of {(fold_of >= 0).sum()} images were judged: {found.cut}."
            )
    judged = found is not None and bool(found.judged.any())
    temperature = calibration.temperature_of(per_class) if calibration and horizon is None else 1.0
    return Report(
        held_out=_held_out(found, classes, labels, numbers or range(1, len(phi) + 1), temperature)
        if found and judged
        else None,
        notes=notes,
        own_horizon=horizon is None,
        unknown_threshold=unknown.threshold(found.similarity[found.judged]) if found else None,
    )


def _not_judged(labels: Sequence[str], per_class: NDArray[np.integer]) -> list[str]:
    alone = [label for label, count in zip(labels, per_class, strict=True) if count == 1]
    if not alone:
        return []
    if len(alone) == len(labels):
        return ["Every class has a single image: without it nothing is left to judge it by."]
    named = ", ".join(map(repr, alone[:_MOST_NAMED]))
    if len(alone) > _MOST_NAMED:
        named += f" and {len(alone) - _MOST_NAMED} more"
    return [f"Classes of a single image were not judged, as nothing is left without it: {named}."]


def _held_out(
    found: HeldOut,
    classes: NDArray[np.intp],
    labels: Sequence[str],
    numbers: Sequence[int],
    temperature: float,
) -> HeldOutReport:
    examples = np.flatnonzero(found.judged)
    given, logits = classes[examples], found.logits[examples]
    predicted = logits.argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(confusion, (given, predicted), 1)
    scores, likelier = suspicion(logits, given, temperature)
    worst = [i for i in np.argsort(-scores, kind="stable") if scores[i] >= THRESHOLD]
    return HeldOutReport(
        folds=found.folds,
        judged=len(examples),
        accuracy=float((predicted == given).mean()),
        confusion=confusion.tolist(),
        suspects=[
            Suspect(
                number=numbers[int(examples[i])],
                label=labels[int(given[i])],
                likelier=labels[int(likelier[i])],
                score=float(scores[i]),
            )
            for i in worst
        ],
    )
