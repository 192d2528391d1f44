"""Networks in 8-bit integers give the same embeddings on every CPU."""

import numpy as np
import onnxruntime as ort
import pytest

from comln_serve.bundle import load_bundle
from comln_serve.engine.embedding import backbone
from comln_serve.engine.embedding.backbone import EXACT_PRODUCTS, OnnxBackbone
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


@pytest.mark.parametrize("vnni", [False, True])
def test_exact_products_are_asked_for_where_the_cpu_has_no_vnni(monkeypatch: pytest.MonkeyPatch, vnni: bool) -> None:
    """On CPUs with VNNI they would take twice the time."""
    monkeypatch.setattr(backbone, "has_vnni", lambda: vnni)
    graph = load_bundle(REPOSITORY / "models" / "photos-efficientnet-lite0").backbone
    options = backbone.open_session(graph, "here", "cpu").get_session_options()
    key, value = EXACT_PRODUCTS
    if vnni:
        with pytest.raises(RuntimeError, match=key):
            options.get_session_config_entry(key)
    else:
        assert options.get_session_config_entry(key) == value


def test_exact_products_change_nothing_where_they_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    if not backbone.has_vnni():
        pytest.skip("this CPU has no VNNI: exact products are asked for")
    bundle = load_bundle(REPOSITORY / "models" / "photos-efficientnet-lite0")
    images = np.random.default_rng(0).integers(0, 256, (3, 224, 224, 3), dtype=np.uint8)
    found = OnnxBackbone(bundle, "cpu").embed(images)
    monkeypatch.setattr(backbone, "has_vnni", lambda: False)
    assert np.array_equal(OnnxBackbone(bundle, "cpu").embed(images), found)
