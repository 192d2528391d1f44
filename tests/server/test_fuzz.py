"""Requests that Schemathesis makes from the OpenAPI document, right and wrong, get documented answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.support import http
from tests.support.fuzzing import OPERATIONS, OPERATIONS_WITH_INPUT, few_or_many, try_all
from tests.support.live import LiveServer, live_server
from tests.support.messages import GREEN, PAIR, RED, adapt_form, b64


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("fuzz")
    with live_server(models_dir, folder, "--default-model", "tiny", "--keep-thumbnails") as server:
        http.post(f"{server.url}/adapt", **adapt_form(name="known")).raise_for_status()
        yield server
        assert http.get(f"{server.url}/health/ready").status_code == 200
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def document(server: LiveServer) -> schemathesis.BaseSchema:
    """The server as its OpenAPI document describes it."""
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_operation_is_tried(document: schemathesis.BaseSchema) -> None:
    paths = cast("dict[str, dict[str, Any]]", document.raw_schema["paths"])
    assert {(m.upper(), path) for path in paths for m in paths[path]} == set(OPERATIONS)


@few_or_many
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*operation, GenerationMode.POSITIVE) for operation in OPERATIONS]
    # The others have nothing to be wrong: any text is an id.
    + [
        (*operation, GenerationMode.NEGATIVE)
        for operation in [*OPERATIONS_WITH_INPUT, ("DELETE", "/classifiers/{ref}/examples/{number}")]
    ],
)
def test_requests_made_from_the_document(
    document: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode, examples: int
) -> None:
    """Right and wrong requests get documented statuses and bodies of the documented shape."""
    try_all(document[path][method].as_strategy(generation_mode=mode), examples)


@few_or_many
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_about_what_is_there(
    server: LiveServer, document: schemathesis.BaseSchema, method: str, path: str, examples: int
) -> None:
    """The same with references, images and keys that exist: they get past the first check, and some succeed."""

    def prepare(case: Any, data: st.DataObject) -> None:
        newest = 1
        if method == "DELETE" or path.endswith(("rollback", "thumbnail")) or "{version}" in path:
            body = adapt_form(PAIR * 2, name="known")
            newest = http.post(f"{server.url}/adapt", **body).raise_for_status().json()["version"]
        if case.media_type == "application/octet-stream":
            case.body = http.get(f"{server.url}/classifiers/known/support").content
        else:
            make_sensible(case, data, newest)

    strategy = document[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE)
    seen = try_all(strategy, examples, prepare)
    assert seen & {200, 201, 204}, seen


def make_sensible(case: Any, data: st.DataObject, newest: int) -> None:
    """Put what is there in the place of what was made up."""
    reference = data.draw(st.sampled_from(["known", "known", "known@1", "known@2"]))
    if "ref" in case.path_parameters:
        case.path_parameters["ref"] = reference
    if "model" in case.path_parameters:
        case.path_parameters["model"] = "known"
    if "version" in case.path_parameters:
        case.path_parameters["version"] = data.draw(st.sampled_from([str(newest), "1"]))
    if case.path.endswith("/infer"):
        image = {"name": "IMAGE", "shape": [1], "datatype": "BYTES", "data": [b64(RED)]}
        case.body["inputs"] = [image]
        if data.draw(st.booleans()):
            case.body.pop("outputs", None)
    if "number" in case.path_parameters:
        case.path_parameters["number"] = data.draw(st.integers(1, 4))
    if "number" in (case.query or {}):
        case.query["number"] = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    if case.path.endswith("/rollback"):
        case.path_parameters["ref"] = "known"
    if "Idempotency-Key" in (case.headers or {}) and data.draw(st.booleans()):
        case.headers["Idempotency-Key"] = "fuzz"
    if case.method == "PATCH" and "name" in case.body:
        case.body["name"] = "known"  # under another one it would not be found again
    if case.method == "POST" and not case.path_parameters.keys() - {"ref"} and case.media_type:
        hypothesis.assume(case.media_type == "application/json")
        body = case.body if isinstance(case.body, dict) else {}  # one route may be asked without a body
        body.pop("model", None)
        if "classifier" in body:
            body["classifier"] = reference
        if "labels" in body:
            known = ("1", "2") if case.path.endswith("/examples/labels") else ("red", "green")
            body["labels"] = dict(zip(known, body["labels"].values(), strict=False))
        if "images" in body:
            body["images"] = [b64(RED) for _ in body["images"]] or [b64(GREEN)]
        for position, item in enumerate(body.get("support", ())):
            item["image"] = b64((RED, GREEN)[position % 2])
