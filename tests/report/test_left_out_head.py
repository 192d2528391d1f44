"""The example photos are of a data set that the shipped head was learned on; the documents say what that changes."""

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from comln_serve.engine.engine import Engine, NewClassifier
from tests.support.bundles import edit_manifest, edit_tensors
from tests.support.documents import document
from tests.support.engines import MakeEngine, predict
from tests.support.paths import REPOSITORY

GROCERIES = REPOSITORY / "examples" / "groceries"
SHIPPED, LEFT_OUT = "photos-efficientnet-lite0", "without-groceries"


def head_learned_without(name: str) -> tuple[float, ...]:
    """alpha, similarity, beta, r, and T at 5-way 1-shot, 5-way 5-shot and 20-way 5-shot, learned without a data set."""
    text = (REPOSITORY / "benchmarks" / "results" / "domains.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {name} \| (\d.*) \|$", text, re.MULTILINE)
    return tuple(map(float, row.split(" | ")))


@pytest.fixture
def engine(tmp_path: Path, make_engine: MakeEngine) -> Engine:
    """The shipped bundle, and the same with the head that was learned without the groceries."""
    models = tmp_path / "models"
    for name in (SHIPPED, LEFT_OUT):
        shutil.copytree(REPOSITORY / "models" / SHIPPED, models / name)
    alpha, similarity, offset, whitening, one, five, twenty = head_learned_without("groceries")
    # T = horizon M^examples N^classes, through the three values.
    examples = math.log(five / one, 5)
    classes = math.log(twenty / five, 4) - examples
    head = {
        "horizon": one / (15**examples * 5**classes),  # five images in three views each
        "similarity": similarity,
        "shot_offset": offset,
        "whitening": whitening,
        "exponents": {"examples": examples, "classes": classes, "norm": 0.0},
    }
    tensors = {"alpha": np.array(alpha), "T": np.array(head["horizon"])}
    edit_tensors(models / LEFT_OUT, lambda found: found.update(tensors))
    edit_manifest(models / LEFT_OUT, lambda content: content["head"].update(head))
    edit_manifest(models / LEFT_OUT, lambda content: content.update(calibration=None))
    made = make_engine(models_dir=models, default_model=SHIPPED)
    made.warm()
    return made


def test_the_examples_are_recognised_as_well_by_a_head_learned_without_them(engine: Engine) -> None:
    support = [(path.read_bytes(), path.parts[-3]) for path in sorted(GROCERIES.glob("*/support/*.jpg"))]
    query = [(path.read_bytes(), path.parts[-3]) for path in sorted(GROCERIES.glob("*/query/*.jpg"))]
    right: dict[str, int] = {}
    for model in (SHIPPED, LEFT_OUT):
        made = engine.adapt(support, NewClassifier(model=model)).classifier
        predicted = predict(engine, [photo for photo, _ in query], made.id)
        labels = np.array(made.labels)[predicted.probabilities.argmax(axis=1)]
        right[model] = int(np.sum(labels == np.array([label for _, label in query])))
    said = " ".join(document("tutorial-shop.md").split())
    assert f"With the head learned without these photos {right[LEFT_OUT]} of the 70 are right (" in said
    assert f"accuracy: {right[SHIPPED]}/70" in said
