"""The systemd unit: accepted by systemd, true of the settings, and no tighter than the server can bear."""

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import httpx2
import pytest

from comln_serve.cli import main
from comln_serve.configuration.settings import Settings
from comln_serve.configuration.sources import read_configuration
from comln_serve.server.serve import _CLOSE_SECONDS, is_loopback
from tests.support.documents import document
from tests.support.image_files import colour_support
from tests.support.live import free_port, running
from tests.support.messages import RED, adapt_form, predict_form
from tests.support.paths import REPOSITORY
from tests.support.variables import VARIABLES, settings_of

FOLDER = REPOSITORY / "deploy" / "systemd"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def read_unit(name: str) -> dict[str, list[str]]:
    """The values of each key of the section [Service], in order."""
    found: dict[str, list[str]] = defaultdict(list)
    section = ""
    for line in (FOLDER / name).read_text().splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#") and section == "[Service]":
            key, _, value = line.partition("=")
            found[key].append(value)
    return dict(found)


UNIT = read_unit("comln-serve.service")
CUDA = read_unit("cuda.conf")


def one(key: str) -> str:
    (value,) = UNIT[key]
    return value


def environment_file() -> dict[str, str]:
    """The variables that the file sets; those in its comments are left out."""
    lines = (FOLDER / "environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def environment() -> dict[str, str]:
    return {**dict(line.split("=", 1) for line in UNIT["Environment"]), **environment_file()}


def settings() -> Settings:
    return settings_of(environment())


def installed(folder: Path) -> Path:
    """A copy of the unit, with a program that is there and the drop-in beside it."""
    unit = folder / "comln-serve.service"
    text = (FOLDER / "comln-serve.service").read_text()
    unit.write_text(text.replace(f"ExecStart={one('ExecStart')}", f"ExecStart={shutil.which('true')}"))
    drop_ins = folder / "comln-serve.service.d"
    drop_ins.mkdir()
    shutil.copy(FOLDER / "cuda.conf", drop_ins)
    return unit


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = analyze("verify", installed(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
def test_systemd_finds_little_exposure() -> None:
    """systemd-analyze counts 0 (tight) to 100; the same unit without its hardening has 96."""
    done = analyze("security", "--offline=true", "--threshold=15", FOLDER / "comln-serve.service")
    assert done.returncode == 0, done.stdout[-500:]


@needs_systemd
def test_the_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", FOLDER / "sysusers.conf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    users = [line.split(":") for line in (tmp_path / "etc" / "passwd").read_text().splitlines()]
    (home,) = [user[5] for user in users if user[0] == one("User")]
    assert home == f"/var/lib/{one('StateDirectory')}"
    assert one("Group") == one("User")


def test_variables_and_flags_exist() -> None:
    commented = [line.removeprefix("#") for line in (FOLDER / "environment").read_text().splitlines()]
    named = {line.partition("=")[0] for line in commented if line.startswith("COMLN_")}
    for lines in (UNIT, CUDA):
        named |= {line.partition("=")[0] for line in lines["Environment"] if line.startswith("COMLN_")}
    assert {"COMLN_REQUIRE_KEYS", "COMLN_DATABASE_URL", "COMLN_PROVIDER"} <= named <= VARIABLES
    program, *flags = one("ExecStart").split()
    assert Path(program).name == "comln-serve"
    read_configuration(flags)  # refuses what does not exist
    assert "COMLN_PROVIDER=cuda" in CUDA["Environment"]


def test_what_is_written_is_where_the_unit_allows_it() -> None:
    assert one("ProtectSystem") == "strict"
    state, cache = f"/var/lib/{one('StateDirectory')}", f"/var/cache/{one('CacheDirectory')}"
    assert settings().database_url.startswith(f"sqlite:///{state}/")
    assert one("WorkingDirectory") == state
    assert environment()["NUMBA_CACHE_DIR"] == cache
    assert is_loopback(settings().host)


def test_the_unit_gives_time_to_drain() -> None:
    assert one("KillSignal") == "SIGTERM"
    chosen, defaults = settings(), Settings.model_fields
    assert chosen.drain_seconds == defaults["drain_seconds"].default
    assert chosen.drain_delay_seconds == defaults["drain_delay_seconds"].default
    needed = chosen.drain_delay_seconds + chosen.drain_seconds + _CLOSE_SECONDS
    assert needed < float(one("TimeoutStopSec")) < needed + 30


def test_a_wrong_configuration_is_not_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--models-dir", "/absent", "--database-url", "sqlite://"])
    assert one("RestartPreventExitStatus") == str(status), capsys.readouterr().err


def test_keys_are_made_with_the_environment_of_the_unit(tmp_path: Path) -> None:
    """As docs/deployment.md says, but for the user and the folders."""
    documented = (
        "sh -c 'set -a; . /etc/comln-serve/environment; exec /opt/comln-serve/bin/comln-serve keys "
        "create --tenant acme --scope adapt'"
    )
    assert f"runuser -u comln-serve -- {documented}" in document("deployment.md")
    file = tmp_path / "environment"
    file.write_text((FOLDER / "environment").read_text().replace("/var/lib/comln-serve", str(tmp_path)))
    program = f"{sys.executable} -m comln_serve.cli"
    command = documented.replace("/etc/comln-serve/environment", str(file)).replace(one("ExecStart"), program)
    done = subprocess.run(command, shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("comln_")
    assert (tmp_path / "comln-serve.db").exists()


def system_calls(group: str) -> set[str]:
    """The system calls of a group such as @system-service, those of the groups in it included."""
    found: set[str] = set()
    for line in map(str.strip, analyze("syscall-filter", group).stdout.splitlines()[1:]):
        if line.startswith("@"):
            found |= system_calls(line)
        elif line and not line.startswith("#"):
            found.add(line)
    return found


@pytest.mark.slow
@needs_systemd
@needs_strace
def test_the_server_makes_only_the_system_calls_it_is_allowed(models_dir: Path, tmp_path: Path) -> None:
    """The filter would answer others with EPERM."""
    allowed: set[str] = set()
    for line in UNIT["SystemCallFilter"]:
        groups = set[str]().union(*map(system_calls, line.removeprefix("~").split()))
        allowed = allowed - groups if line.startswith("~") else allowed | groups
    if os.geteuid() == 0:
        allowed |= {"fchown"}  # SQLite's, which it calls as root only
    trace, port = tmp_path / "trace", free_port()
    # "?": not every call exists on this processor.
    others = "trace=!" + ",".join(f"?{call}" for call in sorted(allowed))
    # Daemonized, strace is not the process that is started, which gets the signal to stop.
    strace = f"strace --daemonize --follow-forks --seccomp-bpf -e {others} -e signal=none -qq -o {trace}".split()
    server = ["-m", "comln_serve.cli", "--models-dir", str(models_dir), "--port", str(port), "--provider", "cpu"]
    database = ["--database-url", f"sqlite:///{tmp_path / 'classifiers.db'}"]
    command = [*strace, sys.executable, *server, *database]
    with running(command, f"http://127.0.0.1:{port}", tmp_path / "log") as live:
        assert httpx2.post(f"{live.url}/adapt", **adapt_form(colour_support(), name="known")).status_code == 201
        assert httpx2.post(f"{live.url}/predict", **predict_form(RED)).status_code == 200
        assert httpx2.get(f"{live.url}/metrics").status_code == 200
    assert live.process.returncode == 0
    assert trace.read_text() == ""
