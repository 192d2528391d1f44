"""The OpenAPI document names every operation, its encodings, and the one shape of error."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve import __version__
from comln_serve.errors import ErrorCode
from tests.support.keyed import keyed, keyed_settings

__all__ = ["keyed", "keyed_settings"]  # fixtures


def test_document_has_one_error_shape_and_no_loose_end(service: TestClient) -> None:
    document = service.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert document["info"]["version"] == __version__
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


def codes(operation: Any, status: int) -> set[str]:
    """The error codes that a document names under a status."""
    responses = operation["responses"]
    return set(responses.get(str(status), {"description": ""})["description"].split(", "))


def test_what_every_operation_may_answer(service: TestClient) -> None:
    service.get("/openapi.json")  # asked for twice, nothing is added twice
    paths = service.get("/openapi.json").json()["paths"]
    operations = {(path, method): paths[path][method] for path in paths for method in paths[path]}
    polled = {"/health/live", "/health/ready", "/metrics", "/v2/health/live", "/v2/health/ready"}
    for (path, method), operation in operations.items():
        assert operation["responses"]["500"]["description"] == "internal", (path, method)
        told = [answer["description"].split(", ") for answer in operation["responses"].values()]
        assert all(len(codes) == len(set(codes)) for codes in told), (path, method)
        assert operation["responses"]["421"]["description"] == "foreign_host", (path, method)
        assert ("foreign_origin" in codes(operation, 403)) == (method != "get"), (path, method)
        unknown_parameters = "invalid_request" in codes(operation, 422)
        assert unknown_parameters == (path not in polled), (path, method)
        # Whoever waits for the store may be caught by the end of the server.
        if "storage_unavailable" in codes(operation, 503):
            assert "not_ready" in codes(operation, 503), (path, method)
    for path in ("/adapt", "/predict", "/classifiers/{ref}/examples", "/v2/models/{model}/infer"):
        expected = {"not_ready", "queue_timeout", "storage_unavailable"}
        assert codes(operations[path, "post"], 503) == expected


def test_keys_are_described_where_they_are_required(service: TestClient, keyed: TestClient) -> None:
    without, document = (client.get("/openapi.json").json() for client in (service, keyed))
    assert "securitySchemes" not in without["components"]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            plain, needs_key = without["paths"][path][method], "/health/" not in path
            assert ("security" in operation, "security" in plain) == (needs_key, False)
            for status, code in ((401, "unauthorized"), (403, "forbidden"), (429, "rate_limited")):
                assert (code in codes(operation, status)) == needs_key, (path, method, status)
                assert code not in codes(plain, status)
            assert list(operation["responses"]) == sorted(operation["responses"])
    assert "rate_limited" in keyed.get("/docs").text
    # Any one of them is enough.
    security = {path: document["paths"][path]["get"]["security"] for path in ("/models", "/metrics")}
    assert security == {
        "/models": [{"key": [s]} for s in ("predict", "adapt", "admin")],
        "/metrics": [{"key": ["admin"]}],
    }


def test_a_parameter_that_may_be_repeated(service: TestClient) -> None:
    operation = service.get("/openapi.json").json()["paths"]["/classifiers/{ref}/examples"]["delete"]
    number, promote = [item for item in operation["parameters"] if item["in"] == "query"]
    assert (number["name"], number["required"], promote["name"], promote["required"]) == (
        "number",
        True,
        "promote",
        False,
    )
    assert {key: number["schema"][key] for key in ("type", "minItems", "maxItems")} == {
        "type": "array",
        "minItems": 1,
        "maxItems": 500,
    }
    assert number["schema"]["items"] == {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
    assert "example_not_found" in codes(operation, 404)


def references_of(references: set[str]) -> set[str]:
    return {reference.rpartition("/")[2] for reference in references}


@pytest.mark.parametrize("path", ["/adapt", "/predict"])
def test_document_describes_both_encodings(service: TestClient, path: str) -> None:
    body = service.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]
    assert body["required"]
    form = body["content"]["multipart/form-data"]["schema"]
    options = {
        "/adapt": {"model", "name", "horizon", "promote", "metadata", "expires_in_seconds", "partial"},
        "/predict": {"classifier", "top_k", "unknown", "examples", "all_views", "partial"},
    }[path]
    images = {"images", "labels"} if path == "/adapt" else {"images"}
    assert set(form["properties"]) == options | images
    assert form["additionalProperties"] is False
    assert set(form["required"]) == images | ({"classifier"} & options)
    assert "application/json" in body["content"]


def test_operations_have_short_names(service: TestClient) -> None:
    """Generators of clients name functions by them."""
    paths = service.get("/openapi.json").json()["paths"]
    names = {(method, path): operation["operationId"] for path in paths for method, operation in paths[path].items()}
    assert len(set(names.values())) == len(names)
    some = [("post", "/predict"), ("get", "/health/live"), ("get", "/v2/health/live"), ("get", "/v2/models/{model}")]
    assert [names[one] for one in some] == ["predict", "live", "v2_live", "v2_metadata"]
    assert names["get", "/v2/models/{model}/versions/{version}"] == "v2_metadata_of_version"
    assert [names["get", path] for path in ("/classifiers", "/classifiers/{ref}", "/models")] == [
        "list_classifiers",
        "get_classifier",
        "list_models",
    ]
    keywords = {"break", "default", "delete", "export", "func", "import", "new", "package", "select", "switch", "type"}
    assert keywords.isdisjoint(names.values())  # of TypeScript and of Go


def test_metadata_in_a_form_is_a_text(service: TestClient) -> None:
    """openapi-generator's Go client sends an object as fields `metadata[key]`, which the server refuses."""
    content = service.get("/openapi.json").json()["paths"]["/adapt"]["post"]["requestBody"]["content"]
    metadata = content["multipart/form-data"]["schema"]["properties"]["metadata"]
    assert (metadata["type"], metadata["contentMediaType"]) == ("string", "application/json")
    assert metadata["description"].endswith("As JSON.")


def test_defaults_are_in_words(service: TestClient) -> None:
    """openapi-typescript would make a field with a default a required one; a null or an object is no Go code."""
    document = service.get("/openapi.json").json()
    forms = [
        operation["requestBody"]["content"].get("multipart/form-data", {"schema": {}})["schema"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    for schema in (*document["components"]["schemas"].values(), *forms):
        for name, field in schema.get("properties", {}).items():
            assert "default" not in field, name
    request = document["components"]["schemas"]["PredictRequest"]
    assert request["required"] == ["classifier", "images"]
    assert request["properties"]["top_k"]["description"].endswith("Default: 5.")
    assert request["properties"]["unknown"]["description"].endswith("Default: false.")
    assert "Default" not in document["components"]["schemas"]["AdaptRequest"]["properties"]["model"]["description"]


def test_fields_that_are_left_out_are_not_null_in_the_document(service: TestClient) -> None:
    schemas = service.get("/openapi.json").json()["components"]["schemas"]
    prediction = schemas["Prediction"]
    assert prediction["required"] == ["label", "probability", "top"]
    assert prediction["properties"]["similarity"]["type"] == "number"
    assert prediction["properties"]["unknown"]["anyOf"] == [{"type": "boolean"}, {"type": "null"}]
    assert schemas["PredictResponse"]["properties"]["predictions"]["items"]["anyOf"] == [
        {"$ref": "#/components/schemas/Prediction"},
        {"type": "null"},
    ]
    for name in ("AdaptResponse", "PredictResponse"):
        assert schemas[name]["properties"]["rejected"]["type"] == "array"
        assert "rejected" not in schemas[name]["required"]


def test_headers_of_answers(service: TestClient) -> None:
    paths = service.get("/openapi.json").json()["paths"]
    operations = [(path, operation) for path, methods in paths.items() for operation in methods.values()]
    for path, operation in operations:
        for status, answer in operation["responses"].items():
            assert ("Retry-After" in answer.get("headers", {})) == (status in ("429", "503")), (path, status)
        takes_key = any(item["name"] == "Idempotency-Key" for item in operation.get("parameters", []))
        made = operation["responses"].get("201", {}).get("headers", {})
        assert ("Idempotency-Replayed" in made) == takes_key, path
    thumbnail = paths["/classifiers/{ref}/examples/{number}/thumbnail"]["get"]["responses"]
    assert all("ETag" in thumbnail[status]["headers"] for status in ("200", "304"))
    exported = paths["/classifiers/{ref}/export"]["get"]["responses"]["200"]
    assert "Content-Disposition" in exported["headers"]


def test_document_says_where_the_server_is_and_its_licence(service: TestClient) -> None:
    document = service.get("/openapi.json").json()
    assert [server["url"] for server in document["servers"]] == ["/"]
    assert document["info"]["license"]["identifier"] == "Apache-2.0"


def test_what_cannot_be_null_is_not_described_so(service: TestClient) -> None:
    """A parameter; a field of a form."""
    paths = service.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            schemas = [item["schema"] for item in operation.get("parameters", [])]
            form = operation.get("requestBody", {}).get("content", {}).get("multipart/form-data")
            schemas += form["schema"]["properties"].values() if form else []
            for schema in schemas:
                assert {"type": "null"} not in schema.get("anyOf", []), (method, path, schema)
    form = paths["/adapt"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert {key: form["expires_in_seconds"][key] for key in ("type", "minimum")} == {"type": "integer", "minimum": 1}
    assert [kind["type"] for kind in form["horizon"]["anyOf"]] == ["number", "string"]


def test_what_is_always_refused_does_not_fit_the_document(service: TestClient) -> None:
    """So that generators and fuzzers do not make it: no image, a blank label, no change, too much metadata."""
    schemas = service.get("/openapi.json").json()["components"]["schemas"]
    fields = {name: schemas[name]["properties"] for name in ("AdaptRequest", "ExamplesRequest", "PredictRequest")}
    assert fields["AdaptRequest"]["support"]["minItems"] == fields["ExamplesRequest"]["support"]["minItems"] == 1
    assert fields["PredictRequest"]["images"]["minItems"] == schemas["EditRequest"]["minProperties"] == 1
    assert schemas["SupportImage"]["properties"]["label"]["pattern"] == r"\S"
    metadata = fields["AdaptRequest"]["metadata"]["anyOf"][0]
    assert metadata["maxProperties"] == 32
    assert "maxLength" not in metadata
    for name, most in (("RenameRequest", None), ("RelabelRequest", 500)):
        labels = schemas[name]["properties"]["labels"]
        assert (labels["minProperties"], labels.get("maxProperties")) == (1, most)
        assert labels["additionalProperties"]["pattern"] == r"\S"
