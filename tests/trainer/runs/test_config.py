"""Recipes: what is read, what is refused, and the messages."""

from pathlib import Path

import pytest
import yaml

from comln_serve.imaging import Preprocessing
from tests.support.documents import blocks, document
from tests.support.paths import REPOSITORY
from training.config import BackboneConfig, Config, ConfigError, load_config, override_config

RECIPES = sorted((REPOSITORY / "training" / "recipes").glob("*.yaml"))
MINIMAL = "data: {kind: image_folder, preprocessing: {image_size: 32}}\nupdates: 3\n"


def recipe(tmp_path: Path, text: str = MINIMAL) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_load(path: Path) -> None:
    assert load_config(path).updates > 0


def test_documented_backbones_load() -> None:
    sections = [yaml.safe_load(block) for block in blocks(document("backbones.md"), "yaml")]
    for data in (section["data"] for section in sections if "data" in section):
        assert Preprocessing.model_validate(data["preprocessing"]).support_views
    kinds = {BackboneConfig.model_validate(section["backbone"]).kind for section in sections if "backbone" in section}
    assert kinds == {"onnx", "torchvision", "timm", "identity", "conv4", "resnet12"}


def test_overrides_are_yaml_and_win(tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path), ("optimiser.lr=0.5", "validation.tasks=[[3, 2]]", "head.start=zero"))
    assert config.optimiser.lr == 0.5
    assert config.validation.tasks == ((3, 2),)
    assert config.head.start == "zero"


FROZEN = "backbone={kind: onnx, path: model.onnx, mean: [0, 0, 0], std: [1, 1, 1]}"


@pytest.mark.parametrize(
    "case",  # overrides, and the message
    [
        ("episodes.ways=1", "episodes: a task has 2 ways or more, got 1\n"),
        ("optimiser.lrr=1", "optimiser.lrr: there is no such key; the nearest are lr"),
        ("update=2", "update: there is no such key; the nearest are updates"),
        ("data.preprocessing.image_sizes=5", "image_sizes: there is no such key; the nearest are image_size"),
        ("pretraining.epoch=5", "epoch: there is no such key; the nearest are epochs"),
        ("data={kind: several, sets: [{nam: a}]}", "data.sets.0.nam: there is no such key; the nearest are name"),
        ("nothing=1", "nothing: there is no such key; allowed are data, augmentation, "),
        ("optimiser.lr=-1", "optimiser.lr"),
        ("optimiser.lr=nan", "optimiser.lr"),
        ("head.start=best", "head.start"),
        ("episodes.shots=[5, 1]", "shots"),
        ("backbone.mean=[0.5]", "mean and std"),
        ("backbone.global_pooling=true", "resnet12"),
        ("backbone={kind: resnet12, channels: 5}", "even number"),
        ("backbone.drop_block={rate: 0.1}", 'drop_block is for kind "resnet12"'),
        ("backbone={kind: resnet12, drop_block: {rate: 1}}", "drop_block.rate"),
        ("backbone.path=m.onnx", 'path is for kind "onnx"'),
        ("backbone={kind: onnx}", 'path is needed by kind "onnx"'),
        ("backbone={kind: onnx, path: m.onnx}", "mean and std are needed"),
        ("backbone={kind: onnx, path: m.onnx, mean: [0, 0, 0]}", "together"),
        ("backbone={kind: onnx, path: m, layout: as_is, mean: [0, 0, 0], std: [1, 1, 1]}", "as_is"),
        ("backbone={kind: torchvision}", "architecture is needed"),
        ("backbone={kind: torchvision, architecture: resnet18, weights: ./w.pt}", "mean and std are needed"),
        ("backbone={kind: torchvision, architecture: resnet18, frozen: true}", "stay random"),
        ("backbone={kind: torchvision, architecture: resnet18, colour: grey}", "three channels"),
        ("backbone={kind: timm}", "architecture is needed"),
        ("backbone={kind: timm, architecture: resnet18, weights: DEFAULT}", "path of a state dict"),
        ("backbone={kind: timm, architecture: resnet18, weights: ./w.pt}", "mean and std are needed"),
        ("backbone={kind: timm, architecture: resnet18, frozen: true}", "stay random"),
        ("backbone={kind: resnet12, frozen: true}", "frozen is for kind"),
        ("backbone.frozen=true", "a frozen conv4 needs warm_start"),
        ("backbone={kind: torchvision, architecture: resnet18, warm_start: x}", "warm_start is for kind"),
        ("backbone={kind: identity}", "embedding_size is needed"),
        ("backbone={kind: identity, embedding_size: 5, mean: [0, 0, 0]}", "mean"),
        ("updates.x=1", "updates"),
        ("updates", "section.key=value"),
        ("updates=[", "YAML"),
        ("data.preprocessing.image_size=4", "image_size"),
        ("data={kind: cifar}", "data.kind"),
        ("data={kind: cub}", "preprocessing is needed"),
        ("data.rotations=true", "rotations are for kind"),
        ("data={kind: cub, splits: x.json, preprocessing: {image_size: 32}}", "splits are for"),
        ("data.splits={dev: x.txt}", "data.splits"),
        ("data.class_shares=[0.5, 0.1, 0.1]", "sum to 1"),
        ("data.group=((", "data.group: not a regular expression"),
        ("episodes.ways=[5, 3]", "[least, most]"),
        ("episodes.ways=[3, 5]", "head.start=learned", "one number of ways"),
        ("head.start=learned", "validation.tasks=[[20, 1]]", "tied to 5 ways"),
        ("optimiser.steps=[[20, 0.1], [10, 0.2]]", "rising updates"),
        ("optimiser.steps=[[20, 0.1]]", "optimiser.warmup=5", "leave it out with steps"),
        ("head.condition_horizon=true", "head.learn_horizon=false", "needs learn_horizon"),
        ("head.initial_shot_offset=1", "head.start=zero", "for a prototype start"),
        ("head.initial_shot_offset=1", "set episodes.unequal"),
        ("pretraining={}", "pretraining.epochs"),
        ("pretraining={epochs: 1, teacher: [1]}", "pretraining.teacher"),
        ("data.kind=omniglot", "data.rotations=true", "pretraining={epochs: 1, teacher: x}", "upright only"),
        ("augmentation.jitter=1", "augmentation.jitter"),
        ("precision=float16", "precision"),
        ("validation.tasks=[]", "validation.tasks"),
        ("validation.tasks=[[1, 1]]", "validation.tasks.0.0"),
        ("validation.episodes=1", "validation.episodes"),
        ("data={kind: embeddings}", 'needs backbone.kind "identity"'),
        (FROZEN, "pretraining.epochs=3", "leave pretraining out"),
        (FROZEN, "augmentation.flip=true", "leave augmentation out"),
    ],
    ids=" ".join,
)
def test_unusable_overrides_are_refused_by_name(tmp_path: Path, case: tuple[str, ...]) -> None:
    *overrides, message = case
    with pytest.raises(ConfigError) as caught:
        load_config(recipe(tmp_path), tuple(overrides))
    assert message in f"{caught.value}\n"


def test_embeddings_need_no_preprocessing(tmp_path: Path) -> None:
    identity = "backbone={kind: identity, embedding_size: 640}"
    config = load_config(recipe(tmp_path), ("data={kind: embeddings}", identity))
    assert Config.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("text", ["- a\n- b\n", "data: [", "\x00"])
def test_a_file_that_is_not_a_recipe_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        load_config(recipe(tmp_path, text))


def test_paths_are_relative_to_the_recipe_or_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MINIMAL + ("backbone: {kind: onnx, path: models/m.onnx, mean: [0, 0, 0], std: [1, 1, 1]}\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = recipe(tmp_path, text)
    assert load_config(path).backbone.path == str(tmp_path / "models" / "m.onnx")
    typed = load_config(path, ("backbone.path=m.onnx",))
    assert typed.backbone.path == str(tmp_path / "here" / "m.onnx")
    assert override_config(typed, ("updates=5",)).backbone == typed.backbone
    network = "{kind: torchvision, architecture: resnet18, mean: [0, 0, 0], std: [1, 1, 1], weights: "
    given = load_config(path, (f"backbone={network}../w.pt}}",)).backbone
    assert given.weights == given.weights_file == str(tmp_path / "w.pt")
    named = load_config(path, (f"backbone={network}DEFAULT}}",)).backbone
    assert (named.weights, named.weights_file) == ("DEFAULT", None)
    bundles = "backbone: {warm_start: first}\npretraining: {epochs: 1, teacher: bundles/large}"
    started = load_config(recipe(tmp_path, MINIMAL + bundles))
    assert started.backbone.warm_start == str(tmp_path / "first")
    assert started.pretraining is not None
    assert started.pretraining.teacher == str(tmp_path / "bundles" / "large")


def test_something_has_to_be_learned(tmp_path: Path) -> None:
    frozen = "backbone={kind: identity, embedding_size: 5}"
    overrides = ("data={kind: embeddings}", frozen, "head.start=zero", "head.learn_horizon=false")
    with pytest.raises(ConfigError, match="nothing is left to learn"):
        load_config(recipe(tmp_path), overrides)
    assert load_config(recipe(tmp_path), overrides[:3]).backbone.is_frozen


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load_config(tmp_path / "gone.yaml")


def test_a_single_number_is_a_range(tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path), ("episodes.ways=7", "episodes.shots=[1, 4]"))
    assert config.episodes.ways == (7, 7)
    assert config.episodes.shots == (1, 4)
