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
from comln_serve.client.evaluation import Evaluation, Judged


@click.command(cls=OnceCommand)
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--classifier", required=True, help="Its name, name@version or id.")
@click.option(
    "--unknown",
    is_flag=True,
    help="Count the images found unlike every class. Some folders may then be of classes that the classifier does not "
    "have: all their images should be.",
)
@ON_BAD
@connected
def evaluate(client: Client, output: Output, folder: Path, *, unknown: bool, **options: Any) -> None:
    """Classify labelled images, DIR/<class>/<image>, and say how many are right.

    The images must not be those that the classifier was adapted to: it would do too well.
    """
    progress = False if output.as_json else None
    found = client.evaluate_folder(folder, unknown=unknown, progress=progress, **options)
    output.show(found, lambda: _lines(found))
    if unknown and found.unknown is None:
        output.note("the classifier has no threshold by which an image is unknown: docs/reports.md")
    if not output.as_json and all(score.images == score.examples for score in found.classes):
        output.note(
            "these are as many images of each class as the classifier was adapted to: if they are the same ones, this "
            "says nothing about new photos"
        )
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
