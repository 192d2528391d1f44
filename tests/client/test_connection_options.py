"""Options that every command has: how long it waits, and tries again."""

from collections.abc import Callable

import httpx2
import pytest
from click.testing import CliRunner, Result

from comln_serve.client.commands import main
from tests.client.wires import Wire


@pytest.mark.parametrize(("seconds", "attempts", "status"), [("0", 1, 1), ("60", 3, 0)])
def test_how_long_requests_are_repeated(
    run: Callable[..., Result], line: Wire, seconds: str, attempts: int, status: int
) -> None:
    asked: list[str] = []

    def full(request: httpx2.Request) -> httpx2.Response | None:
        asked.append(request.url.path)
        error = {"code": "overloaded", "message": "no room", "detail": {}}
        return httpx2.Response(503, json={"error": error}) if len(asked) < 3 else None

    line.before = full
    assert run("models", "ls", "--retry-seconds", seconds).exit_code == status
    assert len(asked) == attempts


def test_no_time_before_the_first_attempt(run: Callable[..., Result]) -> None:
    refused = run("models", "ls", "--retry-seconds", "-1")
    assert (refused.exit_code, "-1.0 is not in the range x>=0" in refused.stderr) == (2, True)


def test_lists_of_commands_have_whole_sentences() -> None:
    for group in ([], ["classifiers"], ["examples"], ["models"]):
        listed = CliRunner().invoke(main, [*group, "-h"], terminal_width=80).output.partition("Commands:")[2]
        assert listed
        assert "..." not in listed
