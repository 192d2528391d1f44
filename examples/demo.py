"""The main job, end to end: start a server, adapt it to new characters, classify held-out drawings.

Everything goes over HTTP with the standard library alone, as a client elsewhere would do it.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from socket import socket
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "examples" / "omniglot"
MODEL = "omniglot-conv4"
START_SECONDS = 120  # the first start on a machine compiles the solver


def main() -> int:
    """Run the demo; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [
                    sys.executable, "-m", "comln_serve.cli", "--port", str(port),
                    "--models-dir", str(ROOT / "models"),
                    "--database-url", f"sqlite:///{folder}/classifiers.db",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            seconds = _wait_until_ready(url, server, log)
            print(f"server ready in {seconds:.1f} s")
            _run(url)
        finally:
            server.send_signal(signal.SIGINT if os.name == "nt" else signal.SIGTERM)
            try:
                status = server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                status = server.wait()
    print(f"server stopped with status {status}")
    return status


def _run(url: str) -> None:
    classes = sorted(path.name for path in IMAGES.iterdir() if path.is_dir())
    support = [
        {"image": _base64(path), "label": name}
        for name in classes
        for path in sorted((IMAGES / name / "support").glob("*.png"))
    ]
    adapted = _post(f"{url}/adapt", {"name": "demo", "model": MODEL, "support": support})
    print(
        f"\nPOST /adapt: {len(support)} images of {len(classes)} classes the model has never seen"
        f"\n  classifier {adapted['id']} on model {adapted['model']}, T = {adapted['horizon']:.4g}"
        f"\n  {_timings(adapted)}"
    )

    query = [
        (name, path) for name in classes for path in sorted((IMAGES / name / "query").glob("*.png"))
    ]
    body = {"classifier": "demo", "top_k": 1, "images": [_base64(path) for _, path in query]}
    answer = _post(f"{url}/predict", body)
    print(f"\nPOST /predict: {len(query)} held-out drawings\n  {_timings(answer)}\n")

    results = [
        (name, prediction["label"], prediction["probability"])
        for (name, _), prediction in zip(query, answer["predictions"], strict=True)
    ]
    print(f"  {'class':<18} {'correct':<9} mistaken for")
    for name in classes:
        mine = [(label, probability) for truth, label, probability in results if truth == name]
        right = sum(label == name for label, _ in mine)
        wrong = ", ".join(f"{label} ({p:.0%})" for label, p in mine if label != name)
        print(f"  {name:<18} {f'{right}/{len(mine)}':<9} {wrong or '-'}")
    correct = sum(truth == label for truth, label, _ in results)
    print(f"\naccuracy: {correct}/{len(results)}")


def _timings(answer: dict[str, Any]) -> str:
    return "  ".join(f"{stage} {ms:.1f} ms" for stage, ms in answer["timings_ms"].items())


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            result: dict[str, Any] = json.load(response)
            return result
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url} answered {error.code}: {error.read().decode()}") from error


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]", log: Path) -> float:
    began = time.monotonic()
    print("starting the server (the first start on a machine compiles the solver)", flush=True)
    while server.poll() is None and time.monotonic() - began < START_SECONDS:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
                return time.monotonic() - began
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server did not become ready:\n{log.read_text(errors='replace')}")


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
