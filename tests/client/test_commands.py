"""`comln`: what it prints, for people and for programs, and its exit status."""

import csv
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import httpx2
import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from safetensors.numpy import load_file

from comln_serve import __version__
from comln_serve.client import Client, asking
from comln_serve.client.commands import connection, main
from comln_serve.client.commands.connection import OnceCommand
from comln_serve.storage import open_store
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import Wire
from tests.support.image_files import encode, image_bytes
from tests.support.keyed import new_key
from tests.support.live import live_server
from tests.support.paths import REPOSITORY

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def url(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(models_dir, tmp_path_factory.mktemp("server"), "--default-model", "tiny-prototype") as server:
        yield server.url


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folder(tmp_path_factory.mktemp("images") / "photos", each=3)


@pytest.fixture(scope="module")
def shop(url: str, photos: Path) -> str:
    """Name of a classifier of the photos."""
    with Client(url) as client:
        for _ in range(2):
            client.adapt_folder(photos, name="shop")
    return "shop"


@pytest.fixture
def comln(url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `comln`, on the server."""
    monkeypatch.setenv("COMLN_URL", url)
    monkeypatch.delenv("COMLN_KEY", raising=False)
    return lambda *arguments, **more: CliRunner().invoke(main, [str(item) for item in arguments], **more)


def printed(result: Result) -> Any:
    """The JSON of a command that succeeded."""
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def test_version_and_help(comln: Run) -> None:
    assert comln("--version").stdout == f"{__version__}\n"
    text = comln("--help").stdout
    for command in ("adapt", "predict", "evaluate", "classifiers", "examples", "models", "open"):
        assert f"\n  {command} " in text
    assert "Exit status: 0 done" in text


def leaves(command: click.Command, name: str = "comln") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for key, inner in command.commands.items():
            yield from leaves(inner, f"{name} {key}")
    else:
        yield name, command


@pytest.mark.parametrize(("name", "command"), list(leaves(main)), ids=str)
def test_every_command_prints_json_and_takes_a_server(name: str, command: click.Command) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--url"} <= options
    assert command.help
    assert isinstance(command, OnceCommand)
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option)), name


def test_adapt(comln: Run, photos: Path) -> None:
    result = comln("adapt", photos, "--name", "colours", "--metadata", "by=me=you", "--horizon", "5")
    assert (result.exit_code, result.stderr) == (0, "")
    first, *_, last = result.stdout.splitlines()
    assert first.startswith("colours@1 (clf_")
    assert first.endswith("): 3 classes, 9 images, model tiny-prototype, promoted")
    assert re.fullmatch(
        r"expected accuracy: [\d.]+ % \(95% interval [\d.]+ % to [\d.]+ %\), of 9 images classified without themselves",
        last,
    )
    made = printed(comln("adapt", photos, "--name", "colours", "--no-promote", "--json"))
    assert (made["version"], made["promoted"], made["metadata"], len(made["images"])) == (2, False, {}, 9)
    with_notes = printed(comln("classifiers", "show", "colours", "--json"))
    assert (with_notes["metadata"], with_notes["horizon"]) == ({"by": "me=you"}, 5.0)
    unnamed = comln("adapt", photos, "--expires-in-seconds", "60").stdout.splitlines()[0]
    assert unnamed.startswith("clf_")


def test_examples(comln: Run, photos: Path, tmp_path: Path) -> None:
    """Added from a folder, with a new class; removed by the numbers that are listed."""
    comln("adapt", photos, "--name", "growing", "--horizon", "1000")
    more = class_folder(tmp_path / "more", each=6)
    (more / "red").rename(more / "pink")
    (more / "pink" / "bad.png").write_bytes(b"none")
    (more / "green" / "blue.png").write_bytes(image_bytes(COLOURS["blue"], seed=9))
    result = comln("examples", "add", "growing", more)
    assert result.exit_code == 0
    # Suspects are named by their numbers, and by their files where these were just sent.
    suspects = re.findall(r"^  example \d+ \((.*)\): green, or rather blue", result.stdout, flags=re.MULTILINE)
    assert str(more / "green" / "blue.png") in suspects, result.stdout
    assert "compared with growing@1: " in result.stdout
    assert "new classes: pink\n" in result.stdout
    assert "): 4 classes, 28 images, model tiny-prototype, promoted" in result.stdout
    assert result.stdout.startswith("growing@2 (clf_")
    assert "1 file was skipped" in result.stderr
    numbers = {label: [] for label in [*COLOURS, "pink"]}
    for line in comln("examples", "ls", "growing").stdout.splitlines()[1:]:
        number, label = line.split()
        numbers[label].append(int(number))
    assert {label: len(found) for label, found in numbers.items()} == {"red": 3, "green": 10, "blue": 9, "pink": 6}
    made = printed(comln("examples", "rm", "growing", *numbers["pink"], numbers["red"][0], "--no-promote", "--json"))
    assert {item["label"]: item["examples"] for item in made["classes"]} == {"red": 2, "green": 10, "blue": 9}
    assert not made["promoted"]
    listed = printed(comln("examples", "ls", made["id"], "--json"))["examples"]
    assert len(listed) == 21
    assert printed(comln("classifiers", "show", "growing", "--json"))["version"] == 2
    refused = comln("examples", "rm", "growing", "99")
    assert (refused.exit_code, "has no example 99" in refused.stderr) == (1, True)
    assert comln("examples", "add", "growing", more, "--on-bad", "raise").exit_code == 2
    assert comln("examples", "rm", "growing").exit_code == 2


def test_adapt_tells_of_mislabelled_and_bad_files(comln: Run, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "photos", each=6)
    (folder / "red" / "blue.png").write_bytes(image_bytes(COLOURS["blue"], seed=9))
    (folder / "red" / "bad.png").write_bytes(b"none")
    result = comln("adapt", folder, "--horizon", "1000")
    assert result.exit_code == 0
    assert "1 image looks mislabelled:\n" in result.stdout
    found = re.search(
        rf"\n  example (\d+) \({folder}/red/blue.png\): red, or rather blue \(.*\n(.*\n.*)\n", result.stdout
    )
    assert found, result.stdout
    made = result.stdout.partition(":")[0]
    assert found[2] == (
        f"  to correct it: comln examples relabel {made} blue {found[1]}\n"
        f"  to remove it: comln examples rm {made} {found[1]}"
    )
    assert result.stderr == f"1 file was skipped:\n  {folder}/red/bad.png: is no image: it begins with b'none'\n"
    refused = comln("adapt", folder, "--on-bad", "raise")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == f"comln: {folder}/red/bad.png: is no image: it begins with b'none'\n"


def test_adapt_names_the_files_of_near_duplicates(comln: Run, tmp_path: Path) -> None:
    """The server's note has their numbers only, which say nothing to somebody with a folder."""
    folder = tmp_path / "photos"
    for number, label in enumerate(("one", "other")):
        (folder / label).mkdir(parents=True)
        for burst in range(2):
            pixels = np.random.default_rng(2 * number + burst).integers(0, 256, (9, 9, 3)).astype(np.uint8)
            file = encode(Image.fromarray(pixels).resize((64, 64)), "PNG")
            (folder / label / f"{burst}.png").write_bytes(file)
            (folder / label / f"{burst}-again.png").write_bytes(file)
    lines = comln("adapt", folder).stdout.splitlines()
    assert f"  nearly the same: example 1 ({folder}/one/0-again.png), example 3 ({folder}/one/0.png)" in lines, lines
    shutil.copy(folder / "one" / "1.png", folder / "other" / "wrong.png")
    text = comln("adapt", folder).stdout
    files = ", ".join(rf"example \d+ \({folder}/{name}.png\)" for name in ("one/1-again", "one/1", "other/wrong"))
    assert re.search(rf"\n  one photo, different labels: {files}\n", text), text
    assert text.count("different labels") == 1
    text = comln("classifiers", "show", text.partition(":")[0]).stdout
    assert (text.count("different labels"), "A photo was sent under different labels: " in text) == (1, True)
    for again in range(4):  # a long burst stays one short line
        shutil.copy(folder / "one" / "0.png", folder / "one" / f"0-{again}.png")
    lines = comln("adapt", folder).stdout.splitlines()
    first = ", ".join(rf"example \d+ \({folder}/one/0-{again}.png\)" for again in range(3))
    assert any(re.fullmatch(rf"  nearly the same: {first} and 3 more", said) for said in lines), lines


def test_names_and_labels_do_not_command_the_terminal(comln: Run, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for source, label in (("red", "a\nb"), ("blue", "\x1b[31mc")):
        shutil.copytree(photos / source, folder / label)
    (folder / "a\nb" / "bad\n.png").write_bytes(b"none")
    result = comln("adapt", folder, "--name", "controls")
    assert result.stderr == (f"1 file was skipped:\n  {folder}/a\\nb/bad\\n.png: is no image: it begins with b'none'\n")
    shown = comln("classifiers", "show", "controls").stdout.splitlines()
    assert [line.split()[0] for line in shown[-2:]] == [r"\x1b[31mc", r"a\nb"]
    predicted = comln("predict", folder, "--classifier", "controls")
    assert len(predicted.stdout.splitlines()) == 7
    assert "\x1b" not in predicted.stdout


def test_predict(comln: Run, shop: str, photos: Path, tmp_path: Path) -> None:
    result = comln("predict", photos / "red", photos / "blue" / "0.png", "--classifier", shop)
    assert (result.exit_code, result.stderr) == (0, "")
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["FILE", "CLASS"]
    assert [line.split()[:2] for line in lines] == [
        *([f"{photos}/red/{number}.png", "red"] for number in range(3)),
        [f"{photos}/blue/0.png", "blue"],
    ]
    assert all(line.endswith(" %") for line in lines)
    found = printed(comln("predict", photos, "--classifier", shop, "--unknown", "--top-k", "2", "--json"))
    assert len(found["predictions"]) == 9
    assert {len(item["top"]) for item in found["predictions"]} == {2}
    assert found["predictions"][0]["similarity"] is not None
    known = comln("predict", photos, "--classifier", shop, "--unknown").stdout.splitlines()
    assert known[0].split() == ["FILE", "CLASS", "UNKNOWN"]


def test_predict_writes_a_table(comln: Run, shop: str, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"none")
    arguments = ["predict", photos / "red", tmp_path / "bad.png", "--classifier", shop, "--top-k", "2"]
    result = comln(*arguments, "--csv", tmp_path / "out.csv")
    assert (result.exit_code, result.stdout) == (0, f"3 predictions in {tmp_path}/out.csv\n")
    assert "1 file was skipped" in result.stderr
    text = (tmp_path / "out.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["file"], row["label"]) for row in rows] == [
        *((f"{photos}/red/{number}.png", "red") for number in range(3)),
        (f"{tmp_path}/bad.png", ""),
    ]
    assert 0.3 < float(rows[0]["probability"]) <= 1
    assert rows[0]["label_2"] in ("green", "blue")
    assert [row["error"] for row in rows] == ["", "", "", "is no image: it begins with b'none'"]
    assert comln(*arguments, "--csv", "-").stdout.splitlines() == text.splitlines()
    refused = comln(*arguments, "--csv", tmp_path / "none" / "out.csv")
    assert refused.exit_code == 2
    assert "none/out.csv: cannot be written: No such file" in refused.stderr


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_sent(
    comln: Run, photos: Path, tmp_path: Path
) -> None:
    nowhere = ["--url", "http://127.0.0.1:9", "--classifier", "shop"]
    refused = comln("predict", photos, "--csv", tmp_path, *nowhere)
    assert (refused.exit_code, refused.stderr) == (2, f"comln: {tmp_path}: cannot be written: Is a directory\n")
    assert comln("predict", photos, "--csv", tmp_path / "out.csv", *nowhere).exit_code == 1
    assert not (tmp_path / "out.csv").exists()
    (tmp_path / "old.csv").write_text("kept")
    comln("predict", photos, "--csv", tmp_path / "old.csv", "--replace", *nowhere)
    assert (tmp_path / "old.csv").read_text() == "kept"


def test_a_table_is_written_to_a_pipe(comln: Run, shop: str, photos: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        assert comln("predict", photos, "--csv", pipe, "--classifier", shop).exit_code == 0
        assert reader.communicate(timeout=60)[0].startswith("file,label,probability")


def files_in(table: Path) -> list[str]:
    return [row["file"] for row in csv.DictReader(io.StringIO(table.read_text(encoding="utf-8")))]


@pytest.fixture
def interrupted(models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], str]]:
    """Makes a server's next commands end by Ctrl-C after so many predictions of four images; returns its address."""
    with live_server(models_dir, tmp_path, "--default-model", "tiny-prototype", "--max-images", "4") as server:
        wire = Wire(httpx2.HTTPTransport())

        def after(number: int) -> str:
            def interrupt(_request: httpx2.Request) -> None:
                if wire.requests.count("POST /predict") >= number:
                    raise KeyboardInterrupt

            wire.requests.clear()
            wire.before = interrupt
            return server.url

        monkeypatch.setattr(connection, "Client", functools.partial(Client, transport=wire))
        yield after


def test_ctrl_c_keeps_the_rows_of_a_table(interrupted: Callable[[int], str], photos: Path, tmp_path: Path) -> None:
    url, table = interrupted(2), tmp_path / "out.csv"
    with Client(url) as client:
        shop = client.adapt_folder(photos, name="shop")
    arguments = ["predict", str(photos), "--classifier", "shop", "--url", url]
    to_table = [*arguments, "--csv", str(table)]
    ended = CliRunner().invoke(main, to_table)
    assert (ended.exit_code, ended.stdout) == (130, "")
    assert ended.stderr.splitlines() == [
        f"8 of 9 predictions are in {table}; for the rest, give the command again with --resume --classifier {shop.id}",
        "comln: predicting was interrupted after 8 of 9 images",
    ]
    assert len(files_in(table)) == 8
    interrupted(9)
    rest = CliRunner().invoke(main, [*to_table, "--resume"])
    assert (rest.exit_code, rest.stdout) == (0, f"1 more predictions in {table}\n")
    assert sorted(files_in(table)) == sorted(map(str, photos.rglob("*.png")))
    table.write_bytes(table.read_bytes() + b"\r\n")  # as an editor may leave it
    nothing = CliRunner().invoke(main, [*to_table, "--resume"])
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", f"all files are in {table}\n")
    as_json = CliRunner().invoke(main, [*to_table, "--resume", "--json"])
    found = json.loads(as_json.stdout)
    assert (found["classifier"], found["predictions"], found["skipped"]) == (shop.id, [], [])
    whole = table.read_bytes()
    for more, said in (
        ([*to_table, "--resume", "--top-k", "2"], "needs one written with the same --top-k"),
        ([*arguments, "--resume"], "--resume needs the file of a table, --csv FILE"),
    ):
        refused = CliRunner().invoke(main, more)
        assert refused.exit_code == 2
        assert said in refused.stderr
    with Client(url) as client:
        client.adapt(sorted(photos.rglob("*.png"))[:4], ["blue", "blue", "blue", "lime"], name="other")
    of_another = [*arguments[:2], "--classifier", "other", *arguments[4:], "--csv", str(table), "--resume"]
    assert "has predictions of another classifier, such as 'green'" in CliRunner().invoke(main, of_another).stderr
    interrupted(0)
    nothing_done = CliRunner().invoke(main, [*to_table, "--replace"])
    assert (nothing_done.exit_code, nothing_done.stderr) == (130, "comln: interrupted\n")
    assert table.read_bytes() == whole


def test_resume_begins_where_there_is_no_table(comln: Run, shop: str, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    begun = comln("predict", photos, "--csv", table, "--resume", "--classifier", shop)
    assert (begun.exit_code, begun.stdout) == (0, f"9 predictions in {table}\n")
    table.write_bytes(b"\xff\xfe")
    refused = comln("predict", photos, "--csv", table, "--resume", "--classifier", shop)
    assert refused.exit_code == 2
    assert f"{table}: cannot be read as a table" in refused.stderr


def test_one_bad_image_is_not_counted(comln: Run, shop: str, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"none")
    result = comln("predict", tmp_path / "bad.png", "--classifier", shop)
    assert (result.exit_code, result.stderr) == (2, f"comln: {tmp_path}/bad.png: is no image: it begins with b'none'\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"], ["--csv", "-"]], ids=["text", "json", "csv"])
def test_a_full_standard_output(url: str, shop: str, photos: Path, more: list[str]) -> None:
    command = [sys.executable, "-m", "comln_serve.client", "predict", str(photos), "--classifier", shop, *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--url", url], cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "comln: standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["predict", "{photos}", "--classifier", "shop"], 0), (["classifiers", "rm", "shop"], 2), (["open"], 0)],
)
def test_closed_standard_streams(
    comln: Run, url: str, shop: str, photos: Path, arguments: list[str], status: int
) -> None:
    """As for programs without a console, where Python has None for each of the streams."""
    script = f"""
import os, sys
for number in range(3):
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None
from comln_serve.client.commands import main
try:
    main({[item.format(photos=photos) for item in arguments]!r})
except SystemExit as ended:
    os._exit(ended.code)
except BaseException:
    os._exit(99)
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "COMLN_URL": url}, check=False)
    assert done.returncode == status


def test_classifiers(comln: Run, url: str, photos: Path, tmp_path: Path) -> None:
    with Client(url) as client:
        first, second = (client.adapt_folder(photos, name="life") for _ in range(2))
    head, newest, oldest = comln("classifiers", "ls", "--name", "life").stdout.splitlines()
    titles = "NAME VERSION PROMOTED CLASSES IMAGES EXPECTED ACCURACY HORIZON MODEL CREATED ID"
    assert head.split() == titles.split()
    assert newest.split()[:5] == ["life", "2", "yes", "3", "9"]
    assert (newest.split()[-1], oldest.split()[-1]) == (second.id, first.id)
    listed = printed(comln("classifiers", "ls", "--name", "life", "--limit", "1", "--json"))
    assert [item["id"] for item in listed["classifiers"]] == [second.id]
    shown = comln("classifiers", "show", "life@1").stdout
    assert shown.startswith(f"life@1 ({first.id}): 3 classes, 9 images, model tiny-prototype, not promoted\n")
    assert "blue   3       3 of 3\n" in shown
    assert comln("classifiers", "rollback", "life").stdout == "life stands for life@1 now\n"
    assert comln("classifiers", "promote", "life@2").stdout == "life stands for life@2 now\n"
    assert printed(comln("classifiers", "promote", "life@2", "--json"))["promoted"]
    again = comln("classifiers", "adapt", "life", "--horizon", "2.5", "--no-promote").stdout
    assert "\ncompared with life@2: expected accuracy " in again
    assert again.startswith("life@3 (")
    assert "\nhorizon: 2.5 (given)\n" in again
    assert " 2.5 (given) " in comln("classifiers", "ls", "--name", "life").stdout
    assert printed(comln("classifiers", "show", "life@3", "--json"))["horizon"] == 2.5
    assert printed(comln("classifiers", "adapt", "life@3", "--no-promote", "--json"))["horizon"] == 2.5
    renamed = comln("classifiers", "rename-classes", "life@3", "blue", "a=b", "red", "-r", "--no-promote")
    assert renamed.exit_code == 2  # an option, it seems
    renamed = comln("classifiers", "rename-classes", "life@3", "--no-promote", "--", "blue", "a=b", "red", "-r")
    assert re.match(r"life@5 \(clf_\w+\): 3 classes, 9 images, model tiny-prototype, not promoted\n", renamed.stdout)
    assert "a=b    3       3 of 3\n" in comln("classifiers", "show", "life@5").stdout
    merged = printed(comln("classifiers", "rename-classes", "life@5", "--no-promote", "--json", "--", "-r", "a=b"))
    assert [(one["label"], one["examples"]) for one in merged["classes"]] == [("a=b", 6), ("green", 3)]
    corrected = printed(comln("examples", "relabel", "life@3", "cyan", "1", "2", "--no-promote", "--json"))
    assert corrected["classes"][0] == {"label": "cyan", "examples": 2, "thumbnail": None}
    assert "\nnew classes: cyan\n" in comln("examples", "relabel", "life@3", "cyan", "1", "--no-promote").stdout
    assert comln("classifiers", "rm", "life@7", "life@8", "--yes").exit_code == 0
    assert comln("classifiers", "rm", *(f"life@{version}" for version in range(3, 7)), "--yes").exit_code == 0
    file = tmp_path / "life.onnx"
    named = comln("classifiers", "rename", first.id, "none", "--no-promote")
    assert f"'{first.id}' is version 1 of 'life'" in named.stderr
    noted = comln("classifiers", "edit", "life", "--metadata", "by=a\nb", "--expires-in-seconds", "3600").stdout
    assert re.search(r"\nexpires: \d{4}-\d\d-\d\d \d\d:\d\d UTC\nby: a\\nb\n", noted)
    assert "expires: " not in comln("classifiers", "edit", "life", "--no-metadata", "--never-expires").stdout
    assert comln("classifiers", "export", "life", "-o", file).stdout == f"{file}\n"
    assert printed(comln("classifiers", "export", "life", "-o", file, "--json"))["bytes"] == file.stat().st_size > 0
    weights = tmp_path / "life.safetensors"
    assert comln("classifiers", "export", "life", "-o", weights).exit_code == 0
    assert set(load_file(weights)) == {"W"}  # by its name, no ONNX file
    other = comln("classifiers", "export", "life", "-o", weights, "--format", "onnx")
    assert (other.exit_code, "ends in .safetensors, and the format is onnx" in other.stderr) == (2, True)
    assert set(load_file(weights)) == {"W"}, "nothing was written"
    assert comln("classifiers", "export", "life", "-o", tmp_path / "life.bin", "--format", "onnx").exit_code == 0
    assert (tmp_path / "life.bin").read_bytes() == file.read_bytes()
    kept = comln("classifiers", "rm", "life")
    assert kept.exit_code == 2
    assert kept.stderr == "comln: deleting needs --yes where nobody can be asked\n"
    missing = comln("classifiers", "rm", "life@1", "life@99", "life@2", "--yes")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert len(comln("classifiers", "ls", "--name", "life").stdout.splitlines()) == 3, "nothing was deleted"
    assert comln("classifiers", "rename", "life", "living").stdout == "life is living@2 now\n"
    deleted = comln("classifiers", "rm", "living", "living@1", "--yes").stdout
    assert deleted == "deleted living@2\ndeleted living@1\n"
    gone = comln("classifiers", "show", "life")
    assert gone.exit_code == 1
    assert gone.stderr.startswith("comln: There is no classifier 'life'")
    assert gone.stderr.endswith("(classifier_not_found) With this command: comln classifiers ls.\n")


def test_all_versions_are_deleted(comln: Run, photos: Path) -> None:
    """The promoted one last."""
    for _ in range(3):
        comln("adapt", photos, "--name", "old")
    comln("classifiers", "promote", "old@2")
    one = comln("classifiers", "rm", "old@1", "--all-versions", "--yes")
    assert one.exit_code == 2
    assert one.stderr == "comln: --all-versions is for names; old@1 is the one classifier old@1\n"
    missing = comln("classifiers", "rm", "old", "none", "--all-versions", "--yes")
    assert (missing.exit_code, "no classifier 'none'" in missing.stderr) == (1, True)
    lines = comln("classifiers", "rm", "old", "--all-versions", "--yes").stdout.splitlines()
    assert lines == ["deleted old@1", "deleted old@3", "deleted old@2"]
    assert comln("classifiers", "show", "old").exit_code == 1


def test_models_and_page(comln: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = comln("models", "ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "tiny", "tiny-learned", "tiny-prototype"]
    assert lines[3].split()[:4] == ["tiny-prototype", "yes", "16", "cpu"]
    assert [item["name"] for item in printed(comln("models", "ls", "--json"))["models"] if item["default"]] == [
        "tiny-prototype"
    ]
    assert comln("open").stdout == f"{url}/\n"
    assert printed(comln("open", "--json")) == {"page": f"{url}/"}
    assert "<html" in httpx2.get(comln("open", "--print").stdout.strip(), headers={"Accept": "text/html"}).text


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["adapt"], 2, "Missing argument 'DIR'"),
        (["adapt", "/none"], 2, "Directory '/none' does not exist"),
        (["predict", "/none", "--classifier", "x"], 2, "'/none' does not exist"),
        (["predict", "{photos}"], 2, "Missing option '--classifier'"),
        (["predict", "{photos}", "--classifier", "none"], 1, "There is no classifier 'none'"),
        (["predict", "{photos}", "--classifier", "shop", "--top-k", "0"], 2, "0 is not in the range"),
        (["adapt", "{photos}/red"], 2, "there is no folder of images in it"),
        (["adapt", "{photos}", "--name", "a b"], 1, "(invalid_request)"),
        (["adapt", "{photos}", "--horizon", "far"], 2, "--horizon is 'far'; give a number"),
        (["adapt", "{photos}", "--horizon", "nan"], 2, "--horizon is 'nan'; give a number"),
        (["adapt", "{photos}", "--metadata", "x"], 2, "--metadata is 'x'; give KEY=VALUE"),
        (["adapt", "{photos}", "--metadata", "a=1", "--metadata", "a=2"], 2, "has 'a' twice, as '1' and as '2'"),
        (["adapt", "{photos}", "--model", "none"], 1, "(model_not_found)"),
        (["classifiers", "rollback", "none"], 1, "(classifier_not_found)"),
        (["classifiers", "adapt", "none"], 1, "(classifier_not_found)"),
        (["classifiers", "adapt", "shop", "--horizon", "far"], 2, "--horizon is 'far'; give a number"),
        (["classifiers", "rename-classes", "none", "red", "Red"], 1, "(classifier_not_found)"),
        (
            ["classifiers", "rename-classes", "shop", "rot", "red"],
            1,
            "no class 'rot'. Its classes are 'blue', 'green',",
        ),
        (["classifiers", "rename-classes", "shop"], 2, "Missing argument 'OLD NEW...'"),
        (["classifiers", "rename-classes", "shop", "red", "a", "blue"], 2, "'blue' has no new label; give OLD NEW"),
        (["classifiers", "rename-classes", "shop", "red", "a", "red", "b"], 2, "class 'red' is named twice"),
        (["classifiers", "rename", "none", "other"], 1, "(classifier_not_found)"),
        (["classifiers", "rename", "shop", "a b"], 1, "must be 1 to 64 letters"),
        (["classifiers", "edit", "shop"], 2, "give --metadata, --no-metadata, --expires-in-seconds or --never"),
        (["classifiers", "edit", "shop", "--metadata", "a=b", "--no-metadata"], 2, "exclude each other"),
        (["classifiers", "edit", "shop", "--expires-in-seconds", "9", "--never-expires"], 2, "exclude each other"),
        (["classifiers", "sh"], 2, "No such command 'sh'"),
        (
            ["predict", "{photos}", "--classifier", "a", "--classifier", "b"],
            2,
            "--classifier is given twice; give it once",
        ),
        (["models", "ls", "--url", "a", "--url=b"], 2, "--url is given twice"),
        (["open", "--url", "a", "--url", "b"], 2, "--url is given twice"),
        (["classifiers", "export", "shop", "-o", "a", "--output", "b"], 2, "--output is given twice"),
        (["adapt", "{photos}", "--promote", "--no-promote"], 2, "--promote/--no-promote is given twice"),
        (["models", "ls", "--url", "here"], 2, "url is 'here'; give the address of a server"),
        (["models", "ls", "--models-dir", "models"], 2, "--models-dir is for --local"),
        (["models", "ls", "--local", "--url", "http://x"], 2, "--url and --local exclude each other"),
        (["models", "ls", "--local", "--models-dir", "/none"], 2, "--local: "),
        (["models", "ls", "--key", "two words"], 2, "the API key has characters that no key has"),
    ],
)
def test_wrong_use(comln: Run, shop: str, photos: Path, arguments: list[str], status: int, said: str) -> None:
    result = comln(*(item.format(photos=photos) for item in arguments))
    assert said in result.stderr
    assert (result.exit_code, result.stdout) == (status, "")
    assert "Traceback" not in result.stderr


def test_an_empty_class_folder(comln: Run, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "photos")
    (folder / "empty").mkdir()
    result = comln("adapt", folder, "--json")
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == 2
    assert error["message"].endswith("photos/empty: this class folder holds no image; add some, or remove the folder")
    assert (error["code"], error["status"]) == (None, None)


def test_no_server(comln: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_FIRST_WAIT", 0.01)
    for arguments in (["models", "ls"], ["open"]):
        result = comln(*arguments, "--url", "http://127.0.0.1:9")
        assert result.exit_code == 1
        assert result.stderr.startswith("comln: no server can be reached at http://127.0.0.1:9: ")
        assert "--url or COMLN_URL" in result.stderr
    by_json = comln("models", "ls", "--url", "http://127.0.0.1:9", "--json")
    assert (by_json.exit_code, by_json.stderr) == (1, "")
    assert json.loads(by_json.stdout)["error"]["status"] is None


def test_https_where_the_server_speaks_http(comln: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_FIRST_WAIT", 0.01)
    result = comln("models", "ls", "--url", url.replace("http:", "https:"))
    assert result.exit_code == 1
    assert result.stderr == (f"comln: the server at {url.replace('http:', 'https:')} does not speak TLS; try {url}\n")


def test_a_wrong_key(models_dir: Path, tmp_path: Path) -> None:
    with live_server(models_dir, tmp_path, "--require-keys") as server:
        result = CliRunner().invoke(main, ["models", "ls", "--url", server.url, "--key", "wrong", "--json"])
        assert result.exit_code == 1
        assert json.loads(result.stdout)["error"]["code"] == "unauthorized"
        assert "COMLN_KEY" in CliRunner().invoke(main, ["models", "ls", "--url", server.url]).stderr
        store = open_store(f"sqlite:///{tmp_path / 'classifiers.db'}")
        key = new_key(store)
        store.close()
        result = CliRunner().invoke(main, ["models", "ls"], env={"COMLN_URL": server.url, "COMLN_KEY": key})
        assert result.exit_code == 0, result.stderr


def test_without_a_server(models_dir: Path, photos: Path, tmp_path: Path) -> None:
    """Two commands, each with an engine of its own on one database; in another process, as engines set it up."""
    local = ["--local", "--models-dir", str(models_dir), "--database-url", f"sqlite:///{tmp_path / 'own.db'}"]
    environment = {**os.environ, "COMLN_DEFAULT_MODEL": "tiny-prototype", "COMLN_URL": "http://127.0.0.1:9"}
    script = f"""
from comln_serve.client.commands import main
main(["adapt", {str(photos)!r}, "--name", "own", *{local!r}], standalone_mode=False)
main(["predict", {str(photos)!r}, "--classifier", "own", "--json", *{local!r}], standalone_mode=False)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stdout.startswith("own@1 (clf_")
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert [item["label"] for item in found["predictions"]] == ["blue"] * 3 + ["green"] * 3 + ["red"] * 3


def test_a_command_without_a_server_deletes_nothing_and_names_its_database(
    models_dir: Path, photos: Path, tmp_path: Path
) -> None:
    """Another server may use the database, and keep thumbnails there."""
    database = tmp_path / "own.db"
    local = ["--models-dir", str(models_dir), "--database-url", f"sqlite:///{database}"]
    environment = {**os.environ, "COMLN_DEFAULT_MODEL": "tiny-prototype"}
    comln = [sys.executable, "-m", "comln_serve.client"]

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [*comln, *arguments, "--local", *local]
        kept = {**environment, **more}
        return subprocess.run(command, env=kept, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert run("adapt", str(photos), "--name", "own", COMLN_KEEP_THUMBNAILS="true").returncode == 0
    assert run("classifiers", "ls").returncode == 0
    assert run("classifiers", "rename-classes", "own", "red", "rot").returncode == 0
    shown = json.loads(run("classifiers", "show", "own", "--json", COMLN_KEEP_THUMBNAILS="true").stdout)
    assert all(item["thumbnail"] is not None for item in shown["classes"])
    missing = run("predict", str(photos), "--classifier", "absent")
    assert missing.returncode == 1
    assert f"The database is {database}." in missing.stderr
    assert len(missing.stderr.splitlines()) == 1


def test_ctrl_c_ends_the_work_of_a_command_without_a_server() -> None:
    """What the application does for the request is cancelled, not waited for."""
    script = """
import anyio, os, signal, threading
from anyio.from_thread import start_blocking_portal
from comln_serve.client.local import _InProcess
import httpx2

async def app(scope, receive, send):
    try:
        await anyio.sleep(60)
    finally:
        print("ended", flush=True)

with start_blocking_portal() as portal:
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        httpx2.Client(transport=_InProcess(app, portal)).get("http://localhost")
    except KeyboardInterrupt:
        print("interrupted")
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ("ended" in done.stdout, "interrupted" in done.stdout) == (True, True), done.stderr
    assert time.monotonic() - began < 60


def test_the_server_in_the_process_closes_after_ctrl_c(models_dir: Path, tmp_path: Path) -> None:
    local = ["--models-dir", str(models_dir), "--database-url", f"sqlite:///{tmp_path / 'own.db'}"]
    script = f"""
import threading
from comln_serve.client.local import local_client
try:
    with local_client({local!r}, 0.0) as client:
        client.models()
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate() if thread.name.startswith(("embed", "decode"))])
"""
    environment = {**os.environ, "COMLN_DEFAULT_MODEL": "tiny-prototype"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_command_is_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["comln"].partition(":")
    monkeypatch.setattr(sys, "argv", ["comln", "--version"])
    with pytest.raises(SystemExit) as ended:
        getattr(import_module(module), function)()
    assert (ended.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


def test_completion_for_shells() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "comln_serve.client"],
        env={**os.environ, "_COMLN_COMPLETE": "bash_complete", "COMP_WORDS": "comln classifiers ro", "COMP_CWORD": "2"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "plain,rollback\n"
