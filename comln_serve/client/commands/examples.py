"""`comln examples ls | add | rm | relabel`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.changes import added_files, promoted_before, show_made
from comln_serve.client.commands.connection import OnceGroup, Output, command_line, connected
from comln_serve.client.commands.options import IMAGES, ON_BAD, PROMOTE, images_of
from comln_serve.client.commands.tables import table
from comln_serve.client.errors import InputError
from comln_serve.client.folders import read_folder
from comln_serve.client.images import name_of


def _parse_range(text: str) -> range:
    """Parse the number of an example, or a range of numbers such as 3-7. Raises BadParameter if it is neither."""
    found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise click.BadParameter(f"{text!r} is not a number from 1 or a range of them; give one such as 3, or 3-7")
    return range(first, last + 1)


@click.group(cls=OnceGroup, short_help="List, add, relabel and remove a classifier's images.")
def examples() -> None:
    """List, add and remove the images that a classifier was adapted to."""


@examples.command("ls", short_help="List number and label of each.")
@click.argument("ref")
@connected
def list_all(client: Client, output: Output, ref: str) -> None:
    """List number and label of each example; suspects of a report have the same numbers."""
    found = client.examples(ref)
    columns = {"NUMBER": [str(item.number) for item in found], "CLASS": [item.label for item in found]}
    output.show({"examples": found}, lambda: table(columns))


@examples.command(short_help="Adapt to more images.")
@click.argument("ref")
@click.argument("paths", metavar="DIR_OR_FILES", nargs=-1, required=True, type=IMAGES)
@click.option("--label", metavar="CLASS", help="Class of all the images, one that the classifier has or a new one.")
@PROMOTE
@ON_BAD
@connected
def add(
    client: Client, output: Output, ref: str, paths: Sequence[Path | str], *, label: str | None, **options: Any
) -> None:
    """Adapt a classifier to more images, of its classes or of new ones: DIR/<class>/<image>, or with --label CLASS
    files, and all images of folders and the folders in them; - is an image on standard input.

    A classifier with a name gets a new version; one without changes in place.
    """
    if label is None:
        folder = _class_folder(paths)
        before = promoted_before(client, output, ref)
        made = client.add_examples_folder(ref, folder, progress=output.progress, **options)
    else:
        images, skipped = images_of(paths, options["on_bad"])
        before = promoted_before(client, output, ref)
        made = client.add_examples(ref, images, [label] * len(images), **options)
        made = replace(made, skipped=(*skipped, *made.skipped))
    show_made(output, made, before, added_files(client, output, made))


def _class_folder(paths: Sequence[Path | str]) -> Path:
    """The folder of class folders that was given. Raises InputError if anything else was given."""
    for path in paths:
        if isinstance(path, str):
            raise InputError("- is an image on standard input; say of which class it is: --label CLASS")
        if not path.is_dir():
            raise InputError(f"{path} is a file; say of which class it is: --label CLASS")
    if len(paths) > 1:
        raise InputError(
            f"received {len(paths)} folders; give one at a time, that of the class folders, or say of which class "
            "all their images are: --label CLASS"
        )
    folder = Path(paths[0])
    images, _ = read_folder(folder)
    if all(Path(image.name).parent == Path(name_of(folder)) for image in images):
        raise InputError(
            f"{folder} holds images itself, and no class folders; say of which class they are: --label CLASS"
        )
    return folder


@examples.command(short_help="Adapt without some of the images.")
@click.argument("ref")
@click.argument("numbers", metavar="NUMBER...", nargs=-1, required=True, type=_parse_range)
@PROMOTE
@connected
def rm(client: Client, output: Output, ref: str, numbers: Sequence[range], **options: Any) -> None:
    """Adapt a classifier without some of its examples, such as 3 7 20-25; a class goes with its last one.

    A classifier with a name gets a new version; one without changes in place.
    """
    before = promoted_before(client, output, ref)
    made = client.remove_examples(ref, _chosen(client, ref, numbers), **options)
    show_made(output, made, before)


@examples.command(short_help="Correct the labels of some images.")
@click.argument("ref")
@click.argument("label")
@click.argument("numbers", metavar="NUMBER...", nargs=-1, required=True, type=_parse_range)
@PROMOTE
@connected
def relabel(client: Client, output: Output, ref: str, label: str, numbers: Sequence[range], *, promote: bool) -> None:
    """Adapt a classifier with another label for some of its examples: LABEL, of a class that it has or of a new one.

    No images are sent. A classifier with a name gets a new version; one without changes in place.
    """
    before = promoted_before(client, output, ref)
    made = client.relabel_examples(ref, dict.fromkeys(_chosen(client, ref, numbers), label), promote=promote)
    show_made(output, made, before)


def _chosen(client: Client, ref: str, numbers: Sequence[range]) -> list[int]:
    """The numbers that were given, and of the ranges the numbers of existing examples: removed ones leave gaps. Raises
    InputError if there is no example in a range.
    """
    if all(len(some) == 1 for some in numbers):
        return [some[0] for some in numbers]
    there = [item.number for item in client.examples(ref)]
    chosen: list[int] = []
    for some in numbers:
        inside = list(some) if len(some) == 1 else [number for number in there if number in some]
        if not inside:
            lists = command_line("examples ls", ref)
            raise InputError(f"{ref} has no example from {some[0]} to {some[-1]}; {lists} lists them")
        chosen += inside
    return chosen
