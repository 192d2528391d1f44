"""Every route answers a correct request, in both encodings."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from fastapi import Response
from fastapi.testclient import TestClient
from pydantic import BaseModel

from comln_serve import __version__
from comln_serve.api import work
from comln_serve.api.receive.limits import MOST_ANSWER_BYTES
from comln_serve.api.routes import adaptation, classifiers
from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from comln_serve.imaging import FORMATS
from tests.support.engines import Serve
from tests.support.image_files import colour_support, image_bytes
from tests.support.messages import (
    GREEN,
    MAX_BODY,
    MAX_BYTES,
    MAX_IMAGES,
    MAX_LABEL,
    MAX_PIXELS,
    PAIR,
    RED,
    adapt_form,
    adapt_json,
    b64,
    check_error,
    engine_of,
    file_part,
    flat_png,
    multipart,
    predict_form,
    predict_json,
    raw,
)


def test_adapt_and_predict(client: TestClient) -> None:
    before = datetime.now(UTC)
    answer = client.post("/adapt", **adapt_form(colour_support(2), name="colours"))
    assert answer.status_code == 201
    made = answer.json()
    assert made["id"].startswith("clf_")
    assert (made["name"], made["model"]) == ("colours", "tiny")
    assert made["classes"] == [{"label": label, "examples": 2, "thumbnail": None} for label in ("red", "green", "blue")]
    assert made["support_accuracy"] == 1.0
    assert 0 < made["support_loss"] < np.log(3)
    assert before <= datetime.fromisoformat(made["created_at"]) <= datetime.now(UTC)
    assert set(made["timings_ms"]) == {"decode", "embed", "solve", "report", "store", "total"}

    answer = client.post("/predict", **predict_form(RED, GREEN, classifier="colours"))
    assert answer.status_code == 200
    body = answer.json()
    assert (body["classifier"], body["revision"]) == (made["id"], made["revision"])
    assert [item["label"] for item in body["predictions"]] == ["red", "green"]
    for item in body["predictions"]:
        assert item["top"][0] == {"label": item["label"], "probability": item["probability"]}
        assert sum(entry["probability"] for entry in item["top"]) == pytest.approx(1.0)
    assert set(body["timings_ms"]) == {"decode", "embed", "classify", "total"}


def test_models_lists_every_bundle(client: TestClient) -> None:
    answer = client.get("/models")
    assert answer.status_code == 200
    models = {item["name"]: item for item in answer.json()["models"]}
    assert {name for name, item in models.items() if item["default"]} == {"tiny"}
    assert {name: (item["start"], item["ways"]) for name, item in models.items()} == {
        "tiny": ("zero", None),
        "tiny-learned": ("learned", 5),
        "tiny-prototype": ("prototype", None),
    }
    assert models["tiny"]["image_size"] == 16
    assert models["tiny"]["embedding_size"] == 8
    assert models["tiny"]["provider"] == "cpu"
    assert models["tiny"]["licence"] == "Apache-2.0"


def test_classifiers_are_listed_shown_and_deleted(client: TestClient) -> None:
    assert client.get("/classifiers").json() == {"classifiers": [], "next": None}
    made = [client.post("/adapt", **adapt_form(name="same")).json() for _ in range(3)]
    for item in made:
        del item["timings_ms"]
    assert [(item["version"], item["promoted"]) for item in made] == [(n, True) for n in (1, 2, 3)]
    for item in made[:2]:
        item["promoted"] = False
    listed = client.get("/classifiers")
    assert listed.status_code == 200
    brief = [{key: value for key, value in item.items() if key != "report"} for item in made]
    assert listed.json() == {"classifiers": brief[::-1], "next": None}
    assert client.get(f"/classifiers/{made[0]['id']}").json() == made[0]
    assert client.get("/classifiers/same").json() == made[2]

    deleted = client.delete("/classifiers/same")
    assert (deleted.status_code, deleted.content) == (204, b"")
    made[1]["promoted"] = True
    assert client.get("/classifiers/same").json() == made[1], "the older one takes the name back"
    assert client.delete(f"/classifiers/{made[1]['id']}").status_code == 204
    assert client.delete(f"/classifiers/{made[1]['id']}").status_code == 404
    assert client.get("/classifiers").json()["classifiers"] == [{**brief[0], "promoted": True}]


def test_liveness_and_readiness_are_answered(client: TestClient) -> None:
    assert client.get("/health/live").json() == {"status": "live"}
    ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "version": __version__,
        "provider": dict.fromkeys(("tiny", "tiny-learned", "tiny-prototype"), "cpu"),
        "classifiers": 0,
    }


@pytest.mark.parametrize("model", ["tiny", "tiny-prototype"])
def test_multipart_and_json_are_the_same(client: TestClient, model: str) -> None:
    support = colour_support(2)
    options = {"model": model, "horizon": 12.5}
    answers = [client.post("/adapt", **build(support, **options)) for build in (adapt_form, adapt_json)]
    assert [answer.status_code for answer in answers] == [201, 201]
    made = [answer.json() for answer in answers]
    for key in ("model", "classes", "horizon", "support_loss", "support_accuracy"):
        assert made[0][key] == made[1][key]
    assert made[0]["horizon"] == 12.5
    stored = [engine_of(client).classifiers.find(item["id"]) for item in made]
    np.testing.assert_array_equal(stored[0].W, stored[1].W)

    predictions = [
        client.post("/predict", **build(GREEN, RED, classifier=item["id"], top_k=2)).json()
        for build in (predict_form, predict_json)
        for item in made
    ]
    assert all(item["predictions"] == predictions[0]["predictions"] for item in predictions)
    assert [len(item["top"]) for item in predictions[0]["predictions"]] == [2, 2]


@pytest.mark.parametrize("build", [predict_form, predict_json])
def test_images_that_are_examples_are_named_if_asked(client: TestClient, build: Callable[..., dict[str, Any]]) -> None:
    support = colour_support(2)
    client.post("/adapt", **adapt_form(support, name="known"))
    client.delete("/classifiers/known/examples/1")
    new = image_bytes((200, 120, 40), seed=77)
    images = [support[3][0], new, support[0][0], support[5][0]]
    asked = client.post("/predict", **build(*images, classifier="known", examples=True)).json()["predictions"]
    assert [item.get("example") for item in asked] == [4, None, None, 6]
    assert "example" not in asked[1]
    judged = client.post("/predict", **build(*images, classifier="known", examples=True, unknown=True)).json()
    assert [(item.get("example"), "similarity" in item) for item in judged["predictions"]] == [
        (number, True) for number in (4, None, None, 6)
    ]
    plain = client.post("/predict", **build(*images, classifier="known")).json()["predictions"]
    assert all("example" not in item for item in plain)


@pytest.mark.parametrize("path", ["/predict", "/adapt", "/classifiers/known/labels"])
def test_json_that_is_sent_as_a_form_is_told_how(client: TestClient, path: str) -> None:
    """As by curl -d."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post(path, content=b'{"classifier": "known"}', headers=headers)
    error = check_error(answer, ErrorCode.UNSUPPORTED_MEDIA_TYPE)
    assert error["message"].endswith(" add -H 'Content-Type: application/json'.")
    assert "curl" not in client.post("/predict", content=b"x", headers={"Content-Type": "image/png"}).text


@pytest.mark.parametrize(("top_k", "listed"), [(1, 1), (2, 2), (3, 3), (4, 3), (100, 3)])
@pytest.mark.parametrize("build", [predict_form, predict_json])
def test_top_k_bounds_the_labels_of_a_prediction(
    client: TestClient, build: Callable[..., dict[str, Any]], top_k: int, listed: int
) -> None:
    client.post("/adapt", **adapt_form(colour_support(1), name="known"))
    answer = client.post("/predict", **build(RED, top_k=top_k))
    assert answer.status_code == 200
    top = answer.json()["predictions"][0]["top"]
    assert len(top) == listed
    probabilities = [entry["probability"] for entry in top]
    assert probabilities == sorted(probabilities, reverse=True)


def test_a_long_answer_is_written_on_a_thread(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.post("/adapt", **adapt_form(colour_support(1), name="known"))
    where: list[bool] = []

    def noted(answer: BaseModel, *, exclude_unset: bool) -> Response:
        where.append(asyncio._get_running_loop() is not None)
        return as_json(answer, exclude_unset=exclude_unset)

    as_json = adaptation.as_json
    monkeypatch.setattr(adaptation, "as_json", noted)
    short = client.post("/predict", **predict_form(RED, GREEN))
    monkeypatch.setattr(work, "_SHORT_ANSWER", 2 * 3 - 1)
    long = client.post("/predict", **predict_form(RED, GREEN))
    assert long.json()["predictions"] == short.json()["predictions"]
    assert where == [True, False]


def test_images_in_json_may_be_data_urls(client: TestClient) -> None:
    """As `FileReader.readAsDataURL` of a browser makes them."""
    support = [{"image": f"data:image/png;base64,{b64(data)}", "label": label} for data, label in PAIR]
    client.post("/adapt", json={"support": support, "name": "known"}).raise_for_status()
    short = client.post("/predict", json={"images": [b64(RED), b64(GREEN)], "classifier": "known"}).json()
    urls = [f"data:image/png;charset=x;base64,{b64(RED)}", f"DATA:;base64,{b64(GREEN)}"]
    long = client.post("/predict", json={"images": urls, "classifier": "known"}).json()
    assert [one["label"] for one in long["predictions"]] == ["red", "green"]
    assert long["predictions"] == short["predictions"]


def test_a_prediction_whose_answer_would_be_too_large_is_refused(client: TestClient) -> None:
    """Before it is written: labels may be long, and are named once for each image."""
    support = [(flat_png(4, 4), "\U0001f408" * 250 + str(i)) for i in range(100)]
    client.post("/adapt", **adapt_form(support, name="known")).raise_for_status()

    def infer(images: int, **parameters: int) -> Any:
        data = [b64(RED)] * images
        tensor = {"name": "IMAGE", "shape": [images], "datatype": "BYTES", "data": data}
        output = {"name": "PROBS", "parameters": parameters}
        body = {"inputs": [tensor], "outputs": [output]}
        return client.post("/v2/models/known/infer", json=body)

    error = check_error(client.post("/predict", **predict_form(*[RED] * 160, top_k=100)), ErrorCode.TOO_MANY_IMAGES)
    assert error["detail"]["allowed_bytes"] == MOST_ANSWER_BYTES
    assert error["detail"]["answer_bytes"] > MOST_ANSWER_BYTES
    assert "fewer classes" in error["message"]
    assert infer(170, classification=200).status_code == 413
    for answer in (
        client.post("/predict", **predict_form(*[RED] * 140, top_k=100)),
        client.post("/predict", **predict_form(*[RED] * 160)),
        infer(150, classification=200),
        infer(170),
    ):
        assert answer.status_code == 200
        assert len(answer.content) < MOST_ANSWER_BYTES


@pytest.mark.parametrize("build", [predict_form, predict_json])
def test_order_of_images_is_kept(client: TestClient, build: Callable[..., dict[str, Any]]) -> None:
    client.post("/adapt", **adapt_form(colour_support(), name="known"))
    images = {label: data for data, label in colour_support(1)}
    order = ["blue", "red", "red", "green", "blue", "green", "red"] * 3
    answer = client.post("/predict", **build(*(images[label] for label in order)))
    assert [item["label"] for item in answer.json()["predictions"]] == order


LABELS = [
    "a",
    "a ",
    " a",
    "A",
    "\u00e9",  # e acute in one character
    "e\u0301",  # and in two: another label
    "\N{FAMILY}\u200d\N{CAT FACE}\U0001f3fd",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u202eright to left\u202c",
    "\u6f22\u5b57",
    "two\nlines",
    "tab\there",
    "quote\"'\\; filename=x",
    "--edge",
    "null",
    "\x00",
    "\ufeffmark",
    "%41+&=",
]


@pytest.mark.parametrize("build", [adapt_form, adapt_json])
def test_labels_come_back_exactly(client: TestClient, build: Callable[..., dict[str, Any]]) -> None:
    support = [(image_bytes(seed=i), label) for i, label in enumerate(LABELS)]
    answer = client.post("/adapt", **build(support))
    assert answer.status_code == 201
    made = answer.json()
    assert [item["label"] for item in made["classes"]] == LABELS
    shown = client.get(f"/classifiers/{made['id']}").json()
    assert [item["label"] for item in shown["classes"]] == LABELS
    answer = client.post("/predict", **predict_form(RED, classifier=made["id"], top_k=99))
    top = answer.json()["predictions"][0]["top"]
    assert sorted(entry["label"] for entry in top) == sorted(LABELS)


@pytest.mark.parametrize("charset", ["utf-16", "latin-1", "nonsense", "hex", "", "\u00e9", "a b;"])
def test_text_is_utf8_whatever_the_content_type_says(client: TestClient, charset: str) -> None:
    """RFC 7578 gives the parameter no meaning, and clients disagree on it."""
    label = "\u6f22 \u00e9"
    request = multipart(file_part(RED), file_part(GREEN), ('"labels"', label.encode()), ('"labels"', b"b"))
    header = f"multipart/form-data; boundary=edge; charset={charset}".encode()
    answer = client.post("/adapt", content=request["content"], headers={"Content-Type": header})
    assert answer.status_code == 201, answer.text
    assert [item["label"] for item in answer.json()["classes"]] == [label, "b"]


def test_a_file_whose_name_is_not_ascii(client: TestClient) -> None:
    """As browsers send it, and as older libraries do."""
    client.post("/adapt", **adapt_form(name="known")).raise_for_status()
    for name in ('filename="\u00e9.png"', "filename*=utf-8''%C3%A9.png"):
        part = f'"images"; {name}', RED
        answer = client.post("/predict", **multipart(part, ('"classifier"', b"known")))
        assert answer.status_code == 200, answer.text


def test_limits_are_those_that_are_enforced(service: TestClient) -> None:
    """tests/support/failures.py goes one beyond each of them, the test below up to them."""
    defaults = Settings.model_fields
    assert service.get("/limits").json() == {
        "max_images": MAX_IMAGES,
        "max_image_bytes": MAX_BYTES,
        "max_image_pixels": MAX_PIXELS,
        "image_formats": list(FORMATS),
        "max_body_bytes": MAX_BODY,
        "max_json_bytes": MAX_BODY,  # the setting is larger
        "max_answer_bytes": MOST_ANSWER_BYTES,
        "max_label_length": MAX_LABEL,
        "max_top_k": 100,
        "min_classes": 2,
        "max_classes": defaults["max_classes"].default,
        "max_examples": defaults["max_examples"].default,
        "max_classifiers": defaults["max_classifiers"].default,
        "keep_thumbnails": False,
        "max_receive_seconds": defaults["max_receive_seconds"].default,
        "requests_per_minute": None,
    }


def test_requests_exactly_at_the_limits_are_answered(service: TestClient) -> None:
    support = [(image_bytes(size=(100, 100)), "x" * MAX_LABEL), (RED, "y")]
    support += [(RED, "y")] * (MAX_IMAGES - 2)
    answer = service.post("/adapt", **adapt_form(support))
    assert answer.status_code == 413, "the noise is larger than the limit of bytes"
    support[0] = (flat_png(100, 100), support[0][1])
    for build in (adapt_form, adapt_json):
        answer = service.post("/adapt", **build(support))
        assert answer.status_code == 201, answer.text
        service.delete(f"/classifiers/{answer.json()['id']}")
    body = json.dumps(predict_json(RED)["json"]).encode().ljust(MAX_BODY)
    for content in (body, [body]):  # with and without a Content-Length
        assert service.post("/predict", **raw(content)).status_code == 200


def test_labels_of_more_bytes_than_other_text_may_have(serve: Serve) -> None:
    """As many characters as the operator allows, each of four bytes."""
    client, label = serve(max_label_length=20_000), "\N{CAT FACE}" * 20_000
    for build in (adapt_form, adapt_json):
        answer = client.post("/adapt", **build([(RED, label), (GREEN, "green")]))
        assert answer.status_code == 201, answer.text[:300]
        assert answer.json()["classes"][0]["label"] == label


@pytest.mark.parametrize("coding", ["identity", "Identity "])
def test_a_body_that_says_it_is_not_compressed(client: TestClient, coding: str) -> None:
    """RFC 9110: names of content codings are case-insensitive."""
    client.post("/adapt", **adapt_form(), headers={"Content-Encoding": coding}).raise_for_status()


def test_numbers_and_names_of_any_length_are_refused_in_short(client: TestClient) -> None:
    error = check_error(client.post("/adapt", **adapt_json(horizon=10**400)), ErrorCode.INVALID_REQUEST)
    assert "flow time" in error["message"]
    for more in ({"x" * 10**6: 1}, {"metadata": {"x" * 10**6: 1}}):
        answer = client.post("/adapt", **adapt_json(**more))
        check_error(answer, ErrorCode.INVALID_REQUEST)
        assert len(answer.content) < 2000


@pytest.mark.parametrize("large", ["labels", "metadata"])
def test_a_list_ends_early_where_its_classifiers_are_large(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    """A page takes about as much memory as any answer may; `next` leads to the rest."""
    support = [(data, label * (3 if large == "labels" else 1)) for data, label in PAIR]
    metadata = {"notes": "\x01" * 80} if large == "metadata" else {}  # each takes six bytes in JSON
    made = [client.post("/adapt", **adapt_json(support, metadata=metadata)).json()["id"] for _ in range(5)]
    one = client.get("/classifiers", params={"limit": 1})
    assert [item["id"] for item in one.json()["classifiers"]] == made[-1:]
    size = len(one.content)
    monkeypatch.setattr(classifiers, "_AT_ONCE", 2)
    monkeypatch.setattr(classifiers, "MOST_ANSWER_BYTES", 5 * size // 2)
    pages: list[list[str]] = []
    following: int | None = None
    while not pages or following is not None:
        before = {} if following is None else {"before": following}
        page = client.get("/classifiers", params={"limit": 5, **before}).json()
        pages.append([item["id"] for item in page["classifiers"]])
        following = page["next"]
    assert [len(page) for page in pages] == [4, 1]
    assert [one for page in pages for one in page] == made[::-1]
