"""Temperature and threshold of `unknown`, fitted on episodes and measured on others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import rankdata

from comln_serve.bundle import Head
from comln_serve.bundle.calibration import Calibration, CalibrationTask, Suspects, TaskLaw, shots_of
from comln_serve.report import adapt, make_report, similarity
from comln_serve.report.suspects import THRESHOLD, suspicion
from comln_serve.report.unknown import REFUSED
from training.evaluation.evaluate import mean_and_interval
from training.evaluation.strangers import Encounter, Encounters

BINS = 15
WRONG_LABELS = 0.1

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """What a head says of the queries of one episode.

    Attributes:
        logits: (Q, N). classes: (Q,) right answers. similarity: (Q,).
        task: (3,) 1, ln of the images a class, ln of the classes: what a `TaskLaw` multiplies.
    """

    logits: Array
    classes: NDArray[np.intp]
    similarity: Array
    task: Array


def answers(head: Head, encounters: Encounters) -> list[Answers]:
    """The head's answers to the queries of every episode."""

    def work(episode: Encounter, _: int) -> Answers:
        ways = encounters.task.ways
        adaptation = adapt(head, episode.phi, episode.classes, ways, judge=False)
        W = adaptation.solution.W.astype(np.float32)
        return Answers(
            episode.query.astype(np.float64) @ W.T.astype(np.float64),
            episode.query_classes,
            similarity(episode.query, W),
            np.array([1.0, np.log(shots_of(np.bincount(episode.classes))), np.log(ways)]),
        )

    return list(encounters.map(work))


def fit_temperature(tasks: Sequence[Sequence[Answers]]) -> TaskLaw:
    """The law of ln(temperature) of greatest likelihood; every task weighs the same."""
    varies = _varies(tasks)

    def loss(coefficients: Array) -> float:
        total = 0.0
        for episodes in tasks:
            total += float(
                np.mean([cross_entropy(e.logits / np.exp(e.task[varies] @ coefficients), e.classes) for e in episodes])
            )
        return total / len(tasks)

    return _law(minimize(loss, np.zeros(varies.sum()), method="L-BFGS-B").x, varies)


def fit_unknown(tasks: Sequence[Sequence[Answers]]) -> TaskLaw:
    """The law through what a twentieth of the known queries of each task lies below."""
    varies = _varies(tasks)
    lowest = [np.quantile(np.concatenate([e.similarity for e in t]), REFUSED) for t in tasks]
    middle = np.array([np.mean([e.task for e in t], axis=0)[varies] for t in tasks])
    values: Array = np.linalg.lstsq(middle, np.array(lowest), rcond=None)[0].astype(np.float64)
    return _law(values, varies)


def ranges(tasks: Sequence[Sequence[Answers]]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Least and most images a class, and classes, of the episodes."""
    points = np.array([e.task for episodes in tasks for e in episodes])
    (_, shots, ways), (_, most_shots, most_ways) = points.min(axis=0), points.max(axis=0)
    # To three digits: what a range is worth, and 10.000000000000002 helps nobody.
    return (
        (round(float(np.exp(shots)), 3), round(float(np.exp(most_shots)), 3)),
        (round(float(np.exp(ways)), 3), round(float(np.exp(most_ways)), 3)),
    )


def measure(head: Head, calibration: Calibration, encounters: Encounters) -> CalibrationTask:
    """What the laws come to on the episodes of a task."""
    task = encounters.task
    results = list(encounters.map(lambda e, number: _judge(head, calibration, e, number)))
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
        strangers=encounters.strangers,
        auroc=auroc,
        interval=interval,
        known_refused=float(np.mean([r.known_refused for r in results])),
        strangers_refused=float(np.mean([r.strangers_refused for r in results])),
        suspects=_suspects([r.noisy for r in results if r.noisy is not None]),
    )


@dataclass(frozen=True)
class _Judged:
    plain: Array  # (Q, N) logits
    calibrated: Array  # the same over the temperature
    classes: NDArray[np.intp]
    auroc: float
    known_refused: float
    strangers_refused: float
    noisy: tuple[Array, NDArray[np.bool_]] | None  # (n,) scores, (n,) whether the label was wrong


def _judge(head: Head, calibration: Calibration, episode: Encounter, number: int) -> _Judged:
    per_class = np.bincount(episode.classes)
    adaptation = adapt(head, episode.phi, episode.classes, len(per_class))
    W = adaptation.solution.W.astype(np.float32)
    names = [str(c) for c in range(len(per_class))]
    report = make_report(adaptation, episode.classes, names, own_horizon=True, calibration=calibration)
    threshold = report.unknown_threshold
    if threshold is None:
        threshold = calibration.unknown_of(per_class)
    known, strange = similarity(episode.query, W), similarity(episode.strangers, W)
    logits = episode.query.astype(np.float64) @ W.T.astype(np.float64)
    return _Judged(
        logits,
        logits / calibration.temperature_of(per_class),
        episode.query_classes,
        area_under_curve(known, strange),
        float((known < threshold).mean()),
        float((strange < threshold).mean()),
        mislabel(head, calibration, episode, number),
    )


def mislabel(
    head: Head, calibration: Calibration, episode: Encounter, number: int
) -> tuple[Array, NDArray[np.bool_]] | None:
    """Scores of the support images when a tenth of them, one at least, get another label.

    Args:
        number: the episode's; which labels are made wrong depends on it.

    Returns:
        (n,) `suspicion` of the images that can be judged, and (n,) whether their label is wrong;
        None where a class has lost all its images, or nothing can be held out.
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
    listed = np.concatenate([scores >= THRESHOLD for scores, _ in both])
    wrong = np.concatenate([wrong for _, wrong in both])
    return Suspects(
        share=float(wrong.mean()),
        auroc=auroc,
        interval=interval,
        precision=float(wrong[listed].mean()) if listed.any() else None,
        recall=float(listed[wrong].mean()),
    )


def cross_entropy(logits: Array, classes: NDArray[np.intp]) -> float:
    """Mean negative log-likelihood of right answers (Q,) under logits (Q, N)."""
    return -float(log_softmax(logits, axis=1)[np.arange(len(classes)), classes].mean())


def calibration_error(logits: Array, classes: NDArray[np.intp]) -> float:
    """Expected calibration error: the gap between confidence and accuracy in 15 equal bins."""
    confidence = np.exp(log_softmax(logits, axis=1).max(axis=1))
    right = logits.argmax(axis=1) == classes
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(classes))


def area_under_curve(higher: Array, lower: Array) -> float:
    """Chance that one of the first is above one of the second; ties count half."""
    n, m = len(higher), len(lower)
    ranks = rankdata(np.concatenate([higher, lower]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def _varies(tasks: Sequence[Sequence[Answers]]) -> NDArray[np.bool_]:
    """(3,) what a law can depend on: what is not the same in all these tasks."""
    points = np.array([e.task for episodes in tasks for e in episodes])
    varies = np.ptp(points, axis=0) > 0
    varies[0] = True
    return varies


def _law(values: Array, varies: NDArray[np.bool_]) -> TaskLaw:
    coefficients = np.zeros(3)
    coefficients[varies] = values
    constant, shots, ways = map(float, coefficients)
    return TaskLaw(constant=constant, shots=shots, ways=ways)
