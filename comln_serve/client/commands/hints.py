"""Commands that a message tells the user to type next."""

from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any

import click

# Flags of comln-serve that --local passes on.
OF_SERVER = ("models_dir", "database_url", "config")


def command_line(name: str, *arguments: str) -> str:
    """A command to be copied into a shell, which reaches the same classifiers as the one that is running.

    Args:
        name: such as "classifiers rollback".
        arguments: what follows, quoted where a shell needs it.
    """
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    options = ["--local"] if given.get("local") else []
    options += flags_of(given, ("url", *OF_SERVER))  # but for keys, which are not printed
    end = ["--"] if any(argument.startswith("-") for argument in arguments) else []  # of the options
    return " ".join(["comln", name, *map(quote, [*options, *end, *arguments])])


def flags_of(options: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The options of these names that have a value, as flags."""
    return [part for name in names if options.get(name) for part in (f"--{name.replace('_', '-')}", options[name])]
