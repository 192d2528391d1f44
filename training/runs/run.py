"""The episodic phase of a run: validated, logged and saved as it goes on."""

import math
import time
from pathlib import Path

import numpy as np
from torch import Tensor
from tqdm import tqdm

from training.checkpoint_names import BEST, LAST
from training.data.several import Sets
from training.model import MetaModel
from training.runs.distributed import Group
from training.runs.log import RunLog
from training.runs.optimiser import episode_sgd, learning_rate_factor
from training.runs.phase import Phase
from training.runs.validate import validate


class Run(Phase):
    """Meta-training of a model, and the folder it is saved in.

    Attributes:
        model: what is trained. val: validation data sets by their names.
    """

    def __init__(self, model: MetaModel, val: Sets, out: Path, *, command: str, group: Group, spent: float) -> None:
        config = model.config
        optimiser = episode_sgd(model, config.optimiser)
        factor = learning_rate_factor(config)
        super().__init__(config, model, optimiser, factor, command=command, group=group, spent=spent)
        self.model, self.val, self.out, self.best = model, val, out, -1.0
        self._since = time.monotonic()

    def measure(self, done: int, loss: Tensor, log: RunLog) -> None:
        """Validate after `done` updates; log, save and print the result.

        Args:
            loss: the last update's.
        """
        query_loss = loss.item()
        rate = (done - self.done) * self.config.episodes.tasks / (time.monotonic() - self._since)
        results = validate(self.model, self.val)
        score = float(np.mean([result.mean for result in results]))
        improved, self.best = score > self.best, max(self.best, score)
        checkpoint = self.checkpoint(done, results)
        head, law = self.model.head(), self.model.log_temperature
        horizon, of = self.model.shown_horizon
        log.record(
            done,
            checkpoint.validation,
            loss=query_loss,
            horizon=horizon,
            alpha=head.alpha,
            shot_offset=head.shot_offset,
            temperature=None if law is None else math.exp(law[0].item()),  # of 25 images of 5 classes
            seconds=round(checkpoint.seconds, 1),
            episodes_per_second=round(rate, 3),
            lr=float(self.optimiser.param_groups[0]["lr"]),
        )
        if improved:
            checkpoint.save(self.out / BEST)
        checkpoint.save(self.out / LAST)
        tqdm.write(
            f"update {done}: "
            + "; ".join(map(str, results))
            + (f"; mean {100 * score:.2f} %" if len(self.val) > 1 else "")
            + f"; T = {horizon:.4g}{of}; {rate:.2f} episodes a second"
        )
        self._since = time.monotonic()
