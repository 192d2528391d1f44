"""Requests that pages of other sites make a visitor's browser send: the server refuses those that would change
something, and those to a host name that is not its own.
"""

from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import ValidationError

from comln_serve.api.app import create_app
from comln_serve.api.browsers import AllowedHosts
from comln_serve.api.routes import ROUTERS
from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from comln_serve.server.serve import allowed_hosts
from tests.support.engines import MakeEngine, Serve
from tests.support.messages import adapt_form, check_error

OURS, LISTED, EVIL = "http://testserver", "https://app.example.org", "https://evil.example"
FOREIGN: list[dict[str, str]] = [
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://testserver:81"},
    {"Origin": "http://testserver.evil.example"},
    {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
    {"Origin": OURS, "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
]
OWN: list[dict[str, str]] = [
    {},
    {"Origin": OURS},
    {"Origin": "https://testserver"},  # behind a proxy that ends TLS
    {"Origin": OURS, "Sec-Fetch-Site": "same-origin"},
    {"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"},  # it changes Host
    {"Sec-Fetch-Site": "none"},
]
CHANGES = [
    (method, route.path)
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
    if method != "GET"
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_pages_of_other_origins_change_nothing(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/adapt", **adapt_form(name="known")).status_code == 201
    for method, path in [*CHANGES, ("POST", "/absent")]:
        error = check_error(
            client.request(method, path.format(ref="known", number=1), headers=headers), ErrorCode.FOREIGN_ORIGIN
        )
        assert "--cors-origins" in error["message"]
        assert error["detail"] == {"received": headers.get("Origin")}
    answer = client.post("/v2/models/known/infer", headers=headers)
    assert (answer.status_code, list(answer.json())) == (403, ["error"])
    # What changes nothing is answered; a browser shows it to nobody.
    assert client.get("/classifiers/known", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_programs_and_the_server_s_own_page_are_served(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/adapt", headers=headers, **adapt_form()).status_code == 201


@pytest.mark.parametrize("listed", [f"http://localhost:3000,{LISTED}", "*"])
def test_pages_of_listed_origins_are_served(serve: Serve, listed: str) -> None:
    client = serve(cors_origins=listed)
    headers = {"Origin": LISTED, "Sec-Fetch-Site": "cross-site"}
    answer = client.post("/adapt", headers=headers, **adapt_form())
    assert answer.status_code == 201
    assert answer.headers["access-control-allow-origin"] == ("*" if listed == "*" else LISTED)
    answer = client.post("/adapt", headers={"Origin": EVIL}, **adapt_form())
    assert answer.status_code == (201 if listed == "*" else 403)


# --- names -----------------------------------------------------------------------------------

ALWAYS = [
    "localhost",
    "localhost:8000",
    "LocalHost",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:80",
    "[::1]",
    "[::1]:8000",
    "10.1.2.3:8000",
]
SERVICE, PUBLIC = ["comln-serve", "comln-serve:8000"], ["evil.example", "comln.default.svc:8000"]
NEVER = ["", ":80", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost", "[", "[::1", "localhost:80:80"]


@pytest.mark.parametrize(
    ("configured", "allowed", "refused"),
    [
        ({}, ALWAYS, [*SERVICE, *PUBLIC, *NEVER]),
        ({"require_keys": True}, ALWAYS, [*SERVICE, *PUBLIC, *NEVER]),
        ({"host": "0.0.0.0"}, [*ALWAYS, *SERVICE], [*PUBLIC, *NEVER]),
        ({"host": "0.0.0.0", "require_keys": True}, [*ALWAYS, *SERVICE, *PUBLIC], []),
        ({"allowed_hosts": "*"}, [*ALWAYS, *SERVICE, *PUBLIC], []),
        (
            {"allowed_hosts": "a.example, *.B.example"},
            [*ALWAYS, "a.example", "A.example:80", "x.b.example", "x.y.b.example."],
            [*SERVICE, *PUBLIC, *NEVER, "b.example", "x.a.example", "xb.example"],
        ),
        ({"host": "0.0.0.0", "allowed_hosts": "a.example"}, ["10.0.0.7:8000"], SERVICE),
    ],
)
def test_which_host_names_are_answered(configured: dict[str, Any], allowed: list[str], refused: list[str]) -> None:
    hosts = allowed_hosts(Settings.model_validate(configured))
    assert [host for host in [*allowed, *refused] if hosts.allow(host)] == allowed


def test_another_host_name_is_refused(make_engine: MakeEngine) -> None:
    hosts = AllowedHosts(("testserver",))
    with TestClient(create_app(make_engine(), hosts=hosts)) as client:
        for path in ("/health/live", "/classifiers", "/", "/try", "/absent"):
            assert client.get(path, headers={"Host": "10.0.0.7"}).status_code in (200, 404)
            answer = client.get(path, headers={"Host": "evil.example"})
            error = check_error(answer, ErrorCode.FOREIGN_HOST)
            assert error["detail"] == {"received": "evil.example"}
            assert "--allowed-hosts" in error["message"]
        assert client.get("/models").status_code == 200


@pytest.mark.parametrize("hosts", ["https://a.example", "a.example:80", "a.example/x", "*.*.example", "a*", "a b", "."])
def test_allowed_hosts_must_be_host_names(hosts: str) -> None:
    with pytest.raises(ValidationError, match="not a host name"):
        Settings(allowed_hosts=hosts)
