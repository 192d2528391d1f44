"""`comln-serve`: starts the server; `comln-serve keys`: manages its API keys."""

import sys
from contextlib import suppress

from comln_serve import __version__
from comln_serve.configuration.sources import read_configuration
from comln_serve.errors import ServiceError, StartupError
from comln_serve.key_commands import keys_command
from comln_serve.streams import write_utf8


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit status (2: unusable configuration, 1: could not get ready)."""
    write_utf8()
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        print(__version__)
        return 0
    try:
        if arguments[:1] == ["keys"]:
            return keys_command(arguments[1:])
        settings = read_configuration(arguments)
    except (StartupError, ServiceError) as error:
        print(f"comln-serve: {error}", file=sys.stderr, flush=True)
        return 2
    if settings.print_config:
        with suppress(BrokenPipeError):  # as of `| head`
            print(settings.text(), flush=True)
        return 0
    # Imported only now: what a server needs takes a second.
    from comln_serve.starting import run  # noqa: PLC0415

    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
