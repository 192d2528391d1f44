"""The main job, end to end: start a server, adapt it to new classes, classify other images of them.

First grocery products in photos, with the server's default model; then handwritten characters.
Everything goes over HTTP with the standard library alone, as a client elsewhere would do it. The
predicted photos are laid out in a web page, mistakes first.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any, BinaryIO

from contact_sheet import Predicted, contact_sheet

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
START_SECONDS = 300  # the first start on a machine compiles the solver
COMPILATION = "comln_serve.engine.compilation"  # the logger that says so


@dataclass(frozen=True)
class Result:
    """What the server answered about one folder of images."""

    adapted: dict[str, Any]
    answer: dict[str, Any]
    predicted: list[Predicted]

    @property
    def accuracy(self) -> str:
        """Right of all, and as a percentage."""
        return _share(sum(p.right for p in self.predicted), len(self.predicted))

    @property
    def held_out(self) -> str:
        """The server's own estimate, from the support images alone; "" if it made none."""
        held_out = (self.adapted["report"] or {}).get("held_out")
        if held_out is None:
            return ""
        judged = held_out["judged"]
        return _share(round(held_out["accuracy"] * judged), judged)


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models-dir", type=Path, default=ROOT / "models")
    parser.add_argument("--output", type=Path, default=ROOT / "demo-output", help="folder for the web page")
    options = parser.parse_args()
    page = options.output / "groceries.html"
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "comln_serve.cli",
                    "--port",
                    str(port),
                    "--models-dir",
                    str(options.models_dir),
                    "--log-format",
                    "json",
                    "--database-url",
                    f"sqlite:///{folder}/classifiers.db",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            seconds = _wait_until_ready(url, server, log)
            print(f"server ready in {seconds:.1f} s", flush=True)
            _photos(url, page)
            _characters(url)
        finally:
            status = _stop(server)
    print(f"\nserver stopped with status {status}\nevery photo with its prediction: {page}")
    return status


def _photos(url: str, page: Path) -> None:
    """Adapt the default model to grocery products, print the results and write the page."""
    images = EXAMPLES / "groceries"
    classes = _classes(images)
    support = len(_files(images, "support"))
    print(f"\nPhotos: {len(classes)} grocery products, {support // len(classes)} photos of each")
    result = _adapt_and_predict(url, "groceries", images, None)
    adapted = result.adapted
    print(
        f"\nPOST /adapt: {support} photos"
        f"\n  classifier {adapted['id']} on model {adapted['model']}, T = {adapted['horizon']:.4g}"
        f"\n  {_timings(adapted)}"
        f"\n\nPOST /predict: {len(result.predicted)} other photos\n  {_timings(result.answer)}\n"
    )
    width = max(map(len, classes))
    print(f"  {'class':<{width}}  {'correct':<7}  mistaken for")
    for name in classes:
        mine = [p for p in result.predicted if p.truth == name]
        right = sum(p.right for p in mine)
        wrong = ", ".join(f"{p.label} ({p.probability:.0%})" for p in mine if not p.right)
        print(f"  {name:<{width}}  {f'{right}/{len(mine)}':<7}  {wrong or '-'}")
    facts = [f"accuracy: {result.accuracy}"]
    if result.held_out:
        facts.append(f"expected from the {support} photos alone (held out): {result.held_out}")
    print("", *facts, sep="\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    title = f"{len(result.predicted)} photos of {len(classes)} grocery products"
    facts.append(
        f"Model {adapted['model']}, adapted to {support} other photos of the same products. A "
        "prediction is given with its probability."
    )
    page.write_text(contact_sheet(title, facts, result.predicted), encoding="utf-8")


def _characters(url: str) -> None:
    """Adapt the model for drawings to ten characters, and print the results in short."""
    images = EXAMPLES / "omniglot"
    classes = _classes(images)
    result = _adapt_and_predict(url, "characters", images, "omniglot-conv4")
    support = len(_files(images, "support"))
    wrong = [p for p in result.predicted if not p.right]
    print(
        f"\nCharacters: {len(classes)} that {result.adapted['model']} has never seen, "
        f"{support // len(classes)} drawings of each"
        f"\n  POST /adapt {result.adapted['timings_ms']['total']:.1f} ms, "
        f"POST /predict of {len(result.predicted)} other drawings "
        f"{result.answer['timings_ms']['total']:.1f} ms"
        f"\n  accuracy: {result.accuracy}"
    )
    for p in wrong:
        print(f"  {p.truth} mistaken for {p.label} ({p.probability:.0%})")


def _adapt_and_predict(url: str, name: str, images: Path, model: str | None) -> Result:
    """Adapt `model` (None: the default one) to the support images, and predict the others."""
    support, query = _files(images, "support"), _files(images, "query")
    labelled = [{"image": _base64(path), "label": label} for label, path in support]
    body: dict[str, Any] = {"name": name, "support": labelled}
    adapted = _post(f"{url}/adapt", body if model is None else {**body, "model": model})
    answer = _post(f"{url}/predict", {"classifier": name, "top_k": 1, "images": [_base64(path) for _, path in query]})
    predicted = [
        Predicted(path, label, found["label"], found["probability"])
        for (label, path), found in zip(query, answer["predictions"], strict=True)
    ]
    return Result(adapted, answer, predicted)


def _classes(images: Path) -> list[str]:
    return sorted(path.name for path in images.iterdir() if path.is_dir())


def _files(images: Path, part: str) -> Sequence[tuple[str, Path]]:
    """(class, file) of every image in the folders `part` of the classes."""
    return [(name, path) for name in _classes(images) for path in sorted((images / name / part).iterdir())]


def _share(right: int, total: int) -> str:
    return f"{right}/{total} ({right / total:.0%})"


def _timings(answer: dict[str, Any]) -> str:
    return "  ".join(f"{stage} {ms:.1f} ms" for stage, ms in answer["timings_ms"].items())


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            result: dict[str, Any] = json.load(response)
            return result
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url} answered {error.code}: {error.read().decode()}") from error


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]", log: Path) -> float:
    """Seconds until the server is ready; prints what it logs of compiling meanwhile."""
    began = time.monotonic()
    print("starting the server", flush=True)
    with log.open("rb") as lines:
        while server.poll() is None and time.monotonic() - began < START_SECONDS:
            _print_compilation(lines)
            try:
                with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
                    _print_compilation(lines)
                    return time.monotonic() - began
            except OSError:
                time.sleep(0.1)
    lines = log.read_text(errors="replace").splitlines()
    told = "\n".join(line for line in lines if "/health/ready" not in line)  # these are of the loop above
    raise SystemExit(f"the server did not become ready in {time.monotonic() - began:.0f} s:\n{told}")


def _stop(server: "subprocess.Popen[bytes]") -> int:
    """Stop the server; returns its exit status. Windows ends it without a signal that it could answer with one."""
    server.terminate()
    try:
        status = server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        server.kill()
        status = server.wait()
    return 0 if os.name == "nt" else status


def _print_compilation(log: BinaryIO) -> None:
    """Print the messages about compiling in the whole lines that the log has got since."""
    while (line := log.readline()).endswith(b"\n"):
        with suppress(ValueError):  # a line that is not of the log's format
            record = json.loads(line)
            if record["logger"] == COMPILATION:
                print(f"  {record['message']}", flush=True)
    log.seek(-len(line), os.SEEK_CUR)


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
