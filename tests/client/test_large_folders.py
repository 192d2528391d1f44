"""Folders that take several requests: cut within the limits, all of it or nothing, however often the server dies."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from comln_serve.api.app import create_app
from comln_serve.client import BadImageError, Client, ComlnError, IncompleteError, InputError, InterruptedPredicting
from comln_serve.configuration.settings import Settings
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import Wire, client_on, hurry, wire_to
from tests.support.engines import MakeEngine
from tests.support.image_files import image_bytes
from tests.support.live import live_server, running
from tests.support.messages import GREEN, RED


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images of three classes."""
    return class_folder(tmp_path / "photos", each=4)


@pytest.fixture
def serve(settings: Settings, make_engine: MakeEngine) -> Iterator[Callable[..., Wire]]:
    """Makes wires to a server with the settings given."""
    open_clients: list[TestClient] = []

    def make(**limits: int) -> Wire:
        engine = make_engine(settings.model_copy(update=limits))
        client = TestClient(create_app(engine), raise_server_exceptions=False)
        client.__enter__()
        open_clients.append(client)
        engine.warm()
        return wire_to(client)

    yield make
    for client in open_clients:
        client.__exit__(None, None, None)


def uploads(wire: Wire) -> list[str]:
    return [item for item in wire.requests if item.startswith("POST") and item.endswith(("/adapt", "/examples"))]


@pytest.mark.parametrize(
    ("limits", "predicting"),
    # Images of 15 KB. A quarter of a form that is so small is kept for what it has beside them.
    [({"max_images": 5}, 3), ({"max_body_bytes": 120_000}, 3), ({"max_body_bytes": 45_000}, 6)],
)
def test_no_request_is_larger_than_the_server_takes(
    serve: Callable[..., Wire], tmp_path: Path, limits: dict[str, int], predicting: int
) -> None:
    folder = class_folder(tmp_path / "photos", each=4, side=80)
    wire = serve(**limits)
    with client_on(wire) as client:
        shop = client.adapt_folder(folder, name="shop")
        assert [item.examples for item in shop.classes] == [4, 4, 4]
        assert (shop.promoted, shop.leftover, len(shop.images)) == (True, (), 12)
        assert [item.id for item in client.classifiers()] == [shop.id]
        # Number n is the nth image, as promised.
        assert [item.label for item in client.examples(shop)] == [Path(name).parent.name for name in shop.images]
        # It asked first, and once.
        assert wire.requests[0] == "GET /limits"
        assert len(uploads(wire)) == predicting
        wire.requests.clear()
        assert len(client.predict_folder(folder, "shop")) == 12
        assert wire.requests == ["POST /predict"] * predicting


def test_requests_are_smaller_where_a_proxy_takes_less(serve: Callable[..., Wire], folder: Path) -> None:
    """And stay so: it is found out once."""
    wire = serve()
    refused: list[str] = []

    def proxy(request: httpx2.Request) -> httpx2.Response | None:
        if request.read().count(b"PNG") <= 3:
            return None
        refused.append(request.url.path)
        return httpx2.Response(413, text="too large")

    wire.before = proxy
    with client_on(wire) as client:
        shop = client.adapt_folder(folder, name="shop")
        assert refused == ["/adapt"] * 2  # twelve images, then six
        assert len(client.examples(shop)) == 12
        assert len(client.predict_folder(folder, shop)) == 12
        assert wire.requests.count("POST /predict") == 4
        assert len(refused) == 2


def test_the_result_is_that_of_one_request(serve: Callable[..., Wire], folder: Path) -> None:
    whole, parts = serve(), serve(max_images=5)
    with client_on(whole) as one, client_on(parts) as several:
        at_once = one.adapt_folder(folder, name="whole")
        bit_by_bit = several.adapt_folder(folder, name="parts")
        assert (len(uploads(whole)), len(uploads(parts))) == (1, 3)
        assert bit_by_bit.support_loss == at_once.support_loss
        found = [client.predict_folder(folder, shop) for client, shop in ((one, at_once), (several, bit_by_bit))]
        assert [item.probability for item in found[0]] == [item.probability for item in found[1]]


def test_a_name_moves_once_all_is_there(serve: Callable[..., Wire], folder: Path) -> None:
    wire = serve(max_images=5)
    with client_on(wire) as client:
        old = client.adapt([RED, GREEN], ["red", "green"], name="shop")
        stood_for: list[str] = []

        def look(_request: httpx2.Request) -> None:
            wire.before = lambda _request: None
            stood_for.append(client.classifier("shop").id)
            wire.before = look

        wire.before = look
        new = client.adapt_folder(folder, name="shop")
        wire.before = lambda _request: None
        promotion = wire.requests.index(f"POST /classifiers/{new.id}/promote")
        before = [item for item in wire.requests[:promotion] if item != "GET /classifiers/shop"]
        assert set(stood_for[: len(before) - 1]) == {old.id}
        assert sum(item.endswith("/promote") for item in wire.requests) == 1
        assert client.classifier("shop").id == new.id
        assert client.rollback("shop").id == old.id
        # And it does not where that is not wanted.
        newer = client.adapt_folder(folder, name="shop", promote=False)
        assert (newer.promoted, client.classifier("shop").id) == (False, old.id)
        assert {item.id for item in client.classifiers()} == {old.id, new.id, newer.id}


@pytest.mark.parametrize("there", [True, False], ids=["known name", "new name"])
@pytest.mark.parametrize("sent", [0, 1, 3])
def test_what_somebody_else_promotes_meanwhile_stays(
    serve: Callable[..., Wire], folder: Path, there: bool, sent: int
) -> None:
    """Before the first of three requests, after it, and before the promotion; it was acknowledged."""
    wire = serve(max_images=5)
    with client_on(wire) as client, client_on(Wire(wire.inner)) as other:
        if there:
            other.adapt([RED, GREEN], ["red", "green"], name="shop")
        theirs: list[str] = []
        wire.requests.clear()

        def promote_another(request: httpx2.Request) -> None:
            is_next = request.url.path.endswith("/promote" if sent == 3 else ("/adapt", "/examples"))
            if not theirs and is_next and len(uploads(wire)) == sent:
                theirs.append(other.adapt([RED, GREEN], ["a", "b"], name="shop").id)

        wire.before = promote_another
        with pytest.raises(IncompleteError, match=r"is finished, but was not promoted: 'shop' stands for") as caught:
            client.adapt_folder(folder, name="shop")
        assert (caught.value.code, caught.value.leftover, caught.value.done) == ("name_moved", (), 12)
        now = client.classifier("shop")
        assert now.id == theirs[0]
        assert f"{now.reference} by now" in str(caught.value)
        finished, *others = sorted(client.classifiers(), key=lambda one: one.classes[0].examples, reverse=True)
        assert f"delete {finished.reference}, or promote {finished.reference} in its place" in str(caught.value)
        assert sum(one.examples for one in finished.classes) == 12
        assert [one.version for one in others if one.id != now.id] == [1] * there


def test_images_that_are_all_refused_after_the_first_request(serve: Callable[..., Wire], folder: Path) -> None:
    """The version of the first request is the last one, and promoted."""
    (folder / "red" / "zz.png").write_bytes(b"\0\0\0\x18ftypqt  " + bytes(50))  # the server finds this one
    wire = serve(max_images=12)
    with client_on(wire) as client:
        client.adapt([RED, GREEN], ["red", "green"], name="shop")
        shop = client.adapt_folder(folder, name="shop")
        assert (shop.promoted, shop.version, len(shop.skipped)) == (True, 2, 1)
        assert client.classifier("shop").id == shop.id


def test_nothing_is_left_of_what_fails(serve: Callable[..., Wire], folder: Path) -> None:
    """The server has no room for the third of three versions."""
    wire = serve(max_images=5, max_classifiers=3)
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


def test_a_new_name_is_gone_after_a_failure(serve: Callable[..., Wire], folder: Path) -> None:
    wire = serve(max_images=5)

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


@pytest.mark.parametrize(("what", "limits"), [("12 images", {"max_examples": 10}), ("3 classes", {"max_classes": 2})])
def test_more_than_a_classifier_may_have_is_not_sent(
    serve: Callable[..., Wire], folder: Path, what: str, limits: dict[str, int]
) -> None:
    (allowed,) = limits.values()
    wire = serve(max_images=5, **limits)
    message = f"would have {what}; at most {allowed} are allowed .*--max-"
    with client_on(wire) as client, pytest.raises(InputError, match=message):
        client.adapt_folder(folder, name="shop")
    assert wire.requests == ["GET /limits"]


def test_what_cannot_be_deleted_is_named(serve: Callable[..., Wire], folder: Path) -> None:
    wire = serve(max_images=5)
    with client_on(wire, retry_seconds=0.2) as client:

        def die(request: httpx2.Request) -> Exception | None:
            return httpx2.ConnectError("refused") if len(uploads(wire)) >= 2 else None

        wire.before = die
        with pytest.raises(IncompleteError, match="What remains of it could not be deleted: clf_") as caught:
            client.adapt_folder(folder, name="shop")
        wire.before = lambda _request: None
        assert {item.id for item in client.classifiers()} == set(caught.value.leftover)
        assert (caught.value.done, caught.value.status) == (10, None)


def test_ctrl_c_leaves_nothing(serve: Callable[..., Wire], folder: Path) -> None:
    wire = serve(max_images=5)
    with client_on(wire) as client:

        def interrupt(request: httpx2.Request) -> None:
            if request.url.path.endswith("/examples"):
                raise KeyboardInterrupt

        wire.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="shop")
        wire.before = lambda _request: None
        assert client.classifiers() == []


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
    serve: Callable[..., Wire],
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
    wire = serve(max_images=5)
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
    serve: Callable[..., Wire], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And what cannot be deleted, or is not known."""
    caplog.set_level(logging.WARNING, "comln_serve.client")
    wire = serve(max_images=5)
    with client_on(wire) as client:

        def interrupt(request: httpx2.Request) -> None:
            if request.method == "DELETE":
                raise KeyboardInterrupt

        def interrupt_adapt(request: httpx2.Request) -> None:
            if request.url.path == "/adapt":
                raise KeyboardInterrupt

        wire.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="shop")
        wire.before = lambda _request: None
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
        wire.before = lambda _request: None
        wire.after = lambda _request: None
        assert "could not be deleted: clf_" in caplog.messages[0]
        not_known = "Whether the request that was interrupted has made a classifier is not known: "
        assert caplog.messages[-1].startswith(not_known)
        assert client.classifier("shop").id == shop.id
        wire.after = interrupt_adapt
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="other")
        assert caplog.messages[-1] == f"{not_known}KeyboardInterrupt"

        def interrupt_both(request: httpx2.Request) -> None:
            if request.url.path.endswith("/examples") or request.method == "DELETE":
                raise KeyboardInterrupt

        wire.after = interrupt_both
        with pytest.raises(KeyboardInterrupt):
            client.adapt_folder(folder, name="third")
        assert f"{not_known}interrupted again" in caplog.messages[-2:]


def test_an_interrupted_change_in_place_is_not_repeated(serve: Callable[..., Wire], folder: Path) -> None:
    """It could not be undone."""
    wire = serve(max_images=5)

    def interrupt(request: httpx2.Request) -> None:
        if request.url.path.endswith("/examples"):
            raise KeyboardInterrupt

    with client_on(wire) as client:
        shop = client.adapt([RED, GREEN], ["red", "green"])
        wire.requests.clear()
        wire.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            client.add_examples_folder(shop, folder)
        assert uploads(wire) == []
        wire.before = lambda _request: None
        assert client.classifier(shop).revision == 1


def test_a_promotion_that_fails_keeps_the_finished_version(serve: Callable[..., Wire], folder: Path) -> None:
    wire = serve(max_images=5)
    with client_on(wire, retry_seconds=0.2) as client:
        old = client.adapt([RED, GREEN], ["red", "green"], name="shop")
        wire.before = lambda request: httpx2.ConnectError("refused") if request.url.path.endswith("/promote") else None
        with pytest.raises(IncompleteError, match="shop@4 is finished, but was not promoted") as caught:
            client.adapt_folder(folder, name="shop")
        wire.before = lambda _request: None
        assert client.classifier("shop").id == old.id
        assert len(client.examples(client.promote("shop@4"))) == 12
        assert caught.value.leftover == ()
        assert {item.version for item in client.classifiers()} == {1, 4}


def test_more_examples_than_a_request_may_have(serve: Callable[..., Wire]) -> None:
    wire = serve(max_images=5)
    images = [image_bytes(COLOURS[label], seed=seed) for seed in range(4) for label in COLOURS]
    labels = list(COLOURS) * 4
    with client_on(wire) as client:
        named = client.adapt(images[:3], labels[:3], name="shop")
        grown = client.add_examples("shop", images, labels)
        assert len(client.examples("shop")) == 15
        assert {item.id for item in client.classifiers()} == {named.id, grown.id}
        # One without a name changes in place; what was done stays, and the error says so.
        unnamed = client.adapt(images[:3], labels[:3])
        assert client.add_examples(unnamed, images, labels).id == unnamed.id
        assert len(client.examples(unnamed)) == 15
        wire.requests.clear()
        wire.before = lambda _request: httpx2.Response(400) if len(uploads(wire)) == 2 else None
        stays = rf"ended after 10 of 12 images: .* What was done stays in {unnamed.id}, which is in revision 6 now"
        with pytest.raises(IncompleteError, match=stays):
            client.add_examples(unnamed, images, labels)
        wire.before = lambda _request: None
        assert len(client.examples(unnamed)) == 25


@pytest.mark.parametrize("limits", [{"max_images": 4}, {"max_body_bytes": 90_000}])
def test_many_images_sorted_by_class(serve: Callable[..., Wire], limits: dict[str, int]) -> None:
    """The first request has to have two classes."""
    images = [image_bytes(COLOURS[label], seed=seed, size=(80, 80)) for label in COLOURS for seed in range(4)]
    labels = [label for label in COLOURS for _ in range(4)]
    with client_on(serve(**limits)) as client:
        made = client.adapt(images, labels)
        assert len(client.examples(made)) == 12
        assert made.images[:4] == ("image 1", "image 5", "image 9", "image 2")
        assert {one.label for one in client.predict(images, made)} == set(COLOURS)


@pytest.mark.parametrize("limits", [{"max_images": 6}, {"max_body_bytes": 150_000}])
def test_a_model_that_is_tied_to_five_classes(serve: Callable[..., Wire], limits: dict[str, int]) -> None:
    """The first request has to have all five."""
    images = [image_bytes((50 * number, 90, 200), seed=seed, size=(80, 80)) for number in range(5) for seed in range(4)]
    labels = [f"class {number}" for number in range(5) for _ in range(4)]
    wire = serve(**limits)
    with client_on(wire) as client:
        made = client.adapt(images, labels, model="tiny-learned")
        assert len(uploads(wire)) > 2
        assert len(client.examples(made)) == 20


def test_bad_files_of_a_large_folder(serve: Callable[..., Wire], folder: Path) -> None:
    """Also where the last request has nothing else."""
    (folder / "red" / "zz.png").write_bytes(b"\0\0\0\x18ftypqt  " + bytes(50))  # the server finds this one
    (folder / "red" / "z.png").write_bytes(b"none")
    wire = serve(max_images=3)
    with client_on(wire) as client:
        shop = client.adapt_folder(folder, name="shop")
        assert [Path(item.image).name for item in shop.skipped] == ["z.png", "zz.png"]
        assert (shop.promoted, len(shop.images)) == (True, 12)
        with pytest.raises(BadImageError, match=r"z\.png: is no image"):
            client.adapt_folder(folder, name="shop", on_bad="raise")
        (folder / "red" / "z.png").unlink()
        with pytest.raises(IncompleteError, match=r"Sending ended after 12 of 13 images: .*zz\.png: .*QuickTime"):
            client.adapt_folder(folder, name="shop", on_bad="raise")
        assert [item.id for item in client.classifiers()] == [shop.id]
        (folder / "notes.txt").write_bytes(b"")
        with pytest.raises(InputError, match=r"notes\.txt is no image by its name.*1 such files"):
            client.predict_folder(folder, shop, on_bad="raise")


def test_too_large_files_are_left_out(serve: Callable[..., Wire], folder: Path) -> None:
    (folder / "red" / "big.png").write_bytes(image_bytes(size=(60, 60)))
    size = (folder / "red" / "big.png").stat().st_size
    wire = serve(max_image_bytes=size - 1)
    with client_on(wire) as client:
        shop = client.adapt_folder(folder)
        (left_out,) = shop.skipped
        assert left_out.image.endswith("big.png")
        assert left_out.reason == f"has {size} bytes; the server allows {size - 1}"
        wire.requests.clear()
        assert len(client.predict_folder(folder, shop)) == 12
        assert wire.requests == ["POST /predict"]


def test_predictions_before_a_failure_are_not_lost(serve: Callable[..., Wire], folder: Path) -> None:
    wire = serve(max_images=5)
    with client_on(wire, retry_seconds=0.1) as client:
        shop = client.adapt_folder(folder, name="shop")
        wire.requests.clear()
        wire.before = lambda _request: httpx2.ConnectError("refused") if len(wire.requests) >= 2 else None
        with pytest.raises(IncompleteError, match="Predicting ended after 10 of 12 images") as caught:
            client.predict_folder(folder, shop)
        assert len(caught.value.result) == caught.value.done == 10


def test_a_classifier_that_is_changed_while_it_predicts(serve: Callable[..., Wire], folder: Path) -> None:
    """Answers under its old and its new labels are not mixed."""
    wire = serve(max_images=5)
    with client_on(wire) as client, client_on(Wire(wire.inner)) as other:
        shop = client.adapt_folder(folder)

        def rename_before(answers: int) -> None:
            """Exchange two labels before the answer after so many."""
            wire.requests.clear()

            def rename(request: httpx2.Request) -> None:
                if request.url.path == "/predict" and wire.requests.count("POST /predict") == answers:
                    other.rename_classes(shop, {"red": "green", "green": "red"})

            wire.before = rename

        rename_before(2)
        changed = rf"ended after 10 of 12 images: {shop.id} was changed meanwhile: its revision was 3 and is 4\."
        with pytest.raises(IncompleteError, match=changed) as caught:
            client.predict_folder(folder, shop)
        assert len(caught.value.result) == 10
        rename_before(0)  # after a look at its labels, and before the first answer
        with pytest.raises(ComlnError, match="its revision was 4 and is 5"):
            client.evaluate_folder(folder, shop)

        def older(request: httpx2.Request) -> httpx2.Response | None:
            if request.url.path != "/predict":
                return None
            given = wire.inner.handle_request(request)
            given.read()
            return httpx2.Response(200, json={key: value for key, value in given.json().items() if key != "revision"})

        wire.before = older  # a server that does not say
        assert client.evaluate_folder(folder, shop).accuracy == 1


def test_predictions_before_an_interrupt_are_not_lost(serve: Callable[..., Wire], folder: Path) -> None:
    wire = serve(max_images=5)

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
