"""Images of the Dockerfile, built by buildah, and servers started from them, without Docker.

Needs root, as building and mounting do. Everything is under one folder, which the caller removes;
mounts end with the server they were made for.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.live import LiveServer, free_port, running
from tests.support.paths import REPOSITORY

CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")

# As `docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges` does.
START = """
set -eu
root=$1 data=$2 user=$3 group=$4
shift 4
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$data" "$root/data"
mount -t tmpfs -o nosuid,nodev,noexec tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
exec chroot "$root" setpriv --reuid="$user" --regid="$group" --clear-groups \\
    --bounding-set=-all --inh-caps=-all --no-new-privs env --chdir=/data entrypoint "$@"
"""


def missing() -> str:
    """What this machine lacks to build images: empty where nothing is missing."""
    tools = ("buildah", "debootstrap", "unshare", "setpriv")
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    return ", ".join(lacking + (["root"] if os.geteuid() != 0 else []))


@dataclass(frozen=True)
class Image:
    """A built image.

    Attributes:
        root: its files.
        config: what it says of user, environment, entry point, volumes and health check.
    """

    root: Path
    config: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        return dict(text.split("=", 1) for text in self.config["Env"])


def build(target: str, folder: Path) -> Image:
    """Build one target of the Dockerfile.

    No registry is asked for the image that it starts from: a stand-in of the same Debian release is
    made by debootstrap, with the Python of that release.
    """
    base = (REPOSITORY / "Dockerfile").read_text()
    found = re.search(r"^FROM python:\$\{PYTHON_VERSION\}-slim-(\w+) ", base, re.MULTILINE)
    assert found is not None
    python = _make_base(found[1], folder)
    options = f"--target {target} --build-arg PYTHON_VERSION={python} --tag {target}"
    build = f"bud --isolation chroot --format docker --pull-never {options} {REPOSITORY}"
    _buildah(folder, *build.split())
    inspected = json.loads(_buildah(folder, "inspect", "--type", "image", target))
    container = _buildah(folder, "from", "--pull-never", target)
    return Image(Path(_buildah(folder, "mount", container)), inspected["Docker"]["config"])


def _make_base(release: str, folder: Path) -> str:
    """Make the image `python:VERSION-slim-RELEASE`; answers with the version."""
    root = folder / "base"
    packages = "ca-certificates,python-is-python3,python3-venv"
    _run("debootstrap", "--variant=minbase", f"--include={packages}", release, str(root))
    shutil.rmtree(root / "var" / "cache" / "apt")
    for path in (root / "usr" / "lib").rglob("*.pyc"):
        path.unlink()  # the image of Python has none either
    # pip trusts whom this machine trusts.
    if ("/" / CERTIFICATES).exists():
        shutil.copy("/" / CERTIFICATES, root / CERTIFICATES)
    version = _run("chroot", str(root), "python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    container = _buildah(folder, "from", "scratch")
    _buildah(folder, "add", "--quiet", container, str(root), "/")
    shutil.rmtree(root)
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    _buildah(folder, "config", "--env", f"PATH={path}", container)
    name = f"docker.io/library/python:{version}-slim-{release}"
    _buildah(folder, "commit", "--quiet", "--rm", container, name)
    return version


@contextmanager
def container(image: Image, data: Path, log: Path) -> Generator[LiveServer, None, None]:
    """Start the image on a free port, its root read-only, with `data` in place of its volume."""
    port = free_port()
    user, _, group = image.config["User"].partition(":")
    unshare = shutil.which("unshare")
    assert unshare is not None
    start = f"start {image.root} {data} {user} {group} --port {port}"
    command = [unshare, "--mount", "sh", "-c", START, *start.split()]
    with running(command, f"http://127.0.0.1:{port}", log, image.environment) as server:
        yield server


def _buildah(folder: Path, *arguments: str) -> str:
    storage = ("--storage-driver", "vfs", "--root", str(folder / "store"), "--runroot", str(folder / "run"))
    return _run("buildah", *storage, *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()
