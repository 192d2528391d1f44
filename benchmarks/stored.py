"""What requests cost when many classifiers are stored, next to the same with few.

    python -m benchmarks.stored [models/omniglot-conv4] [--classifiers 100000] [--rounds 40] [--database-url URL]

Fills two databases (`benchmarks.filled`), runs a server on each, and sends requests to both in turns, so that a noisy
machine disturbs both alike. Without --database-url the databases are SQLite files in a folder of their own; with it,
two schemas of that PostgreSQL database, which are dropped at the end.

Prints Markdown and writes it to benchmarks/results/stored-BUNDLE-KIND.md.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import LiteralString

import numpy as np
import psycopg
from psycopg import sql
from sqlalchemy import text

from benchmarks.filled import OLD_MODEL, TENANT, VERSIONS, Made, fill, name_of
from benchmarks.publishing import ROOT, machine, publish
from benchmarks.serving import SHOTS, WAYS, Server, adapt_form, form, photo, running_server
from comln_serve.bundle.manifest import MANIFEST
from comln_serve.storage import Store, sqlite_file, utc_now
from comln_serve.storage.database import Database
from training.results.tables import markdown

FEW = 10
_TEMPLATES = 20
_EXPIRED = 500
_STARTS, _PURGES = 7, 5
_OLDEST = "0001"
# A server looks up a name anew after half a second.
_REFERENCE_SECONDS = 0.6
_MIGRATE = """
import resource, sys, time
from comln_serve.storage import Store
began = time.perf_counter()
Store(sys.argv[1]).close()
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""

Times = dict[str, list[float]]
"""Figures by what was measured."""
Measured = tuple[str, list[list[float]]]
"""What was measured, and the figures of each database."""


@dataclass
class Side:
    """One of the two databases, and the servers on it.

    Attributes:
        server: as people run it.
        cold: keeps no classifiers in memory.
    """

    url: str
    count: int
    server: Server
    cold: Server

    @property
    def names(self) -> int:
        return -(-self.count // VERSIONS)


@dataclass(frozen=True)
class Requests:
    """Bodies of requests."""

    adapt: Callable[[str], bytes]
    one_more: bytes
    predict: Callable[[str], bytes]


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, nargs="?", default=ROOT / "models/omniglot-conv4")
    parser.add_argument("--classifiers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--database-url", help="a PostgreSQL database; default: SQLite files")
    parser.add_argument("--int16-examples", action="store_true", help="as if the bundle said so (docs/bundle.md)")
    parser.add_argument("--folder", type=Path, help="where SQLite files are made; default: the temporary folder")
    arguments = parser.parse_args()
    name = f"stored-{arguments.bundle.name}-{'sqlite' if arguments.database_url is None else 'postgresql'}"
    with contextlib.ExitStack() as stack:
        if arguments.int16_examples:
            name += "-int16"
            arguments.bundle = stack.enter_context(_with_int16_examples(arguments.bundle))
        publish(name, measure(arguments))


@contextlib.contextmanager
def _with_int16_examples(bundle: Path) -> Generator[Path, None, None]:
    """A copy of a bundle that says that examples are stored in 16 bits, whatever that changes."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(bundle, Path(folder) / bundle.name))
        content = json.loads((copy / MANIFEST).read_text(encoding="utf-8"))
        content |= {"stored_embeddings": "int16", "format_version": max(4, content["format_version"])}
        (copy / MANIFEST).write_text(json.dumps(content), encoding="utf-8")
        yield copy


def measure(arguments: argparse.Namespace) -> str:
    """The figures, in one run, as Markdown."""
    rng = np.random.default_rng(0)
    files = [photo(rng, 120, 120) for _ in range(2 * WAYS * SHOTS)]
    made = templates(arguments.bundle, files, rng)
    requests = _requests(files)
    counts = (FEW, arguments.classifiers)
    with databases(arguments, 4) as urls:
        filled, old = urls[:2], urls[2:]
        for url, count in zip(filled, counts, strict=True):
            fill(url, made, count)
        sizes = [size(url) for url in filled]
        starts = measured_starts(arguments.bundle, filled)
        asked = measured_requests(arguments, filled, counts, requests)
        purges = measured_purges(filled, made)
        for url, count in zip(old, counts, strict=True):
            fill(url, made, count, revision=_OLDEST)
        migrations = [measured_migration(url) for url in old]
    kind = "SQLite" if arguments.database_url is None else "PostgreSQL"
    what = f"classifiers of {WAYS * SHOTS} images, with {VERSIONS} versions a name"
    if arguments.int16_examples:
        what += "; their embeddings in 16 bits"
    rows = [
        *(_row(what, [times[what] for times in asked], ".1f") for what in asked[0]),
        *(_row(what, figures, ".2f" if what.endswith(", s") else ".0f") for what, figures in (purges, *starts)),
        *(
            _row(what, [[found[position]] for found in migrations], ".1f")
            for position, what in enumerate((f"migration from {_OLDEST}, s", "memory of that, MB"))
        ),
        _row("size of the database, MB", [[megabytes] for megabytes in sizes], ".1f"),
    ]
    table = markdown(["", f"{counts[0]} stored", f"{counts[1]} stored", "ratio"], rows)
    return f"""{arguments.bundle.name}, {kind}, on {machine()}; {what}.
Medians (middle half) of {arguments.rounds} rounds in turns; ratios of medians.

{table}"""


def templates(bundle: Path, files: Sequence[bytes], rng: np.random.Generator) -> list[Made]:
    """Classifiers and support sets that a server has made of photos drawn from `files`."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/templates.db"
        with running_server(bundle, "--database-url", url) as server:
            for i in range(_TEMPLATES):
                drawn = [files[j] for j in rng.permutation(len(files))[: WAYS * SHOTS]]
                server.call("POST", "/adapt", adapt_form(drawn, ("name", f"template-{i}")))
        with contextlib.closing(Store(url)) as store:
            of = store.for_tenant(TENANT)
            return [(of.find(f"template-{i}"), of.support(f"template-{i}")[1]) for i in range(_TEMPLATES)]


def _requests(files: Sequence[bytes]) -> Requests:
    support = files[: WAYS * SHOTS]
    return Requests(
        adapt=lambda name: adapt_form(support, ("name", name)),
        one_more=form(files[-1:], [("labels", "class 0")]),
        predict=lambda reference: form(files[-1:], [("classifier", reference)]),
    )


@contextlib.contextmanager
def databases(arguments: argparse.Namespace, number: int) -> Generator[list[str], None, None]:
    """URLs of empty databases."""
    if arguments.database_url is None:
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="comln-stored-") as folder:
            yield [f"sqlite:///{folder}/{i}.db" for i in range(number)]
        return
    schemas = [f"comln_stored_{i}" for i in range(number)]

    def administer(statement: LiteralString) -> None:
        # Not by the server's class, which waits for an answer no longer than a request may.
        with psycopg.connect(arguments.database_url) as connection:
            for schema in schemas:
                connection.execute(sql.SQL(statement).format(sql.Identifier(schema)))

    try:
        administer("CREATE SCHEMA {}")
        yield [f"{arguments.database_url}?options=-csearch_path%3D{schema}" for schema in schemas]
    finally:
        administer("DROP SCHEMA IF EXISTS {} CASCADE")


def size(url: str) -> float:
    """What a database takes on disk, MB."""
    file = sqlite_file(url)
    if file is not None:
        return file.stat().st_size / 1e6
    database = Database(url)
    with database.connection() as connection:
        relations = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r'"
        own = f"{relations} AND relnamespace = current_schema()::regnamespace"
        found = float(connection.execute(text(own)).scalar_one())
    database.close()
    return found / 1e6


def measured_starts(bundle: Path, urls: Sequence[str]) -> list[Measured]:
    """Seconds from start to ready, and memory then, for each of the databases."""
    seconds: list[list[float]] = [[] for _ in urls]
    memory: list[list[float]] = [[] for _ in urls]
    for turn in range(_STARTS + 1):
        for i, url in enumerate(urls):
            began = time.perf_counter()
            with running_server(bundle, "--database-url", url) as server:
                if turn:  # the first finds files cold
                    seconds[i].append(time.perf_counter() - began)
                    memory[i].append(server.memory())
    return [("start, s", seconds), ("memory after start, MB", memory)]


def measured_requests(
    arguments: argparse.Namespace, urls: Sequence[str], counts: Sequence[int], requests: Requests
) -> list[Times]:
    """Milliseconds of requests, by what they do, of servers on each of the databases; and their memory."""
    all_times: list[Times] = [defaultdict(list) for _ in urls]
    with contextlib.ExitStack() as stack:

        def serve(url: str, *flags: str) -> Server:
            flags = ("--database-url", url, "--max-classifiers", "1000000", *flags)
            return stack.enter_context(running_server(arguments.bundle, *flags))

        sides = [
            Side(url, count, serve(url), serve(url, "--classifier-cache-bytes", "0"))
            for url, count in zip(urls, counts, strict=True)
        ]
        rng = np.random.default_rng(1)
        for turn in range(arguments.rounds + 1):
            began = time.monotonic()
            order = list(zip(sides, all_times, strict=True))
            for side, times in order[:: 1 if turn % 2 else -1]:
                for what, ms in one_round(side, requests, turn, rng).items():
                    if turn:  # the first warms up
                        times[what].append(ms)
            time.sleep(max(0.0, began + _REFERENCE_SECONDS - time.monotonic()))
        for side, times in zip(sides, all_times, strict=True):
            times["memory after these requests, MB"] = [side.server.memory()]
    return all_times


def one_round(side: Side, requests: Requests, turn: int, rng: np.random.Generator) -> dict[str, float]:
    """Milliseconds of each kind of request, sent once."""
    times: dict[str, float] = {}

    def timed(what: str, method: str, path: str, body: bytes | None = None, server: Server = side.server) -> object:
        began = time.perf_counter()
        answer = server.call(method, path, body)
        times[f"{what}, ms"] = 1e3 * (time.perf_counter() - began)
        return answer

    # Not the first name: one of its versions is of a model that is not served.
    name, other = name_of(1 + turn % (side.names - 1)), name_of(int(rng.integers(1, side.names)))
    made = f"new-{turn}"
    timed("adapt to 25 images", "POST", "/adapt", requests.adapt(made))
    timed("add an image", "POST", f"/classifiers/{made}/examples", requests.one_more)
    timed("predict by name, from the database", "POST", "/predict", requests.predict(other), side.cold)
    for _ in range(2):
        timed("predict by name, from memory", "POST", "/predict", requests.predict(other))
    timed("list 5, newest", "GET", "/classifiers?limit=5")
    timed("list 5, from the middle", "GET", f"/classifiers?limit=5&before={side.count // 2 + 1}")
    timed("filter by name", "GET", f"/classifiers?limit=5&name={name}")
    timed("filter by model, one has it", "GET", f"/classifiers?limit=5&model={OLD_MODEL}")
    timed("describe by name", "GET", f"/classifiers/{other}")
    timed("list the images of one", "GET", f"/classifiers/{other}/examples")
    side.server.call("POST", f"/classifiers/{name}@{(turn + 1) % VERSIONS + 1}/promote")
    timed("promote", "POST", f"/classifiers/{name}@{turn % VERSIONS + 1}/promote")
    timed("roll back", "POST", f"/classifiers/{name}/rollback")
    timed("ready", "GET", "/health/ready")
    timed("delete", "DELETE", f"/classifiers/{made}@2")
    side.server.call("DELETE", f"/classifiers/{made}@1")
    return times


def measured_purges(urls: Sequence[str], made: Sequence[Made]) -> Measured:
    """Milliseconds to remove classifiers that have expired, from each of the databases."""
    all_times: list[list[float]] = [[] for _ in urls]
    for turn in range(_PURGES):
        for url, times in zip(urls, all_times, strict=True):
            with contextlib.closing(Store(url)) as store:
                of, past = store.for_tenant(TENANT), utc_now() - timedelta(seconds=1)
                for i in range(_EXPIRED):
                    classifier, support = made[i % len(made)]
                    new = replace(classifier, id=f"clf_{turn}_{i}", name=None, version=None, expires_at=past)
                    of.add(new, support, limit=10**9)
                began = time.perf_counter()
                removed = store.purge()
                times.append(1e3 * (time.perf_counter() - began))
                if removed != _EXPIRED:
                    raise RuntimeError(f"{removed} classifiers were purged, not {_EXPIRED}")
    return f"purge of {_EXPIRED} that have expired, ms", all_times


def measured_migration(url: str) -> tuple[float, float]:
    """Seconds and most memory (MB) of a process that migrates a database to the newest schema."""
    done = subprocess.run([sys.executable, "-c", _MIGRATE, url], cwd=ROOT, check=True, capture_output=True)
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def _row(what: str, figures: Sequence[Sequence[float]], form: str) -> list[str]:
    few, many = (statistics.median(values) for values in figures)
    return [what, *(_spread(values, form) for values in figures), f"{many / few:.2f}"]


def _spread(values: Sequence[float], form: str) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:{form}}" if len(values) == 1 else f"{middle:{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
