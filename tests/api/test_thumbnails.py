"""`GET /classifiers/{ref}/examples/{number}/thumbnail`, and what other answers say of thumbnails."""

import io
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from comln_serve.errors import ErrorCode
from tests.support.engines import Serve
from tests.support.messages import adapt, check_error

PATH = "/classifiers/pair/examples/1/thumbnail"


@pytest.fixture
def keeping(serve: Serve) -> TestClient:
    """A client of a server that keeps thumbnails."""
    return serve(keep_thumbnails=True)


def thumbnails(classifier: dict[str, Any]) -> list[int | None]:
    return [one["thumbnail"] for one in classifier["classes"]]


def test_a_jpeg_that_every_answer_names(keeping: TestClient) -> None:
    made = adapt(keeping, name="pair")
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
    adapt(keeping, name="pair")
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


@pytest.mark.parametrize("number", ["0", "x", "2147483648", "-1"])
def test_what_is_no_number(keeping: TestClient, number: str) -> None:
    check_error(keeping.get(f"/classifiers/pair/examples/{number}/thumbnail"), ErrorCode.INVALID_REQUEST)


def test_without_the_setting_there_are_none(client: TestClient) -> None:
    assert thumbnails(adapt(client, name="pair")) == [None, None]
    assert client.get("/limits").json()["keep_thumbnails"] is False
    error = check_error(client.get(PATH), ErrorCode.THUMBNAIL_NOT_FOUND)
    assert error["detail"] == {"keep_thumbnails": False}
    assert "keep_thumbnails" in error["message"]
