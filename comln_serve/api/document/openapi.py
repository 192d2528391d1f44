"""Adds to the OpenAPI document what FastAPI cannot derive: bodies that may be a form or JSON, API
keys, and the errors that any route may answer with.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from pydantic import BaseModel

from comln_serve.api.authentication import scopes_of
from comln_serve.api.browsers.guard import SAFE_METHODS
from comln_serve.api.context import OPEN_INFERENCE
from comln_serve.api.errors import STATUS
from comln_serve.api.open_inference.schemas import InferenceRequest, ProtocolError
from comln_serve.api.receive.bodies import JSON, MULTIPART
from comln_serve.api.receive.parameters import takes_any_query
from comln_serve.api.receive.requests import AdaptRequest, ExamplesRequest, PredictRequest
from comln_serve.api.schemas import ErrorResponse
from comln_serve.errors import ErrorCode
from comln_serve.security import Scope

_KEY_ERRORS = (ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.RATE_LIMITED, ErrorCode.STORAGE_UNAVAILABLE)


def openapi_body(model: type[BaseModel], repeated: Sequence[str]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes a form or JSON.

    Args:
        model: wire type of the JSON body.
        repeated: multipart fields that replace the model's images.
    """
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    options = {name: field for name, field in schema["properties"].items() if name not in ("support", "images")}
    kinds = {
        "images": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "labels": {"type": "array", "items": {"type": "string"}},
    }
    required = [name for name in schema.get("required", []) if name in options]
    form = {
        "type": "object",
        "properties": {**{name: kinds[name] for name in repeated}, **options},
        "required": [*repeated, *required],
    }
    encoding = {name: {"style": "form", "explode": True} for name in repeated}
    content = {
        MULTIPART: {"schema": form, "encoding": encoding},
        JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}},
    }
    return {"requestBody": {"required": True, "content": content}}


def describe_bodies(app: FastAPI) -> None:
    """Add the schemas that only `openapi_extra` references."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document["components"]["schemas"]
        for model in (AdaptRequest, ExamplesRequest, PredictRequest, InferenceRequest):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def describe_failures(app: FastAPI) -> None:
    """Add the errors of any route: INTERNAL, unknown query parameters, requests of other sites."""

    def describe(operation: dict[str, Any], route: RouteContext) -> None:
        unknown = () if takes_any_query(route.endpoint) else (ErrorCode.INVALID_REQUEST,)
        safe = SAFE_METHODS.issuperset(route.methods or ())
        page = () if safe else (ErrorCode.FOREIGN_ORIGIN,)
        errors = (*unknown, *page, ErrorCode.FOREIGN_HOST, ErrorCode.INTERNAL)
        _add_errors(operation, errors, str(route.path_format))

    _describe_each(app, describe)


def describe_keys(app: FastAPI) -> None:
    """Add the scopes that each operation accepts, and its errors for other keys."""

    def describe(operation: dict[str, Any], route: RouteContext) -> None:
        if scopes := scopes_of(route.endpoint):
            any_of = dict.fromkeys((*scopes, Scope.ADMIN))
            operation["security"] = [{"key": [scope]} for scope in any_of]
            _add_errors(operation, _KEY_ERRORS, str(route.path_format))

    _describe_each(app, describe)
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "comln-serve keys create"}
        }
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_each(app: FastAPI, describe: Callable[[dict[str, Any], RouteContext], None]) -> None:
    """Apply `describe` to each operation whenever the document is requested.

    FastAPI caches the document, so `describe` must leave an operation it has changed as it is.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        for route in iter_route_contexts(app.routes):
            for method in route.methods or ():
                operation = document["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    describe(operation, route)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_errors(operation: dict[str, Any], errors: Sequence[ErrorCode], path: str) -> None:
    responses = operation["responses"]
    for code in errors:
        empty = {"description": "", "content": _error_shape(path)}
        answer = responses.setdefault(str(STATUS[code]), empty)
        codes = dict.fromkeys([*filter(None, answer["description"].split(", ")), code.value])
        answer["description"] = ", ".join(codes)
    operation["responses"] = dict(sorted(responses.items()))


def _error_shape(path: str) -> dict[str, Any]:
    of_protocol = f"{path}/".startswith(f"{OPEN_INFERENCE}/")
    model = ProtocolError if of_protocol else ErrorResponse
    return {JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
