"""Speed and memory of the server over real HTTP, next to the same work in a bare loop.

The load comes from a second process on the same machine, so what it costs is part of the figures.
Server and bare loop take turns, so that a noisy machine disturbs both alike.

    python -m benchmarks.serving [models/omniglot-conv4] [--clients 64] [--seconds 5] [--rounds 5] [--provider openvino]

Prints Markdown and writes it with the raw figures to benchmarks/results/serving-BUNDLE.*, of another provider than cpu
to serving-BUNDLE-PROVIDER.*.
"""

import argparse
import contextlib
import http.client
import io
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice, takewhile
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image
from threadpoolctl import threadpool_limits

from benchmarks import processes
from benchmarks.load import Outcome, from_another_process, moments
from benchmarks.publishing import RESULTS, ROOT, machine, publish
from comln_serve.bundle import Bundle, load_bundle
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.onnx_session import exact_products
from comln_serve.imaging import prepare_views
from comln_serve.machine import Provider, usable_cpus

BATCH = Settings.model_fields["max_batch_size"].default
BOUNDARY = "benchmark-of-the-server"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
WAYS, SHOTS = 5, 5
START_SECONDS = 120


@dataclass
class Figures:
    """What is reported; rates in images a second, times in ms, memory in MB. Lists have a figure of each round."""

    server: list[float] = field(default_factory=list[float])
    bare_slices: list[float] = field(default_factory=list[float])
    bare_batch: list[float] = field(default_factory=list[float])
    server_cpu_ms: float = 0.0  # of one request, in the server's process alone
    bare_cpu_ms: float = 0.0
    load_at_70: list[float] = field(default_factory=list[float])
    at_random_ms: list[list[float]] = field(default_factory=list[list[float]])  # p50 and p99, at random moments
    at_steady_ms: list[list[float]] = field(default_factory=list[list[float]])  # of clients that send at a steady pace
    bare_queue: list[float] = field(default_factory=list[float])
    # Of the bare queue, at 70 % of its own rate.
    bare_at_random_ms: list[list[float]] = field(default_factory=list[list[float]])
    alone_p50: float = 0.0
    adapt_ms: list[float] = field(default_factory=list[float])
    bare_adapt_ms: list[float] = field(default_factory=list[float])
    memory_start: float = 0.0
    memory_after_predictions: float = 0.0
    memory_after_cycles: float = 0.0
    predictions: int = 0
    cycles: int = 0


def photo(rng: np.random.Generator, width: int, height: int) -> bytes:
    """A JPEG with the detail of a photograph: noise in octaves, each finer one weaker."""
    pixels = np.zeros((height, width, 3))
    for octave in range(8):
        side = 2 ** (octave + 1)
        noise = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        layer = noise.resize((width, height), Image.Resampling.BICUBIC)
        pixels += np.asarray(layer, dtype=np.float64) * 0.6**octave
    pixels *= 255.0 / pixels.max()
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def form(files: Sequence[bytes], fields: Sequence[tuple[str, str]], name: str = "images") -> bytes:
    """A multipart body of files under one name, and text fields."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode()
        for field, value in fields
    ]
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="image.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    ).encode()
    parts += [head + data + b"\r\n" for data in files]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def adapt_form(files: Sequence[bytes], *fields: tuple[str, str]) -> bytes:
    """The body of a POST /adapt: files class by class, SHOTS of each, and text fields."""
    return form(files, [*fields, *(("labels", f"class {i // SHOTS}") for i in range(len(files)))])


class Server:
    """A running `comln-serve` with one model."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, folder: Path) -> None:
        self.process, self.url, self.folder = process, url, folder
        self._last_call = 0.0
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def call(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The JSON of an answer; one connection, one call at a time."""
        headers = {} if body is None else {"Content-Type": CONTENT_TYPE}
        # The server closes connections that are idle for some seconds.
        if time.monotonic() - self._last_call > 2:
            self._connection.close()
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        self._last_call = time.monotonic()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return json.loads(content) if content else None

    def load(self, bodies: Sequence[bytes], **job: Any) -> Outcome:
        """Have a second process send `bodies` to /predict in turns; see `benchmarks.load.Job`."""
        return from_another_process(self.url, "/predict", CONTENT_TYPE, bodies, self.folder, **job)

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, user's and system's."""
        return processes.cpu_seconds(self.process.pid)

    def memory(self, field: str = "VmRSS") -> float:
        """Resident memory, MB; or another field of Linux's status of the process."""
        return processes.memory(field, self.process.pid)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_server(bundle: Path, *flags: str, provider: Provider = "cpu") -> Generator[Server, None, None]:
    """A server of that bundle alone, on a free port, ready."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "models").mkdir()
        (folder / "models" / bundle.name).symlink_to(bundle.resolve(), target_is_directory=True)
        with (folder / "log").open("wb") as log:
            where = ["--models-dir", str(folder / "models"), "--database-url", f"sqlite:///{folder}/classifiers.db"]
            own = ["--port", str(port), "--provider", provider, *where]
            command = [sys.executable, "-m", "comln_serve.cli", *own, *flags]
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            server = Server(process, f"http://127.0.0.1:{port}", folder)
            _wait_until_ready(server)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while server.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, RuntimeError, http.client.HTTPException):
            server.call("GET", "/health/ready")
            return
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{(server.folder / 'log').read_text()}")


class Bare:
    """The same work without a server: files to embeddings, a batch at a time, on every core."""

    def __init__(self, bundle: Bundle, provider: Provider) -> None:
        self.bundle = bundle
        self._policy = bundle.manifest.preprocessing
        self._decoders = ThreadPoolExecutor(usable_cpus())
        self._inference = ThreadPoolExecutor(usable_cpus())
        self._backbone = OnnxBackbone(bundle, provider)
        options = ort.SessionOptions()
        options.intra_op_num_threads = usable_cpus()
        exact_products(options)
        self._session = ort.InferenceSession(bundle.backbone, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def decode(self, files: Sequence[bytes]) -> NDArray[np.uint8]:
        return np.stack(list(self._decoders.map(lambda f: prepare_views(f, self._policy.of_predictions)[0], files)))

    def slices(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """As the server does it: batches of a few images, smaller towards the end, each on a core of its own."""
        batches: list[NDArray[np.uint8]] = []
        while len(images):
            size = min(self._backbone.max_batch_size, ceil(len(images) / self._backbone.threads))
            batches.append(images[:size])
            images = images[size:]
        return np.concatenate(list(self._inference.map(self._embed_on_one_core, batches)))

    def batch(self, images: NDArray[np.uint8]) -> Any:
        """One call of ONNX Runtime, as its defaults have it."""
        return self._session.run(None, {self._input: images})[0]

    def rate(self, embed: Callable[[NDArray[np.uint8]], Any], files: Sequence[bytes], seconds: float) -> float:
        """Images a second from files to embeddings."""
        source, done = cycle(files), 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            embed(self.decode(list(islice(source, BATCH))))
            done += BATCH
        return done / (time.perf_counter() - began)

    def one(self, file: bytes) -> None:
        """A file to its embedding, on the thread that calls."""
        image = prepare_views(file, self._policy.of_predictions)[0]
        self._embed_on_one_core(image[np.newaxis])

    def _embed_on_one_core(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._backbone.embed(images, alone=False)

    def queue_rate(self, files: Sequence[bytes], seconds: float) -> float:
        """Images a second where a thread for each core takes one after another."""
        end, done = time.perf_counter() + seconds, 0
        began = time.perf_counter()
        while time.perf_counter() < end:
            done += len(list(self._decoders.map(self.one, islice(cycle(files), BATCH))))
        return done / (time.perf_counter() - began)

    def queue(self, files: Sequence[bytes], rate: float, seconds: float, seed: int) -> list[float]:
        """Milliseconds from each file's arrival, at random moments, to its embedding by these
        threads: what any server that takes turns has to expect.
        """
        milliseconds: list[float] = []

        def serve(file: bytes, due: float) -> None:
            self.one(file)
            milliseconds.append(1e3 * (time.perf_counter() - due))

        began = time.perf_counter()
        arrivals = takewhile(lambda moment: moment < seconds, moments(rate, seed))
        waiting: list[Future[None]] = []
        for file, moment in zip(cycle(files), arrivals, strict=False):
            time.sleep(max(0.0, began + moment - time.perf_counter()))
            waiting.append(self._decoders.submit(serve, file, began + moment))
        for future in waiting:
            future.result()
        return milliseconds

    def adapt(self, files: Sequence[bytes]) -> float:
        """Milliseconds of decode, embed and solve, with all views of each file."""
        began = time.perf_counter()
        views = np.stack(list(self._decoders.map(lambda f: prepare_views(f, self._policy), files)))
        phi = self.slices(views.reshape(-1, *views.shape[2:])).reshape(*views.shape[:2], -1)
        self.bundle.head.adapt(phi, np.repeat(np.arange(WAYS), SHOTS), WAYS)
        return 1e3 * (time.perf_counter() - began)


def _percentiles(ms: Sequence[float]) -> list[float]:
    return np.percentile(ms, [50, 99]).tolist()


def measure(arguments: argparse.Namespace) -> Figures:
    """Everything, in one run."""
    # As in the server. Else BLAS keeps a core busy for a while after the loop's solve, and the adaptation of the server
    # that follows takes a tenth longer.
    threadpool_limits(1, "blas")
    rng = np.random.default_rng(0)
    files = [photo(rng, arguments.width, arguments.height) for _ in range(WAYS * SHOTS)]
    bare = Bare(load_bundle(arguments.bundle), arguments.provider)
    figures = Figures(predictions=arguments.predictions, cycles=arguments.cycles)
    with running_server(arguments.bundle, provider=arguments.provider) as server:
        made = server.call("POST", "/adapt", adapt_form(files))
        bodies = [form([data], [("classifier", made["id"])]) for data in files]
        server.load(bodies, clients=arguments.clients, seconds=2.0)  # warms up
        _measure_rounds(figures, arguments, server, bodies, bare, files)
        alone = server.load(bodies, clients=1, seconds=arguments.seconds)
        figures.alone_p50 = float(np.median(alone.ms))
        _measure_adapting(figures, arguments.repeats, server, bare, files)
        _measure_memory(figures, arguments.clients, server, bodies, files)
    return figures


def _measure_rounds(
    figures: Figures,
    arguments: argparse.Namespace,
    server: Server,
    bodies: Sequence[bytes],
    bare: Bare,
    files: Sequence[bytes],
) -> None:
    """Rates, CPU times and latencies of predictions; server and bare loop take turns."""
    clients, seconds = arguments.clients, arguments.seconds
    server_cpu_ms: list[float] = []
    bare_cpu_ms: list[float] = []
    for number in range(1, arguments.rounds + 1):
        before = time.process_time()
        figures.bare_slices.append(bare.rate(bare.slices, files, seconds))
        done = figures.bare_slices[-1] * seconds
        bare_cpu_ms.append(1e3 * (time.process_time() - before) / done)
        figures.bare_batch.append(bare.rate(bare.batch, files, seconds))
        before = server.cpu_seconds()
        outcome = server.load(bodies, clients=clients, seconds=seconds)
        figures.server.append(outcome.answered / outcome.seconds)
        server_cpu_ms.append(1e3 * (server.cpu_seconds() - before) / outcome.answered)
        figures.bare_queue.append(bare.queue_rate(files, seconds))
        load = 0.7 * float(np.median(figures.server))
        figures.load_at_70.append(load)
        for latencies, steady in ((figures.at_random_ms, False), (figures.at_steady_ms, True)):
            at_70 = server.load(bodies, clients=clients, seconds=2 * seconds, rate=load, steady=steady, seed=number)
            latencies.append(_percentiles(at_70.ms))
        bare_load = 0.7 * float(np.median(figures.bare_queue))
        figures.bare_at_random_ms.append(_percentiles(bare.queue(files, bare_load, 2 * seconds, number)))
    figures.server_cpu_ms = float(np.median(server_cpu_ms))
    figures.bare_cpu_ms = float(np.median(bare_cpu_ms))


def _measure_adapting(figures: Figures, repeats: int, server: Server, bare: Bare, files: Sequence[bytes]) -> None:
    """Times of adaptations, in turns; the first of each warms up."""
    body = adapt_form(files)
    for number in range(repeats + 1):
        bare_ms = bare.adapt(files)
        began = time.perf_counter()
        made = server.call("POST", "/adapt", body)
        server_ms = 1e3 * (time.perf_counter() - began)
        server.call("DELETE", f"/classifiers/{made['id']}")
        if number:
            figures.bare_adapt_ms.append(bare_ms)
            figures.adapt_ms.append(server_ms)


def _measure_memory(
    figures: Figures, clients: int, server: Server, bodies: Sequence[bytes], files: Sequence[bytes]
) -> None:
    """Memory of the server before and after many predictions, and after many adaptations."""
    body = adapt_form(files)
    figures.memory_start = server.memory()
    server.load(bodies, clients=clients, seconds=1e9, requests=figures.predictions)
    figures.memory_after_predictions = server.memory()
    for _ in range(figures.cycles):
        made = server.call("POST", "/adapt", body)
        server.call("DELETE", f"/classifiers/{made['id']}")
    figures.memory_after_cycles = server.memory()


def _tail(rounds: list[list[float]]) -> str:
    """Cells of p50, p99 and their ratio, medians of rounds."""
    p50, p99 = np.median(rounds, axis=0)
    ratios = [high / low for low, high in rounds]
    spread = f"({min(ratios):.1f} to {max(ratios):.1f})"
    return f"| {p50:.1f} | {p99:.1f} | {np.median(ratios):.1f} {spread} |"


def report(figures: Figures, arguments: argparse.Namespace) -> str:
    """The figures as Markdown."""
    server, slices, batch = (
        float(np.median(values)) for values in (figures.server, figures.bare_slices, figures.bare_batch)
    )
    adapt, bare_adapt = (float(np.median(values)) for values in (figures.adapt_ms, figures.bare_adapt_ms))
    load, bare_load = (float(np.median(rates)) for rates in (figures.load_at_70, figures.bare_queue))
    bare_load *= 0.7
    after, end = figures.memory_after_predictions, figures.memory_after_cycles
    text = f"""
{arguments.bundle.name} on {machine()}, provider {arguments.provider}, ONNX Runtime {ort.__version__}; JPEGs of \
{arguments.width}x{arguments.height}; {arguments.clients} clients with one image a request in a \
second process on the same cores; the bare loop in batches of {BATCH}. Medians of \
{arguments.rounds} interleaved rounds of {arguments.seconds:g} s.

| | images/s | server / it | CPU time of an image, ms |
|---|---|---|---|
| server, POST /predict | {server:.0f} | 1 | {figures.server_cpu_ms:.2f}, without the clients |
| bare loop: decode + embed as the server does | {slices:.0f} | {server / slices:.2f} \
| {figures.bare_cpu_ms:.2f} |
| bare loop: decode + one ONNX Runtime call a batch | {batch:.0f} | {server / batch:.2f} | |

| | p50, ms | p99, ms | p99 / p50 |
|---|---|---|---|
| /predict at 70 % of that load, {load:.0f}/s at random moments {_tail(figures.at_random_ms)}
| the same, {arguments.clients} clients that each send at a steady pace \
{_tail(figures.at_steady_ms)}
| bare queue: decode + embed on a thread a core, 70 % of its own load, {bare_load:.0f}/s at \
random moments \
{_tail(figures.bare_at_random_ms)}
| /predict, one client | {figures.alone_p50:.1f} | | |
| /adapt, {WAYS * SHOTS} images, one client | {adapt:.1f} | | |
| bare decode + embed + solve of the same | {bare_adapt:.1f} | | |

/adapt takes {adapt / bare_adapt:.2f} x the bare loop. Memory of the server: \
{figures.memory_start:.0f} MB, {after - figures.memory_start:+.1f} MB after {figures.predictions} \
more predictions, {end - after:+.1f} MB after {figures.cycles} cycles of adapting and deleting."""
    return text.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, nargs="?", default=ROOT / "models/omniglot-conv4")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--provider", choices=("cpu", "openvino"), default="cpu")
    parser.add_argument("--repeats", type=int, default=30, help="adaptations")
    parser.add_argument("--predictions", type=int, default=20_000, help="for the memory")
    parser.add_argument("--cycles", type=int, default=500, help="adapt and delete, for the memory")
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    arguments = parser.parse_args()
    figures = measure(arguments)
    suffix = "" if arguments.provider == "cpu" else f"-{arguments.provider}"
    name = f"serving-{arguments.bundle.name}{suffix}"
    publish(name, report(figures, arguments))
    (RESULTS / f"{name}.json").write_text(json.dumps(asdict(figures), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
