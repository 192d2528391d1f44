"""Fit, checkpoint, resume, evaluate, export."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from tests.support.engines import Serve
from tests.support.image_files import colour_support, prepare_image
from tests.support.messages import engine_of
from tests.support.paths import REPOSITORY
from tests.support.stopping import stopped_after_saving
from tests.support.tiny import ABOUT, tiny_config, tiny_model, write_bundle
from tests.support.training import check_equal_runs, save_images
from training.bundles.export import export_bundle
from training.checkpoint import Checkpoint
from training.checkpoint_names import BEST, LAST, PRETRAINING
from training.cli import main
from training.config import Config
from training.data import DataError, ImageSet
from training.errors import CheckpointError, DivergedError, WriteError
from training.evaluation.evaluate import evaluate
from training.evaluation.tasks import Task
from training.model import MetaModel
from training.runs.fit import fit
from training.runs.log import read_log


def colour_classes(n_classes: int = 8, per_class: int = 8, size: int = 16) -> ImageSet:
    """Classes that differ in colour, and are learned in a few updates."""
    rng = np.random.default_rng(0)
    centres = rng.integers(30, 225, (n_classes, 1, 1, 1, 3))
    noise = rng.integers(-25, 26, (n_classes, per_class, size, size, 3))
    images = (centres + noise).clip(0, 255).astype(np.uint8).reshape(-1, size, size, 3)
    members = tuple(np.arange(c * per_class, (c + 1) * per_class) for c in range(n_classes))
    return ImageSet(images, members, tuple(map(str, range(n_classes))))


def config(start: str = "zero", **changes: object) -> Config:
    tree = tiny_config(start).model_dump(mode="json")
    tree["optimiser"].update(lr=0.02, head_lr=0.05)
    return Config.model_validate(tree | changes)


@pytest.mark.parametrize("start", ["zero", "prototype", "learned"])
def test_fit_moves_every_meta_parameter(tmp_path: Path, start: str) -> None:
    data = colour_classes()
    settings = config(start)
    best = fit(settings, data, data, tmp_path, resume=False)
    head = best.restore_model().head()
    assert head.horizon != settings.head.initial_horizon
    assert (head.alpha != settings.head.initial_alpha) == (start == "prototype") or (
        start != "prototype" and head.alpha is None
    )
    if start == "learned":
        assert head.W0 is not None
        assert np.abs(head.W0).max() > 0
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(record["phase"], record["step"]) for record in records] == [("episodes", 2), ("episodes", 4)]
    assert all(math.isfinite(record["loss"]) for record in records)


def test_a_horizon_that_depends_on_the_task_is_learned_exported_and_served(tmp_path: Path, serve: Serve) -> None:
    tree = config("prototype").model_dump(mode="json")
    tree["head"] |= {"condition_horizon": True, "initial_similarity": 0.4, "initial_shot_offset": 1.0}
    tree["episodes"] |= {"unequal": 1.0}
    data, settings = colour_classes(), Config.model_validate(tree)
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
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return next(one for one in records if one["step"] == checkpoint.update)


def test_a_full_disk_names_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "last.tmp").symlink_to("/dev/full")  # every byte that is written there finds no room
    state = {"weights": torch.zeros(100_000)}
    checkpoint = Checkpoint(tiny_config(), 0, state, {}, {}, 0.0, 0.0, [])
    with pytest.raises(WriteError, match=r"last\.pt cannot be written: No space left on device"):
        checkpoint.save(tmp_path / "last.pt")


def test_a_temperature_is_learned_and_bundles_leave_it_out(tmp_path: Path) -> None:
    tree = config("prototype").model_dump(mode="json")
    tree["head"] |= {"learn_temperature": True}
    data = colour_classes()
    best = fit(Config.model_validate(tree), data, data, tmp_path / "run", resume=False)
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


def test_data_too_small_for_the_episodes_are_refused_before_training(tmp_path: Path) -> None:
    data = colour_classes(per_class=4)
    fit(config(), data, data, tmp_path / "enough", resume=False)
    with pytest.raises(
        DataError,
        match=r"^training: .* 4 images; an episode needs \d \+ 2; .*\. Lower episodes\.shots .* or add images$",
    ):
        fit(config(episodes={"shots": [1, 3], "queries": 2}), data, data, tmp_path, resume=False)
    validation = config().validation.model_dump() | {"tasks": [[5, 3]]}
    with pytest.raises(
        DataError,
        match=r"^validation: .* 4 images; an episode needs \d \+ 2; .*\. Lower the shots in validation\.tasks",
    ):
        fit(config(validation=validation), data, data, tmp_path, resume=False)
    ways = data.n_classes + 1
    validation |= {"tasks": [[ways, 1]]}
    with pytest.raises(
        DataError,
        match=rf"^validation: {ways}-way .* need {ways} classes; there are {ways - 1}\. Lower the ways in .* or add cl",
    ):
        fit(config(validation=validation), data, data, tmp_path, resume=False)


def test_a_range_of_ways_may_reach_beyond_the_classes(tmp_path: Path) -> None:
    data = colour_classes()
    fit(config(episodes={"ways": [3, 20], "queries": 2, "shots": 1}), data, data, tmp_path / "range", resume=False)
    with pytest.raises(DataError, match=r"^training: 20-way .* need 20 classes; there are 8\. Lower episodes\.ways"):
        fit(config(episodes={"ways": 20, "queries": 2, "shots": 1}), data, data, tmp_path, resume=False)


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
@pytest.mark.parametrize("image_size", [16, 32, 84])
def test_export_computes_what_torch_computes(tmp_path: Path, image_size: int) -> None:
    model = write_bundle(tmp_path / "bundle", tiny_config(image_size=image_size))
    session = OnnxBackbone(load_bundle(tmp_path / "bundle"), "cpu")
    rng = np.random.default_rng(1)
    for count in (1, 3, 70):
        images = rng.integers(0, 256, (count, image_size, image_size, 3), dtype=np.uint8)
        expected = model.embed(images)
        np.testing.assert_allclose(session.embed(images), expected, rtol=1e-3, atol=1e-4)


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
    tree = tiny_config(image_size=size).model_dump(mode="json") | {"backbone": backbone}
    config = Config.model_validate(tree)
    torch.manual_seed(0)
    model = MetaModel(config)
    images = np.random.default_rng(0).integers(0, 256, (8, size, size, 3), dtype=np.uint8)
    with torch.no_grad():
        model.train().backbone(torch.from_numpy(images))
    checkpoint = Checkpoint(config, 0, model.eval().state_dict(), {}, {}, 0.0, 0.0, [])
    expected = model.embed(images)
    tolerance = 5e-3 if half else 1e-4
    assert export_bundle(checkpoint, tmp_path / "bundle", ABOUT, half=half) < tolerance
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


def test_greyscale_backbone_with_scaled_embeddings_exports(tmp_path: Path) -> None:
    tree = tiny_config(image_size=28).model_dump(mode="json")
    tree["backbone"] |= {"colour": "grey", "mean": [0.9], "std": [0.3], "scale": "sqrt_d"}
    model = write_bundle(tmp_path / "bundle", Config.model_validate(tree))
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28, 3), dtype=np.uint8)
    found = OnnxBackbone(load_bundle(tmp_path / "bundle"), "cpu").embed(images)
    np.testing.assert_allclose(found, model.embed(images), rtol=1e-3, atol=1e-5)


def test_command_line_fit_export_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The three commands on an image folder; the accuracy is recorded in manifest and card."""
    images = str(save_images(colour_classes(), tmp_path / "images"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(config().model_dump(mode="json")))
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    assert main(["fit", str(recipe), "--data", images, "--out", str(run)]) == 0
    about = ["--description", "Colours.", "--data-description", "Eight colours.", "--licence", "CC0-1.0"]
    export = ["export", str(run), "--to", str(bundle), *about]
    assert main(export) == 0
    assert "It replaced the bundle that was there" not in capsys.readouterr().out
    before = (bundle / "bundle.json").read_bytes()
    assert main([*export, "--notes", "again"]) == 2
    assert "is a bundle already: --replace" in capsys.readouterr().err
    assert (bundle / "bundle.json").read_bytes() == before
    assert main([*export, "--notes", "again", "--replace"]) == 0
    assert "It replaced the bundle that was there" in capsys.readouterr().out
    assert (bundle / "bundle.json").read_bytes() != before
    evaluate = f"evaluate {bundle} --data {images} --task 4x2 --episodes 20 --queries 3 --record".split()
    assert main(evaluate) == 0
    assert main(evaluate) == 0  # a new measurement replaces the earlier one
    manifest = load_bundle(bundle).manifest
    assert manifest.training.command == "comln-train fit recipe.yaml --data DATA --out RUN"
    (entry,) = [a for a in manifest.accuracy if (a.ways, a.shots) == (4, 2)]
    assert entry.episodes == 20
    card = (bundle / "README.md").read_text()
    assert "Eight colours." in card
    assert f"{100 * entry.mean:.2f} +- {100 * entry.interval:.2f}" in card
    assert f"{100 * entry.mean:.2f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "gone.yaml", "--data", "x", "--out", "y"],
        ["export", "gone", "--to", "y", "--description", "a", "--data-description", "b", "--licence", "c"],
        ["evaluate", "gone", "--data", "x"],
    ],
)
def test_command_line_mistakes_end_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "gone" in capsys.readouterr().err


def test_export_of_a_learned_start_keeps_its_ways(tmp_path: Path) -> None:
    settings = tiny_config("learned", ways=3)
    model = tiny_model(settings)
    checkpoint = Checkpoint(settings, 0, model.state_dict(), {}, {}, 0.0, 0.0, [], "fit it", "a quiet machine")
    export_bundle(checkpoint, tmp_path / "b", ABOUT)
    bundle = load_bundle(tmp_path / "b")
    assert bundle.head.ways == 3
    assert bundle.manifest.training.hardware == "a quiet machine"
    assert bundle.manifest.training.command == "fit it"
    assert model.W0 is not None
    np.testing.assert_array_equal(bundle.head.W0, model.W0.detach().numpy())
