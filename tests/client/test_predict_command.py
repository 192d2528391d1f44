"""`comln predict`: the tables that it writes, goes on with, and replaces."""

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from comln_serve.client import Client
from tests.client.wires import Wire

Run = Callable[..., Result]


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("bytes_less", [0, 1, 2, 3, 8, 30, 70, 140])
def test_a_table_that_was_cut_is_completed(run: Run, photos: Path, tmp_path: Path, bytes_less: int) -> None:
    """Wherever its last row ends: in its line end, a number, a file name, or a row before."""
    whole, table = tmp_path / "whole.csv", tmp_path / "table.csv"
    assert run("predict", photos, "--classifier", "shop", "--csv", whole).exit_code == 0
    content = whole.read_bytes()
    table.write_bytes(content[: len(content) - bytes_less])
    result = run("predict", photos, "--classifier", "shop", "--csv", table, "--resume")
    assert result.exit_code == 0, result.output
    # With its line end missing only, the last row is complete.
    assert ("its last row is incomplete; the file is classified again: " in result.stderr) == (bytes_less > 2)
    assert [row["file"] for row in rows_of(table)] == [row["file"] for row in rows_of(whole)]
    assert {row["error"] for row in rows_of(table)} == {""}


@pytest.mark.parametrize(
    "end", [b"%s,,,,,is dam", b'%s,,,,,"is dam', b'%s,,,,,"is dam\n', b"%s,,,,,", b"%s,blue,0.9,", b'"%s', b"%s\xc3"]
)
def test_a_row_that_was_cut_is_written_again(run: Run, photos: Path, tmp_path: Path, end: bytes) -> None:
    table = tmp_path / "table.csv"
    head = b"file,label,probability,unknown,similarity,error\r\n"
    last = str(photos / "red" / "1.png").encode()
    table.write_bytes(head + b"other.png,red,0.9,,,\r\n" + end.replace(b"%s", last))
    assert run("predict", photos, "--classifier", "shop", "--csv", table, "--resume").exit_code == 0
    rows = rows_of(table)
    assert [row["file"] for row in rows] == ["other.png", *map(str, sorted(photos.rglob("*.png")))]
    assert all(row["label"] and not row["error"] for row in rows)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b"a.png,red\r\nb.png,red,0.9,,,\r\n", "line 2 has 2 fields, not 6; correct or remove it"),
        (b"a.png,red,0.9,,,\r\nb.png,red,0.9,,,c.png,red,0.9,,,\r\n", "line 3 has 11 fields, not 6"),
        (b"a.png,red,0.9,,," + b"x" * 200_000 + b"\r\n", "cannot be read as a table: field larger than field limit"),
    ],
)
def test_a_table_that_is_damaged_is_refused(run: Run, photos: Path, tmp_path: Path, rows: bytes, said: str) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes(b"file,label,probability,unknown,similarity,error\r\n" + rows)
    result = run("predict", photos, "--classifier", "shop", "--csv", table, "--resume")
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert table.read_bytes().endswith(rows)


def test_a_table_that_is_there_is_not_written_over(run: Run, line: Wire, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    arguments = ["predict", photos, "--classifier", "shop", "--csv", table]
    table.touch()
    assert run(*arguments).exit_code == 0
    line.requests.clear()
    refused = run(*arguments)
    assert (refused.exit_code, line.requests) == (2, [])
    said = f"{table}: has 6 rows; --resume goes on with it, --replace replaces it"
    assert refused.stderr == f"comln: {said}\n"
    assert run(*arguments, "--replace").stdout == f"6 predictions in {table}\n"
    assert len(rows_of(table)) == 6
    for other in ("a letter", "\0", "file,label\n"):
        table.write_text(other)
        assert "is there, and is no table to --resume; give another file, or --replace" in run(*arguments).stderr
        assert table.read_text() == other
    assert "--resume and --replace exclude each other" in run(*arguments, "--resume", "--replace").stderr
    assert "--replace needs the file of a table" in run(*arguments[:-1], "-", "--replace").stderr


def test_a_pipe_cannot_be_gone_on_with(run: Run, photos: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = run("predict", photos, "--classifier", "shop", "--csv", tmp_path / "pipe", "--resume")
    assert (refused.exit_code, "pipe: is no file; --resume needs the file of a table" in refused.stderr) == (2, True)


def test_a_link_to_no_file_stays(run: Run, photos: Path, tmp_path: Path) -> None:
    (link := tmp_path / "link.csv").symlink_to(tmp_path / "table.csv")
    arguments = ["predict", photos, "--csv", link]
    assert run(*arguments, "--classifier", "none").exit_code == 1
    assert (link.is_symlink(), (tmp_path / "table.csv").exists()) == (True, False)
    assert run(*arguments, "--classifier", "shop").exit_code == 0
    assert (link.is_symlink(), len(rows_of(tmp_path / "table.csv"))) == (True, 6)


def test_names_are_no_formulas(
    run: Run, comln: Client, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a spreadsheet; and they are read back, those that begin with an apostrophe included."""
    monkeypatch.chdir(tmp_path)
    comln.rename_classes("shop", {"blue": "=1+1"})
    names = ["=1.png", "'=1.png", "+2.png", "@3.png", "\t4.png", "\r5.png", "'6.png", "7.png"]
    for name in names:
        shutil.copy(photos / "blue" / "0.png", name)
    arguments = ["predict", *names, "--classifier", "shop", "--csv", "table.csv"]
    assert run(*arguments[:3], *arguments[-4:]).exit_code == 0
    resumed = run(*arguments, "--resume")
    assert (resumed.exit_code, resumed.stdout) == (0, "6 more predictions in table.csv\n"), resumed.output
    written = ["'=1.png", "''=1.png", "'+2.png", "'@3.png", "'\t4.png", "'\r5.png", "'6.png", "7.png"]
    assert [row["file"] for row in rows_of(tmp_path / "table.csv")] == written
    assert {row["label"] for row in rows_of(tmp_path / "table.csv")} == {"'=1+1"}
    assert run(*arguments, "--resume").stderr == "all files are in table.csv\n"


def test_an_image_on_standard_input(run: Run, photos: Path, tmp_path: Path) -> None:
    image = photos / "red" / "0.png"
    by_name = run("predict", image, "--classifier", "shop").stdout.splitlines()[1].split()[1:]
    result = run("predict", "-", "--classifier", "shop", input=image.read_bytes())
    assert (result.exit_code, result.stdout.splitlines()[1].split()) == (0, ["-", *by_name])
    both = run("predict", "-", image, "--classifier", "shop", "--json", input=image.read_bytes())
    first, second = json.loads(both.stdout)["predictions"]
    assert (first.pop("image"), second.pop("image")) == ("-", str(image))
    assert first == second
    added = run("examples", "add", "shop", "--label", "red", "-", input=image.read_bytes())
    assert (added.exit_code, "images 6 -> 7" in added.stdout) == (0, True), added.output


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (["-"], b"", "-: is empty"),
        (["-"], b"text", "-: is no image: it begins with b'text'"),
        (["-", "-"], b"", "- is given twice; standard input is one image"),
        (["-", "--copy-to", "{tmp}/sorted"], b"", "--copy-to needs files with names; - has none"),
        (["-", "--csv", "{tmp}/t.csv", "--resume"], b"", "--resume needs files with names; - has none"),
    ],
)
def test_what_cannot_be_done_with_standard_input(
    run: Run, photos: Path, tmp_path: Path, arguments: list[str], content: bytes, said: str
) -> None:
    given = [item.format(tmp=tmp_path) for item in arguments]
    result = run("predict", *given, "--classifier", "shop", input=content)
    assert (result.exit_code, result.stderr) == (2, f"comln: {said}\n")
    assert photos.is_dir()
