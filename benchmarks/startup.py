"""From starting the process to `/health/ready`, and where the time goes.

    python -m benchmarks.startup models/omniglot-conv4 --starts 11

Serves one bundle on CPU, with a new database each time; the first start, which may compile the
solver and read files from a cold disk, is not counted. Prints the medians in seconds, and writes
them to benchmarks/results/startup-BUNDLE.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path

from benchmarks.publishing import machine, publish
from benchmarks.serving import free_port
from training.results.tables import markdown

_PROGRAM = """
import sys, time
import comln_serve.starting
from comln_serve.cli import main
print('imported', time.time(), flush=True)
sys.exit(main())
"""
PARTS = ("import", "load", "warm", "total")


def start(models: Path) -> dict[str, float]:
    """Seconds of one start: of the interpreter and its imports, of settings, models and store, of
    the application, the flow and the backbones' first run; and in total.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        where = ["--models-dir", str(models), "--database-url", f"sqlite:///{folder}/classifiers.db"]
        command = [sys.executable, "-c", _PROGRAM, "--port", str(port), "--provider", "cpu", *where]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            while not _ready(port):
                if process.poll() is not None:
                    raise SystemExit(process.communicate()[1])
                time.sleep(0.005)
            ready = time.time()
        finally:
            process.terminate()
            said, logged = process.communicate()
    imported = float(said.split()[1])
    lines = [json.loads(line) for line in logged.splitlines()]
    loaded = next(line["time"] for line in lines if line["message"].startswith("model "))
    loaded_at = datetime.fromisoformat(loaded).timestamp()
    moments = [began, imported, loaded_at, ready]
    parts = [after - before for before, after in pairwise(moments)]
    return dict(zip(PARTS, [*parts, ready - began], strict=True))


def _ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def main() -> None:
    """Measure the starts that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path, help="folder of the bundle to serve")
    parser.add_argument("--starts", type=int, default=11)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / arguments.bundle.name).symlink_to(arguments.bundle.resolve())
        start(Path(folder))
        found = [start(Path(folder)) for _ in range(arguments.starts)]
    seconds = {part: [each[part] for each in found] for part in PARTS}
    rows = [
        [part, *(f"{figure(values):.2f}" for figure in (statistics.median, min, max))]
        for part, values in seconds.items()
    ]
    about = f"{arguments.bundle.name} on {machine()}; medians of {arguments.starts} starts."
    publish(f"startup-{arguments.bundle.name}", f"{about}\n\n{markdown(['part', 'seconds', 'from', 'to'], rows)}")


if __name__ == "__main__":
    main()
