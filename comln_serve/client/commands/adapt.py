"""`comln adapt`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.changes import promoted_if_any, show_made
from comln_serve.client.commands.connection import OnceCommand, Output, connected
from comln_serve.client.commands.options import FOLDER, ON_BAD, parse_horizon, parse_metadata


@click.command(cls=OnceCommand, short_help="Make a classifier from a folder of class folders.")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--name", help="Name of the classifier, which becomes its next version.  [default: none, only an id]")
@click.option("--model", help="A model of `comln models ls`.  [default: the server's]")
@click.option("--horizon", metavar="T|learned|auto", help="How far to adapt.  [default: the model's own rule]")
@click.option(
    "--promote/--no-promote",
    default=True,
    show_default=True,
    help="Whether the name stands for the new version at once, as it does for its first.",
)
@click.option("--metadata", metavar="KEY=VALUE", multiple=True, help="A note to keep with it; may be repeated.")
@click.option("--expires-in-seconds", type=click.IntRange(min=1), help="When it expires.  [default: never]")
@ON_BAD
@connected
def adapt(
    client: Client,
    output: Output,
    folder: Path,
    *,
    name: str | None,
    horizon: str | None,
    metadata: Sequence[str],
    **options: Any,
) -> None:
    """Make a classifier from a folder of class folders, DIR/<class>/<image>."""
    options |= {"horizon": parse_horizon(horizon), "metadata": parse_metadata(metadata) or None}
    before = promoted_if_any(client, output, name) if name else None
    made = client.adapt_folder(folder, name=name, progress=output.progress, **options)
    show_made(output, made, before, dict(enumerate(made.images, 1)), anew=True)
