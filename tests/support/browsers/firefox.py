"""Firefox, through its own protocol: Debian has no package of a driver for it."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from tests.support.browsers.base import Browser
from tests.support.browsers.marionette import Marionette
from tests.support.waiting import wait_until

# Wide and high enough for every viewport: the viewport is what is resized.
_WINDOW = {"MOZ_HEADLESS_WIDTH": "1600", "MOZ_HEADLESS_HEIGHT": "1400"}
_PREFERENCES: dict[str, Any] = {
    "marionette.port": 0,  # a free one
    "media.navigator.streams.fake": True,
    "media.navigator.permission.disabled": True,
    # Folders of the tests may be dropped and chosen, whoever made them.
    "dom.filesystem.pathcheck.disabled": True,
    "browser.download.folderList": 2,
    "browser.download.alwaysOpenPanel": False,
}
# Each media feature's preference of Firefox, and what the feature's values are called there: the default first.
_FEATURES: dict[str, tuple[str, dict[str, int]]] = {
    "prefers-color-scheme": ("layout.css.prefers-color-scheme.content-override", {"light": 1, "dark": 0}),
    "prefers-reduced-motion": ("ui.prefersReducedMotion", {"no-preference": 0, "reduce": 1}),
    "forced-colors": ("browser.display.document_color_use", {"none": 1, "active": 2}),
}
# A session of drag and drop as the system would start it, so that folders can be walked. `dragenter` comes by itself.
_DROP = """
    const [target, paths] = arguments;
    const view = target.ownerDocument.defaultView;
    const transfer = new view.DataTransfer();
    const service = Cc["@mozilla.org/widget/dragservice;1"].getService(Ci.nsIDragService);
    return (async () => {
        for (const path of paths) {
            const file = Cc["@mozilla.org/file/local;1"].createInstance(Ci.nsIFile);
            file.initWithPath(path);
            if (file.isDirectory()) transfer.mozSetDataAt("application/x-moz-file", file, 0);
            else transfer.items.add(await view.File.createFromNsIFile(file));
        }
        service.startDragSessionForTests(view, Ci.nsIDragService.DRAGDROP_ACTION_COPY);
        const session = service.getCurrentSession(view);
        session.dataTransfer = transfer;
        for (const kind of ["dragover", "drop"]) {
            const event = new view.DragEvent(kind, { bubbles: true, cancelable: true, view });
            view.windowUtils.dispatchDOMEventViaPresShellForTesting(target, event);
        }
        session.endDragSession(true, 0);
    })();
"""
_CHOOSE_FOLDERS = """
    const [field, paths] = arguments;
    const { Directory } = field.ownerDocument.defaultView;
    field.mozSetDndFilesAndDirectories(paths.map((path) => new Directory(path)));
"""
_RESIZE = """
    for (const [name, value] of Object.entries(arguments[0])) {
        for (const bound of ["min", "max"]) {
            gBrowser.selectedBrowser.style.setProperty(`${bound}-${name}`, `${value}px`);
        }
    }
"""
_PREFER = """
    for (const [name, value] of Object.entries(arguments[0])) Services.prefs.setIntPref(name, value);
"""
_FORGET = """
    const [origin, done] = arguments;
    const principal = Services.scriptSecurityManager.createContentPrincipalFromOrigin(origin);
    Services.clearData.deleteDataFromPrincipal(principal, true, Ci.nsIClearDataService.CLEAR_ALL, () => done());
"""
_LOGGED = """
    const found = Services.console.getMessageArray()
        .filter((message) => message instanceof Ci.nsIScriptError && message.sourceName.startsWith("http:"))
        .map((message) => `${message.category}: ${message.errorMessage} (${message.sourceName})`);
    Services.console.reset();
    return found;
"""


class Firefox(Browser):
    """Firefox with its profile and its downloads in `folder`.

    Unlike Chromium's, its log has no responses of an error status, nor what pages write to the console. Raises
    FileNotFoundError if it is not installed.
    """

    name = "firefox"

    def __init__(self, folder: Path) -> None:
        program = _program()
        if program is None:
            raise FileNotFoundError("firefox is not installed: `make browser` installs it on Debian")
        profile = folder / "profile"
        profile.mkdir()
        preferences = {**_PREFERENCES, "browser.download.dir": str(folder)}
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in preferences.items()]
        (profile / "user.js").write_text("\n".join(lines))
        command = [program, "--headless", "--no-remote", "--marionette", "--remote-allow-system-access"]
        # Outside of the sandbox, as Chromium is here: inside, pages cannot be given files by their paths.
        environment = {**os.environ, **_WINDOW, "MOZ_DISABLE_CONTENT_SANDBOX": "1"}
        with (folder / "firefox.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--profile", str(profile)], env=environment, stdout=log, stderr=log
            )
        try:
            port = profile / "MarionetteActivePort"
            wait_until(lambda: port.exists() and port.read_text() != "")
            self._marionette = Marionette(int(port.read_text()))
            self.driver = WebDriver(self._marionette, options=webdriver.FirefoxOptions())
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self.driver._is_remote = False  # it reads files by itself

    @staticmethod
    def installed() -> bool:
        """Whether Firefox is on this machine."""
        return _program() is not None

    def forget(self, origin: str) -> None:
        self._of_itself(_FORGET, origin, command="WebDriver:ExecuteAsyncScript")

    def resize(self, width: int, height: int) -> None:
        self._of_itself(_RESIZE, {"width": width, "height": height})
        size = "return [innerWidth, innerHeight]"
        wait_until(lambda: self.driver.execute_script(size) == [width, height])  # type: ignore[no-untyped-call]

    def prefer(self, features: Mapping[str, str]) -> None:
        unknown = set(features) - set(_FEATURES)
        if unknown:
            raise ValueError(f"Firefox has no preference for {', '.join(sorted(unknown))}, only for {list(_FEATURES)}")
        wanted = {feature: features.get(feature, next(iter(values))) for feature, (_, values) in _FEATURES.items()}
        self._of_itself(_PREFER, {_FEATURES[feature][0]: _FEATURES[feature][1][wanted[feature]] for feature in wanted})
        # The page's process learns of it a little later.
        query = " and ".join(f"({feature}: {value})" for feature, value in wanted.items())
        matches = "return matchMedia(arguments[0]).matches"
        wait_until(lambda: self.driver.execute_script(matches, query))  # type: ignore[no-untyped-call]

    def drop(self, target: WebElement, paths: Sequence[Path]) -> None:
        self._for_the_page(_DROP, target, list(map(str, paths)))

    def choose(self, field: WebElement, paths: Sequence[Path]) -> None:
        if field.get_property("webkitdirectory"):
            self._for_the_page(_CHOOSE_FOLDERS, field, list(map(str, paths)))
        else:
            field.send_keys("\n".join(map(str, paths)))

    def logged(self) -> list[str]:
        return self._of_itself(_LOGGED)

    def close(self) -> None:
        try:
            self._marionette.request("Marionette:Quit", {"flags": ["eForceQuit"]})
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._marionette.close()

    def _of_itself(self, script: str, *arguments: Any, command: str = "WebDriver:ExecuteScript") -> Any:
        """Run a script in the browser's own window, with its rights."""
        self._request("Marionette:SetContext", value="chrome")
        try:
            return self._request(command, script=script, args=list(arguments))
        finally:
            self._request("Marionette:SetContext", value="content")

    def _for_the_page(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page's window, with the browser's rights."""
        given = self.driver._wrap_value(list(arguments))
        return self._request("WebDriver:ExecuteScript", script=script, args=given, sandbox="system")

    def _request(self, name: str, **parameters: Any) -> Any:
        error, result = self._marionette.request(name, parameters)
        if error is not None:
            raise RuntimeError(f"Firefox refuses {name}: {error['message']}")
        return result["value"]


def _program() -> str | None:
    """Path of Firefox; None if it is missing."""
    return next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
