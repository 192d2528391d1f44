"""Puts the server together as the settings say, and runs it: in this process, or in several that share its socket."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from types import FrameType

from threadpoolctl import threadpool_limits

from comln_serve.api.app import create_app
from comln_serve.api.observe.metric_files import share_metrics
from comln_serve.configuration.settings import Settings, without_password
from comln_serve.counts import Count, SharedCounts
from comln_serve.engine.compilation import compile_flow
from comln_serve.engine.embedding_process.embedder import Embedder, listen_for_batches
from comln_serve.engine.engine import Engine, load_models
from comln_serve.engine.served import warn_of_absent
from comln_serve.errors import NotYetError, ServiceError, StartupError
from comln_serve.logs import configure_logs, log_worker
from comln_serve.machine import (
    allow_open_files,
    freeze_garbage_collector,
    may_have_gpu,
    return_large_memory,
    suitable_workers,
)
from comln_serve.server.hangup import hold_hangups, reload_on_hangup
from comln_serve.server.listening import listen
from comln_serve.server.serve import addresses, allowed_hosts, check_tls, serve, warn_of_settings
from comln_serve.server.supervisor import Supervisor
from comln_serve.storage import Store

logger = logging.getLogger("comln_serve")


def run(settings: Settings) -> int:
    """Serve until a signal. Returns the exit status (2: unusable configuration, 1: could not get ready)."""
    return _or_refused(settings, lambda: _run(settings))


def _or_refused(settings: Settings, start: Callable[[], int]) -> int:
    """The exit status of `start`. Says on standard error why the server does not start, if it does not."""
    try:
        return start()
    except (StartupError, ServiceError) as error:
        url = settings.database_url
        print(f"comln-serve: {str(error).replace(url, without_password(url))}", file=sys.stderr, flush=True)
        return 1 if isinstance(error, NotYetError) else 2


def _run(settings: Settings) -> int:
    workers, embedder = processes(settings)
    hold_hangups()
    configure_logs(settings.log_level, settings.log_format)
    check_tls(settings)
    # The server multiplies small matrices only: BLAS threads would wait for each other longer than
    # they work, most of all while ONNX Runtime uses the cores.
    threadpool_limits(1, "blas")
    return_large_memory()
    with ExitStack() as stack:
        sockets = [stack.enter_context(listening) for listening in listen(settings.host, settings.port)]
        warn_of_settings(settings, workers)
        if workers == 1:
            return _work(settings, sockets, SharedCounts())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="comln-serve-")))
        shared = SharedCounts(workers, folder, embedder=embedder)
        share_metrics(folder, shared)
        batches = stack.enter_context(listen_for_batches(shared.embedder_socket)) if embedder else None

        def work() -> int:
            if batches is not None and shared.process == shared.embedder:
                return _embed(batches, settings, sockets, shared)
            if batches is not None:
                batches.close()  # once neither parent nor embedder is there, nobody should wait for them
            return _work(settings, sockets, shared)

        return Supervisor(shared, lambda: _or_refused(settings, work), _prepare).run()


def processes(settings: Settings) -> tuple[int, bool]:
    """How many processes serve, and whether one more embeds for them.

    Raises:
        StartupError: this system cannot do that.
    """
    mode = settings.embedding_process
    gpu = settings.provider in ("auto", "cuda") and may_have_gpu()
    can_share = hasattr(os, "memfd_create")
    shares = can_share and (mode == "on" or (mode == "auto" and gpu))
    if settings.workers == "auto":
        # Without a process that embeds, each would have the networks, and buffers, in the GPU's memory.
        workers = 1 if gpu and not shares else suitable_workers(embedder=shares)
    else:
        workers = settings.workers
    if workers > 1 and not hasattr(os, "fork"):
        raise StartupError("several workers need a system that can fork, such as Linux; start with --workers 1")
    if mode == "on" and not can_share:
        raise StartupError("--embedding-process on needs Linux; leave it out")
    return workers, shares and workers > 1


def _prepare() -> None:
    compile_flow()
    freeze_garbage_collector()


def _embed(batches: socket, settings: Settings, sockets: list[socket], shared: SharedCounts) -> int:
    """Embed in this process for those that serve. Returns the exit status."""
    log_worker("embedder")
    allow_open_files()  # it has a connection for each thread that embeds, of all workers
    for listening in sockets:
        listening.close()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the parent ends this process once the others have drained
    return Embedder(batches, settings, shared).run()


def _work(settings: Settings, sockets: list[socket], shared: SharedCounts) -> int:
    """Serve in this process until a signal. Returns the exit status."""
    if shared.processes > 1:
        log_worker(shared.process)
    engine = _start_engine(settings, shared)

    def after_warming() -> None:
        if engine.failure is not None:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        freeze_garbage_collector()
        shared.set(Count.READY, 1)
        if shared.total(Count.READY) == shared.processes:
            logger.info("ready: the page is at %s", addresses(settings, sockets))

    def after_reload() -> None:
        """Have the other processes reload, too; this one then finds nothing changed."""
        if shared.processes > 1:
            os.kill(shared.parent, signal.SIGHUP)

    app = create_app(engine, hosts=allowed_hosts(settings), on_warm=after_warming, on_reload=after_reload)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        """Exit. uvicorn drains first, then raises the signal again for this handler."""
        raise SystemExit(0 if engine.failure is None else 1)

    signal.signal(signal.SIGTERM, stop)
    reload_on_hangup(engine.reload)
    serve(app, sockets)
    return 0 if engine.failure is None else 1


def _start_engine(settings: Settings, shared: SharedCounts) -> Engine:
    models = load_models(settings, shared)
    store = Store(settings.database_url)
    logger.info("classifiers in %s", store.description)
    engine = Engine(settings, models, store, shared)
    if settings.require_keys and not engine.store.keys.any_valid():
        logger.warning(
            "API keys are required, and there is no valid one: every request will be refused. Make "
            "one, at any time: comln-serve keys create --tenant NAME --scope adapt, with the --config or "
            "--database-url of this server"
        )
    for name, model in engine.models.items():
        default = " (default)" if name == engine.models.default else ""
        logger.info("model %s%s on %s", name, default, model.provider)
    warn_of_absent(engine.models, store, settings)
    return engine
