"""Weights rounded to 7 bits: the outputs change less than with the nearest integers, for every kind of product."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from training.bundles.rounding import LARGEST, Product, round_weights, rounded

SIZE, CHANNELS = 12, 8
IMAGES = np.random.default_rng(0).integers(0, 256, (16, SIZE, SIZE, 3), dtype=np.uint8)

CONVOLUTIONS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"kernel_shape": [1, 1]}, (6, CHANNELS, 1, 1)),
    ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, (6, CHANNELS, 3, 3)),
    ({"kernel_shape": [3, 2], "pads": [0, 1, 2, 0], "strides": [2, 1]}, (6, CHANNELS, 3, 2)),
    ({"kernel_shape": [3, 3], "dilations": [2, 3]}, (6, CHANNELS, 3, 3)),
    ({"kernel_shape": [3, 3], "group": CHANNELS, "auto_pad": "SAME_UPPER"}, (CHANNELS, 1, 3, 3)),
    ({"kernel_shape": [2, 2], "strides": [1, 2], "auto_pad": "SAME_LOWER"}, (6, CHANNELS, 2, 2)),
    ({"kernel_shape": [3, 5], "strides": [2, 3], "auto_pad": "SAME_UPPER"}, (6, CHANNELS, 3, 5)),
    ({"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"}, (6, CHANNELS, 3, 3)),
    ({"kernel_shape": [3, 3], "group": 2, "pads": [1, 1, 1, 1]}, (6, CHANNELS // 2, 3, 3)),
]
PRODUCTS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    *(("Conv", attributes, shape) for attributes, shape in CONVOLUTIONS),
    ("MatMul", {}, (CHANNELS, 6)),
    ("Gemm", {}, (CHANNELS, 6)),
    ("Gemm", {"transB": 1}, (6, CHANNELS)),
]


def network(kind: str, attributes: dict[str, Any], shape: tuple[int, ...]) -> ModelProto:
    """A product whose inputs, 8 channels of which 3 are independent, depend on one another."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(3, CHANNELS)) + 0.1
    constants = {"features": features / 128, "weights": rng.normal(size=shape) * rng.uniform(0.5, 2, (1, *shape[1:]))}
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["pixels", "features"], ["mixed"], name="mixing"),
        helper.make_node("Relu", ["mixed"], ["positive"]),
    ]
    before = {"Conv": ("Transpose", {"perm": [0, 3, 1, 2]}), "MatMul": ("Identity", {}), "Gemm": ("ReduceMean", {})}
    operator, more = before[kind]
    if operator == "ReduceMean":
        constants["axes"] = np.array([1, 2])
        nodes.append(helper.make_node(operator, ["positive", "axes"], ["inputs"], keepdims=0))
    else:
        nodes.append(helper.make_node(operator, ["positive"], ["inputs"], **more))
    nodes.append(helper.make_node(kind, ["inputs", "weights"], ["outputs"], name="product", **attributes))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", SIZE, SIZE, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("outputs", "inputs")],
        [
            numpy_helper.from_array(value if value.dtype == np.int64 else value.astype(np.float32), name)
            for name, value in constants.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(model: ModelProto) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Outputs and inputs of the product."""
    outputs, inputs = ort.InferenceSession(model.SerializeToString()).run(None, {"images": IMAGES})
    return np.asarray(outputs), np.asarray(inputs)


def weights_of(model: ModelProto) -> NDArray[np.float32]:
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == "weights"))


def with_weights(model: ModelProto, weights: NDArray[np.float32]) -> ModelProto:
    changed = ModelProto()
    changed.CopyFrom(model)
    next(tensor for tensor in changed.graph.initializer if tensor.name == "weights").CopyFrom(
        numpy_helper.from_array(weights.astype(np.float32), "weights")
    )
    return changed


@pytest.mark.parametrize(("kind", "attributes", "shape"), PRODUCTS)
def test_outputs_change_less_than_with_the_nearest_integers(
    kind: str, attributes: dict[str, Any], shape: tuple[int, ...]
) -> None:
    floats, integers = network(kind, attributes, shape), network(kind, attributes, shape)
    original = weights_of(floats)
    [result] = round_weights(integers, {"product"}, IMAGES)
    axes = tuple(axis for axis in range(len(shape)) if axis != result.axis)
    scales = np.expand_dims(result.scales, axes)
    assert result.weights == "weights"
    np.testing.assert_allclose(result.scales, np.abs(original).max(axis=axes) / LARGEST, rtol=1e-6)
    multiples = weights_of(integers) / scales
    np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-4)
    assert np.abs(multiples).max() <= LARGEST + 1e-4
    nearest = with_weights(floats, np.rint(original / scales) * scales)
    expected, found, plain = (run(model)[0] for model in (floats, integers, nearest))
    assert np.square(found - expected).sum() < 0.5 * np.square(plain - expected).sum()


@pytest.mark.parametrize(("kind", "attributes", "shape"), PRODUCTS)
def test_rows_are_what_the_weights_are_multiplied_by(
    kind: str, attributes: dict[str, Any], shape: tuple[int, ...]
) -> None:
    model = network(kind, attributes, shape)
    product = Product.of(model.graph.node[-1], model.graph)
    assert product is not None
    outputs, inputs = run(model)
    rows = product.rows(inputs).double().numpy()
    weights = np.moveaxis(weights_of(model), product.axis, 0).reshape(product.groups, -1, rows.shape[1])
    found = weights @ rows  # (groups, outputs of a group, positions)
    expected = outputs if kind == "Conv" else np.moveaxis(outputs, -1, 1)
    expected = np.moveaxis(expected.reshape(*expected.shape[:2], -1), 0, 1).reshape(found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_groups_are_rounded_as_if_each_were_alone() -> None:
    rng = np.random.default_rng(2)
    weights = rng.uniform(-LARGEST, LARGEST, (3, 5, 4))
    inputs = rng.normal(size=(3, 4, 4)) @ rng.normal(size=(3, 4, 50))
    moments = inputs @ inputs.swapaxes(1, 2)
    together = rounded(weights, moments)
    alone = [rounded(weights[i : i + 1], moments[i : i + 1])[0] for i in range(3)]
    np.testing.assert_array_equal(together, alone)
    assert np.array_equal(together, np.rint(together))


def test_integers_stay_and_independent_inputs_take_the_nearest() -> None:
    rng = np.random.default_rng(3)
    weights = rng.uniform(-LARGEST, LARGEST, (1, 5, 4))
    moments = np.diag([4.0, 1.0, 3.0, 2.0])[None]
    np.testing.assert_array_equal(rounded(weights, moments), np.rint(weights))
    dependent = np.ones((1, 4, 4)) + 0.1 * moments
    np.testing.assert_array_equal(rounded(np.rint(weights), dependent), np.rint(weights))


def test_an_input_that_is_always_0_does_no_harm() -> None:
    weights = np.random.default_rng(4).uniform(-LARGEST, LARGEST, (1, 5, 4))
    moments = np.diag([0.0, 1.0, 0.0, 2.0])[None]
    np.testing.assert_array_equal(rounded(weights, moments), np.rint(weights))
    np.testing.assert_array_equal(rounded(weights, np.zeros((1, 4, 4))), np.rint(weights))


def test_many_inputs_are_rounded_like_few() -> None:
    """In blocks; here beside one input after the other, each error made up for by the best of all others left."""
    rng = np.random.default_rng(5)
    count = 300
    weights = rng.uniform(-LARGEST, LARGEST, (1, 2, count))
    inputs = rng.normal(size=(count, 40)) @ rng.normal(size=(40, 2000)) + rng.normal(size=(count, 2000))
    inputs *= np.linspace(2, 1, count)[:, None]  # in the order of their second moments
    moments = inputs @ inputs.T / 2000
    order = np.argsort(-np.diagonal(moments))
    damped = moments + 0.01 * np.diagonal(moments).mean() * np.eye(count)
    left = weights[0].copy()
    for place, i in enumerate(order):
        integer = np.clip(np.rint(left[:, i]), -LARGEST, LARGEST)
        others = order[place + 1 :]
        answer = np.linalg.solve(damped[np.ix_(others, others)], damped[others, i])
        left[:, others] += np.outer(left[:, i] - integer, answer)
        left[:, i] = integer
    np.testing.assert_array_equal(rounded(weights, moments[None])[0], left)


def _shared(model: ModelProto) -> None:
    model.graph.node.append(helper.make_node("MatMul", ["inputs", "weights"], ["second"], name="again"))


def _read_in_a_branch(model: ModelProto) -> None:
    value = helper.make_tensor_value_info("weights_too", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Identity", ["weights"], ["weights_too"])], "branch", [], [value])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    model.graph.node.append(
        helper.make_node("If", ["always"], ["chosen"], name="if", then_branch=branch, else_branch=branch)
    )


def _given_out(model: ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("weights", TensorProto.FLOAT, None))


def _not_constant(model: ModelProto) -> None:
    model.graph.node[-1].input[1] = "elsewhere"


def _transposed(model: ModelProto) -> None:
    product = helper.make_node("Gemm", ["inputs", "weights"], ["outputs"], transA=1, name="product")
    model.graph.node[-1].CopyFrom(product)


def _other_operator(model: ModelProto) -> None:
    model.graph.node[-1].op_type = "ConvTranspose"


def _too_many_inputs(model: ModelProto) -> None:
    weights = np.zeros((8193, 6), np.float32)
    next(t for t in model.graph.initializer if t.name == "weights").CopyFrom(
        numpy_helper.from_array(weights, "weights")
    )


@pytest.mark.parametrize(
    "change", [_shared, _read_in_a_branch, _given_out, _not_constant, _transposed, _other_operator, _too_many_inputs]
)
def test_what_cannot_be_rounded_is_left(change: Callable[[ModelProto], None]) -> None:
    model = network("MatMul", {}, (CHANNELS, 6))
    change(model)
    expected = model.SerializeToString(deterministic=True)
    assert round_weights(model, {"product"}, IMAGES) == []
    assert model.SerializeToString(deterministic=True) == expected
