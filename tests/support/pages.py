"""What tests of the page share: questions to its server, to the log and to the page as it is shown."""

from pathlib import Path
from typing import Any

import httpx2
from axe_core_python.base import AXE_SCRIPT

from tests.support.browser import Visitor
from tests.support.keyed import bearer
from tests.support.live import LiveServer

# Pixels of a picture that has been loaded, and where it is from.
SHOWN = "return [arguments[0].naturalWidth, arguments[0].src.slice(0, 5)]"
HOSTILE = "<img src=x onerror=alert(1)>"
Colours = dict[str, list[Path]]


def get(server: LiveServer, path: str) -> Any:
    answer = httpx2.get(f"{server.url}/{path}")
    answer.raise_for_status()
    return answer.json()


def adapt_with(server: LiveServer, colours: Colours, key: str = "", **fields: str) -> Any:
    """Make a classifier without the page."""
    labelled = [(label, path) for label, paths in colours.items() for path in paths]
    answer = httpx2.post(
        f"{server.url}/adapt",
        data={"labels": [label for label, _ in labelled], **fields},
        files=[("images", (path.name, path.read_bytes())) for _, path in labelled],
        headers=bearer(key) if key else {},
    )
    answer.raise_for_status()
    return answer.json()


def requests_of(server: LiveServer, route: str) -> list[dict[str, Any]]:
    """The server's log lines about a route."""
    return [line for line in server.lines("comln_serve.requests") if line["route"] == route]


def violations(visitor: Visitor) -> list[str]:
    """What axe-core finds against WCAG 2.2 AA, and targets under 24 px, which this axe-core does not know."""
    visitor.run(AXE_SCRIPT)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = visitor.driver.execute_async_script(
        "const done = arguments[1]; axe.run({runOnly: arguments[0]}).then((result) => done(result.violations))", tags
    )  # type: ignore[no-untyped-call]
    problems = [f"{one['id']}: {node['target']} {node['failureSummary']}" for one in found for node in one["nodes"]]
    small = visitor.run(
        "return [...document.querySelectorAll('button, input, select, .button, nav a, summary')]"
        ".filter((e) => e.checkVisibility() && !e.closest('.button > *, .confusion'))"
        ".map((e) => [e.id || e.className || e.textContent, e.getBoundingClientRect()])"
        ".filter(([, box]) => box.width && (box.width < 24 || box.height < 24))"
        ".map(([name, box]) => `${name} ${box.width} x ${box.height}`)"
    )
    return [*problems, *(f"small target: {one}" for one in small)]


def focused(visitor: Visitor) -> str:
    """Name of what has the focus."""
    return visitor.run("const at = document.activeElement; return at.getAttribute('aria-label') ?? at.textContent")


def undo(visitor: Visitor) -> None:
    """Press Control+Z; by an event, as keys that are sent to a field of files are taken for names of files."""
    visitor.run(
        "document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'z', ctrlKey: true, bubbles: true, cancelable: true}))"
    )
