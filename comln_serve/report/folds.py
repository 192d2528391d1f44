"""Chooses the number of folds within a budget, and the examples that each fold leaves out."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.flow import FlowSolution, reduced_is_cheaper

# Cost of a report per support image, in the units of `fold_cost`, of which a core does about 1.5e10
# a second: 0.3 ms. Decoding and embedding an image takes 0.6 ms and more.
BUDGET_PER_EXAMPLE = 5e6
MOST_FOLDS = 20
# Two folds, the minimum, are solved if the budget is for at least this many.
_LEAST = 0.5

# Multiply-adds that cost as much as softmax and controller do per entry.
_OVERHEAD = 64
_STAGES = 6


def fold_cost(solution: FlowSolution, examples: int, width: int) -> float:
    """Multiply-adds to repeat the solve that gave `solution`, for embeddings (M, d).

    Counted, not timed, so that the same images always get the same report.
    """
    ways = solution.W.shape[0]
    inner = examples if reduced_is_cheaper(examples, width) else 2 * width
    steps = solution.accepted + solution.rejected
    return float(steps) * _STAGES * ways * examples * (inner + _OVERHEAD)


def count_folds(largest: int, cost: float, examples: int) -> int:
    """The number of folds within the budget; 0 if two are far beyond it.

    Args:
        largest: number of examples of the largest class, near-duplicates counted once.
        cost: of one fold, from `fold_cost`.
        examples: M.
    """
    affordable = examples * BUDGET_PER_EXAMPLE / max(cost, 1.0)
    if affordable < _LEAST or largest < 2:
        return 0
    share = -(-largest // min(max(int(affordable), 2), largest, MOST_FOLDS))
    return -(-largest // share)  # the fewest that leave every example out once


def assign(classes: NDArray[np.intp], groups: NDArray[np.intp], n_classes: int, folds: int) -> NDArray[np.bool_]:
    """(folds, M) examples that each fold leaves out: of every class the same number in all folds.

    The flow and its start depend on the classes' numbers of examples. If a fold left out examples
    of one class only, these numbers would give away the class of the judged image. So every fold
    leaves out an equal share, rounded up, of every class; if the shares add up to more than all
    examples, several folds leave out the same ones. Near-duplicates count as one example and are
    left out together. No fold leaves out a whole class.

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
