"""`comln-train calibrate`: what a bundle's probabilities and its `unknown` are worth."""

import argparse
import sys
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from comln_serve.bundle import Calibration
from comln_serve.bundle.manifest import format_version
from training.config import ConfigError
from training.evaluation.calibrate import (
    answers,
    fit_temperature,
    fit_unknown,
    measure,
    ranges,
)
from training.evaluation.calibration_report import calibration_table, suspects_table, unknown_table
from training.evaluation.evaluate_command import add_measuring_arguments, load_measured
from training.evaluation.strangers import Encounters, check
from training.evaluation.tables import aligned
from training.evaluation.tasks import Task
from training.export import write_manifest

EPISODES, QUERIES = 500, 10
_SHOTS: tuple[int | tuple[int, int], ...] = (1, 5, (1, 10))


def add_calibrate(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    command = commands.add_parser(
        "calibrate",
        help="fit temperature and threshold of unknown, measure them, record them in the bundle",
    )
    add_measuring_arguments(
        command, episodes=EPISODES, queries=QUERIES, tasks="5 and 10 ways with 1, 5 and 1-10 shots"
    )
    command.add_argument("--dry-run", action="store_true", help="print, but leave the bundle alone")
    command.set_defaults(run=run_calibrate)


def run_calibrate(args: argparse.Namespace) -> int:
    """Fit on the episodes of a seed, measure on the next seed's, print, record."""
    given = args.tasks
    subject, tasks, data, embed = load_measured(args, default=_usual_tasks)
    if subject.bundle is None:
        raise ConfigError(f"{args.bundle} is a run; calibrate needs a bundle, see export")
    for task in tasks:
        check(data, task)  # now rather than after the embedding
    embeddings = embed(data)
    plans = [Encounters(embeddings, data, task, args.episodes, args.seed) for task in tasks]
    head = subject.head
    fitted = [answers(head, plan) for plan in tqdm(plans, desc="fitting", disable=None)]
    shots, ways = ranges(fitted)
    options = "".join(f" --task {task}" for task in tasks) if given else ""
    calibration = Calibration(
        log_temperature=fit_temperature(fitted), unknown=fit_unknown(fitted), shots=shots,
        ways=ways, split=args.split, queries=args.queries, episodes=args.episodes, seed=args.seed,
        command=f"comln-train calibrate {args.bundle} --data DATA --split {args.split}{options} "
        f"--queries {args.queries} --episodes {args.episodes} --seed {args.seed}",
        tasks=(),
    )  # fmt: skip
    measured = tuple(
        measure(head, calibration, replace(plan, seed=args.seed + 1))
        for plan in tqdm(plans, desc="measuring", disable=None)
    )
    calibration = calibration.model_copy(update={"tasks": measured})
    _print(calibration)
    if not args.dry_run:
        manifest = subject.bundle.manifest
        version = format_version(
            manifest.head, manifest.accuracy, manifest.comparisons, calibration
        )
        update = {"calibration": calibration, "format_version": version}
        write_manifest(args.bundle, manifest.model_copy(update=update))
        print(f"recorded in {args.bundle}", file=sys.stderr)
    return 0


def _usual_tasks(ways: int | None) -> list[Task]:
    return [Task(n, shots) for n in ((5, 10) if ways is None else (ways,)) for shots in _SHOTS]


def _print(calibration: Calibration) -> None:
    for title, (header, rows) in (
        ("Calibration", calibration_table(calibration)),
        ("Unknown", unknown_table(calibration)),
        ("Wrong labels", suspects_table(calibration)),
    ):
        print(f"{title}\n\n{aligned(header, rows)}\n")
