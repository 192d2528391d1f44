"""The OpenAPI document."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.errors import ErrorCode


def test_document_has_one_error_shape_and_no_loose_end(service: TestClient) -> None:
    document = service.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    references = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                references.add(node["$ref"])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    assert references == {f"#/components/schemas/{name}" for name in references_of(references)}
    assert references_of(references) <= set(schemas)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    schema = response["content"]["application/json"]["schema"]
                    shape = "ProtocolError" if path.startswith("/v2") else "ErrorResponse"
                    assert schema == {"$ref": f"#/components/schemas/{shape}"}, (path, status)
    assert set(schemas["ErrorCode"]["enum"]) == {code.value for code in ErrorCode}


def references_of(references: set[str]) -> set[str]:
    return {reference.rpartition("/")[2] for reference in references}


@pytest.mark.parametrize("path", ["/adapt", "/predict"])
def test_document_describes_both_encodings(service: TestClient, path: str) -> None:
    body = service.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]
    assert body["required"]
    form = body["content"]["multipart/form-data"]["schema"]
    options = {
        "/adapt": {"model", "name", "horizon", "promote", "metadata", "expires_in_seconds"},
        "/predict": {"classifier", "top_k", "unknown"},
    }[path]
    images = {"images", "labels"} if path == "/adapt" else {"images"}
    assert set(form["properties"]) == options | images
    assert set(form["required"]) == images | ({"classifier"} & options)
    assert "application/json" in body["content"]
