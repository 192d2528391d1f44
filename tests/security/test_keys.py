"""API keys: what the store keeps of them, and which routes they open."""

import asyncio
import hmac
import re
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from httpx2 import Response
from starlette.routing import Route

from comln_serve.api.app import create_app
from comln_serve.api.authentication import scopes_of
from comln_serve.api.routes.export import MOST_EXPORTS
from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from comln_serve.security import keys
from comln_serve.security.keys import ApiKey, KeyRing, Scope, is_right, make_key, parse_key
from comln_serve.storage import Store, utc_now
from tests.support.databases import execute, migrate_to
from tests.support.engines import MakeEngine, Serve
from tests.support.keyed import EVERYTHING, bearer, keyed, keyed_settings, new_key, routes_of, store_of
from tests.support.messages import adapt_form, check_error

__all__ = ["keyed", "keyed_settings"]  # fixtures

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
TEXT = re.compile(r"comln_[0-9a-f]{16}_[0-9a-f]{64}")
ANY = {"ref": "absent", "model": "absent", "version": 1, "number": 1}
UNKNOWN = f"comln_{'0' * 16}_{'0' * 64}"


def key_of(**more: Any) -> tuple[ApiKey, str]:
    return make_key("acme", [Scope.PREDICT], now=utc_now(), **more)


# --- Without HTTP --------------------------------------------------------------------------------


def test_a_key_parses_to_its_id_and_secret() -> None:
    made = [key_of() for _ in range(100)]
    assert len({key.id for key, _ in made}) == len({text for _, text in made}) == 100
    for key, text in made:
        assert TEXT.fullmatch(text)
        key_id, secret = parse_key(text) or ("", "")
        assert key_id == key.id
        assert is_right(secret, key.secret_sha256)
        assert secret not in repr(key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "comln",
        "comln__",
        UNKNOWN[:-1],
        UNKNOWN + "0",
        UNKNOWN.upper(),
        "x" + UNKNOWN,
        UNKNOWN + "\n",
        UNKNOWN.replace("0", "\u0660"),
        UNKNOWN.replace("_", "-"),
        "0" * 10_000,
    ],
)
def test_what_has_not_the_form_of_a_key(text: str) -> None:
    assert parse_key(text) is None


def test_a_key_that_does_not_exist_costs_the_same_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    class Spy:
        compare_digest = staticmethod(compare)

    key, text = key_of()
    _, secret = parse_key(text) or ("", "")
    monkeypatch.setattr(keys, "hmac", Spy)
    assert is_right(secret, key.secret_sha256)
    assert not is_right("0" * 64, key.secret_sha256)
    assert not is_right(secret, None)
    assert [(len(one), len(other)) for one, other in compared] == [(64, 64)] * 3


def test_the_hash_of_a_key_does_not_open() -> None:
    key, _ = key_of()
    assert not is_right(key.secret_sha256, key.secret_sha256)


def test_a_key_allows_its_scopes_and_admin_allows_all() -> None:
    key = make_key("acme", [Scope.PREDICT], now=utc_now())[0]
    assert key.allows([Scope.PREDICT])
    assert key.allows([Scope.ADAPT, Scope.PREDICT])
    assert not key.allows([Scope.ADAPT])
    assert not key.allows([Scope.ADMIN])
    admin = make_key("acme", [Scope.ADMIN], now=utc_now())[0]
    assert all(admin.allows([scope]) for scope in Scope)


def test_a_key_is_valid_until_the_moment_at_which_it_expires() -> None:
    now = utc_now()
    key = make_key("acme", [Scope.PREDICT], now=now, expires_at=now + timedelta(minutes=1))[0]
    assert key.is_valid(now + timedelta(seconds=59.999999))
    assert not key.is_valid(now + timedelta(minutes=1))


def test_keys_are_remembered_for_a_second() -> None:
    now = [100.0]
    stored = {key.id: key for key, _ in (key_of() for _ in range(50))}
    reads: list[str] = []

    def find(key_id: str) -> ApiKey | None:
        reads.append(key_id)
        return stored.get(key_id)

    ring = KeyRing(find, lambda: now[0])
    first = next(iter(stored))
    assert ring.remembered(first) is None
    for _ in range(3):
        assert ring.read(first) is stored[first]
        assert ring.remembered(first) is stored[first]
    assert reads == [first]
    now[0] += 1.0
    assert ring.remembered(first) is None
    key = stored.pop(first)
    assert ring.read(first) is None
    assert len(ring._entries) == 0
    stored[first] = key
    assert ring.read(first) is key, "that there was none is not remembered"
    for key_id in stored:
        ring.read(key_id)
    assert len(ring._entries) == 50
    now[0] += 1.0
    ring.read(first)
    assert len(ring._entries) == 1, "only those of the last second"


def test_keys_in_the_store(database_url: str) -> None:
    now = utc_now()
    with closing(Store(database_url)) as store:
        assert store.keys.all() == []
        assert not store.keys.any_valid()
        plain, _ = make_key("", EVERYTHING, now=now)
        expired, _ = key_of(expires_at=now - HOUR)
        full, secret = key_of(name="\N{CAT FACE}", requests_per_minute=5, expires_at=now + HOUR)
        store.keys.add(expired)
        assert not store.keys.any_valid()
        for key in (plain, full):
            store.keys.add(key)
        assert store.keys.any_valid()
        assert store.keys.find("absent") is None
        assert {key.id: key for key in store.keys.all()} == {key.id: key for key in (plain, expired, full)}
        for key in (plain, expired, full):
            assert store.keys.find(key.id) == key
            assert store.keys.revoke(key.id)
        assert not store.keys.any_valid()
        assert not store.keys.revoke("absent")
        revoked = store.keys.find(full.id)
        assert revoked is not None
        assert revoked.revoked_at is not None
        assert store.keys.revoke(full.id)
        assert store.keys.find(full.id) == revoked, "the first time stays"
    written = str(execute(database_url, "SELECT * FROM api_keys"))
    assert full.secret_sha256 in written
    assert secret.rpartition("_")[2] not in written


def test_the_last_use_is_stored_and_never_goes_back(database_url: str) -> None:
    """Of two servers, one of which stores what it has noted late."""
    key, other, began = key_of()[0], key_of()[0], utc_now()
    now = [began]
    with closing(Store(database_url, lambda: now[0])) as late, closing(Store(database_url, lambda: now[0])) as store:
        for one in (key, other):
            store.keys.add(one)
        late.keys.note_use(key.id)
        assert store.keys.find(key.id) == key, "nothing is written by noting"
        now[0] += MINUTE
        store.keys.note_use(key.id)
        store.keys.store_uses()
        late.keys.store_uses()
        assert {one.id: one.used_at for one in store.keys.all()} == {key.id: began + MINUTE, other.id: None}
        now[0] += HOUR
        late.keys.store_uses()
        assert {one.id: one.used_at for one in store.keys.all()} == {key.id: began + MINUTE, other.id: None}


def test_a_last_use_by_a_clock_that_was_far_ahead_is_replaced(database_url: str) -> None:
    """Once the clock is right again; else the key would seem in use until that time."""
    key, now = key_of()[0], utc_now()
    clock = [now + 24 * HOUR]
    with closing(Store(database_url, lambda: clock[0])) as store:
        store.keys.add(key)
        for moment in (now + 24 * HOUR, now):
            clock[0] = moment
            store.keys.note_use(key.id)
            store.keys.store_uses()
            assert [one.used_at for one in store.keys.all()] == [moment]


def test_a_server_stores_which_keys_were_used_when_it_stops(make_engine: MakeEngine, database_url: str) -> None:
    """Those of refused requests as well, if the key was right."""
    (used, text), (forbidden, refused), (idle, _) = key_of(), key_of(), key_of()
    with closing(Store(database_url)) as store:
        for key in (used, forbidden, idle):
            store.keys.add(key)
        began = utc_now()
        engine = make_engine(database_url=database_url, require_keys=True)
        with TestClient(create_app(engine)) as client:
            assert client.get("/models", headers=bearer(text)).status_code == 200
            assert client.get("/models", headers=bearer(text.replace(used.id, idle.id))).status_code == 401
            assert client.post("/models/reload", headers=bearer(refused)).status_code == 403
        found = {key.id: key.used_at for key in store.keys.all()}
    assert found[idle.id] is None
    assert all(at is not None and began <= at <= utc_now() for at in (found[used.id], found[forbidden.id]))


def test_a_database_without_keys_is_given_the_table(database_url: str) -> None:
    migrate_to(database_url, "0001")
    execute(database_url, "INSERT INTO names VALUES ('', 'letters', 7, 7)")
    with closing(Store(database_url)) as store:
        assert store.keys.all() == []
    assert execute(database_url, "SELECT name, last_version FROM names") == [("letters", 7)]


# --- Over HTTP -----------------------------------------------------------------------------------


def test_every_route_says_who_may_call_it(keyed: TestClient) -> None:
    """Those that are not FastAPI's own show what is served, or are a page, and for everybody."""
    routes = routes_of(keyed.app)  # type: ignore[arg-type]
    plain = {route.path for route in routes if not isinstance(route.original_route, APIRoute)}
    shown = {"/docs", "/openapi.json", "/", "/try", "/page/{path:path}"}
    assert plain == shown
    assert all(isinstance(route.original_route, Route) for route in routes)
    assert [scopes_of(route.endpoint) for route in routes if route.path == "/predict"] == [(Scope.PREDICT, Scope.ADAPT)]
    declared = {route.path: scopes_of(route.endpoint) for route in routes if route.path not in shown}
    assert None not in declared.values()
    public = {path for path, scopes in declared.items() if not scopes}
    assert public == {prefix + path for prefix in ("", "/v2") for path in ("/health/live", "/health/ready")}
    for path in (shown - {"/page/{path:path}"}) | public:
        assert keyed.get(path).status_code == 200


def test_a_route_that_says_nothing_is_closed(keyed: TestClient) -> None:
    @keyed.app.get("/secrets")  # type: ignore[attr-defined]
    def secrets() -> str:
        return "all of them"

    for headers in ({}, bearer(new_key(store_of(keyed)))):
        answer = keyed.get("/secrets", headers=headers)
        check_error(answer, ErrorCode.FORBIDDEN)
        assert "all of them" not in answer.text


def refused(answer: Response) -> str:
    error = check_error(answer, ErrorCode.UNAUTHORIZED)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert error["detail"] == {}
    return str(error["message"])


def test_without_a_valid_key(keyed: TestClient) -> None:
    store, now = store_of(keyed), utc_now()
    valid = new_key(store)
    assert keyed.get("/models", headers=bearer(valid)).status_code == 200
    assert keyed.get("/models", headers={"Authorization": f"bearer  {valid}"}).status_code == 200
    assert "requires an API key" in refused(keyed.get("/models"))

    revoked, expired = new_key(store), new_key(store, expires_at=now - HOUR)
    key_id, _ = parse_key(revoked) or ("", "")
    store.keys.revoke(key_id)
    given = [
        "",
        "Bearer",
        "Bearer ",
        valid,
        f"Basic {valid}",
        f"Token {valid}",
        f"Bearer {valid} x",
        f"Bearer {valid[:-1]}",
        f"Bearer {UNKNOWN}",
        f"Bearer {revoked}",
        f"Bearer {expired}",
        f"Bearer {valid[:-64]}{'0' * 64}",
        f"Bearer {revoked[:-64]}{valid[-64:]}",
    ]
    messages = {refused(keyed.get("/models", headers={"Authorization": header})) for header in given}
    twice = [("Authorization", f"Bearer {valid}")] * 2
    messages.add(refused(keyed.get("/models", headers=twice)))
    assert len(messages) == 1


def test_what_each_scope_opens(keyed: TestClient) -> None:
    """Every route with every scope: refused by name, or answered, be it by an error of its own."""
    keys = {scope: bearer(new_key(store_of(keyed), "acme", scope)) for scope in Scope}
    expected = {
        Scope.ADAPT: {
            "POST /adapt",
            "DELETE /classifiers/{ref}",
            "POST /classifiers/{ref}/promote",
            "POST /classifiers/{ref}/rollback",
            "POST /classifiers/{ref}/examples",
            "GET /classifiers/{ref}/support",
            "POST /classifiers",
            "POST /classifiers/{ref}/adapt",
            "POST /classifiers/{ref}/labels",
            "POST /classifiers/{ref}/examples/labels",
            "PATCH /classifiers/{ref}",
            "DELETE /classifiers/{ref}/examples/{number}",
            "DELETE /classifiers/{ref}/examples",
        },
        Scope.ADMIN: {"GET /metrics", "POST /models/reload"},
    }
    using = {
        "POST /predict",
        *(f"POST /v2/models/{{model}}{version}/infer" for version in ("", "/versions/{version}")),
        "GET /models",
        "GET /limits",
        "GET /v2",
        "GET /v2/models/{model}",
        "GET /v2/models/{model}/ready",
        "GET /v2/models/{model}/versions/{version}",
        "GET /classifiers/{ref}/export",
        "GET /v2/models/{model}/versions/{version}/ready",
        "GET /classifiers",
        "GET /classifiers/{ref}",
        "GET /classifiers/{ref}/examples",
        "GET /classifiers/{ref}/examples/{number}/thumbnail",
    }
    opened: dict[Scope, set[str]] = {scope: set() for scope in Scope}
    for route in routes_of(keyed.app):  # type: ignore[arg-type]
        if not scopes_of(route.endpoint):
            continue
        path = str(route.path_format)
        for method in route.methods or ():
            for scope, headers in keys.items():
                answer = keyed.request(method, path.format_map(ANY), headers=headers)
                if method == "GET":
                    assert keyed.head(path.format_map(ANY), headers=headers).status_code == answer.status_code
                if answer.status_code != 403:
                    assert answer.status_code in (200, 404, 415, 422)
                    opened[scope].add(f"{method} {path}")
                    continue
                missing = " or ".join(scopes_of(route.endpoint) or ())
                assert f"lacks the scope {missing}; it has {scope}" in answer.text
                if path.startswith("/v2"):
                    assert set(answer.json()) == {"error"}
                    continue
                error = check_error(answer, ErrorCode.FORBIDDEN)
                allowed = dict.fromkeys([*(scopes_of(route.endpoint) or ()), Scope.ADMIN])
                assert error["detail"] == {"received": [scope], "allowed": list(allowed)}
    assert opened[Scope.PREDICT] == using
    assert opened[Scope.ADAPT] == expected[Scope.ADAPT] | using
    assert opened[Scope.ADMIN] == using.union(*expected.values())


def test_keys_are_looked_at_first(keyed: TestClient) -> None:
    """Before validation, and before admission."""
    assert keyed.get("/classifiers?limit=x").status_code == 401
    state = keyed.app.state  # type: ignore[attr-defined]
    state.exports.hold(MOST_EXPORTS)
    state.requests.hold(state.engine.settings.max_pending_requests)
    assert keyed.get("/classifiers/absent/export").status_code == 401
    assert keyed.post("/adapt", **adapt_form()).status_code == 401
    headers = bearer(new_key(store_of(keyed), "acme", Scope.PREDICT))
    assert keyed.post("/adapt", headers=headers, **adapt_form()).status_code == 403
    assert keyed.post("/adapt", headers=bearer(UNKNOWN), content=b"no form").status_code == 401


def test_no_route_and_no_method_are_what_they_are_without_keys(keyed: TestClient) -> None:
    check_error(keyed.get("/nothing"), ErrorCode.ROUTE_NOT_FOUND)
    check_error(keyed.put("/adapt"), ErrorCode.METHOD_NOT_ALLOWED)


def test_making_and_revoking_are_seen_by_every_server(
    keyed: TestClient, keyed_settings: Settings, serve: Serve
) -> None:
    other = serve(keyed_settings)
    text = new_key(store_of(keyed))
    for client in (keyed, other):
        assert client.get("/models", headers=bearer(text)).status_code == 200
    key_id, _ = parse_key(text) or ("", "")
    store_of(keyed).keys.revoke(key_id)
    time.sleep(KeyRing.seconds)
    for client in (keyed, other):
        refused(client.get("/models", headers=bearer(text)))


def test_a_key_that_expires_while_it_is_remembered(keyed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = bearer(new_key(store_of(keyed), expires_at=utc_now() + HOUR))
    monkeypatch.setattr(KeyRing, "seconds", 1e9)
    assert keyed.get("/models", headers=headers).status_code == 200
    monkeypatch.setattr("comln_serve.api.authentication.utc_now", lambda: utc_now() + HOUR)
    refused(keyed.get("/models", headers=headers))


def test_without_the_database_nobody_is_called_a_stranger(keyed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyRing, "seconds", 0.0)
    headers = bearer(new_key(store_of(keyed)))
    assert keyed.get("/models", headers=headers).status_code == 200
    execute_on = keyed.app.state.engine.settings.database_url  # type: ignore[attr-defined]
    execute(execute_on, "ALTER TABLE api_keys RENAME TO elsewhere")
    for given in (headers, bearer(UNKNOWN)):
        check_error(keyed.get("/models", headers=given), ErrorCode.STORAGE_UNAVAILABLE)
    refused(keyed.get("/models"))
    execute(execute_on, "ALTER TABLE elsewhere RENAME TO api_keys")
    assert keyed.get("/models", headers=headers).status_code == 200


def test_readiness_tells_strangers_no_numbers(keyed: TestClient) -> None:
    headers = bearer(new_key(store_of(keyed)))
    keyed.post("/adapt", headers=headers, **adapt_form()).raise_for_status()
    for given in ({}, headers):
        assert set(keyed.get("/health/ready", headers=given).json()) == {"status", "version", "provider"}


def test_without_keys_the_header_is_not_looked_at(client: TestClient) -> None:
    """A proxy may use it for itself."""
    for header in ("Basic dXNlcjpwYXNz", bearer(UNKNOWN)["Authorization"]):
        answer = client.get("/metrics", headers={"Authorization": header})
        assert answer.status_code == 200


def test_of_requests_at_once_with_one_key_few_read_it(
    keyed_settings: Settings, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for these on the event loop, not in the line for the threads, which other keys need, too."""
    reading, read = list[str](), KeyRing.read

    def slow(self: KeyRing, key_id: str) -> ApiKey | None:
        reading.append(key_id)
        time.sleep(0.05)  # in which the others come
        return read(self, key_id)

    monkeypatch.setattr(KeyRing, "read", slow)
    client = serve(keyed_settings)
    keys = [new_key(store_of(client)) for _ in range(3)]

    async def run() -> None:
        transport = httpx2.ASGITransport(client.app)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(base_url="http://testserver", transport=transport) as http:
            sent = (http.get("/classifiers", headers=bearer(key)) for key in [keys[0]] * 50 + keys[1:])
            assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}

    asyncio.run(run())
    first, *others = (reading.count(key.split("_")[1]) for key in keys)
    assert others == [1, 1]
    assert first < 10
