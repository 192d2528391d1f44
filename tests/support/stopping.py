"""Training runs that are stopped on the way."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from training.checkpoint import Checkpoint


@contextmanager
def stopped_after_saving(
    monkeypatch: pytest.MonkeyPatch, when: Callable[[Checkpoint, Path], bool]
) -> Generator[None, None, None]:
    """The run in the block is interrupted once it has saved a checkpoint for which `when` holds."""
    save = Checkpoint.save

    def save_and_stop(self: Checkpoint, path: Path) -> None:
        save(self, path)
        if when(self, path):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            yield
