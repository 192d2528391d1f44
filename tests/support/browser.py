"""A browser that visits the page, by what its user does and sees."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.browsers import Browser

SECONDS = 30
READY = "return document.documentElement.dataset.ready !== undefined"


class Visitor:
    """Visits the page of a server in a browser."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser, self.driver, self.url = browser, browser.driver, url

    def visit(self, address: str = "/", *, anew: bool = True) -> None:
        """Open an address of the server; `anew` in a browser that remembers nothing."""
        if anew:
            self.driver.get("about:blank")
            self.browser.forget(self.url)
        else:
            self.wait(lambda: self.run("return document.documentElement.dataset.keeping === undefined"))
        self.driver.get(f"{self.url}{address}")
        self.wait(lambda: self.run(READY))
        self.complaints()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def resize(self, width: int, height: int = 1000) -> None:
        self.browser.resize(width, height)

    def prefer(self, **features: str) -> None:
        """Emulate media features, such as prefers_color_scheme="dark"; none: the default."""
        self.browser.prefer({name.replace("_", "-"): value for name, value in features.items()})

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
        field.send_keys(text, Keys.TAB)

    def send(self, field: WebElement, paths: Sequence[Path]) -> None:
        self.browser.choose(field, paths)

    def drop(self, selector: str, paths: Sequence[Path]) -> None:
        """Drop files and folders on an element, as from a file manager."""
        self.browser.drop(self.one(selector), paths)

    def paste(self, path: Path) -> None:
        script = """
            const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
            const value = new DataTransfer();
            value.items.add(new File([bytes], arguments[1], { type: "image/png" }));
            // Not by the constructor: Firefox's takes no files.
            const event = new ClipboardEvent("paste", { bubbles: true });
            Object.defineProperty(event, "clipboardData", { value });
            document.body.dispatchEvent(event);
        """
        self.run(script, base64.b64encode(path.read_bytes()).decode(), path.name)

    def add_class(self, label: str, paths: Sequence[Path]) -> WebElement:
        """Fill in the first class that has no label, or a new one."""
        empty = [node for node in self.all("input.label") if not node.get_property("value")]
        if not empty:
            self.click("#add-class")
            empty = self.all("input.label")[-1:]
        empty[0].send_keys(label, Keys.TAB)
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

    def take_picture(self) -> None:
        """Add a picture of the camera to the first class, which offers it."""
        self.press("Camera")
        self.wait(lambda: self.text("#dialog [role=status]") == "Ready.")
        self.press("Take a picture", "#dialog")
        self.wait(lambda: self.text("#dialog [role=status]") == "1 picture")
        self.click("#dialog [aria-label=Close]")

    def make(self, classes: dict[str, list[Path]] | None = None) -> None:
        """Make the classifier, of these classes beside those that are there, and see its report."""
        self.add_classes(classes or {})
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
        return "\n".join(self.texts(".message:not([hidden])"))

    def complaints(self) -> list[str]:
        """What the browser logged about pages since the last call."""
        return self.browser.logged()
