"""Settings are searched, then all servers take turns under the same load."""

import contextlib
import datetime
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.peers.peer import Peer, Setting, own
from benchmarks.peers.running import Running, running
from benchmarks.publishing import machine, spread
from benchmarks.serving import SHOTS, WAYS, adapt_form, free_port, photo, running_server
from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.imaging import prepare_views
from comln_serve.machine import Provider, has_vnni
from training.results.tables import markdown

_LABELS = [f"class {number}" for number in range(WAYS)]


# This server, by what its network runs on. The others run it in ONNX Runtime, as their documentation shows.
_OURS: dict[str, Provider] = {"comln-serve": "cpu", "comln-serve, OpenVINO": "openvino"}


@dataclass
class Figures:
    """One server's, of every turn: images a second, p50 and p99 in ms, CPU ms of an image; memory in MB at the end."""

    setting: Setting
    rates: list[float] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    memory: float = 0.0


def measure(bundle: Path, peers: Sequence[Peer], folder: Path, clients: int, rounds: int, seconds: float) -> str:
    """Everything, in one run, as Markdown.

    Raises:
        RuntimeError: a server did not start, did not answer 200, or gave another label than the rest.
    """
    rng = np.random.default_rng(0)
    files = [photo(rng, 500, 375) for _ in range(WAYS * SHOTS)]
    work = folder / "work"
    expected = _prepare(bundle, files, work)
    ports = _ports()
    everyone = [own(name, how, _adapted(bundle, files, folder / name)) for name, how in _OURS.items()]
    everyone += peers
    figures: dict[str, Figures] = {}
    for peer in everyone:
        rates: dict[Setting, float] = {}
        for setting in peer.settings:
            with running(peer, setting, work, folder / peer.name, next(ports)) as server:
                _check(server, files, expected)
                _load(server, files, clients, seconds)  # warms up
                rates[setting] = _load(server, files, clients, seconds)
        figures[peer.name] = Figures(_choice(rates))
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(running(peer, figures[peer.name].setting, work, folder / peer.name, next(ports)))
            for peer in everyone
        ]
        for server in servers:
            _load(server, files, clients, 2.0)
        for _ in range(rounds):
            for server in _in_turns(servers):
                before = server.cpu_seconds()
                outcome = server.load([server.peer.request(file) for file in files], clients=clients, seconds=seconds)
                own_figures = figures[server.peer.name]
                own_figures.rates.append(outcome.answered / outcome.seconds)
                own_figures.cpu_ms.append(1e3 * (server.cpu_seconds() - before) / outcome.answered)
        pace = 0.7 * min(statistics.median(one.rates) for one in figures.values())
        for number in range(rounds):
            for server in _in_turns(servers):
                requests = [server.peer.request(file) for file in files]
                outcome = server.load(requests, clients=clients, seconds=2 * seconds, rate=pace, seed=number)
                p50, p99 = np.percentile(outcome.ms, [50, 99])
                figures[server.peer.name].latencies.append((float(p50), float(p99)))
        for server in servers:
            figures[server.peer.name].memory = server.memory()
    return _report(bundle, everyone, figures, pace, clients, rounds, seconds)


def _prepare(bundle: Path, files: Sequence[bytes], work: Path) -> list[str]:
    """Write what the services read; returns the label of each file by that classifier."""
    loaded = load_bundle(bundle)
    policy = loaded.manifest.preprocessing
    backbone = OnnxBackbone(loaded, "cpu")
    phi = np.stack([backbone.embed(prepare_views(file, policy)) for file in files])  # (M, V, d)
    W = loaded.head.adapt(phi, np.repeat(np.arange(WAYS), SHOTS), WAYS).W
    work.mkdir()
    (work / "backbone.onnx").write_bytes(loaded.backbone)
    np.savez(
        work / "head.npz",
        W=W.astype(np.float32),
        labels=_LABELS,
        size=policy.image_size,
        crop=policy.crop_fraction,
        exact=not has_vnni(),
    )
    return [_LABELS[index] for index in (phi[:, 0] @ W.T).argmax(axis=1)]


def _adapted(bundle: Path, files: Sequence[bytes], folder: Path) -> str:
    """Make the classifier of this server, in the database of its folder; returns its id."""
    folder.mkdir()
    (folder / "models").mkdir()
    (folder / "models" / bundle.name).symlink_to(bundle.resolve(), target_is_directory=True)
    with running_server(bundle, "--database-url", f"sqlite:///{folder}/classifiers.db") as server:
        identifier: str = server.call("POST", "/adapt", adapt_form(files))["id"]
    return identifier


def _choice(rates: dict[Setting, float]) -> Setting:
    """The fastest setting, or an earlier one, of fewer processes and smaller batches, that is hardly slower."""
    return next(setting for setting, rate in rates.items() if rate >= 0.97 * max(rates.values()))


def _in_turns(servers: Sequence[Running]) -> Iterator[Running]:
    """Each server, while all others are paused."""
    for server in servers:
        with contextlib.ExitStack() as stack:
            for other in servers:
                if other is not server:
                    stack.enter_context(other.paused())
            yield server


def _check(server: Running, files: Sequence[bytes], expected: Sequence[str]) -> None:
    found = [server.peer.label(server.ask(server.peer.request(file))) for file in files]
    if found != list(expected):
        raise RuntimeError(f"{server.peer.name} predicts {found}, expected {expected}")


def _load(server: Running, files: Sequence[bytes], clients: int, seconds: float) -> float:
    """Images a second."""
    outcome = server.load([server.peer.request(file) for file in files], clients=clients, seconds=seconds)
    return outcome.answered / outcome.seconds


def _ports() -> Iterator[int]:
    """Ports with two free ones behind each, for servers that listen on three."""
    first = free_port()
    return (20000 + (first + 10 * number) % 12000 for number in count())


def _report(
    bundle: Path,
    peers: Sequence[Peer],
    figures: dict[str, Figures],
    pace: float,
    clients: int,
    rounds: int,
    seconds: float,
) -> str:
    best = max(statistics.median(figures[peer.name].rates) for peer in peers if peer.packages)
    ours = {name: statistics.median(figures[name].rates) / best for name in _OURS}
    what = (
        f"{bundle.name} on {machine()}, "
        f"{datetime.datetime.now(tz=datetime.UTC).date()}; {clients} clients with one JPEG of 500x375 a request on the "
        f"same cores; medians (ranges) of {rounds} rounds of {seconds:g} s in turns. Latency at {pace:.0f} images/s, "
        f"70 % of the slowest server's throughput, at random moments."
    )
    columns = ["server", "version", "processes x threads", "images/s", "CPU ms an image", "p50, ms", "p99, ms"]
    columns += ["memory, MB", "lines of code"]
    rows: list[list[str]] = []
    for peer in sorted(peers, key=lambda peer: -statistics.median(figures[peer.name].rates)):
        own_figures = figures[peer.name]
        p50, p99 = (statistics.median(values) for values in zip(*own_figures.latencies, strict=True))
        rows.append(
            [
                peer.name,
                _version(peer),
                str(own_figures.setting),
                spread(own_figures.rates),
                f"{statistics.median(own_figures.cpu_ms):.1f}",
                f"{p50:.1f}",
                f"{p99:.1f}",
                f"{own_figures.memory:.0f}",
                str(peer.lines or ""),
            ]
        )
    ratios = [f"{name}: {ratio:.2f} x the throughput of the best other server." for name, ratio in ours.items()]
    return "\n".join([what, "", markdown(columns, rows), "", *ratios])


def _version(peer: Peer) -> str:
    if not peer.packages:
        return "this"
    name = peer.packages[0].partition(">")[0]
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([str(peer.python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
