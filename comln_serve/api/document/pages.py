"""`/docs`: all operations on one plain page.

FastAPI's own pages load their scripts from a content delivery network. Browsers in a closed network
cannot reach it, and it would see who uses the server. This page loads nothing: it has no script and
one style sheet, allowed by its hash.
"""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid #8886; padding-top: 1rem; font-size: 1.15rem; }
code { font-family: ui-monospace, monospace; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { border: 1px solid #8886; padding: .2rem .6rem; text-align: left; vertical-align: top; }
:root { color-scheme: light dark; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'"

Json = Mapping[str, Any]


def install_documentation(app: FastAPI) -> None:
    """Serve `/docs`, made from the application's OpenAPI document."""

    @cache
    def text() -> str:
        return documentation(app.openapi())

    async def page(_request: Request) -> HTMLResponse:
        return HTMLResponse(text(), headers={"Content-Security-Policy": _POLICY})

    app.add_route("/docs", page, include_in_schema=False)


def documentation(document: Json) -> str:
    """The page for an OpenAPI document."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    operations = "".join(
        _operation(document, method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{escape(info.get('summary', ''))}</p>"
        '<p>For programs and API clients: <a href="openapi.json">openapi.json</a>.</p>'
        f"{operations}</body></html>\n"
    )


def _operation(document: Json, method: str, path: str, operation: Json) -> str:
    parameters, answers = operation.get("parameters", []), operation["responses"]
    required = [item["name"] for item in parameters if item.get("required")]
    schema = {"properties": {item["name"]: item["schema"] for item in parameters}, "required": required}
    tables = [_fields(document, "Parameters", schema)]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        tables.append(_fields(document, f"Body as {kind}", content["schema"]))
    tables.append(_table("Answers", [(status, answer["description"]) for status, answer in answers.items()]))
    for status, answer in answers.items():
        for kind, content in answer.get("content", {}).items() if int(status) < 400 else ():
            tables.append(_fields(document, f"Answer {status} as {kind}", content["schema"]))
    return (
        f"<h2><code>{method.upper()} {escape(path)}</code> {escape(operation['summary'])}</h2>"
        f"<p>{escape(operation.get('description', ''))}</p>{''.join(tables)}"
    )


def _fields(document: Json, heading: str, schema: Json) -> str:
    """A table of an object's fields."""
    schema = _resolved(document, schema)
    rows: list[tuple[str, ...]] = []
    for name, field in schema.get("properties", {}).items():
        needed = "required" if name in schema.get("required", []) else ""
        rows.append((name, _type(document, field), needed, field.get("description", "")))
    return _table(heading, rows)


def _type(document: Json, schema: Json) -> str:
    """A schema in a few words, such as "list of {image, label}"."""
    schema = _resolved(document, schema)
    if "anyOf" in schema:
        return " or ".join(_type(document, option) for option in schema["anyOf"])
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        return "list of " + _type(document, schema.get("items", {}))
    if "properties" in schema:
        return "{" + ", ".join(schema["properties"]) + "}"
    kind = str(schema.get("format") or schema.get("contentEncoding") or schema.get("type", "any"))
    return "file" if kind == "binary" else kind


def _resolved(document: Json, schema: Json) -> Json:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _table(heading: str, rows: list[tuple[str, ...]]) -> str:
    lines = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<h3>{escape(heading)}</h3><table>{''.join(lines)}</table>" if lines else ""
