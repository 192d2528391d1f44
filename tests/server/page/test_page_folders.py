"""Images and folders that are dropped, pasted or taken: which are classes, and what is said of the others."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from comln_serve.client.folders import read_class_folders
from tests.support.browser import Visitor
from tests.support.live import LiveServer
from tests.support.pages import Colours, requests_of, violations

pytestmark = pytest.mark.slow


def test_dropped_folders_are_classes(visitor: Visitor, colours: Colours, broken: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for label, paths in colours.items():
        (root / label).mkdir(parents=True)
        for path in paths:
            shutil.copy(path, root / label)
    (root / "notes.txt").write_text("not an image")
    (root / ".DS_Store").write_text("hidden")
    shutil.copy(broken, root / "red")
    visitor.drop("#intake", [root])
    visitor.wait(lambda: len(visitor.all(".thumbnails li")) == 10)
    assert [node.get_property("value") for node in visitor.all("input.label")] == ["blue", "green", "red"]
    assert "1 file is no image and was left out: root/notes.txt." in visitor.messages()

    # An unreadable image is named and left out; the rest goes on.
    visitor.adapt()
    visitor.wait(lambda: visitor.all("#facts"))
    assert "red: holiday.heic: " in visitor.messages()
    assert "HEIC" in visitor.messages()
    assert "9 images" in visitor.text("#facts")
    visitor.step("images")
    assert visitor.text(".bad .mark").startswith("holiday.heic: ")
    assert visitor.complaints() == [], "the request is not refused for it"


@pytest.mark.parametrize("way", ["drop", "choose"])
def test_a_class_is_a_folder_that_holds_images_itself(
    visitor: Visitor, colours: Colours, tmp_path: Path, way: str
) -> None:
    """As for the command line: its label is its path below the folder that was dropped or chosen."""
    one, two, three = colours["red"]

    def give(*roots: Path) -> list[str]:
        visitor.visit()
        if way == "drop":
            visitor.drop("#intake", roots)
        else:
            visitor.send(visitor.one("#folder"), roots)
        visitor.wait(lambda: visitor.text("#classes-note"))
        return [str(node.get_property("value")) for node in visitor.all("input.label")]

    def place(image: Path, path: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, tmp_path / path)

    place(one, "grocery/Lemon/day1/x.png")
    place(two, "grocery/Lemon/y.png")
    place(three, "grocery/Pear/day1/morning/z.png")
    place(three, "grocery/.hidden/z.png")
    place(three, "grocery/Pear/__MACOSX/z.png")
    root = tmp_path / "grocery"
    images, _ = read_class_folders(root)
    labels = [image.label or "" for image in images]
    assert sorted(labels) == ["Lemon", "Lemon/day1", "Pear/day1/morning"]
    assert sorted(give(root)) == sorted(labels)
    assert len(visitor.all(".thumbnails li")) == len(images)
    assert visitor.text("#classes-note").startswith("3 images in 3 classes: ")
    # The name of an outer folder that holds images itself is a class, too.
    assert sorted(give(root / "Lemon")) == ["Lemon", "Lemon/day1"]
    assert "“Lemon” holds photos itself, beside its folders, so it is a class, too" in visitor.text("#classes-note")
    assert give(root / "Pear/day1/morning") == ["morning", ""]
    # Several can only be dropped, and only Chromium's driver can drop several.
    if (way, visitor.browser.name) == ("drop", "chromium"):
        assert sorted(give(root / "Lemon", root / "Pear")) == ["Lemon", "Lemon/day1", "Pear/day1/morning"]
        assert "holds photos itself" not in visitor.text("#classes-note")
    assert visitor.complaints() == []


def test_parts_of_a_data_set_are_no_classes(visitor: Visitor, colours: Colours, tmp_path: Path) -> None:
    for part, image in (("Train", 0), ("test", 1)):
        for label, paths in colours.items():
            place = tmp_path / "archive" / "grocery" / part / label
            place.mkdir(parents=True)
            shutil.copy(paths[image], place)
    root = tmp_path / "archive" / "grocery"

    def labels() -> list[str]:
        return [str(node.get_property("value")) for node in visitor.all("input.label")]

    for chosen in (root, root.parent):
        visitor.visit()
        visitor.drop("#intake", [chosen])
        visitor.wait(visitor.messages)
        assert (
            "“grocery” holds the folders “test” and “Train”, which look like parts of a data set" in visitor.messages()
        )
        assert "Choose the folder “Train” here, and keep “test” to check the result with" in visitor.messages()
        assert labels() == ["", ""]
    # Its parts alone have classes, and so have folders of which only one has such a name.
    visitor.drop("#intake", [root / "Train"])
    visitor.wait(lambda: labels() == ["blue", "green", "red"])
    (root / "Train").rename(root / "bus")
    visitor.visit()
    visitor.send(visitor.one("#folder"), [root])
    visitor.wait(lambda: len(labels()) == 6)
    assert labels() == [f"{first}/{label}" for first in ("bus", "test") for label in ("blue", "green", "red")]
    for folder in ("bus", "test"):
        (root / folder).rename(root / {"bus": "validation", "test": "valid"}[folder])
    visitor.visit()
    visitor.send(visitor.one("#folder"), [root])
    visitor.wait(visitor.messages)
    assert "holds the folders “valid” and “validation”" in visitor.messages()
    assert visitor.complaints() == []


def test_labels_that_are_nearly_the_same_are_named(visitor: Visitor, colours: Colours, tmp_path: Path) -> None:
    """Blanks around a label make no other class; capitals and blanks within it do, which is said."""
    red, green, blue = (paths[0] for paths in colours.values())
    for label, path in {
        "Banana": red,
        "banana ": red,
        "banana": green,
        "le mon": green,
        "Lemon": blue,
        "kiwi": blue,
    }.items():
        place = tmp_path / "goods" / label
        place.mkdir(parents=True)
        shutil.copy(path, place)
    assert not visitor.one("#alike-note").is_displayed()
    visitor.drop("#intake", [tmp_path / "goods"])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 6)
    assert "6 images in 5 classes: " in visitor.text("#classes-note")
    assert "The folders “banana ” and “banana” are one class, “banana”: blanks around" in visitor.text("#classes-note")
    said = visitor.text("#alike-note")
    assert (
        "are separate classes, though their labels differ only in capitals, blanks or the encoding of letters." in said
    )
    assert "“banana” and “Banana”" in said
    assert "“le mon” and “Lemon”" in said
    assert "kiwi" not in said
    assert violations(visitor) == []
    visitor.make()
    assert "differ only in case, blanks or the encoding of letters are different classes" in visitor.text("#notes")
    visitor.step("images")
    for label in ("banana", "le mon"):
        visitor.write(f"[aria-label='Class {label}'] input.label", f"another {label}")
    assert not visitor.one("#alike-note").is_displayed()
    visitor.write("[aria-label='Class kiwi'] input.label", "LEMON")
    assert visitor.text("#alike-note").startswith("“LEMON” and “Lemon” are separate classes")
    visitor.wait(lambda: "“LEMON” and “Lemon”" in str(visitor.one("#announcer").get_property("textContent")))
    assert visitor.complaints() == []


def test_a_class_of_bad_images_only(visitor: Visitor, colours: Colours, broken: Path) -> None:
    visitor.add_classes({**colours, "odd": [broken]})
    visitor.adapt()
    visitor.wait(lambda: "None of the images of" in visitor.messages())
    assert "None of the images of “odd” can be used: holiday.heic: " in visitor.messages()
    assert visitor.text(".bad .mark").startswith("holiday.heic: ")
    assert visitor.one("#step-images").is_displayed()


def test_dropped_pasted_and_taken_images(visitor: Visitor, colours: Colours) -> None:
    visitor.drop(".class", colours["red"][:1])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 1)
    assert visitor.all(".over") == []
    # Beside a class they make one; outside of everything they do not take the place of the page.
    visitor.drop("#intake", colours["green"][:2])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 3)
    visitor.drop("header", colours["green"])
    assert visitor.run("return location.pathname") == "/"
    visitor.paste(colours["blue"][0])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 4)
    visitor.run(
        "const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);"
        " navigator.mediaDevices.getUserMedia = (asked) => { window.asked = asked; return real(asked); }"
    )
    visitor.take_picture()
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 5)
    # The browser tells the page that the dialog is closed a moment after it is.
    visitor.wait(lambda: visitor.run("return document.querySelector('video').srcObject.active") is False)
    assert visitor.run("return window.asked.video.facingMode") == "environment", "of a phone: not the one for selfies"
    # Some browsers pass on no dropped files.
    assert visitor.messages() == ""
    visitor.run(
        "document.querySelector('.class').dispatchEvent(new DragEvent('drop', {dataTransfer: new DataTransfer()}))"
    )
    visitor.wait(lambda: "choose them instead" in visitor.messages())
    assert visitor.complaints() == []


def test_photos_are_made_smaller(visitor: Visitor, server: LiveServer, tmp_path: Path) -> None:
    """Twice the pixels of the model that needs the most, upright; with the switch, as they are."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    path = tmp_path / "photo.jpg"
    Image.effect_noise((1200, 800), 80).convert("RGB").save(path, exif=exif, quality=95)
    full = path.stat().st_size

    visitor.add_class("a", [path])
    visitor.add_class("b", [path])
    visitor.wait(lambda: len(visitor.all(".class .thumbnails img")) == 2)
    size = "return [arguments[0].naturalWidth, arguments[0].naturalHeight]"
    visitor.wait(lambda: visitor.run(size, visitor.all(".class .thumbnails img")[0])[0] > 0)
    assert visitor.run(size, visitor.all(".class .thumbnails img")[0]) == [32, 48]
    visitor.make()
    small = requests_of(server, "/adapt")[-1]["bytes_in"]
    assert small < 20_000 < full
    visitor.step("images")
    visitor.click("#settings summary")
    visitor.click("#originals")
    visitor.send(visitor.all(".class input[type=file]")[0], [path])
    visitor.wait(lambda: len(visitor.all(".class .thumbnails img")) == 3)
    visitor.make()
    assert requests_of(server, "/adapt")[-1]["bytes_in"] > full
