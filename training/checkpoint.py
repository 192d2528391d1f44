"""Checkpoints: plain tensors and numbers, written atomically."""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.checkpoint_names import LOG, NO_RUN, UNMEASURED
from training.config import Config
from training.errors import CheckpointError, writing
from training.model import MetaModel


@dataclass
class Checkpoint:
    """State of a run.

    Attributes:
        update: number of updates (epochs, in pre-training) done.
        model: state dict of the trained module. optimiser, schedule: their state dicts.
        best: best mean validation accuracy so far. seconds: training time spent.
        validation: results of the last validation, as plain values.
        command: what the user typed. hardware: the machine, in words.
    """

    config: Config
    update: int
    model: dict[str, Any]
    optimiser: dict[str, Any]
    schedule: dict[str, Any]
    best: float
    seconds: float
    validation: list[dict[str, Any]]
    command: str = ""
    hardware: str = ""

    def save(self, path: Path) -> None:
        """Write to a temporary file, flush it to disk, then rename."""
        content = {**vars(self), "config": self.config.model_dump(mode="json")}
        temporary = path.with_suffix(".tmp")
        buffer = io.BytesIO()  # written to a full disk, torch would hide the system's error behind one of its own
        torch.save(content, buffer)
        with writing(path):
            with temporary.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint of tensors and plain values; pickled code is never run.

        Raises:
            CheckpointError: missing, damaged, or written by another program.
        """
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            content["config"] = Config.model_validate(content["config"])
            return cls(**content)
        except FileNotFoundError as error:
            why = UNMEASURED if (path.parent / LOG).exists() else NO_RUN
            raise CheckpointError(f"{path}: no such checkpoint; {why}") from error
        except Exception as error:  # torch and pydantic raise many types for a damaged file
            raise CheckpointError(f"{path}: not a usable checkpoint ({error})") from error

    def restore_model(self) -> MetaModel:
        """The trained model in float32, the precision of a bundle."""
        model = MetaModel(self.config.model_copy(update={"precision": "float32"}), pretrained=False)
        model.load_state_dict(self.model)
        return model


def resume_from(
    path: Path, config: Config, *, resume: bool, part: Callable[[Config], dict[str, Any]] = Config.model_dump
) -> Checkpoint | None:
    """The checkpoint at `path` to continue from; None if there is none.

    Args:
        part: the part of a configuration that must not have changed.

    Raises:
        CheckpointError: there is one and `resume` is false, or it has another configuration.
    """
    if not path.exists():
        return None
    if not resume:
        raise CheckpointError(f"{path.parent} already holds a run: pass --resume, or another folder")
    last = Checkpoint.load(path)
    then, now = part(last.config), part(config)
    changed = [key for key in now if then[key] != now[key]]
    if changed:
        raise CheckpointError(
            f"{path} belongs to another configuration: {', '.join(changed)} changed. Use the "
            "recipe that it was started with, or another folder. A run ends where its recipe says; to train a conv4 "
            "further, export the run and start another from the bundle, with backbone.warm_start"
        )
    return last
