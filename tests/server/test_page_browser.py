"""The page in a browser: from labelled images to predictions, on a live server."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from comln_serve.security import Scope
from comln_serve.storage import open_store
from tests.support import http
from tests.support.image_files import colour_support, image_bytes
from tests.support.keyed import new_key
from tests.support.live import LiveServer, live_server
from tests.support.tiny import tiny_config, write_bundle

HOSTILE = "<img src=x onerror=alert(1)>"
SECONDS = 30


def binary(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"there is no {names[0]} on this machine")
    return found


class Visitor:
    """A browser, by what its user does and sees."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def all(self, selector: str, within: WebElement | None = None) -> list[WebElement]:
        return (within or self.driver).find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str, within: WebElement | None = None) -> WebElement:
        return (within or self.driver).find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def texts(self, selector: str) -> list[str]:
        return [found.text for found in self.all(selector)]

    def wait(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.driver, SECONDS, poll_frequency=0.05).until(lambda _: condition())

    def write(self, selector: str, text: str) -> None:
        field = self.one(selector)
        field.clear()
        # Leaving the field is what tells the page that it has changed.
        field.send_keys(text, "\t")

    def send(self, field: WebElement, paths: Sequence[Path]) -> None:
        field.send_keys("\n".join(map(str, paths)))

    def add_class(self, label: str, paths: Sequence[Path]) -> None:
        """Fill in the first class that has no label, or a new one."""
        empty = [node for node in self.all(".label") if not node.get_property("value")]
        if not empty:
            self.one("#add-class").click()
            empty = self.all(".label")[-1:]
        empty[0].send_keys(label)
        card = empty[0].find_element(By.XPATH, "ancestor::fieldset")
        self.send(self.one("input[type=file]", card), paths)

    def adapt(self) -> None:
        self.one("#adapt").click()
        self.wait(lambda: not self.one("#adapt").get_attribute("aria-disabled"))

    def classify(self, paths: Sequence[Path]) -> None:
        self.send(self.one("#queries"), paths)
        self.wait(lambda: "..." not in [*self.texts(".best"), self.text("#predict-status")])

    def complaints(self) -> list[dict[str, Any]]:
        """What the browser logged since the last call, but for a remark about the key's field."""
        logged: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry for entry in logged if entry["level"] != "DEBUG"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = binary("chromium", "chromium-browser", "google-chrome")
    service = Service(binary("chromedriver"))  # given, so that none is looked for elsewhere
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--window-size=1100,1400",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def server(
    driver: webdriver.Chrome, models_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """After the driver, so that nothing is started where there is no browser.

    Beside the usual bundles there is `tiny-far`, which adapts so far that it is sure of things.
    """
    folder = tmp_path_factory.mktemp("page")
    models = folder / "models"
    shutil.copytree(models_dir, models)
    config = tiny_config()
    head = config.head.model_copy(update={"initial_horizon": 1e4})
    write_bundle(models / "tiny-far", config.model_copy(update={"head": head}))
    with live_server(models, folder, "--default-model", "tiny") as server:
        yield server


@pytest.fixture
def visitor(driver: webdriver.Chrome, server: LiveServer) -> Visitor:
    return visit(driver, server)


def visit(driver: webdriver.Chrome, server: LiveServer) -> Visitor:
    driver.get(f"{server.url}/try")
    visitor = Visitor(driver)
    # The choices come from the server; what the page was left with is not complained of here.
    visitor.wait(lambda: len(visitor.all(".class")) == 2)
    return visitor


@pytest.fixture
def colours(tmp_path: Path) -> dict[str, list[Path]]:
    """Three images of each of three colours."""
    paths: dict[str, list[Path]] = {}
    for number, (content, label) in enumerate(colour_support()):
        path = tmp_path / f"{label}-{number}.png"
        path.write_bytes(content)
        paths.setdefault(label, []).append(path)
    return paths


def test_from_images_to_predictions(
    visitor: Visitor, server: LiveServer, colours: dict[str, list[Path]], tmp_path: Path
) -> None:
    visitor.wait(lambda: len(visitor.all("#model option")) == 4)
    assert visitor.text("#model option") == "tiny (the default)"
    visitor.add_class("red", colours["red"])
    visitor.add_class(HOSTILE, colours["green"])
    visitor.add_class("blue", [*colours["blue"], *colours["blue"][:1]])
    assert len(visitor.all(".thumbnails li")) == 10
    visitor.one(".class:last-child .thumbnails li:last-child .remove").click()
    assert len(visitor.all(".thumbnails li")) == 9
    visitor.wait(
        lambda: all(int(str(picture.get_property("naturalWidth"))) > 0 for picture in visitor.all(".thumbnails img"))
    )
    visitor.write("#name", "colours")
    visitor.adapt()
    assert visitor.text("#adapt-error") == ""
    assert "colours@1" in visitor.text("#adapt-status")

    # What is shown of the report is what the server says.
    made = http.get(f"{server.url}/classifiers/colours").json()
    held_out = made["report"]["held_out"]
    figures = visitor.text("#figures")
    assert f"{100 * made['support_accuracy']:.1f} %" in figures
    assert f"{100 * held_out['accuracy']:.1f} %" in figures
    assert " ms" in figures
    assert "embed" in figures
    assert visitor.texts("#confusion thead th") == ["red", HOSTILE, "blue"]
    assert visitor.texts("#confusion tbody th") == ["red", HOSTILE, "blue"]
    counts = [int(count) for count in visitor.texts("#confusion tbody td")]
    assert counts == [count for row in held_out["confusion"] for count in row]

    query = tmp_path / "a & b <i>.png"
    query.write_bytes(image_bytes((30, 220, 30), seed=9))
    visitor.classify([query, colours["red"][0]])
    assert visitor.text("#predict-error") == ""
    assert made["id"] in visitor.text("#predict-status")
    assert visitor.texts(".file") == [query.name, colours["red"][0].name]
    expected = http.post(
        f"{server.url}/predict",
        data={"classifier": "colours"},
        files=[("images", path.read_bytes()) for path in (query, colours["red"][0])],
    ).json()["predictions"]
    for node, prediction in zip(visitor.all("#results > li"), expected, strict=True):
        best = visitor.one(".best", node).text
        assert best.startswith(f"{prediction['label']} {100 * prediction['probability']:.1f} %")
        lines = [line.text.split("\n") for line in visitor.all(".bars li", node)]
        assert lines == [[entry["label"], f"{100 * entry['probability']:.1f} %"] for entry in prediction["top"]]
        widths = [bar.size["width"] for bar in visitor.all(".bar", node)]
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > 0

    # A label was text wherever it appeared: no element was made of it, nothing was run or refused.
    assert not visitor.all("img[src='x']")
    assert visitor.complaints() == []

    visitor.one("#results .remove").click()
    assert visitor.texts(".file") == [colours["red"][0].name]
    visitor.one("#clear").click()
    assert visitor.all("#results li") == []


def test_unknown_images_are_marked(
    visitor: Visitor, colours: dict[str, list[Path]], server: LiveServer, tmp_path: Path
) -> None:
    """Of 30 images the report has a threshold of its own; what the server says is what is shown."""
    paths: list[Path] = []
    for seed in range(10):
        for label, colour in {"red": (220, 30, 30), "green": (30, 220, 30)}.items():
            path = tmp_path / f"{label}-{seed}.png"
            path.write_bytes(image_bytes(colour, seed=seed))
            paths.append(path)
    made = http.post(
        f"{server.url}/adapt",
        data={"labels": [path.name.partition("-")[0] for path in paths]},
        files=[("images", path.read_bytes()) for path in paths],
    ).json()
    # Picked by id, as one that is there already.
    visitor.write("#classifier", made["id"])
    queries = [colours["blue"][0], *paths[:3]]
    visitor.classify(queries)
    answer = http.post(
        f"{server.url}/predict",
        data={"classifier": made["id"], "unknown": "true"},
        files=[("images", path.read_bytes()) for path in queries],
    ).json()
    unknown = [prediction["unknown"] for prediction in answer["predictions"]]
    assert True in unknown
    assert [text.endswith("unknown") for text in visitor.texts(".best")] == unknown
    assert visitor.complaints() == []


def test_suspects_are_marked(visitor: Visitor, colours: dict[str, list[Path]]) -> None:
    """The seventh image that is sent is red and given as blue."""
    visitor.wait(lambda: len(visitor.all("#model option")) == 4)
    Select(visitor.one("#model")).select_by_value("tiny-far")
    assert visitor.text("#model-description") == "A tiny test model."
    visitor.add_class("red", colours["red"])
    visitor.add_class("green", colours["green"])
    stray = colours["red"][0].with_name("stray.png")
    stray.write_bytes(image_bytes((220, 30, 30), seed=7))
    visitor.add_class("blue", [stray, *colours["blue"]])
    visitor.adapt()
    marked = visitor.all(".thumbnails .suspect")
    assert [visitor.one("img", node).get_attribute("alt") for node in marked] == ["stray.png"]
    assert marked[0].text.endswith("looks like red")
    assert visitor.texts("#suspects li") == ["stray.png, given as blue, looks like red"]
    assert visitor.complaints() == []


def test_images_can_be_dropped_on_the_page(visitor: Visitor) -> None:
    """On an area they are taken; beside it they do not take the place of the page."""
    content = base64.b64encode(image_bytes()).decode()
    script = """
        const bytes = Uint8Array.from(atob(arguments[1]), (c) => c.charCodeAt(0));
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
        dataTransfer.items.add("a text", "text/plain");
        const drop = { dataTransfer, bubbles: true, cancelable: true };
        return arguments[0].dispatchEvent(new DragEvent("drop", drop));
    """
    for selector, taken in ((".drop", 1), ("h1", 1), (".drop", 2)):
        area = visitor.one(selector)
        goes_on = visitor.driver.execute_script(script, area, content)
        assert not goes_on
        assert len(visitor.all(".thumbnails li")) == taken
    names = [node.get_attribute("alt") for node in visitor.all(".thumbnails img")]
    assert names == ["dropped.png"] * 2
    assert visitor.complaints() == []


def test_the_page_shows_the_server_s_errors(visitor: Visitor, colours: dict[str, list[Path]]) -> None:
    visitor.add_class("red", colours["red"])
    visitor.adapt()
    assert "class" in visitor.text("#adapt-error")
    assert visitor.text("#adapt-status") == ""
    assert not visitor.one("#report").is_displayed()
    refused = visitor.complaints()
    assert ["422" in entry["message"] for entry in refused] == [True]

    visitor.write("#classifier", "nobody")
    visitor.classify(colours["red"][:1])
    assert "nobody" in visitor.text("#predict-error")
    assert visitor.texts(".best") == ["not classified"]
    assert ["404" in entry["message"] for entry in visitor.complaints()] == [True]


def test_the_page_works_by_keyboard(visitor: Visitor) -> None:
    """What can be pressed has a name, and the focus is not lost where its element goes."""
    unnamed = visitor.driver.execute_script(
        "return [...document.querySelectorAll('main button, main input, main select')]"
        ".filter((e) => !e.labels?.length && !e.ariaLabel && !e.textContent.trim()).length"
    )  # type: ignore[no-untyped-call]
    assert unnamed == 0
    visitor.one("#add-class").send_keys("\n")
    assert len(visitor.all(".class")) == 3
    visitor.driver.switch_to.active_element.send_keys("written at once")
    assert visitor.all(".label")[2].get_property("value") == "written at once"
    visitor.all(".remove-class")[0].send_keys("\n")
    assert visitor.texts(".class legend") == ["Class 1", "Class 2"]
    assert visitor.driver.switch_to.active_element.get_attribute("id") == "add-class"


def test_the_page_fits_a_phone(visitor: Visitor, colours: dict[str, list[Path]]) -> None:
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    visitor.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        visitor.add_class("red " * 30, colours["red"])
        visitor.add_class("green" * 30, colours["green"])
        visitor.adapt()
        visitor.classify(colours["red"])
        width = visitor.driver.execute_script("return document.documentElement.scrollWidth")
        assert width == 360
    finally:
        visitor.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_works_with_an_api_key(
    driver: webdriver.Chrome, models_dir: Path, tmp_path: Path, colours: dict[str, list[Path]]
) -> None:
    url = f"sqlite:///{tmp_path / 'keyed.db'}"
    store = open_store(url)
    key = new_key(store, "acme", Scope.ADAPT, Scope.PREDICT)
    with live_server(models_dir, tmp_path, "--default-model", "tiny", "--require-keys", database_url=url) as server:
        visitor = visit(driver, server)
        assert visitor.text("#model option") == "the server's default"
        visitor.add_class("red", colours["red"])
        visitor.add_class("green", colours["green"])
        visitor.adapt()
        assert "requires an API key" in visitor.text("#adapt-error")
        assert visitor.one("#key").get_attribute("aria-invalid") == "true"
        assert all("401" in entry["message"] for entry in visitor.complaints())

        visitor.write("#key", key)
        visitor.wait(lambda: len(visitor.all("#model option")) == 3)
        visitor.adapt()
        assert visitor.text("#adapt-error") == ""
        assert visitor.one("#key").get_attribute("aria-invalid") == "false"
        visitor.classify(colours["green"][:1])
        assert visitor.texts(".best")[0].startswith("green ")
        assert visitor.complaints() == []
        kept = driver.execute_script("return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert json.loads(kept) == [{}, {}, ""]
