"""The page's main job in WebKit, the engine of Safari and of all browsers on iPhones."""

import csv
from pathlib import Path
from zipfile import ZipFile, is_zipfile

import pytest
from PIL import Image

from tests.support.browser import Visitor
from tests.support.browsers import Browser, WebKit
from tests.support.live import LiveServer
from tests.support.pages import Colours, get, violations

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program() -> type[Browser]:
    """In place of the browsers of the other files."""
    if not WebKit.installed():
        pytest.skip("WebKit, its driver or Xvfb is not installed: make browser")
    return WebKit


def test_from_example_photos_to_sorted_ones(visitor: Visitor, server: LiveServer, folder: Path) -> None:
    visitor.click("#starter")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 15)
    visitor.write("#name", "goods")
    visitor.make()
    held_out = get(server, "classifiers/goods")["report"]["held_out"]
    assert visitor.text("#accuracy") == f"{100 * held_out['accuracy']:.0f} %"
    cell = visitor.one(".confusion td button")
    images = int(cell.text)
    cell.click()
    visitor.wait(lambda: len(visitor.all("#dialog img")) == images)
    visitor.click("#dialog [aria-label=Close]")

    visitor.step("sort")
    visitor.wait(lambda: len(visitor.all("#results .share")) == 6)
    names = visitor.texts("#results .file")
    visitor.click("#csv")
    table = folder / "sorted.csv"
    visitor.wait(lambda: table.exists() and table.stat().st_size > 0)
    with table.open(encoding="utf-8-sig", newline="") as file:
        labels = {row["file"]: row["label"] for row in csv.DictReader(file)}
    assert list(labels) == names
    visitor.click("#folders")
    visitor.wait(lambda: visitor.text("#sort-status") == "6 photos in folders, in one ZIP file.")
    archive = folder / "sorted.zip"
    visitor.wait(lambda: is_zipfile(archive))
    with ZipFile(archive) as opened:
        assert opened.testzip() is None
        assert {path.split("/")[1] for path in opened.namelist()} == set(names)

    # A photo that is taught makes the classifier outdated.
    visitor.all("#results .face")[0].click()
    visitor.press("Put it in this class", "#dialog")
    visitor.wait(lambda: visitor.text("#outdated").startswith("Outdated"))
    visitor.driver.back()
    visitor.wait(lambda: visitor.one("#step-quality").is_displayed())
    visitor.driver.forward()
    visitor.wait(lambda: visitor.one("#step-sort").is_displayed())
    assert visitor.complaints() == []
    visitor.visit("/?classifier=goods&step=use", anew=False)
    assert visitor.text("#title") == "goods"
    visitor.wait(lambda: visitor.texts("#versions a") == ["goods@1"])
    assert visitor.complaints() == []


def test_chosen_dropped_pasted_and_taken_images(visitor: Visitor, colours: Colours, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    photo = tmp_path / "photo.jpg"
    Image.effect_noise((1200, 800), 80).convert("RGB").save(photo, exif=exif)
    visitor.add_class("upright", [photo])
    visitor.wait(lambda: visitor.all(".thumbnails img"))
    size = "return [arguments[0].naturalWidth, arguments[0].naturalHeight]"
    visitor.wait(lambda: visitor.run(size, visitor.one(".thumbnails img")) == [32, 48])
    visitor.drop(".class", colours["red"][:2])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 3)
    assert visitor.all(".over") == []
    visitor.paste(colours["blue"][0])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 4)
    visitor.take_picture()
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 5)
    # WebKitGTK passes on no files of a real drop.
    visitor.drop(".class", [])
    visitor.wait(lambda: "choose them instead" in visitor.messages())
    assert visitor.complaints() == []


def test_a_private_window_says_that_it_keeps_no_photos(visitor: Visitor, colours: Colours) -> None:
    """In one, WebKit's IndexedDB takes no photos."""
    assert not visitor.one("#lost").is_displayed()
    visitor.add_class("red", colours["red"])
    visitor.wait(lambda: visitor.text("#lost").startswith("This browser keeps no photos"))
    visitor.visit(anew=False)
    assert visitor.all(".thumbnails li") == []
    assert visitor.complaints() == []


def test_on_a_phone(visitor: Visitor, colours: Colours, broken: Path) -> None:
    visitor.resize(390, 844)

    def check(name: str) -> None:
        assert violations(visitor) == [], name
        assert visitor.run("return document.documentElement.scrollWidth") <= 390, name

    visitor.add_classes({**colours, "red": [*colours["red"], broken]})
    check("images")
    visitor.adapt()
    visitor.wait(lambda: visitor.all("#facts"))
    assert "red: holiday.heic: " in visitor.messages()
    check("quality")
    visitor.sort(colours["red"])
    check("sort")
    visitor.step("use")
    visitor.wait(lambda: visitor.all("#step-use pre"))
    check("use")
