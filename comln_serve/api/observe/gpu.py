"""Reads the memory use of NVIDIA GPUs from their driver."""

from collections.abc import Iterator
from contextlib import suppress

from prometheus_client.core import GaugeMetricFamily


def gpu_memory() -> Iterator[GaugeMetricFamily]:
    """Bytes used and in total of every GPU that reports them, by its number in `nvidia-smi` and the driver's id of it.

    Empty without a driver or NVML's bindings (the extra `cuda`).
    """
    try:
        import pynvml  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return
    labels = ["gpu", "uuid"]
    used = GaugeMetricFamily("comln_gpu_memory_used_bytes", "Memory of a GPU in use, by all processes.", labels=labels)
    total = GaugeMetricFamily("comln_gpu_memory_total_bytes", "Memory of a GPU.", labels=labels)
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError):  # GPUs that share the machine's memory report none
                    device = pynvml.nvmlDeviceGetHandleByIndex(index)
                    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
                    gpu = [str(index), str(pynvml.nvmlDeviceGetUUID(device))]
                    used.add_metric(gpu, int(memory.used))
                    total.add_metric(gpu, int(memory.total))
        finally:
            pynvml.nvmlShutdown()
    yield used
    yield total
