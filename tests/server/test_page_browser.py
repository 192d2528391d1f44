"""The page in a browser: from labelled images to sorted photos, on a live server."""

import csv
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from axe_core_python.base import AXE_SCRIPT
from PIL import Image
from selenium.webdriver.common.keys import Keys

from comln_serve.security import Scope
from comln_serve.storage import open_store
from tests.support.browser import Visitor
from tests.support.browsers import BROWSERS, Browser
from tests.support.image_files import colour_support, frame, image_bytes
from tests.support.keyed import bearer, new_key
from tests.support.live import LiveServer, live_server
from tests.support.paths import REPOSITORY
from tests.support.tiny import tiny_config, write_bundle

# Pixels of a picture that has been loaded, and where it is from.
SHOWN = "return [arguments[0].naturalWidth, arguments[0].src.slice(0, 5)]"
LOADED = "return performance.getEntriesByType('resource').map((e) => e.name).filter((n) => n.endsWith('/thumbnail'))"
HOSTILE = "<img src=x onerror=alert(1)>"
Colours = dict[str, list[Path]]


@pytest.fixture(scope="module", params=BROWSERS)
def program(request: pytest.FixtureRequest) -> type[Browser]:
    """Each browser, before anything is made for it."""
    program = BROWSERS[request.param]
    if not program.installed():
        pytest.skip(f"{program.name} is not installed, or no driver for it: make browser")
    return program


@pytest.fixture(scope="module")
def folder(program: type[Browser], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the browser and the server write."""
    return tmp_path_factory.mktemp(program.name)


@pytest.fixture(scope="module")
def browser(program: type[Browser], folder: Path) -> Iterator[Browser]:
    browser = program(folder)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def bundles(models_dir: Path, folder: Path) -> Path:
    """The usual bundles, and `tiny-far`, which adapts so far that it is sure of things."""
    models = folder / "models"
    shutil.copytree(models_dir, models)
    config = tiny_config()
    head = config.head.model_copy(update={"initial_horizon": 1e4})
    write_bundle(models / "tiny-far", config.model_copy(update={"head": head}))
    return models


@pytest.fixture(scope="module")
def server(bundles: Path, folder: Path) -> Iterator[LiveServer]:
    with live_server(bundles, folder, "--default-model", "tiny") as server:
        yield server


@pytest.fixture
def visitor(browser: Browser, server: LiveServer) -> Visitor:
    visitor = Visitor(browser, server.url)
    visitor.resize(1280)
    visitor.prefer()
    visitor.visit()
    return visitor


@pytest.fixture
def colours(tmp_path: Path) -> Colours:
    """Three images of each of three colours."""
    paths: Colours = {}
    for number, (content, label) in enumerate(colour_support()):
        path = tmp_path / f"{label}-{number}.png"
        path.write_bytes(content)
        paths.setdefault(label, []).append(path)
    return paths


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A HEIC file that cannot be read."""
    path = tmp_path / "holiday.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"x" * 50)
    return path


def get(server: LiveServer, path: str) -> Any:
    answer = httpx2.get(f"{server.url}/{path}")
    answer.raise_for_status()
    return answer.json()


def adapt_with(server: LiveServer, colours: Colours, key: str = "", **fields: str) -> Any:
    """Make a classifier without the page."""
    labelled = [(label, path) for label, paths in colours.items() for path in paths]
    answer = httpx2.post(
        f"{server.url}/adapt",
        data={"labels": [label for label, _ in labelled], **fields},
        files=[("images", (path.name, path.read_bytes())) for _, path in labelled],
        headers=bearer(key) if key else {},
    )
    answer.raise_for_status()
    return answer.json()


def requests_of(server: LiveServer, route: str) -> list[dict[str, Any]]:
    """The server's log lines about a route."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("route") == route]


# --- From images to sorted photos -----------------------------------------------------------------


def test_from_images_to_sorted_photos(
    visitor: Visitor, server: LiveServer, colours: Colours, tmp_path: Path, folder: Path
) -> None:
    visitor.wait(lambda: len(visitor.all("#model option")) == 4)
    visitor.add_class("red", colours["red"])
    visitor.add_class(HOSTILE, colours["green"])
    visitor.add_class("blue", [*colours["blue"], *colours["blue"][:1]])
    visitor.all(".thumbnails .remove")[-1].click()
    assert len(visitor.all(".thumbnails li")) == 9
    visitor.write("#name", "colours")
    visitor.make()
    assert visitor.text("#title") == "colours"
    assert visitor.texts("#badges .badge") == ["version 1", "promoted"]

    # What is shown of the report is what the server says.
    made = get(server, "classifiers/colours")
    held_out = made["report"]["held_out"]
    assert visitor.text("#accuracy") == f"{100 * held_out['accuracy']:.0f} %"
    right = round(held_out["accuracy"] * held_out["judged"])
    assert visitor.text("#worth").startswith(f"{right} of {held_out['judged']} images ")
    assert "guessing gets 33 %" in visitor.text("#worth")
    assert f"{100 * made['support_accuracy']:.1f} %" in visitor.text("#facts")
    shown = [int(text.replace("·", "0")) for text in visitor.texts(".confusion tbody td")]
    assert shown == [count for row in held_out["confusion"] for count in row]
    titles = [node.get_attribute("title") for node in visitor.all(".confusion thead th[title]")]
    assert titles == ["red", HOSTILE, "blue"]

    query = tmp_path / "=a & b <i>.png"
    query.write_bytes(image_bytes((30, 220, 30), seed=9))
    visitor.sort([query, colours["red"][0]])
    expected = httpx2.post(
        f"{server.url}/predict",
        data={"classifier": "colours", "unknown": "true"},
        files=[("images", path.read_bytes()) for path in (query, colours["red"][0])],
    ).json()["predictions"]
    # In the order of their names.
    assert visitor.texts("#results .file") == [query.name, colours["red"][0].name]
    for tile, prediction in zip(visitor.all("#results > li"), expected, strict=True):
        assert visitor.one(".best", tile).text.split("\n") == [
            prediction["label"],
            f"{100 * prediction['probability']:.0f} %",
        ]
    visitor.all("#results .face")[0].click()
    lines = [line.text.split("\n") for line in visitor.all("#dialog .bars li")]
    assert lines == [[entry["label"], f"{100 * entry['probability']:.1f} %"] for entry in expected[0]["top"]]
    widths = [bar.size["width"] for bar in visitor.all("#dialog .fill")]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0
    visitor.click("#dialog [aria-label=Close]")

    # The CSV holds the same; a name that a spreadsheet would run is disarmed.
    visitor.click("#csv")
    table = folder / "sorted.csv"
    visitor.wait(lambda: table.exists() and table.stat().st_size > 0)  # Firefox reserves the name first
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    table.unlink()
    assert [row["file"] for row in rows] == ["'" + query.name, colours["red"][0].name]
    assert [row["label"] for row in rows] == [prediction["label"] for prediction in expected]
    assert [float(row["probability"]) for row in rows] == [prediction["probability"] for prediction in expected]

    # A label was text wherever it appeared: no element was made of it, nothing was run or refused.
    assert not visitor.all("img[src='x']")
    assert visitor.complaints() == []


def test_the_starter_example(visitor: Visitor) -> None:
    visitor.click("#starter")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 15)
    labels = [node.get_property("value") for node in visitor.all("input.label")]
    assert labels == ["banana", "cucumber", "zucchini"]
    said = visitor.one("#announcer")
    visitor.wait(lambda: "were added" in str(said.get_property("textContent")))
    visitor.click("#starter")  # again: the photos to sort are not there twice
    visitor.wait(lambda: "here already" in str(said.get_property("textContent")))
    visitor.make()
    visitor.step("sort")
    visitor.wait(lambda: len(visitor.all("#results .share")) == 6)
    assert visitor.complaints() == []


def test_suspects_are_shown_and_moved(visitor: Visitor, colours: Colours) -> None:
    """Two images are red and given as blue."""
    visitor.click("#settings summary")
    visitor.choose("#model", "tiny-far")
    assert visitor.text("#model-description") == "A tiny test model. Licence: Apache-2.0."
    stray, other = (colours["red"][0].with_name(name) for name in ("stray.png", "other.png"))
    for seed, path in ((7, stray), (8, other)):
        path.write_bytes(image_bytes((220, 30, 30), seed=seed))
    # So many that each of them is recognised without itself, whatever rounding does to the tiny network.
    blue = [*colours["blue"], *(stray.with_name(f"more-{seed}.png") for seed in range(10, 16))]
    for seed, path in enumerate(blue[3:], 10):
        path.write_bytes(image_bytes((30, 30, 220), seed=seed))
    visitor.add_classes({**colours, "blue": [stray, other, *blue]})
    visitor.make()
    suspect, _ = visitor.all("#suspects li")
    assert suspect.text.startswith("stray.png\ngiven as blue, looks like red")
    assert visitor.one("img", suspect).is_displayed()
    # A cell opens the images that it counts, no others.
    for title, names in (
        ("2 of 11 images of blue taken for red", ["other.png", "stray.png"]),
        ("9 of 11 images of blue taken for blue", [path.name for path in blue]),
    ):
        visitor.click(f".confusion [title='{title}']")
        visitor.wait(lambda: visitor.all("#dialog img"))
        assert visitor.texts("#dialog li .hint") == names
        visitor.click("#dialog [aria-label=Close]")
    visitor.one("[aria-label='Move to red: stray.png']").send_keys(Keys.ENTER)
    visitor.wait(lambda: not visitor.all("[aria-label='Move to red: stray.png']"))
    assert focused(visitor) == "Move to red: other.png"  # the others can be moved, too, before the next classifier
    visitor.press("Remove", "#suspects")
    visitor.wait(lambda: not visitor.all("#suspects button"))
    assert visitor.text("#outdated").startswith("Outdated")
    visitor.step("images")
    red = visitor.one("[aria-label='Class red']")
    assert "stray.png" in [node.get_attribute("alt") for node in visitor.all("img", red)]
    visitor.make()
    assert visitor.all("#suspects li") == []
    assert not visitor.one("#outdated").is_displayed()
    assert visitor.complaints() == []


def test_near_duplicates_are_shown(visitor: Visitor, tmp_path: Path) -> None:
    """A class of one photo five times, and one of five photos."""
    classes: Colours = {}
    for product, burst in (("banana", True), ("zucchini", False)):
        for n in range(5):
            photo = REPOSITORY / "examples/groceries" / product / "support" / f"{1 if burst else n + 1}.jpg"
            path = tmp_path / f"{product}-{n}.jpg"
            path.write_bytes(frame(photo.read_bytes(), n if burst else 0))
            classes.setdefault(product, []).append(path)
    visitor.add_classes(classes)
    visitor.make()
    assert visitor.text("#title") == "Classifier without a name"
    assert visitor.texts(".near-duplicates .hint") == [path.name for path in classes["banana"]]
    assert len(visitor.all(".near-duplicates img")) == 5
    assert "5 images are nearly the same photo as others" in visitor.text("#worth")
    assert any(note.startswith("Classes whose images are all nearly") for note in visitor.texts("#notes li"))
    visitor.step("images")
    visitor.all(".thumbnails .remove")[-1].click()
    visitor.make()
    assert visitor.text(".headline").startswith("not known\n")
    assert "most images are nearly the same photo" in visitor.text(".headline")
    assert visitor.complaints() == []


def test_the_curve_of_the_chosen_horizon(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    visitor.add_classes(colours)
    visitor.click("#settings summary")
    visitor.choose("#horizon", "auto")
    visitor.write("#name", "curve")
    visitor.make()
    choice = get(server, "classifiers/curve")["report"]["horizon_choice"]
    assert len(visitor.all(".curve .dot")) == len(choice["candidates"])
    assert "At the chosen T of " in str(visitor.one(".curve").get_attribute("aria-label"))
    assert len(visitor.all(".curve .point")) == 1


def test_twelve_classes_fit(visitor: Visitor, server: LiveServer, tmp_path: Path) -> None:
    """The matrix of 12 classes at 1280 px needs no scrolling; a cell opens the images of its class."""
    root = tmp_path / "root"
    for number in range(12):
        place = root / f"a class of goods number {number}"
        place.mkdir(parents=True)
        for seed in range(2):
            (place / f"{seed}.png").write_bytes(image_bytes((20 * number, 200, 30), seed=seed))
    visitor.send(visitor.one("#folder"), [root])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 24)
    visitor.make()
    region = visitor.one(".scroll[aria-label='Confusion matrix']")
    assert len(visitor.all("thead th[title]", region)) == 12
    assert visitor.run("return arguments[0].scrollWidth <= arguments[0].clientWidth", region)
    before = visitor.one(".confusion").size["width"]
    visitor.click("[aria-label='Smaller cells']")
    assert visitor.one(".confusion").size["width"] < before
    cells = visitor.all(".confusion td button")
    assert [cell.get_attribute("tabindex") for cell in cells].count("0") == 1
    cells[0].send_keys(Keys.ARROW_DOWN if len(cells) > 1 else "")
    cell = visitor.driver.switch_to.active_element
    images = int(cell.text)
    cell.send_keys(Keys.ENTER)
    visitor.wait(lambda: len(visitor.all("#dialog .thumbnails img")) == images)
    assert visitor.complaints() == []


# --- Ways in --------------------------------------------------------------------------------------


def test_dropped_folders_are_classes(visitor: Visitor, colours: Colours, broken: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for label, paths in colours.items():
        (root / label / "deeper").mkdir(parents=True)
        for path in paths:
            shutil.copy(path, root / label / "deeper")
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
    # Beside a class they make one; outside of everything they do not take the place of the page.
    visitor.drop("#intake", colours["green"][:2])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 3)
    visitor.drop("header", colours["green"])
    assert visitor.run("return location.pathname") == "/"
    visitor.paste(colours["blue"][0])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 4)
    visitor.press("Camera")
    visitor.wait(lambda: visitor.text("#dialog [role=status]") == "Ready.")
    visitor.press("Take a picture", "#dialog")
    visitor.wait(lambda: visitor.text("#dialog [role=status]") == "1 picture")
    visitor.click("#dialog [aria-label=Close]")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 5)
    assert visitor.run("return document.querySelector('video').srcObject.active") is False
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
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 2)
    size = "return [arguments[0].naturalWidth, arguments[0].naturalHeight]"
    visitor.wait(lambda: visitor.run(size, visitor.all(".thumbnails img")[0])[0] > 0)
    assert visitor.run(size, visitor.all(".thumbnails img")[0]) == [32, 48]
    visitor.make()
    small = requests_of(server, "/adapt")[-1]["bytes_in"]
    assert small < 20_000 < full
    visitor.step("images")
    visitor.click("#settings summary")
    visitor.click("#originals")
    visitor.send(visitor.all(".class input[type=file]")[0], [path])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 3)
    visitor.make()
    assert requests_of(server, "/adapt")[-1]["bytes_in"] > full


def test_the_draft_survives_a_reload(visitor: Visitor, colours: Colours) -> None:
    visitor.add_classes(colours)
    visitor.write("#name", "kept")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 9)
    visitor.visit(anew=False)
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 9)
    assert [node.get_property("value") for node in visitor.all("input.label")] == list(colours)
    assert visitor.one("#name").get_property("value") == "kept"
    visitor.make()
    visitor.sort(colours["red"])
    visitor.visit("/?step=sort", anew=False)
    assert visitor.text("#title") == "kept"
    visitor.wait(lambda: len(visitor.all("#results .share")) == 3)
    # Starting over empties the draft, until that is undone.
    visitor.click("#start-over")
    assert visitor.all(".thumbnails img") == []
    visitor.click("#undo-button")
    assert len(visitor.all(".thumbnails img")) == 9
    visitor.visit(anew=False)
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 9)


def test_names_and_labels_are_checked_at_the_field(visitor: Visitor, colours: Colours) -> None:
    visitor.write("#name", "My shop")
    assert visitor.text("#name-problem").startswith("A name has no spaces.")
    assert visitor.one("#name").get_attribute("aria-invalid") == "true"
    visitor.press("Use My-shop")
    assert visitor.one("#name").get_property("value") == "My-shop"
    assert visitor.text("#name-problem") == ""
    # Blanks around a label make no other class.
    visitor.add_class("Banana", colours["red"])
    visitor.all("input.label")[1].send_keys("Banana ", Keys.TAB)
    assert [node.get_property("value") for node in visitor.all("input.label")] == ["Banana"]
    assert "There is a class “Banana” already" in visitor.text("#classes-note")
    # A class without images does not vanish.
    visitor.click("#add-class")
    visitor.all("input.label")[1].send_keys("Lemon", Keys.TAB)
    visitor.adapt()
    assert "“Lemon” has no images" in visitor.messages()
    assert visitor.driver.switch_to.active_element.get_attribute("aria-label") == "Add photos of Lemon"
    visitor.click("[aria-label='Remove Lemon']")
    visitor.adapt()
    assert "two or more are needed" in visitor.messages()
    assert visitor.complaints() == []


# --- Many photos ----------------------------------------------------------------------------------


def test_hundreds_of_photos_in_one_go(visitor: Visitor, colours: Colours, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(600):
        os.link(colours[list(colours)[number % 3]][0], photos / f"{number:03}.png")
    visitor.add_classes(colours)
    visitor.make()
    visitor.step("sort")
    visitor.drop("#query-drop", [photos])
    visitor.wait_sorted(60)
    assert visitor.text("#sort-status").startswith("Sorted 600 photos")
    assert visitor.text("#threshold-says").endswith("of 600 photos.")
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
    assert visitor.text("#threshold-says") == "Would refuse 0 of 4 photos."
    least = sorted(prediction["probability"] for prediction in answer)[1]
    cut = int(100 * least) + 1 if int(100 * least) < 100 else 100
    visitor.slide("#least-probability", cut)
    refused = sum(prediction["probability"] < cut / 100 for prediction in answer)
    assert visitor.text("#threshold-says").startswith(f"Would refuse {refused} of 4 photos")
    visitor.choose("#filter-state", "kept")
    assert len(visitor.all("#results > li")) == 4 - refused
    assert visitor.complaints() == []


# --- Stored classifiers ---------------------------------------------------------------------------


def test_a_list_of_many(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    for _ in range(21):
        adapt_with(server, {label: paths[:1] for label, paths in colours.items()})
    adapt_with(server, colours, name="the-shop")
    adapt_with(server, colours, name="the-shop")
    visitor.click("#go-classifiers")
    visitor.wait(lambda: len(visitor.all("#list-table tbody tr")) == 20)
    visitor.wait(lambda: "…" not in visitor.text("#list-table"))
    held_out = get(server, "classifiers/the-shop")["report"]["held_out"]["accuracy"]
    first = visitor.texts("#list-table tbody tr")[0]
    assert first.startswith("the-shop@2 promoted")
    assert "red, green and blue" in first
    assert f"{100 * held_out:.0f} %" in first
    assert visitor.texts("#list-table tbody tr")[2].count("not known") == 1
    newest = visitor.text("#list-table tbody a")
    visitor.click("#older")
    visitor.wait(lambda: visitor.text("#list-table tbody a") != newest)
    visitor.click("#newer")
    visitor.wait(lambda: visitor.text("#list-table tbody a") == newest)
    visitor.write("#search", "SHOP")
    visitor.wait(lambda: visitor.texts("#list-table tbody a") == ["the-shop@2", "the-shop@1"])

    # Deleting can be undone for a while, and then is done.
    visitor.click("[aria-label='Delete the-shop@1']")
    visitor.wait(lambda: visitor.texts("#list-table tbody a") == ["the-shop@2"])
    visitor.click("#undo-button")
    visitor.wait(lambda: visitor.texts("#list-table tbody a") == ["the-shop@2", "the-shop@1"])
    assert get(server, "classifiers/the-shop@1")["version"] == 1
    visitor.click("[aria-label='Delete the-shop@1']")
    visitor.wait(lambda: visitor.texts("#list-table tbody a") == ["the-shop@2"])
    visitor.driver.get("about:blank")  # leaving makes it final
    visitor.wait(lambda: httpx2.get(f"{server.url}/classifiers/the-shop@1").status_code == 404)


def test_versions_examples_and_export(
    visitor: Visitor, server: LiveServer, colours: Colours, folder: Path, tmp_path: Path
) -> None:
    visitor.add_classes(colours)
    visitor.write("#name", "goods")
    visitor.make()
    # Opened by its link; the pictures of its examples are those this browser sent.
    visitor.visit("/?classifier=goods&step=images", anew=False)
    assert visitor.texts(".label.fixed") == ["red", "green", "blue"]
    more = tmp_path / "more.png"
    more.write_bytes(image_bytes((220, 30, 30), seed=11))
    visitor.send(visitor.all(".class input[type=file]")[0], [more])
    visitor.wait(lambda: visitor.text("#make-summary") == "1 new image, as the next version")
    visitor.adapt()
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 2", "promoted"])
    assert [entry["examples"] for entry in get(server, "classifiers/goods@2")["classes"]] == [4, 3, 3]

    visitor.step("images")
    visitor.all(".stored")[0].click()
    visitor.wait(lambda: len(visitor.all("#dialog .thumbnails img")) == 4)
    visitor.click("#dialog [aria-label='Remove example 1']")
    visitor.wait(lambda: visitor.one("#undo").is_displayed())
    visitor.run("document.querySelector('#undo').dispatchEvent(new Event('pointerenter'))")
    visitor.click("#undo-button")
    visitor.all(".stored")[0].click()
    # The closed dialog still holds what it showed before.
    visitor.wait(lambda: visitor.one("#dialog [aria-label='Remove example 1']").is_displayed())
    visitor.click("#dialog [aria-label='Remove example 1']")
    visitor.run("dispatchEvent(new Event('pagehide'))")  # what is pending becomes final
    visitor.wait(lambda: visitor.texts("#badges .badge")[:1] == ["version 3"])
    numbers = [entry["number"] for entry in get(server, "classifiers/goods@3/examples")["examples"]]
    assert numbers == list(range(2, 11))

    # Versions: roll back, open an older report, promote.
    visitor.step("use")
    visitor.wait(lambda: visitor.all("#rollback"))
    visitor.wait(lambda: visitor.texts("#versions a") == ["goods@3", "goods@2", "goods@1"])
    visitor.click("#rollback")
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 3"])
    assert get(server, "classifiers/goods")["version"] == 2
    visitor.press("goods@1", "#versions")
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 1"])
    assert visitor.one("#accuracy").is_displayed()
    visitor.step("use")
    visitor.wait(lambda: visitor.all("[aria-label='Promote goods@1']"))
    visitor.click("[aria-label='Promote goods@1']")
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 1", "promoted"])
    assert get(server, "classifiers/goods")["version"] == 1

    visitor.wait(lambda: "-F classifier='goods'" in visitor.text("#step-use"))
    assert f"{server.url}/?classifier=goods" in visitor.text("#step-use")
    visitor.click("#export-onnx")
    visitor.wait((folder / "goods.onnx").exists)
    expected = httpx2.get(f"{server.url}/classifiers/goods/export").content
    visitor.wait(lambda: (folder / "goods.onnx").stat().st_size == len(expected))
    assert visitor.complaints() == []


def test_an_edit_is_outdated_until_it_is_made_again(visitor: Visitor, colours: Colours) -> None:
    visitor.add_classes(colours)
    visitor.make()
    visitor.sort(colours["red"])
    # A photo is taught from its tile.
    visitor.all("#results .face")[0].click()
    visitor.press("Add to this class", "#dialog")
    assert visitor.text("#outdated").startswith("Outdated")
    visitor.visit(anew=False)
    assert visitor.text("#outdated").startswith("Outdated")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 10)
    visitor.make()
    assert not visitor.one("#outdated").is_displayed()
    visitor.step("sort")
    assert visitor.text("#sort-status").startswith("Outdated: 3 photos were sorted by another classifier")


def test_what_is_not_there_is_said(visitor: Visitor) -> None:
    visitor.driver.get(f"{visitor.url}/?classifier=nobody")
    visitor.wait(lambda: "nobody" in visitor.messages())
    visitor.wait(lambda: visitor.one("#list").is_displayed())


# --- Everybody ------------------------------------------------------------------------------------


def violations(visitor: Visitor) -> list[str]:
    """What axe-core finds against WCAG 2.2 AA, and targets under 24 px, which this axe-core does not know."""
    visitor.run(AXE_SCRIPT)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = visitor.driver.execute_async_script(
        "const done = arguments[1]; axe.run({runOnly: arguments[0]}).then((result) => done(result.violations))", tags
    )  # type: ignore[no-untyped-call]
    problems = [f"{one['id']}: {node['target']} {node['failureSummary']}" for one in found for node in one["nodes"]]
    small = visitor.run(
        "return [...document.querySelectorAll('button, input, select, .button, nav a, summary')]"
        ".filter((e) => e.checkVisibility() && !e.closest('.button > *, .confusion'))"
        ".map((e) => [e.id || e.className || e.textContent, e.getBoundingClientRect()])"
        ".filter(([, box]) => box.width && (box.width < 24 || box.height < 24)"
        " && !/checkbox|originals/.test(box)).map(([name, box]) => `${name} ${box.width} x ${box.height}`)"
    )
    return [*problems, *(f"small target: {one}" for one in small if not one.startswith("originals "))]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_accessibility(
    visitor: Visitor, server: LiveServer, colours: Colours, broken: Path, width: int, scheme: str
) -> None:
    visitor.resize(width)
    visitor.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")

    def check(name: str) -> None:
        assert violations(visitor) == [], name
        assert visitor.run("return document.documentElement.scrollWidth") <= width, name

    check("empty")
    visitor.add_class("red " * 30, [*colours["red"], broken])
    visitor.add_class("green" * 30, colours["green"])
    visitor.add_class("blue", colours["blue"])
    visitor.click("#settings summary")
    visitor.choose("#horizon", "auto")
    visitor.write("#name", "a b")
    check("images")
    visitor.write("#name", "everybody")
    visitor.adapt()
    visitor.wait(lambda: visitor.all("#facts"))
    check("quality")
    visitor.all(".confusion td button")[0].click()
    visitor.wait(lambda: visitor.all("#dialog img"))
    check("cell")
    visitor.click("#dialog [aria-label=Close]")
    visitor.sort([*colours["red"], broken])
    check("sort")
    visitor.step("use")
    visitor.wait(lambda: visitor.all("#versions li"))
    check("use")
    visitor.click("#go-classifiers")
    visitor.wait(lambda: visitor.all("#list-table tbody tr"))
    visitor.wait(lambda: "…" not in visitor.text("#list-table"))
    check("list")


def test_by_keyboard(visitor: Visitor, colours: Colours) -> None:
    """The focus is not lost where its element goes, and a change of view moves it there."""

    def focus() -> Any:
        return visitor.driver.switch_to.active_element

    visitor.one("body").send_keys(Keys.TAB)
    assert focus().text == "Skip to the content"
    visitor.one("#add-class").send_keys(Keys.ENTER)
    focus().send_keys("written at once", Keys.TAB)
    assert visitor.all("input.label")[2].get_property("value") == "written at once"
    visitor.all(".remove-class")[0].send_keys(Keys.ENTER)
    assert focus().get_attribute("aria-label") == "Add photos of class 1"
    visitor.add_class("red", colours["red"])
    remove = visitor.all(".thumbnails .remove")
    remove[0].send_keys(Keys.ENTER)
    assert focus().get_attribute("aria-label") == f"Remove {colours['red'][1].name}"
    visitor.one("[data-step=quality]").send_keys(Keys.ENTER)
    visitor.wait(lambda: visitor.one("#step-quality").is_displayed())
    assert focus().get_attribute("id") == "title"


def focused(visitor: Visitor) -> str:
    """Name of what has the focus."""
    return visitor.run("const at = document.activeElement; return at.getAttribute('aria-label') ?? at.textContent")


def undo(visitor: Visitor) -> None:
    """Press Control+Z; by an event, as keys that are sent to a field of files are taken for names of files."""
    visitor.run(
        "document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'z', ctrlKey: true, bubbles: true, cancelable: true}))"
    )


def test_the_focus_outlives_what_it_was_on(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    """Where versions are deleted and promoted; and deleting is undone from there, not only at the end of the page."""
    for _ in range(3):
        adapt_with(server, colours, name="focus")

    def press(selector: str) -> None:
        visitor.wait(lambda: visitor.all(selector))
        visitor.one(selector).send_keys(Keys.ENTER)

    def gone(selector: str) -> None:
        visitor.wait(lambda: not visitor.all(selector))

    visitor.visit("/?view=classifiers", anew=False)
    press("[aria-label='Delete focus@3']")
    gone("[aria-label='Delete focus@3']")
    assert focused(visitor) == "focus@2"
    undo(visitor)
    visitor.wait(lambda: visitor.all("[aria-label='Delete focus@3']"))
    assert focused(visitor) == "focus@2"
    press("[aria-label='Promote focus@2']")
    gone("[aria-label='Promote focus@2']")
    assert focused(visitor) == "focus@2"
    visitor.visit("/?classifier=focus@3&step=use", anew=False)
    press("[aria-label='Promote focus@3']")
    gone("[aria-label='Promote focus@3']")
    assert focused(visitor) == "focus@3"
    press("#rollback")
    visitor.wait(lambda: visitor.all("[aria-label='Promote focus@3']"))
    assert focused(visitor) == "Roll back"
    press("[aria-label='Delete focus@1']")
    gone("[aria-label='Delete focus@1']")
    assert focused(visitor) == "focus@2"
    undo(visitor)
    visitor.wait(lambda: visitor.all("[aria-label='Delete focus@1']"))
    assert get(server, "classifiers/focus@1")["version"] == 1


def test_photos_to_sort_by_keyboard(visitor: Visitor, colours: Colours) -> None:
    """The focus stays among the tiles, and photos that were removed come back with their results."""
    visitor.add_classes(colours)
    visitor.make()
    visitor.sort([path for paths in colours.values() for path in paths])

    def press(text: str) -> None:
        visitor.wait(lambda: visitor.one("#dialog").is_displayed())
        visitor.press(text, within="#dialog")

    names = visitor.texts("#results .file")
    visitor.all("#results .face")[0].send_keys(Keys.ENTER)
    press("Add to this class")
    assert names[0] in focused(visitor)
    visitor.all("#results .face")[1].send_keys(Keys.ENTER)
    press("Remove from this list")
    assert names[2] in focused(visitor)
    undo(visitor)
    assert visitor.texts("#results .file") == names
    visitor.one("#clear").send_keys(Keys.ENTER)
    assert not visitor.one("#sorted").is_displayed()
    undo(visitor)
    assert visitor.texts("#results .file") == names
    assert len(visitor.all("#results .share")) == len(names)
    visitor.visit(anew=False)
    visitor.step("sort")
    assert visitor.texts("#results .file") == names


def test_a_result_is_announced_once(visitor: Visitor, colours: Colours) -> None:
    visitor.add_classes(colours)
    visitor.make()
    visitor.step("sort")
    visitor.run(
        "window.said = []; new MutationObserver(() => { const text = document.querySelector('#announcer').textContent;"
        " if (text) window.said.push(text); }).observe(document.querySelector('#announcer'), {childList: true})"
    )
    visitor.sort([path for paths in colours.values() for path in paths])
    visitor.wait(lambda: visitor.run("return window.said.at(-1)?.startsWith('Sorted 9 photos')"))
    assert len(visitor.run("return window.said")) <= 2


def test_forced_colours_and_motion(visitor: Visitor, colours: Colours) -> None:
    visitor.add_classes(colours)
    visitor.make()
    visitor.prefer(forced_colors="active", prefers_reduced_motion="reduce")
    style = (
        "const s = getComputedStyle(arguments[0]); return [s.backgroundColor, s.borderTopWidth, s.transitionDuration]"
    )
    fill, track = visitor.one(".part .fill"), visitor.one(".part .track")
    assert visitor.run(style, fill)[0] != visitor.run(style, track)[0]
    assert visitor.run(style, track)[1] == "1px"
    assert visitor.run(style, visitor.one("#show-key"))[2] == "0s"
    visitor.prefer()


SHIFTS = """
    window.shifts = [];
    new PerformanceObserver((list) => {
        for (const { value, hadRecentInput, sources } of list.getEntries()) {
            if (hadRecentInput) continue;
            window.shifts.push([value, ...sources.map(({ node }) => (node?.outerHTML ?? "").slice(0, 120))]);
        }
    }).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_layout_does_not_shift(visitor: Visitor, width: int) -> None:
    if visitor.browser.name != "chromium":
        pytest.skip("only Chromium measures layout shifts")
    visitor.resize(width)
    visitor.visit()
    visitor.run(SHIFTS)
    visitor.click("#starter")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 15)
    visitor.make()
    visitor.step("sort")
    visitor.wait_sorted()
    visitor.step("use")
    visitor.wait(lambda: visitor.all("#step-use pre"))
    visitor.click("#go-classifiers")
    visitor.wait(lambda: visitor.all("#list-table tbody tr"))
    visitor.wait(lambda: "…" not in visitor.text("#list-table"))
    visitor.click("#list-table tbody a")
    visitor.wait(lambda: visitor.one("#step-quality").is_displayed() and visitor.all("#facts"))
    shifts = visitor.run("return window.shifts")
    assert sum(value for value, *_ in shifts) < 0.01, shifts


def test_on_a_phone_the_classes_come_first(visitor: Visitor) -> None:
    visitor.resize(390, 844)
    place = "return arguments[0].getBoundingClientRect().top"
    assert visitor.run(place, visitor.one(".class")) < visitor.run(place, visitor.one("#name"))
    assert visitor.run(place, visitor.one(".class")) < 844


# Name of each database to all that it holds, as JSON.
KEPT = """
    const [done] = arguments;
    const result = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
    indexedDB.databases().then(async (all) => {
        const kept = {};
        for (const { name } of all) {
            const database = await result(indexedDB.open(name));
            const stores = [...database.objectStoreNames];
            const transaction = database.transaction(stores);
            const found = await Promise.all(stores.map((store) => result(transaction.objectStore(store).getAll())));
            kept[name] = JSON.stringify(found);
            database.close();
        }
        done(kept);
    });
"""


def in_sight(visitor: Visitor, selector: str) -> bool:
    script = "const box = arguments[0].getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight"
    return visitor.run(script, visitor.one(selector))


def test_errors_are_seen_from_the_end_of_a_long_page(visitor: Visitor, colours: Colours) -> None:
    visitor.resize(1280, 500)
    visitor.add_classes(colours)
    visitor.run("window.fetch = () => Promise.reject(new TypeError('no network'))")
    visitor.adapt()
    visitor.wait(lambda: "did not answer" in visitor.messages())
    assert in_sight(visitor, ".message")
    assert not in_sight(visitor, "#adapt")
    visitor.run("window.fetch = () => Promise.resolve(new Response('{}', { status: 401 }))")
    visitor.adapt()
    visitor.wait(lambda: in_sight(visitor, "#key"))


def test_with_an_api_key(browser: Browser, bundles: Path, tmp_path: Path, colours: Colours) -> None:
    url = f"sqlite:///{tmp_path / 'keyed.db'}"
    store = open_store(url)
    key = new_key(store, "acme", Scope.ADAPT, Scope.PREDICT)
    with live_server(bundles, tmp_path, "--default-model", "tiny", "--require-keys", database_url=url) as server:
        visitor = Visitor(browser, server.url)
        visitor.visit()
        assert visitor.text("#model option") in ("", "the server's default")
        assert visitor.one("#key").is_displayed()
        visitor.add_class("red", colours["red"])
        visitor.add_class("green", colours["green"])
        visitor.adapt()
        assert "requires an API key" in visitor.messages()
        assert visitor.one("#key").get_attribute("aria-invalid") == "true"
        assert all("401" in message for message in visitor.complaints())

        visitor.write("#key", key)
        visitor.wait(lambda: len(visitor.all("#model option")) == 4)
        visitor.make()
        assert visitor.one("#key").get_attribute("aria-invalid") == "false"
        visitor.sort(colours["green"][:1])
        assert visitor.text(".best").startswith("green")
        assert visitor.complaints() == []
        kept = visitor.run("return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert json.loads(kept) == [{}, {}, ""]
        # What IndexedDB keeps is the classes and their images, without the key.
        kept = browser.driver.execute_async_script(KEPT)  # type: ignore[no-untyped-call]
        assert set(kept) == {"comln-serve"}
        assert '"label":"red"' in kept["comln-serve"]
        assert key not in kept["comln-serve"]


def test_pictures_that_the_server_keeps(browser: Browser, bundles: Path, tmp_path: Path, colours: Colours) -> None:
    """Of four classes in the list, of all in an opened classifier; only what is in sight is loaded, and once."""
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    key = new_key(open_store(url), "acme", Scope.ADAPT)
    flags = ("--default-model", "tiny", "--keep-thumbnails", "--require-keys")
    five = {**colours, HOSTILE: colours["red"], "teal": colours["blue"]}
    with live_server(bundles, tmp_path, *flags, database_url=url) as server:
        for number in range(9):
            adapt_with(server, five, key, name=f"shop-{number}")
        visitor = Visitor(browser, server.url)
        visitor.resize(1280, 500)
        visitor.visit("/?view=classifiers")
        visitor.complaints()  # of the key
        visitor.write("#key", key)
        visitor.wait(lambda: len(visitor.all("#list-table tbody tr")) == 9)
        first = visitor.one("#list-table tbody tr")
        visitor.wait(lambda: len(visitor.all(".row-pictures img", first)) == 4)
        assert [node.get_attribute("alt") for node in visitor.all("img", first)] == [*colours, HOSTILE]
        assert visitor.run(SHOWN, visitor.one("img", first)) == [16, "blob:"]
        frames = visitor.all(".row-pictures .frame")
        assert {tuple(frame.size.values()) for frame in frames} == {(40, 40)}
        assert len(frames) == 36
        early = len(visitor.run(LOADED))
        assert early < 36, "the last rows are out of sight"
        visitor.run("arguments[0].scrollIntoView()", frames[-1])
        visitor.wait(lambda: len(visitor.all(".row-pictures img")) > early)
        visitor.write("#search", "shop-8")  # the list is drawn anew
        visitor.wait(
            lambda: len(visitor.all("#list-table tbody tr")) == 1 and len(visitor.all(".row-pictures img")) == 4
        )
        asked = visitor.run(LOADED)
        assert len(asked) == len(set(asked)), "those that were there are not loaded again"

        # An opened classifier: at each class, in place of the pictures that this browser has not sent.
        visitor.resize(1280, 2000)
        visitor.press("shop-8@1", "#list-table")
        visitor.wait(lambda: len(visitor.all("#step-quality .bars img")) == 5)
        assert visitor.texts("#step-quality .bars .name") == list(five)
        visitor.step("images")
        assert visitor.one("#kept-note").is_displayed()
        visitor.wait(lambda: len(visitor.all(".class-head img")) == 5)
        visitor.all(".stored")[0].click()
        visitor.wait(lambda: len(visitor.all("#dialog .frame img")) == 1)
        assert visitor.texts("#dialog .frame") == ["", "#2", "#3"]
        visitor.click("#dialog [aria-label=Close]")
        assert not visitor.all("img[src='x']")
        assert visitor.complaints() == []
        visitor.click("#show-key")
        assert violations(visitor) == []

        # A class whose thumbnail went with its image has none.
        httpx2.delete(f"{server.url}/classifiers/shop-0/examples/1", headers=bearer(key)).raise_for_status()
        visitor.visit("/?view=classifiers", anew=False)
        visitor.write("#key", key)
        visitor.wait(lambda: visitor.all("#list-table tbody tr"))
        visitor.press("shop-0@2", "#list-table")
        visitor.wait(lambda: len(visitor.all("#step-quality .bars img")) == 4)
        assert len(visitor.all("#step-quality .bars li")) == 5
        visitor.complaints()


def test_no_pictures_where_the_server_keeps_none(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    adapt_with(server, colours, name="plain")
    visitor.visit("/?view=classifiers")
    visitor.wait(lambda: visitor.all("#list-table tbody tr"))
    assert not visitor.all(".row-pictures")
    visitor.visit("/?classifier=plain")
    assert not visitor.all(".bars .frame")
    visitor.step("images")
    assert not visitor.one("#kept-note").is_displayed()
    assert not visitor.all(".class-head .frame")
    assert requests_of(server, "/classifiers/{ref}/examples/{number}/thumbnail") == []
