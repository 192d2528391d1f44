"""Reads the memory use of NVIDIA GPUs from their driver."""

from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one GPU.

    Attributes:
        index: number of the GPU in `nvidia-smi`.
        uuid: the driver's id of the GPU.
        used: bytes in use, by all processes.
        total: bytes, used and free.
    """

    index: int
    uuid: str
    used: int
    total: int


def gpu_memory() -> list[GpuMemory]:
    """Memory of every GPU that reports it. Empty without a driver or NVML's bindings (the extra
    `cuda`).
    """
    try:
        import pynvml  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return []
    found: list[GpuMemory] = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError):  # GPUs that share the machine's memory report none
                    device = pynvml.nvmlDeviceGetHandleByIndex(index)
                    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
                    uuid = str(pynvml.nvmlDeviceGetUUID(device))
                    found.append(GpuMemory(index, uuid, int(memory.used), int(memory.total)))
        finally:
            pynvml.nvmlShutdown()
    return found
