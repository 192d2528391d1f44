"""A model whose support images have several views: each is an example. Predictions see the first, or all on request."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from comln_serve.bundle.views import as_examples
from comln_serve.configuration.settings import Settings
from comln_serve.engine.adapting.changes import RemoveExamples
from comln_serve.engine.engine import Engine, NewClassifier
from comln_serve.errors import ErrorCode
from comln_serve.imaging import prepare_views
from tests.support.bundles import with_views
from tests.support.engines import MakeEngine, batcher_of, fails, predict
from tests.support.image_files import colour_support, image_bytes, prepare_image

MODEL, SHARES = "tiny-prototype", (0.8, 1.0, 0.5)


@pytest.fixture
def views(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a server of such a bundle, which keeps thumbnails."""
    assert settings.models_dir is not None
    folder = with_views(settings.models_dir / MODEL, tmp_path / "views", SHARES)
    return settings.model_copy(update={"models_dir": folder, "default_model": MODEL, "keep_thumbnails": True})


def embedded(engine: Engine, images: np.ndarray) -> np.ndarray:
    network = batcher_of(engine, MODEL).network
    return network.embed(images, None, alone=True)  # type: ignore[arg-type]


def test_every_view_of_every_image_is_an_example(views: Settings, make_engine: MakeEngine) -> None:
    engine, support = make_engine(views), colour_support(3)
    made = engine.adapt(support).classifier
    policy = engine.models[MODEL].bundle.manifest.preprocessing
    assert policy.shares == SHARES
    phi = np.stack([embedded(engine, prepare_views(data, policy)) for data, _ in support])  # (M, V, d)
    stored = engine.classifiers.of().support(made.id)[1].embeddings.reshape(phi.shape)
    np.testing.assert_allclose(stored, phi, atol=1e-4 * np.abs(phi).max())
    classes = np.array([made.labels.index(label) for _, label in support])
    examples, of_class = as_examples(stored, classes)
    head = engine.models[MODEL].bundle.head
    expected = head.adapt(np.ascontiguousarray(examples), of_class, len(made.labels)).W
    np.testing.assert_allclose(made.W, expected, rtol=1e-5)
    assert made.examples == (3,) * len(made.labels)


def test_predictions_see_the_first_view(views: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(views)
    made = engine.adapt(colour_support(2)).classifier
    policy = engine.models[MODEL].bundle.manifest.preprocessing
    image = image_bytes(seed=5)
    query = embedded(engine, prepare_image(image, policy)[None])
    logits = query.astype(np.float64) @ made.W.astype(np.float64).T
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(predict(engine, [image], made.id).probabilities, expected, rtol=1e-6)


def test_predictions_by_all_views_are_those_of_their_mean_logits(views: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(views)
    made = engine.adapt(colour_support(2)).classifier
    policy = engine.models[MODEL].bundle.manifest.preprocessing
    files = [image_bytes((3, 90, 200), seed=5), b"no image", image_bytes((200, 20, 9), seed=6)]
    found = predict(engine, files, made.id, unknown=True, all_views=True, partial=True)
    phi = np.stack([embedded(engine, prepare_views(files[i], policy)) for i in (0, 2)])
    logits = (phi.astype(np.float64) @ made.W.astype(np.float64).T).mean(axis=1)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-5)
    one = predict(engine, files, made.id, unknown=True, partial=True)
    assert not np.allclose(one.probabilities, expected, rtol=1e-3)
    assert found.similarity is not None
    assert one.similarity is not None
    np.testing.assert_array_equal(found.similarity, one.similarity)  # its threshold is that of one view


def test_a_model_of_one_view_predicts_the_same_by_all(settings: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(settings)
    made = engine.adapt(colour_support(2)).classifier
    image = image_bytes(seed=5)
    by_all = predict(engine, [image], made.id, all_views=True).probabilities
    np.testing.assert_array_equal(by_all, predict(engine, [image], made.id).probabilities)


def test_examples_come_and_go_as_if_they_had_come_at_once(views: Settings, make_engine: MakeEngine) -> None:
    engine, support = make_engine(views), colour_support(3)
    whole = engine.adapt(support).classifier
    parts = engine.adapt(support[:-1]).classifier
    assert not np.array_equal(parts.W, whole.W)
    np.testing.assert_array_equal(engine.add_examples(parts.id, support[-1:]).classifier.W, whole.W)
    engine.add_examples(parts.id, [(image_bytes(seed=9), support[0][1])])
    np.testing.assert_array_equal(engine.change(parts.id, RemoveExamples([len(support) + 1])).classifier.W, whole.W)


def test_images_are_known_as_examples_by_their_first_view(views: Settings, make_engine: MakeEngine) -> None:
    engine, support = make_engine(views), colour_support(2)
    made = engine.adapt(support).classifier
    files = [support[3][0], image_bytes((3, 90, 200), seed=99), support[0][0]]
    assert predict(engine, files, made.id, examples=True).examples == (4, None, 1)


def test_the_report_counts_images(views: Settings, make_engine: MakeEngine) -> None:
    engine, support = make_engine(views), colour_support(3)
    report = engine.adapt(support).classifier.report
    assert report is not None
    assert report.held_out is not None
    assert report.held_out.judged == len(support)
    assert np.sum(report.held_out.confusion) == len(support)
    repeated = engine.adapt([*support, support[0]]).classifier.report
    assert repeated is not None
    assert repeated.near_duplicates == [[1, len(support) + 1]]


def test_a_support_set_from_elsewhere_needs_every_view(views: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(views)
    made = engine.adapt(colour_support(2)).classifier
    _, support = engine.classifiers.of().support(made.id)
    again = engine.adapt_to_embeddings(support, made.embedder_sha256, NewClassifier(), "whole").classifier
    assert again.W.tobytes() == made.W.tobytes()
    width = support.embeddings.shape[1]
    less = replace(support, embeddings=support.embeddings[:, : width // len(SHARES)])
    error = fails(
        ErrorCode.INVALID_REQUEST,
        lambda: engine.adapt_to_embeddings(less, made.embedder_sha256, NewClassifier(), "less"),
    )
    assert error.detail == {"received": width // len(SHARES), "allowed": width}


def test_a_bad_image_takes_its_views_with_it(views: Settings, make_engine: MakeEngine) -> None:
    engine, support = make_engine(views), colour_support(2)
    whole = engine.adapt(support).classifier
    adapted = engine.adapt([support[0], (b"no image", support[0][1]), *support[1:]], partial=True)
    assert [one.index for one in adapted.rejected] == [1]
    np.testing.assert_array_equal(adapted.classifier.W, whole.W)
    error = fails(ErrorCode.INVALID_IMAGE, lambda: engine.adapt([*support, (b"no image", support[0][1])]))
    assert error.detail["image"] == len(support)


def test_views_count_as_images_in_work(views: Settings, make_engine: MakeEngine) -> None:
    """As many as one request can hold, so that none is refused for ever."""
    engine = make_engine(views.model_copy(update={"max_images": 20, "max_pending_images": 20}))
    support = colour_support(4)  # 12 images, 36 views
    held: list[int] = []
    network = batcher_of(engine, MODEL).network

    class Told:
        def embed(self, *arguments: object, **options: object) -> object:
            held.append(engine.images.pending)
            return network.embed(*arguments, **options)  # type: ignore[arg-type]

    batcher_of(engine, MODEL).network = Told()  # type: ignore[assignment]
    engine.adapt(support)
    assert set(held) == {engine.images.most}
    held.clear()
    engine.adapt(support[:2] + support[-2:])
    assert set(held) == {12}
    assert engine.images.pending == 0
