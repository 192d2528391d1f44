"""A phase of a run, pre-training or episodes: what is trained, and the checkpoints of it."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from training.checkpoint import Checkpoint
from training.config import Config
from training.runs.distributed import Group
from training.runs.hardware import describe_hardware
from training.runs.validate import Validated


class Phase:
    """The trained module with its optimiser and schedule.

    Attributes:
        done: updates (epochs, in pre-training) done when the last checkpoint was made.
        best: best mean validation accuracy so far.
    """

    def __init__(
        self,
        config: Config,
        module: nn.Module,
        optimiser: torch.optim.SGD,
        factor: Callable[[int], float],
        *,
        command: str,
        group: Group,
        spent: float = 0.0,
    ) -> None:
        """Start the phase's clock.

        Args:
            factor: of the learning rate, by update.
            command: for the checkpoints. group: of the processes. spent: seconds of training before this phase.
        """
        self.config, self.module, self.optimiser = config, module, optimiser
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
        self.command, self.group = command, group
        self.done, self.best = 0, 0.0
        self._spent, self._began = spent, time.monotonic()

    @property
    def seconds(self) -> float:
        """Training time, with that before a run was resumed."""
        return self._spent + time.monotonic() - self._began

    def restore(self, last: Checkpoint) -> None:
        """Continue where a checkpoint was made."""
        self.module.load_state_dict(last.model)
        self.optimiser.load_state_dict(last.optimiser)
        self.schedule.load_state_dict(last.schedule)
        self.done, self.best, self._spent = last.update, last.best, last.seconds

    def step(self) -> None:
        """One step of the optimiser and of the learning rate."""
        self.optimiser.step()
        self.schedule.step()

    def checkpoint(self, done: int, results: Sequence[Validated]) -> Checkpoint:
        """The state after `done` updates or epochs, with the validation results at that point."""
        self.done = done
        return Checkpoint(
            self.config,
            done,
            self.module.state_dict(),
            self.optimiser.state_dict(),
            self.schedule.state_dict(),
            self.best,
            self.seconds,
            [result.record() for result in results],
            self.command,
            describe_hardware(self.group),
        )
