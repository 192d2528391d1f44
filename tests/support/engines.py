"""What tests ask of an engine and do to it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.embedding.batcher import Batcher
from comln_serve.engine.embedding.decoders import File
from comln_serve.engine.engine import Engine, Predicted
from comln_serve.errors import ErrorCode, ServiceError

MakeEngine = Callable[..., Engine]
Serve = Callable[..., TestClient]


def fails(code: ErrorCode, action: Callable[[], object]) -> ServiceError:
    """The error of that code that an action must end with."""
    with pytest.raises(ServiceError) as caught:
        action()
    assert caught.value.code is code
    return caught.value


def predict(engine: Engine, images: Sequence[File], reference: str, *arguments: Any, **options: Any) -> Predicted:
    """The result of `Engine.predict`, on an event loop of its own."""
    return asyncio.run(engine.predict(images, reference, *arguments, **options))


def batcher_of(engine: Engine, model: str = "tiny") -> Batcher:
    """What forms the batches of a model."""
    return engine.models[model].batcher


def before_each_batch(engine: Engine, call: Callable[[int], object], model: str = "tiny") -> None:
    """Call it with the number of images before they are embedded, on the thread that does."""
    batcher = batcher_of(engine, model)
    network = batcher.network

    class Told:
        def embed(self, images: Any, cancellation: Cancellation, *, alone: bool) -> Any:
            call(len(images))
            return network.embed(images, cancellation, alone=alone)

    batcher.network = Told()
