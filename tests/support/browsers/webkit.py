"""WebKit, the engine of Safari: WebKitGTK's MiniBrowser, through its driver, on a display of its own."""

import base64
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.remote.client_config import ClientConfig
from selenium.webdriver.remote.remote_connection import RemoteConnection
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.webkitgtk.service import Service

from tests.support.browsers.base import Browser
from tests.support.waiting import wait_until

_FORGET = """
    const done = arguments[0];
    const request = indexedDB.deleteDatabase("comln-serve");
    request.onsuccess = request.onerror = () => done();
"""
_DROP = """
    const [target, files] = arguments;
    const dataTransfer = new DataTransfer();
    for (const [name, type, content] of files) {
        const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
        dataTransfer.items.add(new File([bytes], name, { type }));
    }
    for (const kind of ["dragenter", "dragover", "drop"]) {
        target.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer }));
    }
"""
_LOGGED = """
    const found = window.logged ?? [];
    if (!window.logged) {
        const log = (text) => window.logged.push(text);
        window.addEventListener("error", ({ message }) => log(message));
        window.addEventListener("unhandledrejection", ({ reason }) => log(String(reason)));
        document.addEventListener("securitypolicyviolation", (event) => log(`${event.violatedDirective}: refused`));
    }
    window.logged = [];
    return found;
"""
_TEXT = "return arguments[0].checkVisibility() ? arguments[0].innerText : ''"


class _Element(WebElement):
    """Has its text from WebKit: the driver leaves out line ends, and words that an ellipsis cuts off."""

    @property
    def text(self) -> str:
        shown: str = self.parent.execute_script(_TEXT, self)
        return shown.replace("\u00a0", " ").strip()


class WebKit(Browser):
    """WebKit with its downloads in `folder`, in a private window, as always where a driver has it.

    Unlike the other browsers it drops files only, by events of the page; it emulates no media features, and logs errors
    and what the page's policy refuses. Raises FileNotFoundError if something is not installed.
    """

    name = "webkit"

    def __init__(self, folder: Path) -> None:
        programs = _programs()
        if programs is None:
            raise FileNotFoundError(
                "WebKit, its driver or Xvfb is not installed: `make browser` installs them on Debian"
            )
        browser, driver, display = programs
        (folder / "user-dirs.dirs").write_text(f'XDG_DOWNLOAD_DIR="{folder}"\n')
        command = [display, "-displayfd", "1", "-screen", "0", "1600x1400x24", "-nolisten", "tcp"]
        self._display = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert self._display.stdout is not None
            with self._display.stdout as said:
                number = said.readline().strip()
            places = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
            environment = {**os.environ, **places, "DISPLAY": f":{number}", "GDK_BACKEND": "x11"}
            self._service = Service(driver, env=environment, log_output=str(folder / "webkit.log"))
            self._service.start()
        except BaseException:
            self._end_display()
            raise
        options = webdriver.WebKitGTKOptions()
        options.binary_location = browser
        # In the full screen there is no tool bar, which would be wider than a phone.
        for argument in ("--automation", "--full-screen", "--enable-mock-capture-devices=true"):
            options.add_argument(argument)
        try:
            config = ClientConfig(remote_server_addr=self._service.service_url)
            self.driver = webdriver.Remote(RemoteConnection(client_config=config), options=options)
        except BaseException:
            self._service.stop()
            self._end_display()
            raise
        self.driver._web_element_cls = _Element
        self.driver._is_remote = False  # it reads files by itself

    @staticmethod
    def installed() -> bool:
        """Whether MiniBrowser, its driver and Xvfb are on this machine."""
        return _programs() is not None

    def forget(self, origin: str) -> None:
        self.driver.get(f"{origin}/page/icon.svg")
        self.driver.execute_async_script(_FORGET)  # type: ignore[no-untyped-call]

    def resize(self, width: int, height: int) -> None:
        size = "return [innerWidth, innerHeight]"
        outer = self.driver.get_window_size()
        inner = self.driver.execute_script(size)  # type: ignore[no-untyped-call]
        # The difference is a bar of downloads, once there was one.
        self.driver.set_window_size(width + outer["width"] - inner[0], height + outer["height"] - inner[1])
        wait_until(lambda: self.driver.execute_script(size) == [width, height])  # type: ignore[no-untyped-call]

    def prefer(self, features: Mapping[str, str]) -> None:
        if features:
            raise NotImplementedError("WebKitGTK has its media features from the desktop's theme")

    def drop(self, target: WebElement, paths: Sequence[Path]) -> None:
        files = [
            (path.name, f"image/{path.suffix[1:]}", base64.b64encode(path.read_bytes()).decode()) for path in paths
        ]
        self.driver.execute_script(_DROP, target, files)  # type: ignore[no-untyped-call]

    def choose(self, field: WebElement, paths: Sequence[Path]) -> None:
        field.send_keys("\n".join(map(str, paths)))

    def logged(self) -> list[str]:
        found: list[str] = self.driver.execute_script(_LOGGED)  # type: ignore[no-untyped-call]
        return found

    def close(self) -> None:
        try:
            self.driver.quit()
        finally:
            self._service.stop()
            self._end_display()

    def _end_display(self) -> None:
        self._display.terminate()
        self._display.wait()


def _programs() -> tuple[str, str, str] | None:
    """Paths of MiniBrowser, its driver and Xvfb; None if one is missing."""
    browser = next(Path("/usr/lib").glob("*/webkit2gtk-4.*/MiniBrowser"), None)
    driver, display = shutil.which("WebKitWebDriver"), shutil.which("Xvfb")
    return (str(browser), driver, display) if browser and driver and display else None
