"""`comln-train study`: what a bundle's adaptation owes to its solver and to its horizon."""

import argparse
import math
import platform
import shlex
from pathlib import Path
from typing import Any

from tqdm import tqdm

from comln_serve.machine import usable_cpus
from training.evaluation.domains import Domain, one_domain
from training.evaluation.evaluate_command import add_measuring_arguments, load_measured, open_measured
from training.evaluation.study import HORIZON_FACTORS, STEP_COUNTS, Episodes, Horizon, Steps, horizons, solvers
from training.evaluation.study_report import Study


def add_study(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    command = commands.add_parser("study", help="measure a bundle with other solvers and other horizons")
    add_measuring_arguments(command, episodes=300)
    command.add_argument(
        "--step-size",
        type=_positive,
        action="append",
        metavar="H",
        dest="step_sizes",
        help=f"of Euler, in flow time; repeatable (default: T in {', '.join(map(str, STEP_COUNTS))} steps)",
    )
    command.add_argument(
        "--horizon",
        type=_positive,
        action="append",
        metavar="T",
        dest="horizons",
        help="to measure beside the learned one; repeatable (default: half decades from 1e-4 to "
        "100 times the learned one)",
    )
    command.add_argument(
        "--out", type=Path, required=True, help="folder for study.md, solvers.csv, horizons.csv and study.png"
    )
    command.set_defaults(run=run_study)


def run_study(args: argparse.Namespace) -> int:
    """Measure, print, write; returns the exit status."""
    subject, tasks = open_measured(args)
    domain = one_domain(args, subject)
    data = load_measured(args, domain, tasks)
    embeddings = subject.embed(data.images)
    head = subject.head
    steps = [Steps(size=size) for size in args.step_sizes or ()] or [Steps(count=count) for count in STEP_COUNTS]
    values = [Horizon(value=value) for value in args.horizons or ()] or [
        Horizon(factor=factor) for factor in HORIZON_FACTORS
    ]
    on = Episodes(embeddings, data, args.episodes, args.seed)
    bar = tqdm(tasks, disable=None)
    by_task = [(solvers(head, on, t, steps), horizons(head, on, t, values)) for t in bar]
    study = Study(
        bundle=str(args.bundle),
        split=args.split,
        episodes=args.episodes,
        queries=args.queries,
        seed=args.seed,
        follows=head.exponents is not None,
        command=_command(args, domain),
        machine=f"{usable_cpus()} CPU cores ({platform.machine()})",
        solvers=tuple(row for rows, _ in by_task for row in rows),
        horizons=tuple(row for _, rows in by_task for row in rows),
    )
    study.write(args.out)
    print(study.markdown())
    return 0


def _command(args: argparse.Namespace, domain: Domain) -> str:
    options = [f" --task {task}" for task in args.tasks or ()]
    options += [f" --step-size {size}" for size in args.step_sizes or ()]
    options += [f" --horizon {value}" for value in args.horizons or ()]
    return (
        f"comln-train study {args.bundle} {shlex.join(domain.arguments())} --split "
        f"{args.split}{''.join(options)} --queries {args.queries} "
        f"--episodes {args.episodes} --seed {args.seed} --out OUT"
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text!r}")
    return value
