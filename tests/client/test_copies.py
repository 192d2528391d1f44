"""`comln predict --copy-to`: copies of files in a folder for each class."""

import shutil
from pathlib import Path
from urllib.parse import unquote

import httpx2
import pytest

from comln_serve.client import Client, InputError, predicting
from comln_serve.client.commands.copies import copy_files, folder_of
from comln_serve.client.images import Source
from comln_serve.client.results import Prediction, Predictions
from tests.client.pictures import class_folder
from tests.client.wires import Run, Wire


def inside(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_are_copied_into_folders_of_their_classes(run: Run, comln: Client, photos: Path, tmp_path: Path) -> None:
    comln.rename_classes("shop", {"blue": "sky/blue"})
    (photos / "bad.png").write_bytes(b"none")
    other = class_folder(tmp_path / "other", side=22)
    (kept := tmp_path / "out" / "red").mkdir(parents=True)
    (kept / "0.png").write_bytes(b"kept")
    arguments = ["predict", photos, other / "red", photos / "red" / "1.png", "--copy-to", tmp_path / "out"]
    result = run(*arguments, "--classifier", "shop")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"8 files are in folders of {tmp_path}/out")
    expected = ["green/0.png", "green/1.png", "red/0 (2).png", "red/0 (3).png", "red/0.png", "red/1 (2).png"]
    expected += ["red/1.png", "sky%2Fblue/0.png", "sky%2Fblue/1.png"]
    assert inside(tmp_path / "out") == expected
    assert (kept / "0.png").read_bytes() == b"kept"
    for name, source in (("0 (2)", photos / "red" / "0.png"), ("1 (2)", other / "red" / "1.png")):
        copy = kept / f"{name}.png"
        assert (copy.read_bytes(), copy.stat().st_mtime) == (source.read_bytes(), source.stat().st_mtime)
    assert run(*arguments, "--classifier", "shop", "--json").stderr == ""
    assert inside(tmp_path / "out") == expected, "what is there is not copied again"


def test_a_folder_that_is_called_like_an_address_is_copied_from(
    run: Run, comln: Client, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos.rename("data:photos")
    result = run("predict", "data:photos", "--copy-to", "out", "--classifier", "shop")
    assert (result.exit_code, result.stderr) == (0, "6 files are in folders of out\n")


def test_what_is_done_before_ctrl_c_is_copied(
    run: Run, line: Wire, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "_PREDICTED", 4)

    def interrupt(_request: httpx2.Request) -> None:
        if line.requests.count("POST /predict"):
            raise KeyboardInterrupt

    line.before = interrupt
    arguments = ["predict", photos, "--copy-to", tmp_path / "out", "--classifier", "shop", "--csv", tmp_path / "a.csv"]
    assert run(*arguments).exit_code == 130
    assert inside(tmp_path / "out") == ["blue/0.png", "blue/1.png", "green/0.png", "green/1.png"]
    line.before = lambda _request: None
    assert run(*arguments, "--resume").stdout == f"2 more predictions in {tmp_path}/a.csv\n"
    assert len(inside(tmp_path / "out")) == 6


def test_where_no_copies_can_be_is_refused_before_anything_is_sent(
    run: Run, comln: Client, line: Wire, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(photos)
    (tmp_path / "file").touch()
    line.requests.clear()
    for folder, said in (
        (photos, "whose images are classified; give a folder beside it"),
        (photos / "red" / ".." / "new", "whose images are classified"),
        (tmp_path / "link" / "new", "whose images are classified"),
        (tmp_path / "file", "file is no folder; give another folder"),
        (tmp_path / "file" / "new", "file is no folder; give another folder"),
    ):
        refused = run("predict", photos, "--classifier", "shop", "--copy-to", folder)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    assert line.requests == []
    comln.rename_classes("shop", {"blue": "Unknown", "red": "%" + 84 * "é/"})
    arguments = ["predict", photos, "--classifier", "shop", "--copy-to", tmp_path / "out"]
    assert "cannot be the name of a folder: at most 255 bytes" in run(*arguments).stderr
    comln.rename_classes("shop", {"%" + 84 * "é/": "red"})
    line.requests.clear()
    assert "unknown would be the folder of a class and of images that are" in run(*arguments, "--unknown").stderr
    assert line.requests == ["GET /classifiers/shop"]
    assert not (tmp_path / "out").exists()


def predictions_of(*items: Prediction) -> Predictions:
    return Predictions(classifier="clf", predictions=items, calibrated=False, unknown_threshold=None, timings_ms={})


def test_unknown_images_have_a_folder_of_their_own(photos: Path, tmp_path: Path) -> None:
    files = [photos / "red" / "0.png", photos / "blue" / "0.png"]
    unknown = [True, False]
    found = [
        Prediction(label="red", probability=0.9, top=(), unknown=one, image=str(file))
        for file, one in zip(files, unknown, strict=True)
    ]
    images = [Source(str(file), file) for file in files]
    assert copy_files(tmp_path / "out", predictions_of(*found), images) == 2
    assert inside(tmp_path / "out") == ["red/0.png", "unknown/0.png"]


def test_a_file_that_cannot_be_copied_leaves_no_part(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_files: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fail)
    file = photos / "red" / "0.png"
    found = predictions_of(Prediction(label="red", probability=0.9, top=(), image=str(file)))
    with pytest.raises(InputError, match=r"cannot be copied into .*/red: No space left on device; the 0 files before"):
        copy_files(tmp_path / "out", found, [Source(str(file), file)])
    assert inside(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("sky blue", "sky blue"),
        ("Äpfel, rot", "Äpfel, rot"),
        ("fruit/apple", "fruit%2Fapple"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        (" a. ", "%20a%2E%20"),
        (".hidden", "%2Ehidden"),
        ('a\0\n\x7f\\:*?"<>|', "a%00%0A%7F%5C%3A%2A%3F%22%3C%3E%7C"),
        ("Con", "%43on"),
        ("nul.txt", "%6Eul.txt"),
        ("console", "console"),
        ("100%", "100%"),
        ("%2F", "%252F"),
    ],
)
def test_labels_are_read_from_folders_again(label: str, name: str) -> None:
    assert folder_of(label) == name
    assert unquote(name) == label
