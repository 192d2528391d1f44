"""`comln-train evaluate` and `study` on a tiny bundle: tables, files, records, mistakes."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from comln_serve.bundle import load_bundle
from tests.support.commands import Command
from tests.support.engines import Serve
from tests.support.full_disk import full_disk
from tests.support.image_files import image_bytes
from training.bundles.card import render_card
from training.cli import main
from training.evaluation import baselines
from training.evaluation.baselines import BASELINES
from training.results.accuracy import Difference
from training.results.tables import aligned, markdown
from training.results.verdict import verdict

FEW = ("--task", "3x1", "--queries", "3", "--episodes", "5")


Run = Callable[..., str]


@pytest.fixture
def run(bundle: Path, images: Path, comln_train: Command) -> Run:
    """`evaluate`, or another command, on a few small episodes; its output."""

    def command(*options: object, name: str = "evaluate", status: int = 0) -> str:
        few = ("--queries", "3", "--episodes", "8")  # a later option wins
        return comln_train(name, bundle, "--data", images, *few, *options, status=status)

    return command


def test_progress_without_a_terminal(run: Run, comln_train: Command) -> None:
    """In a log of a job, minutes without a line look like a command that hangs."""
    run("--task", "3x1", "--baselines", "cosine,ridge")
    first, second, *heads = comln_train.told.splitlines()
    assert "embedding" in first
    assert not any(name in second for name in ("cosine", "ridge"))
    assert [name in line for name, line in zip(("cosine", "ridge"), heads, strict=True)] == [True, True]


def test_a_full_disk_names_what_cannot_be_written(
    run: Run, bundle: Path, comln_train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (bundle / "bundle.json").read_bytes()
    monkeypatch.setattr(Path, "write_text", full_disk)
    run("--task", "3x1", "--record", status=2)
    assert comln_train.told.endswith(f"comln-train: {bundle} cannot be written: No space left on device\n")
    run("--task", "3x1", "--out", bundle / "report", status=2)
    assert comln_train.told.endswith(f"{bundle / 'report'} cannot be written: No space left on device\n")
    assert (bundle / "bundle.json").read_bytes() == before


@pytest.mark.slow
def test_all_heads_in_one_table(run: Run) -> None:
    out = run("--task", "3x2", "--task", "4x1-3", "--baselines", "all")
    for words in ("3-way 2-shot", "4-way 1-to-3-shot"):
        lines = [line for line in out.splitlines() if line.startswith(words)]
        heads = [line.removeprefix(words).split()[0] for line in lines]
        assert heads == ["bundle", "start", *BASELINES]
        assert all(line.split()[-1] in {"ahead", "inside", "behind"} for line in lines[1:])
    for name, baseline in BASELINES.items():
        assert f"{name} " in out
        assert baseline.words in out
    assert "chosen on the training classes" in out


def test_without_baselines_the_bundle_is_compared_with_its_start(run: Run) -> None:
    out = run("--task", "3x2", "--format", "json")
    (task,) = json.loads(out)["tasks"]
    assert task["baselines"] == []
    assert task["start"]["ahead"] == pytest.approx(task["mean"] - task["start"]["mean"])
    assert task["verdict"].startswith("Adapting ")
    assert "heads" not in task["verdict"]


def test_json_has_the_figures_of_the_table(run: Run, tmp_path: Path) -> None:
    options = ("--task", "3x1-2", "--baselines", "cosine,ridge", "--set", "ridge=3")
    out = run(*options, "--format", "json", "--out", str(tmp_path / "new" / "report.json"))
    tree = json.loads(out)
    assert json.loads((tmp_path / "new" / "report.json").read_text()) == tree
    (task,) = tree["tasks"]
    assert (task["task"], task["shots"], task["episodes"]) == ("3x1-2", [1, 2], 8)
    cosine, ridge = task["baselines"]
    assert cosine["head"] == "cosine"
    assert ridge["description"].endswith("lambda = 3")
    assert cosine["ahead"] == pytest.approx(task["mean"] - cosine["mean"])
    assert task["command"].endswith("--baselines cosine,ridge --set ridge=3.0")


def test_the_markdown_table_is_valid(run: Run) -> None:
    out = run("--task", "3x1", "--baselines", "prototype", "--format", "markdown")
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert table[1] == "|---|---|---|---|---|"
    assert [line.count("|") for line in table[:5]] == [6] * 5


def test_tables() -> None:
    assert aligned(["a", "bb"], [["ccc", "d"], ["", "e"]]) == "a    bb\nccc  d\n     e"
    assert markdown(["a", "b"], [["c", "d"]]) == "| a | b |\n|---|---|\n| c | d |"


@pytest.mark.slow
def test_choosing_says_what_it_chose(run: Run) -> None:
    options = ("--task", "3x1", "--baselines", "logistic,svm-l2,cosine", "--format", "json")
    (usual,) = json.loads(run(*options))["tasks"]
    (chosen,) = json.loads(run(*options, "--set", "svm-l2=2", "--choose"))["tasks"]
    texts = [head["description"] for head in usual["baselines"]]
    assert [text.rsplit(" = ")[-1] for text in texts[:2]] == ["1", "1"]
    texts = [head["description"] for head in chosen["baselines"]]
    assert "chosen on the training classes" in texts[0]
    assert texts[1].endswith("C = 2")
    assert texts[2] == BASELINES["cosine"].words


def test_unfinished_fits_are_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_LOGISTIC_ITERATIONS", 1)
    out = run("--task", "3x2", "--baselines", "logistic")
    assert "8 fits of logistic in the 8 episodes of task 3x2" in out


def test_recorded_comparisons_are_data_and_in_the_card(run: Run, bundle: Path) -> None:
    run("--task", "4x1-3", "--baselines", "cosine,ridge", "--record")
    manifest = load_bundle(bundle).manifest
    assert manifest.format_version == 2
    (own,) = [entry for entry in manifest.accuracy if entry.shots == (1, 3)]
    assert own.command.endswith("--task 4x1-3 --queries 3 --episodes 8 --seed 0")
    start, cosine, ridge = manifest.comparisons
    assert (start.head, cosine.head, ridge.head) == ("start", "cosine", "ridge")
    assert start.ahead == pytest.approx(own.mean - start.mean)
    assert ridge.description == "ridge regression to one-hot targets, lambda = 50"
    assert cosine.ahead == pytest.approx(own.mean - cosine.mean)
    assert ridge.command == own.command + " --baselines cosine,ridge"
    card = (bundle / "README.md").read_text()
    assert "Other heads on the same embeddings" in card
    assert f"| val | 4-way 1-to-3-shot | cosine | {100 * cosine.mean:.2f} +- " in card
    assert ridge.command in card


def test_another_provider_is_part_of_the_command_that_measures_it_again(run: Run, bundle: Path) -> None:
    run("--task", "3x1", "--provider", "openvino", "--record")
    (found,) = load_bundle(bundle).manifest.accuracy
    assert found.command.endswith("--seed 0 --provider openvino")


def test_comparisons_are_dropped_when_the_bundles_accuracy_changes(run: Run, bundle: Path) -> None:
    def heads() -> list[tuple[object, str]]:
        return [(e.shots, e.head) for e in load_bundle(bundle).manifest.comparisons]

    before = (bundle / "bundle.json").read_text()
    assert "comparisons" not in before
    run("--task", "3x1", "--task", "3x2", "--baselines", "cosine", "--record")
    assert heads() == [(1, "start"), (1, "cosine"), (2, "start"), (2, "cosine")]
    run("--task", "3x1", "--record")  # the same figures
    assert sorted(heads()) == [(1, "cosine"), (1, "start"), (2, "cosine"), (2, "start")]
    run("--task", "3x1", "--baselines", "ridge", "--record")  # another head
    assert {head for shots, head in heads() if shots == 1} == {"start", "cosine", "ridge"}
    run("--task", "3x1", "--seed", "1", "--record")  # other figures
    assert heads() == [(1, "start"), (2, "start"), (2, "cosine")]


def test_the_card_starts_with_the_verdicts(run: Run, bundle: Path) -> None:
    run("--task", "3x1", "--baselines", "cosine,ridge", "--record")
    (bundle / "README.md").unlink()
    manifest = load_bundle(bundle).manifest
    first = render_card("mine", manifest).split("\n\n")[1]
    start, *others = manifest.comparisons
    differences = {e.head: Difference(e.ahead, e.ahead_interval) for e in (start, *others)}
    assert first == f"- 3-way 1-shot, split val: {verdict(differences)}"
    assert "of 2 heads" in first
    nothing = manifest.model_copy(update={"comparisons": ()})
    assert "has not been measured" in " ".join(render_card("mine", nothing).split("\n\n")[1].split())


def test_a_server_lists_ranges_of_shots_and_no_other_heads(run: Run, bundle: Path, serve: Serve) -> None:
    run("--task", "4x1-3", "--baselines", "cosine", "--record")
    client = serve(models_dir=bundle.parent, default_model="mine")
    (model,) = client.get("/models").json()["models"]
    shots = [entry["shots"] for entry in model["accuracy"]]
    assert shots == [[1, 3]]
    form: Any = [("labels", (None, label)) for label in "aab"]
    form += [("images", (f"{i}.png", image_bytes(seed=i))) for i in range(3)]
    assert client.post("/adapt", files=form).status_code == 201


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--baselines", "cosine", "--set", "svm=1"], "--set svm: not among the heads"),
        (["--set", "svm=1"], "of which there are none"),
        (["--baselines", "cosine", "--choose"], "no head of --baselines has a setting left"),
        (["--baselines", "anil-10", "--split", "train"], "give --set anil-10=VALUE"),
        (["--task", "5x1-10"], "fewer ways or shots (--task), for fewer --queries"),
        (["--task", "9x1"], "9-way episodes need 9 classes; there are 8"),
        (["--task", "9x1", "--split", "val"], "The split val has 8 of the data's classes; --split all takes them all"),
        (["--out", "."], "--out . is a folder; name a file"),
        (["--out", "pyproject.toml/a/report.md"], "pyproject.toml is a file; name another"),
    ],
)
def test_mistakes_say_what_to_do(run: Run, comln_train: Command, options: list[str], message: str) -> None:
    run(*options, status=2)
    assert message in comln_train.told


def test_another_split_has_no_more_images_of_a_class(run: Run, comln_train: Command) -> None:
    run("--split", "val", "--task", "3x100", status=2)
    assert "images; an episode needs 100 + 3" in comln_train.told
    assert "--split" not in comln_train.told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--baselines", "knn"], "there is no head 'knn'; there are prototype, cosine"),
        (["--set", "cosine=1"], "NAME one of logistic"),
        (["--set", "svm=-1"], "a number > 0, got '-1'"),
        (["--set", "svm=x"], "a number > 0, got 'x'"),
        (["--task", "5x10-1"], "expected WAYSxSHOTS such as 5x1"),
        (["--seed", "-1"], "at least 0, got '-1'"),
    ],
)
def test_malformed_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "bundle", "--data", "data", *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_missing_training_classes(bundle: Path, images: Path, tmp_path: Path, comln_train: Command) -> None:
    """Without them the other heads are measured, and the step size of anil-10 can be given."""
    only_val = tmp_path / "only-val"
    shutil.copytree(images / "val", only_val / "val")
    measure = ["evaluate", bundle, "--data", only_val, *FEW, "--baselines"]
    error = comln_train.refused(*measure, "all")
    assert "the setting of anil-10 is chosen on the training classes" in error
    assert "--set anil-10=VALUE" in error
    comln_train(*measure, "all", "--set", "anil-10=0.1")
    comln_train(*measure, "cosine,svm")


def test_the_training_split_can_be_measured(run: Run) -> None:
    assert "split train" in run("--task", "3x1", "--split", "train")


def test_a_study_writes_tables_figures_and_a_plot(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "study"
    options = f"--task 3x1 --task 3x1-3 --step-size 0.02 --step-size 7 --horizon 1 --horizon 50 --out {folder}"
    out = run(*options.split(), name="study")
    assert (folder / "study.md").read_text() == out
    with (folder / "solvers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["solver"] for row in rows] == 2 * ["dopri5", "euler", "euler"]
    assert [row["steps"] for row in rows[:3]] == ["", "1000", "3"]  # T = 20
    for row in rows:
        assert float(row["milliseconds"]) > 0
    assert float(rows[0]["ratio"]) == 1.0
    assert float(rows[1]["ratio"]) == pytest.approx(float(rows[1]["milliseconds"]) / float(rows[0]["milliseconds"]))
    # A thousand small steps approximate the flow.
    assert float(rows[1]["accuracy"]) == pytest.approx(float(rows[0]["accuracy"]), abs=0.02)
    with (folder / "horizons.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["horizon"]) for row in rows] == pytest.approx(2 * [0, 1, 20, 50])
    assert [row["learned"] for row in rows] == 2 * ["False", "False", "True", "False"]
    assert float(rows[2]["behind"]) == 0.0
    with Image.open(folder / "study.png") as picture:
        assert picture.width > 500
        colours = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
        assert len(colours) > 20


def test_a_study_refuses_too_many_steps(run: Run, tmp_path: Path, comln_train: Command) -> None:
    run("--task", "3x1", "--step-size", "1e-6", "--out", tmp_path / "s", name="study", status=2)
    assert "Use a larger step_size" in comln_train.told
    assert not (tmp_path / "s").exists()
