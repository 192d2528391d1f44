"""Commands that a message tells the user to type next."""

from shlex import quote

import click

# Where the command that is running finds its classifiers. The next one needs the same; keys are not printed.
_WHERE = ("url", "models_dir", "database_url", "config")


def command_line(name: str, *arguments: str) -> str:
    """A command to be copied into a shell, which reaches the same classifiers as the one that is running.

    Args:
        name: such as "classifiers rollback".
        arguments: what follows, quoted where a shell needs it.
    """
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    options = ["--local"] if given.get("local") else []
    options += [
        part for option in _WHERE if given.get(option) for part in (f"--{option.replace('_', '-')}", given[option])
    ]
    end = ["--"] if any(argument.startswith("-") for argument in arguments) else []  # of the options
    return " ".join(["comln", name, *map(quote, [*options, *end, *arguments])])
