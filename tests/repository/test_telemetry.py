"""ONNX Runtime sends nothing about its use: neither from the server nor from the trainer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SILENCED_BY = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "XDG_CACHE_HOME")
DEVICE_IDS = "from pathlib import Path; print(*Path.home().rglob('deviceid'))"


@pytest.mark.parametrize(
    "module", ["comln_serve.cli", "comln_serve.engine.embedding.backbone", "training.bundles.quantise"]
)
def test_no_device_id_is_kept(module: str, tmp_path: Path) -> None:
    """With telemetry ONNX Runtime writes a device id when it is imported."""
    environment = {name: text for name, text in os.environ.items() if name not in SILENCED_BY}
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}, onnxruntime; {DEVICE_IDS}"],
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
