"""The page in a browser: hundreds of photos, a server of low limits, thresholds."""

import io
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from unicodedata import normalize
from zipfile import ZipFile, is_zipfile

import httpx2
import numpy as np
import pytest
from PIL import Image

from comln_serve.client.results import interval_of
from tests.support.browser import Visitor
from tests.support.bundles import with_views
from tests.support.image_files import image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.pages import HOSTILE, Colours, adapt_with, focused, get, requests_of, undo, violations

pytestmark = pytest.mark.slow


AWAY = """
const [fetch, times] = [window.fetch, arguments[0]];
let left = times;
window.fetch = (...given) => left-- > 0 ? Promise.reject(new TypeError("no network")) : fetch(...given);
"""


def test_hundreds_of_photos_in_one_go(visitor: Visitor, colours: Colours, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(600):
        os.link(colours[list(colours)[number % 3]][0], photos / f"{number:03}.png")
    visitor.make(colours)
    visitor.step("sort")
    visitor.drop("#query-drop", [photos])
    visitor.wait_sorted(60)
    assert visitor.text("#sort-status").startswith("Sorted 600 photos")
    assert "of 600 photos refused" in visitor.text("#threshold-says")
    assert len(visitor.all("#results > li")) == 120
    visitor.click("#more-results")
    assert len(visitor.all("#results > li")) == 240
    # Only the end and the beginning are announced, not each result.
    assert (
        visitor.run("return document.querySelectorAll('#step-sort [aria-live], #step-sort [role=status]').length") == 0
    )
    # It can be stopped.
    visitor.click("#again")
    visitor.wait(lambda: visitor.one("#sort-stop").is_displayed())
    visitor.click("#sort-stop")
    visitor.wait(lambda: "Stopped after" in visitor.text("#sort-status"))


def test_a_server_that_is_away_for_seconds(visitor: Visitor, colours: Colours) -> None:
    """As one that is started anew: what waits is sorted then, and what was not can be sorted alone."""
    visitor.make(colours)
    visitor.step("sort")
    visitor.run(AWAY, 3)
    visitor.sort(colours["green"])
    assert visitor.text("#sort-status").startswith("Sorted 3 photos")
    assert visitor.messages() == ""
    visitor.run(AWAY, 6)
    visitor.sort(colours["red"][:2])
    assert "did not answer" in visitor.messages()
    assert visitor.text("#sort-status").startswith("Sorted 0 of 2 photos.")
    assert visitor.text("#again") == "Sort the other 2"
    visitor.click("#again")
    visitor.wait(lambda: visitor.text("#again") == "Sort again")
    assert visitor.text("#sort-status").startswith("Sorted 2 photos")


BROKEN = """
// The second request to sort is answered 500 a moment after the first was answered.
const fetch = window.fetch;
let first = null;
window.fetch = (path, ...rest) => {
    if (path !== "predict") return fetch(path, ...rest);
    const broken = () => new Promise((resolve) => setTimeout(resolve, 500, new Response("{}", { status: 500 })));
    if (first) return first.then(broken);
    const answer = fetch(path, ...rest);
    first = answer.then((got) => got.clone().text());
    return answer;
};
"""


def test_what_another_version_has_sorted_is_not_sorted_twice(
    visitor: Visitor, colours: Colours, tmp_path: Path
) -> None:
    """A sort by the next version that breaks off is gone on with."""
    photos = [tmp_path / f"{number:02}.png" for number in range(20)]
    for photo in photos:
        shutil.copy(colours["red"][0], photo)
    visitor.make(colours)
    visitor.sort(photos)
    visitor.step("images")
    visitor.make()
    visitor.step("sort")
    assert visitor.text("#again").startswith("Sort again with clf_")
    visitor.run(BROKEN)
    visitor.click("#again")
    visitor.wait_sorted()
    assert visitor.text("#sort-status").startswith("Sorted 8 of 20 photos.")
    assert "Outdated: 12 photos were" in visitor.text("#sort-status")
    assert visitor.text("#again") == "Sort the other 12"
    visitor.visit("/?step=sort", anew=False)
    visitor.click("#again")
    visitor.wait_sorted()
    assert visitor.text("#sort-status").startswith("Sorted 12 photos")
    assert visitor.text("#again") == "Sort again"


LEAVE = """
const asked = new Event("beforeunload", { cancelable: true });
dispatchEvent(asked);
return asked.defaultPrevented;
"""


def test_the_page_asks_before_it_is_left_while_it_sends(visitor: Visitor, colours: Colours) -> None:
    """Photos that have not been sorted, and a classifier that is half made, would be lost."""
    visitor.add_classes(colours)
    visitor.run(AWAY, 1)
    visitor.click("#adapt")
    visitor.wait(lambda: "Waiting" in visitor.text("#adapt-doing"))
    assert visitor.run(LEAVE)
    visitor.wait(lambda: visitor.all("#facts"))
    visitor.step("sort")
    visitor.run(AWAY, 1)
    visitor.send(visitor.one("#queries"), colours["red"])
    visitor.wait(lambda: "Waiting" in visitor.text("#sort-doing"))
    assert visitor.run(LEAVE)
    visitor.wait_sorted()
    visitor.wait(lambda: not visitor.run(LEAVE))


def test_the_button_back_closes_a_photo(visitor: Visitor, colours: Colours) -> None:
    visitor.make(colours)
    visitor.sort(colours["red"])
    visitor.click("#results .face")
    visitor.wait(lambda: visitor.one("#dialog").is_displayed())
    visitor.driver.back()
    visitor.wait(lambda: visitor.one("#step-quality").is_displayed())
    assert not visitor.one("#dialog").is_displayed()


def press_in_tile(visitor: Visitor, place: int, text: str) -> str:
    """Open the photo at this place of the list and press a button there; returns the photo's name."""
    # At once, as tiles are drawn anew while photos are sorted.
    name = visitor.run(
        "const tile = [...document.querySelectorAll('#results > li')].at(arguments[0]);"
        " tile.querySelector('.face').click(); return tile.querySelector('.file').textContent",
        place,
    )
    visitor.wait(lambda: visitor.one("#dialog").is_displayed())
    visitor.press(text, "#dialog")
    return name


@pytest.fixture
def large(tmp_path: Path) -> list[Path]:
    """80 photos of which each takes the browser a while to make smaller."""
    folder = tmp_path / "large"
    folder.mkdir()
    first = folder / "00.jpg"
    pixels = np.random.default_rng(0).integers(0, 255, (1200, 1600, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(first, quality=90)
    for number in range(1, 80):
        os.link(first, folder / f"{number:02}.jpg")
    return sorted(folder.iterdir())


def test_photos_that_are_removed_stay_away(
    visitor: Visitor, server: LiveServer, colours: Colours, large: list[Path]
) -> None:
    """While they are made smaller, without a classifier, and while others are sorted."""

    def reload() -> None:
        visitor.visit("/?step=sort", anew=False)

    visitor.step("sort")
    visitor.send(visitor.one("#queries"), large)
    visitor.wait(lambda: visitor.all("#results > li"))
    visitor.click("#clear")
    assert not visitor.one("#sorted").is_displayed()
    reload()
    assert visitor.all("#results > li") == []

    # Those that come back are kept, though they were not ready when they were removed.
    visitor.send(visitor.one("#queries"), large[:30])
    visitor.wait(lambda: visitor.all("#results > li"))
    visitor.click("#clear")
    undo(visitor)
    visitor.wait(lambda: len(visitor.all("#results img")) == 30)
    reload()
    assert len(visitor.all("#results img")) == 30
    visitor.click("#clear")

    visitor.step("images")
    visitor.make(colours)
    sent = sum(line["images"] for line in requests_of(server, "/predict"))
    visitor.step("sort")
    visitor.send(visitor.one("#queries"), large)
    visitor.wait(lambda: len(visitor.all("#results > li")) == 80)
    removed = {press_in_tile(visitor, place, "Remove from this list") for place in (-1, -5)}
    # Stopping holds, for photos that are sorted the first time, too.
    visitor.click("#sort-stop")
    visitor.wait(lambda: "Stopped after" in visitor.text("#sort-status"))
    assert "of 78 photos." in visitor.text("#sort-status")
    assert not visitor.one("#sort-progress").is_displayed()
    stopped_at = sum(line["images"] for line in requests_of(server, "/predict")) - sent
    assert stopped_at < 78
    visitor.click("#again")
    visitor.wait(lambda: visitor.one("#sort-progress").is_displayed())
    removed.add(press_in_tile(visitor, -1, "Remove from this list"))
    visitor.wait_sorted(60)
    assert len(visitor.all("#results > li .share")) == 77
    # Those that were sorted before the stop are not sent again.
    assert 77 <= sum(line["images"] for line in requests_of(server, "/predict")) - sent <= stopped_at + 77
    reload()
    assert len(visitor.all("#results > li")) == 77
    assert removed.isdisjoint(visitor.texts("#results .file"))


def test_a_photo_that_waits_is_taught(visitor: Visitor, colours: Colours, large: list[Path]) -> None:
    visitor.make(colours)
    visitor.step("sort")
    visitor.send(visitor.one("#queries"), large)
    visitor.wait(lambda: len(visitor.all("#results > li")) == 80)
    last = "return [...document.querySelectorAll('#results .best')].at(-1).textContent"
    assert visitor.run(last) == "waiting"
    press_in_tile(visitor, -1, "Put it in this class")
    visitor.wait(lambda: "is in red now" in visitor.text("#undo-text"))
    assert visitor.run(last) == "red"
    visitor.click("#sort-stop")
    visitor.step("images")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 10)
    assert visitor.complaints() == []


def test_photos_that_are_corrected(visitor: Visitor, colours: Colours, folder: Path, tmp_path: Path) -> None:
    """What the user says of a photo is what is shown and downloaded, and what the classifier learns from."""
    wrong = tmp_path / "wrong.png"
    shutil.copy(colours["green"][0], wrong)

    def put(label: str) -> None:
        visitor.all("#results .face")[0].click()
        visitor.choose("#dialog select", label)
        visitor.press("Put it in this class", "#dialog")
        visitor.wait(lambda: visitor.text("#undo-text").startswith(f"wrong.png is in {label} now."))

    def files(name: str) -> bytes:
        target = folder / name
        visitor.wait(lambda: target.exists() and target.stat().st_size > 0)
        content = target.read_bytes()
        target.unlink()
        return content

    def is_corrected(label: str) -> bool:
        return visitor.text("#results .best").startswith(label) and visitor.texts("#results .badge") == ["as you said"]

    visitor.make(colours)
    visitor.click("#go-sort")
    visitor.sort([wrong])
    assert visitor.text("#results .best").startswith("green")
    assert visitor.all("#results .badge") == []
    visitor.slide("#least-probability", 100)
    put("red")
    assert is_corrected("red")
    assert focused(visitor).startswith("red")
    assert visitor.text("#threshold-says") == "0 of 1 photo refused."
    visitor.choose("#filter-class", " red")
    assert len(visitor.all("#results > li")) == 1
    # Another class takes the place of the first: the photo is not learned from twice.
    put("blue")
    assert is_corrected("blue")
    assert visitor.one("#filter-class").get_property("value") == ""  # no photo is red any more
    undo(visitor)
    assert is_corrected("red")
    visitor.press("Download CSV")
    head, row = (line.split(",") for line in files("sorted.csv").decode("utf-8-sig").splitlines())
    found = dict(zip(head, row, strict=True))
    assert (found["label"], found["refused"], found["corrected"]) == ("red", "false", "true")
    visitor.press("Download folders")
    visitor.wait(lambda: visitor.text("#sort-status").startswith("1 photo in folders"))
    with ZipFile(io.BytesIO(files("sorted.zip"))) as archive:
        assert archive.namelist() == ["red/wrong.png"]

    # It outlives a reload, and the next classifier learns from it.
    visitor.visit("/?step=sort", anew=False)
    assert is_corrected("red")
    assert visitor.text("#outdated").startswith("Outdated")
    visitor.click("#make-again")
    visitor.wait(lambda: "In step 3 you put 1 image of these in a class" in visitor.text("#worth"))
    visitor.step("images")
    assert [len(visitor.all("img", card)) for card in visitor.all("#classes .thumbnails")] == [4, 3, 3]
    visitor.step("sort")
    assert violations(visitor) == []
    assert visitor.complaints() == []


def test_a_correction_is_undone(visitor: Visitor, colours: Colours) -> None:
    visitor.make(colours)
    visitor.sort(colours["green"][:1])
    before = visitor.text("#results")
    visitor.all("#results .face")[0].click()
    visitor.choose("#dialog select", "red")
    visitor.press("Put it in this class", "#dialog")
    visitor.wait(lambda: visitor.texts("#results .badge") == ["as you said"])
    visitor.resize(390)
    assert visitor.one("#undo-button").rect["height"] < 50  # on one line
    visitor.resize(1280)
    visitor.click("#undo-button")
    assert visitor.text("#results") == before
    visitor.step("images")
    assert [len(visitor.all("img", card)) for card in visitor.all("#classes .thumbnails")] == [3, 3, 3]


def test_a_server_of_low_limits(
    visitor: Visitor, bundles: Path, colours: Colours, broken: Path, tmp_path: Path
) -> None:
    """Images over a request's limits are cut into several, and a busy server is waited for."""
    flags = ("--default-model", "tiny", "--max-images", "20", "--max-pending-requests", "1")
    many = {label: paths * 5 for label, paths in colours.items()}
    with live_server(bundles, tmp_path, *flags) as server:
        visitor = Visitor(visitor.browser, server.url)
        visitor.visit()
        visitor.add_classes(many)
        visitor.write("#name", "parts")
        visitor.make()
        # One finished version is left, of all images, and it is promoted.
        (only,) = get(server, "classifiers")["classifiers"]
        assert only["promoted"]
        assert [entry["examples"] for entry in only["classes"]] == [15, 15, 15]
        note = tmp_path / "note.png"
        note.write_bytes(b"none")
        visitor.sort([*colours["red"] * 10, broken, note])
        assert len(visitor.all("#results .share")) == 30
        assert "2 files could not be read: holiday.heic and note.png." in visitor.text("#sort-status")
        visitor.choose("#filter-state", "failed")
        marks = dict(zip(visitor.texts("#results .file"), visitor.texts("#results .mark"), strict=True))
        assert (set(marks), len(set(marks.values()))) == ({"holiday.heic", "note.png"}, 2)
        # The page knows the limits before it sends anything, and sends nothing again without the bad ones.
        assert [line["status"] for line in requests_of(server, "/adapt")] == [201]
        assert {line["status"] for line in requests_of(server, "/classifiers/{ref}/examples")} == {200, 201}
        answered = [line for line in requests_of(server, "/predict") if line["status"] != 429]
        assert (sum(line["images"] for line in answered), {line["status"] for line in answered}) == (32, {200})
        assert [line["rejected"] for line in answered if "rejected" in line] == [2]


def test_photos_are_looked_at_closer(visitor: Visitor, models_dir: Path, colours: Colours, tmp_path: Path) -> None:
    """In all views of the model, and sorted again so."""
    models = with_views(models_dir / "tiny-prototype", tmp_path / "models", (0.8, 0.4))
    with live_server(models, tmp_path, "--default-model", "tiny-prototype") as server:
        visitor = Visitor(visitor.browser, server.url)
        visitor.visit()
        visitor.make(colours)
        visitor.sort(colours["red"])
        shown = "return [...document.querySelectorAll('#results progress, #results .face')].map((e) => e.outerHTML)"
        usual = visitor.run(shown)
        visitor.click("#again")
        visitor.wait_sorted()
        assert visitor.run(shown) == usual
        visitor.click("#closer")
        visitor.click("#again")
        visitor.wait(lambda: visitor.run(shown) != usual)
        visitor.wait_sorted()


def test_stopping_leaves_nothing_half_made(visitor: Visitor, bundles: Path, colours: Colours, tmp_path: Path) -> None:
    with live_server(bundles, tmp_path, "--default-model", "tiny", "--max-images", "3") as server:
        visitor = Visitor(visitor.browser, server.url)
        visitor.visit()
        visitor.add_classes({label: paths * 10 for label, paths in colours.items()})
        visitor.write("#name", "stopped")
        visitor.click("#adapt")
        visitor.wait(lambda: get(server, "classifiers")["classifiers"])
        visitor.click("#adapt-stop")
        visitor.wait(lambda: not visitor.one("#adapt").get_attribute("aria-disabled"))
        assert get(server, "classifiers")["classifiers"] == []
        assert visitor.one("#step-images").is_displayed()


def test_thresholds_and_filters(visitor: Visitor, colours: Colours, server: LiveServer, tmp_path: Path) -> None:
    """Of 20 images the report has a threshold of its own; what the server says is what is shown."""
    paths: Colours = {"red": [], "green": []}
    for seed in range(10):
        for label, colour in {"red": (220, 30, 30), "green": (30, 220, 30)}.items():
            path = tmp_path / f"{label}-of-{seed}.png"
            path.write_bytes(image_bytes(colour, seed=seed))
            paths[label].append(path)
    made = adapt_with(server, paths, model="tiny-far")
    visitor.visit(f"/?classifier={made['id']}&step=sort")
    queries = [colours["blue"][0], *paths["green"][:2], paths["red"][0]]
    visitor.sort(queries)
    answer = httpx2.post(
        f"{server.url}/predict",
        data={"classifier": made["id"], "unknown": "true"},
        files=[("images", path.read_bytes()) for path in queries],
    ).json()["predictions"]
    unknown = [prediction["unknown"] for prediction in answer]
    assert True in unknown
    assert [bool(visitor.all(".badge", tile)) for tile in visitor.all("#results > li")] == unknown
    visitor.choose("#filter-state", "unknown")
    assert len(visitor.all("#results > li")) == sum(unknown)
    visitor.choose("#filter-state", "")
    visitor.choose("#filter-class", " green")
    assert len(visitor.all("#results > li")) == [one["label"] for one in answer].count("green")
    visitor.choose("#filter-class", "")
    visitor.slide("#least-similarity", float(visitor.one("#least-similarity").get_attribute("min") or 0))
    assert visitor.text("#threshold-says") == "0 of 4 photos refused."
    least = sorted(prediction["probability"] for prediction in answer)[1]
    cut = int(100 * least) + 1 if int(100 * least) < 100 else 100
    visitor.slide("#least-probability", cut)
    refused = sum(prediction["probability"] < cut / 100 for prediction in answer)
    assert visitor.text("#threshold-says") == f"{refused} of 4 photos refused: {refused} below {cut} %."
    visitor.choose("#filter-state", "kept")
    assert len(visitor.all("#results > li")) == 4 - refused
    assert visitor.complaints() == []


def test_sorted_photos_are_downloaded_in_folders(
    visitor: Visitor, server: LiveServer, colours: Colours, tmp_path: Path, folder: Path
) -> None:
    red, green, blue = colours.values()
    made = adapt_with(server, {"red": red, HOSTILE: green, "con. ": blue}, model="tiny-far")
    photos = [red[0], green[0], blue[0], tmp_path / "again" / red[0].name, tmp_path / "é 字.png"]
    photos[3].parent.mkdir()
    shutil.copy(red[1], photos[3])
    shutil.copy(green[1], photos[4])
    os.utime(photos[4], (0, 0))
    visitor.visit(f"/?classifier={made['id']}&step=sort")
    visitor.sort(photos)
    target = folder / "sorted.zip"

    def download(said: str) -> dict[str, bytes]:
        visitor.press("Download folders")
        visitor.wait(lambda: visitor.text("#sort-status").startswith(said))
        visitor.wait(lambda: target.exists() and is_zipfile(target))
        with ZipFile(target) as archive:
            assert archive.testzip() is None
            found = {name: archive.read(name) for name in archive.namelist()}
            assert all(1980 <= item.date_time[0] <= datetime.now(UTC).year + 1 for item in archive.infolist())
        target.unlink()
        return found

    names = {f"red/{red[0].name}", f"%3Cimg src=x onerror=alert(1)%3E/{green[0].name}", f"%63on%2E%20/{blue[0].name}"}
    names |= {f"red/{red[0].stem} (2){red[0].suffix}", "%3Cimg src=x onerror=alert(1)%3E/é 字.png"}
    found = download("5 photos in folders, in one ZIP file.")
    assert set(found) == names
    assert sorted(found.values()) == sorted(photo.read_bytes() for photo in photos)
    # What is shown counts; what the thresholds refuse has a folder of its own.
    visitor.choose("#filter-class", " red")
    assert set(download("2 photos in folders")) == {name for name in names if name.startswith("red/")}
    visitor.slide("#least-probability", 100)
    assert {name.split("/")[0] for name in download("2 photos in folders")} == {"(refused)"}
    # After a reload only the copies are left.
    visitor.visit(f"/?classifier={made['id']}&step=sort", anew=False)
    assert len(download("5 photos in folders, in one ZIP file. 5 of an earlier visit as they were sent")) == 5
    assert violations(visitor) == []
    assert visitor.complaints() == []


def test_class_folders_are_none_of_refused_photos_and_fit_a_file_system(
    visitor: Visitor, server: LiveServer, colours: Colours, folder: Path
) -> None:
    """Of two long labels that begin alike, the second one's folder is numbered."""
    red, green, blue = colours.values()
    labels = ["(Refused)", "字" * 100 + "1", "字" * 100 + "2"]
    made = adapt_with(server, dict(zip(labels, (red, green, blue), strict=True)), model="tiny-far")
    visitor.visit(f"/?classifier={made['id']}&step=sort")
    visitor.sort([red[0], green[0], blue[0]])
    visitor.press("Download folders")
    target = folder / "sorted.zip"
    visitor.wait(lambda: target.exists() and is_zipfile(target))
    with ZipFile(target) as archive:
        folders = [name.split("/")[0] for name in archive.namelist()]
    assert sorted(folders) == ["%28Refused)", "字" * 82 + "… (2)", "字" * 84 + "…"]
    assert max(len(name.encode()) for name in folders) <= 255
    target.unlink()


def test_folders_named_as_classes_tell_how_many_photos_are_right(
    visitor: Visitor, server: LiveServer, colours: Colours, tmp_path: Path
) -> None:
    """Two classes of the page, one of whose names is composed otherwise in the folder, and photos in wrong folders."""
    red, green, blue = colours.values()
    made = adapt_with(server, {"rojo é": red, "green": green, "blue": blue}, model="tiny-far")
    visitor.visit(f"/?classifier={made['id']}&step=sort")
    root = tmp_path / "test"

    def put(folder: str, paths: list[Path]) -> None:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, root / folder)

    put(normalize("NFD", "rojo é"), [*red, green[0]])
    put("green", green[1:])
    put("blue ", [*blue[:2], red[0]])
    put("other things", blue[2:])
    visitor.drop("#query-drop", [root])
    visitor.wait_sorted()
    assert len(visitor.all("#results .share")) == 10
    low, high = (f"{100 * bound:.0f}" for bound in interval_of(7 / 9, 9))
    assert visitor.text("#measured") == (
        f"The folders have names of your classes: 7 of 9 photos are right (78 %, 95% interval {low} % to "
        f"{high} %). Not counted: 1 photo of other folders (“other things”). Photos that the classifier was made "
        "from must not be among them."
    )
    visitor.wait(lambda: "7 of 9 photos are right" in str(visitor.one("#announcer").get_property("textContent")))
    assert violations(visitor) == []

    def marks() -> list[str]:
        return sorted(normalize("NFC", mark) for mark in visitor.texts("#results .mark"))

    expected = ["wrong: it is in the folder blue", "wrong: it is in the folder rojo é"]
    assert marks() == expected
    visitor.resize(390)
    assert visitor.run("return document.documentElement.scrollWidth") <= 390
    visitor.resize(1280)
    visitor.choose("#filter-state", "wrong")
    assert len(visitor.all("#results > li")) == 2
    visitor.all("#results .face")[0].click()
    assert "Wrong: it is in the folder blue" in visitor.text("#dialog")
    visitor.click("#dialog [aria-label=Close]")

    # It outlives a reload; photos in no folder are not counted.
    visitor.visit(f"/?classifier={made['id']}&step=sort", anew=False)
    assert marks() == expected
    visitor.sort(red[:1])
    assert "7 of 9 photos are right" in visitor.text("#measured")
    assert "(“other things”), 1 photo in no folder. " in visitor.text("#measured")
    # Another classifier has other classes: nothing is said where fewer than two thirds of the folders have their names.
    put("more things", blue[2:])
    visitor.click("#clear")
    visitor.drop("#query-drop", [root])
    visitor.wait_sorted()
    assert not visitor.one("#measured").is_displayed()
    assert not visitor.all("#results .mark, #filter-state [value=wrong]")
    # A folder alone is named as well as several; of one with parts, the part to choose is named.
    visitor.click("#clear")
    visitor.drop("#query-drop", [root / "green"])
    visitor.wait_sorted()
    assert "2 of 2 photos are right (100 %" in visitor.text("#measured")
    for folder, part in (("green", "train"), ("blue ", "test")):
        (root / folder).rename(root / part)
    visitor.drop("#query-drop", [root])
    visitor.wait(visitor.messages)
    assert "“test” holds the folders “test” and “train”" in visitor.messages()
    assert "drop the folder “test” alone" in visitor.messages()
    assert visitor.complaints() == []
