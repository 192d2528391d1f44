"""Networks in 8-bit integers give the same embeddings on every CPU."""

import numpy as np
import onnxruntime as ort

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.imaging import prepare_image
from tests.support.paths import REPOSITORY


def test_the_photo_network_computes_what_its_graph_says() -> None:
    """As the graph does operator by operator, in floats. Where products of 8 bits overflow, as in a CPU without VNNI,
    the least cosine falls below 0.8.
    """
    bundle = load_bundle(REPOSITORY / "models" / "photos-efficientnet-lite0")
    photos = sorted((REPOSITORY / "examples").rglob("*.jpg"))[::12]
    images = np.stack([prepare_image(path.read_bytes(), bundle.manifest.preprocessing) for path in photos])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = ort.InferenceSession(bundle.backbone, options, providers=["CPUExecutionProvider"])
    expected = np.asarray(plain.run(None, {plain.get_inputs()[0].name: images})[0])
    found = OnnxBackbone(bundle, "cpu").embed(images)
    cosines = (expected * found).sum(1) / (np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1))
    assert len(images) > 5
    assert cosines.min() > 0.995
