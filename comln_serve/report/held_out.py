"""Classifies support images with classifiers that were adapted without them.

A held-out example has weight 0 in the loss and no part in start and metric. In reduced coordinates (see
docs/derivation.md) its row of s then stays 0, and its logits are those of an image the classifier has never seen. So
all folds share one Gram matrix, and no W is formed. One integration of a fold passes every requested horizon.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import LEAST_COMMON, MAX_HORIZON, Head
from comln_serve.flow import FlowError, Integration, reduced_is_cheaper
from comln_serve.flow.metric import symmetric, whitened, whitening_of_gram
from comln_serve.flow.problem import Array
from comln_serve.report.unknown import average_length

# Tolerance of held-out logits, which are never served. Takes about a third of the steps of 1e-6.
TOLERANCE = 1e-3

# Numbers in each array computed for several folds at once: 8 MB; there are about 8 such arrays.
_MOST_NUMBERS = 2**20

_SMALLEST = 1e-30

# `factors` for one horizon, that of the head's law.
LAW = np.ones(1)


@dataclass(frozen=True)
class HeldOut:
    """Results for support examples of classifiers adapted without them, at each of m horizons.

    Attributes:
        logits: (m, M, N), NaN if not judged.
        similarity: (m, M) as in `unknown.similarity`, NaN if not judged.
        judged: (M,) whether the example was held out.
        folds: number of classifiers solved for.
        cut: why fewer examples were judged than requested, else None.
    """

    logits: Array
    similarity: Array
    judged: NDArray[np.bool_]
    folds: int
    cut: str | None

    def at(self, horizon: int) -> "HeldOut":
        """The results at one of the horizons, by its index."""
        chosen = slice(horizon, horizon + 1)
        return replace(self, logits=self.logits[chosen], similarity=self.similarity[chosen])

    def of_images(self, views: int) -> "HeldOut":
        """The results for the first view of each image, if the examples are all views, image by image."""
        return replace(
            self, logits=self.logits[:, ::views], similarity=self.similarity[:, ::views], judged=self.judged[::views]
        )


def hold_out(
    head: Head,
    phi: NDArray[np.float32],
    classes: NDArray[np.intp],
    n_classes: int,
    left_out: NDArray[np.bool_],
    *,
    horizon: float | None = None,
    factors: Array = LAW,
    cancel: NDArray[np.bool_] | None = None,
) -> HeldOut:
    """Adapt without each fold in turn, as `head.adapt` would, and classify the examples left out.

    An example is judged by the first fold that leaves it out.

    Args:
        phi, classes: (M, d) and (M,), as in `Head.adapt`.
        left_out: (F, M) examples that each fold leaves out; never a whole class.
        horizon: T; default: the head's T for the smaller support sets.
        factors: (m,) ascending; the requested horizons are T times each.
        cancel: as in `solve_flow`; folds finished before it is set count.
    """
    task = _SharedArrays(head, phi, classes, n_classes, len(factors))
    logits = np.full((len(factors), len(classes), n_classes), np.nan)
    similarity = np.full((len(factors), len(classes)), np.nan)
    first = left_out & (np.cumsum(left_out, axis=0) == 1)
    cut, done = None, 0
    while done < len(left_out) and cut is None:
        some = left_out[done : done + task.at_once]
        solved, cut = task.solve(some, horizon, factors, cancel)
        fold, example = np.nonzero(first[done : done + len(solved.moved_by)])
        for at in range(len(factors)):  # one at a time: tables of all horizons would take gigabytes
            tables, lengths = task.classify(solved, at)
            logits[at, example] = tables[fold, :, example]
            similarity[at, example] = logits[at, example].max(axis=1) / lengths[fold] / task.lengths[example]
            del tables  # before the next are made
        done += len(solved.moved_by)
        del solved
    return HeldOut(logits, similarity, ~np.isnan(similarity[0]), done, cut)


@dataclass(frozen=True)
class _Solved:
    """Several folds' flows.

    Attributes:
        mixtures: (F, N, M) A with W(0) = A phi, for a prototype or zero start.
        starts: (F, N, M) logits at time 0.
        moved_by: (F, m, N, r) what `_solve_fold` returns.
    """

    mixtures: Array
    starts: Array
    moved_by: Array


class _SharedArrays:
    """A support set, and the arrays that all folds share. Class-major, as in `flow.kernels`."""

    def __init__(
        self, head: Head, phi: NDArray[np.float32], classes: NDArray[np.intp], n_classes: int, horizons: int
    ) -> None:
        self.head, self.classes, self.n_classes = head, classes, n_classes
        self.phi = phi.astype(np.float64)
        self.squares = np.square(self.phi).sum(axis=1)
        self.lengths = np.maximum(np.sqrt(self.squares), _SMALLEST)
        self.Y = np.ascontiguousarray(np.eye(n_classes)[classes].T)  # (N, M)
        self.reduced = reduced_is_cheaper(*phi.shape)
        self.gram = self.phi @ self.phi.T if self.reduced else np.empty((0, 0))  # (M, M)
        self.W0 = None if head.W0 is None else head.W0.astype(np.float64)
        self.start = None if self.W0 is None else self.W0 @ self.phi.T
        self.width = len(classes) if self.reduced else phi.shape[1]
        self.at_once = max(1, _MOST_NUMBERS // (horizons * n_classes * max(self.width, len(phi))))

    def solve(
        self, left_out: NDArray[np.bool_], horizon: float | None, factors: Array, cancel: NDArray[np.bool_] | None
    ) -> tuple[_Solved, str | None]:
        """Adapt without the examples that each of up to `at_once` folds (F, M) leaves out.

        Returns:
            The first F' <= F folds, and why F' < F, or None.
        """
        mixtures = self._mixtures(~left_out)
        starts = self._times_gram(mixtures) if self.start is None else np.broadcast_to(self.start, mixtures.shape)
        moved_by = np.empty((len(left_out), len(factors), self.n_classes, self.width))
        done, cut = 0, None
        for out, start in zip(left_out, starts, strict=True):
            try:
                moved_by[done] = self._solve_fold(~out, start, horizon, factors, cancel)
            except FlowError as error:
                cut = str(error)
                break
            done += 1
        return _Solved(mixtures[:done], starts[:done], moved_by[:done]), cut

    def classify(self, solved: _Solved, at: int) -> tuple[Array, Array]:
        """The folds' logits (F', N, M) of all examples at one of the horizons, and the average length (F',) of the
        rows of W(T) as in `unknown.average_length`.
        """
        X, mixtures, start = solved.moved_by[:, at], solved.mixtures, solved.starts
        if not self.reduced:
            W = (mixtures @ self.phi if self.W0 is None else self.W0) - X
            return W @ self.phi.T, average_length(np.square(W).sum(axis=2))
        moved = X @ self.gram
        first = mixtures * start if self.W0 is None else self.W0 * self.W0
        # |W0_n - X_n phi|^2, with W0 phi^T = start and (X phi) phi^T = moved.
        squares = first.sum(axis=-1) - (X * (2 * start - moved)).sum(axis=2)
        return start - moved, average_length(squares)

    def _solve_fold(
        self,
        kept: NDArray[np.bool_],
        start: Array,
        horizon: float | None,
        factors: Array,
        cancel: NDArray[np.bool_] | None,
    ) -> Array:
        """X (m, N, r) with W(T) = W0 - X phi (reduced) or W0 - X at each horizon, for the examples
        kept (M,) and the logits `start` (N, M) at time 0.

        Raises:
            FlowError: the solve was cancelled, or missed its tolerance.
        """
        weights = np.zeros(len(kept))
        weights[kept] = self.head.example_weights(self.classes[kept], self.n_classes)
        if horizon is None:
            mean_square = float(self.squares[kept].mean())
            horizon = self.head.horizon_for(int(kept.sum()), self.n_classes, mean_square)
        marks = np.minimum(horizon * factors, MAX_HORIZON)
        features, back, B = self._products(weights)
        solver = self.head.solver
        flow = Integration(
            features,
            back,
            start,
            self.Y,
            weights,
            float(marks[-1]),
            self.head.regularisation,
            rtol=max(solver.rtol, TOLERANCE),
            atol=max(solver.atol, TOLERANCE),
            max_steps=solver.max_steps,
            limit_steps=False,
            cancel=cancel,
            marks=marks,
        )
        flow.advance()
        if B is None:
            return flow.marked
        for X in flow.marked:  # in place: there may be 17 horizons
            X[:] = X @ B
        return flow.marked

    def _products(self, weights: Array) -> tuple[Array, Array, Array | None]:
        """The matrices F and G of a fold's flow (see `kernels`), and B (M, M) of its metric, or
        None if the metric is the identity or the flow is not reduced.
        """
        nothing, strength = np.empty((0, 0)), self.head.whitening
        if not self.reduced:
            return self.phi, np.ascontiguousarray(whitened(self.phi, weights, strength).T), None
        if strength == 0.0:
            return self.gram, nothing, None
        B = whitening_of_gram(self.gram, weights, strength)
        return symmetric(B @ self.gram), nothing, B

    def _mixtures(self, kept: NDArray[np.bool_]) -> Array:
        """A (F, N, M) with W(0) = A phi for each fold, for a prototype start made of the examples
        kept (F, M), or a zero start.
        """
        members = self.Y * kept[:, None, :]
        if self.head.start != "prototype":
            return np.zeros_like(members)
        per_class = members.sum(axis=2)
        means = members / per_class[:, :, None]
        norms = np.sqrt(np.maximum((means * self._times_gram(means)).sum(axis=2), 0.0))
        mixtures = means * self.head.prototype_scale(norms, per_class)[:, :, None]
        if self.head.shot_offset:
            common = means.mean(axis=1, keepdims=True)  # (F, 1, M)
            squares = (common * self._times_gram(common)).sum(axis=2)
            lengths = np.maximum(np.sqrt(np.maximum(squares, 0.0)), LEAST_COMMON)
            mixtures += (self.head.shot_offsets(per_class) / lengths)[:, :, None] * common
        return mixtures

    def _times_gram(self, tables: Array) -> Array:
        """The product of tables (F, N, M) and phi phi^T. No Gram matrix where there are more examples than features."""
        return tables @ self.gram if self.reduced else (tables @ self.phi) @ self.phi.T
