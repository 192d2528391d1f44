"""Adds to the OpenAPI document what FastAPI cannot derive: bodies that may be a form or JSON, API
keys, and the errors that any route may answer with.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from comln_serve.api.authentication import scopes_of
from comln_serve.api.browsers.guard import SAFE_METHODS
from comln_serve.api.context import OPEN_INFERENCE
from comln_serve.api.errors import STATUS
from comln_serve.api.open_inference.schemas import InferenceRequest, ProtocolError
from comln_serve.api.receive import requests
from comln_serve.api.receive.bodies import JSON, MULTIPART
from comln_serve.api.receive.parameters import takes_any_query
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
_KEY_ERRORS = (ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.RATE_LIMITED, ErrorCode.STORAGE_UNAVAILABLE)


def openapi_body(model: type[BaseModel], repeated: Sequence[str], *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` for a route that takes a form or JSON.

    Args:
        model: wire type of the JSON body.
        repeated: multipart fields that replace the model's images.
        required: whether the request must have a body.
    """
    schema = model.model_json_schema(ref_template=_REFERENCE)
    options = {
        name: _without_null(field) for name, field in schema["properties"].items() if name not in ("support", "images")
    }
    kinds = {
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1},
        "labels": {"type": "array", "items": {"type": "string", "pattern": r"\S"}, "minItems": 1},
    }
    needed = [name for name in schema.get("required", []) if name in options]
    form = {
        "type": "object",
        "properties": {**{name: kinds[name] for name in repeated}, **options},
        "required": [*repeated, *needed],
        "additionalProperties": False,
    }
    encoding = {name: {"style": "form", "explode": True} for name in repeated}
    content = {MULTIPART: {"schema": form, "encoding": encoding}, **_json_of(model)}
    return {"requestBody": {"required": required, "content": content}}


def _without_null(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an option as a field of a form, which cannot be null: it is left out."""
    if "anyOf" not in field:
        return dict(field)
    kinds = [kind for kind in field["anyOf"] if kind.get("type") != "null"]
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return {**kinds[0], **rest} if len(kinds) == 1 else {**rest, "anyOf": kinds}


def operation_id(route: APIRoute) -> str:
    """What generators of clients call an operation: the name of its function, without path and method."""
    if not route.path.startswith(OPEN_INFERENCE):
        return route.name
    return f"v2_{route.name}{'_of_version' * ('{version}' in route.path)}"


def openapi_json(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes JSON only, of this wire type."""
    return {"requestBody": {"required": True, "content": _json_of(model)}}


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
        for route in iter_route_contexts(app.routes):
            for method in route.methods or ():
                operation = document["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    _complete_operation(operation, method, route, with_keys)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _complete_operation(operation: dict[str, Any], method: str, route: RouteContext, with_keys: bool) -> None:
    """Add the scopes that are accepted and the errors of any route."""
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":  # optional in the function, if another of its routes is without it
            parameter["schema"] = _without_null(parameter["schema"])
    errors = [ErrorCode.FOREIGN_HOST, ErrorCode.INTERNAL]
    if not takes_any_query(route.endpoint):
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
    operation["responses"] = dict(sorted(responses.items()))
