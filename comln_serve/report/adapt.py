"""Adapts to a support set, chooses the horizon by its rule, and holds out support images.

Server and trainer both adapt through here, so the trainer measures what is served.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import Head, HorizonRule
from comln_serve.bundle.views import as_examples, first_views, views_of
from comln_serve.domain.report import HorizonChoice
from comln_serve.flow import FlowSolution
from comln_serve.report.duplicates import group_near_duplicates, photos_of_several_classes
from comln_serve.report.folds import affordable_views, assign, count_distinct, count_folds, fold_cost
from comln_serve.report.held_out import LAW, HeldOut, hold_out
from comln_serve.report.horizon import candidate_factors, choose_horizon

Stage = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Adaptation:
    """An adapted classifier, and the results of holding out its support images.

    Attributes:
        solution: with W(T).
        seen: (M, d) of the support images, their first views.
        horizon: T.
        learned: T by the head's law.
        choice: how T was chosen; None if it was given, learned, or nothing could be held out.
        found: results at `horizon`; None if nothing was held out.
        asked: (M,) whether the image was selected to be held out.
        groups: (M,) of near-duplicates, which were left out together.
        contradictory: positions of the examples that are the same photo in several classes, by photo.
        views_left_out: whether the images have more views than their first ones, which alone are examples.
    """

    solution: FlowSolution
    seen: NDArray[np.float32]
    horizon: float
    learned: float
    choice: HorizonChoice | None
    found: HeldOut | None
    asked: NDArray[np.bool_]
    groups: NDArray[np.intp]
    contradictory: Sequence[NDArray[np.intp]] = ()
    views_left_out: bool = False


def adapt(
    head: Head,
    phi: NDArray[np.float32],
    classes: NDArray[np.intp],
    n_classes: int,
    *,
    hashes: Sequence[int | None] | None = None,
    horizon: float | HorizonRule | None = None,
    judge: bool = True,
    cancel: NDArray[np.bool_] | None = None,
    stage: Stage = nullcontext,
) -> Adaptation:
    """Adapt, choose the horizon if the rule is "auto", and hold out the support images.

    If no image can be held out, or holding out would take too long, "auto" acts as "learned". All views of an image are
    held out together, and its first one is classified. Of very many images only the first views are used
    (`affordable_views`).

    Args:
        phi: (M, d), or (M, V, d) for V views of each image.
        classes, n_classes, cancel: as in `Head.adapt`.
        hashes: (M,) of the images, to leave out near-duplicates together; default: each one is left out by itself.
        horizon: T, or the rule that sets T; None: the head's own rule.
        judge: hold images out even if no choice depends on it.
        stage: returns a context that times "solve" or "report" (which includes the choice).

    Raises:
        ValueError: the input is invalid.
        FlowError: the solve missed its tolerance.
    """
    all_views, phi = views_of(phi), affordable_views(phi, n_classes)
    rule = head.horizon_rule if horizon is None else horizon
    given = None if isinstance(rule, str) else rule
    learned = head.horizon_of(phi, n_classes)
    T = learned if given is None else given
    with stage("solve"):
        solution = head.adapt(phi, classes, n_classes, horizon=T, cancel=cancel)
    seen, groups, nobody = first_views(phi), np.arange(len(phi)), np.zeros(len(phi), dtype=np.bool_)
    adaptation = Adaptation(
        solution, seen, T, learned, None, None, nobody, groups, views_left_out=views_of(phi) < all_views
    )
    if not (judge or rule == "auto"):
        return adaptation
    choice = None
    with stage("report"):
        if hashes is not None:
            groups = group_near_duplicates(seen, classes, hashes)
            adaptation = replace(
                adaptation, groups=groups, contradictory=photos_of_several_classes(seen, classes, hashes)
            )
        examples, of_class = as_examples(phi, classes)
        largest = int(count_distinct(classes, groups, n_classes).max())
        # 0 if even two would take too long
        folds = count_folds(largest, fold_cost(solution, *examples.shape), len(examples))
        if folds == 0:
            return adaptation
        factors = candidate_factors(len(examples), n_classes) if rule == "auto" else LAW
        left_out = assign(classes, groups, n_classes, folds)
        views = views_of(phi)
        out = left_out.repeat(views, axis=1)
        found = hold_out(
            head, examples, of_class, n_classes, out, horizon=given, factors=factors, cancel=cancel
        ).of_images(views)
        index = int(np.flatnonzero(factors == 1.0)[0])
        # A run cut by its time limit must not decide: the classifier would depend on timing.
        if found.cut is None and rule == "auto":
            index, choice = choose_horizon(found, classes, n_classes, T, factors)
    if choice is not None and choice.candidates[index].horizon != T:
        T = choice.candidates[index].horizon
        with stage("solve"):
            solution = head.adapt(phi, classes, n_classes, horizon=T, cancel=cancel)
    asked = np.asarray(left_out.any(axis=0))
    return replace(adaptation, solution=solution, horizon=T, choice=choice, found=found.at(index), asked=asked)
