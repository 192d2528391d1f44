"""A server whose bundles are exchanged while it answers: SIGHUP, and what ends a server of a closed terminal."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support import http
from tests.support.bundles import edit_manifest
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import START_SECONDS, LiveServer, free_port, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.processes import needs_proc
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LOGGER = "comln_serve.engine.engine"
QUERY = image_bytes((220, 30, 30), seed=5)


def messages(server: LiveServer, logger: str) -> list[str]:
    return [line["message"] for line in server.lines(logger)]


def exchange(folder: Path, bundle: Path) -> None:
    """Put a bundle in the place of another, as a whole, as docs/upgrade.md says."""
    aside = folder.with_name(f".{folder.name}")
    folder.rename(aside)
    bundle.rename(folder)
    shutil.rmtree(aside)


def test_no_request_fails_while_bundles_are_exchanged(models: Path, tmp_path: Path) -> None:
    """Predictions go on, by several clients, through twenty exchanges of the bundle that they use."""
    flags = ("--default-model", "tiny", "--inference-threads", "2")
    with live_server(models, tmp_path, *flags) as server, ThreadPoolExecutor(4) as pool:
        made = http.post(f"{server.url}/adapt", **adapt_form(colour_support(), name="shop"))
        assert made.status_code == 201
        stop = Event()

        def ask(number: int) -> list[tuple[int, Any]]:
            found: list[tuple[int, Any]] = []
            while not stop.is_set():
                if number % 2:
                    answer = http.post(f"{server.url}/predict", **predict_form(*[QUERY] * 3, classifier="shop"))
                    found.append((answer.status_code, answer.json().get("predictions", answer.text)))
                else:
                    answer = http.post(f"{server.url}/classifiers/shop/examples", **adapt_form(promote="false"))
                    found.append((answer.status_code, None if answer.status_code == 201 else answer.text))
            return found

        asking = [pool.submit(ask, number) for number in range(4)]
        try:
            for number in range(20):
                bundle = shutil.copytree(models / "tiny", tmp_path / "bundle")
                edit_manifest(bundle, lambda content, n=number: content.update(description=f"Number {n}."))
                exchange(models / "tiny", bundle)
                answer = http.post(f"{server.url}/models/reload")
                assert (answer.status_code, answer.json()["replaced"]) == (200, ["tiny"])
        finally:
            stop.set()
        answers = [answer for one in asking for answer in one.result(60)]
        assert {status for status, _ in answers} == {200, 201}, [answer for answer in answers if answer[0] >= 400]
        # The embedder is the same, so the answers are, too.
        predictions = [json.dumps(body) for status, body in answers if status == 200]
        assert len(predictions) >= 20
        assert len(set(predictions)) == 1
        listed = {item["name"]: item["description"] for item in http.get(f"{server.url}/models").json()["models"]}
        assert listed["tiny"] == "Number 19."
        assert http.get(f"{server.url}/health/ready").status_code == 200


def test_hangup_reloads_and_a_bad_bundle_is_logged(models: Path, tmp_path: Path) -> None:
    with live_server(models, tmp_path) as server:

        def served() -> set[str]:
            return {item["name"] for item in http.get(f"{server.url}/models").json()["models"]}

        shutil.copytree(models / "tiny", models / "new")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "new" in served())
        assert messages(server, LOGGER)[-1].startswith("models reloaded: added new; unchanged tiny")
        (models / "new" / "backbone.onnx").write_bytes(b"x")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(messages(server, "comln_serve.server.hangup")))
        (said,) = messages(server, "comln_serve.server.hangup")
        assert said.startswith("the models were not reloaded: ")
        assert "new/backbone.onnx: 1 bytes; bundle.json says" in said
        assert "new" in served()
        assert http.post(f"{server.url}/adapt", **adapt_form(model="new")).status_code == 201
        assert server.process.poll() is None


@needs_proc
@pytest.mark.parametrize("by", ["signal", "request"])
def test_all_workers_reload(models: Path, tmp_path: Path, by: str) -> None:
    """The parent passes the signal on; a worker that was asked by HTTP tells the parent."""
    with live_server(models, tmp_path, "--workers", "2") as server:
        wait_until(lambda: server.log.read_text().count("Application startup complete") == 2)
        shutil.copytree(models / "tiny", models / "new")
        if by == "signal":
            server.process.send_signal(signal.SIGHUP)
        else:
            assert http.post(f"{server.url}/models/reload").json()["added"] == ["new"]
        wait_until(lambda: sum("reloaded: added new" in said for said in messages(server, LOGGER)) == 2)
        served = [len(http.get(f"{server.url}/models").json()["models"]) for _ in range(20)]
        assert set(served) == {4}
        assert server.process.poll() is None


@pytest.mark.parametrize("nohup", [False, True])
def test_a_server_ends_with_its_terminal(models_dir: Path, tmp_path: Path, nohup: bool) -> None:
    """SIGHUP also tells of a terminal that was closed: then nobody is left to stop the server. One that was started
    with nohup is to stay.
    """
    port = free_port()
    flags = ("--models-dir", str(models_dir), "--port", str(port), "--provider", "cpu")
    server = [sys.executable, "-m", "comln_serve.cli", *flags, "--database-url", f"sqlite:///{tmp_path / 'x.db'}"]
    started = f"env --default-signal=HUP setsid --ctty {'nohup' if nohup else ''}"
    ours, theirs = pty.openpty()
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([*started.split(), *server], stdin=theirs, stdout=output, stderr=output)
    try:
        wait_until(lambda: process.poll() is not None or b"the page is at" in log.read_bytes(), START_SECONDS)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: b"models reloaded" in log.read_bytes())
        assert process.poll() is None
        os.close(theirs)
        os.close(ours)
        if not nohup:
            assert process.wait(60) == 0
            return
        time.sleep(1)  # it would end within milliseconds
        assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.read_bytes().count(b"models reloaded") == 2)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
