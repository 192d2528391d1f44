"""Security and caching headers of every answer, CORS, and the page that describes the operations."""

import base64
import hashlib
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from tests.support.engines import Serve
from tests.support.html import Page
from tests.support.messages import RED, adapt_form, check_error, engine_of, predict_form, raw

ORIGIN = "https://app.example.org"


def check_headers(answer: Any) -> None:
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "server" not in answer.headers


def test_every_answer_carries_them(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        client.post("/adapt", **adapt_form(name="known")),
        client.post("/predict", **predict_form(RED)),
        client.post("/predict", **raw(b"{")),
        client.delete("/classifiers/known"),
        client.get("/nothing"),
        client.put("/adapt"),
        *(
            client.get(path)
            for path in (
                "/models",
                "/classifiers",
                "/classifiers/known",
                "/health/live",
                "/health/ready",
                "/metrics",
                "/docs",
                "/openapi.json",
            )
        ),
    ]
    monkeypatch.setattr(engine_of(client), "adapt", None)
    answers.append(client.post("/adapt", **adapt_form()))
    statuses = [answer.status_code for answer in answers]
    assert statuses == [201, 200, 422, 204, 404, 405, 200, 200, 404, *[200] * 5, 500]
    for answer in answers:
        check_headers(answer)


def preflight(client: TestClient, origin: str, method: str = "POST", **headers: str) -> Any:
    asked = {"Origin": origin, "Access-Control-Request-Method": method, **headers}
    return client.options("/predict", headers=asked)


def test_no_other_origin_is_allowed_by_default(client: TestClient) -> None:
    answer = client.get("/models", headers={"Origin": ORIGIN})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    answer = preflight(client, ORIGIN)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("allowed", [f"http://localhost:3000,{ORIGIN}", "*"])
def test_listed_origins_are_allowed(serve: Serve, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(cors_origins=allowed)
    answer = client.get("/models", headers={"Origin": ORIGIN})
    expected = "*" if allowed == "*" else ORIGIN
    assert answer.headers["access-control-allow-origin"] == expected
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    assert "access-control-allow-credentials" not in answer.headers
    check_headers(answer)
    headers = {"Access-Control-Request-Headers": "content-type, x-request-id"}
    answer = preflight(client, ORIGIN, **headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == expected
    assert "POST" in answer.headers["access-control-allow-methods"]
    for refused, what in (
        (preflight(client, ORIGIN, "PUT"), "method"),
        (preflight(client, ORIGIN, **{"Access-Control-Request-Headers": "x-requested-with"}), "'x-requested-with'"),
        *([] if allowed == "*" else [(preflight(client, "https://evil.example"), "origin")]),
        (preflight(client, "https://evil.example", "PUT"), "method"),
    ):
        answer = refused.json()["error"]
        assert refused.status_code == 422
        assert answer["message"].startswith("Disallowed CORS ")
        assert what in answer["message"]
        assert "the methods DELETE, GET, PATCH, POST and," in answer["message"]
        check_headers(refused)
    if allowed != "*":
        answer = client.get("/models", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
    # A page has to be able to read of a bug, too.
    monkeypatch.setattr(engine_of(client), "classifiers", None)
    answer = client.get("/classifiers/x", headers={"Origin": ORIGIN})
    assert answer.status_code == 500
    assert answer.headers["access-control-allow-origin"] == expected


@pytest.mark.parametrize(
    "origins",
    [
        "example.org",
        "https://example.org/",
        "https://example.org/a",
        "https://",
        "*,https://example.org",
        "https://a b",
        "https://*.example.org",
        "null",
        "https://example.org:port",
        "HTTPS://EXAMPLE.ORG",
    ],
)
def test_cors_origins_must_be_origins(origins: str) -> None:
    with pytest.raises(ValidationError, match="origin"):
        Settings(cors_origins=origins)


def test_origins_are_read() -> None:
    assert Settings(cors_origins=" https://a.b , http://[::1]:80,, ").cors_origins == ("https://a.b,http://[::1]:80")


# --- /docs -----------------------------------------------------------------------------------


def test_documentation_needs_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(answer.text)
    assert (page.unclosed, page.inline) == ([], [])
    assert page.tags.isdisjoint({"script", "img", "link", "iframe", "object", "form", "base"})
    assert page.values("href", "src", "action") == ["openapi.json"]
    (style,) = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    # The policy allows this style and nothing else.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    sources = re.findall(r"(\w+-src) ([^;]+)", answer.headers["content-security-policy"])
    assert sources == [("default-src", "'none'"), ("style-src", f"'sha256-{digest}'")]


def test_documentation_describes_every_operation(client: TestClient) -> None:
    text = " ".join(Page(client.get("/docs").text).text.split())
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in text
            assert operation["summary"] in text
            for parameter in operation.get("parameters", []):
                assert parameter["name"] in text
    for schema in ("AdaptRequest", "PredictRequest", "AdaptResponse", "PredictResponse"):
        for name in document["components"]["schemas"][schema]["properties"]:
            assert f" {name} " in text, name
    for words in ("list of file", "list of {image, label}", "required", "multipart/form-data"):
        assert words in text


def test_the_pages_of_the_framework_are_gone(client: TestClient) -> None:
    for path in ("/redoc", "/docs/oauth2-redirect"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "cdn" not in answer.text


def test_head_and_other_methods_of_docs(client: TestClient) -> None:
    assert client.head("/docs").status_code == 200
    check_error(client.post("/docs"), ErrorCode.METHOD_NOT_ALLOWED)
