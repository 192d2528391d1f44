"""Temperature and threshold of `unknown`: fitted on some episodes, measured on others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import rankdata

from comln_serve.bundle import Head
from comln_serve.bundle.calibration import Calibration, CalibrationTask, Suspects, TaskLaw, shots_of
from comln_serve.bundle.manifest import as_stored
from comln_serve.report import adapt, make_report, similarity
from comln_serve.report.suspects import listed, suspicion
from comln_serve.report.unknown import REFUSED, nearest_other
from training.evaluation.open_set import OpenSetEpisode, OpenSetEpisodes, unknown_classes
from training.results.accuracy import mean_and_interval

BINS = 15
WRONG_LABELS = 0.1
ALLOWED_CHANGE = 1e-4  # of a probability, by storing embeddings of examples in 16 bits

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """A head's predictions for the queries of one episode.

    Attributes:
        logits: (Q, N). classes: (Q,) true classes. similarity: (Q,) to the nearest row of W.
        nearest_other: mean similarity of the support images to their nearest other class.
        task: (3,) what a `TaskLaw`'s coefficients are multiplied by: 1, ln of the shots, ln of the ways.
    """

    logits: Array
    classes: NDArray[np.intp]
    similarity: Array
    nearest_other: float
    task: Array


def predict(head: Head, episodes: OpenSetEpisodes) -> list[Predictions]:
    """The head's predictions for the known queries of every episode."""

    def run(episode: OpenSetEpisode, _: int) -> Predictions:
        ways = episodes.task.ways
        adaptation = adapt(head, episode.phi, episode.classes, ways, judge=False)
        W = adaptation.solution.W.astype(np.float32)
        return Predictions(
            episode.query.astype(np.float64) @ W.T.astype(np.float64),
            episode.query_classes,
            similarity(episode.query, W),
            nearest_other(adaptation.seen, episode.classes, W),
            np.array([1.0, np.log(shots_of(np.bincount(episode.classes))), np.log(ways)]),
        )

    return episodes.map(run)


def fit_temperature(tasks: Sequence[Sequence[Predictions]]) -> TaskLaw:
    """The maximum-likelihood law of ln(temperature); every task has the same weight."""
    varies = _varies(tasks)

    def loss(coefficients: Array) -> float:
        total = 0.0
        for episodes in tasks:
            total += float(
                np.mean([cross_entropy(e.logits / np.exp(e.task[varies] @ coefficients), e.classes) for e in episodes])
            )
        return total / len(tasks)

    return _law(minimize(loss, np.zeros(varies.sum()), method="L-BFGS-B").x, varies)


def fit_unknown(tasks: Sequence[Sequence[Predictions]], *, relative: bool = False) -> TaskLaw:
    """The least-squares law of the similarity below which 5% of each task's known queries are.

    Args:
        relative: the law is of how far this lies above the similarity of support images to their nearest other class.
    """
    varies = _varies(tasks)
    found = [[e.similarity - (e.nearest_other if relative else 0.0) for e in t] for t in tasks]
    thresholds = [np.quantile(np.concatenate(t), REFUSED) for t in found]
    mean_task = np.array([np.mean([e.task for e in t], axis=0)[varies] for t in tasks])
    values: Array = np.linalg.lstsq(mean_task, np.array(thresholds), rcond=None)[0].astype(np.float64)
    return _law(values, varies)


def ranges(tasks: Sequence[Sequence[Predictions]]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Smallest and largest shots, and smallest and largest ways, of the episodes."""
    points = np.array([e.task for episodes in tasks for e in episodes])
    (_, shots, ways), (_, most_shots, most_ways) = points.min(axis=0), points.max(axis=0)
    # Rounded, since exp(ln(10)) is 10.000000000000002.
    return (
        (round(float(np.exp(shots)), 3), round(float(np.exp(most_shots)), 3)),
        (round(float(np.exp(ways)), 3), round(float(np.exp(most_ways)), 3)),
    )


def measure(head: Head, calibration: Calibration, episodes: OpenSetEpisodes) -> CalibrationTask:
    """How well calibrated the head is on the episodes of a task with the laws of `calibration`."""
    task = episodes.task
    results = episodes.map(lambda episode, number: _measure_episode(head, calibration, episode, number))
    plain = np.concatenate([r.plain for r in results])
    calibrated = np.concatenate([r.calibrated for r in results])
    right = np.concatenate([r.classes for r in results])
    auroc, interval = mean_and_interval(np.array([r.auroc for r in results]))
    return CalibrationTask(
        ways=task.ways,
        shots=task.shots,
        ece_before=calibration_error(plain, right),
        ece_after=calibration_error(calibrated, right),
        nll_before=cross_entropy(plain, right),
        nll_after=cross_entropy(calibrated, right),
        strangers=unknown_classes(episodes.data, task),
        auroc=auroc,
        interval=interval,
        known_refused=float(np.mean([r.known_refused for r in results])),
        strangers_refused=float(np.mean([r.unknown_refused for r in results])),
        suspects=_suspects([r.noisy for r in results if r.noisy is not None]),
    )


@dataclass(frozen=True)
class _EpisodeResult:
    plain: Array  # (Q, N) logits
    calibrated: Array  # (Q, N) logits divided by the temperature
    classes: NDArray[np.intp]
    auroc: float
    known_refused: float
    unknown_refused: float
    noisy: tuple[Array, NDArray[np.bool_]] | None  # (n,) scores, (n,) whether the label was wrong


def _measure_episode(head: Head, calibration: Calibration, episode: OpenSetEpisode, number: int) -> _EpisodeResult:
    per_class = np.bincount(episode.classes)
    adaptation = adapt(head, episode.phi, episode.classes, len(per_class))
    W = adaptation.solution.W.astype(np.float32)
    names = [str(c) for c in range(len(per_class))]
    report = make_report(adaptation, episode.classes, names, own_horizon=True, calibration=calibration)
    threshold = report.unknown_threshold
    if threshold is None:
        threshold = calibration.unknown_of(per_class, report.nearest_other_class or 0.0)
    known, unknown = similarity(episode.query, W), similarity(episode.unknown, W)
    logits = episode.query.astype(np.float64) @ W.T.astype(np.float64)
    return _EpisodeResult(
        logits,
        logits / calibration.temperature_of(per_class),
        episode.query_classes,
        area_under_curve(known, unknown),
        float((known < threshold).mean()),
        float((unknown < threshold).mean()),
        suspicion_of_wrong_labels(head, calibration, episode, number),
    )


def suspicion_of_wrong_labels(
    head: Head, calibration: Calibration, episode: OpenSetEpisode, number: int
) -> tuple[Array, NDArray[np.bool_]] | None:
    """Suspicion of every support image after a tenth of them, at least one, got a wrong label.

    Args:
        number: of the episode; it seeds which labels are made wrong.

    Returns:
        (n,) `suspicion` of the images that can be held out, and (n,) whether their label is wrong;
        None if a class has lost all its images, or no image can be held out.
    """
    rng = np.random.default_rng((number, 1))
    M, ways = len(episode.classes), int(episode.classes.max()) + 1
    wrong = np.zeros(M, dtype=bool)
    wrong[rng.choice(M, size=max(1, round(WRONG_LABELS * M)), replace=False)] = True
    classes = np.where(wrong, episode.classes + rng.integers(1, ways, size=M), episode.classes)
    classes %= ways
    per_class = np.bincount(classes, minlength=ways)
    if per_class.min() == 0 or per_class.max() == 1:
        return None
    found = adapt(head, episode.phi, classes, ways).found
    if found is None or not found.judged.any():
        return None
    judged = found.judged
    scores, _ = suspicion(found.logits[0, judged], classes[judged], calibration.temperature_of(per_class))
    return scores, wrong[judged]


def _suspects(noisy: Sequence[tuple[Array, NDArray[np.bool_]]]) -> Suspects | None:
    both = [(scores, wrong) for scores, wrong in noisy if 0 < wrong.sum() < len(wrong)]
    if not both:
        return None
    auroc, interval = mean_and_interval(
        np.array([area_under_curve(scores[wrong], scores[~wrong]) for scores, wrong in both])
    )
    found = np.concatenate([listed(scores) for scores, _ in both])
    wrong = np.concatenate([wrong for _, wrong in both])
    return Suspects(
        share=float(wrong.mean()),
        auroc=auroc,
        interval=interval,
        precision=float(wrong[found].mean()) if found.any() else None,
        recall=float(found[wrong].mean()),
    )


def largest_change(head: Head, calibration: Calibration, episodes: OpenSetEpisodes) -> float:
    """The largest change of a calibrated probability if embeddings of examples are stored in 16 bits."""

    def run(episode: OpenSetEpisode, _: int) -> float:
        temperature = calibration.temperature_of(np.bincount(episode.classes))

        def probabilities(phi: NDArray[np.float32]) -> NDArray[np.float64]:
            solution = adapt(head, phi, episode.classes, episodes.task.ways, judge=False).solution
            W = solution.W.astype(np.float32).astype(np.float64)
            found: NDArray[np.float64] = softmax(episode.query.astype(np.float64) @ W.T / temperature, axis=1)
            return found

        stored = as_stored(episode.phi.reshape(len(episode.phi), -1), "int16").reshape(episode.phi.shape)
        return float(np.abs(probabilities(stored) - probabilities(episode.phi)).max())

    return max(episodes.map(run))


def cross_entropy(logits: Array, classes: NDArray[np.intp]) -> float:
    """Mean negative log-likelihood of the true classes (Q,) under logits (Q, N)."""
    return -float(log_softmax(logits, axis=1)[np.arange(len(classes)), classes].mean())


def calibration_error(logits: Array, classes: NDArray[np.intp]) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy in 15 equal bins."""
    confidence = np.exp(log_softmax(logits, axis=1).max(axis=1))
    right = logits.argmax(axis=1) == classes
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(classes))


def area_under_curve(higher: Array, lower: Array) -> float:
    """AUROC: the probability that one of `higher` is above one of `lower`; ties count half."""
    n, m = len(higher), len(lower)
    ranks = rankdata(np.concatenate([higher, lower]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def _varies(tasks: Sequence[Sequence[Predictions]]) -> NDArray[np.bool_]:
    """(3,) which coefficients can be fitted: the constant, and those of what differs between the tasks."""
    points = np.array([e.task for episodes in tasks for e in episodes])
    varies = np.ptp(points, axis=0) > 0
    varies[0] = True
    return varies


def _law(values: Array, varies: NDArray[np.bool_]) -> TaskLaw:
    coefficients = np.zeros(3)
    coefficients[varies] = values
    constant, shots, ways = map(float, coefficients)
    return TaskLaw(constant=constant, shots=shots, ways=ways)
