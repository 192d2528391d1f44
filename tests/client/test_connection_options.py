"""Options that every command has: how long it waits, and tries again."""

from contextlib import nullcontext
from unittest.mock import patch

import click
import httpx2
import pytest
from click.testing import CliRunner

from comln_serve.client.clients import Client
from comln_serve.client.commands import main
from comln_serve.client.commands.connection import Output, command_line, connected
from comln_serve.client.errors import ComlnError
from tests.client.wires import Run, Wire


@pytest.mark.parametrize(("seconds", "attempts", "status"), [("0", 1, 1), ("60", 3, 0)])
def test_how_long_requests_are_repeated(run: Run, line: Wire, seconds: str, attempts: int, status: int) -> None:
    asked: list[str] = []

    def full(request: httpx2.Request) -> httpx2.Response | None:
        asked.append(request.url.path)
        error = {"code": "overloaded", "message": "no room", "detail": {}}
        return httpx2.Response(503, json={"error": error}) if len(asked) < 3 else None

    line.before = full
    assert run("models", "ls", "--retry-seconds", seconds).exit_code == status
    assert len(asked) == attempts


def test_no_time_before_the_first_attempt(run: Run) -> None:
    refused = run("models", "ls", "--retry-seconds", "-1")
    assert (refused.exit_code, "-1.0 is not in the range x>=0" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ([], ""),
        (["--url", "http://testserver/a b"], " --url 'http://testserver/a b'"),
        (
            ["--local", "--models-dir", "m", "--database-url", "sqlite:///a b.db", "--config", "c"],
            " --local --models-dir m --database-url 'sqlite:///a b.db' --config c",
        ),
    ],
)
def test_commands_in_messages_reach_the_same_classifiers(options: list[str], given: str) -> None:
    """A command that is copied from a message finds what the command found that printed it."""

    @click.command
    @connected
    def relabel(client: Client, output: Output) -> None:
        output.note(command_line("examples relabel", "shop", "a class", "3"))
        output.note(command_line("examples relabel", "shop", "-rot", "3"))
        output.fail(ComlnError("gone", code="classifier_not_found"))

    with patch("comln_serve.client.commands.connection._open", lambda **_: nullcontext()):
        printed = CliRunner().invoke(relabel, [*options, "--key", "secret"]).stderr
    assert printed.splitlines() == [
        f"comln examples relabel{given} shop 'a class' 3",
        f"comln examples relabel{given} -- shop -rot 3",
        f"comln: gone (classifier_not_found) With this command: comln classifiers ls{given}",
    ]


def test_lists_of_commands_have_whole_sentences() -> None:
    for group in ([], ["classifiers"], ["examples"], ["models"]):
        listed = CliRunner().invoke(main, [*group, "-h"], terminal_width=80).output.partition("Commands:")[2]
        assert listed
        assert "..." not in listed
