"""Chooses views and number of folds such that adapting and reporting stay affordable, and what each fold leaves out."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.views import first_views, views_of
from comln_serve.flow import FlowSolution, reduced_is_cheaper

# Cost of a report per example (every view of a support image is one), in the units of `fold_cost`, of which a core does
# about 1e10 a second: 2 ms for the first folds, in all 0.3 ms for more. Decoding and embedding a photo takes 6 ms, a
# tiny image 0.6 ms. The first folds are worth it: of 81 products, 5 photos each in one view, two folds reported 55 %,
# five 72 %, and 76 % of others were right.
BUDGET_PER_EXAMPLE, BUDGET_OF_MORE = 2e7, 3e6
FIRST_FOLDS, MOST_FOLDS = 5, 20
# Two folds, the minimum, are solved if the budget is for at least this many.
_LEAST = 0.7

# Multiply-adds that cost as much as softmax and controller do per entry.
_OVERHEAD = 64
_STAGES = 6
# A fold is solved to a looser tolerance (`held_out.TOLERANCE`), in about this share of a solve's steps
# at a bundle's usual 1e-6.
_STEPS = 0.35

# Multiply-adds of an evaluation of the flow (see `fold_cost`), where Gram matrix and metric cost as much as up to
# 100 more classes. Up to this work solve and report take about as long as embedding the views of photos: with d = 1600,
# 81 classes have 525 images of three views each, five have 690.
_MOST_WORK, _OTHER_CLASSES = 4.5e8, 100


def affordable_views(phi: NDArray[np.float32], n_classes: int) -> NDArray[np.float32]:
    """phi (M, d) or (M, V, d), or its first views (M, d) where all of them would take too long to adapt to."""
    examples, width = len(phi) * views_of(phi), phi.shape[-1]
    work = (n_classes + _OTHER_CLASSES) * examples * min(examples, 2 * width)
    return phi if work <= _MOST_WORK else first_views(phi)


def fold_cost(solution: FlowSolution, examples: int, width: int) -> float:
    """Multiply-adds to solve a fold after the solve that gave `solution`, for embeddings (M, d).

    Counted, not timed, so that the same images always get the same report.
    """
    ways = solution.W.shape[0]
    inner = examples if reduced_is_cheaper(examples, width) else 2 * width
    steps = _STEPS * (solution.accepted + solution.rejected)
    return steps * _STAGES * ways * examples * (inner + _OVERHEAD)


def count_folds(largest: int, cost: float, examples: int) -> int:
    """The number of folds within the budget; 0 if two are far beyond it.

    Args:
        largest: number of images of the largest class, near-duplicates counted once.
        cost: of one fold, from `fold_cost`.
        examples: number of views of all images.
    """
    first, more = (examples * budget / max(cost, 1.0) for budget in (BUDGET_PER_EXAMPLE, BUDGET_OF_MORE))
    if first < _LEAST or largest < 2:
        return 0
    affordable = max(int(min(first, FIRST_FOLDS)), int(min(more, MOST_FOLDS)), 2)
    share = -(-largest // min(affordable, largest))
    return -(-largest // share)  # the fewest that leave every example out once


def assign(classes: NDArray[np.intp], groups: NDArray[np.intp], n_classes: int, folds: int) -> NDArray[np.bool_]:
    """(folds, M) examples that each fold leaves out: of every class the same number in all folds.

    The flow and its start depend on the classes' numbers of examples. If a fold left out examples of one class only,
    these numbers would give away the class of the judged image. So every fold leaves out an equal share, rounded up, of
    every class; if the shares add up to more than all examples, several folds leave out the same ones. Near-duplicates
    count as one example and are left out together. No fold leaves out a whole class.

    Args:
        classes: (M,).
        groups: (M,) of near-duplicates, from `group_near_duplicates`.
    """
    left_out = np.zeros((folds, len(classes)), dtype=np.bool_)
    for c in range(n_classes):
        members = np.flatnonzero(classes == c)
        distinct, group = np.unique(groups[members], return_inverse=True)
        if folds and len(distinct) > 1:
            share = -(-len(distinct) // folds)
            places = np.arange(folds)[:, None] * share + np.arange(share)
            chosen = np.zeros((folds, len(distinct)), dtype=np.bool_)
            chosen[np.arange(folds)[:, None], places % len(distinct)] = True
            left_out[:, members] = chosen[:, group]
    return left_out


def count_distinct(classes: NDArray[np.intp], groups: NDArray[np.intp], n_classes: int) -> NDArray[np.intp]:
    """(n_classes,) number of groups of near-duplicates in each class."""
    _, first = np.unique(groups, return_index=True)
    return np.bincount(classes[first], minlength=n_classes)
