"""Models are exchanged while requests run: each finishes on those it began with, which are closed afterwards."""

import gc
import logging
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as running_threads
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from comln_serve.api.app import create_app
from comln_serve.configuration.settings import Settings
from comln_serve.engine.engine import Engine, ModelsReloaded, NewClassifier
from comln_serve.engine.models import LocalModel, Model
from comln_serve.engine.served import Models, ServedModels
from comln_serve.errors import ErrorCode
from comln_serve.storage import Edit
from tests.support.bundles import break_backbone, edit_manifest, edit_tensors, poison_backbone, replace_file
from tests.support.engines import MakeEngine, before_each_batch, fails, predict
from tests.support.image_files import colour_support, image_bytes
from tests.support.messages import PAIR, adapt_form, check_error, predict_form
from tests.support.waiting import SOON, Gate, wait_until

QUERY = [image_bytes((220, 30, 30), seed=5)]


@pytest.fixture
def live(make_engine: MakeEngine, models: Path) -> Engine:
    """An engine that serves them, by the default rule for the default model."""
    engine = make_engine(models_dir=models, default_model=None)
    engine.warm()
    return engine


def change_embedder(models: Path, name: str = "tiny") -> None:
    """Other embeddings under the name of a model: the preprocessing belongs to the embedder."""
    edit_manifest(models / name, lambda content: content["preprocessing"].update(interpolation="bicubic"))


def describe(models: Path, name: str = "tiny") -> None:
    """Change a bundle, but not its embedder."""
    edit_manifest(models / name, lambda content: content.update(description="Another."))


EmbeddingThreads = Callable[[], set[Thread]]


@pytest.fixture
def embedding_threads() -> EmbeddingThreads:
    """The threads that embed for engines of this test; those of other tests may still run."""
    earlier = set(running_threads())
    return lambda: {thread for thread in set(running_threads()) - earlier if thread.name.startswith("embed-")}


def names(threads: set[Thread]) -> set[str]:
    return {thread.name for thread in threads}


def test_what_was_added_replaced_removed_and_left(
    embedding_threads: EmbeddingThreads, live: Engine, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert live.models.default == "tiny"
    before = dict(live.models)
    assert live.reload() == ModelsReloaded(
        default="tiny", added=[], replaced=[], removed=[], unchanged=["tiny", "tiny-learned", "tiny-prototype"]
    )
    assert dict(live.models) == before, "the same objects"
    shutil.copytree(models / "tiny", models / "a-new-one")
    shutil.rmtree(models / "tiny")
    describe(models, "tiny-prototype")
    with caplog.at_level(logging.INFO, "comln_serve.engine.engine"):
        found = live.reload()
    assert found == ModelsReloaded(
        default="a-new-one",
        added=["a-new-one"],
        replaced=["tiny-prototype"],
        removed=["tiny"],
        unchanged=["tiny-learned"],
    )
    said = [record.getMessage() for record in caplog.records if record.name == "comln_serve.engine.engine"]
    assert said[-1] == (
        "models reloaded: added a-new-one; replaced tiny-prototype; removed tiny; unchanged tiny-learned; the default "
        "is a-new-one"
    )
    assert list(live.models) == ["a-new-one", "tiny-learned", "tiny-prototype"]
    assert live.models["tiny-learned"] is before["tiny-learned"]
    assert live.models["tiny-prototype"].bundle.manifest.description == "Another."
    assert live.adapt(colour_support()).classifier.model == "a-new-one"
    wait_until(lambda: names(embedding_threads()) == {"embed-a-new-one", "embed-tiny-learned", "embed-tiny-prototype"})


def test_classifiers_of_a_model_that_changed_or_went(
    live: Engine, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, changed = (
        live.adapt(colour_support(), NewClassifier(model=name)).classifier for name in ("tiny-prototype", "tiny")
    )
    describe(models, "tiny-prototype")
    change_embedder(models)
    live.reload()
    assert predict(live, QUERY, kept.id).classifier.labels == kept.labels
    error = fails(ErrorCode.MODEL_CHANGED, lambda: predict(live, QUERY, changed.id))
    assert "on a version of model 'tiny' that is no longer served" in error.message
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
    live.adapt(colour_support(), NewClassifier(model="tiny-prototype"))
    shutil.rmtree(models / "tiny-prototype")
    assert live.reload().removed == ["tiny-prototype"]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == (
        "2 stored classifier(s) are of models that are not served here, and cannot be used: tiny-prototype; the models "
        f"are read from {models}"
    )
    error = fails(ErrorCode.MODEL_CHANGED, lambda: predict(live, QUERY, kept.id))
    assert "model 'tiny-prototype', which this server does not have; served are tiny, tiny-learned." in error.message
    fails(ErrorCode.MODEL_NOT_FOUND, lambda: live.adapt(colour_support(), NewClassifier(model="tiny-prototype")))


def test_a_name_never_stands_for_what_cannot_predict(live: Engine, models: Path) -> None:
    five = [(image_bytes(seed=number), f"class {number}") for number in range(5)]
    for name in ("tiny-prototype", "tiny"):
        live.adapt(five, NewClassifier(model=name, name="letters"))
    held = live.adapt(five, NewClassifier(model="tiny-learned", name="letters", promote=False)).classifier
    shutil.rmtree(models / "tiny-prototype")
    change_embedder(models, "tiny-learned")
    live.reload()
    with live.changing() as store:
        fails(ErrorCode.MODEL_CHANGED, lambda: store.promote(held.id))
        error = fails(ErrorCode.MODEL_CHANGED, lambda: store.roll_back("letters"))
    assert error.message.startswith(
        "Classifier 'letters@1' was adapted on model 'tiny-prototype', which this server does"
    )
    assert predict(live, QUERY, "letters").classifier.version == 2
    with live.changing() as store:
        fails(ErrorCode.MODEL_CHANGED, lambda: store.promote("letters@1"))
        assert store.promote("letters@2").promoted
    unnamed = live.adapt(five, NewClassifier(model="tiny")).classifier
    change_embedder(models)
    live.reload()
    with live.changing() as store:
        fails(ErrorCode.MODEL_CHANGED, lambda: store.edit(unnamed.id, Edit(name="letters")))
        assert not store.edit(unnamed.id, Edit(name="letters", promote=False, metadata={"a": "b"})).promoted


def test_a_head_replaced_in_place_adapts_a_classifier_at_its_next_change(live: Engine, models: Path) -> None:
    made = live.adapt(colour_support(), NewClassifier(model="tiny-prototype")).classifier
    before = predict(live, QUERY, made.id).probabilities
    bundle = models / "tiny-prototype"
    edit_tensors(bundle, lambda found: found.update(alpha=np.array(7.0)))
    assert live.reload().replaced == ["tiny-prototype"]
    np.testing.assert_array_equal(predict(live, QUERY, made.id).probabilities, before)
    more = image_bytes((220, 30, 30), seed=9), made.labels[0]
    changed = live.add_examples(made.id, [more]).classifier
    anew = live.adapt([*colour_support(), more], NewClassifier(model="tiny-prototype")).classifier
    np.testing.assert_array_equal(changed.W, anew.W)
    assert np.abs(changed.W).max() > 2 * np.abs(made.W).max(), "alpha was 2"


def broken_head(models: Path) -> None:
    (models / "tiny" / "head.safetensors").write_bytes(b"x")


def no_bundle(models: Path) -> None:
    shutil.rmtree(models)
    models.mkdir()


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "altered": (broken_head, "tiny/head.safetensors: 1 bytes; bundle.json says"),
    "cannot run": (lambda models: break_backbone(models / "tiny"), "model tiny: the backbone cannot be run"),
    "not finite": (lambda models: poison_backbone(models / "tiny"), "model tiny: its embeddings hold NaN or infinity"),
    "no graph": (lambda models: replace_file(models / "tiny", "backbone", b"x"), "cannot open the backbone"),
    "horizon": (
        lambda models: edit_manifest(models / "tiny", lambda content: content["head"].update(horizon=7.0)),
        "bundle.json says 7.0",
    ),
    "none": (no_bundle, "no bundle in it"),
    "no folder": (shutil.rmtree, "no such folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_bundle_changes_nothing(
    embedding_threads: EmbeddingThreads, live: Engine, models: Path, case: str
) -> None:
    made = live.adapt(colour_support()).classifier
    before = live.models
    if models.exists():
        shutil.copytree(models / "tiny", models / "another")  # it would be added
    spoil, said = BAD[case]
    spoil(models)
    error = fails(ErrorCode.CANNOT_RELOAD, live.reload)
    assert said in error.message
    assert "Nothing was changed; put it right, and reload again." in error.message
    assert live.models is before
    assert predict(live, QUERY, made.id).classifier.id == made.id
    assert names(embedding_threads()) == {"embed-tiny", "embed-tiny-learned", "embed-tiny-prototype"}


def test_the_default_model_of_the_settings_has_to_stay(make_engine: MakeEngine, models: Path) -> None:
    engine = make_engine(models_dir=models)
    shutil.rmtree(models / "tiny")
    assert "default model 'tiny' is not in" in fails(ErrorCode.CANNOT_RELOAD, engine.reload).message
    assert "tiny" in engine.models


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["predict", "adapt", "add examples"])
def test_a_running_request_finishes_on_the_model_it_began_with(
    embedding_threads: EmbeddingThreads, live: Engine, models: Path, operation: str
) -> None:
    made = live.adapt(colour_support(), NewClassifier(name="shop")).classifier
    old = weakref.ref(live.models["tiny"])
    of_old = {thread for thread in embedding_threads() if thread.name == "embed-tiny"}
    began, go_on = Event(), Event()

    def hold(_images: int) -> None:
        began.set()
        assert go_on.wait(SOON)

    before_each_batch(live, hold)
    requests: dict[str, Callable[[], Any]] = {
        "predict": lambda: predict(live, QUERY, made.id).classifier,
        "adapt": lambda: live.adapt(colour_support()).classifier,
        "add examples": lambda: live.add_examples("shop", colour_support()).classifier,
    }
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(requests[operation])
        assert began.wait(SOON)
        change_embedder(models)
        assert live.reload().replaced == ["tiny"]
        assert old() is not None
        new = live.models["tiny"]
        assert new.embedder_sha256 != made.embedder_sha256
        # New requests are answered by the new model meanwhile.
        assert live.adapt(colour_support()).classifier.embedder_sha256 == new.embedder_sha256
        fails(ErrorCode.MODEL_CHANGED, lambda: predict(live, QUERY, made.id))
        assert of_old <= set(running_threads())
        go_on.set()
        assert running.result(SOON).embedder_sha256 == made.embedder_sha256
        del running
    wait_until(lambda: of_old.isdisjoint(running_threads()))
    wait_until(lambda: gc.collect() >= 0 and old() is None)


class Named(Model):
    """A model that embeds nothing, and tells when it has been closed."""

    def __init__(self, name: str) -> None:
        self._name, self.closed = name, Event()

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        self.closed.set()


def models_of(*models: Named) -> Models:
    return Models(Settings(), {model.name: model for model in models})


def test_a_request_keeps_its_models_open_however_often_they_are_exchanged() -> None:
    """Also one that later models have, too, and that none of the newest is."""
    shared, first, second, third = (Named(name) for name in ("shared", "first", "second", "third"))
    served = ServedModels(models_of(shared, first))
    with served.using():
        served.exchange(models_of(shared, second))
        served.exchange(models_of(third))
        assert second.closed.wait(SOON)
        assert not shared.closed.is_set()
        assert not first.closed.is_set()
    assert shared.closed.wait(SOON)
    assert first.closed.wait(SOON)
    assert not third.closed.is_set()


def test_closing_leaves_no_models_open() -> None:
    old, new = Named("old"), Named("new")
    served = ServedModels(models_of(old))
    with served.using():
        served.exchange(models_of(new))
        served.close()
        assert old.closed.is_set()
        assert new.closed.is_set()


def test_reloading_often_keeps_no_threads(live: Engine, models: Path) -> None:
    before = len(running_threads())
    for number in range(20):
        edit_manifest(models / "tiny", lambda content, n=number: content.update(description=f"Number {n}."))
        assert live.reload().replaced == ["tiny"]
    wait_until(lambda: len(running_threads()) == before)


def test_over_http(live: Engine, models: Path) -> None:
    """And metrics count the new models."""
    with TestClient(create_app(live), raise_server_exceptions=False) as client:
        shutil.copytree(models / "tiny-prototype", models / "new")
        answer = client.post("/models/reload")
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "default": "new",
            "added": ["new"],
            "replaced": [],
            "removed": [],
            "unchanged": ["tiny", "tiny-learned", "tiny-prototype"],
        }
        assert [item["name"] for item in client.get("/models").json()["models"] if item["default"]] == ["new"]
        client.post("/adapt", **adapt_form(PAIR, name="known")).raise_for_status()
        client.post("/predict", **predict_form(*QUERY)).raise_for_status()
        metrics = client.get("/metrics").text
        assert 'comln_predictions_total{model="new"} 1.0' in metrics
        assert 'comln_batch_images_count{model="new"}' in metrics
        assert 'comln_model_info{default="true",model="new",provider="cpu"} 1.0' in metrics
        broken_head(models)
        error = check_error(client.post("/models/reload"), ErrorCode.CANNOT_RELOAD)
        assert "tiny/head.safetensors" in error["message"]
        shutil.rmtree(models / "new")
        edit_manifest(models / "tiny", lambda content: content.update(format_version=99))
        assert "format_version is 99" in check_error(client.post("/models/reload"), ErrorCode.CANNOT_RELOAD)["message"]


def test_models_of_other_processes_are_not_reloaded(live: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Serve's replicas hold the backbones; deploying again replaces them one after another."""
    monkeypatch.setattr(type(live.models["tiny"]), "on_this_machine", False)
    assert "Deploy the Ray Serve application again" in fails(ErrorCode.CANNOT_RELOAD, live.reload).message


def test_an_engine_that_is_closed_reloads_nothing(live: Engine) -> None:
    live.close()
    fails(ErrorCode.NOT_READY, live.reload)


def test_adapting_does_not_wait_for_a_reload(live: Engine, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(models)
    opening = Gate(monkeypatch, LocalModel, "warm")
    with ThreadPoolExecutor(2) as pool:
        reloading = pool.submit(live.reload)
        opening.wait()
        try:
            assert pool.submit(live.adapt, colour_support(), NewClassifier()).result(SOON).classifier.labels
            assert not reloading.done()
        finally:
            opening.open()
        assert reloading.result(SOON).replaced == ["tiny"]
