"""The page in a browser: stored classifiers, their versions, keys and kept pictures."""

import json
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from selenium.webdriver.common.keys import Keys

from comln_serve.security.keys import Scope
from comln_serve.storage import Store
from tests.support.browser import Visitor
from tests.support.browsers import Browser
from tests.support.image_files import image_bytes
from tests.support.keyed import bearer, new_key
from tests.support.live import LiveServer, live_server
from tests.support.pages import HOSTILE, SHOWN, Colours, adapt_with, focused, get, requests_of, violations

pytestmark = pytest.mark.slow

LOADED = "return performance.getEntriesByType('resource').map((e) => e.name).filter((n) => n.endsWith('/thumbnail'))"


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
    beyond = "const { scrollHeight, clientHeight } = arguments[0]; return scrollHeight - clientHeight"
    assert visitor.run(beyond, visitor.one("#list .scroll")) == 0, "only the page scrolls"
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


def test_back_to_a_classifier_that_was_deleted(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    """It is not shown any more, neither while that can be undone nor later; undone, it is in the list again."""
    adapt_with(server, colours, name="brief")
    visitor.visit("/?classifier=brief&step=use")

    def delete_and_go_back() -> None:
        visitor.wait(lambda: visitor.all("[aria-label='Delete brief@1']"))
        visitor.click("[aria-label='Delete brief@1']")
        visitor.wait(lambda: visitor.one("#list").is_displayed())
        assert "brief@1" not in visitor.texts("#list-table tbody a")
        visitor.run("history.back()")
        visitor.wait(lambda: visitor.messages().startswith("brief@1 was deleted."))
        visitor.wait(lambda: visitor.one("#list").is_displayed())
        assert visitor.run("return location.search") == "?view=classifiers"
        assert not visitor.one("#workspace").is_displayed()

    delete_and_go_back()
    visitor.click("#undo-button")
    visitor.wait(lambda: "brief@1" in visitor.texts("#list-table tbody a"))
    visitor.visit("/?classifier=brief&step=use")
    delete_and_go_back()
    visitor.run("dispatchEvent(new Event('pagehide'))")  # makes it final
    visitor.wait(lambda: httpx2.get(f"{server.url}/classifiers/brief").status_code == 404)
    visitor.click("#go-draft")
    visitor.wait(lambda: visitor.one("#workspace").is_displayed())
    assert visitor.messages() == ""


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

    # Versions: back to an older one, open an older report, promote.
    visitor.step("use")
    visitor.wait(lambda: visitor.texts("#versions a") == ["goods@3", "goods@2", "goods@1"])
    visitor.click("[aria-label='Promote goods@2']")
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
    assert f"{server.url}/?classifier=goods" in visitor.text("#step-use .part")
    assert "This address works on this computer only" in visitor.text("#step-use .part")
    visitor.click("#export-onnx")
    visitor.wait((folder / "goods.onnx").exists)
    expected = httpx2.get(f"{server.url}/classifiers/goods/export").content
    visitor.wait(lambda: (folder / "goods.onnx").stat().st_size == len(expected))
    assert visitor.complaints() == []


def asked(visitor: Visitor, answer: str) -> str:
    """Answer the question that the page asks, and return it."""
    visitor.wait(lambda: visitor.one("#dialog").is_displayed())
    question = visitor.text("#dialog")
    visitor.press(answer, "#dialog")
    return question


def labels_of(server: LiveServer, reference: str) -> list[str]:
    return [entry["label"] for entry in get(server, f"classifiers/{reference}")["classes"]]


def test_a_name_that_stands_for_another_version_by_now(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    """Before images are added to the version that is open, the user is asked, and the images are not lost."""
    two = {label: colours[label] for label in ("red", "green")}
    adapt_with(server, two, name="moving")
    visitor.visit("/?classifier=moving&step=images")
    adapt_with(server, colours, name="moving")
    visitor.send(visitor.all(".class input[type=file]")[1], colours["green"][:2])
    visitor.wait(lambda: visitor.text("#make-summary").startswith("2 new images"))
    visitor.click("#adapt")
    visitor.wait(lambda: visitor.one("#dialog").is_displayed())
    assert visitor.text("#dialog-title") == "moving stands for version 2"
    assert violations(visitor) == []
    visitor.one("#dialog").send_keys(Keys.ESCAPE)
    visitor.wait(lambda: not visitor.one("#adapt").get_attribute("aria-disabled"))
    assert [item["version"] for item in get(server, "classifiers?name=moving")["classifiers"]] == [2, 1]

    visitor.click("#adapt")
    assert "without what is only in version 2" in asked(visitor, "Open version 2, with the new images")
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 2", "promoted"])
    visitor.wait(lambda: visitor.text("#make-summary").startswith("2 new images"))
    visitor.visit("/?classifier=moving@2&step=images", anew=False)
    assert visitor.texts(".label.fixed") == list(colours)
    assert visitor.texts(".class .count") == ["", "+ 2 new", ""]
    visitor.wait(lambda: visitor.run(SHOWN, visitor.one(".thumbnails img"))[0] > 0)
    visitor.adapt()
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 3", "promoted"])
    assert labels_of(server, "moving") == list(colours)

    # Or it is done all the same. Examples that may be removed come with the same advice.
    visitor.visit("/?classifier=moving@1&step=images", anew=False)
    assert visitor.texts(".class .count") == ["", ""]
    visitor.all(".stored")[0].click()
    visitor.wait(lambda: "moving stands for version 3" in visitor.text("#dialog .note"))
    assert violations(visitor) == []
    visitor.click("#dialog [aria-label=Close]")
    visitor.send(visitor.all(".class input[type=file]")[0], colours["red"][:1])
    visitor.wait(lambda: visitor.text("#make-summary").startswith("1 new image"))
    visitor.click("#adapt")
    asked(visitor, "Go on with version 1")
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 4", "promoted"])
    assert labels_of(server, "moving") == ["red", "green"]

    # Promoting asks if the page shows another version as promoted than there is now.
    visitor.step("use")
    visitor.wait(lambda: visitor.all("[aria-label='Promote moving@2']"))
    httpx2.post(f"{server.url}/classifiers/moving@3/promote").raise_for_status()
    visitor.click("[aria-label='Promote moving@2']")
    asked(visitor, "Leave it at version 3")
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 4"])
    assert get(server, "classifiers/moving")["version"] == 3
    visitor.wait(lambda: not visitor.all("[aria-label='Promote moving@3']"))
    visitor.click("[aria-label='Promote moving@2']")
    visitor.wait(lambda: not visitor.all("[aria-label='Promote moving@2']"))
    assert get(server, "classifiers/moving")["version"] == 2
    assert visitor.complaints() == []


def test_a_name_that_changes_while_images_are_sent(
    visitor: Visitor, bundles: Path, colours: Colours, tmp_path: Path
) -> None:
    """What is made in several requests does not take the name from what somebody else promoted meanwhile."""
    with live_server(bundles, tmp_path, "--default-model", "tiny", "--max-images", "3") as server:
        one = {label: paths[:1] for label, paths in colours.items()}
        for _ in range(2):
            adapt_with(server, one, name="long")
        visitor = Visitor(visitor.browser, server.url)
        visitor.visit("/?classifier=long&step=images")
        visitor.send(visitor.all(".class input[type=file]")[0], colours["red"] * 20)
        visitor.wait(lambda: visitor.text("#make-summary").startswith("60 new images"))
        visitor.click("#adapt")
        visitor.wait(lambda: get(server, "classifiers")["classifiers"][0]["version"] > 2)
        httpx2.post(f"{server.url}/classifiers/long@1/promote").raise_for_status()
        assert "long stands for version 1" in asked(visitor, "Leave it at version 1")
        visitor.wait(lambda: visitor.one("#step-quality").is_displayed())
        (last, *others) = get(server, "classifiers")["classifiers"]
        assert [(item["version"], item["promoted"]) for item in others] == [(2, False), (1, True)]
        assert (last["classes"][0]["examples"], last["promoted"]) == (61, False)
        assert visitor.texts("#badges .badge") == [f"version {last['version']}"]


def test_another_name_for_all_versions(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    """The address, the pictures, the draft and the way back go on under the new name."""
    adapt_with(server, colours, name="second")
    httpx2.delete(f"{server.url}/classifiers/second").raise_for_status()  # the number is not given again
    adapt_with(server, colours, name="taken")
    visitor.add_classes(colours)
    visitor.write("#name", "first")
    visitor.make()
    visitor.visit("/?classifier=first@1", anew=False)
    visitor.step("use")
    visitor.wait(lambda: visitor.all("#rename"))
    visitor.click("#rename")
    visitor.wait(lambda: visitor.one("#dialog").is_displayed())
    assert violations(visitor) == []
    visitor.press("Rename all versions", "#dialog")
    assert visitor.text("#new-name-problem") == "It has this name already."
    visitor.write("#new-name", "a b")
    assert "no spaces" in visitor.text("#new-name-problem")
    visitor.write("#new-name", "taken")
    assert visitor.text("#new-name-problem") == ""
    visitor.press("Rename all versions", "#dialog")
    visitor.wait(lambda: "There is a classifier 'taken' already" in visitor.text("#new-name-problem"))
    assert visitor.one("#new-name").get_attribute("aria-invalid") == "true"
    assert all("409" in message for message in visitor.complaints())
    visitor.one("#new-name").clear()
    visitor.one("#new-name").send_keys("second", Keys.ENTER)
    visitor.wait(lambda: not visitor.one("#dialog").is_displayed())
    visitor.wait(lambda: visitor.text("#title") == "second")
    assert visitor.texts("#badges .badge") == ["version 2", "promoted"]
    visitor.wait(lambda: visitor.texts("#versions a") == ["second@2"])
    assert focused(visitor) == "Rename"
    assert visitor.run("return location.search") == "?classifier=second%402&step=use"
    assert "-F classifier='second'" in visitor.text("#step-use")
    visitor.step("images")
    visitor.all(".stored")[0].click()
    visitor.wait(lambda: len(visitor.all("#dialog .thumbnails img")) == 3)
    visitor.click("#dialog [aria-label=Close]")

    # Steps that were seen under the old name are found again.
    visitor.run("history.back()")
    visitor.wait(lambda: visitor.one("#step-use").is_displayed())
    visitor.run("history.back()")
    visitor.wait(lambda: visitor.one("#step-quality").is_displayed())
    assert visitor.run("return location.search") == "?classifier=second%402"
    assert visitor.messages() == ""
    visitor.complaints()  # that there is no first@1 any more
    # What is made of the draft is the next version.
    visitor.visit(anew=False)
    assert visitor.one("#name").get_property("value") == "second"
    visitor.adapt()
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 3", "promoted"])
    assert httpx2.get(f"{server.url}/classifiers/first").status_code == 404
    assert visitor.complaints() == []


def test_a_first_name(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    """For one of the draft, and for one that was opened by its id, as the next version of a name."""

    def give(name: str) -> None:
        visitor.step("use")
        visitor.wait(lambda: visitor.all("#rename"))
        assert visitor.text("#rename") == "Give it a name"
        visitor.click("#rename")
        visitor.wait(lambda: visitor.one("#dialog").is_displayed())
        visitor.write("#new-name", name)
        visitor.press("Give it this name", "#dialog")

    visitor.make(colours)
    give("given")
    visitor.wait(lambda: visitor.texts("#badges .badge") == ["version 1", "promoted"])
    visitor.step("images")
    assert visitor.one("#name").get_property("value") == "given"
    visitor.visit(anew=False)
    assert visitor.one("#name").get_property("value") == "given"

    made = adapt_with(server, colours)
    visitor.visit(f"/?classifier={made['id']}", anew=False)
    give("given")
    visitor.wait(lambda: "given stands for version 1 of another classifier" in visitor.text("#dialog .note"))
    assert violations(visitor) == []
    assert get(server, f"classifiers/{made['id']}")["name"] is None
    visitor.press("Make it the next version of given", "#dialog")
    visitor.wait(lambda: visitor.texts("#versions a") == ["given@2", "given@1"])
    assert visitor.run("return location.search") == "?classifier=given&step=use"
    assert get(server, "classifiers/given")["id"] == made["id"]
    assert visitor.complaints() == []


def test_an_edit_is_outdated_until_it_is_made_again(visitor: Visitor, colours: Colours) -> None:
    visitor.make(colours)
    visitor.sort(colours["red"])
    # A photo is taught from its tile.
    visitor.all("#results .face")[0].click()
    visitor.press("Put it in this class", "#dialog")
    visitor.wait(lambda: visitor.text("#outdated").startswith("Outdated"))
    visitor.visit(anew=False)
    assert visitor.text("#outdated").startswith("Outdated")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 10)
    visitor.make()
    assert not visitor.one("#outdated").is_displayed()
    visitor.step("sort")
    assert visitor.text("#sort-status").startswith("Outdated: 3 photos were sorted by another classifier")
    # So it is said, and seen, beside photos that this classifier sorts.
    visitor.send(visitor.one("#queries"), colours["blue"][:1])
    visitor.wait(lambda: visitor.text("#sort-status").startswith("Sorted 1 photo "))
    assert "Outdated: 3 photos" in visitor.text("#sort-status")
    assert visitor.texts("#results .mark") == ["outdated"] * 3


def test_what_is_not_there_is_said(visitor: Visitor) -> None:
    visitor.driver.get(f"{visitor.url}/?classifier=nobody")
    visitor.wait(lambda: "nobody" in visitor.messages())
    visitor.wait(lambda: visitor.one("#list").is_displayed())


def test_a_list_that_does_not_come(visitor: Visitor) -> None:
    visitor.run("window.fetch = () => Promise.reject(new TypeError('no network'))")
    visitor.click("#go-classifiers")
    visitor.wait(lambda: "did not answer" in visitor.messages())
    assert not visitor.one("#paging").is_displayed()


def test_a_name_that_another_classifier_has_is_not_taken_silently(
    visitor: Visitor, server: LiveServer, colours: Colours
) -> None:
    """Links and programs of others that use the name would get the new classifier."""
    red, green, blue = colours.values()
    adapt_with(server, {"one": red, "other": green}, name="theirs")

    def versions() -> list[int]:
        return [one["version"] for one in get(server, "classifiers?name=theirs")["classifiers"]]

    visitor.add_classes({"red": red, "blue": blue})
    visitor.write("#name", "theirs")
    visitor.click("#adapt")
    visitor.wait(lambda: visitor.one("#dialog").is_displayed())
    assert "theirs stands for version 1, of the classes “one” and “other”." in visitor.text("#dialog")
    visitor.press("Choose another name", "#dialog")
    visitor.wait(lambda: visitor.run("return document.activeElement.id") == "name")
    assert versions() == [1]
    visitor.click("#adapt")
    visitor.wait(lambda: visitor.one("#dialog").is_displayed())
    visitor.press("Make the next version of theirs", "#dialog")
    visitor.wait(lambda: visitor.all("#facts"))
    assert versions() == [2, 1]
    # The draft's own classifier is what the name stands for now.
    visitor.step("images")
    visitor.make()
    assert versions() == [3, 2, 1]
    visitor.step("use")
    visitor.wait(lambda: len(visitor.all("#versions li")) == 3)
    assert all("accuracy" in line for line in visitor.texts("#versions li"))
    assert visitor.complaints() == []


def test_with_an_api_key(browser: Browser, bundles: Path, tmp_path: Path, colours: Colours) -> None:
    url = f"sqlite:///{tmp_path / 'keyed.db'}"
    with closing(Store(url)) as store:
        key = new_key(store, "acme", Scope.ADAPT, Scope.PREDICT)
    with live_server(bundles, tmp_path, "--default-model", "tiny", "--require-keys", database_url=url) as server:
        visitor = Visitor(browser, server.url)
        visitor.visit()
        assert visitor.text("#model option") in ("", "the server's default")
        assert visitor.one("#key").is_displayed()
        assert "requires an API key" in visitor.text("#key-hint")
        visitor.write("#key", "comln_wrong")
        visitor.wait(lambda: "does not accept" in visitor.text("#key-hint"))
        visitor.write("#key", "")
        visitor.wait(lambda: "requires an API key" in visitor.text("#key-hint"))
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
        assert visitor.text("#key-hint").startswith("Only if")
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

        # A reload forgets the key, but not what the draft was made into, whatever is done before there is a key again.
        visitor.visit("/?step=quality", anew=False)
        assert visitor.text("#title") == "New classifier"
        visitor.step("images")
        visitor.add_class("blue", colours["blue"])
        visitor.visit("/?step=quality", anew=False)
        visitor.write("#key", key)
        visitor.wait(lambda: visitor.all("#facts"))
        assert visitor.text("#title") == "Classifier without a name"
        assert "Make it again" in visitor.text("#outdated")

        # A link is opened once the key is entered: the page opens it without one.
        (made,) = httpx2.get(f"{server.url}/classifiers", headers=bearer(key)).json()["classifiers"]
        link = f"/?classifier={made['id']}&step=sort"
        visitor.visit(link)
        assert visitor.messages().count("requires an API key") == 1
        visitor.write("#key", key)
        visitor.wait(lambda: visitor.one("#step-sort").is_displayed())
        assert browser.driver.current_url.endswith(link)


def test_pictures_that_the_server_keeps(browser: Browser, bundles: Path, tmp_path: Path, colours: Colours) -> None:
    """Of four classes in the list, of all in an opened classifier; only what is in sight is loaded, and once."""
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    with closing(Store(url)) as store:
        key = new_key(store, "acme", Scope.ADAPT)
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
