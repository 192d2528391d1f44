"""`comln-train evaluate`: accuracy of a bundle or run, alone or beside simple heads."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from comln_serve.bundle.head import Head
from training.config import ConfigError
from training.data import DataError, ImageSet, load_split
from training.evaluation.baselines import BASELINES
from training.evaluation.choose import EPISODES, choose, thinned
from training.evaluation.compare import difference, measure
from training.evaluation.evaluate import adapted
from training.evaluation.report import Against, Report, TaskResult, describe_own
from training.evaluation.subject import Subject, open_subject
from training.evaluation.tasks import Task, parse_task
from training.export import record_measurements

CHOICE_SPLIT = "train"


def add_evaluate(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    command = commands.add_parser("evaluate", help="measure a bundle or a run on episodes")
    add_measuring_arguments(command, episodes=1000)
    command.add_argument(
        "--baselines", type=_heads, default=(), metavar="all|NAME,NAME...",
        help=f"measure simple heads on the same episodes: {', '.join(BASELINES)}",
    )  # fmt: skip
    command.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="a simple head's setting, e.g. --set svm=1; repeatable",
    )  # fmt: skip
    command.add_argument(
        "--choose", action="store_true",
        help="choose the simple heads' settings on the training classes (default: only anil-10's "
        f"step, which has no usual value); {EPISODES} episodes of each task for every value",
    )  # fmt: skip
    command.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    command.add_argument("--out", type=Path, help="write the report to this file too")
    command.add_argument(
        "--record", action="store_true", help="add the results to bundle.json and the model card"
    )
    command.set_defaults(run=run_evaluate)


def add_measuring_arguments(
    command: argparse.ArgumentParser,
    *,
    episodes: int,
    queries: int = 15,
    tasks: str = "5x1 and 5x5",
) -> None:
    """Which bundle, on which episodes; `tasks` says what is measured unless told otherwise."""
    command.add_argument("bundle", type=Path, help="folder of the bundle")
    command.add_argument("--data", type=Path, required=True, help="folder or archive of images")
    command.add_argument("--split", default="val", choices=("train", "val", "test"))
    command.add_argument(
        "--task", type=_task, action="append", metavar="WAYSxSHOTS", dest="tasks",
        help="e.g. 5x1 for 5-way 1-shot, 5x1-10 for shots of each class drawn from 1 to 10; "
        f"repeatable (default {tasks})",
    )  # fmt: skip
    command.add_argument(
        "--queries", type=_at_least(1), default=queries, help=f"per class (default {queries})"
    )
    command.add_argument(
        "--episodes", type=_at_least(2), default=episodes, help=f"a task (default {episodes})"
    )
    command.add_argument("--seed", type=_at_least(0), default=0)


class EmbedSplit:
    """Images of a split as the bundle, or run, sees them."""

    def __init__(self, subject: Subject, root: Path) -> None:
        self._config, self._root, self._embed = subject.config.data, root, subject.embed

    def load(self, split: str) -> ImageSet:
        """The images of a split, without rotated classes.

        Raises:
            DataError: no such split, or not as the bundle's configuration says.
        """
        return replace(load_split(self._config, self._root, split), rotations=1)

    def __call__(self, data: ImageSet) -> NDArray[np.float32]:
        """Embeddings (n, d) float32."""
        return self._embed(data.images)


def _five_ways(_ways: int | None) -> list[Task]:
    return [Task(5, 1), Task(5, 5)]


def load_measured(
    args: argparse.Namespace, default: Callable[[int | None], list[Task]] = _five_ways
) -> tuple[Subject, list[Task], ImageSet, EmbedSplit]:
    """The bundle or run, the tasks, the images of the split, and what embeds them.

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
    embed = EmbedSplit(subject, args.data)
    data = embed.load(args.split)
    for task in tasks:
        task.draw(data, args.seed, 0)  # fails now rather than after the embedding
    return subject, tasks, data, embed


class _Settings:
    """Values of the simple heads' settings: given, usual, or chosen on the training classes."""

    def __init__(self, args: argparse.Namespace, head: Head, embed: EmbedSplit) -> None:
        self._given: dict[str, float] = dict(args.settings)
        self._all, self._seed, self._head = args.choose, args.seed, head
        self._embed = embed
        self._training: ImageSet | None = None
        self._embeddings: dict[int, tuple[ImageSet, NDArray[np.float32]]] = {}
        strangers = sorted(set(self._given) - set(args.baselines))
        if strangers:
            raise ConfigError(
                f"--set {strangers[0]}: not among the heads of --baselines, "
                f"{', '.join(args.baselines) or 'of which there are none'}"
            )
        chosen = [name for name in args.baselines if self.is_chosen(name)]
        if chosen:
            self._training = self._load_training(chosen, args.split)
        elif args.choose:
            raise ConfigError("--choose: no head of --baselines has a setting left to choose")

    def _load_training(self, chosen: list[str], measured: str) -> ImageSet:
        advice = f"give --set {chosen[0]}=VALUE, or leave it out of --baselines"
        if measured == CHOICE_SPLIT:
            raise ConfigError(
                f"the setting of {', '.join(chosen)} would be chosen on the {CHOICE_SPLIT} "
                f"split, which is being measured: {advice}"
            )
        try:
            return self._embed.load(CHOICE_SPLIT)
        except DataError as error:
            raise DataError(
                f"the setting of {', '.join(chosen)} is chosen on the training classes, which "
                f"cannot be read: {error}. Otherwise {advice}"
            ) from error

    def is_chosen(self, name: str) -> bool:
        """Whether a head's setting is chosen rather than given or usual."""
        baseline = BASELINES[name]
        if not baseline.setting or name in self._given:
            return False
        return self._all or baseline.value is None

    def of(self, name: str, task: Task) -> tuple[float, str]:
        """The value for a task, and what to say of it."""
        baseline = BASELINES[name]
        if not self.is_chosen(name):
            value = self._given.get(name, baseline.value)
            return (0.0 if value is None else value), baseline.describe(value)
        data, embeddings = self._images(task)
        value, at_the_end = choose(baseline, self._head, embeddings, data, task, self._seed)
        words = f"{baseline.describe(value)}, chosen on the training classes"
        return value, words + (" (end of the grid)" if at_the_end else "")

    def _images(self, task: Task) -> tuple[ImageSet, NDArray[np.float32]]:
        if self._training is None:
            raise RuntimeError("no training classes were loaded")
        thin = thinned(self._training, task)
        key = len(thin.images)
        if key not in self._embeddings:
            self._embeddings[key] = thin, self._embed(thin)
        return self._embeddings[key]


def run_evaluate(args: argparse.Namespace) -> int:
    """Measure, print, write, record; returns the exit status."""
    subject, tasks, data, embed = load_measured(args)
    head = subject.head
    settings = _Settings(args, head, embed)
    embeddings = embed(data)
    results: list[TaskResult] = []
    for task in tasks:
        own = measure(embeddings, data, adapted(head), task, args.episodes, args.seed)
        tqdm.write(f"{args.split}: {own.accuracy}", file=sys.stderr)
        against: list[Against] = []
        for name in tqdm(args.baselines, desc=str(task), leave=False, disable=None):
            value, description = settings.of(name, task)
            classify = BASELINES[name].make(head, value)
            other = measure(embeddings, data, classify, task, args.episodes, args.seed)
            against.append(Against(name, description, other, difference(own, other)))
        command = (
            f"comln-train evaluate {args.bundle} --data DATA --split {args.split} --task {task} "
            f"--queries {args.queries} --episodes {args.episodes} --seed {args.seed}"
        )
        results.append(
            TaskResult(task, own, tuple(against), command, command + _baseline_options(args))
        )
    report = Report(
        str(args.bundle), describe_own(head.start, head.horizon, alpha=head.alpha), args.split,
        args.episodes, args.seed, tuple(results),
    )  # fmt: skip
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


def _baseline_options(args: argparse.Namespace) -> str:
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
        raise argparse.ArgumentTypeError(
            f"there is no head {unknown[0]!r}; there are {', '.join(BASELINES)}, and all"
        )
    return names


def _setting(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    if name not in BASELINES or not BASELINES[name].setting:
        named = [known for known, baseline in BASELINES.items() if baseline.setting]
        raise argparse.ArgumentTypeError(
            f"expected NAME=VALUE with NAME one of {', '.join(named)}; got {text!r}"
        )
    try:
        value = float(number)
    except ValueError:
        value = np.nan
    if not 0.0 < value < np.inf:
        raise argparse.ArgumentTypeError(f"a setting is a number > 0, got {text!r}")
    return name, value
