"""Train, export, serve in a process of its own, adapt and predict over HTTP: the same as torch."""

from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch

from tests.support.image_files import image_bytes, prepare_image
from tests.support.live import live_server
from tests.support.tiny import ABOUT
from tests.support.training import colour_classes, config
from training.bundles.export import export_bundle
from training.checkpoint import Checkpoint
from training.checkpoint_names import BEST
from training.model import MetaModel
from training.runs.fit import fit

pytestmark = pytest.mark.slow

# Probabilities over HTTP against torch: float32 embeddings from two libraries, a head stored in
# float32, and a solve to 1e-6 against one to 1e-8.
TOLERANCE = 1e-4


@pytest.mark.parametrize("start", ["zero", "prototype", "learned"])
def test_http_predictions_equal_torch(tmp_path: Path, start: str) -> None:
    data = colour_classes()
    fit(config(start), data, data, tmp_path / "run", resume=False)
    checkpoint = Checkpoint.load(tmp_path / "run" / BEST)
    export_bundle(checkpoint, tmp_path / "models" / "fresh", ABOUT)

    colours = [(220, 40, 40), (40, 200, 60), (50, 60, 220), (200, 200, 40), (120, 120, 120)]
    # JPEG of another size than the backbone's: decoding and resizing are part of the comparison.
    support = [
        (image_bytes(colour, (50, 37), "JPEG", seed), f"colour {i}")
        for i, colour in enumerate(colours)
        for seed in range(2)
    ]
    query = [image_bytes(colour, (41, 64), "JPEG", 9) for colour in reversed(colours)]
    expected = torch_probabilities(checkpoint.restore_model().eval(), support, query)

    with live_server(tmp_path / "models", tmp_path) as server:
        adapted = httpx2.post(
            f"{server.url}/adapt",
            files=[("images", ("s.jpg", image)) for image, _ in support],
            data={"labels": [label for _, label in support], "name": "colours"},
            timeout=60,  # the first one may compile on a busy machine
        )
        assert adapted.status_code == 201, adapted.text
        answer = httpx2.post(
            f"{server.url}/predict",
            files=[("images", ("q.jpg", image)) for image in query],
            data={"classifier": "colours", "top_k": "5"},
            timeout=60,  # the first one may compile on a busy machine
        )
    assert answer.status_code == 200, answer.text
    labels = [item["label"] for item in adapted.json()["classes"]]
    # Ten images that were held out give the classifier a temperature.
    assert answer.json()["calibrated"] is True
    cooled = expected ** (1 / adapted.json()["report"]["temperature"])
    expected = cooled / cooled.sum(axis=1, keepdims=True)
    for row, prediction in zip(expected, answer.json()["predictions"], strict=True):
        found = {item["label"]: item["probability"] for item in prediction["top"]}
        np.testing.assert_allclose([found[label] for label in labels], row, atol=TOLERANCE)
        assert prediction["label"] == labels[int(row.argmax())]


def torch_probabilities(model: MetaModel, support: list[tuple[bytes, str]], query: list[bytes]) -> np.ndarray:
    """Class probabilities (Q, N) by torch alone: its backbone, its differentiable flow."""
    policy = model.config.data.preprocessing

    def embed(files: list[bytes]) -> torch.Tensor:
        images = np.stack([prepare_image(data, policy) for data in files])
        embeddings: torch.Tensor = model.backbone(torch.from_numpy(images))
        return embeddings

    labels = list(dict.fromkeys(label for _, label in support))
    truth = torch.tensor([labels.index(label) for _, label in support])
    with torch.no_grad():
        phi = embed([data for data, _ in support])
        Y = torch.nn.functional.one_hot(truth, len(labels)).to(phi.dtype)
        W = model.adapt(phi[None], Y[None])[0]
        return torch.softmax(embed(query) @ W.T, dim=1).numpy()
