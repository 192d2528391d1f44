"""Which examples are held out together, and how many times that is worth the time."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.flow import FlowSolution

# What a report may cost for each support image, in the units of `fold_cost`; of which a core
# does about 1.5e10 a second. Decoding and embedding an image takes 0.6 ms and more.
BUDGET_PER_EXAMPLE = 5e6
# Leaving out one at a time for up to this many examples, else in at most so many parts.
MOST_SINGLES, MOST_PARTS = 30, 20
# Two parts, the fewest there are, are held out even where the budget is for half of one.
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


def count_folds(judged: int, cost: float, examples: int) -> int:
    """How many parts the `judged` examples are held out in; 0 where two cost far too much."""
    affordable = examples * BUDGET_PER_EXAMPLE / max(cost, 1.0)
    if affordable < _LEAST:
        return 0
    most = judged if judged <= MOST_SINGLES else MOST_PARTS
    return min(max(int(affordable), 2), most)


def assign(classes: NDArray[np.intp], n_classes: int, folds: int) -> NDArray[np.intp]:
    """(M,) the fold each example is held out in, -1: in none, as the only one of its class.

    Every class is spread evenly, so that with two folds or more none loses all its examples.
    """
    alone = np.bincount(classes, minlength=n_classes)[classes] == 1
    order = np.argsort(classes, kind="stable")
    order = order[~alone[order]]
    fold = np.full(len(classes), -1)
    fold[order] = np.arange(len(order)) % folds if folds else -1
    return fold
