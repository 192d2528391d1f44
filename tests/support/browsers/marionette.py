"""Selenium's commands as messages of Marionette, the protocol of Firefox itself.

Selenium speaks HTTP to geckodriver, which passes the commands on to Firefox as `LENGTH:JSON` over a socket.
Debian has no package of geckodriver; what it does is a change of names, which this module makes instead.
"""

import json
import socket
from typing import Any

from selenium.webdriver.remote.client_config import ClientConfig
from selenium.webdriver.remote.command import Command
from selenium.webdriver.remote.remote_connection import RemoteConnection

SECONDS = 120  # for one command, which includes loading a page

_NAMES = {
    Command.NEW_SESSION: "WebDriver:NewSession",
    Command.QUIT: "WebDriver:DeleteSession",
    Command.GET: "WebDriver:Navigate",
    Command.GO_BACK: "WebDriver:Back",
    Command.NEW_WINDOW: "WebDriver:NewWindow",
    Command.CLOSE: "WebDriver:CloseWindow",
    Command.SWITCH_TO_WINDOW: "WebDriver:SwitchToWindow",
    Command.W3C_GET_CURRENT_WINDOW_HANDLE: "WebDriver:GetWindowHandle",
    Command.GET_CURRENT_URL: "WebDriver:GetCurrentURL",
    Command.GET_TITLE: "WebDriver:GetTitle",
    Command.W3C_EXECUTE_SCRIPT: "WebDriver:ExecuteScript",
    Command.W3C_EXECUTE_SCRIPT_ASYNC: "WebDriver:ExecuteAsyncScript",
    Command.W3C_GET_ACTIVE_ELEMENT: "WebDriver:GetActiveElement",
    Command.FIND_ELEMENT: "WebDriver:FindElement",
    Command.FIND_ELEMENTS: "WebDriver:FindElements",
    Command.FIND_CHILD_ELEMENT: "WebDriver:FindElement",
    Command.FIND_CHILD_ELEMENTS: "WebDriver:FindElements",
    Command.CLICK_ELEMENT: "WebDriver:ElementClick",
    Command.CLEAR_ELEMENT: "WebDriver:ElementClear",
    Command.SEND_KEYS_TO_ELEMENT: "WebDriver:ElementSendKeys",
    Command.GET_ELEMENT_TEXT: "WebDriver:GetElementText",
    Command.GET_ELEMENT_TAG_NAME: "WebDriver:GetElementTagName",
    Command.GET_ELEMENT_RECT: "WebDriver:GetElementRect",
    Command.GET_ELEMENT_ATTRIBUTE: "WebDriver:GetElementAttribute",
    Command.GET_ELEMENT_PROPERTY: "WebDriver:GetElementProperty",
    Command.IS_ELEMENT_ENABLED: "WebDriver:IsElementEnabled",
    Command.IS_ELEMENT_SELECTED: "WebDriver:IsElementSelected",
}


class Marionette(RemoteConnection):
    """A connection to a Firefox that listens on a port of this machine, which Selenium takes for an executor."""

    def __init__(self, port: int) -> None:
        super().__init__(client_config=ClientConfig(remote_server_addr=f"http://127.0.0.1:{port}"))
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._received = self._socket.makefile("rb")
        self._count = 0
        self._receive()  # who it is

    def request(self, name: str, parameters: dict[str, Any]) -> tuple[dict[str, str] | None, Any]:
        """Send a command by Marionette's name and wait for its error, None if there is none, and its result."""
        self._count += 1
        message = json.dumps([0, self._count, name, parameters]).encode()
        self._socket.sendall(b"%d:%b" % (len(message), message))
        _, _, error, result = self._receive()
        return error, result

    def execute(self, command: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a command by Selenium's name; returns its answer as geckodriver would."""
        if command not in _NAMES:
            raise NotImplementedError(f"{command} is not in {__name__}: give it the name that Marionette has for it")
        sent = {name: value for name, value in params.items() if name != "sessionId"}
        if command in (Command.FIND_CHILD_ELEMENT, Command.FIND_CHILD_ELEMENTS):
            sent["element"] = sent.pop("id")
        error, result = self.request(_NAMES[command], sent)
        if error is not None:
            return {"status": error["error"], "value": error}
        return {"value": result["value"] if isinstance(result, dict) and set(result) == {"value"} else result}

    def close(self) -> None:
        self._received.close()
        self._socket.close()

    def _receive(self) -> Any:
        length = b""
        while (byte := self._received.read(1)) != b":":
            if not byte:
                raise ConnectionError("Firefox closed its connection")
            length += byte
        return json.loads(self._received.read(int(length)))
