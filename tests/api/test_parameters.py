"""Query parameters and headers that a route does not take, or that come twice, are refused."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.errors import ErrorCode
from tests.support.keyed import keyed, keyed_settings
from tests.support.messages import RED, adapt_form, check_error, predict_form, raw

__all__ = ["keyed", "keyed_settings"]  # fixtures

PATHS = {"ref": "known", "number": "1", "model": "known", "version": "1"}
POLLED = ["/health/live", "/health/ready", "/metrics", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"]


def message_of(answer: Any) -> str:
    """Of a 422 in either shape of error."""
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    message: str = error if isinstance(error, str) else error["message"]
    return message


@pytest.mark.parametrize(
    ("method", "path", "received", "allowed"),
    [
        ("GET", "/classifiers?nam=x", "nam", ["limit", "before", "name", "model"]),
        ("GET", "/classifiers?limit=1&=x", "", ["limit", "before", "name", "model"]),
        ("POST", "/classifiers?nam=x", "nam", ["name", "promote"]),
        ("GET", "/classifiers/known?x", "x", []),
        ("DELETE", "/classifiers/known?force=1", "force", []),
        ("PATCH", "/classifiers/known?name=new", "name", []),
        ("DELETE", "/classifiers/known/examples/1?promot=false", "promot", ["promote"]),
        ("DELETE", "/classifiers/known/examples?numbers=1&number=2", "numbers", ["number", "promote"]),
        ("GET", "/classifiers/known/export?fromat=safetensors", "fromat", ["format"]),
        ("GET", "/classifiers/known/export?Format=onnx", "Format", ["format"]),
        ("POST", "/classifiers/known/promote?version=1", "version", ["instead_of"]),
        ("POST", "/classifiers/known/adapt?horizon=3", "horizon", []),
        ("POST", "/classifiers/known/labels?red=Red", "red", []),
        ("POST", "/classifiers/known/examples/labels?number=1", "number", []),
        ("POST", "/adapt?name=letters", "name", []),
        ("POST", "/predict?classifier=known", "classifier", []),
        ("GET", "/models?%F0%9F%90%88=1", "\N{CAT}", []),
    ],
)
def test_unknown_parameters_and_headers_are_refused(
    service: TestClient, method: str, path: str, received: str, allowed: list[str]
) -> None:
    before = service.get("/classifiers").json()
    error = check_error(service.request(method, path), ErrorCode.INVALID_REQUEST)
    assert error["detail"] == {"received": [received], "allowed": allowed}
    assert f"Received {received!r} in the query" in error["message"]
    takes = ", ".join(map(repr, allowed)) or "nothing"
    assert f"this route takes {takes} there" in error["message"]
    assert ("in the body" in error["message"]) == (method in ("POST", "PATCH") and "promote" not in path)
    assert service.get("/classifiers").json() == before


@pytest.mark.parametrize("sent", [{"json": {"version": 3}}, {"files": {"promote": (None, "false")}}, {"content": "x"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/classifiers/known/promote"),
        ("POST", "/classifiers/known/rollback"),
        ("POST", "/models/reload"),
        ("DELETE", "/classifiers/known"),
        ("DELETE", "/classifiers/known/examples/1"),
        ("DELETE", "/classifiers/known/examples?number=1"),
    ],
)
def test_bodies_that_nobody_reads_are_refused(
    service: TestClient, method: str, path: str, sent: dict[str, Any]
) -> None:
    before = service.get("/classifiers").json()
    error = check_error(service.request(method, path, **sent), ErrorCode.INVALID_REQUEST)
    assert f"{method} {path.partition('?')[0]} takes no body" in error["message"]
    assert ("'promote' goes in the query" in error["message"]) == ("/examples" in path)
    assert service.get("/classifiers").json() == before


@pytest.mark.parametrize("path", ["/classifiers/known/promote", "/classifiers/known/rollback"])
@pytest.mark.parametrize("chunks", [[b"x"], [b"x" * 1000] * 3])
def test_a_body_in_chunks_is_a_body(service: TestClient, path: str, chunks: list[bytes]) -> None:
    answer = service.post(path, content=iter(chunks))
    assert "takes no body" in check_error(answer, ErrorCode.INVALID_REQUEST)["message"]


def test_an_empty_body_in_chunks_is_none(service: TestClient) -> None:
    """Proxies that translate HTTP/2 send requests without a body so."""
    for method, path in (("POST", "promote"), ("POST", "adapt"), ("DELETE", "examples/1")):
        answer = service.request(method, f"/classifiers/nothing/{path}", content=iter([]))
        assert answer.request.headers["Transfer-Encoding"] == "chunked"
        check_error(answer, ErrorCode.CLASSIFIER_NOT_FOUND)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/classifiers?limit=1&limit=2", "limit"),
        ("/classifiers?limit=1&name=a&name=a", "name"),
        ("/classifiers/known/export?format=onnx&format=onnx", "format"),
        ("/classifiers/known/examples?number=1&number=2&promote=true&promote=false", "promote"),
    ],
)
def test_repeated_parameters_and_headers_are_refused(service: TestClient, path: str, name: str) -> None:
    method = "DELETE" if "/examples" in path else "GET"
    error = check_error(service.request(method, path), ErrorCode.INVALID_REQUEST)
    assert f"{name!r} came 2 times" in error["message"]


@pytest.mark.parametrize(
    "path", ["/adapt", "/classifiers/known/examples", "/classifiers/known/labels", "/classifiers/known/examples/labels"]
)
def test_two_idempotency_keys_are_refused(service: TestClient, path: str) -> None:
    """Which of them counts is not for the server to choose."""
    keys = [("Idempotency-Key", "a"), ("idempotency-key", "a")]
    answer = service.post(path, headers=keys, **adapt_form())
    error = check_error(answer, ErrorCode.INVALID_REQUEST)
    assert "Idempotency-Key" in error["message"]


def test_every_route_refuses_unknown_parameters(service: TestClient) -> None:
    paths = service.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        if path in POLLED:
            continue
        for method in methods:
            url = path.format(**PATHS)
            answer = service.request(method, f"{url}?surprise=1")
            assert "'surprise' in the query" in message_of(answer), (method, path)


@pytest.mark.parametrize("path", POLLED)
def test_health_routes_take_any_parameter(service: TestClient, path: str) -> None:
    assert service.get(f"{path}?_=1732147265&_=2").status_code == 200


@pytest.mark.parametrize("query", ["?", "?&", "?&&"])
def test_an_empty_query_is_accepted(service: TestClient, query: str) -> None:
    assert service.get(f"/classifiers{query}").status_code == 200
    assert service.post(f"/predict{query}", **predict_form(RED)).status_code == 200


def test_only_some_of_very_many_parameters_are_named(service: TestClient) -> None:
    query = "&".join(f"{i}{'x' * 200}=1" for i in range(50))
    answer = service.get(f"/classifiers?{query}")
    error = check_error(answer, ErrorCode.INVALID_REQUEST)
    assert len(error["detail"]["received"]) == 10
    assert len(answer.content) < 4_000


def test_requests_without_a_key_learn_nothing_of_routes(keyed: TestClient) -> None:
    assert keyed.get("/classifiers?x=1").status_code == 401
    assert keyed.post("/predict?x=1", **raw(b"{}")).status_code == 401
    assert keyed.get("/health/ready?x=1").status_code == 200
