"""`comln` on a server in another process: wrong use, streams that are closed or full, servers that do not answer."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from click.testing import CliRunner

from comln_serve.client import AsyncClient, Client, asking
from comln_serve.client.commands import main
from tests.client.pictures import class_folder
from tests.client.wires import Run
from tests.support.live import live_server
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="module")
def url(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(models_dir, tmp_path_factory.mktemp("server"), "--default-model", "tiny-prototype") as server:
        yield server.url


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of class folders, with a ZIP archive of it beside it."""
    folder = class_folder(tmp_path_factory.mktemp("images") / "photos", each=3)
    shutil.make_archive(str(folder), "zip", folder)
    return folder


@pytest.fixture(scope="module")
def shop(url: str, photos: Path) -> str:
    """Name of a classifier of the photos."""
    with Client(url) as client:
        for _ in range(2):
            client.adapt_folder(photos, name="shop")
    return "shop"


@pytest.fixture
def comln(url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `comln`, on the server."""
    monkeypatch.setenv("COMLN_URL", url)
    monkeypatch.delenv("COMLN_KEY", raising=False)
    return lambda *arguments, **more: CliRunner().invoke(main, [str(item) for item in arguments], **more)


def test_the_page_is_opened(comln: Run, url: str) -> None:
    assert comln("open").stdout == f"{url}/\n"
    assert json.loads(comln("open", "--json").stdout) == {"page": f"{url}/"}
    assert "<html" in httpx2.get(comln("open", "--print").stdout.strip(), headers={"Accept": "text/html"}).text


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_client_that_awaits_on_either_event_loop(url: str, shop: str, photos: Path, backend: str) -> None:
    pytest.importorskip(backend)

    async def work() -> None:
        async with AsyncClient(url) as client:
            assert len(await client.predict_folder(photos, shop)) == 9

    anyio.run(work, backend=backend)


def test_one_bad_image_is_not_counted(comln: Run, shop: str, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"none")
    result = comln("predict", tmp_path / "bad.png", "--classifier", shop)
    assert (result.exit_code, result.stderr) == (2, f"comln: {tmp_path}/bad.png: is no image: it begins with b'none'\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "options",
    [
        ["--classifier", "shop"],
        ["--classifier", "shop", "--json"],
        ["--classifier", "shop", "--csv", "-"],
        ["--classifier", "shop", "--csv", "{folder}/table.csv"],
        ["--classifier", "none", "--json"],
    ],
    ids=["text", "json", "csv", "said of a csv", "error"],
)
def test_a_full_standard_output(url: str, shop: str, photos: Path, tmp_path: Path, options: list[str]) -> None:
    given = [option.format(folder=tmp_path) for option in options]
    command = [sys.executable, "-m", "comln_serve.client", "predict", str(photos), *given]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--url", url], cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "comln: standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["predict", "{photos}", "--classifier", "shop"], 0), (["classifiers", "rm", "shop"], 2), (["open"], 0)],
)
def test_closed_standard_streams(
    comln: Run, url: str, shop: str, photos: Path, arguments: list[str], status: int
) -> None:
    """As for programs without a console, where Python has None for each of the streams."""
    script = f"""
import os, sys
for number in range(3):
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None
from comln_serve.client.commands import main
try:
    main({[item.format(photos=photos) for item in arguments]!r})
except SystemExit as ended:
    os._exit(ended.code)
except BaseException:
    os._exit(99)
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "COMLN_URL": url}, check=False)
    assert done.returncode == status


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["adapt"], 2, "Missing argument 'DIR'"),
        (["adapt", "/none"], 2, "/none: there is no such folder"),
        (["adapt", "{photos}.zip"], 2, "photos.zip: is a file, not a folder; unpack an archive, and give the folder"),
        (["evaluate", "{photos}.zip", "--classifier", "shop"], 2, "photos.zip: is a file, not a folder; unpack"),
        (["predict", "{photos}.zip", "--classifier", "shop"], 2, "photos.zip: is a ZIP archive; unpack it"),
        (["predict", "/none", "--classifier", "x"], 2, "'/none' does not exist"),
        (["predict", "{photos}"], 2, "Missing option '--classifier'"),
        (["predict", "{photos}", "--classifier", "none"], 1, "There is no classifier 'none'"),
        (["predict", "{photos}", "--classifier", "shop", "--top-k", "0"], 2, "0 is not in the range"),
        (["adapt", "{photos}/red"], 2, "there is no folder of images in it"),
        (["adapt", "{photos}", "--name", "a b"], 1, "(invalid_request)"),
        (["adapt", "{photos}", "--horizon", "far"], 2, "--horizon is 'far'; give a number"),
        (["adapt", "{photos}", "--horizon", "nan"], 2, "--horizon is 'nan'; give a number"),
        (["adapt", "{photos}", "--metadata", "x"], 2, "--metadata is 'x'; give KEY=VALUE"),
        (["adapt", "{photos}", "--metadata", "a=1", "--metadata", "a=2"], 2, "has 'a' twice, as '1' and as '2'"),
        (["adapt", "{photos}", "--model", "none"], 1, "(model_not_found)"),
        (["classifiers", "rollback", "none"], 1, "(classifier_not_found)"),
        (["classifiers", "adapt", "none"], 1, "(classifier_not_found)"),
        (["classifiers", "adapt", "shop", "--horizon", "far"], 2, "--horizon is 'far'; give a number"),
        (["classifiers", "rename-classes", "none", "red", "Red"], 1, "(classifier_not_found)"),
        (
            ["classifiers", "rename-classes", "shop", "rot", "red"],
            1,
            "no class 'rot'. Its classes are 'blue', 'green',",
        ),
        (["classifiers", "rename-classes", "shop"], 2, "Missing argument 'OLD NEW...'"),
        (["classifiers", "rename-classes", "shop", "red", "a", "blue"], 2, "'blue' has no new label; give OLD NEW"),
        (["classifiers", "rename-classes", "shop", "red", "a", "red", "b"], 2, "class 'red' is named twice"),
        (["classifiers", "rename", "none", "other"], 1, "(classifier_not_found)"),
        (["classifiers", "rename", "shop", "a b"], 1, "must be 1 to 64 letters"),
        (["classifiers", "edit", "shop"], 2, "give --metadata, --no-metadata, --expires-in-seconds or --never"),
        (["classifiers", "edit", "shop", "--metadata", "a=b", "--no-metadata"], 2, "exclude each other"),
        (["classifiers", "edit", "shop", "--expires-in-seconds", "9", "--never-expires"], 2, "exclude each other"),
        (["classifiers", "sh"], 2, "No such command 'sh'"),
        (
            ["predict", "{photos}", "--classifier", "a", "--classifier", "b"],
            2,
            "--classifier is given twice; give it once",
        ),
        (["models", "ls", "--url", "a", "--url=b"], 2, "--url is given twice"),
        (["open", "--url", "a", "--url", "b"], 2, "--url is given twice"),
        (["classifiers", "export", "shop", "-o", "a", "--output", "b"], 2, "--output is given twice"),
        (["adapt", "{photos}", "--promote", "--no-promote"], 2, "--promote/--no-promote is given twice"),
        (["models", "ls", "--url", "here"], 2, "url is 'here'; give the address of a server"),
        (["models", "ls", "--models-dir", "models"], 2, "--models-dir is for --local"),
        (["models", "ls", "--local", "--url", "http://x"], 2, "--url and --local exclude each other"),
        (["models", "ls", "--local", "--models-dir", "/none"], 2, "--local: "),
        (["models", "ls", "--key", "two words"], 2, "the API key has characters that no key has"),
    ],
)
def test_wrong_use(comln: Run, shop: str, photos: Path, arguments: list[str], status: int, said: str) -> None:
    result = comln(*(item.format(photos=photos) for item in arguments))
    assert said in result.stderr
    assert (result.exit_code, result.stdout) == (status, "")
    assert "Traceback" not in result.stderr


def test_an_empty_class_folder(comln: Run, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "photos")
    (folder / "empty").mkdir()
    result = comln("adapt", folder, "--json")
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == 2
    assert error["message"].endswith("photos/empty: this class folder holds no image; add some, or remove the folder")
    assert (error["code"], error["status"]) == (None, None)


def test_no_server(comln: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_FIRST_WAIT", 0.01)
    for arguments in (["models", "ls"], ["open"]):
        result = comln(*arguments, "--url", "http://127.0.0.1:9")
        assert result.exit_code == 1
        assert result.stderr.startswith("comln: no server can be reached at http://127.0.0.1:9: ")
        assert "--url or COMLN_URL" in result.stderr
    by_json = comln("models", "ls", "--url", "http://127.0.0.1:9", "--json")
    assert (by_json.exit_code, by_json.stderr) == (1, "")
    assert json.loads(by_json.stdout)["error"]["status"] is None


def test_https_where_the_server_speaks_http(comln: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_FIRST_WAIT", 0.01)
    result = comln("models", "ls", "--url", url.replace("http:", "https:"))
    assert result.exit_code == 1
    assert result.stderr == (f"comln: the server at {url.replace('http:', 'https:')} does not speak TLS; try {url}\n")
