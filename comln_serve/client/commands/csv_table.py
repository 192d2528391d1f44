"""The table that `comln predict --csv` writes, and goes on with."""

import csv
import io
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from comln_serve.client.commands.connection import Output
from comln_serve.client.errors import InputError
from comln_serve.client.results import Predictions

# Spreadsheets take text that begins so for a formula; an apostrophe in front prevents it. It is put in front of texts
# that have apostrophes there already, too, so that all can be read back.
_FORMULA = re.compile(r"(?='*[=+\-@\t\r])")
_GUARDED = re.compile(r"'(?='*[=+\-@\t\r])")


@dataclass(frozen=True)
class Begun:
    """What a table has so far.

    Attributes:
        files: it has rows of, those that could not be used included.
        labels: predicted for them.
        size: bytes of its complete rows.
        line_ended: whether the last of these has a line end.
        cut: the file of a last row that is not complete, as far as it is there; None: there is no such row.
    """

    files: frozenset[str]
    labels: frozenset[str]
    size: int
    line_ended: bool
    cut: str | None


def check_table(target: str | None, top_k: int, *, resume: bool, replace: bool) -> Begun | None:
    """Check the options of a table before thousands of images are sent for it. Raises InputError if the file cannot be
    written or holds something else, or the options do not fit together.

    Args:
        target: file, - for standard output; None: there is to be no table.
        resume: go on with the table that is there, which is returned.
        replace: write over what is there.
    """
    if resume and replace:
        raise InputError("--resume and --replace exclude each other")
    if target in (None, "-"):
        if resume or replace:
            raise InputError(f"{'--resume' if resume else '--replace'} needs the file of a table, --csv FILE")
        return None
    path = Path(target)
    _check_writable(path)
    if resume:
        return _begun_table(path, top_k)
    if not replace and path.is_file() and path.stat().st_size:
        there = "is there, and is no table to --resume; give another file, or --replace"
        with suppress(InputError):
            if (begun := _begun_table(path, top_k)) is not None:
                there = f"has {len(begun.files)} rows; --resume goes on with it, --replace replaces it"
        raise InputError(f"{path}: {there}")
    return None


def _check_writable(path: Path) -> None:
    if path.is_fifo():  # its reader would take this for the end of the table
        return
    new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise _unwritable(path, error) from error
    if new:
        path.resolve().unlink()  # what a link led to, which was made here, not the link


def _begun_table(path: Path, top_k: int) -> Begun | None:
    """Read what a table has so far; None if the file does not exist or is empty. Raises InputError if it is no table of
    this command, or a row before the last is damaged.
    """
    if path.exists() and not path.is_file():  # reading a pipe or a terminal would wait for ever
        raise InputError(f"{path}: is no file; --resume needs the file of a table, --csv FILE")
    size, line = 0, ""

    def lines(text: str) -> Iterator[str]:
        nonlocal size, line
        for line in io.StringIO(text, newline=""):
            size += len(line.encode())
            yield line

    try:
        # Not final: a character at the end may be there in part.
        reader = csv.reader(lines(getincrementaldecoder("utf-8")().decode(path.read_bytes())))
        # Fields, number of the last line, bytes up to its end. An editor may leave empty lines.
        rows = [(row, reader.line_num, size) for row in reader if row]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table: {error}") from error
    if not rows:
        return None
    head = _head(top_k)
    if rows[0][0] != head:
        raise InputError(f"{path}: is not a table of this command; --resume needs one written with the same --top-k")
    line_ended = line.endswith(("\n", "\r"))
    cut = len(rows) > 1 and _is_cut(rows[-1][0], len(head), line_ended=line_ended)
    complete = rows[:-1] if cut else rows
    for row, number, _ in complete[1:]:
        if len(row) != len(head):
            raise InputError(
                f"{path}: line {number} has {len(row)} fields, not {len(head)}; correct or remove it, or give another "
                "file"
            )
    return Begun(
        files=frozenset(_read(row[0]) for row, _, _ in complete[1:]),
        labels=frozenset(_read(row[1]) for row, _, _ in complete[1:] if row[1]),
        size=complete[-1][2] if cut else size,
        line_ended=cut or line_ended,
        cut=_read(rows[-1][0][0]) if cut else None,
    )


def write_table(output: Output, target: str, found: Predictions, top_k: int, begun: Begun | None = None) -> None:
    """Write a row for each image, skipped ones last, with the reason in `error`. Raises InputError if that fails.

    Args:
        target: file, - for standard output.
        begun: from `check_table`: the rows are added to these.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _head(top_k))
    if begun is None:
        writer.writeheader()
    elif not begun.line_ended:
        text.write("\r\n")
    for item in found:
        row = {
            "file": _guarded(item.image),
            "label": _guarded(item.label),
            "probability": item.probability,
            "unknown": None if item.unknown is None else str(item.unknown).lower(),
            "similarity": item.similarity,
        }
        for rank, one in enumerate(item.top[1:], 2):
            row |= {f"label_{rank}": _guarded(one.label), f"probability_{rank}": one.probability}
        writer.writerow(row)
    writer.writerows({"file": _guarded(bad.image), "error": _guarded(bad.reason)} for bad in found.skipped)
    if target == "-":
        output.write(text.getvalue())
        return
    try:
        with Path(target).open("wb" if begun is None else "r+b") as file:
            if begun is not None:
                file.seek(begun.size)
                file.truncate()
            file.write(text.getvalue().encode())
    except OSError as error:
        raise _unwritable(target, error) from error


def _head(top_k: int) -> list[str]:
    more = [name for rank in range(2, top_k + 1) for name in (f"label_{rank}", f"probability_{rank}")]
    return ["file", "label", "probability", *more, "unknown", "similarity", "error"]


def _is_cut(row: list[str], fields: int, *, line_ended: bool) -> bool:
    """Whether the last row of a table was written in part: it is too short, ends in a quoted field, or has an error, of
    which more may have followed.
    """
    if len(row) != fields:
        return len(row) < fields
    in_quotes = row[-1].endswith(("\n", "\r"))
    return in_quotes or (not line_ended and (row[-1] != "" or not row[1]))


def _guarded(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text


def _read(text: str) -> str:
    """Text as it was before `_guarded`."""
    return text[1:] if _GUARDED.match(text) else text


def _unwritable(path: str | Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written: {error.strerror}")
