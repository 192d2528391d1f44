"""Simple heads with which a bundle's own is compared, fitted on the same embeddings.

Each has at most one setting, the one on which it depends most (strength of regularisation, step
size). Its default is the published value or scikit-learn's, if there is one; otherwise the value is
chosen on other classes (`training.evaluation.choose`). The heads named "-cv" choose it in every task
from the support images (`training.evaluation.cross_validation`).

With unequal shots every class has the same weight (an example's is M / (N n_c), with n_c the number of examples of its
class), since there are equally many queries of each class. With equal shots all weights are 1.

phi (M, d) are support embeddings, N is the number of classes. With several views of an image, (M, V, d), each is an
example, as for the bundle's own head. The weights of the penalised heads are in the span of phi, so these heads depend
on the embeddings only through inner products. If d > M they are fitted in coordinates of that span, M numbers per image
instead of d, with the same scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from comln_serve.bundle.head import Head
from comln_serve.bundle.views import as_examples, views_of
from comln_serve.flow import balanced_weights
from training.evaluation.cross_validation import Classes, Criterion, Scored, choose_setting
from training.evaluation.euler import descended
from training.evaluation.evaluate import Classify

Array = NDArray[np.float64]
Embeddings = NDArray[np.float32]

ANIL_STEPS = 10

# Iterations after which a fit is stopped and counted as unconverged: many times what fits need.
_LOGISTIC_ITERATIONS = 5_000
_SVM_ITERATIONS = 100_000

# With scikit-learn's 1e-4 and a strong penalty (C = 0.01) the fit stops after one step, far from the
# minimum: the accuracy was 3 points higher than that of the minimum, but not of this head.
_LOGISTIC_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Baseline:
    """A head with at most one setting.

    Attributes:
        words: the head in words.
        make: makes the head from the bundle's own (for its start) and the setting's value.
        setting: name of the setting, "" if there is none.
        value: default of the setting; None if it has to be chosen.
        grid: values to choose from, in units of the mean squared norm of the embeddings to the power `power`.
    """

    words: str
    make: Callable[[Head, float], Classify]
    setting: str = ""
    value: float | None = None
    grid: tuple[float, ...] = ()
    power: int = 0

    def candidates(self, embeddings: Embeddings) -> tuple[float, ...]:
        """The grid for these embeddings (n, d), rounded to two digits."""
        unit = float((embeddings.astype(np.float64) ** 2).sum(axis=-1).mean()) ** self.power
        return tuple(float(f"{unit * value:.2g}") for value in self.grid)

    def describe(self, value: float | None) -> str:
        """The head in words, with the value of its setting."""
        return f"{self.words}, {self.setting} = {value:g}" if self.setting else self.words


def prototypes(phi: NDArray[np.floating], classes: Classes, ways: int) -> Array:
    """(N, d) mean embedding of every class."""
    phi, classes = as_examples(phi, classes)
    return np.stack([phi[classes == c].mean(axis=0, dtype=np.float64) for c in range(ways)])


def nearest_prototype(phi: Embeddings, classes: Classes, ways: int, query: Embeddings) -> NDArray[np.floating]:
    """Prototypical networks: minus half the squared distance, without the constant |q|^2 / 2."""
    centres = prototypes(phi, classes, ways)
    return query @ centres.T - 0.5 * (centres**2).sum(axis=1)


def nearest_prototype_by_cosine(
    phi: Embeddings, classes: Classes, ways: int, query: Embeddings
) -> NDArray[np.floating]:
    """Cosine of the angle between query and prototype."""
    return normalised(query) @ normalised(prototypes(phi, classes, ways)).T


def ridge(phi: NDArray[np.floating], classes: Classes, ways: int, query: NDArray[np.floating], lam: float) -> Array:
    """Least squares to one-hot targets with penalty lam |W|^2, no intercept, solved in the dual.

    The head of R2D2 (Bertinetto et al. 2019) and of MetaOptNet-RR (Lee et al. 2019). With weights
    w the scores are q phi^T (K + lam diag(1 / w))^-1 Y.
    """
    phi = phi.astype(np.float64)
    K = phi @ phi.T
    K[np.diag_indices_from(K)] += lam / (len(phi) * balanced_weights(classes, ways))
    return (query @ phi.T) @ np.linalg.solve(K, np.eye(ways)[classes])


def ridge_with_intercept(
    phi: NDArray[np.floating], classes: Classes, ways: int, query: NDArray[np.floating], lam: float
) -> Array:
    """`ridge` with an intercept that is not penalised: least squares around the weighted means."""
    phi, targets = phi.astype(np.float64), np.eye(ways)[classes]
    weights = balanced_weights(classes, ways)  # they sum to 1
    centre, level = weights @ phi, weights @ targets
    Z = phi - centre
    K = Z @ Z.T
    K[np.diag_indices_from(K)] += lam / (len(phi) * weights)
    return level + ((query - centre) @ Z.T) @ np.linalg.solve(K, targets - level)


def coordinates(
    phi: NDArray[np.floating], query: NDArray[np.floating]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Z (M, r), Zq (Q, r) with Z Z^T = phi phi^T and Zq Z^T = query phi^T, r = min(M, d)."""
    if phi.shape[0] >= phi.shape[1]:
        return phi.astype(np.float64), query.astype(np.float64)
    Q, R = np.linalg.qr(phi.T.astype(np.float64))
    return R.T, query @ Q


def normalised(x: NDArray[np.floating]) -> Array:
    """Rows scaled to length 1; a row of zeros is unchanged."""
    x = x.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def _by_scikit_learn(model: Callable[[float], LogisticRegression | LinearSVC]) -> Scored:
    """The head that a model of scikit-learn is, made from its C."""

    def fit(phi: NDArray[np.floating], classes: Classes, ways: int, query: NDArray[np.floating], C: float) -> Array:
        Z, Zq = coordinates(phi, query)
        scores: Array = model(C).fit(Z, classes).decision_function(Zq)
        # For two classes scikit-learn gives one score, the difference of the logits: plus and minus half of it.
        return scores if ways > 2 else np.stack([-scores, scores], axis=1) / 2

    return fit


logistic_regression = _by_scikit_learn(
    lambda C: LogisticRegression(C=C, class_weight="balanced", tol=_LOGISTIC_TOLERANCE, max_iter=_LOGISTIC_ITERATIONS)
)
"""Multinomial, with its intercept."""


def _balanced_svm(C: float, **options: Any) -> LinearSVC:
    return LinearSVC(C=C, class_weight="balanced", max_iter=_SVM_ITERATIONS, random_state=0, **options)


svm = _by_scikit_learn(lambda C: _balanced_svm(C, multi_class="crammer_singer", fit_intercept=False))
"""Crammer and Singer's (2001): |W|^2 / 2 + C sum of hinge losses, no intercept: the head of MetaOptNet-SVM (Lee et al.
2019)."""

svm_one_against_rest = _by_scikit_learn(_balanced_svm)
"""One against the rest, squared hinge loss, with intercept."""


def _penalised(fit: Scored, *, unit_length: bool) -> Callable[[Head, float], Classify]:
    """A head independent of the bundle's own, on embeddings unchanged or scaled to length 1."""

    def make(_: Head, value: float) -> Classify:
        def classify(phi: Embeddings, classes: Classes, ways: int, query: Embeddings) -> NDArray[np.floating]:
            phi, classes = as_examples(phi, classes)
            if unit_length:
                return fit(normalised(phi), classes, ways, normalised(query), value)
            return fit(phi, classes, ways, query, value)

        return classify

    return make


def _chosen_in_the_task(
    fit: Scored, grid: tuple[float, ...], criterion: Criterion
) -> Callable[[Head, float], Classify]:
    """A head on embeddings of length 1 that chooses its setting in every task; the default is 1."""

    def make(_head: Head, _value: float) -> Classify:
        def classify(phi: Embeddings, classes: Classes, ways: int, query: Embeddings) -> NDArray[np.floating]:
            views = views_of(phi)
            phi, classes = as_examples(phi, classes)
            # Computed once, instead of in every fit.
            Z, Zq = coordinates(normalised(phi), normalised(query))
            value = choose_setting(fit, grid, 1.0, criterion, Z, classes, ways, views)
            return fit(Z, classes, ways, Zq, value)

        return classify

    return make


_DECADES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)

BASELINES: dict[str, Baseline] = {
    "prototype": Baseline("nearest class mean by Euclidean distance", lambda _head, _value: nearest_prototype),
    "cosine": Baseline("nearest class mean by cosine", lambda _head, _value: nearest_prototype_by_cosine),
    "logistic": Baseline(
        "scikit-learn's LogisticRegression on L2-normalised embeddings",
        _penalised(logistic_regression, unit_length=True),
        "C",
        1.0,
        _DECADES,
    ),
    "ridge": Baseline(
        "ridge regression to one-hot targets", _penalised(ridge, unit_length=False), "lambda", 50.0, _DECADES, power=1
    ),
    "ridge-l2": Baseline(
        "ridge regression to one-hot targets on L2-normalised embeddings",
        _penalised(ridge, unit_length=True),
        "lambda",
        1.0,
        _DECADES,
    ),
    "svm": Baseline(
        "multi-class linear SVM (Crammer-Singer)", _penalised(svm, unit_length=False), "C", 0.1, _DECADES, power=-1
    ),
    "svm-l2": Baseline(
        "multi-class linear SVM (Crammer-Singer) on L2-normalised embeddings",
        _penalised(svm, unit_length=True),
        "C",
        1.0,
        _DECADES,
    ),
    "logistic-cv": Baseline(
        "LogisticRegression on L2-normalised embeddings, C by log loss in cross-validation on the support images",
        _chosen_in_the_task(logistic_regression, _DECADES[1:], "log loss"),
    ),
    "ridge-cv": Baseline(
        "ridge regression with intercept on L2-normalised embeddings, lambda by accuracy in "
        "cross-validation on the support images",
        _chosen_in_the_task(ridge_with_intercept, _DECADES, "accuracy"),
    ),
    "svm-cv": Baseline(
        "LinearSVC, one against the rest, on L2-normalised embeddings, C by accuracy in "
        "cross-validation on the support images",
        _chosen_in_the_task(svm_one_against_rest, _DECADES[1:], "accuracy"),
    ),
    f"anil-{ANIL_STEPS}": Baseline(
        f"{ANIL_STEPS} gradient steps on the bundle's loss, from its start",
        lambda head, value: descended(head, step_size=value, horizon=ANIL_STEPS * value),
        "step",
        None,
        (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
        power=-1,
    ),
}
"""Defaults: lambda = 50 and C = 0.1 are MetaOptNet's (for unscaled embeddings), C = 1 is scikit-learn's;
lambda = 1 is the squared norm of one example of length 1."""
