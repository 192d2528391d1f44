"""`comln-serve` in this process."""

import pytest

from comln_serve.cli import main
from tests.support.commands import Command


@pytest.fixture
def comln_serve(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(main, capsys)
