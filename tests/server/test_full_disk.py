"""A disk without room: writes are refused, reads and predictions go on, and nothing stored is lost."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from tests.support import http
from tests.support.engines import MakeEngine
from tests.support.image_files import image_bytes
from tests.support.live import live_server
from tests.support.messages import adapt_form, check_error, predict_form
from tests.support.serving import served

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
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of half a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if not sys.platform.startswith("linux") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_writes_are_refused_on_a_full_file_system(
    settings: Settings, make_engine: MakeEngine, small_disk: Path
) -> None:
    url = f"sqlite:///{small_disk / 'classifiers.db'}"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(150_000))
    with served(make_engine(settings.model_copy(update={"database_url": url}))) as url:
        adapt(url, "known").raise_for_status()
        made = fill_up(url)
        check_full(url, made)
        filler.unlink()
        answer = adapt(url, "more")
        assert answer.status_code == 201
        assert answer.json()["version"] == made, "refused requests take no number"
        assert predict(url).status_code == 200


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
