"""What `all_views` of `POST /predict` is worth: queries by all views of the model beside queries by the first.

    python -m benchmarks.query_views BUNDLE --data DIR --data DIR --split all [--kind image_folder]

The bundle's own head, the same episodes and the same classifiers for both. Calibration errors are of the queries of all
episodes together, in percent; the temperature is that of the bundle, which was fitted to first views. Prints Markdown
and writes it to benchmarks/results/query-views-BUNDLE.md.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.publishing import publish
from comln_serve.bundle import Bundle
from comln_serve.bundle.manifest import describe_task
from comln_serve.report import adapt
from training.commands.domains import find_domains
from training.commands.measuring import add_measuring_arguments, open_measured
from training.data import ImageSet
from training.evaluation.calibrate import calibration_error
from training.evaluation.tasks import Task, on_all_cores, parse_task
from training.results.accuracy import Difference, Estimate, mean_and_interval
from training.results.tables import markdown

TASKS = [parse_task(text) for text in ("5x1", "5x5", "5x1-10", "10x5", "20x5")]

Logits = NDArray[np.float64]


def measure(bundle: Bundle, data: ImageSet, task: Task, episodes: int, seed: int) -> list[str]:
    """Cells of a task: accuracy by the first view and by all, their difference, and both calibration errors."""
    calibration = bundle.manifest.calibration

    def run(number: int) -> tuple[Logits, Logits, NDArray[np.intp]]:
        """Calibrated logits (Q, N) by the first view and by all, and the queries' classes (Q,)."""
        drawn = task.draw(data, seed, number)
        solution = adapt(
            bundle.head, data.images[drawn.support], drawn.support_classes, task.ways, judge=False
        ).solution
        logits = data.images[drawn.query].astype(np.float64) @ solution.W.T  # (Q, V, N)
        if calibration is not None:
            logits = logits / calibration.temperature_of(np.bincount(drawn.support_classes).tolist())
        return logits[:, 0], logits.mean(axis=1), drawn.query_classes

    found = on_all_cores(run, episodes)
    right = np.array([[(of.argmax(axis=1) == classes).mean() for of in both] for *both, classes in found])
    classes = np.concatenate([of_queries for *_, of_queries in found])
    ways = ([one[0] for one in found], [one[1] for one in found])
    errors = [calibration_error(np.concatenate(logits), classes) for logits in ways]
    return [
        *(str(Estimate(*mean_and_interval(one))) for one in right.T),
        str(Difference(*mean_and_interval(right[:, 1] - right[:, 0]))),
        *(f"{100 * error:.1f}" for error in errors),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_measuring_arguments(parser, episodes=200, tasks=", ".join(map(str, TASKS)))
    args = parser.parse_args()
    subject, tasks = open_measured(args, TASKS)
    bundle = subject.bundle
    if bundle is None:
        parser.error(f"{args.bundle} is a run; export it")
    if len(bundle.manifest.preprocessing.shares) == 1:
        parser.error(f"{args.bundle} has one view")
    rows: list[list[str]] = []
    for domain in find_domains(args, subject):
        data = domain.load(args.split).embedded(subject.embed)
        for task in tasks:
            if task.ways <= data.n_classes:
                cells = measure(bundle, data, task, args.episodes, args.seed)
                rows.append([domain.name, describe_task(task.ways, task.shots), *cells])
    head = ["images", "task", "first view, %", "all views, %", "difference", "calibration error", "by all views"]
    what = f"{bundle.name}; {args.episodes} episodes, {args.queries} queries a class, seed {args.seed}"
    publish(f"query-views-{bundle.name}", f"{what}\n\n{markdown(head, rows)}")


if __name__ == "__main__":
    main()
