"""The log of a run, `log.jsonl`, also written as TensorBoard events."""

import json
from pathlib import Path
from typing import Any, Literal

from torch.utils.tensorboard import SummaryWriter

from training.checkpoint_names import LOG

EVENTS = "tensorboard"

Phase = Literal["pretraining", "episodes"]


class RunLog:
    """Appends records of one phase; records after step `start`, left by a killed run, are dropped.

    A record is a JSON object with "phase", "step" (epochs or updates done), numbers by name, and
    "validation", a list of accuracies, each with "data" if there are several data sets.
    """

    def __init__(self, out: Path, phase: Phase, start: int) -> None:
        self.path, self.phase = out / LOG, phase
        kept = [r for r in read_log(out) if r["phase"] != phase or r["step"] <= start]
        self.path.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
        self.events = SummaryWriter(out / EVENTS / phase, purge_step=start + 1)

    def record(self, step: int, validation: list[dict[str, Any]], **numbers: float | None) -> None:
        """Write one record."""
        content = {"phase": self.phase, "step": step, **numbers, "validation": validation}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
        for name, value in numbers.items():
            if value is not None:
                self.events.add_scalar(name, value, step)
        for result in validation:
            self.events.add_scalar(f"accuracy/{describe(result)}", result["mean"], step)
        self.events.flush()

    def close(self) -> None:
        self.events.close()


def describe(result: dict[str, Any]) -> str:
    """Task and data set of an accuracy in "validation", in words."""
    task = f"{result['ways']}-way {result['shots']}-shot"
    return f"{result['data']}, {task}" if "data" in result else task


def read_log(out: Path) -> list[dict[str, Any]]:
    """The records of a run, none without the file; an incomplete last line, left by a crash, is ignored."""
    path, records = out / LOG, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records
