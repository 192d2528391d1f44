"""`comln-train evaluate` on several data sets, with kinds and groups of their own; records."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from comln_serve.bundle import Calibration, load_bundle
from tests.support.bundles import edit_manifest
from tests.support.commands import Command
from tests.support.training import colour_folders
from tests.trainer.commands.test_evaluate import FEW
from training.bundles.card import render_card

Run = Callable[..., str]


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders `one` and `two`, whose images are named <group>_<number>."""
    roots = tuple(tmp_path_factory.mktemp("data") / name for name in ("one", "two"))
    for root in roots:
        colour_folders(root)
        for path in sorted(root.glob("*/*/*.png")):
            path.rename(path.with_name(f"{int(path.stem) // 3}_{path.stem}.png"))
    return roots[0], roots[1]


@pytest.fixture
def run(bundle: Path, domains: tuple[Path, Path], comln_train: Command) -> Run:
    """`evaluate` on both folders; its output."""
    one, two = domains
    few = ("--queries", "3", "--episodes", "6")
    return partial(comln_train, "evaluate", bundle, "--data", one, "--data", f"other={two}", *few)


def test_every_data_set_has_a_table_and_their_mean_is_the_last(run: Run) -> None:
    options = ("--task", "3x1", "--task", "3x1-3", "--baselines", "cosine,ridge-cv")
    tree = json.loads(run(*options, "--format", "json"))
    measured = [(t["data"], t["task"]) for t in tree["tasks"]]
    assert measured == list(product(("one", "other"), ("3x1", "3x1-3")))
    first = [t for t in tree["tasks"] if t["task"] == "3x1"]
    mean = tree["means"][0]
    assert mean["mean"] == pytest.approx(np.mean([t["mean"] for t in first]))
    assert mean["interval"] == pytest.approx(np.hypot(*(t["interval"] for t in first)) / 2)
    assert [head["head"] for head in mean["heads"]] == ["start", "cosine", "ridge-cv"]
    cosine = [t["baselines"][0] for t in first]
    assert mean["heads"][1]["ahead"] == pytest.approx(np.mean([c["ahead"] for c in cosine]))
    assert mean["heads"][1]["ahead_interval"] == pytest.approx(np.hypot(*(c["ahead_interval"] for c in cosine)) / 2)
    text = run(*options)
    assert text.count("start alone (T = 0)") == 3 * 2 + 1  # and its description
    assert text.index("Data set one") < text.index("Data set other") < text.index("Mean over")
    assert text.count("3-way 1-shot: The bundle is ") == 3


def test_all_classes_are_measured_whatever_their_split(run: Run) -> None:
    """Only both splits together have 16 classes; then none are left to choose the step of anil-10."""
    out = run("--task", "16x1", "--split", "all", "--baselines", "all")
    assert "16-way 1-shot" in out
    assert "anil-10 is left out" in out
    assert "svm-cv" in out


def test_a_class_in_two_splits_is_told(bundle: Path, domains: tuple[Path, Path], comln_train: Command) -> None:
    said = f"{domains[0]}: classes with folders in several splits: 8, first 'class0'"
    for split in ("all", "val"):
        comln_train("evaluate", bundle, "--data", domains[0], "--split", split, *FEW)
        assert (said in comln_train.told) == (split == "all")


def test_results_are_recorded_by_data_set(run: Run, bundle: Path) -> None:
    run("--task", "3x1", "--baselines", "cosine", "--group", r"other=^\d+|x", "--record")
    manifest = load_bundle(bundle).manifest
    assert manifest.format_version == 3
    assert {entry.data for entry in manifest.accuracy} >= {"one", "other"}
    compared = [(e.data, e.head) for e in manifest.comparisons]
    assert compared == list(product(("one", "other"), ("start", "cosine")))
    one, other = (next(e for e in manifest.accuracy if e.data == name) for name in ("one", "other"))
    assert "--data one=DATA --split" in one.command
    assert r"--data other=DATA --group 'other=^\d+|x' --split" in other.command
    card = (bundle / "README.md").read_text()
    assert card == render_card(bundle.name, manifest)
    assert "mean over one, other" in card.split("\n\n")[1]
    rows = [line for line in card.splitlines() if line.startswith(("| data |", "| other |"))]
    assert len({line.replace(r"\|", "").count("|") for line in rows[:2]}) == 1
    # Measuring one of them again does not change the other.
    run("--task", "3x1", "--seed", "1", "--record")
    assert [e.head for e in load_bundle(bundle).manifest.comparisons] == ["start", "start"]


def test_version_2_has_no_names_of_data_sets(run: Run, bundle: Path) -> None:
    run("--task", "3x1", "--record")
    edit_manifest(bundle, lambda tree: tree.update(format_version=2))
    with pytest.raises(Exception, match="format_version 3"):
        load_bundle(bundle)


def test_one_data_set_without_a_name_is_recorded_without_a_name(
    bundle: Path, domains: tuple[Path, Path], comln_train: Command
) -> None:
    comln_train("evaluate", bundle, *FEW, "--record", "--data", domains[0])
    tree = json.loads((bundle / "bundle.json").read_text())
    assert all("data" not in entry for entry in tree["accuracy"])
    assert tree["format_version"] == 2
    comln_train("evaluate", bundle, *FEW, "--record", "--data", f"named={domains[0]}")
    assert {e.data for e in load_bundle(bundle).manifest.comparisons} == {None, "named"}


def test_groups_lower_the_accuracy_of_their_data_set(run: Run) -> None:
    """The data set with groups has other episodes than before; those of the other are unchanged."""
    options = ("--task", "3x2", "--format", "json")
    plain = json.loads(run(*options))["tasks"]
    other = json.loads(run(*options, "--group", r"other=^\d+"))["tasks"]
    both = json.loads(run(*options, "--group", r"^(\d+)_"))["tasks"]
    none = json.loads(run(*options, "--group", r"^\d+", "--group", "one=", "--group", "other="))
    assert [p["mean"] == o["mean"] for p, o in zip(plain, other, strict=True)] == [True, False]
    assert both[1]["mean"] == other[1]["mean"]
    assert both[0]["mean"] != plain[0]["mean"]
    assert [t["mean"] for t in none["tasks"]] == [t["mean"] for t in plain]


def test_a_bundle_of_another_kind_is_measured_on_folders(
    bundle: Path, domains: tuple[Path, Path], comln_train: Command
) -> None:
    omniglot = {"kind": "omniglot", "rotations": True}
    edit_manifest(bundle, lambda tree: tree["training"]["config"]["data"].update(omniglot))
    measure = ["evaluate", bundle, *FEW, "--data", f"mine={domains[0]}"]
    error = comln_train.refused(*measure)
    assert "read as omniglot" in error
    assert "--kind image_folder" in error
    comln_train(*measure, "--kind", "image_folder")
    comln_train(*measure, "--kind", "mine=image_folder", "--split", "all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "two", "--data", "there/two"], "two data sets have the same name"),
        (["--data", "two", "--kind", "photos"], "nor one of omniglot"),
        (["--data", "two", "--group", "(("], "not a regular expression"),
    ],
)
def test_mistakes_say_what_to_do(bundle: Path, comln_train: Command, options: list[str], message: str) -> None:
    assert message in comln_train.refused("evaluate", bundle, *options)


@pytest.mark.parametrize("name", ["calibrate", "study"])
def test_the_other_commands_take_groups_and_study_one_data_set(
    name: str, bundle: Path, domains: tuple[Path, Path], tmp_path: Path, comln_train: Command
) -> None:
    command = [name, bundle, *FEW, "--data", domains[0]]
    if name == "study":
        command += ["--out", tmp_path / "study", "--horizon", "1", "--step-size", "1"]
        assert "takes one --data, got 2" in comln_train.refused(*command, "--data", domains[1])
    assert "no file name matches" in comln_train.refused(*command, "--group", "^x")
    comln_train(*command, "--group", r"^\d+")


def test_each_data_set_is_calibrated_by_the_others(
    bundle: Path, domains: tuple[Path, Path], tmp_path: Path, comln_train: Command
) -> None:
    """Each is measured with laws fitted to the others; the laws fitted to all are recorded."""
    options = ["--task", "3x1", "--task", "3x2", "--queries", "3", "--episodes", "6"]
    fewer = shutil.copytree(domains[1], tmp_path / "fewer")
    for folder in sorted((fewer / "val").iterdir())[:3]:
        shutil.rmtree(folder)
    one, two = ["--data", f"a={domains[0]}"], ["--data", f"b={fewer}"]
    printed: list[str] = []

    def calibrate(*data: str) -> Calibration:
        printed.append(comln_train("calibrate", bundle, *options, *data))
        manifest = load_bundle(bundle).manifest
        assert manifest.calibration is not None
        assert manifest.calibration.unknown_relative == (len(data) > 2)
        assert manifest.format_version == (8 if len(data) > 2 else 3)
        return manifest.calibration

    alone = calibrate(*one)
    together = calibrate(*one, *two)
    assert [task.data for task in together.tasks] == ["a", "a", "b", "b"]
    assert together.log_temperature != alone.log_temperature
    # The error on `b` is that of laws fitted to `a`; laws fitted to both would give another.
    again = calibrate(*two, *one)
    by_data = {(t.data, t.shots): t for t in again.tasks}
    for task in together.tasks:
        assert by_data[task.data, task.shots] == task
    assert "Mean over data sets and ways" in printed[-1]
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert "fitted to the others alone" in " ".join(card.split())
