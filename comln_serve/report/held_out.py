"""What a classifier would say of its own support images, had it not seen them.

An example that is held out has weight 0 in the loss and no part in the start. In reduced
coordinates (see docs/derivation.md) its row of s then stays 0 and its logits are those of an image
the classifier has never seen: all folds share one Gram matrix, and no W is formed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import Head
from comln_serve.flow import FlowError, Integration
from comln_serve.report.folds import reduced_is_cheaper

Array = NDArray[np.float64]

# Of the held-out logits; they are compared and counted, and never served. Half the steps of 1e-6.
TOLERANCE = 1e-3

_SMALLEST = 1e-30


@dataclass(frozen=True)
class HeldOut:
    """Support examples as seen by classifiers adapted without them.

    Attributes:
        logits: (M, N), and similarity: (M,) as `unknown.similarity` has it; NaN where not judged.
        judged: (M,) whether the example was held out.
        folds: classifiers that were solved for.
        cut: why fewer examples were judged than asked for, else None.
    """

    logits: Array
    similarity: Array
    judged: NDArray[np.bool_]
    folds: int
    cut: str | None


def hold_out(
    head: Head,
    phi: NDArray[np.float32],
    classes: NDArray[np.intp],
    n_classes: int,
    fold_of: NDArray[np.intp],
    *,
    horizon: float | None = None,
    cancel: NDArray[np.bool_] | None = None,
) -> HeldOut:
    """Adapt without each fold in turn, as `head.adapt` would, and look at what was left out.

    Args:
        phi, classes: (M, d) and (M,), as in `Head.adapt`.
        fold_of: (M,) the fold each is held out in, -1 for none; no fold may hold a whole class.
        horizon: T to use instead of the head's own for the smaller support sets.
        cancel: as in `solve_flow`; the folds that are done by then count.
    """
    task = _Task(head, phi, classes, n_classes)
    logits = np.full((len(classes), n_classes), np.nan)
    similarity = np.full(len(classes), np.nan)
    cut, done = None, 0
    for fold in range(int(fold_of.max()) + 1):
        try:
            table, lengths = task.without(fold_of == fold, horizon, cancel)
        except FlowError as error:
            cut = str(error)
            break
        left_out = np.flatnonzero(fold_of == fold)
        logits[left_out] = table[:, left_out].T
        cosines = table[:, left_out] / lengths[:, None]
        similarity[left_out] = cosines.max(axis=0) / task.lengths[left_out]
        done += 1
    return HeldOut(logits, similarity, ~np.isnan(similarity), done, cut)


class _Task:
    """A support set, and what all folds share. Class-major, as `comln_serve.flow.kernels`."""

    def __init__(
        self, head: Head, phi: NDArray[np.float32], classes: NDArray[np.intp], n_classes: int
    ) -> None:
        self.head, self.classes, self.n_classes = head, classes, n_classes
        self.phi = phi.astype(np.float64)
        self.gram = self.phi @ self.phi.T  # (M, M)
        self.squares = self.gram.diagonal()
        self.lengths = np.maximum(np.sqrt(self.squares), _SMALLEST)
        self.Y = np.ascontiguousarray(np.eye(n_classes)[classes].T)  # (N, M)
        self.reduced = reduced_is_cheaper(*phi.shape)
        self.back = np.empty((0, 0)) if self.reduced else np.ascontiguousarray(self.phi.T)
        self.W0 = None if head.W0 is None else head.W0.astype(np.float64)
        self.start = None if self.W0 is None else self.W0 @ self.phi.T

    def without(
        self, left_out: NDArray[np.bool_], horizon: float | None, cancel: NDArray[np.bool_] | None
    ) -> tuple[Array, Array]:
        """Logits (N, M) of all examples and lengths (N,) of the rows of W(T), without some."""
        kept = ~left_out
        weights = np.zeros(len(kept))
        weights[kept] = self.head.example_weights(self.classes[kept], self.n_classes)
        if horizon is None:
            mean_square = float(self.squares[kept].mean())
            horizon = self.head.horizon_for(int(kept.sum()), self.n_classes, mean_square)
        mixture = self._mixture(kept)
        start = mixture @ self.gram if self.start is None else self.start
        solver = self.head.solver
        flow = Integration(
            self.gram if self.reduced else self.phi, self.back, start, self.Y, weights, horizon,
            self.head.regularisation, rtol=max(solver.rtol, TOLERANCE),
            atol=max(solver.atol, TOLERANCE), max_steps=solver.max_steps, limit_steps=False,
            cancel=cancel,
        )  # fmt: skip
        flow.advance()
        if not self.reduced:
            W = (mixture @ self.phi if self.W0 is None else self.W0) - flow.X
            return W @ self.phi.T, np.maximum(np.linalg.norm(W, axis=1), _SMALLEST)
        moved = flow.X @ self.gram
        first = mixture * start if self.W0 is None else self.W0 * self.W0
        # |W0_n - X_n phi|^2, with W0 phi^T = start and (X phi) phi^T = moved.
        squares = first.sum(axis=1) - (flow.X * (2 * start - moved)).sum(axis=1)
        return start - moved, np.sqrt(np.maximum(squares, _SMALLEST**2))

    def _mixture(self, kept: NDArray[np.bool_]) -> Array:
        """A (N, M) with W(0) = A phi, of a start that is made of the examples kept, or zero."""
        if self.head.start != "prototype":
            return np.zeros_like(self.Y)
        members = self.Y * kept
        per_class = members.sum(axis=1)
        means = members / per_class[:, None]
        norms = np.sqrt(np.maximum((means * (means @ self.gram)).sum(axis=1), 0.0))
        return means * self.head.prototype_scale(norms, per_class)[:, None]
