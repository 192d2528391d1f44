"""Arguments that the client does not send, and images that it or the server refuses."""

import base64
import io
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from comln_serve.client import (
    BadImageError,
    Client,
    ComlnError,
    IncompleteError,
    InputError,
    InterruptedPredicting,
    NoAnswerError,
)
from tests.client.wires import PAIR, Wire, client_on, wire_to
from tests.support.image_files import image_bytes
from tests.support.messages import GREEN, RED

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def refusing(service: TestClient) -> Iterator[tuple[Client, Wire]]:
    """A client that is given what it does not send, and the wire on which nothing arrives; the server is the file's."""
    wire = wire_to(service)
    with client_on(wire) as comln:
        yield comln, wire


@pytest.mark.parametrize("horizon", [0, -1, float("nan"), float("inf"), "far", [1], np.ones(2), True])
def test_what_is_no_horizon(refusing: tuple[Client, Wire], horizon: Any) -> None:
    comln, line = refusing
    line.requests.clear()
    for call in (lambda: comln.adapt(*PAIR, horizon=horizon), lambda: comln.adapt_again("pair", horizon=horizon)):
        with pytest.raises(InputError, match="give a number over 0, 'learned' or 'auto'"):
            call()
    assert line.requests == []


@pytest.mark.parametrize("lifetime", [0.5, float("nan"), float("inf"), "60", True, np.ones(2)])
def test_what_is_no_lifetime(refusing: tuple[Client, Wire], lifetime: Any) -> None:
    comln, line = refusing
    line.requests.clear()
    for call in (
        lambda: comln.adapt(*PAIR, expires_in_seconds=lifetime),
        lambda: comln.edit("pair", expires_in_seconds=lifetime),
    ):
        with pytest.raises(InputError, match=r"expires_in_seconds is .*; give whole seconds"):
            call()
    assert line.requests == []


def test_a_lifetime_beyond_all_floats_is_refused_by_the_server(comln: Client) -> None:
    pair = comln.adapt(*PAIR)
    with pytest.raises(ComlnError, match="expires_in_seconds") as refused:
        comln.edit(pair, expires_in_seconds=10**400)
    assert refused.value.code == "invalid_request"


def test_a_name_too_long_for_an_address(refusing: tuple[Client, Wire]) -> None:
    comln, _ = refusing
    with pytest.raises(InputError, match=r"/classifiers/aaa.* makes no address: .*too long"):
        comln.classifier("a" * 70_000)


def test_numbers_and_truths_of_numpy(comln: Client) -> None:
    pair = comln.adapt(*PAIR, horizon=np.int64(3))
    assert (pair.horizon, pair.horizon_rule) == (3.0, "given")
    assert comln.adapt_again(pair, horizon=np.float32(2.5)).horizon == 2.5
    better: Any = np.float64(0.9) > 0.8
    seconds: Any = np.int64(3600)
    assert comln.edit(pair, name="pair", promote=better, expires_in_seconds=seconds).promoted
    assert comln.adapt_again("pair", promote=better).promoted


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        ([], [], "images is empty"),
        (b"one", ["a"], "images is a bytes; give a list of images"),
        ({"a": [b"one"]}, ["a"], "images is a dict; give a list of images"),
        (io.BytesIO(RED), ["red"], "images is a BytesIO; give a list of images"),
        ([RED, GREEN], ["red"], "received 2 images and 1 labels"),
        ([RED, GREEN], ["red", " "], "label 2 is ' '; a label is text that is not blank"),
        ([RED, GREEN], ["red", 3], "label 2 is 3"),
        ([RED, GREEN], "red", "labels is a single text"),
        ([RED, 5], ["red", "green"], "image 2 is a int; an image is a path"),
        (
            [np.zeros((4, 4, 3)), GREEN],
            ["red", "green"],
            r"array of shape \(4, 4, 3\) and type float64; allowed are uint8",
        ),
        ([np.zeros((4, 4, 4), np.uint8), GREEN], ["red", "green"], r"array of shape \(4, 4, 4\)"),
        ([Image.new("F", (4, 4)), GREEN], ["red", "green"], "Pillow image of mode F; .*: give its file instead"),
        ([Image.new("I;16", (4, 4)), GREEN], ["red", "green"], "or scale it to 0 to 255"),
        ([Image.new("CMYK", (4, 4)), GREEN], ["red", "green"], r"convert\('RGB'\) makes one of these"),
        ([io.StringIO("x"), GREEN], ["red", "green"], "image 1 is a StringIO"),
        (np.zeros((2, 8, 3), np.uint8), ["red", "green"], r"shape \(2, 8, 3\), as of a single image"),
        (np.zeros((2, 8), np.uint8), ["red", "green"], r"shape \(2, 8\), as of a single image"),
        (np.zeros((2, 8, 4), np.uint8), ["red", "green"], r"shape \(2, 8, 4\), as of a single image"),
        (np.zeros((2, 8, 1), np.uint8), ["red", "green"], r"shape \(2, 8, 1\), as of a single image"),
    ],
)
def test_arguments_that_cannot_be_sent(refusing: tuple[Client, Wire], images: Any, labels: Any, said: str) -> None:
    comln, line = refusing
    line.requests.clear()
    with pytest.raises(InputError, match=said):
        comln.adapt(images, labels)
    assert set(line.requests) <= {"GET /limits"}


def test_other_arguments_that_cannot_be_sent(comln: Client, line: Wire, tmp_path: Path) -> None:
    for reference in ("", ".", ".."):
        with pytest.raises(InputError, match=f"the classifier is '{reference}'; give an id, a name"):
            comln.classifier(reference)
    with pytest.raises(InputError, match="numbers is empty"):
        comln.remove_examples("pair", [])
    wrong: Any = [1]
    for call, said in (
        (lambda: comln.remove_examples("pair", ["a"]), "numbers has 'a'; give the numbers of examples"),  # pyright: ignore[reportArgumentType]
        (lambda: comln.remove_examples("pair", [[3]]), r"numbers has \[3\]; give the numbers of examples"),  # pyright: ignore[reportArgumentType]
        (lambda: comln.remove_examples("pair", None), "numbers is None; give a list"),  # pyright: ignore[reportArgumentType]
        (lambda: comln.remove_examples("pair", 3), "numbers is 3; give a list"),  # pyright: ignore[reportArgumentType]
        (lambda: comln.remove_examples("pair", "37"), "numbers is '37'; give a list"),  # pyright: ignore[reportArgumentType]
        (lambda: comln.relabel_examples("pair", wrong), r"labels is \[1\]; give a dictionary such as"),
        (lambda: comln.relabel_examples("pair", {}), r"labels is \{\}; give a dictionary such as"),
        (lambda: comln.rename_classes("pair", wrong), r"labels is \[1\]; give a dictionary such as"),
        (lambda: comln.rename_classes("pair", {"red": wrong}), r"labels has \[1\] for 'red'; give a text"),
        (lambda: comln.adapt(*PAIR, metadata=wrong), r"metadata is \[1\]; give a dictionary"),
        (lambda: comln.edit("pair", metadata={"line": wrong}), r"metadata has \[1\] for 'line'; give a text"),
        # Of bytes that are not UTF-8, a command's arguments are such texts.
        (lambda: comln.classifier("caf\udce9"), r"the classifier is 'caf\\udce9', which is not valid Unicode"),
        (lambda: comln.classifiers(name="caf\udce9"), r"'caf\\udce9' is not valid Unicode, and cannot be sent"),
        (lambda: comln.rename_classes("pair", {"red": "caf\udce9"}), r"caf\\udce9\"}.* is not valid Unicode"),
    ):
        with pytest.raises(InputError, match=said):
            call()
    assert line.requests == []
    for options in ({"name": "caf\udce9"}, {"metadata": {"place": "caf\udce9"}}):
        with pytest.raises(InputError, match=r"caf\\udce9.* is not valid Unicode"):
            comln.adapt(*PAIR, **options)
    comln.adapt(*PAIR, name="pair")
    with pytest.raises(InputError, match=r"missing/x.safetensors: cannot be written: No such file"):
        comln.export("pair", tmp_path / "missing" / "x.safetensors", "safetensors")
    with pytest.raises(InputError, match=r"missing/: there is no such folder"):
        comln.export("pair", f"{tmp_path}/missing/")
    with pytest.raises(InputError, match=r"x\.txt: ends in none of \.onnx, \.safetensors, \.support;"):
        comln.export("pair", tmp_path / "x.txt")
    assert comln.export("pair", tmp_path / "x.txt", "safetensors").name == "x.txt"
    with pytest.raises(InputError, match=r"x\.onnx: ends in \.onnx, and the format is safetensors"):
        comln.export("pair", tmp_path / "x.onnx", "safetensors")
    for text, said in (
        ("data:image/png;base64," + "A" * 10_000, "is an address, not a path"),
        ("https://example.org/x.png", "is an address, not a path"),
        ("A" * 10_000, "^image 1: cannot be read: File name too long"),
    ):
        with pytest.raises(BadImageError, match=said) as caught:
            comln.predict([text], "pair")
        assert len(str(caught.value)) < 200
    with pytest.raises(InputError, match="retry_seconds is nan; give seconds, from 0 on"):
        Client("http://127.0.0.1", retry_seconds=math.nan)
    with pytest.raises(InputError, match="timeout is 0"):
        Client(timeout=0)
    text: Any = "3"
    for wrong_time in (text, True, None, 3j):
        with pytest.raises(InputError, match=r"timeout is .*; give seconds"):
            Client(timeout=wrong_time)
    for wrong_side in (-1, 0, True, 3.5, text):
        with pytest.raises(InputError, match=r"max_side is .*; give a number of pixels"):
            Client(max_side=wrong_side)
    for time in (np.float32(3), np.int64(3)):
        with Client(timeout=time, retry_seconds=time) as client:
            assert client._session.http.timeout.read == 3.0
    with pytest.raises(InputError, match="url is 8000; give the address of a server"):
        Client(8000)  # pyright: ignore[reportArgumentType]


def test_a_client_that_was_closed_says_so(line: Wire) -> None:
    with client_on(line) as client:
        client.models()
    with pytest.raises(InputError, match="this client was closed"):
        client.models()


def test_a_client_that_is_closed_while_it_waits_says_so(line: Wire) -> None:
    """As by another thread."""
    with client_on(line) as client:
        line.before = lambda _request: client.close() or httpx2.ConnectError("refused")
        with pytest.raises(InputError, match="this client was closed"):
            client.models()


def test_a_client_is_shown_with_its_address_and_without_its_key() -> None:
    assert repr(Client("http://127.0.0.1:9", key="comln_1_2")) == "Client('http://127.0.0.1:9')"


def test_a_password_in_the_address_is_used_and_not_shown() -> None:
    client = Client("http://me:secret@127.0.0.1:9/api", retry_seconds=0)
    assert repr(client) == "Client('http://127.0.0.1:9/api')"
    assert client.url == "http://me:secret@127.0.0.1:9/api"
    with pytest.raises(NoAnswerError, match=r"no server can be reached at http://127.0.0.1:9/api: ") as caught:
        client.live()
    assert "secret" not in str(caught.value)
    host = "me:secret@127.0.0.1"
    for address in (f"http://{host}/?x=1", f"ftp://{host}", f"http://{host}:0", f"http://{host}:port"):
        with pytest.raises(InputError, match=r"url is .(http|ftp)") as refused:
            Client(address)
        assert "secret" not in str(refused.value)
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["authorization"])
        return httpx2.Response(200, json={"status": "ok"})

    Client("http://me:secret@example.org", transport=httpx2.MockTransport(answer)).live()
    assert seen == [f"Basic {base64.b64encode(b'me:secret').decode()}"]


def test_images_that_cannot_be_used(comln: Client, line: Wire, tmp_path: Path) -> None:
    comln.adapt(*PAIR, name="pair")
    line.requests.clear()
    bad: list[Any] = [tmp_path / "gone.png", b"", b"text"]
    for image, reason in zip(bad, ["cannot be read: No such file", "is empty", "is no image"], strict=True):
        with pytest.raises(BadImageError, match=reason) as caught:
            comln.predict([RED, image], "pair")
        assert caught.value.image == (str(image) if isinstance(image, Path) else "image 2")
    assert line.requests == []
    found = comln.predict([RED, *bad, GREEN], "pair", on_bad="skip")
    assert [item.image for item in found] == ["image 1", "image 5"]
    assert [item.image for item in found.skipped] == [str(bad[0]), "image 3", "image 4"]
    with pytest.raises(InputError, match=r"none of the 3 images can be used; the first: .*gone.png: cannot be read"):
        comln.predict(bad, "pair", on_bad="skip")
    for name in ("a.txt", "b.png"):
        (tmp_path / name).write_bytes(b"text")
    with pytest.raises(InputError, match=r"^/.*b\.png: is no image: it begins with b'text'"):
        comln.predict_folder(tmp_path, "pair")


def test_errors_can_be_sent_to_another_process() -> None:
    """As of an estimator that is fitted by several."""
    cause = BadImageError("a.png", "is empty", code="invalid_image", detail={"image": 3}, status=422)
    interrupted = InterruptedPredicting(done=1, total=2, result=())
    incomplete = IncompleteError("some", cause, done=1, total=2, leftover=("clf",))
    for error in (InputError("a"), cause, incomplete, interrupted):
        there = pickle.loads(pickle.dumps(error))
        assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


def test_images_that_the_server_refuses(comln: Client, line: Wire) -> None:
    """They are sent once, with the others: the answer says which they are."""
    comln.adapt(*PAIR, name="pair")
    line.requests.clear()
    video, damaged = b"\0\0\0\x18ftypqt  " + bytes(100), image_bytes(size=(64, 64), fmt="JPEG")[:400]
    found = comln.predict([damaged, RED, video, GREEN, video], "pair", on_bad="skip")
    assert [item.image for item in found] == ["image 2", "image 4"]
    assert [item.label for item in found] == [item.label for item in comln.predict([RED, GREEN], "pair")]
    assert [item.image for item in found.skipped] == ["image 1", "image 3", "image 5"]
    assert "QuickTime" in found.skipped[1].reason
    assert not found.skipped[0].reason.startswith("Image")
    shop = comln.adapt([RED, video, GREEN], ["red", "green", "green"], on_bad="skip")
    assert (shop.images, [item.image for item in shop.skipped]) == (("image 1", "image 3"), ["image 2"])
    more = comln.add_examples(shop, [video, GREEN], ["red", "green"], on_bad="skip")
    assert [item.examples for item in more.classes] == [1, 2]
    assert line.requests == ["POST /predict"] * 2 + ["POST /adapt", f"POST /classifiers/{shop.id}/examples"]
    with pytest.raises(BadImageError, match=r"image 2: .*QuickTime") as caught:
        comln.adapt([RED, video], ["red", "green"])
    assert (caught.value.code, caught.value.image) == ("invalid_image", "image 2")


def test_a_class_that_loses_all_its_images(comln: Client, line: Wire) -> None:
    """No classifier lacks a class without anybody having said so; more examples may be left out."""
    images, labels = [RED, GREEN, b"\0\0\0\x18ftypqt  " + bytes(100), b"text"], ["red", "green", "blue", "blue"]
    with pytest.raises(InputError, match=r"no image of class 'blue' can be used; .*the last of them: image 3: .*Quick"):
        comln.adapt(images, labels, on_bad="skip")
    assert comln.classifiers() == []
    comln.adapt(*PAIR, name="pair")
    line.requests.clear()
    found = comln.add_examples("pair", images, labels, on_bad="skip")
    assert [item.examples for item in found.classes] == [2, 2]
    assert [item.image for item in found.skipped] == ["image 4", "image 3"]
    assert line.requests == ["POST /classifiers/pair/examples"] * 2
