"""What hostile clients do to a server: the answers of another client, memory and health during attacks, and afterwards.

    python -m benchmarks.hostile [models/photos-efficientnet-lite0] [--seconds 15] [--only WORDS ...]

Starts a server with API keys, and attacks it with the key of one tenant while a client of another tenant sends a photo
to /predict every quarter of a second; then one without keys, for the attacks where tenants make a difference. The
attacks are in `benchmarks.attacks`. Prints Markdown and writes it to benchmarks/results/hostile-BUNDLE.md.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks import processes
from benchmarks.attacks import AT_ONCE, ATTACKS, KNOWN, LARGE, LARGE_EXAMPLES, MOST, WIDE, Target
from benchmarks.publishing import ROOT, machine, publish
from benchmarks.serving import CONTENT_TYPE, SHOTS, WAYS, Server, adapt_form, form, photo, running_server
from comln_serve.domain.reference import new_id
from comln_serve.domain.sixteen_bits import rounded
from comln_serve.domain.support import SupportSet
from comln_serve.security.keys import Scope, make_key
from comln_serve.storage import Store, utc_now
from training.results.tables import markdown

PERIOD = 0.25  # seconds between the victim's requests, and between looks at the health
MOST_WAIT, MOST_GROWTH_MB = 3.0, 300  # what is promised to others
PATIENCE = 60.0  # seconds for an answer, and for all to be as before
IDLE = 0.2  # cores that a server without requests uses at most


@dataclass(frozen=True)
class Asker:
    """A client that sends one request again and again, each time over a connection of its own."""

    url: str
    method: str
    path: str
    key: str | None = None
    body: bytes | None = None

    def __call__(self) -> tuple[int, bytes]:
        """Status and content of an answer."""
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)
        headers = {} if self.body is None else {"Content-Type": CONTENT_TYPE}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        with contextlib.closing(connection):
            connection.request(self.method, self.path, self.body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def timed(self) -> tuple[str, float]:
        """Status of an answer, and seconds until it was read."""
        began = time.monotonic()
        try:
            status = str(self()[0])
        except (OSError, HTTPException) as error:
            status = type(error).__name__
        return status, time.monotonic() - began

    def content(self) -> bytes:
        """The answer to a request that must succeed."""
        status, content = self()
        if status >= 300:
            raise RuntimeError(f"{self.method} {self.path}: {status} {content[:500]!r}")
        return content


@dataclass
class Row:
    """What one attack did; times in seconds, memory in MB.

    Attributes:
        answers, live, ready: status and time of each answer to the victim and to the two probes of health.
        before, grown, allowed: memory before the attack, its growth to the peak, and the growth that is allowed.
        cores: CPU time of the server over that of the attack.
        got: what became of the attacker's requests.
        back: time until the server was as before the attack; None: not within PATIENCE.
        left: memory then over that before. keys: whether the server asks for API keys.
    """

    attack: str
    answers: list[tuple[str, float]]
    live: list[tuple[str, float]]
    ready: list[tuple[str, float]]
    before: float
    grown: float
    allowed: float
    cores: float
    got: dict[str, int]
    back: float | None
    left: float
    keys: bool

    def broken(self) -> str:
        """Which promises were broken, in words. Without keys the server cannot tell who sends too much."""
        slowest = max(seconds for _, seconds in self.answers)
        expected = {"200"} if self.keys else {"200", "429"}
        failures = {
            "answers": not expected.issuperset(status for status, _ in self.answers),
            "time": slowest > MOST_WAIT,
            "memory": self.grown > self.allowed,
            "health": any(status != "200" or seconds > MOST_WAIT for status, seconds in self.live + self.ready),
            "500": "500" in self.got,
            "not back": self.back is None,
        }
        return ", ".join(name for name, failed in failures.items() if failed)

    def cells(self) -> list[str]:
        seconds = [one for _, one in self.answers]
        return [
            self.attack,
            _counted(Counter(status for status, _ in self.answers)),
            f"{statistics.median(seconds):.2f}, {max(seconds):.2f}",
            f"{_slowest(self.live)}, {_slowest(self.ready)}",
            f"{self.before:.0f} + {self.grown:.0f} (of {self.allowed:.0f})",
            f"{self.cores:.1f}",
            _counted(self.got),
            f"> {PATIENCE:.0f}" if self.back is None else f"{self.back:.1f}",
            f"{self.left:+.0f}",
            self.broken() or "-",
        ]


HEAD = (
    "attack",
    "answers to the other client",
    "its median and slowest, s",
    "slowest /health/live, /health/ready, s",
    "memory before + growth (allowed), MB",
    "CPU cores used",
    "the attacker got",
    "time as before after, s",
    "memory then, MB",
    "broken",
)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} x {what}" for what, count in sorted(counts.items()))


def _slowest(probes: Sequence[tuple[str, float]]) -> str:
    failed = Counter(status for status, _ in probes if status != "200")
    return f"{max(seconds for _, seconds in probes):.2f}" + (f" ({_counted(failed)})" if failed else "")


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, nargs="?", default=ROOT / "models/photos-efficientnet-lite0")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each attack")
    parser.add_argument("--only", nargs="+", help="attacks whose names contain one of these; nothing is written then")
    arguments = parser.parse_args()
    chosen = [name for name in ATTACKS if any(word in name for word in arguments.only or [""])]
    what = (
        f"{arguments.bundle.name} on {machine()}; each attack for {arguments.seconds:g} s. Attackers run at nice 10 on "
        "the cores of the server, so that what is measured is the server's work, not theirs."
    )
    lines = [what]
    for title, flags, names in (
        ("With keys; attacker and victim are two tenants", ["--require-keys"], chosen),
        ("Without keys", [], [name for name in chosen if ATTACKS[name].without_keys]),
    ):
        if names:
            lines += ["", f"## {title}", ""]
            with running_server(arguments.bundle, *flags) as server:
                lines += measured(server, names, arguments.seconds, keys=bool(flags))
    text = "\n".join(lines)
    if arguments.only:
        print(text)
    else:
        publish(f"hostile-{arguments.bundle.name}", text)


def measured(server: Server, names: Sequence[str], seconds: float, *, keys: bool) -> list[str]:
    """Lines of Markdown: a table of all attacks on a server, one after another."""
    attacker, victim = (new_key(server, tenant) if keys else None for tenant in ("attacker", "victim"))
    rng = np.random.default_rng(0)
    files = [photo(rng, 500, 375) for _ in range(WAYS * SHOTS)]
    for key, name in ((victim, "victim"), (attacker, KNOWN)):
        Asker(server.url, "POST", "/adapt", key, adapt_form(files, ("name", name))).content()
    add_large(server, "attacker" if keys else "", names)
    asker = Asker(server.url, "POST", "/predict", victim, form(files[:1], [("classifier", "victim")]))
    quiet = [asker.timed()[1] for _ in range(20)]
    start, rows = server.memory(), list[Row]()
    for name in names:
        target = Target(name, server.url, attacker, seconds)
        rows.append(measured_attack(server, target, asker, statistics.median(quiet[5:])))
        print(" | ".join(rows[-1].cells()), file=sys.stderr, flush=True)
    tracebacks = (server.folder / "log").read_text("utf-8").count("Traceback")
    beside = (
        f"Without an attack the other client's answers took {statistics.median(quiet):.3f} s. Memory: {start:.0f} MB "
        f"before all attacks, {server.memory():.0f} MB after them. Tracebacks in the log: {tracebacks}."
    )
    return [markdown(HEAD, [row.cells() for row in rows]), "", beside]


def new_key(server: Server, tenant: str) -> str:
    """A key of a new tenant, to predict and adapt."""
    key, text = make_key(tenant, (Scope.PREDICT, Scope.ADAPT), now=utc_now())
    with contextlib.closing(Store(f"sqlite:///{server.folder}/classifiers.db")) as store:
        store.keys.add(key)
    return text


def add_large(server: Server, tenant: str, names: Sequence[str]) -> None:
    """Store the large classifiers that some attacks need, which would take minutes to adapt: of the embeddings of one
    that the server has made, with noise.
    """
    with contextlib.closing(Store(f"sqlite:///{server.folder}/classifiers.db")) as store:
        of = store.for_tenant(tenant)
        made, support = of.find(KNOWN), of.support(KNOWN)[1]

        def add(name: str, examples: int, classes: int) -> None:
            rng = np.random.default_rng(0)
            embeddings = support.embeddings[rng.integers(len(support), size=examples)]
            embeddings *= 1 + np.float32(0.3) * rng.standard_normal(embeddings.shape, np.float32)
            labels = [f"class {i % classes}" for i in range(examples)]
            more = SupportSet.of(rounded(embeddings), [None] * examples, labels)
            W = rng.standard_normal((classes, made.W.shape[1]), np.float32)
            counts = tuple(Counter(labels).values())
            new = replace(made, id=new_id(), name=name, labels=more.classes, examples=counts, report=None, W=W)
            of.add(new, more, limit=10**6)

        if not {"12 large answers, unread", "24 removals from 3000 examples"}.isdisjoint(names):
            add(LARGE, LARGE_EXAMPLES, 50)
        if "24 adaptations, 500 classes, longest horizon" in names:
            for number in range(AT_ONCE):
                add(f"{WIDE}-{number}", 2 * MOST["max_classes"], MOST["max_classes"])


def measured_attack(server: Server, target: Target, asker: Asker, quiet: float) -> Row:
    """Attack for a time, and wait until all is as before.

    Args:
        quiet: seconds that the victim's answers take without an attack.
    """
    before = server.memory()
    with attacking(target) as attacker:
        processes.start_peak_anew(server.process.pid)
        began, used = time.monotonic(), server.cpu_seconds()
        live, ready = (Asker(server.url, "GET", f"/health/{what}") for what in ("live", "ready"))
        seen = watched((asker, live, ready), lambda: attacker.poll() is None)
        ended = time.monotonic()
        cores = (server.cpu_seconds() - used) / (ended - began)
        grown = server.memory("VmHWM") - before
        got = json.loads(attacker.communicate()[0])
    back = None
    while back is None and time.monotonic() < ended + PATIENCE:
        used = server.cpu_seconds()
        time.sleep(PERIOD)
        idle = server.cpu_seconds() - used < IDLE * PERIOD
        status, seconds = asker.timed()
        if idle and status == "200" and seconds < 2 * quiet + 0.05:
            back = time.monotonic() - ended
    allowed = MOST_GROWTH_MB + ATTACKS[target.name].more_mb
    left, keys = server.memory() - before, target.key is not None
    return Row(target.name, seen[0], seen[1], seen[2], before, grown, allowed, cores, got, back, left, keys)


@contextlib.contextmanager
def attacking(target: Target) -> Generator["subprocess.Popen[bytes]", None, None]:
    """A process that has just begun to attack."""
    job = [target.name, target.url, target.key, target.seconds]
    command = [sys.executable, "-m", "benchmarks.attacks", json.dumps(job)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the attack {target.name!r} did not begin")
        yield process


def watched(askers: Sequence[Asker], going: Callable[[], bool]) -> list[list[tuple[str, float]]]:
    """The answers to each, asked every quarter of a second, and the seconds that they took."""
    asked: list[list[Future[tuple[str, float]]]] = [[] for _ in askers]
    with ThreadPoolExecutor(256) as pool:
        due = time.monotonic()
        while going():
            for each, asker in zip(asked, askers, strict=True):
                each.append(pool.submit(asker.timed))
            due += PERIOD
            time.sleep(max(0.0, due - time.monotonic()))
        return [[future.result() for future in each] for each in asked]


if __name__ == "__main__":
    main()
