"""Commands of the server and of the trainer, in this process."""

from collections.abc import Callable

import pytest


class Command:
    """A program of the command line, in this process.

    Attributes:
        told: standard error of the last command.
    """

    def __init__(self, main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
        self._main, self._capsys = main, capsys
        self.told = ""

    def __call__(self, *words: object, status: int = 0) -> str:
        """What a command prints, which must end with this status."""
        self._capsys.readouterr()
        ended = self._main(list(map(str, words)))
        printed, self.told = self._capsys.readouterr()
        assert ended == status, self.told
        return printed

    def refused(self, *words: object) -> str:
        """What a command that must be refused says of it."""
        self(*words, status=2)
        return self.told
