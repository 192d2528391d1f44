"""The calls of the client, against the application in this process."""

import asyncio
import io
import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx2
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from scipy.stats import binomtest

from comln_serve.api.app import create_app
from comln_serve.client import (
    AsyncClient,
    BadImageError,
    Client,
    ComlnError,
    InputError,
    NoAnswerError,
    NotFoundError,
    results,
    wire,
)
from comln_serve.client.results import HeldOut
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import PAIR, Wire, client_on, times
from tests.support.engines import MakeEngine
from tests.support.image_files import image_bytes
from tests.support.messages import GREEN, RED

pytestmark = pytest.mark.usefixtures("quick")


def test_three_lines(comln: Client, tmp_path: Path) -> None:
    """What most scripts are: a folder becomes a classifier, another is classified."""
    shop = comln.adapt_folder(class_folder(tmp_path / "photos"), name="shop")
    for prediction in comln.predict_folder(tmp_path / "photos", shop):
        assert prediction.label in prediction.image
    assert (shop.reference, shop.promoted, shop.labels) == ("shop@1", True, ("blue", "green", "red"))
    assert [Path(name).parent.name for name in shop.images] == ["blue", "green", "red"] * 2
    assert comln.classifier("shop") == comln.classifier(shop)
    assert shop.report is not None
    assert shop.report.held_out is not None
    assert 0 <= shop.report.held_out.accuracy <= 1


def test_everything_an_image_can_be(comln: Client, tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(RED)
    picture = Image.open(io.BytesIO(RED))
    pixels = np.array(picture)
    comln.adapt(*PAIR, name="pair")
    with path.open("rb") as file:
        forms = [path, str(path), np.str_(path), RED, bytearray(RED), io.BytesIO(RED), file, picture, pixels]
        found = comln.predict(forms, "pair", unknown=True, top_k=2)
    # The same pixels however they come.
    assert len({(item.label, item.probability, item.similarity) for item in found}) == 1
    assert len(found) == len(found.predictions) == len(forms)
    assert [item.image for item in found[:4]] == [str(path), str(path), str(path), "image 4"]
    assert [one.label for one in found[0].top] == ["red", "green"]
    grey = comln.predict([np.zeros((20, 20), np.uint8)], "pair")
    assert grey[0].label in ("red", "green")


def test_life_of_a_name(comln: Client, tmp_path: Path) -> None:
    first = comln.adapt(*PAIR, name="pair", metadata={"by": "me"}, horizon=3, expires_in_seconds=600)
    assert (first.metadata, first.horizon, first.horizon_rule) == ({"by": "me"}, 3.0, "given")
    assert first.expires_at is not None
    second = comln.add_examples("pair", [image_bytes(COLOURS["blue"])], ["blue"])
    assert (second.reference, second.labels) == ("pair@2", ("red", "green", "blue"))
    assert [(item.number, item.label) for item in comln.examples(second)] == [(1, "red"), (2, "green"), (3, "blue")]
    assert comln.rollback("pair").version == 1
    assert comln.promote("pair@2").promoted
    third = comln.remove_examples("pair", [3])
    assert (third.reference, third.promoted, third.labels) == ("pair@3", True, ("red", "green"))
    again = comln.adapt_again(third, horizon="learned", promote=False)
    assert (again.reference, again.promoted, again.horizon_rule) == ("pair@4", False, "learned")
    assert comln.adapt_again(again, promote=False).horizon_rule == "learned"
    renamed = comln.rename_classes("pair@3", {"red": "a=b", "green": "red"}, promote=False)
    assert (renamed.reference, renamed.promoted, renamed.labels) == ("pair@6", False, ("a=b", "red"))
    assert [(item.number, item.label) for item in comln.examples(renamed)] == [(1, "a=b"), (2, "red")]
    corrected = comln.relabel_examples("pair@2", {1: "green", 3: "grass"}, promote=False)
    assert [(item.number, item.label) for item in comln.examples(corrected)] == [
        (1, "green"),
        (2, "green"),
        (3, "grass"),
    ]
    assert comln.delete(corrected).version == 7
    with pytest.raises(NotFoundError, match="no example 9; nothing was changed"):
        comln.relabel_examples("pair@2", {1: "green", 9: "grass"})
    with pytest.raises(ComlnError, match="has no class 'green'") as caught:
        comln.rename_classes(renamed, {"green": "red"})
    assert caught.value.detail == {"received": ["green"], "available": ["a=b", "red"]}
    assert [comln.delete(f"pair@{version}").version for version in (4, 5, 6)] == [4, 5, 6]
    noted = comln.edit("pair@1", metadata={"by": "hand"}, expires_in_seconds=3600)
    assert (noted.metadata, noted.expires_at is None) == ({"by": "hand"}, False)
    assert comln.edit(noted, expires_in_seconds=None).expires_at is None
    assert comln.edit("pair@1", metadata={}).metadata == {}
    with pytest.raises(InputError, match="give at least one of name, metadata"):
        comln.edit("pair")
    (folder := tmp_path / "exported").mkdir()
    file = comln.export(third, folder, "safetensors")
    assert file == folder / "pair.safetensors"
    assert file.stat().st_size > 0
    assert list(folder.iterdir()) == [file]
    support = comln.export(third, folder / "pair.support")
    assert comln.import_support(support, name="copy").reference == "copy@1"
    assert comln.import_support(support.read_bytes(), name="copy", promote=False).promoted is False
    assert comln.predict(PAIR[0], "copy")[0].top == comln.predict(PAIR[0], third)[0].top
    for given, said in ((folder, "cannot be read"), (folder / "none", "cannot be read"), (b"", "is empty")):
        with pytest.raises(InputError, match=said):
            comln.import_support(given)
    assert comln.delete("pair").reference == "pair@3"
    assert comln.classifier("pair").version == 2
    assert {item.name for item in comln.models()} == {"tiny", "tiny-prototype", "tiny-learned"}
    assert (comln.live().status, comln.ready().status) == ("live", "ready")


def test_an_export_replaces_files_only(comln: Client, tmp_path: Path) -> None:
    """Neither links nor pipes; a pipe stands for a device, which only root may replace."""
    comln.adapt(*PAIR, name="pair")
    size = comln.export("pair", tmp_path / "pair.safetensors").stat().st_size
    (kept := tmp_path / "kept").mkdir()
    for before in (b"old", None):
        target = kept / f"{before}"
        if before is not None:
            target.write_bytes(before)
        (link := tmp_path / f"{before}.safetensors").symlink_to(target)
        assert comln.export("pair", link) == link
        assert link.is_symlink()
        assert target.stat().st_size == size
        assert list(kept.iterdir()) == [target]
        target.unlink()
    (loop := tmp_path / "loop.safetensors").symlink_to(loop)
    with pytest.raises(InputError, match=r"loop\.safetensors: cannot be written: Too many levels"):
        comln.export("pair", loop)
    os.mkfifo(pipe := tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        comln.export("pair", pipe, "safetensors")
        assert len(read.result()) == size
    assert pipe.is_fifo()


def test_the_list_is_read_page_by_page(comln: Client, line: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comln_serve.client.calls._PAGE", 2)
    for _ in range(5):
        comln.adapt(*PAIR, name="many")
    line.requests.clear()
    assert [item.version for item in comln.classifiers(name="many")] == [5, 4, 3, 2, 1]
    assert len(line.requests) == 3
    assert [item.version for item in comln.classifiers(limit=3)] == [5, 4, 3]
    assert comln.classifiers(name="none") == []


def test_several_examples_are_removed_by_one_request(comln: Client, line: Wire) -> None:
    comln.adapt([RED, GREEN] * 3, ["red", "green"] * 3, name="pair")
    line.requests.clear()
    changed = comln.remove_examples("pair", [1, 2, 2])
    assert line.requests == ["DELETE /classifiers/pair/examples"]
    assert (changed.version, changed.promoted) == (2, True)
    assert [item.number for item in comln.examples(changed)] == [3, 4, 5, 6]
    assert not comln.remove_examples("pair", np.array([3, 4]), promote=False).promoted
    assert comln.classifier("pair").id == changed.id
    with pytest.raises(NotFoundError, match=r"no examples 8, 9; nothing was changed"):
        comln.remove_examples("pair", [9, 3, 8])
    assert comln.classifier("pair").id == changed.id


def test_very_many_examples_are_removed_by_several_requests(
    comln: Client, line: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one change all the same: the versions in between are deleted, and all of them if one request fails."""
    monkeypatch.setattr("comln_serve.client.making._MOST_NUMBERS", 2)
    comln.adapt([RED, GREEN] * 4, ["red", "green"] * 4, name="pair")
    line.requests.clear()
    changed = comln.remove_examples("pair", [1, 2, 5, 6, 7])
    assert sum(item.endswith("/examples") for item in line.requests if item.startswith("DELETE")) == 3
    assert [item.number for item in comln.examples(changed)] == [3, 4, 8]
    assert [item.version for item in comln.classifiers(name="pair")] == [4, 1]
    assert comln.classifier("pair").id == changed.id
    with pytest.raises(ComlnError, match=r"Removing ended after 2 of 4 images: .* 'pair' is what it was before"):
        comln.remove_examples("pair@1", [1, 3, 5, 7])  # of the class nothing would be left
    assert comln.classifier("pair").id == changed.id
    assert [item.version for item in comln.classifiers(name="pair")] == [4, 1]
    # None is removed if one of them does not exist, not even of a classifier that changes in place.
    unnamed = comln.adapt([RED, GREEN] * 4, ["red", "green"] * 4)
    with pytest.raises(NotFoundError, match=rf"'{unnamed.id}' has no examples 9, 12; nothing was removed") as caught:
        comln.remove_examples(unnamed, [1, 9, 2, 12])
    assert (caught.value.code, caught.value.detail) == ("example_not_found", {"received": [9, 12]})
    assert len(comln.examples(unnamed)) == 8


def test_names_are_given_and_changed(comln: Client, line: Wire) -> None:
    first, second = comln.adapt(*PAIR), comln.adapt(*PAIR)
    assert comln.edit(first, name="pair").reference == "pair@1"
    assert not comln.edit(second, name="pair", promote=False).promoted
    assert comln.edit("pair", name="couple", metadata={"by": "me"}).metadata == {"by": "me"}
    assert [item.reference for item in comln.classifiers()] == ["couple@2", "couple@1"]
    comln.adapt(*PAIR, name="pair")
    with pytest.raises(ComlnError, match="There is a classifier 'pair' already") as caught:
        comln.edit("couple", name="pair")
    assert (caught.value.code, caught.value.status) == ("name_taken", 409)
    # A note may be written twice; a name that is gone would not be found.
    line.after = times(1, lambda _request: httpx2.ReadError("gone"))
    assert comln.edit("couple", metadata={"a": "b"}).metadata == {"a": "b"}
    line.after = times(1, lambda _request: httpx2.ReadError("gone"))
    with pytest.raises(NoAnswerError):
        comln.edit("couple", name="two")
    assert comln.classifier("two").id == first.id


def test_errors_of_the_server(comln: Client) -> None:
    with pytest.raises(NotFoundError, match="There is no classifier 'none'") as caught:
        comln.predict([RED], "none")
    assert (caught.value.code, caught.value.status) == ("classifier_not_found", 404)
    assert caught.value.detail == {"received": "none"}
    assert caught.value.request_id
    with pytest.raises(ComlnError) as refused:
        comln.adapt([RED], ["red"])
    assert refused.value.code == "cannot_adapt"
    with pytest.raises(ComlnError, match="horizon") as wrong:
        comln.adapt(*PAIR, horizon=1e12)
    assert wrong.value.code == "invalid_request"


def test_the_client_that_awaits(client: TestClient, tmp_path: Path) -> None:
    """The same calls, on an event loop."""
    folder = class_folder(tmp_path / "photos")

    async def work() -> None:
        transport = httpx2.ASGITransport(client.app)  # type: ignore[arg-type]
        async with AsyncClient("http://testserver", transport=transport) as comln:
            shop = await comln.adapt_folder(folder, name="shop")
            both = await asyncio.gather(*(comln.predict_folder(folder, shop) for _ in range(2)))
            assert both[0].predictions == both[1].predictions
            assert {item.label for item in both[0]} == set(COLOURS)
            assert [item.version for item in await comln.classifiers()] == [1]
            with pytest.raises(NotFoundError):
                await comln.classifier("none")
            with pytest.raises(BadImageError):
                await comln.predict([b"x"], shop)

    asyncio.run(work())


def test_a_cancelled_task_leaves_nothing(make_engine: MakeEngine) -> None:
    """It is cancelled while the second of three requests is under way."""
    engine = make_engine(max_images=2)
    engine.warm()

    async def work() -> None:
        sent = asyncio.Event()

        class Slow(httpx2.ASGITransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                if request.url.path.endswith("/examples") and not sent.is_set():
                    sent.set()
                    await asyncio.sleep(60)
                return await super().handle_async_request(request)

        async with AsyncClient("http://testserver", transport=Slow(create_app(engine))) as comln:
            task = asyncio.create_task(comln.adapt([RED, GREEN] * 3, ["red", "green"] * 3, name="shop"))
            await sent.wait()
            assert len(await comln.classifiers()) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await comln.classifiers() == []

    asyncio.run(work())


@pytest.mark.parametrize("hangs", [False, True])
def test_a_cancelled_scope_leaves_nothing(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    """All that happens in it is cancelled, but for cleaning up, which ends if the server does not answer."""
    monkeypatch.setattr("comln_serve.client.session._CLEANING_SECONDS", 0.2 if hangs else 30.0)
    engine = make_engine(max_images=2)
    engine.warm()

    async def work() -> None:
        sent = anyio.Event()

        class Slow(httpx2.ASGITransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                answer = await super().handle_async_request(request)
                if request.url.path.endswith("/examples") and not sent.is_set():
                    sent.set()
                    await anyio.sleep(60)  # the answer is not read
                if request.method == "DELETE" and hangs:
                    await anyio.sleep(60)
                return answer

        async with AsyncClient("http://testserver", transport=Slow(create_app(engine))) as comln:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: comln.adapt([RED, GREEN] * 3, ["red", "green"] * 3, name="shop"))
                await sent.wait()
                assert len(await comln.classifiers()) == 2
                group.cancel_scope.cancel()
            assert group.cancel_scope.cancelled_caught
            assert len(await comln.classifiers()) == hangs

    began = time.monotonic()
    asyncio.run(work())
    assert time.monotonic() - began < 30


def test_both_clients_have_the_same_documented_calls() -> None:
    calls = {name for name in dir(Client) if not name.startswith("_")}
    assert calls == {name for name in dir(AsyncClient) if not name.startswith("_")}
    for name in calls:
        assert getattr(Client, name).__doc__ == getattr(AsyncClient, name).__doc__ is not None


def test_thumbnails(wired: Callable[..., Wire]) -> None:
    with client_on(wired(keep_thumbnails=True)) as comln:
        shop = comln.adapt(*PAIR, name="shop")
        assert comln.limits().keep_thumbnails
        assert [item.thumbnail for item in shop.classes] == [1, 2]
        jpegs = [comln.thumbnail("shop", number) for number in (1, 2)]
        assert [Image.open(io.BytesIO(jpeg)).format for jpeg in jpegs] == ["JPEG", "JPEG"]
        with pytest.raises(NotFoundError):
            comln.thumbnail(shop, 3)


def test_results_have_fields_of_the_server(client: TestClient) -> None:
    """None that the server does not send, but for those that the client adds."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    added = {"images", "skipped", "leftover", "image"}
    pairs = {
        results.Adapted: "AdaptResponse",
        results.ClassifierDetail: "ClassifierDetail",
        results.Classifier: "ClassifierInfo",
        results.ClassCount: "ClassInfo",
        results.Report: "Report",
        results.HeldOut: "HeldOutReport",
        results.Suspect: "Suspect",
        results.HorizonChoice: "HorizonChoice",
        results.HorizonCandidate: "HorizonCandidate",
        results.Predictions: "PredictResponse",
        results.Prediction: "Prediction",
        results.ClassProbability: "ClassProbability",
        results.ModelsReloaded: "ModelsReloaded",
        results.ClassifierPage: "ClassifierPage",
        results.ExampleList: "ExampleList",
        results.Example: "Example",
        results.Model: "ModelInfo",
        results.ModelList: "ModelList",
        results.Accuracy: "AccuracyInfo",
        results.Health: "Ready",
    }
    for kind, name in pairs.items():
        assert set(kind.__dataclass_fields__) - added <= set(schemas[name]["properties"]), name


def test_fields_that_the_client_does_not_know_are_ignored() -> None:
    known = {"number": 1, "label": "red"}
    assert wire.parse(results.Example, {**known, "new": {}}) == results.Example(**known)


def test_json_is_that_of_the_server(client: TestClient, comln: Client) -> None:
    comln.adapt(*PAIR, name="pair")
    for path, kind in (
        ("/classifiers/pair", results.ClassifierDetail),
        ("/classifiers", results.ClassifierPage),
        ("/models", results.ModelList),
        ("/health/ready", results.Health),
    ):
        sent = client.get(path).json()
        back = json.loads(wire.to_json(wire.parse(kind, sent)))
        plain = [re.sub(r"\+00:00|Z", "", json.dumps(value, sort_keys=True)) for value in (back, sent)]
        assert plain[0] == plain[1], path


@pytest.mark.parametrize(("right", "judged"), [(0, 1), (1, 1), (44, 50), (19, 20), (10, 10), (0, 25)])
def test_the_interval_of_the_held_out_accuracy(right: int, judged: int) -> None:
    held_out = HeldOut(folds=1, judged=judged, accuracy=right / judged, confusion=(), suspects=(), predicted=None)
    expected = binomtest(right, judged).proportion_ci(0.95, method="wilson")
    assert held_out.interval == pytest.approx((expected.low, expected.high), abs=1e-6)
