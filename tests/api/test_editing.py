"""`PATCH /classifiers/{ref}`: name, metadata and time of expiry."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.api.routes import classifiers
from comln_serve.errors import ErrorCode
from tests.support.messages import RED, adapt, adapt_form, check_error, predict_form


def edit(client: TestClient, ref: str, **changes: Any) -> dict[str, Any]:
    answer = client.patch(f"/classifiers/{ref}", json=changes)
    assert answer.status_code == 200, answer.text
    assert client.get(f"/classifiers/{answer.json()['id']}").json() == answer.json()
    return answer.json()


def answers(client: TestClient, ref: str) -> Any:
    answer = client.post("/predict", **predict_form(RED, classifier=ref))
    return answer.json()["predictions"] if answer.status_code == 200 else answer.json()["error"]["code"]


def test_all_but_what_is_sent_stays(client: TestClient) -> None:
    made = adapt(client, name="letters", metadata={"line": "3"}, expires_in_seconds=60)
    before = answers(client, "letters")
    noted = edit(client, "letters", metadata={"line": "4", "by": "\N{CAT FACE}"})
    timings = made.pop("timings_ms")
    assert timings
    assert noted == {**made, "metadata": {"line": "4", "by": "\N{CAT FACE}"}, "revision": 2}
    kept = edit(client, "letters@1", expires_in_seconds=None)
    assert kept == {**noted, "expires_at": None, "revision": 3}
    emptied = edit(client, made["id"], expires_in_seconds=3600, metadata={})
    assert emptied["metadata"] == {}
    until = datetime.fromisoformat(emptied["expires_at"])
    assert timedelta(seconds=3500) < until - datetime.now(UTC) <= timedelta(seconds=3600)
    assert answers(client, "letters") == before


def test_the_answer_is_written_on_a_thread(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the report, of up to megabytes, which would occupy the event loop."""
    written, on_loop = classifiers.as_json, list[bool]()

    def write(*arguments: Any) -> Any:
        on_loop.append(asyncio._get_running_loop() is not None)
        return written(*arguments)

    made = adapt(client)
    monkeypatch.setattr(classifiers, "as_json", write)
    edit(client, made["id"], metadata={"line": "4"})
    assert on_loop == [False, False]  # of PATCH and of GET


def test_a_classifier_without_a_name_gets_one(client: TestClient) -> None:
    first, second, third = (adapt(client) for _ in range(3))
    before = answers(client, second["id"])
    named = edit(client, first["id"], name="letters", promote=False)
    assert (named["id"], named["version"], named["promoted"]) == (first["id"], 1, True), "the first version always is"
    held = edit(client, second["id"], name="letters", promote=False, metadata={"a": "b"})
    assert (held["version"], held["promoted"], held["metadata"]) == (2, False, {"a": "b"})
    assert edit(client, third["id"], name="letters")["promoted"]
    assert answers(client, "letters@2") == before == answers(client, second["id"])
    assert adapt(client, name="letters")["version"] == 4
    again = edit(client, second["id"], name="letters")
    assert again == {**held, "revision": held["revision"]}, "a name that it has changes nothing"


def test_all_versions_of_a_name_are_renamed(client: TestClient) -> None:
    made = [adapt(client, name="letters") for _ in range(3)]
    client.post("/classifiers/letters/rollback")
    before = answers(client, "letters@2")
    moved = edit(client, "letters", name="alphabet")
    assert (moved["id"], moved["version"], moved["promoted"]) == (made[1]["id"], 2, True)
    assert moved["revision"] == 2, "else servers would go on with what they remember of it"
    assert answers(client, "letters") == answers(client, "letters@2") == "classifier_not_found"
    assert answers(client, "alphabet") == answers(client, "alphabet@2") == before
    listed = client.get("/classifiers?name=alphabet").json()["classifiers"]
    assert [(item["id"], item["version"]) for item in listed] == [(made[i]["id"], i + 1) for i in (2, 1, 0)]
    assert client.post("/classifiers/alphabet/rollback").json()["version"] == 1
    assert client.post("/classifiers/alphabet@3/promote").json()["promoted"]
    assert adapt(client, name="alphabet")["version"] == 4
    assert adapt(client, name="letters")["version"] == 4, "numbers of the old name are not given again"


def test_a_name_that_was_used_before_numbers_on(client: TestClient) -> None:
    """letters@1 and letters@2 must never mean other classifiers than they did."""
    for _ in range(2):
        adapt(client, name="letters")
    for version in (1, 2):
        assert client.delete(f"/classifiers/letters@{version}").status_code == 204
    made = [adapt(client, name="shadow", promote=promote) for promote in ("true", "true", "false")]
    for version in (1, 2):
        assert client.post(f"/classifiers/shadow@{version}/promote").status_code == 200
    moved = edit(client, "shadow", name="letters")
    assert (moved["id"], moved["version"], moved["promoted"]) == (made[1]["id"], 4, True)
    assert client.get("/classifiers/letters@3").json()["id"] == made[0]["id"]
    check_error(client.get("/classifiers/letters@1"), ErrorCode.CLASSIFIER_NOT_FOUND)
    latest = adapt(client, name="letters")
    assert (latest["version"], latest["promoted"]) == (6, True)
    for version in (4, 3):
        assert client.post("/classifiers/letters/rollback").json()["version"] == version
    answer = client.post("/classifiers/letters/rollback")
    check_error(answer, ErrorCode.NOTHING_TO_ROLL_BACK_TO)


def test_what_cannot_be_renamed(client: TestClient) -> None:
    made = adapt(client, name="letters")
    adapt(client, name="digits")
    answer = client.patch("/classifiers/letters", json={"name": "digits", "metadata": {"a": "b"}})
    assert answer.status_code == 409
    assert check_error(answer, ErrorCode.NAME_TAKEN)["detail"] == {"received": "digits"}
    for ref in ("letters@1", made["id"]):
        answer = client.patch(f"/classifiers/{ref}", json={"name": "new"})
        assert "PATCH /classifiers/letters" in check_error(answer, ErrorCode.INVALID_REQUEST)["message"]
    for ref in ("absent", "letters@2", "clf_absent"):
        check_error(client.patch(f"/classifiers/{ref}", json={"name": "new"}), ErrorCode.CLASSIFIER_NOT_FOUND)
    shown = client.get("/classifiers/letters").json()
    assert (shown["id"], shown["revision"], shown["metadata"]) == (made["id"], 1, {})
    assert client.get("/classifiers?name=new").json()["classifiers"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"promote": True},
        {"name": None},
        {"name": ""},
        {"name": "clf_1"},
        {"name": "a@1"},
        {"metadata": None},
        {"metadata": {"a": 1}},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": "soon"},
        {"horizon": 3},
        [],
    ],
    ids=str,
)
def test_invalid_bodies_are_refused(client: TestClient, body: Any) -> None:
    made = adapt(client)
    answer = client.patch(f"/classifiers/{made['id']}", json=body)
    check_error(answer, ErrorCode.INVALID_REQUEST)
    assert client.get(f"/classifiers/{made['id']}").json()["revision"] == 1


def test_only_json_is_read(client: TestClient) -> None:
    made = adapt(client)
    answer = client.patch(f"/classifiers/{made['id']}", **adapt_form(name="letters"))
    check_error(answer, ErrorCode.UNSUPPORTED_MEDIA_TYPE)
