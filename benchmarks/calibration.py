"""The choices behind `comln-train calibrate`: which score tells unknown images, and which law.

    python -m benchmarks.calibration BUNDLE --data DATA [--split val] [--episodes 200]

Prints, for each data set, the AUROC of several scores, images of a task's classes against those of other classes; the
calibration error with one temperature for all tasks, with one that follows the task, and with each classifier's own;
and, for a calibrated bundle, what the list of suspects finds at several thresholds.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from comln_serve.bundle import Calibration, Head
from comln_serve.bundle.calibration import TaskLaw
from comln_serve.bundle.views import as_examples
from comln_serve.report import adapt, make_report, similarity
from training.commands.domains import find_domains
from training.commands.measuring import add_measuring_arguments, open_measured
from training.evaluation.calibrate import (
    Predictions,
    area_under_curve,
    calibration_error,
    fit_temperature,
    predict,
    suspicion_of_wrong_labels,
)
from training.evaluation.open_set import OpenSetEpisode, OpenSetEpisodes
from training.evaluation.tasks import parse_task
from training.results.accuracy import mean_and_interval
from training.results.tables import markdown

TASKS = [parse_task(text) for text in ("5x1", "5x5", "5x1-10", "10x1", "10x5")]
SUSPECT_TASKS, THRESHOLDS = ("5x5", "10x5"), (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
SCORES = (
    "as served",
    "cosine to W's rows",
    "cosine to class means",
    "cosine to nearest image",
    "distance to class means",
    "largest logit",
    "energy",
    "largest probability",
)


def scores(head: Head, episode: OpenSetEpisode, images: NDArray[np.float32]) -> list[NDArray[np.float64]]:
    """(n,) each, in the order of SCORES; higher is more like a class."""
    ways = int(episode.classes.max()) + 1
    phi, classes = as_examples(episode.phi.astype(np.float64), episode.classes)
    q = images.astype(np.float64)
    W = adapt(head, episode.phi, episode.classes, ways, judge=False).solution.W
    means = np.stack([phi[classes == c].mean(axis=0) for c in range(ways)])
    logits = q @ W.T
    unit = W / np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-30)
    return [
        similarity(images, W.astype(np.float32)),
        similarity(images, unit.astype(np.float32)),
        similarity(images, means.astype(np.float32)),
        similarity(images, phi.astype(np.float32)),
        -np.linalg.norm(q[:, None] - means, axis=2).min(axis=1),
        logits.max(axis=1),
        np.asarray(logsumexp(logits, axis=1)),
        log_softmax(logits, axis=1).max(axis=1),
    ]


def table_of_scores(head: Head, plans: Sequence[OpenSetEpisodes]) -> str:
    def areas(episode: OpenSetEpisode, _: int) -> list[float]:
        known = scores(head, episode, episode.query)
        unknown = scores(head, episode, episode.unknown)
        return [area_under_curve(a, b) for a, b in zip(known, unknown, strict=True)]

    columns = [np.array(plan.map(areas)) for plan in plans]
    rows = [
        [name, *("{:.3f} +- {:.3f}".format(*mean_and_interval(column[:, i])) for column in columns)]
        for i, name in enumerate(SCORES)
    ]
    return markdown(["AUROC", *(str(plan.task) for plan in plans)], rows)


def error_at(law: TaskLaw, episodes: Sequence[Predictions]) -> float:
    coefficients = np.array([law.constant, law.shots, law.ways])
    logits = [e.logits / np.exp(e.task @ coefficients) for e in episodes]
    return calibration_error(np.concatenate(logits), np.concatenate([e.classes for e in episodes]))


def error_of_own(head: Head, episodes: Sequence[Predictions], plan: OpenSetEpisodes) -> float:
    """At the temperature of each classifier's report, which is fitted to its held-out support images."""

    def temperature(episode: OpenSetEpisode, _: int) -> float:
        ways = plan.task.ways
        adaptation = adapt(head, episode.phi, episode.classes, ways)
        report = make_report(adaptation, episode.classes, [*map(str, range(ways))], own_horizon=True)
        return report.temperature or 1.0

    logits = [e.logits / own for e, own in zip(episodes, plan.map(temperature), strict=True)]
    return calibration_error(np.concatenate(logits), np.concatenate([e.classes for e in episodes]))


def table_of_laws(head: Head, plans: Sequence[OpenSetEpisodes]) -> str:
    others = [replace(plan, seed=plan.seed + 1) for plan in plans]
    fitted, measured = ([predict(head, plan) for plan in both] for both in (plans, others))
    alike = [[replace(e, task=np.array([1.0, 0.0, 0.0])) for e in task] for task in fitted]
    laws = {
        "plain softmax": TaskLaw(constant=0, shots=0, ways=0),
        "one temperature": fit_temperature(alike),
        "a temperature by task": fit_temperature(fitted),
    }
    rows = [[name, *(f"{100 * error_at(law, episodes):.1f}" for episodes in measured)] for name, law in laws.items()]
    own = [error_of_own(head, episodes, plan) for episodes, plan in zip(measured, others, strict=True)]
    rows.append(["each classifier's own", *(f"{100 * error:.1f}" for error in own)])
    return markdown(["calibration error, %", *(str(plan.task) for plan in plans)], rows)


def table_of_thresholds(head: Head, calibration: Calibration, plans: Sequence[OpenSetEpisodes]) -> str:
    rows: list[list[str]] = []
    for plan in plans:
        found = plan.map(lambda episode, number: suspicion_of_wrong_labels(head, calibration, episode, number))
        both = [result for result in found if result is not None]
        values = np.concatenate([scores for scores, _ in both])
        wrong = np.concatenate([wrong for _, wrong in both])
        listed = [values >= threshold for threshold in THRESHOLDS]
        for name, shares in (
            ("precision", [wrong[chosen].mean() for chosen in listed]),
            ("recall", [chosen[wrong].mean() for chosen in listed]),
        ):
            rows.append([f"{plan.task} {name}", *(f"{100 * share:.0f}" for share in shares)])
    return markdown(["suspects from a score of, %", *map(str, THRESHOLDS)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_measuring_arguments(parser, episodes=200, queries=10, tasks=", ".join(map(str, TASKS)))
    args = parser.parse_args()
    subject, tasks = open_measured(args, TASKS)
    calibration = None if subject.bundle is None else subject.bundle.manifest.calibration
    for domain in find_domains(args, subject):
        data = domain.load(args.split).embedded(subject.embed)
        plans = [OpenSetEpisodes(data, task, args.episodes, args.seed) for task in tasks if task.ways < data.n_classes]
        print(f"{domain.name}\n")
        if calibration is not None:
            some = [plan for plan in plans if str(plan.task) in SUSPECT_TASKS]
            print(table_of_thresholds(subject.head, calibration, some), end="\n\n")
        print(table_of_scores(subject.head, plans), end="\n\n")
        print(table_of_laws(subject.head, plans), end="\n\n")


if __name__ == "__main__":
    main()
