"""The memory of GPUs: through NVML's real bindings, of a driver that is compiled here."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from comln_serve.api.observe import metrics
from comln_serve.api.observe.gpu import gpu_memory
from tests.support.messages import engine_of
from tests.support.programs import python

COMPILER = shutil.which("cc")
# Three GPUs, of which the second does not tell its memory (3: not supported).
DRIVER = """
#include <stdio.h>
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInitWithFlags(unsigned int flags) { return FAILS; }
int nvmlInit_v2(void) { return FAILS; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int size) {
    snprintf(uuid, size, "GPU-%zu", (size_t)device - 1);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    size_t index = (size_t)device - 1;
    if (index == 1) return 3;
    memory->total = 80ULL << 30;
    memory->used = (index + 1) << 30;
    memory->free = memory->total - memory->used;
    return 0;
}
"""
READ = (
    "import json; from comln_serve.api.observe.gpu import gpu_memory;"
    "print(json.dumps([[*one.labels.values(), one.value] for metric in gpu_memory() for one in metric.samples]))"
)


def told_by_a_driver(folder: Path, *, fails: int = 0) -> list[list[object]]:
    """What is read, in another process, where that driver is installed."""
    (folder / "driver.c").write_text(DRIVER)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [str(COMPILER), "-shared", "-fPIC", f"-DFAILS={fails}", "-o", library, folder / "driver.c"], check=True
    )
    return json.loads(python("-c", READ, LD_LIBRARY_PATH=str(folder)).stdout)


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C compiler for Linux")
@pytest.mark.process
def test_every_gpu_that_reports_its_memory_is_listed(tmp_path: Path) -> None:
    gib = 2**30
    used = [["0", "GPU-0", gib], ["2", "GPU-2", 3 * gib]]
    total = [["0", "GPU-0", 80 * gib], ["2", "GPU-2", 80 * gib]]
    assert told_by_a_driver(tmp_path) == [*used, *total]


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C compiler for Linux")
@pytest.mark.process
def test_a_driver_that_fails_to_load_reports_no_gpu(tmp_path: Path) -> None:
    assert told_by_a_driver(tmp_path, fails=9) == []


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_without_a_driver_no_gpu_is_reported() -> None:
    assert [sample for metric in gpu_memory() for sample in metric.samples] == []


@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no GPU")
def test_the_gpu_of_this_machine() -> None:
    used, total = (metric.samples for metric in gpu_memory())
    assert all(0 <= some.value <= everything.value for some, everything in zip(used, total, strict=True))
    assert all(sample.labels["uuid"].startswith("GPU-") for sample in used)


def test_metrics_have_it_where_a_model_runs_on_a_gpu(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def memory() -> list[Metric]:
        used = GaugeMetricFamily("comln_gpu_memory_used_bytes", "", labels=["gpu", "uuid"])
        used.add_metric(["0", "GPU-a"], 5)
        return [used]

    def read() -> dict[tuple[str, str, str], float]:
        return {
            (sample.name, sample.labels["gpu"], sample.labels["uuid"]): sample.value
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
            if sample.name.startswith("comln_gpu")
        }

    monkeypatch.setattr(metrics, "gpu_memory", memory)
    assert read() == {}, "no model of this server does"
    for model in engine_of(client).models.values():
        monkeypatch.setattr(model, "provider", "cuda")
    assert read() == {("comln_gpu_memory_used_bytes", "0", "GPU-a"): 5}
