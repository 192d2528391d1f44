"""What the tests of the page ask of a browser that Selenium alone does not offer in all of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement


class Browser(ABC):
    """A headless browser with a fake camera, driven by Selenium; its downloads go to one folder."""

    name: str
    driver: WebDriver

    @abstractmethod
    def forget(self, origin: str) -> None:
        """Delete all that is kept for an origin, such as `http://127.0.0.1:8000`."""

    @abstractmethod
    def resize(self, width: int, height: int) -> None:
        """Show pages in a viewport of this size, in CSS pixels."""

    @abstractmethod
    def prefer(self, features: Mapping[str, str]) -> None:
        """Emulate media features, such as {"prefers-color-scheme": "dark"}; the others have their defaults."""

    @abstractmethod
    def drop(self, target: WebElement, paths: Sequence[Path]) -> None:
        """Drop files and folders on an element, as from a file manager."""

    @abstractmethod
    def choose(self, field: WebElement, paths: Sequence[Path]) -> None:
        """Choose files in an `<input type=file>`, or folders where it takes folders."""

    @abstractmethod
    def logged(self) -> list[str]:
        """Errors and warnings about pages since the last call."""

    @abstractmethod
    def close(self) -> None:
        """End the browser."""
