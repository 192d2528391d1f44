"""`comln`: what it prints, for people and for programs, and its exit status."""

import functools
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.numpy import load_file

from comln_serve import __version__
from comln_serve.client import ClassifierDetail, Client, NoAnswerError
from comln_serve.client.commands import connection, main
from comln_serve.client.commands.connection import OnceCommand
from comln_serve.configuration.settings import Settings
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import Run, printed, wire_to
from tests.support.image_files import encode, image_bytes
from tests.support.keyed import keyed, keyed_settings, new_key, store_of
from tests.support.paths import REPOSITORY
from tests.support.programs import python

__all__ = ["keyed", "keyed_settings"]  # fixtures


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"default_model": "tiny-prototype"})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return class_folder(tmp_path / "photos", each=3)


def test_version_and_help(run: Run) -> None:
    assert run("--version").stdout == f"{__version__}\n"
    text = run("--help").stdout
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


def test_adapt(run: Run, photos: Path) -> None:
    result = run("adapt", photos, "--name", "colours", "--metadata", "by=me=you", "--horizon", "5")
    assert (result.exit_code, result.stderr) == (0, "")
    first, *_, last = result.stdout.splitlines()
    assert first.startswith("colours@1 (clf_")
    assert first.endswith("): 3 classes, 9 images, model tiny-prototype, promoted")
    assert re.fullmatch(
        r"expected accuracy: [\d.]+ % \(95% interval [\d.]+ % to [\d.]+ %\), of 9 images classified without themselves",
        last,
    )
    made = printed(run("adapt", photos, "--name", "colours", "--no-promote", "--json"))
    assert (made["version"], made["promoted"], made["metadata"], len(made["images"])) == (2, False, {}, 9)
    with_notes = printed(run("classifiers", "show", "colours", "--json"))
    assert (with_notes["metadata"], with_notes["horizon"]) == ({"by": "me=you"}, 5.0)
    unnamed = run("adapt", photos, "--expires-in-seconds", "60").stdout.splitlines()[0]
    assert unnamed.startswith("clf_")


def test_examples(run: Run, photos: Path, tmp_path: Path) -> None:
    """Added from a folder, with a new class; removed by the numbers that are listed."""
    run("adapt", photos, "--name", "growing", "--horizon", "1000")
    more = class_folder(tmp_path / "more", each=6)
    (more / "red").rename(more / "pink")
    (more / "pink" / "bad.png").write_bytes(b"none")
    (more / "green" / "blue.png").write_bytes(image_bytes(COLOURS["blue"], seed=9))
    result = run("examples", "add", "growing", more)
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
    for line in run("examples", "ls", "growing").stdout.splitlines()[1:]:
        number, label = line.split()
        numbers[label].append(int(number))
    assert {label: len(found) for label, found in numbers.items()} == {"red": 3, "green": 10, "blue": 9, "pink": 6}
    made = printed(run("examples", "rm", "growing", *numbers["pink"], numbers["red"][0], "--no-promote", "--json"))
    assert {item["label"]: item["examples"] for item in made["classes"]} == {"red": 2, "green": 10, "blue": 9}
    assert not made["promoted"]
    listed = printed(run("examples", "ls", made["id"], "--json"))["examples"]
    assert len(listed) == 21
    assert printed(run("classifiers", "show", "growing", "--json"))["version"] == 2
    refused = run("examples", "rm", "growing", "99")
    assert (refused.exit_code, "has no example 99" in refused.stderr) == (1, True)
    assert run("examples", "add", "growing", more, "--on-bad", "raise").exit_code == 2
    assert run("examples", "rm", "growing").exit_code == 2


def test_adapt_tells_of_mislabelled_and_bad_files(run: Run, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "photos", each=6)
    (folder / "red" / "blue.png").write_bytes(image_bytes(COLOURS["blue"], seed=9))
    (folder / "red" / "bad.png").write_bytes(b"none")
    result = run("adapt", folder, "--horizon", "1000")
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
    refused = run("adapt", folder, "--on-bad", "raise")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == f"comln: {folder}/red/bad.png: is no image: it begins with b'none'\n"


def test_adapt_names_the_files_of_near_duplicates(run: Run, tmp_path: Path) -> None:
    """The server's note has their numbers only, which say nothing to somebody with a folder."""
    folder = tmp_path / "photos"
    for number, label in enumerate(("one", "other")):
        (folder / label).mkdir(parents=True)
        for burst in range(2):
            pixels = np.random.default_rng(2 * number + burst).integers(0, 256, (9, 9, 3)).astype(np.uint8)
            file = encode(Image.fromarray(pixels).resize((64, 64)), "PNG")
            (folder / label / f"{burst}.png").write_bytes(file)
            (folder / label / f"{burst}-again.png").write_bytes(file)
    lines = run("adapt", folder).stdout.splitlines()
    assert f"  nearly the same: example 1 ({folder}/one/0-again.png), example 3 ({folder}/one/0.png)" in lines, lines
    shutil.copy(folder / "one" / "1.png", folder / "other" / "wrong.png")
    text = run("adapt", folder).stdout
    files = ", ".join(rf"example \d+ \({folder}/{name}.png\)" for name in ("one/1-again", "one/1", "other/wrong"))
    assert re.search(rf"\n  one photo, different labels: {files}\n", text), text
    assert text.count("different labels") == 1
    text = run("classifiers", "show", text.partition(":")[0]).stdout
    assert (text.count("different labels"), "A photo was sent under different labels: " in text) == (1, True)
    for again in range(4):  # a long burst stays one short line
        shutil.copy(folder / "one" / "0.png", folder / "one" / f"0-{again}.png")
    lines = run("adapt", folder).stdout.splitlines()
    first = ", ".join(rf"example \d+ \({folder}/one/0-{again}.png\)" for again in range(3))
    assert any(re.fullmatch(rf"  nearly the same: {first} and 3 more", said) for said in lines), lines


def test_names_and_labels_do_not_command_the_terminal(run: Run, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "controls"
    for source, label in (("red", "a\nb"), ("blue", "\x1b[31mc")):
        shutil.copytree(photos / source, folder / label)
    (folder / "a\nb" / "bad\n.png").write_bytes(b"none")
    result = run("adapt", folder, "--name", "controls")
    assert result.stderr == (f"1 file was skipped:\n  {folder}/a\\nb/bad\\n.png: is no image: it begins with b'none'\n")
    shown = run("classifiers", "show", "controls").stdout.splitlines()
    assert [line.split()[0] for line in shown[-2:]] == [r"\x1b[31mc", r"a\nb"]
    predicted = run("predict", folder, "--classifier", "controls")
    assert len(predicted.stdout.splitlines()) == 7
    assert "\x1b" not in predicted.stdout


@pytest.mark.parametrize("options", [(), ("--name", "moved")])
def test_an_import_is_compared_with_what_its_name_stood_for(
    run: Run, comln: Client, photos: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    named = comln.adapt_folder(photos, name="moved")
    support = comln.export(named, tmp_path / "moved.support")
    lines = run("classifiers", "import", support, *options).stdout
    assert lines.startswith(f"moved@{(named.version or 0) + 1} (clf_")
    assert f"compared with {named.reference}: expected accuracy " in lines
    assert f"to go back to {named.reference}: comln classifiers rollback moved\n" in lines


def test_an_import_can_be_read_from_a_pipe(run: Run, comln: Client, photos: Path, tmp_path: Path) -> None:
    """As of `comln classifiers import <(ssh ... comln classifiers export ...)`: it can be read only once."""
    support = comln.export(comln.adapt_folder(photos, name="piped"), tmp_path / "piped.support")
    reading, writing = os.pipe()
    os.write(writing, support.read_bytes())
    os.close(writing)
    try:
        result = run("classifiers", "import", f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert result.stdout.startswith("piped@2 (clf_"), result.stderr


@pytest.mark.parametrize("name", ["\ud800", "n" * 100_000])
def test_an_import_with_an_impossible_name_is_refused_by_the_server(run: Run, tmp_path: Path, name: str) -> None:
    """Such a name cannot be in an address, either."""
    header = json.dumps({"__metadata__": {"support": json.dumps({"name": name})}}).encode()
    file = tmp_path / "other.support"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    result = run("classifiers", "import", file)
    assert result.exit_code == 1
    assert "support" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr) < 1000


def test_classifiers(run: Run, comln: Client, photos: Path, tmp_path: Path) -> None:
    first, second = (comln.adapt_folder(photos, name="life") for _ in range(2))
    head, newest, oldest = run("classifiers", "ls", "--name", "life").stdout.splitlines()
    titles = "NAME VERSION PROMOTED CLASSES IMAGES EXPECTED ACCURACY HORIZON MODEL CREATED ID"
    assert head.split() == titles.split()
    assert newest.split()[:5] == ["life", "2", "yes", "3", "9"]
    assert (newest.split()[-1], oldest.split()[-1]) == (second.id, first.id)
    listed = printed(run("classifiers", "ls", "--name", "life", "--limit", "1", "--json"))
    assert [item["id"] for item in listed["classifiers"]] == [second.id]
    shown = run("classifiers", "show", "life@1").stdout
    assert shown.startswith(f"life@1 ({first.id}): 3 classes, 9 images, model tiny-prototype, not promoted\n")
    assert "blue   3       3 of 3\n" in shown
    assert run("classifiers", "rollback", "life").stdout == "life stands for life@1 now, instead of life@2\n"
    assert run("classifiers", "promote", "life@2").stdout == "life stands for life@2 now, instead of life@1\n"
    assert run("classifiers", "promote", "life@2").stdout == "life stands for life@2 now\n"
    assert printed(run("classifiers", "promote", "life@2", "--json"))["promoted"]
    again = run("classifiers", "adapt", "life", "--horizon", "2.5", "--no-promote").stdout
    assert "\ncompared with life@2: expected accuracy " in again
    assert again.startswith("life@3 (")
    assert "\nhorizon: 2.5 (given)\n" in again
    assert " 2.5 (given) " in run("classifiers", "ls", "--name", "life").stdout
    assert printed(run("classifiers", "show", "life@3", "--json"))["horizon"] == 2.5
    assert printed(run("classifiers", "adapt", "life@3", "--no-promote", "--json"))["horizon"] == 2.5
    renamed = run("classifiers", "rename-classes", "life@3", "blue", "a=b", "red", "-r", "--no-promote")
    assert renamed.exit_code == 2  # an option, it seems
    renamed = run("classifiers", "rename-classes", "life@3", "--no-promote", "--", "blue", "a=b", "red", "-r")
    assert re.match(r"life@5 \(clf_\w+\): 3 classes, 9 images, model tiny-prototype, not promoted\n", renamed.stdout)
    assert "a=b    3       3 of 3\n" in run("classifiers", "show", "life@5").stdout
    merged = printed(run("classifiers", "rename-classes", "life@5", "--no-promote", "--json", "--", "-r", "a=b"))
    assert [(one["label"], one["examples"]) for one in merged["classes"]] == [("a=b", 6), ("green", 3)]
    corrected = printed(run("examples", "relabel", "life@3", "cyan", "1", "2", "--no-promote", "--json"))
    assert corrected["classes"][0] == {"label": "cyan", "examples": 2, "thumbnail": None}
    assert "\nnew classes: cyan\n" in run("examples", "relabel", "life@3", "cyan", "1", "--no-promote").stdout
    assert run("classifiers", "rm", "life@7", "life@8", "--yes").exit_code == 0
    assert run("classifiers", "rm", *(f"life@{version}" for version in range(3, 7)), "--yes").exit_code == 0
    file = tmp_path / "life.onnx"
    named = run("classifiers", "rename", first.id, "none", "--no-promote")
    assert f"'{first.id}' is version 1 of 'life'" in named.stderr
    noted = run("classifiers", "edit", "life", "--metadata", "by=a\nb", "--expires-in-seconds", "3600").stdout
    assert re.search(r"\nexpires: \d{4}-\d\d-\d\d \d\d:\d\d UTC\nby: a\\nb\n", noted)
    assert "expires: " not in run("classifiers", "edit", "life", "--no-metadata", "--never-expires").stdout
    assert run("classifiers", "export", "life", "-o", file).stdout == f"{file}\n"
    assert printed(run("classifiers", "export", "life", "-o", file, "--json"))["bytes"] == file.stat().st_size > 0
    weights = tmp_path / "life.safetensors"
    assert run("classifiers", "export", "life", "-o", weights).exit_code == 0
    assert set(load_file(weights)) == {"W"}  # by its name, no ONNX file
    other = run("classifiers", "export", "life", "-o", weights, "--format", "onnx")
    assert (other.exit_code, "ends in .safetensors, and the format is onnx" in other.stderr) == (2, True)
    assert set(load_file(weights)) == {"W"}, "nothing was written"
    assert run("classifiers", "export", "life", "-o", tmp_path / "life.bin", "--format", "onnx").exit_code == 0
    assert (tmp_path / "life.bin").read_bytes() == file.read_bytes()
    support = tmp_path / "life.support"
    assert run("classifiers", "export", "life", "-o", support).exit_code == 0
    assert run("classifiers", "import", support, "--name", "copy").stdout.startswith("copy@1 (clf_")
    assert run("classifiers", "import", support, "--name", "copy", "--no-promote").stdout.startswith("copy@2 (clf_")
    refused = run("classifiers", "import", weights)
    assert (refused.exit_code, "not that of a support set" in refused.stderr) == (1, True)
    assert run("classifiers", "rm", "copy", "--all-versions", "--yes").exit_code == 0
    kept = run("classifiers", "rm", "life")
    assert kept.exit_code == 2
    assert kept.stderr == "comln: deleting needs --yes where nobody can be asked\n"
    missing = run("classifiers", "rm", "life@1", "life@99", "life@2", "--yes")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert len(run("classifiers", "ls", "--name", "life").stdout.splitlines()) == 3, "nothing was deleted"
    assert run("classifiers", "rename", "life", "living").stdout == "life is living@2 now\n"
    deleted = run("classifiers", "rm", "living", "living@1", "--yes").stdout
    assert deleted == "deleted living@2\ndeleted living@1\n"
    gone = run("classifiers", "show", "life")
    assert gone.exit_code == 1
    assert gone.stderr.startswith("comln: There is no classifier 'life'")
    assert gone.stderr.endswith("(classifier_not_found) With this command: comln classifiers ls\n")


def test_all_versions_are_deleted(run: Run, photos: Path) -> None:
    """The promoted one last."""
    for _ in range(3):
        run("adapt", photos, "--name", "old")
    run("classifiers", "promote", "old@2")
    one = run("classifiers", "rm", "old@1", "--all-versions", "--yes")
    assert one.exit_code == 2
    assert one.stderr == "comln: --all-versions is for names; old@1 is the one classifier old@1\n"
    missing = run("classifiers", "rm", "old", "none", "--all-versions", "--yes")
    assert (missing.exit_code, "no classifier 'none'" in missing.stderr) == (1, True)
    lines = run("classifiers", "rm", "old", "--yes").stdout.splitlines()
    assert lines == ["deleted old@2", "old stands for old@3 now"]
    lines = run("classifiers", "rm", "old", "--all-versions", "--yes").stdout.splitlines()
    assert lines == ["deleted old@1", "deleted old@3"]
    assert run("classifiers", "show", "old").exit_code == 1


@pytest.mark.parametrize(
    ("typed", "status", "said"),
    [("y\n", 0, ""), ("n\n", 1, "nothing was deleted\n"), ("", 130, "comln: interrupted\n")],
    ids=["yes", "no", "Ctrl-C or an end of input"],
)
def test_deleting_is_asked_for(
    run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch, typed: str, status: int, said: str
) -> None:
    run("adapt", photos, "--name", "old")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _self: True)
    result = run("classifiers", "rm", "old", input=typed)
    assert (result.exit_code, result.stderr.endswith(said)) == (status, True), result.output
    assert run("classifiers", "show", "old").exit_code == (1 if status == 0 else 0)


def test_what_was_deleted_is_said_even_if_the_server_is_gone_then(
    run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        run("adapt", photos, "--name", "old")
    found = Client.classifier
    left = [1]

    def once(client: Client, ref: str) -> ClassifierDetail:
        if not left:
            raise NoAnswerError("gone")
        left.pop()
        return found(client, ref)

    monkeypatch.setattr(Client, "classifier", once)
    deleted = run("classifiers", "rm", "old", "--yes")
    assert (deleted.exit_code, deleted.stdout) == (0, "deleted old@2\n")


def test_names_of_files_that_are_not_utf8_are_printed(run: Run, photos: Path, tmp_path: Path) -> None:
    run("adapt", photos, "--name", "shop")
    file = tmp_path / os.fsdecode(b"caf\xe9.safetensors")
    exporting = ("classifiers", "export", "shop", "-o", file)
    assert run(*exporting).stdout == f"{tmp_path}/caf\\udce9.safetensors\n"
    assert printed(run(*exporting, "--json"))["file"] == str(file)
    table = file.with_suffix(".csv")
    assert run("predict", photos, "--classifier", "shop", "--csv", table).stdout.endswith("caf\\udce9.csv\n")
    refused = run("classifiers", "import", file, "--name", file.name, "--json")
    assert (refused.exit_code, "is not valid Unicode" in refused.stdout) == (2, True)


def test_ctrl_c_before_the_page_is_opened(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_client: Client) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "live", interrupt)
    result = run("open")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "comln: interrupted\n")


def test_models(run: Run) -> None:
    lines = run("models", "ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "tiny", "tiny-learned", "tiny-prototype"]
    assert lines[3].split()[:4] == ["tiny-prototype", "yes", "16", "cpu"]
    assert [item["name"] for item in printed(run("models", "ls", "--json"))["models"] if item["default"]] == [
        "tiny-prototype"
    ]


def test_the_command_is_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["comln"].partition(":")
    monkeypatch.setattr(sys, "argv", ["comln", "--version"])
    with pytest.raises(SystemExit) as ended:
        getattr(import_module(module), function)()
    assert (ended.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


def test_completion_for_shells() -> None:
    typed = {"COMP_WORDS": "comln classifiers ro", "COMP_CWORD": "2"}
    done = python("-m", "comln_serve.client", _COMLN_COMPLETE="bash_complete", **typed)
    assert done.stdout == "plain,rollback\n"


def test_a_wrong_key(run: Run, keyed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "Client", functools.partial(Client, transport=wire_to(keyed)))
    refused = run("models", "ls", "--key", "wrong", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["error"]["code"]) == (1, "unauthorized")
    assert "COMLN_KEY" in run("models", "ls").stderr
    monkeypatch.setenv("COMLN_KEY", new_key(store_of(keyed)))
    assert run("models", "ls").exit_code == 0
