"""`comln-train evaluate`: accuracy of a bundle or run, beside its start and simple heads."""

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from training.bundles.writer import record_measurements
from training.config import ConfigError
from training.data import ImageSet
from training.evaluation.baselines import BASELINES
from training.evaluation.choose import EPISODES
from training.evaluation.compare import Measured, difference, measure
from training.evaluation.domains import Domain, add_data_arguments, find_domains
from training.evaluation.evaluate import Classify, adapted, unadapted
from training.evaluation.report import Against, Report, TaskResult, describe_own
from training.evaluation.settings import HeadSettings, heads_to_measure
from training.evaluation.subject import Subject, open_subject
from training.evaluation.tasks import Task, parse_task
from training.evaluation.verdict import START, START_WORDS


def add_evaluate(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    command = commands.add_parser("evaluate", help="measure a bundle or a run on episodes")
    add_measuring_arguments(command, episodes=1000)
    command.add_argument(
        "--baselines",
        type=_heads,
        default=(),
        metavar="all|NAME,NAME...",
        help=f"measure simple heads on the same episodes: {', '.join(BASELINES)}",
    )
    command.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="a simple head's setting, e.g. --set svm=1; repeatable",
    )
    command.add_argument(
        "--choose",
        action="store_true",
        help="choose the simple heads' settings on the training classes (default: only anil-10's "
        f"step, which has no usual value); {EPISODES} episodes of each task for every value",
    )
    command.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    command.add_argument("--out", type=Path, help="write the report to this file too")
    command.add_argument("--record", action="store_true", help="add the results to bundle.json and the model card")
    command.set_defaults(run=run_evaluate)


def add_measuring_arguments(
    command: argparse.ArgumentParser, *, episodes: int, queries: int = 15, tasks: str = "5x1 and 5x5"
) -> None:
    """Which bundle, on which episodes; `tasks` says what is measured unless told otherwise."""
    command.add_argument("bundle", type=Path, help="folder of the bundle")
    add_data_arguments(command)
    command.add_argument(
        "--task",
        type=_task,
        action="append",
        metavar="WAYSxSHOTS",
        dest="tasks",
        help="e.g. 5x1 for 5-way 1-shot, 5x1-10 for shots of each class drawn from 1 to 10; "
        f"repeatable (default {tasks})",
    )
    command.add_argument("--queries", type=_at_least(1), default=queries, help=f"per class (default {queries})")
    command.add_argument("--episodes", type=_at_least(2), default=episodes, help=f"a task (default {episodes})")
    command.add_argument("--seed", type=_at_least(0), default=0)


def _five_ways(_ways: int | None) -> list[Task]:
    return [Task(5, 1), Task(5, 5)]


def open_measured(
    args: argparse.Namespace, default: Callable[[int | None], list[Task]] = _five_ways
) -> tuple[Subject, list[Task]]:
    """The bundle or run, and the tasks.

    Args:
        default: tasks where none are asked for, by the number of classes the head is tied to.
    """
    subject = open_subject(args.bundle)
    if "record" in args and args.record and subject.bundle is None:
        raise ConfigError(f"{args.bundle} is a run; --record needs a bundle, see export")
    wanted: list[Task] = args.tasks or default(subject.head.ways)
    tasks = [replace(task, queries=args.queries) for task in dict.fromkeys(wanted)]
    ways = subject.head.ways
    if ways is not None and any(task.ways != ways for task in tasks):
        raise ConfigError(f"{args.bundle} is tied to {ways} ways; ask for these alone")
    return subject, tasks


def load_measured(args: argparse.Namespace, domain: Domain, tasks: list[Task]) -> ImageSet:
    """The images of the split, from which every one of the tasks can be drawn."""
    data = domain.load(args.split)
    for task in tasks:
        task.draw(data, args.seed, 0)  # fails now rather than after the embedding
    return data


def run_evaluate(args: argparse.Namespace) -> int:
    """Measure, print, write, record; returns the exit status."""
    subject, tasks = open_measured(args)
    names, notes = heads_to_measure(args)
    # All data sets are read before the first is measured, so that a mistake shows at once.
    embedded: list[tuple[Domain, HeadSettings, ImageSet]] = []
    for domain in find_domains(args, subject):
        data = load_measured(args, domain, tasks)
        settings = HeadSettings(args, names, subject, domain)
        embedded.append((domain, settings, replace(data, images=subject.embed(data.images))))
    results = [
        _measure_task(args, subject, names, domain, settings, data, task)
        for domain, settings, data in embedded
        for task in tasks
    ]
    head = subject.head
    own = describe_own(head.start, head.horizon, alpha=head.alpha, follows=head.exponents is not None)
    report = Report(str(args.bundle), own, args.split, args.episodes, args.seed, tuple(results), tuple(notes))
    text = report.render(args.format)
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n", encoding="utf-8")
    if args.record and subject.bundle is not None:
        manifest = subject.bundle.manifest
        record_measurements(args.bundle, manifest, report.accuracies(), report.comparisons())
        print(f"recorded in {args.bundle}", file=sys.stderr)
    return 0


def _measure_task(
    args: argparse.Namespace,
    subject: Subject,
    names: tuple[str, ...],
    domain: Domain,
    settings: HeadSettings,
    data: ImageSet,
    task: Task,
) -> TaskResult:
    """The bundle, its start and the simple heads on the episodes of one task."""

    def run(classify: Classify) -> Measured:
        return measure(data.images, data, classify, task, args.episodes, args.seed)

    own = run(adapted(subject.head))
    tqdm.write(f"{domain.name}, {args.split}: {own.accuracy}", file=sys.stderr)
    start = run(unadapted(subject.head))
    against = [Against(START, START_WORDS, start, difference(own, start))]
    for name in tqdm(names, desc=f"{domain.name}, {task}", leave=False, disable=None):
        value, description = settings.of(name, task)
        other = run(BASELINES[name].make(subject.head, value))
        against.append(Against(name, description, other, difference(own, other)))
    command = (
        f"comln-train evaluate {args.bundle} {shlex.join(domain.arguments())} --split {args.split} "
        f"--task {task} --queries {args.queries} --episodes {args.episodes} --seed {args.seed}"
    )
    return TaskResult(
        domain.name, domain.recorded, task, own, tuple(against), command, command + _baseline_options(args)
    )


def _baseline_options(args: argparse.Namespace) -> str:
    if not args.baselines:
        return ""
    everything = args.baselines == tuple(BASELINES)
    options = f" --baselines {'all' if everything else ','.join(args.baselines)}"
    options += "".join(f" --set {name}={value}" for name, value in args.settings)
    return options + (" --choose" if args.choose else "")


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, got {text!r}")
        return int(text)

    return number


def _task(text: str) -> Task:
    try:
        return parse_task(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _heads(text: str) -> tuple[str, ...]:
    names = tuple(BASELINES) if text == "all" else tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no head {unknown[0]!r}; there are {', '.join(BASELINES)}, and all")
    return names


def _setting(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    if name not in BASELINES or not BASELINES[name].setting:
        named = [known for known, baseline in BASELINES.items() if baseline.setting]
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE with NAME one of {', '.join(named)}; got {text!r}")
    try:
        value = float(number)
    except ValueError:
        value = np.nan
    if not 0.0 < value < np.inf:
        raise argparse.ArgumentTypeError(f"a setting is a number > 0, got {text!r}")
    return name, value
