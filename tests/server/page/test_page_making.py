"""The page in a browser: from labelled images to sorted photos, and all ways in."""

import csv
from pathlib import Path

import httpx2
import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Visitor
from tests.support.image_files import frame, image_bytes
from tests.support.live import LiveServer
from tests.support.pages import HOSTILE, Colours, focused, get
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.slow


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


def test_who_writes_already_is_not_interrupted_when_the_starter_example_arrives(visitor: Visitor) -> None:
    visitor.run("document.getElementById('starter').click(); document.getElementById('name').focus()")
    visitor.wait(lambda: visitor.text("#announcer") == "The example photos were added.")
    assert visitor.run("return document.activeElement.id") == "name"


def test_the_starter_example(visitor: Visitor) -> None:
    visitor.click("#starter")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 15)
    labels = [node.get_property("value") for node in visitor.all("input.label")]
    assert labels == ["banana", "cucumber", "zucchini"]
    said = visitor.one("#announcer")
    visitor.wait(lambda: "were added" in str(said.get_property("textContent")))
    visitor.click("#starter")  # again: the photos to sort are not there twice
    visitor.wait(lambda: "here already" in str(said.get_property("textContent")))
    visitor.all(".remove-class")[0].click()
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 10)
    visitor.click("#starter")  # only what is missing
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 15)
    visitor.wait(lambda: "were added" in str(said.get_property("textContent")))
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
    # Each label has its own writing direction, so that none turns the count around.
    said = next(node for node in visitor.all(".part > p") if "taken for" in node.text)
    assert said.text == "“blue” taken for “red”: 2 times."
    assert [node.text for node in visitor.all("bdi", said)] == ["blue", "red"]
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


def test_a_photo_in_two_classes_is_shown(visitor: Visitor, tmp_path: Path) -> None:
    classes: Colours = {}
    for product in ("banana", "zucchini"):
        for n in range(3):
            path = tmp_path / f"{product}-{n}.jpg"
            path.write_bytes((REPOSITORY / f"examples/groceries/{product}/support/{n + 1}.jpg").read_bytes())
            classes.setdefault(product, []).append(path)
    wrong = tmp_path / "wrong.jpg"
    wrong.write_bytes(classes["banana"][1].read_bytes())
    classes["zucchini"].append(wrong)
    visitor.make(classes)
    assert sorted(visitor.texts(".contradictory .hint")) == ["banana-1.jpg", "wrong.jpg"]
    assert len(visitor.all(".contradictory img")) == 2
    assert any(note.startswith("A photo was sent under different labels") for note in visitor.texts("#notes li"))
    assert sorted(visitor.texts(".contradictory button")) == ["Remove from banana", "Remove from zucchini"]
    visitor.press("Remove from zucchini", ".contradictory")
    visitor.wait(lambda: visitor.texts(".contradictory button") == ["Remove from banana"])
    visitor.click("#make-again")
    visitor.wait(lambda: visitor.all("#facts") and not visitor.all(".contradictory"))
    assert visitor.complaints() == []


SUSPECTS = """
// The first thirteen examples of a classifier look mislabelled.
const fetch = window.fetch;
window.fetch = async (path, ...rest) => {
    const answer = await fetch(path, ...rest);
    if (!/^classifiers\\/clf_[0-9a-f]+$/.test(path)) return answer;
    const [detail, { examples }] = [await answer.json(), await (await fetch(`${path}/examples`)).json()];
    detail.report.held_out.suspects = examples.slice(0, 13).map(({ number, label }) =>
        ({ number, label, likelier: label === "red" ? "blue" : "red", score: 0.99 }));
    return new Response(JSON.stringify(detail));
};
"""


def test_many_suspects_are_shown_when_asked_for(visitor: Visitor, colours: Colours) -> None:
    visitor.run(SUSPECTS)
    visitor.make({label: paths * 2 for label, paths in colours.items()})
    assert len(visitor.all("#suspects li")) == 12
    visitor.press("Show all 13")
    assert len(visitor.all("#suspects li")) == 13
    assert focused(visitor).startswith("Move to ")
    visitor.run("document.activeElement.click()")
    visitor.wait(lambda: len(visitor.all("#suspects [aria-label^=Move]")) == 12)


def test_near_duplicates_are_shown(visitor: Visitor, tmp_path: Path) -> None:
    """A class of one photo five times, and one of five photos."""
    classes: Colours = {}
    for product, burst in (("banana", True), ("zucchini", False)):
        for n in range(5):
            photo = REPOSITORY / "examples/groceries" / product / "support" / f"{1 if burst else n + 1}.jpg"
            path = tmp_path / f"{product}-{n}.jpg"
            path.write_bytes(frame(photo.read_bytes(), n if burst else 0))
            classes.setdefault(product, []).append(path)
    visitor.make(classes)
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


def test_what_cannot_be_kept_is_told(visitor: Visitor, colours: Colours) -> None:
    """As on a full disk."""
    visitor.add_class("red", colours["red"])
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 3)
    assert not visitor.one("#lost").is_displayed()
    visitor.run("IDBObjectStore.prototype.put = () => { throw new DOMException('', 'QuotaExceededError'); }")
    visitor.add_class("green", colours["green"])
    visitor.wait(lambda: visitor.text("#lost").startswith("This browser keeps no photos"))
    visitor.step("sort")
    assert visitor.one("#lost").is_displayed()
    assert visitor.complaints() == []


def test_undoing_a_new_start_keeps_what_came_since(visitor: Visitor, colours: Colours) -> None:
    visitor.make({label: colours[label] for label in ("red", "green")})
    assert visitor.text("#start-over") == "Start another"
    visitor.click("#start-over")
    assert visitor.text("#undo-text") == "The draft was emptied. The classifier stays in the list."
    visitor.add_classes({"red": colours["red"][:1], "blue": colours["blue"]})
    visitor.click("#undo-button")
    for _ in range(2):
        visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 10)
        assert [node.get_property("value") for node in visitor.all("input.label")] == ["red", "green", "blue"]
        assert visitor.texts(".count") == ["4 images", "3 images", "3 images"]
        visitor.visit(anew=False)


def test_a_draft_in_two_tabs(visitor: Visitor, colours: Colours) -> None:
    """Only one draft is kept, so a change in one tab is told in the other."""
    driver = visitor.driver
    first = driver.current_window_handle
    visitor.add_class("red", colours["red"])
    driver.switch_to.new_window("tab")
    visitor.visit(anew=False)
    visitor.add_class("blue", colours["blue"])
    assert visitor.messages() == ""
    driver.close()
    driver.switch_to.window(first)
    visitor.wait(lambda: "The draft was changed in another tab" in visitor.messages())


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
    # A label may be as long as this server takes.
    visitor.click("#add-class")
    visitor.all("input.label")[1].send_keys("x" * 301, Keys.TAB)
    visitor.adapt()
    assert "A label has at most 300 characters; this one has 301." in visitor.messages()
    assert visitor.complaints() == []
