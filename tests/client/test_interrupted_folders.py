"""Folders that take several requests, of which one fails or is interrupted: all of it or nothing, and what is said."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from comln_serve.client import Client, ComlnError, IncompleteError, InterruptedPredicting
from tests.client.pictures import class_folder
from tests.client.wires import Wire, client_on, ctrl_c, uploads
from tests.support.live import live_server, running
from tests.support.messages import GREEN, RED

pytestmark = pytest.mark.usefixtures("quick")


def test_nothing_is_left_of_what_fails(wired: Callable[..., Wire], folder: Path) -> None:
    """The server has no room for the third of three versions."""
    wire = wired(max_images=5, max_classifiers=3)
    with client_on(wire) as client:
        old = client.adapt([RED, GREEN], ["red", "green"], name="shop")
        with pytest.raises(
            IncompleteError, match=r"Sending ended after 10 of 12 images: .* 'shop' is what it was before"
        ) as caught:
            client.adapt_folder(folder, name="shop")
        assert (caught.value.code, caught.value.status) == ("too_many_classifiers", 409)
        assert (caught.value.done, caught.value.total, caught.value.leftover) == (10, 12, ())
        assert isinstance(caught.value.__cause__, ComlnError)
        assert [item.id for item in client.classifiers()] == [old.id]
        assert client.classifier("shop").promoted


def test_a_new_name_is_gone_after_a_failure(wired: Callable[..., Wire], folder: Path) -> None:
    wire = wired(max_images=5)

    def break_third(request: httpx2.Request) -> Exception | None:
        is_upload = request.method == "POST" and request.url.path.endswith("/examples")
        return httpx2.ConnectError("refused") if is_upload and len(uploads(wire)) >= 2 else None

    wire.before = break_third
    with client_on(wire, retry_seconds=0.2) as client:
        for name in ("shop", None):
            wire.requests.clear()
            with pytest.raises(
                IncompleteError, match=r"ended after 10 of 12 images: .*s\). What had been made was deleted"
            ):
                client.adapt_folder(folder, name=name)
            assert client.classifiers() == []


def test_what_cannot_be_deleted_is_named(wired: Callable[..., Wire], folder: Path) -> None:
    wire = wired(max_images=5)
    with client_on(wire, retry_seconds=0.2) as client:

        def die(request: httpx2.Request) -> Exception | None:
            return httpx2.ConnectError("refused") if len(uploads(wire)) >= 2 else None

        wire.before = die
        with pytest.raises(IncompleteError, match="What remains of it could not be deleted: clf_") as caught:
            client.adapt_folder(folder, name="shop")
        wire.calm()
        assert {item.id for item in client.classifiers()} == set(caught.value.leftover)
        assert (caught.value.done, caught.value.status) == (10, None)


@pytest.mark.parametrize("there", [True, False], ids=["known name", "new name"])
@pytest.mark.parametrize(
    ("method", "path", "number", "stays"),
    [
        ("POST", "/adapt", 1, False),
        ("POST", "/examples", 1, False),
        ("POST", "/examples", 2, False),
        ("POST", "/promote", 1, False),
        ("DELETE", "", 1, True),  # all images are in the promoted version
        ("DELETE", "", 2, True),
    ],
)
@pytest.mark.parametrize("answered", [False, True])
def test_ctrl_c_at_any_request_leaves_no_parts(
    wired: Callable[..., Wire],
    folder: Path,
    method: str,
    path: str,
    number: int,
    *,
    stays: bool,
    answered: bool,
    there: bool,
) -> None:
    """Also if the server has done what was asked, and the client has not read its answer."""
    wire = wired(max_images=5)
    left = [number]

    def interrupt(request: httpx2.Request) -> None:
        if request.method == method and request.url.path.endswith(path):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    with client_on(wire) as client:
        expected = [client.adapt([RED, GREEN], ["red", "green"], name="shop").id] if there else []
        if answered:
            wire.after = interrupt
        else:
            wire.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="shop")
        assert left[0] <= 0
        versions = client.classifiers()
        if stays:
            assert sum(one.examples for one in versions[0].classes) == 12
            expected.insert(0, versions[0].id)
        assert [one.id for one in versions] == expected
        assert [one.promoted for one in versions] == [position == 0 for position in range(len(expected))]


def test_what_is_left_after_a_second_ctrl_c_is_logged(
    wired: Callable[..., Wire], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And what cannot be deleted, or is not known."""
    caplog.set_level(logging.WARNING, "comln_serve.client")
    wire = wired(max_images=5)
    with client_on(wire) as client:
        wire.before = ctrl_c("DELETE")
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="shop")
        wire.calm()
        shop, *parts = client.classifiers()
        assert caplog.messages == [
            "What an interrupted call has made could not be deleted: " + ", ".join(one.id for one in parts)
        ]
        caplog.clear()
        ended: list[bool] = []

        def end(request: httpx2.Request) -> Exception | None:
            if ended:
                return httpx2.ConnectError("refused")
            if request.url.path.endswith("/examples"):
                ended.append(True)
                raise KeyboardInterrupt
            return None

        wire.after = end
        wire.before = lambda _request: httpx2.ConnectError("refused") if ended else None
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="shop")
        wire.calm()
        assert "could not be deleted: clf_" in caplog.messages[0]
        not_known = "Whether the request that was interrupted has made a classifier is not known: "
        assert caplog.messages[-1].startswith(not_known)
        assert client.classifier("shop").id == shop.id
        wire.after = ctrl_c("POST", "/adapt")
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="other")
        assert caplog.messages[-1] == f"{not_known}KeyboardInterrupt"
        wire.after = lambda request: ctrl_c("DELETE")(request) or ctrl_c("POST", "/examples")(request)
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="third")
        assert f"{not_known}interrupted again" in caplog.messages[-2:]


def test_an_interrupted_change_in_place_is_not_repeated(wired: Callable[..., Wire], folder: Path) -> None:
    """It could not be undone."""
    wire = wired(max_images=5)
    with client_on(wire) as client:
        shop = client.adapt([RED, GREEN], ["red", "green"])
        wire.requests.clear()
        wire.before = ctrl_c("POST", "/examples")
        with pytest.raises(KeyboardInterrupt):
            client.add_examples_folder(shop, folder)
        assert uploads(wire) == []
        wire.calm()
        assert client.classifier(shop).revision == 1


def test_a_promotion_that_fails_keeps_the_finished_version(wired: Callable[..., Wire], folder: Path) -> None:
    wire = wired(max_images=5)
    with client_on(wire, retry_seconds=0.2) as client:
        old = client.adapt([RED, GREEN], ["red", "green"], name="shop")
        wire.before = lambda request: httpx2.ConnectError("refused") if request.url.path.endswith("/promote") else None
        with pytest.raises(IncompleteError, match="shop@4 is finished, but was not promoted") as caught:
            client.adapt_folder(folder, name="shop")
        wire.calm()
        assert client.classifier("shop").id == old.id
        assert len(client.examples(client.promote("shop@4"))) == 12
        assert caught.value.leftover == ()
        assert {item.version for item in client.classifiers()} == {1, 4}


@pytest.mark.parametrize("promote", [True, False])
def test_a_server_that_is_gone_when_all_is_done(wired: Callable[..., Wire], folder: Path, *, promote: bool) -> None:
    """Of an error somebody would conclude that there is no classifier."""
    wire = wired(max_images=5)
    with client_on(wire, retry_seconds=0.2) as client:
        wire.before = lambda request: (
            httpx2.ConnectError("refused") if request.method == "GET" and len(uploads(wire)) == 3 else None
        )
        client.adapt([RED, GREEN], ["red", "green"], name="shop")
        wire.requests.clear()
        made = client.adapt_folder(folder, name="shop", promote=promote)
        wire.calm()
        assert (made.reference, made.promoted, made.leftover) == ("shop@4", promote, ())
        assert client.classifier("shop").version == (4 if promote else 1)


def test_predictions_before_a_failure_are_not_lost(wired: Callable[..., Wire], folder: Path) -> None:
    wire = wired(max_images=5)
    with client_on(wire, retry_seconds=0.1) as client:
        shop = client.adapt_folder(folder, name="shop")
        wire.requests.clear()
        wire.before = lambda _request: httpx2.ConnectError("refused") if len(wire.requests) >= 2 else None
        with pytest.raises(IncompleteError, match="Predicting ended after 10 of 12 images") as caught:
            client.predict_folder(folder, shop)
        assert len(caught.value.result) == caught.value.done == 10


def test_predictions_before_an_interrupt_are_not_lost(wired: Callable[..., Wire], folder: Path) -> None:
    wire = wired(max_images=5)

    def interrupt(_request: httpx2.Request) -> None:
        if len(wire.requests) >= 2:
            raise KeyboardInterrupt

    with client_on(wire) as client:
        shop = client.adapt_folder(folder, name="shop")
        wire.requests.clear()
        wire.before = interrupt
        with pytest.raises(InterruptedPredicting, match="after 10 of 12 images") as caught:
            client.predict_folder(folder, shop)
        assert len(caught.value.result) == caught.value.done == 10
        with pytest.raises(KeyboardInterrupt) as plain:
            client.predict_folder(folder, shop)
        assert type(plain.value) is KeyboardInterrupt  # there is no result


def test_a_server_killed_in_the_middle(models_dir: Path, tmp_path: Path) -> None:
    """It is killed right after it stored a version, before its answer; another starts meanwhile."""
    folder = class_folder(tmp_path / "photos", each=7)
    with live_server(models_dir, tmp_path, "--max-images", "6") as first:
        command = list(first.process.args)
        restarted: list[object] = []
        done = threading.Event()

        def restart() -> None:
            with running(command, first.url, tmp_path / "second.log") as server:
                restarted.append(server)
                done.wait(60)

        wire = Wire(httpx2.HTTPTransport())
        again = threading.Thread(target=restart)

        def kill(request: httpx2.Request) -> Exception | None:
            if len(uploads(wire)) != 3 or restarted or again.ident is not None:
                return None
            first.process.kill()
            first.process.wait()
            again.start()
            return httpx2.ReadError("killed")

        wire.after = kill
        try:
            with Client(first.url, transport=wire, retry_seconds=60) as client:
                old = client.adapt([RED, GREEN], ["red", "green"], name="shop")
                wire.requests.clear()
                wire.keys.clear()
                new = client.adapt_folder(folder, name="shop")
                assert again.ident is not None
                assert len(client.examples("shop")) == 21
                assert [item.examples for item in new.classes] == [7, 7, 7]
                assert {item.id for item in client.classifiers()} == {old.id, new.id}
                # Four requests made a version each. The third went twice: same key, one version.
                assert (old.version, new.version) == (1, 5)
                sent = [key for item, key in zip(wire.requests, wire.keys, strict=True) if item in uploads(wire)]
                assert max(map(sent.count, sent)) >= 2
                assert len(set(sent)) == 4
                assert sum(item.endswith("/promote") for item in wire.requests) == 1
                assert client.rollback("shop").id == old.id
        finally:
            done.set()
            if again.ident is not None:
                again.join(30)
