"""`comln-train evaluate`: accuracy of a bundle or run, compared with its start and with simple heads."""

import argparse
import sys
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from training.bundles.manifest import record_measurements
from training.commands.domains import Domain, find_domains
from training.commands.head_settings import HeadSettings, heads_to_measure
from training.commands.measuring import add_measuring_arguments, load_measured, open_measured, repeating_command, say
from training.commands.options import add_repeatable, check_out, positive
from training.commands.subject import Subject
from training.config import ConfigError
from training.data import ImageSet
from training.errors import writing
from training.evaluation.baselines import BASELINES
from training.evaluation.choose import EPISODES
from training.evaluation.compare import Measured, difference, measure
from training.evaluation.evaluate import Classify, adapted, unadapted
from training.evaluation.report import Comparison, Format, Report, TaskResult, describe_own
from training.evaluation.tasks import Task
from training.results.verdict import START, START_DESCRIPTION


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_measuring_arguments(command, episodes=1000)
    command.add_argument(
        "--baselines",
        type=_heads,
        default=(),
        metavar="all|NAME,NAME...",
        help=f"measure simple heads on the same episodes: {', '.join(BASELINES)}",
    )
    text = "a simple head's setting, e.g. --set svm=1; repeatable"
    add_repeatable(command, "--set", "settings", "NAME=VALUE", text, _setting)
    command.add_argument(
        "--choose",
        action="store_true",
        help="choose the simple heads' settings on the training classes, by "
        f"{EPISODES} episodes of each task for every value (default: only anil-10's step, which has no usual value)",
    )
    command.add_argument("--format", choices=get_args(Format), default="text")
    command.add_argument("--out", type=Path, help="write the report to this file too")
    command.add_argument("--record", action="store_true", help="add the results to bundle.json and the model card")


def run(args: argparse.Namespace) -> None:
    """Measure, print, write, record."""
    if args.out is not None:
        if args.out.is_dir():
            raise ConfigError(f"--out {args.out} is a folder; name a file")
        check_out(args.out.parent)
    subject, tasks = open_measured(args)
    if args.record and subject.bundle is None:
        raise ConfigError(f"{args.bundle} is a run; --record needs a bundle, see export")
    names, chosen, notes = heads_to_measure(args)
    # All data sets are read before the first is measured, so that a mistake shows at once.
    embedded: list[tuple[Domain, HeadSettings, ImageSet]] = []
    for domain in find_domains(args, subject):
        data = load_measured(args, domain, tasks)
        settings = HeadSettings(args, chosen, subject, domain)
        say(f"{domain.name}, {args.split}: embedding {len(data.images)} images")
        embedded.append((domain, settings, data.embedded(subject.embed)))
    results = [
        _measure_task(args, subject, names, domain, settings, data, task)
        for domain, settings, data in embedded
        for task in tasks
    ]
    own = describe_own(subject.head)
    report = Report(str(args.bundle), own, args.split, args.episodes, args.seed, tuple(results), tuple(notes))
    text = report.render(args.format)
    print(text)
    if args.record and subject.bundle is not None:
        record_measurements(args.bundle, subject.bundle.manifest, report.accuracies(), report.comparisons())
        print(f"recorded in {args.bundle}", file=sys.stderr)
    if args.out is not None:
        with writing(args.out):
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(text + "\n", encoding="utf-8")


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
        return measure(data, classify, task, args.episodes, args.seed)

    own = run(adapted(subject.head))
    tqdm.write(f"{domain.name}, {args.split}: {own.accuracy}", file=sys.stderr)
    start = run(unadapted(subject.head))
    described = START_DESCRIPTION + (", without its offset for unequal shots" if subject.head.shot_offset else "")
    comparisons = [Comparison(START, described, start, difference(own, start))]
    for name in tqdm(names, desc=f"{domain.name}, {task}", leave=False, disable=None):
        value, description = settings.of(name, task)
        other = run(BASELINES[name].make(subject.head, value))
        say(f"{domain.name}, {args.split}: {name} {other.accuracy}")
        comparisons.append(Comparison(name, description, other, difference(own, other)))
    command = repeating_command("evaluate", args, [domain], [task])
    return TaskResult(
        domain.name, domain.recorded, task, own, tuple(comparisons), command, command + _baseline_options(args)
    )


def _baseline_options(args: argparse.Namespace) -> str:
    if not args.baselines:
        return ""
    everything = args.baselines == tuple(BASELINES)
    options = f" --baselines {'all' if everything else ','.join(args.baselines)}"
    options += "".join(f" --set {name}={value}" for name, value in args.settings)
    return options + (" --choose" if args.choose else "")


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
    return name, positive(number)
