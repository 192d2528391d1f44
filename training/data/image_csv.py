"""Images listed in CSV files with a header line.

Either one file with columns `path`, `label` and, if you split the classes yourself, `split`; paths are relative to the
file. Or a folder with `train.csv`, `val.csv` and `test.csv` with columns `filename`, `label`, and the images in
`images/`, as miniImageNet is often distributed. Both column names, `path` and `filename`, work in both.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from comln_serve.imaging import Preprocessing
from training.data.class_lists import ALL, SPLITS, check_disjoint, classes_by_share
from training.data.images import DataError, ImageSet, build_image_set


@dataclass(frozen=True)
class Row:
    """A line of a CSV file: an image, its class, and its split if there is such a column."""

    path: Path
    label: str
    split: str | None


def load_image_csv(
    root: Path, split: str, preprocessing: Preprocessing, shares: tuple[float, float, float]
) -> ImageSet:
    """The classes of one split ("train", "val" or "test"), or of "all", in alphabetical order.

    Args:
        root: the CSV file, or the folder of `<split>.csv` and `images/`.
        shares: of the classes for train, val and test, if nothing else splits them.
    """
    if root.is_dir():
        present = [name for name in SPLITS if (root / f"{name}.csv").is_file()] or SPLITS
        rows = [row for name in (present if split == ALL else [split]) for row in split_rows(root, name)]
    else:
        rows = read_rows(root)
        if split != ALL and rows[0].split is not None:
            rows = _of_split(rows, split, root)
        elif split != ALL:
            names = set(classes_by_share(sorted({row.label for row in rows}), split, shares, root))
            rows = [row for row in rows if row.label in names]
    return load_rows(rows, preprocessing, f"{root}, split {split}")


def split_rows(root: Path, split: str) -> list[Row]:
    """The lines of `<root>/<split>.csv`; a class of another split in it is refused."""
    paths = {name: root / f"{name}.csv" for name in SPLITS}
    rows = {name: read_rows(path) for name, path in paths.items() if name == split or path.is_file()}
    _check_disjoint(rows, paths)
    return rows[split]


def read_rows(path: Path) -> list[Row]:
    """All lines of a CSV file."""
    rows: list[Row] = []
    seen: dict[Path, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = _columns(reader, path)
            image = columns[0]
            base = path.parent / "images" if image == "filename" else path.parent
            for fields in reader:
                where = f"{path}, line {reader.line_num}"
                values = _values(fields, columns, where)
                row = Row(base / values[image], values["label"], values.get("split"))
                if row.path in seen:
                    raise DataError(
                        f"{where}: {values[image]} is on line {seen[row.path]} too; support and query must not share "
                        "an image"
                    )
                seen[row.path] = reader.line_num
                rows.append(row)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    if not rows:
        raise DataError(f"{path}: no image is listed below the header")
    return rows


def _columns(reader: "csv.DictReader[str]", path: Path) -> list[str]:
    """The columns of a file that are read: that of the images, `label`, and `split` if there is one."""
    columns = [name.strip() for name in reader.fieldnames or ()]
    image = next((name for name in ("path", "filename") if name in columns), None)
    if image is None or "label" not in columns:
        raise DataError(
            f"{path}: expected a header with the columns path (or filename), label and "
            f"optionally split; found {', '.join(columns) or 'an empty file'}"
        )
    reader.fieldnames = columns
    return [image, "label", *(["split"] if "split" in columns else [])]


def _values(fields: dict[str | Any, str | Any], columns: list[str], where: str) -> dict[str, str]:
    """A line's values of these columns, the first of which is that of the images."""
    values = {name: (fields.get(name) or "").strip() for name in columns}
    if None in fields or not all(values.values()):  # None: the values of more columns than the header has
        raise DataError(
            f"{where}: expected {', '.join(values)}, each of them given; found {', '.join(map(str, fields.values()))}"
        )
    if "\0" in values[columns[0]]:
        raise DataError(f"{where}: {values[columns[0]]!r} holds a NUL character, which no path can")
    return values


def load_rows(rows: list[Row], preprocessing: Preprocessing, where: str) -> ImageSet:
    """The images of these lines, by class; `where` is for error messages."""
    classes: dict[str, list[Path]] = defaultdict(list)
    for row in rows:
        classes[row.label].append(row.path)
    files = [(label, [(path.name, partial(_read, path)) for path in paths]) for label, paths in sorted(classes.items())]
    return build_image_set(files, preprocessing, where)


def _read(path: Path) -> bytes:
    """The bytes of a file. A pipe is refused: reading it may never end."""
    if path.exists() and not path.is_file():
        raise OSError("not a file")
    return path.read_bytes()


def _check_disjoint(rows: Mapping[str, list[Row]], where: Mapping[str, Path]) -> None:
    check_disjoint({name: sorted({row.label for row in listed}) for name, listed in rows.items()}, where)


def _of_split(rows: list[Row], split: str, path: Path) -> list[Row]:
    by_split: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_split[str(row.split)].append(row)
    unknown = sorted(set(by_split) - set(SPLITS))
    if unknown:
        raise DataError(f"{path}: split {unknown[0]!r}; the splits are {', '.join(SPLITS)}")
    _check_disjoint(by_split, dict.fromkeys(SPLITS, path))
    if split not in by_split:
        raise DataError(f"{path}: no line is of split {split!r}; there are {', '.join(by_split)}")
    return by_split[split]
