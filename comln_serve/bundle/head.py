"""The meta-learned head: the start of the flow, and how long a classifier follows it.

Server and trainer both adapt through `Head.adapt`, so an accuracy measured by the trainer is that of the served model.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, FiniteFloat
from pydantic.dataclasses import dataclass as checked_dataclass

from comln_serve.bundle.views import as_examples
from comln_serve.flow import FlowSolution, balanced_weights, solve_flow, uniform_weights
from comln_serve.flow.problem import MIN_TOLERANCE

Start = Literal["learned", "zero", "prototype"]
Weighting = Literal["uniform", "balanced"]
Tolerance = Annotated[float, Field(ge=MIN_TOLERANCE, lt=1)]
HorizonRule = Literal["learned", "auto"]
"""How T is set: by the head's meta-learned law, or for each task by cross-validation along the flow
on its support images (`comln_serve.report.horizon`)."""

_SMALLEST_NORM = 1e-30
# The mean of the class means is a direction that embeddings have in common only if it is longer than rounding errors.
LEAST_COMMON = 1e-6
# At this T any separable support set is fitted to rounding. The API refuses a larger one.
MAX_HORIZON = 1e9


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SolverSettings:
    """Tolerances of the served solve, as in `comln_serve.flow.solve_flow` and in `bundle.json`."""

    rtol: Tolerance
    atol: Tolerance
    max_steps: Annotated[int, Field(ge=1)]


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class HorizonLaw:
    """T = horizon M^examples N^classes (mean ||phi||^2)^norm, for M images of N classes."""

    examples: FiniteFloat
    classes: FiniteFloat
    norm: FiniteFloat


@dataclass(frozen=True)
class Head:
    """The parameters of adaptation.

    Support embeddings phi are (M, d), or (M, V, d) for V views of each image. Every view is an example: M V takes the
    place of M everywhere.

    Attributes:
        start: W(0). "learned", the paper's W0, which fixes the number of classes; "zero", as a row shared by all
            classes would cancel in the softmax; "prototype", alpha times the mean embedding of each class.
        horizon: T, in flow time; with `exponents`, T for one example, one class and embeddings of length 1.
        regularisation: lambda of lambda/2 ||W - W0||^2.
        weighting: "uniform": each example weighs 1/M (the paper); "balanced": each class 1/N.
        W0: (N, d) float32 for "learned", else None.
        alpha: scale of the prototypes for "prototype", else None.
        similarity: rho, the expected cosine between two images of a class, for a levelled "prototype" start, else None.
            Each class's row then has the direction of its mean and alpha times the length sqrt(rho + (1 - rho) / k)
            that the mean of k unit vectors with this cosine has. Actual lengths would favour classes whose few images
            happen to agree; equal lengths would favour those with many.
        shot_offset: beta of a "prototype" start. To the row of class n with k_n examples it adds
            beta (mean ln k - ln k_n) times the unit vector along the mean of the class means, which
            all embeddings have in common: a bias. Without it new images of classes with few examples get too small
            logits, as the flow fits these few by a row that resembles new images less. The offset is learned for the T
            of the law: at a T far below, it favours such classes too much.
        exponents: if the horizon depends on the task, else None.
        whitening: r, the strength of the metric in which the flow descends; 0: the paper's flow.
            See `comln_serve.flow.metric`.
        horizon_rule: how T is set unless the caller chooses.
    """

    start: Start
    horizon: float
    regularisation: float
    weighting: Weighting
    solver: SolverSettings
    W0: NDArray[np.float32] | None = None
    alpha: float | None = None
    similarity: float | None = None
    shot_offset: float = 0.0
    exponents: HorizonLaw | None = None
    whitening: float = 0.0
    horizon_rule: HorizonRule = "learned"

    @property
    def ways(self) -> int | None:
        """The number of classes the head requires; None: any."""
        return None if self.W0 is None else int(self.W0.shape[0])

    def initial_weights(
        self, phi: NDArray[np.float32], classes: NDArray[np.intp], n_classes: int
    ) -> NDArray[np.float64]:
        """W(0) (N, d) for support embeddings phi (M, d) of classes (M,); every class is present."""
        phi, classes = as_examples(phi, classes)
        if self.start == "learned":
            if self.W0 is None or self.W0.shape[0] != n_classes:
                raise ValueError(f"this head is tied to {self.ways} classes, got {n_classes}")
            return self.W0.astype(np.float64)
        if self.start == "zero":
            return np.zeros((n_classes, phi.shape[1]))
        per_class = np.bincount(classes, minlength=n_classes)
        if not per_class.all():
            raise ValueError(f"every class needs an example; {(per_class == 0).sum()} have none")
        order = np.argsort(classes, kind="stable")
        firsts = per_class.cumsum() - per_class
        means = np.add.reduceat(phi[order].astype(np.float64), firsts) / per_class[:, None]
        W0 = means * self.prototype_scale(np.linalg.norm(means, axis=1), per_class)[:, None]
        if self.shot_offset:
            common = means.mean(axis=0)
            length = max(float(np.linalg.norm(common)), LEAST_COMMON)
            W0 += self.shot_offsets(per_class)[:, None] * (common / length)
        return W0

    def shot_offsets(self, per_class: NDArray[Any]) -> NDArray[np.float64]:
        """(..., N) beta (mean ln k - ln k_n) for classes of k_n examples (..., N): what W(0) adds along the mean."""
        logs = np.log(per_class)
        offsets: NDArray[np.float64] = self.shot_offset * (logs.mean(axis=-1, keepdims=True) - logs)
        return offsets

    def prototype_scale(self, norms: NDArray[np.float64], per_class: NDArray[Any]) -> NDArray[np.float64]:
        """(..., N) factors that make class means the rows of a "prototype" start.

        Args:
            norms: (..., N) length of each class mean.
            per_class: (..., N) number of examples in each mean.
        """
        if self.alpha is None:
            raise ValueError("a prototype start needs alpha")
        if self.similarity is None:
            return np.full(norms.shape, self.alpha)
        expected = np.sqrt(self.similarity + (1 - self.similarity) / per_class)
        scale: NDArray[np.float64] = self.alpha * expected / np.maximum(norms, _SMALLEST_NORM)
        return scale

    def horizon_of(self, phi: NDArray[np.float32], n_classes: int) -> float:
        """T for a task with support embeddings phi (M, d) of `n_classes` classes, at most 1e9."""
        if self.exponents is None:
            return self.horizon
        squares = np.square(phi, dtype=np.float64).sum(axis=-1)
        return self.horizon_for(squares.size, n_classes, float(squares.mean()))

    def horizon_for(self, examples: int, n_classes: int, mean_square: float) -> float:
        """T from the number of examples and the mean squared length of their embeddings."""
        if self.exponents is None:
            return self.horizon
        log_T = (
            math.log(self.horizon)
            + self.exponents.examples * math.log(examples)
            + self.exponents.classes * math.log(n_classes)
            # The floor avoids log(0) for embeddings that are all zero, whose T has no effect.
            + self.exponents.norm * math.log(max(mean_square, _SMALLEST_NORM))
        )
        return math.exp(min(log_T, math.log(MAX_HORIZON)))

    def example_weights(self, classes: NDArray[np.intp], n_classes: int) -> NDArray[np.float64]:
        """(M,) weight of each support example in the loss, for class indices (M,)."""
        if self.weighting == "balanced":
            return balanced_weights(classes, n_classes)
        return uniform_weights(len(classes))

    def adapt(
        self,
        phi: NDArray[np.float32],
        classes: NDArray[np.intp],
        n_classes: int,
        *,
        horizon: float | None = None,
        cancel: NDArray[np.bool_] | None = None,
    ) -> FlowSolution:
        """Adapt to a support set: W(T) in the solution's `W` (N, d).

        Args:
            phi: (M, d) or (M, V, d) support embeddings.
            classes: (M,) class index of each image, 0 <= index < n_classes, every class present.
            n_classes: N >= 2; must equal `ways` unless that is None.
            horizon: T; default: the head's law.
            cancel: as in `solve_flow`.

        Raises:
            ValueError: the input is invalid.
            FlowError: the solve missed its tolerance.
        """
        phi, classes = as_examples(phi, classes)
        return solve_flow(
            phi,
            self.initial_weights(phi, classes, n_classes),
            np.eye(n_classes)[classes],
            self.horizon_of(phi, n_classes) if horizon is None else horizon,
            lam=self.regularisation,
            weights=self.example_weights(classes, n_classes),
            whitening=self.whitening,
            rtol=self.solver.rtol,
            atol=self.solver.atol,
            max_steps=self.solver.max_steps,
            cancel=cancel,
        )
