"""Two processes make the same update as one with the whole batch."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.programs import python
from tests.support.training import check_equal_runs, colour_classes, config, save_images
from training.checkpoint import Checkpoint
from training.checkpoint_names import LAST
from training.config import Config
from training.runs.distributed import Group, share_batch_norm
from training.runs.log import read_log
from training.runs.pretrain import PRETRAINING

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_images(colour_classes(), tmp_path_factory.mktemp("images"))


def train(settings: Config, images: Path, out: Path, processes: int) -> subprocess.CompletedProcess[str]:
    recipe = out.with_suffix(".json")
    recipe.write_text(settings.model_dump_json())
    launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m") if processes > 1 else ()
    return python("-m", *launcher, "training", "fit", recipe, "--data", images, "--out", out, OMP_NUM_THREADS="1")


def two_phases(tasks: int = 4, updates: int = 2) -> Config:
    return config(
        "prototype",
        episodes={"tasks": tasks},
        pretraining={"epochs": 1, "batch_size": 13, "lr": 0.01},
        augmentation={"crop_padding": 2, "flip": True, "jitter": 0.2},
        validation={"every": 1},
        updates=updates,
    )


@pytest.mark.timeout(240)
def test_two_processes_train_as_one(tmp_path: Path, images: Path) -> None:
    settings = two_phases()
    for processes in (1, 2):
        done = train(settings, images, tmp_path / f"run{processes}", processes)
        assert done.returncode == 0, done.stderr[-3000:]
    for name in (PRETRAINING, LAST):
        one, two = (Checkpoint.load(tmp_path / run / name) for run in ("run1", "run2"))
        assert one.update == two.update
        assert two.hardware.startswith("2 processes")
        for key, tensor in one.model.items():
            torch.testing.assert_close(two.model[key], tensor, rtol=2e-4, atol=2e-5, msg=key)
        # After so few updates the optimiser's momentum is a sum of the gradients.
        for number in one.optimiser["state"]:
            expected, found = (run.optimiser["state"][number]["momentum_buffer"] for run in (one, two))
            scale = float(expected.abs().max()) or 1.0
            torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=1e-3)
        assert len(two.optimiser["state"]) == len(one.optimiser["state"]) > 0
    logs = [(tmp_path / run / "log.jsonl").read_text() for run in ("run1", "run2")]
    assert logs[0].count("\n") == logs[1].count("\n") == 3  # one process writes


def test_tasks_that_cannot_be_shared_evenly_are_refused(tmp_path: Path, images: Path) -> None:
    done = train(two_phases(tasks=3), images, tmp_path / "run", 2)
    assert done.returncode != 0
    assert "2 processes cannot share 3 tasks" in done.stderr


def test_alone_nothing_is_changed() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3))
    share_batch_norm(model, Group())
    assert type(model[0]) is nn.BatchNorm2d


def test_a_killed_and_resumed_run_equals_one_never_stopped(tmp_path: Path, images: Path) -> None:
    """The run, in a process of its own, is killed in the middle; the resumed run is bit-equal."""
    settings = two_phases(updates=6)
    whole = train(settings, images, tmp_path / "whole", 1)
    assert whole.returncode == 0, whole.stderr[-3000:]
    killer = (
        "import os, signal, sys\n"
        "import training.runs.fit as module\n"
        "draw = module.draw_batch\n"
        "def draw_and_die(config, images, update, group):\n"
        "    if update == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return draw(config, images, update, group)\n"
        "module.draw_batch = draw_and_die\n"
        "from training.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ("fit", tmp_path / "whole.json", "--data", images, "--out", tmp_path / "killed")
    assert python("-c", killer, *arguments, OMP_NUM_THREADS="1").returncode == -9
    resumed = python("-m", "training", *arguments, "--resume", OMP_NUM_THREADS="1")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    check_equal_runs(tmp_path / "whole", tmp_path / "killed", updates=6)
    changing = {"seconds", "episodes_per_second"}
    one_log, two_log = (
        [{k: v for k, v in record.items() if k not in changing} for record in read_log(tmp_path / run)]
        for run in ("whole", "killed")
    )
    assert one_log == two_log
    assert np.isfinite([record["loss"] for record in two_log]).all()
