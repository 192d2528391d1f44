"""Makes the report of an adaptation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Calibration
from comln_serve.domain.report import HeldOutReport, Report, Suspect
from comln_serve.report import unknown
from comln_serve.report.adapt import Adaptation
from comln_serve.report.held_out import HeldOut
from comln_serve.report.suspects import THRESHOLD, suspicion

_MOST_NAMED = 10


def make_report(
    adaptation: Adaptation,
    classes: NDArray[np.intp],
    labels: Sequence[str],
    *,
    own_horizon: bool,
    numbers: Sequence[int] | None = None,
    calibration: Calibration | None = None,
) -> Report:
    """Make the report of an adaptation, from its held-out support images.

    Args:
        classes: (M,) class indices of the examples.
        labels: (N,) names of the classes.
        own_horizon: whether T followed the rule for which `calibration` was measured.
        numbers: (M,) of the examples; default: 1 to M.
        calibration: of the model; without one the suspects are found at temperature 1.
    """
    per_class = np.bincount(classes, minlength=len(labels))
    found, solution = adaptation.found, adaptation.solution
    notes = _not_judged(labels, per_class)
    if not adaptation.asked.any() and per_class.max() > 1:
        steps = solution.accepted + solution.rejected
        notes.append(
            f"Nothing was held out: adapting took {steps} steps, and doing so several times would "
            "take too long. Fewer images, or a shorter horizon, get a full report."
        )
    if found is not None and found.cut is not None:
        notes.append(f"{found.judged.sum()} of {adaptation.asked.sum()} images were judged: {found.cut}.")
    temperature = calibration.temperature_of(per_class) if calibration and own_horizon else 1.0
    judged = found is not None and bool(found.judged.any())
    return Report(
        held_out=_held_out(found, classes, labels, numbers or range(1, len(classes) + 1), temperature)
        if found and judged
        else None,
        notes=notes,
        horizon_choice=adaptation.choice,
        own_horizon=own_horizon,
        unknown_threshold=unknown.threshold(found.similarity[0, found.judged]) if found else None,
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
    found: HeldOut, classes: NDArray[np.intp], labels: Sequence[str], numbers: Sequence[int], temperature: float
) -> HeldOutReport:
    examples = np.flatnonzero(found.judged)
    given, logits = classes[examples], found.logits[0, examples]
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
