"""What the commands need of Linux alone, with the names removed that Python does not have on macOS or Windows."""

import os
import signal
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from tests.support.paths import REPOSITORY
from tests.support.programs import python

# Removed from Python's modules. macOS lacks the first, Windows both.
NOT_ON_MACOS = {
    "os": "sched_getaffinity memfd_create",
    "select": "epoll EPOLLIN EPOLLONESHOT EPOLLRDHUP",
    "socket": "TCP_USER_TIMEOUT TCP_NOTSENT_LOWAT",
}
NOT_ON_WINDOWS = {
    "os": "fork getuid setsid sysconf O_NOCTTY",
    "select": "poll",
    "signal": "SIGHUP SIGKILL pthread_sigmask SIG_BLOCK SIG_UNBLOCK",
    "socket": "AF_UNIX SOCK_SEQPACKET send_fds recv_fds SO_REUSEPORT",
}

# Other packages are imported before, as those for another system would not look for these names.
IMPORTS = """
import os, select, signal, socket, sys
from importlib import import_module
from pkgutil import walk_packages

def import_all():
    import comln_serve
    for module in walk_packages(comln_serve.__path__, "comln_serve."):
        if not module.name.endswith(".__main__") and ".migrations.env" not in module.name:
            import_module(module.name)

import_all()
for name in [name for name in sys.modules if name.partition(".")[0] == "comln_serve"]:
    del sys.modules[name]
for module, names in (part.split(":") for part in sys.argv[1:]):
    for name in names.split():
        delattr(sys.modules[module], name)
for name in ("fcntl", "resource") if not hasattr(signal, "SIGHUP") else ():
    sys.modules[name] = None
import_all()
print("imported")
"""


@pytest.mark.process
@pytest.mark.parametrize("absent", [(NOT_ON_MACOS,), (NOT_ON_MACOS, NOT_ON_WINDOWS)], ids=["macos", "windows"])
def test_every_module_can_be_imported(absent: tuple[dict[str, str], ...]) -> None:
    done = python("-c", IMPORTS, *(f"{module}:{names}" for system in absent for module, names in system.items()))
    assert done.stdout == "imported\n", done.stderr


@pytest.mark.process
@pytest.mark.parametrize("module", ["comln_serve.comln", "comln_serve.cli", "training.cli"])
def test_labels_and_tables_are_written_to_files_as_they_are(module: str) -> None:
    """Windows' encodings have 256 characters, and Python makes a line end of \\n there."""
    program = (
        f"import sys\nfrom {module} import main\nsys.argv = ['', '--version']\n"
        "sys.stdout.reconfigure(encoding='cp1252', newline='\\r\\n')\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('\u0436\\r\\n', end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, check=True)
    assert done.stdout.splitlines(keepends=True)[1:] == ["\u0436\r\n".encode()]


@pytest.mark.process
def test_the_demo_stops_its_server_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a process cannot be sent a signal by its number, and has no exit status of its own when it is ended."""

    class Server(subprocess.Popen[bytes]):
        def terminate(self) -> None:
            os.kill(self.pid, signal.SIGKILL)

        def send_signal(self, sig: int) -> None:
            raise ValueError(f"Unsupported signal: {sig}")

    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    demo = import_module("demo")
    monkeypatch.setattr(demo, "os", SimpleNamespace(name="nt"))
    with Server([sys.executable, "-c", "import time; time.sleep(60)"]) as server:
        assert demo._stop(server) == 0
        assert server.returncode == -signal.SIGKILL
