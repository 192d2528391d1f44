"""Whose image the decoders take next."""

from typing import Any, NoReturn

import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding import decoders as module
from comln_serve.engine.embedding.decoders import Decoders
from comln_serve.engine.embedding.job import Job
from comln_serve.imaging import FORMATS, ImageError, Preprocessing
from tests.support.waiting import wait_until

POLICY = Preprocessing(image_size=8)
SETTINGS = Settings(max_queue_seconds=1000, max_inference_seconds=1000)


def test_a_tenant_with_one_image_at_a_time_has_every_second_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose last image is taken has no turn any more, while its images are still to be embedded."""
    order: list[str] = []

    def request(name: str, images: int) -> None:
        job = Job(images, SETTINGS, tenant=name)
        decoders.submit(job, [name.encode()] * images, POLICY, lambda _position, _views: None, partial=True)

    def look(data: bytes, **_options: Any) -> NoReturn:
        order.append(data.decode())
        if order[-1] == "first":
            request("many", 10)
        if order[-1] in ("first", "one") and len(order) < 20:
            request("one", 1)
        raise ImageError("invalid_image", "none of these can be read")

    monkeypatch.setattr(module, "open_image", look)
    decoders = Decoders(1, 1000, FORMATS, 30.0)
    request("first", 1)
    wait_until(lambda: order.count("many") == 10)
    decoders.close()
    assert order[1:13] == ["many", "one"] * 6
