"""`GET /classifiers/{ref}/examples/{number}/thumbnail`, and what other answers say of thumbnails."""

import io
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from comln_serve.errors import ErrorCode
from tests.support.engines import Serve
from tests.support.messages import GREEN, RED, adapt_form, check_error

PATH = "/classifiers/pair/examples/1/thumbnail"


@pytest.fixture
def keeping(serve: Serve) -> TestClient:
    """A client of a server that keeps thumbnails."""
    return serve(keep_thumbnails=True)


def adapt(client: TestClient, **options: Any) -> dict[str, Any]:
    answer = client.post("/adapt", **adapt_form(name="pair"), **options)
    assert answer.status_code == 201, answer.text
    return answer.json()


def thumbnails(classifier: dict[str, Any]) -> list[int | None]:
    return [one["thumbnail"] for one in classifier["classes"]]


def test_a_jpeg_that_every_answer_names(keeping: TestClient) -> None:
    made = adapt(keeping)
    assert thumbnails(made) == [1, 2]
    assert thumbnails(keeping.get("/classifiers/pair").json()) == [1, 2]
    assert [thumbnails(item) for item in keeping.get("/classifiers").json()["classifiers"]] == [[1, 2]]
    for path in (PATH, f"/classifiers/{made['id']}/examples/1/thumbnail", PATH.replace("pair", "pair@1")):
        answer = keeping.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "image/jpeg"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert Image.open(io.BytesIO(answer.content)).format == "JPEG"
    assert keeping.get("/limits").json()["keep_thumbnails"] is True


def test_browsers_keep_it_for_themselves_and_ask_each_time(keeping: TestClient) -> None:
    adapt(keeping)
    first = keeping.get(PATH)
    assert first.headers["cache-control"] == "private, no-cache"
    assert first.headers["vary"] == "Authorization"
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = keeping.get(PATH, headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    for unknown in ('"other"', tag.strip('"'), ""):
        assert keeping.get(PATH, headers={"If-None-Match": unknown}).status_code == 200
    assert keeping.get(PATH.replace("1", "2")).headers["etag"] != tag
    keeping.delete("/classifiers/pair")
    check_error(keeping.get(PATH, headers={"If-None-Match": tag}), ErrorCode.CLASSIFIER_NOT_FOUND)


def test_follows_the_examples(keeping: TestClient) -> None:
    adapt(keeping)
    added = keeping.post("/classifiers/pair/examples", **adapt_form([(GREEN, "other"), (RED, "red")])).json()
    assert thumbnails(added) == [1, 2, 3]
    assert thumbnails(keeping.post("/classifiers/pair/adapt").json()) == [1, 2, 3]
    removed = keeping.delete("/classifiers/pair/examples/1").json()
    assert [(one["label"], one["thumbnail"]) for one in removed["classes"]] == [
        ("green", 2),
        ("other", 3),
        ("red", None),
    ]
    error = check_error(keeping.get(PATH), ErrorCode.THUMBNAIL_NOT_FOUND)
    assert error["detail"] == {"keep_thumbnails": True, "received": 1}
    assert keeping.get(PATH.replace("pair", "pair@1")).status_code == 200


@pytest.mark.parametrize("number", ["0", "x", "2147483648", "-1"])
def test_what_is_no_number(keeping: TestClient, number: str) -> None:
    check_error(keeping.get(f"/classifiers/pair/examples/{number}/thumbnail"), ErrorCode.INVALID_REQUEST)


def test_without_the_setting_there_are_none(client: TestClient) -> None:
    assert thumbnails(adapt(client)) == [None, None]
    assert client.get("/limits").json()["keep_thumbnails"] is False
    error = check_error(client.get(PATH), ErrorCode.THUMBNAIL_NOT_FOUND)
    assert error["detail"] == {"keep_thumbnails": False}
    assert "keep_thumbnails" in error["message"]
