"""A disk without room: writes are refused, reads and predictions go on, and nothing stored is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from comln_serve.errors import ErrorCode
from comln_serve.security.keys import Scope
from comln_serve.storage import Store
from tests.support import http
from tests.support.engines import MakeEngine
from tests.support.image_files import image_bytes
from tests.support.keyed import bearer, new_key
from tests.support.live import START_SECONDS, live_server
from tests.support.messages import adapt_form, check_error, predict_form
from tests.support.serving import served
from tests.support.waiting import wait_until

RED = image_bytes()
LARGE = image_bytes(size=(900, 900))  # over the megabyte up to which uploads stay in memory


def adapt(url: str, name: str) -> httpx2.Response:
    return http.post(f"{url}/adapt", **adapt_form(name=name))


def predict(url: str, image: bytes = RED) -> httpx2.Response:
    return http.post(f"{url}/predict", **predict_form(image))


def fill_up(url: str) -> int:
    """Adapt until it is refused; how many there are then."""
    made = 1
    with http.session(base_url=url) as session:
        while (answer := session.post("/adapt", **adapt_form(name="more"))).status_code == 201:
            made += 1
            assert made < 2000
    check_error(answer, ErrorCode.STORAGE_UNAVAILABLE)
    return made


def check_full(url: str, made: int) -> None:
    """Writing is refused each time; reading and predicting, `ready` for them, go on."""
    for send in (lambda: adapt(url, "more"), lambda: http.post(f"{url}/classifiers/known/examples", **adapt_form())):
        error = check_error(send(), ErrorCode.STORAGE_UNAVAILABLE)
        assert "Nothing was changed" in error["message"]
    assert predict(url).status_code == 200
    assert http.get(f"{url}/health/ready").json()["classifiers"] == made
    assert http.get(f"{url}/health/live").status_code == 200
    assert len(http.get(f"{url}/classifiers?limit=1000").json()["classifiers"]) == made


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, of half a megabyte, or of the size that the test names."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', '512k')}", "tmpfs", str(folder)]
    if not sys.platform.startswith("linux") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_writes_are_refused_on_a_full_file_system(make_engine: MakeEngine, small_disk: Path) -> None:
    url = f"sqlite:///{small_disk / 'classifiers.db'}"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(150_000))
    with served(make_engine(database_url=url)) as url:
        adapt(url, "known").raise_for_status()
        made = fill_up(url)
        check_full(url, made)
        filler.unlink()
        answer = adapt(url, "more")
        assert answer.status_code == 201
        assert answer.json()["version"] == made, "refused requests take no number"
        assert predict(url).status_code == 200


@pytest.mark.parametrize("small_disk", ["6m"], indirect=True)
def test_workers_go_on_without_room_for_temporary_files(models_dir: Path, tmp_path: Path, small_disk: Path) -> None:
    """They share metrics there, and the buckets of keys. One that is killed is replaced, its metrics go on."""
    url = f"sqlite:///{tmp_path / 'classifiers.db'}"
    store = Store(url)
    key = bearer(new_key(store, "acme", Scope.ADMIN, requests_per_minute=100_000))
    store.close()
    flags = ("--default-model", "tiny", "--workers", "2", "--require-keys")
    environment = {**os.environ, "TMPDIR": str(small_disk)}
    with live_server(models_dir, tmp_path, *flags, database_url=url, environment=environment) as server:
        counted = f"{server.url}/metrics"
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 2)
        wait_until(lambda: "comln_models_ready 1.0" in http.get(counted, headers=key).text)
        with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        processes = children.read_text().split()
        for path in ("", "classifiers", "models", "limits", "docs", "absent", "v2", "classifiers/absent"):
            for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE"):
                assert http.request(method, f"{server.url}/{path}", headers=key).status_code < 500
        assert children.read_text().split() == processes
        files = {file.name for file in small_disk.rglob("*.db")}
        os.kill(int(processes[0]), signal.SIGKILL)
        wait_until(lambda: "comln_worker_restarts_total 1.0" in http.get(counted, headers=key).text)
        wait_until(lambda: "comln_workers 2.0" in http.get(counted, headers=key).text)
        text = http.get(counted, headers=key).text
        assert 'comln_requests_total{method="PUT",route="/models",status="405"} 1.0' in text
        assert {file.name for file in small_disk.rglob("*.db")} == files


def test_workers_do_not_start_without_room_for_their_metrics(
    models_dir: Path, tmp_path: Path, small_disk: Path
) -> None:
    command = [sys.executable, "-m", "comln_serve.cli", "--models-dir", str(models_dir), "--workers", "2"]
    command += ["--port", "0", "--database-url", f"sqlite:///{tmp_path / 'classifiers.db'}"]
    environment = {**os.environ, "TMPDIR": str(small_disk)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False, env=environment)
    assert done.returncode == 2
    assert "TMPDIR" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(small_disk.iterdir())


LIMITED = """
import resource, sys
from comln_serve.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
sys.exit(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are set as on Linux")
def test_writes_are_refused_where_files_cannot_grow(models_dir: Path, tmp_path: Path) -> None:
    """The same with the system's other refusal, which needs no root; over without a restart."""
    import resource  # noqa: PLC0415 - there is none on Windows

    with live_server(
        models_dir, tmp_path, "--default-model", "tiny", "--log-level", "error", program=["-c", LIMITED]
    ) as server:
        adapt(server.url, "known").raise_for_status()
        made = fill_up(server.url)
        check_full(server.url, made)
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert adapt(server.url, "more").json()["version"] == made
        assert "Traceback" not in server.log.read_text()
