"""`comln examples add | rm`: what they take, and what they say of the change."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from click.testing import Result
from PIL import Image

from comln_serve.client import Client
from comln_serve.client.commands.changes import changed
from comln_serve.client.commands.tables import described
from comln_serve.client.results import Adapted, ClassCount, HeldOut, Report, Suspect
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import Run, Wire
from tests.support.image_files import encode, image_bytes


def lines_of(result: Result) -> list[str]:
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout.splitlines()


def photos_of(root: Path, *labels: str, each: int = 2, seed: int = 0) -> Path:
    """Class folders of photos, each unlike the others."""
    for label in labels:
        (root / label).mkdir(parents=True)
        for number in range(each):
            generator = np.random.default_rng([seed, *label.encode(), number])
            pixels = generator.integers(0, 256, (9, 9, 3)).astype(np.uint8)
            (root / label / f"{number}.png").write_bytes(encode(Image.fromarray(pixels).resize((64, 64)), "PNG"))
    return root


def test_files_of_one_class_are_added(run: Run, comln: Client, tmp_path: Path) -> None:
    comln.adapt_folder(class_folder(tmp_path / "photos"), name="shop")
    files = []
    for number in range(2):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(image_bytes(COLOURS["red"], seed=10 + number))
    lines_of(run("examples", "add", "shop", "--label", "red", *files))
    assert [(item.label, item.examples) for item in comln.classifier("shop").classes][2] == ("red", 4)
    lines = lines_of(run("examples", "add", "shop", files[0], "--label", "a new one", "--no-promote"))
    assert "new classes: a new one" in lines
    assert "compared with shop@2: " in "\n".join(lines)
    assert comln.classifier("shop").version == 2
    assert comln.classifier("shop@3").labels == ("blue", "green", "red", "a new one")
    (bad := tmp_path / "bad.png").write_bytes(b"none")
    made = json.loads(run("examples", "add", "shop", bad, files[0], "--label", "red", "--json").stdout)
    assert (made["images"], [item["image"] for item in made["skipped"]]) == ([str(files[0])], [str(bad)])
    refused = run("examples", "add", "shop", bad, files[0], "--label", "red", "--on-bad", "raise")
    assert (refused.exit_code, comln.classifier("shop").version) == (2, 4)


def test_folders_of_one_class_are_added(run: Run, comln: Client, tmp_path: Path) -> None:
    comln.adapt_folder(class_folder(tmp_path / "photos"), name="shop")
    more = class_folder(tmp_path / "more")
    (more / "red" / "notes.txt").touch()
    result = run("examples", "add", "shop", more / "red", more / "blue" / "0.png", "--label", "pink")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"1 file was skipped:\n  {more}/red/notes.txt: is no image by its name")
    assert (comln.classifier("shop").classes[3].label, comln.classifier("shop").classes[3].examples) == ("pink", 3)


def test_what_adding_does_not_take(run: Run, line: Wire, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "photos")
    file = folder / "red" / "0.png"
    (empty := tmp_path / "empty").mkdir()
    notes = class_folder(tmp_path / "notes")
    (notes / "notes.txt").touch()
    for arguments, said in (
        ([file], "red/0.png is a file; say of which class it is: --label CLASS"),
        ([folder, file], "red/0.png is a file; say of which class it is: --label CLASS"),
        (["-"], "- is an image on standard input; say of which class it is: --label CLASS"),
        ([folder, "-"], "- is an image on standard input; say"),
        (["-", "--label", "red"], "- is an image on standard input, which is empty; redirect a file to it"),
        ([folder, folder], "received 2 folders; give one at a time"),
        ([folder / "red"], "red holds images itself, and no class folders; say of which class they are: --label CLASS"),
        ([empty], "there is no image in it"),
        ([empty, "--label", "red"], "there is no image in it"),
        ([notes, "--label", "red", "--on-bad", "raise"], "notes.txt is no image by its name"),
        ([], "Missing argument 'DIR_OR_FILES'"),
        (["none.png", "--label", "red"], "does not exist"),
    ):
        result = run("examples", "add", "shop", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
    assert line.requests == []


def test_no_image_is_sent_where_there_is_no_such_classifier(run: Run, line: Wire, tmp_path: Path) -> None:
    result = run("examples", "add", "none", class_folder(tmp_path / "photos"))
    assert result.exit_code != 0
    assert "none" in result.stderr
    assert line.requests == ["GET /classifiers/none"]


def test_changes_are_compared_with_what_the_name_stood_for(run: Run, comln: Client, tmp_path: Path) -> None:
    comln.adapt_folder(class_folder(tmp_path / "photos", each=3), name="shop")
    comln.add_examples("shop", [image_bytes()], ["red"], promote=False)
    more = class_folder(tmp_path / "more", each=2)
    (more / "green").rename(more / "lime")
    # Of whatever version the examples are: the name stood for shop@1, to which a rollback returns.
    for reference in ("shop", comln.classifier("shop@2").id, "shop@2"):
        lines = lines_of(run("examples", "add", reference, more))
        assert lines[2].startswith("expected accuracy: "), lines
        assert lines[3].startswith("compared with shop@1: expected accuracy "), lines
        assert lines[3].endswith(f" %, classes 3 -> 4, images 9 -> {15 if reference == 'shop' else 16}"), lines
        assert lines[4] == "new classes: lime"
        comln.rollback("shop")
    lines = lines_of(run("examples", "rm", "shop", 2, 5, 8, "--no-promote"))
    assert "classes that are gone: green" in lines
    assert not any("to go back" in line for line in lines)
    promote = "comln classifiers promote shop@6"
    assert f"shop stands for shop@1 as before; to let it stand for this version: {promote}" in lines


def test_changes_in_place_are_compared_with_the_revision_before(run: Run, comln: Client, tmp_path: Path) -> None:
    made = comln.adapt_folder(class_folder(tmp_path / "photos", each=3))
    lines = lines_of(run("examples", "rm", made.id, 1, 2))
    assert lines[3].startswith("compared with revision 1: ")
    assert lines[3].endswith("classes 3 -> 3, images 9 -> 7")
    assert not any("to go back" in line for line in lines)


def test_a_name_that_is_there_is_compared_with_what_it_stood_for(run: Run, line: Wire, tmp_path: Path) -> None:
    """A name that is mistaken for a new one is found out, and what to do about it."""
    folder = class_folder(tmp_path / "photos", each=3)
    lines = lines_of(run("adapt", folder, "--name", "shop", "--model", "tiny-prototype"))
    assert not any("compared with" in said or "to go back" in said for said in lines)
    (folder / "green").rename(folder / "lime")
    lines = lines_of(run("adapt", folder, "--name", "shop", "--model", "tiny"))
    assert lines[3].startswith("compared with shop@1: expected accuracy "), lines
    assert lines[3].endswith(" %, classes 3 -> 3, images 9 -> 9, model tiny-prototype -> tiny")
    assert lines[4:6] == [
        "new classes: lime; classes that are gone: green",
        "to go back to shop@1: comln classifiers rollback shop",
    ]
    lines = lines_of(run("adapt", folder, "--name", "shop", "--model", "tiny", "--no-promote"))
    assert lines[3].endswith(" %, classes 3 -> 3, images 9 -> 9")
    assert not any("to go back" in said for said in lines)
    line.requests.clear()
    assert run("adapt", folder, "--name", "shop", "--json").exit_code == 0
    assert line.requests == ["GET /limits", "POST /adapt"]


def test_ranges_are_removed(run: Run, comln: Client, line: Wire, tmp_path: Path) -> None:
    """Of the numbers in a range those that there are; a number by itself must be one."""
    comln.adapt_folder(class_folder(tmp_path / "photos", each=5), name="shop")
    lines_of(run("examples", "rm", "shop", "4", "3-3"))
    lines_of(run("examples", "rm", "shop", "2-5", "4-6", "9"))
    assert [item.number for item in comln.examples("shop")] == [1, 7, 8, 10, 11, 12, 13, 14, 15]
    line.requests.clear()
    for wrong, status, said in (
        ("x", 2, "'x' is not a number from 1 or a range of them; give one such as 3, or 3-7"),
        ("0", 2, "'0' is not a number"),
        ("7-1", 2, "'7-1' is not a number"),
        ("1-", 2, "'1-' is not a number"),
        ("2-6", 2, "shop has no example from 2 to 6; comln examples ls shop lists them"),
        ("3", 1, "has no example 3"),
    ):
        refused = run("examples", "rm", "shop", wrong)
        assert (refused.exit_code, said in refused.stderr) == (status, True), refused.stderr
    assert line.requests.count("DELETE /classifiers/shop/examples") == 1


def test_programs_cost_no_further_request(run: Run, comln: Client, line: Wire, tmp_path: Path) -> None:
    folder = photos_of(tmp_path / "photos", "one", "other")
    comln.adapt_folder(folder, name="shop")
    line.requests.clear()
    run("examples", "rm", "shop", 1, "--json")
    assert line.requests == ["DELETE /classifiers/shop/examples"]
    line.requests.clear()
    answer = json.loads(run("examples", "add", "shop", folder, "--json").stdout)
    assert answer["report"]["near_duplicates"]
    assert line.requests == ["GET /limits", "POST /classifiers/shop/examples"]


def test_added_files_are_named_beside_their_numbers(run: Run, comln: Client, tmp_path: Path) -> None:
    """Numbers of new examples do not follow from how many there are: those of removed ones are not given again."""
    photos = photos_of(tmp_path / "photos", "one", "other", each=4)
    comln.adapt_folder(photos, name="shop")
    comln.remove_examples("shop", [1, 2, 8])
    more = photos_of(tmp_path / "more", "one", "other", each=1, seed=1)
    again = Path(shutil.copy(photos / "one" / "2.png", more / "one" / "again.png"))
    wrong = Path(shutil.copy(photos / "other" / "1.png", more / "one" / "wrong.png"))
    numbers = {item.number: item.label for item in comln.examples("shop")}
    assert numbers == {3: "one", 4: "other", 5: "one", 6: "other", 7: "one"}
    lines = lines_of(run("examples", "add", "shop", more))
    sent = dict(enumerate(["one", "other", "one", "one"], 9))
    assert {item.number: item.label for item in comln.examples("shop")} == {**numbers, **sent}
    assert f"  nearly the same: example 11 ({again}), example 5" in lines, lines
    assert f"  one photo, different labels: example 12 ({wrong}), example 4" in lines, lines


def test_photos_that_are_in_it_already(run: Run, comln: Client, tmp_path: Path) -> None:
    photos = photos_of(tmp_path / "photos", "one", "other", each=3)
    comln.adapt_folder(photos, name="shop")
    lines = lines_of(run("examples", "add", "shop", photos))
    assert "6 of 6 images are in it already, or nearly the same photos are" in lines[:6], lines
    assert "to go back to shop@1: comln classifiers rollback shop" in lines[:6]
    assert len([line for line in lines if line.startswith("  nearly the same: ")]) == 5
    assert "  and 1 more group (comln classifiers show --json shop@2 lists all)" in lines
    assert lines_of(run("classifiers", "rollback", "shop")) == ["shop stands for shop@1 now, instead of shop@2"]
    more = photos_of(tmp_path / "more", "one", "other", each=2, seed=1)
    shutil.copy(photos / "one" / "0.png", more / "one" / "again.png")
    assert not any("already" in line for line in lines_of(run("examples", "add", "shop", more)))


def test_examples_are_added_even_if_they_cannot_be_listed(run: Run, comln: Client, line: Wire, tmp_path: Path) -> None:
    """Of an error after the change somebody would conclude that there was none, and add them twice."""
    photos = photos_of(tmp_path / "photos", "one", "other")
    comln.adapt_folder(photos, name="shop")

    def refuse(request: httpx2.Request) -> httpx2.Response | None:
        broken = request.method == "GET" and request.url.path.endswith("/examples")
        return httpx2.Response(400, json={"error": {"code": "x", "message": "no", "detail": {}}}) if broken else None

    line.before = refuse
    lines = lines_of(run("examples", "add", "shop", photos))
    assert lines[0].startswith("shop@2 ")
    assert comln.classifier("shop").version == 2


def a_classifier(version: int, accuracy: float | None, *labels: str, **report: Any) -> Adapted:
    """With ten images of each class."""
    suspects = report.pop("suspects", ())
    held = HeldOut(folds=2, judged=20, accuracy=accuracy or 0.0, confusion=(), suspects=suspects, predicted=None)
    none: dict[str, Any] = {"horizon_choice": None, "unknown_threshold": None, "temperature": None}
    none["nearest_other_class"] = None
    report = {**none, "near_duplicates": (), "contradictory": (), **report}
    return Adapted(
        id=f"clf_{version}",
        name="shop",
        version=version,
        promoted=True,
        revision=1,
        model="tiny",
        classes=tuple(ClassCount(label=label, examples=10, thumbnail=None) for label in labels),
        horizon=1.0,
        horizon_rule="given",
        support_loss=0.1,
        support_accuracy=1.0,
        metadata={},
        created_at=None,  # type: ignore[arg-type]
        expires_at=None,
        head_sha256=None,
        embedder_sha256="a",
        held_out=None,
        report=Report(held_out=None if accuracy is None else held, notes=("A note.",), own_horizon=True, **report),
        timings_ms={},
    )


def test_the_way_back_is_shown_where_the_accuracy_fell() -> None:
    before = a_classifier(1, 0.95, "a", "b")
    assert changed(before, a_classifier(2, 0.9, "a", "b"), {}) == [
        "compared with shop@1: expected accuracy 95.0 % -> 90.0 %, classes 2 -> 2, images 20 -> 20",
        "to go back to shop@1: comln classifiers rollback shop",
    ]
    now, then = replace(a_classifier(2, 0.9, "a", "b"), embedder_sha256="b"), replace(before, embedder_sha256="a")
    assert changed(then, now, {}, anew=True)[1:] == [
        "shop@1 cannot predict: the network or the preprocessing of tiny was replaced since"
    ]
    for accuracy in (0.95, 0.9499999, 0.96, None):
        assert len(changed(before, a_classifier(2, accuracy, "a", "b"), {})) == 1
    assert changed(before, replace(a_classifier(2, 0.9, "a", "b"), promoted=False), {})[1:] == [
        "shop stands for shop@1 as before; to let it stand for this version: comln classifiers promote shop@2"
    ]
    assert changed(a_classifier(1, None, "a", "b"), a_classifier(2, 0.5, "b", *"cdefghi", "\n"), {}) == [
        "compared with shop@1: expected accuracy not known -> 50.0 %, classes 2 -> 9, images 20 -> 90",
        r"new classes: c, d, e, f, g and 3 more; classes that are gone: a",
    ]
    assert len(changed(replace(before, report=None), replace(before, report=None), {})) == 1


def test_long_lists_do_not_bury_the_accuracy() -> None:
    suspects = tuple(Suspect(number=n, label="a", likelier="b", score=0.9) for n in range(1, 8))
    groups = tuple((n, n + 10) for n in range(1, 8))
    made = a_classifier(2, 0.9, "a", "b", suspects=suspects, near_duplicates=groups, contradictory=groups[:6])
    text = described(made, {n: f"{n}.png" for n in range(1, 21)})
    assert text.splitlines()[2].startswith("expected accuracy: 90.0 %")
    assert text.count("or rather b") == text.count("nearly the same: ") == text.count("different labels: ") == 5
    all_of = "(comln classifiers show --json shop@2 lists all)"
    assert text.count(f"  and 2 more {all_of}\n") == 1
    assert f"  and 1 more group {all_of}\n" in text
    assert text.endswith(f"  and 2 more groups {all_of}")
    assert "  example 1 (1.png): a, or rather b" in text
    assert "  to correct the first: comln examples relabel shop b 1\n" in text
    assert "  to remove these 5: comln examples rm shop 1 2 3 4 5\n" in text
    some = described(replace(made, promoted=False), {7: "7.png", 17: "17.png", 2: "2.png"})
    assert "  to correct the first: comln examples relabel --no-promote shop@2 b 1\n" in some
    assert "  to remove these 5: comln examples rm --no-promote shop@2 1 2 3 4 5\n" in some
    assert "  example 1: a, or rather b" in some
    assert "  example 2 (2.png): a, or rather b" in some
    # Those that were just sent come first.
    assert "  one photo, different labels: example 2 (2.png), example 12\n  one photo, different labels: ex" in some
    assert "  nearly the same: example 2 (2.png), example 12\n" in some
    assert some.endswith("  nearly the same: example 7 (7.png), example 17 (17.png)")
