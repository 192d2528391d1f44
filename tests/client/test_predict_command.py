"""`comln predict`: what it prints, and the tables that it writes, goes on with, and replaces."""

import csv
import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest

from comln_serve.client import Client, predicting
from tests.client.wires import Run, Wire, printed


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_predict(run: Run, photos: Path, tmp_path: Path) -> None:
    result = run("predict", photos / "red", photos / "blue" / "0.png", "--classifier", "shop")
    assert (result.exit_code, result.stderr) == (0, "")
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["FILE", "CLASS"]
    assert [line.split()[:2] for line in lines] == [
        *([f"{photos}/red/{number}.png", "red"] for number in range(2)),
        [f"{photos}/blue/0.png", "blue"],
    ]
    assert all(line.endswith(" %") for line in lines)
    found = printed(run("predict", photos, "--classifier", "shop", "--unknown", "--top-k", "2", "--json"))
    assert len(found["predictions"]) == 6
    assert {len(item["top"]) for item in found["predictions"]} == {2}
    assert found["predictions"][0]["similarity"] is not None
    known = run("predict", photos, "--classifier", "shop", "--unknown").stdout.splitlines()
    assert known[0].split() == ["FILE", "CLASS", "UNKNOWN"]


def test_predict_writes_a_table(run: Run, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"none")
    arguments = ["predict", photos / "red", tmp_path / "bad.png", "--classifier", "shop", "--top-k", "2"]
    result = run(*arguments, "--csv", tmp_path / "out.csv")
    assert (result.exit_code, result.stdout) == (0, f"2 predictions in {tmp_path}/out.csv\n")
    assert "1 file was skipped" in result.stderr
    text = (tmp_path / "out.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["file"], row["label"]) for row in rows] == [
        *((f"{photos}/red/{number}.png", "red") for number in range(2)),
        (f"{tmp_path}/bad.png", ""),
    ]
    assert 0.3 < float(rows[0]["probability"]) <= 1
    assert rows[0]["label_2"] in ("green", "blue")
    assert [row["error"] for row in rows] == ["", "", "is no image: it begins with b'none'"]
    assert run(*arguments, "--csv", "-").stdout.splitlines() == text.splitlines()
    refused = run(*arguments, "--csv", tmp_path / "none" / "out.csv")
    assert refused.exit_code == 2
    assert "none/out.csv: cannot be written: No such file" in refused.stderr


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_sent(
    run: Run, line: Wire, photos: Path, tmp_path: Path
) -> None:
    line.requests.clear()
    refused = run("predict", photos, "--csv", tmp_path, "--classifier", "shop")
    assert (refused.exit_code, refused.stderr) == (2, f"comln: {tmp_path}: cannot be written: Is a directory\n")
    assert line.requests == []


def test_a_table_of_no_predictions_is_not_written(run: Run, photos: Path, tmp_path: Path) -> None:
    assert run("predict", photos, "--csv", tmp_path / "out.csv", "--classifier", "none").exit_code == 1
    assert not (tmp_path / "out.csv").exists()
    (tmp_path / "old.csv").write_text("kept")
    assert run("predict", photos, "--csv", tmp_path / "old.csv", "--replace", "--classifier", "none").exit_code == 1
    assert (tmp_path / "old.csv").read_text() == "kept"


def test_a_table_is_written_to_a_pipe(run: Run, photos: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        assert run("predict", photos, "--csv", pipe, "--classifier", "shop").exit_code == 0
        assert reader.communicate(timeout=60)[0].startswith("file,label,probability")


def test_ctrl_c_keeps_the_rows_of_a_table(
    run: Run, comln: Client, line: Wire, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "_PREDICTED", 4)
    table, shop = tmp_path / "out.csv", comln.classifier("shop")
    arguments = ["predict", photos, "--classifier", "shop"]
    to_table = [*arguments, "--csv", table]

    def interrupt_after(number: int) -> None:
        line.requests.clear()

        def interrupt(_request: httpx2.Request) -> None:
            if line.requests.count("POST /predict") >= number:
                raise KeyboardInterrupt

        line.before = interrupt

    interrupt_after(1)
    ended = run(*to_table)
    assert (ended.exit_code, ended.stdout) == (130, "")
    assert ended.stderr.splitlines() == [
        f"4 of 6 predictions are in {table}; for the rest, give the command again with --resume --classifier {shop.id}",
        "comln: predicting was interrupted after 4 of 6 images",
    ]
    assert len(rows_of(table)) == 4
    interrupt_after(9)
    rest = run(*to_table, "--resume")
    assert (rest.exit_code, rest.stdout) == (0, f"2 more predictions in {table}\n")
    assert sorted(row["file"] for row in rows_of(table)) == sorted(map(str, photos.rglob("*.png")))
    table.write_bytes(table.read_bytes() + b"\r\n")  # as an editor may leave it
    nothing = run(*to_table, "--resume")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", f"all files are in {table}\n")
    found = json.loads(run(*to_table, "--resume", "--json").stdout)
    assert (found["classifier"], found["predictions"], found["skipped"]) == (shop.id, [], [])
    whole = table.read_bytes()
    comln.adapt(sorted(photos.rglob("*.png"))[:4], ["blue", "blue", "blue", "lime"], name="other")
    for more, said in (
        ([*to_table, "--resume", "--top-k", "2"], "needs one written with the same --top-k"),
        ([*arguments, "--resume"], "--resume needs the file of a table, --csv FILE"),
        (
            ["predict", photos, "--classifier", "other", "--csv", table, "--resume"],
            "has predictions of another classifier, such as 'green'",
        ),
    ):
        refused = run(*more)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    interrupt_after(0)
    nothing_done = run(*to_table, "--replace")
    assert (nothing_done.exit_code, nothing_done.stderr) == (130, "comln: interrupted\n")
    assert table.read_bytes() == whole


def test_resume_begins_where_there_is_no_table(run: Run, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    begun = run("predict", photos, "--csv", table, "--resume", "--classifier", "shop")
    assert (begun.exit_code, begun.stdout) == (0, f"6 predictions in {table}\n")
    table.write_bytes(b"\xff\xfe")
    refused = run("predict", photos, "--csv", table, "--resume", "--classifier", "shop")
    assert refused.exit_code == 2
    assert f"{table}: cannot be read as a table" in refused.stderr


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


def test_a_file_named_as_standard_input_is(
    run: Run, comln: Client, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (red, blue) = ((photos / label / "0.png").read_bytes() for label in ("red", "blue"))
    monkeypatch.chdir(tmp_path)
    Path("-").write_bytes(red)
    result = run("predict", "./-", "-", "--classifier", "shop", "--json", input=blue)
    found = json.loads(result.stdout)["predictions"]
    expected = [item.label for item in comln.predict([red, blue], "shop")]
    assert ([item["image"] for item in found], [item["label"] for item in found]) == (["-", "-"], expected)
    copied = run("predict", "./-", "--classifier", "shop", "--copy-to", "sorted", input=blue)
    assert (copied.exit_code, Path("sorted", expected[0], "-").read_bytes()) == (0, red), copied.output


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (["-"], b"", "- is an image on standard input, which is empty; redirect a file to it: < FILE"),
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
