"""`comln examples ls | add | rm`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.adapt import FOLDER, ON_BAD, show_made
from comln_serve.client.commands.connection import Output, connected
from comln_serve.client.commands.tables import table

PROMOTE = click.option(
    "--promote/--no-promote",
    default=True,
    show_default=True,
    help="Whether the name stands for the new version at once.",
)


@click.group()
def examples() -> None:
    """List, add and remove the images that a classifier was adapted to."""


@examples.command("ls")
@click.argument("ref")
@connected
def list_all(client: Client, output: Output, ref: str) -> None:
    """List number and label of each example; suspects of a report have the same numbers."""
    found = client.examples(ref)
    rows = [[str(item.number), item.label] for item in found]
    output.show({"examples": found}, lambda: table(["NUMBER", "CLASS"], rows))


@examples.command()
@click.argument("ref")
@click.argument("folder", metavar="DIR", type=FOLDER)
@PROMOTE
@ON_BAD
@connected
def add(client: Client, output: Output, ref: str, folder: Path, **options: Any) -> None:
    """Adapt a classifier to more images, DIR/<class>/<image>, of its classes or of new ones.

    A classifier with a name gets a new version; one without changes in place.
    """
    show_made(output, client.add_examples_folder(ref, folder, progress=False if output.as_json else None, **options))


@examples.command()
@click.argument("ref")
@click.argument("numbers", metavar="NUMBER...", nargs=-1, required=True, type=click.IntRange(min=1))
@PROMOTE
@connected
def rm(client: Client, output: Output, ref: str, numbers: Sequence[int], **options: Any) -> None:
    """Adapt a classifier without some of its examples; a class goes with its last one.

    A classifier with a name gets a new version; one without changes in place.
    """
    show_made(output, client.remove_examples(ref, numbers, **options))
