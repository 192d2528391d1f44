"""`comln-train` in this process."""

import pytest

from tests.support.commands import Command
from training.cli import main


@pytest.fixture
def comln_train(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(main, capsys)
