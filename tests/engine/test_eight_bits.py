"""Networks in 8-bit integers give the same embeddings on every CPU."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from comln_serve.bundle import Bundle, load_bundle
from comln_serve.engine.embedding import onnx_session
from comln_serve.engine.embedding.backbone import OnnxBackbone
from comln_serve.engine.embedding.onnx_session import EXACT_PRODUCTS
from tests.support.image_files import prepare_image
from tests.support.paths import REPOSITORY

BUNDLES = ["photos-efficientnet-lite0", "miniimagenet-resnet12"]


def stored(name: str, bits: int) -> Bundle:
    """A bundle, whose weights have 7 bits; or with twice these integers, at half the scale."""
    bundle = load_bundle(REPOSITORY / "models" / name)
    if bits == 7:
        return bundle
    model = onnx.load_from_string(bundle.backbone)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in tensors:  # weights, and biases in 32 bits
            integers, scale = (tensors[name] for name in node.input[:2])
            values = numpy_helper.to_array(integers)
            doubled = np.clip(2 * values.astype(np.int64), -127, 127) if values.dtype == np.int8 else 2 * values
            integers.CopyFrom(numpy_helper.from_array(doubled.astype(values.dtype), integers.name))
            scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) / 2, scale.name))
    return replace(bundle, backbone=model.SerializeToString())


@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("name", BUNDLES)
def test_a_network_computes_what_its_graph_says(name: str, bits: int) -> None:
    """As the graph does operator by operator, in floats. Where products of 8 bits overflow, as in a CPU without VNNI,
    the least cosine falls to 0.94.
    """
    bundle = stored(name, bits)
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
    monkeypatch.setattr(onnx_session, "has_vnni", lambda: vnni)
    graph = load_bundle(REPOSITORY / "models" / "photos-efficientnet-lite0").backbone
    options = onnx_session.open_session(graph, "here", "cpu").get_session_options()
    key, value = EXACT_PRODUCTS
    if vnni:
        with pytest.raises(RuntimeError, match=key):
            options.get_session_config_entry(key)
    else:
        assert options.get_session_config_entry(key) == value


@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("name", BUNDLES)
def test_exact_products_change_nothing_where_they_are_not_needed(
    monkeypatch: pytest.MonkeyPatch, name: str, bits: int
) -> None:
    """Weights of 7 bits never need them, others only on CPUs without VNNI."""
    if bits == 8 and not onnx_session.has_vnni():
        pytest.skip("this CPU has no VNNI: weights of 8 bits need exact products")
    bundle = stored(name, bits)
    size = bundle.manifest.preprocessing.image_size
    images = np.random.default_rng(0).integers(0, 256, (3, size, size, 3), dtype=np.uint8)
    monkeypatch.setattr(onnx_session, "has_vnni", lambda: True)
    found = OnnxBackbone(bundle, "cpu").embed(images)
    monkeypatch.setattr(onnx_session, "has_vnni", lambda: False)
    assert np.array_equal(OnnxBackbone(bundle, "cpu").embed(images), found)
