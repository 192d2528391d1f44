"""What Lighthouse finds about the page, with real photos on a server of the photo model."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comln_serve.client import Client
from tests.support.browsers import Chromium
from tests.support.live import LiveServer, live_server
from tests.support.paths import REPOSITORY
from tests.support.tools import tool

pytestmark = pytest.mark.alone  # half a minute each on a busy machine

GROCERIES = REPOSITORY / "examples" / "groceries"
VIEWS = {
    "start": "/",
    "quality": "/?classifier=groceries",
    "sort": "/?classifier=groceries&step=sort",
    "use": "/?classifier=groceries&step=use",
    "list": "/?view=classifiers",
}


@pytest.fixture(scope="module")
def lighthouse() -> str:
    if not Chromium.installed():
        pytest.skip("chromium is not installed: `make browser`")
    return tool("lighthouse", target="browser")


@pytest.fixture(scope="module")
def server(lighthouse: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with a classifier of the demo's groceries."""
    folder = tmp_path_factory.mktemp("lighthouse")
    for product in (path for path in GROCERIES.iterdir() if path.is_dir()):
        shutil.copytree(product / "support", folder / "photos" / product.name)
    with live_server(REPOSITORY / "models", folder) as server, Client(server.url) as client:
        client.adapt_folder(folder / "photos", name="groceries", horizon="auto")
        yield server


@pytest.mark.parametrize("form_factor", ["mobile", "desktop"])
@pytest.mark.parametrize("view", VIEWS)
def test_lighthouse(lighthouse: str, server: LiveServer, tmp_path: Path, view: str, form_factor: str) -> None:
    """Full marks for accessibility and best practices, and nothing moves while the view is loaded."""
    report = tmp_path / "report.json"
    command = [
        lighthouse,
        f"{server.url}{VIEWS[view]}",
        "--quiet",
        "--no-enable-error-reporting",
        "--output=json",
        f"--output-path={report}",
        "--only-categories=accessibility,best-practices",
        "--only-audits=cumulative-layout-shift",
        "--throttling-method=provided",
        "--chrome-flags=--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage",
        *(["--preset=desktop"] if form_factor == "desktop" else []),
    ]
    environment = {**os.environ, "CHROME_PATH": Chromium.program()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["finalDisplayedUrl"] == f"{server.url}{VIEWS[view]}", "it is the view that was looked at"
    assert {name: category["score"] for name, category in found["categories"].items()} == {
        "accessibility": 1,
        "best-practices": 1,
    }, failures(found)
    assert found["audits"]["cumulative-layout-shift"]["numericValue"] < 0.01, failures(found)
    assert failures(found) == [], "audits that count nothing in the scores"


def failures(report: dict[str, Any]) -> list[str]:
    """What is said of each audit that is not passed."""
    return [
        f"{audit['id']}: {audit['title']} {json.dumps(audit.get('details', {}).get('items'))[:2000]}"
        for audit in report["audits"].values()
        if audit["score"] is not None and audit["score"] < 1
    ]
