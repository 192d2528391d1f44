"""A browser that visits the page, by what its user does and sees."""

import base64
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

SECONDS = 30
READY = "return document.documentElement.dataset.ready !== undefined"


def browser_programs() -> tuple[str, str] | None:
    """Paths of Chromium and its driver; None if either is missing."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    return None if chromium is None or driver is None else (chromium, driver)


@contextmanager
def chromium(folder: Path) -> Generator[webdriver.Chrome, None, None]:
    """A headless browser with a fake camera, its profile and downloads in `folder`."""
    programs = browser_programs()
    if programs is None:
        raise FileNotFoundError("there is no chromium or no chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        "--window-size=1280,1000",
        f"--user-data-dir={folder / 'profile'}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # The driver is given, so that none is looked for elsewhere.
    driver = webdriver.Chrome(options=options, service=Service(programs[1]))
    downloads = {"behavior": "allow", "downloadPath": str(folder)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
    try:
        yield driver
    finally:
        driver.quit()


class Visitor:
    """Visits the page of a server."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def visit(self, address: str = "/", *, anew: bool = True) -> None:
        """Open an address of the server; `anew` in a browser that remembers nothing."""
        if anew:
            self.driver.get("about:blank")
            self.cdp("Storage.clearDataForOrigin", origin=self.url, storageTypes="all")
        else:
            self.wait(lambda: self.run("return document.documentElement.dataset.keeping === undefined"))
        self.driver.get(f"{self.url}{address}")
        self.wait(lambda: self.run(READY))
        self.complaints()

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def resize(self, width: int, height: int = 1000) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, **features: str) -> None:
        """Emulate media features, such as prefers_color_scheme="dark"; none: the default."""
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.cdp("Emulation.setEmulatedMedia", features=given)

    def all(self, selector: str, within: WebElement | None = None) -> list[WebElement]:
        return (within or self.driver).find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str, within: WebElement | None = None) -> WebElement:
        return (within or self.driver).find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def texts(self, selector: str) -> list[str]:
        return [found.text for found in self.all(selector)]

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def press(self, text: str, within: str = "body") -> None:
        """Click the button or link of this text."""
        found = [node for node in self.all(f"{within} button, {within} a") if node.text == text and node.is_displayed()]
        found[0].click()

    def choose(self, selector: str, value: str) -> None:
        Select(self.one(selector)).select_by_value(value)

    def wait(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        ignored = (NoSuchElementException, StaleElementReferenceException)
        waiting = WebDriverWait(self.driver, seconds, poll_frequency=0.05, ignored_exceptions=ignored)
        waiting.until(lambda _: condition())

    def write(self, selector: str, text: str) -> None:
        field = self.one(selector)
        field.clear()
        # Leaving the field is what tells the page that it has changed.
        field.send_keys(text, "\t")

    def send(self, field: WebElement, paths: Sequence[Path]) -> None:
        field.send_keys("\n".join(map(str, paths)))

    def drop(self, selector: str, paths: Sequence[Path]) -> None:
        """Drop files and folders on an element, as from a file manager."""
        script = "arguments[0].scrollIntoView({block: 'center'}); return arguments[0].getBoundingClientRect().toJSON()"
        box = self.run(script, self.one(selector))
        data = {"items": [], "files": list(map(str, paths)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            x, y = box["left"] + box["width"] / 2, box["top"] + min(20, box["height"] / 2)
            self.cdp("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def paste(self, path: Path) -> None:
        script = """
            const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File([bytes], arguments[1], { type: "image/png" }));
            document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        """
        self.run(script, base64.b64encode(path.read_bytes()).decode(), path.name)

    def add_class(self, label: str, paths: Sequence[Path]) -> WebElement:
        """Fill in the first class that has no label, or a new one."""
        empty = [node for node in self.all("input.label") if not node.get_property("value")]
        if not empty:
            self.click("#add-class")
            empty = self.all("input.label")[-1:]
        empty[0].send_keys(label, "\t")
        card = empty[0].find_element(By.XPATH, "ancestor::div[contains(@class, 'class') and @role='group']")
        before = len(self.all(".thumbnails li", card))
        self.send(self.one("input[type=file]", card), paths)
        self.wait(lambda: len(self.all(".thumbnails li", card)) == before + len(paths))
        return card

    def add_classes(self, classes: dict[str, list[Path]]) -> None:
        for label, paths in classes.items():
            self.add_class(label, paths)

    def step(self, name: str) -> None:
        self.click(f"[data-step={name}]")
        self.wait(lambda: self.one(f"#step-{name}").is_displayed())

    def adapt(self) -> None:
        """Make the classifier, or try to."""
        self.click("#adapt")
        self.wait(lambda: not self.one("#adapt").get_attribute("aria-disabled"))

    def make(self) -> None:
        """Make the classifier and see its report."""
        self.adapt()
        self.wait(lambda: self.one("#step-quality").is_displayed() and self.all("#facts"))
        assert self.messages() == ""

    def sort(self, paths: Sequence[Path]) -> None:
        if not self.one("#step-sort").is_displayed():
            self.step("sort")
        self.send(self.one("#queries"), paths)
        self.wait_sorted()

    def wait_sorted(self, seconds: float = SECONDS) -> None:
        def done() -> bool:
            return not self.one("#sort-progress").is_displayed() and "orted" in self.text("#sort-status")

        self.wait(done, seconds)

    def slide(self, selector: str, value: float) -> None:
        self.run(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            self.one(selector),
            str(value),
        )

    def messages(self) -> str:
        return "\n".join(self.texts(".message"))

    def complaints(self) -> list[dict[str, Any]]:
        """What the browser logged since the last call, but for a remark about the key's field."""
        logged: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry for entry in logged if entry["level"] != "DEBUG"]
