"""The machine of a run in words, for checkpoint and model card."""

import platform
from pathlib import Path

import torch

from comln_serve.machine import usable_cpus
from training.runs.distributed import Group


def describe_hardware(group: Group) -> str:
    """Such as "2 cores of Intel(R) Xeon(R) Processor", with the GPU and the number of processes if any."""
    words = f"{usable_cpus()} cores of {processor()}"
    if torch.cuda.is_available():
        words = f"{torch.cuda.get_device_name()} and {words}"
    if group.size > 1:
        words = f"{group.size} processes, each on {words}"
    return words


def processor() -> str:
    """Name of the processor, such as "AMD EPYC"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
