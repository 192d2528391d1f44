"""No request shows a tenant anything of another tenant's classifiers."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from comln_serve.api.authentication import scopes_of
from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from comln_serve.security.keys import Scope
from tests.support.engines import Serve
from tests.support.keyed import bearer, keyed, new_key, routes_of, store_of
from tests.support.log import logged
from tests.support.messages import RED, adapt, adapt_form, b64, check_error, predict_form

__all__ = ["keyed"]  # a fixture

Headers = dict[str, str]
Route = tuple[str, str]

INFERENCE = {"json": {"inputs": [{"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": [b64(RED)]}]}}

# The routes that are asked about one classifier, and what is sent to them.
ABOUT_ONE: dict[Route, dict[str, Any]] = {
    ("GET", "/classifiers/{ref}"): {},
    ("DELETE", "/classifiers/{ref}"): {},
    ("PATCH", "/classifiers/{ref}"): {"json": {"metadata": {"a": "b"}}},
    ("POST", "/classifiers/{ref}/promote"): {},
    ("POST", "/classifiers/{ref}/adapt"): {"json": {"horizon": 3}},
    ("POST", "/classifiers/{ref}/examples/labels"): {"json": {"labels": {"1": "Red"}}},
    ("POST", "/classifiers/{ref}/labels"): {"json": {"labels": {"red": "Red"}}},
    ("POST", "/classifiers/{ref}/rollback"): {},
    ("GET", "/classifiers/{ref}/examples"): {},
    ("GET", "/classifiers/{ref}/examples/{number}/thumbnail"): {},
    ("POST", "/classifiers/{ref}/examples"): adapt_form(),
    ("DELETE", "/classifiers/{ref}/examples/{number}"): {},
    ("DELETE", "/classifiers/{ref}/examples"): {"params": {"number": 2}},
    ("GET", "/classifiers/{ref}/export"): {"params": {"format": "safetensors"}},
    ("GET", "/classifiers/{ref}/support"): {},
    ("GET", "/v2/models/{model}"): {},
    ("GET", "/v2/models/{model}/ready"): {},
    ("GET", "/v2/models/{model}/versions/{version}"): {},
    ("GET", "/v2/models/{model}/versions/{version}/ready"): {},
    ("POST", "/v2/models/{model}/infer"): INFERENCE,
    ("POST", "/v2/models/{model}/versions/{version}/infer"): INFERENCE,
    ("POST", "/predict"): predict_form(RED),
}
# Tested by themselves below.
OF_A_TENANT = {("POST", "/adapt"), ("GET", "/classifiers"), ("POST", "/classifiers")}
OF_NOBODY = {("GET", "/models"), ("GET", "/limits"), ("GET", "/v2"), ("GET", "/metrics"), ("POST", "/models/reload")}
NAME, UNUSED_NAME = "letters", "numbers"


def ask(client: TestClient, route: Route, ref: str, headers: Headers) -> Response:
    """Ask a route of `ABOUT_ONE` about a classifier."""
    method, path = route
    sent = predict_form(RED, classifier=ref) if path == "/predict" else ABOUT_ONE[route]
    return client.request(method, path.format(ref=ref, model=ref, number=1, version=1), headers=headers, **sent)


@pytest.fixture
def keyed_settings(settings: Settings, database_url: str) -> Settings:
    """With thumbnails, so that there is something behind each route."""
    update = {"require_keys": True, "database_url": database_url, "keep_thumbnails": True}
    return settings.model_copy(update=update)


@pytest.fixture
def mine(keyed: TestClient) -> Headers:
    return bearer(new_key(store_of(keyed), "mine"))


@pytest.fixture
def theirs(keyed: TestClient) -> Headers:
    return bearer(new_key(store_of(keyed), "theirs"))


def state(client: TestClient, headers: Headers) -> list[Any]:
    """All that can be read of a tenant."""
    page = client.get("/classifiers", headers=headers).json()
    examples = [
        client.get(f"/classifiers/{item['id']}/examples", headers=headers).json() for item in page["classifiers"]
    ]
    return [page, examples]


def test_every_route_with_a_key_is_in_the_tables_above(keyed: TestClient) -> None:
    asked = {
        (method, route.path_format)
        for route in routes_of(keyed.app)  # type: ignore[arg-type]
        if scopes_of(route.endpoint)
        for method in route.methods or ()
    }
    assert asked == set(ABOUT_ONE) | OF_A_TENANT | OF_NOBODY


@pytest.mark.slow
def test_what_another_has_is_answered_as_what_nobody_has(keyed: TestClient, mine: Headers, theirs: Headers) -> None:
    """By name, version and id: every byte and header, but for the reference that was asked for."""

    def answers(reference: str) -> dict[Route, tuple[int, bytes, dict[str, str]]]:
        found = {}
        for route in ABOUT_ONE:
            answer = ask(keyed, route, reference, {**theirs, "X-Request-ID": "same"})
            if route[1].endswith("/rollback") and reference not in (NAME, UNUSED_NAME):
                check_error(answer, ErrorCode.INVALID_REQUEST)  # whether it is there or not
            else:
                assert answer.status_code == 404, (route, answer.text)
            found[route] = (
                answer.status_code,
                answer.content.replace(reference.encode(), b"REFERENCE"),
                dict(answer.headers),
            )
        return found

    by_name, by_version = answers(NAME), answers(f"{NAME}@1")
    made = adapt(keyed, headers=mine, name=NAME)
    adapt(keyed, headers=mine, name=NAME)
    plain = adapt(keyed, headers=mine)
    before = state(keyed, mine)
    assert answers(NAME) == by_name == answers(UNUSED_NAME)
    assert answers(f"{NAME}@1") == by_version == answers(f"{UNUSED_NAME}@1")
    by_id = answers("clf_" + uuid.uuid4().hex)
    assert answers(made["id"]) == answers(plain["id"]) == by_id
    assert state(keyed, theirs)[0] == {"classifiers": [], "next": None}
    assert state(keyed, mine) == before


def test_a_list_holds_the_tenant_s_own_classifiers(keyed: TestClient, mine: Headers, theirs: Headers) -> None:
    ours = [adapt(keyed, headers=mine, name=NAME)["id"] for _ in range(2)]
    other = adapt(keyed, headers=theirs, name=NAME)
    for query in ("", f"?name={NAME}", "?model=tiny"):
        for headers, ids in ((mine, ours[::-1]), (theirs, [other["id"]])):
            page = keyed.get(f"/classifiers{query}", headers=headers).json()
            assert [item["id"] for item in page["classifiers"]] == ids
    assert other["version"] == 1, "versions are counted for each"


def test_two_tenants_may_use_the_same_name(keyed: TestClient, mine: Headers, theirs: Headers) -> None:
    for _ in range(2):
        adapt(keyed, headers=mine, name=NAME)
    before = state(keyed, mine)
    for _ in range(3):
        adapt(keyed, headers=theirs, name=NAME)
    asks = [route for route in ABOUT_ONE if route[0] != "DELETE" or route[1].endswith(("{number}", "/examples"))] + [
        ("DELETE", "/classifiers/{ref}")
    ]
    for route in asks:
        answer = ask(keyed, route, NAME, theirs)
        assert answer.is_success or answer.status_code == 422, (route, answer.text)
    assert state(keyed, mine) == before


def test_a_support_set_is_imported_for_the_tenant_who_sends_it(
    keyed: TestClient, mine: Headers, theirs: Headers
) -> None:
    adapt(keyed, headers=mine, name=NAME)
    before = state(keyed, mine)
    content = keyed.get(f"/classifiers/{NAME}/support", headers=mine).content
    sent = {"Content-Type": "application/octet-stream"}
    made = keyed.post("/classifiers", content=content, headers={**theirs, **sent})
    assert (made.json()["name"], made.json()["version"]) == (NAME, 1)
    assert state(keyed, mine) == before
    assert len(state(keyed, theirs)[1]) == 1


def test_two_tenants_may_use_the_same_idempotency_key(keyed: TestClient, mine: Headers, theirs: Headers) -> None:
    same = {"Idempotency-Key": "first"}
    made = adapt(keyed, headers={**mine, **same}, name=NAME)
    other = adapt(keyed, headers={**theirs, **same}, name=NAME)
    different = adapt(keyed, headers={**bearer(new_key(store_of(keyed), "third")), **same}, name="other")
    assert len({made["id"], other["id"], different["id"]}) == 3
    again = keyed.post("/adapt", headers={**mine, **same}, **adapt_form(name=NAME))
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["id"] == made["id"]


def test_all_keys_of_a_tenant_see_the_same(keyed: TestClient, mine: Headers) -> None:
    made = adapt(keyed, headers=mine)
    other = bearer(new_key(store_of(keyed), "mine"))
    assert keyed.get(f"/classifiers/{made['id']}", headers=other).status_code == 200


def test_whoever_may_adapt_may_predict_within_the_tenant(keyed: TestClient, mine: Headers, theirs: Headers) -> None:
    adapting, elsewhere = (bearer(new_key(store_of(keyed), tenant, Scope.ADAPT)) for tenant in ("mine", "theirs"))
    for made in (adapt(keyed, headers=adapting), adapt(keyed, headers=mine)):
        for headers, status in ((adapting, 200), (elsewhere, 404)):
            assert ask(keyed, ("POST", "/predict"), made["id"], headers).status_code == status


def test_the_empty_tenant_has_what_was_made_without_keys(keyed_settings: Settings, serve: Serve) -> None:
    made = adapt(serve(keyed_settings, require_keys=False), headers=bearer("not looked at"), name=NAME)
    client = serve(keyed_settings)
    for tenant, status in (("", 200), ("acme", 404)):
        headers = bearer(new_key(store_of(client), tenant))
        answer = client.get(f"/classifiers/{made['id']}", headers=headers)
        assert answer.status_code == status


def test_limits_on_classifiers_hold_for_each_tenant(keyed_settings: Settings, serve: Serve) -> None:
    client = serve(keyed_settings, max_classifiers=1)
    for tenant in ("mine", "theirs"):
        headers = bearer(new_key(store_of(client), tenant))
        adapt(client, headers=headers)
        error = check_error(client.post("/adapt", headers=headers, **adapt_form()), ErrorCode.TOO_MANY_CLASSIFIERS)
        assert error["detail"] == {"stored": 1, "limit": 1}


def test_logs_and_metrics_name_no_classifiers_but_by_their_id_to_whom_they_belong(
    keyed: TestClient, mine: Headers, theirs: Headers
) -> None:
    with logged() as lines:
        made = adapt(keyed, headers=mine, name=NAME)
        for route in ABOUT_ONE:
            ask(keyed, route, NAME, theirs)
        for headers in (mine, {}, bearer("comln_wrong")):
            keyed.get(f"/classifiers/{NAME}", headers=headers)
        metrics = keyed.get("/metrics", headers=mine).text
    log = lines.text
    for text in (NAME, "theirs"):
        assert text not in log
    for text in (NAME, made["id"], "theirs"):
        assert text not in metrics
    for headers in (mine, theirs):
        _, key_id, secret = headers["Authorization"].split("_")
        assert key_id in log
        assert secret not in log
        assert key_id not in metrics
    keys = [line.get("key") for line in lines.of_requests()]
    assert keys[-3:-1] == [None, None], "of those that hold no valid key nothing is logged"
    assert None not in keys[:-3]
    of_it = [json.loads(line) for line in log.splitlines() if made["id"] in line]
    assert {line["key"] for line in of_it} == {mine["Authorization"].split("_")[1]}


def test_no_tenant_takes_all_room_for_requests_and_images(keyed: TestClient) -> None:
    """With 224 of 256 requests, or as much of images or bytes, it is told that the server is busy; others are not."""
    store, state = store_of(keyed), keyed.app.state  # type: ignore[attr-defined]
    many, few = bearer(new_key(store, "many")), bearer(new_key(store, "few"))
    for headers in (many, few):
        assert keyed.post("/adapt", **adapt_form(name=NAME), headers=headers).status_code == 201
    for room in (state.requests, state.engine.images, state.held):
        room.take(room.most, tenant="many")
        check_error(keyed.post("/predict", **predict_form(RED, classifier=NAME), headers=many), ErrorCode.OVERLOADED)
        assert keyed.post("/predict", **predict_form(RED, classifier=NAME), headers=few).status_code == 200
        room.give_back(room.most, tenant="many")
        assert keyed.post("/predict", **predict_form(RED, classifier=NAME), headers=many).status_code == 200
        assert not state.engine.shared.of_tenant(room._unit, "many"), (
            "what a request holds is given back under the same name"
        )


def test_a_request_waits_as_one_of_its_tenant(keyed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images to decode and embed, of adaptations, and of JSON to parse."""
    headers = bearer(new_key(store_of(keyed), "acme"))
    engine = keyed.app.state.engine  # type: ignore[attr-defined]
    tenants: list[str] = []
    parsing = keyed.app.state.parsing  # type: ignore[attr-defined]

    def note(owner: Any, name: str, tenant_of: Callable[..., str]) -> None:
        call = getattr(owner, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            tenants.append(tenant_of(*arguments))
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, noted)

    note(parsing, "turn", lambda tenant: tenant)
    note(engine._decoders, "submit", lambda job, *_: job.tenant)
    note(engine._solves, "turn", lambda caller, *_: caller.tenant)
    assert keyed.post("/adapt", **adapt_form(name=NAME), headers=headers).status_code == 201
    assert keyed.post("/predict", **predict_form(RED, classifier=NAME), headers=headers).status_code == 200
    assert keyed.post(f"/classifiers/{NAME}/adapt", headers=headers).status_code == 201
    assert tenants == ["acme"] * 4
    assert keyed.post("/predict", json={"classifier": NAME, "images": [b64(RED)]}, headers=headers).status_code == 200
    assert tenants == ["acme"] * 6
