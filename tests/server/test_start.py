"""The server says what is wrong when it cannot start, and nothing of it runs on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from comln_serve import __version__
from comln_serve.cli import main
from tests.support import http
from tests.support.bundles import poison_backbone
from tests.support.live import LiveServer, free_port, live_server
from tests.support.programs import python


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    with live_server(models_dir, folder, "--default-model", "tiny") as server:
        yield server


def start_fails(*flags: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a server that must end by itself."""
    return python("-m", "comln_serve.cli", *flags, **environment)


@pytest.mark.slow
def test_a_port_in_use_ends_the_server(server: LiveServer, models_dir: Path, tmp_path: Path) -> None:
    port = str(urlsplit(server.url).port)
    database = f"sqlite:///{tmp_path / 'classifiers.db'}"
    done = start_fails("--models-dir", models_dir, "--provider", "cpu", "--port", port, "--database-url", database)
    assert done.returncode != 0
    assert "address already in use" in done.stderr
    assert "Choose another address (--host, --port)" in done.stderr.splitlines()[-1]
    assert port in done.stderr
    assert "Traceback" not in done.stderr
    assert http.get(f"{server.url}/health/ready").status_code == 200


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has CUDA")
def test_cuda_where_there_is_none_is_refused(models_dir: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'classifiers.db'}"
    done = start_fails("--models-dir", models_dir, "--provider", "cuda", "--port", 0, "--database-url", database)
    assert done.returncode == 2
    assert "provider is cuda, but ONNX Runtime could not use CUDA" in done.stderr
    assert "--provider cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_with_a_wrong_variable_ends_with_status_2() -> None:
    """From the environment, in a real process; the rest of the table is below."""
    done = start_fails(COMLN_PORT="abc")
    assert done.returncode == 2
    assert done.stderr.startswith("comln-serve: environment COMLN_PORT: ")
    assert "'abc'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_database_that_is_not_there_yet_ends_with_status_1(workers: int, models_dir: Path) -> None:
    """So that systemd starts it again: it does not after status 2 (RestartPreventExitStatus)."""
    url = "postgresql://me:secret@127.0.0.1:1/x"
    done = start_fails("--models-dir", models_dir, "--port", 0, "--workers", workers, "--database-url", url)
    assert done.returncode == 1
    assert "cannot use postgresql://me:***@127.0.0.1:1/x as the database" in done.stderr
    assert "Check that it is running and lets this user in" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
    listed = start_fails("keys", "list", "--database-url", url)
    assert listed.returncode == 2, "1 means that there is no such key"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--port", "70000"], "flag --port: Input should be less than or equal to 65535"),
        (["--models-dir", "/absent"], "/absent: no such folder; --models-dir must hold"),
        (["--models-dir", "MODELS", "--default-model", "absent"], "default model 'absent'"),
        (["--models-dir", "MODELS", "--database-url", "x"], "database URL must read sqlite:///"),
        (["--models-dir", "MODELS", "--database-url", "sqlite:////absent/x.db"], "/absent/x.db"),
    ],
)
def test_configuration_errors_name_the_setting(
    flags: list[str],
    expected: str,
    models_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [str(models_dir) if flag == "MODELS" else flag for flag in flags]
    usual = {"--provider": "cpu", "--port": "0"}  # the default port may be in use
    arguments += [part for flag, value in usual.items() if flag not in flags for part in (flag, value)]
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert expected in output.err
    assert output.err.startswith("comln-serve: ")
    assert output.out == ""


def test_a_flag_without_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--port"])
    assert caught.value.code == 2
    assert "usage: comln-serve" in capsys.readouterr().err


def test_version_and_help_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "--models-dir" in capsys.readouterr().out


def test_the_server_is_a_module_too() -> None:
    assert python("-m", "comln_serve", "--version").stdout == f"{__version__}\n"


@pytest.mark.slow
def test_a_server_that_cannot_get_ready_ends(models: Path, tmp_path: Path) -> None:
    """It would otherwise stay alive and never ready."""
    poison_backbone(models / "tiny")
    database = f"sqlite:///{tmp_path / 'x.db'}"
    done = start_fails("--models-dir", models, "--port", free_port(), "--database-url", database)
    assert done.returncode == 1
    assert "NaN" in done.stderr
