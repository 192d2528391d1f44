"""`comln adapt`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.changes import changed, promoted_before
from comln_serve.client.commands.connection import OnceCommand, Output, connected
from comln_serve.client.commands.hints import command_line
from comln_serve.client.commands.tables import described, left_out
from comln_serve.client.errors import InputError
from comln_serve.client.folders import existing_folder
from comln_serve.client.making import Horizon
from comln_serve.client.results import Adapted


class _Folder(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return existing_folder(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


FOLDER = _Folder(file_okay=False, path_type=Path)
ON_BAD = click.option(
    "--on-bad",
    type=click.Choice(["skip", "raise"]),
    default="skip",
    show_default=True,
    help="What to do about files that are no image or damaged.",
)


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
    options |= {"horizon": horizon_of(horizon), "metadata": metadata_of(metadata) or None}
    before = promoted_before(client, output, name, must_exist=False) if name else None
    made = client.adapt_folder(folder, name=name, progress=False if output.as_json else None, **options)
    show_made(output, made, dict(enumerate(made.images, 1)), changed(before, made, {}, anew=True))


def show_made(
    output: Output, made: Adapted, files: Mapping[int, str] | None = None, changes: Sequence[str] = ()
) -> None:
    """Show what was made, what was left out, and what could not be cleaned up. See `described`."""
    output.show(made, lambda: described(made, files, changes))
    if made.leftover:
        deletes = command_line("classifiers rm", *made.leftover)
        output.note(f"partial versions could not be deleted: {', '.join(made.leftover)}; {deletes} deletes them")
    if made.skipped and not output.as_json:
        output.note(left_out(made.skipped))


def horizon_of(text: str | None) -> Horizon:
    """Parse the value of `--horizon`. Raises InputError if it is neither a number over 0 nor learned or auto."""
    if text is None or text in ("learned", "auto"):
        return text
    if not re.fullmatch(r"\d*\.?\d+([eE][+-]?\d+)?", text):
        raise InputError(f"--horizon is {text!r}; give a number over 0, learned or auto")
    return float(text)


def metadata_of(pairs: Sequence[str]) -> dict[str, str]:
    """Parse the values of `--metadata`. Raises InputError if one is not KEY=VALUE, or has the key of another."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InputError(f"--metadata is {pair!r}; give KEY=VALUE")
        if key in found:
            raise InputError(f"--metadata has {key!r} twice, as {found[key]!r} and as {value!r}; give it once")
        found[key] = value
    return found
