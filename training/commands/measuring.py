"""What `evaluate`, `calibrate` and `study` share: the model, the data sets and the tasks to measure."""

import argparse
import shlex
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, get_args

from tqdm import tqdm

from comln_serve.machine import Provider
from training.commands.domains import Domain, add_data_arguments
from training.commands.options import at_least
from training.commands.subject import Subject, open_subject
from training.config import ConfigError
from training.data import DataError, ImageSet
from training.data.class_lists import ALL
from training.evaluation.tasks import Task, parse_task

_T = TypeVar("_T")


def add_measuring_arguments(
    command: argparse.ArgumentParser, *, episodes: int, queries: int = 15, tasks: str = "5x1 and 5x5"
) -> None:
    """The bundle and the episodes to measure it on; `tasks` describes the default tasks in the help."""
    command.add_argument(
        "bundle", type=Path, help="folder of the bundle; evaluate and study also take the folder of a run"
    )
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
    command.add_argument("--queries", type=at_least(1), default=queries, help=f"per class (default {queries})")
    command.add_argument("--episodes", type=at_least(2), default=episodes, help=f"per task (default {episodes})")
    command.add_argument("--seed", type=at_least(0), default=0)
    command.add_argument(
        "--provider",
        choices=get_args(Provider),
        default="auto",
        help="what embeds images for a bundle, as of comln-serve (default auto)",
    )


def open_measured(
    args: argparse.Namespace, default: Sequence[Task] = (Task(5, 1), Task(5, 5))
) -> tuple[Subject, list[Task]]:
    """The bundle or run, and the tasks.

    Args:
        default: tasks if none are asked for.
    """
    subject = open_subject(args.bundle, args.provider)
    tasks = [replace(task, queries=args.queries) for task in dict.fromkeys(args.tasks or default)]
    ways = subject.head.ways
    if ways is not None and any(task.ways != ways for task in tasks):
        raise ConfigError(f"{args.bundle} is tied to {ways} ways; ask for tasks of {ways} ways only")
    return subject, tasks


def load_measured(args: argparse.Namespace, domain: Domain, tasks: list[Task]) -> ImageSet:
    """The images of the split, from which each of the tasks can be drawn."""
    data = domain.load(args.split)
    with classes_of_the_split(args.split, data, max((task.ways for task in tasks), default=0)):
        for task in tasks:
            task.draw(data, args.seed, 0)  # fails now rather than after the embedding
    return data


@contextmanager
def classes_of_the_split(split: str, data: ImageSet, needed: int) -> Generator[None, None, None]:
    """Say in errors of data with fewer classes than needed that a split is a part of them."""
    try:
        yield
    except DataError as error:
        if split == ALL or data.n_classes >= needed:
            raise
        raise DataError(
            f"{error}. The split {split} has {data.n_classes} of the data's classes; --split {ALL} takes them all"
        ) from error


def repeating_command(name: str, args: argparse.Namespace, domains: Sequence[Domain], tasks: Sequence[Task]) -> str:
    """The command that measures this again, for reports and manifests; paths to data become DATA."""
    data = shlex.join([option for domain in domains for option in domain.arguments()])
    return (
        f"comln-train {name} {args.bundle} {data} --split {args.split}"
        f"{''.join(f' --task {task}' for task in tasks)} --queries {args.queries} "
        f"--episodes {args.episodes} --seed {args.seed}"
        f"{'' if args.provider == 'auto' else f' --provider {args.provider}'}"
    )


def say(text: str) -> None:
    """Say in a log how far the command is; a terminal shows bars."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def in_steps(items: Sequence[_T], what: str) -> Iterator[_T]:
    """The items, one after another. A bar shows how far the command is, or in a log a line as each is begun."""
    for number, item in enumerate(tqdm(items, desc=what, disable=None), 1):
        say(f"{what}, {number} of {len(items)}")
        yield item


def _task(text: str) -> Task:
    try:
        return parse_task(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
