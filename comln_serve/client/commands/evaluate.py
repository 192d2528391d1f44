"""`comln evaluate`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.adapt import FOLDER, ON_BAD
from comln_serve.client.commands.connection import OnceCommand, Output, connected
from comln_serve.client.commands.tables import MOST_LISTED, interval, left_out, percent, shown, table
from comln_serve.client.comparison import Comparison, compare
from comln_serve.client.errors import InputError
from comln_serve.client.evaluation import Evaluation, Judged

_MOST_EXAMPLES = 3


@click.command(cls=OnceCommand)
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
    "have are left out of the comparison.",
)
@ON_BAD
@connected
def evaluate(
    client: Client, output: Output, folder: Path, *, classifier: str, against: str | None, unknown: bool, **options: Any
) -> None:
    """Classify labelled images, DIR/<class>/<image>, and say how many are right.

    The images must not be those that the classifier was adapted to: it would do too well.
    """
    options["progress"] = False if output.as_json else None
    known = client.classifier(classifier)
    other = None if against is None else client.classifier(against)  # fails before thousands of images are sent
    if other is not None and other.id == known.id:
        raise InputError(f"--against {against} is {known.reference}, which is evaluated; give another, or leave it out")
    found = client.evaluate_folder(folder, known, unknown=unknown, **options)
    if other is None:
        output.show(found, lambda: _lines(found))
    else:
        evaluated = client.evaluate_folder(folder, other, unknown=True, **options)
        compared = compare(found, evaluated)
        if not output.as_json:
            _note_examples(output, evaluated)
        output.show({**vars(found), "against": compared}, lambda: "\n".join([_lines(found), *_compared(compared)]))
    if unknown and found.unknown is None:
        output.note("the classifier has no threshold by which an image is unknown: docs/reports.md")
    if not output.as_json:
        _note_examples(output, found)
    if found.skipped and not output.as_json:
        output.note(left_out(found.skipped))


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
    rows = [
        [
            score.label,
            str(score.images),
            "" if score.recall is None else percent(score.recall),
            "" if score.precision is None else percent(score.precision),
            ", ".join(f"{one.label} {one.images}" for one in score.taken_for[:3]),
        ]
        for score in found.classes
    ]
    lines += ["", table(["CLASS", "IMAGES", "RECALL", "PRECISION", "TAKEN FOR"], rows)]
    lines += _mistakes("wrong", [item for item in found.images if item.right is False])
    lines += _mistakes("of other classes", [item for item in found.images if item.right is None and not item.unknown])
    return "\n".join(lines)


def _note_examples(output: Output, found: Evaluation) -> None:
    """Say if a classifier was adapted to images that it is evaluated on."""
    known = [item for item in found.images if item.example is not None]
    if not known:
        return
    others = [item for item in found.images if item.example is None and item.right is not None]
    right = sum(item.right is True for item in others)
    rest = f"; of the {len(others)} others {percent(right / len(others))} are right" if others else ""
    output.note(
        f"{found.reference} was adapted to {len(known)} of these {len(found.images)} images, which says nothing about "
        f"new ones{rest}"
    )
    for item in known[:_MOST_EXAMPLES]:
        output.note(shown(f"  {item.image} is its example {item.example}"))
    if len(known) > _MOST_EXAMPLES:
        output.note(f"  and {len(known) - _MOST_EXAMPLES} more (--json lists all)")


def _compared(found: Comparison) -> list[str]:
    both = f"accuracy {percent(found.other_accuracy)} -> {percent(found.accuracy)}, of {found.judged} images"
    lines = ["", f"compared with {found.other}: {both} of classes that both have"]
    if not (found.gained or found.lost):
        return [*lines, "  they get the same images right"]
    counts = f"{len(found.gained)} are right only by {found.reference}, {len(found.lost)} only by {found.other}"
    lines.append(f"  {counts}; so uneven by chance with probability {percent(found.chance)}")
    for what, images in (("now right", found.gained), ("now wrong", found.lost)):
        lines += [shown(f"  {what}: {image}") for image in images[:MOST_LISTED]]
        if len(images) > MOST_LISTED:
            lines.append(f"  and {len(images) - MOST_LISTED} more {what} (--json lists all)")
    return lines


def _mistakes(what: str, images: Sequence[Judged]) -> list[str]:
    if not images:
        return []
    surest = sorted(images, key=lambda item: -item.probability)[:MOST_LISTED]
    lines = ["", f"{what}, the surest first:"]
    lines += [
        shown(f"  {item.image}: {item.label}, taken for {item.predicted} ({percent(item.probability)})")
        for item in surest
    ]
    if len(images) > len(surest):
        lines.append(f"  and {len(images) - len(surest)} more (--json lists all)")
    return lines
