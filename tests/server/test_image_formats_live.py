"""HEIC, AVIF and TIFF files over HTTP, and which formats a server accepts."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comln_serve.configuration.settings import Settings
from comln_serve.errors import ErrorCode
from comln_serve.imaging import FORMATS
from tests.support import http
from tests.support.engines import Serve
from tests.support.image_files import encode, image_bytes, tiff, tiff_of
from tests.support.live import live_server
from tests.support.messages import RED, adapt_form, b64, check_error, predict_form

COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}


def test_phone_photos_and_scans_in_one_request(models_dir: Path, tmp_path: Path) -> None:
    """And what Pillow and libtiff say of damaged files does not fill the log."""
    fmts = ("HEIC", "AVIF", "TIFF")
    support = [(image_bytes(colour, (50, 38), fmt), label) for label, colour in COLOURS.items() for fmt in fmts]
    queries = [image_bytes(colour, (64, 40), fmt, seed=5) for colour, fmt in zip(COLOURS.values(), fmts, strict=True)]
    same = [image_bytes(colour, (64, 40), "PNG", seed=5) for colour in COLOURS.values()]
    page = {256: (4, (4,)), 257: (4, (4,)), 258: (3, (8,)), 259: (3, (1,)), 262: (3, (1,))}
    damaged = bytearray(tiff({**page, 700: (7, bytes(5000))}, bytes(16)))
    cut = bytes(damaged[:-4000])
    too_many = tiff_of(np.zeros((4, 4), np.uint8), t277=70_000)
    lines = np.random.default_rng(0).integers(0, 2, (50, 50)).astype(bool)
    fax = encode(Image.fromarray(lines), "TIFF", compression="group4")
    broken = fax[:12] + bytes(byte ^ 255 for byte in fax[12:32]) + fax[32:]
    with live_server(models_dir, tmp_path, "--default-model", "tiny") as server:
        made = http.post(f"{server.url}/adapt", **adapt_form(support, name="known"))
        assert made.status_code == 201, made.text
        found = http.post(f"{server.url}/predict", **predict_form(*queries, *same)).json()
        labels = [prediction["label"] for prediction in found["predictions"]]
        assert labels == list(COLOURS) * 2
        for file in (cut, too_many, broken, *(encode(Image.new("L", (9, 9)), "TIFF")[:n] for n in (90, 99))):
            answer = http.post(f"{server.url}/predict", **predict_form(file))
            assert answer.status_code in (200, 422)
        loggers = {json.loads(line)["logger"] for line in server.log.read_text().splitlines()}
        assert loggers <= {"comln_serve", "comln_serve.engine.bundles", "comln_serve.requests", "uvicorn.error"}


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_formats_that_are_switched_off_are_refused_by_name(
    serve: Serve, request: pytest.FixtureRequest, on_a_gpu: bool
) -> None:
    if on_a_gpu:
        request.getfixturevalue("batched")
    client = serve(image_formats="JPEG,PNG")
    client.post("/adapt", **adapt_form(name="known")).raise_for_status()
    for images in ([image_bytes(fmt="HEIC")], [RED, image_bytes(fmt="HEIC")]):
        answer = client.post("/predict", **predict_form(*images))
        detail = check_error(answer, ErrorCode.INVALID_IMAGE)["detail"]
        assert detail["received_format"] == "HEIC"
        assert detail["allowed_formats"] == ["JPEG", "PNG"]
    tensor = {"name": "IMAGE", "shape": [1], "datatype": "BYTES"}
    data = [b64(image_bytes(fmt="TIFF"))]
    answer = client.post("/v2/models/known/infer", json={"inputs": [{**tensor, "data": data}]})
    assert answer.status_code == 422
    assert "TIFF" in answer.json()["error"]
    assert client.post("/predict", **predict_form(RED)).status_code == 200


def test_image_formats_are_read_in_any_case_and_order() -> None:
    assert Settings().accepted_formats == FORMATS
    listed = Settings.model_validate({"image_formats": " png, heic,,JPEG,png "})
    assert listed.image_formats == "JPEG,PNG,HEIC"
    assert listed.accepted_formats == ("JPEG", "PNG", "HEIC")


@pytest.mark.parametrize("listed", ["", " , ", "PNG,HEIF", "JPG", "PDF"])
def test_lists_of_no_or_unknown_formats_are_refused(listed: str) -> None:
    with pytest.raises(ValueError, match="JPEG, PNG"):
        Settings.model_validate({"image_formats": listed})
