"""Every simple head compared with an independent formulation: brute force, primal, SciPy, torch."""

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.model_selection import PredefinedSplit
from torch.nn import functional

from comln_serve.bundle import Head, SolverSettings
from comln_serve.bundle.head import Start, Weighting
from tests.support.documents import document
from tests.support.training import image_set
from training.data import ImageSet
from training.evaluation import baselines
from training.evaluation.baselines import BASELINES, Baseline
from training.evaluation.choose import choose, thinned
from training.evaluation.compare import difference, measure
from training.evaluation.cross_validation import choose_setting
from training.evaluation.euler import descend
from training.evaluation.evaluate import adapted
from training.evaluation.tasks import Task
from training.results.accuracy import Difference

Array = NDArray[np.float64]
SOLVER = SolverSettings(1e-8, 1e-8, 100_000)
HEAD = Head("prototype", 10.0, 0.0, "balanced", SOLVER, alpha=0.5)


def episode(
    counts: tuple[int, ...] = (2, 1, 4), d: int = 12, spread: float = 1.0, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.intp], int, NDArray[np.float32], NDArray[np.intp]]:
    """phi (M, d), classes, N, queries (5 N, d) and their classes: Gaussian clusters."""
    rng = np.random.default_rng(seed)
    centres = 3.0 * rng.normal(size=(len(counts), d))
    classes = np.repeat(np.arange(len(counts)), counts)
    answers = np.repeat(np.arange(len(counts)), 5)
    phi = centres[classes] + spread * rng.normal(size=(len(classes), d))
    query = centres[answers] + spread * rng.normal(size=(len(answers), d))
    return phi.astype(np.float32), classes, len(counts), query.astype(np.float32), answers


def clusters(spread: float, n_classes: int = 6, per_class: int = 12, d: int = 30) -> ImageSet:
    """Embeddings (n, d) in a cluster for each class."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n_classes, 1, d))
    points = centres + spread * rng.normal(size=(n_classes, per_class, d))
    return image_set(points.reshape(-1, d).astype(np.float32), [per_class] * n_classes)


def class_weights(classes: NDArray[np.intp], ways: int) -> Array:
    """(M,) M / (N n_c)."""
    return len(classes) / (ways * np.bincount(classes)[classes])


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("counts", [(2, 1, 4), (1, 1), (3, 5), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("d", [6, 40])
def test_separated_clusters_are_classified(name: str, counts: tuple[int, ...], d: int) -> None:
    """Also with two classes, for which scikit-learn gives one score; d below and above M."""
    rng = np.random.default_rng(0)
    ways, classes = len(counts), np.repeat(np.arange(len(counts)), counts)
    answers = np.repeat(np.arange(ways), 5)
    phi, query = (
        (3.0 * np.eye(d)[c] + 0.01 * rng.normal(size=(len(c), d))).astype(np.float32) for c in (classes, answers)
    )
    classify = BASELINES[name].make(HEAD, BASELINES[name].value or 0.01)
    scores = classify(phi, classes, ways, query)
    assert scores.shape == (len(query), ways)
    np.testing.assert_array_equal(scores.argmax(axis=1), answers)


def test_nearest_prototype_by_brute_force() -> None:
    phi, classes, ways, query, _ = episode(spread=4.0)
    centres = np.array([phi[classes == c].mean(axis=0) for c in range(ways)])
    squared = ((query[:, None] - centres) ** 2).sum(axis=2)
    expected = 0.5 * (query**2).sum(axis=1, keepdims=True) - 0.5 * squared
    found = baselines.nearest_prototype(phi, classes, ways, query)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    cosines = [[float(q @ c / np.sqrt((q @ q) * (c @ c))) for c in centres] for q in query.astype(float)]
    found = baselines.nearest_prototype_by_cosine(phi, classes, ways, query)
    np.testing.assert_allclose(found, cosines, atol=1e-6)


@pytest.mark.parametrize("d", [4, 12])
@pytest.mark.parametrize("lam", [0.01, 5.0])
def test_ridge_is_the_primal_closed_form(d: int, lam: float) -> None:
    phi, classes, ways, query, _ = episode(d=d)
    X, D = phi.astype(float), np.diag(class_weights(classes, ways))
    W = np.linalg.solve(X.T @ D @ X + lam * np.eye(d), X.T @ D @ np.eye(ways)[classes])
    found = baselines.ridge(phi, classes, ways, query, lam)
    np.testing.assert_allclose(found, query @ W, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("d", [4, 12])
def test_coordinates_keep_the_products(d: int) -> None:
    phi, _, _, query, _ = episode(d=d)
    Z, Zq = baselines.coordinates(phi, query)
    assert Z.shape[1] == min(len(phi), d)
    np.testing.assert_allclose(Z @ Z.T, phi @ phi.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(Zq @ Z.T, query @ phi.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("C", "apart"), [(2.0, True), (0.01, False)])
def test_logistic_regression_minimises_its_objective_in_the_embedding_space(C: float, apart: bool) -> None:
    """|W|^2 / 2 + C sum w_i cross-entropy_i, intercept free, by BFGS in all d dimensions.

    The second case has similar embeddings of length 1, as after a ReLU, for which scikit-learn's
    default tolerance stops the fit after one step.
    """
    phi, classes, ways, query, _ = episode()
    if not apart:
        phi, query = (
            (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (phi + 10.0, query + 10.0)
        )
    (M, d), w = phi.shape, class_weights(classes, ways)

    def objective(flat: Array) -> tuple[float, Array]:
        W, b = flat[: ways * d].reshape(ways, d), flat[ways * d :]
        logits = phi @ W.T + b
        top = logits.max(axis=1)
        log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        loss = float(w @ (log_sum - logits[np.arange(M), classes]))
        R = w[:, None] * (np.exp(logits - log_sum[:, None]) - np.eye(ways)[classes])
        slopes = [(W / C + R.T @ phi).ravel(), R.sum(axis=0)]
        return 0.5 / C * float((W**2).sum()) + loss, np.concatenate(slopes)

    start = np.zeros(ways * d + ways)
    best = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x
    logits = query @ best[: ways * d].reshape(ways, d).T + best[ways * d :]
    found = baselines.logistic_regression(phi, classes, ways, query, C)
    centred = logits - logits.mean(axis=1, keepdims=True)
    found -= found.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(found, centred, atol=0.01 * np.abs(centred).max())


@pytest.mark.parametrize("lam", [0.01, 5.0])
@pytest.mark.parametrize("d", [4, 12])
def test_ridge_with_intercept_minimises_its_objective(d: int, lam: float) -> None:
    """By scikit-learn, with weights on the examples; the intercept is not penalised."""
    phi, classes, ways, query, _ = episode(d=d)
    w = class_weights(classes, ways)
    model = Ridge(alpha=lam).fit(phi.astype(float), np.eye(ways)[classes], sample_weight=w)
    found = baselines.ridge_with_intercept(phi, classes, ways, query, lam)
    np.testing.assert_allclose(found, model.predict(query.astype(float)), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("counts", [(5, 5, 5), (3, 3, 3), (10, 10)])
def test_the_cross_validated_c_is_that_of_scikit_learn(counts: tuple[int, ...]) -> None:
    """`LogisticRegressionCV` on the same folds, by log loss, over the same values."""
    grid = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    folds = min(5, counts[0])
    values = set()
    for seed, spread in ((0, 6.0), (1, 3.0), (2, 9.0)):
        phi, classes, ways, _, _ = episode(counts, spread=spread, seed=seed)
        X = baselines.normalised(phi)
        number = np.concatenate([np.arange(count) % folds for count in counts])
        model = LogisticRegressionCV(
            Cs=grid,
            cv=PredefinedSplit(number),
            scoring="neg_log_loss",
            class_weight="balanced",
            tol=1e-6,
            max_iter=5000,
            l1_ratios=(0,),
            use_legacy_attributes=False,
        ).fit(X, classes)
        found = choose_setting(baselines.logistic_regression, grid, 1.0, "log loss", X, classes, ways)
        assert found == pytest.approx(float(np.ravel(model.C_)[0]))
        values.add(found)
    assert len(values) > 1


def test_settings_are_chosen_where_images_can_be_held_out_and_in_the_middle_of_ties() -> None:
    grid = (1.0, 2.0, 3.0, 4.0, 5.0)

    def choose_among(right: set[float], counts: tuple[int, ...]) -> float:
        def fit(phi: Any, classes: Any, ways: int, query: Any, value: float) -> Array:
            assert set(classes.tolist()) == set(range(ways))  # no fold takes a whole class
            # The queries are their own classes.
            return np.eye(ways)[query[:, 0].astype(int)] * (1.0 if value in right else -1.0)

        classes = np.repeat(np.arange(len(counts)), counts)
        return choose_setting(fit, grid, 9.0, "accuracy", classes[:, None].astype(float), classes, len(counts))

    assert choose_among({2.0}, (2, 7, 3)) == 2.0
    assert choose_among({1.0, 2.0, 5.0}, (5, 5)) == 2.0
    assert choose_among(set(grid), (5, 5)) == 3.0
    assert choose_among({2.0}, (1, 7, 3)) == 9.0


@pytest.mark.parametrize("name", ["logistic-cv", "ridge-cv", "svm-cv"])
def test_tuned_heads_equal_the_untuned_ones_at_the_chosen_value(name: str) -> None:
    """In all dimensions, without the coordinates of the span; with one example a class, at 1."""
    fit, grid, criterion = {
        "logistic-cv": (baselines.logistic_regression, range(-2, 4), "log loss"),
        "ridge-cv": (baselines.ridge_with_intercept, range(-3, 4), "accuracy"),
        "svm-cv": (baselines.svm_one_against_rest, range(-2, 4), "accuracy"),
    }[name]
    for counts in ((4, 4, 4), (1, 1, 1)):
        phi, classes, ways, query, _ = episode(counts, d=40, spread=4.0)
        X, Xq = baselines.normalised(phi), baselines.normalised(query)
        value = choose_setting(fit, tuple(10.0**p for p in grid), 1.0, criterion, X, classes, ways)
        expected = fit(X, classes, ways, Xq, value)
        found = BASELINES[name].make(HEAD, 0.0)(phi, classes, ways, query)
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())


def test_two_classes_have_logits() -> None:
    phi, classes, ways, query, _ = episode((3, 5), spread=3.0)
    X, Xq = baselines.normalised(phi), baselines.normalised(query)
    model = LogisticRegression(C=1.0, class_weight="balanced", tol=1e-6).fit(X, classes)
    found = softmax(baselines.logistic_regression(X, classes, ways, Xq, 1.0), axis=1)
    np.testing.assert_allclose(found, model.predict_proba(Xq), atol=1e-4)


@pytest.mark.parametrize("C", [0.02, 5.0])
def test_svm_solves_its_quadratic_programme(C: float) -> None:
    """|W|^2 / 2 + C sum w_i xi_i, with w_y x - w_m x >= 1 - xi for m != y and xi >= 0, by SLSQP."""
    phi, classes, ways, query, _ = episode((2, 1, 3), d=3, spread=2.0)
    (M, d), w = phi.shape, class_weights(classes, ways)
    size = ways * d

    def objective(v: Array) -> float:
        return 0.5 * float(v[:size] @ v[:size]) + C * float(w @ v[size:])

    def gradient(v: Array) -> Array:
        return np.concatenate([v[:size], C * w])

    rows, margins = [], []
    for i in range(M):
        slack = np.eye(M)[i]
        rows.append(np.concatenate([np.zeros(size), slack]))
        margins.append(0.0)
        for m in set(range(ways)) - {classes[i]}:
            row = np.zeros((ways, d))
            row[classes[i]], row[m] = phi[i], -phi[i]
            rows.append(np.concatenate([row.ravel(), slack]))
            margins.append(1.0)
    A, b = np.array(rows), np.array(margins)
    solved = minimize(
        objective,
        np.zeros(size + M),
        jac=gradient,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda v: A @ v - b, "jac": lambda _: A},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert solved.success
    expected = query @ solved.x[:size].reshape(ways, d).T
    found = baselines.svm(phi, classes, ways, query, C)
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("start", ["zero", "prototype", "learned"])
@pytest.mark.parametrize("weighting", ["uniform", "balanced"])
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_ten_steps_are_gradient_descent_by_autograd(start: Start, weighting: Weighting, lam: float) -> None:
    phi, classes, ways, query, _ = episode(spread=3.0)
    W0 = np.random.default_rng(1).normal(size=(ways, phi.shape[1])).astype(np.float32)
    head = Head(
        start,
        7.0,
        lam,
        weighting,
        SOLVER,
        W0=W0 if start == "learned" else None,
        alpha=0.3 if start == "prototype" else None,
    )
    step = 0.05
    X, y = torch.from_numpy(phi).double(), torch.from_numpy(classes)
    W_start = {
        "zero": torch.zeros(ways, phi.shape[1], dtype=torch.float64),
        "prototype": 0.3 * torch.stack([X[y == c].mean(dim=0) for c in range(ways)]),
        "learned": torch.from_numpy(W0).double(),
    }[start]
    w = torch.full((len(y),), 1.0 / len(y), dtype=torch.float64)
    if weighting == "balanced":
        w = torch.from_numpy(1.0 / (ways * np.bincount(classes)[classes]))
    W = W_start
    for _ in range(10):
        W = W.detach().requires_grad_()
        loss = w @ functional.cross_entropy(X @ W.T, y, reduction="none")
        loss = loss + 0.5 * lam * (W - W_start).square().sum()
        (grad,) = torch.autograd.grad(loss, W)
        W = W - step * grad
    found = descend(head, phi, classes, ways, step_size=step, horizon=10 * step)
    np.testing.assert_allclose(found, W.detach().numpy(), rtol=1e-9, atol=1e-10)
    scores = BASELINES["anil-10"].make(head, step)(phi, classes, ways, query)
    np.testing.assert_allclose(scores, query @ W.detach().numpy().T, rtol=1e-8, atol=1e-8)


def test_many_small_steps_approximate_the_flow() -> None:
    phi, classes, ways, _, _ = episode(spread=3.0)
    exact = HEAD.adapt(phi, classes, ways).W
    errors = [
        np.abs(descend(HEAD, phi, classes, ways, step_size=h, horizon=10.0) - exact).max() for h in (0.004, 0.002)
    ]
    assert errors[1] < 0.01 * np.abs(exact).max()
    assert errors[0] / errors[1] == pytest.approx(2.0, abs=0.2)  # order 1


@pytest.mark.parametrize("name", [n for n, b in BASELINES.items() if b.power or b.setting])
def test_grids_follow_the_scale_of_the_embeddings(name: str) -> None:
    """The grid for embeddings ten times as long contains the value that is best for them."""
    data = clusters(0.8)
    baseline, task = BASELINES[name], Task(4, (1, 4), 3)
    one, ten = baseline.candidates(data.images), baseline.candidates(10.0 * data.images)
    np.testing.assert_allclose(ten, np.array(one) * 100.0**baseline.power, rtol=0.05)
    start = Head("zero", 10.0, 0.0, "balanced", SOLVER)
    middle = len(one) // 2
    measured = [
        measure(replace(data, images=scale * data.images), baseline.make(start, found[middle]), task, 20, 0)
        for scale, found in ((1.0, one), (10.0, ten))
    ]
    assert measured[0].accuracy.mean == pytest.approx(measured[1].accuracy.mean, abs=0.02)


def knowing(right: float) -> Baseline:
    """A head that is right (by the first coordinate) with only one value of its setting."""

    def make(_: Head, value: float) -> Any:
        def classify(phi: Any, classes: Any, ways: int, query: Any) -> Array:
            scores = -np.abs(query[:, :1] - np.array([phi[classes == c][0, 0] for c in range(ways)]))
            return scores if value == right else -scores

        return classify

    return Baseline("knows", make, "value", None, (1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize(("right", "at_the_end"), [(2.0, False), (4.0, True), (1.0, True)])
def test_the_best_setting_is_chosen(right: float, at_the_end: bool) -> None:
    data = replace(clusters(1.0), images=np.repeat(np.arange(6.0), 12)[:, None].astype(np.float32))
    found = choose(knowing(right), HEAD, data, Task(3, 1, 2), 0, episodes=5)
    assert found == (right, at_the_end)


def test_thinned_classes_keep_enough_images_without_rotations() -> None:
    counts = (60, 45, 10)
    images = np.arange(sum(counts), dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(3, axis=3)
    thin = thinned(image_set(images, counts, rotations=4), Task(2, (1, 30), 15))
    assert thin.rotations == 1
    assert [len(m) for m in thin.members] == [45, 45, 10]
    kept = [thin.images[m, 0, 0, 0].tolist() for m in thin.members]
    assert kept == [list(range(45)), list(range(60, 105)), list(range(105, 115))]


def test_unfinished_fits_are_counted_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = clusters(1.5)
    task = Task(5, 4, 3)
    for name, limit in (("svm", "_SVM_ITERATIONS"), ("logistic", "_LOGISTIC_ITERATIONS")):
        classify = BASELINES[name].make(HEAD, 10.0)
        assert measure(data, classify, task, 12, 0).unconverged == 0
        with monkeypatch.context() as patch:
            patch.setattr(baselines, limit, 1)
            assert measure(data, classify, task, 12, 0).unconverged == 12


def test_other_warnings_of_a_head_are_not_lost() -> None:
    def classify(phi: Any, classes: Any, ways: int, query: Any) -> Array:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return np.zeros((len(query), ways))

    with pytest.raises(DeprecationWarning, match="old"):
        measure(clusters(1.0), classify, Task(2, 1, 1), 2, 0)


def test_differences_are_taken_in_pairs() -> None:
    data = clusters(1.2)
    task = Task(5, 1, 5)
    own = measure(data, adapted(HEAD), task, 60, 0)
    other = measure(data, BASELINES["cosine"].make(HEAD, 0.0), task, 60, 0)
    pairs = own.episodes - other.episodes
    assert pairs.any()
    found = difference(own, other)
    assert found.mean == pytest.approx(own.accuracy.mean - other.accuracy.mean)
    assert found.interval == pytest.approx(1.96 * np.sqrt(pairs.var(ddof=1) / 60))
    # Episodes are easy or hard for both heads, so the paired interval is smaller.
    assert found.interval < np.hypot(own.accuracy.interval, other.accuracy.interval)
    assert difference(own, own) == Difference(0.0, 0.0)


@pytest.mark.parametrize(
    ("mean", "interval", "verdict", "text"),
    [
        (0.021, 0.02, "ahead", "+2.10 +- 2.00"),
        (0.02, 0.021, "inside", "+2.00 +- 2.10"),
        (-0.021, 0.02, "behind", "-2.10 +- 2.00"),
        (-1e-6, 0.0, "behind", "0.00 +- 0.00"),
        (0.0, 0.0, "inside", "0.00 +- 0.00"),
    ],
)
def test_verdicts(mean: float, interval: float, verdict: str, text: str) -> None:
    found = Difference(mean, interval)
    assert found.verdict == verdict
    assert str(found) == text


def test_the_document_lists_the_heads_and_their_settings() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| .* \|(.*)\|$", document("evaluation.md"), re.MULTILINE)
    assert [name for name, _ in rows] == list(BASELINES)
    for name, setting in rows:
        baseline = BASELINES[name]
        if baseline.value is not None:
            assert f"{baseline.setting} = {baseline.value:g}" in setting
        elif baseline.setting:
            assert "always chosen" in setting
        else:
            assert not setting.strip()
