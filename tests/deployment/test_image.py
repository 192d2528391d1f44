"""The CPU image, built from the Dockerfile and started as `docs/deployment.md` says."""

import errno
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import http
from tests.support.containers import Image, build, container, missing
from tests.support.live import LiveServer
from tests.support.paths import REPOSITORY

GROCERIES = REPOSITORY / "examples" / "groceries"
CLASSES = ("banana", "cucumber", "aubergine")

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(missing() != "", reason=f"building an image needs {missing()}"),
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Gigabytes of files, so not in a folder that pytest keeps."""
    with tempfile.TemporaryDirectory(prefix="comln-image-") as folder:
        yield Path(folder)
        assert folder not in Path("/proc/self/mounts").read_text()


@pytest.fixture(scope="module")
def image(folder: Path) -> Image:
    return build("cpu", folder)


def photos(part: str, classes: tuple[str, ...] = CLASSES) -> list[tuple[str, bytes]]:
    return [
        (label, path.read_bytes()) for label in classes for path in sorted((GROCERIES / label / part).glob("*.jpg"))
    ]


def files(images: list[tuple[str, bytes]]) -> list[tuple[str, Any]]:
    return [("images", ("photo.jpg", content, "image/jpeg")) for _, content in images]


def test_what_the_image_holds(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["Healthcheck"]["Test"][0] == "CMD"
    assert list(image.config["Volumes"]) == ["/data"]
    packages = {
        path.name.partition("-")[0].lower()
        for path in image.root.glob("opt/comln/lib/python3*/site-packages/*.dist-info")
    }
    assert {"comln_serve", "onnxruntime", "numba"} <= packages
    assert packages.isdisjoint({"onnxruntime_gpu", "torch", "onnxscript", "pytest", "scipy"})
    assert not list(image.root.glob("opt/comln/lib/python3*/site-packages/training"))
    assert not (image.root / "opt" / "comln" / "bin" / "comln-train").exists()
    assert not (image.root / "opt" / "src").exists(), "a build stage is left out"
    assert {path.name for path in (image.root / "models").iterdir()} == {
        path.name for path in (REPOSITORY / "models").iterdir()
    }
    added = sum(path.lstat().st_size for name in ("opt", "models") for path in (image.root / name).rglob("*"))
    assert added < 600e6, "what is added to the image of Python, 0.5 GB when this was written"


def test_no_start_has_to_compile(image: Image) -> None:
    """Of a read-only container: bytecode would be compiled at each start and each health check."""
    for name in ("usr/lib/python3*/http", "opt/comln/lib/python3*/site-packages/comln_serve"):
        (package,) = image.root.glob(name)
        sources = {path.stem for path in package.glob("*.py")}
        compiled = {path.name.partition(".")[0] for path in package.glob("__pycache__/*.pyc")}
        assert sources
        assert compiled == sources
    assert list(image.root.glob("opt/numba/*/*.nbc"))


def test_a_container_serves_and_starts_again(image: Image, folder: Path) -> None:
    data = folder / "data"
    data.mkdir(mode=0o700)
    os.chown(data, *map(int, image.config["User"].split(":")))
    support, queries = photos("support"), photos("query")
    with container(image, data, folder / "first.log") as server:
        assert_confined(server)
        made = http.post(
            f"{server.url}/adapt",
            files=files(support),
            data={"name": "fruit", "labels": [label for label, _ in support]},
        )
        assert made.status_code == 201, made.text
        first = predictions(server, queries)
        right = sum(found == label for found, (label, _) in zip(first, queries, strict=True))
        assert right >= 0.9 * len(queries)
        assert health_check(image, server) == 0
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        assert health_check(image, server) != 0
    with container(image, data, folder / "second.log") as server:
        assert predictions(server, queries) == first
    for log in ("first.log", "second.log"):
        text = (folder / log).read_text()
        assert "compiling the solver" not in text, "it was compiled when the image was built"
        assert all(line.startswith("{") for line in text.splitlines()), text


def predictions(server: LiveServer, queries: list[tuple[str, bytes]]) -> list[str]:
    answer = http.post(f"{server.url}/predict", files=files(queries), data={"classifier": "fruit"})
    assert answer.status_code == 200, answer.text
    return [prediction["label"] for prediction in answer.json()["predictions"]]


def assert_confined(server: LiveServer) -> None:
    """The process is no root, has no capabilities and writes to nothing but its volumes."""
    process = Path("/proc") / str(server.process.pid)
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {"10001"}
    assert (int(status["CapEff"], 16), int(status["CapBnd"], 16)) == (0, 0)
    assert status["NoNewPrivs"] == "1"
    for name in ("new", "models/new", "opt/comln/new", "opt/numba/new"):
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            (process / "root" / name).touch()


def health_check(image: Image, server: LiveServer) -> int:
    """The image's own health check, on the port of this server."""
    _, *command = image.config["Healthcheck"]["Test"]
    port = str(urlsplit(server.url).port)
    done = subprocess.run(
        ["chroot", str(image.root), *(word.replace("8000", port) for word in command)],
        env=image.environment,
        capture_output=True,
        check=False,
    )
    return done.returncode
