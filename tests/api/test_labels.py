"""`POST /classifiers/{ref}/labels`, and what other routes say of the renamed classes."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.errors import ErrorCode
from tests.support.image_files import colour_support
from tests.support.messages import GREEN, RED, adapt, check_error, predict_form

PATH = "/classifiers/colours/labels"


def test_every_answer_has_the_new_labels(client: TestClient) -> None:
    new = {"red": "Red", "green": "blue", "blue": "green"}
    before = adapt(client, colour_support(2), name="colours", metadata={"line": "3"}, expires_in_seconds=600)
    asked = predict_form(RED, GREEN, classifier="colours", top_k=3)
    first = client.post("/predict", **asked).json()["predictions"]
    answer = client.post(PATH, json={"labels": new})
    assert answer.status_code == 201
    made = answer.json()
    assert [(one["label"], one["examples"]) for one in made["classes"]] == [("Red", 2), ("blue", 2), ("green", 2)]
    assert (made["version"], made["promoted"]) == (2, True)
    for field in ("metadata", "expires_at", "horizon", "horizon_rule", "support_loss", "support_accuracy"):
        assert made[field] == before[field]
    expected = [
        {
            "label": new[one["label"]],
            "probability": one["probability"],
            "top": [{**item, "label": new[item["label"]]} for item in one["top"]],
        }
        for one in first
    ]
    assert client.post("/predict", **asked).json()["predictions"] == expected
    examples = client.get("/classifiers/colours/examples").json()["examples"]
    assert [(one["number"], one["label"]) for one in examples] == list(
        enumerate(["Red", "Red", "blue", "blue", "green", "green"], start=1)
    )
    listed, old = client.get("/classifiers").json()["classifiers"]
    assert listed["classes"] == client.get("/classifiers/colours").json()["classes"] == made["classes"]
    assert old["classes"] == before["classes"]
    file = client.get("/classifiers/colours/export?format=safetensors").content
    header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])["__metadata__"]
    assert json.loads(header["labels"]) == ["Red", "blue", "green"]
    assert client.get("/v2/models/colours").json()["outputs"] == client.get("/v2/models/colours@1").json()["outputs"]
    assert client.post("/classifiers/colours/rollback").json()["version"] == 1
    assert client.post("/predict", **asked).json()["predictions"] == first


def test_a_version_for_later(client: TestClient) -> None:
    adapt(client, name="colours")
    made = client.post(PATH, json={"labels": {"red": "Red"}, "promote": False}).json()
    assert (made["version"], made["promoted"]) == (2, False)
    assert client.get("/classifiers/colours").json()["version"] == 1


def test_a_repeated_request(client: TestClient) -> None:
    adapt(client, name="colours")
    headers = {"Idempotency-Key": "first"}
    first, repeated = (client.post(PATH, json={"labels": {"red": "Red"}}, headers=headers) for _ in range(2))
    assert (first.status_code, repeated.status_code) == (201, 201)
    assert "idempotency-replayed" not in first.headers
    assert repeated.headers["idempotency-replayed"] == "true"
    assert repeated.json()["id"] == first.json()["id"]
    other = client.post(PATH, json={"labels": {"red": "Rot"}}, headers=headers)
    check_error(other, ErrorCode.IDEMPOTENCY_MISMATCH)
    check_error(client.post(PATH, json={"labels": {"red": "Red"}}), ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    "labels",
    [
        {},
        [],
        *({number: "a"} for number in ("x", "", "0", "1.5", "-1", "1_0", " 1", "\u0661", str(2**31), "9" * 5000)),
        *({"1": label} for label in ("", " ", None, 1, "x" * 257)),
        {str(number): "a" for number in range(1, 502)},
    ],
    ids=lambda labels: str(labels)[:30],
)
def test_new_labels_of_examples_are_checked(client: TestClient, labels: Any) -> None:
    made = adapt(client, colour_support(2))
    path = f"/classifiers/{made['id']}/examples/labels"
    answer = client.post(path, json={"labels": labels})
    check_error(answer, ErrorCode.INVALID_REQUEST)
    assert len(answer.content) < 2000
    answer = client.post(path, json={"labels": {"1": "\N{CAT FACE}"}})
    assert answer.status_code == 201
    assert [one["label"] for one in answer.json()["classes"]] == ["\N{CAT FACE}", "red", "green", "blue"]
