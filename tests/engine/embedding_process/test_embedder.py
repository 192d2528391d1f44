"""The process that embeds for others: the same embeddings as in the process itself, and no failure when it dies.

Here it is a thread; tests/server/test_embedding_process.py has the real one.
"""

import gc
import os
import socket
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from numpy.typing import NDArray

from comln_serve.bundle import Bundle, load_bundle
from comln_serve.configuration.settings import Settings
from comln_serve.counts import SharedCounts
from comln_serve.engine import bundles
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.engine.embedding_process import embedder
from comln_serve.engine.embedding_process.embedder import Embedder, listen_for_batches
from comln_serve.engine.embedding_process.shared_model import SharedModel
from comln_serve.engine.models import LocalModel, Model
from comln_serve.errors import ErrorCode, ServiceError, StartupError
from tests.support.engines import fails
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the process that embeds needs Linux")

Images = NDArray[np.uint8]
IMAGES: Images = np.random.default_rng(1).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)


@pytest.fixture
def bundle(models_dir: Path) -> Bundle:
    return load_bundle(models_dir / "tiny")


@pytest.fixture
def shared(tmp_path: Path) -> SharedCounts:
    counts = SharedCounts(2, tmp_path, embedder=True)
    counts.parent = os.getppid()  # this process stands for the one that embeds
    return counts


@pytest.fixture
def listening(shared: SharedCounts) -> Iterator[socket.socket]:
    with listen_for_batches(shared.embedder_socket) as listening:
        yield listening


@pytest.fixture
def embedding(listening: socket.socket, shared: SharedCounts, settings: Settings) -> Iterator[Embedder]:
    """An embedder at work. Ends at the end of the test, once nobody is connected."""
    at_work = Embedder(listening, settings, shared)
    thread = Thread(target=at_work.run)
    thread.start()
    yield at_work
    shared.parent = 0
    thread.join(timeout=20)
    assert not thread.is_alive()


@pytest.fixture
def model(embedding: Embedder, shared: SharedCounts, settings: Settings, bundle: Bundle) -> Iterator[SharedModel]:
    """A warm model that it embeds for."""
    model = SharedModel(bundle, settings, shared.embedder_socket, 2)
    model.warm()
    yield model
    model.close()


def embed(model: Model, images: Images = IMAGES, cancellation: Cancellation | None = None) -> NDArray[np.float32]:
    return model.batcher.network.embed(images, cancellation or Cancellation(), alone=False)


@pytest.mark.parametrize("count", [1, 3, 8, 20])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_embeddings_are_those_of_the_process_itself(
    embedding: Embedder,
    shared: SharedCounts,
    settings: Settings,
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    on_gpu: bool,
) -> None:
    monkeypatch.setattr(OnnxBackbone, "on_gpu", on_gpu)
    alone = LocalModel(bundle, settings, 1)
    models = [bundles.open_model(bundle, settings, shared) for _ in range(2)]
    try:
        for model in models:
            assert isinstance(model, SharedModel)
            model.warm()
            assert model.provider == alone.provider
        images = IMAGES[:count]
        expected = alone.backbone.embed(images)
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda i: embed(models[i % 2], images), range(24)))
        assert all(np.array_equal(embeddings, expected) for embeddings in found)
    finally:
        for model in (alone, *models):
            model.close()


def test_a_network_is_open_once_and_until_a_while_after_its_last_use(
    embedding: Embedder, shared: SharedCounts, settings: Settings, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[LocalModel] = []

    def open_here(*arguments: object) -> LocalModel:
        opened.append(LocalModel(bundle, settings, 1))
        return opened[-1]

    monkeypatch.setattr(embedder, "LocalModel", open_here)
    path = shared.embedder_socket
    with ThreadPoolExecutor(4) as threads:
        models = list(threads.map(lambda _: SharedModel(bundle, settings, path, 2), range(4)))
    for model in models:
        model.warm()
        assert len(embed(model)) == len(IMAGES)
    assert len(opened) == 1
    for model in models:
        model.close()
    wait_until(lambda: not embedding._networks.used)
    SharedModel(bundle, settings, path, 2).close()
    assert len(opened) == 1
    monkeypatch.setattr(embedder, "_KEPT_S", 0.0)
    wait_until(lambda: not any(thread.is_alive() for thread in opened[0].batcher._threads))
    SharedModel(bundle, settings, path, 2).close()
    assert len(opened) == 2


def test_a_closed_model_is_freed_without_the_garbage_collector(
    embedding: Embedder, shared: SharedCounts, settings: Settings, bundle: Bundle
) -> None:
    """Which leaves out all that there was when the server was warm, and so the models that a reload replaces."""
    model = SharedModel(bundle, settings, shared.embedder_socket, 2)
    model.warm()
    model.close()
    left = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert left() is None
    finally:
        gc.enable()


def test_what_keeps_a_network_from_opening_is_said_where_it_was_asked_for(
    embedding: Embedder, shared: SharedCounts, settings: Settings, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> LocalModel:
        raise StartupError("CUDA does not run")

    with monkeypatch.context() as patched:
        patched.setattr(embedder, "LocalModel", refuse)
        with pytest.raises(StartupError, match="CUDA does not run"):
            SharedModel(bundle, settings, shared.embedder_socket, 2)
    model = SharedModel(bundle, settings, shared.embedder_socket, 2)
    monkeypatch.setattr(OnnxBackbone, "embed", lambda *_, **__: np.full((8, 8), np.nan, np.float32))
    with pytest.raises(StartupError, match="NaN"):
        model.warm()
    model.close()


def test_the_error_of_a_batch_reaches_who_sent_it_and_the_next_is_embedded(
    model: SharedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> NDArray[np.float32]:
        raise ServiceError(ErrorCode.INFERENCE_TIMEOUT, "too slow", allowed_seconds=1.5)

    with monkeypatch.context() as patched:
        patched.setattr(OnnxBackbone, "embed", fail)
        error = fails(ErrorCode.INFERENCE_TIMEOUT, lambda: embed(model))
        assert error.detail["allowed_seconds"] == 1.5
    assert len(embed(model)) == len(IMAGES)


def test_embeddings_that_are_not_finite_are_left_to_who_knows_the_request(
    model: SharedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_of_them(self: OnnxBackbone, images: Images, *_: object, **__: object) -> NDArray[np.float32]:
        return np.stack([np.full(8, np.nan if image[0, 0, 0] == 0 else 1.0, np.float32) for image in images])

    monkeypatch.setattr(OnnxBackbone, "embed", one_of_them)
    images = np.ones((3, 16, 16, 3), np.uint8)
    images[1] = 0
    assert np.isfinite(embed(model, images)).all(axis=1).tolist() == [True, False, True]


def test_a_batch_whose_process_died_is_sent_to_the_next(
    listening: socket.socket, shared: SharedCounts, settings: Settings, bundle: Bundle
) -> None:
    """Its connection breaks once while it is opened, and once while a batch is embedded."""
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(SharedModel, bundle, settings, shared.embedder_socket, 2)
        listening.accept()[0].close()
        first = Embedder(listening, settings, shared)
        running = Thread(target=first.run)
        running.start()
        model = opening.result()
        model.warm()
        expected = embed(model)
        for channel in model.batcher.network._idle:  # type: ignore[attr-defined]
            channel.interrupt()
        assert np.array_equal(embed(model), expected)
        model.close()
    shared.parent = 0
    running.join()


def test_a_bundle_that_the_next_process_cannot_open_makes_the_server_not_ready(
    model: SharedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise StartupError("CUDA does not run")

    with monkeypatch.context() as patched:
        patched.setattr(embedder._Networks, "take", refuse)
        for channel in model.batcher.network._idle:  # type: ignore[attr-defined]
            channel.interrupt()
        assert "CUDA does not run" in fails(ErrorCode.NOT_READY, lambda: embed(model)).message
    assert len(embed(model)) == len(IMAGES)


def test_a_process_that_dies_again_and_again_is_an_error(
    listening: socket.socket, shared: SharedCounts, settings: Settings, bundle: Bundle
) -> None:
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(SharedModel, bundle, settings, shared.embedder_socket, 2)
        for _ in range(5):
            listening.accept()[0].close()
        with pytest.raises(StartupError, match=r"tiny: .* died 5 times"):
            opening.result()


def test_a_batch_that_nobody_wants_any_more_is_neither_waited_for_nor_embedded(
    model: SharedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, given_up = Event(), Event()

    def slow(self: OnnxBackbone, images: Images, unwanted: Cancellation, **_: object) -> NDArray[np.float32]:
        begun.set()
        with unwanted.calling(given_up.set):
            given_up.wait(30)
        return np.ones((len(images), 8), np.float32)

    monkeypatch.setattr(OnnxBackbone, "embed", slow)
    cancellation = Cancellation()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(embed, model, IMAGES[:2], cancellation)
        begun.wait(30)
        cancellation.cancel()
        error = fails(ErrorCode.CLIENT_GONE, lambda: waiting.result(10))
        assert error.code is ErrorCode.CLIENT_GONE
        assert given_up.wait(10)


def test_it_ends_when_its_threads_hang(
    listening: socket.socket, shared: SharedCounts, settings: Settings, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(Embedder(listening, settings, shared).run)
        model = SharedModel(bundle, settings, shared.embedder_socket, 2)
        monkeypatch.setattr(Batcher, "stuck", True)
        assert running.result(20) == 1
        model.close()


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="TMPDIR"):
        listen_for_batches(tmp_path / ("a" * 120))
