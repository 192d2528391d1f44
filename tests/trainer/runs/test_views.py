"""Several views of support images: all are examples of training episodes, queries have one, and what is trained is
what is served.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from comln_serve.bundle import load_bundle
from comln_serve.bundle.views import as_examples
from comln_serve.engine.engine import NewClassifier
from comln_serve.imaging import Preprocessing, prepare_views
from tests.support.engines import MakeEngine
from tests.support.graphs import SIZE
from tests.support.image_files import colour_support, image_bytes, prepare_image
from tests.support.tiny import ABOUT, tiny_config
from tests.support.training import colour_classes
from tests.trainer.backbones.test_frozen import onnx_config
from training.bundles.export import export_bundle
from training.config import Config
from training.data import ImageSet
from training.data.image_folder import load_image_folder
from training.data.images import fit_pixels
from training.data.resident import ResidentImages
from training.evaluation.baselines import BASELINES
from training.evaluation.compare import measure
from training.evaluation.cross_validation import choose_setting
from training.evaluation.evaluate import evaluate
from training.evaluation.open_set import OpenSetEpisodes
from training.evaluation.tasks import Task
from training.model import MetaModel
from training.runs.embedded import embed_once
from training.runs.episodes import draw_batch, episode_loss
from training.runs.fit import fit

POLICY = Preprocessing(image_size=16, crop_fraction=0.8, support_views=(1.0, 0.5))
SHARES = (0.5, 0.25, 0.25)


def with_views(data: ImageSet) -> ImageSet:
    """Second views that are darker, third ones that are lighter."""
    images = data.images.astype(int)
    return replace(data, images=np.stack([images, images - 8, images + 8], axis=1).clip(0, 255).astype(np.uint8))


def view_config(**changes: object) -> Config:
    section = {"ways": [2, 6], "shots": [1, 4], "queries": 3, "tasks": 2, "unequal": 1.0}
    return tiny_config("prototype", episodes=section, **changes)


def test_images_are_read_in_all_views(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(2):
            (tmp_path / "train" / name / f"{i}.png").write_bytes(image_bytes(seed=i))
    data = load_image_folder(tmp_path, "train", POLICY, SHARES, None)
    assert data.images.shape == (4, 3, 16, 16, 3)
    assert data.views == 3
    np.testing.assert_array_equal(data.images[1], prepare_views(image_bytes(seed=1), POLICY))
    np.testing.assert_array_equal(data.first_views[1], prepare_image(image_bytes(seed=1), POLICY))
    np.testing.assert_array_equal(data.all_views[3:6], data.images[1])
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    whole = POLICY.model_copy(update={"crop_fraction": 1.0, "support_views": (0.5,)})
    fitted = fit_pixels(pixels, whole)
    np.testing.assert_array_equal(fitted[:, 0], pixels)
    assert (fitted[:, 1] != pixels).any()
    cropped = fit_pixels(pixels, POLICY)
    np.testing.assert_array_equal(cropped[:, 0], fit_pixels(pixels, POLICY.of_predictions))
    np.testing.assert_array_equal(cropped[:, 1], pixels)


@pytest.mark.parametrize("rotations", [1, 4])
def test_all_views_are_support_and_the_first_are_queries(rotations: int) -> None:
    """Episodes are those of the same data without views, rotated alike."""
    plain = replace(colour_classes(), rotations=rotations)
    data, config = with_views(plain), view_config()
    for update in range(10):
        batch = draw_batch(config, [ResidentImages(data, torch.device("cpu"))], update)
        alone = draw_batch(config, [ResidentImages(plain, torch.device("cpu"))], update)
        M, of_images = sum(batch.shots), sum(alone.shots)
        assert batch.shots == tuple(3 * shots for shots in alone.shots)
        assert torch.equal(batch.images[:, M:], alone.images[:, of_images:])
        views = batch.images[:, :M].unflatten(1, (of_images, 3)).int()
        assert torch.equal(views[:, :, 0], alone.images[:, :of_images].int())
        assert torch.equal(views[:, :, 1], (views[:, :, 0] - 8).clamp_min(0))
        assert torch.equal(views[:, :, 2], (views[:, :, 0] + 8).clamp_max(255))


@pytest.mark.parametrize("rotations", [1, 4])
@pytest.mark.parametrize("views", [1, 3])
def test_training_on_embeddings_equals_training_on_images(tmp_path: Path, views: int, rotations: int) -> None:
    """Equal seeds give equal episodes, including rotated classes, and equal losses."""
    data = replace(colour_classes(size=SIZE), rotations=rotations)
    data = with_views(data) if views > 1 else data
    model = MetaModel(onnx_config(tmp_path))
    embedded = embed_once(model, data)
    assert embedded.images.shape == (rotations * len(data.images), *data.images.shape[1:-3], 6)
    assert embedded.images.dtype == np.float32
    assert (embedded.views, embedded.n_classes) == (views, data.n_classes)
    losses: list[list[float]] = []
    for learner, source in ((model.train(), data), (model.on_embeddings().train(), embedded)):
        images = [ResidentImages(source, torch.device("cpu"))]
        losses.append([episode_loss(learner, draw_batch(learner.config, images, i)).item() for i in range(5)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert len(set(losses[0])) == 5


def test_a_model_is_measured_as_it_is_served(tmp_path: Path, make_engine: MakeEngine) -> None:
    config = view_config(data={"preprocessing": POLICY.model_dump(mode="json")})
    data = with_views(colour_classes())
    best = fit(config, data, data, tmp_path / "run", resume=False)
    bundle = tmp_path / "models" / "views"
    export_bundle(best, bundle, ABOUT)
    manifest = load_bundle(bundle).manifest
    assert manifest.format_version == 6
    assert manifest.preprocessing == POLICY
    engine = make_engine(models_dir=bundle.parent, default_model="views")
    support = colour_support(3)
    made = engine.adapt(support, NewClassifier(model="views")).classifier
    model = best.restore_model()
    images = np.stack([prepare_views(file, POLICY) for file, _ in support])
    labels = list(made.labels)
    classes = np.array([labels.index(label) for _, label in support])
    phi, of_class = as_examples(model.embed(images.reshape(-1, 16, 16, 3)).reshape(9, 3, -1), classes)
    with torch.no_grad():
        Y = torch.eye(3)[torch.from_numpy(of_class)]
        trained = model.adapt(torch.from_numpy(phi)[None], Y[None])[0].numpy()
    np.testing.assert_allclose(made.W, trained, atol=1e-4 * np.abs(trained).max())


def test_accuracy_is_that_of_queries_in_one_view() -> None:
    """Other views of the queries, however far off, change nothing; those of support images do."""
    rng = np.random.default_rng(0)
    data = colour_classes()
    labels = np.repeat(np.arange(8), 8)
    first = rng.normal(size=(8, 5))[labels] + 1.5 * rng.normal(size=(64, 5))
    views = np.stack([first, first + rng.normal(size=first.shape)], axis=1).astype(np.float32)
    head = MetaModel(tiny_config("prototype")).head()

    def accuracy(embeddings: np.ndarray) -> float:
        return evaluate(replace(data, images=embeddings), head, Task(4, 1, 5), 30).mean

    repeated = np.repeat(views[:, :1], 2, axis=1)
    assert accuracy(repeated) == pytest.approx(accuracy(views[:, 0]), abs=0.02)
    assert accuracy(views) != accuracy(repeated)
    task = Task(4, 1, 5)

    def classify(phi: np.ndarray, classes: np.ndarray, ways: int, query: np.ndarray) -> np.ndarray:
        assert phi.shape == (4, 2, 5)
        assert all((views[:, 0] == row).all(axis=1).any() for row in query)
        return np.zeros((len(query), ways))

    seen = replace(data, images=views)
    assert measure(seen, classify, task, 2, 0).accuracy.mean == 0.25
    drawn = OpenSetEpisodes(seen, task, 1, 0).draw(0)
    assert drawn.phi.shape == (4, 2, 5)
    assert drawn.query.shape == (20, 5)
    assert drawn.unknown.shape == (20, 5)
    for row in (*drawn.query, *drawn.unknown):
        assert (views[:, 0] == row).all(axis=1).any()


@pytest.mark.parametrize("name", BASELINES)
def test_simple_heads_have_every_view_as_an_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    classes = np.repeat(np.arange(3), 4)
    centres = rng.normal(size=(3, 20))
    phi = (centres[classes, None] + 0.6 * rng.normal(size=(12, 3, 20))).astype(np.float32)
    query = (centres.repeat(5, axis=0) + 0.6 * rng.normal(size=(15, 20))).astype(np.float32)
    head = MetaModel(tiny_config("prototype")).head()
    classify = BASELINES[name].make(head, BASELINES[name].value or 0.01)
    found = classify(phi, classes, 3, query)
    if name.endswith("-cv"):
        views: list[int] = []

        def choose(*arguments: object) -> float:
            views.append(arguments[-1])  # type: ignore[arg-type]
            return choose_setting(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr("training.evaluation.baselines.choose_setting", choose)
        np.testing.assert_array_equal(classify(phi, classes, 3, query), found)
        assert views == [3], "their folds leave out whole images"
        return
    np.testing.assert_allclose(found, classify(*as_examples(phi, classes), 3, query), rtol=1e-6)


def test_cross_validation_holds_out_whole_images() -> None:
    seen: list[tuple[set[int], set[int]]] = []

    def fit_one(phi: np.ndarray, classes: np.ndarray, ways: int, query: np.ndarray, value: float) -> np.ndarray:
        seen.append((set(phi[:, 0].tolist()), set(query[:, 0].tolist())))
        return np.zeros((len(query), ways))

    images = np.arange(8).repeat(3)
    choose_setting(fit_one, [1.0], 1.0, "accuracy", images[:, None], images // 4, 2, 3)
    assert [(len(kept), len(out), kept & out) for kept, out in seen] == [(6, 2, set())] * 4
    assert sorted(image for _, out in seen for image in out) == list(range(8))
    seen.clear()
    assert choose_setting(fit_one, [1.0, 2.0], 7.0, "accuracy", np.zeros((6, 1)), np.repeat([0, 1], 3), 2, 3) == 7.0
    assert not seen, "one image of each class cannot be held out"
