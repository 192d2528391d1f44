"""Fit, checkpoint, resume, evaluate, export."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.commands import Command
from tests.support.engines import Serve
from tests.support.image_files import colour_support, prepare_image
from tests.support.messages import engine_of
from tests.support.paths import REPOSITORY
from tests.support.stopping import stopped_after_saving
from tests.support.tiny import ABOUT, checkpoint_of, tiny_config, tiny_model, write_bundle
from tests.support.training import check_equal_runs, check_served, colour_classes, config, save_images
from training.bundles.export import export_bundle
from training.checkpoint import Checkpoint
from training.checkpoint_names import BEST, LAST, PRETRAINING
from training.cli import main
from training.data import DataError
from training.errors import CheckpointError, DivergedError, WriteError
from training.evaluation.evaluate import evaluate
from training.evaluation.tasks import Task
from training.model import MetaModel
from training.runs.fit import fit
from training.runs.log import read_log


@pytest.mark.parametrize("start", ["zero", "prototype", "learned"])
def test_fit_moves_every_meta_parameter(tmp_path: Path, start: str) -> None:
    data = colour_classes()
    settings = config(start)
    best = fit(settings, data, data, tmp_path, resume=False)
    head = best.restore_model().head()
    assert head.horizon != settings.head.initial_horizon
    assert (head.alpha is not None) == (start == "prototype")
    assert head.alpha != settings.head.initial_alpha
    if start == "learned":
        assert head.W0 is not None
        assert np.abs(head.W0).max() > 0
    records = read_log(tmp_path)
    assert [(record["phase"], record["step"]) for record in records] == [("episodes", 2), ("episodes", 4)]
    assert all(math.isfinite(record["loss"]) for record in records)


def test_a_horizon_that_depends_on_the_task_is_learned_exported_and_served(tmp_path: Path, serve: Serve) -> None:
    law = {"condition_horizon": True, "initial_similarity": 0.4, "initial_shot_offset": 1.0}
    data, settings = colour_classes(), config("prototype", head=law, episodes={"unequal": 1.0})
    best = fit(settings, data, data, tmp_path / "run", resume=False)
    head = best.restore_model().head()
    assert head.exponents is not None
    assert head.exponents.norm != 0
    of_25_in_5 = head.horizon * 25**head.exponents.examples * 5**head.exponents.classes
    assert record_of(tmp_path / "run", best)["horizon"] == pytest.approx(of_25_in_5)
    assert f"T = {of_25_in_5:.5g} for 25 examples of 5 classes" in (tmp_path / "run" / "report.html").read_text()
    export_bundle(best, tmp_path / "models" / "law", ABOUT)
    assert head.similarity is not None
    assert head.similarity != settings.head.initial_similarity
    assert head.shot_offset not in {0.0, settings.head.initial_shot_offset}
    assert load_bundle(tmp_path / "models" / "law").head == head
    card = (tmp_path / "models" / "law" / "README.md").read_text()
    assert "for M examples of N classes" in card
    assert f"logits of classes with fewer images are raised, beta = {head.shot_offset:.3g}" in card
    assert record_of(tmp_path / "run", best)["shot_offset"] == head.shot_offset

    client, support = serve(models_dir=tmp_path / "models", default_model=None), colour_support()
    (model,) = client.get("/models").json()["models"]
    assert model["horizon_exponents"] == pytest.approx(vars(head.exponents))
    classifier = engine_of(client).adapt(support).classifier
    images = np.stack([prepare_image(content, best.config.data.preprocessing) for content, _ in support])
    expected = head.horizon_of(best.restore_model().embed(images), 3)
    assert classifier.horizon == pytest.approx(expected, rel=1e-4)


def record_of(run: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    return next(one for one in read_log(run) if one["step"] == checkpoint.update)


def test_a_full_disk_names_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "last.tmp").symlink_to("/dev/full")  # every byte that is written there finds no room
    with pytest.raises(WriteError, match=r"last\.pt cannot be written: No space left on device"):
        checkpoint_of(tiny_model(tiny_config())).save(tmp_path / "last.pt")


def test_a_temperature_is_learned_and_bundles_leave_it_out(tmp_path: Path) -> None:
    data = colour_classes()
    best = fit(config("prototype", head={"learn_temperature": True}), data, data, tmp_path / "run", resume=False)
    model = best.restore_model()
    assert model.log_temperature is not None
    assert torch.all(model.log_temperature[:2] != 0)  # always 5 ways: their factor is log 1
    temperature = record_of(tmp_path / "run", best)["temperature"]
    assert temperature == pytest.approx(math.exp(model.log_temperature[0].item()))
    export_bundle(best, tmp_path / "bundle", ABOUT)
    assert load_bundle(tmp_path / "bundle").head == model.head()
    phi, Y = torch.randn(1, 10, model.backbone.embedding_size), torch.eye(5).repeat(2, 1)[None]
    before = model.adapt(phi, Y)
    with torch.no_grad():
        model.log_temperature.add_(1.0)
    assert load_bundle(tmp_path / "bundle").head == model.head()
    assert torch.equal(model.adapt(phi, Y), before), "it divides the logits of queries, not those of the flow"


def test_training_learns(tmp_path: Path) -> None:
    data = colour_classes()
    settings = config(updates=40, validation={"every": 40, "episodes": 40, "tasks": [[5, 1]], "queries": 5})
    before = evaluate(data.embedded(tiny_model(settings).embed), tiny_model(settings).head(), Task(5, 1, 5), 40)
    after = fit(settings, data, data, tmp_path, resume=False)
    assert after.validation[0]["mean"] > before.mean + before.interval


def test_a_resumed_run_equals_one_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, settings = colour_classes(), config()
    fit(settings, data, data, tmp_path / "whole", resume=False)
    with stopped_after_saving(monkeypatch, lambda _, path: path.name == LAST):
        fit(settings, data, data, tmp_path / "stopped", resume=False)
    assert Checkpoint.load(tmp_path / "stopped" / LAST).update == 2
    fit(settings, data, data, tmp_path / "stopped", resume=True)

    check_equal_runs(tmp_path / "whole", tmp_path / "stopped", updates=4)


def test_a_run_says_what_it_reads_and_where_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, settings = colour_classes(), config()
    fit(settings, data, data, tmp_path, resume=True)
    count = f"{data.n_classes} classes, {len(data.images)} images"
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{tmp_path}: nothing was saved there yet, so a new run is started",
        f"training on {count}; validation on {count}",
    ]
    fit(settings, data, data, tmp_path, resume=True)
    assert f"{tmp_path}: continued after update 4 of 4" in capsys.readouterr().out


def test_an_interrupted_run_says_how_it_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    data = colour_classes()
    monkeypatch.setattr("training.commands.fit.load_training", lambda *_: (data, data))
    monkeypatch.setattr("training.runs.fit.fit", interrupted)
    recipe = REPOSITORY / "training" / "recipes" / "image-folder.yaml"
    for saved, wanted in (
        (None, "nothing was saved yet; a run is saved at each measurement, which is after every 250 updates\n"),
        (PRETRAINING, "after its last whole epoch of pre-training; the same command with --resume continues it"),
        (LAST, "at its last measurement, which is after every 250 updates; the same command with --resume continues"),
    ):
        if saved is not None:
            (tmp_path / saved).touch()
        with pytest.raises(KeyboardInterrupt):
            main(["fit", str(recipe), "--data", ".", "--out", str(tmp_path)])
        assert wanted in (said := capsys.readouterr().err)
        assert ("--resume" in said) == (saved is not None)
    assert f"warning: {data.n_classes} of the {data.n_classes} classes of val have the name of one of train" in said
    (tmp_path / "file").touch()
    assert main(["fit", str(recipe), "--data", ".", "--out", str(tmp_path / "file")]) == 2
    assert "is a file; a run is a folder" in capsys.readouterr().err


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    data = colour_classes()
    fit(config(), data, data, tmp_path, resume=False)
    with pytest.raises(CheckpointError, match="--resume"):
        fit(config(), data, data, tmp_path, resume=False)
    with pytest.raises(CheckpointError, match=r"another configuration: seed changed\. .*backbone\.warm_start"):
        fit(config(seed=1), data, data, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"episodes": {"shots": [1, 3]}},
            r"^training: .* 4 images; an episode needs \d \+ 2; .*\. Lower episodes\.shots .* or add images$",
        ),
        (
            {"validation": {"tasks": [[5, 3]]}},
            r"^validation: .* 4 images; an episode needs \d \+ 2; .*\. Lower the shots in validation\.tasks",
        ),
        (
            {"validation": {"tasks": [[9, 1]]}},
            r"^validation: 9-way .* need 9 classes; there are 8\. Lower the ways in .* or add cl",
        ),
        (
            {"episodes": {"ways": 20, "shots": 1}},
            r"^training: 20-way .* need 20 classes; there are 8\. Lower episodes\.ways",
        ),
    ],
)
def test_data_too_small_for_the_episodes_are_refused_before_training(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    data = colour_classes(per_class=4)
    with pytest.raises(DataError, match=message):
        fit(config(**changes), data, data, tmp_path, resume=False)


@pytest.mark.parametrize("episodes", [{}, {"ways": [3, 20], "shots": 1}], ids=["just enough", "a range beyond"])
def test_data_just_large_enough_for_the_episodes(tmp_path: Path, episodes: dict[str, object]) -> None:
    data = colour_classes(per_class=4)
    fit(config(episodes=episodes), data, data, tmp_path, resume=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimiser": {"lr": 1e30}},
        {"optimiser": {"lr": 1e30}, "updates": 1},
        {"pretraining": {"epochs": 3, "lr": 1e30}},
    ],
)
def test_training_that_diverges_says_which_learning_rate_to_lower(tmp_path: Path, changes: dict[str, object]) -> None:
    data = colour_classes()
    with pytest.raises(DivergedError, match=r"NaN or infinite\. Lower the learning rate: pretraining\.lr"):
        fit(config(**changes), data, data, tmp_path, resume=False)
    assert all(math.isfinite(record["loss"]) for record in read_log(tmp_path)), "it ends at once"


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / BEST
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best\.pt"):
        Checkpoint.load(path)


def test_evaluation_is_reproducible_and_its_interval_is_right() -> None:
    data, model = colour_classes(), tiny_model(config())
    embedded = data.embedded(model.embed)

    def run(seed: int) -> tuple[float, float]:
        result = evaluate(embedded, model.head(), Task(3, 1, 3), 30, seed)
        return result.mean, result.interval

    assert run(0) == run(0)
    assert run(0) != run(1)
    spread = np.std([run(seed)[0] for seed in range(40)], ddof=1)
    # The interval estimates 1.96 standard errors of the mean of 30 episodes.
    assert 0.5 < run(0)[1] / (1.96 * spread) < 2.0


def test_predictions_do_not_depend_on_the_rest_of_the_batch() -> None:
    """Batch norm uses running statistics: query order and batch size change nothing."""
    model, data = tiny_model(config()), colour_classes()
    together = model.embed(data.images)
    alone = np.concatenate([model.embed(data.images[i : i + 1]) for i in range(10)])
    backwards = model.embed(np.ascontiguousarray(data.images[::-1]))[::-1]
    np.testing.assert_allclose(alone, together[:10], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(backwards, together, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "backbone"),
    [
        *((size, {"channels": 8}) for size in (16, 32, 84)),
        (28, {"channels": 8, "colour": "grey", "mean": [0.9], "std": [0.3], "scale": "sqrt_d"}),
    ],
)
def test_export_computes_what_torch_computes(tmp_path: Path, size: int, backbone: dict[str, object]) -> None:
    model = write_bundle(tmp_path / "bundle", tiny_config(image_size=size, backbone=backbone))
    images = np.random.default_rng(1).integers(0, 256, (70, size, size, 3), dtype=np.uint8)
    check_served(tmp_path / "bundle", images, model.embed(images), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "size", "half"),
    [
        ({"kind": "resnet12"}, 84, False),  # the paper's, d = 16000
        ({"kind": "resnet12", "channels": 16}, 84, True),
        (
            {
                "kind": "resnet12",
                "channels": 8,
                "global_pooling": True,
                "normalise": "l2",
                "drop_block": {"rate": 0.9, "block_size": 2, "updates": 1},
            },
            32,
            False,
        ),
        ({"kind": "torchvision", "architecture": "resnet18", "normalise": "l2", "scale": "sqrt_d"}, 64, False),
    ],
)
def test_other_backbones_export(tmp_path: Path, backbone: dict[str, object], size: int, half: bool) -> None:
    """At two batch sizes, with weights in 32 and in 16 bits; DropBlock is not in a bundle."""
    torch.manual_seed(0)
    model = MetaModel(tiny_config(image_size=size, backbone=backbone))
    images = np.random.default_rng(0).integers(0, 256, (8, size, size, 3), dtype=np.uint8)
    with torch.no_grad():
        model.train().backbone(torch.from_numpy(images))
    expected = model.eval().embed(images)
    tolerance = 5e-3 if half else 1e-4
    assert export_bundle(checkpoint_of(model), tmp_path / "bundle", ABOUT, half=half) < tolerance
    session = OnnxBackbone(load_bundle(tmp_path / "bundle"), "cpu")
    for count in (1, 7):
        found = session.embed(images[:count])
        assert np.abs(found - expected[:count]).max() < tolerance * np.abs(expected).max()
    weights = sum(p.numel() for p in model.backbone.parameters())
    bytes_a_weight = (tmp_path / "bundle" / "backbone.onnx").stat().st_size / weights
    assert bytes_a_weight == pytest.approx(2 if half else 4, rel=0.15)


def test_an_exported_graph_says_nothing_of_the_machine(models_dir: Path) -> None:
    content = (models_dir / "tiny" / "backbone.onnx").read_bytes()
    assert str(REPOSITORY).encode() not in content
    assert b".py" not in content


def test_command_line_fit_export_evaluate(tmp_path: Path, comln_train: Command) -> None:
    """The three commands on an image folder; the accuracy is recorded in manifest and card."""
    images = save_images(colour_classes(), tmp_path / "images")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config().model_dump_json())
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    comln_train("fit", recipe, "--data", images, "--out", run)
    about = ["--description", "Colours.", "--data-description", "Eight colours.", "--licence", "CC0-1.0"]
    export = ["export", run, "--to", bundle, *about]
    assert "It replaced the bundle that was there" not in comln_train(*export)
    before = (bundle / "bundle.json").read_bytes()
    assert "is a bundle already: --replace" in comln_train.refused(*export, "--notes", "again")
    assert (bundle / "bundle.json").read_bytes() == before
    assert "It replaced the bundle that was there" in comln_train(*export, "--notes", "again", "--replace")
    assert (bundle / "bundle.json").read_bytes() != before
    evaluate = f"evaluate {bundle} --data {images} --task 4x2 --episodes 20 --queries 3 --record".split()
    comln_train(*evaluate)
    printed = comln_train(*evaluate)  # a new measurement replaces the earlier one
    manifest = load_bundle(bundle).manifest
    assert manifest.training.command == "comln-train fit recipe.yaml --data DATA --out RUN"
    (entry,) = [a for a in manifest.accuracy if (a.ways, a.shots) == (4, 2)]
    assert entry.episodes == 20
    card = (bundle / "README.md").read_text()
    assert "Eight colours." in card
    assert f"{100 * entry.mean:.2f} +- {100 * entry.interval:.2f}" in card
    assert f"{100 * entry.mean:.2f}" in printed


@pytest.mark.parametrize(
    "command",
    [
        "fit gone.yaml --data x --out y",
        "export gone --to y --description a --data-description b --licence c",
        "evaluate gone --data x",
    ],
)
def test_a_path_that_leads_nowhere_is_named(command: str, comln_train: Command) -> None:
    assert "gone" in comln_train.refused(*command.split())


def test_export_of_a_learned_start_keeps_its_ways(tmp_path: Path) -> None:
    model = tiny_model(tiny_config("learned", ways=3))
    export_bundle(checkpoint_of(model, "fit it", "a quiet machine"), tmp_path / "b", ABOUT)
    bundle = load_bundle(tmp_path / "b")
    assert bundle.head.ways == 3
    assert bundle.manifest.training.hardware == "a quiet machine"
    assert bundle.manifest.training.command == "fit it"
    assert model.W0 is not None
    np.testing.assert_array_equal(bundle.head.W0, model.W0.detach().numpy())
