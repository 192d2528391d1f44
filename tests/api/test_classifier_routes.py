"""Versions, examples, metadata, expiry and idempotency keys over HTTP."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from comln_serve.errors import ErrorCode
from tests.support.messages import GREEN, PAIR, RED, adapt, adapt_form, adapt_json, check_error, predict_form

THIRD = [(RED, "third")]


def promoted(client: TestClient, name: str = "letters") -> int:
    version: int = client.get(f"/classifiers/{name}").json()["version"]
    return version


def test_versions_are_promoted_and_rolled_back(client: TestClient) -> None:
    made = [adapt(client, name="letters") for _ in range(2)]
    held = adapt(client, name="letters", promote=False)
    assert [(item["version"], item["promoted"]) for item in (*made, held)] == [(1, True), (2, True), (3, False)]
    predicted = client.post("/predict", **predict_form(RED, classifier="letters@1"))
    assert predicted.json()["classifier"] == made[0]["id"]
    answer = client.post("/classifiers/letters@3/promote")
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["promoted"]) == (held["id"], True)
    assert promoted(client) == 3
    for expected in (2, 1):
        answer = client.post("/classifiers/letters/rollback")
        assert (answer.status_code, answer.json()["version"]) == (200, expected)
        assert promoted(client) == expected
    answer = client.post("/classifiers/letters/rollback")
    error = check_error(answer, ErrorCode.NOTHING_TO_ROLL_BACK_TO)
    assert answer.status_code == 409
    assert error["detail"] == {"promoted": 1}


def test_a_version_is_promoted_instead_of_another(client: TestClient) -> None:
    """Only if the name stands for that one, so that nobody else's promotion is undone."""
    first, second = (adapt(client, name="letters") for _ in range(2))
    third = adapt(client, name="letters", promote=False)
    path = f"/classifiers/{third['id']}/promote"
    refused = client.post(path, params={"instead_of": first["id"]})
    assert refused.status_code == 409
    error = check_error(refused, ErrorCode.NAME_MOVED)
    assert error["detail"] == {"received": first["id"], "promoted": 2}
    assert "'letters' stands for its version 2, not for" in error["message"]
    assert promoted(client) == 2
    for _ in range(2):  # a repeated request finds it done
        answer = client.post(path, params={"instead_of": second["id"]})
        assert (answer.status_code, answer.json()["promoted"]) == (200, True)
    assert promoted(client) == 3
    check_error(client.post(path, params={"instead_of": "letters"}), ErrorCode.INVALID_REQUEST)
    unnamed = adapt(client)
    answer = client.post(f"/classifiers/{unnamed['id']}/promote", params={"instead_of": unnamed["id"]})
    check_error(answer, ErrorCode.INVALID_REQUEST)


def test_lists_of_a_name_and_of_a_model(client: TestClient) -> None:
    one = adapt(client, name="letters")
    two = adapt(client, name="letters", model="tiny-prototype")
    adapt(client, name="digits")

    def listed(**query: str) -> list[tuple[str, bool]]:
        page = client.get("/classifiers", params=query).json()
        assert page["next"] is None
        return [(item["id"], item["promoted"]) for item in page["classifiers"]]

    assert listed(name="letters") == [(two["id"], True), (one["id"], False)]
    assert listed(model="tiny-prototype") == [(two["id"], True)]
    assert listed(name="letters", model="tiny") == [(one["id"], False)]
    assert listed(name="absent") == listed(model="absent") == []
    for query in ("name=a%40b", "name=", "name=a%00", "model=", "model=a%00b"):
        check_error(client.get(f"/classifiers?{query}"), ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("build", [adapt_form, adapt_json])
def test_metadata_and_expiry_in_both_encodings(client: TestClient, build: Callable[..., dict[str, Any]]) -> None:
    notes = {"line": "3", "\N{CAT FACE}": "\0 \N{CAT FACE}"}
    text = '{"line": "3", "\N{CAT FACE}": "\\u0000 \N{CAT FACE}"}'
    options = {"metadata": text if build is adapt_form else notes, "expires_in_seconds": 3600}
    made = client.post("/adapt", **build(**options)).json()
    shown = client.get(f"/classifiers/{made['id']}").json()
    assert shown["metadata"] == made["metadata"] == notes
    assert shown["expires_at"] > shown["created_at"]
    assert shown["report"] == made["report"]
    plain = client.post("/adapt", **build()).json()
    assert (plain["metadata"], plain["expires_at"]) == ({}, None)


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": value}
        for value in (
            [],
            "text",
            {"a": 1},
            {"a": None},
            {"": "x"},
            {"k" * 65: "x"},
            {"a": "x" * 513},
            {str(i): "x" for i in range(33)},
            {str(i): 0 for i in range(100_000)},
        )
    ]
    + [{"expires_in_seconds": value} for value in (0, -1, 1.5, "soon", 10**12, [])]
    + [{"promote": value} for value in ("maybe", 2, [])],
    ids=lambda options: str(options)[:40],
)
def test_invalid_options_are_refused(client: TestClient, options: dict[str, Any]) -> None:
    answer = client.post("/adapt", **adapt_json(name="letters", **options))
    error = check_error(answer, ErrorCode.INVALID_REQUEST)
    assert next(iter(options)) in error["message"]
    assert len(answer.content) < 10_000


@pytest.mark.parametrize("text", ["", "x", "[]", '{"a": 1}', '{"a": "b"'])
def test_metadata_of_a_form_must_be_a_json_object(client: TestClient, text: str) -> None:
    check_error(client.post("/adapt", **adapt_form(metadata=text)), ErrorCode.INVALID_REQUEST)


def test_examples_are_listed_added_and_removed(client: TestClient) -> None:
    made = adapt(client)
    path = f"/classifiers/{made['id']}/examples"
    assert client.get(path).json() == {
        "classifier": made["id"],
        "revision": 1,
        "examples": [{"number": 1, "label": "red"}, {"number": 2, "label": "green"}],
    }
    for build in (adapt_form, adapt_json):
        answer = client.post(path, **build(THIRD))
        assert answer.status_code == 201
        stages = {"decode", "embed", "solve", "report", "store", "total"}
        assert set(answer.json()["timings_ms"]) == stages
    assert [(item["label"], item["examples"]) for item in answer.json()["classes"]] == [
        ("red", 1),
        ("green", 1),
        ("third", 2),
    ]
    removed = client.delete(f"{path}/1")
    assert (removed.status_code, removed.json()["revision"]) == (200, 4)
    assert [item["number"] for item in client.get(path).json()["examples"]] == [2, 3, 4]
    assert removed.json()["id"] == made["id"]
    check_error(client.delete(f"{path}/1"), ErrorCode.EXAMPLE_NOT_FOUND)
    client.delete(f"{path}/3")
    check_error(client.delete(f"{path}/2"), ErrorCode.CANNOT_ADAPT)


def test_several_examples_are_removed_by_one_request(client: TestClient) -> None:
    client.post("/adapt", **adapt_form([*PAIR, *PAIR, *THIRD], name="letters"))
    path = "/classifiers/letters/examples"
    absent = check_error(client.delete(f"{path}?number=9&number=1&number=8"), ErrorCode.EXAMPLE_NOT_FOUND)
    assert absent["detail"] == {"received": [8, 9]}
    check_error(client.delete(f"{path}?number=1&number=3&number=5"), ErrorCode.CANNOT_ADAPT)
    assert [item["number"] for item in client.get(path).json()["examples"]] == [*range(1, 6)]
    answer = client.delete(f"{path}?number=5&number=2&number=5&promote=false")
    assert answer.status_code == 200, answer.text
    removed = answer.json()
    assert (removed["version"], removed["promoted"]) == (2, False)
    assert [(item["label"], item["examples"]) for item in removed["classes"]] == [("red", 2), ("green", 1)]
    assert set(removed["timings_ms"]) == {"solve", "report", "store", "total"}
    assert promoted(client) == 1
    by_one = client.delete(f"{path}?number=5").json()
    assert (by_one["version"], by_one["promoted"]) == (3, True)


def test_so_many_examples_are_removed_by_one_request(client: TestClient) -> None:
    adapt(client, name="letters")
    query = "&".join(f"number={number}" for number in range(100_001, 100_501))
    assert len(query) < 8000
    path = "/classifiers/letters/examples"
    absent = check_error(client.delete(f"{path}?{query}"), ErrorCode.EXAMPLE_NOT_FOUND)
    assert len(absent["detail"]["received"]) == 500
    error = check_error(client.delete(f"{path}?{query}&number=1"), ErrorCode.INVALID_REQUEST)
    assert "at most 500 items" in error["message"]


def test_examples_of_a_name_make_versions(client: TestClient) -> None:
    adapt(client, name="letters")
    path = "/classifiers/letters/examples"
    held = client.post(path, **adapt_form(THIRD, promote="false")).json()
    assert (held["version"], held["promoted"]) == (2, False)
    removed = client.delete("/classifiers/letters@2/examples/1?promote=false").json()
    assert (removed["version"], removed["promoted"]) == (3, False)
    assert promoted(client) == 1
    assert client.post(path, **adapt_json(THIRD)).json()["promoted"]
    assert promoted(client) == 4


AGAIN = {"horizon": 3.5, "promote": False}


@pytest.mark.parametrize(
    "sent",
    [{"json": AGAIN}, {"files": {name: (None, str(value).lower()) for name, value in AGAIN.items()}}],
    ids=["JSON", "form"],
)
def test_adapting_again(client: TestClient, sent: dict[str, Any]) -> None:
    made = adapt(client, name="letters")
    answer = client.post("/classifiers/letters/adapt", **sent)
    assert answer.status_code == 201, answer.text
    again = answer.json()
    assert (again["version"], again["promoted"], again["horizon"], again["horizon_rule"]) == (2, False, 3.5, "given")
    assert set(again["timings_ms"]) == {"solve", "report", "store", "total"}
    assert promoted(client) == 1
    kept = client.post("/classifiers/letters@2/adapt", headers={"Content-Type": "application/json"}).json()  # no body
    assert (kept["version"], kept["promoted"], kept["horizon"]) == (3, True, 3.5)
    back = client.post("/classifiers/letters/adapt", json={"horizon": "learned"}).json()
    assert (back["horizon"], back["support_loss"]) == (made["horizon"], made["support_loss"])
    assert (
        client.get("/classifiers/letters").json()["head_sha256"]
        == client.get("/models").json()["models"][0]["head_sha256"]
    )


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        ({"json": {"horzon": 3}}, ErrorCode.INVALID_REQUEST, "horzon"),
        ({"json": {"horizon": 0}}, ErrorCode.INVALID_REQUEST, "over 0"),
        ({"json": {"promote": "perhaps"}}, ErrorCode.INVALID_REQUEST, "promote"),
        ({"json": []}, ErrorCode.INVALID_REQUEST, ""),
        ({"content": "{bad", "headers": {"Content-Type": "application/json"}}, ErrorCode.INVALID_REQUEST, "not JSON"),
        ({"content": "{}"}, ErrorCode.UNSUPPORTED_MEDIA_TYPE, "application/json"),
        ({"data": {"horizon": "3"}}, ErrorCode.UNSUPPORTED_MEDIA_TYPE, "multipart/form-data"),
        (adapt_form(), ErrorCode.INVALID_REQUEST, "allowed are horizon, promote"),
        ({"params": {"horizon": "3"}}, ErrorCode.INVALID_REQUEST, "or send it in the body"),
    ],
)
def test_what_adapting_again_does_not_take(
    client: TestClient, sent: dict[str, Any], code: ErrorCode, said: str
) -> None:
    adapt(client, name="letters")
    assert said in check_error(client.post("/classifiers/letters/adapt", **sent), code)["message"]
    assert len(client.get("/classifiers").json()["classifiers"]) == 1


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/classifiers/absent/promote", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("POST", "/classifiers/letters@9/promote", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("POST", "/classifiers/absent/rollback", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("POST", "/classifiers/absent/adapt", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("POST", "/classifiers/%00/rollback", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("POST", "/classifiers/letters@1/rollback", ErrorCode.INVALID_REQUEST),
        ("GET", "/classifiers/letters@0", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("GET", "/classifiers/absent/examples", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("DELETE", "/classifiers/absent/examples/1", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("DELETE", "/classifiers/letters/examples/0", ErrorCode.INVALID_REQUEST),
        ("DELETE", "/classifiers/letters/examples/x", ErrorCode.INVALID_REQUEST),
        ("DELETE", "/classifiers/letters/examples/1?promote=maybe", ErrorCode.INVALID_REQUEST),
        ("DELETE", "/classifiers/absent/examples?number=1", ErrorCode.CLASSIFIER_NOT_FOUND),
        ("DELETE", "/classifiers/letters/examples", ErrorCode.INVALID_REQUEST),
        ("DELETE", "/classifiers/letters/examples?number=1&number=0", ErrorCode.INVALID_REQUEST),
        ("DELETE", "/classifiers/letters/examples?number=1&number=x", ErrorCode.INVALID_REQUEST),
        ("DELETE", "/classifiers/letters/examples?number=1,2", ErrorCode.INVALID_REQUEST),
        ("DELETE", "/classifiers/letters/examples?number=", ErrorCode.INVALID_REQUEST),
        ("PUT", "/classifiers/letters/promote", ErrorCode.METHOD_NOT_ALLOWED),
    ],
)
def test_changes_that_cannot_be_made_are_refused(client: TestClient, method: str, path: str, code: ErrorCode) -> None:
    made = adapt(client, name="letters")
    check_error(client.request(method, path), code)
    assert client.get("/classifiers/letters").json()["id"] == made["id"]


@pytest.mark.parametrize(
    "sent",
    [
        adapt_json([]),
        {"json": {"images": []}},
        {"json": {"support": [], "x": 1}},
        adapt_form(PAIR, name="other"),
        adapt_json(PAIR, model="tiny"),
    ],
)
def test_bodies_without_valid_examples_are_refused(client: TestClient, sent: dict[str, Any]) -> None:
    made = adapt(client)
    answer = client.post(f"/classifiers/{made['id']}/examples", **sent)
    check_error(answer, ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("path", "sent", "said"),
    [
        ("/predict", {"content": "[1]", "headers": {"Content-Type": "application/json"}}, "body: Input should be an "),
        # Fields are named, and not their values, which may be images.
        (
            "/adapt",
            {"json": {"support": [{"image": "x" * 1000}]}},
            "support.0.label: Field required; received the fields 'image'.",
        ),
        ("/predict", {"json": {}}, "classifier: Field required; received no such field."),
        # Although another is missing because of it.
        (
            "/adapt",
            {"json": {"support": [{"image": "x" * 1000, "lable": "red"}]}},
            "support.0: Unknown field 'lable'; allowed are image, label; received the fields 'image', 'lable'.",
        ),
        (
            "/predict",
            {"json": {"classifier": "x", "image": ["x" * 1000], "topk": 1}},
            "body: Unknown fields 'image', 'topk'; allowed are classifier, top_k, unknown, examples, all_views, ",
        ),
        ("/predict", {"json": {"{allowed}": 1}}, "body: Unknown field '{allowed}'; allowed are classifier, "),
        ("/adapt", {"json": {"support": ["x"]}}, "support.0: Input should be an object; received 'x'."),
        ("/adapt", {"json": {"support": [], "metadata": ["x"]}}, "metadata: Input should be an object; received "),
        ("/adapt", {"content": b"", "headers": {}}, "No Content-Type was received; send multipart/form-data or app"),
        ("/adapt", {**adapt_form(PAIR), "headers": {"Idempotency-Key": "a b"}}, "must be 1 to 255 visible ASCII "),
        ("/predict", {"json": {"classifier": None, "images": []}}, "a valid string; received null."),
        ("/predict", {"json": {"classifier": "x", "images": ["https://a.org/b.jpg"]}}, "images.0 is a URL, which the "),
        (
            "/predict",
            {"files": {"classifier": (None, "x"), "images": (None, b"x")}},
            "images.0 is a text field, as its part has no file name; ",
        ),
        ("/classifiers/x/promote?instead_of=x", {}, "query.instead_of: must be the id of a classifier, clf_..."),
    ],
)
def test_what_is_allowed_is_said_in_words(client: TestClient, path: str, sent: dict[str, Any], said: str) -> None:
    message = client.post(path, **sent).json()["error"]["message"]
    assert said in message


def keyed(client: TestClient, path: str, key: str, sent: dict[str, Any]) -> Response:
    return client.post(path, headers={"Idempotency-Key": key}, **sent)


def test_idempotency_keys(client: TestClient) -> None:
    first = keyed(client, "/adapt", "k-1", adapt_form(name="letters"))
    assert "Idempotency-Replayed" not in first.headers
    again = keyed(client, "/adapt", "k-1", adapt_json(name="letters"))
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")
    for field in set(first.json()) - {"timings_ms"}:
        assert again.json()[field] == first.json()[field]
    other = keyed(client, "/adapt", "k-1", adapt_form(name="digits"))
    check_error(other, ErrorCode.IDEMPOTENCY_MISMATCH)
    assert other.status_code == 422
    path = "/classifiers/letters/examples"
    added = [keyed(client, path, "k-2", adapt_form([(GREEN, "third")])) for _ in range(2)]
    assert [answer.json()["version"] for answer in added] == [2, 2]
    assert [answer.headers.get("Idempotency-Replayed") for answer in added] == [None, "true"]
    assert 'comln_adaptations_total{model="tiny"} 2.0' in client.get("/metrics").text


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\u00e9", "a\t"])
def test_malformed_idempotency_keys_are_refused(client: TestClient, key: str) -> None:
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    answer = client.post("/adapt", headers=headers, **adapt_form())
    check_error(answer, ErrorCode.INVALID_REQUEST)
    assert client.get("/classifiers").json()["classifiers"] == []
