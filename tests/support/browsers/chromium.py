"""Chromium, through chromedriver and the Chrome DevTools protocol."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement

from tests.support.browsers.base import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Chromium(Browser):
    """Chromium with its profile and its downloads in `folder`.

    Raises FileNotFoundError if Chromium or its driver is not installed.
    """

    name = "chromium"

    def __init__(self, folder: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = self.program()
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
        self._chrome = webdriver.Chrome(options=options, service=Service(_find("chromedriver")))
        self.driver = self._chrome
        self.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    @staticmethod
    def installed() -> bool:
        """Whether Chromium and its driver are on this machine."""
        return bool(shutil.which("chromedriver") and any(map(shutil.which, _NAMES)))

    @staticmethod
    def program() -> str:
        """Path of Chromium. Raises FileNotFoundError if there is none."""
        return _find(*_NAMES)

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the Chrome DevTools protocol."""
        return self._chrome.execute_cdp_cmd(command, parameters)

    def forget(self, origin: str) -> None:
        self.cdp("Storage.clearDataForOrigin", origin=origin, storageTypes="all")

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, features: Mapping[str, str]) -> None:
        given = [{"name": name, "value": value} for name, value in features.items()]
        self.cdp("Emulation.setEmulatedMedia", features=given)

    def drop(self, target: WebElement, paths: Sequence[Path]) -> None:
        script = "arguments[0].scrollIntoView({block: 'center'}); return arguments[0].getBoundingClientRect().toJSON()"
        box = self.driver.execute_script(script, target)  # type: ignore[no-untyped-call]
        data = {"items": [], "files": list(map(str, paths)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            x, y = box["left"] + box["width"] / 2, box["top"] + min(20, box["height"] / 2)
            self.cdp("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def choose(self, field: WebElement, paths: Sequence[Path]) -> None:
        field.send_keys("\n".join(map(str, paths)))

    def logged(self) -> list[str]:
        logged: list[dict[str, Any]] = self._chrome.get_log("browser")  # type: ignore[no-untyped-call]
        # It remarks at this level on the field of the API key, which has no form.
        return [entry["message"] for entry in logged if entry["level"] != "DEBUG"]

    def close(self) -> None:
        self.driver.quit()


def _find(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise FileNotFoundError(f"{' or '.join(names)} is not installed: `make browser` installs it on Debian")
    return found
