"""Clients that adapt at the same time get the classifiers they asked for."""

from typing import Any

import numpy as np
import pytest

from comln_serve.configuration.settings import Settings
from tests.support import http
from tests.support.engines import MakeEngine, predict
from tests.support.image_files import image_bytes
from tests.support.messages import adapt_form, predict_form
from tests.support.serving import served
from tests.support.waiting import at_once

Support = list[tuple[bytes, str]]
CLIENTS = 50
QUERIES = [image_bytes((40 * i, 250 - 40 * i, 120), seed=i) for i in range(4)]


def support_of(client: int) -> Support:
    """Two to five classes of one to three images; nobody else has these labels or pixels."""
    rng = np.random.default_rng(client)
    return [
        (image_bytes(tuple(rng.integers(0, 256, 3)), seed=1000 * client + 10 * way + shot), f"class {way} of {client}")
        for way in range(2 + client % 4)
        for shot in range(1 + client % 3)
    ]


def asked(url: str, client: int, **options: Any) -> list[dict[str, Any]]:
    """Adapt and predict as that client; every class with its probability, an entry an image."""
    with http.session(timeout=120) as session:
        made = session.post(f"{url}/adapt", **adapt_form(support_of(client), **options))
        assert made.status_code == 201, made.text
        body = predict_form(*QUERIES, classifier=made.json()["id"], top_k=5)
        answer = session.post(f"{url}/predict", **body).raise_for_status().json()
    assert answer["classifier"] == made.json()["id"]
    return [{one["label"]: one["probability"] for one in p["top"]} for p in answer["predictions"]]


@pytest.mark.parametrize("name", [None, "shared"])
def test_adaptations_at_the_same_time_do_not_mix(settings: Settings, make_engine: MakeEngine, name: str | None) -> None:
    """Each predicts to the last bit as one that was made alone; under one name as well."""
    alone = make_engine(database_url=settings.database_url + "1")
    together = make_engine()
    options = {} if name is None else {"name": name}
    with served(together) as url:
        found = at_once(lambda client: asked(url, client, **options), range(CLIENTS))
        assert together.store.count() == CLIENTS
    for client in range(CLIENTS):
        made = alone.adapt(support_of(client)).classifier
        expected = predict(alone, QUERIES, made.id)
        assert found[client] == [dict(zip(made.labels, row, strict=True)) for row in expected.probabilities]
