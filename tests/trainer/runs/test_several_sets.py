"""Meta-training on several data sets: recipes, paths, episodes, validation, bundles."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from comln_serve.bundle import load_bundle
from tests.support.commands import Command
from tests.support.data_files import POLICY
from tests.support.documents import blocks, document
from tests.support.image_files import image_bytes
from tests.support.stopping import stopped_after_saving
from tests.support.tiny import changed, tiny_config
from tests.support.training import check_equal_runs, image_set
from tests.trainer.backbones.test_frozen import EXPORT, onnx_config
from training.checkpoint import Checkpoint
from training.checkpoint_names import BEST, LAST
from training.config import Config, ConfigError, DataConfig, load_config
from training.data import DataError, ImageSet, load_split
from training.data.resident import ResidentImages
from training.data.several import load_training, shared_classes
from training.runs.episodes import MetaBatch, draw_batch
from training.runs.fit import fit
from training.runs.log import read_log

FOLDER = {"kind": "image_folder"}
BOTH = [FOLDER | {"name": "a"}, FOLDER | {"name": "b"}]
LEFT_OUT = [FOLDER | {"name": "a", "use": "train"}, FOLDER | {"name": "b", "use": "val"}]


def section(sets: list[dict[str, Any]], size: int = 16) -> dict[str, Any]:
    return {"kind": "several", "preprocessing": {"image_size": size}, "sets": sets}


def several(sets: list[dict[str, Any]], base: Config | None = None, **changes: Any) -> Config:
    base = base or tiny_config("prototype", ways=3)
    return changed(base, data=section(sets, base.data.preprocessing.image_size), **changes)


def plain(value: int, classes: int, per_class: int = 6, groups: int = 0) -> ImageSet:
    """Classes whose images have one colour, or the colour `value` + the image's group."""
    count = classes * per_class
    numbers = np.arange(count) % max(groups, 1)
    images = np.broadcast_to((value + numbers)[:, None, None, None], (count, 16, 16, 3)).astype(np.uint8)
    of_class = np.arange(count) // per_class * max(groups, 1) + numbers
    return image_set(images, [per_class] * classes, groups=of_class if groups else None)


def write_folder(root: Path, classes: int, colour: int = 90) -> Path:
    """`<class>/<track>_<frame>.png`: two tracks of three frames in every class."""
    for c in range(classes):
        folder = root / f"class{c}"
        folder.mkdir(parents=True)
        for i in range(6):
            content = image_bytes((colour, 20 * c, 200 - 20 * c), (16, 16), seed=100 * c + i)
            (folder / f"{i // 3:05}_{i}.png").write_bytes(content)
    return root


def draw(config: Config, sets: list[ImageSet], updates: int) -> list[MetaBatch]:
    images = [ResidentImages(data, torch.device("cpu")) for data in sets]
    return [draw_batch(config, images, update) for update in range(updates)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (section([]), "for train, with use: train or both; got no set"),
        (section([FOLDER | {"name": "a", "use": "train"}]), "for val, with use"),
        (section([FOLDER | {"name": "b", "use": "val"}]), "for train, with use"),
        (section([FOLDER]), "data.sets.0.name"),
        (section([FOLDER | {"name": "a=b"}]), "none of the characters"),
        (section([FOLDER | {"name": ""}]), "not empty"),
        (section([*BOTH, FOLDER | {"name": "a"}]), "two sets have the same name"),
        (section([FOLDER | {"name": "a", "preprocessing": {"image_size": 84}}]), "share one"),
        (section([FOLDER | {"name": "a", "use": "test"}]), "data.sets.0.use"),
        (section([FOLDER | {"name": "a", "group": "(("}]), "not a regular expression"),
        (section([FOLDER | {"name": "a", "rotations": True}]), "rotations are for"),
        (section([{"kind": "embeddings", "name": "a"}]), "cannot be one of several"),
        (section([{"kind": "several", "name": "a"}]), "cannot be one of several"),
        (section(BOTH) | {"group": "x"}, "belong to each of sets"),
        (section(BOTH) | {"class_shares": [0.5, 0.25, 0.25]}, "belong to each of sets"),
        (section(BOTH) | {"kind": "image_folder"}, 'sets are for kind "several"'),
        ({"kind": "several", "sets": BOTH}, "preprocessing is needed"),
    ],
)
def test_sets_that_cannot_be_used_are_refused(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"data": data, "updates": 1}))
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(path)


def test_pretraining_takes_one_training_set() -> None:
    with pytest.raises(ValueError, match="pretraining is on the classes of one data set"):
        several(BOTH, pretraining={"epochs": 1})
    assert several(LEFT_OUT, pretraining={"epochs": 1}).pretraining is not None


def test_the_documented_sections_load() -> None:
    trees = [yaml.safe_load(block) for block in blocks(document("data.md"), "yaml")]
    sections = [tree for tree in trees if "several" in str(tree)]
    assert sections
    for tree in sections:
        assert DataConfig.model_validate(tree["data"]).used_for("val")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a=x"], "no --data for b"),
        (["a=x", "b=y", "c=z"], "unknown name 'c'"),
        (["a=x", "y"], "--data y has no name"),
        (["a=x", "b=y", "a=z"], "given twice"),
    ],
)
def test_paths_must_be_those_of_the_recipes_sets(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        load_training(several(BOTH).data, given)
    assert "data sets are a, b" in str(error.value)


def test_one_data_set_takes_one_path() -> None:
    with pytest.raises(ConfigError, match="takes one --data PATH, got 2"):
        load_training(tiny_config().data, ["x", "y"])


def test_each_set_is_read_as_its_own_section_says(tmp_path: Path) -> None:
    a, b = (write_folder(tmp_path / name, classes=7) for name in "ab")
    paths = [f"b={b}", f"a={a}"]
    sets = [FOLDER | {"name": "a"}, FOLDER | {"name": "b", "group": r"^\d{5}"}]
    train, val = load_training(several(sets).data, paths)
    assert isinstance(train, dict)
    assert isinstance(val, dict)
    assert list(train) == list(val) == ["a", "b"]
    assert not set(train["a"].names) & set(val["a"].names)
    assert train["a"].groups is None
    assert train["b"].groups is not None

    train, val = load_training(several(LEFT_OUT).data, paths)
    assert isinstance(train, dict)
    assert isinstance(val, dict)
    assert (list(train), list(val)) == (["a"], ["b"])
    assert train["a"].n_classes == val["b"].n_classes == 7


def test_a_set_for_one_use_has_no_other_split(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", classes=4)
    config = DataConfig(kind="image_folder", preprocessing=POLICY)
    for split in ("train", "all"):
        assert load_split(config, root, split, use="train").n_classes == 4
    for split in ("val", "test"):
        with pytest.raises(DataError, match=f"no split {split}"):
            load_split(config, root, split, use="train")


def test_a_set_for_one_use_whose_classes_are_in_two_splits_is_told() -> None:
    twice = replace(plain(10, classes=2), names=("train/x", "val/x"))
    (warning,) = shared_classes(several(LEFT_OUT).data, {"a": twice}, {"b": plain(20, classes=2)})
    assert warning.startswith("a: classes with folders in several splits: 1, first 'x'")


def test_tasks_come_from_every_set_and_have_no_more_ways_than_it_has_classes() -> None:
    config = several(BOTH, episodes={"ways": [2, 6], "shots": [1, 2], "queries": 2, "tasks": 2})
    sets = [plain(10, classes=3), plain(200, classes=8)]
    drawn = draw(config, sets, 150)
    of_both = 0
    for batch in drawn:
        colours = [set(task.flatten().tolist()) for task in batch.images]
        assert all(colour in ({10}, {200}) for colour in colours)
        small = {10} in colours
        assert len(batch.shots) <= (3 if small else 6)
        of_both += colours[0] != colours[1]
    share = np.mean([float((batch.images == 10).float().mean()) for batch in drawn])
    assert 0.4 < share < 0.6
    assert of_both > 40
    assert {len(batch.shots) for batch in drawn} == {2, 3, 4, 5, 6}
    for one, two in zip(drawn[:10], draw(config, sets, 10), strict=True):
        assert one.shots == two.shots
        assert torch.equal(one.images, two.images)


def test_groups_are_kept_in_the_tasks_of_their_data_set() -> None:
    config = several(BOTH, episodes={"ways": 2, "shots": 2, "queries": 2, "tasks": 2})
    seen = 0
    for batch in draw(config, [plain(10, 4), plain(100, 4, groups=3)], 30):
        for task in batch.images[:, :, 0, 0, 0]:
            support, queries = task[:4].reshape(2, 2), task[4:].reshape(2, 2)
            if support[0, 0] >= 100:
                seen += 1
                for of_class, asked in zip(support.tolist(), queries.tolist(), strict=True):
                    assert not set(of_class) & set(asked)
    assert seen > 10


def test_too_few_classes_name_the_set(tmp_path: Path) -> None:
    sets = {"a": plain(10, 8), "b": plain(100, 3)}
    wide = several(BOTH, episodes={"ways": [4, 6], "shots": 1, "queries": 2})
    with pytest.raises(DataError, match=r"training on b: .*need 4 classes; there are 3"):
        fit(wide, sets, {"a": sets["a"]}, tmp_path / "run", resume=False)
    validation = {"tasks": [[5, 1]], "episodes": 4, "queries": 2}
    with pytest.raises(DataError, match=r"validation on b: .*need 5 classes; there are 3"):
        fit(several(BOTH, validation=validation), sets, sets, tmp_path / "run", resume=False)


def images_of(seed: int, classes: int, size: int = 16) -> ImageSet:
    images = np.random.default_rng(seed).integers(0, 256, (classes * 6, size, size, 3), dtype=np.uint8)
    return image_set(images, [6] * classes)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_resumed_run_equals_one_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    base = onnx_config(tmp_path) if frozen else None
    settings = several(BOTH, base)
    size = settings.data.preprocessing.image_size
    train = {"a": images_of(0, 5, size), "b": images_of(1, 6, size)}
    best = fit(settings, train, train, tmp_path / "whole", resume=False)

    # Results are by data set; the best checkpoint has the best mean over them.
    records = [r["validation"] for r in read_log(tmp_path / "whole")]
    assert [result["data"] for result in records[0]] == ["a", "b"]
    scores = [float(np.mean([result["mean"] for result in results])) for results in records]
    assert best.best == max(scores)
    assert best.validation == records[scores.index(max(scores))]
    page = (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    for result in best.validation:
        name = f"{result['data']}, {result['ways']}-way {result['shots']}-shot"
        assert f"{name}<td>{100 * result['mean']:.2f}" in page

    with stopped_after_saving(monkeypatch, lambda _, path: path.name == LAST):
        fit(settings, train, train, tmp_path / "stopped", resume=False)
    fit(settings, train, train, tmp_path / "stopped", resume=True)
    check_equal_runs(tmp_path / "whole", tmp_path / "stopped", updates=4)


def test_from_recipe_to_measured_bundle(tmp_path: Path, comln_train: Command) -> None:
    a, b, c = (write_folder(tmp_path / name, classes=5) for name in "abc")
    sets = [FOLDER | {"name": "a", "use": "train"}, FOLDER | {"name": "b", "use": "val", "group": r"^\d{5}"}]
    recipe, run, bundle = tmp_path / "recipe.yaml", tmp_path / "run", tmp_path / "bundle"
    recipe.write_text(several(sets).model_dump_json())
    comln_train("fit", recipe, "--data", f"a={a}", "--data", f"b={b}", "--out", run)
    comln_train("export", run, "--to", bundle, *EXPORT)

    manifest = load_bundle(bundle).manifest
    assert manifest.training.command == ("comln-train fit recipe.yaml --data a=DATA --data b=DATA --out RUN")
    written = manifest.training.config["data"]["sets"]
    assert [(part["name"], part["use"], part["group"]) for part in written] == [
        ("a", "train", None),
        ("b", "val", r"^\d{5}"),
    ]
    assert str(tmp_path) not in (bundle / "bundle.json").read_text()
    assert [(entry.data, entry.split) for entry in manifest.accuracy] == [("b", "val")]
    recorded = Checkpoint.load(run / BEST).validation[0]
    measure = f"evaluate {bundle} --task 3x1 --episodes 5 --format json --queries".split()
    # The validation set is read with its own group and use, so the episodes are those of training.
    (task,) = json.loads(comln_train(*measure, 2, "--data", f"b={b}", "--split", "val"))["tasks"]
    assert task["mean"] == pytest.approx(recorded["mean"])
    # With two tracks of three frames there are not four queries outside the support image's track.
    assert "groups" in comln_train.refused(*measure, 4, "--data", f"b={b}", "--split", "val")
    # All classes of the training set were used for training, so it has no split val.
    assert "no split val" in comln_train.refused(*measure, 2, "--data", f"a={a}")
    comln_train(*measure, 2, "--data", f"a={a}", "--split", "all")
    # Another data set needs a kind.
    assert "--kind c=KIND" in comln_train.refused(*measure, 2, "--data", f"c={c}", "--split", "all")
    given = ("--data", f"c={c}", "--data", f"b={b}", "--kind", "c=image_folder", "--split", "all")
    assert [task["data"] for task in json.loads(comln_train(*measure, 2, *given))["tasks"]] == ["c", "b"]
