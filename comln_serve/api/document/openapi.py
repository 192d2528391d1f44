"""Adds to the OpenAPI document what FastAPI cannot derive: bodies that may be a form or JSON, API
keys, headers of answers, and the errors that any route may answer with.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from comln_serve.api.authentication import scopes_of
from comln_serve.api.browsers import SAFE_METHODS
from comln_serve.api.context import OPEN_INFERENCE, POLLED
from comln_serve.api.errors import STATUS
from comln_serve.api.open_inference.schemas import InferenceRequest, ProtocolError
from comln_serve.api.receive import requests
from comln_serve.api.receive.bodies import JSON, MULTIPART
from comln_serve.api.schemas import ErrorResponse
from comln_serve.errors import ErrorCode
from comln_serve.security.keys import Scope

_REFERENCE = "#/components/schemas/{model}"
_BODIES = (
    requests.AdaptRequest,
    requests.AgainOptions,
    requests.EditRequest,
    requests.ExamplesRequest,
    requests.PredictRequest,
    requests.RelabelRequest,
    requests.RenameRequest,
    InferenceRequest,
)


def header(meaning: str, kind: str) -> dict[str, Any]:
    """A header of an answer, as the document describes it."""
    return {"description": meaning, "schema": {"type": kind}}


_RETRY_AFTER = header("Seconds to wait before the request is sent again.", "integer")
_REPLAYED = header("`true`, if an earlier request with the same key made the classifier; else left out.", "string")
_KEY_ERRORS = (ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.RATE_LIMITED, ErrorCode.STORAGE_UNAVAILABLE)


def openapi_body(
    model: type[BaseModel], repeated: Sequence[str] | None = None, *, required: bool = True
) -> dict[str, Any]:
    """`openapi_extra` for a route with a body.

    Args:
        model: wire type of the JSON body.
        repeated: of a route that takes a form, too: its fields that replace the model's images.
        required: whether the request must have a body.
    """
    form = {} if repeated is None else _form_of(model, repeated)
    return {"requestBody": {"required": required, "content": {**form, **_json_of(model)}}}


def _form_of(model: type[BaseModel], repeated: Sequence[str]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_REFERENCE)
    options = {
        name: _without_null(field) for name, field in schema["properties"].items() if name not in ("support", "images")
    }
    kinds = {
        # Without `minItems`, of which openapi-generator makes Go that does not compile. A form without images lacks the
        # required field anyway.
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "labels": {"type": "array", "items": {"type": "string", "pattern": r"\S"}, "minItems": 1},
    }
    if "metadata" in options:  # a text: of an object generators make fields of their own, `metadata[key]`
        text = {
            "type": "string",
            "contentMediaType": JSON,
            "description": f"{options['metadata']['description']} As JSON.",
        }
        options["metadata"] = text
    needed = [name for name in schema.get("required", []) if name in options]
    form = {
        "type": "object",
        "properties": {**{name: kinds[name] for name in repeated}, **options},
        "required": [*repeated, *needed],
        "additionalProperties": False,
    }
    _move_defaults(form)
    encoding = {name: {"style": "form", "explode": True} for name in repeated}
    return {MULTIPART: {"schema": form, "encoding": encoding}}


def operation_id(route: APIRoute) -> str:
    """What generators of clients call an operation: the name of its function, without path and method."""
    if not route.path.startswith(OPEN_INFERENCE):
        return route.name
    return f"v2_{route.name}{'_of_version' * ('{version}' in route.path)}"


def _json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}


def complete_document(app: FastAPI, *, with_keys: bool) -> None:
    """Have the application add to its document what FastAPI cannot derive.

    FastAPI's `Security` would say that a key needs all scopes of a route instead of one of them, and
    would say so of a server without keys, too.
    """
    generate = app.openapi

    @cache  # making it takes the event loop 20 ms
    def openapi() -> dict[str, Any]:
        document = generate()
        _, bodies = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_REFERENCE)
        document["components"]["schemas"].update(bodies["$defs"])
        if with_keys:
            scheme = {"type": "http", "scheme": "bearer", "description": "comln-serve keys create"}
            document["components"]["securitySchemes"] = {"key": scheme}
        _move_defaults(document["components"]["schemas"])
        for route in iter_route_contexts(app.routes):
            for method in route.methods or ():
                operation = document["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    _complete_operation(operation, method, route, with_keys)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _complete_operation(operation: dict[str, Any], method: str, route: RouteContext, with_keys: bool) -> None:
    """Add the scopes that are accepted and the errors of any route."""
    parameters = operation.get("parameters", [])
    for parameter in parameters:  # none can be null: they are left out
        parameter["schema"] = _without_null(parameter["schema"])
    errors = [ErrorCode.FOREIGN_HOST, ErrorCode.INTERNAL]
    if route.path_format not in POLLED:
        errors.append(ErrorCode.INVALID_REQUEST)
    if method not in SAFE_METHODS:
        errors.append(ErrorCode.FOREIGN_ORIGIN)
    scopes = scopes_of(route.endpoint)
    if with_keys and scopes:
        operation["security"] = [{"key": [scope]} for scope in dict.fromkeys((*scopes, Scope.ADMIN))]
        errors += _KEY_ERRORS
    responses = operation["responses"]
    of_protocol = f"{route.path_format}/".startswith(f"{OPEN_INFERENCE}/")
    model = ProtocolError if of_protocol else ErrorResponse
    for code in errors:
        answer = responses.setdefault(str(STATUS[code]), {"description": "", "content": _json_of(model)})
        codes = dict.fromkeys([*filter(None, answer["description"].split(", ")), code.value])
        answer["description"] = ", ".join(codes)
    for status in ("429", "503"):
        if status in responses:
            responses[status]["headers"] = {"Retry-After": _RETRY_AFTER}
    if any(parameter["name"] == "Idempotency-Key" for parameter in parameters):
        responses["201"]["headers"] = {"Idempotency-Replayed": _REPLAYED}
    operation["responses"] = dict(sorted(responses.items()))


def _without_null(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a field that may be left out, but not be null."""
    if "anyOf" not in field:
        return dict(field)
    kinds = [kind for kind in field["anyOf"] if kind.get("type") != "null"]
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return {**kinds[0], **rest} if len(kinds) == 1 else {**rest, "anyOf": kinds}


def _move_defaults(schema: Any) -> None:
    """Say the default of every field in its description, in place.

    openapi-typescript makes a field with a `default` a required one, and generators for Go write no valid code for an
    object as default. What is sent without the field gets the server's default in any case.
    """
    if isinstance(schema, list):
        for item in schema:
            _move_defaults(item)
    if not isinstance(schema, dict):
        return
    for field in schema.get("properties", {}).values():
        default = field.pop("default", None)
        if default is not None and isinstance(default, bool | int | float | str) and default != "":
            words = [field["description"]] if "description" in field else []
            field["description"] = " ".join([*words, f"Default: {json.dumps(default)}."])
    for item in schema.values():
        _move_defaults(item)
