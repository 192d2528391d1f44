"""Folders that take several requests: cut within the limits, all of it or nothing, however often the server dies."""

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from comln_serve.client import BadImageError, ComlnError, IncompleteError, InputError
from tests.client.pictures import COLOURS, class_folder
from tests.client.wires import Wire, client_on, uploads
from tests.support.image_files import image_bytes
from tests.support.messages import GREEN, RED

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("limits", "predicting"),
    # Images of 15 KB. A quarter of a form that is so small is kept for what it has beside them.
    [({"max_images": 5}, 3), ({"max_body_bytes": 120_000}, 3), ({"max_body_bytes": 45_000}, 6)],
)
def test_no_request_is_larger_than_the_server_takes(
    wired: Callable[..., Wire], tmp_path: Path, limits: dict[str, int], predicting: int
) -> None:
    folder = class_folder(tmp_path / "photos", each=4, side=80)
    wire = wired(**limits)
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


def test_requests_are_smaller_where_a_proxy_takes_less(wired: Callable[..., Wire], folder: Path) -> None:
    """And stay so: it is found out once."""
    wire = wired()
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


def test_the_result_is_that_of_one_request(wired: Callable[..., Wire], folder: Path) -> None:
    whole, parts = wired(), wired(max_images=5)
    with client_on(whole) as one, client_on(parts) as several:
        at_once = one.adapt_folder(folder, name="whole")
        bit_by_bit = several.adapt_folder(folder, name="parts")
        assert (len(uploads(whole)), len(uploads(parts))) == (1, 3)
        assert bit_by_bit.support_loss == at_once.support_loss
        found = [client.predict_folder(folder, shop) for client, shop in ((one, at_once), (several, bit_by_bit))]
        assert [item.probability for item in found[0]] == [item.probability for item in found[1]]


def test_a_name_moves_once_all_is_there(wired: Callable[..., Wire], folder: Path) -> None:
    wire = wired(max_images=5)
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
        # Of a new name, the server promotes the first version, which is deleted.
        fresh = client.adapt_folder(folder, name="fresh", promote=False)
        assert (fresh.version, fresh.promoted, client.classifier("fresh").id) == (3, True, fresh.id)


@pytest.mark.parametrize("there", [True, False], ids=["known name", "new name"])
@pytest.mark.parametrize("sent", [0, 1, 3])
def test_what_somebody_else_promotes_meanwhile_stays(
    wired: Callable[..., Wire], folder: Path, there: bool, sent: int
) -> None:
    """Before the first of three requests, after it, and before the promotion; it was acknowledged."""
    wire = wired(max_images=5)
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


def test_images_that_are_all_refused_after_the_first_request(wired: Callable[..., Wire], folder: Path) -> None:
    """The version of the first request is the last one, and promoted."""
    (folder / "red" / "zz.png").write_bytes(b"\0\0\0\x18ftypqt  " + bytes(50))  # the server finds this one
    wire = wired(max_images=12)
    with client_on(wire) as client:
        client.adapt([RED, GREEN], ["red", "green"], name="shop")
        shop = client.adapt_folder(folder, name="shop")
        assert (shop.promoted, shop.version, len(shop.skipped)) == (True, 2, 1)
        assert client.classifier("shop").id == shop.id


@pytest.mark.parametrize(("what", "limits"), [("12 images", {"max_examples": 10}), ("3 classes", {"max_classes": 2})])
def test_more_than_a_classifier_may_have_is_not_sent(
    wired: Callable[..., Wire], folder: Path, what: str, limits: dict[str, int]
) -> None:
    (allowed,) = limits.values()
    wire = wired(max_images=5, **limits)
    message = f"would have {what}; at most {allowed} are allowed .*--max-"
    with client_on(wire) as client, pytest.raises(InputError, match=message):
        client.adapt_folder(folder, name="shop")
    assert wire.requests == ["GET /limits"]


def test_more_examples_than_a_request_may_have(wired: Callable[..., Wire]) -> None:
    wire = wired(max_images=5)
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
def test_many_images_sorted_by_class(wired: Callable[..., Wire], limits: dict[str, int]) -> None:
    """The first request has to have two classes."""
    images = [image_bytes(COLOURS[label], seed=seed, size=(80, 80)) for label in COLOURS for seed in range(4)]
    labels = [label for label in COLOURS for _ in range(4)]
    with client_on(wired(**limits)) as client:
        made = client.adapt(images, labels)
        assert len(client.examples(made)) == 12
        assert made.images[:4] == ("image 1", "image 5", "image 9", "image 2")
        assert {one.label for one in client.predict(images, made)} == set(COLOURS)


@pytest.mark.parametrize("limits", [{"max_images": 6}, {"max_body_bytes": 150_000}])
def test_a_model_that_is_tied_to_five_classes(wired: Callable[..., Wire], limits: dict[str, int]) -> None:
    """The first request has to have all five."""
    images = [image_bytes((50 * number, 90, 200), seed=seed, size=(80, 80)) for number in range(5) for seed in range(4)]
    labels = [f"class {number}" for number in range(5) for _ in range(4)]
    wire = wired(**limits)
    with client_on(wire) as client:
        made = client.adapt(images, labels, model="tiny-learned")
        assert len(uploads(wire)) > 2
        assert len(client.examples(made)) == 20


def test_bad_files_of_a_large_folder(wired: Callable[..., Wire], folder: Path) -> None:
    """Also where the last request has nothing else."""
    (folder / "red" / "zz.png").write_bytes(b"\0\0\0\x18ftypqt  " + bytes(50))  # the server finds this one
    (folder / "red" / "z.png").write_bytes(b"none")
    wire = wired(max_images=3)
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


def test_too_large_files_are_left_out(wired: Callable[..., Wire], folder: Path) -> None:
    (folder / "red" / "big.png").write_bytes(image_bytes(size=(60, 60)))
    size = (folder / "red" / "big.png").stat().st_size
    wire = wired(max_image_bytes=size - 1)
    with client_on(wire) as client:
        shop = client.adapt_folder(folder)
        (left_out,) = shop.skipped
        assert left_out.image.endswith("big.png")
        assert left_out.reason == f"has {size} bytes; the server allows {size - 1}"
        wire.requests.clear()
        assert len(client.predict_folder(folder, shop)) == 12
        assert wire.requests == ["POST /predict"]


def test_a_classifier_that_is_changed_while_it_predicts(wired: Callable[..., Wire], folder: Path) -> None:
    """Answers under its old and its new labels are not mixed."""
    wire = wired(max_images=5)
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
