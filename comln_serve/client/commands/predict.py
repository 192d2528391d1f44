"""`comln predict`."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.adapt import ON_BAD
from comln_serve.client.commands.connection import Output, connected
from comln_serve.client.commands.tables import left_out, percent, table
from comln_serve.client.errors import IncompleteError, InputError, InterruptedPredicting
from comln_serve.client.folders import read_folder
from comln_serve.client.images import name_of
from comln_serve.client.results import Predictions, Skipped


@click.command()
@click.argument("paths", metavar="DIR_OR_FILES", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--classifier", required=True, help="Its name, name@version or id.")
@click.option("--top-k", type=click.IntRange(1, 100), default=1, show_default=True, help="Likeliest classes to list.")
@click.option("--unknown", is_flag=True, help="Say of each image whether it is unlike every class.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write a table to this file; - is standard output.")
@click.option("--resume", is_flag=True, help="Go on with the table of --csv: classify only files that are not in it.")
@ON_BAD
@connected
def predict(
    client: Client,
    output: Output,
    paths: Sequence[Path],
    *,
    csv_file: str | None,
    resume: bool,
    on_bad: Any,
    **options: Any,
) -> None:
    """Classify images: files, or all images of folders and the folders in them."""
    files, skipped = _files(paths)
    if skipped and on_bad == "raise":
        raise InputError(f"{skipped[0].image} {skipped[0].reason}; remove it, or --on-bad skip")
    if csv_file not in (None, "-"):
        _check_writable(Path(csv_file))
    done: set[str] = set()
    if resume:
        if csv_file in (None, "-"):
            raise InputError("--resume needs the file of a table, --csv FILE")
        done, labels = _rows_of(Path(csv_file), options["top_k"])
        others = labels.difference(client.classifier(options["classifier"]).labels) if labels else ()
        if others:
            raise InputError(
                f"{csv_file}: has predictions of another classifier, such as {min(others)!r}; give the one that began "
                "it, or another file"
            )
        files = [file for file in files if name_of(file) not in done]
        skipped = [item for item in skipped if item.image not in done]
        if not files:
            output.note(f"all files are in {csv_file}")
            if output.as_json:
                known = client.classifier(options["classifier"])
                nothing = Predictions(
                    classifier=known.id,
                    predictions=(),
                    calibrated=False,
                    unknown_threshold=None,
                    timings_ms={},
                    skipped=tuple(skipped),
                )
                output.show(nothing, str)
            return
    try:
        found = client.predict(files, on_bad=on_bad, progress=False if output.as_json else None, **options)
    except (IncompleteError, InterruptedPredicting) as error:
        if csv_file is not None:  # what is done is not lost
            some = replace(error.result, skipped=(*skipped, *error.result.skipped))
            _write(output, csv_file, some, options["top_k"], append=bool(done))
            if csv_file != "-":
                output.note(
                    f"{len(some)} of {error.total} predictions are in {csv_file}; for the rest, give the command again "
                    f"with --resume --classifier {some.classifier}"
                )
        raise
    found = replace(found, skipped=(*skipped, *found.skipped))
    if csv_file is not None:
        _write(output, csv_file, found, options["top_k"], append=bool(done))
    if csv_file is None or output.as_json:
        output.show(found, lambda: _lines(found))
    elif csv_file != "-":
        click.echo(f"{len(found)} {'more ' if done else ''}predictions in {csv_file}")
    if found.skipped and not output.as_json:
        output.note(left_out(found.skipped))


def _files(paths: Sequence[Path]) -> tuple[list[Path], list[Skipped]]:
    files: list[Path] = []
    skipped: list[Skipped] = []
    for path in paths:
        if path.is_dir():
            inside, others = read_folder(path)
            files += inside
            skipped += others
        else:
            files.append(path)
    return files, skipped


def _lines(found: Predictions) -> str:
    judged = any(item.similarity is not None for item in found)
    rows = [
        [
            item.image,
            "; ".join(f"{one.label} {percent(one.probability)}" for one in item.top),
            *(["" if item.unknown is None else "unknown" if item.unknown else "known"] if judged else []),
        ]
        for item in found
    ]
    return table(["FILE", "CLASS", *(["UNKNOWN"] if judged else [])], rows)


def _check_writable(path: Path) -> None:
    """Refuse a table that could not be written before thousands of images are sent for it."""
    if path.is_fifo():  # its reader would take this for the end of the table
        return
    new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise _unwritable(path, error) from error
    if new:
        path.unlink()


def _rows_of(path: Path, top_k: int) -> tuple[set[str], set[str]]:
    """The files that a table has rows of, those that could not be used included, and the labels predicted for them.
    There are none if there is no table yet.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except FileNotFoundError:
        return set(), set()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a table: {error}") from error
    if rows and rows[0] != _head(top_k):
        raise InputError(f"{path}: is not a table of this command; --resume needs one written with the same --top-k")
    filled = [row for row in rows[1:] if row]  # an editor may leave empty lines
    return {row[0] for row in filled}, {row[1] for row in filled if row[1]}


def _head(top_k: int) -> list[str]:
    more = [name for rank in range(2, top_k + 1) for name in (f"label_{rank}", f"probability_{rank}")]
    return ["file", "label", "probability", *more, "unknown", "similarity", "error"]


def _unwritable(path: str | Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written: {error.strerror}")


def _write(output: Output, target: str, found: Predictions, top_k: int, *, append: bool) -> None:
    """Write a row for each image, skipped ones last, with the reason in `error`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    if not append:
        writer.writerow(_head(top_k))
    width = 2 * (top_k - 1)
    for item in found:
        others = [value for one in item.top[1:] for value in (one.label, one.probability)]
        padded = [*others, *[""] * (width - len(others))]
        unknown = "" if item.unknown is None else str(item.unknown).lower()
        writer.writerow([item.image, item.label, item.probability, *padded, unknown, item.similarity, ""])
    for bad in found.skipped:
        writer.writerow([bad.image, "", "", *[""] * width, "", "", bad.reason])
    if target == "-":
        output.write(text.getvalue())
        return
    try:
        with Path(target).open("a" if append else "w", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())
    except OSError as error:
        raise _unwritable(target, error) from error
