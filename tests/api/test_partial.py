"""Requests with `partial` go on without the images that cannot be used, and say which these are and why."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.errors import ErrorCode
from tests.api.test_metrics import Difference, key
from tests.support.image_files import image_bytes
from tests.support.messages import (
    GREEN,
    MAX_BYTES,
    RED,
    Support,
    adapt_form,
    adapt_json,
    check_error,
    check_still_serving,
    engine_of,
    flat_png,
    multipart,
    predict_form,
    predict_json,
)

Body = Callable[..., dict[str, Any]]

BLUE = image_bytes((30, 30, 220))
TEXT = b"hello"
# What can be wrong with an image, by the code of its error.
BAD = {
    TEXT: "invalid_image",
    b"": "invalid_image",
    RED[: len(RED) // 2]: "invalid_image",
    flat_png(101, 100): "image_too_large",
    bytes(MAX_BYTES + 1): "image_too_large",
}
THREE: Support = [(RED, "red"), (GREEN, "green"), (BLUE, "blue")]
adapting = pytest.mark.parametrize("body", [adapt_form, adapt_json], ids=["form", "json"])
predicting = pytest.mark.parametrize("body", [predict_form, predict_json], ids=["form", "json"])


def facts(rejected: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(one[name] for name in names) for one in rejected]


@predicting
def test_predictions_line_up_with_what_was_sent(service: TestClient, body: Body) -> None:
    images = [TEXT, RED, *list(BAD)[1:], GREEN]
    answer = service.post("/predict", **body(*images, partial=True, unknown=True))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    whole = service.post("/predict", **body(RED, GREEN, unknown=True)).json()
    assert [item is None for item in found["predictions"]] == [image in BAD for image in images]
    assert [item for item in found["predictions"] if item] == whole["predictions"]
    assert "rejected" not in whole
    assert facts(found["rejected"], "index", "code") == [(i, BAD[x]) for i, x in enumerate(images) if x in BAD]
    assert {one["file"] for one in found["rejected"]} == {"image" if body is predict_form else None}
    # Each as it is told of where it is the only image.
    for one in found["rejected"]:
        alone = service.post("/predict", **body(images[one["index"]])).json()["error"]
        assert (one["code"], one["detail"].items() <= alone["detail"].items()) == (alone["code"], True)
        assert one["message"].removeprefix("The image") in alone["message"]
    assert service.post("/predict", **body(RED, partial=True)).json()["rejected"] == []


def test_text_that_is_no_base64_is_a_bad_image(service: TestClient) -> None:
    request = predict_json(RED, partial=True)
    request["json"]["images"].insert(0, "*")
    found = service.post("/predict", **request).json()
    assert facts(found["rejected"], "index", "code") == [(0, "invalid_request")]
    assert found["rejected"][0]["message"].startswith("The image is not base64")
    del request["json"]["partial"]
    check_error(service.post("/predict", **request), ErrorCode.INVALID_REQUEST)


def test_files_have_their_names(service: TestClient) -> None:
    names = ['"images"; filename="a b.png"', '"images"; filename="n\u00e4\u732b.png"', '"images"; filename=""']
    parts = [*((name, TEXT) for name in names), ('"images"; filename="f"', RED)]
    options = [('"classifier"', b"known"), ('"partial"', b"true")]
    found = service.post("/predict", **multipart(*parts, *options)).json()
    assert facts(found["rejected"], "file") == [("a b.png",), ("n\u00e4\u732b.png",), (None,)]


@adapting
@pytest.mark.parametrize("path", ["/adapt", "/classifiers/{}/examples"])
def test_the_classifier_is_that_of_the_rest(client: TestClient, body: Body, path: str) -> None:
    def made(support: Support, **options: Any) -> Any:
        base = client.post("/adapt", **adapt_form(THREE)).json()["id"]
        answer = client.post(path.format(base), **body(support, **options))
        assert answer.status_code == 201, answer.text
        return answer.json()

    more = [(image_bytes(seed=7), "red"), (image_bytes((30, 200, 40), seed=8), "green")]
    found = made([(TEXT, "red"), *more, (TEXT, "green")], partial=True)
    rest = made(more)
    for same in ("classes", "support_loss", "support_accuracy", "horizon", "report"):
        assert found[same] == rest[same], same
    assert facts(found["rejected"], "index", "label", "code") == [
        (0, "red", "invalid_image"),
        (3, "green", "invalid_image"),
    ]
    examples = client.get(f"/classifiers/{found['id']}/examples").json()["examples"]
    assert [item["number"] for item in examples] == list(range(1, len(examples) + 1))
    assert "rejected" not in rest
    assert "rejected" not in client.get(f"/classifiers/{found['id']}").json()


@adapting
def test_a_class_that_loses_all_its_images_is_an_error(client: TestClient, body: Body) -> None:
    support = [*THREE, (TEXT, "red"), (TEXT, "black"), (b"", "white"), (TEXT, "black")]
    error = check_error(client.post("/adapt", **body(support, partial=True)), ErrorCode.CANNOT_ADAPT)
    assert "labelled 'black' can be used. Image 5 of 7: " in error["message"]
    assert error["detail"]["lost_classes"] == ["black", "white"]
    rejected = error["detail"]["rejected"]
    named = "image" if body is adapt_form else None
    assert facts(rejected, "index", "file", "label") == [
        (3, named, "red"),
        (4, named, "black"),
        (5, named, "white"),
        (6, named, "black"),
    ]
    assert {one["code"] for one in rejected} == {"invalid_image"}
    assert client.get("/classifiers").json()["classifiers"] == []
    # A class that the classifier has already keeps its old images.
    made = client.post("/adapt", **body(THREE, name="known")).json()
    path = "/classifiers/known/examples"
    assert client.post(path, **body([(TEXT, "red"), (RED, "blue")], partial=True)).status_code == 201
    error = check_error(client.post(path, **body(support, partial=True)), ErrorCode.CANNOT_ADAPT)
    assert error["detail"]["lost_classes"] == ["black", "white"]
    assert client.get("/classifiers/known").json()["version"] == made["version"] + 1
    check_still_serving(client)


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("path", ["/adapt", "/classifiers/known/examples", "/predict"])
def test_a_request_of_bad_images_has_the_error_of_the_first(service: TestClient, path: str, partial: bool) -> None:
    request = predict_form(TEXT, b"") if path == "/predict" else adapt_form([(TEXT, "red"), (b"", "green")])
    request["data"]["partial"] = partial
    error = check_error(service.post(path, **request), ErrorCode.INVALID_IMAGE)
    assert error["message"].startswith("Image 1 of 2: ")
    assert error["detail"]["image"] == 0
    if partial:
        assert facts(error["detail"]["rejected"], "index", "file") == [(0, "image"), (1, "image")]
    else:
        assert "rejected" not in error["detail"]
    check_still_serving(service)


@pytest.mark.parametrize("path", ["/adapt", "/classifiers/known/examples"])
def test_a_repeated_request_gets_the_same_answer(client: TestClient, path: str) -> None:
    client.post("/adapt", **adapt_form(THREE, name="known")).raise_for_status()
    header = {"Idempotency-Key": "order-7"}
    request_support = [*THREE, (TEXT, "red"), (bytes(40_000_000), "green")]
    request = adapt_form(request_support, partial=True)
    first, second = (client.post(path, **request, headers=header) for _ in range(2))
    assert (first.status_code, second.headers.get("idempotency-replayed")) == (201, "true"), first.text
    answers = [answer.json() for answer in (first, second)]
    for answer in answers:
        del answer["timings_ms"]
    assert answers[0] == answers[1]
    assert facts(answers[1]["rejected"], "index", "label", "file", "code") == [
        (3, "red", "image", "invalid_image"),
        (4, "green", "image", "image_too_large"),
    ]
    # Other bytes with the same fate are the same request; whatever changes the answer is another.
    for support, options in ((request_support[:-1], {"partial": True}), (request_support[:3], {})):
        other = client.post(path, **adapt_form(support, **options), headers=header)
        check_error(other, ErrorCode.IDEMPOTENCY_MISMATCH)


def test_bad_images_are_counted_by_their_error(service: TestClient) -> None:
    with Difference(service) as difference:
        service.post("/predict", **predict_form(RED, TEXT, flat_png(101, 100), partial=True)).raise_for_status()
        support = [(RED, "red"), (GREEN, "green"), (TEXT, "red")]
        service.post("/adapt", **adapt_form(support, partial=True)).raise_for_status()
        assert service.post("/predict", **predict_form(TEXT, partial=True)).status_code == 422
        assert service.post("/predict", **predict_form(TEXT)).status_code == 422
    assert difference.changed("comln_rejected_images_total") == {
        key(reason="invalid_image"): 3,
        key(reason="image_too_large"): 1,
    }
    assert difference.changed("comln_predictions_total") == {key(model="tiny"): 1}
    assert difference.changed("comln_request_failures_total") == {key(reason="invalid_image"): 2}
    assert engine_of(service).images.pending == 0
