"""The engine without HTTP: what it computes, what it refuses, and that threads do not mix."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Semaphore

import numpy as np
import onnx
import pytest

from comln_serve.bundle import load_bundle
from comln_serve.classifier import softmax
from comln_serve.engine import fitting
from comln_serve.engine.admission import Admission
from comln_serve.engine.backbone import Backbone, batch_sizes
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.engine import Engine
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from comln_serve.flow import solve_flow
from comln_serve.imaging import prepare_image
from comln_serve.settings import Settings
from tests.conftest import (
    batcher_of,
    before_each_batch,
    colour_support,
    image_bytes,
    tiny_config,
    tiny_model,
)
from tests.test_batcher import wait_until
from tests.test_bundle import edit_manifest, poison_backbone, replace_file

MakeEngine = Callable[[Settings], Engine]
COLOURS = [(220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30), (30, 220, 220)]


@pytest.fixture
def engine(settings: Settings, make_engine: MakeEngine) -> Engine:
    engine = make_engine(settings)
    engine.warm()
    return engine


def fails(code: ErrorCode, action: Callable[[], object]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        action()
    assert caught.value.code is code
    return caught.value


@pytest.mark.parametrize(
    ("start", "model"),
    [("zero", "tiny"), ("prototype", "tiny-prototype"), ("learned", "tiny-learned")],
)
def test_adaptation_is_the_flow_on_torch_embeddings(engine: Engine, start: str, model: str) -> None:
    """Unequal numbers of examples: 1 of class 0 up to 5 of class 4, in shuffled order."""
    support = [
        (image_bytes(COLOURS[i], seed=10 * i + n), f"class {i}")
        for n in range(5)
        for i in range(n, 5)
    ]
    adapted = engine.adapt(support, model=model, horizon=30.0).classifier
    assert adapted.labels == tuple(f"class {i}" for i in range(5))
    assert adapted.examples == (1, 2, 3, 4, 5)

    config = tiny_config(start)
    torch_model = tiny_model(config)
    policy = config.data.preprocessing
    images = np.stack([prepare_image(data, policy) for data, _ in support])
    phi = torch_model.embed(images).astype(np.float64)
    classes = np.array([int(label[-1]) for _, label in support])
    Y = np.eye(5)[classes]
    W0 = np.zeros((5, phi.shape[1]))
    if start == "prototype":
        W0 = 2.0 * np.stack([phi[classes == i].mean(axis=0) for i in range(5)])
    if torch_model.W0 is not None:
        W0 = torch_model.W0.detach().numpy().astype(np.float64)
    weights = None
    if engine.models[model].bundle.head.weighting == "balanced":
        weights = 1.0 / (5 * np.bincount(classes)[classes])
    W = solve_flow(phi, W0, Y, 30.0, weights=weights, rtol=1e-9, atol=1e-9).W
    np.testing.assert_allclose(adapted.W, W, rtol=0, atol=1e-3 * np.abs(W).max())

    probabilities = softmax(phi @ W.T)
    of_truth = probabilities[np.arange(len(classes)), classes]
    share = np.full(len(classes), 1 / len(classes)) if weights is None else weights
    assert adapted.support_loss == pytest.approx(-(share * np.log(of_truth)).sum(), rel=1e-3)
    assert adapted.support_accuracy == (probabilities.argmax(axis=1) == classes).mean()


def test_a_second_predict_equals_the_first(engine: Engine) -> None:
    adapted = engine.adapt(colour_support()).classifier
    queries = [image_bytes(colour, seed=77) for colour in COLOURS]
    first = engine.predict(queries, adapted.id)
    second = engine.predict(queries, adapted.id)
    np.testing.assert_array_equal(first.probabilities, second.probabilities)
    np.testing.assert_allclose(first.probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert first.classifier.labels == ("red", "green", "blue")


def test_it_learns_colours(engine: Engine) -> None:
    adapted = engine.adapt(colour_support(), name="colours").classifier
    assert adapted.support_accuracy == 1.0
    queries = [image_bytes(colour, seed=99) for colour in COLOURS[:3]]
    predicted = engine.predict(queries, "colours").probabilities
    assert predicted.argmax(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 130])
def test_a_batch_of_any_size_gives_what_single_images_give(engine: Engine, count: int) -> None:
    """Batches are padded and split; neither may show."""
    adapted = engine.adapt(colour_support()).classifier
    queries = [image_bytes(COLOURS[i % 5], (8, 8), seed=i % 7) for i in range(count)]
    together = engine.predict(queries, adapted.id).probabilities
    assert together.shape == (count, 3)
    for position in {0, count // 2, count - 1}:
        alone = engine.predict([queries[position]], adapted.id).probabilities
        np.testing.assert_allclose(together[position], alone[0], atol=1e-5)


def test_adapting_again_gives_the_same_weights(engine: Engine) -> None:
    first, second = (engine.adapt(colour_support()).classifier for _ in range(2))
    assert first.id != second.id
    np.testing.assert_array_equal(first.W, second.W)


def test_threads_do_not_mix_classifiers(engine: Engine) -> None:
    """Each thread has its own classes and its own queries; alone and together agree to the bit."""

    def task(thread: int) -> tuple[list[tuple[bytes, str]], list[bytes]]:
        chosen = [COLOURS[(thread + i) % 5] for i in range(2 + thread % 3)]
        support = [
            (image_bytes(colour, seed=100 * thread + n), f"t{thread}-c{i}")
            for i, colour in enumerate(chosen)
            for n in range(1 + thread % 2)
        ]
        return support, [image_bytes(colour, seed=7 * thread) for colour in chosen]

    def work(thread: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
        support, queries = task(thread)
        adapted = engine.adapt(support, name=f"t{thread}").classifier
        predicted = engine.predict(queries, f"t{thread}")
        assert predicted.classifier.id == adapted.id
        assert predicted.classifier.labels == adapted.labels
        return adapted.labels, adapted.W, predicted.probabilities

    alone = [work(thread) for thread in range(8)]
    start = Barrier(8)

    def together(thread: int) -> None:
        start.wait()
        for _ in range(4):
            labels, W, probabilities = work(thread)
            assert labels == alone[thread][0]
            np.testing.assert_array_equal(W, alone[thread][1])
            np.testing.assert_array_equal(probabilities, alone[thread][2])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(together, range(8)))
    assert engine.store.count() == 8 * 5
    assert engine.images.pending == 0


@pytest.mark.parametrize("together", [True, False])
def test_fifty_adaptations_at_once_do_not_mix(
    settings: Settings, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Whether their images share batches or not, each classifier is the one it would be alone."""
    monkeypatch.setattr(Backbone, "batches", together)
    engine = make_engine(settings)
    engine.warm()

    def support(task: int) -> list[tuple[bytes, str]]:
        chosen = [COLOURS[(task + i) % 5] for i in range(2 + task % 4)]
        return [(image_bytes(c, seed=task), f"{task}-{i}") for i, c in enumerate(chosen)]

    sizes: list[int] = []
    before_each_batch(engine, sizes.append)
    with ThreadPoolExecutor(50) as pool:
        all_made = list(pool.map(lambda task: engine.adapt(support(task)).classifier, range(50)))
    assert (max(sizes) > 5) == together, "some batches held images of several requests"
    assert sum(sizes) == sum(classifier.W.shape[0] for classifier in all_made)
    for task, made in enumerate(all_made):
        alone = engine.adapt(support(task)).classifier
        assert made.labels == alone.labels == tuple(f"{task}-{i}" for i in range(2 + task % 4))
        np.testing.assert_allclose(made.W, alone.W, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("batched")
def test_one_batch_answers_for_many_classifiers(
    settings: Settings, make_engine: MakeEngine
) -> None:
    engine = make_engine(settings)
    engine.warm()
    made = [engine.adapt(colour_support(), horizon=10.0 * (i + 1)).classifier for i in range(8)]
    queries = [image_bytes(COLOURS[i % 5], seed=50 + i) for i in range(8)]
    alone = [engine.predict([query], c.id) for query, c in zip(queries, made, strict=True)]
    batcher = batcher_of(engine)
    sizes, blocked = list[int](), Event()

    def held(count: int) -> None:
        sizes.append(count)
        assert blocked.wait(30)

    before_each_batch(engine, held)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(engine.predict, [queries[0]], made[0].id)
        wait_until(lambda: sizes == [1])
        tasks = [pool.submit(engine.predict, [q], c.id) for q, c in zip(queries, made, strict=True)]
        wait_until(lambda: batcher.queued == 8)
        blocked.set()
        first.result(30)
        together = [task.result(30) for task in tasks]
    assert sizes == [1, 8]
    for one, other in zip(together, alone, strict=True):
        assert one.classifier.id == other.classifier.id
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("max_batch_size", [1, 6, 8])
def test_padded_batches_give_what_single_images_give(
    settings: Settings, max_batch_size: int
) -> None:
    """The path of accelerators, run on the CPU."""
    bundle = load_bundle(settings.models_dir / "tiny")
    backbone = Backbone(bundle, "cpu", max_batch_size=max_batch_size)
    images = np.random.default_rng(0).integers(0, 256, (13, 16, 16, 3), dtype=np.uint8)
    alone = np.concatenate([backbone.embed(images[i : i + 1]) for i in range(13)])
    np.testing.assert_array_equal(backbone.embed(images), alone)
    backbone.provider = "cuda"
    backbone._batch_sizes = batch_sizes(max_batch_size)
    backbone.warm()
    for count in (1, 2, 3, 5, 6, 8, 13):
        np.testing.assert_allclose(backbone.embed(images[:count]), alone[:count], atol=1e-5)
    backbone.close()


def test_batch_sizes() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(2) == (1, 2)
    assert batch_sizes(48) == (1, 2, 4, 8, 16, 32, 48)
    assert batch_sizes(64) == (1, 2, 4, 8, 16, 32, 64)


def test_an_interrupted_backbone_raises_and_goes_on(settings: Settings) -> None:
    backbone = Backbone(load_bundle(settings.models_dir / "tiny"), "cpu")
    images = np.zeros((4000, 16, 16, 3), dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(backbone.embed, images)
        while not task.done():
            backbone.interrupt()
        with pytest.raises(Exception, match="terminate"):
            task.result()
    assert backbone.embed(images[:3]).shape == (3, 8)
    backbone.close()


def test_a_request_that_waits_too_long_for_its_batch(
    settings: Settings, make_engine: MakeEngine
) -> None:
    engine = make_engine(settings.model_copy(update={"max_queue_seconds": 0.2}))
    adapted = engine.adapt(colour_support()).classifier
    lanes, running, blocked = batcher_of(engine).lanes, Semaphore(0), Event()

    def held(_: int) -> None:
        running.release()
        assert blocked.wait(30)

    before_each_batch(engine, held)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.predict, [image_bytes()] * len(lanes), adapted.id)
        for _ in lanes:
            assert running.acquire(timeout=30)
        error = fails(ErrorCode.QUEUE_TIMEOUT, lambda: engine.predict([image_bytes()], adapted.id))
        assert error.detail == {"allowed_seconds": 0.2}
        assert engine.images.pending == len(lanes)
        blocked.set()
        assert first.result(30).probabilities.shape == (len(lanes), 3)
    assert engine.predict([image_bytes()], adapted.id).probabilities.shape == (1, 3)
    assert engine.images.pending == 0


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("count", [1, 3])
def test_a_request_that_waits_too_long_for_a_decoder(
    settings: Settings, make_engine: MakeEngine, count: int
) -> None:
    """It is told so in time, though no decoder ever looks at it."""
    update = {"max_queue_seconds": 0.2, "decode_threads": 1}
    engine = make_engine(settings.model_copy(update=update))
    adapted = engine.adapt(colour_support()).classifier
    with engine._embedder.decoders._slots:
        fails(ErrorCode.QUEUE_TIMEOUT, lambda: engine.predict([image_bytes()] * count, adapted.id))
    assert engine.predict([image_bytes()], adapted.id).probabilities.shape == (1, 3)
    assert engine.images.pending == 0


def test_work_of_a_client_who_has_left_is_dropped(engine: Engine) -> None:
    adapted = engine.adapt(colour_support()).classifier
    gone = Cancellation()
    gone.cancel()
    stored = engine.store.count()
    embedded: list[int] = []
    before_each_batch(engine, embedded.append)
    for action in (
        lambda: engine.adapt(colour_support(), cancellation=gone),
        lambda: engine.predict([image_bytes()], adapted.id, cancellation=gone),
        # Not blamed on the image, which nobody looked at.
        lambda: engine.predict([b"not an image"], adapted.id, cancellation=gone),
    ):
        fails(ErrorCode.CLIENT_GONE, action)
    assert embedded == []
    assert engine.store.count() == stored
    assert engine.images.pending == 0


def test_a_client_who_leaves_while_it_is_solved_gets_no_classifier(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancellation = Cancellation()
    solve = fitting.solve

    def leaves(*arguments: object) -> object:
        cancellation.cancel()
        return solve(*arguments)

    monkeypatch.setattr(fitting, "solve", leaves)
    fails(ErrorCode.CLIENT_GONE, lambda: engine.adapt(colour_support(), cancellation=cancellation))
    assert engine.store.count() == 0


def test_horizon_is_the_model_s_own_or_the_caller_s(engine: Engine) -> None:
    own = engine.adapt(colour_support()).classifier
    assert own.horizon == engine.models["tiny"].bundle.head.horizon
    losses = [own.support_loss]
    for factor in (3.0, 10.0):
        longer = engine.adapt(colour_support(), horizon=factor * own.horizon).classifier
        assert longer.horizon == factor * own.horizon
        losses.append(longer.support_loss)
    assert losses == sorted(losses, reverse=True), "the flow descends"
    assert losses[0] > losses[-1]
    none = engine.adapt(colour_support(), horizon=1e-12).classifier
    assert none.support_loss == pytest.approx(np.log(3), abs=1e-6), "a zero start knows nothing"


@pytest.mark.parametrize("ways", [2, 4, 6])
def test_learned_start_refuses_another_number_of_classes(engine: Engine, ways: int) -> None:
    support = [(image_bytes(seed=i), f"class {i}") for i in range(ways)]
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.adapt(support, model="tiny-learned"))
    assert error.detail == {"received_classes": ways, "needed_classes": 5}
    assert engine.store.count() == 0


@pytest.mark.parametrize("support", [[], [(image_bytes(), "a")], [(image_bytes(), "a")] * 3])
def test_too_few_classes(engine: Engine, support: list[tuple[bytes, str]]) -> None:
    fails(ErrorCode.CANNOT_ADAPT, lambda: engine.adapt(support))
    assert engine.store.count() == 0


def test_a_flow_that_cannot_be_solved_is_said_so(
    settings: Settings, tmp_path: Path, make_engine: MakeEngine
) -> None:
    """A bundle that allows a single step."""
    models = Path(shutil.copytree(settings.models_dir, tmp_path / "models"))
    edit_manifest(models / "tiny", lambda content: content["solver"].update(max_steps=1))
    engine = make_engine(settings.model_copy(update={"models_dir": models}))
    error = fails(ErrorCode.CANNOT_ADAPT, lambda: engine.adapt(colour_support(), horizon=1e6))
    assert "shorter horizon" in error.message
    assert error.detail == {"horizon": 1e6}
    assert engine.store.count() == 0


def test_equal_images_under_different_labels(engine: Engine) -> None:
    """No classifier can tell them apart: an answer, not a failure, and an even one."""
    same = image_bytes()
    adapted = engine.adapt([(same, "a"), (same, "b")]).classifier
    predicted = engine.predict([same], adapted.id).probabilities
    np.testing.assert_allclose(predicted, [[0.5, 0.5]], atol=1e-4)


@pytest.mark.parametrize("change", ["altered", "removed", "other preprocessing"])
def test_a_classifier_of_another_backbone_is_not_used(
    settings: Settings, tmp_path: Path, make_engine: MakeEngine, change: str
) -> None:
    engine = make_engine(settings)
    engine.warm()
    adapted = engine.adapt(colour_support(), model="tiny").classifier
    engine.close()

    models = Path(shutil.copytree(settings.models_dir, tmp_path / "models"))
    if change == "removed":
        shutil.rmtree(models / "tiny")
    elif change == "other preprocessing":
        edit_manifest(models / "tiny", lambda tree: tree["preprocessing"].update(resize="pad"))
    else:
        graph = onnx.load_from_string((models / "tiny" / "backbone.onnx").read_bytes())
        graph.doc_string = "retrained"
        replace_file(models / "tiny", "backbone", graph.SerializeToString())
    update = {"models_dir": models, "default_model": "tiny-prototype"}
    changed = make_engine(settings.model_copy(update=update))
    error = fails(ErrorCode.MODEL_CHANGED, lambda: changed.predict([image_bytes()], adapted.id))
    assert error.detail["model"] == "tiny"
    assert changed.find_classifier(adapted.id).id == adapted.id, "it can still be looked at"


def test_unknown_names(engine: Engine) -> None:
    error = fails(ErrorCode.MODEL_NOT_FOUND, lambda: engine.adapt(colour_support(), model="absent"))
    assert error.detail["available"] == ["tiny", "tiny-learned", "tiny-prototype"]
    for action in (
        lambda: engine.predict([image_bytes()], "absent"),
        lambda: engine.find_classifier("absent"),
        lambda: engine.delete_classifier("absent"),
    ):
        fails(ErrorCode.CLASSIFIER_NOT_FOUND, action)


@pytest.mark.parametrize("position", [0, 4, 8])
def test_a_bad_image_is_named_by_its_position(engine: Engine, position: int) -> None:
    support = colour_support()
    support[position] = (b"not an image", support[position][1])
    error = fails(ErrorCode.INVALID_IMAGE, lambda: engine.adapt(support))
    assert error.message.startswith(f"Image {position + 1} of 9:")
    assert error.detail["image"] == position
    assert engine.store.count() == 0
    assert engine.images.pending == 0


def test_default_model(settings: Settings, make_engine: MakeEngine) -> None:
    assert make_engine(settings).adapt(colour_support()).classifier.model == "tiny"
    unnamed = settings.model_copy(update={"default_model": None})
    assert make_engine(unnamed).default_model == "tiny", "the first by name"
    with pytest.raises(StartupError, match="'absent' is not in"):
        make_engine(settings.model_copy(update={"default_model": "absent"}))


def test_ready_between_warm_and_close(settings: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(settings)
    states = [engine.ready]
    engine.warm()
    states.append(engine.ready)
    engine.close()
    assert [*states, engine.ready] == [False, True, False]


def test_admission_counts_and_releases() -> None:
    admission = Admission(5, "images")
    with admission.admit(3):
        with admission.admit(2):
            assert admission.pending == 5
            error = fails(ErrorCode.OVERLOADED, lambda: admission.admit(1).__enter__())
            assert error.detail == {"pending": 5, "received": 1, "limit": 5}
        assert admission.pending == 3
        fails(ErrorCode.OVERLOADED, lambda: admission.admit(3).__enter__())
        assert admission.pending == 3, "what was refused does not count"
    with pytest.raises(KeyError), admission.admit(5):
        raise KeyError
    assert admission.pending == 0


def test_overload_counts_images_not_requests(settings: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(settings.model_copy(update={"max_images": 9, "max_pending_images": 9}))
    adapted = engine.adapt(colour_support()).classifier
    with engine.images.admit(7):
        assert engine.predict([image_bytes()] * 2, adapted.id).probabilities.shape == (2, 3)
        error = fails(ErrorCode.OVERLOADED, lambda: engine.predict([image_bytes()] * 3, adapted.id))
        assert error.detail == {"pending": 7, "received": 3, "limit": 9}
        fails(ErrorCode.OVERLOADED, lambda: engine.adapt(colour_support()))
    assert engine.predict([image_bytes()] * 3, adapted.id).probabilities.shape == (3, 3)
    assert engine.store.count() == 1


def test_a_backbone_that_gives_nan_never_gets_ready(
    settings: Settings, tmp_path: Path, make_engine: MakeEngine
) -> None:
    models = Path(shutil.copytree(settings.models_dir, tmp_path / "models"))
    poison_backbone(models / "tiny")
    engine = make_engine(settings.model_copy(update={"models_dir": models}))
    engine.warm()
    assert not engine.ready
    assert "NaN" in str(engine.failure)
    fails(ErrorCode.NOT_READY, lambda: engine.adapt(colour_support()))
