"""What OpenAPI cannot derive: routes that take the same request as a form or as JSON."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from comln_serve.api.bodies import JSON, MULTIPART
from comln_serve.api.open_inference.schemas import InferenceRequest
from comln_serve.api.requests import AdaptRequest, ExamplesRequest, PredictRequest


def openapi_body(model: type[BaseModel], repeated: Sequence[str]) -> dict[str, Any]:
    """`openapi_extra` for a route that takes a form or JSON; the JSON schema is `model`'s.

    Args:
        model: the request in JSON. repeated: its multipart counterpart of the images.
    """
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    options = {
        name: field
        for name, field in schema["properties"].items()
        if name not in ("support", "images")
    }
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
    """Add the schemas that only `openapi_extra` refers to."""
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
