"""`comln predict`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from comln_serve.client.clients import Client
from comln_serve.client.commands.connection import OnceCommand, Output, connected
from comln_serve.client.commands.copies import check_folder, check_labels, copy_files
from comln_serve.client.commands.csv_table import Begun, check_table, write_table
from comln_serve.client.commands.options import ALL_VIEWS, IMAGES, ON_BAD, images_of
from comln_serve.client.commands.tables import note_skipped, percent, shown, table
from comln_serve.client.errors import IncompleteError, InputError, InterruptedPredicting
from comln_serve.client.images import Source
from comln_serve.client.results import Classifier, Predictions


@click.command(cls=OnceCommand, short_help="Classify images.")
@click.argument("paths", metavar="DIR_OR_FILES", nargs=-1, required=True, type=IMAGES)
@click.option("--classifier", required=True, help="Its name, name@version or id.")
@click.option("--top-k", type=click.IntRange(1, 100), default=1, show_default=True, help="Likeliest classes to list.")
@click.option("--unknown", is_flag=True, help="Say of each image whether it is unlike every class.")
@ALL_VIEWS
@click.option("--csv", "csv_file", metavar="FILE", help="Write a table to this file; - is standard output.")
@click.option("--resume", is_flag=True, help="Go on with the table of --csv: classify only files that are not in it.")
@click.option("--replace", "replace_table", is_flag=True, help="Write over the table of --csv that is there.")
@click.option(
    "--copy-to",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Put a copy of each classified file into FOLDER/<class>/, with --unknown also FOLDER/unknown/.",
)
@ON_BAD
@connected
def predict(
    client: Client,
    output: Output,
    paths: Sequence[Path | str],
    *,
    csv_file: str | None,
    resume: bool,
    replace_table: bool,
    copy_to: Path | None,
    on_bad: Any,
    **options: Any,
) -> None:
    """Classify images: files, or all images of folders and the folders in them; - is an image on standard input."""
    for option, given in (("--resume", resume), ("--copy-to", copy_to is not None)):
        if given and "-" in paths:
            raise InputError(f"{option} needs files with names; - has none")
    files, skipped = images_of(paths, on_bad)
    if copy_to is not None:
        check_folder(copy_to, paths)
    begun = check_table(csv_file, options["top_k"], resume=resume, replace=replace_table)
    if begun is not None or copy_to is not None:
        # The version whose labels are checked also predicts, even if its name is promoted to another one meanwhile.
        options["classifier"] = client.classifier(options["classifier"])
    if begun is not None:
        _check_begun(output, begun, csv_file, options["classifier"], copies=copy_to is not None)
        files = [file for file in files if file.name not in begun.files]
        skipped = [item for item in skipped if item.image not in begun.files]
        if not files:
            output.note(f"all files are in {csv_file}")
            if output.as_json:
                nothing = Predictions(
                    classifier=options["classifier"].id,
                    predictions=(),
                    calibrated=False,
                    unknown_threshold=None,
                    timings_ms={},
                    skipped=tuple(skipped),
                )
                output.show(nothing, str)
            return
    if copy_to is not None:
        check_labels(copy_to, options["classifier"].labels, unknown=options["unknown"])
    try:
        found = client.predict(files, on_bad=on_bad, progress=output.progress, **options)
    except (IncompleteError, InterruptedPredicting) as error:
        if csv_file is not None:  # what is done is not lost
            some = replace(error.result, skipped=(*skipped, *error.result.skipped))
            write_table(output, csv_file, some, options["top_k"], begun)
            if csv_file != "-":
                output.note(
                    f"{len(some)} of {error.total} predictions are in {csv_file}; for the rest, give the command again "
                    f"with --resume --classifier {some.classifier}{', without --replace' if replace_table else ''}"
                )
        if copy_to is not None:
            _copy(output, copy_to, error.result, files)
        raise
    found = replace(found, skipped=(*skipped, *found.skipped))
    if csv_file is not None:
        write_table(output, csv_file, found, options["top_k"], begun)
    if csv_file is None or output.as_json:
        output.show(found, lambda: _lines(found))
    elif csv_file != "-":
        output.write(f"{len(found)} {'more ' if begun and begun.files else ''}predictions in {csv_file}\n")
    note_skipped(output, found.skipped)
    if copy_to is not None:
        _copy(output, copy_to, found, files)


def _copy(output: Output, folder: Path, found: Predictions, files: Sequence[Source]) -> None:
    number = copy_files(folder, found, files)
    if not output.as_json:
        output.note(f"{number} {'file is' if number == 1 else 'files are'} in folders of {folder}")


def _check_begun(output: Output, begun: Begun, csv_file: str | None, classifier: Classifier, *, copies: bool) -> None:
    """Refuse to go on with another classifier's table, and say what is lost of the table, or not copied."""
    others = begun.labels.difference(classifier.labels)
    if others:
        raise InputError(
            f"{csv_file}: has predictions of another classifier, such as {min(others)!r}; give the one that began it, "
            "or another file"
        )
    if begun.cut is not None:
        output.note(f"{csv_file}: its last row is incomplete; the file is classified again: {shown(begun.cut)}")
    if copies and begun.files:
        output.note(f"{len(begun.files)} files that {csv_file} has are not copied now; with --replace all are")


def _lines(found: Predictions) -> str:
    columns = {
        "FILE": [item.image for item in found],
        "CLASS": ["; ".join(f"{one.label} {percent(one.probability)}" for one in item.top) for item in found],
    }
    if any(item.similarity is not None for item in found):
        said = {None: "", True: "unknown", False: "known"}
        columns["UNKNOWN"] = [said[item.unknown] for item in found]
    return table(columns)
