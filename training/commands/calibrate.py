"""`comln-train calibrate`: fit a bundle's temperature and its threshold of `unknown`, and measure both."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from comln_serve.bundle import Calibration, Head
from comln_serve.bundle.manifest import StoredEmbeddings
from training.bundles.manifest import record_calibration
from training.commands.domains import Domain, find_domains
from training.commands.measuring import (
    add_measuring_arguments,
    classes_of_the_split,
    in_steps,
    load_measured,
    open_measured,
    repeating_command,
)
from training.commands.subject import Subject
from training.config import ConfigError
from training.data import DataError, ImageSet
from training.evaluation.calibrate import (
    ALLOWED_CHANGE,
    fit_temperature,
    fit_unknown,
    largest_change,
    measure,
    predict,
    ranges,
)
from training.evaluation.open_set import OpenSetEpisodes, check_open_set
from training.evaluation.tasks import Task
from training.results.calibration_tables import (
    calibration_table,
    made_worse,
    mean_by_shots,
    suspects_table,
    unknown_table,
    weak_unknown,
)
from training.results.tables import aligned

EPISODES, QUERIES = 500, 10
_SHOTS: tuple[int | tuple[int, int], ...] = (1, 5, (1, 10))


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_measuring_arguments(
        command,
        episodes=EPISODES,
        queries=QUERIES,
        tasks="5 and 10 ways with 1, 5 and 1-10 shots, as far as the classes and their images allow",
    )
    command.add_argument(
        "--even-if-worse",
        action="store_true",
        help="record a calibration that raises the mean cross-entropy, too (default: refuse)",
    )
    command.add_argument(
        "--int16-examples",
        action="store_true",
        help="have servers store the embeddings of examples in 16 bits, in half the room, if that changes no "
        f"probability by more than {ALLOWED_CHANGE:g} in these episodes",
    )
    command.add_argument("--dry-run", action="store_true", help="print, but do not change the bundle")


_Part = tuple[str | None, OpenSetEpisodes]  # the name of a data set, and a task on it


def run(args: argparse.Namespace) -> None:
    """Fit on the episodes of a seed, measure on those of the next seed, print, record.

    With several data sets, each is measured with the laws fitted to all the others: this is how
    well calibrated a bundle is on images of another kind than those it was calibrated on. The laws
    that are recorded are fitted to all data sets.
    """
    subject, tasks = open_measured(args, default=())
    if subject.bundle is None:
        raise ConfigError(f"{args.bundle} is a run; calibrate needs a bundle, see export")
    domains, head = find_domains(args, subject), subject.head
    parts = _domain_tasks(args, subject, domains, tasks)
    calibration = _calibrate(args, head, parts, repeating_command("calibrate", args, domains, args.tasks or ()))
    _print(calibration)
    for warning in (made_worse(calibration), weak_unknown(calibration)):
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
    if not (args.even_if_worse or args.dry_run):
        _refuse_if_worse(calibration)
    manifest = subject.bundle.manifest
    stored: StoredEmbeddings = "float32"
    if args.int16_examples or manifest.stored_embeddings == "int16":
        stored = _stored_embeddings(head, calibration, parts)
    if not args.dry_run:
        record_calibration(args.bundle, manifest, calibration, stored)
        print(f"recorded in {args.bundle}", file=sys.stderr)


def _calibrate(args: argparse.Namespace, head: Head, parts: Sequence[_Part], command: str) -> Calibration:
    """The laws fitted to all parts; each part is measured with those of the other data sets, if there are others."""
    predictions = [predict(head, episodes) for _, episodes in in_steps(parts, "fitting")]
    all_names = {name for name, _ in parts}
    several = len(all_names) > 1

    def fit(names: set[str | None]) -> Calibration:
        chosen = [found for (name, _), found in zip(parts, predictions, strict=True) if name in names]
        shots, ways = ranges(chosen)
        return Calibration(
            log_temperature=fit_temperature(chosen),
            unknown=fit_unknown(chosen, relative=several),
            unknown_relative=several,
            shots=shots,
            ways=ways,
            split=args.split,
            queries=args.queries,
            episodes=args.episodes,
            seed=args.seed,
            command=command,
            tasks=(),
        )

    whole = fit(all_names)
    without = {name: fit(all_names - {name}) if several else whole for name in all_names}
    measured = tuple(
        measure(head, without[name], replace(episodes, seed=args.seed + 1)).model_copy(update={"data": name})
        for name, episodes in in_steps(parts, "measuring")
    )
    return whole.model_copy(update={"tasks": measured})


def _refuse_if_worse(calibration: Calibration) -> None:
    before = fmean(task.nll_before for task in calibration.tasks)
    after = fmean(task.nll_after for task in calibration.tasks)
    if after > before:
        raise ConfigError(
            f"not recorded: the calibration raises the mean cross-entropy from {before:.3f} to {after:.3f}. Measure "
            "more episodes, or data more like the images to come; or leave the bundle as it is; or give --even-if-worse"
        )


def _stored_embeddings(head: Head, calibration: Calibration, parts: Sequence[_Part]) -> StoredEmbeddings:
    """int16 if no probability changes by more than is allowed, else float32; prints the change."""
    change = max(largest_change(head, calibration, episodes) for _, episodes in in_steps(parts, "16 bits"))
    stored: StoredEmbeddings = "int16" if change <= ALLOWED_CHANGE else "float32"
    print(
        f"Embeddings of examples in 16 bits change a probability by {change:.1e} at most, {ALLOWED_CHANGE:g} is "
        f"allowed: servers store them as {stored}\n"
    )
    return stored


def _domain_tasks(
    args: argparse.Namespace, subject: Subject, domains: Sequence[Domain], tasks: list[Task]
) -> list[_Part]:
    """Every task on every data set, by default those that all data allow. All data are read before any are embedded."""
    read = [(domain, load_measured(args, domain, tasks)) for domain in domains]
    smallest = min((data for _, data in read), key=lambda data: data.n_classes)
    # One class at least is left outside a task of two or more.
    with classes_of_the_split(args.split, smallest, 1 + max((task.ways for task in tasks), default=2)):
        if not tasks:
            tasks = _allowed_tasks([data for _, data in read], subject.head.ways, args.queries)
        for _, data in read:
            for task in tasks:
                check_open_set(data, task)
    parts: list[_Part] = []
    for domain, data in read:
        embedded = data.embedded(subject.embed)
        parts += [(domain.recorded, OpenSetEpisodes(embedded, task, args.episodes, args.seed)) for task in tasks]
    return parts


def _allowed_tasks(sets: Sequence[ImageSet], ways: int | None, queries: int) -> list[Task]:
    """5 and 10 ways, or those the head is tied to, with each of _SHOTS, as far as every data set allows.

    With fewer than six classes the ways are one fewer than the classes: a class must be left outside the task.
    """
    most = min(data.n_classes for data in sets) - 1
    candidates = ([n for n in (5, 10) if n <= most] or [max(most, 2)]) if ways is None else [ways]
    allowed: list[Task] = []
    reason: DataError | None = None
    for task in (Task(n, shots, queries) for n in candidates for shots in _SHOTS):
        try:
            for data in sets:
                check_open_set(data, task)
        except DataError as error:
            reason = reason or error
            print(f"left out: {error}", file=sys.stderr)
        else:
            allowed.append(task)
    if reason is not None and not allowed:
        raise reason
    return allowed


def _print(calibration: Calibration) -> None:
    for title, (header, rows) in (
        ("Calibration", calibration_table(calibration)),
        ("Unknown", unknown_table(calibration)),
        ("Wrong labels", suspects_table(calibration)),
        ("Mean over data sets and ways", mean_by_shots(calibration)),
    ):
        if rows:
            print(f"{title}\n\n{aligned(header, rows)}\n")
