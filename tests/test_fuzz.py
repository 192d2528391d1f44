"""Input nobody thought of: damaged images, and requests that follow the document or nearly so."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import hypothesis
import numpy as np
import pytest
import schemathesis
from fastapi.testclient import TestClient
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.conftest import image_bytes
from tests.live import LiveServer, live_server
from tests.test_api import adapt_form, predict_form

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MUTATIONS = 80


def seeds(fmt: str) -> list[bytes]:
    """Valid files, with the parts people's files have: palettes, alpha, EXIF, several frames."""
    noise = image_bytes(size=(24, 18), fmt=fmt)
    image = Image.open(io.BytesIO(noise))
    exif = Image.Exif()
    exif[0x0112] = 6
    richer = io.BytesIO()
    if fmt == "JPEG":
        image.convert("CMYK").save(richer, fmt, exif=exif, progressive=True)
    elif fmt == "BMP":
        image.quantize(16).save(richer, fmt)
    else:
        frames = [image.convert("RGBA").rotate(angle) for angle in (0, 45, 90)]
        frames[0].save(richer, fmt, save_all=True, append_images=frames[1:], duration=10)
    return [noise, richer.getvalue()]


def mutated(rng: np.random.Generator, file: bytes, other: bytes) -> bytes:
    """One file damaged in one of the ways files are."""
    data = bytearray(file)
    where = int(rng.integers(len(data)))
    match int(rng.integers(5)):
        case 0:  # some bits flipped, anywhere
            for position in rng.integers(len(data), size=int(rng.integers(1, 12))):
                data[position] ^= 1 << int(rng.integers(8))
        case 1:  # in the headers, where it matters most
            for position in rng.integers(min(64, len(data)), size=int(rng.integers(1, 4))):
                data[position] = int(rng.integers(256))
        case 2:
            del data[where:]
        case 3:
            data[where:] = other[int(rng.integers(len(other))) :]
        case _:
            data[where:where] = rng.bytes(int(rng.integers(1, 200)))
    return bytes(data)


@pytest.mark.parametrize("fmt", FORMATS)
def test_damaged_images(client: TestClient, fmt: str) -> None:
    """Each is a picture or the caller's error, never the server's."""
    client.post("/adapt", **adapt_form(name="known"))
    rng = np.random.default_rng(FORMATS.index(fmt))
    own, foreign = seeds(fmt), [data for other in FORMATS for data in seeds(other)]
    statuses = []
    for _ in range(MUTATIONS):
        data = mutated(
            rng, own[int(rng.integers(len(own)))], foreign[int(rng.integers(len(foreign)))]
        )
        answer = client.post("/predict", **predict_form(data))
        assert answer.status_code in (200, 413, 422), (data, answer.text)
        statuses.append(answer.status_code)
    assert {200, 422} <= set(statuses), "neither all harmless nor all hopeless"
    answer = client.post("/predict", **predict_form(*own))
    assert answer.status_code == 200
    assert client.get("/health/ready").json()["classifiers"] == 1


OPERATIONS_WITH_INPUT = [
    ("POST", "/adapt"),
    ("POST", "/predict"),
    ("POST", "/classifiers/{ref}/examples"),
    ("GET", "/classifiers"),
    ("GET", "/classifiers/{ref}/export"),
    ("POST", "/v2/models/{model}/infer"),
    ("POST", "/v2/models/{model}/versions/{version}/infer"),
]
OPERATIONS = [
    *OPERATIONS_WITH_INPUT,
    ("GET", "/metrics"),
    ("GET", "/models"),
    ("GET", "/classifiers/{ref}"),
    ("DELETE", "/classifiers/{ref}"),
    ("POST", "/classifiers/{ref}/promote"),
    ("POST", "/classifiers/{ref}/rollback"),
    ("GET", "/classifiers/{ref}/examples"),
    ("DELETE", "/classifiers/{ref}/examples/{number}"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models/{model}"),
    ("GET", "/v2/models/{model}/ready"),
    ("GET", "/v2/models/{model}/versions/{version}"),
    ("GET", "/v2/models/{model}/versions/{version}/ready"),
]


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("fuzz")
    with live_server(models_dir, folder, "--default-model", "tiny") as server:
        httpx2.post(f"{server.url}/adapt", **adapt_form(name="known")).raise_for_status()
        yield server
        assert httpx2.get(f"{server.url}/health/ready").status_code == 200
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def document(server: LiveServer) -> schemathesis.BaseSchema:
    """The server as its OpenAPI document describes it."""
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_operation_is_tried(document: schemathesis.BaseSchema) -> None:
    paths = cast("dict[str, dict[str, Any]]", document.raw_schema["paths"])
    assert {(m.upper(), path) for path in paths for m in paths[path]} == set(OPERATIONS)


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*operation, GenerationMode.POSITIVE) for operation in OPERATIONS]
    # The others have nothing to be wrong: any text is an id.
    + [(*operation, GenerationMode.NEGATIVE) for operation in OPERATIONS_WITH_INPUT],
)
def test_requests_made_from_the_document(
    document: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode
) -> None:
    """Right and wrong requests get documented statuses and bodies of the documented shape."""
    operation = document[path][method]

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=100, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    def check(case: Any) -> None:
        answer = case.call()
        assert answer.status_code < 500, answer.text
        case.validate_response(
            answer, checks=[status_code_conformance, response_schema_conformance]
        )

    check()
