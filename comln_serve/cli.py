"""`comln-serve`: starts the server; `comln-serve keys`: manages its API keys."""

import logging
import os
import signal
import sys
from types import FrameType

from threadpoolctl import threadpool_limits

from comln_serve import __version__
from comln_serve.api.app import create_app
from comln_serve.configuration.settings import Settings, without_password
from comln_serve.configuration.sources import read_configuration
from comln_serve.engine.engine import Engine, load_models
from comln_serve.errors import ServiceError, StartupError
from comln_serve.key_commands import keys_command
from comln_serve.logs import configure_logs
from comln_serve.machine import freeze_garbage_collector, return_large_memory
from comln_serve.server.hangup import reload_on_hangup
from comln_serve.server.serve import allowed_hosts, check_tls, serve
from comln_serve.storage import open_store

logger = logging.getLogger("comln_serve")


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit status (2: unusable configuration, 1: could not get ready)."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        print(__version__)
        return 0
    try:
        if arguments[:1] == ["keys"]:
            return keys_command(arguments[1:])
        settings = read_configuration(arguments)
    except (StartupError, ServiceError) as error:
        return _refuse(error)
    if settings.print_config:
        print(settings.text())
        return 0
    try:
        engine = _start_engine(settings)
        app = create_app(engine, hosts=allowed_hosts(settings), on_warm=lambda: _after_warming(engine))
    except (StartupError, ServiceError) as error:
        return _refuse(error, hide=settings.database_url)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        """Exit. uvicorn drains first, then raises the signal again for this handler."""
        raise SystemExit(0 if engine.failure is None else 1)

    signal.signal(signal.SIGTERM, stop)
    reload_on_hangup(engine.reload)
    serve(app, settings)
    return 0 if engine.failure is None else 1


def _after_warming(engine: Engine) -> None:
    """Stop the server if the engine failed to warm."""
    if engine.failure is not None:
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        freeze_garbage_collector()


def _refuse(error: Exception, hide: str | None = None) -> int:
    """Print why the server does not start, with the password of the URL `hide` masked."""
    text = str(error) if hide is None else str(error).replace(hide, without_password(hide))
    print(f"comln-serve: {text}", file=sys.stderr)
    return 2


def _start_engine(settings: Settings) -> Engine:
    configure_logs(settings.log_level, settings.log_format)
    check_tls(settings)
    # The server multiplies small matrices only: BLAS threads would wait for each other longer than
    # they work, most of all while ONNX Runtime uses the cores.
    threadpool_limits(1, "blas")
    return_large_memory()
    models = load_models(settings)
    engine = Engine(settings, models, open_store(settings.database_url))
    if settings.require_keys and not engine.store.keys.any_valid():
        logger.warning(
            "API keys are required, and there is no valid one: every request will be refused. Make "
            "one, at any time: comln-serve keys create --tenant NAME --scope adapt, with the --config or "
            "--database-url of this server"
        )
    for name, model in engine.models.items():
        default = " (default)" if name == engine.default_model else ""
        logger.info("model %s%s on %s", name, default, model.provider)
    return engine


if __name__ == "__main__":
    sys.exit(main())
