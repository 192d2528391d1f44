"""What every command shares: the options that name the server, and how errors end it."""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from shlex import quote
from typing import Any, Concatenate, NoReturn, ParamSpec, Self

import click

from comln_serve.client.clients import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT, DEFAULT_URL, Client
from comln_serve.client.errors import ComlnError, InputError
from comln_serve.client.wire import to_json

_P = ParamSpec("_P")

# Flags of comln-serve that --local passes on.
_OF_SERVER = ("models_dir", "database_url", "config")
# The options of every command that say how to reach classifiers.
_CONNECTING = ("url", "key", "timeout", "retry_seconds", "local", *_OF_SERVER)

# Exit status after Ctrl-C, as shells have it: 128 and the number of SIGINT.
_INTERRUPTED = 130

# What to do about an error, with the commands for it: a name and arguments of each, as of `command_line`. The server's
# message can only name its routes.
_HINTS: dict[str | None, tuple[str, list[tuple[str, ...]]]] = {
    "unauthorized": ("Give a valid key in the variable COMLN_KEY.", []),
    "classifier_not_found": ("With this command: {}", [("classifiers ls",)]),
    "example_not_found": ("With this command: {}", [("examples ls", "REF")]),
    "model_changed": ("With this command: {}", [("adapt --name NAME", "DIR")]),
    "nothing_to_roll_back_to": (
        "With these commands: {} lists versions, {} promotes one.",
        [("classifiers ls",), ("classifiers promote", "NAME@VERSION")],
    ),
    "forbidden": ("Whoever runs the server makes keys: comln-serve keys create --tenant TENANT --scope SCOPE.", []),
}

URL = click.option("--url", metavar="URL", help=f"Address of the server.  [default: COMLN_URL, or {DEFAULT_URL}]")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, in the words of the HTTP API.")


def command_line(name: str, *arguments: str) -> str:
    """A command, such as "classifiers rollback", to be copied into a shell, with its arguments quoted. It reaches the
    same classifiers as the command that is running.
    """
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    options = ["--local"] if given.get("local") else []
    options += _flags(given, ("url", *_OF_SERVER))  # but for keys, which are not printed
    end = ["--"] if any(argument.startswith("-") for argument in arguments) else []  # of the options
    return " ".join(["comln", name, *map(quote, [*options, *end, *arguments])])


def _flags(options: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The options of these names that have a value, as flags."""
    return [part for name in names if options.get(name) for part in (f"--{name.replace('_', '-')}", options[name])]


class OnceCommand(click.Command):
    """A command that refuses an option given twice; click would take the last one without a word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was typed. Raises UsageError if an option that has one value is given twice."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in () if ctx.resilient_parsing else given:
            if not isinstance(option, click.Option) or option.multiple:
                continue
            # A flag without an opposite says the same twice.
            if given.count(option) > 1 and (not option.is_flag or option.secondary_opts):
                name = "/".join((max(option.opts, key=len), *option.secondary_opts))
                raise click.UsageError(f"{name} is given twice; give it once", ctx)
        return super().parse_args(ctx, args)


class OnceGroup(click.Group):
    """A group of such commands."""

    command_class = OnceCommand


class Output:
    """Prints results: for people, or as JSON for programs. As a context, ends the command at an error, or Ctrl-C.

    Attributes:
        progress: what calls of the client take: False for programs; None: a bar if standard error is a terminal.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.progress = False if as_json else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, ComlnError):
            self.fail(error)
        if isinstance(error, KeyboardInterrupt | click.Abort):  # the second by a question of click's
            self.note(f"comln: {str(error) or 'interrupted'}")
            sys.exit(_INTERRUPTED)

    def show(self, value: Any, text: Callable[[], str]) -> None:
        """Print a result on standard output, as JSON or as the text."""
        self.write(f"{to_json(value) if self.as_json else text()}\n")

    def write(self, text: str) -> None:
        """Write text to standard output; if that fails, end the command, at a closed pipe without a word."""
        try:  # what is not UTF-8 in a path is written as \\udce9
            click.echo(text.encode("utf-8", "backslashreplace").decode(), nl=False)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.note(f"comln: standard output cannot be written: {error.strerror}")
            sys.exit(2)

    def note(self, text: str) -> None:
        """Tell a person something beside the result, on standard error."""
        click.echo(text, err=True)

    def fail(self, error: ComlnError, *, done: Mapping[str, Any] | None = None) -> NoReturn:
        """End the command: status 2 for what cannot be carried out as given, else 1. As JSON, the fields of what was
        `done` before are printed beside the error.
        """
        if self.as_json:
            facts = {name: getattr(error, name) for name in ("code", "message", "detail", "status", "request_id")}
            self.write(f"{to_json({**(done or {}), 'error': facts})}\n")
        else:
            code = "" if error.code is None else f" ({error.code})"
            text, commands = _HINTS.get(error.code, ("", []))
            hint = text.format(*(command_line(*command) for command in commands))
            self.note(f"comln: {error.message}{code} {hint}".rstrip())
        sys.exit(2 if isinstance(error, InputError) else 1)


def connected(command: Callable[Concatenate[Client, Output, _P], None]) -> Callable[..., None]:
    """Give a command a client and an output, and add the options for both."""

    @URL
    @click.option("--key", metavar="KEY", help="API key; better in the variable COMLN_KEY.")
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULT_TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="How long one attempt of a request waits for the server.",
    )
    @click.option(
        "--retry-seconds",
        type=click.FloatRange(min=0),
        default=DEFAULT_RETRY_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="How long after its first attempt a request that failed is tried again; 0: never.",
    )
    @click.option("--local", is_flag=True, help="Use no server: do its work in this process.")
    @click.option("--models-dir", help="With --local: folder of model bundles.  [default: that of comln-serve]")
    @click.option("--database-url", help="With --local: database of classifiers.  [default: that of comln-serve]")
    @click.option("--config", help="With --local: configuration file of the server.")
    @JSON
    @functools.wraps(command)
    def run(*args: Any, as_json: bool, **options: Any) -> None:
        connecting = {name: options.pop(name) for name in _CONNECTING}
        with Output(as_json=as_json) as output, _open(**connecting) as client:
            command(client, output, *args, **options)

    return run


def _open(
    *, url: str | None, key: str | None, timeout: float, retry_seconds: float, local: bool, **server: str | None
) -> AbstractContextManager[Client]:
    flags = _flags(server, _OF_SERVER)
    if not local:
        if flags:
            raise InputError(f"{flags[0]} is for --local; a server has its own")
        return Client(url, key=key, timeout=timeout, retry_seconds=retry_seconds)
    if url is not None:
        raise InputError("--url and --local exclude each other: --local uses no server")
    from comln_serve.client.local import local_client  # noqa: PLC0415 - loads the whole server

    return local_client(flags, retry_seconds)
