"""The files in which the processes of one server share their metrics (prometheus_client's multiprocess mode).

They belong to the places of the processes, not to their ids: a process that takes another's place goes on with its
counts, and none leaves a file behind. They get their full size at the start: a process that first met a full disk as
it wrote to one of them, which it has mapped into its memory, would be killed by SIGBUS, and so would its successors.
"""

import os
from pathlib import Path

from prometheus_client import values

from comln_serve.counts import SharedCounts
from comln_serve.errors import StartupError

_GAUGES = ("gauge_livesum", "gauge_livemin")
# Bytes by prometheus_client's prefix. Histograms of every route and method took 0.9 MB.
_SIZES = {"counter": 2**18, "histogram": 2**21, **dict.fromkeys(_GAUGES, 2**16)}
_LENGTH = 8  # bytes at the start of a file, which tell how much of it is used


def share_metrics(folder: Path, shared: SharedCounts) -> None:
    """Write the files, empty. Metrics that are created from now on are those of their process's place.

    Raises:
        StartupError: there is no room for them.
    """
    try:
        for place in range(shared.processes):
            for prefix, size in _SIZES.items():
                _file(folder, prefix, place).write_bytes(bytes(size))
    except OSError as error:
        raise StartupError(
            f"{folder}: cannot be written: {error.strerror}. Each worker keeps its metrics there, "
            f"{sum(_SIZES.values()) / 1e6:.1f} MB; make room, or set TMPDIR to another folder"
        ) from error
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: shared.process)


def forget_gauges(folder: Path, place: int) -> None:
    """Empty the gauges of a process that has ended. Its counters stay."""
    for prefix in _GAUGES:
        with _file(folder, prefix, place).open("r+b") as file:
            file.write(bytes(_LENGTH))


def _file(folder: Path, prefix: str, place: int) -> Path:
    return folder / f"{prefix}_{place}.db"
