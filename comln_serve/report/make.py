"""Makes the report of an adaptation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle import Calibration
from comln_serve.domain import words
from comln_serve.domain.classifier import softmax
from comln_serve.domain.report import MOST_SUSPECTS, HeldOutReport, Report, Suspect, note_of_alike
from comln_serve.report import unknown
from comln_serve.report.adapt import Adaptation
from comln_serve.report.folds import count_distinct
from comln_serve.report.held_out import HeldOut
from comln_serve.report.suspects import listed, suspicion
from comln_serve.report.temperature import fit_temperature


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
    distinct = count_distinct(classes, adaptation.groups, len(labels))
    found, solution = adaptation.found, adaptation.solution
    numbers = numbers or range(1, len(classes) + 1)
    first, sizes = np.unique(adaptation.groups, return_counts=True)
    near: list[NDArray[np.intp]] = [np.flatnonzero(adaptation.groups == group) for group in first[sizes > 1]]
    # Notes quote labels by repr(): so `Report.renamed` finds them.
    notes = note_of_alike(labels)
    notes += _contradictions(adaptation.contradictory, numbers, [labels[int(c)] for c in classes])
    notes += _not_judged(labels, per_class, distinct)
    if near:
        notes.append(_named(near, numbers, [labels[int(classes[group[0]])] for group in near]))
    if adaptation.views_left_out:
        notes.append(
            "Of so many images only one view each was used: with all their views, as fewer images are, adapting would "
            "take too long."
        )
    if not adaptation.asked.any() and distinct.max() > 1:
        steps = solution.accepted + solution.rejected
        notes.append(
            f"Nothing was held out: adapting took {steps} steps, and doing so several times would "
            "take too long. Fewer images, or a shorter horizon, get a full report."
        )
    if found is not None and found.cut is not None:
        notes.append(f"{found.judged.sum()} of {adaptation.asked.sum()} images were judged: {found.cut}.")
    temperature = calibration.temperature_of(per_class) if calibration and own_horizon else 1.0
    one_scene = per_class[(distinct == 1) & (per_class > 1)].sum() * 2 > len(classes)
    if one_scene:
        notes.append(
            "The held-out accuracy is not known: most images belong to classes of a single scene, and what the "
            "others get says little about new photos."
        )
    threshold = unknown.threshold(found.similarity[0, found.judged]) if found else None
    held_out = None
    if found is not None and found.judged.any() and not one_scene:
        held_out, suspected = _held_out(found, classes, labels, numbers, temperature)
        if suspected > MOST_SUSPECTS:
            notes.append(
                f"{suspected} images look mislabelled; the {MOST_SUSPECTS} that look it most are listed. So many mean "
                "that labels were mixed up, or that the model cannot tell these classes apart."
            )
    return Report(
        held_out=held_out,
        notes=notes,
        near_duplicates=[[numbers[i] for i in group] for group in near],
        contradictory=[[numbers[i] for i in photo] for photo in adaptation.contradictory],
        horizon_choice=adaptation.choice,
        own_horizon=own_horizon,
        unknown_threshold=threshold,
        nearest_other_class=None
        if threshold is not None
        else unknown.nearest_other(adaptation.seen, classes, solution.W.astype(np.float32)),
        # Not of a run cut by its time limit: the probabilities would depend on timing.
        temperature=_temperature(found, classes) if found and held_out and found.cut is None else None,
    )


def _temperature(found: HeldOut, classes: NDArray[np.intp]) -> float | None:
    return fit_temperature(found.logits[0, found.judged], classes[found.judged])


def _contradictions(photos: Sequence[NDArray[np.intp]], numbers: Sequence[int], labels: Sequence[str]) -> list[str]:
    """A note of photos that were sent under several labels."""
    if not photos:
        return []
    named = [" and ".join(f"{numbers[i]} ({labels[i]!r})" for i in photo[: words.MOST_NAMED]) for photo in photos]
    what = "A photo was" if len(photos) == 1 else f"{len(photos)} photos were"
    return [
        f"{what} sent under different labels: {words.listed(named, '; ')}. Remove the examples whose label is wrong."
    ]


def _not_judged(labels: Sequence[str], per_class: NDArray[np.integer], distinct: NDArray[np.integer]) -> list[str]:
    """Notes that name the classes of one image, and those whose images are all near-duplicates."""
    alone = [repr(labels[c]) for c in np.flatnonzero(per_class == 1).tolist()]
    same = [repr(labels[c]) for c in np.flatnonzero((distinct == 1) & (per_class > 1)).tolist()]
    if len(alone) == len(labels):
        return ["Every class has a single image: without it nothing is left to judge it by."]
    notes: list[str] = []
    if alone:
        notes.append(
            f"Classes of a single image were not judged, as nothing is left without it: {words.listed(alone)}. The "
            "held-out accuracy is that of the other classes; new images of these are classified right less often."
        )
    if same:
        notes.append(
            "Classes whose images are all nearly the same photo were not judged, as nothing else is left without "
            f"them: {words.listed(same)}. Add photos of other occasions."
        )
    return notes


def _named(near: Sequence[NDArray[np.intp]], numbers: Sequence[int], labels: Sequence[str]) -> str:
    named = [
        f"{words.listed([str(numbers[i]) for i in group])} of {label!r}"
        for group, label in zip(near, labels, strict=True)
    ]
    return (
        f"{sum(map(len, near))} images are nearly the same photo as others of their class, such as frames of a "
        f"burst, and are not judged by one another: {words.listed(named, '; ')}. Photos of other occasions teach more."
    )


def _held_out(
    found: HeldOut, classes: NDArray[np.intp], labels: Sequence[str], numbers: Sequence[int], temperature: float
) -> tuple[HeldOutReport, int]:
    """The held-out part of the report, and the number of images that look mislabelled, listed or not."""
    examples = np.flatnonzero(found.judged)
    given, logits = classes[examples], found.logits[0, examples]
    # By probability, as predictions are: after a very short horizon the logits differ by less than rounding.
    predicted = softmax(logits).argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(confusion, (given, predicted), 1)
    classified: list[int | None] = [None] * len(classes)
    for example, label in zip(examples.tolist(), predicted.tolist(), strict=True):
        classified[example] = label
    scores, likelier = suspicion(logits, given, temperature)
    suspects = listed(scores)
    worst = [i for i in np.argsort(-scores, kind="stable") if suspects[i]]
    report = HeldOutReport(
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
            for i in worst[:MOST_SUSPECTS]
        ],
        predicted=classified,
    )
    return report, len(worst)
