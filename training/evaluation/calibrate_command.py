"""`comln-train calibrate`: what a bundle's probabilities and its `unknown` are worth."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from comln_serve.bundle import Calibration
from comln_serve.bundle.manifest import format_version
from training.bundles.writer import write_manifest
from training.config import ConfigError
from training.evaluation.calibrate import answers, fit_temperature, fit_unknown, measure, ranges
from training.evaluation.calibration_report import calibration_table, mean_by_shots, suspects_table, unknown_table
from training.evaluation.domains import Domain, find_domains
from training.evaluation.evaluate_command import add_measuring_arguments, load_measured, open_measured
from training.evaluation.strangers import Encounters, check
from training.evaluation.subject import Subject
from training.evaluation.tables import aligned
from training.evaluation.tasks import Task

EPISODES, QUERIES = 500, 10
_SHOTS: tuple[int | tuple[int, int], ...] = (1, 5, (1, 10))


def add_calibrate(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    command = commands.add_parser(
        "calibrate", help="fit temperature and threshold of unknown, measure them, record them in the bundle"
    )
    add_measuring_arguments(command, episodes=EPISODES, queries=QUERIES, tasks="5 and 10 ways with 1, 5 and 1-10 shots")
    command.add_argument("--dry-run", action="store_true", help="print, but leave the bundle alone")
    command.set_defaults(run=run_calibrate)


@dataclass(frozen=True)
class _Plan:
    """A task on one data set, whose embeddings all its episodes share."""

    name: str | None
    encounters: Encounters


def run_calibrate(args: argparse.Namespace) -> int:
    """Fit on the episodes of a seed, measure on the next seed's, print, record.

    Of several data sets each is measured with the laws of all the others: what a bundle's
    probabilities are worth on images of another kind than those it was calibrated on. Recorded are
    the laws of all of them.
    """
    subject, tasks = open_measured(args, default=_usual_tasks)
    if subject.bundle is None:
        raise ConfigError(f"{args.bundle} is a run; calibrate needs a bundle, see export")
    domains, head = find_domains(args, subject), subject.head
    plans = _plans(args, subject, domains, tasks)
    fitted = [answers(head, p.encounters) for p in tqdm(plans, desc="fitting", disable=None)]
    command = _command(args, domains)

    def laws(names: set[str | None]) -> Calibration:
        of = [found for plan, found in zip(plans, fitted, strict=True) if plan.name in names]
        shots, ways = ranges(of)
        return Calibration(
            log_temperature=fit_temperature(of),
            unknown=fit_unknown(of),
            shots=shots,
            ways=ways,
            split=args.split,
            queries=args.queries,
            episodes=args.episodes,
            seed=args.seed,
            command=command,
            tasks=(),
        )

    names = {plan.name for plan in plans}
    whole = laws(names)
    without = {name: laws(names - {name}) if len(names) > 1 else whole for name in names}
    measured = tuple(
        measure(head, without[plan.name], replace(plan.encounters, seed=args.seed + 1)).model_copy(
            update={"data": plan.name}
        )
        for plan in tqdm(plans, desc="measuring", disable=None)
    )
    calibration = whole.model_copy(update={"tasks": measured})
    _print(calibration)
    if not args.dry_run:
        manifest = subject.bundle.manifest
        version = format_version(manifest.head, manifest.accuracy, manifest.comparisons, calibration)
        update = {"calibration": calibration, "format_version": version}
        write_manifest(args.bundle, manifest.model_copy(update=update))
        print(f"recorded in {args.bundle}", file=sys.stderr)
    return 0


def _plans(args: argparse.Namespace, subject: Subject, domains: Sequence[Domain], tasks: list[Task]) -> list[_Plan]:
    """Every task on every data set; all are read, and every task is tried, before the first is
    embedded."""
    read = [(domain, load_measured(args, domain, tasks)) for domain in domains]
    for _, data in read:
        for task in tasks:
            check(data, task)
    plans: list[_Plan] = []
    for domain, data in read:
        embeddings = subject.embed(data.images)
        plans += [
            _Plan(domain.recorded, Encounters(embeddings, data, task, args.episodes, args.seed)) for task in tasks
        ]
    return plans


def _command(args: argparse.Namespace, domains: Sequence[Domain]) -> str:
    given = args.tasks or ()
    options = [option for domain in domains for option in domain.arguments()]
    return (
        f"comln-train calibrate {args.bundle} {shlex.join(options)} --split {args.split}"
        f"{''.join(f' --task {task}' for task in given)} --queries {args.queries} "
        f"--episodes {args.episodes} --seed {args.seed}"
    )


def _usual_tasks(ways: int | None) -> list[Task]:
    return [Task(n, shots) for n in ((5, 10) if ways is None else (ways,)) for shots in _SHOTS]


def _print(calibration: Calibration) -> None:
    for title, (header, rows) in (
        ("Calibration", calibration_table(calibration)),
        ("Unknown", unknown_table(calibration)),
        ("Wrong labels", suspects_table(calibration)),
        ("Mean over data sets and ways", mean_by_shots(calibration)),
    ):
        print(f"{title}\n\n{aligned(header, rows)}\n")
