"""The server in this process, for `comln --local`. All imports of the server are inside the function."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal

from comln_serve.client.clients import Client
from comln_serve.client.errors import InputError, NotFoundError


@contextmanager
def local_client(arguments: Sequence[str], retry_seconds: float) -> Generator[Client, None, None]:
    """A client of a server that runs in this process until the block ends. Raises InputError if the server cannot be
    started so, or is not installed. The arguments are flags of `comln-serve`, whose environment variables and
    configuration file count, too.
    """
    try:
        app, database = _application(arguments)
    except ModuleNotFoundError as error:
        raise InputError(
            f"--local needs the server, and {error.name} is not installed: pip install 'comln-serve[cpu]'"
        ) from error
    with start_blocking_portal() as portal:
        lifespan = portal.wrap_async_context_manager(app.router.lifespan_context(app))
        lifespan.__enter__()
        try:
            with Client("http://localhost", retry_seconds=retry_seconds, transport=_InProcess(app, portal)) as client:
                yield client
        except NotFoundError as error:
            if error.code == "classifier_not_found":
                error.message += f" The database is {database}."
            raise
        finally:
            # Whatever ended the block, the server closes: a process that exits while its threads compute aborts.
            lifespan.__exit__(None, None, None)


def _application(arguments: Sequence[str]) -> tuple[Any, str]:
    """The server's application, and what its database is called."""
    import logging  # noqa: PLC0415

    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    from comln_serve.api.app import create_app  # noqa: PLC0415
    from comln_serve.configuration.sources import read_configuration  # noqa: PLC0415
    from comln_serve.engine.engine import Engine, load_models  # noqa: PLC0415
    from comln_serve.errors import ServiceError, StartupError  # noqa: PLC0415
    from comln_serve.logs import configure_logs  # noqa: PLC0415
    from comln_serve.storage import Store  # noqa: PLC0415

    configure_logs("warning", "text")
    logging.getLogger("comln_serve.requests").setLevel(logging.CRITICAL)  # the command itself says what failed
    logging.getLogger("comln_serve.engine.compilation").setLevel(logging.INFO)  # it takes seconds, once
    threadpool_limits(1, "blas")  # as in comln_serve.starting
    try:
        settings = read_configuration(list(arguments))
        models = load_models(settings)
        with ExitStack() as unless_it_starts:
            store = unless_it_starts.enter_context(closing(Store(settings.database_url)))
            # Another server may use the database: what it keeps is not for a command to delete.
            app = create_app(Engine(settings, models, store, keeps_house=False))
            unless_it_starts.pop_all()  # the application closes the store at its end
    except (StartupError, ServiceError) as error:
        raise InputError(f"--local: {error}") from error
    return app, store.description


class _InProcess(httpx2.BaseTransport):
    """Carries requests to an application on the event loop of a portal."""

    def __init__(self, app: Any, portal: BlockingPortal) -> None:
        self._transport = httpx2.ASGITransport(app)
        self._portal = portal

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self._portal.start_task_soon(self._answer, request)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()  # Ctrl-C ends the work that is under way, too
            raise

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._transport.handle_async_request(request)
        content = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)
