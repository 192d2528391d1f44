"""The memory of NVIDIA GPUs, as their driver tells it."""

from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU.

    Attributes:
        index: as `nvidia-smi` counts. uuid: the driver's name for it.
        used: by all processes. total: used and free.
    """

    index: int
    uuid: str
    used: int
    total: int


def gpu_memory() -> list[GpuMemory]:
    """Of every GPU whose memory the driver tells; none without a driver, or without NVML's bindings
    (the extra `cuda`).
    """
    try:
        import pynvml  # noqa: PLC0415 - of an extra
    except ImportError:
        return []
    found: list[GpuMemory] = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError):  # one that shares the machine's memory tells none
                    device = pynvml.nvmlDeviceGetHandleByIndex(index)
                    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
                    uuid = str(pynvml.nvmlDeviceGetUUID(device))
                    found.append(GpuMemory(index, uuid, int(memory.used), int(memory.total)))
        finally:
            pynvml.nvmlShutdown()
    return found
