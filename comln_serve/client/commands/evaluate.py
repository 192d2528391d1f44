"""`comln evaluate`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.connection import OnceCommand, Output, connected
from comln_serve.client.commands.options import ALL_VIEWS, FOLDER, ON_BAD
from comln_serve.client.commands.tables import first_of, interval, note_skipped, percent, shown, table
from comln_serve.client.comparison import Comparison, compare
from comln_serve.client.errors import ComlnError, InputError
from comln_serve.client.evaluation import Evaluation, Judged, class_of, labels_by_image
from comln_serve.client.folders import read_class_folders
from comln_serve.client.results import Classifier

_MOST_EXAMPLES = 3


@click.command(cls=OnceCommand, short_help="Say how good a classifier is on labelled images.")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--classifier", required=True, help="Its name, name@version or id.")
@click.option(
    "--unknown",
    is_flag=True,
    help="Count the images found unlike every class. Some folders may then be of classes that the classifier does not "
    "have: all their images should be.",
)
@click.option(
    "--against",
    metavar="REF",
    help="Another classifier, or version, to compare it with on the same images; those of classes that it does not "
    "have are left out of the comparison, and so are those that one of the two was adapted to.",
)
@ALL_VIEWS
@ON_BAD
@connected
def evaluate(
    client: Client, output: Output, folder: Path, *, classifier: str, against: str | None, unknown: bool, **options: Any
) -> None:
    """Classify labelled images, DIR/<class>/<image>, and say how many are right.

    The images must not be those that the classifier was adapted to: these say nothing about new ones.
    """
    options["progress"] = output.progress
    known = client.classifier(classifier)
    other = None if against is None else client.classifier(against)  # fails before thousands of images are sent
    if other is not None:
        if other.id == known.id:
            raise InputError(
                f"--against {against} is {known.reference}, which is evaluated; give another, or leave it out"
            )
        _check_shared(folder, known, other)
    found = client.evaluate_folder(folder, known, unknown=unknown, **options)
    if other is None or not output.as_json:
        output.show(found, lambda: _lines(found))
    if unknown and found.unknown is None:
        output.note("the classifier has no threshold by which an image is unknown: docs/reports.md")
    _note_examples(output, found)
    note_skipped(output, found.skipped)
    if other is not None:
        _compare(client, output, folder, found, other, options)


def _check_shared(folder: Path, known: Classifier, other: Classifier) -> None:
    """Raise InputError, before anything is sent, if a folder has no class that both classifiers have.

    A folder without a class of the first classifier is refused by its evaluation.
    """
    images, _ = read_class_folders(folder, every_class=False)
    labels = labels_by_image(images).values()
    own, others = class_of(labels, known.labels), class_of(labels, other.labels)
    of_first = [label for label, found in own.items() if found is not None]
    if of_first and all(others[label] is None for label in of_first):
        raise InputError(
            f"{folder}: no folder in it is of a class that both {known.reference} and {other.reference} have; leave "
            "--against out, or give another classifier"
        )


def _compare(
    client: Client, output: Output, folder: Path, found: Evaluation, other: Classifier, options: Mapping[str, Any]
) -> None:
    """Evaluate the other classifier and compare. If that fails, the first evaluation is not lost."""
    try:
        evaluated = client.evaluate_folder(folder, other, unknown=True, **options)
        compared = compare(found, evaluated)
    except ComlnError as error:
        output.fail(error, done=vars(found))
    except KeyboardInterrupt:
        if output.as_json:
            output.show(found, str)
        raise
    _note_examples(output, evaluated)
    output.show({**vars(found), "against": compared}, lambda: "\n".join(_compared(compared)))


def _lines(found: Evaluation) -> str:
    lines = [
        found.classifier if found.reference == found.classifier else f"{found.reference} ({found.classifier})",
        f"accuracy: {percent(found.accuracy)} ({interval(found.interval)}), of {found.judged} images",
        f"mean of the classes: {percent(found.balanced_accuracy)}; mean probability: {percent(found.confidence)}",
    ]
    if (unknown := found.unknown) is not None:
        lines.append(f"found unknown: {unknown.known_refused} of {unknown.known} images of its classes")
        if unknown.others:
            lines[-1] += f", {unknown.others_refused} of {unknown.others} of other classes"
    others = Counter(item.label for item in found.images if item.right is None)
    if others:
        lines.append(shown(f"other classes: {', '.join(f'{label} {count}' for label, count in others.items())}"))
    scores = found.classes
    columns = {
        "CLASS": [one.label for one in scores],
        "IMAGES": [str(one.images) for one in scores],
        "RECALL": ["" if one.recall is None else percent(one.recall) for one in scores],
        "PRECISION": ["" if one.precision is None else percent(one.precision) for one in scores],
        "TAKEN FOR": [", ".join(f"{other.label} {other.images}" for other in one.taken_for[:3]) for one in scores],
    }
    lines += ["", table(columns)]
    lines += _mistakes("wrong", [item for item in found.images if item.right is False])
    lines += _mistakes("of other classes", [item for item in found.images if item.right is None and not item.unknown])
    return "\n".join(lines)


def _note_examples(output: Output, found: Evaluation) -> None:
    """Tell a person if a classifier was adapted to images that it is evaluated on; JSON has them."""
    known = [item for item in found.images if item.example is not None]
    if output.as_json or not known:
        return
    others = [item for item in found.images if item.example is None and item.right is not None]
    right = sum(item.right is True for item in others)
    rest = f"; of the {len(others)} others {percent(right / len(others))} are right" if others else ""
    output.note(
        f"{found.reference} was adapted to {len(known)} of these {len(found.images)} images, which says nothing about "
        f"new ones{rest}"
    )
    examples = [f"{item.image} is its example {item.example}" for item in known]
    output.note("\n".join(first_of(examples, _MOST_EXAMPLES)))


def _compared(found: Comparison) -> list[str]:
    both = f"accuracy {percent(found.other_accuracy)} -> {percent(found.accuracy)}, of {found.judged} images"
    lines = ["", f"compared with {found.other}: {both} of classes that both have"]
    if found.examples:
        lines.append(f"  left out: {found.examples} images that one of them was adapted to")
    if not (found.gained or found.lost):
        return [*lines, "  they get the same images right"]
    counts = f"{len(found.gained)} are right only by {found.reference}, {len(found.lost)} only by {found.other}"
    lines.append(f"  {counts}; probability of such a difference by chance: {percent(found.chance)}")
    for what, images in (("now right", found.gained), ("now wrong", found.lost)):
        lines += first_of([f"{what}: {image}" for image in images], what=f"more {what}")
    return lines


def _mistakes(what: str, images: Sequence[Judged]) -> list[str]:
    if not images:
        return []
    surest = sorted(images, key=lambda item: -item.probability)
    mistakes = [
        f"{item.image}: {item.label}, taken for {item.predicted} ({percent(item.probability)})" for item in surest
    ]
    return ["", f"{what}, the surest first:", *first_of(mistakes)]
