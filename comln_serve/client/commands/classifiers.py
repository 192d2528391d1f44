"""The subcommands of `comln classifiers`."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.changes import promoted_before, promoted_if_any, show_made
from comln_serve.client.commands.connection import OnceGroup, Output, connected
from comln_serve.client.commands.models import trouble_of
from comln_serve.client.commands.options import PROMOTE, parse_horizon, parse_metadata
from comln_serve.client.commands.tables import described, horizon_of, images_in, percent, shown, table
from comln_serve.client.errors import ComlnError, InputError
from comln_serve.client.results import Classifier, ClassifierDetail

_LONGEST_HEADER = 1 << 24  # bytes of a support file's


@click.group(cls=OnceGroup)
def classifiers() -> None:
    """List, show and change what has been adapted."""


@classifiers.command("ls", short_help="List classifiers, the newest first.")
@click.option("--name", help="Only versions of this name.")
@click.option("--model", help="Only those adapted on this model.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.  [default: all]")
@connected
def list_all(client: Client, output: Output, **options: Any) -> None:
    """List classifiers, the newest first; of those that cannot predict here, why their model does not let them."""
    found = client.classifiers(**options)
    models = () if output.as_json else client.models()
    troubles = [trouble_of(item, models) for item in found]
    columns = {
        "NAME": [item.name or "" for item in found],
        "VERSION": ["" if item.version is None else str(item.version) for item in found],
        "PROMOTED": ["yes" if item.promoted else "" for item in found],
        "CLASSES": [str(len(item.classes)) for item in found],
        "IMAGES": [str(images_in(item)) for item in found],
        "EXPECTED ACCURACY": ["" if item.held_out is None else percent(item.held_out.accuracy) for item in found],
        "HORIZON": [horizon_of(item) for item in found],
        "MODEL": [f"{one.model} ({bad[0]})" if bad else one.model for one, bad in zip(found, troubles, strict=True)],
        "CREATED": [f"{item.created_at:%Y-%m-%d %H:%M}" for item in found],
        "ID": [item.id for item in found],
    }
    output.show({"classifiers": found}, lambda: table(columns))
    if not found and not output.as_json:
        asked = ", ".join(f"--{option} {options[option]}" for option in ("name", "model") if options[option])
        output.note(shown(f"there is no classifier{f' with {asked}' if asked else ''}"))


@classifiers.command()
@click.argument("ref")
@connected
def show(client: Client, output: Output, ref: str) -> None:
    """Show a classifier, its classes and its report."""
    found = client.classifier(ref)
    output.show(found, lambda: f"{described(found, {})}\n\n{_classes(found)}")
    if not output.as_json:
        trouble = trouble_of(found, client.models())
        if trouble is not None:
            output.note(trouble[1])


@classifiers.command(short_help="Delete classifiers.")
@click.argument("refs", metavar="REF...", nargs=-1, required=True)
@click.option("--all-versions", is_flag=True, help="Of names: all their versions.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@connected
def rm(client: Client, output: Output, refs: Sequence[str], *, all_versions: bool, yes: bool) -> None:
    """Delete classifiers; of a name, the version it stands for."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise InputError("deleting needs --yes where nobody can be asked")
    chosen = [item for ref in refs for item in (_versions(client, ref) if all_versions else [client.classifier(ref)])]
    found = {item.id: item for item in chosen}  # nothing is deleted if there is no such one
    if not yes and not click.confirm(f"Delete {', '.join(item.reference for item in found.values())}?", err=True):
        output.note("nothing was deleted")
        sys.exit(1)
    deleted = [client.delete(item) for item in found.values()]
    output.show({"deleted": deleted}, lambda: "\n".join(_deleted(client, deleted)))


def _deleted(client: Client, deleted: Sequence[ClassifierDetail]) -> Iterator[str]:
    """Lines of what was deleted, and of the versions that its names stand for now."""
    yield from (f"deleted {item.reference}" for item in deleted)
    for name in dict.fromkeys(item.name for item in deleted if item.name is not None and item.promoted):
        with suppress(ComlnError):  # as where no version is left
            yield f"{name} stands for {client.classifier(name).reference} now"


@classifiers.command()
@click.argument("ref")
@connected
def promote(client: Client, output: Output, ref: str) -> None:
    """Let a name stand for one of its versions, name@version."""
    before = promoted_if_any(client, output, ref)
    found = client.promote(ref)
    output.show(found, lambda: _stands_for(found, before))


@classifiers.command()
@click.argument("name")
@connected
def rollback(client: Client, output: Output, name: str) -> None:
    """Let a name stand for the version promoted before."""
    before = promoted_if_any(client, output, name)
    found = client.rollback(name)
    output.show(found, lambda: _stands_for(found, before))


def _stands_for(found: Classifier, before: Classifier | None) -> str:
    """What the name of a classifier stands for, and stood for before, unless that is the same."""
    other = "" if before is None or before.id == found.id else f", instead of {before.reference}"
    return f"{found.name} stands for {found.reference} now{other}"


@classifiers.command(short_help="Adapt again to the same images.")
@click.argument("ref")
@click.option("--horizon", metavar="T|learned|auto", help="How far to adapt.  [default: as the classifier has it]")
@PROMOTE
@connected
def adapt(client: Client, output: Output, ref: str, *, horizon: str | None, promote: bool) -> None:
    """Adapt a classifier again to the examples it has: to another horizon, or after its model's head was replaced.

    No images are sent. A classifier with a name gets a new version; one without changes in place.
    """
    before = promoted_before(client, output, ref)
    made = client.adapt_again(ref, horizon=parse_horizon(horizon), promote=promote)
    show_made(output, made, before)


@classifiers.command(short_help="Give a classifier another name.")
@click.argument("ref")
@click.argument("name")
@PROMOTE
@connected
def rename(client: Client, output: Output, ref: str, name: str, *, promote: bool) -> None:
    """Give a classifier without a name one, or all versions of a name another one.

    A classifier without a name becomes the next version of NAME. Predictions ask by the new name from then on.
    """
    found = client.edit(ref, name=name, promote=promote)
    output.show(found, lambda: f"{ref} is {found.reference} now{'' if found.promoted else ', not promoted'}")


@classifiers.command(short_help="Change notes and expiry.")
@click.argument("ref")
@click.option(
    "--metadata", metavar="KEY=VALUE", multiple=True, help="A note, in place of all there are; may be repeated."
)
@click.option("--no-metadata", is_flag=True, help="Remove all notes.")
@click.option("--expires-in-seconds", type=click.IntRange(min=1), help="When it expires, from now on.")
@click.option("--never-expires", is_flag=True, help="Keep it until it is deleted.")
@connected
def edit(
    client: Client,
    output: Output,
    ref: str,
    *,
    metadata: Sequence[str],
    no_metadata: bool,
    expires_in_seconds: int | None,
    never_expires: bool,
) -> None:
    """Change the notes that are kept with a classifier, or when it expires."""
    if metadata and no_metadata:
        raise InputError("--metadata and --no-metadata exclude each other")
    if expires_in_seconds is not None and never_expires:
        raise InputError("--expires-in-seconds and --never-expires exclude each other")
    if not (metadata or no_metadata or expires_in_seconds is not None or never_expires):
        raise InputError("give --metadata, --no-metadata, --expires-in-seconds or --never-expires")
    found = client.edit(
        ref,
        metadata=parse_metadata(metadata) if metadata or no_metadata else None,
        expires_in_seconds=expires_in_seconds if never_expires or expires_in_seconds is not None else ...,
    )
    output.show(found, lambda: described(found, {}))


@classifiers.command(short_help="Give classes other labels.")
@click.argument("ref")
@click.argument("labels", metavar="OLD NEW...", nargs=-1, required=True)
@PROMOTE
@connected
def rename_classes(client: Client, output: Output, ref: str, *, labels: Sequence[str], promote: bool) -> None:
    """Give classes other labels: the class OLD gets the label NEW; more such pairs may follow. If another class has
    that label, the two are merged, and the classifier is adapted again.

    No images are sent. A classifier with a name gets a new version; one without changes in place.
    """
    old, new = labels[::2], labels[1::2]
    if len(old) != len(new):
        raise InputError(f"{old[-1]!r} has no new label; give OLD NEW, or several such pairs")
    if twice := [label for position, label in enumerate(old) if label in old[:position]]:
        raise InputError(f"class {twice[0]!r} is named twice; give it one new label")
    before = promoted_before(client, output, ref)
    made = client.rename_classes(ref, dict(zip(old, new, strict=True)), promote=promote)
    show_made(output, made, before)


@classifiers.command(short_help="Write a classifier to a file.")
@click.argument("ref")
@click.option("--output", "-o", "path", default=".", help="File, or folder for it.")
@click.option(
    "--format",
    type=click.Choice(["onnx", "safetensors", "support"]),
    help="Kind of file.  [default: as the output ends; onnx for a folder]",
)
@connected
def export(client: Client, output: Output, ref: str, *, path: str, **options: Any) -> None:
    """Write a classifier to a file: onnx, images in and probabilities out; safetensors, its last layer; support, the
    embeddings and labels of its examples, for `comln classifiers import` on another server.
    """
    file = client.export(ref, path, **options)
    output.show({"file": str(file), "bytes": file.stat().st_size}, lambda: str(file))


@classifiers.command(name="import", short_help="Make a classifier from an exported .support file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Name of the classifier, which becomes its next version.  [default: the one it has]")
@PROMOTE
@connected
def import_(client: Client, output: Output, file: Path, *, name: str | None, promote: bool) -> None:
    """Make a classifier from FILE, which `comln classifiers export REF -o FILE.support` has written.

    It may be of another server, if that serves the same bundle. Horizon and metadata come with it, thumbnails do not.
    """
    named, before = name or _name_in(file), None
    if named is not None:
        with suppress(InputError):  # the server will refuse the name
            before = promoted_if_any(client, output, named)
    made = client.import_support(file, name=name, promote=promote)
    show_made(output, made, before, anew=True)


def _name_in(file: Path) -> str | None:
    """The name in a support file. None without a name, for other files, and for a pipe, which can be read only once."""
    if not file.is_file():
        return None
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, _LONGEST_HEADER)))
        found = json.loads(header["__metadata__"]["support"])["name"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _classes(found: ClassifierDetail) -> str:
    """The classes, and what their images were taken for when they were held out."""
    columns = {"CLASS": found.labels, "IMAGES": [str(item.examples) for item in found.classes]}
    held = None if found.report is None else found.report.held_out
    if held is not None:
        columns["RIGHT, HELD OUT"] = [f"{counts[own]} of {sum(counts)}" for own, counts in enumerate(held.confusion)]
        columns["TAKEN FOR"] = [_taken_for(found.labels, own, counts) for own, counts in enumerate(held.confusion)]
    return table(columns)


def _taken_for(labels: Sequence[str], own: int, counts: Sequence[int]) -> str:
    """The classes that the images of one class were most often taken for by mistake."""
    others = Counter({label: counts[i] for i, label in enumerate(labels) if counts[i] and i != own})
    return ", ".join(f"{label} {count}" for label, count in others.most_common(3))


def _versions(client: Client, name: str) -> list[Classifier]:
    """All versions of a name, the promoted one last: if deleting breaks off, the name still stands for it."""
    one = client.classifier(name)
    if one.name != name:
        raise InputError(f"--all-versions is for names; {name} is the one classifier {one.reference}")
    return sorted(client.classifiers(name=name), key=lambda item: (item.promoted, item.version or 0))
