"""Which examples are held out together, and how many times that is worth the time."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.flow import FlowSolution

# What a report may cost for each support image, in the units of `fold_cost`; of which a core
# does about 1.5e10 a second. Decoding and embedding an image takes 0.6 ms and more.
BUDGET_PER_EXAMPLE = 5e6
MOST_FOLDS = 20
# Two folds, the fewest there are, are solved even where the budget is for half of one.
_LEAST = 0.5

# Softmax and controller cost as much for an entry as this many multiply-adds.
_OVERHEAD = 64
_STAGES = 6


def reduced_is_cheaper(examples: int, width: int) -> bool:
    """Whether a step in s (M x M products, one) costs less than one in W (M x d, two)."""
    return examples <= 2 * width


def fold_cost(solution: FlowSolution, examples: int, width: int) -> float:
    """Multiply-adds of solving once more what `solution` solved for (M, d) embeddings.

    Counted, not timed, so that the same images always get the same report.
    """
    ways = solution.W.shape[0]
    inner = examples if reduced_is_cheaper(examples, width) else 2 * width
    steps = solution.accepted + solution.rejected
    return float(steps) * _STAGES * ways * examples * (inner + _OVERHEAD)


def count_folds(largest: int, cost: float, examples: int) -> int:
    """How many folds to hold out, each of a cost, where the largest class has so many examples;
    0 where two cost far too much.
    """
    affordable = examples * BUDGET_PER_EXAMPLE / max(cost, 1.0)
    if affordable < _LEAST or largest < 2:
        return 0
    share = -(-largest // min(max(int(affordable), 2), largest, MOST_FOLDS))
    return -(-largest // share)  # no more than it takes to leave everything out once


def assign(classes: NDArray[np.intp], n_classes: int, folds: int) -> NDArray[np.bool_]:
    """(folds, M) which examples each fold leaves out: of every class the same number in all folds.

    A class that had fewer examples than others only where one of its own is judged could be told
    by that: a flow and its start depend on how many examples a class has. So every fold leaves out
    an equal share, rounded up, of every class. Where that comes to more than all examples, some
    are left out of several folds. The only example of a class is left out of none.
    """
    left_out = np.zeros((folds, len(classes)), dtype=np.bool_)
    for c in range(n_classes):
        members = np.flatnonzero(classes == c)
        if folds and len(members) > 1:
            share = -(-len(members) // folds)
            places = np.arange(folds)[:, None] * share + np.arange(share)
            left_out[np.arange(folds)[:, None], members[places % len(members)]] = True
    return left_out
