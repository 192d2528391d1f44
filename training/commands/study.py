"""`comln-train study`: accuracy and time with other solvers and other horizons."""

import argparse
import platform
from pathlib import Path

from comln_serve.machine import usable_cpus
from training.commands.domains import one_domain
from training.commands.measuring import (
    add_measuring_arguments,
    in_steps,
    load_measured,
    open_measured,
    repeating_command,
)
from training.commands.options import add_repeatable, check_out, positive
from training.evaluation.study import HORIZON_FACTORS, STEP_COUNTS, Episodes, fixed, horizons, multiple, part, solvers
from training.evaluation.study_report import Study


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_measuring_arguments(command, episodes=300)
    text = f"of Euler, in flow time; repeatable (default: T in {', '.join(map(str, STEP_COUNTS))} steps)"
    add_repeatable(command, "--step-size", "step_sizes", "H", text, positive)
    text = (
        "to measure besides the learned one; repeatable (default: half decades from 1e-4 to 100 times the learned one)"
    )
    add_repeatable(command, "--horizon", "horizons", "T", text, positive)
    command.add_argument(
        "--out", type=Path, required=True, help="folder for study.md, solvers.csv, horizons.csv and study.png"
    )


def run(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    check_out(args.out)
    subject, tasks = open_measured(args)
    domain, head = one_domain(args, subject), subject.head
    data = load_measured(args, domain, tasks)
    on = Episodes(data.embedded(subject.embed), args.episodes, args.seed)
    steps = [fixed(size) for size in args.step_sizes] or [part(count) for count in STEP_COUNTS]
    values = [fixed(value) for value in args.horizons] or [multiple(factor) for factor in HORIZON_FACTORS]
    by_task = [(solvers(head, on, t, steps), horizons(head, on, t, values)) for t in in_steps(tasks, "tasks")]
    options = [f" --step-size {size}" for size in args.step_sizes] + [f" --horizon {value}" for value in args.horizons]
    study = Study(
        bundle=str(args.bundle),
        split=args.split,
        episodes=args.episodes,
        queries=args.queries,
        seed=args.seed,
        varies=head.exponents is not None,
        command=repeating_command("study", args, [domain], args.tasks or ()) + "".join(options) + " --out OUT",
        machine=f"{usable_cpus()} CPU cores ({platform.machine()})",
        solvers=tuple(row for rows, _ in by_task for row in rows),
        horizons=tuple(row for _, rows in by_task for row in rows),
    )
    study.write(args.out)
    print(study.markdown())
