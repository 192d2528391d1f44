"""Throughput and memory of several processes behind one socket, each embedding or one for all, next to one process.

All servers run at once, and are loaded in turns, so that a noisy machine disturbs them alike. The load comes from a
process on the same machine, so what it costs is part of the figures.

    python -m benchmarks.workers [models/photos-efficientnet-lite0] [--workers 1 2] [--rounds 5] [--seconds 5]

Prints Markdown and writes it to benchmarks/results/workers-BUNDLE.md.
"""

import argparse
import contextlib
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import processes
from benchmarks.publishing import ROOT, publish, spread
from benchmarks.serving import SHOTS, WAYS, Server, adapt_form, form, photo, running_server
from comln_serve.machine import usable_cpus
from training.results.tables import markdown

START_SECONDS = 60


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, nargs="?", default=ROOT / "models/photos-efficientnet-lite0")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    arguments = parser.parse_args()
    publish(f"workers-{arguments.bundle.name}", measure(arguments))


def measure(arguments: argparse.Namespace) -> str:
    """The figures of every number of workers, in one run, as Markdown."""
    rng = np.random.default_rng(0)
    files = [photo(rng, 500, 375) for _ in range(WAYS * SHOTS)]
    numbers: list[int] = arguments.workers
    kinds = [(number, "off") for number in numbers] + [(number, "on") for number in numbers if number > 1]
    flags = [("--workers", str(number), "--embedding-process", mode) for number, mode in kinds]
    used: list[float] = []
    # Each alone: what it shared with another server would be counted as less.
    for (number, _), flag in zip(kinds, flags, strict=True):
        with running_server(arguments.bundle, *flag) as server:
            _warmed_up(server, number, files, arguments.clients)
            used.append(sum(map(processes.proportional_memory, processes.family(server.process.pid))))
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running_server(arguments.bundle, *flag)) for flag in flags]
        bodies = [
            _warmed_up(server, number, files, arguments.clients)
            for server, (number, _) in zip(servers, kinds, strict=True)
        ]
        rates: list[list[float]] = [[] for _ in servers]
        for _ in range(arguments.rounds):
            for server, sent, rate in zip(servers, bodies, rates, strict=True):
                outcome = server.load(sent, clients=arguments.clients, seconds=arguments.seconds)
                rate.append(outcome.answered / outcome.seconds)
    machine = f"{usable_cpus()} CPU cores ({platform.machine()})"
    what = (
        f"{arguments.bundle.name} on {machine}; {arguments.clients} clients with one JPEG of 500x375 a request on the "
        f"same cores; {arguments.rounds} rounds of {arguments.seconds:g} s in turns."
    )
    head = [
        "workers",
        "embed",
        "images/s, median (range)",
        f"over {numbers[0]}, median of rounds (range)",
        "memory, MB",
    ]
    rows: list[list[str]] = []
    for (number, mode), rate, megabytes in zip(kinds, rates, used, strict=True):
        ratios = [own / first for own, first in zip(rate, rates[0], strict=True)]
        where = "one additional process" if mode == "on" else "each"
        rows.append([f"{number}", where, spread(rate), spread(ratios, ".2f"), f"{megabytes:.0f}"])
    shared = "Memory: of all processes, after some load; what they share is counted once."
    return "\n\n".join([what, markdown(head, rows), shared])


def _warmed_up(server: Server, workers: int, files: Sequence[bytes], clients: int) -> list[bytes]:
    """Wait for all workers, make a classifier, and load them for a moment. Returns requests that use the classifier."""
    _wait_for(server, workers)
    made = server.call("POST", "/adapt", adapt_form(files))
    bodies = [form([data], [("classifier", made["id"])]) for data in files]
    server.load(bodies, clients=clients, seconds=3.0)
    return bodies


def _wait_for(server: Server, workers: int) -> None:
    """Wait until all of them serve."""
    log, end = server.folder / "log", time.monotonic() + START_SECONDS
    while log.read_text("utf-8").count("Application startup complete") < workers:
        if time.monotonic() > end:
            raise RuntimeError(f"{workers} workers did not start:\n{log.read_text('utf-8')}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
