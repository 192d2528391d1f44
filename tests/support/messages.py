"""Requests as tests send them, and what they expect of every answer."""

import base64
import io
from collections.abc import Iterator
from typing import Any

from fastapi.testclient import TestClient
from PIL import Image

from comln_serve.api.errors import STATUS
from comln_serve.engine.engine import Engine
from comln_serve.errors import ErrorCode
from tests.support.image_files import image_bytes

Support = list[tuple[bytes, str]]

MAX_IMAGES, MAX_BYTES, MAX_PIXELS, MAX_BODY, MAX_LABEL = 10, 20_000, 10_000, 100_000, 16
RED, GREEN = image_bytes((220, 30, 30)), image_bytes((30, 220, 30))
PAIR: Support = [(RED, "red"), (GREEN, "green")]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def adapt_form(support: Support = PAIR, **options: Any) -> dict[str, Any]:
    return {
        "files": [("images", ("image", data)) for data, _ in support],
        "data": {"labels": [label for _, label in support], **options},
    }


def adapt_json(support: Support = PAIR, **options: Any) -> dict[str, Any]:
    items = [{"image": b64(data), "label": label} for data, label in support]
    return {"json": {"support": items, **options}}


def adapt(client: TestClient, support: Support = PAIR, *, headers: Any = None, **options: Any) -> dict[str, Any]:
    """The classifier that a request for it makes."""
    answer = client.post("/adapt", headers=headers, **adapt_json(support, **options))
    assert answer.status_code == 201, answer.text
    return answer.json()


def predict_form(*images: bytes, **options: Any) -> dict[str, Any]:
    files = [("images", ("image", data)) for data in images]
    return {"files": files, "data": {"classifier": "known", **options}}


def predict_json(*images: bytes, **options: Any) -> dict[str, Any]:
    return {"json": {"images": [b64(data) for data in images], "classifier": "known", **options}}


def multipart(*parts: tuple[str, bytes], content_type: str | None = None) -> dict[str, Any]:
    """A body by hand; each part is what follows `name=`, and the content."""
    body = b"".join(
        b"--edge\r\nContent-Disposition: form-data; name=" + name.encode() + b"\r\n\r\n" + content + b"\r\n"
        for name, content in parts
    )
    header = content_type or "multipart/form-data; boundary=edge"
    return {"content": body + b"--edge--\r\n", "headers": {"Content-Type": header}}


def raw(content: bytes | Iterator[bytes], content_type: str | None = "application/json") -> dict[str, Any]:
    headers = {} if content_type is None else {"Content-Type": content_type}
    return {"content": content, "headers": headers}


def file_part(data: bytes) -> tuple[str, bytes]:
    return '"images"; filename="f"', data


def engine_of(client: TestClient) -> Engine:
    engine = client.app.state.engine  # type: ignore[attr-defined]
    assert isinstance(engine, Engine)
    return engine


def check_error(answer: Any, code: ErrorCode) -> dict[str, Any]:
    """The one shape; returns what is inside."""
    assert answer.status_code == STATUS[code], answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"code", "message", "detail", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    assert error["code"] == code.value, error
    assert isinstance(error["detail"], dict)
    assert len(error["message"]) > 10
    assert ("retry-after" in answer.headers) == (answer.status_code in (429, 503))
    return error


def check_still_serving(client: TestClient) -> None:
    assert client.get("/health/ready").status_code == 200
    assert client.post("/predict", **predict_form(GREEN)).json()["predictions"][0]["label"] in ("red", "green")
    engine = engine_of(client)
    assert (engine.images.pending, client.app.state.requests.pending) == (0, 0)  # type: ignore[attr-defined]


def flat_png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()
