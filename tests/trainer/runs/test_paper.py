"""docs/paper.md: generated from what was measured, and its commands train."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from benchmarks.meta_gradient_rows import CSV
from benchmarks.paper import page
from tests.support.documents import document
from tests.support.paths import REPOSITORY
from training.config import load_config
from training.data import ImageSet
from training.runs.fit import fit

TEXT = document("paper.md")
COMMANDS = sorted(set(re.findall(r"`(comln-train fit [^`]*)`", TEXT)))
# One update of a small network on few, small images.
SMALL = (
    "data.preprocessing={image_size: 32}",
    "episodes.tasks=1",
    "episodes.queries=1",
    "validation.episodes=2",
    "validation.queries=1",
    "updates=1",
)


def test_the_page_is_up_to_date() -> None:
    assert page() == TEXT, "run `make paper`"


def test_every_cell_has_its_command() -> None:
    """Table 2 has eight, Table 4 shares one and adds one, Table 5 has two, Figure 5 has one."""
    assert len(COMMANDS) == 8 + 1 + 2 + 1


def test_figures_show_the_papers_points_beside_the_recorded_ones() -> None:
    """Rows of benchmarks/results/meta_gradient.csv: MAML, ten steps through Conv-4; COMLN, the longest T, ResNet-12."""
    with CSV.open(newline="", encoding="utf-8") as file:
        found = {
            (row["contender"], row["d"], row["steps"]): row
            for row in csv.DictReader(file)
            if (row["part"], row["on"]) == ("steps", "images")
        }
    conv4, resnet12 = (TEXT.split(f"### Figure {number}: ")[1].split("###")[0] for number in (3, 4))
    maml, comln = found["MAML", "1600", "10"], found["forward", "16000", "100000000"]
    assert f"| 10 | 5.765 / {float(maml['extra_mb']) / 1e3:.2f} |" in conv4
    assert f"| 10 | 207.56 / {float(maml['median_ms']):,.0f} |" in conv4
    assert f" | 4.638 / {float(comln['extra_mb']) / 1e3:.2f} | " in resnet12.split("| 100,000,000 |")[1]
    assert f" | 255.32 / {float(comln['median_ms']):,.0f} | " in resnet12.split("| 100,000,000 |")[2]


def classes(images: np.ndarray) -> ImageSet:
    """Six classes of seven images each."""
    return ImageSet(images, tuple(np.arange(7 * c, 7 * c + 7) for c in range(6)), tuple("abcdef"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_trains(command: str, tmp_path: Path) -> None:
    words = shlex.split(command.replace("=T", "=2.0"))
    overrides = tuple(words[i + 1] for i, word in enumerate(words) if word == "--set")
    small = SMALL[1:] if "embeddings" in command else (*SMALL, "backbone.channels=8")
    whole, config = (load_config(REPOSITORY / words[2], overrides + more) for more in ((), small))
    shots = whole.episodes.shots
    assert whole.validation.tasks == ((5, shots[0]),), "the checkpoint is chosen by tasks of its own shots"
    assert (whole.episodes.ways, whole.head.start) == ((5, 5), "learned")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (42, 32, 32, 3), dtype=np.uint8)
    if whole.data.kind == "embeddings":
        images = rng.normal(size=(42, 640)).astype(np.float32)
    best = fit(config, classes(images), classes(images), tmp_path, resume=False)
    assert best.restore_model().W0 is not None
    (record,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert np.isfinite(record["loss"])
    assert (record["horizon"] != whole.head.initial_horizon) == whole.head.learn_horizon
