"""Adapting to a support set by the rule that its horizon follows, with what holding out showed.

Server and trainer both adapt through here, so what the trainer measures is what is served.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import Head, HorizonRule
from comln_serve.flow import FlowSolution
from comln_serve.report.content import HorizonChoice
from comln_serve.report.folds import assign, count_folds, fold_cost
from comln_serve.report.held_out import LAW, HeldOut, hold_out
from comln_serve.report.horizon import FACTORS, choose_horizon

Stage = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Adaptation:
    """A classifier, and its support images as classifiers see them that were adapted without them.

    Attributes:
        solution: with W(T). horizon: that T.
        choice: how T was chosen; None where it was given, learned, or nothing could be held out.
        found: at the horizon `horizon`; None where nothing was held out.
        asked: (M,) whether the example was to be held out.
    """

    solution: FlowSolution
    horizon: float
    choice: HorizonChoice | None
    found: HeldOut | None
    asked: NDArray[np.bool_]


def adapt(
    head: Head,
    phi: NDArray[np.float32],
    classes: NDArray[np.intp],
    n_classes: int,
    *,
    horizon: float | HorizonRule | None = None,
    judge: bool = True,
    cancel: NDArray[np.bool_] | None = None,
    stage: Stage = nullcontext,
) -> Adaptation:
    """Adapt, choose the horizon where that is the rule, and hold out the support images.

    Without an image that could be held out, or with a support set for which that takes too long,
    "auto" is "learned".

    Args:
        phi, classes, n_classes, cancel: as in `Head.adapt`.
        horizon: T, or the rule that T follows; None: the head's own rule.
        judge: hold images out even where no choice depends on it.
        stage: a context that times "solve" and "report", the latter with the choice.

    Raises:
        ValueError: input that makes no problem. FlowError: the solve missed its tolerance.
    """
    rule = head.horizon_rule if horizon is None else horizon
    given = None if isinstance(rule, str) else rule
    T = head.horizon_of(phi, n_classes) if given is None else given
    with stage("solve"):
        solution = head.adapt(phi, classes, n_classes, horizon=T, cancel=cancel)
    if not (judge or rule == "auto"):
        return Adaptation(solution, T, None, None, np.zeros(len(phi), dtype=np.bool_))
    factors = FACTORS if rule == "auto" else LAW
    with stage("report"):
        left_out = _folds(classes, n_classes, solution, phi)
        found = None
        if len(left_out):
            found = hold_out(
                head, phi, classes, n_classes, left_out, horizon=given, factors=factors,
                cancel=cancel,
            )  # fmt: skip
        choice, index = None, int(np.flatnonzero(factors == 1.0)[0])
        # What is judged when time is up differs from run to run; a classifier must not.
        if found is not None and found.cut is None and rule == "auto":
            index, choice = choose_horizon(found, classes, n_classes, T)
    if choice is not None and choice.candidates[index].horizon != T:
        T = choice.candidates[index].horizon
        with stage("solve"):
            solution = head.adapt(phi, classes, n_classes, horizon=T, cancel=cancel)
    if found is not None:
        found = replace(
            found, logits=found.logits[index : index + 1],
            similarity=found.similarity[index : index + 1],
        )  # fmt: skip
    return Adaptation(solution, T, choice, found, np.asarray(left_out.any(axis=0)))


def _folds(
    classes: NDArray[np.intp], n_classes: int, solution: FlowSolution, phi: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """(F, M) the examples that each fold leaves out; no fold where two would take too long."""
    largest = int(np.bincount(classes, minlength=n_classes).max())
    folds = count_folds(largest, fold_cost(solution, *phi.shape), len(phi))
    return assign(classes, n_classes, folds)
