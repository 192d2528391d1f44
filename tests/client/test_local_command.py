"""`comln --local`: commands with an engine of their own; in another process, as engines set up the one they are in."""

import json
import re
import subprocess
import time
from pathlib import Path

from comln_serve.engine.compilation import compile_flow
from tests.client.pictures import class_folder
from tests.support.programs import python


def run(script: str) -> "subprocess.CompletedProcess[str]":
    return python("-c", script, COMLN_DEFAULT_MODEL="tiny-prototype", COMLN_URL="http://127.0.0.1:9")


def test_commands_without_a_server(models_dir: Path, tmp_path: Path) -> None:
    """Each has an engine of its own, on a database in which another server may keep thumbnails: they stay there."""
    compile_flow()  # else the first command may have to, and log that
    photos, database = class_folder(tmp_path / "photos", each=3), tmp_path / "own.db"
    done = run(f"""
import os
from comln_serve.client.commands import main

def comln(*arguments, thumbnails="false"):
    os.environ["COMLN_KEEP_THUMBNAILS"] = thumbnails
    local = ["--local", "--models-dir", {str(models_dir)!r}, "--database-url", "sqlite:///{database}"]
    main([*arguments, *local], standalone_mode=False)

comln("adapt", {str(photos)!r}, "--name", "own", thumbnails="true")
comln("classifiers", "ls")
comln("classifiers", "rename-classes", "own", "red", "rot")
comln("classifiers", "show", "own", "--json", thumbnails="true")
comln("predict", {str(photos)!r}, "--classifier", "own", "--json")
comln("predict", {str(photos)!r}, "--classifier", "absent")
""")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert f"The database is {database}." in done.stderr
    text, shown, predicted = re.split(r"^(?=\{)", done.stdout, flags=re.MULTILINE)
    assert text.startswith("own@1 (clf_")
    assert all(item["thumbnail"] is not None for item in json.loads(shown)["classes"])
    labels = [item["label"] for item in json.loads(predicted)["predictions"]]
    assert labels == ["blue"] * 3 + ["green"] * 3 + ["rot"] * 3


def test_ctrl_c_ends_the_work_of_a_command() -> None:
    """What the application does for the request is cancelled, not waited for."""
    began = time.monotonic()
    done = run("""
import anyio, signal, threading
from anyio.from_thread import start_blocking_portal
from comln_serve.client.local import _InProcess
import httpx2

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore the signal

async def app(scope, receive, send):
    await anyio.sleep(0.5)  # the other thread waits for the answer
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    try:
        await anyio.sleep(60)
    finally:
        print("ended", flush=True)

with start_blocking_portal() as portal:
    try:
        httpx2.Client(transport=_InProcess(app, portal)).get("http://localhost")
    except KeyboardInterrupt:
        print("interrupted")
""")
    assert ("ended" in done.stdout, "interrupted" in done.stdout) == (True, True), done.stderr
    assert time.monotonic() - began < 60


def test_the_server_in_the_process_closes_after_ctrl_c(models_dir: Path, tmp_path: Path) -> None:
    done = run(f"""
import threading
from comln_serve.client.local import local_client
try:
    local = ["--models-dir", {str(models_dir)!r}, "--database-url", "sqlite:///{tmp_path}/own.db"]
    with local_client(local, 0.0) as client:
        client.models()
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate() if thread.name.startswith(("embed", "decode"))])
""")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_server_that_cannot_start_closes_its_database(models_dir: Path, tmp_path: Path) -> None:
    """SQLite removes the write-ahead log with the last connection. The error has not been let go of by then."""
    done = run(f"""
from pathlib import Path
from comln_serve.client.errors import InputError
from comln_serve.client.local import local_client

database = ["--database-url", "sqlite:///{tmp_path}/own.db"]
for models in (["/none"], [{str(models_dir)!r}, "--default-model", "absent"]):
    try:
        with local_client([*database, "--models-dir", *models], 0.0):
            print("started")
    except InputError:
        print(sorted(file.name for file in Path({str(tmp_path)!r}).iterdir()))
""")
    assert (done.returncode, done.stdout) == (0, "[]\n['own.db']\n"), done.stderr
