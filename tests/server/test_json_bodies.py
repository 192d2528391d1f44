"""JSON bodies that are small to send and large to parse: several at once fit into memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import BaseModel

from comln_serve.api.receive.bodies import parse_json
from comln_serve.api.receive.requests import AdaptRequest, PredictRequest
from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from tests.support import http
from tests.support.engines import fails
from tests.support.live import LiveServer, live_server
from tests.support.processes import forget_the_highest, memory, needs_proc

SIZE = Settings.model_fields["max_json_bytes"].default
AT_ONCE = 8
MOST_GROWTH = 300 * 2**20

pytestmark = needs_proc


def body(head: bytes, unit: bytes, tail: bytes = b"") -> bytes:
    return head + unit * ((SIZE - len(head) - len(tail)) // len(unit)) + tail


HOSTILE = {
    "empty lists": body(b"[", b"[],", b"[]]"),
    "nested objects": body(b"", b'{"a":'),
    "small images": body(b'{"support":[', b'{"image":"","label":"a"},', b"0]}"),
    "small strings": body(b'{"support":[', b'"a",', b'"a"]}'),
    "one long text": body(b'{"support":[],"metadata":{"a":"', b"x", b'"}}'),
    "one long text, four bytes a character": body('{"support":[],"metadata":{"a":"\U0001f600'.encode(), b"x", b'"}}'),
}


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(models_dir, tmp_path_factory.mktemp("json")) as server:
        yield server


@pytest.mark.parametrize("path", ["/adapt", "/v2/models/known/infer"])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bodies_at_once_take_little_memory(server: LiveServer, path: str, content: bytes) -> None:
    before = forget_the_highest(server.process.pid)

    def send(_: int) -> int:
        headers = {"Content-Type": "application/json"}
        return http.post(server.url + path, content=content, headers=headers, timeout=120).status_code

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert set(pool.map(send, range(AT_ONCE))) == {422}
    assert memory(server.process.pid, "VmHWM") - before < MOST_GROWTH


@pytest.mark.parametrize(("model", "field"), [(AdaptRequest, "support"), (PredictRequest, "images")])
def test_images_are_counted_before_they_are_looked_at(model: type[BaseModel], field: str) -> None:
    """Sixty thousand support images take half a second to check, while other bodies wait for their turn."""
    entry = '{"image":"","label":"a"}'
    text = f'{{"{field}":[1,{",".join([entry] * 60_000)}]}}'.encode()
    error = fails(ErrorCode.TOO_MANY_IMAGES, lambda: parse_json(model, text, Settings()))
    assert error.message.startswith("Received 60001 images")


def test_labels_of_commas_are_no_structure() -> None:
    """The most values that a request within the other limits can seem to have."""
    settings = Settings(max_images=50, max_label_length=200)
    item = f'{{"image": "QQ==", "label": "{"," * 200}"}}'
    text = f'{{"support": [{", ".join([item] * 50)}]}}'.encode()
    assert len(parse_json(AdaptRequest, text, settings).support) == 50
    text = b'{"support": [' + b"[]," * 100_000 + b"[]]}"
    error = fails(ErrorCode.INVALID_REQUEST, lambda: parse_json(AdaptRequest, text, settings))
    assert error.detail["received_separators"] > error.detail["allowed_separators"]
    assert "200003 commas and opening brackets" in error.message
